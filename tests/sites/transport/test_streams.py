"""Test streams between neighbours: frames arrive, faulty sites are refused and reported, and no call blocks."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest

pytest.importorskip("grpc")
pytest.importorskip("cryptography")

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from deepca.errors import AddressInUse, FrameError, InvalidInput, NetworkError
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.protocol.handshake import Credentials
from deepca.sites.transport.channels import FRAME_LIMIT
from deepca.sites.transport.grpc_errors import CoreLog
from deepca.sites.transport.sessions import Sessions
from deepca.sites.transport.streams import Peer, Streams, StreamTimes
from tests.support.errors import raises
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from deepca.sites.pki.identity import Identity

    _usable: type[Credentials] = Identity

DAY = dt.timedelta(days=1)
FAST = StreamTimes(redial=(0.02, 0.05), recheck=0.1, repeat=5.0)
UNEXPECTED = "an unexpected frame"


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


@dataclass
class Authority:
    """Certificate authority with a list of revoked certificates."""

    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    revoked: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        now = dt.datetime.now(dt.UTC)
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(_name("authority"))
            .issuer_name(_name("authority"))
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 100 * DAY)
            .not_valid_after(now + 100 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self.key, hashes.SHA256())
        )

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, site: str, begins: dt.timedelta = -DAY, ends: dt.timedelta = DAY) -> Kit:
        key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_name(site))
            .issuer_name(self.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begins)
            .not_valid_after(now + ends)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(site)]), critical=False)
            .add_extension(usage, critical=False)
            .sign(self.key, hashes.SHA256())
        )
        return Kit(self, key, certificate)


@dataclass
class Kit:
    """Credentials in memory; ``replacement`` stands for files that have changed."""

    issuer: Authority
    private: ec.EllipticCurvePrivateKey
    x509: x509.Certificate
    trusts: Authority | None = None
    replacement: Kit | None = None

    @property
    def authority(self) -> bytes:
        return (self.trusts or self.issuer).pem

    @property
    def certificate(self) -> bytes:
        return self.x509.public_bytes(serialization.Encoding.PEM)

    @property
    def certificate_der(self) -> bytes:
        return self.x509.public_bytes(serialization.Encoding.DER)

    @property
    def key(self) -> bytes:
        return self.private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def sign(self, data: bytes) -> bytes:
        return self.private.sign(data, ec.ECDSA(hashes.SHA256()))

    def check_peer(self, certificate_der: bytes, expected_site: str) -> None:
        if certificate_der in (self.trusts or self.issuer).revoked:
            raise NetworkError(f"the certificate of {expected_site} is revoked")
        certificate = x509.load_der_x509_certificate(certificate_der)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        if expected_site not in names.get_values_for_type(x509.DNSName):
            raise NetworkError(f"the certificate was not issued to {expected_site}")
        if certificate.not_valid_after_utc < dt.datetime.now(dt.UTC):
            raise NetworkError(f"the certificate of {expected_site} has expired")

    def verify_signature(self, certificate_der: bytes, signature: bytes, data: bytes) -> bool:
        public = x509.load_der_x509_certificate(certificate_der).public_key()
        assert isinstance(public, ec.EllipticCurvePublicKey)
        try:
            public.verify(signature, data, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True

    @property
    def revocation_list_number(self) -> int:
        return 0

    @property
    def revocation_list_der(self) -> bytes:
        return b""

    def adopt(self, der: bytes) -> Credentials:
        raise AssertionError(der)

    def warning(self) -> str:
        return ""

    def changed(self) -> bool:
        return self.replacement is not None

    def reload(self) -> Credentials:
        assert self.replacement is not None
        return self.replacement


class Recorder:
    """An endpoint that records events and frames, and sends the frames in ``out``."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int | None, str]] = []
        self.frames: list[tuple[int, wire.Frame]] = []
        self.out: dict[int, deque[wire.Frame]] = {}
        self._moved = threading.Condition()

    def _note(self, what: str, peer: int | None, why: str = "") -> None:
        with self._moved:
            self.events.append((what, peer, why))
            self._moved.notify_all()

    def opened(self, peer: int) -> None:
        self._note("opened", peer)

    def closed(self, peer: int, why: str) -> None:
        self._note("closed", peer, why)

    def refused(self, peer: int | None, where: str, why: str) -> None:
        assert where
        self._note("refused", peer, why)

    def received(self, peer: int, frame: wire.Frame) -> None:
        if frame.WhichOneof("kind") == "hello":
            raise FrameError(UNEXPECTED)
        with self._moved:
            self.frames.append((peer, frame))
            self._moved.notify_all()

    def next_frame(self, peer: int) -> wire.Frame | None:
        waiting = self.out.get(peer)
        return waiting.popleft() if waiting else None

    def wait(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        end = time.monotonic() + seconds
        with self._moved:
            while not condition():
                assert time.monotonic() < end, self.events
                self._moved.wait(0.02)  # some conditions change without a notification

    def count(self, what: str) -> int:
        return sum(event[0] == what for event in self.events)

    def wait_for(self, what: str, times: int = 1) -> str:
        """Wait until a kind of event has happened ``times`` times, and return the reason of the last one."""
        self.wait(lambda: self.count(what) >= times)
        return [event[2] for event in self.events if event[0] == what][times - 1]


def frame(number: int, size: int = 0) -> wire.Frame:
    return wire.Frame(part=wire.Part(seq=number, chunk=bytes(size)))


@dataclass
class Side:
    streams: Streams
    heard: Recorder
    port: int

    def send(self, peer: int, *frames: wire.Frame) -> None:
        self.heard.out.setdefault(peer, deque()).extend(frames)
        self.streams.wake(peer)


@contextmanager
def listening(kit: Credentials | None, address: str = "127.0.0.1:0", timeouts: StreamTimes = FAST) -> Iterator[Side]:
    """Run site north, number 1, to which south and west connect."""
    heard = Recorder()
    neighbours = [Peer(0, "south", None, dial=False), Peer(2, "west", None, dial=False)]
    streams = Streams(heard, Peer(1, "north", address, dial=False), neighbours, address, kit, timeouts=timeouts)
    port = streams.start()
    try:
        yield Side(streams, heard, port)
    finally:
        streams.stop()


@contextmanager
def dialling(port: int, kit: Credentials | None, me: str = "south", timeouts: StreamTimes = FAST) -> Iterator[Side]:
    """Run site south, number 0, which connects to north."""
    heard = Recorder()
    north = Peer(1, "north", f"127.0.0.1:{port}", dial=True)
    streams = Streams(heard, Peer(0, me, None, dial=False), [north], None, kit, timeouts=timeouts)
    streams.start()
    try:
        yield Side(streams, heard, 0)
    finally:
        streams.stop()


# ---------------------------------------------------------------------------------------------------- exchanging frames


@pytest.mark.parametrize("encrypted", [True, False])
def test_frames_arrive_in_both_directions(encrypted: bool) -> None:
    authority = Authority()
    kits = [authority.issue(site) if encrypted else None for site in ("north", "south")]
    with listening(kits[0]) as north, dialling(north.port, kits[1]) as south:
        north.heard.wait_for("opened")
        south.heard.wait_for("opened")
        north.send(0, *(frame(number) for number in range(100)))
        south.send(1, *(frame(number) for number in range(100)))
        for side, other in ((north, 0), (south, 1)):
            side.heard.wait(lambda heard=side.heard: len(heard.frames) == 100)  # type: ignore[misc]
            assert [(peer, one.part.seq) for peer, one in side.heard.frames] == [(other, n) for n in range(100)]
        assert south.streams.failure(1) is None
    assert not north.heard.count("refused")
    assert not south.heard.count("refused")


def test_both_sides_can_send_large_messages_at_the_same_time() -> None:
    """They exchange 100 MB in frames below the limit; neither side has to wait until the other reads."""
    authority, count = Authority(), 100
    with (
        listening(authority.issue("north")) as north,
        dialling(north.port, authority.issue("south")) as south,
    ):
        one = frame(1, 1 << 20)
        north.send(0, *[one] * count)
        south.send(1, *[one] * count)
        for side in (north, south):
            side.heard.wait(lambda heard=side.heard: len(heard.frames) == count, 60.0)  # type: ignore[misc]
            assert sum(len(each.part.chunk) for _, each in side.heard.frames) == count << 20
        assert north.heard.count("opened") == 1


def test_stopping_is_prompt() -> None:
    authority = Authority()
    with listening(authority.issue("north")) as north, dialling(north.port, authority.issue("south")) as south:
        south.heard.wait_for("opened")
        for side in (south, north):
            begun = time.monotonic()
            side.streams.stop()
            assert time.monotonic() - begun < 1.0
            side.streams.stop()
            side.streams.wake(1 if side is south else 0)
        assert "south" in south.heard.wait_for("closed")


def test_dialling_ends_even_if_its_cancellation_is_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task may swallow its cancellation, but there must be no further attempt after a stop."""
    attempts: list[float] = []

    async def deaf(*_: object) -> None:
        attempts.append(time.monotonic())
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60.0)

    monkeypatch.setattr(Sessions, "run", deaf)
    with dialling(_free_port(), None) as south:
        south.heard.wait(lambda: len(attempts) == 1)
        south.streams.stop()
        time.sleep(3 * FAST.redial[1])
        assert len(attempts) == 1


def test_redialling_does_not_use_the_global_random_generator() -> None:
    """So a program that has seeded ``random`` gets the same sequence, whatever the streams do."""
    before = random.getstate()
    with dialling(_free_port(), None) as south:
        south.heard.wait(lambda: south.streams.failure(1) is not None)
        time.sleep(3 * FAST.redial[1])
    assert random.getstate() == before


def test_stopping_is_prompt_while_the_neighbour_is_absent() -> None:
    with dialling(_free_port(), Authority().issue("south")) as south:
        south.heard.wait(lambda: south.streams.failure(1) is not None)
        begun = time.monotonic()
        south.streams.stop()
        assert time.monotonic() - begun < 1.0
        assert "north" in (south.streams.failure(1) or "")
    assert south.heard.events == []


def test_a_stream_is_opened_again_when_a_neighbour_comes_back() -> None:
    authority = Authority()
    with listening(authority.issue("north")) as north:
        port = north.port
        with dialling(port, authority.issue("south")) as south:
            south.heard.wait_for("opened")
            north.heard.wait_for("opened")
            north.streams.stop()
            assert "closed" in south.heard.wait_for("closed")
            with listening(authority.issue("north"), f"127.0.0.1:{port}") as again:
                south.heard.wait_for("opened", 2)
                south.send(1, frame(7))
                again.heard.wait(lambda: len(again.heard.frames) == 1)
        assert [event[0] for event in south.heard.events] == ["opened", "closed", "opened", "closed"]


def test_a_newer_stream_replaces_the_older() -> None:
    authority = Authority()
    with listening(authority.issue("north")) as north, dialling(north.port, authority.issue("south")) as first:
        first.heard.wait_for("opened")
        slow = StreamTimes(redial=(30.0, 30.0))
        with dialling(north.port, authority.issue("south"), timeouts=slow) as second:
            second.heard.wait_for("opened")
            assert "new stream" in north.heard.wait_for("closed")
            first.heard.wait_for("closed")
            first.streams.stop()
            north.heard.wait_for("opened", 2)
            kinds = [event[0] for event in north.heard.events]
            assert all(one != other for one, other in pairwise(kinds))


def test_a_frame_that_the_endpoint_rejects_closes_only_its_stream() -> None:
    authority = Authority()
    with (
        listening(authority.issue("north")) as north,
        dialling(north.port, authority.issue("south")) as south,
        dialling(north.port, authority.issue("west"), "west") as west,
    ):
        for side in (south, west):
            side.heard.wait_for("opened")
        south.send(1, wire.Frame(hello=wire.Hello()))
        assert north.heard.wait_for("closed") == f"south sent {UNEXPECTED}"
        refusal = south.heard.wait_for("refused")
        assert refusal.startswith("north")
        assert refusal.endswith(UNEXPECTED)
        south.heard.wait_for("opened", 2)
        west.send(1, frame(1))
        north.heard.wait(lambda: len(north.heard.frames) == 1)
        assert west.heard.count("opened") == 1
        assert west.heard.count("closed") == 0


class Garbled:
    """Bytes sent instead of a frame."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def SerializeToString(self) -> bytes:
        return self._content


@pytest.mark.parametrize("content", [b"\xff" * 50, bytes(FRAME_LIMIT + 1)], ids=["not a frame", "too large"])
def test_garbage_from_a_neighbour_closes_only_its_stream(content: bytes) -> None:
    authority = Authority()
    with (
        listening(authority.issue("north")) as north,
        dialling(north.port, authority.issue("south")) as south,
        dialling(north.port, authority.issue("west"), "west") as west,
    ):
        for side in (south, west):
            side.heard.wait_for("opened")
        south.send(1, Garbled(content))  # type: ignore[arg-type]
        south.heard.wait_for("closed")
        south.heard.wait_for("opened", 2)
        west.send(1, frame(1))
        north.heard.wait(lambda: len(north.heard.frames) == 1)
        assert west.heard.count("closed") == 0


# -------------------------------------------------------------------------------------------------- invalid addresses


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def test_listening_on_a_port_in_use_raises() -> None:
    kit = Authority().issue("north")
    with (
        listening(kit) as north,
        raises(AddressInUse, site="north", address=f"127.0.0.1:{north.port}"),
        listening(kit, f"127.0.0.1:{north.port}"),
    ):
        pass


def test_plaintext_is_allowed_on_loopback_addresses_only() -> None:
    for address in ("0.0.0.0:7400", "north.example.org:7400", "10.0.0.1:1", "[::]:1"):
        with raises(InvalidInput, parameter="plaintext", value=address):
            Streams(Recorder(), Peer(1, "north", None, False), [], address, None)
        with raises(InvalidInput, parameter="plaintext", value=address):
            Streams(Recorder(), Peer(1, "north", None, False), [Peer(0, "south", address, True)], None, None)
    for address in ("127.0.0.1:0", "127.9.9.9:0", "[::1]:0", "localhost:0"):
        Streams(Recorder(), Peer(1, "north", None, False), [], address, None)


def test_one_of_two_neighbours_must_accept_connections() -> None:
    me = Peer(1, "north", None, dial=False)
    with raises(InvalidInput, parameter="address", agent=0):
        Streams(Recorder(), me, [Peer(0, "south", None, dial=True)], None, None)
    with raises(InvalidInput, parameter="listen", agent=1):
        Streams(Recorder(), me, [Peer(0, "south", None, dial=False)], None, None)


# ----------------------------------------------------------------------------------------------------- certificates

_BAD: dict[str, Callable[[Authority, str], Kit]] = {
    "authority": lambda good, site: Authority().issue(site),
    "expired": lambda good, site: good.issue(site, -2 * DAY, -DAY),
    "not valid yet": lambda good, site: good.issue(site, DAY, 2 * DAY),
}


@pytest.mark.parametrize("fault", _BAD)
def test_a_server_with_a_bad_certificate_is_refused_with_the_reason(fault: str) -> None:
    authority = Authority()
    bad = _BAD[fault](authority, "north")
    bad.trusts = authority
    with listening(bad) as north, dialling(north.port, authority.issue("south")) as south:
        why = south.heard.wait_for("refused")
    assert fault in why
    assert not south.heard.count("opened")
    assert not north.heard.count("opened")


def test_a_server_with_the_certificate_of_another_site_is_refused() -> None:
    authority = Authority()
    with listening(authority.issue("east")) as north, dialling(north.port, authority.issue("south")) as south:
        assert "another site" in south.heard.wait_for("refused")
    assert not north.heard.count("opened")


@pytest.mark.parametrize("fault", _BAD)
def test_a_client_with_a_bad_certificate_learns_that_it_may_be_the_certificate(fault: str) -> None:
    authority = Authority()
    bad = _BAD[fault](authority, "south")
    bad.trusts = authority
    with listening(authority.issue("north")) as north, dialling(north.port, bad) as south:
        assert "certificate of this site" in south.heard.wait_for("refused")
    assert not north.heard.count("opened")


def test_a_client_with_the_certificate_of_another_site_is_refused() -> None:
    authority = Authority()
    with listening(authority.issue("north")) as north, dialling(north.port, authority.issue("west")) as south:
        why = north.heard.wait_for("refused")
        assert why == "the certificate was not issued to south"
        assert south.heard.wait_for("refused").endswith(why)
    assert not north.heard.count("opened")
    assert not south.heard.count("opened")


def test_a_site_that_is_not_a_neighbour_is_refused() -> None:
    authority = Authority()
    with listening(authority.issue("north")) as north, dialling(north.port, authority.issue("east"), "east") as east:
        why = north.heard.wait_for("refused")
        assert "'east'" in why
        assert "network.toml" in why
        east.heard.wait_for("refused")
    assert not north.heard.count("opened")


@pytest.mark.parametrize("whose", ["north", "south"])
def test_a_revoked_certificate_is_refused(whose: str) -> None:
    authority = Authority()
    kits = {site: authority.issue(site) for site in ("north", "south")}
    authority.revoked.add(kits[whose].certificate_der)
    with listening(kits["north"]) as north, dialling(north.port, kits["south"]) as south:
        judge, judged = (south, north) if whose == "north" else (north, south)
        assert judge.heard.wait_for("refused") == f"the certificate of {whose} is revoked"
        assert judged.heard.wait_for("refused").endswith(f"the certificate of {whose} is revoked")
    assert not judge.heard.count("opened")


def test_a_certificate_that_is_revoked_or_expires_while_in_use_ends_the_stream() -> None:
    authority = Authority()
    short = authority.issue("south", ends=dt.timedelta(seconds=3))
    west = authority.issue("west")
    with (
        listening(authority.issue("north")) as north,
        dialling(north.port, short) as south,
        dialling(north.port, west, "west") as other,
    ):
        north.heard.wait_for("opened", 2)
        authority.revoked.add(west.certificate_der)
        assert north.heard.wait_for("closed") == "the certificate of west is revoked"
        assert north.heard.wait_for("closed", 2) == "the certificate of south has expired"
        other.heard.wait_for("closed")
        south.heard.wait_for("closed")


def test_a_stolen_certificate_without_its_key_is_refused() -> None:
    authority = Authority()
    own, stolen = authority.issue("west"), authority.issue("south")

    class Thief(Kit):
        @property
        def certificate_der(self) -> bytes:
            return stolen.certificate_der

    thief = Thief(authority, own.private, own.x509)
    with listening(authority.issue("north")) as north, dialling(north.port, thief) as south:
        assert north.heard.wait_for("refused")
        south.heard.wait_for("refused")
    assert not north.heard.count("opened")


def test_unreadable_certificate_files_do_not_end_the_checks() -> None:
    authority = Authority()

    class Broken(Kit):
        def changed(self) -> bool:
            raise OSError("the disk is gone")

    own = authority.issue("north")
    with (
        listening(Broken(authority, own.private, own.x509)) as north,
        dialling(north.port, south_kit := authority.issue("south")),
    ):
        north.heard.wait_for("opened")
        assert "the disk is gone" in north.heard.wait_for("refused")
        authority.revoked.add(south_kit.certificate_der)
        assert "revoked" in north.heard.wait_for("closed")


def test_replaced_certificates_take_effect_during_the_run() -> None:
    authority = Authority()
    old = {site: authority.issue(site) for site in ("north", "south", "west")}
    with (
        listening(old["north"]) as north,
        dialling(north.port, old["south"]) as south,
        dialling(north.port, old["west"], "west") as west,
    ):
        for side in (south, west):
            side.heard.wait_for("opened")
        old["south"].replacement = authority.issue("south")
        assert "new certificate" in south.heard.wait_for("closed")
        south.heard.wait_for("opened", 2)
        assert west.heard.count("closed") == 0
        old["north"].replacement = new = authority.issue("north")
        west.heard.wait_for("closed")  # a new server, on the same port, and new streams
        west.heard.wait_for("opened", 2)
        south.heard.wait_for("opened", 3)
        shown = ssl.get_server_certificate(("127.0.0.1", north.port), timeout=5.0)
        assert ssl.PEM_cert_to_DER_cert(shown) == new.certificate_der
        authority.revoked |= {old[site].certificate_der for site in ("north", "south")}
        time.sleep(0.3)
        assert west.heard.count("closed") == 1  # the old ones are no longer in use
        authority.revoked.add(new.certificate_der)
        assert "revoked" in west.heard.wait_for("closed", 2)


# ----------------------------------------------------------------------------- clients that fail in the TLS handshake


def store(kit: Kit, path: Path) -> Path:
    path.write_bytes(kit.key + kit.certificate)
    return path


def client(port: int, trusts: Authority, kit: Path | None, *, tls12: bool = False) -> bytes:
    """Connect to site north without gRPC, and return the first bytes of its HTTP/2 server, or nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=trusts.pem.decode())
    context.set_alpn_protocols(["h2"])
    if tls12:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if kit is not None:
        context.load_cert_chain(kit)
    with socket.create_connection(("127.0.0.1", port), 10.0) as plain:
        try:
            with context.wrap_socket(plain, server_hostname="north") as safe:
                return safe.recv(9)
        except OSError:
            return b""


def garbage(port: int, content: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 10.0) as plain:
        try:
            plain.sendall(content)
            return plain.recv(100)
        except OSError:
            return b""


def serve_and_report(log: CoreLog, kit: Path, authority: Path) -> None:
    """Print the port and then rejected clients until standard input ends; runs in a process of its own."""
    content, issuer = kit.read_bytes(), Authority()
    private = serialization.load_pem_private_key(content, None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    issuer.certificate = x509.load_pem_x509_certificate(authority.read_bytes())
    heard = Recorder()
    heard.refused = lambda peer, where, why: print(json.dumps([peer, where, why]), flush=True)  # type: ignore[method-assign]
    neighbours = [Peer(0, "south", None, dial=False)]
    me, timeouts = Peer(1, "north", None, dial=False), StreamTimes(step=1.0, repeat=0.0)
    own = Kit(issuer, private, x509.load_pem_x509_certificate(content))
    streams = Streams(heard, me, neighbours, "127.0.0.1:0", own, timeouts=timeouts)
    print(streams.start(), flush=True)
    log.listen(streams.report_rejected_client)
    print("of Python", file=sys.stderr)
    os.write(2, b"of something else\n")
    sys.stdin.read()
    streams.stop()
    log.remove()


@contextmanager
def reporting(authority: Authority, folder: Path) -> Iterator[tuple[int, IO[str], subprocess.Popen[str]]]:
    kit, pem = store(authority.issue("north"), folder / "north.pem"), folder / "authority.pem"
    pem.write_bytes(authority.pem)
    code = (
        "import sys; from pathlib import Path; from deepca.sites.transport.grpc_errors import CoreLog; "
        "log = CoreLog().install(); from tests.sites.transport.test_streams import serve_and_report; "
        "serve_and_report(log, *map(Path, sys.argv[1:]))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, kit, pem],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline()), process.stdout, process
        finally:
            process.kill()


def test_clients_rejected_in_the_tls_handshake_are_reported(tmp_path: Path) -> None:
    authority = Authority()
    good = store(authority.issue("south"), tmp_path / "good")
    bad = {fault: store(make(authority, "south"), tmp_path / fault) for fault, make in _BAD.items()}
    with reporting(authority, tmp_path) as (port, reports, process):

        def reported() -> str:
            peer, where, why = json.loads(reports.readline())
            assert peer is None
            assert where.startswith("127.0.0.1:")
            return str(why)

        assert client(port, authority, good), "a correct TLS 1.3 client must be accepted"
        for fault, kit in bad.items():
            assert client(port, authority, kit) == b""
            assert fault in reported()
        assert client(port, authority, None) == b""
        assert "no certificate" in reported()
        assert client(port, authority, good, tls12=True) == b""
        assert "TLS 1.3" in reported()
        assert garbage(port, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(50)) in (b"", _ALERT)
        assert reported().endswith("TLS")
        assert garbage(port, os.urandom(200)) in (b"", _ALERT)
        reported()
        assert garbage(port, b"") in (b"", _ALERT)
        reported()
        with dialling(port, None) as plaintext:
            reported()
        assert not plaintext.heard.count("opened")
        _, said = process.communicate("", timeout=20.0)
    assert said == "of Python\nof something else\n"
    assert process.returncode == 0


_ALERT = bytes.fromhex("15030100020246")


@pytest.mark.parametrize(("how", "within"), [(signal.SIGKILL, 1.0), (signal.SIGSTOP, 4.5)])
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs signals")
def test_a_killed_or_frozen_neighbour_is_noticed_in_time(tmp_path: Path, how: signal.Signals, within: float) -> None:
    authority = Authority()
    with (
        reporting(authority, tmp_path) as (port, _, process),
        dialling(port, authority.issue("south")) as south,
    ):
        south.heard.wait_for("opened")
        begun = time.monotonic()
        process.send_signal(how)
        why = south.heard.wait_for("closed")
        assert time.monotonic() - begun < within
        assert ("pings" if how is signal.SIGSTOP else "closed") in why


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs signals")
def test_frames_for_a_neighbour_that_does_not_read_stay_with_the_endpoint(tmp_path: Path) -> None:
    """Only a few of them are taken and buffered by gRPC."""
    authority, slow = Authority(), StreamTimes(ping=10.0)
    with (
        reporting(authority, tmp_path) as (port, _, process),
        dialling(port, authority.issue("south"), timeouts=slow) as south,
    ):
        south.heard.wait_for("opened")
        process.send_signal(signal.SIGSTOP)
        south.send(1, *[frame(1, 1 << 20)] * 100)
        south.heard.wait(lambda: len(south.heard.out[1]) < 100)
        time.sleep(1.0)  # long enough to take all of them
        assert 70 < len(south.heard.out[1]) < 100
