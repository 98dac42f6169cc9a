"""Test the loop: iterations, resuming, stopping by agreement, status and advice, and eigenvalues."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import deepca
from deepca import CPCA, Chebyshev, DeEPCA, DePCA, FastMix, Gossip, Tolerance
from deepca._util.typing import Array, Orthonormalise
from deepca.algorithms import QRSignAdjust, State
from deepca.network import Network
from deepca.solver.result import StatusCode
from deepca.topology import Topology
from tests.support.engines import everyone, network_of, over_mpi, run_separately
from tests.support.helpers import Recorder, worst_tangent
from tests.support.problems import pooled_answer, random_rows, spectrum, spectrum_problem
from tests.support.seeds import law_seeds

D, K_COMPONENTS, M = 8, 3, 6
GAPS = [0.5, 0.1, 0.05] if over_mpi() else [0.5, 0.3, 0.1, 0.05, 0.02, 0.01]  # the smallest take thousands of rounds
AlgorithmMaker = Callable[[], Any]


def stack_of(m: int = M, *, gap: float = 0.4, decay: float = 0.7, heterogeneity: float = 0.4, seed: int = 1) -> Array:
    return spectrum_problem(m, D, spectrum(D, K_COMPONENTS, gap=gap, decay=decay), seed, heterogeneity=heterogeneity)


def start(seed: int = 2) -> Array:
    return deepca.operators.linalg.random_orthonormal(D, K_COMPONENTS, seed=seed)


def network(m: int = M) -> Network:
    return network_of(deepca.topology.erdos_renyi(m, 0.6, seed=0))


MAKERS: dict[str, AlgorithmMaker] = {
    "DeEPCA": lambda: DeEPCA(stack_of(), start(), network(), FastMix(4)),
    "DeEPCA, rows": lambda: DeEPCA(
        deepca.operators.from_rows(random_rows(M, 20, D, 3), form="rows"), start(), network(), Chebyshev(3)
    ),
    "DeEPCA, growing K": lambda: DeEPCA(stack_of(), start(), network(), Gossip(lambda t: 2 + t // 4)),
    "DePCA": lambda: DePCA(stack_of(), start(), network(), Gossip(3)),
    "CPCA": lambda: CPCA(stack_of().mean(axis=0), start()),
}


# --------------------------------------------------------------------------------------- iterations and resuming


@pytest.mark.parametrize("name", MAKERS)
def test_resuming_equals_an_uninterrupted_run(name: str) -> None:
    """12 iterations followed by 18 from the state give the same bits as 30 at once."""
    make = MAKERS[name]
    whole = deepca.solve(make(), max_iter=30)
    first = deepca.solve(make(), max_iter=12)
    second = deepca.solve(make(), max_iter=18, start=first.state)
    assert (first.iterations, second.iterations, second.state.t) == (12, 18, 30)
    np.testing.assert_array_equal(second.W, whole.W)
    np.testing.assert_array_equal(second.eigenvalues, whole.eigenvalues)
    for field in fields(whole.state):
        np.testing.assert_array_equal(getattr(second.state, field.name), getattr(whole.state, field.name))


def test_a_converged_run_can_be_resumed_with_a_smaller_tolerance() -> None:
    """The resumed run takes fewer iterations than one from the start."""
    stack = stack_of()
    _, U = pooled_answer(stack, K_COMPONENTS)
    net = network()
    coarse = deepca.solve(DeEPCA(stack, start(), net, FastMix(4)), max_iter=500, stop=Tolerance(1e-4))
    fine = deepca.solve(
        DeEPCA(stack, start(), net, FastMix(4)), max_iter=500, stop=Tolerance(1e-10), start=coarse.state
    )
    whole = deepca.solve(DeEPCA(stack, start(), network(), FastMix(4)), max_iter=500, stop=Tolerance(1e-10))
    assert coarse.status.code == fine.status.code == whole.status.code == "converged"
    assert worst_tangent(U, everyone(coarse.W, M)) > 1e-10 >= worst_tangent(U, everyone(fine.W, M))
    assert fine.iterations < whole.iterations
    assert abs(fine.state.t - whole.state.t) <= 8  # the finer rule needs a little history of its own


@pytest.mark.parametrize("name", MAKERS)
def test_steps_are_pure(name: str) -> None:
    """A step accepts read-only arrays, leaves them unchanged, and gives the same result for the same state."""
    algorithm = MAKERS[name]()
    state: State = algorithm.step(algorithm.step(algorithm.init()))
    kept = {f.name: np.copy(getattr(state, f.name)) for f in fields(state)}
    for f in fields(state):
        if isinstance(value := getattr(state, f.name), np.ndarray):
            base = value if value.base is None else value.base
            value.flags.writeable = False
            base.flags.writeable = False
    one, two = algorithm.step(state), algorithm.step(state)
    assert one.t == two.t == 3
    for f in fields(state):
        np.testing.assert_array_equal(getattr(state, f.name), kept[f.name])
        np.testing.assert_array_equal(getattr(one, f.name), getattr(two, f.name))
    assert not np.shares_memory(one.W, state.W)


def test_a_run_without_a_stop_rule_takes_exactly_max_iter_iterations() -> None:
    """Without a rule, the loop is the paper's."""
    for count in (1, 2, 17):
        result = deepca.solve(DeEPCA(stack_of(), start(), network(), FastMix(3)), max_iter=count)
        assert result.iterations == result.state.t == count
        assert result.traffic.rounds == 3 * count


