"""Test pairwise masks: they cancel in the total, are used once, and hide what an agent adds from everybody else."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

import deepca
from deepca import topology
from deepca._util.typing import Array
from deepca.errors import MaskError, MixingError, NetworkError, SumMismatch
from deepca.network import AgentNetwork, Network, SimulatedNetwork, make_private, run_agents
from deepca.network.sums import COUNT, WIDE, Addend, SumLayout, Unit, Words
from deepca.network.sums import masks as module
from deepca.network.sums.integers import negated, sum_words, weighted_sum
from deepca.network.sums.masks import ALL_PAIRS, EphemeralKey, SumMasks, common_plan, partners
from deepca.network.transports.base import Message, Tag
from deepca.network.transports.memory import MemoryHub, MemoryTransport
from tests.support.engines import ENGINES, at_every_agent, over_mpi
from tests.support.errors import raises

pytestmark = pytest.mark.skipif(over_mpi(), reason="ranks have one owner, and no masks")

M = 5
LOW_ORDER = [  # u-coordinates of the points of low order on Curve25519 and its twist, RFC 7748 and Langley (2013)
    bytes(32),
    (1).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    (2**255 - 20).to_bytes(32, "little"),
    (2**255 - 19).to_bytes(32, "little"),
    (2**255 - 18).to_bytes(32, "little"),
]


def group(m: int = M, plan: bytes = b"p" * 32) -> list[SumMasks]:
    """Return the masks of m agents in processes of their own."""
    keys = [EphemeralKey() for _ in range(m)]
    found = []
    for j, key in enumerate(keys):
        pairs = {(min(i, j), max(i, j)): key.shared_secret(keys[i].public) for i in range(m) if i != j}
        found.append(SumMasks(pairs, (j,), plan))
    return found


def layout_of(*units: tuple[Unit, int]) -> SumLayout:
    return SumLayout.of([Addend("numbers", np.zeros(n), unit=unit) for unit, n in units], masked=True)


def messages(layout: SumLayout, agents: list[SumMasks], x: Array) -> list[Words]:
    """Return the masked messages of numbers ``(m, n)`` in all parts of a layout."""
    found = []
    for masks, own in zip(agents, x, strict=True):
        parts = [unit.encode(own[: n - 1]) for unit, n in zip(layout.units[1:], layout.sizes[1:], strict=True)]
        one = COUNT.encode(np.ones(1))
        found.append(masks.hide(layout.pack([one, *layout.with_checks(parts, masks.weights(layout))]), layout))
    return found


def total(layout: SumLayout, messages: list[Words]) -> Words:
    return layout.carry(layout.carry_free_sum(np.array(messages)))


LAYOUTS = {
    "one word": layout_of((Unit(-20), 9)),
    "several words": layout_of((WIDE, 9)),
    "mixed": layout_of((Unit(np.arange(9) - 30), 9), (WIDE, 4), (COUNT, 1), (Unit(-30, 2), 9)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_masks_cancel_in_the_total_and_the_check_numbers_hold(name: str) -> None:
    layout, agents = LAYOUTS[name], group()
    x = np.random.default_rng(1).integers(-1000, 1000, (M, 9)).astype(float)
    for _ in range(3):
        weights = agents[0].weights(layout)
        hidden = messages(layout, agents, x)
        found = total(layout, hidden)
        assert layout.describe_total_fault(found, weights) == ""
        for part in layout.totals(found):
            np.testing.assert_array_equal(part.value, x.sum(axis=0)[: part.value.size])
            assert not part.rest.any()
        assert all(layout.agents(one) == 1 for one in hidden)  # how many agents a message contains is no secret


@pytest.mark.parametrize("words", [1, 2, 5])
def test_check_numbers_are_sums_modulo_the_range(words: int) -> None:
    rng = np.random.default_rng(words)
    q, rho = rng.integers(0, 2**64, (3, words, 7), dtype=np.uint64), rng.integers(0, 2**64, 7, dtype=np.uint64)
    found = weighted_sum(q, rho)
    for agent, integers in enumerate(q):
        values = [sum(int(word) << (64 * level) for level, word in enumerate(column)) for column in integers.T]
        used = [int(r) | 1 if words == 1 else (int(r) | 1) & 0xFFFFFFFF for r in rho]
        expected = sum(r * value for r, value in zip(used, values, strict=True)) % 2 ** (64 * words)
        assert sum(int(word) << (64 * level) for level, word in enumerate(found[agent, :, 0])) == expected
    np.testing.assert_array_equal(sum_words(np.stack([q[0], negated(q[0])])), np.zeros_like(q[0]))


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_altered_word_and_every_omitted_message_is_detected(name: str) -> None:
    layout, agents = LAYOUTS[name], group()
    weights = agents[0].weights(layout)
    hidden = messages(layout, agents, np.ones((M, 9)))
    for word in range(1, layout.n_words):
        for change in (1, 1 << 17, 1 << 63):
            altered = [one.copy() for one in hidden]
            altered[2][word : word + 1] += np.uint64(change)
            assert layout.describe_total_fault(total(layout, altered), weights), (word, change)
    assert layout.describe_total_fault(total(layout, hidden[1:]), weights)
    assert layout.describe_total_fault(total(layout, [*hidden[1:], hidden[1]]), weights)


def test_masked_messages_are_uniform_and_have_no_block_in_common() -> None:
    layout, x = layout_of((Unit(-20), 4096)), np.ones((M, 4096))
    seen: set[bytes] = set()
    for agents in (group(), group()):  # two runs over the same rows, with the same plan
        for hidden in messages(layout, agents, x) + messages(layout, agents, x):
            data = hidden[1:].tobytes()
            counts = np.bincount(np.frombuffer(data, dtype=np.uint8), minlength=256)
            assert stats.chisquare(counts).pvalue > 1e-9
            blocks = [data[i : i + 16] for i in range(0, len(data) - 15, 16)]
            assert seen.isdisjoint(blocks)
            seen.update(blocks)


def test_a_key_depends_on_pair_sum_history_units_plan_and_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[bytes] = []

    def keystream(key: bytes, n_words: int, room: bytearray | None = None) -> Words:
        used.append(key)
        return np.zeros(n_words, dtype=np.uint64)

    monkeypatch.setattr(module, "_keystream", keystream)
    secret, layout = b"s" * 32, LAYOUTS["one word"]

    def key(
        *, pair: Any = (0, 1), sums: int = 0, public: bytes = b"", to: Any = layout, plan: bytes = b"p", at: int = 1
    ) -> bytes:
        masks = SumMasks({pair: secret}, (pair[0],), plan)
        masks.enter(at)
        for _ in range(sums):
            masks.hide(np.zeros(to.n_words, dtype=np.uint64), to)
        if public:
            masks.record(public)
        masks.hide(np.zeros(to.n_words, dtype=np.uint64), to)
        return used[-1]

    variants = [
        key(),
        key(pair=(0, 2)),
        key(pair=(1, 2)),
        key(sums=1),
        key(public=b"a total"),
        key(public=b"another"),
        key(to=LAYOUTS["mixed"]),
        key(to=layout_of((Unit(-21), 9))),
        key(plan=b"q"),
        key(at=2),
    ]
    assert len(set(variants)) == len(variants)
    assert key() == variants[0]


@pytest.mark.parametrize("n_words", [0, 1, 7, 8192, 8193, 20_000])
def test_keystreams_are_those_of_aes_in_counter_mode(n_words: int) -> None:
    cipher = Cipher(algorithms.AES(b"k" * 32), modes.CTR(bytes(16))).encryptor()
    expected = np.frombuffer(cipher.update(bytes(8 * n_words)), dtype="<u8")
    room = module._room_for(n_words)
    module._keystream(b"another".ljust(32), n_words, room)
    np.testing.assert_array_equal(module._keystream(b"k" * 32, n_words, room), expected)
    np.testing.assert_array_equal(module._keystream(b"k" * 32, n_words), expected)


def test_an_epoch_begins_once() -> None:
    masks = SumMasks({}, (0,), b"p")
    masks.enter(3)
    for epoch in (3, 2):
        with pytest.raises(MaskError):
            masks.enter(epoch)


@pytest.mark.parametrize("key", LOW_ORDER, ids=range(len(LOW_ORDER)))
def test_points_of_low_order_are_refused(key: bytes) -> None:
    with pytest.raises(MaskError):
        EphemeralKey().shared_secret(key)


def test_keys_that_are_malformed_or_repeated_are_refused() -> None:
    own = EphemeralKey()
    repeated = own.public[:-1] + bytes([own.public[-1] | 128])  # another form of the same point
    for key in (b"", b"x" * 31, b"x" * 33, own.public, repeated):
        with pytest.raises(MaskError):
            own.shared_secret(key)
    with raises(MaskError, agent=2):
        common_plan([b"a" * 32, b"b" * 32, b"a" * 32])


def test_secrets_cannot_be_stored_or_shown() -> None:
    key = EphemeralKey()
    for store in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            store(key)
    assert repr(key) == f"EphemeralKey({key.public.hex()})"


def test_small_networks_mask_all_pairs_and_large_ones_a_random_graph() -> None:
    assert partners(ALL_PAIRS, b"p") == frozenset(itertools.combinations(range(ALL_PAIRS), 2))
    m = 1024
    found = partners(m, b"p")
    assert all(0 <= i < j < m for i, j in found)
    degree = np.bincount(np.array(sorted(found)).ravel(), minlength=m)
    assert degree.min() >= 32  # (40 + log₂ 1024) / log₂ 3 = 31.5
    assert degree.max() <= 36
    assert partners(m, b"q") != found


# ------------------------------------------------------------------------------------------------------------ networks


@pytest.mark.parametrize("scale", [1.0, 1e-150, 1e150])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("graph", [topology.ring(8), topology.hypercube(3), topology.star(8)], ids=lambda g: g.name)
def test_private_totals_have_the_bits_of_open_ones(graph: topology.Topology, engine: str, scale: float) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((8, 30)) * 10.0 ** rng.integers(-8, 8, (8, 30)) * scale
    expected = SimulatedNetwork(graph).total(x)

    def work(network: Network) -> Array:
        make_private(network)
        found = [network.total(x[network.local]) for _ in range(2)][-1]
        return np.broadcast_to(found, (*network.batch, *found.shape))

    for found in at_every_agent(engine, graph, work).values:
        np.testing.assert_array_equal(found, expected)


def test_a_private_network_refuses_to_gossip() -> None:
    network = SimulatedNetwork(topology.ring(4))
    make_private(network)
    x = np.ones((4, 3))
    calls: list[Any] = [
        lambda: network.gossip(x),
        lambda: network.collect(x),
        lambda: network.gossip_compressed(x, None, "float32"),
        lambda: network.average_pairs(x, np.array([[0, 1]]), 1),
        lambda: network.mix(deepca.FastMix(rounds=3), x, 3),
        lambda: deepca.solve(deepca.DeEPCA(np.stack([np.eye(3)] * 4), np.eye(3)[:, :1], network), max_iter=2),
    ]
    for call in calls:
        with raises(MixingError, parameter="privacy"):
            call()
    np.testing.assert_array_equal(network.broadcast(np.arange(4.0)[:, None]), [float(network.leader)])


@pytest.mark.parametrize(
    "graph", [topology.path(2), topology.time_varying.lossy(topology.ring(4), 0.5)], ids=["two", "lossy"]
)
def test_networks_that_cannot_be_private_are_refused(graph: topology.Topology) -> None:
    with raises(MixingError, parameter="privacy"):
        make_private(SimulatedNetwork(graph))


class Tampering(MemoryTransport):
    """Transport that changes the messages which an agent sends in the n-th exchange of sums."""

    def __init__(self, hub: MemoryHub, agent: int, change: Any, at: int) -> None:
        super().__init__(hub, agent)
        self.change, self.at, self.sums = change, at, 0

    def exchange(self, tag: Tag, outgoing: Any, sources: Any, /) -> dict[int, Message]:
        carries = any(one.payload is not None and one.payload.dtype == np.uint64 for one in outgoing.values())
        self.sums += carries
        if carries and self.sums == self.at:
            outgoing = {
                receiver: Message(self.change(receiver, one.payload.copy()), one.riders)
                for receiver, one in outgoing.items()
            }
        return super().exchange(tag, outgoing, sources)


def _altered(receiver: int, payload: Words) -> Words:
    payload[3:4] += np.uint64(1)
    return payload


def _omitted(receiver: int, payload: Words) -> Words:
    payload[1:] = 0
    return payload


@pytest.mark.parametrize("change", [_altered, _omitted])
def test_a_message_altered_on_the_way_up_ends_the_run_at_all_agents(change: Any) -> None:
    assert [type(error) for error in _tampered(change, 1, 1)] == [SumMismatch] * M


def test_an_agent_that_is_told_another_total_turns_the_next_one_into_noise() -> None:
    """The agent next to the end of a path tells it another total, whose check number matches."""
    assert [type(error) for error in _tampered(_with_valid_checks, 2, 1)] == [SumMismatch] * M


def _with_valid_checks(receiver: int, payload: Words) -> Words:
    """Add one to the first number of a total of :func:`_tampered`, and its weight to the check number."""
    payload[1:2] += np.uint64(1)
    payload[-1:] += CHECK_WEIGHT[0]
    return payload


CHECK_WEIGHT: list[Any] = [np.uint64(0)]


def _tampered(change: Any, at: int, agent: int) -> list[BaseException]:
    """Return the errors of all agents of a path, one of which tampers with a message of the second sum."""
    graph = topology.path(M)
    hub = MemoryHub(M, timeout=20.0)
    errors: list[BaseException | None] = [None] * M

    def work(network: AgentNetwork) -> None:
        make_private(network)
        transport = Tampering(hub, network.agent, change, at) if network.agent == agent else network.transport
        network.transport = transport
        masks = network._masks
        assert masks is not None
        if network.agent == agent:
            CHECK_WEIGHT[0] = masks.weights(layout_of((Unit(-20), 6)))[0] | np.uint64(1)
        try:
            for _ in range(2):
                network.total(np.ones(6), Unit(-20))
        except NetworkError as error:
            errors[network.agent] = error

    run_agents(graph, work, hub=hub)
    assert all(error is not None for error in errors)
    return [error for error in errors if error is not None]


def test_units_that_do_not_match_end_the_run_at_all_agents() -> None:
    def work(network: AgentNetwork) -> type[NetworkError] | None:
        make_private(network)
        try:
            network.total(np.ones(6), Unit(-21 if network.agent == 3 else -20))
        except NetworkError as error:
            return type(error)
        return None

    assert run_agents(topology.ring(M), work) == [SumMismatch] * M


def test_a_sum_that_is_repeated_in_another_unit_does_not_show_the_number_that_did_not_fit() -> None:
    """The first total lacks the numbers of one agent only, and would show them beside the second."""
    x = np.ones((M, 4))
    x[2] = [3e-30, 1.0, 2.0, 3.0]  # the first does not fit
    seen: dict[bool, list[Array]] = {}
    for private in (False, True):
        network = SimulatedNetwork(topology.ring(M))
        if private:
            make_private(network)
        summed, honest = seen.setdefault(private, []), network._sum_words

        def spy(own: Words, layout: SumLayout, *more: Any, summed: Any = summed, honest: Any = honest) -> Any:
            found = honest(own, layout, *more)
            summed.extend(one.value for one in layout.totals(found[0]) if one.value.size == 4)
            return found

        network._sum_words = spy  # type: ignore[method-assign]
        np.testing.assert_array_equal(network.total(x), x.sum(axis=0))
    without = x.sum(axis=0) - [3e-30, 0.0, 0.0, 0.0]
    assert any(np.array_equal(one, without) for one in seen[False])
    first, second = seen[True]
    assert (np.abs(first - second) > 1e6).all()
