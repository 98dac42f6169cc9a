"""What a run returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from deepca._typing import Array
from deepca.algorithms.base import State
from deepca.networks.base import Traffic

__all__ = ["Code", "Result", "Status"]

S_ = TypeVar("S_", bound=State)
Code = Literal["converged", "completed", "not_converged", "rounding_floor", "rank_deficient", "indefinite_mean"]


@dataclass(frozen=True)
class Status:
    """How a run ended, and what to do about it, in one sentence.

    =============== =====================================================================================
    converged      the stop rule was met
    completed      no stop rule was given; the iterations asked for were made and nothing looks wrong
    not_converged  the iterations ran out; the advice says what held convergence back
    rounding_floor the tolerance lies below what rounding allows; nothing more can be gained
    rank_deficient the data have fewer directions than components were asked for; the rest fill up the basis
    indefinite_mean the mean of the A_j has negative eigenvalues of large modulus; not a PCA problem as it stands
    =============== =====================================================================================
    """

    code: Code
    advice: str

    @property
    def ok(self) -> bool:
        """Whether the leading components can be used as they are."""
        return self.code not in ("not_converged", "indefinite_mean")

    def __str__(self) -> str:
        return f"{self.code.replace('_', ' ')}: {self.advice}"


@dataclass(frozen=True, repr=False)
class Result(Generic[S_]):
    """The outcome of :func:`deepca.solve`, for the local agents (``B = (m,)`` in a simulator, ``()`` for one agent).

    W : orthonormal bases ``(*B, d, k)``, as the algorithm has them: the subspace, not yet its axes.
    components : the principal components ``(*B, d, k)``, one column for each of the eigenvalues.
    eigenvalues : of A, descending, ``(*B, k)``.  iterations : made in this run.
    rank : how many of the k columns carry more than rounding.  state : to resume from, ``solve(…, start=state)``.
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

    def __repr__(self) -> str:
        return f"Result({self.status}; {self.iterations} iterations, {self.traffic.rounds} rounds, rank {self.rank})"
