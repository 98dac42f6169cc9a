"""At a neighbour's door: is there a way to it, is it the right one, does it let us in, and what does its agent say?

:func:`knock` goes as far as TLS; that disturbs nobody. :func:`overhear` makes streams as this site's agent would, but
takes no part: it says nothing at all to a neighbour that has heard of an agent of this site before, so that no run
under way can take it for that agent come back. It must not be used while the agent of this site runs.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cryptography import x509

from deepca.errors import Refused
from deepca.sites.config.addresses import split_address
from deepca.sites.config.network_file import NetworkFile
from deepca.sites.config.site_file import SiteFile
from deepca.sites.pki.certificates import site_of
from deepca.sites.pki.identity import Identity
from deepca.sites.pki.keys import pending
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.records import Record
from deepca.sites.runtime.link import Link
from deepca.sites.transport.endpoint import peers_of

__all__ = ["Heard", "Knock", "knock", "overhear"]

Stage = Literal["name", "refused", "unreachable", "silent", "tls", "certificate", "welcome", "open"]

_AGENTS = 1 << 53  # starts of agents are counted from here on: they are times in nanoseconds
_MOST_BYTES = 1 << 24  # of anything that an agent says
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # and an empty SETTINGS frame
_ALERTS = {
    "UNKNOWN_CA": "it does not know the authority that signed it",
    "CERTIFICATE_EXPIRED": "it says that it has expired",
    "CERTIFICATE_REVOKED": "it says that it was revoked",
    "CERTIFICATE_REQUIRED": "it says that there is none",
    "BAD_CERTIFICATE": "it says that it is bad",
    "CERTIFICATE_UNKNOWN": "it does not say why",
}


@dataclass(frozen=True)
class Knock:
    """How far one comes at an address.

    stage : where it ended; "open" if all is well.  why : in plain words.  owner : the site that the certificate shown
    names, if any.  not_after : the end of that certificate, seconds since 1970.  reason : why that certificate is not
    accepted, as in :class:`~deepca.errors.Refused`.
    """

    stage: Stage
    why: str = ""
    owner: str | None = None
    not_after: float | None = None
    reason: str = ""


def knock(address: str, expected: str, site: SiteFile, mine: Identity | None, patience: float = 3.0) -> Knock:
    """At ``address``, where the site ``expected`` should be. ``mine`` : None for a network without certificates."""
    host, port = split_address(address)
    try:
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        return Knock("name", f"the name {host} is not known here ({error.strerror or error})")
    try:
        connection = socket.create_connection((host, port), patience)
    except ConnectionRefusedError:
        return Knock("refused", f"nothing listens at {address}")
    except TimeoutError:
        return Knock("unreachable", f"no answer from {address} within {patience:g} s; a firewall on the way?")
    except OSError as error:
        return Knock("unreachable", f"no way to {address} ({error.strerror or error})")
    with connection:
        if mine is None:
            return Knock("open")
        try:
            secured = _context(site).wrap_socket(connection, server_hostname=expected)
        except TimeoutError:
            return Knock("silent", f"{address} takes the connection and then says nothing")
        except (OSError, ValueError) as error:
            return Knock("tls", f"what listens at {address} {_unsecured(error)}")
        with secured:
            return _look_at(secured, address, expected, mine)


def _look_at(secured: ssl.SSLSocket, address: str, expected: str, mine: Identity) -> Knock:
    """Whose certificate it is, and whether ours is accepted."""
    shown = secured.getpeercert(binary_form=True) or b""
    owner, end = None, None
    with contextlib.suppress(ValueError):
        certificate = x509.load_der_x509_certificate(shown)
        end = certificate.not_valid_after_utc.timestamp()
        owner = site_of(certificate)[1]
    try:
        mine.check_peer(shown, expected)
    except Refused as error:
        return Knock("certificate", str(error), owner, end, error.reason)
    if secured.selected_alpn_protocol() != "h2":
        return Knock("tls", f"what listens at {address} has the right certificate, but is no agent", owner, end)
    try:
        secured.sendall(_PREFACE)
        word = secured.recv(9)  # an agent that accepts us begins to speak at once
    except TimeoutError:
        return Knock("silent", f"{address} makes the connection secure and then says nothing", owner, end)
    except OSError as error:
        return Knock("welcome", f"it does not accept the certificate of this site: {_alert(error)}", owner, end)
    if not word:
        why = "it closes the connection; it may not accept the certificate of this site, and its log says why"
        return Knock("welcome", why, owner, end)
    return Knock("open", "", owner, end)


def _context(site: SiteFile) -> ssl.SSLContext:
    """TLS 1.3 with our certificate. What the other side shows is judged afterwards, to be able to say what it is."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        context.load_cert_chain(site.certificate, site.key)
    except ssl.SSLError:
        context.load_cert_chain(site.certificate, pending(site.key))  # a renewal that was cut short
    return context


