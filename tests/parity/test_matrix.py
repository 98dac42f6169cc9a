"""Test that separate agents, on threads or MPI ranks, match the simulator with every method on every network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import deepca
from deepca import AcceleratedDeEPCA, BlockKrylov, CovarianceAveraging, DeEPCA, Pairwise, Tolerance
from deepca._util.typing import Array
from deepca.network import Network, SimulatedNetwork
from deepca.operators import Operator
from deepca.topology import Topology, directed, time_varying
from tests.support.engines import assert_same_traffic, over_mpi, run_separately
from tests.support.helpers import GRAPHS, RoundByRound, worst_tangent
from tests.support.problems import pooled_answer, spectrum, spectrum_problem

M, D, K = 12, 24, 3
BASE = deepca.topology.erdos_renyi(M, 0.5, seed=2)

STATIC: dict[str, Callable[[], Topology]] = {
    **{name: GRAPHS[name] for name in ("ring", "star", "path", "edges", "hypercube", "one agent", "two agents")},
    "erdos-renyi": lambda: BASE,
}
OTHER: dict[str, Callable[[], Topology]] = {
    "directed": lambda: directed.random_digraph(M, 0.2, seed=2),
    "matchings": lambda: time_varying.matchings(BASE, seed=1),
    "failing links": lambda: time_varying.failing(BASE, 0.5, seed=3),
    "directed, periodic": lambda: time_varying.periodic([directed.random_digraph(M, 0.3, seed=s) for s in range(3)]),
}
Made = Callable[[Operator, Array, Network], Any]
METHODS: dict[str, Made] = {
    "deepca": DeEPCA,
    "accelerated": AcceleratedDeEPCA,
    "krylov": BlockKrylov,
    "covariance": CovarianceAveraging,
    "pairwise": lambda A, W0, network: DeEPCA(A, W0, network, Pairwise(9)),
    "pairwise, auto": lambda A, W0, network: DeEPCA(A, W0, network, Pairwise()),
    "pairwise, accelerated": lambda A, W0, network: AcceleratedDeEPCA(A, W0, network, Pairwise()),
}
EXACT = ("krylov", "covariance")
MATRIX = [
    *((graph, method) for graph in STATIC for method in ("deepca", "accelerated", *EXACT)),
    *((graph, method) for graph in OTHER for method in ("deepca", "accelerated")),
    *((graph, method) for graph in ("erdos-renyi", "ring") for method in METHODS if method.startswith("pairwise")),
]


@pytest.mark.parametrize(("graph", "method"), MATRIX, ids=lambda name: str(name))
def test_separate_agents_match_the_simulator(graph: str, method: str) -> None:
    """Iterations, numbers, rounds and bytes are equal, and the pooled answer is proven."""
    place = {**STATIC, **OTHER}[graph]()
    m = place.n_agents
    indefinite = method in EXACT and m > 1  # exact methods tolerate indefinite agents
    stack = spectrum_problem(
        m,
        D,
        spectrum(D, K, gap=0.7, decay=0.8),
        0,
        heterogeneity=min(m - 1, 2.0 if indefinite else 0.5),
        indefinite=indefinite,
    )
    U, A = pooled_answer(stack, K)[1], deepca.operators.from_matrices(stack)
    W0 = deepca.operators.linalg.random_orthonormal(D, K, seed=1)

    def make(local: Operator, network: Network) -> Any:
        return METHODS[method](local, W0, network)

    stop = Tolerance(1e-10)
    simulated = deepca.solve(make(A, SimulatedNetwork(place)), max_iter=900, stop=stop)
    run = run_separately(place, A, make, max_iter=900, stop=stop)
    separate = run.whole
    assert simulated.status.code == separate.status.code == "converged"
    assert max(worst_tangent(U, separate.W), worst_tangent(U, separate.components)) <= 1e-10
    assert len({part.certificate.digest for part in run.parts if part.certificate is not None}) == 1
    if method in EXACT:  # averages, and all that follows from them, have the same bits everywhere
        assert len({np.ascontiguousarray(W).tobytes() for W in separate.W}) == 1
        assert separate.certificate is not None
        assert simulated.certificate is not None
        assert separate.certificate.digest == simulated.certificate.digest
    if over_mpi() and (graph in OTHER or method.startswith("pairwise")):
        return  # ranks reduce without rounds, so a time-varying network is in another round than in the simulator
    assert separate.iterations == simulated.iterations
    np.testing.assert_allclose(separate.components, simulated.components, rtol=0, atol=1e-9)
    assert_same_traffic(separate.traffic, simulated.traffic, place, sums=method in EXACT)
    if not over_mpi() and graph in STATIC:  # collapsing rounds to one product changes nothing
        slowly = deepca.solve(make(A, RoundByRound(place)), max_iter=900, stop=stop)
        assert (slowly.iterations, slowly.traffic) == (simulated.iterations, simulated.traffic)
