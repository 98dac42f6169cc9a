"""The top of the spectrum of a mean that is positive semi-definite: found, proven, and turned to its axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from deepca._util.floats import EPS
from deepca._util.typing import Array
from deepca._util.validation import Whole, check
from deepca.algorithms import Algorithm, BlockKrylov, State
from deepca.consensus.consistency import agree_on_call
from deepca.decomposition.settings import SearchOptions, Settings, algorithm_of, check_settings
from deepca.errors import GapError, InvalidInput, NetworkError
from deepca.network.base import Network
from deepca.operators.base import Operator
from deepca.operators.linalg import first_columns
from deepca.solver.certificate.bounds import Certificate
from deepca.solver.loop import solve
from deepca.solver.observers import Observer
from deepca.solver.result import Result, Status, StatusCode
from deepca.solver.stopping import Tolerance

__all__ = ["Answer", "Leading", "Top", "common_settings", "leading", "search", "size_of", "whole"]


class Answer:
    """Eigenpairs or singular triplets, with a status that says whether they are what was asked for."""

    status: Status

    def required(self) -> Self:
        """Return the answer itself; raise GapError where the vectors that were asked for do not exist."""
        if self.status.code == StatusCode.NOT_UNIQUE:
            raise GapError(self.status.advice)
        return self


def common_settings(network: Network, call: str, k: int, options: SearchOptions, **asked: str) -> Settings:
    """Return the settings of a call that every agent makes, once all are known to ask for the same.

    call : the name of the function.  asked : its other parameters that have to be the same.
    """
    unknown = sorted(set(options) - set(SearchOptions.__annotations__))
    if unknown:
        raise TypeError(f"{call}() got an unexpected keyword argument {unknown[0]!r}")
    settings = Settings(whole(k), **options)
    agree_on_call(network, call, settings=settings, **asked)
    return settings


@dataclass(frozen=True)
class Leading:
    """The top k of ``A = mean A_j``, the same bits at every agent; directions but for rounding.

    vectors : orthonormal ``(d, k)``.  values : ``(k,)``, descending.  directions : ``(s, d)``, the vectors and whatever
    else the search has seen, to start another one from.  result : how the run went.
    """

    vectors: Array
    values: Array
    directions: Array
    result: Result[Any]
    certificate: Certificate


def leading(
    A: Operator,
    network: Network,
    settings: Settings,
    *,
    start: Array | None = None,
    observers: Sequence[Observer] = (),
) -> Leading:
    """The ``settings.n_components`` largest eigenvalues and their eigenvectors, with a certificate.

    start : ``(k', d)`` orthonormal rows to begin with, the same at every agent; as many are added or dropped as needed.
    """
    top = search(A, network, settings, size_of(settings, A.d), start, observers=observers)
    if top.result.certificate is None:
        raise NetworkError("the run ended before anything could be proven: the network changed in its last iteration")
    proof = top.result.certificate
    directions = top.directions
    seen = top.X.T if directions is None else directions
    return Leading(top.X, np.array(proof.eigenvalues), seen, top.result, proof)


@dataclass(frozen=True)
class Top:
    """The end of a search. X : ``(d, k)``, of the first local agent."""

    X: Array
    result: Result[Any]
    algorithm: Algorithm[Any]

    @property
    def directions(self) -> Array | None:
        """All that were seen, ``(s, d)``; None where that is X."""
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
    glance: int | None = None,
    observers: Sequence[Observer] = (),
) -> Top:
    """Search the top k of ``mean A_j`` with the algorithm of the settings: the one place where it is run.

    start : ``(k', d)`` orthonormal rows to begin with.  state : to go on from.  disturbed : whether ``start`` is where
    a run had come before the network changed.  glance : make at most so many iterations, to a percent, proving nothing.
    """
    W0 = first_columns(A.d, k, start, settings.seed)
    algorithm = algorithm_of(settings.algorithm, A, W0, network, rounds=settings.rounds, messages=settings.messages)
    if disturbed:
        network.begin(network.epoch, 0, "restart")
        state = algorithm.restart(algorithm.init(), algorithm.rounds_for(max(settings.tol * 1e-2, EPS)))
    left = settings.max_iter if state is None else max(settings.max_iter - state.t, 1)
    result = solve(
        algorithm,
        max_iter=left if glance is None else min(glance, settings.max_iter),
        stop=Tolerance(settings.tol if glance is None else 1e-2),
        observers=observers,
        start=state,
        certify=glance is None,
    )
    X = np.ascontiguousarray(result.components.reshape(-1, A.d, k)[0])
    return Top(X, result, algorithm)


def whole(k: Any) -> int:
    """How many are wanted; neither a share of variance nor "all" makes sense here."""
    number = k.item() if isinstance(k, np.generic) else k
    check("n_components", number, Whole(1))
    return int(number)


def size_of(settings: Settings, d: int) -> int:
    """k, after settings were checked."""
    k = whole(settings.n_components)
    check_settings(settings)
    if k > d:
        raise InvalidInput(f"n_components = {k}, but there are {d} dimensions only; ask for at most {d}")
    return k
