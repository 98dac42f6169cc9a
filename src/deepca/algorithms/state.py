"""Define the states that algorithms carry from one iteration to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from deepca._util.renamed import renamed_attributes
from deepca._util.typing import Array
from deepca.consensus.mixer_state import Memory, mean_of

if TYPE_CHECKING:
    from deepca.solver.stopping import Agreed

__all__ = ["State", "TrackedState"]


@renamed_attributes(
    seen_gap="estimated_gap",
    expected="expected_log_decrease",
    shrinks_by="convergence_factor",
    most_left="max_remaining",
    common="is_shared",
    advised="with_proposal",
    multiplied="multiplied_basis",
)
@dataclass(frozen=True)
class State:
    """State that an algorithm carries from one iteration to the next; a checkpoint stores a State.

    Parameters
    ----------
    t : int
        Number of iterations completed.
    W : ndarray of shape (*B, d, k)
        Orthonormal bases, one per local agent.
    S : ndarray of shape (*B, d, k)
        The matrix that W was computed from, ``W R = S``.
    """

    t: int
    W: Array
    S: Array

    @property
    def estimated_gap(self) -> float | None:
        """Relative gap ``1 − λ_{k+1}/λ_k`` as the algorithm estimates it; None if the algorithm has no estimate."""
        return None

    @property
    def expected_log_decrease(self) -> float | None:
        """Expected decrease of the log-error per iteration, given ample rounds; None if unknown."""
        return None

    def convergence_factor(self, inside: float, outside: Sequence[float]) -> float:
        """Return the factor by which the error shrinks per iteration, given ample rounds.

        Parameters
        ----------
        inside : float
            The eigenvalue λ_k.
        outside : sequence of float
            The eigenvalues λ_{k+1}, λ_{k+2}, ….

        Returns
        -------
        float
            ``λ_{k+1}/λ_k``, the rate of power iterations, unless a subclass converges faster.
        """
        return outside[0] / inside

    @property
    def max_remaining(self) -> int | None:
        """Upper bound on the number of iterations still needed; None if unbounded."""
        return None

    @property
    def is_shared(self) -> bool:
        """True if all agents have the same W and S up to rounding (directions of zero length are arbitrary)."""
        return False

    @property
    def heterogeneity(self) -> Array:
        """Distance between local and tracked product, shape ``B``; 0 if not measured."""
        return np.zeros(self.W.shape[:-2])

    @property
    def estimate(self) -> Array:
        """Local estimate of the mean product: S itself, or ``S / y`` on a directed graph."""
        return self.S

    @property
    def excess(self) -> Array | None:
        """Tracked minus local product; its mean is zero unless tracking was disturbed. None without tracking."""
        return None

    @property
    def proposal(self) -> Array:
        """Numbers, ``(*B, n)``, that agent 0 proposes to all agents; none by default."""
        return np.zeros((*self.W.shape[:-2], 0))

    def with_proposal(self, values: Array, agreed: Agreed) -> Self:
        """Return the state after all agents have received agent 0's proposal.

        Parameters
        ----------
        values : ndarray of shape (n,)
            Agent 0's proposal of iteration ``agreed.t``.
        agreed : Agreed
            Numbers that all agents agreed on for the same iteration.

        Returns
        -------
        State
            The next state; the same state by default.
        """
        return self

    def multiplied_basis(self, before: Array) -> Array:
        """Return the orthonormal basis whose product with A is S.

        Parameters
        ----------
        before : ndarray of shape (*B, d, k)
            W of the previous iteration.

        Returns
        -------
        ndarray of shape (*B, d, k)
            ``before``, unless a subclass multiplies another basis.
        """
        return before

    def __post_init__(self) -> None:
        """Make all arrays read-only, since steps are pure."""
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False


@dataclass(frozen=True)
class TrackedState(State):
    """State of a method with subspace tracking.

    Parameters
    ----------
    t : int
        Number of iterations completed.
    W : ndarray of shape (*B, d, k)
        Orthonormal bases ``W_j^t``.
    S : ndarray of shape (*B, d, k)
        Tracked products ``S_j^t``.
    AW : ndarray of shape (*B, d, k)
        ``A_j W_j^{t−1}``, the local product that S already contains.
    K : int, default=0
        Number of rounds of the next mix if the mixer has ``rounds="auto"``; 0 for the mixer's first choice.
    memory : Memory, optional
        State of the mixer for compressed messages or directed graphs (:mod:`deepca.consensus.mixer_state`).
    """

    AW: Array
    K: int = 0
    memory: Memory | None = None

    @property
    def estimate(self) -> Array:
        """Local estimate of the mean product: S, or ``S / y`` on a directed graph."""
        return mean_of(self.S, self.memory)

    @property
    def excess(self) -> Array:
        """Tracked minus local product, ``S_j^t − A_j W_j^{t−1}``."""
        return self.S - self.AW
