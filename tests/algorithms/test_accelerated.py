"""Check accelerated DeEPCA against scipy's eigh, on adversarial spectra, and for its number of rounds."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.linalg
from hypothesis import example, given
from hypothesis import strategies as st

import deepca
from deepca import AcceleratedDeEPCA, Chebyshev, DeEPCA, FastMix, SimulatedNetwork, Tolerance, topology
from deepca.algorithms import AcceleratedState
from deepca.consensus.mixers import PositiveChebyshev
from deepca.errors import ParameterError
from deepca.network import AgentNetwork, Network
from deepca.network.transports import MemoryHub
from deepca.network.transports.base import Message, Tag, Transport
from deepca.network.transports.memory import MemoryTransport
from deepca.operators import Operator, from_matrices, from_rows
from deepca.operators.linalg import random_orthonormal
from deepca.solver.observers import Trace
from deepca.solver.result import Result
from deepca.topology import Topology
from tests.laws.strategies import quick, seeds
from tests.support.engines import (
    ENGINES,
    everyone,
    mine,
    network_of,
    of_all,
    over_mpi,
    payload,
    total,
)
from tests.support.errors import raises
from tests.support.helpers import GRAPHS, AtIteration, Recorder, worst_tangent
from tests.support.problems import orthogonal, spectrum_problem, symmetric_noise

Array = npt.NDArray[np.float64]
EPS = float(np.finfo(np.float64).eps)
PAPER = topology.erdos_renyi(20, 0.4, seed=1)
RING = topology.ring(12)


def top(stack: Array, k: int) -> Array:
    """Compute the top-k eigenvectors of the mean by scipy."""
    d = stack.shape[-1]
    return np.asarray(scipy.linalg.eigh(stack.mean(axis=0), subset_by_index=(d - k, d - 1))[1])


def agents(place: Topology, eigenvalues: npt.ArrayLike, heterogeneity: float = 0.5, seed: int = 0) -> Array:
    """Return ``A_j`` with that mean spectrum; heterogeneity is relative to its largest eigenvalue."""
    values = np.asarray(eigenvalues, dtype=np.float64)
    Q = orthogonal(values.size, seed)
    return np.asarray(
        (Q * values) @ Q.T + heterogeneity * values.max() * symmetric_noise(place.n_agents, values.size, seed)
    )


def run(
    stack: Array | Operator, k: int, place: Topology = PAPER, *, tol: float = 1e-10, max_iter: int = 600, **more: Any
) -> Result[AcceleratedState]:
    A = stack if isinstance(stack, Operator) else from_matrices(stack)
    observers = more.pop("observers", ())
    algorithm = AcceleratedDeEPCA(A, random_orthonormal(A.d, k, seed=1), network_of(place), **more)
    return deepca.solve(algorithm, max_iter=max_iter, stop=Tolerance(tol), observers=observers)


# ------------------------------------------------------------------------------------------------------- exactness


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("k", [1, 3])
def test_the_answer_equals_the_pooled_answer_on_every_graph(graph: str, k: int) -> None:
    place = GRAPHS[graph]()
    stack = agents(place, 1.0 / np.arange(1.0, 13.0), 0.3)
    result = run(stack, k, place)
    assert result.status.code == "converged", result.status
    assert worst_tangent(top(stack, k), result.W) <= 1e-10
    values = np.linalg.eigvalsh(stack.mean(axis=0))[::-1][:k]
    np.testing.assert_allclose(result.eigenvalues, np.broadcast_to(values, result.eigenvalues.shape), rtol=1e-9)


@dataclass(frozen=True)
class Case:
    """A spectrum, k, the heterogeneity of the agents, and the attainable accuracy."""

    eigenvalues: Array
    k: int
    heterogeneity: float = 0.5
    within: float = 1e-10


def tail(*head: float, d: int = 40, below: float = 0.5) -> Array:
    return np.concatenate([head, np.linspace(below * head[-1], 0.02 * head[-1], d - len(head))])


CASES: dict[str, Case] = {
    "falling": Case(1.0 / np.arange(1.0, 41.0), 4),
    "equal agents": Case(1.0 / np.arange(1.0, 41.0), 4, 0.0),
    "very different agents": Case(1.0 / np.arange(1.0, 41.0), 4, 3.0),
    "close inside": Case(tail(5.0, 5.0 - 1e-6, 5.0 - 2e-6), 3),
    "equal inside": Case(tail(5.0, 5.0, 5.0), 3),
    "a close eigenvalue after k": Case(tail(5.0, 4.0, 3.0, 3.0 - 1e-3), 3),
    "a cluster after k": Case(np.r_[5.0, 4.0, 3.0, 2.9 - 1e-9 * np.arange(20), np.full(17, 0.1)], 3),
    "flat after k": Case(np.r_[5.0, 4.0, 3.0, np.ones(37)], 3),
    "rank above k": Case(np.r_[5.0, 4.0, 3.0, 2.0, 1.0, np.zeros(35)], 3),
    "rank is k": Case(np.r_[5.0, 4.0, 3.0, np.zeros(37)], 3),
    "λ₁/λ_k = 1e4": Case(tail(1e4, 1e2, 1.0), 3, 1e-4),
    "steep, different agents": Case(0.1 ** np.arange(12.0), 3, 0.3),
    "steep, very different agents": Case(0.3 ** np.arange(12.0), 3, 2.0),
    "k = d": Case(np.linspace(5.0, 1.0, 6), 6),
    "k = d − 1": Case(np.linspace(5.0, 1.0, 6), 5),
    "d = 2": Case(np.array([2.0, 1.0]), 1),
}


@pytest.mark.parametrize("place", [PAPER, RING], ids=["erdos-renyi", "ring"])
@pytest.mark.parametrize("name", CASES)
def test_every_spectrum_with_a_gap_is_solved_with_a_proof(name: str, place: Topology) -> None:
    case = CASES[name]
    stack = agents(place, case.eigenvalues, case.heterogeneity)
    trace = Trace(U=top(stack, case.k))
    result = run(stack, case.k, place, observers=[trace])
    assert result.status.code == "converged", result.status
    assert worst_tangent(top(stack, case.k), result.W) <= case.within
    assert result.certificate is not None
    assert result.certificate.proves(1e-10)
    if place.n_agents == len(mine(place.n_agents)):
        assert trace.invariant.max() <= 1e-12
    last = of_all(result.state, place.n_agents)
    assert np.linalg.norm(last.excess.mean(axis=0)) <= 1e-12 * np.linalg.norm(last.S.mean(axis=0))


def test_small_eigenvalues_beside_large_ones_end_at_the_rounding_floor() -> None:
    stack = agents(PAPER, tail(1e8, 1e5, 1.0), 1e-8)
    result = run(stack, 3)
    assert result.status.code == "rounding_floor", result.status
    assert worst_tangent(top(stack, 3), result.W) <= 1e-6  # eps · λ_1/λ_k = 2e-8


# ------------------------------------------------------------------------------------- safe without a gap


@pytest.mark.parametrize("place", [PAPER, RING], ids=["erdos-renyi", "ring"])
@pytest.mark.parametrize(
    ("eigenvalues", "k"),
    [(np.ones(40), 3), (np.r_[5.0, 4.0, 3.0, 3.0, np.ones(36)], 3), (np.r_[5.0, np.full(39, 2.0)], 4)],
    ids=["flat", "λ_k = λ_k+1", "flat from 2 on"],
)
def test_a_spectrum_without_a_gap_ends_as_not_unique(eigenvalues: Array, k: int, place: Topology) -> None:
    result = run(agents(place, eigenvalues), k, place, max_iter=1500)
    assert result.status.code == "not_unique", result.status


def test_rank_below_k_is_reported() -> None:
    rng = np.random.default_rng(0)
    directions = rng.standard_normal((2, 30))
    rows = [rng.standard_normal((20, 2)) @ directions for _ in range(20)]
    result = run(from_rows(rows, form="rows"), 3)
    assert result.status.code == "rank_deficient", result.status
    assert result.rank == 2


class Watched(AcceleratedDeEPCA):
    """Record the states before and after every step."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.seen: list[tuple[AcceleratedState, AcceleratedState]] = []

    def step(self, state: AcceleratedState) -> AcceleratedState:
        after = super().step(state)
        self.seen.append((state, after))
        return after


