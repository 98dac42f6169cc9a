"""Describe problems as plain data and build their ``A_j``, network, W⁰ and pooled answer."""

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
from deepca.data.libsvm import DATA_SETS
from deepca.errors import InvalidInput, ParameterError
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
    "Problem",
    "ProblemInputs",
    "accuracy_of",
    "build_inputs",
    "checksum_of",
    "is_available",
    "operator_of",
    "run_problems",
    "start_of",
    "topology_of",
    "truth_of",
]

Real = Literal["w8a", "a9a", "digits"]
Graph = Literal["erdos-renyi", "ring", "torus", "star"]
Arrangement = Literal["file", "label", "one-holds-most", "noise", "indefinite", "opposite"]
LIBSVM = tuple(DATA_SETS)
_EPS = float(np.finfo(np.float64).eps)
_LARGEST_SHARE = 0.9  # share of the rows at agent 0 in the arrangement "one-holds-most"


@dataclass(frozen=True)
class Problem:
    """Everything that determines one problem.

    Parameters
    ----------
    data : str or Synthetic
        Name of a data set with rows, or the spectrum of synthetic data.
    k : int
        Number of components.
    agents : int
        Number of agents m.
    graph : str
        Kind of graph.
    arrangement : str
        Partition of the rows over the agents (in file order, sorted by label, or nine tenths of them at agent 0), or
        division of a synthetic mean (see :func:`~studies.shared.synthetic.matrices`).
    draw : int
        Seed of the graph, W⁰ and synthetic data.
    graph_seed, data_seed : int, optional
        Fixed seeds of the graph and of synthetic data, to vary W⁰ alone.
    link : float
        Probability of a link in Erdős–Rényi graphs.
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
        """Check that the arrangement fits the data, and the sizes."""
        synthetic = self.arrangement in get_args(Division)
        if synthetic is not isinstance(self.data, Synthetic):
            kind = "synthetic data" if isinstance(self.data, Synthetic) else "rows"
            raise InvalidInput(
                f"{kind} cannot be arranged as {self.arrangement!r}", parameter="arrangement", value=self.arrangement
            )
        if self.agents < 2:
            raise ParameterError("agents", self.agents, "at least two agents are required")
        if self.k < 1:
            raise ParameterError("k", self.k, "at least one component is required")

    @property
    def seeds(self) -> tuple[int, int]:
        """Seeds of the graph and of synthetic data; data use two seeds, distinct from W⁰'s to avoid correlation."""
        graph = self.draw if self.graph_seed is None else self.graph_seed
        return graph, 1000 + 2 * self.draw if self.data_seed is None else self.data_seed


def is_available(problem: Problem, source: DataSource) -> bool:
    """Return whether the data are available; LIBSVM sets are read from a folder and never downloaded."""
    return problem.data not in LIBSVM or source.folder is not None


def checksum_of(problem: Problem, source: DataSource) -> str:
    """Return a digest of the data file, or an empty string for data that are the same everywhere."""
    return _edition(source, problem.data) if problem.data in ("w8a", "a9a") else ""


def operator_of(problem: Problem, source: DataSource) -> Operator:
    """Return the ``A_j``; for rows ``X_jᵀX_j``, centred by the pooled mean for digits and uncentred otherwise."""
    if isinstance(problem.data, Synthetic):
        division = cast("Division", problem.arrangement)
        return _synthetic(problem.data, problem.k, problem.agents, division, problem.seeds[1])
    return _real(source, problem.data, problem.agents, problem.arrangement)


def topology_of(problem: Problem) -> Topology:
    """Return the graph of the problem."""
    if problem.graph == "erdos-renyi":
        return _erdos_renyi(problem.agents, problem.link, problem.seeds[0])
    return _fixed(problem.graph, problem.agents)


def start_of(problem: Problem, source: DataSource) -> Array:
    """Return W⁰."""
    return random_orthonormal(operator_of(problem, source).d, problem.k, seed=problem.draw)


def truth_of(problem: Problem, source: DataSource) -> Pooled:
    """Return all eigenvalues and eigenvectors of the mean, in descending order."""
    if isinstance(problem.data, Synthetic):
        division = cast("Division", problem.arrangement)
        return _synthetic_truth(problem.data, problem.k, problem.agents, division, problem.seeds[1])
    return _real_truth(source, problem.data, problem.agents)


class ProblemInputs(NamedTuple):
    """Inputs of a run and the pooled answer."""

    A: Operator
    W0: Array
    network: SimulatedNetwork
    truth: Pooled
    U: Array


def build_inputs(problem: Problem, source: DataSource) -> ProblemInputs:
    """Build the inputs of a run and the pooled answer."""
    truth, network = truth_of(problem, source), SimulatedNetwork(topology_of(problem))
    return ProblemInputs(operator_of(problem, source), start_of(problem, source), network, truth, truth.U(problem.k))


class _ProblemTask(Task, Protocol):
    @property
    def problem(self) -> Problem: ...


T = TypeVar("T", bound=_ProblemTask)


def run_problems(tasks: Iterable[T], work: Callable[[DataSource, T], Record], setting: Setting) -> dict[T, Record]:
    """Run tasks with :func:`~studies.shared.store.run`, storing records separately for each edition of the data."""

    def edition(task: T) -> str:
        return checksum_of(task.problem, setting.source)

    return run(tasks, partial(work, setting.source), setting.store, setting.jobs, setting.progress, edition)


def accuracy_of(truth: Pooled, k: int) -> float:
    """Return the tangent that counts as converged: 1e-8, or more where rounding prevents it.

    Products ``A_j W`` have errors of about eps·λ_1, which rotate the subspace by eps·λ_1/(λ_k − λ_(k+1)).
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
    # not the automatic form, which depends on the machine, as results must not
    return from_rows(_blocks(X, agents, arrangement), form="covariance", workers=1)


@lru_cache(maxsize=4)
def _real_truth(source: DataSource, data: Real, agents: int) -> Pooled:
    return _pooled(_real(source, data, agents, "file").mean())  # the mean does not depend on who holds which row


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
    """Return the rows, dense or sparse, and their labels."""
    if data == "digits":
        X, labels = load_digits(return_X_y=True)
        return X - X.mean(axis=0), labels
    loaded = source.load(data)
    used = DATA_SETS[data].n_rows_used
    return loaded.X[:used], loaded.labels[:used]


def _blocks(X: Any, agents: int, arrangement: Arrangement) -> list[Any]:
    n = int(X.shape[0])
    if arrangement == "one-holds-most":
        first = int(_LARGEST_SHARE * n)
        bounds = [0, *(first + (n - first) * j // (agents - 1) for j in range(agents))]
    else:
        bounds = [n * j // agents for j in range(agents + 1)]
    return [X[a:b] for a, b in pairwise(bounds)]
