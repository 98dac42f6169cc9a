"""Those who have to be turned away: every fault that a certificate can have, at both sides of a connection."""

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
from deepca.sites.pki.certificates import pem, request
from deepca.sites.pki.keys import new_key, write_key
from studies.faults.processes import Fleet

__all__ = ["CALLERS", "LISTENERS", "NONE", "Attempt", "call_with", "listen_with"]

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
"""What can be wrong with somebody who calls."""
NONE = "no fault"
"""Gets in; without this the others would prove nothing."""
LISTENERS = ("unknown authority", "expired", "not yet valid", "wrong name", "revoked", "TLS 1.2", "plaintext")
"""And with somebody who is called."""
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


@dataclass(frozen=True)
class Attempt:
    """One of them. logged : what the agent said about it, empty if nothing."""

    fault: str
    refused: bool
    logged: str


@dataclass(frozen=True)
class _Kit:
    certificate: Path
    key: Path


def _kit(fleet: Fleet, fault: str, site: str) -> _Kit:
    """Key and certificate of ``site`` with something wrong with them."""
    folder = fleet.folder / "doors" / f"{site}-{fault.replace(' ', '-')}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    network = fleet.network.name
    genuine = Authority.load(fleet.folder / "kits" / "authority")
    now, key = datetime.now(UTC), new_key()
    asked = request("s2" if fault == "wrong name" else site, network, key)
    if fault == "unknown authority":
        signed = Authority.create(folder / "authority", network).sign(asked)
    elif fault == "expired":
        signed = genuine.sign(asked, 1, now=now - timedelta(days=10))
    elif fault == "not yet valid":
        signed = genuine.sign(asked, 1, now=now + timedelta(days=10))
    else:
        signed = genuine.sign(asked)
    (folder / "site.pem").write_bytes(pem(signed))
    write_key(folder / "site.key", key)
    if fault == "revoked":
        genuine.revoke(f"{signed.serial_number:x}")
    return _Kit(folder / "site.pem", folder / "site.key")


def _told(fleet: Fleet, site: int, since: float, seconds: float) -> str:
    """What an agent has said of somebody whom it turned away since then; waits for it."""
    end = time.monotonic() + seconds
    while True:
        for one in fleet.events(site, "refused"):
            if one["at"] >= since:
                return str(one["text"])
        if time.monotonic() > end:
            return ""
        time.sleep(0.05)


# -------------------------------------------------------------------------------------------------------------- callers


def call_with(fleet: Fleet, fault: str) -> Attempt:
    """Call ``s1``, whose agent runs, as ``s0`` with this fault."""
    kit = _kit(fleet, fault, "s0")
    if fault == "revoked":
        shutil.copy(fleet.folder / "kits" / "authority" / "revoked.pem", fleet.site(1) / "revoked.pem")
        time.sleep(1.5)  # it looks at its files once a second
    since = time.monotonic()
    if fault == NONE:
        let_in = _shake(fleet.listening[1], fault, kit) and asyncio.run(_knock(fleet, kit))
        return Attempt(fault, not let_in, "")
    if fault in ("wrong name", "revoked"):
        let_in = asyncio.run(_knock(fleet, kit))
    else:
        let_in = _shake(fleet.listening[1], fault, kit)
    return Attempt(fault, not let_in, _told(fleet, 1, since, 8.0))


def _shake(port: int, fault: str, kit: _Kit) -> bool:
    """Whether a handshake of TLS leads to anything."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if fault != "no certificate":
        context.load_cert_chain(kit.certificate, kit.key)
    if fault == "TLS 1.2":
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5.0) as plain:
        plug = plain if fault == "plaintext" else context.wrap_socket(plain, server_hostname="s1")
        with plug:
            plug.sendall(_PREFACE)
            answer = plug.recv(64)
            # without TLS an alert may come back; HTTP/2 would begin with a frame of settings
            return bool(answer) and not (fault == "plaintext" and answer[:1] == b"\x15")
    return False


async def _knock(fleet: Fleet, kit: _Kit) -> bool:
    """Whether somebody with a certificate that TLS accepts gets as far as a Proof."""
    from deepca.sites.transport import tls  # isort: skip  # first of all that import grpc
    import grpc.aio

    from deepca.sites.protocol import wire_pb2 as wire
    from deepca.sites.protocol.handshake import Handshake

    credentials: Any = _Careless(fleet.site(0) / "authority.pem", kit)
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


class _Careless:
    """Credentials from files that are not looked at, and without a list of revoked certificates."""

    list_number, list_der = 0, b""

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
        return bytes(self._private.sign(data, self._method))


# ------------------------------------------------------------------------------------------------------------ listeners


def listen_with(fleet: Fleet, fault: str) -> Attempt:
    """Listen in place of ``s1`` with this fault, while the agent of ``s0`` runs and calls."""
    if fault == "revoked":
        authority = Authority.load(fleet.folder / "kits" / "authority")
        authority.revoke("s1")
        shutil.copy(authority.folder / "revoked.pem", fleet.site(0) / "revoked.pem")
        time.sleep(1.5)
        since = time.monotonic()
        fleet.start(1)
        logged = _told(fleet, 0, since, 10.0)
        fleet.kill(1)
        up = [one for one in fleet.events(0, "link_up") if one["at"] >= since]
        return Attempt(fault, not up, logged)
    since = time.monotonic()
    with _impostor(fleet.listening[1], fault, _kit(fleet, fault, "s1"), fleet.site(0) / "authority.pem"):
        logged = _told(fleet, 0, since, 10.0)
    up = [one for one in fleet.events(0, "link_up") if one["at"] >= since]
    return Attempt(fault, not up, logged)


@contextlib.contextmanager
def _impostor(port: int, fault: str, kit: _Kit, authority: Path) -> Iterator[None]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(kit.certificate, kit.key)
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(authority)
    context.verify_mode = ssl.CERT_OPTIONAL
    if fault == "TLS 1.2":
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    over = threading.Event()
    server = socket.create_server(("127.0.0.1", port))
    server.settimeout(0.2)

    def serve() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                plain, _ = server.accept()
                plain.settimeout(3.0)
                with plain, _dressed(plain, None if fault == "plaintext" else context) as plug:
                    plug.recv(1000)
                    plug.sendall(_PREFACE[24:])
                    plug.recv(1000)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(8.0)
        server.close()


def _dressed(plain: socket.socket, context: ssl.SSLContext | None) -> socket.socket:
    return plain if context is None else context.wrap_socket(plain, server_side=True)
