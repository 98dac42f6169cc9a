"""Laws on every kind of network: the sum is tracked, and every agent ends with the pooled answer."""

from __future__ import annotations

import bz2
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits, load_svmlight_file

import deepca
from deepca import topology
from deepca.consensus.mixers import Gossip, Mixer
from deepca.consensus.pairwise import Pairwise
from deepca.operators import Operator, from_rows, split_rows
from deepca.operators.linalg import random_orthonormal
from deepca.solver.stopping import Tolerance
from deepca.topology import Topology, directed, time_varying
from tests.laws.strategies import quick, seeds
from tests.support.engines import everyone, network_of, of_all
from tests.support.helpers import worst_tangent
from tests.support.paths import SHARED
from tests.support.problems import spectrum, spectrum_problem

Array = npt.NDArray[np.float64]
Made = tuple[Topology, Mixer]
EPS = float(np.finfo(np.float64).eps)
FOLDER = SHARED

KINDS: dict[str, Callable[[int, int, Any], Made]] = {
    "directed ring": lambda m, seed, K: (directed.ring(m), Gossip(K)),
    "directed exponential": lambda m, seed, K: (directed.exponential(m), Gossip(K)),
    "random digraph": lambda m, seed, K: (directed.random_digraph(m, 0.5, seed=seed), Gossip(K)),
    "periodic": lambda m, seed, K: (time_varying.periodic([topology.ring(m), topology.star(m)]), Gossip(K)),
    "directed, periodic": lambda m, seed, K: (
        time_varying.periodic([directed.random_digraph(m, 0.5, seed=seed), directed.ring(m), topology.path(m)]),
        Gossip(K),
    ),
    "matchings": lambda m, seed, K: (
        time_varying.matchings(topology.erdos_renyi(m, 0.6, seed=seed), seed=seed),
        Gossip(K),
    ),
    "one peer": lambda m, seed, K: (time_varying.one_peer(m), Gossip(K)),
    "failing": lambda m, seed, K: (
        time_varying.failing(topology.erdos_renyi(m, 0.6, seed=seed), 0.4, seed=seed),
        Gossip(K),
    ),
    "pairwise": lambda m, seed, K: (topology.erdos_renyi(m, 0.6, seed=seed), Pairwise(K, seed=seed)),
}
"""Networks of m agents, drawn by a seed, with a mixer of K rounds."""


# ------------------------------------------------------------------------------------------------------ the tracked sum


@pytest.mark.parametrize("kind", KINDS)
@given(m=st.integers(2, 9), K=st.integers(1, 4), k=st.integers(1, 3), indefinite=st.booleans(), seed=seeds)
@quick(5)
def test_the_sum_of_S_is_the_sum_of_A_W_along_every_run(
    kind: str, m: int, K: int, k: int, indefinite: bool, seed: int
) -> None:
    """``Σ_j S_j^{t+1} = Σ_j A_j W_j^t`` holds for S itself, not for ratios, up to rounding that grows with t."""
    seed %= 10**6
    place, mixer = KINDS[kind](m, seed, K)
    stack = spectrum_problem(m, 8, spectrum(8, k), seed, heterogeneity=0.9, indefinite=indefinite)
    size = np.linalg.norm(stack, 2, axis=(-2, -1)).max()
    algorithm = deepca.DeEPCA(stack, random_orthonormal(8, k, seed=seed), network_of(place), mixer)
    state = algorithm.init()
    for _ in range(60):
        before, state = state, algorithm.step(state)
        exact = np.einsum("jab,jbk->ak", stack, of_all(before, m).W)
        found = of_all(state, m).S.sum(axis=0)
        assert np.abs(found - exact).max() <= 20.0 * EPS * size * m * state.t


