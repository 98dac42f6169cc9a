"""Time a whole fit, from raw rows to certified components, against scikit-learn on the pooled rows."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.decomposition import PCA

from benchmarks.report import Section
from benchmarks.timing import WALL, Tick, interleave, spread, timed
from deepca import DecentralizedPCA
from deepca.data.libsvm import load
from deepca.errors import DeepcaError

__all__ = ["measure", "steps"]

_M, _K, _TOL = 50, 5, 1e-8
_SOLVERS = ("covariance_eigh", "arpack")
_DATA = Path("..") / "shared" / "data"


def steps(quick: bool) -> int:
    """Return the number of calls of ``tick`` by :func:`measure`."""
    return len(_problems()) * 4 * (1 + _repetitions(quick))


def measure(quick: bool, tick: Tick) -> list[Section]:
    """Measure fits and return a section with a row per data set."""
    section = Section(
        "A whole fit compared with scikit-learn",
        f"DecentralizedPCA(n_components={_K}, n_agents={_M}, tol={_TOL:g}).fit(X), 40,000 × 300: reading, agreeing on "
        "counts, mean and spread, iterating and proving, compared with sklearn.decomposition.PCA of the pooled rows. "
        "Wall-clock time on all cores. The last two columns show how much longer the paper's DeEPCA takes, and why.",
        ("data", "time / covariance_eigh", "target", "time / arpack", "target ", "DeEPCA / default", "iterations"),
    )
    for name, X, is_dense in _problems():
        ours = DecentralizedPCA(_K, n_agents=_M, tol=_TOL)
        paper = DecentralizedPCA(_K, n_agents=_M, tol=_TOL, algorithm="deepca")
        fits = {"ours": ours, "deepca": paper, **{name: PCA(_K, svd_solver=name) for name in _SOLVERS}}
        measures = [timed(name, partial(fit.fit, X), clock=WALL) for name, fit in fits.items()]
        times = interleave(measures, _repetitions(quick), tick)
        ratios = {solver: spread(times["ours"] / times[solver]) for solver in _SOLVERS}
        section.add(
            name,
            str(ratios["covariance_eigh"]),
            "≤ 4: " + ("met" if ratios["covariance_eigh"].median <= 4.0 else "missed"),
            str(ratios["arpack"]),
            ("≤ 1: " + ("met" if ratios["arpack"].median <= 1.0 else "missed")) if is_dense else "",
            f"× {spread(times['deepca'] / times['ours'])}",
            f"{ours.n_iter_} products, {paper.n_iter_} with DeEPCA",
            **ratios,
        )
    return [section]


def _repetitions(quick: bool) -> int:
    return 3 if quick else 11


def _problems() -> list[tuple[str, Any, bool]]:
    problems: list[tuple[str, Any, bool]] = []
    try:
        X = load("w8a", _DATA if _DATA.is_dir() else None).X[:40_000]
        problems += [("w8a, CSR", X, False), ("w8a, dense", X.toarray(), True)]
    except DeepcaError:  # w8a is neither in the folder nor can it be downloaded
        pass
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.standard_normal((300, 300)))[0]
    decay = rng.standard_normal((40_000, 300)) * (np.arange(1.0, 301.0) ** -0.5) @ axes.T
    problems.append(("Gaussian, λ_i = 1/i", decay, True))
    return problems
