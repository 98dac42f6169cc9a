"""Snapshots of a node for logs and screens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from deepca.sites.runtime.assembly import Assembly
from deepca.sites.runtime.link import Link

__all__ = ["LinkSnapshot", "NodeSnapshot", "snapshot_of"]


@dataclass(frozen=True)
class LinkSnapshot:
    """Snapshot of a link to a neighbour.

    Parameters
    ----------
    site : str
        Name of the neighbour.
    state : {"up", "silent", "down"}
        State of the link.
    silent_for : float or None
        Seconds since the last frame; None if none has arrived.
    sent_bytes, received_bytes : int
        Number of bytes of messages sent and received.
    retransmissions : int
        Number of retransmissions.
    skew : float or None
        Seconds by which the neighbour's clock is ahead; None if unknown.
    why : str
        Why the link is not up, if known.
    """

    site: str
    state: Literal["up", "silent", "down"]
    silent_for: float | None
    sent_bytes: int
    received_bytes: int
    retransmissions: int
    skew: float | None
    why: str = ""


@dataclass(frozen=True)
class NodeSnapshot:
    """Snapshot of a node.

    Parameters
    ----------
    phase : str
        Phase of this site's record.
    epoch : int
        Last epoch entered.
    members : tuple of str
        Members of the plan that this site follows; empty without one.
    links : tuple of LinkSnapshot
        Links to neighbours.
    missing : tuple of str
        Sites that cannot be reached.
    busy : tuple of str
        Reachable sites that are not ready for a new plan yet.
    differing : tuple of (str, tuple of str)
        Sites whose settings or columns differ from those of most sites, and the names of the entries that differ.
    """

    phase: str
    epoch: int
    members: tuple[str, ...]
    links: tuple[LinkSnapshot, ...]
    missing: tuple[str, ...]
    busy: tuple[str, ...]
    differing: tuple[tuple[str, tuple[str, ...]], ...]


def snapshot_of(here: Assembly, links: Mapping[int, Link], now: float) -> NodeSnapshot:
    """Return a snapshot of a site's assembly and links."""
    busy = [site for site in here.present if here.table[site].phase != "gathering"]
    return NodeSnapshot(
        here.record.phase,
        here.record.epoch,
        here.names(here.plan.members) if here.plan is not None else (),
        tuple(_link_snapshot(here.name(peer), link, now) for peer, link in links.items()),
        here.names(here.everyone - here.present),
        here.names(busy) if here.record.phase == "gathering" else (),
        tuple((here.name(one.site), one.names) for one in here.table.differences()),
    )


def _link_snapshot(site: str, link: Link, now: float) -> LinkSnapshot:
    return LinkSnapshot(
        site,
        "down" if not link.up else "silent" if link.silent(now) else "up",
        now - link.last_heard if link.last_heard > float("-inf") else None,
        link.sent_bytes,
        link.received_bytes,
        link.retransmissions,
        link.skew,
    )
