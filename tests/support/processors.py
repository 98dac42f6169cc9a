"""Simulate agents with different processors in one process: results of some agents have other bits and signs.

On another processor, BLAS and LAPACK give equally right results: singular vectors and eigenvectors with other signs,
other bases of equal eigenvalues, arbitrary directions where there is only rounding, and other last digits everywhere.
Logarithms and powers of another C library have other last digits as well. In the threads chosen by
:func:`other_processors`, functions of numpy, scipy and Python are patched to return such results.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import scipy.linalg

import deepca.operators.linalg
import deepca.solver.deflation
import deepca.solver.ritz_axes
from deepca._util.typing import Array
from deepca.operators import Operator

__all__ = ["other_processors"]

_EPS = float(np.finfo(np.float64).eps)
_SAME_VALUE = 64.0 * _EPS  # relative to the largest: closer values count as equal


class _OtherProcessor:
    """Source of results as another processor computes them."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def rounded(self, given: npt.ArrayLike) -> Array:
        """Return X with other last digits, relative to its largest entry."""
        X = np.asarray(given, dtype=np.float64)
        peak = np.abs(X).max(axis=tuple(range(-min(X.ndim, 2), 0)), keepdims=True, initial=0.0) if X.size else 0.0
        return np.asarray(X + 0.5 * _EPS * peak * self.rng.standard_normal(X.shape))

    def product(self, M: Array) -> Array:
        """Return a matrix of inner products with other last digits, relative to the lengths of the vectors."""
        lengths = np.sqrt(np.abs(np.einsum("...ii->...i", M)))
        size = np.abs(M) + lengths[..., :, None] * lengths[..., None, :]
        return np.asarray(M + 0.5 * _EPS * size * self.rng.standard_normal(M.shape))

    def signs(self, shape: tuple[int, ...]) -> Array:
        return np.where(self.rng.random(shape) < 0.5, -1.0, 1.0)

    def turn(self, values: Array) -> Array:
        """Return an orthogonal matrix of random signs, with a random basis for values that are equal up to rounding."""
        n = values.size
        turn = np.diag(self.signs((n,)))
        close = np.abs(np.diff(values)) <= _SAME_VALUE * np.abs(values).max(initial=0.0)
        for group in np.split(np.arange(n), np.flatnonzero(~close) + 1):
            if len(group) > 1:
                turn[np.ix_(group, group)] = _qr(self.rng.standard_normal((len(group), len(group))))[0]
        return turn


_qr: Any
_eigh: Any
_eigvalsh: Any
_svd: Any
_qr, _eigh, _eigvalsh, _svd = np.linalg.qr, np.linalg.eigh, np.linalg.eigvalsh, np.linalg.svd
_cholesky, _inv = np.linalg.cholesky, np.linalg.inv
_scipy_eigh = scipy.linalg.eigh
_dormqr: Any = vars(deepca.solver.ritz_axes)["dormqr"]
_dgejsv: Any = vars(deepca.solver.deflation)["dgejsv"]
_project_out, _symmetric = deepca.operators.linalg.project_out, deepca.operators.linalg.symmetric_part
_LIBRARY: dict[str, Callable[..., float]] = {
    name: getattr(math, name)
    for name in ("exp", "expm1", "log", "log1p", "log2", "log10", "pow", "hypot", "sin", "cos", "tan", "cosh", "acosh")
}


def _each(work: Callable[[Array], tuple[Array, ...]], A: Array) -> tuple[Array, ...]:
    """Apply ``work`` to every matrix of a batch."""
    if A.ndim == 2:
        return work(A)
    found = [_each(work, one) for one in A]
    return tuple(np.stack(parts) for parts in zip(*found, strict=True))


