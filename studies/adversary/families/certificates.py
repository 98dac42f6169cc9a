"""Check ``certify`` on deliberately wrong answers."""

from __future__ import annotations

import math

import numpy as np

from deepca import SimulatedNetwork, certify
from deepca.operators.linalg import random_orthonormal
from studies.adversary.claims import check_certificate
from studies.adversary.families.solving import mean_truth
from studies.adversary.problems import SIZES, Array, agent_matrices, random_network, sizes, spectrum
from studies.adversary.reference import Spectrum, tangent
from studies.adversary.trial import Trial

__all__ = ["certificates"]


def certificates(trial: Trial) -> None:
    """Certify a subspace that is slightly or completely wrong, and check the certificate."""
    rng = trial.rng
    d, k = sizes(trial)
    k = min(k, d - 1)
    m = int(rng.integers(1, 8))
    size = 10.0 ** trial.one_of(0, 0, int(rng.integers(*SIZES)))
    stack, _ = agent_matrices(trial, spectrum(trial, d, k), m, size=size)
    place, kind = random_network(trial, m)
    truth, tol = mean_truth(stack), 10.0 ** rng.uniform(-13, -3)
    X = _wrong(trial, truth, k)
    trial.note(f"tol={tol:.1e}")
    W = np.broadcast_to(X, (m, *X.shape))
    certificate, X = certify(stack, np.array(W), SimulatedNetwork(place), tol=tol)
    trial.proven = certificate.proves(tol)
    trial.status = "proven" if trial.proven else "not proven"
    if not certificate.averaging_ok:
        trial.status = "averaging failed"
        trial.fact("averaging failed, but no message was lost", kind == "lossy")
    check_certificate(trial, certificate, X, truth, W=np.array(W))
    true = tangent(truth.top(k), truth.vectors[:, k:], X)
    if trial.proven:
        trial.claim("proven", true, tol, truth.angle_error_bound(k))
    if certificate.larger_outside:
        trial.fact(
            "wrong cause: a larger eigenvalue was reported as missed, but none was",
            true > 0.0 and not math.isclose(true, 0.0),
        )


def _wrong(trial: Trial, truth: Spectrum, k: int) -> Array:
    """Draw an orthonormal ``(d, k)`` basis of a random kind and note the kind.

    A ``headless`` basis lacks the first eigenvector; a ``swapped`` one has eigenvector k + 1 in place of eigenvector k.
    """
    rng, kind = trial.rng, trial.one_of("right", "perturbed", "perturbed", "invariant", "headless", "swapped", "random")
    d, U = truth.d, truth.vectors.astype(np.float64)
    trial.note(kind)
    if kind == "random":
        return random_orthonormal(d, k, seed=int(rng.integers(10**6)))
    if kind == "invariant":
        return U[:, np.sort(rng.permutation(d)[:k])]
    if kind == "headless":
        return U[:, 1 : k + 1]
    if kind == "swapped":
        return U[:, [*range(k - 1), k]]
    X = U[:, :k]
    if kind == "perturbed":
        X = X + 10.0 ** rng.uniform(-12, -3) * rng.standard_normal(X.shape)
    return np.asarray(np.linalg.qr(X)[0])
