"""Describe gRPC's connection errors in plain words. This module does not import grpc.

The side that dials learns about errors from its call (:func:`describe_connection_failure`). The side that listens does
not: a client that fails the handshake never becomes a call, and gRPC's core only logs it to standard error, if
configured to do so. :class:`CoreLog` reads that log.
"""

from __future__ import annotations

import atexit
import io
import os
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO
from urllib.parse import unquote

__all__ = ["ConnectionFailure", "CoreLog", "describe_connection_failure", "plain_address"]

_CLOSED = "socket closed|connection reset|recvmsg|broken pipe|eof"
_CONNECTING = {
    "connection refused": "nothing is listening at {address}; the agent of {name} may not have been started yet",
    "dns resolution|domain name not found|resolve": "the host name of {name} ({address}) cannot be resolved here; check"
    " its address in network.toml, or the name service of this machine",
    _CLOSED: "{name} at {address} closed the connection during the handshake; it may not accept the certificate of this"
    " site (unknown authority, expired, or issued to another site), and its operator can find the reason in its log",
    "timed? ?out|deadline|shutdown|unreachable|no route": "{name} cannot be reached at {address}; its machine or the"
    " network may be down, or a firewall may block the port",
}
_CONNECTED = {
    "ping|keepalive|watchdog": "{name} does not answer pings; its machine may be frozen, or the network down",
    f"{_CLOSED}|goaway": "{name} closed the connection",
    "timed? ?out": "{name} stopped answering",
    "cancell?ed": "{name} closed the stream",
}
_FAULTS = {
    "certificate has expired": "its certificate has expired",
    "not yet valid": "its certificate is not valid yet, or a clock is wrong",
    "hostname verification|no match found for server name": "its certificate was issued to another site",
    "did_not_return_a_certificate": "it presented no certificate",
    "alert_(unknown_ca|bad_certificate|certificate|decrypt_error|access_denied)": "it does not accept the certificate"
    " of this site",
    "no_shared_cipher|unsupported_protocol|protocol_version|handshake_failure": "it does not support TLS 1.3",
    "wrong_version_number|http_request|unexpected_message|bad_packet|unexpected_record|record_length|invalid_ssl"
    "|decode_error|https_proxy": "it does not use TLS",
    "bad_signature|unable to get|self.signed|certificate_verify_failed|unsuitable": "its certificate is not signed by"
    " the authority of this network",
}
_RECORD = re.compile(r"(?P<level>[IWEF])\d{4} \d\d:\d\d:\d\d\.\d+\s+\d+ (?P<file>[\w.]+):\d+\] (?P<text>.*)", re.DOTALL)
_CONTINUATIONS = ("=== Source Location", "src/core/", " shutdown=")  # how the second and later lines of a record begin
# source files of gRPC whose errors deepca reports itself: rejected clients, and a port that is in use
_HANDSHAKE_FILES = {"handshaker.cc", "ssl_transport_security.cc", "channel_trace.h", "log.cc", "security_handshaker.cc"}
_PORT_FILES = {"add_port.cc", "chttp2_server.cc"}
_MAX_PENDING = 100  # maximum number of reports kept until there is a listener, so that strangers cannot fill the memory


@dataclass(frozen=True)
class ConnectionFailure:
    """Why a connection failed or was lost."""

    why: str
    refusal: bool  # whether one side refused the other, rather than being out of reach


def describe_connection_failure(name: str, address: str, details: str) -> ConnectionFailure:
    """Describe why a connection to site ``name`` failed or was lost, from the ``details`` that gRPC gives."""
    if (fault := _fault(details)) is not None:
        why = f"no secure connection to {name} at {address}: {fault}; run deepca doctor here to see who must fix it"
        return ConnectionFailure(why, refusal=True)
    connecting = "failed to connect" in details or "DNS" in details
    for pattern, text in (_CONNECTING if connecting else _CONNECTED).items():
        if re.search(pattern, details, re.IGNORECASE):
            return ConnectionFailure(text.format(name=name, address=address), refusal=connecting and pattern == _CLOSED)
    lost = "cannot connect to" if connecting else "lost the connection to"
    return ConnectionFailure(f"{lost} {name} at {address}: {details}", refusal=False)


def plain_address(peer: str) -> str:
    """Return an address such as ``ipv4:127.0.0.1:7400`` without gRPC's prefix and percent-encoding."""
    return unquote(peer).removeprefix("ipv4:").removeprefix("ipv6:")