def check_edges(seed: int, k: int, heterogeneity: float) -> None:
    """Check every Ritz value of agent 0, and every edge, against scipy's eigenvalues and the tracking error.

    With ``E = sym(Xᵀ(T − A X))`` of agent 0, its Ritz values are the eigenvalues of ``Xᵀ A X + E``, so by Cauchy and
    Weyl ``θ_i ≤ λ_i + ‖E‖`` for every i, in every iteration, whatever the spectrum and however far apart the agents
    are. An edge is zero, or such a θ_{s+1} of an earlier iteration.
    """
    rng = np.random.default_rng(seed)
    values = np.sort(rng.choice([1e-3, 0.1, 0.5, 0.9, 1.0], size=14) * rng.uniform(0.9, 1.0, 14))[::-1]
    stack = agents(RING, values, heterogeneity, seed % 1000)
    A, size = stack.mean(axis=0), float(np.linalg.norm(stack, 2, axis=(-2, -1)).max())
    exact = scipy.linalg.eigh(A, eigvals_only=True)[::-1]
    algorithm = Watched(stack, random_orthonormal(14, k, seed=seed % 1000), SimulatedNetwork(RING))
    deepca.solve(algorithm, max_iter=60, stop=Tolerance(1e-9), certify=False)
    known: dict[tuple[int, float], float] = {}
    for before, after in algorithm.seen:
        if before.a > 0.0:
            assert before.a <= exact[before.s] + known[before.s, before.a]
        X, T, theta = before.X[0], after.T[0], after.theta[0]
        E = X.T @ (T - A @ X)
        off = float(np.linalg.norm((E + E.T) / 2.0, 2)) + 100.0 * EPS * size
        assert (theta <= exact[: theta.size] + off).all()
        known |= {(i, float(value)): off for i, value in enumerate(theta)}