def test_init_accepts_another_start() -> None:
    """``init(W)`` starts from W instead of W0: started from the answer, it stays there."""
    stack = stack_of()
    _, U = pooled_answer(stack, K_COMPONENTS)
    algorithm = DeEPCA(stack, start(), network(), FastMix(60))
    first = algorithm.init(U)
    np.testing.assert_array_equal(everyone(first.W, M), np.broadcast_to(U, (M, D, K_COMPONENTS)))
    assert worst_tangent(U, deepca.solve(algorithm, max_iter=1, start=first).W) <= 1e-12


# ------------------------------------------------------------------------------------------------- the stop rule


def test_all_agents_stop_in_the_same_iteration_without_knowing_the_answer() -> None:
    """Agents at the ends of a path have very different data, but the rule sees only agreed numbers."""
    topology = deepca.topology.path(5)
    rows = random_rows(5, [40, 3, 200, 7, 25], D, seed=4, decay=0.6)
    A = deepca.operators.from_rows(rows)
    _, U = pooled_answer(A.mean(), K_COMPONENTS)
    apart = run_separately(
        topology,
        A,
        lambda A_j, net: DeEPCA(A_j, start(), net, FastMix(12)),
        max_iter=500,
        stop=Tolerance(1e-7),
    )
    assert {result.status.code for result in apart.parts} == {"converged"}
    assert len({result.iterations for result in apart.parts}) == 1
    assert apart.whole.iterations < 500
    assert worst_tangent(U, apart.whole.W) <= 1e-7


@pytest.mark.parametrize("tol", [1e-4, 1e-9])
@pytest.mark.parametrize("rounds", [4, 9])
@pytest.mark.parametrize("gap", GAPS)
def test_the_tolerance_is_reached_at_the_worst_agent(gap: float, rounds: int, tol: float) -> None:
    """For large and small gaps, the true angle is within the tolerance if the status is "converged"."""
    m = 10
    values = np.array([3.0, 2.0, 1.0, *((1.0 - gap) * np.linspace(1.0, 0.1, D - 3))])
    stack = spectrum_problem(m, D, values, seed=int(1000 * gap), heterogeneity=0.5)
    _, U = pooled_answer(stack, K_COMPONENTS)
    topology = deepca.topology.erdos_renyi(m, 0.5, seed=int(1000 * gap))
    result = deepca.solve(
        DeEPCA(stack, start(), network_of(topology), FastMix(rounds)), max_iter=5000, stop=Tolerance(tol)
    )
    assert result.status.code == "converged"
    assert worst_tangent(U, result.W) <= tol


@pytest.mark.parametrize(
    ("topology", "rounds"),
    [
        (deepca.topology.ring(12), 10),
        (deepca.topology.star(9), 8),
        (deepca.topology.path(8), 12),
        (deepca.topology.hypercube(4), 5),
        (deepca.topology.complete(6), 1),
    ],
    ids=lambda value: value.name if isinstance(value, Topology) else str(value),
)
@pytest.mark.parametrize("seed", law_seeds(3, start=1))
def test_the_tolerance_is_reached_on_other_graphs(topology: Topology, rounds: int, seed: int) -> None:
    """Graphs are sparse and dense, agents very different, and eigenvalues in the top k close."""
    m = topology.n_agents
    values = np.array([1.0, 0.97, 0.95, 0.8, 0.5, 0.4, 0.2, 0.0])
    stack = spectrum_problem(m, D, values, seed=seed, heterogeneity=0.9)
    _, U = pooled_answer(stack, K_COMPONENTS)
    result = deepca.solve(
        DeEPCA(stack, start(seed), network_of(topology), FastMix(rounds)), max_iter=3000, stop=Tolerance(1e-8)
    )
    assert result.status.code == "converged"
    assert worst_tangent(U, result.W) <= 1e-8


