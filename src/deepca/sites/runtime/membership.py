"""A site's place in the network, and how long it waits for others."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from deepca.sites.protocol.records import Edge

__all__ = ["Membership", "Policy"]


@dataclass(frozen=True)
class Policy:
    """How long a site waits for others, in seconds.

    Parameters
    ----------
    on_loss : {"wait", "shrink"}
        Whether to wait for a neighbour that is lost for longer than ``patience``, or to continue without it.
    patience : float
        Time for which a silent neighbour does not yet count as lost.
    deadline : float
        Time after which a run ends as unfinished.
    linger : float
        Time for which a site that has finished stays to hand out the result.
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
        Digest of the network, 32 bytes.
    fingerprint : mapping of str to bytes
        Everything that must be the same at all sites, by name.
    limit : int
        Largest message body, in bytes.
    """

    sites: tuple[str, ...]
    me: int
    edges: tuple[Edge, ...]
    run: bytes
    fingerprint: Mapping[str, bytes]
    limit: int

    @property
    def agreement(self) -> bytes:
        """Digest of 32 bytes, equal for sites that agree on everything, including name and settings of the run."""
        return hashlib.sha256(repr(sorted(self.fingerprint.items())).encode() + self.run).digest()

    @property
    def neighbors(self) -> tuple[int, ...]:
        """Indices of the neighbours of this site."""
        return tuple(sorted({edge[0] + edge[1] - self.me for edge in self.edges if self.me in edge}))