@pytest.mark.parametrize("kind", KINDS)
def test_with_momentum_the_sum_of_T_is_the_sum_of_A_X(kind: str) -> None:
    place, mixer = KINDS[kind](10, 3, 6)
    stack = spectrum_problem(10, 12, spectrum(12, 3), 4, heterogeneity=0.9)
    algorithm = deepca.AcceleratedDeEPCA(stack, random_orthonormal(12, 3, seed=1), network_of(place), mixer)
    state = algorithm.init()
    for _ in range(80):
        before, state = state, algorithm.step(state)
        exact = np.einsum("jab,jbk->ak", stack, everyone(before.X, 10))
        assert np.abs(everyone(state.T, 10).sum(axis=0) - exact).max() <= 20.0 * EPS * 10 * state.t


def test_messages_lost_in_one_direction_violate_the_law() -> None:
    """The sums then differ by far more than rounding, so the tests above are sensitive."""
    place = time_varying.lossy(topology.ring(8), 0.1, seed=1)
    stack = spectrum_problem(8, 8, spectrum(8, 2), 0, heterogeneity=0.9)
    algorithm = deepca.DeEPCA(stack, random_orthonormal(8, 2, seed=0), network_of(place), Gossip(3))
    state = algorithm.init()
    for _ in range(60):
        before, state = state, algorithm.step(state)
    exact = np.einsum("jab,jbk->ak", stack, of_all(before, 8).W)
    assert np.abs(of_all(state, 8).S.sum(axis=0) - exact).max() > 1e-3


# ------------------------------------------------------------------------------------------------------------ real data


@lru_cache
def digits(m: int, k: int) -> tuple[Operator, Array]:
    """Return the digits, centred by the pooled mean, and scipy's answer."""
    X = load_digits().data
    X = X - X.mean(axis=0)
    return from_rows(split_rows(X, m)), scipy.linalg.eigh(X.T @ X / m)[1][:, ::-1][:, :k]


@lru_cache
def libsvm(name: str, m: int, rows: int, k: int) -> tuple[Operator, Array]:
    """Return the first rows, uncentred as in the paper, and scipy's answer."""
    with bz2.open(FOLDER / f"{name}.bz2") as file:
        X: Any = load_svmlight_file(file, n_features={"w8a": 300, "a9a": 123}[name])[0][:rows]
    pooled = np.asarray((X.T @ X).toarray()) / m
    return from_rows(split_rows(X, m)), scipy.linalg.eigh(pooled)[1][:, ::-1][:, :k]


def check_exact(algorithm: Any, A: Operator, U: Array, made: Made) -> None:
    place, mixer = made
    W0 = random_orthonormal(U.shape[0], U.shape[1], seed=0)
    result = deepca.solve(algorithm(A, W0, network_of(place), mixer), max_iter=3000, stop=Tolerance(1e-10))
    assert result.status.code == "converged"
    assert worst_tangent(U, result.W) <= 1e-10
    assert result.certificate is not None
    assert result.certificate.proves(1e-10)


@pytest.mark.simulator("engines are compared on smaller problems")
@pytest.mark.parametrize("algorithm", [deepca.DeEPCA, deepca.AcceleratedDeEPCA])
@pytest.mark.parametrize("kind", KINDS)
def test_digits_end_with_the_pooled_answer(kind: str, algorithm: Any) -> None:
    A, U = digits(8, 4)
    check_exact(algorithm, A, U, KINDS[kind](8, 1, "auto"))


@pytest.mark.simulator("engines are compared on smaller problems")
@pytest.mark.shared_data
@pytest.mark.skipif(not (FOLDER / "w8a.bz2").exists(), reason="the LIBSVM files are not in ../shared/data")
@pytest.mark.parametrize(("name", "rows"), [("w8a", 8000), ("a9a", 6000)])
@pytest.mark.parametrize("kind", KINDS)
def test_w8a_and_a9a_end_with_the_pooled_answer(kind: str, name: str, rows: int) -> None:
    """The first rows of each data set are split over 20 agents."""
    A, U = libsvm(name, 20, rows, 5)
    check_exact(deepca.AcceleratedDeEPCA, A, U, KINDS[kind](20, 2, "auto"))
