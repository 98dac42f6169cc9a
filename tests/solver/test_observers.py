"""Test that observers record the paper's curves and do not change the run."""

from __future__ import annotations

from io import StringIO

import numpy as np
import pytest
from rich.console import Console

import deepca
from deepca import CPCA, DeEPCA, DePCA, FastMix, Tolerance
from deepca._util.typing import Array
from deepca.network import SimulatedNetwork
from deepca.network.base import LinearMixer
from deepca.solver.observers import Step, Trace
from deepca.solver.progress import ProgressBar, bars
from tests.support.engines import everyone, mine, network_of, over_mpi, run_separately
from tests.support.helpers import Recorder, tangents
from tests.support.problems import pooled_answer, spectrum, spectrum_problem

M, D, K_COMPONENTS, ROUNDS, ITERATIONS = 6, 7, 2, 3, 25


def problem() -> tuple[Array, Array, Array]:
    """Return the A_j, the true U, and a start."""
    stack = spectrum_problem(M, D, spectrum(D, K_COMPONENTS, decay=0.6), seed=2, heterogeneity=0.5)
    _, U = pooled_answer(stack, K_COMPONENTS)
    return stack, U, deepca.operators.linalg.random_orthonormal(D, K_COMPONENTS, seed=1)


def watched(algorithm: type[DeEPCA] | type[DePCA] = DeEPCA) -> tuple[Trace, Recorder, Array, Array]:
    stack, U, W0 = problem()
    trace, recorder = Trace(U=U), Recorder()
    network = network_of(deepca.topology.ring(M))
    deepca.solve(algorithm(stack, W0, network, FastMix(ROUNDS)), max_iter=ITERATIONS, observers=[trace, recorder])
    return trace, recorder, stack, U


OF_ALL_AGENTS = ["S_disagreement", "W_disagreement", "invariant"]  # NaN where not all agents are local
FIELDS = ["tan_theta", "tan_theta_max", "S_disagreement", "W_disagreement", "invariant", "rounds", "bytes", "time"]


@pytest.mark.parametrize("name", FIELDS)
def test_every_curve_has_one_entry_per_iteration(name: str) -> None:
    trace, _, _, _ = watched()
    assert getattr(trace, name).shape == (ITERATIONS,)
    assert len(trace) == ITERATIONS
    assert (np.isnan if over_mpi() and name in OF_ALL_AGENTS else np.isfinite)(getattr(trace, name)).all()


@pytest.mark.parametrize("algorithm", [DeEPCA, DePCA])
def test_the_papers_three_curves_match_their_definitions(algorithm: type[DeEPCA] | type[DePCA]) -> None:
    """The mean tangent, ‖S − S̄⊗1‖ and ‖W − W̄⊗1‖ are compared with sums over agents."""
    trace, recorder, _, U = watched(algorithm)
    for i, step in enumerate(recorder.steps):
        W, S = step.after.W, step.after.S
        np.testing.assert_allclose(trace.tan_theta[i], tangents(U, W).mean(), rtol=1e-6, atol=1e-14)
        np.testing.assert_allclose(trace.tan_theta_max[i], tangents(U, W).max(), rtol=1e-6, atol=1e-14)
        if over_mpi():
            continue
        for curve, x in ((trace.S_disagreement, S), (trace.W_disagreement, W)):
            mean = sum(x[j] for j in range(M)) / M
            squares = sum(float(((x[j] - mean) ** 2).sum()) for j in range(M))
            np.testing.assert_allclose(curve[i], np.sqrt(squares), rtol=1e-9, atol=1e-15)


def test_the_invariant_compares_the_mean_of_s_with_the_mean_of_the_products() -> None:
    """``mean_j S_j = mean_j A_j W_j`` of the previous iteration holds to rounding for DeEPCA."""
    trace, recorder, stack, _ = watched()
    for i, step in enumerate(recorder.steps):
        products = np.einsum("jde,jek->dk", stack, everyone(step.before.W, M)) / M
        mean = everyone(step.after.S, M).mean(axis=0)
        drift = np.linalg.norm(mean - products) / np.linalg.norm(mean)
        assert drift <= 1e-14
        if not over_mpi():
            assert trace.invariant[i] == pytest.approx(drift, abs=1e-14)


