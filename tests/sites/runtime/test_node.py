"""Test under a virtual clock that sites end with one result or none, whenever they are started and killed."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pytest

from deepca._util.logs import EventHandler, attached
from deepca.data.local_data import read
from deepca.data.sources import ArraySource
from deepca.decomposition.fit import build_model, decompose
from deepca.decomposition.settings import ALGORITHMS, Settings
from deepca.engines.checkpoint_format import Checkpoint
from deepca.errors import DeepcaError, InvalidInput, Unfinished
from deepca.network.agent import AgentNetwork
from deepca.network.threads import run_agents
from deepca.network.transports.base import Message, Tag, Transport
from deepca.network.transports.memory import MemoryHub, MemoryTransport
from deepca.sites.protocol.fingerprints import COLUMN_KEY_BYTES, COLUMN_KEY_ENTRY, schema_of
from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.parcels import pack
from deepca.sites.protocol.signatures import Signatures
from deepca.sites.runtime.agent import largest_message
from deepca.sites.runtime.node import Node, NodeConfig, NodeSnapshot, Policy
from deepca.sites.runtime.promise_store import MemoryPromiseStore
from deepca.sites.runtime.run import SiteRun, run_site
from deepca.sites.runtime.site_result import SiteResult
from deepca.solver.observers import Start, Step
from deepca.topology import Topology, complete, path, ring
from studies.faults.schedules import MemoryDisk
from studies.faults.virtual import Host, VirtualClock, VirtualNetwork

D = 8
PLAIN = Settings(2, tol=1e-9)
MANY = Settings(2, algorithm="deepca", tol=1e-9)  # enough iterations for checkpoints
EVERY = 5  # iterations between checkpoints


class Simulation:
    """Simulated sites, each with its own rows; events are scheduled with ``at`` before ``run``."""

    def __init__(
        self,
        topology: Topology,
        on_loss: Literal["wait", "shrink"] = "wait",
        *,
        patience: float = 3.0,
        deadline: float = 100.0,
        linger: float = 30.0,
        plain: Settings = PLAIN,
        settings: Mapping[int, Settings] | None = None,
        columns: Mapping[int, Sequence[str]] | None = None,
        keys: Mapping[int, bytes] | None = None,
        seed: int = 0,
        signatures: Callable[[int], Signatures] | None = None,
    ) -> None:
        self.signatures = signatures
        self.topology, self.on_loss, self.seed = topology, on_loss, seed
        self.patience, self.deadline, self.linger = patience, deadline, linger
        self.plain = plain
        self.settings, self.columns, self.keys = dict(settings or {}), dict(columns or {}), dict(keys or {})
        rng = np.random.default_rng((5, seed))
        mixing = rng.standard_normal((D, D)) * np.geomspace(3.0, 0.3, D)
        self.rows = [rng.standard_normal((12, D)) @ mixing for _ in range(topology.n_agents)]
        self.names = tuple(f"site-{j}" for j in range(topology.n_agents))
        adjacency = topology.adjacency.tocoo()
        self.edges = tuple((int(i), int(j)) for i, j in zip(*adjacency.coords, strict=True) if i < j)
        self.run_id = hashlib.sha256(b"a run").digest()
        self.clock = VirtualClock()
        self.network = VirtualNetwork(self.clock, [Host(j) for j in range(topology.n_agents)], self.edges, seed)
        self.disks = [MemoryDisk(self.run_id) for _ in self.names]
        self.endings: dict[int, SiteResult | DeepcaError] = {}
        self.results: set[bytes] = set()  # model files of all sites, even of those that were restarted later
        self.ended: dict[int, float] = {}
        self.logged: list[tuple[float, int, str, str]] = []
        self.differing: list[tuple[float, int, Mapping[str, Any]]] = []  # time and site of a warning, and its facts
        self.epochs: dict[int, list[int]] = defaultdict(
            list
        )  # by site, the iteration from which each epoch resumed; −1 for none
        self.steps: dict[int, list[int]] = defaultdict(list)  # by site, the iterations that it has done
        self.views: list[NodeSnapshot] = []
        self.boots = np.random.default_rng((6, seed))

    def at(self, time: float, action: Callable[..., None], *arguments: Any) -> Simulation:
        self.clock.at(time, partial(action, *arguments))
        return self

    def all_at(self, time: float = 0.0) -> Simulation:
        for site in range(len(self.names)):
            self.at(time, self.start, site)
        return self

    def kill(self, *sites: int) -> None:
        for site in sites:
            self.network.kill(site)

    def look(self, site: int) -> None:
        node = self.network.hosts[site].node
        assert node is not None
        self.views.append(node.snapshot())

    def cut(self, inside: Sequence[int]) -> None:
        everybody = range(len(self.names))
        self.network.link_faults.cut |= {(i, j) for i in everybody for j in everybody if (i in inside) != (j in inside)}

    def heal(self) -> None:
        self.network.link_faults.cut.clear()

    def start(self, *sites: int) -> None:
        for site in sites:
            if self.network.hosts[site].node is None:
                self._start(site)

    def _start(self, site: int) -> None:
        settings = self.settings.get(site, self.plain)
        columns = tuple(self.columns[site]) if site in self.columns else None
        source = ArraySource(self.rows[site], self.names[site], columns=columns)
        limit = largest_message(source, settings)
        prints = schema_of(source, settings, self.keys.get(site, bytes(COLUMN_KEY_BYTES)))
        config = NodeConfig(self.names, site, self.edges, self.run_id, prints, limit)
        policy = Policy(self.on_loss, self.patience, self.deadline - self.clock.time, self.linger)
        incarnation = Incarnation(1, int(self.boots.integers(1, 2**63)))
        disk = self.disks[site]
        signatures = None if self.signatures is None else self.signatures(site)
        node = Node(config, policy, self.clock, incarnation, lambda: 0.0, disk.promise_store, signatures)
        job = SiteRun("run", self.names, site, self.topology, settings, source, EVERY)
        self.endings.pop(site, None)

        def work() -> None:
            try:
                ending = run_site(job, node, disk, disk.promise_store, observers=(_Steps(self.steps[site]),))
                self.endings[site] = ending
                self.results.add(ending.content)
                self.ended.setdefault(site, self.clock.time)
                node.announce_finished()
                node.wait_until_all_finished()
            except DeepcaError as error:
                self.endings[site] = error
                if not isinstance(error, Unfinished):
                    node.announce_failure(str(error), error)
                    node.wait_until_all_finished(0.0)
            self.network.leave(site, node)

        self.network.start(site, node, work)

    def _hear(self, site: str, event: str, text: str, facts: Mapping[str, Any]) -> None:
        self.logged.append((self.clock.time, self.names.index(site), event, text))
        if event == "differs":
            self.differing.append((self.clock.time, self.names.index(site), facts))
        if event == "epoch":
            self.epochs[self.names.index(site)].append(facts["resumed_from"])

    def run(self, busy_until: float = 10.0) -> Simulation:
        beginning = self.clock.condition()

        def wait() -> None:
            with beginning:
                beginning.wait(busy_until)

        self.clock.spawn(wait, "beginning")
        with attached(EventHandler(self._hear)):
            try:
                self.clock.run(self.deadline + 100.0)
            finally:
                self.clock.end()
        return self

    def check_all_ended(self, members: Sequence[int] | None = None) -> None:
        """Check that all members end with the same bytes, and that these are the components of their rows."""
        who = range(len(self.names)) if members is None else members
        for site in who:
            assert isinstance(self.endings.get(site), SiteResult), f"site {site}: {self.endings.get(site)!r}"
        self.check_results(who)

    def check_results(self, members: Sequence[int]) -> None:
        assert len(self.results) == 1
        ending = next(one for one in self.endings.values() if isinstance(one, SiteResult))
        assert ending.members == tuple(self.names[site] for site in members)
        pooled = np.vstack([self.rows[site] for site in members])
        top = np.linalg.svd(pooled - pooled.mean(axis=0), full_matrices=False)[2][: len(ending.model.components)]
        found = np.asarray(ending.model.components)
        assert np.abs(top.T @ top - found.T @ found).max() < 1e-8


class _Steps:
    def __init__(self, steps: list[int]) -> None:
        self._steps = steps

    def begin(self, start: Start) -> None:
        pass

    def observe(self, step: Step) -> None:
        self._steps.append(step.after.t)

    def end(self, result: Any) -> None:
        pass


@cache
def undisturbed(m: int, kind: str, plain: Settings = PLAIN) -> tuple[float, float]:
    """Return when the first epoch starts and when the first site has its result, without faults."""
    simulation = Simulation(_GRAPHS[kind](m), plain=plain).all_at().run()
    simulation.check_all_ended()
    return min(time for time, _, event, _ in simulation.logged if event == "epoch"), min(simulation.ended.values())


_GRAPHS: dict[str, Callable[[int], Topology]] = {"path": path, "ring": ring, "complete": complete}


# -------------------------------------------------------------------------------------------------------- starting up


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_sites_may_start_in_any_order_and_far_apart(order: tuple[int, ...]) -> None:
    simulation = Simulation(path(4))
    for place, site in enumerate(order):
        simulation.at(12.0 * place, simulation.start, site)
    simulation.run(40.0).check_all_ended()
    assert all(len(simulation.epochs[site]) == 1 for site in range(4))


def test_networks_of_one_and_two_sites_end_with_a_result() -> None:
    Simulation(complete(1)).all_at().run().check_all_ended()
    Simulation(path(2)).at(0.0, lambda: None).all_at(1.0).run().check_all_ended()


def test_a_snapshot_lists_the_missing_sites() -> None:
    simulation = Simulation(path(4))
    simulation.at(0.0, simulation.start, 0, 1).at(3.0, simulation.look, 0).at(4.0, simulation.start, 2).at(
        7.0, simulation.look, 0
    )
    simulation.at(8.0, simulation.start, 3).run(12.0).check_all_ended()
    early, later = simulation.views
    assert early.missing == ("site-2", "site-3")
    assert (early.phase, early.epoch, early.members) == ("gathering", 0, ())
    assert [(link.site, link.state) for link in early.links] == [("site-1", "up")]
    assert later.missing == ("site-3",)


# --------------------------------------------------------------------------------------------------------- differences


def _named(**columns: Sequence[str]) -> dict[int, Sequence[str]]:
    plain = [f"column {j}" for j in range(D)]
    return {site: columns.get(f"site{site}", plain) for site in range(3)}


SWAPPED = ["column 1", "column 0", *[f"column {j}" for j in range(2, D)]]
OTHER = ["column 0", "weight", *[f"column {j}" for j in range(2, D)]]
WRONG: dict[str, tuple[dict[str, Any], list[str]]] = {  # case → what differs at site 1, and the names of the entries
    "components": ({"settings": {1: replace(PLAIN, n_components=3)}}, ["components"]),
    "tolerance": ({"settings": {1: replace(PLAIN, tol=1e-6)}}, ["tolerance"]),
    "order of columns": ({"columns": _named(site1=SWAPPED)}, ["columns"]),
    "a column": ({"columns": _named(site1=OTHER)}, ["columns"]),
    "key for column names": ({"keys": {1: b"k" * COLUMN_KEY_BYTES}}, ["columns", COLUMN_KEY_ENTRY]),
}


@pytest.mark.parametrize("m", [2, 3])
@pytest.mark.parametrize("case", WRONG)
def test_a_site_that_differs_is_reported_and_the_run_does_not_start(case: str, m: int) -> None:
    how, entries = WRONG[case]
    simulation = Simulation(path(m), deadline=30.0, **how).all_at().run()
    assert not any(event == "epoch" for _, _, event, _ in simulation.logged)
    assert not simulation.steps[0]
    error = simulation.endings[1]
    assert isinstance(error, InvalidInput)
    assert error.agent == (1 if m == 3 else None)  # only a majority knows which one is wrong
    assert "site-0" in str(error)  # the site to compare with
    named = {site: time for time, site, facts in simulation.differing if facts["site"] == "site-1"}
    assert set(named) == set(range(m))
    assert max(named.values()) < 5.0
    assert all(facts["names"] == entries for _, _, facts in simulation.differing)
    # of two sites, neither knows which one is right; of three, the majority waits for the other one to be corrected
    for site in {*range(m)} - {1}:
        ending = simulation.endings[site]
        assert isinstance(ending, InvalidInput if m == 2 else Unfinished)
        assert not isinstance(ending, Unfinished) or ending.differing == ("site-1",)


def test_a_site_whose_settings_were_corrected_can_join() -> None:
    simulation = Simulation(path(3), settings={1: replace(PLAIN, n_components=3)})
    simulation.all_at().at(6.0, simulation.settings.clear).at(7.0, simulation.start, 1)
    simulation.run(12.0).check_all_ended()


# ---------------------------------------------------------------------------------------------------------------- wait


@pytest.mark.parametrize("moment", [0.05, 0.4, 0.6, 0.8])
@pytest.mark.parametrize("site", [0, 2])
def test_a_killed_site_that_returns_resumes_from_a_common_checkpoint(site: int, moment: float) -> None:
    begin, end = undisturbed(4, "ring", MANY)
    simulation, when = Simulation(ring(4), plain=MANY), begin + moment * (end - begin)
    simulation.all_at().at(when, simulation.kill, site).at(when + 1.5, simulation.start, site).run().check_all_ended()
    assert [len(simulation.epochs[j]) for j in range(4)] == [2] * 4
    steps = simulation.steps[(site + 1) % 4]  # iterations of a site that was not killed
    repeated = [a - (b - 1) for a, b in pairwise(steps) if b <= a]
    interval = max(EVERY, ring(4).flood_rounds + 1)
    assert len(repeated) <= 1
    assert sum(repeated) < 2 * interval  # one interval, and the iterations since the last checkpoint
    assert moment < 0.1 or 1 not in steps[1:]
    assert (simulation.epochs[0][-1] >= 0) == (moment > 0.1)


def test_sites_that_are_all_killed_resume_from_a_checkpoint() -> None:
    begin, end = undisturbed(4, "ring", MANY)
    simulation, when = Simulation(ring(4), plain=MANY), begin + 0.8 * (end - begin)
    simulation.all_at().at(when, simulation.kill, 0, 1, 2, 3).at(when + 2.0, simulation.start, 0, 1, 2, 3)
    simulation.run().check_all_ended()
    assert simulation.epochs[0][-1] >= 0


def test_a_run_that_waits_for_a_site_ends_at_the_deadline() -> None:
    begin, end = undisturbed(4, "ring", MANY)
    simulation = Simulation(ring(4), deadline=20.0, plain=MANY)
    simulation.all_at().at(begin + 0.5 * (end - begin), simulation.kill, 2).run()
    assert simulation.clock.time < 25.0
    for site in (0, 1, 3):
        error = simulation.endings[site]
        assert isinstance(error, Unfinished)
        assert "site-2" in error.awaited
        assert error.differing == ()
        assert simulation.disks[site].kept()
    assert any("site-2" in text for _, _, event, text in simulation.logged if event == "waiting")


class _Damaged(MemoryDisk):
    """A disk whose newest checkpoint becomes unreadable."""

    damaged: frozenset[bytes] = frozenset()

    def damage(self) -> None:
        self.damaged = frozenset(one.key for one in self.checkpoints[-1:])

    def load(self, key: bytes) -> Checkpoint | None:
        if key in self.damaged:
            self.checkpoints = [one for one in self.checkpoints if one.key != key]
            return None
        return super().load(key)


def test_an_unreadable_checkpoint_is_skipped() -> None:
    begin, end = undisturbed(4, "ring", MANY)
    simulation = Simulation(ring(4), plain=MANY)
    disk = _Damaged(simulation.run_id)
    simulation.disks[1] = disk
    when = begin + 0.9 * (end - begin)
    simulation.all_at().at(when, simulation.kill, 1).at(when, disk.damage).at(when + 1.0, simulation.start, 1)
    simulation.run().check_all_ended()
    assert any("checkpoint" in text for _, _, event, text in simulation.logged if event == "regroup")
    assert len(simulation.epochs[0]) <= 3


# -------------------------------------------------------------------------------------------------------------- shrink


def test_survivors_continue_and_name_the_site_left_out() -> None:
    begin, _ = undisturbed(4, "ring")
    simulation = Simulation(ring(4), "shrink", patience=2.0)
    simulation.all_at().at(begin + 0.3, simulation.kill, 3).run().check_all_ended([0, 1, 2])
    ending = simulation.endings[0]
    assert isinstance(ending, SiteResult)
    assert ending.left_out == ("site-3",)


def test_no_site_is_left_out_before_the_patience_has_passed() -> None:
    begin, _ = undisturbed(4, "ring")
    simulation = Simulation(ring(4), "shrink", patience=6.0)
    simulation.all_at().at(begin + 0.3, simulation.network.freeze, 3, 5.0).run().check_all_ended()


@pytest.mark.parametrize(("m", "few"), [(5, [0, 1]), (4, [0, 1]), (2, [1])])
def test_a_minority_never_gets_a_result(m: int, few: list[int]) -> None:
    begin, _ = undisturbed(m, "complete")
    simulation = Simulation(complete(m), "shrink", patience=2.0, deadline=40.0)
    simulation.all_at().at(begin + 0.15, simulation.cut, few).run()
    most = [site for site in range(m) if site not in few]
    assert all(isinstance(simulation.endings[site], Unfinished) for site in few)
    if 2 * len(most) > m:
        simulation.check_all_ended(most)
    else:
        assert not simulation.results


def test_a_site_that_returns_takes_part_again_or_receives_the_result() -> None:
    begin, _ = undisturbed(5, "path")
    for back in (1.0, 3.0, 4.0, 6.0):
        simulation = Simulation(path(5), "shrink", patience=2.0)
        simulation.network.link_faults.slow = dict.fromkeys(range(5), 4.0)
        when = begin + 1.5
        simulation.all_at().at(when, simulation.kill, 4).at(when + back, simulation.start, 4).run()
        assert all(isinstance(simulation.endings[site], SiteResult) for site in range(5))
        ending = simulation.endings[0]
        assert isinstance(ending, SiteResult)
        simulation.check_results([simulation.names.index(name) for name in ending.members])


def test_a_restarted_site_waits_no_longer_than_the_patience() -> None:
    begin, _ = undisturbed(5, "complete")
    simulation = Simulation(complete(5), "shrink", patience=2.0)
    simulation.all_at().at(begin + 0.1, simulation.kill, 4).at(begin + 0.2, simulation.kill, 1).at(
        begin + 0.7, simulation.start, 1
    )
    simulation.run().check_all_ended([0, 1, 2, 3])


# ------------------------------------------------------------------------------------------------------------- the end


@pytest.mark.parametrize("on_loss", ["wait", "shrink"])
@pytest.mark.parametrize("sites", [(0,), (0, 1), (0, 2), (1, 2), (0, 1, 2)])
def test_sites_killed_at_any_moment_around_the_end_agree_on_one_result(
    on_loss: Literal["wait", "shrink"], sites: tuple[int, ...]
) -> None:
    """Site 0 proposes the result; sites are killed and restarted at many moments around the end."""
    _, end = undisturbed(3, "path")
    for when in np.arange(end - 0.2, end + 0.16, 0.04):
        simulation = Simulation(path(3), on_loss, patience=2.0)
        simulation.all_at().at(float(when), simulation.kill, *sites).at(float(when) + 0.4, simulation.start, *sites)
        simulation.run()
        assert len(simulation.results) == 1, f"killed at {when:.2f}: {simulation.endings}"
        assert all(isinstance(simulation.endings[site], SiteResult) for site in range(3)), (
            f"killed at {when:.2f}: {simulation.endings}"
        )


def _most_results_after_a_loss(*, forgetful: bool) -> int:
    """Return the number of results if two of three sites write one, and one of these two is then lost permanently."""
    _, end = undisturbed(3, "complete")
    most = 0
    for when in np.arange(end - 0.09, end + 0.01, 0.01):
        simulation = Simulation(complete(3), "shrink", patience=2.0, deadline=40.0)

        def again(simulation: Simulation = simulation) -> None:
            simulation.heal()
            if forgetful:
                simulation.disks[1].promise_store = MemoryPromiseStore()
            simulation.start(1)

        simulation.all_at().at(float(when), simulation.cut, [2]).at(end + 8.0, simulation.kill, 0, 1).at(
            end + 8.5, again
        ).run()
        most = max(most, len(simulation.results))
    return most


def test_stored_promises_prevent_a_second_result() -> None:
    assert _most_results_after_a_loss(forgetful=False) == 1
    assert _most_results_after_a_loss(forgetful=True) == 2  # without stored promises there would be a second one


def test_a_site_that_restarts_after_the_others_have_ended_receives_the_result() -> None:
    _, end = undisturbed(4, "ring")
    simulation = Simulation(ring(4))
    simulation.all_at().at(end - 0.02, simulation.kill, 2).at(end + 20.0, simulation.start, 2).run(
        30.0
    ).check_all_ended()
    assert simulation.ended[2] < end + 23.0


def test_a_finished_site_that_is_started_again_ends_again_without_the_others() -> None:
    _, end = undisturbed(4, "ring")
    simulation = Simulation(ring(4), linger=5.0)
    simulation.all_at().at(end + 20.0, simulation.start, 2).run(25.0).check_all_ended()
    assert simulation.clock.time < end + 40.0


# ------------------------------------------------------------------------------------------------------------- messages


class _Weighed(Transport):
    """A transport that records the sizes of messages."""

    reliable = True

    def __init__(self, inner: MemoryTransport, sizes: list[int]) -> None:
        self._inner, self._sizes = inner, sizes

    def exchange(self, tag: Tag, outgoing: Mapping[int, Message], sources: Any, /) -> dict[int, Message]:
        self._sizes.extend(pack(b"", tag, message).total for message in outgoing.values())
        return self._inner.exchange(tag, outgoing, sources)


class _Scales(MemoryHub):
    def __init__(self, agents: int) -> None:
        super().__init__(agents, timeout=60.0)
        self.sizes: list[int] = []

    def transport(self, agent: int) -> Any:
        return _Weighed(super().transport(agent), self.sizes)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("d", "k"), [(3, 1), (12, 2), (12, 12), (12, None), (30, 0.9), (40, 3), (150, 5)])
def test_no_message_is_larger_than_the_limit(algorithm: str, d: int, k: int | float | None) -> None:
    rng, settings, topology = np.random.default_rng(d), Settings(k, algorithm=algorithm, max_iter=60, tol=1e-6), ring(4)
    mixing = rng.standard_normal((d, d)) * np.geomspace(5.0, 0.1, d)
    names = ("x" * 200, *(f"c{j}" for j in range(1, d)))
    sources = [ArraySource(rng.standard_normal((d, d)) @ mixing, f"site-{j}", columns=names) for j in range(4)]

    def work(network: AgentNetwork) -> int:
        found = decompose(read((sources[network.agent],)), network, settings)
        return len(build_model(found, topology, settings, whiten=False, single_precision=False).to_bytes())

    hub = _Scales(4)
    models = run_agents(topology, work, hub=hub)
    limit = largest_message(sources[0], settings)
    assert max(hub.sizes) <= limit
    assert max(models) + 1000 <= limit
