"""Check averages, totals, means and compressed messages against exact rational arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from deepca import SimulatedNetwork
from deepca.consensus.averaging import common_average
from deepca.consensus.centring import agreed_mean
from deepca.consensus.exact import exact_average
from deepca.consensus.mixers import default_mixer
from deepca.data.moments import moments
from deepca.data.sources import ArraySource
from deepca.data.statistics import agree_on_statistics
from deepca.errors import DataError
from deepca.network.compression import Code, decode, encode
from deepca.network.trees import SpanningTree
from deepca.topology import directed, time_varying
from studies.adversary.problems import Array, static_network
from studies.adversary.reference import exact_mean
from studies.adversary.trial import Trial

__all__ = ["averages"]

_EPS = float(np.finfo(np.float64).eps)


def averages(trial: Trial) -> None:
    """Check one of the averaging primitives on which all algorithms rest."""
    kinds: tuple[Callable[[Trial], None], ...] = (
        _exact,
        _common,
        _tree,
        _ratio,
        _totals,
        _totals,
        _compression,
        _compressed_round,
    )
    chosen = trial.one_of(*kinds)
    trial.note(chosen.__name__.strip("_"))
    chosen(trial)
    trial.status, trial.proven = "exact", not trial.violations


def _numbers(trial: Trial, m: int, n: int) -> Array:
    """Draw numbers of any magnitude and sign, some of which cancel."""
    x = trial.rng.standard_normal((m, n)) * 10.0 ** trial.rng.uniform(-12, 12, (m, n) if trial.chance(0.5) else n)
    if m > 1 and trial.chance(0.3):
        x[1] = -x[0]
    return x * 10.0 ** trial.one_of(0, int(trial.rng.integers(-200, 200)))


def _check_means(trial: Trial, what: str, found: Array, x: Array, roundings: float) -> None:
    """Check that each mean is accurate to ``roundings`` times eps times the mean of the absolute values."""
    for value, mean, column in zip(found, exact_mean(x), np.abs(x).T, strict=True):
        size = Fraction(math.fsum(column)) / len(x)
        off = float(abs(Fraction(float(value)) - mean) / size) if size else float(abs(Fraction(float(value)) - mean))
        trial.claim(what, off, roundings * _EPS)


def _exact(trial: Trial) -> None:
    m = int(trial.rng.integers(1, 17))
    x = _numbers(trial, m, 5)
    _check_means(trial, "exact average", exact_average(SimulatedNetwork(static_network(trial, m)), x), x, 2.0 + m)


def _common(trial: Trial) -> None:
    """Check averages on static networks, and on networks without a permanent spanning tree."""
    m = int(trial.rng.integers(3, 10))
    seed = int(trial.rng.integers(1000))
    base = static_network(trial, m)
    place = trial.one_of(
        base,
        directed.random_digraph(m, 0.6, seed=seed),
        time_varying.failing(base, 0.2, seed=seed),
        time_varying.matchings(base),
    )
    trial.note(place.name)
    x = trial.rng.standard_normal((m, 4)) * 10.0 ** trial.rng.uniform(-6, 6)
    found = common_average(SimulatedNetwork(place), x)
    for value, mean in zip(found, exact_mean(x), strict=True):
        trial.claim("common average", float(abs(Fraction(float(value)) - mean)) / float(np.abs(x).max()), 1e-12)


def _tree(trial: Trial) -> None:
    m = int(trial.rng.integers(2, 12))
    x = _numbers(trial, m, 4)
    found = SpanningTree.grow(SimulatedNetwork(static_network(trial, m))).sum(x)
    found = found.reshape(-1, 4)[0]
    _check_means(trial, "tree sum", found / m, x, 4.0 + m)


def _ratio(trial: Trial) -> None:
    m, d = int(trial.rng.integers(1, 9)), 3
    counts = trial.rng.integers(1, 10**6, m).astype(np.float64)
    sums = trial.rng.standard_normal((m, d)) * counts[:, None]
    network = SimulatedNetwork(static_network(trial, m))
    found = agreed_mean(network, default_mixer(network.topology), sums, counts)
    total = sum(Fraction(float(c)) for c in counts)
    for j in range(m):
        for value, column in zip(found[j], sums.T, strict=True):
            mean = sum((Fraction(float(v)) for v in column), Fraction(0)) / total
            size = Fraction(math.fsum(np.abs(column))) / total
            trial.claim("agreed mean", float(abs(Fraction(float(value)) - mean) / size), 1e-12)


def _totals(trial: Trial) -> None:
    """Check count, weight, mean and sum of squares of rows far from zero, pooled over agents."""
    rng = trial.rng
    m, d, decades = int(rng.integers(1, 7)), int(rng.integers(1, 5)), rng.uniform(0, 15)
    parts = [
        rng.standard_normal((int(rng.integers(1, 12)), d)) + 10.0**decades * trial.one_of(1.0, rng.standard_normal(d))
        for _ in range(m)
    ]
    weights = [rng.uniform(0.1, 2.0, len(part)) if trial.chance(0.5) else np.ones(len(part)) for part in parts]
    trial.note(f"offset=1e{decades:.1f}")
    trial.may_refuse(DataError)
    local = [moments(ArraySource(part, "agent"), w) for part, w in zip(parts, weights, strict=True)]
    totals = agree_on_statistics(SimulatedNetwork(static_network(trial, m)), local)
    X, w = np.concatenate(parts), [Fraction(float(v)) for v in np.concatenate(weights)]
    trial.fact("wrong number of rows", totals.n_rows == len(X))
    trial.claim("weight", float(abs(Fraction(totals.weight) / sum(w) - 1)), 16.0 * _EPS)
    for c in range(d):
        column = [Fraction(float(v)) for v in X[:, c]]
        mean = sum((a * b for a, b in zip(w, column, strict=True)), Fraction(0)) / sum(w)
        squares = sum((a * (b - mean) ** 2 for a, b in zip(w, column, strict=True)), Fraction(0))
        two_parts = Fraction(float(totals.reference[c])) + Fraction(float(totals.shift[c]))
        spread = Fraction(math.sqrt(float(squares / sum(w))) + 10.0**decades * _EPS**2)
        trial.claim(
            "mean in two parts, in standard deviations", float(abs(two_parts - mean) / spread) if spread else 0.0, 1e-12
        )
        if squares > Fraction(10.0 ** (2 * decades)) * Fraction(_EPS) ** 2:
            trial.claim("squares", float(abs(Fraction(float(totals.squares[c])) / squares - 1)), 1e-11)


def _compression(trial: Trial) -> None:
    """Check that compression changes a message by at most half a unit in the last place of its column maximum."""
    rng = trial.rng
    code: Code = trial.one_of("float32", "float16")
    x = rng.standard_normal((3, int(rng.integers(1, 20)), 4)) * 10.0 ** rng.uniform(-200, 200, 4)
    trial.note(code)
    found = decode(encode(x, code, 1), x.shape)
    peak = np.abs(x).max(axis=1, keepdims=True)
    unit = 2.0**-24 if code == "float32" else 2.0**-11
    trial.claim("compressed message", float((np.abs(found - x) / peak).max()), unit * (1.0 + 1e-9))


def _compressed_round(trial: Trial) -> None:
    """Check that compressed rounds preserve the mean despite rounding."""
    m = int(trial.rng.integers(2, 9))
    network = SimulatedNetwork(static_network(trial, m))
    code: Code = trial.one_of("float32", "float16")
    copies = None
    x = trial.rng.standard_normal((m, 6, 2)) * 10.0 ** trial.rng.uniform(-5, 5)
    before, peak = exact_mean(x.reshape(m, -1)), float(np.abs(x).max())
    for _ in range(5):
        x, copies = network.gossip_compressed(x, copies, code)
    for mean, after in zip(before, exact_mean(x.reshape(m, -1)), strict=True):
        trial.claim("mean after compressed rounds", float(abs(after - mean)) / peak, 5.0 * (m + 4) * _EPS)