@given(seeds, st.integers(1, 4), st.sampled_from([0.0, 0.3, 1.0]))
@example(seed=80342, k=4, heterogeneity=1.0)  # an edge above 1.02 λ_{s+1} although agents agree on the top k to 1e-3
@quick(25)
def test_the_edge_exceeds_its_eigenvalue_by_no_more_than_the_tracking_error(
    seed: int, k: int, heterogeneity: float
) -> None:
    """Once agents track the mean, the damped interval does not include the answer."""
    check_edges(seed, k, heterogeneity)


# ------------------------------------------------------------------------------------------------------ invariant


@given(seeds, st.integers(1, 4), st.sampled_from(["ring", "star", "erdos-renyi", "path"]), st.integers(1, 6))
@quick(40)
def test_the_mean_of_T_is_the_mean_of_A_X_in_every_iteration(seed: int, k: int, graph: str, rounds: int) -> None:
    """The law holds whether or not the run converges, and before and after columns are dropped."""
    place = GRAPHS[graph]()
    stack = spectrum_problem(place.n_agents, 12, 0.7 ** np.arange(12), seed % 10**6, heterogeneity=0.9, indefinite=True)
    size = np.linalg.norm(stack, 2, axis=(-2, -1)).max()
    algorithm = AcceleratedDeEPCA(stack, random_orthonormal(12, k, seed=seed), network_of(place), Chebyshev(rounds))
    seen = Recorder()
    deepca.solve(algorithm, max_iter=40, observers=[seen], certify=False)
    for step in seen.steps:
        before, after = of_all(step.before, place.n_agents), of_all(step.after, place.n_agents)
        assert isinstance(before, AcceleratedState)
        assert isinstance(after, AcceleratedState)
        used = after.AX.shape[-1]
        drift = np.abs(after.T.mean(axis=0) - after.AX.mean(axis=0)).max()
        assert drift <= 50.0 * EPS * size * after.t
        if before.X.shape[-1] == used:  # no columns were dropped in between
            exact = np.einsum("jab,jbk->ak", stack, before.X) / place.n_agents
            assert np.abs(after.AX.mean(axis=0) - exact).max() <= 50.0 * EPS * size


