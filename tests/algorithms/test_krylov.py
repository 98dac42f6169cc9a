"""Compare block Krylov iterations with numpy's eigh, in the simulator and with one agent per thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import deepca
from deepca import BlockKrylov, Tolerance
from deepca.algorithms import KrylovState
from deepca.errors import NetworkError, SumMismatch
from deepca.network import AgentNetwork, Network, make_private
from deepca.network.transports import MemoryHub
from deepca.operators import from_matrices, from_rows, split_rows
from deepca.solver.certificate.probing import probe
from deepca.solver.result import Result
from deepca.topology import Topology
from tests.support.engines import ENGINES, everyone, mine, network_of, whole
from tests.support.errors import raises
from tests.support.helpers import GRAPHS, AtIteration, random_psd_rows, worst_tangent
from tests.support.problems import orthogonal, spectrum, spectrum_problem
from tests.support.seeds import law_seeds

Array = npt.NDArray[np.float64]
RING = deepca.topology.ring(6)


def truth(stack: Array, k: int) -> tuple[Array, Array, Array]:
    """Compute all eigenvalues of the mean, its top-k and its other eigenvectors by numpy."""
    values, vectors = np.linalg.eigh(stack.mean(axis=0))
    return values[::-1], vectors[:, ::-1][:, :k], vectors[:, ::-1][:, k:]


def run(
    stack: Array,
    k: int,
    *,
    topology: Topology = RING,
    W0: Array | None = None,
    tol: float = 1e-10,
    max_iter: int = 3000,
    guards: int | None = None,
    seed: int = 1,
    network: Network | None = None,
) -> Result[KrylovState]:
    start = deepca.operators.linalg.random_orthonormal(stack.shape[-1], k, seed=seed) if W0 is None else W0
    algorithm = BlockKrylov(stack, start, network_of(topology) if network is None else network, guards=guards)
    return deepca.solve(algorithm, max_iter=max_iter, stop=Tolerance(tol))


def run_all(
    engine: str, stack: Array, k: int, *, topology: Topology = RING, announce_at: int | None = None
) -> list[Result[KrylovState]]:
    """Return the results of all agents of this process; optionally announce a new epoch after an iteration."""
    A, W0 = from_matrices(stack), deepca.operators.linalg.random_orthonormal(stack.shape[-1], k, seed=1)
    if engine != "threads":
        network = network_of(topology)
        announcing = [] if announce_at is None else [AtIteration(announce_at, lambda: network.announce_epoch(1))]
        return [deepca.solve(BlockKrylov(A, W0, network), max_iter=500, stop=Tolerance(1e-10), observers=announcing)]
    hub = MemoryHub(topology.n_agents, timeout=30.0)

    def work(network: AgentNetwork) -> Result[KrylovState]:
        observers = []
        if announce_at is not None and network.agent == 0:
            observers = [AtIteration(announce_at, lambda: hub.announce_epoch(1))]
        algorithm = BlockKrylov(A.agent(network.agent), W0, network)
        return deepca.solve(algorithm, max_iter=500, stop=Tolerance(1e-10), observers=observers)

    return deepca.run_agents(topology, work, hub=hub)


def steps(algorithm: BlockKrylov, count: int) -> list[KrylovState]:
    """Return all states of a run without a stop rule."""
    states = [algorithm.init()]
    for t in range(count):
        algorithm.network.begin(0, t)
        states.append(algorithm.step(states[-1]))
    return states


@dataclass(frozen=True)
class Case:
    """Matrices, k, and the attainable accuracy."""

    stack: Array
    k: int
    within: float = 1e-12


def falling(d: int, *head: float, rate: float = 0.9, below: float = 0.5) -> Array:
    """Return eigenvalues: the head, then a tail that begins at ``below`` times its last one."""
    return np.concatenate([head, head[-1] * below * rate ** np.arange(d - len(head))])


CASES: dict[str, Callable[[], Case]] = {
    "clear gap": lambda: Case(spectrum_problem(6, 20, spectrum(20, 3), 0), 3),
    "gap of 1e-4": lambda: Case(spectrum_problem(6, 20, falling(20, 1.0, 0.9, 0.8, below=1 - 1e-4), 1), 3, 1e-10),
    "gap of 1e-4, many": lambda: Case(
        spectrum_problem(6, 90, np.r_[1.0, 0.99, 0.98, 0.98 * (1 - 1e-4) * 0.999 ** np.arange(87)], 2), 3, 1e-10
    ),
    "multiple within k": lambda: Case(spectrum_problem(6, 20, falling(20, 2.0, 2.0, 2.0, 1.0), 3), 4),
    "all k equal": lambda: Case(spectrum_problem(6, 20, falling(20, 2.0, 2.0, 2.0, 2.0), 4), 4),
    "multiple outside": lambda: Case(spectrum_problem(6, 20, np.r_[2.0, 1.5, np.ones(18)], 5), 2),
    "rank is k": lambda: Case(spectrum_problem(6, 20, np.r_[2.0, 1.0, 0.5, np.zeros(17)], 6), 3),
    "k = 1": lambda: Case(spectrum_problem(6, 20, spectrum(20, 1), 7), 1),
    "k = d": lambda: Case(spectrum_problem(6, 12, spectrum(12, 3), 8), 12),
    "k = d - 1": lambda: Case(spectrum_problem(6, 12, spectrum(12, 11), 9), 11),
    "d = 1": lambda: Case(np.arange(1.0, 7.0).reshape(6, 1, 1), 1),
    "d = 2": lambda: Case(spectrum_problem(6, 2, np.array([2.0, 1.0]), 10), 1),
    "indefinite agents": lambda: Case(
        spectrum_problem(6, 20, spectrum(20, 3), 11, heterogeneity=3.0, indefinite=True), 3
    ),
    "large numbers": lambda: Case(1e12 * spectrum_problem(6, 20, spectrum(20, 3), 12), 3),
    "small numbers": lambda: Case(1e-12 * spectrum_problem(6, 20, spectrum(20, 3), 13), 3),
}


@pytest.mark.parametrize("name", CASES)
def test_the_top_of_the_spectrum_is_found_and_proven(name: str) -> None:
    """The true and the proven tangent are within the tolerance, and eigenvalues are exact to rounding."""
    case = CASES[name]()
    values, U, _ = truth(case.stack, case.k)
    result = run(case.stack, case.k)
    assert result.status.code == "converged", result.status
    assert result.certificate is not None
    assert result.certificate.proves(1e-10)
    assert worst_tangent(U, result.W) <= case.within
    assert worst_tangent(U, result.components) <= case.within
    np.testing.assert_allclose(
        result.eigenvalues, np.broadcast_to(values[: case.k], result.eigenvalues.shape), rtol=0, atol=1e-13 * values[0]
    )
    assert len({W.tobytes() for W in everyone(np.ascontiguousarray(result.W), 6)}) == 1


@pytest.mark.parametrize("graph", GRAPHS)
def test_the_answer_is_right_on_every_graph(graph: str) -> None:
    """Graphs range from a single agent to paths, whose averages take many rounds."""
    topology = GRAPHS[graph]()
    stack = spectrum_problem(
        topology.n_agents, 15, spectrum(15, 3), 20, heterogeneity=0.0 if topology.n_agents == 1 else 0.9
    )
    _, U, _ = truth(stack, 3)
    result = run(stack, 3, topology=topology)
    assert result.status.code == "converged"
    assert worst_tangent(U, result.W) <= 1e-12


@pytest.mark.parametrize("seed", law_seeds(12))
def test_random_problems_are_solved(seed: int) -> None:
    """d, k, the spectrum and the heterogeneity are random."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(3, 60))
    k = int(rng.integers(1, d))
    values = np.sort(rng.exponential(size=d))[::-1]
    values[k:] *= 0.8
    stack = spectrum_problem(6, d, values, seed, heterogeneity=float(rng.uniform(0.0, 0.95)))
    _, U, _ = truth(stack, k)
    result = run(stack, k, seed=seed)
    assert result.status.ok
    gap = (values[k - 1] - values[k]) / values[0]
    assert worst_tangent(U, result.W) <= 1e-13 / gap


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_matrices_of_rank_below_k_are_reported(rank: int) -> None:
    """The leading columns are right, and the others complete the basis."""
    k = 5
    stack = spectrum_problem(6, 20, np.r_[2.0 ** -np.arange(rank), np.zeros(20 - rank)], 30)
    _, U, _ = truth(stack, rank)
    result = run(stack, k)
    assert result.status.code == "below_rounding"  # for matrices, zero cannot be distinguished from rounding errors
    assert result.rank == rank
    assert result.certificate is not None
    assert result.certificate.n_known(1e-6) == rank
    assert worst_tangent(U, result.components[..., :rank]) <= 1e-12
    W = result.W[0]
    np.testing.assert_allclose(W.T @ W, np.eye(k), atol=1e-13)
    assert np.linalg.norm(U - W @ (W.T @ U)) <= 1e-12
    np.testing.assert_allclose(result.eigenvalues[0, rank:], 0.0, atol=1e-13)


