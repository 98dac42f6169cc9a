"""Compare the results of the ranks with those of the simulator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import deepca
from benchmarks.cluster.sharing import run_on_rank_0
from deepca.decomposition.settings import create_algorithm
from deepca.solver.result import Result
from studies.shared.synthetic import Synthetic, matrices

if TYPE_CHECKING:
    from mpi4py import MPI

    from deepca.network.base import Network

__all__ = ["ALGORITHMS", "FIXED", "GOAL", "GRAPHS", "TOL", "Agreement", "Case", "cases", "measure"]

GOAL = 1e-12
GRAPHS = ("ring", "erdos-renyi", "torus")
ALGORITHMS = ("deepca", "accelerated", "krylov")
_FEATURES, _COMPONENTS, TOL = 60, 5, 1e-10
FIXED = 20  # iterations of the runs without a stop rule
_MAX_ITER = 500


@dataclass(frozen=True)
class Case:
    """An algorithm on a graph whose agents are partitioned evenly over ranks."""

    ranks: int
    agents: int
    graph: str
    algorithm: str

    @property
    def cost(self) -> float:
        """Approximate seconds, for progress bars."""
        return (4.0 if self.graph == "ring" else 1.5) if self.ranks > 8 else 0.4


@dataclass(frozen=True)
class Agreement:
    """Largest ``|W_mpi − W_sim|`` over all agents, after a fixed number of iterations and at the end of a run.

    ``iterations`` and ``simulated`` count the iterations to the tolerance on ranks and in the simulator; ``status`` has
    both statuses.
    """

    ranks: int
    agents: int
    graph: str
    algorithm: str
    fixed: float
    stopped: float
    iterations: int
    simulated: int
    status: tuple[str, str]


def cases(ranks: int, quick: bool) -> Iterator[Case]:
    """Yield cases with one agent per rank and, for up to 8 ranks, also with several.

    On four ranks the torus has nine agents, since 3 × 3 is the smallest torus.
    """
    if ranks < 4:
        return
    for graph in GRAPHS[-1:] if quick and ranks > 4 else GRAPHS:
        for algorithm in ALGORITHMS:
            yield Case(ranks, 9 if graph == "torus" and ranks == 4 else ranks, graph, algorithm)
            if ranks <= 8 and not (quick and graph != "torus"):
                yield Case(ranks, 50, graph, algorithm)


def measure(case: Case, comm: MPI.Intracomm) -> Agreement | None:
    """Run a case on the ranks, then in the simulator on rank 0, and compare."""
    from deepca.engines.mpi.network import MpiNetwork

    topology = deepca.topology.from_name(case.graph, case.agents, seed=0)
    wanted = Synthetic(_FEATURES, gap=0.5)
    A = matrices(wanted, _COMPONENTS, case.agents, "noise", seed=1)
    network = MpiNetwork(topology, comm)
    ours = _runs(case.algorithm, A, network)
    network.close()
    pieces = [comm.gather(result.W) for result in ours]
    found: list[Agreement] = []

    def compare() -> None:
        theirs = _runs(case.algorithm, A, deepca.SimulatedNetwork(topology))
        together = [np.concatenate(piece) for piece in pieces if piece is not None]
        fixed, stopped = (float(np.abs(W - result.W).max()) for W, result in zip(together, theirs, strict=True))
        status = (ours[1].status.code, theirs[1].status.code)
        found.append(
            Agreement(
                case.ranks,
                case.agents,
                case.graph,
                case.algorithm,
                fixed,
                stopped,
                ours[1].iterations,
                theirs[1].iterations,
                status,
            )
        )

    run_on_rank_0(comm, compare)
    return found[0] if found else None


def _runs(name: str, A: Any, network: Network) -> list[Result[Any]]:
    W0 = deepca.operators.linalg.random_orthonormal(_FEATURES, _COMPONENTS, seed=2)
    algorithm = create_algorithm(name, A, W0, network)
    return [
        deepca.solve(algorithm, max_iter=FIXED, certify=False),
        deepca.solve(algorithm, max_iter=_MAX_ITER, stop=deepca.Tolerance(TOL)),
    ]
