"""Cases, methods, runs and outcomes as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, get_args

__all__ = [
    "AGENTS",
    "COMPONENTS",
    "LADDER",
    "LIMITS",
    "SENDING",
    "Case",
    "Data",
    "Graph",
    "Mark",
    "Method",
    "Outcome",
    "PooledRunError",
    "Run",
    "Scope",
    "everything",
    "longest",
    "sample",
]

Data = Literal["w8a", "a9a", "close"]
Graph = Literal["paper", "ring", "torus", "random-regular"]
Method = Literal[
    "DeEPCA",
    "DePCA",
    "accelerated",
    "accelerated, float32",
    "covariance averaging",
    "block Krylov",
    "CPCA",
    "pooled block Krylov",
]
AGENTS = 50
COMPONENTS = (1, 3, 5, 10, 20)
LIMITS = (1e-6, 1e-10)  # values of the mean tan θ to reach
LADDER = (1, 3, 5, 10, 20, 40)  # values of K tried for the paper's method
SENDING: tuple[Method, ...] = (
    "accelerated",
    "accelerated, float32",
    "covariance averaging",
    "block Krylov",
    "DePCA",
)  # methods compared with DeEPCA
_FEATURES: Mapping[Data, int] = {"w8a": 300, "a9a": 123, "close": 100}
_ASSUMED_POWER_ITERATIONS = 1200  # for the cost estimate, until CPCA has been run
_COMPRESSED_COST: Mapping[Graph, float] = {"paper": 0.15, "ring": 1.2, "torus": 0.5, "random-regular": 0.15}
_DRAWS: Mapping[Graph, int] = {"paper": 20, "ring": 5, "torus": 5, "random-regular": 5}


class PooledRunError(ValueError):
    """A run on the pooled matrix was asked for its case, but it belongs to none."""


@dataclass(frozen=True)
class Case:
    """A data set, a number of components and a kind of graph: one row of a table."""

    data: Data
    k: int
    graph: Graph


@dataclass(frozen=True)
class Run:
    """Everything that determines one run.

    Parameters
    ----------
    data : str
        Data set.
    k : int
        Number of components.
    draw : int
        Seed of the graph and W⁰.
    method : str
        Method.
    graph : str or None
        Kind of graph; None for methods on the pooled matrix.
    K : int
        Rounds per iteration, for methods with a fixed number.
    longest : int
        Number of iterations after which the run counts as failed; 0 for no limit.
    """

    data: Data
    k: int
    draw: int
    method: Method
    graph: Graph | None = None
    K: int = 0
    longest: int = 0

    @property
    def case(self) -> Case:
        """Case that the run belongs to."""
        if self.graph is None:
            raise PooledRunError(f"{self.method} runs on the pooled matrix and belongs to no single case")
        return Case(self.data, self.k, self.graph)

    @property
    def cost(self) -> float:
        """Approximate duration in milliseconds."""
        power, d = (
            max((self.longest - 50) / 3 if self.longest else _ASSUMED_POWER_ITERATIONS, 12.0),
            _FEATURES[self.data],
        )
        if self.graph is None:
            return 50.0 + (0.1 * power if self.method == "CPCA" else 0.0)
        if self.method in ("DeEPCA", "DePCA"):
            times = 2.5 if self.method == "DePCA" and self.graph != "paper" else 1.0
            return 20.0 + times * power * (0.5 + 0.0045 * d * self.k)
        if self.method in ("block Krylov", "covariance averaging"):
            return 100.0 + 0.02 * d * self.k
        columns = 2 * self.k + 1  # number of columns of the first block
        own = 45.0 * (1.0 + 0.02 * columns**2 + 0.007 * d * columns)
        # compressed messages are simulated round by round, and a ring takes many rounds
        return own + (_COMPRESSED_COST[self.graph] * d * columns if "float32" in self.method else 0.0)


@dataclass(frozen=True)
class Scope:
    """The cases to run, and the maximum number of draws of each."""

    cases: tuple[Case, ...]
    draws: int = max(_DRAWS.values())

    def draws_of(self, case: Case) -> range:
        """Return the draws of a case."""
        return range(min(self.draws, _DRAWS[case.graph]))

    def without(self, *data: Data) -> Scope:
        """Return the scope without these data sets."""
        return replace(self, cases=tuple(case for case in self.cases if case.data not in data))


def everything() -> Scope:
    """Return the full scope: all data sets, numbers of components and graphs."""
    data: tuple[Data, ...] = get_args(Data)
    graphs: tuple[Graph, ...] = get_args(Graph)
    return Scope(tuple(Case(*case) for case in product(data, COMPONENTS, graphs)))


def sample() -> Scope:
    """Return a scope small enough for a test."""
    graphs: tuple[Graph, ...] = ("paper", "ring")
    problems: tuple[tuple[Data, int], ...] = (("a9a", 5), ("close", 3))
    return Scope(tuple(Case(data, k, graph) for data, k in problems for graph in graphs), draws=2)


def longest(power: int, method: Method) -> int:
    """Return the iteration limit of a run, given the iterations ``power`` of the pooled power method."""
    least = 60 if method in ("DeEPCA", "DePCA") else 200
    return min(max(3 * power + 50, least), 4000)


@dataclass(frozen=True)
class Mark:
    """Iterations, rounds (including control rounds) and bytes per agent after which a limit was reached."""

    iterations: int
    rounds: int
    bytes: float


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run.

    Parameters
    ----------
    marks : tuple of Mark or None
        For each limit, the point from which the mean tan θ stayed within it; None if it did not.
    iterations : int
        Number of iterations.
    lowest : float or None
        Smallest mean tan θ; None if it was never finite.
    worst : float or None
        tan θ of the worst agent at the end; None if it is not finite.
    ended : str
        Why the run ended: ``reached``, ``longest``, ``stalled`` or ``not finite``.
    curve : tuple of (int, float, float)
        Rounds, bytes and mean tan θ of every measured iteration; recorded for the first draw only.
    """

    marks: tuple[Mark | None, ...]
    iterations: int
    lowest: float | None
    worst: float | None
    ended: str
    curve: tuple[tuple[int, float, float], ...] = ()

    @property
    def failed(self) -> bool:
        """Whether a limit was not reached."""
        return None in self.marks

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Outcome:
        """Build an outcome from a stored record."""
        marks = tuple(None if mark is None else Mark(**mark) for mark in record["marks"])
        curve = tuple((point[0], point[1], point[2]) for point in record["curve"])
        return cls(marks, record["iterations"], record["lowest"], record["worst"], record["ended"], curve)