def test_rows_of_rank_k_are_solved() -> None:
    """One row per agent and few directions overall."""
    rows = random_psd_rows(6, 1, 30, [3.0, 2.0, 1.0], seed=0)
    A = from_rows(rows, form="rows")
    W0 = deepca.operators.linalg.random_orthonormal(30, 3, seed=0)
    result = deepca.solve(BlockKrylov(A, W0, network_of(RING)), max_iter=100, stop=Tolerance(1e-10))
    assert result.status.code == "converged"
    U = np.linalg.svd(np.vstack(rows))[2][:3].T
    assert worst_tangent(U, result.W) <= 1e-12


# ---------------------------------------------------------------------------------------------------------- starts


def test_an_exact_start_is_confirmed_within_four_iterations() -> None:
    stack = spectrum_problem(6, 20, spectrum(20, 3), 0)
    _, U, _ = truth(stack, 3)
    result = run(stack, 3, W0=U)
    assert result.status.code == "converged"
    assert result.iterations <= 4
    assert worst_tangent(U, result.W) <= 1e-12


@pytest.mark.parametrize("guards", [None, 0, 1])
@pytest.mark.parametrize("which", [slice(0, 3), slice(-3, None)], ids=["next", "last"])
def test_a_start_orthogonal_to_the_answer_is_overcome(which: slice, guards: int | None) -> None:
    """Guard columns lead away from other eigenvectors; without guards, the run at least reports ``not_top``."""
    stack = spectrum_problem(6, 20, spectrum(20, 3), 0)
    _, U, others = truth(stack, 3)
    result = run(stack, 3, W0=others[:, which], guards=guards)
    if guards == 0 and result.status.code == "not_top":
        return
    assert result.status.code == "converged", result.status
    assert worst_tangent(U, result.W) <= 1e-12


