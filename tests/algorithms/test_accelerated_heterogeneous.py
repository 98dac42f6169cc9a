"""Check accelerated tracking with automatic rounds on indefinite, very heterogeneous ``A_j``, and its advice."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

import deepca
from deepca import AcceleratedDeEPCA, DeEPCA, Tolerance, topology
from deepca.algorithms import AcceleratedState
from deepca.consensus.mixers import PositiveChebyshev
from deepca.consensus.pacing import MatchedRounds
from deepca.operators.linalg import random_orthonormal
from deepca.solver.result import Result
from deepca.solver.stopping import Agreed
from deepca.topology import Topology
from tests.support.engines import network_of
from tests.support.helpers import worst_tangent
from tests.support.problems import orthogonal, pooled_answer, symmetric_noise
from tests.support.seeds import law_seeds
from tests.support.unlike_agents import solve_heterogeneous

Array = npt.NDArray[np.float64]
PAPER = topology.erdos_renyi(20, 0.4, seed=1)
RING = topology.ring(12)
STAR = topology.star(5)

# Seeds for which K once stayed too small, forever (TOO_FEW_ROUNDS) or for thousands of iterations (SLOW).
TOO_FEW_ROUNDS = [2, 33, 55, 104, 132, 136, 154, 156]
SLOW = [52, 87, 131]


def agents(place: Topology, eigenvalues: npt.ArrayLike, heterogeneity: float, seed: int = 0) -> Array:
    """Return ``A_j`` with that mean spectrum; heterogeneity is relative to its largest eigenvalue."""
    values = np.asarray(eigenvalues, dtype=np.float64)
    Q = orthogonal(values.size, seed)
    return np.asarray(
        (Q * values) @ Q.T + heterogeneity * values.max() * symmetric_noise(place.n_agents, values.size, seed)
    )


# ----------------------------------------------------------------------------------------------- rounds that suffice


@pytest.mark.simulator(reason="a suite of problems for one process; engines are compared elsewhere")
@pytest.mark.parametrize("seed", TOO_FEW_ROUNDS)
def test_problems_that_once_got_too_few_rounds_converge(seed: int) -> None:
    ended = solve_heterogeneous(seed, AcceleratedDeEPCA, max_iter=300)
    assert ended.converged, ended


@pytest.mark.simulator(reason="a suite of problems for one process; engines are compared elsewhere")
@pytest.mark.parametrize("seed", SLOW)
def test_rounds_are_at_most_three_times_those_of_deepca(seed: int) -> None:
    """A former version needed 4 to 21 times as many."""
    plain, accelerated = solve_heterogeneous(seed, DeEPCA), solve_heterogeneous(seed, AcceleratedDeEPCA)
    assert plain.converged, plain
    assert accelerated.converged, accelerated
    assert accelerated.rounds <= 3.0 * plain.rounds


@pytest.mark.simulator(reason="a suite of problems for one process; engines are compared elsewhere")
@pytest.mark.parametrize("seed", law_seeds(16, start=1000))
def test_the_accelerated_method_converges_wherever_deepca_does(seed: int) -> None:
    accelerated = solve_heterogeneous(seed, AcceleratedDeEPCA)
    assert not accelerated.wrong, accelerated
    if not accelerated.converged:
        plain = solve_heterogeneous(seed, DeEPCA)
        assert not plain.converged, (plain, accelerated)


def test_a_mean_of_rank_below_k_with_indefinite_agents_is_reported() -> None:
    """λ_4 = λ_5 = 0 cannot be distinguished from small values; the columns that carry the data are still right."""
    place = topology.star(8)
    stack = agents(place, np.r_[2.0, 1.5, 1.0, np.zeros(7)], 1.0, 5)
    result = run(stack, 4, place, max_iter=1500, tol=1e-9)
    assert result.status.code in ("not_unique", "below_rounding"), result.status
    assert worst_tangent(pooled_answer(stack, 3)[1], result.components[..., :3]) <= 1e-9


def entry(t: int, change: float, disagreement: float, magnified: float = 1.0, h: float = 100.0) -> Agreed:
    return Agreed(
        t=t, change=change, disagreement=disagreement, rank=2, floor=1e-15, magnified=magnified, heterogeneity=h
    )


@pytest.mark.parametrize(
    ("change", "disagreement", "magnified"),
    [(0.9, 1e-3, 1.0), (1e-2, 1e-5, 1e3)],
    ids=["the subspace never settles", "small eigenvalues drown in the disagreement"],
)
def test_rounds_are_added_while_the_subspace_does_not_settle(
    change: float, disagreement: float, magnified: float
) -> None:
    """K may oscillate with h; a change of K must not hide that the subspace does not settle."""
    pace = MatchedRounds(PositiveChebyshev(), RING)
    rounds = []
    for t in range(1, 60):
        pace.observe(entry(t, change, disagreement, magnified, 100.0 * (1.0 + 5.0 * (t // 3 % 2))), t)
        rounds.append(pace.K)
    assert rounds[-1] >= 1.8 * max(rounds[:8])


def test_rounds_stay_if_a_small_gap_explains_slow_convergence() -> None:
    pace = MatchedRounds(PositiveChebyshev(), RING)
    for t in range(1, 6):
        pace.observe(entry(t, 1e-2, 1e-6), t)
    settled = pace.K
    for t in range(6, 80):
        pace.observe(entry(t, 1e-2 * 0.999**t, 1e-6 * 0.999**t), t, expected=1e-3)
    assert settled == pace.K


# ------------------------------------------------------------------------------------------------ resuming and advice


def run(
    stack: Array,
    k: int,
    place: Topology,
    *,
    max_iter: int,
    tol: float = 1e-10,
    start: AcceleratedState | None = None,
) -> Result[AcceleratedState]:
    W0 = random_orthonormal(stack.shape[-1], k, seed=1)
    algorithm = AcceleratedDeEPCA(stack, W0, network_of(place))
    return deepca.solve(algorithm, max_iter=max_iter, stop=Tolerance(tol), start=start)


def test_a_resumed_run_keeps_its_rounds() -> None:
    """The state does not store why K was raised, so K must not fall to what h alone requires."""
    pace = MatchedRounds(PositiveChebyshev(), RING, K=30)
    for t in range(61, 75):
        pace.observe(entry(t, 1e-6 * 0.6 ** (t - 60), 1e-8 * 0.6 ** (t - 60), h=1.0), t, expected=0.5)
    assert pace.K == 30


@dataclass(frozen=True)
class Cut:
    """A run that is cut off after ``made`` iterations."""

    eigenvalues: Array
    k: int
    heterogeneity: float
    made: int
    place: Topology = PAPER


CUTS: dict[str, Cut] = {
    "flat after k, gap 1e-3": Cut(np.r_[2.0, 1.0, np.full(8, 1.0 - 1e-3)], 2, 0.3, 150, STAR),
    "falling after k, gap 1e-4": Cut(np.r_[2.0, 1.5, 1.0, np.linspace(1.0 - 1e-4, 0.02, 27)], 3, 0.3, 60),
    "very heterogeneous agents": Cut(np.r_[2.0, 1.5, 1.0, np.linspace(0.99, 0.02, 27)], 3, 5.0, 60),
    "on a ring": Cut(np.r_[1.0, (1.0 - 1e-3) * 0.9 ** np.arange(29.0)], 1, 1.0, 25, RING),
}


@pytest.mark.parametrize("name", CUTS)
def test_the_advice_of_a_run_cut_off_is_within_a_factor_of_three(name: str) -> None:
    """Three times the advised iterations suffice, and a third of them do not."""
    case = CUTS[name]
    stack = agents(case.place, case.eigenvalues, case.heterogeneity)
    first = run(stack, case.k, case.place, max_iter=case.made)
    assert first.status.code == "out_of_iterations", first.status
    more = first.status.more
    assert more is not None
    assert f"{more:,}" in first.status.advice
    enough = run(stack, case.k, case.place, max_iter=3 * more, start=first.state)
    assert enough.status.ok, (more, enough.status)
    assert worst_tangent(pooled_answer(stack, case.k)[1], enough.W) <= 1e-8
    if more > 10:
        few = run(stack, case.k, case.place, max_iter=more // 3, start=first.state)
        assert not few.status.ok, (more, few.status)
