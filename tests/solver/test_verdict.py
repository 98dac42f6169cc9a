"""Test that runs end with the status that they warrant, and that following its advice helps."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import deepca
from deepca import AgentNetwork, DeEPCA, DePCA, FastMix, Tolerance, solve
from deepca.algorithms import BlockKrylov
from deepca.operators import Operator, from_matrices
from deepca.solver.result import Result, StatusCode
from deepca.solver.sentences import below_row_rounding
from deepca.topology import Topology
from tests.support.engines import ENGINES, everyone, network_of, over_mpi, whole
from tests.support.helpers import AtIteration, worst_tangent
from tests.support.problems import pooled_answer, spectrum, spectrum_problem

Array = npt.NDArray[np.float64]
RING = deepca.topology.ring(6)


def run(
    kind: str, stack: Array, k: int, place: Topology = RING, method: Any = DeEPCA, mix: Any = None, **how: Any
) -> Any:
    """Return the result of each agent, or one for all of them."""
    W0, A = deepca.operators.linalg.random_orthonormal(stack.shape[-1], k, seed=1), from_matrices(stack)
    if kind != "threads":
        result = solve(method(A, W0, network_of(place), mix), **how)
        return [whole([result], place.n_agents) if over_mpi() else result]

    def work(network: AgentNetwork) -> Result[Any]:
        return solve(method(A.agent(network.agent), W0, network, mix), **how)

    return deepca.run_agents(place, work)


def the_status(results: list[Result[Any]]) -> deepca.Status:
    assert len({result.status.code for result in results}) == 1, "all agents end alike"
    assert len({result.iterations for result in results}) == 1
    return results[0].status


@pytest.mark.parametrize("kind", ENGINES)
def test_the_status_converged_states_the_proven_angle(kind: str) -> None:
    stack = spectrum_problem(6, 8, spectrum(8, 2, decay=0.7), 3)
    results = run(kind, stack, 2, max_iter=300, stop=Tolerance(1e-9))
    status = the_status(results)
    assert status.code == "converged"
    assert status.ok
    certificate = results[0].certificate
    assert certificate is not None
    assert certificate.n_agents == 6
    proven = status.numbers["angle"]
    assert f"{proven:.1e}" in status.advice
    _, U = pooled_answer(stack, 2)
    assert all(worst_tangent(U, result.W) <= proven * 1.05 <= 1.05e-9 for result in results)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("place", [RING, deepca.topology.star(6)])
def test_a_tolerance_below_rounding_ends_at_the_floor(kind: str, place: Topology) -> None:
    stack = spectrum_problem(6, 8, spectrum(8, 2, decay=0.7), 3)
    results = run(kind, stack, 2, place, max_iter=2000, stop=Tolerance(1e-17))
    status = the_status(results)
    assert status.code == "rounding_floor"
    assert results[0].iterations < 300
    _, U = pooled_answer(stack, 2)
    assert all(worst_tangent(U, result.W) <= 1e-13 for result in results)


@pytest.mark.parametrize("condition", [1e4, 1e8])
def test_the_floor_is_found_where_rounding_is_magnified(condition: float) -> None:
    """Products have errors of 1e-16 λ₁, large compared with λ_k; the run must not continue without progress."""
    values = np.r_[np.geomspace(1.0, 1.0 / condition, 3), 0.5 / condition * 0.8 ** np.arange(7)]
    stack = spectrum_problem(6, 10, values, 3)
    (result,) = run(ENGINES[0], stack, 3, max_iter=5000, stop=Tolerance(1e-15))
    assert result.status.code == "rounding_floor", str(result.status)
    assert result.iterations < 1000
    _, U = pooled_answer(stack, 3)
    assert worst_tangent(U, result.W) <= 1e-14 * condition


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("tol", [1e-3, 1e-9])
def test_without_a_gap_the_status_names_other_k(kind: str, tol: float) -> None:
    """With λ = 5, 4, 3, 3, 3, 2, 1, …, there is no gap after k = 3 and k = 4, but after k = 2 and k = 5."""
    values = np.array([5.0, 4.0, 3.0, 3.0, 3.0, 2.0, 1.0, 0.5, 0.2])
    stack = spectrum_problem(6, 9, values, 3)
    for k in (3, 4):
        status = the_status(run(kind, stack, k, max_iter=2000, stop=Tolerance(tol)))
        assert status.code == "not_unique"
        assert not status.ok
        assert status.numbers["choices"] == (2, 5)


def test_equal_eigenvalues_are_not_unique_for_any_k() -> None:
    status = the_status(run(ENGINES[0], np.stack([np.eye(5)] * 6), 2, max_iter=50, stop=Tolerance(1e-9)))
    assert status.code == "not_unique"


@pytest.mark.parametrize("kind", ENGINES)
def test_a_small_gap_is_resolved(kind: str) -> None:
    """The change is far below the tolerance long before the error is."""
    gap = 1e-3 if kind == "simulator" else 1e-2  # iterations grow with the inverse of the gap
    values = np.r_[1.0, 0.9, 0.9 * (1.0 - gap), 0.5 * 0.8 ** np.arange(5)]
    stack = spectrum_problem(4, 8, values, 3)
    _, U = pooled_answer(stack, 2)
    results = run(kind, stack, 2, deepca.topology.complete(4), max_iter=20_000, stop=Tolerance(1e-2))
    assert the_status(results).code == "converged"
    assert all(worst_tangent(U, result.W) <= 1e-2 for result in results)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("gap", [0.3, 0.05])
def test_the_status_out_of_iterations_states_how_many_more_are_needed(kind: str, gap: float) -> None:
    """The number suffices, and is at most about three times too large."""
    stack = spectrum_problem(6, 9, spectrum(9, 3, gap=1.0 - gap, decay=0.9), 3)
    made = 30 if gap > 0.1 else 120
    results = run(kind, stack, 3, max_iter=made, stop=Tolerance(1e-10))
    status = the_status(results)
    assert status.code == "out_of_iterations"
    more = status.more
    assert more is not None
    assert f"{more:,}" in status.advice
    full = run(ENGINES[0], stack, 3, max_iter=5000, stop=Tolerance(1e-10))[0]
    assert full.status.code == "converged"
    needed = full.iterations - made
    assert 0.7 * needed <= more <= 3.0 * needed + 5


@pytest.mark.parametrize("kind", ENGINES)
def test_the_status_diverging_names_too_few_rounds(kind: str) -> None:
    place = deepca.topology.ring(14)
    stack = spectrum_problem(14, 8, spectrum(8, 2, decay=0.8), 5, heterogeneity=0.9)
    status = the_status(run(kind, stack, 2, place, mix=FastMix(3), max_iter=150, stop=Tolerance(1e-8)))
    assert status.code == "diverging"
    assert 'rounds="auto"' in status.advice
    repaired = the_status(run(kind, stack, 2, place, max_iter=1000, stop=Tolerance(1e-8)))
    assert repaired.code == "converged"  # following the advice


@pytest.mark.parametrize("kind", ENGINES)
def test_depca_ends_with_disagreement(kind: str) -> None:
    stack = spectrum_problem(6, 8, spectrum(8, 2, decay=0.6), 3, heterogeneity=0.6)
    status = the_status(run(kind, stack, 2, method=DePCA, mix=FastMix(3), max_iter=200, stop=Tolerance(1e-10)))
    assert status.code == "disagreement"
    assert "rounds" in status.advice


@pytest.mark.parametrize("kind", ENGINES)
def test_an_indefinite_mean_is_reported(kind: str) -> None:
    """The default flips columns there and does not converge, but the status must not blame the network."""
    values = np.array([1.0, 0.8, 0.4, 0.2, 0.1, 0.05])
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 6)))[0]
    signs = np.array([1.0, -1.0, 1.0, 1.0, 1.0, 1.0])
    noise = spectrum_problem(6, 6, values, 2, heterogeneity=0.4)
    stack = noise - noise.mean(axis=0) + (Q * (values * signs)) @ Q.T
    status = the_status(run(kind, stack, 2, max_iter=200, stop=Tolerance(1e-8)))
    assert status.code == "indefinite_mean"
    assert status.numbers["smallest"] < 0.0


@pytest.mark.parametrize("accuracy", [1e-3, 1e-8, 1e-12])
@pytest.mark.parametrize("kind", ENGINES)
def test_a_restart_loses_at_most_three_iterations(kind: str, accuracy: float) -> None:
    """The network is disturbed at some accuracy; three iterations later, with few rounds, it is reached again."""
    place = deepca.topology.ring(8)
    stack = spectrum_problem(8, 9, spectrum(9, 3, gap=0.6, decay=0.8), 3, heterogeneity=0.8)
    _, U = pooled_answer(stack, 3)
    W0, A = deepca.operators.linalg.random_orthonormal(9, 3, seed=1), from_matrices(stack)

    class Watch:
        """Observer that records tan θ after every iteration, and announces a new epoch at a given one."""

        def __init__(self, when: int = 0, announce: Any = None) -> None:
            self.errors: list[float] = []
            self._when, self._announce = when, announce

        def begin(self, start: Any) -> None: ...

        def observe(self, step: Any) -> None:
            W = step.after.W if step.after.W.ndim == 2 else everyone(step.after.W, 8)
            self.errors.append(worst_tangent(U, W))
            if self._announce is not None and step.after.t == self._when:
                self._announce()

        def end(self, result: Any) -> None: ...

    quiet = Watch()
    solve(DeEPCA(A, W0, network_of(place), FastMix(4)), max_iter=120, observers=[quiet])
    when = next(t for t, error in enumerate(quiet.errors, 1) if error <= accuracy)
    if kind != "threads":
        network = network_of(place)
        watch = [Watch(when, lambda: network.announce_epoch(1))]
        result = solve(DeEPCA(A, W0, network, FastMix(4)), max_iter=when + 30, stop=Tolerance(1e-17), observers=watch)
        assert network.epoch == 1
        assert result.restarts == 1
    else:
        hub = deepca.network.transports.MemoryHub(8)
        watch = [Watch(when, (lambda: hub.announce_epoch(1)) if j == 0 else None) for j in range(8)]
        results = deepca.run_agents(
            place,
            lambda net: solve(
                DeEPCA(A.agent(net.agent), W0, net, FastMix(4)),
                max_iter=when + 30,
                stop=Tolerance(1e-17),
                observers=[watch[net.agent]],
            ),
            hub=hub,
        )
        assert all(result.restarts == 1 for result in results)
    reached = max(w.errors[when - 1] for w in watch)
    for w in watch:
        after = w.errors[when : when + 3]
        assert min(after) <= max(reached, 1e-14)
        assert max(after) <= 3.0 * reached + 1e-13  # no accuracy was lost


@pytest.mark.parametrize("stop", [None, Tolerance(1e-9)])
@pytest.mark.parametrize("last", [1, 2, 3, 5])
def test_a_network_may_change_in_the_last_iteration(last: int, stop: Tolerance | None) -> None:
    """The epoch changes during the final agreement or the certificate; the run can be resumed from its state."""
    stack = spectrum_problem(5, 8, np.linspace(1.0, 0.6, 8), 0)
    network, W0 = network_of(deepca.topology.ring(5)), deepca.operators.linalg.random_orthonormal(8, 2, seed=1)
    announce = AtIteration(last, lambda: network.announce_epoch(1))
    result = solve(DeEPCA(stack, W0, network), max_iter=last, stop=stop, observers=[announce])
    assert result.restarts == 1
    assert result.status.code == "out_of_iterations"
    again = solve(DeEPCA(stack, W0, network), max_iter=2000, stop=Tolerance(1e-9), start=result.state)
    assert again.status.code == "converged"
    assert worst_tangent(pooled_answer(stack, 2)[1], again.W) <= 1e-9


@pytest.mark.parametrize("gap", [1e-3, 1e-5])
@pytest.mark.parametrize("agents", [1, 5])
def test_slow_convergence_is_not_reported_as_diverging(gap: float, agents: int) -> None:
    """With so small a gap the progress per iteration is not visible; the advice must not blame rounds or signs."""
    values = np.r_[1.0, 0.9, 0.9 * (1.0 - gap), 0.5 * 0.8 ** np.arange(5)]
    stack = spectrum_problem(agents, 8, values, 3)
    place = deepca.topology.complete(agents) if agents < 3 else deepca.topology.ring(agents)
    status = the_status(run(ENGINES[0], stack, 2, place, max_iter=700, stop=Tolerance(1e-9)))
    assert status.code == "out_of_iterations", str(status)
    more = status.more
    assert more is not None
    assert 5.0 / gap <= more <= 60.0 / gap
    assert "rounds" not in status.advice


def test_without_certificates_a_stalled_run_continues() -> None:
    """A stall is a reason to attempt a certificate; without certificates, iterations continue."""
    stack = spectrum_problem(4, 8, np.r_[1.0, 0.9, 0.9 * (1.0 - 1e-6), 0.5 * 0.8 ** np.arange(5)], 3)
    W0 = deepca.operators.linalg.random_orthonormal(8, 2, seed=1)
    network = network_of(deepca.topology.complete(4))
    result = solve(DeEPCA(stack, W0, network), max_iter=300, stop=Tolerance(1e-12), certify=False)
    assert result.iterations == 300


@pytest.mark.parametrize("k", [1, 2])
def test_the_advice_can_be_followed_if_no_component_is_known(k: int) -> None:
    """The A_j cancel, so rounding hides even the first component; k ≤ 1 without a larger tolerance would not help."""
    rng = np.random.default_rng(0)
    Q, Y = np.linalg.qr(rng.standard_normal((6, 6)))[0], rng.standard_normal((6, 6))
    signs = np.array([1.0, -1.0] * 3)[:, None, None]
    wanted = (Q * [1.0, 0.5, 0.2, 0.1, 0.05, 0.01]) @ Q.T

    def krylov(A: Operator, W0: Array, network: Any, _: None) -> BlockKrylov:
        return BlockKrylov(A, W0, network)

    def ended(k: int, size: float, tol: float) -> deepca.Status:
        stack = wanted + size * signs * (Y @ Y.T)
        return the_status(run(ENGINES[0], stack, k, method=krylov, max_iter=100, stop=Tolerance(tol)))

    status = ended(k, 1e12, 1e-10)
    assert (status.code, status.numbers["known"]) == ("below_rounding", 0)
    assert status.numbers["uncertainty"] > 1e-3
    assert status.numbers["at_most"] >= 1
    assert ended(status.numbers["at_most"], 1e12, 2.0 * status.numbers["angle"]).ok
    assert ended(k, 1e-3, 1e-10).ok  # without what cancels
    assert ended(k, 1e14, 1e-10).numbers["at_most"] == 0  # no tolerance would help


def test_rows_without_a_known_component_are_not_told_to_ask_for_one() -> None:
    stack = spectrum_problem(4, 8, spectrum(8, 2, decay=0.7), 3)
    (result,) = run(ENGINES[0], stack, 2, deepca.topology.ring(4), max_iter=300, stop=Tolerance(1e-9))
    assert result.certificate is not None
    unsure = replace(result.certificate, uncertainty=1.0, residual=1.0, angle=np.inf)
    assert unsure.n_known() == 0
    status = below_row_rounding(unsure, 2)
    assert (status.code, status.numbers["known"], status.numbers["at_most"]) == ("below_rounding", 0, 0)


def test_a_status_keeps_its_numbers() -> None:
    """Pickles contain the numbers; statuses from pickles of earlier versions have none."""
    status = deepca.Status.of(StatusCode.RANK_DEFICIENT, "rank {rank} of {k}", rank=2, k=3)
    assert status.advice == "rank 2 of 3"
    assert str(status) == "rank deficient: rank 2 of 3"
    assert status == deepca.Status(StatusCode.RANK_DEFICIENT, "rank 2 of 3")
    assert pickle.loads(pickle.dumps(status)).numbers == {"rank": 2, "k": 3}
    older = object.__new__(deepca.Status)
    older.__setstate__({"code": StatusCode.CONVERGED, "advice": "so", "more": None})
    assert (older.ok, older.numbers, older.more) == (True, {}, None)


def test_a_run_that_ends_before_the_gap_is_resolved_says_so() -> None:
    """λ_3 = λ_4, and the estimated error meets the tolerance long before the two can be compared."""
    stack = np.stack([np.diag([5.0, 4.0, 3.0, 3.0, 3.0, 2.0, 1.0])] * 4)
    place, mix = deepca.topology.ring(4), FastMix(rounds=4)
    status = the_status(run(ENGINES[0], stack, 3, place, mix=mix, max_iter=80, stop=Tolerance(1e-9)))
    assert status.code == "out_of_iterations"
    assert status.numbers["error"] <= 1e-9
    assert status.numbers["inside"] == pytest.approx(status.numbers["outside"], rel=1e-6)
    assert "more" not in status.numbers