def test_rounds_and_bytes_are_cumulative_and_those_of_the_run() -> None:
    """There are K rounds per iteration; on a ring every agent sends two messages of d × k numbers per round."""
    trace, recorder, _, _ = watched()
    expected = ROUNDS * np.arange(1, ITERATIONS + 1)
    np.testing.assert_array_equal(trace.rounds, expected)
    np.testing.assert_array_equal(trace.bytes, expected * 2 * len(mine(M)) * D * K_COMPONENTS * 8)
    assert (np.diff(trace.time) >= 0).all()
    assert trace.time[0] > 0
    assert recorder.steps[-1].traffic.bytes_sent == trace.bytes[-1]


def test_a_second_run_over_the_same_network_counts_from_zero() -> None:
    """Traffic is counted by run, and a reused Trace discards the first run."""
    stack, U, W0 = problem()
    network, trace = network_of(deepca.topology.ring(M)), Trace(U=U)
    algorithm = DeEPCA(stack, W0, network, FastMix(ROUNDS))
    first = deepca.solve(algorithm, max_iter=5, observers=[trace])
    deepca.solve(algorithm, max_iter=4, start=first.state, observers=[trace])
    np.testing.assert_array_equal(trace.rounds, ROUNDS * np.arange(1, 5))
    assert len(trace) == 4


def test_observers_do_not_change_the_run() -> None:
    """The result has the same bits with and without observers."""
    stack, U, W0 = problem()

    def run(*observers: Trace | Recorder) -> Array:
        network = network_of(deepca.topology.ring(M))
        return deepca.solve(DeEPCA(stack, W0, network, FastMix(ROUNDS)), max_iter=20, observers=observers).W

    np.testing.assert_array_equal(run(), run(Trace(U=U), Recorder()))


def test_without_the_true_subspace_the_other_curves_are_recorded() -> None:
    """Tangents are NaN, everything else is measured."""
    stack, _, W0 = problem()
    trace = Trace()
    network = network_of(deepca.topology.ring(M))
    deepca.solve(DeEPCA(stack, W0, network, FastMix(ROUNDS)), max_iter=5, observers=[trace])
    assert np.isnan(trace.tan_theta).all()
    assert np.isnan(trace.tan_theta_max).all()
    assert np.isfinite(trace.rounds).all()
    if not over_mpi():
        assert np.isfinite(trace.S_disagreement).all()
        assert np.isfinite(trace.W_disagreement).all()


def test_separate_agents_record_their_own_angles_but_no_disagreement() -> None:
    """The curve of tan θ is that of the local agents; curves that need all agents are NaN."""
    stack, U, W0 = problem()
    traces = [Trace(U=U) for _ in range(M)]
    apart = run_separately(
        deepca.topology.ring(M),
        deepca.operators.from_matrices(stack),
        lambda A_j, network: DeEPCA(A_j, W0, network, FastMix(ROUNDS)),
        max_iter=10,
        observers=lambda part: [traces[part]],
    )
    assert len(apart.parts) == (1 if over_mpi() else M)
    for trace, result in zip(traces, apart.parts, strict=False):
        own = tangents(U, result.W)
        assert len(trace) == 10
        assert trace.tan_theta[-1] == pytest.approx(own.mean(), rel=1e-6)
        assert trace.tan_theta_max[-1] == pytest.approx(own.max(), rel=1e-6)
        if len(own) == 1:
            np.testing.assert_array_equal(trace.tan_theta, trace.tan_theta_max)
        assert np.isnan(trace.S_disagreement).all()
        assert np.isnan(trace.W_disagreement).all()
        assert np.isnan(trace.invariant).all()
        np.testing.assert_array_equal(trace.bytes, trace.rounds * 2 * len(own) * D * K_COMPONENTS * 8)


