"""What a run returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import Any, Generic, TypeVar

from deepca._util.typing import Array
from deepca.algorithms.base import State
from deepca.network.traffic import Traffic
from deepca.solver.certificate.bounds import Certificate
from deepca.solver.stopping import Agreed

__all__ = ["Result", "Status", "StatusCode"]

S_ = TypeVar("S_", bound=State)


class StatusCode(StrEnum):
    """How a run ended. The first four can be used as they are (``ok``)."""

    CONVERGED = auto()
    """The tolerance was reached at every agent, and proven unless ``certify=False``."""
    COMPLETED = auto()
    """No stop rule was given; the iterations asked for were made and nothing looks wrong."""
    ROUNDING_FLOOR = auto()
    """The tolerance lies below what rounding allows; nothing more can be gained."""
    RANK_DEFICIENT = auto()
    """The data have fewer directions than components were asked for.

    The rest have variance zero (but for the rounding of the rows) and fill up the basis.
    """
    BELOW_ROUNDING = auto()
    """Some of the k eigenvalues, or the gap behind them, are lost in the rounding of λ₁, or zero.

    Which of the two, products of the rows cannot tell; the advice says how many components are known.
    """
    NOT_UNIQUE = auto()
    """λ_k = λ_{k+1}: no k-dimensional subspace is the top one; the advice names k that are."""
    OUT_OF_ITERATIONS = auto()
    """The error still shrinks; the advice says how fast and how many iterations are missing."""
    DISAGREEMENT = auto()
    """The agents do not come together."""
    DIVERGING = auto()
    """The error does not shrink; the advice names the likely cause."""
    NOT_TOP = auto()
    """An invariant subspace, but something larger lies outside it."""
    TRACKING_LOST = auto()
    """What is tracked has left the mean: a message or an agent was lost unnoticed."""
    AVERAGING_FAILED = auto()
    """A number with known mean was averaged wrongly: messages are lost or altered."""
    INDEFINITE_MEAN = auto()
    """The mean of the A_j has negative eigenvalues of large modulus; not a PCA problem as it stands."""


_USABLE = frozenset({StatusCode.CONVERGED, StatusCode.COMPLETED, StatusCode.ROUNDING_FLOOR, StatusCode.RANK_DEFICIENT})


@dataclass(frozen=True)
class Status:
    """How a run ended (:class:`StatusCode`), and what to do about it, in one sentence.

    numbers : what the sentence states, by name, such as ``tolerance``, ``rank`` or ``known``; not kept in files.
    """

    code: StatusCode
    advice: str
    numbers: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, code: StatusCode, sentence: str, **numbers: Any) -> Status:
        """Make the status whose advice is ``sentence``, a format string, with these numbers in it."""
        return cls(code, sentence.format(**numbers), numbers)

    def __setstate__(self, state: dict[str, Any]) -> None:  # pickles of earlier versions have no numbers
        self.__dict__.update({"numbers": {}} | state)

    @property
    def more(self) -> int | None:
        """With out_of_iterations, about how many more iterations are needed, where that can be told."""
        return self.numbers.get("more")

    @property
    def ok(self) -> bool:
        """Whether the leading components can be used as they are."""
        return self.code in _USABLE

    def __str__(self) -> str:
        if self.code == StatusCode.NOT_UNIQUE:  # the advice begins with what is not unique
            return self.advice
        return f"{self.code.replace('_', ' ')}: {self.advice}"


@dataclass(frozen=True, repr=False)
class Result(Generic[S_]):
    """The outcome of :func:`deepca.solve`, for the local agents (``B = (m,)`` in a simulator, ``()`` for one agent).

    W : orthonormal bases ``(*B, d, k)``, as the algorithm has them: the subspace, not yet its axes.
    components : the principal components ``(*B, d, k)``, one column for each of the eigenvalues; with a certificate the
    same bits at every agent.
    eigenvalues : of A, descending, ``(*B, k)``.  iterations : made in this run.
    rank : how many of the k columns carry more than rounding.  state : to resume from, ``solve(…, start=state)``.
    certificate : what is proven about the components; None with ``certify=False``.
    traffic : of the iterations. What certificates took is apart, in ``certificate.traffic``.
    restarts : how often tracking began again.  agreed : the last numbers that all agents have agreed on.
    """

    W: Array
    components: Array
    eigenvalues: Array
    iterations: int
    status: Status
    rank: int
    traffic: Traffic
    elapsed: float
    state: S_
    certificate: Certificate | None = None
    restarts: int = 0
    agreed: Agreed | None = None

    def __repr__(self) -> str:
        return f"Result({self.status}; {self.iterations} iterations, {self.traffic.rounds} rounds, rank {self.rank})"
