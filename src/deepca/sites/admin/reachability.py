"""Check whether neighbours can be reached and accept this site, and listen to their agents.

:func:`probe_address` ends after the TLS handshake, so it does not disturb any agent. :func:`query_agents` opens streams
as the agent of this site would, but takes no part in a run: it sends nothing to a neighbour that already knows an agent
of this site, since that neighbour might mistake it for a restart of the agent. Do not use it while the agent of this
site is running.
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
from deepca.sites.pki.keys import pending_key_path
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.records import Record
from deepca.sites.runtime.link import Link
from deepca.sites.transport.endpoint import peers_of

__all__ = ["AddressProbe", "AgentReport", "probe_address", "query_agents"]

Stage = Literal["name", "refused", "unreachable", "silent", "tls", "certificate", "welcome", "open"]

_FIRST_AGENT_START = 1 << 53  # agents number their starts by the time in nanoseconds, which is above this
_MAX_MESSAGE_BYTES = 1 << 24  # accepted from a neighbour; records are far smaller
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # and empty SETTINGS
_TLS_ALERTS = {
    "UNKNOWN_CA": "it does not trust the authority that signed it",
    "CERTIFICATE_EXPIRED": "it considers it expired",
    "CERTIFICATE_REVOKED": "it considers it revoked",
    "CERTIFICATE_REQUIRED": "it did not receive one",
    "BAD_CERTIFICATE": "it considers it malformed",
    "CERTIFICATE_UNKNOWN": "it does not say why; see its log",
}


@dataclass(frozen=True)
class AddressProbe:
    """Result of an attempt to connect to an address.

    Parameters
    ----------
    stage : str
        The step that failed; "open" if none did.
    why : str
        What went wrong, in words.
    owner : str, optional
        The site that the certificate presented there names.
    not_after : float, optional
        When that certificate expires, in seconds since 1970.
    reason : str
        Why that certificate is not accepted, as in :class:`~deepca.errors.Refused`.
    """

    stage: Stage
    why: str = ""
    owner: str | None = None
    not_after: float | None = None
    reason: str = ""


def probe_address(
    address: str, expected: str, site: SiteFile, mine: Identity | None, patience: float = 3.0
) -> AddressProbe:
    """Connect to an address and complete the TLS handshake, without opening a stream to the agent there.

    Parameters
    ----------
    address : str
        Host and port.
    expected : str
        The site that should listen there.
    site : SiteFile
        This site.
    mine : Identity or None
        This site's credentials; None for a network without certificates.
    patience : float
        Seconds to wait for each step.
    """
    host, port = split_address(address)
    try:
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        return AddressProbe("name", f"the name {host} cannot be resolved ({error.strerror or error})")
    try:
        connection = socket.create_connection((host, port), patience)
    except ConnectionRefusedError:
        return AddressProbe("refused", f"nothing listens at {address}")
    except TimeoutError:
        return AddressProbe("unreachable", f"no answer from {address} within {patience:g} s")
    except OSError as error:
        return AddressProbe("unreachable", f"no route to {address} ({error.strerror or error})")
    with connection:
        if mine is None:
            return AddressProbe("open")
        try:
            secured = _context(site).wrap_socket(connection, server_hostname=expected)
        except TimeoutError:
            return AddressProbe("silent", f"{address} accepts the connection but then sends nothing")
        except (OSError, ValueError) as error:
            return AddressProbe("tls", f"the program that listens at {address} {_explain_tls_failure(error)}")
        with secured:
            return _check_secured(secured, address, expected, mine)


def _check_secured(secured: ssl.SSLSocket, address: str, expected: str, mine: Identity) -> AddressProbe:
    """Check the certificate that was presented, and whether that of this site is accepted."""
    presented = secured.getpeercert(binary_form=True) or b""
    owner, end = None, None
    with contextlib.suppress(ValueError):
        certificate = x509.load_der_x509_certificate(presented)
        end = certificate.not_valid_after_utc.timestamp()
        owner = site_of(certificate)[1]
    try:
        mine.check_peer(presented, expected)
    except Refused as error:
        return AddressProbe("certificate", str(error), owner, end, error.reason)
    if secured.selected_alpn_protocol() != "h2":
        why = f"the program that listens at {address} has the right certificate, but is not an agent"
        return AddressProbe("tls", why, owner, end)
    try:
        secured.sendall(_HTTP2_PREFACE)
        answer = secured.recv(9)  # an agent that accepts the certificate answers at once
    except TimeoutError:
        return AddressProbe("silent", f"{address} completes the TLS handshake but then sends nothing", owner, end)
    except OSError as error:
        return AddressProbe(
            "welcome", f"it does not accept the certificate of this site: {_explain_alert(error)}", owner, end
        )
    if not answer:
        why = "it closes the connection, perhaps because it does not accept the certificate of this site; see its log"
        return AddressProbe("welcome", why, owner, end)
    return AddressProbe("open", "", owner, end)


def _context(site: SiteFile) -> ssl.SSLContext:
    """Return a context for TLS 1.3 with this site's certificate.

    The other side's certificate is checked after the handshake, so that what is wrong with it can be reported.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        context.load_cert_chain(site.certificate, site.key)
    except ssl.SSLError:
        context.load_cert_chain(site.certificate, pending_key_path(site.key))  # a renewal was interrupted
    return context


