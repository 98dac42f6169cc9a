"""The top of the spectrum of a mean that is positive semi-definite: found, proven, and turned to its axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from deepca._util.typing import Array
from deepca._util.validation import Whole, check
from deepca.algorithms import BlockKrylov
from deepca.decomposition.settings import Settings, algorithm_of, check_settings
from deepca.errors import InvalidInput, NetworkError
from deepca.network.base import Network
from deepca.operators.base import Operator
from deepca.operators.linalg import first_columns
from deepca.solver.certificate.bounds import Certificate
from deepca.solver.loop import solve
from deepca.solver.observers import Observer
from deepca.solver.result import Result
from deepca.solver.stopping import Tolerance

__all__ = ["Leading", "leading", "size_of", "whole"]


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
    k = size_of(settings, A.d)
    algorithm = algorithm_of(
        settings.algorithm,
        A,
        first_columns(A.d, k, start, settings.seed),
        network,
        rounds=settings.rounds,
        messages=settings.messages,
    )
    result = solve(algorithm, max_iter=settings.max_iter, stop=Tolerance(settings.tol), observers=observers)
    if result.certificate is None:
        raise NetworkError("the run ended before anything could be proven: the network changed in its last iteration")
    X = np.ascontiguousarray(result.components.reshape(-1, A.d, k)[0])
    known = algorithm.directions(result.state) if isinstance(algorithm, BlockKrylov) else X.T
    return Leading(X, np.array(result.certificate.eigenvalues), known, result, result.certificate)


def whole(k: Any) -> int:
    """How many are wanted; neither a share of variance nor "all" makes sense here."""
    check("n_components", k, Whole(1))
    return int(k)


def size_of(settings: Settings, d: int) -> int:
    """k, after settings were checked."""
    k = whole(settings.n_components)
    check_settings(settings)
    if k > d:
        raise InvalidInput(f"n_components = {k}, but there are {d} dimensions only; ask for at most {d}")
    return k
