"""Check the ``[[sites]]`` entries of ``network.toml``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deepca.errors import InvalidInput
from deepca.sites.config.addresses import is_site_name, split_address

__all__ = ["RESERVED_NAMES", "SiteEntry", "check_sites"]

RESERVED_NAMES = ("authority", "revoked", "site")
"""Names that no site may have: their folders or ``<name>.pem`` files would collide with files of the kits."""


@dataclass(frozen=True)
class SiteEntry:
    """A site as listed in ``network.toml``.

    Parameters
    ----------
    name : str
        Its name, a DNS label.
    address : str, optional
        ``host:port`` at which neighbours reach it; None if it only dials out.
    """

    name: str
    address: str | None = None


def check_sites(sites: Sequence[SiteEntry]) -> None:
    """Raise InvalidInput unless there is at least one site, and all names and addresses are valid and distinct.

    The error has the index of the site as ``agent``, and "name" or "address" as ``parameter``.
    """
    if not sites:
        raise InvalidInput(
            "sites is missing; write [[sites]] for each site, followed by its name and, if it has one, its address",
            parameter="sites",
        )
    names: set[str] = set()
    addresses: dict[tuple[str, int], str] = {}
    for agent, site in enumerate(sites):
        if advice := _name_advice(site.name, names):
            raise InvalidInput(f"site name {site.name!r}: {advice}", parameter="name", agent=agent, value=site.name)
        names.add(site.name)
        if site.address is None:
            continue
        try:
            host, port = split_address(site.address)
        except InvalidInput as error:
            raise InvalidInput(
                f"the address of {site.name}: {error}", parameter="address", agent=agent, value=site.address
            ) from None
        if (other := addresses.setdefault((host.lower(), port), site.name)) != site.name:
            raise InvalidInput(
                f"{other} and {site.name} have the same address, {site.address}; give each site its own",
                parameter="address",
                agent=agent,
                value=site.address,
            )


def _name_advice(name: str, taken: set[str]) -> str:
    """Return what to do about an invalid or repeated site name, or an empty string if the name is valid."""
    if not is_site_name(name):
        return "use up to 63 lowercase letters, digits and hyphens, without a hyphen at either end"
    if name in RESERVED_NAMES:
        return "this name is reserved for files in kits; choose another name"
    return "another site has this name; give each site its own name" if name in taken else ""