def _explain_tls_failure(error: Exception) -> str:
    """Describe a failed handshake in a clause whose subject is the program at the other side."""
    reason = getattr(error, "reason", None) or ""
    if isinstance(error, (ssl.SSLEOFError, ConnectionError)):
        return "closes the connection at once; it is not an agent, or something in between blocks TLS"
    if "WRONG_VERSION_NUMBER" in reason or "UNEXPECTED" in reason or "RECORD" in reason or "HTTP" in reason:
        return "does not speak TLS; it is not an agent, or is one with plaintext = true"
    if "PROTOCOL_VERSION" in reason or "UNSUPPORTED_PROTOCOL" in reason or "HANDSHAKE_FAILURE" in reason:
        return "does not speak TLS 1.3"
    if "NO_APPLICATION_PROTOCOL" in reason:
        return "speaks TLS, but is not an agent"
    return f"does not complete the TLS handshake ({getattr(error, 'reason', None) or error})"


def _explain_alert(error: OSError) -> str:
    reason = getattr(error, "reason", None) or ""
    found = next((text for name, text in _TLS_ALERTS.items() if name in reason), None)
    return found or "it closes the connection; see its log"


# ----------------------------------------------------------------------------------------------- agents of neighbours


@dataclass(frozen=True)
class AgentReport:
    """Facts learned about a neighbour's agent.

    Parameters
    ----------
    stream : bool
        Whether a stream was opened.
    refused : str
        Why one side refused the other; empty if neither did.
    skew : float, optional
        Seconds by which its clock is ahead of this site's.
    same_network : bool, optional
        Whether its protocol, network name and list of sites are the same as here.
    knows_us : bool
        Whether it has met an agent of this site before.
    fingerprints : mapping, optional
        Fingerprints of all sites that it knows, keyed by index; None if it sent no records.
    """

    stream: bool = False
    refused: str = ""
    skew: float | None = None
    same_network: bool | None = None
    knows_us: bool = False
    fingerprints: Mapping[int, Mapping[str, bytes]] | None = None

    @property
    def complete(self) -> bool:
        """True if nothing more is expected from the agent."""
        return self.same_network is False or self.knows_us or self.fingerprints is not None or bool(self.refused)


