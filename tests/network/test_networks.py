"""Test networks: rounds of gossip, reductions, epochs, and agents that do not answer or fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import deepca
from deepca import DeEPCA, FastMix, Gossip, Tolerance
from deepca._util.typing import Array, Csr, csr
from deepca.errors import EpochChanged, NotFiniteError, ParameterError, PeerFailed, PeerTimeout, TopologyError
from deepca.network import AgentNetwork, Network, SimulatedNetwork, Traffic
from deepca.network.reductions import Op
from deepca.network.sums import COUNT
from deepca.network.transports import MemoryHub, MemoryTransport, Message, RelayStep, Tag, Transport
from deepca.network.transports.base import Combine
from deepca.operators import Operator
from tests.support.engines import (
    ENGINES,
    Engine,
    Stepwise,
    at_every_agent,
    everyone,
    gossip_messages,
    mine,
    network_of,
    of_all,
    over_mpi,
    total,
)
from tests.support.errors import raises
from tests.support.helpers import GRAPHS, AtIteration, Recorder, Tracked, run_threads, worst_tangent
from tests.support.problems import pooled_answer, spectrum, spectrum_problem


def per_agent(m: int, shape: tuple[int, ...] = (4, 2), seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((m, *shape))


# -------------------------------------------------------------------------------------------------- one round


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("graph", GRAPHS)
def test_gossip_multiplies_by_the_gossip_matrix(graph: str, engine: str) -> None:
    """Gossip computes ``x_j ← Σ_i 𝐋_ji x_i``."""
    topology = GRAPHS[graph]()
    x = per_agent(topology.n_agents)
    expected = np.einsum("ij,jdk->idk", topology.gossip_matrix, x)
    done = at_every_agent(engine, topology, lambda network: network.gossip(x[network.local]))
    np.testing.assert_allclose(done.values, expected, rtol=0, atol=1e-15 * 10)


@pytest.mark.parametrize("m", [6, 300])
def test_gossip_takes_any_shape_and_memory_order(m: int) -> None:
    """Vectors, matrices, and arrays with swapped last axes are mixed, with small dense and large sparse 𝐋."""
    topology = deepca.topology.ring(m)
    L, here = topology.gossip_matrix, mine(m)
    vector, block = per_agent(m, ()), per_agent(m, (3, 5))
    network = network_of(topology)
    np.testing.assert_allclose(network.gossip(vector[here]), (L @ vector)[here], atol=1e-14)
    swapped = np.swapaxes(block, 1, 2)
    own = np.swapaxes(block[here], 1, 2)
    assert not own.flags.c_contiguous
    np.testing.assert_allclose(network.gossip(own), np.einsum("ij,jdk->idk", L, swapped)[here], atol=1e-14)


def test_gossip_does_not_change_its_argument() -> None:
    """Rounds return new arrays."""
    topology = deepca.topology.ring(4)
    x = per_agent(4)[mine(4)]
    kept = x.copy()
    network = network_of(topology)
    y = network.gossip(x)
    z = network.gossip(2.0 * x)
    np.testing.assert_array_equal(x, kept)
    assert not np.shares_memory(x, y)
    assert not np.shares_memory(y, z)
    np.testing.assert_allclose(z, 2.0 * y, rtol=1e-14)  # earlier results are not overwritten either
    if "threads" in ENGINES:
        at_every_agent("threads", topology, lambda agent: agent.gossip(x[agent.local]))
        np.testing.assert_array_equal(x, kept)


@pytest.mark.parametrize("rounds", [1, 2, 7])
@pytest.mark.parametrize("m", [5, 100])
def test_collapsed_rounds_are_the_same_map_as_single_rounds(m: int, rounds: int) -> None:
    """K rounds at once, K single rounds, and 𝐋 to the power K give the same result."""
    topology = deepca.topology.ring(m)
    x, here = per_agent(m), mine(m)
    expected = np.einsum("ij,jdk->idk", np.linalg.matrix_power(topology.gossip_matrix, rounds), x)[here]
    quick, slow = network_of(topology), Stepwise(topology)
    np.testing.assert_allclose(Gossip(rounds)(quick, x[here]), expected, atol=1e-14)
    np.testing.assert_allclose(Gossip(rounds)(slow, x[here]), expected, atol=1e-14)
    assert quick.traffic == slow.traffic
    sent = total(quick.traffic, m)
    assert sent.rounds == rounds
    assert sent.messages == rounds * 2 * m
    assert sent.bytes_sent == rounds * 2 * m * 4 * 2 * 8
    assert quick.traffic.bytes_per_agent == rounds * 2 * 4 * 2 * 8


def test_a_change_of_rounds_does_not_use_a_cached_matrix() -> None:
    """The matrix of K = 2 is not used for K = 3, nor that of one mixer for another."""
    topology, here = deepca.topology.path(4), mine(4)
    network, x = network_of(topology), per_agent(4)
    L = topology.gossip_matrix
    for rounds in (2, 3, 2):
        expected = np.einsum("ij,jdk->idk", np.linalg.matrix_power(L, rounds), x)[here]
        np.testing.assert_allclose(Gossip(rounds)(network, x[here]), expected, atol=1e-14)
    fast = FastMix(2)(network, x[here])
    assert np.abs(fast - Gossip(2)(network, x[here])).max() > 1e-3


# --------------------------------------------------------------------------------------- weights of one round


def one_pair(m: int, i: int, j: int) -> Csr:
    L = np.eye(m)
    L[[i, j, i, j], [i, j, j, i]] = 0.5
    return csr(L)


@pytest.mark.parametrize("engine", ENGINES)
def test_weights_of_a_round_replace_the_gossip_matrix(engine: str) -> None:
    """Only the pair with a weight sends messages."""
    topology = deepca.topology.ring(5)
    x, weights = per_agent(5), one_pair(5, 1, 2)

    def work(network: Network) -> Array:
        y = network.gossip(x[network.local], weights)
        assert network.traffic.messages == np.isin(network.local, (1, 2)).sum()
        return y

    done = at_every_agent(engine, topology, work)
    np.testing.assert_allclose(done.values, np.einsum("ij,jdk->idk", weights.toarray(), x), atol=1e-15)
    assert (done.traffic.messages, done.traffic.bytes_sent) == (2, 2 * 4 * 2 * 8)


@pytest.mark.parametrize("engine", ENGINES)
def test_one_way_weights_are_sent_one_way(engine: str) -> None:
    """Nothing is sent for a zero weight, even if the opposite weight is not zero."""
    topology = deepca.topology.path(3)
    L = np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.25, 0.75]])
    x = per_agent(3)

    def work(network: Network) -> Array:
        y = network.gossip(x[network.local], csr(L))
        assert network.traffic.messages == 2 * (network.local == 1).sum()
        return y

    done = at_every_agent(engine, topology, work)
    np.testing.assert_allclose(done.values, np.einsum("ij,jdk->idk", L, x), atol=1e-15)


def test_weights_outside_the_graph_are_rejected() -> None:
    """Matrices of the wrong size are rejected, too."""
    topology = deepca.topology.path(4)
    x = per_agent(4)
    for network in (network_of(topology), AgentNetwork(topology, 0, MemoryHub(4, timeout=1.0).transport(0))):
        with pytest.raises(TopologyError) as caught:
            network.gossip(x[network.local], one_pair(4, 0, 3))
        assert caught.value.edge in ((0, 3), (3, 0))
        with raises(TopologyError, value=(3, 3)):
            network.gossip(x[network.local], one_pair(3, 0, 1))


# --------------------------------------------------------------------------------------------------- agreement


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("graph", GRAPHS)
def test_reduce_gives_every_agent_the_extreme_over_all_agents(graph: str, op: Op, engine: str) -> None:
    """A reduction takes as many control rounds as the diameter; MPI ranks use a collective operation."""
    topology = GRAPHS[graph]()
    m = topology.n_agents
    x = per_agent(m, (3,))
    expected = x.min(axis=0) if op == "min" else x.max(axis=0)

    def work(network: Network) -> Array:
        value = network.reduce(x[network.local], op)
        sent = network.traffic
        assert sent.rounds == 0
        assert sent.bytes_sent == sent.control_bytes
        if engine != "mpi":
            assert sent.control_rounds == topology.flood_rounds
            assert sent.bytes_sent == sent.messages * 3 * 8
            links = sum(len(topology.neighbors(j)) for j in np.atleast_1d(network.local))
            assert sent.messages == topology.flood_rounds * links
        return np.broadcast_to(value, (*network.batch, 3))

    done = at_every_agent(engine, topology, work)
    np.testing.assert_array_equal(done.values, np.broadcast_to(expected, (m, 3)))
    assert gossip_messages(done.traffic, topology) == 0


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("op", ["min", "max"])
def test_a_nan_at_one_agent_reaches_every_agent(op: Op, engine: str) -> None:
    """Otherwise agents would continue unaware of the NaN. Separate agents raise an error instead."""
    topology = deepca.topology.path(4)
    x = np.array([[1.0, 1.0], [2.0, np.nan], [3.0, 3.0], [4.0, 4.0]])

    def work(network: Network) -> Array:
        return np.broadcast_to(network.reduce(x[network.local], op), (*network.batch, 2))

    if engine == "threads":  # separate agents do not send it, since the receiver would blame the sender
        with pytest.raises(NotFiniteError):
            at_every_agent(engine, topology, work)
        return
    for value in at_every_agent(engine, topology, work).values:
        assert value[0] == (1.0 if op == "min" else 4.0)
        assert np.isnan(value[1])


def test_an_unknown_reduction_is_rejected() -> None:
    """Only "min" and "max" are known."""
    topology = deepca.topology.complete(1)
    for network in (network_of(topology), AgentNetwork(topology, 0)):
        x = np.zeros((*network.batch, 1))
        with raises(ParameterError, parameter="op", value="sum"):
            network.reduce(x, "sum")  # type: ignore[arg-type]
        with raises(ParameterError, parameter="op", value="sum"):
            network.reduce_later(x, "sum")  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("graph", GRAPHS)
def test_a_pending_value_is_ready_after_a_diameter_of_rounds(graph: str, engine: str) -> None:
    """It is ready exactly then, costs no control rounds, and equals that of ``reduce``."""
    topology = GRAPHS[graph]()
    m, needed = topology.n_agents, topology.flood_rounds
    x, values = per_agent(m), per_agent(m, (3,), seed=1)

    def ride(network: Network) -> Array:
        pending = network.reduce_later(values[network.local], "max")
        for made in range(needed):
            assert not pending.ready, made
            network.gossip(x[network.local])
        assert pending.ready
        network.gossip(x[network.local])
        assert network.traffic.control_rounds == 0
        return np.broadcast_to(pending.value, (*network.batch, 3))

    done = at_every_agent(engine, topology, ride)
    np.testing.assert_array_equal(done.values, np.broadcast_to(values.max(axis=0), (m, 3)))
    if engine != "mpi":
        assert done.traffic.control_bytes == needed * 2 * topology.n_edges * 3 * 8


def test_pending_values_advance_alike_in_collapsed_and_single_rounds() -> None:
    """Collapsed rounds advance them by K rounds and count the same bytes."""
    topology, here = deepca.topology.path(6), mine(6)  # five rounds to the other end
    x, values = per_agent(6), per_agent(6, (2,))
    sent: list[Traffic] = []
    for network in (network_of(topology), Stepwise(topology)):
        early = network.reduce_later(values[here], "min")
        FastMix(3)(network, x[here])
        assert not early.ready
        late = network.reduce_later(values[here], "max")
        FastMix(3)(network, x[here])
        assert early.ready
        assert not late.ready
        np.testing.assert_array_equal(early.value, values.min(axis=0))
        FastMix(3)(network, x[here])
        assert late.ready
        np.testing.assert_array_equal(late.value, values.max(axis=0))
        sent.append(network.traffic)
    assert sent[0] == sent[1]
    if not over_mpi():
        assert sent[0].control_bytes == 2 * 5 * 5 * 2 * 8 * 2  # two values of two numbers, five rounds, ten messages


def test_pending_values_are_not_carried_by_rounds_that_use_only_some_edges() -> None:
    """In such rounds values would not reach every agent in time, so they do not count."""
    topology = deepca.topology.path(3)
    x = per_agent(3)[mine(3)]
    network = network_of(topology)
    pending = network.reduce_later(np.arange(3.0)[mine(3), None], "max")
    for _ in range(5):
        network.gossip(x, one_pair(3, 0, 1))
    assert not pending.ready
    network.gossip(x)
    network.gossip(x)
    assert pending.ready


def test_consecutive_runs_over_the_same_network_are_independent() -> None:
    """Tags restart at iteration 0 while threads may be out of step; the traffic of each run is counted separately."""
    topology, A = deepca.topology.path(5), small_problem(5)
    W0 = deepca.operators.linalg.random_orthonormal(6, 2, seed=0)

    def twice(network: Network, A_local: Operator) -> list[Array]:
        results = [
            deepca.solve(DeEPCA(A_local, W0, network, FastMix(2)), max_iter=60, stop=Tolerance(1e-5)) for _ in range(2)
        ]
        assert results[0].iterations == results[1].iterations
        assert results[0].traffic == results[1].traffic
        return [result.W for result in results]

    simulated = twice(SimulatedNetwork(topology), A)
    np.testing.assert_array_equal(simulated[0], simulated[1])
    if over_mpi():
        first, second = twice(network_of(topology), A)
        np.testing.assert_array_equal(first, second)
        np.testing.assert_allclose(everyone(first, 5), simulated[0], atol=1e-12)
        return
    threads = deepca.run_agents(topology, lambda network: twice(network, A.agent(network.agent)), timeout=20.0)
    for j, (first, second) in enumerate(threads):
        np.testing.assert_array_equal(first, second)
        np.testing.assert_allclose(first, simulated[0][j], atol=1e-12)


# ------------------------------------------------------------------------------------------------------ epochs


def small_problem(m: int, heterogeneity: float = 0.3, seed: int = 3) -> Operator:
    return deepca.operators.from_matrices(
        spectrum_problem(m, 6, spectrum(6, 2, decay=0.6), seed, heterogeneity=heterogeneity)
    )


def deepca_of(mixer: FastMix | Gossip) -> Callable[[Operator, Network], Tracked]:
    W0 = deepca.operators.linalg.random_orthonormal(6, 2, seed=5)
    return lambda A, network: DeEPCA(A, W0, network, mixer)


def test_an_announced_epoch_interrupts_every_kind_of_round_until_it_begins() -> None:
    """``gossip``, ``mix`` and ``reduce`` raise EpochChanged until ``begin`` is called."""
    topology = deepca.topology.complete(3)
    network, x = network_of(topology), per_agent(3)[mine(3)]
    network.announce_epoch(2)
    calls: list[Callable[[], object]] = [
        lambda: network.gossip(x),
        lambda: FastMix(2)(network, x),
        lambda: network.reduce(x, "min"),
        lambda: network.gossip(x, one_pair(3, 0, 1)),
    ]
    for call in calls:
        with pytest.raises(EpochChanged) as caught:
            call()
        assert caught.value.epoch == 2
    network.begin(2, 0)
    assert network.epoch == 2
    mean = per_agent(3).mean(axis=0)
    np.testing.assert_allclose(network.gossip(x), np.broadcast_to(mean, x.shape), atol=1e-14)
    network.announce_epoch(1)  # older than the current one: no effect
    network.gossip(x)


@pytest.mark.threads(reason="AgentNetwork and its transport")
def test_an_agent_learns_of_an_epoch_from_its_own_network_and_from_the_hub() -> None:
    """In both cases the next exchange raises EpochChanged."""
    topology = deepca.topology.path(2)
    hub = MemoryHub(2, timeout=5.0)
    network = AgentNetwork(topology, 0, hub.transport(0))
    network.announce_epoch(1)
    with pytest.raises(EpochChanged):
        network.gossip(np.zeros((2, 1)))
    network.begin(1, 0)
    hub.announce_epoch(3)
    with pytest.raises(EpochChanged) as caught:
        network.gossip(np.zeros((2, 1)))
    assert caught.value.epoch == 3


def test_a_new_epoch_drops_pending_values() -> None:
    """Values of the old epoch are no longer sent."""
    topology = deepca.topology.path(3)
    network, x = network_of(topology), per_agent(3)[mine(3)]
    pending = network.reduce_later(np.zeros((len(x), 1)), "max")
    sent = network.traffic.control_bytes
    network.announce_epoch(1)
    network.begin(1, 0)
    for _ in range(3):
        network.gossip(x)
    assert not pending.ready
    assert network.traffic.control_bytes == sent
    assert over_mpi() or sent == 0


def test_a_restart_continues_at_the_same_w_and_stays_exact() -> None:
    """Restarted at full accuracy with few rounds per iteration, a run loses no accuracy and keeps the invariant."""
    topology = deepca.topology.ring(8)
    stack = spectrum_problem(8, 6, spectrum(6, 2, decay=0.6), 3, heterogeneity=0.8)
    _, U = pooled_answer(stack, 2)
    network, recorder, trace = network_of(topology), Recorder(), deepca.solver.observers.Trace(U=U)
    make = deepca_of(FastMix(3))
    announce = AtIteration(100, lambda: network.announce_epoch(1))
    result = deepca.solve(
        make(deepca.operators.from_matrices(stack), network), max_iter=160, observers=[recorder, trace, announce]
    )
    assert network.epoch == 1
    assert result.iterations == 160
    steps = {step.after.t: step for step in recorder.steps}
    assert sorted(steps) == list(range(1, 161))
    np.testing.assert_array_equal(steps[101].before.W, steps[100].after.W)
    assert trace.tan_theta_max[99] <= 1e-13  # so that a loss of accuracy would be visible
    assert trace.tan_theta_max[99:].max() <= 1e-12
    assert worst_tangent(U, result.W) <= 1e-12
    state = of_all(result.state, 8)
    mean_S = state.S.mean(axis=0)
    np.testing.assert_allclose(mean_S, state.AW.mean(axis=0), atol=1e-14)
    last = everyone(recorder.steps[-1].before.W, 8)
    np.testing.assert_allclose(mean_S, np.einsum("jde,jek->dk", stack, last) / 8, atol=1e-14)


def test_the_first_mix_after_a_restart_is_only_as_long_as_the_accuracy_requires() -> None:
    """An early restart, at a known change of about 1e-3, would waste rounds by mixing to full accuracy."""
    topology = deepca.topology.ring(8)
    network, recorder = network_of(topology), Recorder()
    mixer = FastMix(4)
    announce = AtIteration(6, lambda: network.announce_epoch(1))
    deepca.solve(
        deepca_of(mixer)(small_problem(8), network),
        max_iter=16,
        stop=Tolerance(1e-12),
        observers=[recorder, announce],
    )
    agreed = next(step.agreed for step in recorder.steps if step.after.t == 6)
    assert agreed is not None
    assert agreed.change > 1e-6
    extra = recorder.steps[-1].traffic.rounds - 16 * 4
    assert mixer.rounds_for(topology, agreed.change) <= extra < mixer.rounds_for(topology, 1e-13)


@pytest.mark.parametrize("announce", [True, False])
def test_a_lost_message_needs_a_restart_to_be_repaired(announce: bool) -> None:
    """If a loss is absorbed by reweighting, the agents of Algorithm 1 agree on a wrong result until they restart.

    With the polar factor they keep rotating slightly, and do not even agree.
    """

    class Lossy(Stepwise):
        """Network in which agent 0 replaces a lost message by its own value in the first round of iteration 10."""

        def gossip(self, x: Array, weights: Csr | None = None, /) -> Array:
            y = super().gossip(x, weights)
            if self.phase_and_iteration[1] == 10 and self._round_made() == 1 and self.epoch == 0:
                values = everyone(x, 6)
                y[self.local == 0] += self.topology.gossip_matrix[0, 1] * (values[0] - values[1])
            return y

        def _round_made(self) -> int:
            return self.traffic.rounds - 10 * 4

    topology = deepca.topology.ring(6)
    stack = spectrum_problem(6, 6, spectrum(6, 2, decay=0.6), 3, heterogeneity=0.5)
    _, U = pooled_answer(stack, 2)
    network = Lossy(topology)
    observers = [AtIteration(11, lambda: network.announce_epoch(1))] if announce else []
    W0 = deepca.operators.linalg.random_orthonormal(6, 2, seed=5)
    algorithm = DeEPCA(stack, W0, network, FastMix(4), deepca.QRSignAdjust(W0))
    result = deepca.solve(algorithm, max_iter=90, observers=observers)
    W = everyone(result.W, 6)
    assert np.ptp(W, axis=0).max() <= 1e-12  # they agree in both cases
    if announce:
        assert worst_tangent(U, W) <= 1e-12
    else:
        assert worst_tangent(U, W) > 1e-7


def test_an_epoch_announced_during_a_restart_is_followed() -> None:
    """The restart is repeated in the newest epoch."""

    class Restless(Engine):
        def reduce(self, x: Array, op: Op, /) -> Array:
            value = super().reduce(x, op)
            if self.epoch == 1:
                self.announce_epoch(4)
            return value

    topology = deepca.topology.ring(5)
    stack = spectrum_problem(5, 6, spectrum(6, 2, decay=0.6), 3, heterogeneity=0.3)
    _, U = pooled_answer(stack, 2)
    network = Restless(topology)
    announce = AtIteration(20, lambda: network.announce_epoch(1))
    result = deepca.solve(
        deepca_of(FastMix(4))(deepca.operators.from_matrices(stack), network), max_iter=60, observers=[announce]
    )
    assert network.epoch == 4
    assert worst_tangent(U, result.W) <= 1e-12


@pytest.mark.parametrize("stop", [None, Tolerance(1e-8)], ids=["no stop rule", "stop rule"])
def test_an_epoch_announced_in_the_last_iteration_does_not_escape_from_solve(stop: Tolerance | None) -> None:
    """The result is returned although the final reduction could raise EpochChanged."""
    topology = deepca.topology.ring(5)
    network = network_of(topology)
    announce = AtIteration(10, lambda: network.announce_epoch(1))
    result = deepca.solve(
        deepca_of(FastMix(4))(small_problem(5), network), max_iter=10, stop=stop, observers=[announce]
    )
    assert result.iterations == 10
    assert np.isfinite(result.eigenvalues).all()


@pytest.mark.threads(reason="agents that are apart in time")
@pytest.mark.timeout(60)
def test_threads_restart_if_an_epoch_is_announced_in_the_last_iteration() -> None:
    """It is announced before any agent can have left, so all restart and obtain a result."""
    hub = MemoryHub(5, timeout=20.0)
    results = run_threads(
        deepca.topology.ring(5),
        small_problem(5),
        deepca_of(FastMix(4)),
        max_iter=10,
        hub=hub,
        observers=lambda j: [AtIteration(10, lambda: hub.announce_epoch(1))] if j == 0 else [],
    )
    assert {result.state.t for result in results} == {10}
    assert len({result.status.code for result in results}) == 1


@pytest.mark.threads(reason="agents that are apart in time")
@pytest.mark.timeout(60)
def test_threads_restart_together_when_an_epoch_is_announced_from_outside() -> None:
    """Another thread announces it; afterwards the result is exact and the invariant holds."""
    topology = deepca.topology.ring(6)
    stack = spectrum_problem(6, 6, spectrum(6, 2, decay=0.6), 3, heterogeneity=0.5)
    _, U = pooled_answer(stack, 2)
    hub, reached = MemoryHub(6, timeout=30.0), threading.Event()

    def announcer() -> None:
        reached.wait(30.0)
        hub.announce_epoch(1)

    other = threading.Thread(target=announcer)
    other.start()
    recorders = [Recorder() for _ in range(6)]
    results = run_threads(
        topology,
        deepca.operators.from_matrices(stack),
        deepca_of(FastMix(4)),
        max_iter=120,
        hub=hub,
        observers=lambda j: [recorders[j], AtIteration(20, reached.set)] if j == 3 else [recorders[j]],
    )
    other.join()
    assert {recorder.starts[0].network.epoch for recorder in recorders} == {1}
    assert {result.state.t for result in results} == {120}
    assert worst_tangent(U, np.stack([result.W for result in results])) <= 1e-12
    mean_S = np.mean([result.state.S for result in results], axis=0)
    np.testing.assert_allclose(mean_S, np.mean([result.state.AW for result in results], axis=0), atol=1e-13)


@pytest.mark.threads(reason="agents that are apart in time")
@pytest.mark.timeout(60)
def test_threads_interrupted_in_different_iterations_restart_in_the_same_one() -> None:
    """The ends of a path with one round per iteration drift apart; all agents continue from the latest iteration."""
    m = 6
    topology = deepca.topology.path(m)
    stack = spectrum_problem(m, 6, spectrum(6, 2, decay=0.6), 3, heterogeneity=0.05)
    _, U = pooled_answer(stack, 2)
    hub, ahead = MemoryHub(m, timeout=30.0), threading.Event()
    recorders = [Recorder() for _ in range(m)]

    def hold() -> None:
        """Block agent 5 after iteration 10 until agent 0 has made three more iterations."""
        assert ahead.wait(30.0)
        hub.announce_epoch(1)

    def observers(j: int) -> list[Recorder | AtIteration]:
        if j == 0:
            return [recorders[j], AtIteration(13, ahead.set)]
        return [recorders[j], AtIteration(10, hold)] if j == m - 1 else [recorders[j]]

    results = run_threads(
        topology,
        deepca.operators.from_matrices(stack),
        deepca_of(Gossip(1)),
        max_iter=700,
        hub=hub,
        observers=observers,
    )
    made = [[step.after.t for step in recorder.steps] for recorder in recorders]
    assert 11 not in made[m - 1]  # agent 5 was interrupted after iteration 10 …
    assert {11, 12, 13} <= set(made[0])  # … agent 0 later, and they continued together
    resumed = [next(t for t in ts if t > 13) for ts in made]
    assert resumed[m - 1] in (14, 15)
    assert {result.state.t for result in results} == {700}
    assert worst_tangent(U, np.stack([result.W for result in results])) <= 1e-12
    mean_S = np.mean([result.state.S for result in results], axis=0)
    np.testing.assert_allclose(mean_S, np.mean([result.state.AW for result in results], axis=0), atol=1e-13)


# --------------------------------------------------------------------------------- silent, failing and copied


@pytest.mark.threads(reason="agents that fail while others go on")
@pytest.mark.timeout(20)
def test_an_agent_that_stops_answering_is_named_within_the_deadline() -> None:
    """All other agents wait for agent 2 until the timeout."""
    topology = deepca.topology.complete(4)
    seen: dict[int, BaseException] = {}

    over = threading.Event()

    def work(network: AgentNetwork) -> None:
        x = np.zeros((2, 1))
        network.begin(0, 7)
        network.gossip(x)
        if network.agent == 2:
            over.wait(15.0)  # running, but silent
            return
        try:
            network.gossip(x)
        except BaseException as error:
            seen[network.agent] = error
            over.set()
            raise

    with raises(PeerTimeout, awaited=(2,), iteration=7, round_number=1):
        deepca.run_agents(topology, work, timeout=1.0)
    assert set(seen) == {0, 1, 3}
    assert all(e.awaited == (2,) and e.agent == j for j, e in seen.items() if isinstance(e, PeerTimeout))
    assert all(isinstance(e, (PeerTimeout, PeerFailed)) for e in seen.values())
    assert all(isinstance(e, TimeoutError) for e in seen.values() if isinstance(e, PeerTimeout))


@pytest.mark.threads(reason="agents that fail while others go on")
@pytest.mark.timeout(20)
def test_all_silent_agents_are_named() -> None:
    """Of three agents that are waited for, only one answers."""
    hub = MemoryHub(4, timeout=0.1)
    hub.transport(2).exchange(Tag(0, "step", 0, 0), {0: Message(np.zeros(1))}, [])
    with raises(PeerTimeout, agent=0, awaited=(1, 3), iteration=0, round_number=0):
        hub.transport(0).exchange(Tag(0, "step", 0, 0), {}, [1, 2, 3])


@pytest.mark.threads(reason="agents that fail while others go on")
@pytest.mark.timeout(20)
def test_the_error_of_a_failing_agent_is_raised_and_stops_the_others_at_once() -> None:
    """The cause is raised long before the deadline, with the index of the agent as a note."""
    topology = deepca.topology.ring(5)
    seen: dict[int, BaseException] = {}

    def work(network: AgentNetwork) -> None:
        try:
            for t in range(50):
                network.begin(0, t)
                network.gossip(np.zeros((2, 1)))
                if network.agent == 3 and t == 4:
                    nothing: dict[str, int] = {}
                    nothing["bad news"]
        except BaseException as error:
            seen[network.agent] = error
            raise

    with raises(KeyError, args=("bad news",)) as caught:
        deepca.run_agents(topology, work, timeout=300.0)
    assert any("agent 3" in note for note in caught.value.__notes__)
    assert set(seen) == {0, 1, 2, 3, 4}
    for agent in (0, 1, 2, 4):
        error = seen[agent]
        assert isinstance(error, PeerFailed)
        assert error.agent == 3
        assert "KeyError" in str(error)


@pytest.mark.threads(reason="agents that fail while others go on")
@pytest.mark.timeout(20)
def test_an_error_in_one_agent_ends_the_run_of_all() -> None:
    """An observer of one agent raises during ``solve``, and this error is the one raised."""
    topology = deepca.topology.path(4)

    def fail() -> None:
        raise RuntimeError("observer broke")

    with raises(RuntimeError, args=("observer broke",)):
        run_threads(
            topology,
            small_problem(4),
            deepca_of(FastMix(2)),
            max_iter=50,
            timeout=300.0,
            observers=lambda j: [AtIteration(5, fail)] if j == 2 else [],
        )


class Captured(Transport):
    """Transport that records messages and answers with zeros."""

    reliable = True

    def __init__(self) -> None:
        self.sent: list[dict[int, Message]] = []

    def exchange(self, tag: Tag, outgoing: Mapping[int, Message], sources: Collection[int], /) -> dict[int, Message]:
        self.sent.append(dict(outgoing))
        riders = next(iter(outgoing.values())).riders
        return {source: Message(np.zeros((3, 2)), riders) for source in sources}


@pytest.mark.threads(reason="AgentNetwork")
def test_messages_are_copies() -> None:
    """An array that is modified after it was sent arrives unmodified."""
    transport = Captured()
    network = AgentNetwork(deepca.topology.path(2), 0, transport)
    x, value = np.ones((3, 2)), np.ones(1)
    network.reduce_later(value, "max")
    network.gossip(x)
    x[:], value[:] = -5.0, -5.0
    message = transport.sent[0][1]
    assert message.payload is not None
    np.testing.assert_array_equal(message.payload, np.ones((3, 2)))
    np.testing.assert_array_equal(message.riders[0], [1.0])
    assert not message.payload.flags.writeable


class _Recorded(MemoryTransport):
    """Transport that records the steps of every relay."""

    def __init__(self, hub: MemoryHub, agent: int) -> None:
        super().__init__(hub, agent)
        self.relays: list[list[tuple[int, tuple[int, ...], tuple[int, ...]]]] = []

    def relay(self, steps: Sequence[RelayStep], message: Message, combine: Combine, /) -> Message:
        self.relays.append([(step.tag.round, step.receivers, step.sources) for step in steps])
        return super().relay(steps, message, combine)


@pytest.mark.threads(reason="AgentNetwork")
def test_a_sum_is_one_relay_of_the_rounds_in_which_an_agent_takes_part() -> None:
    """Rounds in which it does nothing are numbered all the same; the root needs a second relay, for what it derives."""

    def relays(place: deepca.Topology) -> list[Any]:
        hub = MemoryHub(place.n_agents)

        def work(network: AgentNetwork) -> Any:
            transport = _Recorded(hub, network.agent)
            recorded = AgentNetwork(place, network.agent, transport)
            assert recorded.total(np.ones(2), COUNT).tolist() == [place.n_agents] * 2
            assert recorded.traffic.rounds == recorded._round
            return transport.relays

        return deepca.run_agents(place, work, hub=hub)

    on_path = relays(deepca.topology.path(5))
    assert on_path[0] == [[(0, (1,), ()), (3, (), (1,))]]
    assert on_path[1] == [[(0, (), (0,)), (1, (2,), ()), (2, (), (2,)), (3, (0,), ())]]
    assert on_path[2] == [[(1, (), (1, 3))], [(2, (1, 3), ())]]
    on_hypercube = relays(deepca.topology.hypercube(2))
    assert on_hypercube[3] == [[(0, (2,), (2,)), (1, (1,), (1,))]]


@pytest.mark.threads(reason="AgentNetwork")
def test_an_agent_with_neighbours_needs_a_transport() -> None:
    """Otherwise it could not reach its neighbours."""
    with raises(TopologyError, parameter="transport", agent=1):
        AgentNetwork(deepca.topology.path(3), 1)


@pytest.mark.threads(reason="AgentNetwork")
def test_an_agent_outside_the_network_is_rejected() -> None:
    """Its index must be in 0 … m − 1."""
    with raises(TopologyError, agent=9):
        AgentNetwork(deepca.topology.path(3), 9)


@pytest.mark.threads(reason="AgentNetwork")
def test_results_are_in_the_order_of_agents() -> None:
    """The order does not depend on which agent finishes first."""
    topology = deepca.topology.star(6)
    assert deepca.run_agents(topology, lambda network: network.agent) == list(range(6))