def test_a_run_cut_short_is_not_reported_as_converged() -> None:
    """Whenever the run is cut, even before piggybacked numbers have arrived, "converged" means within the tolerance."""
    m, tol = 16, 1e-5
    topology = deepca.topology.ring(m)  # a diameter of 8: with one round, agreed numbers are 8 iterations old
    values = np.array([3.0, 2.0, 1.0, 0.95, 0.5, 0.3, 0.2, 0.1])
    stack = spectrum_problem(m, D, values, seed=3, heterogeneity=0.02)
    _, U = pooled_answer(stack, K_COMPONENTS)
    net = network_of(topology)
    ratios, codes = [], []
    for max_iter in range(208, 290, 24 if over_mpi() else 4):
        result = deepca.solve(DeEPCA(stack, start(), net, Gossip(1)), max_iter=max_iter, stop=Tolerance(tol))
        codes.append(result.status.code)
        if result.status.code == "converged":
            ratios.append(worst_tangent(U, result.W) / tol)
    assert {"converged"} < set(codes) <= {"converged", "out_of_iterations", "disagreement"}
    assert max(ratios) <= 1.0  # it is proven


# --------------------------------------------------------------------------------------------- status and advice


def test_too_few_rounds_are_named_as_the_cause() -> None:
    """DePCA with few rounds stalls at a disagreement; the advice is to raise rounds."""
    topology = deepca.topology.path(8)
    stack = stack_of(8, heterogeneity=0.9)
    result = deepca.solve(DePCA(stack, start(), network_of(topology), FastMix(3)), max_iter=200, stop=Tolerance(1e-8))
    assert result.status.code == "disagreement"
    assert not result.status.ok
    assert "rounds" in result.status.advice
    assert result.iterations == 200
    W = everyone(result.W, 8)
    spread = max(
        float(scipy.linalg.norm(a @ a.T - b @ b.T)) for a in W for b in W
    )  # the largest distance between agents
    assert spread > 1e-8
    assert spread / 30 <= result.status.numbers["disagreement"] <= spread * 30


def test_too_few_rounds_are_also_named_without_a_stop_rule() -> None:
    """The run has a max_iter only."""
    topology = deepca.topology.path(8)
    stack = stack_of(8, heterogeneity=0.9)
    result = deepca.solve(DePCA(stack, start(), network_of(topology), FastMix(3)), max_iter=200)
    assert result.status.code == "disagreement"
    assert not result.status.ok
    assert "rounds" in result.status.advice


@pytest.mark.parametrize("gap", [0.2, 0.05])
def test_running_out_of_iterations_says_how_many_more_are_needed(gap: float) -> None:
    """That number of iterations reaches the tolerance, and four fifths of it do not."""
    tol = 1e-7
    values = np.array([3.0, 2.0, 1.0, *((1.0 - gap) * np.linspace(1.0, 0.1, D - 3))])
    stack = spectrum_problem(M, D, values, seed=5, heterogeneity=0.3)
    _, U = pooled_answer(stack, K_COMPONENTS)

    def algorithm() -> DeEPCA:
        return DeEPCA(stack, start(), network(), FastMix(8))

    result = deepca.solve(algorithm(), max_iter=round(6 / gap), stop=Tolerance(tol))
    assert result.status.code == "out_of_iterations"
    assert not result.status.ok
    assert "max_iter" in result.status.advice
    more = result.status.more
    assert more is not None

    def after(iterations: int) -> float:
        return worst_tangent(U, everyone(deepca.solve(algorithm(), max_iter=iterations, start=result.state).W, M))

    assert after(int(1.2 * more) + 1) <= tol
    assert after(int(0.8 * more) - 1) > tol


def test_a_run_without_a_stop_rule_that_has_settled_is_completed() -> None:
    """The status is the same at the rounding floor and before it."""
    for max_iter in (40, 300):
        result = deepca.solve(DeEPCA(stack_of(), start(), network(), FastMix(6)), max_iter=max_iter)
        assert result.status.code == "completed"
        assert result.status.ok
        assert result.status.numbers["iterations"] == max_iter