@pytest.mark.parametrize(
    "values",
    [np.r_[np.full(5, 2.0), 0.5 * 0.9 ** np.arange(15)], np.r_[np.full(5, 2.0), np.zeros(15)]],
    ids=["tail", "rank 5"],
)
def test_a_start_orthogonal_to_a_multiple_eigenvalue_is_overcome(values: Array) -> None:
    """Five equal eigenvalues, five columns orthogonal to them, and two guards: random columns must be added."""
    stack = spectrum_problem(6, 20, values, 0)
    _, U, others = truth(stack, 5)
    result = run(stack, 5, W0=others[:, -5:])
    assert result.status.code == "converged", result.status
    assert worst_tangent(U, result.W) <= 1e-10


# ------------------------------------------------------------------------------------------------------ long runs


def slow(d: int, k: int, gap: float) -> Array:
    """Return matrices of four agents with λ_k slightly above a dense tail, so that many products are needed."""
    tail = (1.0 - gap) * (1.0 - 0.5 * np.arange(d - k) / (d - k))
    Q = orthogonal(d, 0)
    A = (Q * np.concatenate([np.full(k - 1, 1.5), [1.0], tail])) @ Q.T
    return np.asarray(np.array([0.1, 0.4, 1.5, 2.0])[:, None, None] * (A + A.T) / 2.0)


