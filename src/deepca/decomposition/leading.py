"""Find and certify the leading eigenpairs of a positive semidefinite mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from deepca._util.floats import EPS
from deepca._util.typing import Array
from deepca._util.validation import Integer, check
from deepca.algorithms import Algorithm, BlockKrylov, State
from deepca.consensus.consistency import check_same_call
from deepca.decomposition.settings import SearchOptions, Settings, check_settings, create_algorithm
from deepca.errors import GapError, NetworkError, ParameterError
from deepca.network.base import Network
from deepca.operators.base import Operator
from deepca.operators.linalg import starting_block
from deepca.solver.certificate.bounds import Certificate
from deepca.solver.loop import solve
from deepca.solver.observers import Observer
from deepca.solver.result import Result, Status, StatusCode
from deepca.solver.stopping import Tolerance

__all__ = ["Answer", "LeadingEigenpairs", "SearchResult", "checked_k", "common_settings", "find_leading", "search"]


class Answer:
    """Base class of eigenpairs and singular triplets; ``status`` says whether they can be used."""

    status: Status

    def required(self) -> Self:
        """Return the answer itself, or raise if its vectors are not unique.

        Returns
        -------
        Answer
            This object.

        Raises
        ------
        GapError
            If the spectrum has no gap after k, so that the requested subspace is not unique.
        """
        if self.status.code == StatusCode.NOT_UNIQUE:
            raise GapError(self.status.advice, parameter="k", value=self.status.numbers.get("k"))
        return self


def common_settings(network: Network, call: str, k: int, options: SearchOptions, **asked: str) -> Settings:
    """Return the settings of a call after checking that every agent makes the same one.

    Parameters
    ----------
    network : Network
        Network of the agents.
    call : str
        Name of the function that is called.
    k : int
        Number of pairs or triplets.
    options : SearchOptions
        Keyword parameters of the call.
    **asked : str
        Other parameters that must be the same at every agent.

    Raises
    ------
    TypeError
        If ``options`` has an unknown keyword.
    ParameterError
        If ``k`` is not a positive integer.
    """
    unknown = sorted(set(options) - set(SearchOptions.__annotations__))
    if unknown:
        raise TypeError(f"{call}() got an unexpected keyword argument {unknown[0]!r}")
    settings = Settings(_checked_count(k), **options)
    check_same_call(network, call, settings=settings, **asked)
    return settings


@dataclass(frozen=True)
class LeadingEigenpairs:
    """The k leading eigenpairs of ``A = mean A_j``, bitwise identical at every agent (``directions`` up to rounding).

    Parameters
    ----------
    vectors : array of shape (d, k)
        Orthonormal eigenvectors.
    values : array of shape (k,)
        Eigenvalues, descending.
    directions : array of shape (s, d)
        Rows that span the whole search space, from which another search can start.
    result : Result
        Result of the run.
    certificate : Certificate
        Error bounds on the vectors.
    """

    vectors: Array
    values: Array
    directions: Array
    result: Result[Any]
    certificate: Certificate


def find_leading(
    A: Operator,
    network: Network,
    settings: Settings,
    *,
    start: Array | None = None,
    observers: Sequence[Observer] = (),
) -> LeadingEigenpairs:
    """Find the ``settings.n_components`` largest eigenvalues and their eigenvectors, with a certificate.

    ``start`` contains orthonormal rows ``(k', d)``, the same at every agent. If there are too few, random rows are
    added; if too many, the last are dropped.
    """
    top = search(A, network, settings, checked_k(settings, A.d), start, observers=observers)
    if top.result.certificate is None:
        raise NetworkError("the network changed in the last iteration, so nothing could be certified; run again")
    proof = top.result.certificate
    directions = top.directions
    rows = top.X.T if directions is None else directions
    return LeadingEigenpairs(top.X, np.array(proof.eigenvalues), rows, top.result, proof)


@dataclass(frozen=True)
class SearchResult:
    """Result of a search; ``X`` holds the components ``(d, k)`` of the first local agent."""

    X: Array
    result: Result[Any]
    algorithm: Algorithm[Any]

    @property
    def directions(self) -> Array | None:
        """Rows that span the search space, ``(s, d)``; None if X spans it."""
        return self.algorithm.directions(self.result.state) if isinstance(self.algorithm, BlockKrylov) else None


def search(
    A: Operator,
    network: Network,
    settings: Settings,
    k: int,
    start: Array | None = None,
    *,
    state: State | None = None,
    disturbed: bool = False,
    coarse: int | None = None,
    observers: Sequence[Observer] = (),
) -> SearchResult:
    """Search for the k leading eigenvectors of ``mean A_j`` with the algorithm of the settings.

    Parameters
    ----------
    A : Operator
        The ``A_j`` of the local agents.
    network : Network
        Network of the agents.
    settings : Settings
        Algorithm, tolerance and limits.
    k : int
        Number of eigenvectors.
    start : array of shape (k', d), optional
        Orthonormal rows to start from.
    state : State, optional
        State from which to resume.
    disturbed : bool
        Whether ``start`` comes from a run that the network interrupted, so that tracking must restart from it.
    coarse : int, optional
        Limit of a coarse search: at most this many iterations, a tolerance of 1 %, and no certificate.
    observers : sequence of Observer
        Notified of every iteration.
    """
    W0 = starting_block(A.d, k, start, settings.seed)
    algorithm = create_algorithm(settings.algorithm, A, W0, network, rounds=settings.rounds, messages=settings.messages)
    if disturbed:
        network.begin(network.epoch, 0, "restart")
        state = algorithm.restart(algorithm.init(), algorithm.rounds_for(max(settings.tol * 1e-2, EPS)))
    left = settings.max_iter if state is None else max(settings.max_iter - state.t, 1)
    result = solve(
        algorithm,
        max_iter=left if coarse is None else min(coarse, settings.max_iter),
        stop=Tolerance(settings.tol if coarse is None else 1e-2),
        observers=observers,
        start=state,
        certify=coarse is None,
    )
    X = np.ascontiguousarray(result.components.reshape(-1, A.d, k)[0])
    return SearchResult(X, result, algorithm)


def _checked_count(k: Any) -> int:
    """Return k as a plain int; neither a share of variance nor None is accepted here."""
    number = k.item() if isinstance(k, np.generic) else k
    check("n_components", number, Integer(1))
    return int(number)


def checked_k(settings: Settings, d: int) -> int:
    """Return k after checking all settings; raise ParameterError if one is invalid, or if k is greater than d."""
    k = _checked_count(settings.n_components)
    check_settings(settings)
    if k > d:
        raise ParameterError("n_components", k, f"no more than {d} exist; ask for fewer")
    return k
