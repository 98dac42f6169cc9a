"""Connect to agents, or accept their connections, with certificates that have one fault each."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from deepca.sites.pki.authority import Authority
from deepca.sites.pki.certificates import build_request, pem
from deepca.sites.pki.keys import new_key, write_key
from studies.faults.fleet import Fleet

__all__ = ["CALLERS", "LISTENERS", "NO_FAULT", "Attempt", "call_with", "listen_with"]

CALLERS = (
    "unknown authority",
    "expired",
    "not yet valid",
    "wrong name",
    "revoked",
    "no certificate",
    "TLS 1.2",
    "plaintext",
)
"""Faults of a client's certificate or connection."""
NO_FAULT = "no fault"
"""Name of the control attempt: a client without a fault, which must be accepted."""
LISTENERS = ("unknown authority", "expired", "not yet valid", "wrong name", "revoked", "TLS 1.2", "plaintext")
"""Faults of a server's certificate or connection."""
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


@dataclass(frozen=True)
class Attempt:
    """A connection attempt: its fault, whether it was refused, and what the agent logged (empty if nothing)."""

    fault: str
    refused: bool
    logged: str


@dataclass(frozen=True)
class _Kit:
    """Paths of a certificate and of its key."""

    certificate: Path
    key: Path


def _kit(fleet: Fleet, fault: str, site: str) -> _Kit:
    """Create a key and a certificate for ``site`` that has the given fault."""
    folder = fleet.folder / "certificate-faults" / f"{site}-{fault.replace(' ', '-')}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    network = fleet.network.name
    genuine = Authority.load(fleet.folder / "kits" / "authority")
    now, key = datetime.now(UTC), new_key()
    csr = build_request("s2" if fault == "wrong name" else site, network, key)
    if fault == "unknown authority":
        signed = Authority.create(folder / "authority", network).sign(csr)
    elif fault == "expired":
        signed = genuine.sign(csr, 1, now=now - timedelta(days=10))
    elif fault == "not yet valid":
        signed = genuine.sign(csr, 1, now=now + timedelta(days=10))
    else:
        signed = genuine.sign(csr)
    (folder / "site.pem").write_bytes(pem(signed))
    write_key(folder / "site.key", key)
    if fault == "revoked":
        genuine.revoke(f"{signed.serial_number:x}")
    return _Kit(folder / "site.pem", folder / "site.key")


def _wait_for_refusal(fleet: Fleet, site: int, since: float, seconds: float) -> str:
    """Return the text of the first refusal that an agent logs after ``since``, or "" if it logs none in ``seconds``."""
    end = time.monotonic() + seconds
    while True:
        for one in fleet.events(site, "refused"):
            if one["at"] >= since:
                return str(one["text"])
        if time.monotonic() > end:
            return ""
        time.sleep(0.05)


# -------------------------------------------------------------------------------------------------------------- clients


def call_with(fleet: Fleet, fault: str) -> Attempt:
    """Connect as ``s0`` to the running agent of ``s1``, with the given fault."""
    kit = _kit(fleet, fault, "s0")
    if fault == "revoked":
        shutil.copy(fleet.folder / "kits" / "authority" / "revoked.pem", fleet.kit(1) / "revoked.pem")
        time.sleep(1.5)  # agents reread their files once a second
    since = time.monotonic()
    if fault == NO_FAULT:
        accepted = _try_tls(fleet.listening[1], fault, kit) and asyncio.run(_try_handshake(fleet, kit))
        return Attempt(fault, not accepted, "")
    if fault in ("wrong name", "revoked"):
        accepted = asyncio.run(_try_handshake(fleet, kit))
    else:
        accepted = _try_tls(fleet.listening[1], fault, kit)
    return Attempt(fault, not accepted, _wait_for_refusal(fleet, 1, since, 8.0))


