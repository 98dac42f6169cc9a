"""Check runs over directed, time-varying, pairwise and silently lossy networks."""

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

_MAX_ITER = 150


def networks(trial: Trial) -> None:
    """Run over a network of any kind; a wrong answer is permitted, but not one that is called proven."""
    rng = trial.rng
    d, k = sizes(trial)
    m = int(rng.integers(2, 9))
    stack, _ = agent_matrices(trial, spectrum(trial, d, k), m)
    place, kind = random_network(trial, m)
    W0, tol = random_orthonormal(d, k, seed=int(rng.integers(10**6))), 10.0 ** rng.uniform(-11, -4)
    network: SimulatedNetwork = SimulatedNetwork(place)
    lossy = kind == "lossy"
    if kind == "static" and trial.chance(0.5):  # one-way losses that the library is not told about
        network, lossy = _SilentlyLossy(place, rng), True
        trial.note("one-way losses")
    if lossy:
        trial.may_refuse(NetworkError, NotFiniteError)
    algorithm = _algorithm(trial, stack, W0, network, place)
    trial.note(algorithm.name, f"tol={tol:.1e}")
    result = solve(algorithm, max_iter=_MAX_ITER, stop=Tolerance(tol))
    check_result(trial, result, mean_truth(stack), tol, lossy=lossy)


def _algorithm(trial: Trial, A: Array, W0: Array, network: SimulatedNetwork, place: Topology) -> Algorithm[Any]:
    if network.reliable and trial.chance(0.2):
        return BlockKrylov(A, W0, network)
    rounds: Rounds = trial.one_of("auto", "auto", int(trial.rng.integers(1, 8)))
    if place.static_undirected and trial.chance(0.4):
        return DeEPCA(A, W0, network, Pairwise(rounds, seed=int(trial.rng.integers(1000))))
    if trial.chance(0.3):
        return AcceleratedDeEPCA(A, W0, network)
    trial.may_refuse(MixingError)
    return DeEPCA(A, W0, network, Gossip(rounds))


class _SilentlyLossy(SimulatedNetwork):
    """A static network that silently drops messages on some arcs; the receiver uses its own value instead.

    Rounds are run one by one, because collapsing them to a single matrix would skip the losses.
    """

    def __init__(self, topology: Topology, rng: np.random.Generator) -> None:
        super().__init__(topology)
        self.reliable = False
        links = topology.adjacency.tocoo()
        arcs = np.flatnonzero(rng.random(links.row.size) < 0.5)
        self._arcs = (links.row[arcs], links.col[arcs])
        self._share, self._draw = 10.0 ** rng.uniform(-3, -0.3), np.random.default_rng(int(rng.integers(10**6)))

    def mix(self, mixer: Any, x: Array, K: int, /) -> Array:
        """Run the rounds one by one."""
        return mixer.run(self, x, K) if not mixer.reaches_all else super().mix(mixer, x, K)

    def gossip(self, x: Array, weights: Csr | None = None, /) -> Array:
        """Run one round with losses."""
        mixed = super().gossip(x, weights)
        to, source = self._arcs
        lost = self._draw.random(to.size) < self._share
        used = (self.topology.gossip_sparse if weights is None else weights).toarray()[to, source]
        for j, i, weight in zip(to[lost], source[lost], used[lost], strict=True):
            mixed[j] += weight * (x[j] - x[i])
        return mixed
