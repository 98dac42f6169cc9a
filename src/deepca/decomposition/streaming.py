"""Following a subspace that moves: DeEPCA goes on while the ``A_j`` change, a few iterations for each of them.

Estimates, not proofs: what agents hold after a few iterations lags behind, and nobody certifies it. For the exact
answer after every change see :meth:`deepca.DecentralizedPCA.partial_fit`. docs/streaming.md compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from deepca._util.typing import Array
from deepca._util.validation import Whole, check
from deepca.algorithms.base import TrackedState
from deepca.algorithms.deepca import DeEPCA
from deepca.decomposition.partial_fit import check_forgetting
from deepca.errors import DataError, InvalidInput
from deepca.operators.base import OperatorLike
from deepca.operators.construction import from_matrices, from_rows
from deepca.operators.covariances import Covariances
from deepca.solver.loop import solve
from deepca.solver.result import Result

__all__ = ["faded", "follow"]


def follow(
    algorithm: DeEPCA, operators: Iterable[OperatorLike], *, steps: int = 1, start: TrackedState | None = None
) -> Iterator[Result[TrackedState]]:
    """Iterate ``steps`` times with each of ``operators``, from where the one before ended; yields after each.

    Parameters
    ----------
    algorithm : who iterates, over which network and with which mixer; of its own ``A_j`` only d counts.
    operators : the ``A_j`` of the local agents, batch after batch; taken one by one, so they may come over time. Every
        agent has to have the same number of them.
    steps : iterations for each. Every one takes the rounds of the mixer.
    start : the State of an earlier result, to go on there.

    A result has ``state``, ``components`` and ``eigenvalues``; ``agreed.disagreement`` is how far the two agents
    farthest apart are from each other, agreed on after each batch for a diameter of control rounds. Nothing is
    certified. ``mean S = mean A W`` holds with the newest ``A_j`` alone, so that the error goes to zero, at the rate of
    power iterations, once they stay as they are.
    """
    if not isinstance(algorithm, DeEPCA):
        raise InvalidInput(f"{algorithm!r} cannot follow: give a deepca.DeEPCA, whose tracking bears other A_j")
    check("steps", steps, Whole(1), meaning="iterations per batch")
    return _followed(algorithm, operators, steps, start)


def _followed(
    algorithm: DeEPCA, operators: Iterable[OperatorLike], steps: int, state: TrackedState | None
) -> Iterator[Result[TrackedState]]:
    for A in operators:
        result = solve(algorithm.with_operator(A), max_iter=steps, start=state, certify=False)
        state = result.state
        yield result


def faded(batches: Iterable[Any], forgetting: float = 1.0) -> Iterator[Covariances]:
    """``A_j ← forgetting · A_j + X_jᵀX_j`` after every batch of rows, for :func:`follow`.

    Parameters
    ----------
    batches : one ``(n_j, d)`` array or sparse matrix per local agent, again and again, or just one for an agent alone;
        a row of zeros counts as none. No mean is taken off.
    forgetting : what earlier rows keep of their weight with every batch; 1 forgets nothing.
    """
    return _faded(batches, check_forgetting(forgetting))


def _faded(batches: Iterable[Any], forgetting: float) -> Iterator[Covariances]:
    total: Array | None = None
    for rows in batches:
        alone = getattr(rows, "ndim", 0) == 2
        made = from_rows([rows] if alone else rows, form="covariance")
        new = made.agent(0).dense() if alone else made.dense()
        if total is not None and total.shape != new.shape:
            raise DataError(f"A_j of shape {new.shape} after some of shape {total.shape}: agents and columns must stay")
        total = new if total is None else forgetting * total + new
        yield from_matrices(total)
