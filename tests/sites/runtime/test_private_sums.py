"""Test private sums between sites: keys and commitments in records, the common seed, and what happens when they lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from deepca import topology
from deepca.algorithms import State
from deepca.data.local_data import read
from deepca.data.sources import ArraySource
from deepca.decomposition.fit import decompose
from deepca.decomposition.settings import Settings
from deepca.engines.checkpointing import CheckpointObserver
from deepca.errors import DeepcaError, FrameError, PeerFailed, PeerFault, SumMismatch
from deepca.network import AgentNetwork, SimulatedNetwork, make_private, run_agents
from deepca.network.sums import Words
from deepca.network.sums.masks import SumMasks
from deepca.network.transports.base import Message, Tag
from deepca.network.transports.memory import MemoryHub, MemoryTransport
from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.records import Offer, Record, RecordTable, RunPlan
from deepca.sites.runtime.agent import largest_message
from deepca.sites.runtime.node.outbox import Outbox
from deepca.sites.runtime.private_sums import PrivateSums
from deepca.sites.runtime.site_result import SiteResult
from studies.faults.schedules import Fault, Outcome, Schedule, draw_schedule, rows_of, simulate
from tests.support.errors import raises

NAMES = ("north", "south", "west")
RING = topology.ring(3)


def plan_of(sites: list[PrivateSums], **changes: Any) -> RunPlan:
    keys, commitments = tuple(one.public_key for one in sites), tuple(one.commit() for one in sites)
    incarnations = tuple(Incarnation(1, j + 1) for j in range(3))
    return replace(RunPlan(1, (0, 1, 2), incarnations, RING_LINKS, mask_keys=keys, commitments=commitments), **changes)


RING_LINKS = ((0, 1), (0, 2), (1, 2))


def run(sites: list[PrivateSums], plan: RunPlan, work: Any) -> list[Any]:
    """Call ``work(network, own)`` at every site; return the results, or the errors raised."""
    hub = MemoryHub(3, timeout=20.0)

    def at_site(network: AgentNetwork) -> Any:
        try:
            sites[network.agent].begin(network, plan)
            network.begin(plan.epoch, 0)
            return work(network, sites[network.agent])
        except DeepcaError as error:
            return error

    return run_agents(RING, at_site, hub=hub)


def test_all_sites_derive_one_seed_that_differs_between_plans() -> None:
    sites = [PrivateSums(NAMES) for _ in NAMES]
    seeds = set()
    for _ in range(2):
        plan = plan_of(sites)
        found = run(sites, plan, lambda network, own, plan=plan: own.seed(network, plan, 7))
        assert len(set(found)) == 1
        assert 0 <= found[0] < 2**63
        seeds.update(found)
    assert len(seeds) == 2


def test_a_number_that_was_not_committed_to_ends_the_run_at_all_sites() -> None:
    sites = [PrivateSums(NAMES) for _ in NAMES]
    plan = plan_of(sites)
    sites[1].commit()  # draws another number
    found = run(sites, plan, lambda network, own: own.seed(network, plan, 0))
    assert [type(one) for one in found] == [SumMismatch] * 3
    assert all(one.plan == plan.digest for one in found)


@pytest.mark.parametrize(
    "key", [b"", bytes(32), (1).to_bytes(32, "little"), b"x" * 31], ids=["missing", "zero", "order one", "short"]
)
def test_a_key_that_cannot_be_used_is_refused_by_name_before_anything_is_sent(key: bytes) -> None:
    sites = [PrivateSums(NAMES) for _ in NAMES]
    keys = [one.public_key for one in sites]
    keys[1] = key
    for me in (0, 2):
        network = AgentNetwork(RING, me, MemoryHub(3).transport(me))
        with raises(PeerFault, site="south"):
            sites[me].begin(network, plan_of(sites, mask_keys=tuple(keys)))
        assert network.traffic.messages == 0
        assert not network.private


def test_repeated_keys_are_refused_by_name() -> None:
    sites = [PrivateSums(NAMES) for _ in NAMES]
    keys = (sites[0].public_key, sites[1].public_key, sites[0].public_key)
    network = AgentNetwork(RING, 1, MemoryHub(3).transport(1))
    with raises(PeerFault, site="west"):
        sites[1].begin(network, plan_of(sites, mask_keys=keys))


def test_the_digest_of_a_plan_covers_keys_and_commitments() -> None:
    plan = plan_of([PrivateSums(NAMES) for _ in NAMES])
    others = [replace(plan, mask_keys=plan.mask_keys[::-1]), replace(plan, commitments=plan.commitments[::-1])]
    assert len({plan.digest, *(one.digest for one in others)}) == 3


def test_records_carry_keys_and_commitments() -> None:
    own = PrivateSums(NAMES)
    record = Record(1, Incarnation(1, 9), offer=Offer(commitment=own.commit()), mask_key=own.public_key)
    again = Record.from_wire(record.to_wire(), 3)
    assert (again.mask_key, again.offer.commitment) == (record.mask_key, record.offer.commitment)
    for name in ("mask_key", "commitment"):
        message = record.to_wire()
        setattr(message, name, b"x" * 31)
        with pytest.raises(FrameError):
            Record.from_wire(message, 3)
    table = RecordTable(3, RING_LINKS)
    for site in range(3):
        table.put(replace(record, site=site))
    plan = table.plan(frozenset(range(3)), RING_LINKS)
    assert plan.mask_keys == (own.public_key,) * 3


# ----------------------------------------------------------------------------------------------------------- whole runs

SETTINGS = Settings(2, tol=1e-9)
NOTHING = Fault(0.0, "noise", (), 0.0, 0.0)


def schedule(*faults: Fault, seed: int = 5, checkpoint_every: int = 2) -> Schedule:
    return Schedule(seed, topology.ring(4), SETTINGS, "wait", (NOTHING, *faults), checkpoint_every=checkpoint_every)


def results(outcome: Outcome) -> list[SiteResult]:
    assert outcome.problems == []
    return [one for one in outcome.endings.values() if isinstance(one, SiteResult)]


def simulated(plan: Schedule, seed: int) -> Any:
    """Return the decomposition of the simulator with a seed."""
    sources = [ArraySource(rows, f"rows {j}") for j, rows in enumerate(rows_of(plan))]
    settings = replace(plan.settings, seed=seed)
    network = SimulatedNetwork(topology.star(len(sources)))
    return decompose(read(sources, form=settings.form), network, settings, weighted=False)


@pytest.mark.parametrize("faults", [(), (Fault(0.4, "kill", (1,), 3.0),), (Fault(0.3, "kill", (0, 1, 2, 3), 1.0),)])
def test_the_simulator_finds_the_same_bits_with_the_seed_in_the_model(faults: tuple[Fault, ...]) -> None:
    plan = schedule(*faults)
    found = results(simulate(plan))
    assert len({one.content for one in found}) == 1
    model = found[0].model
    assert model.about["privacy"] == "private"
    assert len(bytes.fromhex(model.about["history"])) == 32
    again = simulated(plan, model.about["seed"])
    assert np.asarray(model.components).tobytes() == again.components.tobytes()
    assert np.asarray(model.explained_variance).tobytes() == again.variances.tobytes()


# ------------------------------------------------------------------------------------------- sites that alter sums

LIAR = 1


def altered(payload: Words) -> Words:
    """Change a single word of the numbers."""
    payload[2:3] += np.uint64(1)
    return payload


def omitted(payload: Words) -> Words:
    """Leave out what others have added; only the count of agents looks right."""
    payload[1:] = 0
    return payload


def tampering(monkeypatch: pytest.MonkeyPatch, change: Any, phase: str, to: int | None = None) -> None:
    """Make one site change the sums that it sends in a phase, to one neighbour or to all."""
    honest = Outbox.send

    def send(self: Outbox, plan: RunPlan, tag: Tag, outgoing: Mapping[int, Message]) -> None:
        if self._context.me == LIAR and tag.phase == phase:
            outgoing = {
                receiver: replace(message, payload=change(message.payload.copy()))
                if message.payload is not None and message.payload.dtype == np.uint64 and to in (None, receiver)
                else message
                for receiver, message in outgoing.items()
            }
        honest(self, plan, tag, outgoing)

    monkeypatch.setattr(Outbox, "send", send)


@pytest.mark.parametrize("phase", ["seed", "mean", "spread", "step", "certificate"])
@pytest.mark.parametrize("change", [altered, omitted])
def test_a_site_that_alters_sums_ends_the_run_at_all_sites(
    change: Any, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tampering(monkeypatch, change, phase)
    outcome = simulate(schedule())
    assert len(outcome.endings) == 4
    for ending in outcome.endings.values():  # some sites may hear of it from others first
        assert isinstance(ending, SumMismatch | PeerFailed), repr(ending)
    assert any(isinstance(ending, SumMismatch) for ending in outcome.endings.values())
    assert outcome.seconds < 60.0


def test_sites_that_were_sent_different_blocks_have_no_checkpoint_in_common() -> None:
    """Otherwise they would go on from different states with a history that begins anew."""
    keys = []
    for block in (np.ones(3), -np.ones(3)):
        masks = SumMasks({}, (0,), b"plan")
        masks.record(block)
        stored: list[Any] = []
        store = SimpleNamespace(run=bytes(32), data=bytes(32), write=stored.append)
        observer = CheckpointObserver(store, 1, b"scope", bytes(32))
        observer._history = partial(getattr, masks, "history")
        W = np.eye(3)[:, :1]
        observer.observe(SimpleNamespace(after=State(1, W, W)))  # type: ignore[arg-type]
        keys.append(stored[0].key)
    assert keys[0] != keys[1]


def test_no_key_is_used_twice_through_kills_restarts_and_resumed_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    used: Counter[tuple[int, bytes]] = Counter()
    honest = SumMasks._key

    def key(self: SumMasks, secret: bytes, pair: tuple[int, int], layout: Any) -> bytes:
        found = honest(self, secret, pair, layout)
        [agent] = self._row
        used[agent, found] += 1
        return found

    monkeypatch.setattr(SumMasks, "_key", key)
    played = epochs = 0
    for seed in range(40):
        drawn = draw_schedule(seed)
        if drawn.private and played < 8:
            outcome = simulate(drawn)
            assert outcome.correct, (seed, outcome.problems)
            played, epochs = played + 1, epochs + outcome.epochs
    assert (played, set(used.values())) == (8, {1})
    assert epochs > 8  # some runs were interrupted


@pytest.mark.parametrize(("d", "k"), [(80, 60), (40, None), (60, 1)])
def test_no_message_of_a_private_run_is_longer_than_expected(d: int, k: int | None) -> None:
    rng, settings = np.random.default_rng(3), Settings(k, tol=1e-8, scale=True)
    sources = [ArraySource(rng.standard_normal((200, d)) * np.geomspace(3.0, 0.3, d), f"rows {j}") for j in range(4)]
    longest = [0] * 4

    class Measuring(MemoryTransport):
        def exchange(self, tag: Tag, outgoing: Any, wanted: Any, /) -> dict[int, Message]:
            for message in outgoing.values():
                arrays = [message.payload, *message.riders] if message.payload is not None else [*message.riders]
                longest[self._agent] = max(longest[self._agent], sum(array.nbytes for array in arrays))
            return super().exchange(tag, outgoing, wanted)

    hub = MemoryHub(4, timeout=60.0)

    def work(network: AgentNetwork) -> None:
        network.transport = Measuring(hub, network.agent)
        make_private(network)
        decompose(read((sources[network.agent],), form=settings.form), network, settings, weighted=False)

    run_agents(topology.ring(4), work, hub=hub)
    assert 8 * d * min(d, k or d) < max(longest) <= largest_message(sources[0], settings)