def _try_tls(port: int, fault: str, kit: _Kit) -> bool:
    """Return whether the agent accepts a TLS connection and answers in HTTP/2."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if fault != "no certificate":
        context.load_cert_chain(kit.certificate, kit.key)
    if fault == "TLS 1.2":
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5.0) as plain:
        stream = plain if fault == "plaintext" else context.wrap_socket(plain, server_hostname="s1")
        with stream:
            stream.sendall(_HTTP2_PREFACE)
            answer = stream.recv(64)
            # a TLS alert in answer to plaintext is a refusal; an HTTP/2 server would begin with a SETTINGS frame
            return bool(answer) and not (fault == "plaintext" and answer[:1] == b"\x15")
    return False


async def _try_handshake(fleet: Fleet, kit: _Kit) -> bool:
    """Return whether the agent completes its own handshake, after TLS has accepted the client's certificate."""
    from deepca.sites.transport import tls  # isort: skip  # before anything that imports grpc
    import grpc.aio

    from deepca.sites.protocol import wire_pb2 as wire
    from deepca.sites.protocol.handshake import Handshake

    credentials: Any = _UncheckedCredentials(fleet.kit(0) / "authority.pem", kit)
    options = [("grpc.ssl_target_name_override", "s1"), ("grpc.use_local_subchannel_pool", 1)]
    channel = grpc.aio.secure_channel(
        f"127.0.0.1:{fleet.listening[1]}",
        tls.channel_credentials(credentials),
        options=options,
    )
    call = channel.stream_stream("/deepca.v1.Link/Talk")()
    try:
        handshake = Handshake("s0", credentials)
        await call.write(handshake.challenge().SerializeToString())
        proof = handshake.proof(wire.Frame.FromString(await asyncio.wait_for(call.read(), 5.0)))
        await call.write(proof.SerializeToString())
        while (data := await asyncio.wait_for(call.read(), 5.0)) is not grpc.aio.EOF:
            if wire.Frame.FromString(data).WhichOneof("kind") == "hello":
                return True
    except (TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
        pass
    finally:
        call.cancel()
        await channel.close()
    return False


class _UncheckedCredentials:
    """Credentials read from files without any checks, and without a revocation list."""

    revocation_list_number, revocation_list_der = 0, b""

    def __init__(self, authority: Path, kit: _Kit) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        self.authority = authority.read_bytes()
        self.certificate, self.key = kit.certificate.read_bytes(), kit.key.read_bytes()
        loaded = x509.load_pem_x509_certificate(self.certificate)
        self.certificate_der = loaded.public_bytes(serialization.Encoding.DER)
        private: Any = serialization.load_pem_private_key(self.key, None)
        self._private, self._method = private, ec.ECDSA(hashes.SHA256())

    def sign(self, data: bytes) -> bytes:
        """Return an ECDSA signature of ``data``."""
        return bytes(self._private.sign(data, self._method))


# ------------------------------------------------------------------------------------------------------------ servers


def listen_with(fleet: Fleet, fault: str) -> Attempt:
    """Listen in place of ``s1``, with the given fault, while the agent of ``s0`` connects."""
    if fault == "revoked":
        authority = Authority.load(fleet.folder / "kits" / "authority")
        authority.revoke("s1")
        shutil.copy(authority.folder / "revoked.pem", fleet.kit(0) / "revoked.pem")
        time.sleep(1.5)
        since = time.monotonic()
        fleet.start(1)
        logged = _wait_for_refusal(fleet, 0, since, 10.0)
        fleet.kill(1)
        up = [one for one in fleet.events(0, "link_up") if one["at"] >= since]
        return Attempt(fault, not up, logged)
    since = time.monotonic()
    with _impostor(fleet.listening[1], fault, _kit(fleet, fault, "s1"), fleet.kit(0) / "authority.pem"):
        logged = _wait_for_refusal(fleet, 0, since, 10.0)
    up = [one for one in fleet.events(0, "link_up") if one["at"] >= since]
    return Attempt(fault, not up, logged)


@contextlib.contextmanager
def _impostor(port: int, fault: str, kit: _Kit, authority: Path) -> Iterator[None]:
    """Run a server with the given fault that sends the first bytes of an HTTP/2 connection, as gRPC does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(kit.certificate, kit.key)
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(authority)
    context.verify_mode = ssl.CERT_OPTIONAL
    if fault == "TLS 1.2":
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    stopped = threading.Event()
    server = socket.create_server(("127.0.0.1", port))
    server.settimeout(0.2)

    def serve() -> None:
        while not stopped.is_set():
            with contextlib.suppress(OSError):
                plain, _ = server.accept()
                plain.settimeout(3.0)
                with plain, _wrapped(plain, None if fault == "plaintext" else context) as stream:
                    stream.recv(1000)
                    stream.sendall(_HTTP2_PREFACE[24:])
                    stream.recv(1000)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(8.0)
        server.close()


def _wrapped(plain: socket.socket, context: ssl.SSLContext | None) -> socket.socket:
    return plain if context is None else context.wrap_socket(plain, server_side=True)
