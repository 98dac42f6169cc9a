"""What a run returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from deepca._util.typing import Array
from deepca.algorithms.base import State
from deepca.network.traffic import Traffic
from deepca.solver.certificate.bounds import Certificate
from deepca.solver.stopping import Agreed

__all__ = ["Code", "Result", "Status"]

S_ = TypeVar("S_", bound=State)
Code = Literal[
    "converged",
    "completed",
    "rounding_floor",
    "rank_deficient",
    "below_rounding",
    "not_unique",
    "out_of_iterations",
    "disagreement",
    "diverging",
    "not_top",
    "tracking_lost",
    "averaging_failed",
    "indefinite_mean",
]
_USABLE: frozenset[Code] = frozenset({"converged", "completed", "rounding_floor", "rank_deficient"})


@dataclass(frozen=True)
class Status:
    """How a run ended, and what to do about it, in one sentence.

    Usable as they are (``ok``):

    ================= ===========================================================================================
    converged         the tolerance was reached at every agent, and proven unless ``certify=False``
    completed         no stop rule was given; the iterations asked for were made and nothing looks wrong
    rounding_floor    the tolerance lies below what rounding allows; nothing more can be gained
    rank_deficient    the data have fewer directions than components were asked for; the rest have variance zero (but
                      for the rounding of the rows) and fill up the basis
    ================= ===========================================================================================

    Not usable:

    ================= ===========================================================================================
    below_rounding    some of the k eigenvalues, or the gap behind them, are lost in the rounding of λ₁, or zero: which
                      of the two, products of the rows cannot tell; the advice says how many components are known
    not_unique        λ_k = λ_{k+1}: no k-dimensional subspace is the top one; the advice names k that are
    out_of_iterations the error still shrinks; the advice says how fast and how many iterations are missing
    disagreement      the agents do not come together
    diverging         the error does not shrink; the advice names the likely cause
    not_top           an invariant subspace, but something larger lies outside it
    tracking_lost     what is tracked has left the mean: a message or an agent was lost unnoticed
    averaging_failed  a number with known mean was averaged wrongly: messages are lost or altered
    indefinite_mean   the mean of the A_j has negative eigenvalues of large modulus; not a PCA problem as it stands
    ================= ===========================================================================================

    more : with out_of_iterations, about how many more iterations are needed, where that can be told; not kept in files.
    """

    code: Code
    advice: str
    more: int | None = field(default=None, compare=False)

    @property
    def ok(self) -> bool:
        """Whether the leading components can be used as they are."""
        return self.code in _USABLE

    def __str__(self) -> str:
        name = self.code.replace("_", " ")
        return self.advice if name in self.advice.split(":")[0] else f"{name}: {self.advice}"


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
