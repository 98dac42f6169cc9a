"""Configuration of a node: its site's place in the network, and how long it waits for other sites."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from deepca.sites.protocol.records import Edge

__all__ = ["NodeConfig", "Policy"]


@dataclass(frozen=True)
class Policy:
    """Times for which a site waits for other sites, in seconds, and its reaction to the loss of one.

    Parameters
    ----------
    on_loss : {"wait", "shrink"}
        Whether to wait for a site that is lost, or to continue without it.
    patience : float
        Time for which a neighbour may be silent before it counts as lost.
    deadline : float
        Time after which a run ends as unfinished.
    linger : float
        Time for which a site that has finished keeps running, so that other sites can get the result from it.
    """

    on_loss: Literal["wait", "shrink"] = "wait"
    patience: float = 60.0
    deadline: float = 86_400.0
    linger: float = 60.0


@dataclass(frozen=True)
class NodeConfig:
    """Facts about a site and its network that do not change during a run.

    Parameters
    ----------
    sites : tuple of str
        Names of all sites, in their common order.
    me : int
        Index of this site.
    edges : tuple of Edge
        Pairs of sites that are neighbours.
    network_digest : bytes
        Digest (32 bytes) of the network and the protocol version, which is the same at all its sites.
    fingerprint : mapping of str to bytes
        Digests or short texts that must be the same at all sites, keyed by name.
    message_limit : int
        Largest message body to accept, in bytes.
    mask_key : bytes
        Public key of this process for the masks of private sums; empty in an open network.
    """

    sites: tuple[str, ...]
    me: int
    edges: tuple[Edge, ...]
    network_digest: bytes
    fingerprint: Mapping[str, bytes]
    message_limit: int
    mask_key: bytes = b""

    @property
    def agreement_digest(self) -> bytes:
        """Digest (32 bytes) of the network and the fingerprint, which includes the name and settings of the run."""
        return hashlib.sha256(repr(sorted(self.fingerprint.items())).encode() + self.network_digest).digest()

    @property
    def neighbors(self) -> tuple[int, ...]:
        """Indices of the neighbours of this site."""
        return tuple(sorted({edge[0] + edge[1] - self.me for edge in self.edges if self.me in edge}))
