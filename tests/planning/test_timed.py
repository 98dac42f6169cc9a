"""Test the timed simulator: numbers as without clocks, and times confirmed by two independent simulations."""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.linalg

import deepca
from deepca import Gossip, Links, Machines, SimulatedNetwork, TimedNetwork, Tolerance
from deepca import topology as tp
from deepca._util.typing import csr
from deepca.consensus.exact import AllReduce, TreeSweep, exact_average
from deepca.decomposition.settings import create_algorithm
from deepca.errors import MixingError, ParameterError
from deepca.network import AgentNetwork, Network
from deepca.network.transports import MemoryHub, Message, Tag
from deepca.network.transports.memory import MemoryTransport
from deepca.operators import Operator, as_operator, from_rows
from deepca.planning.clock import Arcs, SimulatedClock
from deepca.planning.links import MIN_RETRANSMISSION_TIMEOUT
from deepca.planning.metered import LinkSpeed, MeteredNetwork
from deepca.planning.timed import TimedOperator, operations
from deepca.solver.result import Result
from deepca.topology import Topology, time_varying
from tests.support.errors import raises
from tests.support.helpers import GRAPHS, tangents
from tests.support.problems import spectrum, spectrum_problem
from tests.support.seeds import law_seeds

Array = npt.NDArray[np.float64]
TAU = 1.0 / 64.0  # sums of it are exact
METHODS = ("krylov", "accelerated", "deepca")
SEVERAL = [name for name in GRAPHS if name != "one agent"]


def _problem(m: int, d: int = 12, k: int = 2, seed: int = 3) -> tuple[Operator, Array]:
    A = as_operator(spectrum_problem(m, d, spectrum(d, k), seed))
    return A, np.linalg.qr(np.random.default_rng(seed).standard_normal((d, k)))[0]


def _solved(name: str, network: Network, A: Operator, W0: Array) -> Result[Any]:
    return deepca.solve(create_algorithm(name, A, W0, network), max_iter=500, stop=Tolerance(1e-9))


def _random_links(topology: Topology, seed: int, **more: Any) -> Links:
    rng = np.random.default_rng(seed)
    arcs = topology.n_messages
    given = {"latency": rng.uniform(0.001, 0.1, arcs), "bandwidth": rng.uniform(1e4, 1e6, arcs), **more}
    return Links.of(topology, **given)


def test_agents_that_meet_wait_only_for_each_other() -> None:
    """Both agents continue when the later message has arrived; agents that do not meet do not wait."""
    topology = tp.erdos_renyi(9, 0.5, seed=1)
    links = _random_links(topology, 4, bandwidth=np.inf)
    latency = {(int(i), int(j)): t for i, j, t in zip(links.senders, links.receivers, links.latency, strict=True)}
    timed, plain = TimedNetwork(links), SimulatedNetwork(topology)
    x = np.random.default_rng(0).standard_normal((9, 4, 2))
    pairs = topology.edges[np.random.default_rng(1).integers(len(topology.edges), size=40)]
    assert np.array_equal(timed.average_pairs(x, pairs, 9), plain.average_pairs(x, pairs, 9))
    assert timed.traffic == plain.traffic
    now = np.zeros(9)
    for i, j in pairs:
        now[i], now[j] = max(now[i], now[j] + latency[j, i]), max(now[j], now[i] + latency[i, j])
    np.testing.assert_allclose(timed.clock.now, now, rtol=1e-12)


class RoundByRound(TimedNetwork):
    """Timed network without the shortcut of a single matrix for all rounds."""

    mix = Network.mix


# ---------------------------------------------------------------------------------------------------------- laws


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("graph", GRAPHS)
def test_the_numbers_are_bitwise_those_of_the_simulator(graph: str, method: str) -> None:
    topology = GRAPHS[graph]()
    A, W0 = _problem(topology.n_agents)
    links = _random_links(topology, 1, loss=0.1, jitter=0.01, machines=Machines.of(topology.n_agents, slowdown=2.0))
    timed, plain = TimedNetwork(links, gflops=1.0), SimulatedNetwork(topology)
    found = _solved(method, timed, TimedOperator(A, timed.clock), W0)
    expected = _solved(method, plain, A, W0)
    assert np.array_equal(found.W, expected.W)
    assert np.array_equal(found.components, expected.components)
    assert timed.traffic == plain.traffic
    assert timed.clock.elapsed > 0.0


