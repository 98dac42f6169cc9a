"""Check ``DecentralizedPCA`` on hard rows: steep spectra, large offsets, extreme sizes, weights, duplicates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from deepca import DecentralizedPCA
from deepca.errors import DataError, InvalidInput, NotFiniteError
from studies.adversary.claims import check_result
from studies.adversary.problems import Array, orthogonal, sizes, spectrum
from studies.adversary.reference import LOSS_FACTOR, LongArray, Spectrum, centred, of_rows
from studies.adversary.trial import Trial

__all__ = ["Rows", "check_pca", "estimators", "random_rows", "truth_of"]

_EPS = float(np.finfo(np.float64).eps)
_UNDERFLOW = 1e-290  # products involving variances below this lose digits
_MAX_SCALE_DECADES = 150  # rows are scaled by up to 1e±150, whose squares stay in range


@dataclass(frozen=True)
class Rows:
    """Rows as they are passed to an estimator, and as a dense float64 array."""

    given: Any
    dense: Array
    weights: Array | None
    extreme: bool
    """Whether squares overflow or underflow, or rows vary little compared with their distance from zero."""


def estimators(trial: Trial) -> None:
    """Fit with random settings and compare with the answer in extended precision."""
    rng = trial.rng
    d, k = sizes(trial)
    rows = random_rows(trial, d, k)
    n = len(rows.dense)
    wanted = trial.one_of(min(k, n, d), min(k, n, d), None, float(rng.uniform(0.3, 0.999)))
    m = int(rng.integers(1, min(n, 8) + 1))
    algorithm = trial.one_of("auto", "auto", "auto", "auto", "covariance", "accelerated", "deepca")
    tracked = algorithm in ("accelerated", "deepca")
    pca = DecentralizedPCA(
        wanted,
        center=not trial.chance(0.1),
        scale=trial.chance(0.15),
        whiten=trial.chance(0.2),
        topology=trial.one_of("ring", "path", "star", "complete", "erdos-renyi:0.6"),
        algorithm=algorithm,
        tol=10.0 ** rng.uniform(-12, -4),
        max_iter=300 if tracked else 1000,
        random_state=int(rng.integers(1000)),
    )
    trial.note(f"n={n}", f"m={m}", f"wanted={wanted}", algorithm, f"tol={pca.tol:.1e}")
    trial.note(*(name for name in ("center", "scale", "whiten") if getattr(pca, name)))
    if pca.scale and isinstance(rows.given, np.ndarray) and rows.given.dtype == np.float64:
        rows = _with_tiny_column(trial, rows)
    if n < 3 or rows.extreme or pca.scale or rows.weights is not None:
        trial.may_refuse(DataError)
    if rows.extreme:
        trial.may_refuse(NotFiniteError)
    if rows.weights is not None:
        trial.may_refuse(InvalidInput)
    labels = _labels(rng, n, m)
    if trial.chance(0.5):
        trial.note("fit")
        pca.fit(rows.given, agents=labels, sample_weight=rows.weights)
    else:
        trial.note("fit_agents")
        parts = [rows.given[labels == j] for j in range(m)]
        shares = None if rows.weights is None else [rows.weights[labels == j] for j in range(m)]
        pca.fit_agents(parts, sample_weight=shares)
    check_pca(trial, pca, rows.dense, rows.weights)


def check_pca(trial: Trial, pca: DecentralizedPCA, X: Array, weights: npt.NDArray[Any] | None) -> None:
    """Check every claim of an estimator fitted to rows X with these weights."""
    truth, mean, units, total = truth_of(pca, X, weights)
    check_result(trial, pca.result_, truth, pca.tol)
    _check_known(trial, pca, truth)
    spread = np.sqrt(np.maximum(np.square(centred(X, weights)[0]).max(axis=0), 0))
    if pca.center:
        off = np.abs(pca.model_.mean - mean) / np.maximum(np.abs(mean) + spread, np.finfo(np.longdouble).tiny)
        rounding = 2.0**-22 if pca.model_.mean.dtype == np.float32 else 16.0 * _EPS
        trial.claim("mean", float(off.max()), rounding, 1e-18)
    if units is not None and pca.scale_ is not None:
        rounding = 2.0**-22 if pca.scale_.dtype == np.float32 else 1e-13
        trial.claim("scale", float(np.abs(pca.scale_ / units - 1).max()), rounding, 1e-17)
    if isinstance(pca.n_components, float) and trial.proven:
        _check_share(trial, truth, pca.n_components, pca.n_components_, float(total))


def _check_known(trial: Trial, pca: DecentralizedPCA, truth: Spectrum) -> None:
    """Check that variances reported as known are accurate to two digits, or as accurate as an SVD of all rows."""
    model = pca.model_
    known = model.n_known if model.status.ok or model.status.code == "below_rounding" else 0
    if not known or float(truth.values[0]) < _UNDERFLOW:
        return
    exact = np.sqrt(np.maximum(truth.values[:known], 0)).astype(np.float64)
    off = np.abs(np.sqrt(model.explained_variance[:known].astype(np.float64)) - exact)
    allowed = 5e-3 * exact + 64.0 * _EPS * exact[0]
    worst = int(np.argmax(off / allowed))
    trial.claim(f"variance {worst + 1} of {known} reported as known", off[worst] / exact[0], allowed[worst] / exact[0])


def truth_of(
    pca: DecentralizedPCA, X: Array, weights: npt.NDArray[Any] | None
) -> tuple[Spectrum, LongArray, LongArray | None, np.longdouble]:
    """Compute the covariance spectrum, mean, standard deviations and total variance of the rows."""
    w = np.ones(len(X), dtype=np.longdouble) if weights is None else np.asarray(weights, dtype=np.longdouble)
    Y, mean = centred(X, w)
    units = None
    if pca.scale:
        units = np.sqrt((w @ np.square(Y)) / w.sum())
    if not pca.center:
        Y = np.asarray(X, dtype=np.longdouble)
    if units is not None:
        Y = Y / units
    factor = Y * np.sqrt(w / (w.sum() - 1))[:, None]
    truth, given = of_rows(factor), np.asarray(X, dtype=np.longdouble) if units is None else X / units
    total = np.square(factor).sum()
    far = np.square(given * np.sqrt(w / (w.sum() - 1))[:, None]).sum()  # the total before centring
    rounding = LOSS_FACTOR * _EPS * float(total + np.sqrt(total * far) + _EPS * far)
    return replace(truth, rounding=rounding), mean, units, total


def random_rows(trial: Trial, d: int, k: int) -> Rows:
    """Draw rows with a random spectrum, offset, size, dtype and weights."""
    rng = trial.rng
    n = trial.one_of(int(rng.integers(2, 8)), int(rng.integers(8, 40)), int(rng.integers(40, 90)))
    Z = rng.standard_normal((n, d))
    if n > d and trial.chance(0.5):  # the sample has exactly this spectrum, up to rounding
        Z = np.sqrt(n) * np.linalg.qr(Z - Z.mean(axis=0))[0]
    X = Z * np.sqrt(spectrum(trial, d, k))
    if trial.chance(0.7):
        X = X @ orthogonal(rng, d).T
    extreme = False
    if trial.chance(0.4):
        decades = rng.uniform(0, 15)
        X = X + 10.0**decades * rng.standard_normal(d)
        trial.note(f"offset=1e{decades:.1f}")
        extreme = decades > 12
    if trial.chance(0.2):
        X[rng.integers(n, size=n // 2)] = X[0]
        trial.note("duplicates")
    if trial.chance(0.1):
        X[:, rng.integers(d)] = rng.standard_normal()
        trial.note("constant column")
    if trial.chance(0.3):
        decades = rng.uniform(-_MAX_SCALE_DECADES, _MAX_SCALE_DECADES)
        X, extreme = X * 10.0**decades, extreme or abs(decades) > 70
        trial.note(f"size=1e{decades:.0f}")
    given, X = _converted(trial, X, extreme)
    extreme = extreme or bool((np.ptp(X, axis=0) <= 1e-12 * np.abs(X).max(axis=0)).all())
    return Rows(given, X, _weights(trial, n), extreme)


def _with_tiny_column(trial: Trial, rows: Rows) -> Rows:
    """Sometimes scale one column so that its squares may underflow.

    Uses a separate generator so that the draws of existing seeds do not change.
    """
    rng = np.random.default_rng([1, trial.seed])
    if rng.random() > 0.3:
        return rows
    X, decades = rows.dense.copy(), rng.uniform(-175, -120)
    X[:, rng.integers(X.shape[1])] *= 10.0**decades
    trial.note(f"column=1e{decades:.0f}")
    return replace(rows, given=X, dense=X)


def _converted(trial: Trial, X: Array, extreme: bool) -> tuple[Any, Array]:
    """Convert rows to float64, float32, integers or a sparse matrix; also return them as float64."""
    kind = trial.one_of("float64", "float64", "float64", "float32", "int", "sparse")
    peak = np.abs(X).max()
    if extreme or not 1e-30 < peak < 1e30:
        kind = "float64"
    if kind != "float64":
        trial.note(kind)
    if kind == "float32":
        X32 = X.astype(np.float32)
        return X32, X32.astype(np.float64)
    if kind == "int":
        whole = np.rint(X * (10.0 ** trial.rng.uniform(1, 6) / peak)).astype(np.int64)
        return whole, whole.astype(np.float64)
    if kind == "sparse":
        X = np.where(trial.rng.random(X.shape) < 0.5, X, 0.0)
        return sparse.csr_array(X), X
    return X, X


def _weights(trial: Trial, n: int) -> Array | None:
    rng, kind = trial.rng, trial.one_of(None, None, None, "whole", "real", "steep", "nearly whole")
    if kind is None:
        return None
    trial.note(f"{kind} weights")
    if kind == "whole":
        return rng.integers(0, 4, n).astype(np.float64) + (np.arange(n) < 2)
    if kind == "real":
        return rng.uniform(0.1, 3.0, n)
    if kind == "steep":
        return np.asarray(10.0 ** rng.uniform(-6, 3, n))
    weights = np.ones(n)
    weights[0] += 10.0 ** rng.uniform(-14, -9)
    return weights


def _labels(rng: np.random.Generator, n: int, m: int) -> npt.NDArray[np.int64]:
    """Assign every row to an agent, at least one to each and very different numbers to different ones."""
    shares = 10.0 ** rng.uniform(-3, 0, m)
    labels = rng.choice(m, n, p=shares / shares.sum())
    labels[rng.permutation(n)[:m]] = np.arange(m)
    return np.asarray(labels, dtype=np.int64)


def _check_share(trial: Trial, truth: Spectrum, wanted: float, found: int, total: float) -> None:
    """Check that no fewer components explain more than the wanted share of variance, except near a tie."""
    share = np.cumsum(truth.values).astype(np.float64) / total
    near = np.abs(share - wanted).min() < 1e-9
    needed = int(np.searchsorted(share, wanted, side="right")) + 1
    trial.fact(f"{found} components for a share of {wanted}, expected {needed}", near or found == needed)
