"""Check ``solve`` with every algorithm and mixer on heterogeneous, possibly indefinite symmetric matrices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from deepca import (
    CPCA,
    AcceleratedDeEPCA,
    BlockKrylov,
    Chebyshev,
    CovarianceAveraging,
    DeEPCA,
    DePCA,
    FastMix,
    Gossip,
    PositiveChebyshev,
    QRSignAdjust,
    SimulatedNetwork,
    Tolerance,
    run_agents,
    solve,
)
from deepca._util.typing import Rounds
from deepca.errors import MixingError
from deepca.operators.linalg import random_orthonormal
from deepca.topology import Topology
from studies.adversary.claims import check_result
from studies.adversary.problems import SIZES, Array, agent_matrices, sizes, spectrum, static_network
from studies.adversary.reference import LOSS_FACTOR, Spectrum, of_matrix
from studies.adversary.trial import Trial

__all__ = ["mean_truth", "solving"]

_MAX_ITER = 400
_UNSOLVED = ("diverging", "disagreement", "out_of_iterations")


def solving(trial: Trial) -> None:
    """Run one algorithm on a static network."""
    rng = trial.rng
    d, k = sizes(trial)
    m = int(rng.integers(1, 8))
    size = 10.0 ** trial.one_of(0, 0, int(rng.integers(*SIZES)))
    stack, heterogeneity = agent_matrices(trial, spectrum(trial, d, k), m, size=size)
    place, W0 = static_network(trial, m), random_orthonormal(d, k, seed=int(rng.integers(10**6)))
    tol = 10.0 ** rng.uniform(-13, -4)
    name = trial.one_of("krylov", "krylov", "covariance", "deepca", "deepca", "accelerated", "depca", "cpca")
    trial.note(name, f"tol={tol:.1e}")
    truth = mean_truth(stack)
    if name == "cpca":
        stack = stack.mean(axis=0)
        truth = mean_truth(stack[None])
    algorithm = _algorithm(trial, name, stack, W0, place)
    stop = None if trial.chance(0.1) else Tolerance(tol)
    result = solve(algorithm, max_iter=_MAX_ITER if stop else 60, stop=stop)
    check_result(trial, result, truth, tol)
    if name == "accelerated" and stop and algorithm.mix.auto and result.status.code in _UNSOLVED and heterogeneity:
        mixer = FastMix() if place.positive_semidefinite else Chebyshev()
        plain = solve(DeEPCA(stack, W0, SimulatedNetwork(place), mixer), max_iter=_MAX_ITER, stop=Tolerance(tol))
        trial.fact(
            f"accelerated ended with {result.status.code}, but DeEPCA converged in {plain.iterations} iterations",
            plain.status.code != "converged",
        )
    if trial.chance(0.05) and m <= 4 and name in ("krylov", "deepca"):
        _check_threads(trial, name, stack, W0, place, tol)


def mean_truth(stack: Array) -> Spectrum:
    """Compute the spectrum of the mean of matrices ``(m, d, d)``, with error bounds that allow for cancellation."""
    mean = stack.astype(np.longdouble).sum(axis=0) / len(stack)
    size = float(np.abs(stack).max()) * len(mean)
    truth = of_matrix(mean, error_bound=2.0 * float(np.finfo(np.longdouble).eps) * size)
    return replace(truth, rounding=LOSS_FACTOR * float(np.finfo(np.float64).eps) * size)


def _algorithm(trial: Trial, name: str, A: Array, W0: Array, place: Topology) -> Any:
    network = SimulatedNetwork(place)
    if name == "cpca":
        return CPCA(A, W0)
    if name == "krylov":
        return BlockKrylov(A, W0, network)
    if name == "covariance":
        return CovarianceAveraging(A, W0, network)
    rounds: Rounds = trial.one_of("auto", "auto", int(trial.rng.integers(1, 12)))
    positive = place.positive_semidefinite
    if name == "accelerated":
        mixer: Any = PositiveChebyshev(rounds)
    else:
        mixer = trial.one_of(*((FastMix,) if positive else ()), Chebyshev, Gossip)(rounds)
    trial.note(f"{type(mixer).__name__}({rounds})")
    if name == "accelerated":
        return AcceleratedDeEPCA(A, W0, network, mixer)
    trial.may_refuse(MixingError)
    orthonormalise = QRSignAdjust(W0) if trial.chance(0.2) else None
    return (DeEPCA if name == "deepca" else DePCA)(A, W0, network, mixer, orthonormalise)


def _check_threads(trial: Trial, name: str, A: Array, W0: Array, place: Topology, tol: float) -> None:
    """Check the same problem with one thread per agent, each with its own matrix."""
    trial.note("threads")

    def work(network: Any) -> Any:
        own = A[int(network.local)]
        algorithm: Any = BlockKrylov(own, W0, network) if name == "krylov" else DeEPCA(own, W0, network)
        return solve(algorithm, max_iter=_MAX_ITER, stop=Tolerance(tol))

    results = run_agents(place, work, timeout=20.0)
    trial.fact("components differ between agents", len({r.certificate.digest for r in results}) == 1)
    for result in results:
        check_result(trial, result, mean_truth(A), tol)
