"""Objects shared by the parts of a node, and the locking rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deepca.sites.protocol.signatures import Signatures
from deepca.sites.runtime.assembly import Assembly
from deepca.sites.runtime.clocks import Clock, Condition
from deepca.sites.runtime.link import Link
from deepca.sites.runtime.node_config import NodeConfig, Policy

__all__ = ["NodeContext"]


@dataclass(frozen=True)
class NodeContext:
    """Objects shared by the parts of a node.

    One lock, that of ``changed``, guards the node and all its parts. :class:`Node` acquires it before it calls a part
    and is the only one that waits; a part notifies ``changed`` where a waiting call may be able to return.
    """

    config: NodeConfig
    policy: Policy
    clock: Clock
    changed: Condition
    began: float  # time at which the node was created
    signatures: Signatures
    assembly: Assembly
    links: Mapping[int, Link]  # by neighbour

    @property
    def me(self) -> int:
        """Index of this site."""
        return self.config.me

    def name(self, site: int) -> str:
        """Return the name of a site."""
        return self.config.sites[site]
