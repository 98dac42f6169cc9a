"""Result and status of a run."""

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
    """Outcome of a run; with one of the first four, the answer can be used as it is (:attr:`Status.ok`).

    Attributes
    ----------
    CONVERGED : str
        The tolerance was reached at every agent, and proven unless ``certify=False``.
    COMPLETED : str
        No stop rule was given; all requested iterations were completed, and nothing looks wrong.
    ROUNDING_FLOOR : str
        The tolerance is below what rounding allows; further iterations would not help.
    RANK_DEFICIENT : str
        The rank of the data is less than the number of components requested. The remaining components have variance
        zero, up to the rounding of the rows, and complete the basis.
    BELOW_ROUNDING : str
        Some of the k eigenvalues, or the gap after them, are zero or lost in the rounding of λ₁; products with the A_j
        cannot tell which. The advice says how many components are known.
    NOT_UNIQUE : str
        λ_k = λ_{k+1}: the top-k subspace is not unique; the advice names values of k for which it is.
    OUT_OF_ITERATIONS : str
        The error is still shrinking; the advice says how fast, and how many more iterations are needed.
    DISAGREEMENT : str
        The agents do not reach consensus.
    DIVERGING : str
        The error does not shrink; the advice names the likely cause.
    NOT_TOP : str
        The subspace is invariant, but a larger eigenvalue lies outside it.
    TRACKING_LOST : str
        Tracking has drifted away from the mean: a message or an agent was lost unnoticed.
    AVERAGING_FAILED : str
        A number with a known mean was averaged incorrectly: messages are lost or altered.
    INDEFINITE_MEAN : str
        The mean of the A_j has negative eigenvalues of large modulus, so this is not a PCA.
    """

    CONVERGED = auto()
    COMPLETED = auto()
    ROUNDING_FLOOR = auto()
    RANK_DEFICIENT = auto()
    BELOW_ROUNDING = auto()
    NOT_UNIQUE = auto()
    OUT_OF_ITERATIONS = auto()
    DISAGREEMENT = auto()
    DIVERGING = auto()
    NOT_TOP = auto()
    TRACKING_LOST = auto()
    AVERAGING_FAILED = auto()
    INDEFINITE_MEAN = auto()


_USABLE = frozenset({StatusCode.CONVERGED, StatusCode.COMPLETED, StatusCode.ROUNDING_FLOOR, StatusCode.RANK_DEFICIENT})


@dataclass(frozen=True)
class Status:
    """Outcome of a run, and what to do about it.

    Parameters
    ----------
    code : StatusCode
        How the run ended.
    advice : str
        What was found, and the next step.
    numbers : mapping of str to object, optional
        Numbers stated in the advice by name, such as ``tolerance``, ``rank`` or ``known``; not stored in files.

    Examples
    --------
    >>> import deepca
    >>> status = deepca.Status(deepca.StatusCode.NOT_UNIQUE, "subspace not unique; ask for k = 2 components")
    >>> status.ok
    False
    """

    code: StatusCode
    advice: str
    numbers: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, code: StatusCode, sentence: str, **numbers: Any) -> Status:
        """Return the status whose advice is a sentence with numbers filled in.

        Parameters
        ----------
        code : StatusCode
            How the run ended.
        sentence : str
            The advice, as a format string.
        **numbers : object
            Values of its replacement fields.

        Returns
        -------
        Status
            The status, which keeps the numbers.
        """
        return cls(code, sentence.format(**numbers), numbers)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickle, including those of earlier versions, which have no numbers."""
        self.__dict__.update({"numbers": {}} | state)

    @property
    def more(self) -> int | None:
        """Approximate number of further iterations needed after running out of iterations; None if unknown."""
        return self.numbers.get("more")

    @property
    def ok(self) -> bool:
        """True if the leading components can be used as they are."""
        return self.code in _USABLE

    def __str__(self) -> str:
        """Return the code and the advice; for NOT_UNIQUE only the advice, which already says so."""
        if self.code == StatusCode.NOT_UNIQUE:
            return self.advice
        return f"{self.code.replace('_', ' ')}: {self.advice}"


@dataclass(frozen=True, repr=False)
class Result(Generic[S_]):
    """Result of :func:`deepca.solve` for the local agents.

    The batch shape ``B`` is ``(m,)`` in a simulator and ``()`` for a single agent.

    Parameters
    ----------
    W : ndarray of shape (*B, d, k)
        The last iterate: orthonormal bases of the subspace, not rotated to the principal axes.
    components : ndarray of shape (*B, d, k)
        Principal components, one column per eigenvalue; with a certificate, bitwise identical at every agent.
    eigenvalues : ndarray of shape (*B, k)
        Eigenvalues of A, descending.
    iterations : int
        Number of iterations of this run.
    status : Status
        How the run ended.
    rank : int
        Numerical rank: the number of the k columns above the level of rounding errors.
    traffic : Traffic
        Traffic of the iterations; that of certificates is counted separately, in ``certificate.traffic``.
    elapsed : float
        Wall-clock seconds.
    state : State
        State to resume from, ``solve(…, start=state)``.
    certificate : Certificate, optional
        What is proven about the components; None with ``certify=False``.
    restarts : int, default=0
        Number of restarts of tracking.
    agreed : Agreed, optional
        The last numbers on which all agents agreed.
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
        """Return a summary without arrays."""
        return f"Result({self.status}; {self.iterations} iterations, {self.traffic.rounds} rounds, rank {self.rank})"