def test_thick_restarts_keep_the_ritz_vectors() -> None:
    """Q is truncated repeatedly but stays orthonormal; the largest Ritz value never falls; the answer is right."""
    stack = slow(250, 1, 1e-3)
    values, U, _ = truth(stack, 1)
    network = network_of(deepca.topology.complete(4))
    algorithm = BlockKrylov(stack, deepca.operators.linalg.random_orthonormal(250, 1, seed=0), network)
    states = steps(algorithm, 150)
    widths = [state.Q.shape[1] for state in states]
    cuts = sum(later < earlier for earlier, later in pairwise(widths))
    assert cuts >= 3
    assert max(widths) < 100  # far fewer than d
    A = stack.mean(axis=0)
    ritz = [float(state.W[0, :, 0] @ A @ state.W[0, :, 0]) for state in states]
    assert all(later >= earlier - 1e-13 for earlier, later in pairwise(ritz))
    assert ritz[-1] == pytest.approx(values[0], abs=1e-13)
    assert worst_tangent(U, states[-1].W) <= 1e-9
    for state in states:
        both = np.hstack([state.Q, state.P])
        assert np.abs(both.T @ both - np.eye(both.shape[1])).max() <= 1e-12
        if state.Q.shape[1]:
            assert np.abs(A @ state.Q - state.AQ).max() <= 1e-12  # AQ is updated, never recomputed


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("gap", [1e-2, 2.5e-3, 1e-3])
def test_a_slow_spectrum_is_proven(gap: float, k: int) -> None:
    """Rounding errors are far below the tolerance here, so the run must end with a proof."""
    stack = slow(250, k, gap)
    _, U, _ = truth(stack, k)
    result = run(stack, k, topology=deepca.topology.complete(4))
    assert worst_tangent(U, result.W) <= 1e-10
    assert result.certificate is not None
    assert result.status.code == "converged", result.status
    assert result.certificate.proves(1e-10)


def test_Q_stays_orthonormal_when_it_spans_the_whole_space() -> None:
    """Once Q has d columns, P is empty and further steps change nothing."""
    stack = spectrum_problem(6, 23, spectrum(23, 3, decay=0.7), 0)
    algorithm = BlockKrylov(stack, deepca.operators.linalg.random_orthonormal(23, 3, seed=0), network_of(RING))
    states = steps(algorithm, 12)
    for state in states[1:]:
        assert state.Q.shape[1] <= 23
        assert np.abs(state.Q.T @ state.Q - np.eye(state.Q.shape[1])).max() <= 1e-12
    assert states[-1].P.shape[1] == 0
    assert states[-1].t == 12
    np.testing.assert_array_equal(states[-1].W, states[-2].W)
    _, U, _ = truth(stack, 3)
    assert worst_tangent(U, states[-1].W) <= 1e-12


@pytest.mark.parametrize("d", [60, 100, 140])
def test_a_run_ends_once_nothing_is_left_to_find(d: int) -> None:
    """With k = d the first block spans everything, and W does not move any more, not even by rounding."""
    stack = spectrum_stack(d)
    result = run(stack, d, tol=1e-9, max_iter=50)
    assert result.status.ok
    assert result.iterations <= 8


def spectrum_stack(d: int) -> Array:
    rows = np.random.default_rng(3).standard_normal((6, 2 * d, d)) * np.geomspace(3.0, 0.3, d)
    return np.asarray(np.swapaxes(rows, -1, -2) @ rows / (2 * d))


