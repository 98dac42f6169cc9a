"""Validate the names of sites and networks, and the addresses at which sites listen."""

from __future__ import annotations

import ipaddress
import re

from deepca.errors import InvalidInput

__all__ = ["is_loopback", "is_network_name", "is_site_name", "split_address"]

_SITE_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NETWORK_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
_HOST_NAME = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)*\.?"
)


def split_address(address: str, *, lowest: int = 1) -> tuple[str, int]:
    """Split ``"host:port"`` or ``"[::1]:port"`` into host and port.

    Parameters
    ----------
    address : str
        Address to split.
    lowest : int, default 1
        Smallest port accepted.

    Raises
    ------
    InvalidInput
        If the address is malformed; ``parameter`` is "address" and ``value`` the address.
    """
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not colon or not re.fullmatch("[0-9]{1,5}", port):
        raise _malformed_error(address, "expected host:port, such as north.example.org:7400")
    if not lowest <= int(port) <= 65535:
        raise _malformed_error(address, f"port {port} is not between {lowest} and 65535; choose one that is")
    if bracketed or ":" in host:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise _malformed_error(
                address, f"{host!r} is not an IPv6 address; write one like [2001:db8::1]:7400"
            ) from None
        if not bracketed:
            raise _malformed_error(address, f"an IPv6 address needs brackets; write [{host}]:{port}")
    elif not _HOST_NAME.fullmatch(host):
        raise _malformed_error(address, f"{host!r} is not a host name; write host:port, such as north.example.org:7400")
    elif re.fullmatch("[0-9.]+", host):
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            raise _malformed_error(address, f"{host!r} is not an IPv4 address; write one like 192.0.2.1:7400") from None
    return host, int(port)


def _malformed_error(address: str, advice: str) -> InvalidInput:
    return InvalidInput(f"{address!r}: {advice}", parameter="address", value=address)


def is_site_name(text: str) -> bool:
    """Return whether a text is a valid site name: a DNS label of lowercase letters, digits and hyphens."""
    return _SITE_NAME.fullmatch(text) is not None


def is_network_name(text: str) -> bool:
    """Return whether a text is a valid name of a network or run.

    A name consists of up to 64 letters, digits and ``._-``, and begins and ends with a letter or digit.
    """
    return _NETWORK_NAME.fullmatch(text) is not None


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address: 127.0.0.0/8, ::1 or localhost."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
