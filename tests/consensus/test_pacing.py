"""Check how K is chosen: first from the graph, then from what all agents observe, equally at all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.datasets import load_digits

import deepca
from deepca import Chebyshev, DeEPCA, DePCA, FastMix, Gossip, SimulatedNetwork, Tolerance, solve
from deepca.consensus.mixers import Mixer
from deepca.consensus.pacing import SearchedRounds
from deepca.consensus.rates import first_rounds, response, tracking_rate
from deepca.errors import ParameterError
from deepca.operators import from_matrices, from_rows
from deepca.solver.stopping import Agreed
from deepca.topology import Topology
from tests.support.engines import everyone, network_of, run_separately
from tests.support.errors import raises
from tests.support.helpers import Recorder, worst_tangent
from tests.support.problems import orthogonal, pooled_answer, spectrum, spectrum_problem

Array = npt.NDArray[np.float64]
M = 12
PLACES: dict[str, Topology] = {
    "erdos-renyi": deepca.topology.erdos_renyi(M, 0.5, seed=2),
    "ring": deepca.topology.ring(M),
    "torus": deepca.topology.torus(3, 4),
    "star": deepca.topology.star(M),
}


def digits(order: str) -> list[Array]:
    """Return rows sorted by label, or with nine tenths of them at one agent."""
    X, y = load_digits(return_X_y=True)
    X = (X - X.mean(axis=0))[np.argsort(y, kind="stable")]
    if order == "label":
        return [np.asarray(block) for block in np.array_split(X, M)]
    most = int(0.9 * len(X))
    return [X[:most], *(np.asarray(block) for block in np.array_split(X[most:], M - 1))]


def opposite() -> Array:
    """Return matrices such that the two halves of the agents have orthogonal top components."""
    d, Q = 10, orthogonal(10, 3)
    values = np.r_[1.0, 0.9, 0.8, 0.7, 0.4 * 0.8 ** np.arange(d - 4)]
    strong = np.where(np.arange(d) % 2 == 0, 1.98, 0.02)
    return np.stack([(Q * (values * (strong if j < M // 2 else 2.0 - strong))) @ Q.T for j in range(M)])


def extreme(kind: str) -> tuple[Any, Array, int]:
    """Return the A_j, the pooled answer and k."""
    if kind == "opposite":
        stack = opposite()
        return from_matrices(stack), pooled_answer(stack, 4)[1], 4
    rows = digits(kind)
    pooled = np.concatenate(rows)
    return from_rows(rows, workers=1), pooled_answer(pooled.T @ pooled, 5)[1], 5


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ["label", "one has most", "opposite"])
def test_extreme_heterogeneity_needs_no_tuning(kind: str, place: str) -> None:
    """Only the tolerance is given."""
    A, U, k = extreme(kind)
    W0 = deepca.operators.linalg.random_orthonormal(A.d, k, seed=4)
    result = solve(DeEPCA(A, W0, network_of(PLACES[place])), max_iter=3000, stop=Tolerance(1e-8))
    assert result.status.code == "converged", str(result.status)
    assert worst_tangent(U, result.W) <= 1e-8


def test_separate_agents_use_the_same_rounds_as_the_simulator_in_every_iteration() -> None:
    """K changes during the run, so the comparison is meaningful. All agents stop in the same iteration."""
    A, U, k = extreme("opposite")
    W0, place = deepca.operators.linalg.random_orthonormal(A.d, k, seed=4), PLACES["ring"]
    simulated = Recorder()
    alone = solve(DeEPCA(A, W0, SimulatedNetwork(place)), max_iter=500, stop=Tolerance(1e-10), observers=[simulated])
    recorders = [Recorder() for _ in range(M)]
    apart = run_separately(
        place,
        A,
        lambda A_j, network: DeEPCA(A_j, W0, network),
        max_iter=500,
        stop=Tolerance(1e-10),
        observers=lambda part: [recorders[part]],
    )
    expected = [step.traffic.rounds for step in simulated.steps]
    assert len(set(np.diff(expected))) > 1
    for recorder, result in zip(recorders, apart.parts, strict=False):  # the ranks of a job are one part each
        assert [step.traffic.rounds for step in recorder.steps] == expected
        assert result.iterations == alone.iterations
        assert result.status.code == "converged"
    np.testing.assert_allclose(apart.whole.W, alone.W, atol=1e-9)
    assert worst_tangent(U, alone.W) <= 1e-10


@pytest.mark.parametrize("kind", [FastMix, Chebyshev, Gossip])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("x", [1.0, 0.7])
def test_the_tracking_rate_is_that_of_the_recurrence(kind: type[Mixer], place: str, x: float) -> None:
    """``s ← p (s + x (s − s_before))`` iterated numerically, for every eigenvalue of 𝐋."""
    topology = PLACES[place]
    for K in (1, 2, 3, 5, 8):
        p = response(kind(K), topology, K, np.sort(topology.eigenvalues)[:-1])
        before, s, growth = np.zeros_like(p), np.ones_like(p), []
        for _ in range(600):
            before, s = s, p * (s + x * (s - before))
            size = np.maximum(np.maximum(np.abs(s), np.abs(before)), 1e-300)
            growth.append(np.log(size))
            before, s = before / size, s / size
        # the log-size is the sum of the logarithms of all factors
        rate = float(np.exp(np.mean(growth[100:], axis=0)).max())
        assert tracking_rate(kind(K), topology, K, x) == pytest.approx(rate, rel=2e-2)


def test_a_K_with_an_unstable_tracking_rate_fails_and_the_first_choice_of_K_does_not() -> None:
    """Such a K fails even for nearly equal agents, since the rate depends on the graph only."""
    place = deepca.topology.ring(20)
    stack = spectrum_problem(20, 8, spectrum(8, 2, decay=0.8), 5, heterogeneity=0.3)
    _, U = pooled_answer(stack, 2)
    W0 = deepca.operators.linalg.random_orthonormal(8, 2, seed=1)
    unstable = [K for K in range(1, 8) if tracking_rate(FastMix(K), place, K) > 1.05]
    assert unstable
    for K in unstable:
        result = solve(DeEPCA(stack, W0, network_of(place), FastMix(K)), max_iter=300, stop=Tolerance(1e-8))
        assert worst_tangent(U, everyone(result.W, 20)) > 1e-8
        assert not result.status.ok
    K = first_rounds(FastMix(), place)
    assert tracking_rate(FastMix(K), place, K) <= 0.6 < tracking_rate(FastMix(K - 1), place, K - 1)
    result = solve(DeEPCA(stack, W0, network_of(place), FastMix(K)), max_iter=300, stop=Tolerance(1e-8))
    assert result.status.code == "converged"


def entry(t: int, change: float, disagreement: float) -> Agreed:
    return Agreed(t=t, change=change, disagreement=disagreement, rank=2, floor=1e-15)


def test_K_falls_if_agents_agree_better_than_necessary() -> None:
    """If agents agree far better than the subspace moves, K falls, but never to an unstable number."""
    place = PLACES["ring"]
    pace = SearchedRounds(FastMix(), place)
    first = pace.K
    for t in range(1, 200):
        pace.observe(entry(t, 0.95**t, 1e-6 * 0.95**t), t)
    assert first > pace.K
    assert tracking_rate(FastMix(pace.K), place, pace.K) <= 0.95


@pytest.mark.parametrize(
    ("change", "disagreement"),
    [
        (lambda t: 0.5, lambda t: 0.5),  # far apart and not approaching
        (lambda t: 1e-3 * 0.9**t, lambda t: 1e-3),  # disagreement dominates
        (lambda t: 1e-3, lambda t: 1e-4 * 1.3**t),  # disagreement grows
    ],
)
def test_K_rises_if_agents_disagree(change: Any, disagreement: Any) -> None:
    pace = SearchedRounds(FastMix(), PLACES["ring"])
    first = pace.K
    for t in range(1, 12):
        pace.observe(entry(t, change(t), disagreement(t)), t)
    assert first < pace.K


def test_rounding_errors_do_not_change_K() -> None:
    pace = SearchedRounds(FastMix(), PLACES["ring"])
    first = pace.K
    for t in range(1, 50):
        pace.observe(entry(t, 1e-15, 1e-14), t)
    assert first == pace.K


def test_depca_gets_the_growing_rounds_that_it_needs() -> None:
    """Without tracking, the error stalls at a fixed K; with automatic rounds K grows, and DePCA converges."""
    stack = spectrum_problem(M, 8, spectrum(8, 2, decay=0.6), 5, heterogeneity=0.6)
    _, U = pooled_answer(stack, 2)
    W0 = deepca.operators.linalg.random_orthonormal(8, 2, seed=1)
    recorder = Recorder()
    result = solve(
        DePCA(stack, W0, network_of(PLACES["torus"])),
        max_iter=400,
        stop=Tolerance(1e-8),
        observers=[recorder],
    )
    assert result.status.code == "converged", str(result.status)
    assert worst_tangent(U, result.W) <= 1e-8
    used = np.diff([step.traffic.rounds for step in recorder.steps])
    assert used[-1] > used[0]


def test_a_resumed_run_continues_with_its_rounds() -> None:
    A, U, k = extreme("opposite")
    W0, place = deepca.operators.linalg.random_orthonormal(A.d, k, seed=4), PLACES["star"]
    first = solve(DeEPCA(A, W0, network_of(place)), max_iter=25, stop=Tolerance(1e-9))
    assert first.status.code == "out_of_iterations"
    recorder = Recorder()
    second = solve(
        DeEPCA(A, W0, network_of(place)),
        max_iter=500,
        stop=Tolerance(1e-9),
        start=first.state,
        observers=[recorder],
    )
    assert recorder.steps[0].traffic.rounds == first.state.K
    assert second.status.code == "converged"
    assert worst_tangent(U, second.W) <= 1e-9


def test_the_default_mixer_suits_a_gossip_matrix_with_negative_eigenvalues() -> None:
    place = deepca.topology.ring(M, rule="metropolis")
    assert not place.positive_semidefinite
    stack = spectrum_problem(M, 8, spectrum(8, 2, decay=0.6), 5, heterogeneity=0.6)
    algorithm = DeEPCA(stack, deepca.operators.linalg.random_orthonormal(8, 2, seed=1), network_of(place))
    assert isinstance(algorithm.mix, Chebyshev)
    assert solve(algorithm, max_iter=400, stop=Tolerance(1e-9)).status.code == "converged"


def test_invalid_rounds_are_refused() -> None:
    with raises(ParameterError, parameter="rounds", value="many"):
        FastMix(rounds="many")  # type: ignore[arg-type]
    with raises(ParameterError, parameter="rounds", value="auto"):
        FastMix().rounds_at(3)
