"""What one agent knows of its network: whom it talks to, with which weights, and a bound on how many there are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
from scipy import sparse

from deepca._util.typing import Array, csr
from deepca.errors import TopologyError
from deepca.topology.graph import Topology, freeze

__all__ = ["Neighbourhood"]


class _Spectrum(Protocol):
    @property
    def lambda2(self) -> float: ...
    @property
    def lambda_min(self) -> float: ...
    @property
    def depth(self) -> int: ...


@dataclass(frozen=True, eq=False, repr=False)
class Neighbourhood(Topology):
    """One agent's row of 𝐋, in the place of a Topology: the rest of 𝐋 is not there, and λ₂ is NaN until it is found.

    ``n_agents`` is a bound: numbers of agents are smaller. What needs the whole graph raises TopologyError. Build one
    with :meth:`of` or :meth:`around`, and take what agents found together by :meth:`knowing`.
    """

    agent: int = 0
    reach: int = 0
    """Rounds in which what anyone knows has surely reached everyone."""

    def __post_init__(self) -> None:
        freeze(self.gossip_sparse)
        total = float(self.gossip_sparse[[self.agent], :].sum())
        if not abs(total - 1.0) <= 1e-10:
            raise TopologyError(f"agent {self.agent}: its weights sum to {total:.12g}; they must sum to 1")

    def __repr__(self) -> str:
        return f"Neighbourhood(agent {self.agent} of at most {self.n_agents}, λ₂ = {self.lambda2:.6g})"

    @classmethod
    def around(cls, agent: int, weights: dict[int, float], n_agents: int, *, rule: str = "given") -> Self:
        """Of an agent whose neighbours have these weights; what is left of one is its own."""
        others, own = list(weights), 1.0 - sum(weights.values())
        if agent in weights or not all(0 <= i < n_agents for i in (agent, *others)):
            raise TopologyError(
                f"agent {agent} with neighbours {others}: of at most {n_agents} agents the numbers are 0 … "
                f"{n_agents - 1}, and an agent is not its own neighbour"
            )
        rows = [agent, *([agent] * len(others)), *others]
        columns = [agent, *others, *([agent] * len(others))]
        values = [own, *weights.values(), *weights.values()]
        known = csr(sparse.coo_array((values, (rows, columns)), shape=(n_agents, n_agents)))
        name = f"the neighbourhood of agent {agent}"
        return cls(name, rule, known, np.nan, np.nan, agent, max(n_agents - 1, 0))

    @classmethod
    def of(cls, topology: Topology, agent: int, *, n_agents: int | None = None) -> Self:
        """What an agent of that topology knows; ``n_agents`` may be any bound from above."""
        weights = {i: float(topology.gossip_sparse[agent, i]) for i in topology.neighbors(agent)}
        return cls.around(agent, weights, topology.n_agents if n_agents is None else n_agents, rule=topology.rule)

    def knowing(self, spectrum: _Spectrum) -> Self:
        """With λ₂, λ_min and how far agents are apart (:func:`deepca.decomposition.spectral.graphs.lambda2`)."""
        return replace(
            self, lambda2=spectrum.lambda2, lambda_min=spectrum.lambda_min, reach=min(self.reach, 2 * spectrum.depth)
        )

    @property
    def whole(self) -> bool:
        return False

    @property
    def positive_semidefinite(self) -> bool:
        return self.lambda_min >= -1e-10  # found by iterations, not by a rule

    @cached_property
    def flood_rounds(self) -> int:
        return self.reach

    @cached_property
    def modes(self) -> npt.NDArray[Any]:
        """A fine grid between λ_min and λ₂: nobody knows more."""
        return np.linspace(self.lambda_min, self.lambda2, 500) if self.n_agents > 1 else np.zeros(0)

    @cached_property
    def middle(self) -> int:
        raise self._unknown("the middle of the graph")

    def paths_from(self, source: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        raise self._unknown("paths")

    @cached_property
    def eigenvalues(self) -> Array:
        raise self._unknown("the spectrum of 𝐋")

    def _unknown(self, what: str) -> TopologyError:
        return TopologyError(
            f"agent {self.agent} knows its neighbours only, not {what}; use what agents find together "
            "(deepca.decomposition.spectral.graphs.lambda2, deepca.network.trees.SpanningTree), or a Topology of the "
            "whole graph"
        )
