"""Check tracking methods with float16 and float32 messages."""

from __future__ import annotations

from deepca import AcceleratedDeEPCA, Chebyshev, DecentralizedPCA, DeEPCA, FastMix, SimulatedNetwork, Tolerance, solve
from deepca._util.typing import Rounds
from deepca.consensus.mixers import Mixer, PositiveChebyshev
from deepca.errors import DataError, MixingError, NotFiniteError
from deepca.network.compression import Messages
from deepca.operators.linalg import random_orthonormal
from studies.adversary.claims import check_result
from studies.adversary.families.estimators import check_pca, random_rows
from studies.adversary.families.solving import mean_truth
from studies.adversary.problems import agent_matrices, sizes, spectrum, static_network
from studies.adversary.trial import Trial

__all__ = ["messages"]

_MAX_ITER = 250


def messages(trial: Trial) -> None:
    """Run ``solve`` or an estimator with float32 or float16 messages."""
    rng = trial.rng
    code: Messages = trial.one_of("float32", "float16")
    trial.note(code)
    d, k = sizes(trial)
    tol = 10.0 ** rng.uniform(-12, -4)
    if trial.chance(0.3):
        rows = random_rows(trial, d, k)
        n = len(rows.dense)
        if rows.extreme or n < 3 or rows.weights is not None:
            trial.may_refuse(DataError, NotFiniteError)
        k = min(k, n, d)
        pca = DecentralizedPCA(k, messages=code, tol=tol, max_iter=_MAX_ITER, topology="ring", n_agents=min(n, 4))
        trial.note(f"estimator n={n}", f"tol={tol:.1e}")
        pca.fit(rows.given, sample_weight=rows.weights)
        check_pca(trial, pca, rows.dense, rows.weights)
        return
    m = int(rng.integers(2, 8))
    stack, _ = agent_matrices(trial, spectrum(trial, d, k), m, size=10.0 ** trial.one_of(0, int(rng.integers(-40, 40))))
    place = static_network(trial, m)
    W0 = random_orthonormal(d, k, seed=int(rng.integers(10**6)))
    rounds: Rounds = trial.one_of("auto", int(rng.integers(2, 12)))
    network = SimulatedNetwork(place)
    trial.note(f"rounds={rounds}", f"tol={tol:.1e}")
    algorithm: DeEPCA | AcceleratedDeEPCA
    if trial.chance(0.5):
        trial.note("accelerated")
        algorithm = AcceleratedDeEPCA(stack, W0, network, PositiveChebyshev(rounds, code))
    else:
        trial.may_refuse(MixingError)
        mixer: Mixer = (FastMix if place.positive_semidefinite else Chebyshev)(rounds, code)
        algorithm = DeEPCA(stack, W0, network, mixer)
    check_result(trial, solve(algorithm, max_iter=_MAX_ITER, stop=Tolerance(tol)), mean_truth(stack), tol)
