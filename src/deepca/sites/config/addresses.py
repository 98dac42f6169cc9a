"""Names of sites and networks, and addresses at which sites listen."""

from __future__ import annotations

import ipaddress
import re

from deepca.errors import InvalidInput

__all__ = ["is_loopback", "is_network_name", "is_site_name", "split_address"]

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
_HOST = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)*\.?"
)


def split_address(address: str, *, lowest: int = 1) -> tuple[str, int]:
    """Host and port of ``"host:port"`` or ``"[::1]:port"``. ``lowest`` : the smallest port there may be."""
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not colon or not re.fullmatch("[0-9]{1,5}", port):
        raise InvalidInput(f"{address!r}: write host:port, such as north.example.org:7400")
    if not lowest <= int(port) <= 65535:
        raise InvalidInput(f"{address!r}: a port lies between {lowest} and 65535")
    if bracketed or ":" in host:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise InvalidInput(f"{address!r}: {host!r} is no IPv6 address; write it as in [2001:db8::1]:7400") from None
        if not bracketed:
            raise InvalidInput(f"{address!r}: write an IPv6 address in brackets, [{host}]:{port}")
    elif not _HOST.fullmatch(host):
        raise InvalidInput(f"{address!r}: {host!r} is not the name of a host")
    elif re.fullmatch("[0-9.]+", host):
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            raise InvalidInput(f"{address!r}: {host!r} is no IPv4 address") from None
    return host, int(port)


def is_site_name(text: str) -> bool:
    """Whether a site may be called so: a label as in DNS, of small letters, digits and hyphens."""
    return _LABEL.fullmatch(text) is not None


def is_network_name(text: str) -> bool:
    """Whether a network or a run may be called so."""
    return _NAME.fullmatch(text) is not None


def is_loopback(host: str) -> bool:
    """Whether a host can only be this machine: 127.0.0.0/8, ::1 or localhost."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
