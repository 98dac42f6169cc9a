"""Generate random spectra, matrices and networks that are deliberately hard."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from deepca import topology
from deepca.topology import Rule, Topology, time_varying
from studies.adversary.trial import Trial

__all__ = ["SIZES", "agent_matrices", "orthogonal", "random_network", "sizes", "spectrum", "static_network"]

Array = npt.NDArray[np.float64]

SIZES = (-250, 270)
"""Range of decimal exponents by which matrices are scaled; eigenvalues 1e±30 times as large stay in range."""
SPECTRA = ("flat", "decay", "steep", "clustered", "equal", "deficient", "spike")


def spectrum(trial: Trial, d: int, k: int) -> Array:
    """Draw d eigenvalues in descending order, the largest equal to 1."""
    rng, kind = trial.rng, trial.one_of(*SPECTRA)
    values: npt.NDArray[Any]
    if kind == "flat":
        values = rng.uniform(1.0, 1.0 + 10.0 ** rng.uniform(-3, 0), d)
    elif kind == "decay":
        values = 10.0 ** (-rng.uniform(0.05, 0.6) * np.arange(d))
    elif kind == "steep":
        values = 10.0 ** rng.uniform(-14, 0, d)
    elif kind == "clustered":
        centres = 10.0 ** rng.uniform(-4, 0, 3)
        values = centres[rng.integers(3, size=d)] * (1.0 + 10.0 ** rng.uniform(-15, -2) * rng.random(d))
    elif kind == "equal":
        values = np.sort(rng.random(d))[::-1]
        values[min(k, d - 1)] = values[k - 1]
    elif kind == "deficient":
        values = np.sort(rng.random(d))[::-1]
        values[int(rng.integers(1, d + 1)) :] = 0.0
    else:
        values = np.concatenate([[10.0 ** rng.uniform(2, 14)], rng.random(d - 1)])
    values = np.sort(values)[::-1]
    trial.note(kind)
    return np.asarray(values / values[0], dtype=np.float64)


def sizes(trial: Trial) -> tuple[int, int]:
    """Draw d and k, mostly small, including k = 1 and k = d."""
    d = int(trial.rng.integers(2, 12)) if trial.chance(0.85) else int(trial.rng.integers(12, 41))
    k = trial.one_of(1, d, *(int(k) for k in trial.rng.integers(1, min(d, 6) + 1, 4)))
    trial.note(f"d={d}", f"k={k}")
    return d, k


def orthogonal(rng: np.random.Generator, n: int, k: int | None = None) -> Array:
    """Draw a random matrix ``(n, k)`` with orthonormal columns; square by default."""
    return np.asarray(np.linalg.qr(rng.standard_normal((n, n if k is None else k)))[0], dtype=np.float64)


def agent_matrices(trial: Trial, values: Array, m: int, *, size: float = 1.0) -> tuple[Array, float]:
    """Draw symmetric matrices ``(m, d, d)`` whose mean has eigenvalues ``size * values``.

    Also return how strongly the agents' matrices differ, relative to the largest eigenvalue of the mean.
    """
    rng, d = trial.rng, values.size
    Q = orthogonal(rng, d)
    A = (Q * values) @ Q.T
    heterogeneity = trial.one_of(0.0, 0.5, 1.0, 10.0 ** rng.uniform(0, 4))
    E = rng.standard_normal((m, d, d))
    E = E + np.swapaxes(E, 1, 2)
    E -= E.mean(axis=0)
    largest = np.abs(np.linalg.eigvalsh(E)).max()
    stack = A + heterogeneity * (E / largest if largest > 0.0 else E)
    trial.note(f"m={m}", f"heterogeneity={heterogeneity:.2g}")
    return size * (stack + np.swapaxes(stack, 1, 2)) / 2.0, heterogeneity


def static_network(trial: Trial, m: int) -> Topology:
    """Draw a connected, undirected, static graph."""
    names = [
        "ring",
        "path",
        "star",
        "complete",
        "erdos-renyi:0.6",
        "random-regular",
        *(["grid"] if m in (4, 6, 8) else []),
    ]
    name = trial.one_of(*names)
    rule: Rule = trial.one_of("paper", "metropolis") if m > 1 else "paper"
    trial.note(f"{name}:{m}")
    return topology.from_name(name, m, seed=int(trial.rng.integers(1000)), rule=rule)


def random_network(trial: Trial, m: int) -> tuple[Topology, str]:
    """Draw a network of any kind and return it with its kind: static, directed, changing or lossy."""
    kind = trial.one_of("static", "directed", "changing", "lossy") if m > 2 else "static"
    if kind == "directed":
        made = _directed(trial, m)
    elif kind == "changing":
        made = _changing(trial, m)
    elif kind == "lossy":
        until = trial.one_of(None, int(trial.rng.integers(1, 400)))
        share, seed = 10.0 ** trial.rng.uniform(-3, -0.7), int(trial.rng.integers(1000))
        made = time_varying.lossy(static_network(trial, m), share, seed=seed, until=until)
    else:
        made = static_network(trial, m)
    trial.note(made.name)
    return made, kind


def _directed(trial: Trial, m: int) -> Topology:
    name = trial.one_of("directed-ring", "directed-exponential", "random-digraph:0.5")
    return topology.from_name(name, m, seed=int(trial.rng.integers(1000)))


def _changing(trial: Trial, m: int) -> Topology:
    base, seed = static_network(trial, m), int(trial.rng.integers(1000))
    kind = trial.one_of("one-peer", "matchings", "failing", "periodic")
    if kind == "one-peer":
        return time_varying.one_peer(m)
    if kind == "matchings":
        return time_varying.matchings(base, seed=seed)
    if kind == "failing":
        return time_varying.failing(base, float(trial.rng.uniform(0.05, 0.4)), seed=seed)
    return time_varying.periodic([base, topology.ring(m)])
