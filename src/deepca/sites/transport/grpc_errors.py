"""What gRPC says about connections that fail, in plain words. Does not import grpc.

The side that dials is told by its call (:func:`connection_trouble`). The side that listens is not told at all: a client
that does not get through the handshake never becomes a call. gRPC's core only writes about it to standard error, if
told to; :class:`CoreLog` reads that.
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

__all__ = ["CoreLog", "Trouble", "connection_trouble", "plain_address"]

_CLOSED = "socket closed|connection reset|recvmsg|broken pipe|eof"
_CONNECTING = {
    "connection refused": "nothing listens at {address}: {name} may not have been started yet",
    "dns resolution|domain name not found|resolve": "the address of {name}, {address}, is not known here",
    _CLOSED: "{name} at {address} closed the connection during the"
    " handshake: it may not accept our certificate (unknown authority, expired, another site's); its log says why",
    "timed? ?out|deadline|shutdown|unreachable|no route": "{name} cannot be reached at {address}",
}
_CONNECTED = {
    "ping|keepalive|watchdog": "{name} has not answered pings: it is frozen, or the network is down",
    "socket closed|connection reset|recvmsg|broken pipe|eof|goaway": "{name} closed the connection",
    "timed? ?out": "{name} has gone silent",
    "cancell?ed": "{name} closed the stream",
}
_FAULTS = {
    "certificate has expired": "its certificate has expired",
    "not yet valid": "its certificate is not valid yet, or a clock is wrong",
    "hostname verification|no match found for server name": "its certificate is that of another site",
    "did_not_return_a_certificate": "it has shown no certificate",
    "alert_(unknown_ca|bad_certificate|certificate|decrypt_error|access_denied)": "it does not accept the certificate"
    " of this site",
    "no_shared_cipher|unsupported_protocol|protocol_version|handshake_failure": "it does not speak TLS 1.3",
    "wrong_version_number|http_request|unexpected_message|bad_packet|unexpected_record|record_length|invalid_ssl"
    "|decode_error|https_proxy": "it does not speak TLS",
    "bad_signature|unable to get|self.signed|certificate_verify_failed|unsuitable": "its certificate is not signed by"
    " the authority of this network",
}
_RECORD = re.compile(r"(?P<level>[IWEF])\d{4} \d\d:\d\d:\d\d\.\d+\s+\d+ (?P<file>[\w.]+):\d+\] (?P<text>.*)", re.DOTALL)
_MORE = ("=== Source Location", "src/core/", " shutdown=")  # how the further lines of a record begin
# said in plain words elsewhere: who was turned away, and that the own port is taken
_HANDSHAKE = {"handshaker.cc", "ssl_transport_security.cc", "channel_trace.h", "log.cc", "security_handshaker.cc"}
_PORT = {"add_port.cc", "chttp2_server.cc"}
_MOST = 100  # kept until somebody listens


@dataclass(frozen=True)
class Trouble:
    """Why there is no connection. ``refusal`` : whether somebody was turned away, and not just out of reach."""

    why: str
    refusal: bool


def connection_trouble(name: str, address: str, details: str) -> Trouble:
    """What gRPC says of a connection to site ``name`` that could not be made, or is lost."""
    if (fault := _fault(details)) is not None:
        return Trouble(f"what listens at {address}, the address of {name}, is not accepted: {fault}", refusal=True)
    connecting = "failed to connect" in details or "DNS" in details
    for pattern, text in (_CONNECTING if connecting else _CONNECTED).items():
        if re.search(pattern, details, re.IGNORECASE):
            return Trouble(text.format(name=name, address=address), refusal=connecting and pattern == _CLOSED)
    lost = "no connection to" if connecting else "the connection is lost to"
    return Trouble(f"{lost} {name} at {address}: {details}", refusal=False)


def plain_address(peer: str) -> str:
    """``ipv4:127.0.0.1:7400`` as people write it."""
    return unquote(peer).removeprefix("ipv4:").removeprefix("ipv6:")


class CoreLog:
    """Reads what gRPC's core writes to standard error, and tells of clients that were turned away.

    For a process that is an agent, before anything imports grpc. What Python prints is not touched: ``sys.stderr`` goes
    on to where it went (a terminal stays one), and so does whatever else is written to the descriptor.
    """

    def __init__(self) -> None:
        self._listener: Callable[[str, str], None] | None = None
        self._waiting: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        self._open = ""  # first lines of a record whose end has not come yet
        self._swallowing = False
        self._before: TextIO = sys.stderr
        self._outside = -1

    def install(self) -> CoreLog:
        """Takes over descriptor 2. gRPC looks at its settings once, so this is too late after its first import."""
        if "grpc" in sys.modules:
            raise RuntimeError("gRPC was imported before; nothing could be heard of its core")
        os.environ["GRPC_VERBOSITY"] = "info"
        os.environ["GRPC_TRACE"] = "handshaker"  # has the address of a client that is turned away
        sys.stderr.flush()
        self._outside = os.dup(2)
        reading, writing = os.pipe()
        os.dup2(writing, 2)
        os.close(writing)
        self._before = sys.stderr
        if _descriptor(sys.stderr) == 2:
            sys.stderr = os.fdopen(self._outside, "w", 1, sys.stderr.encoding, errors="backslashreplace", closefd=False)
        threading.Thread(target=self._read, args=(reading,), name="log of gRPC", daemon=True).start()
        atexit.register(_mute)  # before that of grpc, so after it
        return self

    def remove(self) -> None:
        """Descriptor 2 is what it was."""
        sys.stderr.flush()
        os.dup2(self._outside, 2)  # the last writing end: the thread sees the end
        sys.stderr = self._before

    def listen(self, listener: Callable[[str, str], None]) -> None:
        """``listener(where, why)`` is called from a thread, for what has been heard already too."""
        with self._lock:
            self._listener, waiting = listener, self._waiting
            self._waiting = []
        for where, why in waiting:
            listener(where, why)

    def _read(self, descriptor: int) -> None:
        with os.fdopen(descriptor, encoding="utf-8", errors="backslashreplace", newline="\n") as lines:
            for line in lines:
                if not self.hear(line):
                    os.write(self._outside, line.encode("utf-8", "backslashreplace"))

    def hear(self, line: str) -> bool:
        """Whether a line is of the core, and of no interest to anybody else."""
        record = _RECORD.match(line)
        if record is None:
            if not (self._swallowing and (line.startswith(_MORE) or not line.strip())):
                self._swallowing = False
                return False
            if self._open:
                self._open += line
                if line.startswith(" shutdown="):
                    self._turned_away(self._open)
                    self._open = ""
            return True
        self._open = ""
        self._swallowing = record["level"] in "IW" or record["file"] in _HANDSHAKE | _PORT
        text = record["text"]
        if record["file"] == "handshaker.cc" and "error=" in text and "error=OK" not in text:
            self._open = text
            if " shutdown=" in text:
                self._turned_away(text)
                self._open = ""
        return self._swallowing

    def _turned_away(self, text: str) -> None:
        """``text`` : of a record about a handshake that has failed."""
        if "grpc.internal.server_credentials" not in text:
            return  # of a connection that this site has dialled: the call tells
        address = re.search(r"endpoint_peer_address=([^,}\s]+)", text)
        where = plain_address(address[1]) if address else "an unknown address"
        error = text.partition(" shutdown=")[0]
        if (fault := _fault(error)) is not None:
            why = f"turned away during the handshake: {fault}"
        elif re.search("time|deadline", error, re.IGNORECASE):
            why = "turned away: it has not finished the handshake in time"
        else:
            why = "it has closed the connection during the handshake"
        with self._lock:
            listener = self._listener
            if listener is None:
                self._waiting = [*self._waiting, (where, why)][-_MOST:]
        if listener is not None:
            listener(where, why)


def _fault(details: str) -> str | None:
    return next((text for pattern, text in _FAULTS.items() if re.search(pattern, details, re.IGNORECASE)), None)


def _mute() -> None:
    """Descriptor 2 leads nowhere: nobody reads the pipe at the end, and gRPC's threads would wait for ever to write."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def _descriptor(stream: TextIO) -> int:
    try:
        return stream.fileno()
    except (OSError, ValueError, io.UnsupportedOperation):
        return -1
