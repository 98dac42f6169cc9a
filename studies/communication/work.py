"""Make one run and record when it reaches each limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from deepca import topology
from deepca._util.typing import Array
from deepca.algorithms import (
    CPCA,
    AcceleratedDeEPCA,
    Algorithm,
    BlockKrylov,
    CovarianceAveraging,
    DeEPCA,
    DePCA,
)
from deepca.consensus.mixers import FastMix, PositiveChebyshev
from deepca.errors import NotFiniteError
from deepca.network import SimulatedNetwork
from deepca.network.agent import AgentNetwork
from deepca.network.base import Network
from deepca.operators import Operator
from deepca.operators.linalg import tan_theta
from deepca.reproduction.problems import DataSource, graph_of
from deepca.solver.loop import solve
from deepca.solver.observers import Start, Step
from deepca.solver.result import Result
from studies.communication.cells import AGENTS, LIMITS, Data, Mark, Method, Outcome, Run
from studies.shared.problems import Problem, operator_of, start_of, truth_of
from studies.shared.store import Record
from studies.shared.synthetic import Synthetic

__all__ = ["Ended", "Watch", "algorithm_of", "problem_of", "work"]

_TOP_SPREAD = 1e-3  # relative spread of the top k eigenvalues of the synthetic problem
_DATA_SEED = 17  # the synthetic data are the same for every draw of graph and W⁰
_STAY_ITERATIONS = 5  # a limit counts as reached once it has held for this many more iterations
_DENSE_ITERATIONS = 20  # the first iterations are all measured
_POOLED_MAX_ITER = 20_000  # generous, because the pooled baselines must converge


def problem_of(data: Data, k: int, draw: int) -> Problem:
    """Return the problem of a run; rows are in file order and not centred, as in the paper."""
    if data != "close":
        return Problem(data, k, AGENTS, arrangement="file", draw=draw)
    wanted = Synthetic(100, gap=0.2, inside=_TOP_SPREAD / max(k - 1, 1), tail=0.05)
    return Problem(wanted, k, AGENTS, draw=draw, data_seed=_DATA_SEED)


def work(source: DataSource, task: Run) -> Record:
    """Run a method until the mean tan θ is within every limit or can no longer get there."""
    problem = problem_of(task.data, task.k, task.draw)
    A, W0 = operator_of(problem, source), start_of(problem, source)
    longest = task.longest or _POOLED_MAX_ITER
    watch = Watch(truth_of(problem, source).U(task.k), longest, stride=_stride(task))
    algorithm = algorithm_of(task, A, W0)
    try:
        solve(algorithm, max_iter=longest, observers=[watch], certify=False)
    except Ended:
        pass
    except NotFiniteError:
        watch.ended = "not finite"
    outcome = watch.outcome(with_curve=task.draw == 0)
    if task.graph is None and outcome.failed:
        raise RuntimeError(f"the baseline {task.method} does not reach {min(LIMITS)} on {problem}")
    return asdict(outcome)


def algorithm_of(task: Run, A: Operator, W0: Array) -> Algorithm[Any]:
    """Build the algorithm of a run, with default arguments wherever possible."""
    if task.method == "CPCA":
        return CPCA(A.mean(), W0)
    if task.graph is None:
        return BlockKrylov(A.mean(), W0, AgentNetwork(topology.complete(1), 0))
    return _METHODS[task.method](A, W0, SimulatedNetwork(graph_of(task.graph, AGENTS, task.draw)), task.K)


_METHODS: Mapping[Method, Callable[[Operator, Array, Network, int], Algorithm[Any]]] = {
    "DeEPCA": lambda A, W0, network, K: DeEPCA(A, W0, network, FastMix(K)),
    "DePCA": lambda A, W0, network, _: DePCA(A, W0, network, FastMix(lambda t: 3 + t // 10)),
    "accelerated": lambda A, W0, network, _: AcceleratedDeEPCA(A, W0, network),
    "accelerated, float32": lambda A, W0, network, _: AcceleratedDeEPCA(
        A, W0, network, mix=PositiveChebyshev(messages="float32")
    ),
    "covariance averaging": lambda A, W0, network, _: CovarianceAveraging(A, W0, network),
    "block Krylov": lambda A, W0, network, _: BlockKrylov(A, W0, network),
}


class Ended(Exception):
    """Raised by :class:`Watch` to end a run whose outcome is decided."""


class Watch:
    """Record when limits are reached, and end the run once they hold or are out of reach.

    Parameters
    ----------
    U : ndarray of shape (d, k)
        Top eigenvectors of the pooled matrix.
    longest : int
        Iteration limit of the run. A run has stalled when tan θ does not halve within a quarter of this limit or
        within 100 iterations, whichever is larger.
    stride : int
        Far above a limit, only every ``stride``-th iteration is measured to save time; near it, every one.
    """

    def __init__(self, U: Array, longest: int, *, stride: int = 1) -> None:
        self._U, self._stride = U, stride
        self._patience = max(100, longest // 4)
        self._marks: list[Mark | None] = [None] * len(LIMITS)
        self._lowest = self._mean = self._worst = np.inf
        self._halved, self._since = np.inf, 0
        self._iterations = 0
        self._curve: list[tuple[int, float, float]] = []
        self.ended = "longest"

    def begin(self, start: Start) -> None:
        """Do nothing."""

    def observe(self, step: Step) -> None:
        """Measure tan θ, update the marks and end the run if its outcome is decided."""
        t = self._iterations = step.after.t
        if t > _DENSE_ITERATIONS and t % self._stride and self._mean > 4.0 * self._next_limit():
            return
        W = step.after.W
        if W.ndim == 3 and W.strides[0] == 0:
            W = W[:1]  # all agents share one array
        tangents = tan_theta(self._U, W)
        self._mean, self._worst = float(tangents.mean()), float(tangents.max())
        self._lowest = min(self._lowest, self._mean)
        rounds, sent = step.traffic.rounds + step.traffic.control_rounds, step.traffic.bytes_per_agent
        if np.isfinite(self._mean):
            self._curve.append((rounds, sent, self._mean))
        for i, limit in enumerate(LIMITS):
            if not self._mean <= limit:
                self._marks[i] = None
            elif self._marks[i] is None:
                self._marks[i] = Mark(t, rounds, sent)
        self._judge(t, W)

    def end(self, result: Result[Any]) -> None:
        """Do nothing."""

    def outcome(self, *, with_curve: bool) -> Outcome:
        """Return the outcome so far."""
        return Outcome(
            tuple(self._marks) if self.ended != "not finite" else (None,) * len(LIMITS),
            self._iterations,
            _finite(self._lowest),
            _finite(self._worst),
            self.ended,
            tuple(self._curve) if with_curve else (),
        )

    def _next_limit(self) -> float:
        """Return the largest limit not reached yet."""
        return max((limit for limit, mark in zip(LIMITS, self._marks, strict=True) if mark is None), default=np.inf)

    def _judge(self, t: int, W: Array) -> None:
        last = max((mark.iterations for mark in self._marks if mark is not None), default=0)
        if None not in self._marks and t >= last + _STAY_ITERATIONS:
            self._close("reached")
        if not np.isfinite(W).all():
            self._close("not finite")
        if self._mean < 0.5 * self._halved:
            self._halved, self._since = self._mean, t
        elif None in self._marks and t >= self._since + self._patience:
            self._close("stalled")

    def _close(self, why: str) -> None:
        self.ended = why
        raise Ended


def _stride(task: Run) -> int:
    """Return the stride for slowly converging runs: tan θ falls by less than a factor of 4 within it."""
    return 1 + task.longest // 200 if task.method in ("DeEPCA", "DePCA") else 1


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
