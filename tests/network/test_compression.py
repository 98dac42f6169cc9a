"""Test that float32 and float16 messages take a half and a quarter of the bytes at full accuracy."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import deepca
from deepca import Chebyshev, DeEPCA, DePCA, FastMix, Gossip, Tolerance, topology
from deepca._util.typing import Array, Csr
from deepca.algorithms import TrackedState
from deepca.consensus.exact import DimensionExchange, TreeSweep
from deepca.consensus.mixers import Mixer
from deepca.errors import BadArray, MixingError, ParameterError
from deepca.network import AgentNetwork, Network, SimulatedNetwork
from deepca.network.base import MixerNetwork
from deepca.network.compression import REFRESH_INTERVAL, Code, Copies, Messages, decode, encode, graph_digest
from deepca.network.transports import Message
from deepca.operators import from_matrices
from deepca.solver.result import Result
from deepca.topology import Topology
from tests.laws.strategies import mixed_topologies, quick, seeds
from tests.support.engines import (
    ENGINES,
    Engine,
    Stepwise,
    assert_same_traffic,
    at_every_agent,
    everyone,
    mine,
    network_of,
    over_mpi,
    payload,
    ranks_of,
    run_separately,
    total,
)
from tests.support.errors import raises
from tests.support.helpers import GRAPHS, AtIteration, Recorder, tangents, worst_tangent
from tests.support.problems import pooled_answer, spectrum, spectrum_problem

CODES: tuple[Code, ...] = ("float32", "float16")
BYTES: dict[Messages, int] = {"float64": 8, "float32": 4, "float16": 2}
DIGITS: dict[Code, float] = {"float32": 2.0**-24, "float16": 2.0**-11}  # relative rounding errors
MIXERS: tuple[type[Mixer], ...] = (Gossip, FastMix, Chebyshev)
M, D, K = 8, 30, 3
PLACE = topology.erdos_renyi(M, 0.5, seed=1)
STACK = spectrum_problem(M, D, spectrum(D, K, gap=0.5), 3, heterogeneity=0.5)
U = pooled_answer(STACK, K)[1]
W0 = deepca.operators.linalg.random_orthonormal(D, K, seed=5)
ENOUGH = 60  # more than this problem needs to reach 1e-12


def algorithm_on(network: Network, mixer: Mixer, stack: Array = STACK) -> DeEPCA:
    return DeEPCA(from_matrices(stack), W0, network, mixer)


def iterate(algorithm: DeEPCA | DePCA, iterations: int) -> list[TrackedState]:
    states = [algorithm.init()]
    for t in range(iterations):
        algorithm.network.begin(0, t)
        states.append(algorithm.step(states[-1]))
    return states


def mean_tangent(state: TrackedState, exact: Array = U) -> float:
    """Return the mean tangent over all agents."""
    return float(np.mean(everyone(tangents(exact, state.W), M)))


def needed(states: list[TrackedState], accuracy: float = 1e-12) -> int:
    """Return the number of iterations after which the mean tangent is at most ``accuracy``."""
    return next(state.t for state in states if mean_tangent(state) <= accuracy)


def equal(one: TrackedState, other: TrackedState) -> None:
    """Assert that two states have equal bits, including copies."""
    for name in ("W", "S", "AW"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert (one.t, one.K) == (other.t, other.K)
    assert (one.memory is None) == (other.memory is None)
    if isinstance(one.memory, Copies) and isinstance(other.memory, Copies):
        np.testing.assert_array_equal(one.memory.own, other.memory.own)
        for mine, yours in zip(one.memory.others, other.memory.others, strict=True):
            np.testing.assert_array_equal(mine, yours)


# ---------------------------------------------------------------------------------------------------- accuracy


@pytest.mark.parametrize("kind", MIXERS)
def test_full_accuracy_takes_as_many_iterations_with_half_and_a_quarter_of_the_bytes(kind: type[Mixer]) -> None:
    """The reference is scipy's eigenvectors of the pooled matrix.

    A compressed message has an additional row for the exponents, and the first message is float64.
    """
    iterations: dict[Messages, int] = {}
    sent: dict[Messages, int] = {}
    for messages, size in BYTES.items():
        network = network_of(PLACE)
        states = iterate(algorithm_on(network, kind(5, messages)), ENOUGH)
        iterations[messages], sent[messages] = needed(states), total(network.traffic, M).bytes_sent
        assert mean_tangent(states[-1]) <= 1e-12
        rows, first = (D, 0) if messages == "float64" else (D + 1, 8 - size)
        assert sent[messages] == 2 * PLACE.n_edges * rows * K * (ENOUGH * 5 * size + first)
    assert max(iterations.values()) - min(iterations.values()) <= 1
    assert sent["float32"] <= 0.53 * sent["float64"]
    assert sent["float16"] <= 0.265 * sent["float64"]


class Cast(Stepwise):
    """Network that rounds messages without compensation."""

    code: Code = "float32"

    def gossip(self, x: Array, weights: Csr | None = None, /) -> Array:
        own = np.diag(self.topology.gossip_matrix)[self.local, None, None]
        sent = x.astype(self.code).astype(np.float64)
        return super().gossip(sent, weights) + own * (x - sent)


class Forgetful(Engine):
    """Network whose copies are empty at the beginning of every mix."""

    def begin(self, epoch: int, t: int, /, phase: str = "step") -> None:
        super().begin(epoch, t, phase)
        self.fresh = True

    def gossip_compressed(self, x: Array, copies: Copies | None, code: Code, /) -> tuple[Array, Copies]:
        if self.fresh and copies is not None:
            others = tuple(np.zeros_like(other) for other in copies.others)
            copies = replace(copies, own=np.zeros_like(copies.own), others=others)
        self.fresh = False
        return super().gossip_compressed(x, copies, code)


@pytest.mark.parametrize("code", CODES)
def test_messages_that_are_simply_rounded_stall(code: Code) -> None:
    """So the test above is not trivial."""
    network = Cast(PLACE)
    network.code = code
    states = iterate(algorithm_on(network, FastMix(5)), 3 * ENOUGH)
    assert min(mean_tangent(state) for state in states) > 1e-9


def test_runs_that_drop_copies_in_every_iteration_stall() -> None:
    """So copies must be part of the state."""
    states = iterate(algorithm_on(Forgetful(PLACE), FastMix(3, "float16")), 3 * ENOUGH)
    assert min(mean_tangent(state) for state in states) > 1e-9
    assert needed(iterate(algorithm_on(network_of(PLACE), FastMix(3, "float16")), ENOUGH)) <= ENOUGH


@pytest.mark.parametrize("kind", MIXERS)
@pytest.mark.parametrize("code", CODES)
def test_the_mean_is_tracked_in_every_iteration(code: Code, kind: type[Mixer]) -> None:
    """``mean S^{t+1} = mean A W^t`` is checked with a product computed here."""
    states = iterate(algorithm_on(network_of(PLACE), kind(3, code)), 2 * ENOUGH)
    for before, after in pairwise(states):
        expected = np.einsum("jde,jek->dk", STACK, everyone(before.W, M)) / M
        off = np.linalg.norm(everyone(after.S, M).mean(axis=0) - expected) / np.linalg.norm(expected)
        assert off <= 1e-14, f"iteration {before.t}"


@pytest.mark.parametrize("code", CODES)
def test_depca_stalls_at_the_same_level_as_with_float64(code: Code) -> None:
    """DePCA adds disagreement in every iteration; rounding adds little to that."""
    errors = []
    for messages in ("float64", code):
        algorithm = DePCA(from_matrices(STACK), W0, network_of(PLACE), FastMix(6, messages))
        errors.append(mean_tangent(iterate(algorithm, ENOUGH)[-1]))
    assert errors[0] > 1e-9
    assert errors[1] <= 1.5 * errors[0]


def test_float64_messages_are_not_compressed() -> None:
    """By default messages are not compressed, and no copies are kept."""
    network = network_of(PLACE)
    mixed, copies = FastMix(4).mix(network, STACK[mine(M)], None)
    assert copies is None
    np.testing.assert_array_equal(mixed, network.mix(FastMix(4), STACK[mine(M)], 4))
    assert FastMix(4).messages == "float64"
    assert iterate(algorithm_on(network, FastMix(4)), 2)[-1].memory is None


# ------------------------------------------------------------------------------------------------ several engines


def on_every_agent(place: Topology, work: Callable[[AgentNetwork], Any]) -> list[Any]:
    return deepca.run_agents(place, work, timeout=20.0)


def known_by(network: Network) -> list[int]:
    """Return the neighbours of which a network keeps copies, in order; none if it holds all agents."""
    held = {int(j) for j in np.atleast_1d(network.local)}
    return sorted({i for j in held for i in network.topology.neighbors(j)} - held)


def check_copies(network: Network, copies: Copies, everybodys: Array) -> None:
    """Assert that copies are bit-identical to those of their owners."""
    np.testing.assert_array_equal(copies.own, everybodys[network.local])
    others = copies.others if not network.batch or not copies.others else tuple(copies.others[0])
    for i, other in zip(known_by(network), others, strict=True):
        np.testing.assert_array_equal(other, everybodys[i])


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("graph", GRAPHS)
def test_a_round_gives_the_same_bits_on_every_engine(graph: str, code: Code) -> None:
    """Both ends have the same copies, and the round is ``x + (𝐋 − I) D``."""
    place = GRAPHS[graph]()
    m = place.n_agents
    x = np.random.default_rng(0).standard_normal((2, m, 5, 2)) * np.array([1.0, 1e-6])
    network = SimulatedNetwork(place)
    y, first = network.gossip_compressed(x[0], None, code)
    np.testing.assert_allclose(y, np.einsum("ij,jdk->idk", place.gossip_matrix, x[0]), rtol=0, atol=1e-14)
    np.testing.assert_array_equal(first.own, x[0])
    y, second = network.gossip_compressed(x[1], first, code)
    expected = x[1] + np.einsum("ij,jdk->idk", place.gossip_matrix - np.eye(m), second.own)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-14)
    assert 0.0 < np.abs(second.own - x[1]).max() <= DIGITS[code] * np.abs(x[1] - x[0]).max()

    def work(apart: Network) -> Array:
        _, copies = apart.gossip_compressed(x[0, apart.local], None, code)
        z, copies = apart.gossip_compressed(x[1, apart.local], copies, code)
        check_copies(apart, copies, second.own)
        return z

    done = at_every_agent(ENGINES[-1], place, work)
    np.testing.assert_allclose(done.values, y, rtol=0, atol=1e-14)
    sent = done.traffic.bytes_sent
    assert sent == network.traffic.bytes_sent == 2 * place.n_edges * 6 * 2 * (8 + BYTES[code])


@pytest.mark.threads(reason="the messages of AgentNetwork")
def test_messages_have_the_compressed_dtype() -> None:
    """They are not float64 arrays that are merely counted as smaller ones."""
    sent: list[Message] = []

    class Watched(AgentNetwork):
        def exchange(self, message: Message, *links: tuple[int, ...]) -> dict[int, Message]:
            sent.append(message)
            return super().exchange(message, *links)

    def work(network: AgentNetwork) -> int:
        watched = Watched(PLACE, network.agent, network.transport)
        FastMix(4, "float16")(watched, STACK[network.agent])
        return watched.traffic.bytes_sent

    counted = on_every_agent(PLACE, work)
    payloads = [message.payload for message in sent if message.payload is not None]
    assert {payload.shape for payload in payloads} == {(D + 1, D)}
    assert sorted(payload.dtype.name for payload in payloads) == 3 * M * ["float16"] + M * ["float64"]
    assert sum(counted) == 2 * PLACE.n_edges * (D + 1) * D * (8 + 3 * 2)


@pytest.mark.parametrize("kind", MIXERS)
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("method", [DeEPCA, DePCA])
def test_separate_agents_match_the_simulator(method: type[DeEPCA | DePCA], code: Code, kind: type[Mixer]) -> None:
    """Results, iterations and traffic are compared after a fixed number of iterations."""
    A = from_matrices(STACK)
    networks: dict[int, Network] = {}

    def make(operator: deepca.operators.Operator, network: Network) -> DeEPCA | DePCA:
        networks[int(np.min(network.local))] = network
        return method(operator, W0, network, kind(4, code))

    simulated = deepca.solve(make(A, SimulatedNetwork(PLACE)), max_iter=12)
    networks.clear()
    apart = run_separately(PLACE, A, make, max_iter=12)
    # A difference of 1e-16 may flip a rounding: by one unit in the last place of the code, in few messages.
    for one, other in ((apart.whole.W, simulated.W), (apart.whole.state.S, simulated.state.S)):
        np.testing.assert_allclose(one, other, rtol=0, atol=float(np.finfo(code).eps))
        assert np.median(np.abs(one - other)) < 1e-9
    assert_same_traffic(apart.whole.traffic, simulated.traffic, PLACE)
    copies = [result.state.memory for result in apart.parts]
    everybodys = np.stack([c.own for c in copies]) if len(copies) > 1 else everyone(copies[0].own, M)
    for part, known in zip(sorted(networks), copies, strict=True):
        check_copies(networks[part], known, everybodys)


@pytest.mark.parametrize("rounds", [4, "auto"])
@pytest.mark.parametrize("code", CODES)
def test_a_stop_rule_ends_all_engines_alike_with_a_certificate(code: Code, rounds: Any) -> None:
    """So pending values are carried by compressed messages on all engines."""
    A, mixer = from_matrices(STACK), FastMix(rounds, code)
    simulated = deepca.solve(algorithm_on(SimulatedNetwork(PLACE), mixer), max_iter=400, stop=Tolerance(1e-11))
    apart = run_separately(
        PLACE, A, lambda operator, net: DeEPCA(operator, W0, net, mixer), max_iter=400, stop=Tolerance(1e-11)
    )
    for result in (simulated, apart.whole):
        assert result.status.code == "converged"
        assert result.iterations == simulated.iterations < 400
        assert worst_tangent(U, result.W) <= 1e-11
    for result in (simulated, *apart.parts):
        assert result.certificate is not None
        assert result.certificate.proves(1e-11)
    assert_same_traffic(apart.whole.traffic, simulated.traffic, PLACE)
    for sent in (simulated.traffic, apart.whole.traffic):
        assert sent.control_rounds == 0
        assert sent.control_bytes > 0 or (over_mpi() and ranks_of(M) == 1)
        full = -(-simulated.iterations // REFRESH_INTERVAL)
        numbers = 2 * PLACE.n_edges * (D + 1) * K
        assert payload(sent) == numbers * ((sent.rounds - full) * BYTES[code] + full * 8)


@pytest.mark.threads(reason="ranks run one program, which has one kind of messages")
def test_agents_with_a_different_precision_are_named() -> None:
    def work(network: AgentNetwork) -> Array:
        return FastMix(2, "float16" if network.agent == 1 else "float32")(network, STACK[network.agent])

    with pytest.raises(BadArray) as caught:
        on_every_agent(PLACE, work)
    assert "float16" in caught.value.what
    assert "float32" in caught.value.what


@pytest.mark.simulator(reason="which matrix it keeps")
def test_a_compressed_mixer_is_not_collapsed_to_a_matrix() -> None:
    """Compression is not linear: a compressed sum is not the sum of compressed terms."""
    network = SimulatedNetwork(PLACE)
    mixer, x = FastMix(3, "float16"), STACK[:, :, :2]
    mixed = mixer(network, x)
    assert network.traffic.rounds == 3
    assert np.abs(mixer(SimulatedNetwork(PLACE), 3.0 * x) - 3.0 * mixed).max() > 1e-9  # impossible for a matrix
    assert 1e-9 < np.abs(mixed - FastMix(3)(network, x)).max() < 1e-2


# --------------------------------------------------------------------------------- states, retries and restarts


@pytest.mark.parametrize("code", CODES)
def test_a_retried_step_gives_the_same_state(code: Code) -> None:
    algorithm = algorithm_on(network_of(PLACE), FastMix(3, code))
    state = iterate(algorithm, 6)[-1]
    kept = pickle.loads(pickle.dumps(state))
    first = algorithm.step(state)
    equal(state, kept)
    equal(algorithm.step(state), first)
    equal(algorithm_on(network_of(PLACE), FastMix(3, code)).step(kept), first)


@pytest.mark.threads(reason="the test above, in threads")
def test_an_agent_that_retries_a_step_gives_the_same_state() -> None:
    """All agents take the step twice from the same state, as after a fault."""

    def work(network: AgentNetwork) -> tuple[TrackedState, TrackedState]:
        algorithm = DeEPCA(STACK[network.agent], W0, network, FastMix(3, "float16"))
        state = iterate(algorithm, 4)[-1]
        network.begin(0, 4)
        first = algorithm.step(state)
        network.begin(0, 4)
        return first, algorithm.step(state)

    for first, second in on_every_agent(PLACE, work):
        equal(first, second)


def test_copies_are_read_only() -> None:
    state = iterate(algorithm_on(network_of(PLACE), FastMix(3, "float32")), 1)[-1]
    assert isinstance(state.memory, Copies)
    assert not state.memory.own.flags.writeable
    for array in state.memory.others:
        assert not array.flags.writeable
    alone = AgentNetwork(topology.complete(1), 0).gossip_compressed(np.ones((2, 1)), None, "float32")[1]
    for array in (alone.own, *alone.others):
        assert not array.flags.writeable


@pytest.mark.parametrize("code", CODES)
def test_a_resumed_run_equals_an_uninterrupted_one(code: Code) -> None:
    def run(iterations: int, start: TrackedState | None = None) -> Result[TrackedState]:
        algorithm = algorithm_on(network_of(PLACE), FastMix(3, code))
        return deepca.solve(algorithm, max_iter=iterations, start=start, certify=False)

    equal(run(8, run(7).state).state, run(15).state)


def test_a_restart_discards_copies() -> None:
    algorithm = algorithm_on(network_of(PLACE), FastMix(3, "float16"))
    state = iterate(algorithm, 6)[-1]
    assert isinstance(state.memory, Copies)
    others = tuple(other + 1.0 for other in state.memory.others)
    corrupted = replace(state, memory=replace(state.memory, own=state.memory.own + 1.0, others=others))
    restarted = algorithm.restart(state, 20)
    equal(algorithm.restart(corrupted, 20), restarted)
    equal(algorithm.restart(replace(state, memory=None), 20), restarted)
    baseline = DePCA(from_matrices(STACK), W0, network_of(PLACE), FastMix(3, "float16"))
    assert baseline.restart(corrupted, 20).memory is None


@pytest.mark.parametrize("code", CODES)
def test_a_new_epoch_loses_no_accuracy(code: Code) -> None:
    """The first mix after a restart begins with empty copies, and is as accurate as with float64."""
    network, recorder = network_of(PLACE), Recorder()
    announce = AtIteration(ENOUGH, lambda: network.announce_epoch(1))
    result = deepca.solve(
        algorithm_on(network, FastMix(4, code)), max_iter=ENOUGH + 20, observers=[recorder, announce], certify=False
    )
    assert network.epoch == 1
    assert result.restarts == 1
    for step in recorder.steps[ENOUGH - 1 :]:
        assert worst_tangent(U, step.after.W) <= 2e-12


def test_copies_of_another_shape_or_graph_are_not_used() -> None:
    """All agents discard copies if the shape or the edges change; other weights on the same edges do not matter."""
    x = STACK[mine(M), :, :2]
    network = network_of(PLACE)
    _, copies = network.gossip_compressed(STACK[mine(M), :, :3], None, "float16")
    fresh, _ = network.gossip_compressed(x, None, "float16")
    np.testing.assert_array_equal(network.gossip_compressed(x, copies, "float16")[0], fresh)
    _, copies = network.gossip_compressed(2.0 * x, None, "float16")
    assert everyone(np.abs(network.gossip_compressed(x, copies, "float16")[0] - fresh), M).max() > 0.0
    elsewhere = network_of(topology.ring(M))
    fresh, _ = elsewhere.gossip_compressed(x, None, "float16")
    np.testing.assert_array_equal(elsewhere.gossip_compressed(x, copies, "float16")[0], fresh)
    assert (
        graph_digest(topology.ring(M))
        == graph_digest(topology.ring(M, rule="metropolis"))
        != graph_digest(topology.path(M))
    )


def test_agents_that_move_to_another_graph_discard_copies_and_stay_exact() -> None:
    """From a ring to a path, two agents lose a neighbour, but all discard their copies."""
    A, mixer = from_matrices(STACK), FastMix(6, "float16")
    ring, path = topology.ring(M), topology.path(M)

    def make(operator: deepca.operators.Operator, network: Network) -> DeEPCA:
        return DeEPCA(operator, W0, network, mixer)

    first = run_separately(ring, A, make, max_iter=10)
    second = run_separately(path, A, make, max_iter=6, start=[result.state for result in first.parts]).whole
    mean, expected = second.state.S.mean(axis=0), second.state.AW.mean(axis=0)
    assert np.linalg.norm(mean - expected) <= 1e-13 * np.linalg.norm(expected)


# -------------------------------------------------------------------------------------------------- lost messages


class Lossy(Engine):
    """Network in which agent 0 misses a message of agent 1, so that its copy lacks that difference from then on."""

    when, lost = 2, False
    missing: Array | None = None

    def gossip_compressed(self, x: Array, copies: Copies | None, code: Code, /) -> tuple[Array, Copies]:
        y, after = super().gossip_compressed(x, copies, code)
        if copies is None:
            self.missing = None
        elif self.phase_and_iteration == ("step", self.when) and not self.lost:
            self.lost, self.missing = True, everyone(after.own - copies.own, M)[1]
        if self.missing is not None:
            y[self.local == 0] -= self.topology.gossip_matrix[0, 1] * self.missing
        return y, after


class LossyAgent(AgentNetwork):
    """Single agent that misses a message in the second round of an iteration."""

    when, heard = 2, 0

    def exchange(self, message: Message, receivers: tuple[int, ...], sources: tuple[int, ...]) -> dict[int, Message]:
        received = super().exchange(message, receivers, sources)
        if self.agent != 0 or self.phase_and_iteration != ("step", self.when):
            return received
        self.heard += 1
        if self.heard == 2:
            payload = received[1].payload
            assert payload is not None
            received[1] = replace(received[1], payload=np.zeros_like(payload))
        return received


def run_lossy(kind: str, code: Code, when: int, **options: Any) -> tuple[list[Result[Any]], Array]:
    place, mixer = topology.ring(M), FastMix(8, code)
    if kind != "threads":
        network = Lossy(place)
        network.when = when
        result = deepca.solve(algorithm_on(network, mixer), **options)
        return [result], everyone(result.W, M)

    def work(network: AgentNetwork) -> Result[Any]:
        lossy = LossyAgent(place, network.agent, network.transport)
        lossy.when = when
        return deepca.solve(DeEPCA(STACK[network.agent], W0, lossy, mixer), **options)

    results = deepca.run_agents(place, work)
    return results, np.stack([result.W for result in results])


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("kind", ENGINES)
def test_a_lost_message_is_detected(kind: str, code: Code) -> None:
    """Different copies at both ends change the mean, so that fresh averages contradict the tracked ones."""
    results, W = run_lossy(kind, code, 10, max_iter=100)
    assert worst_tangent(U, W) > 1e-6
    for result in results:
        assert result.status.code == "tracking_lost"
        assert not result.status.ok


@pytest.mark.parametrize("when", [2, 10])
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("kind", ENGINES)
def test_a_run_with_a_tolerance_recovers_from_a_lost_message(kind: str, code: Code, when: int) -> None:
    """Tracking restarts without copies, and the result is right.

    In iteration 2 differences are as large as the tracked values. Until copies are refreshed the mean changes so much
    that iterates settle, and are found to be wrong, only afterwards.
    """
    results, W = run_lossy(kind, code, when, max_iter=600, stop=Tolerance(1e-10))
    assert worst_tangent(U, W) <= 1e-10
    for result in results:
        assert result.status.code == "converged"
        assert result.restarts == 1, "the loss had no effect, or was not noticed"


# ------------------------------------------------------------------------------------------------------- scales


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("scale", [1e150, 1e-150, 1e300, 1e-290, 1.0])
def test_the_relative_accuracy_does_not_depend_on_the_magnitude_of_a_column(scale: float, code: Code) -> None:
    rng = np.random.default_rng(0)
    x = scale * rng.standard_normal((4, 50, 3)) * np.array([1.0, 1e-6, 0.0])
    message = encode(x, code, 1)
    assert message.dtype == code
    assert message.shape == (4, 51, 3)
    assert np.isfinite(message).all()
    back = decode(message, x.shape)
    peak = np.abs(x).max(axis=1, keepdims=True)
    assert (np.abs(back - x) <= DIGITS[code] * peak).all()
    assert np.abs(back - x)[..., 0].max() > 0.05 * DIGITS[code] * peak[..., 0].min()  # and no better
    np.testing.assert_array_equal(back[..., 2], 0.0)
    one = encode(x[1], code, 0)
    np.testing.assert_array_equal(one, message[1])
    np.testing.assert_array_equal(decode(one, x[1].shape), back[1])


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (0,), (4, 2), (0, 2), (4, 0), (3, 4, 2)])
def test_arrays_of_any_shape_and_memory_order_are_compressed(shape: tuple[int, ...], code: Code) -> None:
    x = np.random.default_rng(1).standard_normal((3, *shape))
    swapped = np.asfortranarray(x)
    for values in (x, swapped):
        back = decode(encode(values, code, 1), values.shape)
        assert back.shape == x.shape
        np.testing.assert_allclose(back, x, rtol=0, atol=DIGITS[code] * np.abs(x).max(initial=0.0))


@pytest.mark.parametrize("code", CODES)
def test_extreme_numbers_are_compressed(code: Code) -> None:
    """These are subnormal numbers, powers of two, and a column that rounds up to the next power."""
    largest, least = 1e308, 5e-324
    x = np.array([[largest, least, 1.0, 2.0 - 2.0**-40, -(2.0**-1022)], [1.0, 0.0, 2.0**-60, 1.0, 2.0**-1030]])
    back = decode(encode(x, code, 0), x.shape)
    peak = np.abs(x).max(axis=0)
    assert (np.abs(back - x) <= np.maximum(DIGITS[code] * peak, 2.0**-1010)).all()
    assert back[0, 2] == 1.0
    assert back[0, 3] == 2.0


def test_nonfinite_numbers_do_not_affect_other_columns() -> None:
    """They reach every agent, so that they are detected."""
    x = np.array([[1.0, np.nan, np.inf], [0.5, 2.0, 3.0]])
    back = decode(encode(x, "float16", 0), x.shape)
    np.testing.assert_array_equal(back[:, 0], x[:, 0])
    assert np.isnan(back[0, 1])
    assert np.isinf(back[0, 2])
    stack = STACK.copy()
    network = network_of(PLACE)
    algorithm = algorithm_on(network, FastMix(3, "float16"), stack)
    state = algorithm.init()
    corrupted = replace(state, S=np.full_like(state.S, np.nan))
    with pytest.raises(deepca.errors.NotFiniteError):
        deepca.solve(algorithm, max_iter=20, stop=Tolerance(1e-8), start=corrupted)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("scale", [1e150, 1e-150])
def test_scaling_the_data_does_not_affect_accuracy(scale: float, code: Code) -> None:
    """The data exceed the ranges of float32 (3e38) and float16 (65504), but exponents are sent separately."""
    algorithm = algorithm_on(network_of(PLACE), FastMix(4, code), scale * STACK)
    states = iterate(algorithm, ENOUGH)
    assert mean_tangent(states[-1]) <= 1e-12
    assert np.isfinite(states[-1].S).all()


@pytest.mark.parametrize("code", CODES)
def test_eigenvalues_over_six_orders_are_as_accurate_as_with_float64(code: Code) -> None:
    """Each column of S, whose norm is its eigenvalue, has its own exponent."""
    values = np.concatenate([10.0 ** -np.arange(0.0, 7.0), np.full(D - 7, 1e-8)])
    stack = spectrum_problem(M, D, values, 2, heterogeneity=0.5)
    k = 6
    exact = pooled_answer(stack, k)[1]
    start = deepca.operators.linalg.random_orthonormal(D, k, seed=1)
    errors = []
    for messages in ("float64", code):
        algorithm = DeEPCA(stack, start, network_of(PLACE), FastMix(6, messages))
        errors.append(mean_tangent(iterate(algorithm, ENOUGH)[-1], exact))
    assert errors[0] <= 1e-8  # rounding, magnified by λ_1 / λ_k
    assert errors[1] <= 3.0 * errors[0] + 1e-12


@pytest.mark.parametrize("code", CODES)
def test_matrices_of_zeros_stay_zero(code: Code) -> None:
    network = network_of(PLACE)
    states = iterate(algorithm_on(network, FastMix(3, code), np.zeros_like(STACK)), 5)
    np.testing.assert_array_equal(states[-1].S, 0.0)
    assert np.isfinite(states[-1].W).all()


@pytest.mark.parametrize("code", CODES)
@given(mixed_topologies(max_rounds=12), seeds, st.integers(-250, 250), st.integers(0, 60))
@quick(60)
def test_the_mean_is_preserved_for_any_values(
    code: Code, made: tuple[Topology, Mixer], seed: int, exponent: int, orders: int
) -> None:
    """Entries have many orders of magnitude, and copies are unrelated; only rounding of the largest entry remains."""
    place, mixer = made
    m = place.n_agents
    rng = np.random.default_rng(seed)

    def values() -> Array:
        sizes = 10.0 ** (exponent - orders * rng.random((1, 6, 2)))
        return np.asarray(sizes * rng.standard_normal((m, 6, 2)))

    network, coded = network_of(place), replace(mixer, messages=code)
    _, copies = coded.mix(network, values()[mine(m)], None)
    x = values()
    y, _ = coded.mix(network, x[mine(m)], copies)
    y = everyone(y, m)
    reach = max(
        np.abs(x).max(), np.abs(y).max(), np.abs(everyone(copies.own, m)).max() if isinstance(copies, Copies) else 0.0
    )
    assert np.abs(y.mean(axis=0) - x.mean(axis=0)).max() <= 1e-15 * 40 * reach


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("kind", MIXERS)
def test_a_long_mix_from_empty_copies_reaches_the_mean_to_rounding(kind: type[Mixer], code: Code) -> None:
    """Rounding errors vanish with the differences that are sent."""
    x = np.random.default_rng(0).standard_normal((M, 20, 2))
    K_ = kind().rounds_for(PLACE, 1e-15) + 4
    mixed = kind(K_, code)(network_of(PLACE), x[mine(M)])
    np.testing.assert_allclose(mixed, np.broadcast_to(x.mean(axis=0), mixed.shape), rtol=0, atol=5e-14)


# ------------------------------------------------------------------------------------------------ invalid input


@pytest.mark.parametrize("kind", MIXERS)
@pytest.mark.parametrize("bad", ["float8", "f4", "", None, 32, np.float32])
def test_an_unknown_precision_is_rejected(bad: Any, kind: type[Mixer]) -> None:
    with raises(ParameterError, parameter="messages", value=bad) as caught:
        kind(3, bad)
    assert all(precision in caught.value.expected for precision in BYTES)


@pytest.mark.parametrize("kind", [TreeSweep, DimensionExchange])
def test_exact_averages_reject_compressed_messages(kind: type[Mixer]) -> None:
    with pytest.raises(MixingError):
        kind(messages="float32")
    assert kind().messages == "float64"


@dataclass(frozen=True)
class Half(Mixer):
    """Mixer that sets the weights of every round."""

    def run(self, network: MixerNetwork, x: Array, K: int, /) -> Array:
        return network.gossip(x, network.topology.gossip_sparse)

    def contraction(self, topology: Topology, K: int) -> float:
        return 0.5


def test_mixers_that_set_the_weights_of_rounds_reject_compressed_messages() -> None:
    network: Network = network_of(PLACE)
    with raises(MixingError, parameter="messages", value="float32"):
        Half(1, "float32")(network, STACK[mine(M)])
    Half(1)(network, STACK[mine(M)])


def test_rates_of_a_mixer_do_not_depend_on_the_precision() -> None:
    for kind in MIXERS:
        plain, coded = kind(3), kind(3, "float16")
        assert plain.contraction(PLACE, 3) == coded.contraction(PLACE, 3)
        assert plain.rounds_for(PLACE, 1e-9) == coded.rounds_for(PLACE, 1e-9)
        np.testing.assert_array_equal(
            deepca.consensus.rates.responses(plain, PLACE, 3), deepca.consensus.rates.responses(coded, PLACE, 3)
        )
        assert coded.with_rounds(5).messages == "float16"


def test_a_single_agent_sends_nothing() -> None:
    place = topology.complete(1)
    x: npt.NDArray[np.float64] = STACK[:1]
    for kind in MIXERS:
        for network, values in ((network_of(place), x), (AgentNetwork(place, 0), x[0])):
            np.testing.assert_allclose(kind(3, "float16")(network, values), values, rtol=1e-14)
            assert network.traffic.bytes_sent == 0
