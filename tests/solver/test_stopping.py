"""Test the numbers on which agents agree, and the rule that decides from them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st

import deepca
from deepca import DeEPCA, FastMix, Tolerance
from deepca._util.typing import Array
from deepca.algorithms import State
from deepca.errors import ParameterError
from deepca.network import SimulatedNetwork
from deepca.solver.stopping import Agreed, agreed_from, at_floor, error_estimate, measure
from tests.support.engines import everyone, mine, network_of, over_mpi, run_separately
from tests.support.errors import raises
from tests.support.helpers import Recorder
from tests.support.problems import spectrum, spectrum_problem

FLOOR = 1e-15


def entry(t: int, change: float, disagreement: float = 0.0, rank: int = 2) -> Agreed:
    return Agreed(t=t, change=change, disagreement=disagreement, rank=rank, floor=FLOOR)


def geometric(r: float, n: int, *, c: float = 1.0, disagreement: float = 0.0) -> list[Agreed]:
    return [entry(t, c * r**t, disagreement) for t in range(1, n + 1)]


def orthonormal(d: int, k: int, seed: int) -> Array:
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((d, k)))[0]


# --------------------------------------------------------------------------------------------- error estimates


@given(r=st.floats(0.05, 0.999), n=st.integers(2, 40), c=st.floats(1e-8, 1.0))
def test_the_error_estimate_is_the_remainder_of_a_geometric_series(r: float, n: int, c: float) -> None:
    """If changes shrink by r, the sum of all further changes is the distance to the limit."""
    history = geometric(r, n, c=c)
    if history[-1].change <= FLOOR:
        return
    rest = math.fsum(c * r ** (n + i) for i in range(1, 20_000))
    assert error_estimate(history) == pytest.approx(rest, rel=1e-6)


@given(r=st.floats(0.3, 0.98), n=st.integers(9, 30), missing=st.integers(2, 30))
def test_the_rate_accounts_for_iterations_missing_from_the_history(r: float, n: int, missing: int) -> None:
    """The last entry may be several iterations after the previous one; the rate is still per iteration."""
    last = n + missing
    history = [*geometric(r, n), entry(last, r**last)]
    if history[-1].change <= FLOOR:
        return
    assert error_estimate(history) == pytest.approx(r ** (last + 1) / (1 - r), rel=1e-6)


def test_the_error_is_unknown_while_the_change_does_not_shrink() -> None:
    """The error is infinite after a single change, and for constant and growing changes."""
    assert error_estimate([entry(1, 1e-9)]) == math.inf
    assert error_estimate([entry(t, 1e-3) for t in range(1, 10)]) == math.inf
    assert error_estimate([entry(t, 1e-9 * 2.0**t) for t in range(1, 10)]) == math.inf
    assert not Tolerance(1e-2).met([entry(t, 1e-3) for t in range(1, 10)])


def test_slow_convergence_is_not_mistaken_for_convergence() -> None:
    """At a rate of 0.999 a change of 1e-8 means an error of 1e-5."""
    history = geometric(0.999, 50, c=1e-8)
    assert not Tolerance(1e-6).met(history)
    assert Tolerance(1.1e-5).met(history)


def test_one_fast_step_in_a_slow_run_does_not_count() -> None:
    """The slowest rate over short and long spans counts; the last step alone would be far too optimistic."""
    history = [*geometric(0.99, 30, c=1e-5), entry(31, 1e-8)]
    assert error_estimate(history) > 0.5e-8


def test_no_change_means_no_error() -> None:
    """If the change is exactly zero, so is the estimated error."""
    assert error_estimate([entry(1, 1e-3), entry(2, 0.0)]) == 0.0
    still = [entry(t, 0.0) for t in range(2, 4)]
    assert Tolerance(1e-12).met([entry(1, 1e-3), *still])
    assert not Tolerance(1e-12).met([entry(1, 1e-3), *still[:1]])


def test_the_tolerance_requires_agreement() -> None:
    """A subspace that no longer moves is not enough while the agents disagree."""
    assert Tolerance(1e-6).met(geometric(0.5, 40, disagreement=1e-7))
    assert not Tolerance(1e-6).met(geometric(0.5, 40, disagreement=1e-5))


def test_the_floor_needs_several_iterations_in_a_row() -> None:
    """A single small change is not the floor, nor is a persistent disagreement."""
    small = [entry(t, FLOOR / 2) for t in range(1, 7)]
    assert at_floor(small)
    assert not at_floor(small[:5])
    assert not at_floor([entry(0, 1e-3), *small[1:]])
    assert not at_floor([entry(t, FLOOR / 2, disagreement=1e-6) for t in range(1, 7)])


@pytest.mark.parametrize("tol", [0.0, -1e-6, 1.0, 3.0, math.nan, math.inf])
def test_a_tolerance_must_lie_between_zero_and_one(tol: float) -> None:
    """Other values raise an error that names the parameter."""
    with raises(ParameterError, parameter="tol") as caught:
        Tolerance(tol)
    assert repr(caught.value.value) == repr(tol)


# ------------------------------------------------------------------------------------------------ measurements


def agreed(before: State, after: State) -> Agreed:
    """Return the agreed numbers: the maximum over all agents of their measurements."""
    return agreed_from(after.t, after.W.shape[-2], measure(before, after).max(axis=0))


def test_the_change_is_the_distance_between_subspaces() -> None:
    """The change is the largest Frobenius norm, over the agents, of the sines of the principal angles (by scipy)."""
    V = np.stack([orthonormal(9, 3, seed) for seed in range(4)])
    W = np.stack([orthonormal(9, 3, seed + 10) for seed in range(4)])
    sines = [np.sin(scipy.linalg.subspace_angles(v, w)) for v, w in zip(V, W, strict=True)]
    seen = agreed(State(3, V, V), State(4, W, W))
    assert seen.t == 4
    assert seen.change == pytest.approx(max(float(np.linalg.norm(s)) for s in sines), rel=1e-12)


def test_another_basis_of_the_same_subspace_does_not_count_as_a_change() -> None:
    V = orthonormal(9, 3, 0)[None]
    turned = V @ orthonormal(3, 3, 1)
    assert agreed(State(0, V, V), State(1, turned, turned)).change <= 1e-14


def test_agents_with_the_same_state_agree_exactly() -> None:
    """The disagreement is exactly zero if all states are equal."""
    W = np.broadcast_to(orthonormal(9, 3, 0), (5, 9, 3))
    assert agreed(State(0, W, W), State(1, W, W)).disagreement == 0.0


def test_disagreement_has_the_size_of_the_distance_between_agents() -> None:
    """Over many random pairs of subspaces, the mean squared estimate equals the squared sines to about a third."""
    d, k = 60, 3
    estimated, actual = [], []
    for seed in range(600):
        rng = np.random.default_rng(seed)
        W = np.linalg.qr(orthonormal(d, k, seed) + 1e-3 * rng.standard_normal((2, d, k)))[0]
        S = np.zeros_like(W)  # so that only the subspace is compared
        estimated.append(agreed(State(0, W, S), State(1, W, S)).disagreement ** 2)
        actual.append(float((np.sin(scipy.linalg.subspace_angles(W[0], W[1])) ** 2).sum()))
    ratio = float(np.mean(estimated) / np.mean(actual))
    assert 0.7 <= ratio <= 1.4


def test_agents_that_differ_only_in_s_disagree() -> None:
    """The subspace is right at every agent, but the eigenvalues are not."""
    W = np.broadcast_to(orthonormal(9, 3, 0), (2, 9, 3))
    S = W * np.array([1.0, 1.1])[:, None, None] * np.array([3.0, 2.0, 1.0])
    S = S + np.array([0.0, 0.2])[:, None, None] * W[..., ::-1]
    assert agreed(State(0, W, S), State(1, W, S)).disagreement > 1e-3


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_the_rank_is_the_lowest_of_any_agent(rank: int) -> None:
    """The S of one agent is rank deficient."""
    W = np.stack([orthonormal(9, 3, seed) for seed in range(3)])
    S = W * np.array([3.0, 2.0, 1.0])
    S[1] = S[1] * (np.arange(3) < rank)
    assert agreed(State(0, W, S), State(1, W, S)).rank == rank


def test_nan_at_one_agent_reaches_all_agents() -> None:
    """The agreed change is NaN as well, so that no rule is met."""
    W = np.stack([orthonormal(6, 2, seed) for seed in range(3)])
    bad = W.copy()
    bad[1, 0, 0] = np.nan
    value = np.maximum.reduce(
        [measure(State(0, W[j], W[j]), State(1, bad[j], W[j])) for j in (0, 2)]
        + [np.full_like(measure(State(0, W[0], W[0]), State(1, W[0], W[0])), np.nan)]
    )
    seen = agreed_from(1, 6, value)
    assert math.isnan(seen.change)
    assert not Tolerance(0.5).met([entry(0, 1e-9), seen])


# ------------------------------------------------------------------------------------------- agreement in runs


def test_every_agent_has_the_same_agreed_numbers() -> None:
    """All agents have the same bits; the simulator has the same numbers up to rounding."""
    topology = deepca.topology.path(4)
    stack = spectrum_problem(4, 6, spectrum(6, 2, decay=0.6), 1, heterogeneity=0.3)
    W0 = deepca.operators.linalg.random_orthonormal(6, 2, seed=0)
    recorders = [Recorder() for _ in range(4)]
    A = deepca.operators.from_matrices(stack)
    run_separately(
        topology,
        A,
        lambda A_j, network: DeEPCA(A_j, W0, network, FastMix(2)),
        max_iter=15,
        stop=Tolerance(1e-12),
        observers=lambda part: [recorders[part]],
    )
    whole = Recorder()
    deepca.solve(
        DeEPCA(A, W0, SimulatedNetwork(topology), FastMix(2)), max_iter=15, stop=Tolerance(1e-12), observers=[whole]
    )
    histories = [[step.agreed for step in recorder.steps] for recorder in recorders if recorder.steps]
    assert len(histories) == (1 if over_mpi() else 4)
    assert all(history == histories[0] for history in histories)
    numbers = [(a.t, a.change, a.disagreement, a.rank, a.floor) for a in histories[0] if a is not None]
    of_everyone = everyone(np.repeat([numbers], len(mine(4)), axis=0), 4)
    assert (of_everyone == numbers).all()  # on every rank, too
    for own, simulated in zip(histories[0], (step.agreed for step in whole.steps), strict=True):
        assert (own is None) == (simulated is None)
        if own is not None and simulated is not None:
            assert (own.t, own.rank) == (simulated.t, simulated.rank)
            assert own.change == pytest.approx(simulated.change, abs=1e-12)
            assert own.disagreement == pytest.approx(simulated.disagreement, abs=1e-12)
    # with a diameter of 3 and two rounds per iteration, the numbers of iteration t arrive two iterations later
    known = [(step.after.t, step.agreed.t) for step in whole.steps if step.agreed is not None]
    assert known == [(t, t - 2) for t in range(3, 16)]


def test_the_agreed_change_matches_the_states() -> None:
    """The change is recomputed from states recorded by an observer."""
    topology = deepca.topology.ring(5)
    stack = spectrum_problem(5, 6, spectrum(6, 2, decay=0.6), 1, heterogeneity=0.3)
    W0 = deepca.operators.linalg.random_orthonormal(6, 2, seed=0)
    seen = Recorder()
    deepca.solve(
        DeEPCA(stack, W0, network_of(topology), FastMix(3)), max_iter=12, stop=Tolerance(1e-12), observers=[seen]
    )
    steps = {step.after.t: step for step in seen.steps}
    compared = 0
    for step in seen.steps:
        if step.agreed is None:
            continue
        measured = steps[step.agreed.t]
        before, after = everyone(measured.before.W, 5), everyone(measured.after.W, 5)
        angles = [scipy.linalg.subspace_angles(a, b) for a, b in zip(before, after, strict=True)]
        assert step.agreed.change == pytest.approx(max(float(np.linalg.norm(np.sin(a))) for a in angles), rel=1e-9)
        compared += 1
    assert compared >= 10


class Budget:
    """User-defined rule that stops after a number of agreed iterations."""

    tol = 0.5

    def __init__(self, entries: int) -> None:
        self.entries = entries

    def met(self, history: object) -> bool:
        return len(history) >= self.entries  # type: ignore[arg-type]


def test_a_user_defined_rule_ends_the_run() -> None:
    """Any object with ``tol`` and ``met`` is a rule; this one counts agreed iterations, two fewer than all."""
    topology = deepca.topology.path(4)
    stack = spectrum_problem(4, 6, spectrum(6, 2, decay=0.6), 1, heterogeneity=0.3)
    W0 = deepca.operators.linalg.random_orthonormal(6, 2, seed=0)
    result = deepca.solve(DeEPCA(stack, W0, network_of(topology), FastMix(2)), max_iter=100, stop=Budget(entries=7))
    assert result.status.code == "converged"
    assert result.iterations == 9