def test_a_run_without_a_stop_rule_that_has_not_settled_is_out_of_iterations() -> None:
    """Five iterations are not enough to settle."""
    result = deepca.solve(DeEPCA(stack_of(gap=0.9), start(), network(), FastMix(6)), max_iter=5)
    assert result.status.code == "out_of_iterations"
    assert not result.status.ok
    assert "max_iter" in result.status.advice or "rounds" in result.status.advice


def test_a_tolerance_below_rounding_ends_at_the_floor() -> None:
    """The run ends on its own, and the answer is as accurate as rounding allows."""
    stack = stack_of()
    _, U = pooled_answer(stack, K_COMPONENTS)
    result = deepca.solve(DeEPCA(stack, start(), network(), FastMix(6)), max_iter=2000, stop=Tolerance(1e-17))
    assert result.status.code == "rounding_floor"
    assert result.status.ok
    assert result.iterations < 500
    assert result.status.numbers["tolerance"] == 1e-17
    assert worst_tangent(U, result.W) <= 1e-13


def test_a_status_is_its_code_followed_by_its_advice() -> None:
    """In the text of a status, the code is written with spaces."""
    result = deepca.solve(DeEPCA(stack_of(), start(), network(), FastMix(6)), max_iter=500, stop=Tolerance(1e-6))
    assert str(result.status).startswith("converged: ")
    assert result.status.advice in str(result.status)
    assert deepca.Status(StatusCode.RANK_DEFICIENT, "x").ok


# --------------------------------------------------------------------------------------------------- eigenvalues


@pytest.mark.parametrize("name", ["DeEPCA", "DeEPCA, rows", "CPCA"])
def test_eigenvalues_are_those_of_the_pooled_matrix(name: str) -> None:
    """Eigenvalues at every agent are compared, in descending order, with scipy."""
    algorithm = MAKERS[name]()
    pooled = everyone(algorithm.A.dense(), M).mean(axis=0) if algorithm.A.batch else algorithm.A.mean()
    expected = scipy.linalg.eigh(pooled, eigvals_only=True)[::-1][:K_COMPONENTS]
    result = deepca.solve(algorithm, max_iter=400)
    assert result.eigenvalues.shape == (*algorithm.network.batch, K_COMPONENTS)
    np.testing.assert_allclose(
        result.eigenvalues, np.broadcast_to(expected, result.eigenvalues.shape), rtol=1e-12, atol=0
    )


def test_eigenvalues_take_no_additional_round() -> None:
    """All gossip rounds belong to the iterations."""
    result = deepca.solve(DeEPCA(stack_of(), start(), network(), FastMix(4)), max_iter=300, stop=Tolerance(1e-6))
    assert result.status.code == "converged"
    assert result.traffic.rounds == 4 * result.iterations
    assert result.traffic.control_rounds == 0


def test_negative_eigenvalues_are_sorted() -> None:
    """Power iterations on an indefinite mean give the eigenvalues largest in modulus, in descending order."""
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((5, 5)))[0]
    A = (Q * np.array([3.0, -2.0, 1.0, 0.5, 0.1])) @ Q.T
    A = (A + A.T) / 2
    result = deepca.solve(CPCA(A, deepca.operators.linalg.random_orthonormal(5, 2, seed=0)), max_iter=200)
    np.testing.assert_allclose(result.eigenvalues, [3.0, -2.0], atol=1e-10)


# --------------------------------------------------------------------------------------------------- the baselines


def test_cpca_equals_orthogonal_iteration() -> None:
    """The textbook loop with numpy's QR gives the same, up to signs."""
    A, W0 = stack_of().mean(axis=0), start()
    Q = W0
    for _ in range(25):
        Q = np.linalg.qr(A @ Q)[0]
    result = deepca.solve(CPCA(A, W0, QRSignAdjust(W0)), max_iter=25)
    np.testing.assert_allclose(np.abs(np.einsum("dk,dk->k", Q, result.W)), 1.0, atol=1e-12)
    assert worst_tangent(Q, result.W) <= 1e-12
    assert (np.einsum("dk,dk->k", result.W, W0) >= 0).all()  # SignAdjust
    assert worst_tangent(Q, deepca.solve(CPCA(A, W0), max_iter=25).W) <= 1e-12  # whatever the basis