def test_columns_are_dropped_once_and_equally_at_all_agents() -> None:
    """With a gap after the second column, two columns and a guard remain, the same at every agent."""
    stack = agents(PAPER, np.r_[5.0, 4.5, np.linspace(1.0, 0.1, 28)], 0.3)
    seen = Recorder()
    result = run(stack, 1, observers=[seen])
    widths = [step.after.X.shape[-1] for step in seen.steps]  # type: ignore[attr-defined]
    assert widths[0] == 6
    assert widths[-1] == 3
    assert all(a >= b for a, b in pairwise(widths))
    assert result.state.s == 2
    assert worst_tangent(top(stack, 1), result.W) <= 1e-10


# --------------------------------------------------------------------------------------------------------- faster


def test_the_accelerated_method_needs_a_fraction_of_the_rounds_of_deepca() -> None:
    """With gap 0.05 and 20 agents: at most 1/4 of the rounds and 1/2 of the bytes of DeEPCA with its best K."""
    stack = agents(PAPER, np.r_[2.0, 1.5, 1.0, 0.95 * 0.9 ** np.arange(57)], 0.3)
    U = top(stack, 3)

    def spent(algorithm: Any, max_iter: int) -> tuple[float, float]:
        trace = Trace(U=U)
        deepca.solve(algorithm, max_iter=max_iter, observers=[trace], certify=False, stop=Tolerance(1e-11))
        m = PAPER.n_agents
        tangents, sent = (everyone(np.repeat(x[None], len(mine(m)), axis=0), m) for x in (trace.tan_theta, trace.bytes))
        reached = np.flatnonzero(tangents.mean(axis=0) <= 1e-10)
        if not reached.size:
            return np.inf, np.inf
        return float(trace.rounds[reached[0]]), float(sent[:, reached[0]].sum()) / m

    A, W0 = from_matrices(stack), random_orthonormal(60, 3, seed=1)
    rounds_of_the_paper = (5,) if over_mpi() else (1, 3, 5, 10)
    paper = [spent(DeEPCA(A, W0, network_of(PAPER), FastMix(K)), 1000) for K in rounds_of_the_paper]
    rounds, sent = spent(AcceleratedDeEPCA(A, W0, network_of(PAPER)), 300)
    assert min(paper)[0] < np.inf
    assert rounds <= min(r for r, _ in paper) / 4.0
    assert sent <= min(b for _, b in paper) / 2.0


# -------------------------------------------------------------------------------------------------------- engines


def make(A: Operator, network: Network, mix: Any = None) -> AcceleratedDeEPCA:
    return AcceleratedDeEPCA(A, random_orthonormal(A.d, 2, seed=5), network, mix)


def run_all(
    engine: str, place: Topology, A: Operator, mix: Any = None, announce_at: int | None = None
) -> list[Result[AcceleratedState]]:
    """Return the results of all agents of this process; optionally announce a new epoch after an iteration."""
    if engine != "threads":
        network = network_of(place)
        announcing = [] if announce_at is None else [AtIteration(announce_at, lambda: network.announce_epoch(1))]
        return [deepca.solve(make(A, network, mix), max_iter=300, stop=Tolerance(1e-9), observers=announcing)]
    hub = MemoryHub(place.n_agents, timeout=20.0)

    def work(network: AgentNetwork) -> Result[AcceleratedState]:
        observers = []
        if announce_at is not None and network.agent == 0:
            observers = [AtIteration(announce_at, lambda: hub.announce_epoch(1))]
        algorithm = make(A.agent(network.agent), network, mix)
        return deepca.solve(algorithm, max_iter=300, stop=Tolerance(1e-9), observers=observers)

    return deepca.run_agents(place, work, hub=hub)


