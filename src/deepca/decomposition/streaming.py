"""Follow a moving subspace: DeEPCA takes a few iterations whenever the ``A_j`` change.

The results are estimates: they lag behind the newest A_j, and they are not certified. For exact results after every
change, see :meth:`deepca.DecentralizedPCA.partial_fit`; docs/streaming.md compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from deepca._util.typing import Array
from deepca._util.validation import Integer, check
from deepca.algorithms.base import TrackedState
from deepca.algorithms.deepca import DeEPCA
from deepca.decomposition.partial_fit import check_forgetting
from deepca.errors import DataError, ParameterError
from deepca.operators.base import OperatorLike
from deepca.operators.construction import from_matrices, from_rows
from deepca.operators.covariances import Covariances
from deepca.solver.loop import solve
from deepca.solver.result import Result

__all__ = ["discounted_covariances", "follow"]


def follow(
    algorithm: DeEPCA, operators: Iterable[OperatorLike], *, steps: int = 1, start: TrackedState | None = None
) -> Iterator[Result[TrackedState]]:
    """Take ``steps`` iterations with each operator in turn, continuing from the state that the previous one reached.

    Parameters
    ----------
    algorithm : DeEPCA
        Provides network, mixer and start. Its ``A_j`` are not used, only their dimension d.
    operators : iterable of OperatorLike
        The ``A_j`` of the local agents, one operator per batch, consumed lazily. All agents must pass the same
        number of operators.
    steps : int
        Iterations per operator; each iteration takes the mixer's rounds.
    start : TrackedState, optional
        State of an earlier result to resume from.

    Returns
    -------
    iterator of Result
        One result per operator, with ``state``, ``components`` and ``eigenvalues``, but without a certificate.
        ``agreed.disagreement`` is the largest distance between two agents; agreeing on it takes as many control rounds
        as the diameter of the network.

    Raises
    ------
    ParameterError
        If ``algorithm`` is not a DeEPCA, or ``steps`` is not a positive integer.

    Notes
    -----
    Tracking keeps ``mean S = mean A W`` for the newest ``A_j`` alone, so once they stop changing the error tends to
    zero at the rate of power iterations.

    Examples
    --------
    >>> import numpy as np
    >>> import deepca
    >>> A = np.stack([np.diag([3.0, 2.0, 1.0])] * 4)
    >>> network = deepca.SimulatedNetwork(deepca.topology.ring(4))
    >>> algorithm = deepca.DeEPCA(A, np.ones((3, 1)) / np.sqrt(3.0), network, deepca.FastMix(rounds=4))
    >>> [result.iterations for result in deepca.follow(algorithm, [A, A + np.eye(3)], steps=2)]
    [2, 2]
    """
    if not isinstance(algorithm, DeEPCA):
        raise ParameterError("algorithm", algorithm, "give a deepca.DeEPCA, which can track changing A_j")
    check("steps", steps, Integer(1), meaning="iterations per batch")
    return _iterate_batches(algorithm, operators, steps, start)


def _iterate_batches(
    algorithm: DeEPCA, operators: Iterable[OperatorLike], steps: int, state: TrackedState | None
) -> Iterator[Result[TrackedState]]:
    for A in operators:
        result = solve(algorithm.with_operator(A), max_iter=steps, start=state, certify=False)
        state = result.state
        yield result


def discounted_covariances(batches: Iterable[Any], forgetting: float = 1.0) -> Iterator[Covariances]:
    """Accumulate ``A_j ← forgetting · A_j + X_jᵀX_j`` over batches of rows, for :func:`follow`.

    Parameters
    ----------
    batches : iterable
        In each batch, one ``(n_j, d)`` array or sparse matrix per local agent, or just the matrix for a single agent.
        Rows are not centred; a row of zeros has no effect.
    forgetting : float
        Factor in (0, 1] by which every batch multiplies the weight of earlier rows; 1 forgets nothing.

    Returns
    -------
    iterator of Covariances
        The ``A_j`` of the local agents after each batch.

    Raises
    ------
    ParameterError
        If ``forgetting`` is not in (0, 1].
    DataError
        If a batch has a different number of agents or columns from those before.

    Examples
    --------
    >>> import numpy as np
    >>> batches = [[np.eye(2)], [2.0 * np.eye(2)]]
    >>> [float(A.dense()[0, 0, 0]) for A in discounted_covariances(batches, forgetting=0.5)]
    [1.0, 4.5]
    """
    return _accumulate(batches, check_forgetting(forgetting))


def _accumulate(batches: Iterable[Any], forgetting: float) -> Iterator[Covariances]:
    total: Array | None = None
    for rows in batches:
        one_agent = getattr(rows, "ndim", 0) == 2
        made = from_rows([rows] if one_agent else rows, form="covariance")
        new = made.agent(0).dense() if one_agent else made.dense()
        if total is not None and total.shape != new.shape:
            raise DataError(
                f"a batch has A_j of shape {new.shape}, but earlier ones had {total.shape}; give rows of the same "
                "agents, with the same columns, in every batch",
                parameter="batches",
                value=new.shape,
            )
        total = new if total is None else forgetting * total + new
        yield from_matrices(total)
