"""What is run, as plain data: cases, methods and runs, and what a run found."""

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
LIMITS = (1e-6, 1e-10)  # of the mean tan θ
LADDER = (1, 3, 5, 10, 20, 40)  # K of the paper's method
SENDING: tuple[Method, ...] = (
    "accelerated",
    "accelerated, float32",
    "covariance averaging",
    "block Krylov",
    "DePCA",
)  # what is compared with it
_FEATURES: Mapping[Data, int] = {"w8a": 300, "a9a": 123, "close": 100}
_SLOWEST = 1200  # iterations of the power method, where they are not known yet
_ROUND_BY_ROUND: Mapping[Graph, float] = {"paper": 0.15, "ring": 1.2, "torus": 0.5, "random-regular": 0.15}
_DRAWS: Mapping[Graph, int] = {"paper": 20, "ring": 5, "torus": 5, "random-regular": 5}


@dataclass(frozen=True)
class Case:
    """A data set, a number of components, and a kind of graph: one row of a table."""

    data: Data
    k: int
    graph: Graph


@dataclass(frozen=True)
class Run:
    """Everything that determines one run.

    draw : seed of graph and W⁰.  graph : None for methods on the pooled matrix.  K : rounds, for those who fix them.
    longest : iterations after which it has failed.
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
        if self.graph is None:
            raise ValueError(f"{self.method} runs on no graph")
        return Case(self.data, self.k, self.graph)

    @property
    def cost(self) -> float:
        """About the milliseconds it takes."""
        power, d = max((self.longest - 50) / 3 if self.longest else _SLOWEST, 12.0), _FEATURES[self.data]
        if self.graph is None:
            return 50.0 + (0.1 * power if self.method == "CPCA" else 0.0)
        if self.method in ("DeEPCA", "DePCA"):
            times = 2.5 if self.method == "DePCA" and self.graph != "paper" else 1.0
            return 20.0 + times * power * (0.5 + 0.0045 * d * self.k)
        if self.method in ("block Krylov", "covariance averaging"):
            return 100.0 + 0.02 * d * self.k
        columns = 2 * self.k + 1  # with which it begins
        own = 45.0 * (1.0 + 0.02 * columns**2 + 0.007 * d * columns)
        # coded messages are run round by round, and there are many rounds on a ring
        return own + (_ROUND_BY_ROUND[self.graph] * d * columns if "float32" in self.method else 0.0)


@dataclass(frozen=True)
class Scope:
    """Which cases are run, with how many draws at most."""

    cases: tuple[Case, ...]
    draws: int = max(_DRAWS.values())

    def draws_of(self, case: Case) -> range:
        return range(min(self.draws, _DRAWS[case.graph]))

    def without(self, *data: Data) -> Scope:
        """The same, but for these data sets."""
        return replace(self, cases=tuple(case for case in self.cases if case.data not in data))


def everything() -> Scope:
    """All data sets, numbers of components and graphs."""
    data: tuple[Data, ...] = get_args(Data)
    graphs: tuple[Graph, ...] = get_args(Graph)
    return Scope(tuple(Case(*case) for case in product(data, COMPONENTS, graphs)))


def sample() -> Scope:
    """So few that a test can run them."""
    graphs: tuple[Graph, ...] = ("paper", "ring")
    problems: tuple[tuple[Data, int], ...] = (("a9a", 5), ("close", 3))
    return Scope(tuple(Case(data, k, graph) for data, k in problems for graph in graphs), draws=2)


def longest(power: int, method: Method) -> int:
    """Iterations after which a run has failed, where the power method on the pooled matrix takes ``power``."""
    least = 60 if method in ("DeEPCA", "DePCA") else 200
    return min(max(3 * power + 50, least), 4000)


@dataclass(frozen=True)
class Mark:
    """When a limit was reached: iterations, rounds (control rounds included) and bytes sent per agent."""

    iterations: int
    rounds: int
    bytes: float


@dataclass(frozen=True)
class Outcome:
    """What a run found.

    marks : for every limit, when the mean tan θ came within it and stayed; None where it did not.
    lowest : the smallest mean tan θ.  worst : tan θ of the worst agent at the end.  None where it is not finite.
    ended : why the run was ended: ``reached``, ``longest``, ``stalled`` or ``not finite``.
    curve : ``(rounds, bytes, mean tan θ)`` of every iteration looked at, of the first draw alone.
    """

    marks: tuple[Mark | None, ...]
    iterations: int
    lowest: float | None
    worst: float | None
    ended: str
    curve: tuple[tuple[int, float, float], ...] = ()

    @property
    def failed(self) -> bool:
        return None in self.marks

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Outcome:
        marks = tuple(None if mark is None else Mark(**mark) for mark in record["marks"])
        curve = tuple((point[0], point[1], point[2]) for point in record["curve"])
        return cls(marks, record["iterations"], record["lowest"], record["worst"], record["ended"], curve)
