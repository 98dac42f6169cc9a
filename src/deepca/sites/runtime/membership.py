"""Describe a site's place in the network, and how long it waits for other sites."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from deepca.sites.protocol.records import Edge

__all__ = ["Membership", "Policy"]


@dataclass(frozen=True)
class Policy:
    """Limits, in seconds, on how long a site waits for other sites.

    Parameters
    ----------
    on_loss : {"wait", "shrink"}
        Whether to wait for a neighbour that is lost for longer than ``patience``, or to continue without it.
    patience : float
        Time for which a neighbour may be silent before it counts as lost.
    deadline : float
        Time after which a run ends as unfinished.
    linger : float
        Time for which a site that has finished keeps running, to send the result to other sites.
    """

    on_loss: Literal["wait", "shrink"] = "wait"
    patience: float = 60.0
    deadline: float = 86_400.0
    linger: float = 60.0


@dataclass(frozen=True)
class Membership:
    """Facts about a site and its network that do not change during a run.

    Parameters
    ----------
    sites : tuple of str
        Names of all sites, in their common order.
    me : int
        Index of this site.
    edges : tuple of Edge
        Pairs of sites that are neighbours.
    run : bytes
        Digest (32 bytes) of the network and the protocol.
    fingerprint : mapping of str to bytes
        What must be the same at all sites, keyed by name.
    limit : int
        Largest message body to accept, in bytes.
    """

    sites: tuple[str, ...]
    me: int
    edges: tuple[Edge, ...]
    run: bytes
    fingerprint: Mapping[str, bytes]
    limit: int

    @property
    def agreement(self) -> bytes:
        """Digest (32 bytes) that is equal at sites that agree on everything, including name and settings of the run."""
        return hashlib.sha256(repr(sorted(self.fingerprint.items())).encode() + self.run).digest()

    @property
    def neighbors(self) -> tuple[int, ...]:
        """Indices of the neighbours of this site."""
        return tuple(sorted({edge[0] + edge[1] - self.me for edge in self.edges if self.me in edge}))
