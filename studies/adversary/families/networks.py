"""Runs over networks that are directed, change, meet in pairs, or lose messages without telling anybody."""

from __future__ import annotations

from typing import Any

import numpy as np

from deepca import AcceleratedDeEPCA, BlockKrylov, DeEPCA, Gossip, Pairwise, SimulatedNetwork, Tolerance, solve
from deepca._util.typing import Csr, Rounds
from deepca.algorithms.base import Algorithm
from deepca.errors import MixingError, NetworkError, NotFiniteError
from deepca.operators.linalg import random_orthonormal
from deepca.topology import Topology
from studies.adversary.claims import check_result
from studies.adversary.families.solving import mean_truth
from studies.adversary.problems import Array, agent_matrices, random_network, sizes, spectrum
from studies.adversary.trial import Trial

__all__ = ["networks"]

_ITERATIONS = 150


def networks(trial: Trial) -> None:
    """One run over any network: wrong numbers may arrive, but none may be called proven."""
    rng = trial.rng
    d, k = sizes(trial)
    m = int(rng.integers(2, 9))
    stack, _ = agent_matrices(trial, spectrum(trial, d, k), m)
    place, kind = random_network(trial, m)
    W0, tol = random_orthonormal(d, k, seed=int(rng.integers(10**6))), 10.0 ** rng.uniform(-11, -4)
    network: SimulatedNetwork = SimulatedNetwork(place)
    loses = kind == "lossy"
    if kind == "static" and trial.chance(0.5):  # some links lose messages one way, and nobody told the engine
        network, loses = _Deaf(place, rng), True
        trial.note("one-way losses")
    if loses:
        trial.may_refuse(NetworkError, NotFiniteError)
    algorithm = _algorithm(trial, stack, W0, network, place)
    trial.note(algorithm.name, f"tol={tol:.1e}")
    result = solve(algorithm, max_iter=_ITERATIONS, stop=Tolerance(tol))
    check_result(trial, result, mean_truth(stack), tol, loses=loses)


def _algorithm(trial: Trial, A: Array, W0: Array, network: SimulatedNetwork, place: Topology) -> Algorithm[Any]:
    if network.reliable and trial.chance(0.2):
        return BlockKrylov(A, W0, network)
    rounds: Rounds = trial.one_of("auto", "auto", int(trial.rng.integers(1, 8)))
    if place.stays and trial.chance(0.4):
        return DeEPCA(A, W0, network, Pairwise(rounds, seed=int(trial.rng.integers(1000))))
    if trial.chance(0.3):
        return AcceleratedDeEPCA(A, W0, network)
    trial.may_refuse(MixingError)
    return DeEPCA(A, W0, network, Gossip(rounds))


class _Deaf(SimulatedNetwork):
    """A static network some of whose arcs deliver nothing in some rounds; the receiver puts its own value instead.

    Rounds are made one by one, as a linear map of all of them would not know of losses.
    """

    def __init__(self, topology: Topology, rng: np.random.Generator) -> None:
        super().__init__(topology)
        self.reliable = False
        links = topology.adjacency.tocoo()
        arcs = np.flatnonzero(rng.random(links.row.size) < 0.5)
        self._arcs = (links.row[arcs], links.col[arcs])
        self._share, self._draw = 10.0 ** rng.uniform(-3, -0.3), np.random.default_rng(int(rng.integers(10**6)))

    def mix(self, mixer: Any, x: Array, K: int, /) -> Array:
        return mixer.run(self, x, K) if not mixer.spreads else super().mix(mixer, x, K)

    def gossip(self, x: Array, weights: Csr | None = None, /) -> Array:
        heard = super().gossip(x, weights)
        to, source = self._arcs
        lost = self._draw.random(to.size) < self._share
        used = (self.topology.gossip_sparse if weights is None else weights).toarray()[to, source]
        for j, i, weight in zip(to[lost], source[lost], used[lost], strict=True):
            heard[j] += weight * (x[j] - x[i])
        return heard
