"""Write and read single lines of an audit log.

A line is a JSON object, whose last member ``hash`` chains it to the line before::

    h_n = SHA-256(h_{n-1} ‖ line n without its last member)

The chain of a log begins with the last hash of the log before it, or with 32 zero bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from deepca.errors import FrameError
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.protocol.parcels import parse_header

__all__ = [
    "FIRST_HASH",
    "FORMAT",
    "HASH_BYTES",
    "SIGNATURE_LABEL",
    "chained",
    "described",
    "digest_of",
    "parsed",
    "utc",
]

FORMAT = 1
"""Version of the format."""
HASH_BYTES = 32
"""Length of the hash of a line."""
FIRST_HASH = bytes(HASH_BYTES)
"""Beginning of the chain of the first log of a run."""
SIGNATURE_LABEL = b"deepca.v1 audit"
"""Prefix of the signed bytes, so that the signature is valid for nothing else."""
_DIGEST_BYTES = 16  # length of the digest of a message; enough to tell messages apart
_END = b'"}'
_HASH_MEMBER = b',"hash":"'
_Members = dict[str, type | tuple[type, ...]]
_MESSAGE: _Members = {"kind": str, "bytes": int, "session": str, "seq": int, "digest": str}
_START = ("site", "network", "run", "network_digest", "privacy", "boot", "time", "deepca")
_REQUIRED: dict[str, _Members] = {  # members of each line, and their types
    "start": {**dict.fromkeys(_START, str), "format": int, "previous": (dict, type(None))},
    "sent": {"to": str, "header": int, **_MESSAGE},
    "received": {"from": str, **_MESSAGE},
    "frames": {"to": str, "counts": dict},
    "gap": {"lost": int},
    "incarnation": {"boot": str},
    "end": {"time": str, "totals": dict},
    "signature": {"certificate": str, "signature": str},
}
_MASKED: dict[str, bool | str] = {"masked": True, "public": "public", "structural": "structural", "open": False}


def chained(before: bytes, members: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """Return a line with its newline, and its hash; ``before`` is the hash of the line before it."""
    content = json.dumps(members, separators=(",", ":"), ensure_ascii=True).encode()
    now = hashlib.sha256(before + content).digest()
    return content[:-1] + _HASH_MEMBER + now.hex().encode() + _END + b"\n", now


def parsed(line: bytes) -> tuple[dict[str, Any], bytes, bytes]:
    """Return the members of a line without its newline, the hash in it, and the bytes that the hash covers.

    Raises
    ------
    ValueError
        If it is not a line of an audit log.
    """
    size = 2 * HASH_BYTES
    at = len(line) - size - len(_END) - len(_HASH_MEMBER)
    if at < 1 or line[at : at + len(_HASH_MEMBER)] != _HASH_MEMBER or not line.endswith(_END):
        raise ValueError("the line does not end with a hash")
    members = json.loads(line)
    known = isinstance(members, dict) and _REQUIRED.get(str(members.get("line")))
    if not known or not all(isinstance(members.get(name), kind) for name, kind in known.items()):
        raise ValueError("members of the line are missing, or not of the right type")
    text = line[at + len(_HASH_MEMBER) : -len(_END)].decode("ascii")
    return members, bytes.fromhex(text), line[:at] + b"}"


def digest_of(header: bytes, *body: bytes | bytearray | memoryview) -> str:
    """Return the digest of a message: of its header and its body."""
    digest = hashlib.sha256(header)
    for piece in body:
        digest.update(piece)
    return digest.hexdigest()[: 2 * _DIGEST_BYTES]


def described(header: bytes, visibility: str) -> dict[str, Any]:
    """Return what a log says of a message, from its header."""
    try:
        parcel = parse_header(header)
    except FrameError:  # a neighbour may send anything
        return {"kind": "malformed"}
    kind = parcel.WhichOneof("kind") or "unknown"
    about: dict[str, Any] = {"kind": kind}
    if kind == "data":
        data = parcel.data
        about |= {"phase": data.phase, "iteration": data.iteration, "round": data.round}
        if data.HasField("payload"):
            about |= {"dtype": data.payload.dtype, "shape": list(data.payload.shape)}
        if data.riders:
            about["riders"] = [list(_shape(rider)) for rider in data.riders]
    return about | {"masked": _MASKED[visibility]}


def utc(seconds: float) -> str:
    """Format a time in seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _shape(array: wire.Array) -> tuple[int, ...]:
    return tuple(array.shape)
