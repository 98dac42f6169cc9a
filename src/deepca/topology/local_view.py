"""Define :class:`Neighbourhood`: the part of a network that one agent knows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
from scipy import sparse

from deepca._util.renamed import renamed_attributes
from deepca._util.typing import Array, csr
from deepca.errors import TopologyError
from deepca.topology.adjacency import freeze
from deepca.topology.graph import Topology

__all__ = ["Neighbourhood"]


class _Spectrum(Protocol):
    """Result of :func:`deepca.decomposition.spectral.graphs.lambda2`."""

    @property
    def lambda2(self) -> float: ...
    @property
    def lambda_min(self) -> float: ...
    @property
    def depth(self) -> int: ...


@renamed_attributes(knowing="with_spectrum_of")
@dataclass(frozen=True, eq=False, repr=False)
class Neighbourhood(Topology):
    """One agent's view of a network: its own row of 𝐋, its neighbours, and a bound on the number of agents.

    It takes the place of a :class:`Topology` where no agent knows the whole graph. Methods that need the whole graph
    raise TopologyError. Create one with :meth:`of` or :meth:`around`; once the agents have computed the spectrum
    together, add it with :meth:`with_spectrum_of`.

    Parameters
    ----------
    name : str
        Name for messages.
    rule : str
        Rule that set the weights, or ``"given"``.
    gossip_sparse : csr_array of shape (n_agents, n_agents)
        The row and column of 𝐋 that belong to the agent; all other entries are absent. `n_agents` is an upper bound.
    lambda2, lambda_min : float
        Extreme eigenvalues of 𝐋; NaN until they are known.
    agent : int
        Index of the agent.
    reach : int
        Upper bound on the rounds that flooding takes to reach every agent.
    """

    agent: int = 0
    reach: int = 0

    def __post_init__(self) -> None:
        """Validate the agent's weights and make them read-only."""
        freeze(self.gossip_sparse)
        total = float(self.gossip_sparse[[self.agent], :].sum())
        if not abs(total - 1.0) <= 1e-10:
            raise TopologyError(
                f"the weights of agent {self.agent} sum to {total:.12g}; they must sum to 1",
                agent=self.agent,
                value=total,
            )

    def __repr__(self) -> str:
        """Describe the agent, the bound on the number of agents, and λ₂."""
        return f"Neighbourhood(agent {self.agent} of at most {self.n_agents}, λ₂ = {self.lambda2:.6g})"

    @classmethod
    def around(cls, agent: int, weights: dict[int, float], n_agents: int, *, rule: str = "given") -> Self:
        """Create the view of one agent from the weights of its neighbours.

        Parameters
        ----------
        agent : int
            Index of the agent.
        weights : dict of int to float
            Weight of every neighbour; the agent's own weight is one minus their sum.
        n_agents : int
            Upper bound on the number of agents; all indices are smaller.
        rule : str, default="given"
            Rule that set the weights.

        Returns
        -------
        Neighbourhood
            The view, without the spectrum.

        Raises
        ------
        TopologyError
            If an index is not in 0 … n_agents − 1, or the agent is among its neighbours.
        """
        others, own = list(weights), 1.0 - sum(weights.values())
        if agent in weights or not all(0 <= i < n_agents for i in (agent, *others)):
            raise TopologyError(
                f"agent {agent} with neighbours {others}: agents are numbered 0 … {n_agents - 1}, and an agent is not "
                "its own neighbour",
                agent=agent,
                value=others,
            )
        rows = [agent, *([agent] * len(others)), *others]
        columns = [agent, *others, *([agent] * len(others))]
        values = [own, *weights.values(), *weights.values()]
        known = csr(sparse.coo_array((values, (rows, columns)), shape=(n_agents, n_agents)))
        name = f"the neighbourhood of agent {agent}"
        return cls(name, rule, known, np.nan, np.nan, agent, max(n_agents - 1, 0))

    @classmethod
    def of(cls, topology: Topology, agent: int, *, n_agents: int | None = None) -> Self:
        """Create the view of one agent of a known topology.

        Parameters
        ----------
        topology : Topology
            The whole network.
        agent : int
            Index of the agent.
        n_agents : int, optional
            Upper bound on the number of agents; the exact number by default.

        Returns
        -------
        Neighbourhood
            The view, without the spectrum.
        """
        weights = {i: float(topology.gossip_sparse[agent, i]) for i in topology.neighbors(agent)}
        return cls.around(agent, weights, topology.n_agents if n_agents is None else n_agents, rule=topology.rule)

    def with_spectrum_of(self, spectrum: _Spectrum) -> Self:
        """Return a copy with the spectrum and the bound on the diameter that the agents computed together.

        Parameters
        ----------
        spectrum : object with lambda2, lambda_min and depth
            Result of :func:`deepca.decomposition.spectral.graphs.lambda2`; `depth` is that of a spanning tree.

        Returns
        -------
        Neighbourhood
            The copy.
        """
        return replace(
            self, lambda2=spectrum.lambda2, lambda_min=spectrum.lambda_min, reach=min(self.reach, 2 * spectrum.depth)
        )

    @property
    def fully_known(self) -> bool:
        """False: an agent does not know the whole graph."""
        return False

    @property
    def positive_semidefinite(self) -> bool:
        """True if ``𝐋 ⪰ 0``, within the accuracy of an iterative eigensolver."""
        return self.lambda_min >= -1e-10

    @cached_property
    def flood_rounds(self) -> int:
        """Upper bound on the rounds that flooding takes to reach every agent."""
        return self.reach

    @cached_property
    def modes(self) -> npt.NDArray[Any]:
        """A fine grid from λ_min to λ₂, in place of the eigenvalues, which are unknown."""
        return np.linspace(self.lambda_min, self.lambda2, 500) if self.n_agents > 1 else np.zeros(0)

    @cached_property
    def center(self) -> int:
        """Unknown locally; raise TopologyError."""
        raise self._unknown_error("the center of the graph")

    def paths_from(self, source: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Raise TopologyError: paths are unknown locally."""
        raise self._unknown_error("paths")

    @cached_property
    def eigenvalues(self) -> Array:
        """Unknown locally; raise TopologyError."""
        raise self._unknown_error("the spectrum of 𝐋")

    def _unknown_error(self, what: str) -> TopologyError:
        return TopologyError(
            f"agent {self.agent} knows only its neighbours, not {what}; use a Topology of the whole graph, or compute "
            "with the other agents (deepca.decomposition.spectral.graphs.lambda2, deepca.network.trees.SpanningTree)",
            agent=self.agent,
        )
