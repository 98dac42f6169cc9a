"""Objects that the parts of a node share, and the rule for its lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deepca.sites.protocol.signatures import Seals
from deepca.sites.runtime.assembly import Assembly, Membership, Policy
from deepca.sites.runtime.clocks import Clock, Condition
from deepca.sites.runtime.link import Link

__all__ = ["NodeContext"]


@dataclass(frozen=True)
class NodeContext:
    """Objects that the parts of a node share.

    One lock, that of ``changed``, guards the node and all its parts. :class:`Node` acquires it before it calls a part
    and is the only one that waits; a part notifies ``changed`` where a waiting call may be able to return.

    began : time at which the node was made.  links : by neighbour.
    """

    membership: Membership
    policy: Policy
    clock: Clock
    changed: Condition
    began: float
    seals: Seals
    assembly: Assembly
    links: Mapping[int, Link]

    @property
    def me(self) -> int:
        """Index of this site."""
        return self.membership.me

    def name(self, site: int) -> str:
        """Return the name of a site."""
        return self.membership.sites[site]