class CoreLog:
    """Reader of the log that gRPC's core writes to standard error; it reports rejected clients.

    It is meant for agent processes, and must be installed before anything imports grpc. Python's own output is not
    affected: ``sys.stderr`` keeps its destination (a terminal stays a terminal), and anything else that is written to
    the descriptor is passed on.
    """

    def __init__(self) -> None:
        self._listener: Callable[[str, str], None] | None = None
        self._pending: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        self._open = ""  # first lines of an incomplete record
        self._hiding = False
        self._previous_stderr: TextIO = sys.stderr
        self._stderr_copy = -1

    def install(self) -> CoreLog:
        """Take over file descriptor 2; raise RuntimeError if grpc, which reads its settings only once, was imported."""
        if "grpc" in sys.modules:
            raise RuntimeError("grpc was already imported; call CoreLog.install() before importing grpc")
        os.environ["GRPC_VERBOSITY"] = "info"
        os.environ["GRPC_TRACE"] = "handshaker"  # includes the address of a rejected client
        sys.stderr.flush()
        self._stderr_copy = os.dup(2)
        reading, writing = os.pipe()
        os.dup2(writing, 2)
        os.close(writing)
        self._previous_stderr = sys.stderr
        if _descriptor(sys.stderr) == 2:
            sys.stderr = os.fdopen(
                self._stderr_copy, "w", 1, sys.stderr.encoding, errors="backslashreplace", closefd=False
            )
        threading.Thread(target=self._read, args=(reading,), name="log of gRPC", daemon=True).start()
        atexit.register(_mute)  # registered before grpc's own exit handler, so it runs after it
        return self

    def remove(self) -> None:
        """Restore file descriptor 2."""
        sys.stderr.flush()
        os.dup2(self._stderr_copy, 2)  # closes the last write end of the pipe, so that the thread ends
        sys.stderr = self._previous_stderr

    def listen(self, listener: Callable[[str, str], None]) -> None:
        """Call ``listener(where, why)``, from another thread, for every rejected client, including earlier ones."""
        with self._lock:
            self._listener, waiting = listener, self._pending
            self._pending = []
        for where, why in waiting:
            listener(where, why)

    def _read(self, descriptor: int) -> None:
        with os.fdopen(descriptor, encoding="utf-8", errors="backslashreplace", newline="\n") as lines:
            for line in lines:
                if not self.process_line(line):
                    os.write(self._stderr_copy, line.encode("utf-8", "backslashreplace"))

    def process_line(self, line: str) -> bool:
        """Process a line of output and return whether to hide it, as most lines of the core's log are."""
        record = _RECORD.match(line)
        if record is None:
            if not (self._hiding and (line.startswith(_CONTINUATIONS) or not line.strip())):
                self._hiding = False
                return False
            if self._open:
                self._open += line
                if line.startswith(" shutdown="):
                    self._report(self._open)
                    self._open = ""
            return True
        self._open = ""
        self._hiding = record["level"] in "IW" or record["file"] in _HANDSHAKE_FILES | _PORT_FILES
        text = record["text"]
        if record["file"] == "handshaker.cc" and "error=" in text and "error=OK" not in text:
            self._open = text
            if " shutdown=" in text:
                self._report(text)
                self._open = ""
        return self._hiding

    def _report(self, text: str) -> None:
        """Report a client whose handshake failed, given the core's record about it."""
        if "grpc.internal.server_credentials" not in text:
            return  # this site dialled, so its call reports the error
        address = re.search(r"endpoint_peer_address=([^,}\s]+)", text)
        where = plain_address(address[1]) if address else "an unknown address"
        error = text.partition(" shutdown=")[0]
        if (fault := _fault(error)) is not None:
            why = f"rejected during the handshake: {fault}"
        elif re.search("time|deadline", error, re.IGNORECASE):
            why = "rejected: it did not complete the handshake in time"
        else:
            why = "it closed the connection during the handshake"
        with self._lock:
            listener = self._listener
            if listener is None:
                self._pending = [*self._pending, (where, why)][-_MAX_PENDING:]
        if listener is not None:
            listener(where, why)


def _fault(details: str) -> str | None:
    return next((text for pattern, text in _FAULTS.items() if re.search(pattern, details, re.IGNORECASE)), None)


def _mute() -> None:
    """Discard what is written to descriptor 2: the pipe has no reader at exit, and gRPC's threads would block on it."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)


def _descriptor(stream: TextIO) -> int:
    try:
        return stream.fileno()
    except (OSError, ValueError, io.UnsupportedOperation):
        return -1