@pytest.mark.parametrize("method", METHODS)
def test_ideal_links_and_machines_take_no_time(method: str) -> None:
    topology = tp.erdos_renyi(7, 0.5, seed=1)
    A, W0 = _problem(7)
    network = TimedNetwork(Links.of(topology))
    assert _solved(method, network, TimedOperator(A, network.clock), W0).status.ok
    assert network.clock.elapsed == 0.0
    assert network.clock.retransmissions == 0


@pytest.mark.parametrize("network", [TimedNetwork, RoundByRound])
@pytest.mark.parametrize("graph", SEVERAL)
def test_k_rounds_take_k_latencies(graph: str, network: type[TimedNetwork]) -> None:
    topology = GRAPHS[graph]()
    timed = network(Links.of(topology, latency=TAU))
    Gossip(rounds=9)(timed, np.ones((topology.n_agents, 3)))
    assert np.array_equal(timed.clock.now, np.full(topology.n_agents, 9 * TAU))
    timed.reduce(np.ones((topology.n_agents, 2)), "max")
    assert timed.clock.elapsed == (9 + topology.flood_rounds) * TAU


@pytest.mark.parametrize("method", METHODS)
def test_collapsed_rounds_take_as_long_as_single_rounds(method: str) -> None:
    """Bandwidth is low, and piggybacked values are part of the messages."""
    topology = tp.erdos_renyi(9, 0.4, seed=2)
    A, W0 = _problem(9)
    links = _random_links(topology, 5, bandwidth=2e4)
    at_once, one_by_one = TimedNetwork(links), RoundByRound(links)
    for network in (at_once, one_by_one):
        deepca.solve(create_algorithm(method, A, W0, network), max_iter=12, stop=Tolerance(1e-9), certify=False)
    assert at_once.traffic == one_by_one.traffic
    np.testing.assert_allclose(at_once.clock.now, one_by_one.clock.now, rtol=1e-12)


def test_time_is_monotone_in_every_latency() -> None:
    topology = tp.erdos_renyi(8, 0.4, seed=0)
    A, W0 = _problem(8)
    links = _random_links(topology, 2)

    def times(latency: Array) -> Array:
        network = TimedNetwork(Links.of(topology, latency=latency, bandwidth=links.bandwidth))
        deepca.solve(create_algorithm("deepca", A, W0, network, rounds=3), max_iter=6)
        return network.clock.now

    before = times(links.latency)
    grown = 0
    for arc in range(topology.n_messages):
        latency = links.latency.copy()
        latency[arc] += 0.05
        after = times(latency)
        assert (after >= before).all()
        grown += bool((after > before).any())
    assert grown > topology.n_messages // 4


def test_a_tree_sweep_on_a_path_takes_its_longer_half_up_and_each_half_down() -> None:
    topology = tp.path(7)
    there = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0]) / 64.0
    middle = topology.center
    links = Links.of(topology)
    latency = there[np.minimum(links.senders, links.receivers)]
    network = TimedNetwork(Links.of(topology, latency=latency))
    TreeSweep()(network, np.ones((7, 3)))
    left, right = there[:middle].sum(), there[middle:].sum()
    up = max(left, right)
    assert network.clock.now[middle] == up
    assert network.clock.now[0] == up + left
    assert network.clock.now[-1] == up + right


def test_only_used_links_take_time() -> None:
    """A slow link outside the tree does not matter."""
    topology = tp.from_edges(4, [(0, 1), (0, 2), (0, 3), (2, 3)])
    links = Links.of(topology)
    slow = (links.senders + links.receivers == 5) & (links.senders >= 2)
    network = TimedNetwork(Links.of(topology, latency=np.where(slow, 100.0, TAU)))
    exact_average(network, np.ones((4, 2)))
    assert network.clock.elapsed == 2 * TAU
    network.gossip(np.ones((4, 2)))
    assert network.clock.elapsed > 100.0


@pytest.mark.parametrize("factor", [1.0, 3.0, 40.0])
def test_a_straggler_bounds_the_time_from_below(factor: float) -> None:
    topology = tp.ring(6)
    A, W0 = _problem(6)
    slowdown = np.ones(6)
    slowdown[4] = factor
    links = Links.of(topology, latency=0.001, machines=Machines.of(6, slowdown=slowdown))
    network = TimedNetwork(links, gflops=1e-3)
    counted = _Counting(A)
    deepca.solve(create_algorithm("deepca", TimedOperator(counted, network.clock), W0, network), max_iter=20)
    usual = counted.columns * 2 * A.d**2 / 1e6
    assert network.clock.elapsed >= factor * usual * (1 - 1e-12)
    straggling = network.clock.parts[network.clock.now.argmax(), 4]
    assert straggling <= (factor - 1.0) * usual * (1 + 1e-12)
    if factor > 1.0:
        assert straggling > 0.5 * (factor - 1.0) * usual  # most of the time, all waited for agent 4
        assert int(network.clock.critical_path().at_agents.argmax()) == 4


