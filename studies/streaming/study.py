"""Follow one stream by tracking, by ``partial_fit`` and by recomputation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import scipy.linalg

from deepca import topology as graphs
from deepca._util.typing import Array
from deepca.algorithms.deepca import DeEPCA
from deepca.consensus.mixers import FastMix
from deepca.decomposition.streaming import discounted_covariances, follow
from deepca.estimators.pca import DecentralizedPCA
from deepca.network.simulated import SimulatedNetwork
from deepca.operators import from_matrices
from deepca.operators.linalg import random_orthonormal
from studies.streaming.drift import Drift

__all__ = ["CALLS", "ROUNDS", "STEPS", "Calls", "Followed", "Results", "run"]

STEPS = (1, 3, 10)  # iterations of tracking per batch
ROUNDS = 5  # rounds per iteration of tracking
_LINK = 0.5  # probability of a link between two agents
CALLS = tuple((algorithm, tol) for algorithm in ("krylov", "accelerated", "deepca") for tol in (1e-4, 1e-10))
"""Algorithms and tolerances for which warm and cold starts are compared."""
Progress = Callable[[float, float], None]


@dataclass(frozen=True)
class Followed:
    """Accuracy and cost of one method.

    Parameters
    ----------
    truth, exact : ndarray of shape (batches,)
        Sine of the worst agent's angle to the true directions, and to the exact answer for the weighted rows.
    lag : float
        Mean number of batches behind the true directions during the steady rotation.
    rounds : float
        Mean number of rounds per batch, including control rounds.
    """

    truth: Array
    exact: Array
    lag: float
    rounds: float


@dataclass(frozen=True)
class Calls:
    """Mean cost of ``partial_fit`` during the rotation, and of ``fit`` on the same rows.

    Parameters
    ----------
    warm, cold : float
        Iterations of ``partial_fit`` and of ``fit``.
    warm_rounds, cold_rounds : float
        Rounds of ``partial_fit`` and of ``fit``, including the certificate.
    """

    warm: float
    cold: float
    warm_rounds: float
    cold_rounds: float


@dataclass(frozen=True)
class Results:
    """Results for one stream.

    Parameters
    ----------
    drift : Drift
        The stream.
    recomputed : Followed
        Exact answer by scipy.
    partial_fit, unforgetting : Followed
        ``partial_fit`` with and without forgetting.
    tracked : dict
        Tracking, by iterations per batch.
    calls : dict
        Cost of warm and cold starts, by algorithm and tolerance.
    """

    drift: Drift
    recomputed: Followed
    partial_fit: Followed
    unforgetting: Followed
    tracked: dict[int, Followed]
    calls: dict[tuple[str, float], Calls]


def run(drift: Drift, progress: Progress | None = None) -> Results:
    """Run all methods on one stream."""
    report_progress = progress or (lambda _done, _total: None)
    total = 4.0 + len(CALLS)
    batches = [drift.batch(t) for t in range(drift.batches)]
    means = [A.mean() for A in discounted_covariances(batches, drift.forgetting)]
    exact = [scipy.linalg.eigh(mean)[1][:, ::-1][:, : drift.k] for mean in means]
    report_progress(1.0, total)
    recomputed = _judged(drift, exact, ((U[None], 0) for U in exact))
    tracked = {steps: _judged(drift, exact, _tracked(drift, batches, steps)) for steps in STEPS}
    report_progress(2.0, total)
    partial_fit = _judged(drift, exact, _refitted(drift, batches, drift.forgetting))
    report_progress(3.0, total)
    unforgetting = _judged(drift, exact, _refitted(drift, batches, 1.0))
    calls = {}
    for i, (algorithm, tol) in enumerate(CALLS):
        report_progress(4.0 + i, total)
        calls[algorithm, tol] = _calls(drift, batches, algorithm, tol)
    report_progress(total, total)
    return Results(drift, recomputed, partial_fit, unforgetting, tracked, calls)


def _judged(drift: Drift, exact: list[Array], found: Iterator[tuple[Array, int]]) -> Followed:
    """Measure a method from the agents' subspaces ``(m, d, k)`` and the rounds of every batch."""
    to_truth, to_exact, lags, rounds = [], [], [], []
    for t, (W, sent) in enumerate(found):
        to_truth.append(_sine(drift.axes(t)[:, : drift.k], W))
        to_exact.append(_sine(exact[t], W))
        rounds.append(sent)
        if t in drift.steady:
            lags.append(np.mean([drift.lag(t, own) for own in W]))
    return Followed(np.array(to_truth), np.array(to_exact), float(np.mean(lags)), float(np.mean(rounds[1:])))


def _tracked(drift: Drift, batches: list[list[Array]], steps: int) -> Iterator[tuple[Array, int]]:
    network = SimulatedNetwork(graphs.erdos_renyi(drift.agents, _LINK, seed=drift.seed))
    nothing = from_matrices(np.zeros((drift.agents, drift.d, drift.d)))
    W0 = random_orthonormal(drift.d, drift.k, seed=drift.seed)
    algorithm = DeEPCA(nothing, W0, network, FastMix(rounds=ROUNDS))
    for result in follow(algorithm, discounted_covariances(batches, drift.forgetting), steps=steps):
        yield result.W, result.traffic.rounds + result.traffic.control_rounds


def _refitted(drift: Drift, batches: list[list[Array]], forgetting: float) -> Iterator[tuple[Array, int]]:
    pca = _estimator(drift, "auto", 1e-10, forgetting)
    for rows in batches:
        pca.partial_fit_agents(rows)
        yield pca.components_.T[None], _rounds(pca)


def _calls(drift: Drift, batches: list[list[Array]], algorithm: str, tol: float) -> Calls:
    """Compare ``partial_fit`` on some batches of the rotation with a fit of all rows so far."""
    last = drift.steady[: max(len(drift.steady) // 4, 3)]
    warm, found = _estimator(drift, algorithm, tol, drift.forgetting), []
    for t in range(last[0] - 1, last[-1] + 1):
        rows = [np.concatenate(own) for own in zip(*batches[: t + 1], strict=True)]
        weights = [np.repeat(drift.forgetting ** np.arange(t, -1.0, -1.0), drift.rows)] * drift.agents
        cold = _estimator(drift, algorithm, tol, drift.forgetting).fit_agents(rows, sample_weight=weights)
        if t < last[0]:
            warm = cold
            continue
        warm.partial_fit_agents(batches[t])
        found.append([warm.n_iter_, cold.n_iter_, _rounds(warm), _rounds(cold)])
    return Calls(*np.mean(found, axis=0).tolist())


def _estimator(drift: Drift, algorithm: str, tol: float, forgetting: float) -> DecentralizedPCA:
    return DecentralizedPCA(
        drift.k,
        center=False,
        topology=f"erdos-renyi:{_LINK}",
        n_agents=drift.agents,
        algorithm=algorithm,
        tol=tol,
        forgetting=forgetting,
        random_state=drift.seed,
    )


def _rounds(pca: DecentralizedPCA) -> int:
    return pca.traffic_.rounds + pca.traffic_.control_rounds


def _sine(U: Array, W: Array) -> float:
    """Return the sine of the largest angle between U and the subspace of any agent."""
    return float(np.linalg.norm(W - U @ (U.T @ W), 2, axis=(-2, -1)).max())