def _answers(other: _OtherProcessor) -> dict[str, Callable[..., Any]]:
    def qr(A: Array, mode: str = "reduced") -> Any:
        def one(A: Array) -> tuple[Array, Array]:
            Q, R = _qr(A, mode)
            signs = other.signs((Q.shape[1],))
            return other.rounded(Q * signs), other.rounded(R * signs[:, None])

        return _each(one, np.asarray(A))

    def eigh(A: Array, *arguments: Any, **options: Any) -> Any:
        def one(A: Array) -> tuple[Array, Array]:
            values, vectors = _eigh(A)
            return other.rounded(values), other.rounded(vectors @ other.turn(values))

        return _each(one, np.asarray(A))

    def scipy_eigh(A: Array, **options: Any) -> Any:
        values, vectors = _scipy_eigh(A, **options)
        return other.rounded(values), other.rounded(vectors @ other.turn(values))

    def eigvalsh(A: Array, *arguments: Any) -> Any:
        return other.rounded(_eigvalsh(A, *arguments))

    def svd(A: Array, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False) -> Any:
        if not compute_uv:
            return np.abs(other.rounded(_svd(A, compute_uv=False)))

        def one(A: Array) -> tuple[Array, Array, Array]:
            U, sigma, Vt = _svd(A, full_matrices)
            n = sigma.size
            turn = other.turn(sigma)
            U, Vt = U.copy(), Vt.copy()
            U[:, :n], Vt[:n] = U[:, :n] @ turn, turn.T @ Vt[:n]
            nothing = np.flatnonzero(sigma <= _SAME_VALUE * sigma.max(initial=0.0))
            if len(nothing):  # left and right null vectors are independent
                U[:, nothing] = U[:, nothing] @ _qr(other.rng.standard_normal((len(nothing), len(nothing))))[0]
            return other.rounded(U), np.abs(other.rounded(sigma)), other.rounded(Vt)

        return _each(one, np.asarray(A))

    def dormqr(*arguments: Any, **options: Any) -> Any:
        found, *rest = _dormqr(*arguments, **options)
        return other.rounded(found * other.signs((found.shape[1],))), *rest

    def dgejsv(*arguments: Any, **options: Any) -> Any:
        sigma, left, right, *rest = _dgejsv(*arguments, **options)
        sigma = np.abs(
            sigma + 0.5 * _EPS * sigma * other.rng.standard_normal(sigma.shape)
        )  # Jacobi rotations are relatively accurate
        return sigma, left, other.rounded(right * other.signs((right.shape[1],))), *rest

    def digits(usual: Callable[..., float]) -> Callable[..., float]:
        return lambda *given: usual(*given) * (1.0 + _EPS * float(other.rng.integers(-2, 3)))

    return {
        **{name: digits(usual) for name, usual in _LIBRARY.items()},
        "qr": qr,
        "eigh": eigh,
        "eigvalsh": eigvalsh,
        "svd": svd,
        "cholesky": lambda A: other.rounded(_cholesky(A)),
        "inv": lambda A: other.rounded(_inv(A)),
        "scipy_eigh": scipy_eigh,
        "dormqr": dormqr,
        "dgejsv": dgejsv,
        "project_out": lambda Y, X: other.rounded(_project_out(Y, X)),
        "symmetric_part": lambda M: _symmetric(other.product(M)),
        "product": other.rounded,
    }


@contextmanager
def other_processors(agents: Collection[int], seed: int = 0) -> Iterator[None]:
    """Let the threads of these agents (``run_agents``) compute as on another processor."""
    theirs = {f"agent-{j}": _answers(_OtherProcessor(seed + j)) for j in agents}

    def here(name: str, usual: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            answers = theirs.get(threading.current_thread().name)
            return (usual if answers is None else answers[name])(*arguments, **options)

        return call

    def product(usual: Callable[..., Any], answer: str) -> Callable[..., Any]:
        def call(self: Operator, W: Array) -> Any:
            answers = theirs.get(threading.current_thread().name)
            found = usual(self, W)
            return found if answers is None else answers[answer](found)

        return call

    patches = [
        mock.patch.object(np.linalg, name, here(name, getattr(np.linalg, name)))
        for name in ("qr", "eigh", "eigvalsh", "svd", "cholesky", "inv")
    ]
    patches += [mock.patch.object(math, name, here(name, usual)) for name, usual in _LIBRARY.items()]
    patches.append(mock.patch.object(scipy.linalg, "eigh", here("scipy_eigh", _scipy_eigh)))
    patches.append(mock.patch.object(deepca.solver.ritz_axes, "dormqr", here("dormqr", _dormqr)))
    patches.append(mock.patch.object(deepca.solver.deflation, "dgejsv", here("dgejsv", _dgejsv)))
    for name, usual in (("project_out", _project_out), ("symmetric_part", _symmetric)):
        patches += [mock.patch.object(module, name, here(name, usual)) for module in _modules_with(usual)]
    for name, answer in (("__matmul__", "product"), ("gram", "symmetric_part")):
        kinds = [kind for kind in _subclasses(Operator) if name in vars(kind)]
        patches += [mock.patch.object(kind, name, product(vars(kind)[name], answer)) for kind in kinds]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def _modules_with(function: Callable[..., Any]) -> list[Any]:
    return [
        module
        for name, module in sys.modules.items()
        if name.startswith("deepca") and getattr(module, function.__name__, None) is function
    ]


def _subclasses(kind: type[Any]) -> list[type[Any]]:
    below: list[type[Any]] = kind.__subclasses__()
    return [kind, *(lower for one in below for lower in _subclasses(one))]