@pytest.mark.parametrize("messages", ["float32", "float16"])
def test_compressed_messages_give_the_same_answer_with_fewer_bytes(messages: Any) -> None:
    stack = agents(PAPER, 1.0 / np.arange(1.0, 41.0), 0.3)
    full = run(stack, 3, tol=1e-11)
    compressed = run(stack, 3, tol=1e-11, mix=PositiveChebyshev(messages=messages))
    assert compressed.status.code == "converged", compressed.status
    assert worst_tangent(top(stack, 3), compressed.W) <= 1e-11
    saved = payload(total(compressed.traffic, PAPER.n_agents)) / payload(total(full.traffic, PAPER.n_agents))
    assert saved <= (0.7 if messages == "float32" else 0.5)


@pytest.mark.parametrize("at", [1, 2, 4, 6, 7, 8, 9, 10, 11, 12, 14])
def test_a_disturbed_network_costs_iterations_but_no_accuracy(at: int) -> None:
    """Tracking restarts exactly in a new epoch, even while columns are dropped and rounds change."""
    place = GRAPHS["erdos-renyi"]()
    stack = agents(place, 0.6 ** np.arange(9.0), 0.6)
    results = run_all(ENGINES[-1], place, from_matrices(stack), announce_at=at)
    assert len({(result.state.t, result.state.K, result.state.s, result.state.a) for result in results}) == 1
    for result in results:
        assert result.restarts == 1
        assert result.status.code == "converged"
        assert worst_tangent(top(stack, 2), result.W) <= 1e-9


class Late(Transport):
    """Transport that announces a new epoch when its agent has sent its last message of an iteration.

    The neighbours have received everything and proceed to the next iteration; this agent remains in the previous one.
    """

    reliable = True

    def __init__(self, inner: MemoryTransport, hub: MemoryHub, t: int, last: int) -> None:
        self._inner, self._hub, self._at, self._done = inner, hub, (t, last), False

    def exchange(self, tag: Tag, outgoing: Mapping[int, Message], sources: Collection[int], /) -> dict[int, Message]:
        if self._done or tag.phase != "step" or (tag.t, tag.round) != self._at:
            return self._inner.exchange(tag, outgoing, sources)
        self._done = True
        self._inner.exchange(tag, outgoing, ())
        self._inner.exchange(replace(tag, t=tag.t + 1, round=0), {}, sources)  # until the neighbours have proceeded
        self._hub.announce_epoch(1)
        return self._inner.exchange(tag, {}, sources)


@pytest.mark.threads(reason="ranks cannot be an iteration apart: an epoch is announced to all at once")
@pytest.mark.parametrize("method", [AcceleratedDeEPCA, DeEPCA])
@pytest.mark.parametrize("at", [0, 2, 4, 5, 6, 7, 9, 11])
def test_agents_in_adjacent_iterations_continue_with_the_same_decisions(at: int, method: Any) -> None:
    """All continue with the same rounds and columns, even if one agent decided before the others."""
    place = topology.erdos_renyi(8, 0.5, seed=3)
    stack = agents(place, np.r_[5.0, 4.5, np.linspace(1.0, 0.1, 28)], 0.3)
    A, W0 = from_matrices(stack), random_orthonormal(30, 1, seed=5)
    seen = Recorder()
    deepca.solve(method(A, W0, network_of(place)), max_iter=300, stop=Tolerance(1e-9), observers=[seen])
    rounds = np.diff([0, *(step.traffic.rounds for step in seen.steps)])
    hub = MemoryHub(8, timeout=10.0)

    def work(network: AgentNetwork) -> Result[Any]:
        if network.agent == 5:
            network = AgentNetwork(place, 5, Late(hub.transport(5), hub, at, int(rounds[at]) - 1))
        algorithm = method(A.agent(network.agent), W0, network)
        return deepca.solve(algorithm, max_iter=300, stop=Tolerance(1e-9))

    results = deepca.run_agents(place, work, hub=hub)
    assert len({(result.iterations, result.state.K) for result in results}) == 1
    for result in results:
        assert result.restarts == 1
        assert result.status.code == "converged"
        assert worst_tangent(top(stack, 1), result.W) <= 1e-9


