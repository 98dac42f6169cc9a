"""Check ``partial_fit`` on streams with jumps, forgetting and idle agents against a fit of all rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from deepca import DecentralizedPCA
from deepca.errors import DataError, InvalidInput
from studies.adversary.families.estimators import check_pca
from studies.adversary.problems import Array, orthogonal, sizes, spectrum
from studies.adversary.trial import Trial

__all__ = ["streams"]


def streams(trial: Trial) -> None:
    """Call ``partial_fit`` a few times and check the answer after each call."""
    rng = trial.rng
    d, k = sizes(trial)
    m, calls = int(rng.integers(1, 6)), int(rng.integers(2, 6))
    forgetting = trial.one_of(1.0, 1.0, float(rng.uniform(0.05, 1.0)), 0.5)
    pca = DecentralizedPCA(
        k,
        center=not trial.chance(0.1),
        scale=trial.chance(0.1),
        forgetting=forgetting,
        topology=trial.one_of("ring", "star", "path"),
        tol=10.0 ** rng.uniform(-12, -5),
        random_state=int(rng.integers(1000)),
        n_agents=m,
    )
    trial.note(f"m={m}", f"calls={calls}", f"forgetting={forgetting:.2g}", f"tol={pca.tol:.1e}")
    trial.note(*(name for name in ("center", "scale") if getattr(pca, name)))
    jump, size = trial.one_of(0.0, 10.0 ** rng.uniform(0, 12)), 10.0 ** trial.one_of(0.0, rng.uniform(-60, 60))
    trial.note(f"jump={jump:.1e}", f"size={size:.0e}")
    if forgetting < 1.0 or pca.scale or jump > 1e9:  # too little weight may be left, or a column may be nearly constant
        trial.may_refuse(DataError, InvalidInput)
    values, Q = spectrum(trial, d, k), orthogonal(rng, d)
    X, weights = np.empty((0, d)), np.empty(0, dtype=np.longdouble)
    for call in range(calls):
        n = int(rng.integers(max(k + 1, m, 3), 60)) if call == 0 else int(rng.integers(1, 12))
        new = size * ((rng.standard_normal((n, d)) * np.sqrt(values)) @ Q.T + jump * rng.standard_normal(d))
        given, own = _fit_batch(trial, pca, new, m, first=call == 0)
        weights = np.concatenate([weights * np.longdouble(forgetting), own])
        X = np.concatenate([X, given])
        check_pca(trial, pca, X, weights)


def _fit_batch(trial: Trial, pca: DecentralizedPCA, X: Array, m: int, *, first: bool) -> tuple[Array, npt.NDArray[Any]]:
    """Fit a batch, pooled or by agent, weighted or not; return its rows and weights."""
    n = len(X)
    weights = trial.rng.uniform(0.5, 2.0, n) if trial.chance(0.3) else None
    if trial.chance(0.5):
        pca.partial_fit(X, sample_weight=weights)
    else:
        holder = trial.rng.integers(m, size=n)
        if first:
            holder[:m] = np.arange(m)
        parts = [X[holder == j] if (holder == j).any() else None for j in range(m)]
        shares = None if weights is None else [weights[holder == j] if (holder == j).any() else None for j in range(m)]
        pca.partial_fit_agents(parts, sample_weight=shares)
    return X, np.ones(n, dtype=np.longdouble) if weights is None else weights.astype(np.longdouble)