def test_a_single_agent_has_no_disagreement() -> None:
    """The only agent is that of the centralised run, which sends nothing."""
    stack, U, W0 = problem()
    trace = Trace(U=U)
    deepca.solve(CPCA(stack.mean(axis=0), W0), max_iter=30, observers=[trace])
    np.testing.assert_array_equal(trace.W_disagreement, np.zeros(30))
    np.testing.assert_array_equal(trace.bytes, np.zeros(30))
    assert trace.tan_theta[-1] < 1e-6 < trace.tan_theta[0]


def test_observers_are_notified_of_the_start_every_step_and_the_end() -> None:
    """Notifications come in this order, with consecutive states, and with the result that is returned."""
    stack, _, W0 = problem()
    recorder = Recorder()
    network = network_of(deepca.topology.ring(M))
    result = deepca.solve(
        DeEPCA(stack, W0, network, FastMix(ROUNDS)), max_iter=30, stop=Tolerance(1e-2), observers=[recorder]
    )
    (start,) = recorder.starts
    assert (start.name, start.max_iter, start.tol) == ("DeEPCA", 30, 1e-2)
    assert start.network is network
    np.testing.assert_array_equal(everyone(start.state.W, M), np.broadcast_to(W0, (M, D, K_COMPONENTS)))
    assert [step.after.t for step in recorder.steps] == list(range(1, result.iterations + 1))
    assert recorder.steps[0].before is start.state
    for earlier, later in zip(recorder.steps, recorder.steps[1:], strict=False):
        assert later.before is earlier.after
    assert recorder.steps[-1].after is result.state
    (end,) = recorder.ends
    assert end is result


def test_a_true_subspace_of_the_wrong_shape_is_rejected() -> None:
    """The error is raised by deepca, not by numpy's broadcasting."""
    stack, U, W0 = problem()
    network = network_of(deepca.topology.ring(M))
    with pytest.raises(deepca.errors.InvalidInput) as caught:
        deepca.solve(DeEPCA(stack, W0, network, FastMix(ROUNDS)), max_iter=3, observers=[Trace(U=U[:, :1])])
    assert str(U[:, :1].shape) in str(caught.value)


@pytest.mark.simulator(reason="the invariant is measured where one process holds all agents")
def test_a_broken_invariant_is_recorded() -> None:
    """A term added to S during the run appears as a drift of its size in all later iterations."""

    class Leaky(SimulatedNetwork):
        def mix(self, mixer: LinearMixer, x: Array, K: int, /) -> Array:
            return super().mix(mixer, x, K) + (0.01 if self.phase_and_iteration[1] == 5 else 0.0)

    stack, U, W0 = problem()
    trace, network = Trace(U=U), Leaky(deepca.topology.ring(M))
    deepca.solve(DeEPCA(stack, W0, network, FastMix(ROUNDS)), max_iter=12, observers=[trace])
    assert trace.invariant[:5].max() <= 1e-14
    assert trace.invariant[5:].min() >= 1e-3


@pytest.mark.parametrize("stop", [None, Tolerance(1e-6)], ids=["no stop rule", "stop rule"])
def test_the_progress_bar_fills_and_does_not_change_the_run(stop: Tolerance | None) -> None:
    """At the end it shows the status in words."""
    stack, _, W0 = problem()
    progress = bars(Console(file=StringIO()))
    bar = ProgressBar(progress)
    filled: list[float] = []

    class Watch(Recorder):
        def observe(self, step: Step) -> None:
            filled.append(progress.tasks[0].completed)

    def run(*observers: ProgressBar | Recorder) -> Array:
        network = network_of(deepca.topology.ring(M))
        algorithm = DeEPCA(stack, W0, network, FastMix(ROUNDS))
        return deepca.solve(algorithm, max_iter=150, stop=stop, observers=observers).W

    np.testing.assert_array_equal(run(bar, Watch()), run())
    assert 0.0 < filled[0] < 0.5
    assert max(filled[:-1]) < 1.0
    (task,) = progress.tasks
    assert task.completed == 1.0
    assert task.description == "DeEPCA"
    assert task.fields["iteration"] == len(filled)
    assert task.fields["note"] == ("completed" if stop is None else "converged")
    if stop is None:
        assert (np.diff(filled) > 0).all()
