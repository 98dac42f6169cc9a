"""Connect the members of a plan: messages pass through the node, and what totals show is counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from deepca._util.typing import Array
from deepca.network.agent import AgentNetwork
from deepca.network.sums import Addend, SumTree, Total
from deepca.network.transports.base import Combine, Message, RelayStep, Tag, Transport
from deepca.sites.protocol.records import RunPlan
from deepca.sites.runtime.disclosure import ShownDirections
from deepca.sites.runtime.node import Node
from deepca.topology.graph import Topology, from_edges

__all__ = ["MemberNetwork", "PlanTransport", "member_topology"]


class PlanTransport(Transport):
    """Transport between the members of a plan, which are numbered by their position in it."""

    reliable = True

    def __init__(self, node: Node, plan: RunPlan) -> None:
        self._node, self._plan = node, plan

    def exchange(self, tag: Tag, outgoing: Any, sources: Any, /) -> dict[int, Message]:
        """Exchange messages through the node."""
        sites = self._plan.members
        received = self._node.exchange(
            self._plan, tag, {sites[j]: message for j, message in outgoing.items()}, [sites[j] for j in sources]
        )
        return {j: received[sites[j]] for j in sources}

    def relay(self, steps: Sequence[RelayStep], message: Message, combine: Combine, /) -> Message:
        """Relay messages through the node."""
        sites = self._plan.members

        def combine_by_member(index: int, sent: Message, received: dict[int, Message]) -> Message:
            return combine(index, sent, {j: received[sites[j]] for j in steps[index].sources})

        by_site = [
            RelayStep(one.tag, tuple(sites[j] for j in one.receivers), tuple(sites[j] for j in one.sources))
            for one in steps
        ]
        return self._node.relay(self._plan, by_site, message, combine_by_member)


class MemberNetwork(AgentNetwork):
    """Network of one member of a plan, which counts the directions that totals show.

    Parameters
    ----------
    topology : Topology
        Links between the members.
    agent : int
        Index of this member.
    transport : Transport
        Transport for messages.
    shown : ShownDirections
        The count.
    """

    def __init__(self, topology: Topology, agent: int, transport: Transport, shown: ShownDirections) -> None:
        super().__init__(topology, agent, transport)
        self._shown = shown

    def totals_and_derive(
        self,
        addends: Sequence[Addend],
        derive: Callable[[list[Total]], Array],
        size: int,
        /,
        tree: SumTree | None = None,
    ) -> tuple[list[Total], Array]:
        """Count the directions that the totals show, then compute them; raise DisclosureError if they are too many."""
        directions = sum(addend.directions for addend in addends)
        if directions and self.n_agents > 1:
            self._shown.add(directions)
        return super().totals_and_derive(addends, derive, size, tree)


def member_topology(topology: Topology, plan: RunPlan) -> Topology:
    """Return the links between the members of a plan, given those between all sites."""
    if len(plan.members) == topology.n_agents and len(plan.edges) == topology.n_edges:
        return topology
    place = {site: j for j, site in enumerate(plan.members)}
    edges = [(place[a], place[b]) for a, b in plan.edges]
    return from_edges(len(plan.members), edges, name=f"{len(plan.members)} sites of {topology.name}")