def test_a_state_of_another_algorithm_is_refused() -> None:
    stack = agents(PAPER, 1.0 / np.arange(1.0, 21.0), 0.3)
    state = run(stack, 3).state
    other = DeEPCA(stack, random_orthonormal(20, 3, seed=1), network_of(PAPER))
    with pytest.raises(deepca.errors.StartError):
        deepca.solve(other, max_iter=5, start=state)


@pytest.mark.simulator(reason="ranks whose own numbers are still finite would wait for the one that raises")
@pytest.mark.parametrize("method", [AcceleratedDeEPCA, DeEPCA])
def test_overflow_is_reported(method: Any) -> None:
    stack = 1.7e308 * agents(PAPER, 1.0 / np.arange(1.0, 21.0), 0.3)
    with pytest.raises(deepca.errors.NotFiniteError):
        deepca.solve(method(stack, random_orthonormal(20, 3, seed=1), network_of(PAPER)), max_iter=50)


def test_a_tracking_error_is_detected_and_repaired() -> None:
    """After altering T of one agent, mean T ≠ mean A X; the certificate detects it, and tracking restarts."""
    stack = agents(PAPER, 1.0 / np.arange(1.0, 21.0), 0.3)
    algorithm = AcceleratedDeEPCA(stack, random_orthonormal(20, 3, seed=1), network_of(PAPER))
    state = deepca.solve(algorithm, max_iter=12, stop=Tolerance(1e-12), certify=False).state
    T = state.T.copy()
    T[mine(20) == 4] += 1e-3 * np.random.default_rng(0).standard_normal(T.shape[1:])
    result = deepca.solve(algorithm, max_iter=400, stop=Tolerance(1e-10), start=replace(state, T=T))
    assert result.restarts >= 1
    assert result.status.code == "converged", result.status
    assert worst_tangent(top(stack, 3), result.W) <= 1e-10


def test_a_resumed_run_continues_where_it_ended() -> None:
    stack = agents(PAPER, 1.0 / np.arange(1.0, 21.0), 0.3)
    algorithm = AcceleratedDeEPCA(stack, random_orthonormal(20, 3, seed=1), network_of(PAPER))
    first = deepca.solve(algorithm, max_iter=15, stop=Tolerance(1e-12), certify=False)
    second = deepca.solve(algorithm, max_iter=300, stop=Tolerance(1e-10), start=first.state)
    assert second.status.code == "converged"
    assert worst_tangent(top(stack, 3), second.W) <= 1e-10
    assert second.iterations < 40


def test_a_step_can_be_retried() -> None:
    stack = agents(PAPER, 1.0 / np.arange(1.0, 21.0), 0.3)
    algorithm = AcceleratedDeEPCA(stack, random_orthonormal(20, 3, seed=1), network_of(PAPER), Chebyshev(4))
    state = algorithm.step(algorithm.step(algorithm.init()))
    once, again = algorithm.step(state), algorithm.step(state)
    for name in ("W", "S", "X", "T", "past"):
        np.testing.assert_array_equal(getattr(once, name), getattr(again, name))


@pytest.mark.parametrize("scale", [1e-160, 1e-12, 1e12, 1e300])
def test_scaling_the_data_does_not_change_the_run(scale: float) -> None:
    stack = agents(PAPER, 1.0 / np.arange(1.0, 21.0), 0.3)
    plain, scaled = run(stack, 3), run(scale * stack, 3)
    assert scaled.iterations == plain.iterations
    np.testing.assert_allclose(scaled.W, plain.W, rtol=0, atol=1e-9)


@pytest.mark.parametrize("guards", [0, -1, 1.5, "3", True])
def test_guards_must_be_a_positive_whole_number(guards: Any) -> None:
    with raises(ParameterError, parameter="guards", value=guards):
        AcceleratedDeEPCA(np.ones((2, 3, 3)), random_orthonormal(3, 1), network_of(topology.path(2)), guards=guards)
