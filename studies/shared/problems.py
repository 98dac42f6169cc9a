"""One problem as plain data, and what follows from it: the ``A_j``, the network, W⁰ and the pooled answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, cast, get_args

import numpy as np
import scipy.linalg
from sklearn.datasets import load_digits

from deepca import topology as graphs
from deepca._util.typing import Array
from deepca.data.libsvm import SETS
from deepca.errors import InvalidInput
from deepca.network import SimulatedNetwork
from deepca.operators import Operator, from_matrices, from_rows
from deepca.operators.linalg import random_orthonormal
from deepca.reproduction.problems import DataSource, Pooled, graph_of
from deepca.topology import Topology
from studies.shared.report import Setting
from studies.shared.store import Record, Task, run
from studies.shared.synthetic import Division, Synthetic, matrices

__all__ = [
    "LIBSVM",
    "Arrangement",
    "Graph",
    "Posed",
    "Problem",
    "accuracy_of",
    "edition_of",
    "is_available",
    "operator_of",
    "pose",
    "run_problems",
    "start_of",
    "topology_of",
    "truth_of",
]

Real = Literal["w8a", "a9a", "digits"]
Graph = Literal["erdos-renyi", "ring", "torus", "star"]
Arrangement = Literal["file", "label", "one-holds-most", "noise", "indefinite", "opposite"]
LIBSVM = tuple(SETS)
_EPS = float(np.finfo(np.float64).eps)
_MOST = 0.9  # of the rows, at the one agent that holds most


@dataclass(frozen=True)
class Problem:
    """Everything that determines one problem.

    data : a data set with rows, or a wanted spectrum.  k : components.  agents : m.  graph : its kind.
    arrangement : how rows are divided among the agents (as in the file, sorted by label, or nine tenths of them at
    agent 0), or how a synthetic mean is (see :func:`~studies.shared.synthetic.matrices`).
    draw : seed of the graph, of W⁰ and of synthetic data; graph_seed and data_seed keep one of them while W⁰ changes.
    link : probability of a link, for Erdős–Rényi graphs.
    """

    data: Real | Synthetic
    k: int
    agents: int
    graph: Graph = "erdos-renyi"
    arrangement: Arrangement = "noise"
    draw: int = 0
    graph_seed: int | None = None
    data_seed: int | None = None
    link: float = 0.5

    def __post_init__(self) -> None:
        synthetic = self.arrangement in get_args(Division)
        if synthetic is not isinstance(self.data, Synthetic):
            kind = "synthetic data" if isinstance(self.data, Synthetic) else "rows"
            raise InvalidInput(f"{kind} cannot be arranged as {self.arrangement!r}")
        if self.agents < 2 or self.k < 1:
            raise InvalidInput(f"{self.agents} agents, k = {self.k}: at least two agents and one component are needed")

    @property
    def seeds(self) -> tuple[int, int]:
        """Of the graph and of synthetic data. Data take two seeds, apart from those of W⁰, which would correlate."""
        graph = self.draw if self.graph_seed is None else self.graph_seed
        return graph, 1000 + 2 * self.draw if self.data_seed is None else self.data_seed


def is_available(problem: Problem, source: DataSource) -> bool:
    """Whether the data are here: the LIBSVM sets are taken from a folder only, nothing is downloaded."""
    return problem.data not in LIBSVM or source.folder is not None


def edition_of(problem: Problem, source: DataSource) -> str:
    """Which edition of a data set it is; nothing for data that are the same everywhere."""
    return _edition(source, problem.data) if problem.data in ("w8a", "a9a") else ""


def operator_of(problem: Problem, source: DataSource) -> Operator:
    """The ``A_j``: ``X_jᵀX_j`` for rows, of digits with the pooled mean taken off, uncentred for the others."""
    if isinstance(problem.data, Synthetic):
        division = cast("Division", problem.arrangement)
        return _synthetic(problem.data, problem.k, problem.agents, division, problem.seeds[1])
    return _real(source, problem.data, problem.agents, problem.arrangement)


def topology_of(problem: Problem) -> Topology:
    """The network."""
    if problem.graph == "erdos-renyi":
        return _erdos_renyi(problem.agents, problem.link, problem.seeds[0])
    return _fixed(problem.graph, problem.agents)


def start_of(problem: Problem, source: DataSource) -> Array:
    """W⁰."""
    return random_orthonormal(operator_of(problem, source).d, problem.k, seed=problem.draw)


def truth_of(problem: Problem, source: DataSource) -> Pooled:
    """Eigenvalues and eigenvectors of the mean, all of them, descending."""
    if isinstance(problem.data, Synthetic):
        division = cast("Division", problem.arrangement)
        return _synthetic_truth(problem.data, problem.k, problem.agents, division, problem.seeds[1])
    return _real_truth(source, problem.data, problem.agents)


class Posed(NamedTuple):
    """A problem as a run finds it, and its answer."""

    A: Operator
    W0: Array
    network: SimulatedNetwork
    truth: Pooled
    U: Array


def pose(problem: Problem, source: DataSource) -> Posed:
    """Return what a run starts from, and the pooled answer."""
    truth, network = truth_of(problem, source), SimulatedNetwork(topology_of(problem))
    return Posed(operator_of(problem, source), start_of(problem, source), network, truth, truth.U(problem.k))


class _OfAProblem(Task, Protocol):
    @property
    def problem(self) -> Problem: ...


T = TypeVar("T", bound=_OfAProblem)


def run_problems(tasks: Iterable[T], work: Callable[[DataSource, T], Record], setting: Setting) -> dict[T, Record]:
    """Return the record of every task as :func:`~studies.shared.store.run` does; other editions of data are others."""

    def edition(task: T) -> str:
        return edition_of(task.problem, setting.source)

    return run(tasks, partial(work, setting.source), setting.store, setting.jobs, setting.progress, edition)


def accuracy_of(truth: Pooled, k: int) -> float:
    """The tangent that counts as converged: 1e-8, or what rounding leaves where λ_k is far below λ_1.

    Products ``A_j W`` carry errors of about eps·λ_1, which turn the subspace by eps·λ_1/(λ_k − λ_(k+1)).
    """
    values = truth.values
    return max(1e-8, 100.0 * _EPS * float(values[0] / (values[k - 1] - values[k])))


# ------------------------------------------------------------------------------------------------------------ caches


@lru_cache(maxsize=4)
def _edition(source: DataSource, data: str) -> str:
    return source.load(data).digest[:8]


@lru_cache(maxsize=4)
def _synthetic(data: Synthetic, k: int, agents: int, division: Division, seed: int) -> Operator:
    return from_matrices(matrices(data, k, agents, division, seed), workers=1)


@lru_cache(maxsize=4)
def _synthetic_truth(data: Synthetic, k: int, agents: int, division: Division, seed: int) -> Pooled:
    return _pooled(_synthetic(data, k, agents, division, seed).mean())


@lru_cache(maxsize=4)
def _real(source: DataSource, data: Real, agents: int, arrangement: Arrangement) -> Operator:
    X, labels = _rows(source, data)
    if arrangement == "label":
        X = X[np.argsort(labels, kind="stable")]
    # always multiplied out: which form is cheaper depends on the machine, what is computed should not
    return from_rows(_blocks(X, agents, arrangement), form="covariance", workers=1)


@lru_cache(maxsize=4)
def _real_truth(source: DataSource, data: Real, agents: int) -> Pooled:
    return _pooled(_real(source, data, agents, "file").mean())  # who holds which row does not matter


@lru_cache(maxsize=16)
def _erdos_renyi(agents: int, link: float, seed: int) -> Topology:
    return graphs.erdos_renyi(agents, link, seed=seed)


@lru_cache(maxsize=16)
def _fixed(graph: Graph, agents: int) -> Topology:
    return graph_of(graph, agents, 0)


def _pooled(mean: Array) -> Pooled:
    values, vectors = scipy.linalg.eigh(mean)
    return Pooled(values[::-1].copy(), vectors[:, ::-1].copy())


def _rows(source: DataSource, data: Real) -> tuple[Any, Array]:
    """Rows, dense or sparse, and their labels."""
    if data == "digits":
        X, labels = load_digits(return_X_y=True)
        return X - X.mean(axis=0), labels
    loaded = source.load(data)
    used = SETS[data].n_rows_used
    return loaded.X[:used], loaded.labels[:used]


def _blocks(X: Any, agents: int, arrangement: Arrangement) -> list[Any]:
    n = int(X.shape[0])
    if arrangement == "one-holds-most":
        first = int(_MOST * n)
        bounds = [0, *(first + (n - first) * j // (agents - 1) for j in range(agents))]
    else:
        bounds = [n * j // agents for j in range(agents + 1)]
    return [X[a:b] for a, b in pairwise(bounds)]