def test_the_same_state_gives_the_same_next_state() -> None:
    """Steps are pure: they do not modify their state."""
    stack = spectrum_problem(6, 20, spectrum(20, 3), 0)
    algorithm = BlockKrylov(stack, deepca.operators.linalg.random_orthonormal(20, 3, seed=0), network_of(RING))
    state = steps(algorithm, 2)[-1]
    algorithm.network.begin(0, 2)
    one = algorithm.step(state)
    algorithm.network.begin(0, 2)
    other = algorithm.step(state)
    for name in ("W", "S", "Q", "AQ", "P"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_a_run_can_be_resumed_from_its_state() -> None:
    """Two parts take as many iterations as one run."""
    stack = spectrum_problem(6, 40, spectrum(40, 2, gap=0.97, decay=0.98), 0)
    W0 = deepca.operators.linalg.random_orthonormal(40, 2, seed=0)
    _, U, _ = truth(stack, 2)
    first = deepca.solve(BlockKrylov(stack, W0, network_of(RING)), max_iter=3, certify=False)
    second = deepca.solve(
        BlockKrylov(stack, W0, network_of(RING)), max_iter=100, stop=Tolerance(1e-10), start=first.state
    )
    whole = run(stack, 2, W0=W0)
    assert second.status.code == whole.status.code == "converged"
    assert second.iterations == whole.iterations - 3
    assert worst_tangent(U, second.W) <= 1e-10


def test_block_krylov_needs_far_fewer_iterations_than_the_power_method() -> None:
    """The number of iterations is about the square root of that of DeEPCA."""
    stack = spectrum_problem(6, 60, falling(60, 1.0, 0.99, below=0.97, rate=0.99), 0)
    W0 = deepca.operators.linalg.random_orthonormal(60, 2, seed=0)
    power = deepca.solve(deepca.DeEPCA(stack, W0, network_of(RING)), max_iter=5000, stop=Tolerance(1e-8), certify=False)
    krylov = run(stack, 2, W0=W0, tol=1e-8)
    assert power.status.ok
    assert krylov.status.code == "converged"
    assert krylov.iterations * 8 < power.iterations


# ------------------------------------------------------------------------------------------------- not unique, zero


@pytest.mark.parametrize(
    ("values", "k", "choices"),
    [
        (np.r_[2.0, 1.0, 1.0, 1.0, 0.5 * 0.9 ** np.arange(16)], 2, ("k = 1", "k = 4")),
        (np.r_[2.0, 2.0, 1.0 * 0.9 ** np.arange(18)], 1, ("k = 2",)),
        (np.ones(20), 3, ()),
    ],
    ids=["three equal", "two equal on top", "all equal"],
)
def test_the_advice_without_a_gap_names_other_k(values: Array, k: int, choices: tuple[str, ...]) -> None:
    """No subspace is unique; the advice names k that have a gap."""
    result = run(spectrum_problem(6, 20, values, 0), k)
    assert result.status.code == "not_unique"
    assert not result.status.ok
    for choice in choices:
        assert choice in result.status.advice
    np.testing.assert_allclose(result.eigenvalues[0], values[:k], rtol=1e-12)


def test_advice_for_the_identity_names_only_k_that_exist() -> None:
    """All twenty eigenvalues are equal: the only k with a unique answer is 20."""
    result = run(np.broadcast_to(np.eye(20), (6, 20, 20)).copy(), 3)
    assert result.status.code == "not_unique"
    proof = result.certificate
    assert proof is not None
    assert proof.smaller_k is None
    assert proof.larger_k in (None, 20)


def test_all_zero_matrices_are_reported_as_rank_zero() -> None:
    result = run(np.zeros((6, 8, 8)), 2)
    assert result.status.code == "rank_deficient"
    assert result.rank == 0
    assert not result.eigenvalues.any()


# ------------------------------------------------------------------------------------------- proof of the answer


@pytest.mark.parametrize("accuracy", [1e-2, 1e-6, 2e-9, 1e-14])
@pytest.mark.parametrize(("n", "d", "k"), [(30, 60, 11), (8, 100, 1), (25, 40, 3), (60, 20, 3)])
def test_probes_never_exceed_the_next_eigenvalue(n: int, d: int, k: int, accuracy: float) -> None:
    """Even with fewer rows than columns, no Ritz value exceeds λ_{k+1} by more than its error bound."""
    X = np.random.default_rng(0).standard_normal((n, d)) * 0.9 ** np.arange(d)
    values, vectors = np.linalg.eigh(X.T @ X / n)
    A = from_rows(split_rows(X, 6), scale=6.0 / n).agents(mine(6))
    top = np.ascontiguousarray(vectors[:, ::-1][:, :k])
    for seed in range(8):
        for found, _ in probe(A, top, network_of(RING), seed=seed, accuracy=accuracy, rounding=3e-15):
            assert found.values[0] <= values[-k - 1] + 4.0 * found.error + 1e-12


# ---------------------------------------------------------------------------------------------------------- epochs


@pytest.mark.parametrize("at", [1, 2, 4])
def test_an_announced_epoch_restarts_from_w(at: int) -> None:
    """W is kept, everything else is recomputed, and the answer is the same."""
    stack = spectrum_problem(6, 40, spectrum(40, 2, gap=0.95, decay=0.97), 0)
    _, U, _ = truth(stack, 2)
    network = network_of(RING)
    algorithm = BlockKrylov(stack, deepca.operators.linalg.random_orthonormal(40, 2, seed=1), network)
    announce = AtIteration(at, lambda: network.announce_epoch(1))
    result = deepca.solve(algorithm, max_iter=200, stop=Tolerance(1e-10), observers=[announce])
    assert announce.done
    assert result.restarts == 1
    assert network.epoch == 1
    assert result.status.code == "converged"
    assert worst_tangent(U, result.W) <= 1e-11


@pytest.mark.parametrize("at", [1, 3])
def test_an_epoch_announced_to_separate_agents_restarts_all_of_them(at: int) -> None:
    """Agents may be in adjacent iterations; all end with the same W."""
    stack = spectrum_problem(6, 40, spectrum(40, 2, gap=0.95, decay=0.97), 0)
    _, U, _ = truth(stack, 2)
    agents = whole(run_all(ENGINES[-1], stack, 2, announce_at=at), 6)
    assert agents.restarts == 1
    assert agents.status.code == "converged"
    assert len({np.ascontiguousarray(W).tobytes() for W in agents.W}) == 1
    assert worst_tangent(U, agents.W) <= 1e-11


def test_an_epoch_with_changed_data_gives_the_new_answer() -> None:
    """All matrices change together with the epoch."""
    values = spectrum(30, 2, gap=0.9, decay=0.95)
    stack = spectrum_problem(6, 30, values, 0)
    later = spectrum_problem(6, 30, values, 99)
    A = from_matrices(stack[mine(6)].copy())
    network = network_of(RING)

    def change() -> None:
        A.stack[...] = later[mine(6)]
        network.announce_epoch(1)

    algorithm = BlockKrylov(A, deepca.operators.linalg.random_orthonormal(30, 2, seed=1), network)
    result = deepca.solve(algorithm, max_iter=200, stop=Tolerance(1e-10), observers=[AtIteration(2, change)])
    _, U, _ = truth(later, 2)
    assert result.status.code == "converged"
    assert worst_tangent(U, result.W) <= 1e-11


@pytest.mark.parametrize(("d", "gap", "cut"), [(30, 1e-3, 4), (120, 1e-2, 20), (200, 1e-3, 40)])
def test_the_advice_of_a_run_cut_off_suffices_and_is_not_excessive(d: int, gap: float, cut: int) -> None:
    """The estimate follows from polynomials in A and the width of a block, not from λ_{k+1}/λ_k."""
    Q = orthogonal(d, 0)
    A = (Q * np.r_[2.0, 1.5, 1.0, np.linspace(1.0 - gap, 0.02, d - 3)]) @ Q.T
    stack = np.repeat([(A + A.T) / 2.0], 6, axis=0)
    enough = run(stack, 3, tol=1e-8).iterations
    first = run(stack, 3, tol=1e-8, max_iter=cut)
    assert first.status.code == "out_of_iterations", first.status
    assert first.status.more is not None
    assert first.status.more <= 5 * enough
    assert run(stack, 3, tol=1e-8, max_iter=cut + 2 * first.status.more).status.ok


# ---------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("guards", [-1, -5])
def test_a_negative_number_of_guards_is_refused(guards: int) -> None:
    W0 = orthogonal(5, 0)[:, :2]
    with raises(deepca.errors.ParameterError, parameter="guards", value=guards):
        BlockKrylov(np.eye(5)[None].repeat(6, 0), W0, network_of(RING), guards=guards)


@pytest.mark.parametrize(
    "W0",
    [np.eye(5)[:, :2] * 2.0, np.full((5, 2), np.nan), np.eye(4)[:, :2], np.zeros((5, 0))],
    ids=["not orthonormal", "NaN", "other d", "no columns"],
)
def test_invalid_starts_are_refused(W0: Any) -> None:
    with pytest.raises(deepca.errors.StartError):
        BlockKrylov(np.eye(5)[None].repeat(6, 0), W0, network_of(RING))


@pytest.mark.skipif("threads" not in ENGINES, reason="agents with rows of their own")
@pytest.mark.parametrize("private", [False, True])
def test_an_agent_that_changes_its_rows_contradicts_symmetry(private: bool) -> None:
    """Its products still add up, but ``Qᵀ(AP)`` is no longer ``(AQ)ᵀP``; all agents notice, none can be blamed."""
    stack, W0 = random_stack(), deepca.operators.linalg.random_orthonormal(12, 2, seed=1)

    def work(network: AgentNetwork) -> type[Exception] | None:
        if private:
            make_private(network)
        before, after = (BlockKrylov(A[network.agent], W0, network) for A in (stack, stack))
        state = before.step(before.step(before.init()))
        if network.agent == 2:
            after.A = from_matrices(1.01 * stack[2])
        after._agreed = before._agreed
        try:
            after.step(state)
        except NetworkError as error:
            return type(error)
        return None

    assert deepca.run_agents(RING, work) == [SumMismatch if private else NetworkError] * 6


def random_stack() -> Array:
    rows = np.random.default_rng(8).standard_normal((6, 30, 12)) * np.geomspace(3.0, 0.3, 12)
    return np.asarray(np.swapaxes(rows, -1, -2) @ rows)