def _unsecured(error: Exception) -> str:
    reason = getattr(error, "reason", None) or ""
    if isinstance(error, (ssl.SSLEOFError, ConnectionError)):
        return "closes the connection at once; it is no agent, or something on the way does not let TLS through"
    if "WRONG_VERSION_NUMBER" in reason or "UNEXPECTED" in reason or "RECORD" in reason or "HTTP" in reason:
        return "does not speak TLS; it is no agent, or one with plaintext = true"
    if "PROTOCOL_VERSION" in reason or "UNSUPPORTED_PROTOCOL" in reason or "HANDSHAKE_FAILURE" in reason:
        return "does not speak TLS 1.3"
    if "NO_APPLICATION_PROTOCOL" in reason:
        return "speaks TLS, but is no agent"
    return f"cannot be spoken with ({getattr(error, 'reason', None) or error})"


def _alert(error: OSError) -> str:
    reason = getattr(error, "reason", None) or ""
    said = next((text for name, text in _ALERTS.items() if name in reason), None)
    return said or "it closes the connection, and its log says why"


# ------------------------------------------------------------------------------------------------------ what is said


@dataclass(frozen=True)
class Heard:
    """What a neighbour's agent has said.

    stream : whether there was one.  refused : why it, or this site, turned the other away.  skew : seconds that its
    clock is ahead of ours.  same_run : whether it is of the same network and run.  knows_us : whether it has heard of
    an agent of this site before.  fingerprints : of all sites that it knows, by place in the list of sites; None if
    not asked for.
    """

    stream: bool = False
    refused: str = ""
    skew: float | None = None
    same_run: bool | None = None
    knows_us: bool = False
    fingerprints: Mapping[int, Mapping[str, bytes]] | None = None

    @property
    def complete(self) -> bool:
        return self.same_run is False or self.knows_us or self.fingerprints is not None or bool(self.refused)


def overhear(site: SiteFile, mine: Identity | None, run: bytes, seconds: float) -> dict[int, Heard]:
    """What the agents of the neighbours say within so many seconds, by place in the list of sites.

    Raises InvalidInput if the own port is taken.
    """
    from deepca.sites.transport.streams import Streams, StreamTimes

    network = site.network
    me, *peers = peers_of(network, site.index)
    ear = _Ear(network, [peer.index for peer in peers], run)
    streams = Streams(ear, me, peers, site.listen, mine, pace=StreamTimes(step=max(seconds, 1.0)))
    ear.wake = streams.wake
    streams.start()
    try:
        ear.wait(seconds)
    finally:
        streams.stop()
    return ear.heard()


class _Ear:
    """An Endpoint (see :mod:`deepca.sites.transport.streams`) that listens."""

    def __init__(self, network: NetworkFile, peers: Sequence[int], run: bytes) -> None:
        self._sites, self._run = len(network.sites), run
        self._changed = threading.Condition()
        self._links: dict[int, Link] = {}  # to those that are spoken with
        self._heard = {peer: Heard() for peer in peers}
        self.wake: Callable[[int], None] = lambda peer: None

    def wait(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: all(one.complete for one in self._heard.values()), seconds)

    def heard(self) -> dict[int, Heard]:
        with self._changed:
            return dict(self._heard)

    # ------------------------------------------------------------------------------------------- for the streams

    def opened(self, peer: int) -> None:
        with self._changed:
            self._heard[peer] = replace(self._heard[peer], stream=True, refused="")
            self._links.pop(peer, None)

    def closed(self, peer: int, why: str) -> None:
        with self._changed:
            self._links.pop(peer, None)

    def refused(self, peer: int | None, where: str, why: str) -> None:
        with self._changed:
            if peer is not None:
                self._heard[peer] = replace(self._heard[peer], refused=why)
                self._changed.notify_all()

    def next_frame(self, peer: int) -> wire.Frame | None:
        with self._changed:
            link = self._links.get(peer)
            return None if link is None else link.next_frame(time.monotonic())

    def received(self, peer: int, frame: wire.Frame) -> None:
        with self._changed:
            now = time.monotonic()
            if frame.WhichOneof("kind") == "hello" and peer not in self._links:
                self._greeted(peer, frame.hello, now)
            if peer in self._links:
                for arrived in self._links[peer].received(frame, now):
                    self._take(peer, arrived.header)
            self._changed.notify_all()
        self.wake(peer)

    def _greeted(self, peer: int, hello: wire.Hello, now: float) -> None:
        same, met = hello.run == self._run, hello.known >= _AGENTS
        skew = hello.clock - time.time() if hello.clock else None
        self._heard[peer] = replace(self._heard[peer], skew=skew, same_run=same, knows_us=met)
        if same and not met:
            # counts as earlier than any start of an agent: should one be known after all, this is not listened to
            self._links[peer] = Link(Incarnation(hello.known + 1, secrets.randbits(63) | 1), self._run)
            self._links[peer].limit = _MOST_BYTES
            self._links[peer].opened(now)

    def _take(self, peer: int, header: bytes) -> None:
        parcel = wire.Parcel.FromString(header)
        if parcel.WhichOneof("kind") != "records":
            return
        records = [Record.from_wire(wire.Record.FromString(one.record), self._sites) for one in parcel.records.sealed]
        known = {**(self._heard[peer].fingerprints or {}), **{one.site: one.fingerprint for one in records}}
        self._heard[peer] = replace(self._heard[peer], fingerprints=known)