def test_deepca_equals_algorithm_1_as_printed() -> None:
    """The reference computes agent by agent, from ``S⁰ = W⁰, A_j W^{−1} := W⁰``, with FastMix and SignAdjust."""
    m, T, K = 5, 15, 3
    topology = deepca.topology.path(m)
    stack, W0 = stack_of(m), start()
    L = topology.gossip_matrix
    lam2 = np.linalg.eigvalsh(L)[-2]
    root = np.sqrt(1 - lam2**2)
    eta = (1 - root) / (1 + root)
    W, S, AW = [W0] * m, [W0] * m, [W0] * m
    for _ in range(T):
        new = [stack[j] @ W[j] for j in range(m)]
        S = [S[j] + new[j] - AW[j] for j in range(m)]
        AW, previous = new, S
        for _ in range(K):
            mixed = [(1 + eta) * sum(L[j, i] * S[i] for i in range(m)) - eta * previous[j] for j in range(m)]
            previous, S = S, mixed
        W = [np.linalg.qr(S[j])[0] for j in range(m)]
        W = [W[j] * np.where((W[j] * W0).sum(axis=0) < 0, -1.0, 1.0) for j in range(m)]
    algorithm = DeEPCA(stack, W0, network_of(topology), FastMix(K), QRSignAdjust(W0))
    result = deepca.solve(algorithm, max_iter=T)
    np.testing.assert_allclose(everyone(result.W, m), np.stack(W), atol=1e-12)
    np.testing.assert_allclose(everyone(result.state.S, m), np.stack(S), atol=1e-12)


def test_depca_mixes_the_local_products_only() -> None:
    """The reference is the recurrence with plain gossip, in which K grows with t."""
    m, T = 5, 12
    topology = deepca.topology.ring(m)
    stack, W0, L = stack_of(m), start(), topology.gossip_matrix
    W = np.broadcast_to(W0, (m, D, K_COMPONENTS))
    for t in range(T):
        S = np.einsum("ij,jdk->idk", np.linalg.matrix_power(L, 1 + t // 2), stack @ W)
        W = np.stack([np.linalg.qr(s)[0] for s in S])
        W = W * np.where((W * W0).sum(axis=1, keepdims=True) < 0, -1.0, 1.0)
    algorithm = DePCA(stack, W0, network_of(topology), Gossip(lambda t: 1 + t // 2), QRSignAdjust(W0))
    result = deepca.solve(algorithm, max_iter=T)
    np.testing.assert_allclose(everyone(result.W, m), W, atol=1e-12)
    assert result.traffic.rounds == sum(1 + t // 2 for t in range(T))


def test_a_growing_number_of_rounds_takes_depca_further_than_a_fixed_one() -> None:
    """A fixed K stalls, a growing one does not; DeEPCA is exact with the same few rounds."""
    topology = deepca.topology.ring(8)
    stack = stack_of(8, heterogeneity=0.8)
    _, U = pooled_answer(stack, K_COMPONENTS)

    def tangent(algorithm: DeEPCA | DePCA) -> float:
        return worst_tangent(U, everyone(deepca.solve(algorithm, max_iter=150).W, 8))

    fixed = tangent(DePCA(stack, start(), network_of(topology), FastMix(5)))
    growing = tangent(DePCA(stack, start(), network_of(topology), FastMix(lambda t: 5 + t // 5)))
    tracked = tangent(DeEPCA(stack, start(), network_of(topology), FastMix(5)))
    assert fixed > 1e-5
    assert growing < 1e-2 * fixed
    assert tracked <= 1e-12


@pytest.mark.parametrize(
    "orthonormalise", [deepca.operators.linalg.polar, deepca.operators.linalg.qr, QRSignAdjust(start())]
)
def test_every_orthonormalisation_gives_the_same_subspace(orthonormalise: Orthonormalise) -> None:
    """The choices are the polar factor, QR, and QR with SignAdjust."""
    stack = stack_of()
    _, U = pooled_answer(stack, K_COMPONENTS)
    result = deepca.solve(
        DeEPCA(stack, start(), network(), FastMix(5), orthonormalise=orthonormalise),
        max_iter=120,
    )
    assert worst_tangent(U, result.W) <= 1e-12
    gram = np.swapaxes(result.W, -1, -2) @ result.W
    np.testing.assert_allclose(gram, np.broadcast_to(np.eye(K_COMPONENTS), gram.shape), atol=1e-13)


def test_the_basis_is_orthonormal_in_every_iteration() -> None:
    """Every W that an observer sees has orthonormal columns."""
    recorder = Recorder()
    deepca.solve(DeEPCA(stack_of(), start(), network(), FastMix(2)), max_iter=40, observers=[recorder])
    for step in recorder.steps:
        gram = np.swapaxes(step.after.W, -1, -2) @ step.after.W
        np.testing.assert_allclose(gram, np.broadcast_to(np.eye(K_COMPONENTS), gram.shape), atol=1e-13)