class _Counting(Operator):
    """Operator that counts the columns it multiplies."""

    def __init__(self, A: Operator) -> None:
        self._A, self.columns = A, 0
        self.batch, self.d, self.form, self.bytes_read = A.batch, A.d, A.form, A.bytes_read

    def __matmul__(self, W: Array) -> Array:
        self.columns += W.shape[-1]
        return self._A @ W

    def agent(self, j: int) -> Operator:
        return self._A.agent(j)

    def dense(self) -> Array:
        return self._A.dense()


def test_the_number_of_operations_depends_on_the_form() -> None:
    rows = [np.ones((n, 6)) for n in (3, 5)]
    assert operations(from_rows(rows, form="rows")).tolist() == [4.0 * 3 * 6, 4.0 * 5 * 6]
    assert operations(from_rows(rows, form="covariance")).tolist() == [2.0 * 36, 2.0 * 36]
    sparse_rows = [csr(np.eye(n, 6)) for n in (3, 5)]
    assert operations(from_rows(sparse_rows, form="rows")).tolist() == [12.0, 20.0]


def test_stalls_have_the_given_probability() -> None:
    links = Links.of(tp.complete(1), machines=Machines.of(1, stall=0.2, pause=0.5))
    clock = SimulatedClock(links, flops=1e9)
    for _ in range(4000):
        clock.compute(np.array([0.0]))
    stalls = clock.elapsed / 0.5
    assert abs(stalls - 800.0) <= 4.0 * np.sqrt(4000 * 0.2 * 0.8)
    assert clock.parts[0, 4] == pytest.approx(clock.elapsed, rel=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_parts_and_critical_path_add_up_to_the_time(method: str) -> None:
    topology = tp.erdos_renyi(9, 0.4, seed=4)
    A, W0 = _problem(9)
    machines = Machines.of(9, slowdown=np.linspace(1.0, 3.0, 9), stall=0.1, pause=0.1, uplink=1e6)
    network = TimedNetwork(_random_links(topology, 8, loss=0.05, jitter=0.02, machines=machines), gflops=1e-3)
    _solved(method, network, TimedOperator(A, network.clock), W0)
    clock = network.clock
    np.testing.assert_allclose(clock.parts.sum(axis=1), clock.now, rtol=1e-11)
    assert (clock.parts >= -1e-12).all()
    chain = clock.critical_path()
    assert chain.on_links.sum() + chain.at_agents.sum() == pytest.approx(clock.elapsed, rel=1e-11)
    assert sum(network.phases.values()) == pytest.approx(clock.elapsed, rel=1e-12)
    assert network.phases["proof"] > 0.0


# -------------------------------------------------------------------------------------------------------- losses


def test_losses_are_geometric_and_counted() -> None:
    """The number of losses of each message has mean p/(1−p) and variance p/(1−p)²."""
    n, p = 3000, 0.2
    network = TimedNetwork(Links.of(tp.path(2), latency=0.01, loss=p), seed=3)
    one_way = csr(np.array([[1.0, 0.0], [0.5, 0.5]]))
    for _ in range(n):
        network.gossip(np.ones((2, 4)), one_way)
    clock = network.clock
    assert abs(clock.retransmissions - n * p / (1 - p)) <= 4.0 * np.sqrt(n * p) / (1 - p)
    assert clock.retransmitted_bytes == clock.retransmissions * 32
    assert clock.now[0] == 0.0  # the sender does not wait
    assert clock.now[1] == pytest.approx(0.01 + clock.retransmissions * MIN_RETRANSMISSION_TIMEOUT, rel=1e-12)


def test_lost_messages_are_sent_again_after_twice_the_round_trip_time() -> None:
    links = Links.of(tp.path(3), latency=[0.1, 0.2, 0.01, 0.02])  # 1→0, 0→1, 2→1, 1→2
    assert links.senders.tolist() == [1, 0, 2, 1]
    np.testing.assert_allclose(links.retransmission_timeout, [0.6, 0.6, 0.2, 0.2], rtol=1e-14)


def test_times_are_determined_by_the_seed() -> None:
    def elapsed(seed: int) -> float:
        network = TimedNetwork(Links.of(tp.ring(6), latency=0.01, loss=0.1, jitter=0.01), seed=seed)
        Gossip(rounds=50)(network, np.ones((6, 2)))
        return network.clock.elapsed

    assert elapsed(1) == elapsed(1)
    assert elapsed(1) != elapsed(2)


def test_jitter_stays_within_its_range() -> None:
    network = TimedNetwork(Links.of(tp.ring(6), latency=0.01, jitter=0.02))
    Gossip(rounds=200)(network, np.ones((6, 2)))
    assert (
        200 * 0.02 < network.clock.elapsed < 200 * 0.03
    )  # the later of two messages counts, and jitter is never at its maximum throughout
    assert network.clock.elapsed < 200 * 0.0295


def test_dropped_messages_cost_time_and_are_detected_and_repaired() -> None:
    """If messages are not sent again, tracking drifts; the certificate detects it, and tracking restarts."""
    base = tp.erdos_renyi(8, 0.6, seed=1)
    A, W0 = _problem(8)
    losing = time_varying.lossy(base, 0.05, seed=5, until=80)
    network = TimedNetwork(Links.of(losing, latency=TAU))
    result = deepca.solve(deepca.DeEPCA(A, W0, network, Gossip(5)), max_iter=300, stop=Tolerance(1e-10))
    assert result.status.code == "converged"
    assert result.restarts >= 1
    _, vectors = scipy.linalg.eigh(A.mean())
    assert tangents(vectors[:, ::-1][:, :2], result.W).max() < 1e-9
    rounds = network.traffic.rounds + network.traffic.control_rounds
    assert rounds > 80
    missed = np.array([(base.adjacency.toarray() > 0) & (losing.at(r).toarray() == 0) for r in range(80)])
    waited = network.clock.elapsed - rounds * TAU  # at least the waits of one agent, at most one per round with a loss
    assert missed.any(axis=2).sum(axis=0).max() * MIN_RETRANSMISSION_TIMEOUT <= waited * (1 + 1e-12)
    assert waited <= missed.any(axis=(1, 2)).sum() * MIN_RETRANSMISSION_TIMEOUT * (1 + 1e-12)


def test_one_peer_rounds_take_one_latency_each() -> None:
    network = TimedNetwork(Links.of(time_varying.one_peer(8), latency=TAU))
    Gossip(rounds=6)(network, np.ones((8, 2)))
    assert np.array_equal(network.clock.now, np.full(8, 6 * TAU))


# ------------------------------------------------------------------------------------------- bandwidth and lines


def test_a_line_carries_one_message_after_the_other() -> None:
    """Agent 0 does not wait, so its messages queue: n of them take n times as long, plus one latency."""
    network = TimedNetwork(Links.of(tp.path(2), latency=0.5, bandwidth=800.0))
    one_way = csr(np.array([[1.0, 0.0], [0.5, 0.5]]))
    for _ in range(5):
        network.gossip(np.ones((2, 10)), one_way)  # 80 bytes: 0.8 s
    assert network.clock.now[1] == pytest.approx(5 * 0.8 + 0.5, rel=1e-14)


def test_links_are_parallel_unless_they_share_an_uplink() -> None:
    topology = tp.star(6)
    x = np.ones((6, 10))
    apart = TimedNetwork(Links.of(topology, bandwidth=800.0))
    apart.gossip(x)
    assert apart.clock.elapsed == pytest.approx(0.8, rel=1e-14)
    shared = TimedNetwork(Links.of(topology, machines=Machines.of(6, uplink=800.0)))
    shared.gossip(x)
    np.testing.assert_allclose(shared.clock.now[1:], 0.8 * np.arange(1, 6), rtol=1e-14)
    assert shared.clock.now[0] == pytest.approx(0.8, rel=1e-14)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("graph", SEVERAL)
def test_without_bytes_the_time_is_that_of_a_plan(graph: str, method: str) -> None:
    """Both count one latency per round, except that only few agents wait in a round along a tree."""
    topology = GRAPHS[graph]()
    A, W0 = _problem(topology.n_agents)
    timed, planned = TimedNetwork(Links.of(topology, latency=TAU)), MeteredNetwork(topology, LinkSpeed(TAU, 1e300))
    for network in (timed, planned):
        _solved(method, network, A, W0)
    seconds = planned.running.seconds + planned.proving.seconds
    assert timed.clock.elapsed <= seconds * (1 + 1e-12)
    assert timed.clock.elapsed >= 0.8 * seconds


@pytest.mark.parametrize("graph", SEVERAL)
def test_with_bytes_a_plan_is_an_upper_bound(graph: str) -> None:
    """In a plan all agents wait for the busiest sender of each round; in a simulation only its neighbours do."""
    topology = GRAPHS[graph]()
    m = topology.n_agents
    A, W0 = _problem(m)
    timed = TimedNetwork(Links.of(topology, latency=0.001, machines=Machines.of(m, uplink=1e5)))
    planned = MeteredNetwork(topology, LinkSpeed(0.001, 1e5))
    for network in (timed, planned):
        _solved("deepca", network, A, W0)
    seconds = planned.running.seconds + planned.proving.seconds
    assert timed.clock.elapsed <= seconds * (1 + 1e-12)
    assert timed.clock.elapsed >= 0.5 * seconds


# --------------------------------------------------------------------- an independent event-driven simulation


class _Recording(np.random.Generator):
    """Random generator of a clock that records its numbers, round by round."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(11))
        self.lost: list[npt.NDArray[np.int64]] = []
        self.late: list[Array] = []

    def geometric(self, p: Any, size: Any = None) -> Any:
        self.lost.append(super().geometric(p, size) - 1)
        return self.lost[-1] + 1

    def random(self, size: Any = None, *more: Any, **given: Any) -> Any:
        self.late.append(super().random(size, *more, **given))
        return self.late[-1]


def _events(links: Links, rounds: list[npt.NDArray[np.int64]], nbytes: list[int], drawn: _Recording) -> Array:
    """Simulate agents by events in a heap: each continues when all messages of its round have arrived."""
    m, n = links.topology.n_agents, len(rounds)
    awaited = [[0] * n for _ in range(m)]
    sends: list[list[list[tuple[int, int]]]] = [[[] for _ in range(n)] for _ in range(m)]
    for r, arcs in enumerate(rounds):
        for place, arc in enumerate(arcs):
            awaited[links.receivers[arc]][r] += 1
            sends[links.senders[arc]][r].append((int(arc), place))
    line, uplink = [0.0] * links.latency.size, [0.0] * m
    now, at = [0.0] * m, [-1] * m
    there: dict[tuple[int, int], list[float]] = defaultdict(list)
    heap: list[tuple[float, int, int, int]] = []

    def advance(j: int) -> None:
        while at[j] < 0 or len(there[j, at[j]]) == awaited[j][at[j]]:
            if at[j] >= 0:
                now[j] = max([now[j], *there[j, at[j]]])
            at[j] += 1
            if at[j] == n:
                return
            r = at[j]
            free = max(now[j], uplink[j])
            for arc, place in sends[j][r]:
                if np.isfinite(links.machines.uplink[j]):
                    free = uplink[j] = free + 8.0 * nbytes[r] / links.machines.uplink[j]
                    departure = max(free, line[arc])
                else:
                    departure = max(now[j], line[arc])
                line[arc] = departure + drawn.lost[r][place] * links.retransmission_timeout[arc]
                line[arc] += 8.0 * nbytes[r] / links.bandwidth[arc]
                delay = links.latency[arc] + links.jitter[arc] * drawn.late[r][place]
                heapq.heappush(heap, (line[arc] + delay, arc, r, int(links.receivers[arc])))

    for j in range(m):
        advance(j)
    while heap:
        time, _, r, j = heapq.heappop(heap)
        there[j, r].append(time)
        if at[j] == r:
            advance(j)
    assert at == [n] * m
    return np.array(now)


@pytest.mark.parametrize("seed", law_seeds(12))
def test_an_event_driven_simulation_agrees(seed: int) -> None:
    """Graphs, links, subsets of links per round, sizes, losses and jitter are random; some agents have uplinks."""
    rng = np.random.default_rng(seed)
    m = int(rng.integers(2, 14))
    topology = tp.erdos_renyi(m, 0.5, seed=seed)
    uplink = np.where(rng.random(m) < 0.4, rng.uniform(1e4, 1e5, m), np.inf)
    links = _random_links(topology, seed, loss=0.2, jitter=0.05, machines=Machines.of(m, uplink=uplink))
    drawn = _Recording()
    clock = SimulatedClock(links, seed=drawn)
    rounds, nbytes = [], []
    for _ in range(60):
        share = float(rng.choice([0.2, 0.6, 1.0]))
        arcs = np.flatnonzero(rng.random(topology.n_messages) <= share)
        if arcs.size:
            rounds.append(arcs)
            nbytes.append(int(rng.integers(1, 4000)))
            clock.round(Arcs.of(links, arcs), nbytes[-1])
    assert any(lost.any() for lost in drawn.lost)
    np.testing.assert_allclose(clock.now, _events(links, rounds, nbytes, drawn), rtol=1e-12)


# ------------------------------------------------------------------------------- separate agents with own clocks


class _TimedHub(MemoryHub):
    """Hub of agents in threads, each with its own time; messages carry their arrival times."""

    def __init__(self, links: Links) -> None:
        super().__init__(links.topology.n_agents, timeout=60.0)
        self.links, self.now = links, np.zeros(links.topology.n_agents)
        self.arrivals: dict[tuple[int, int], deque[float]] = defaultdict(deque)
        self.line: dict[int, float] = defaultdict(float)

    def transport(self, agent: int) -> MemoryTransport:
        return _TimedTransport(self, agent)


class _TimedTransport(MemoryTransport):
    def __init__(self, hub: _TimedHub, agent: int) -> None:
        super().__init__(hub, agent)
        self._timed_hub, self._me = hub, agent

    def exchange(self, tag: Tag, outgoing: Mapping[int, Message], sources: Collection[int], /) -> dict[int, Message]:
        hub, i, links = self._timed_hub, self._me, self._timed_hub.links
        for j, message in outgoing.items():
            [arc] = links.find(np.array([j]), np.array([i]))
            nbytes = sum(part.nbytes for part in (message.payload, *message.riders) if part is not None)
            hub.line[arc] = max(hub.now[i], hub.line[arc]) + 8.0 * nbytes / links.bandwidth[arc]
            hub.arrivals[i, j].append(hub.line[arc] + links.latency[arc])
        received = super().exchange(tag, outgoing, sources)
        hub.now[i] = max([hub.now[i], *(hub.arrivals[source, i].popleft() for source in sources)])
        return received


class _Slow(Operator):
    """Operator of one agent whose products advance its time."""

    def __init__(self, A: Operator, hub: _TimedHub, j: int, flops: float) -> None:
        self._A, self._hub, self._j, self._flops = A, hub, j, flops
        self.batch, self.d, self.form, self.bytes_read = A.batch, A.d, A.form, A.bytes_read

    def __matmul__(self, W: Array) -> Array:
        seconds = 2.0 * self.d**2 * W.shape[-1] / self._flops
        self._hub.now[self._j] += seconds * self._hub.links.machines.slowdown[self._j]
        return self._A @ W

    def row_bounds(self) -> Array | None:
        return self._A.row_bounds()

    def agent(self, j: int) -> Operator:
        return self

    def dense(self) -> Array:
        return self._A.dense()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("graph", ["erdos-renyi", "path", "star", "hypercube"])
def test_separate_agents_with_their_own_clocks_agree(graph: str, method: str) -> None:
    """Another engine, independent of the clocks: the exchanges of whole runs, proof included, carry time stamps."""
    topology = GRAPHS[graph]()
    m = topology.n_agents
    A, W0 = _problem(m)
    links = _random_links(topology, 6, machines=Machines.of(m, slowdown=np.linspace(1.0, 2.0, m)))
    hub = _TimedHub(links)

    def work(network: AgentNetwork) -> int:
        return _solved(method, network, _Slow(A.agent(network.agent), hub, network.agent, 1e6), W0).iterations

    iterations = deepca.run_agents(topology, work, hub=hub)
    network = TimedNetwork(links, gflops=1e-3)
    result = _solved(method, network, TimedOperator(A, network.clock), W0)
    assert iterations == [result.iterations] * m
    np.testing.assert_allclose(network.clock.now, hub.now, rtol=1e-12)


# --------------------------------------------------------------------------------------------------- invalid input


def test_an_operation_over_all_agents_is_rejected() -> None:
    with pytest.raises(MixingError):
        AllReduce()(TimedNetwork(Links.of(tp.ring(4))), np.ones((4, 2)))


@pytest.mark.parametrize("gflops", [0.0, -1.0, float("nan")])
def test_an_invalid_speed_is_rejected(gflops: float) -> None:
    with raises(ParameterError, parameter="gflops"):
        TimedNetwork(Links.of(tp.ring(4)), gflops=gflops)