def query_agents(site: SiteFile, mine: Identity | None, run: bytes, seconds: float) -> dict[int, AgentReport]:
    """Listen to the neighbours' agents for at most ``seconds`` seconds.

    Returns
    -------
    dict
        What is known about each neighbour's agent, keyed by its index in the list of sites.

    Raises
    ------
    InvalidInput
        If this site has to listen and another program uses its port.
    """
    from deepca.sites.transport.streams import Streams, StreamTimes

    network = site.network
    me, *peers = peers_of(network, site.index)
    listener = _Listener(network, [peer.index for peer in peers], run)
    streams = Streams(listener, me, peers, site.listen, mine, timeouts=StreamTimes(step=max(seconds, 1.0)))
    listener.wake = streams.wake
    streams.start()
    try:
        listener.wait(seconds)
    finally:
        streams.stop()
    return listener.heard()


class _Listener:
    """An Endpoint (see :mod:`deepca.sites.transport.streams`) that collects what neighbours send."""

    def __init__(self, network: NetworkFile, peers: Sequence[int], run: bytes) -> None:
        self._sites, self._run = len(network.sites), run
        self._changed = threading.Condition()
        self._links: dict[int, Link] = {}  # to the neighbours that get an answer
        self._heard = {peer: AgentReport() for peer in peers}
        self.wake: Callable[[int], None] = lambda peer: None

    def wait(self, seconds: float) -> None:
        """Wait until nothing more is expected from any neighbour, for at most ``seconds`` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: all(one.complete for one in self._heard.values()), seconds)

    def heard(self) -> dict[int, AgentReport]:
        """Return what is known about the agent of every neighbour."""
        with self._changed:
            return dict(self._heard)

    # ------------------------------------------------------------------------------------ called by the streams

    def opened(self, peer: int) -> None:
        """Record a new stream."""
        with self._changed:
            self._heard[peer] = replace(self._heard[peer], stream=True, refused="")
            self._links.pop(peer, None)

    def closed(self, peer: int, why: str) -> None:
        """Forget the link of a stream that has ended."""
        with self._changed:
            self._links.pop(peer, None)

    def refused(self, peer: int | None, where: str, why: str) -> None:
        """Record why a stream was refused."""
        with self._changed:
            if peer is not None:
                self._heard[peer] = replace(self._heard[peer], refused=why)
                self._changed.notify_all()

    def next_frame(self, peer: int) -> wire.Frame | None:
        """Return the next frame to send, if any."""
        with self._changed:
            link = self._links.get(peer)
            return None if link is None else link.next_frame(time.monotonic())

    def received(self, peer: int, frame: wire.Frame) -> None:
        """Process a frame from a neighbour."""
        with self._changed:
            now = time.monotonic()
            if frame.WhichOneof("kind") == "hello" and peer not in self._links:
                self._take_hello(peer, frame.hello, now)
            if peer in self._links:
                for arrived in self._links[peer].received(frame, now):
                    self._take_records(peer, arrived.header)
            self._changed.notify_all()
        self.wake(peer)

    def _take_hello(self, peer: int, hello: wire.Hello, now: float) -> None:
        same, met = hello.run == self._run, hello.known >= _FIRST_AGENT_START
        skew = hello.clock - time.time() if hello.clock else None
        self._heard[peer] = replace(self._heard[peer], skew=skew, same_network=same, knows_us=met)
        if same and not met:
            # numbered below every start of an agent, so that this link is ignored once the agent itself connects
            self._links[peer] = Link(Incarnation(hello.known + 1, secrets.randbits(63) | 1), self._run)
            self._links[peer].message_limit = _MAX_MESSAGE_BYTES
            self._links[peer].opened(now)

    def _take_records(self, peer: int, header: bytes) -> None:
        parcel = wire.Parcel.FromString(header)
        if parcel.WhichOneof("kind") != "records":
            return
        records = [Record.from_wire(wire.Record.FromString(one.record), self._sites) for one in parcel.records.sealed]
        known = {**(self._heard[peer].fingerprints or {}), **{one.site: one.fingerprint for one in records}}
        self._heard[peer] = replace(self._heard[peer], fingerprints=known)
