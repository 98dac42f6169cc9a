"""Sites that gather, run and end, under a virtual clock: any order, any moment of death, and one result or none."""

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

from deepca._util.logs import EventHandler, listening
from deepca.data.local_data import read
from deepca.data.sources import ArraySource
from deepca.decomposition.fit import decompose, model_of
from deepca.decomposition.settings import ALGORITHMS, Settings
from deepca.engines.checkpoint_format import Checkpoint
from deepca.errors import DeepcaError, InvalidInput, Unfinished
from deepca.network.agent import AgentNetwork, run_agents
from deepca.network.transports.base import Message, Tag
from deepca.network.transports.memory import MemoryHub, MemoryTransport
from deepca.sites.protocol.fingerprints import schema_of
from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.parcels import pack
from deepca.sites.protocol.signatures import Seals
from deepca.sites.runtime.agent import largest_message
from deepca.sites.runtime.node import Membership, Node, Policy, View
from deepca.sites.runtime.run import Ending, Job, run_site
from deepca.sites.runtime.vault import MemoryVault
from deepca.solver.observers import Start, Step
from deepca.topology import Topology, complete, path, ring
from studies.faults.schedules import MemoryDisk
from studies.faults.virtual import Host, VirtualClock, VirtualNetwork

D = 8
PLAIN = Settings(2, tol=1e-9)
MANY = Settings(2, algorithm="deepca", tol=1e-9)  # iterations, so that checkpoints are written
EVERY = 5  # iterations from one to the next


class Town:
    """Sites with rows of their own; what happens is said beforehand with ``at``, then ``run``."""

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
        seed: int = 0,
        seals: Callable[[int], Seals] | None = None,
    ) -> None:
        self.seals = seals
        self.topology, self.on_loss, self.seed = topology, on_loss, seed
        self.patience, self.deadline, self.linger = patience, deadline, linger
        self.plain = plain
        self.settings, self.columns = dict(settings or {}), dict(columns or {})
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
        self.endings: dict[int, Ending | DeepcaError] = {}
        self.results: set[bytes] = set()  # of all who ever ended with one
        self.ended: dict[int, float] = {}
        self.told: list[tuple[float, int, str, str]] = []
        self.steps: dict[int, list[int]] = defaultdict(list)  # iterations done, by site
        self.views: list[View] = []
        self.boots = np.random.default_rng((6, seed))

    def at(self, time: float, action: Callable[..., None], *arguments: Any) -> Town:
        self.clock.at(time, partial(action, *arguments))
        return self

    def all_at(self, time: float = 0.0) -> Town:
        for site in range(len(self.names)):
            self.at(time, self.start, site)
        return self

    def kill(self, *sites: int) -> None:
        for site in sites:
            self.network.kill(site)

    def look(self, site: int) -> None:
        node = self.network.hosts[site].node
        assert node is not None
        self.views.append(node.view())

    def cut(self, inside: Sequence[int]) -> None:
        everybody = range(len(self.names))
        self.network.trouble.cut |= {(i, j) for i in everybody for j in everybody if (i in inside) != (j in inside)}

    def heal(self) -> None:
        self.network.trouble.cut.clear()

    def start(self, *sites: int) -> None:
        for site in sites:
            if self.network.hosts[site].node is None:
                self._start(site)

    def _start(self, site: int) -> None:
        settings = self.settings.get(site, self.plain)
        columns = tuple(self.columns[site]) if site in self.columns else None
        source = ArraySource(self.rows[site], self.names[site], columns=columns)
        limit = largest_message(source, settings)
        membership = Membership(self.names, site, self.edges, self.run_id, schema_of(source, settings), limit)
        policy = Policy(self.on_loss, self.patience, self.deadline - self.clock.time, self.linger)
        identity = Incarnation(1, int(self.boots.integers(1, 2**63)))
        disk = self.disks[site]
        seals = None if self.seals is None else self.seals(site)
        node = Node(membership, policy, self.clock, identity, lambda: 0.0, disk.vault, seals)
        job = Job("run", self.names, site, self.topology, settings, source, EVERY)
        self.endings.pop(site, None)

        def work() -> None:
            try:
                ending = run_site(job, node, disk, disk.vault, observers=(_Steps(self.steps[site]),))
                self.endings[site] = ending
                self.results.add(ending.content)
                self.ended.setdefault(site, self.clock.time)
                node.finished()
                node.farewell()
            except DeepcaError as error:
                self.endings[site] = error
                if not isinstance(error, Unfinished):
                    node.failed(str(error), error)
                    node.farewell(0.0)
            self.network.leave(site, node)

        self.network.start(site, node, work)

    def _hear(self, site: str, event: str, text: str, facts: object) -> None:
        self.told.append((self.clock.time, self.names.index(site), event, text))

    def run(self, busy_until: float = 10.0) -> Town:
        beginning = self.clock.condition()

        def wait() -> None:
            with beginning:
                beginning.wait(busy_until)

        self.clock.spawn(wait, "beginning")
        with listening(EventHandler(self._hear)):
            try:
                self.clock.run(self.deadline + 100.0)
            finally:
                self.clock.end()
        return self

    def epochs(self, site: int) -> list[str]:
        return [text for _, who, event, text in self.told if who == site and event == "epoch"]

    def check_all_ended(self, members: Sequence[int] | None = None) -> None:
        """All with the same bytes, and these are the components of the rows of the members."""
        who = range(len(self.names)) if members is None else members
        for site in who:
            assert isinstance(self.endings.get(site), Ending), f"site {site}: {self.endings.get(site)!r}"
        self.check_results(who)

    def check_results(self, members: Sequence[int]) -> None:
        assert len(self.results) == 1
        ending = next(one for one in self.endings.values() if isinstance(one, Ending))
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
    """When such a town is through its first epoch's beginning, and when the first site has its result."""
    town = Town(_GRAPHS[kind](m), plain=plain).all_at().run()
    town.check_all_ended()
    return min(time for time, _, event, _ in town.told if event == "epoch"), min(town.ended.values())


_GRAPHS: dict[str, Callable[[int], Topology]] = {"path": path, "ring": ring, "complete": complete}


# ---------------------------------------------------------------------------------------------------------- beginning


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_sites_may_start_in_any_order_and_far_apart(order: tuple[int, ...]) -> None:
    town = Town(path(4))
    for place, site in enumerate(order):
        town.at(12.0 * place, town.start, site)
    town.run(40.0).check_all_ended()
    assert all(len(town.epochs(site)) == 1 for site in range(4))


def test_one_and_two_sites() -> None:
    Town(complete(1)).all_at().run().check_all_ended()
    Town(path(2)).at(0.0, lambda: None).all_at(1.0).run().check_all_ended()


def test_it_says_who_is_missing() -> None:
    town = Town(path(4))
    town.at(0.0, town.start, 0, 1).at(3.0, town.look, 0).at(4.0, town.start, 2).at(7.0, town.look, 0)
    town.at(8.0, town.start, 3).run(12.0).check_all_ended()
    early, later = town.views
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
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "components": ({"settings": {1: replace(PLAIN, n_components=3)}}, "components 3 instead of 2"),
    "tolerance": ({"settings": {1: replace(PLAIN, tol=1e-6)}}, "tolerance 1e-06 instead of 1e-09"),
    "order of columns": ({"columns": _named(site1=SWAPPED)}, "the same columns in another order"),
    "a column": ({"columns": _named(site1=OTHER)}, "column 2 is another one"),
}


@pytest.mark.parametrize("m", [2, 3])
@pytest.mark.parametrize("case", WRONG)
def test_a_site_that_differs_is_named_and_nothing_starts(case: str, m: int) -> None:
    how, said = WRONG[case]
    town = Town(path(m), deadline=30.0, **how).all_at().run()
    assert not any(event == "epoch" for _, _, event, _ in town.told)
    assert not town.steps[0]
    error = town.endings[1]
    assert isinstance(error, InvalidInput)
    assert f"site-1 differs from site-0: {said}" in str(error)
    named = {site: time for time, site, event, text in town.told if event == "differs" and "site-1" in text}
    assert set(named) == set(range(m))
    assert max(named.values()) < 5.0
    # with two of two nobody knows who is right; of three the other ones wait for it to be mended
    assert all(isinstance(town.endings[site], InvalidInput if m == 2 else Unfinished) for site in {*range(m)} - {1})


def test_a_site_that_was_mended_is_welcome() -> None:
    town = Town(path(3), settings={1: replace(PLAIN, n_components=3)})
    town.all_at().at(6.0, town.settings.clear).at(7.0, town.start, 1)
    town.run(12.0).check_all_ended()


# ---------------------------------------------------------------------------------------------------------------- wait


@pytest.mark.parametrize("moment", [0.05, 0.4, 0.6, 0.8])
@pytest.mark.parametrize("site", [0, 2])
def test_a_killed_site_that_comes_back_goes_on_from_a_common_checkpoint(site: int, moment: float) -> None:
    begin, end = undisturbed(4, "ring", MANY)
    town, when = Town(ring(4), plain=MANY), begin + moment * (end - begin)
    town.all_at().at(when, town.kill, site).at(when + 1.5, town.start, site).run().check_all_ended()
    assert [len(town.epochs(j)) for j in range(4)] == [2] * 4
    steps = town.steps[(site + 1) % 4]  # of one that was not killed
    repeated = [a - (b - 1) for a, b in pairwise(steps) if b <= a]
    interval = max(EVERY, ring(4).flood_rounds + 1)
    assert len(repeated) <= 1
    assert sum(repeated) < 2 * interval  # one interval, and what was done since the last checkpoint
    assert moment < 0.1 or 1 not in steps[1:]
    assert ("from iteration" in town.epochs(0)[-1]) == (moment > 0.1)


def test_all_sites_killed_together_go_on() -> None:
    begin, end = undisturbed(4, "ring", MANY)
    town, when = Town(ring(4), plain=MANY), begin + 0.8 * (end - begin)
    town.all_at().at(when, town.kill, 0, 1, 2, 3).at(when + 2.0, town.start, 0, 1, 2, 3)
    town.run().check_all_ended()
    assert "from iteration" in town.epochs(0)[-1]


def test_the_deadline_ends_a_run_that_waits() -> None:
    begin, end = undisturbed(4, "ring", MANY)
    town = Town(ring(4), deadline=20.0, plain=MANY)
    town.all_at().at(begin + 0.5 * (end - begin), town.kill, 2).run()
    assert town.clock.time < 25.0
    for site in (0, 1, 3):
        assert isinstance(town.endings[site], Unfinished)
        assert "site-2" in str(town.endings[site])
        assert town.disks[site].kept()
    assert any("waits for it" in text for _, _, event, text in town.told if event == "waiting")


class _Damaged(MemoryDisk):
    """What was written cannot be read any more, from some moment on."""

    spoilt: frozenset[bytes] = frozenset()

    def spoil(self) -> None:
        self.spoilt = frozenset(one.key for one in self.checkpoints[-1:])

    def load(self, key: bytes) -> Checkpoint | None:
        if key in self.spoilt:
            self.checkpoints = [one for one in self.checkpoints if one.key != key]
            return None
        return super().load(key)


def test_a_checkpoint_that_cannot_be_read_is_left_out() -> None:
    begin, end = undisturbed(4, "ring", MANY)
    town = Town(ring(4), plain=MANY)
    disk = _Damaged(town.run_id)
    town.disks[1] = disk
    when = begin + 0.9 * (end - begin)
    town.all_at().at(when, town.kill, 1).at(when, disk.spoil).at(when + 1.0, town.start, 1)
    town.run().check_all_ended()
    assert any("cannot read" in text or "cannot be read" in text for _, _, _, text in town.told)
    assert len(town.epochs(0)) <= 3


# -------------------------------------------------------------------------------------------------------------- shrink


def test_survivors_go_on_and_say_so() -> None:
    begin, _ = undisturbed(4, "ring")
    town = Town(ring(4), "shrink", patience=2.0)
    town.all_at().at(begin + 0.3, town.kill, 3).run().check_all_ended([0, 1, 2])
    ending = town.endings[0]
    assert isinstance(ending, Ending)
    assert ending.left_out == ("site-3",)


def test_nobody_is_left_out_while_patience_lasts() -> None:
    begin, _ = undisturbed(4, "ring")
    town = Town(ring(4), "shrink", patience=6.0)
    town.all_at().at(begin + 0.3, town.network.freeze, 3, 5.0).run().check_all_ended()


@pytest.mark.parametrize(("m", "few"), [(5, [0, 1]), (4, [0, 1]), (2, [1])])
def test_a_minority_never_has_a_result(m: int, few: list[int]) -> None:
    begin, _ = undisturbed(m, "complete")
    town = Town(complete(m), "shrink", patience=2.0, deadline=40.0)
    town.all_at().at(begin + 0.15, town.cut, few).run()
    most = [site for site in range(m) if site not in few]
    assert all(isinstance(town.endings[site], Unfinished) for site in few)
    if 2 * len(most) > m:
        town.check_all_ended(most)
    else:
        assert not town.results


def test_a_site_that_comes_back_takes_part_again_or_is_given_the_result() -> None:
    begin, _ = undisturbed(5, "path")
    for back in (1.0, 3.0, 4.0, 6.0):
        town = Town(path(5), "shrink", patience=2.0)
        town.network.trouble.slow = dict.fromkeys(range(5), 4.0)
        when = begin + 1.5
        town.all_at().at(when, town.kill, 4).at(when + back, town.start, 4).run()
        assert all(isinstance(town.endings[site], Ending) for site in range(5))
        ending = town.endings[0]
        assert isinstance(ending, Ending)
        town.check_results([town.names.index(name) for name in ending.members])


def test_a_site_that_restarts_knows_how_long_others_are_gone() -> None:
    begin, _ = undisturbed(5, "complete")
    town = Town(complete(5), "shrink", patience=2.0)
    town.all_at().at(begin + 0.1, town.kill, 4).at(begin + 0.2, town.kill, 1).at(begin + 0.7, town.start, 1)
    town.run().check_all_ended([0, 1, 2, 3])


# ------------------------------------------------------------------------------------------------------------- the end


@pytest.mark.parametrize("on_loss", ["wait", "shrink"])
@pytest.mark.parametrize("sites", [(0,), (0, 1), (0, 2), (1, 2), (0, 1, 2)])
def test_death_at_any_moment_around_the_end_leaves_one_result(
    on_loss: Literal["wait", "shrink"], sites: tuple[int, ...]
) -> None:
    """Site 0 makes the result. Sites are killed, and started again, at many moments around the end."""
    _, end = undisturbed(3, "path")
    for when in np.arange(end - 0.2, end + 0.16, 0.04):
        town = Town(path(3), on_loss, patience=2.0)
        town.all_at().at(float(when), town.kill, *sites).at(float(when) + 0.4, town.start, *sites)
        town.run()
        assert len(town.results) == 1, f"killed at {when:.2f}: {town.endings}"
        assert all(isinstance(town.endings[site], Ending) for site in range(3)), f"killed at {when:.2f}: {town.endings}"


def _results_without_the_one_that_has_ended(*, forgetful: bool) -> int:
    """Two of three write what they have signed while the third is cut off; then one of them is gone for good."""
    _, end = undisturbed(3, "complete")
    most = 0
    for when in np.arange(end - 0.09, end + 0.01, 0.01):
        town = Town(complete(3), "shrink", patience=2.0, deadline=40.0)

        def again(town: Town = town) -> None:
            town.heal()
            if forgetful:
                town.disks[1].vault = MemoryVault()
            town.start(1)

        town.all_at().at(float(when), town.cut, [2]).at(end + 8.0, town.kill, 0, 1).at(end + 8.5, again).run()
        most = max(most, len(town.results))
    return most


def test_what_sites_remember_keeps_a_second_result_from_being_made() -> None:
    assert _results_without_the_one_that_has_ended(forgetful=False) == 1
    assert _results_without_the_one_that_has_ended(forgetful=True) == 2  # so it is the vault that does it


def test_a_site_that_restarts_after_the_others_have_ended_is_given_the_result() -> None:
    _, end = undisturbed(4, "ring")
    town = Town(ring(4))
    town.all_at().at(end - 0.02, town.kill, 2).at(end + 20.0, town.start, 2).run(30.0).check_all_ended()
    assert town.ended[2] < end + 23.0


def test_a_site_that_has_ended_and_is_started_again_ends_again_alone() -> None:
    _, end = undisturbed(4, "ring")
    town = Town(ring(4), linger=5.0)
    town.all_at().at(end + 20.0, town.start, 2).run(25.0).check_all_ended()
    assert town.clock.time < end + 40.0


# ------------------------------------------------------------------------------------------------------------- messages


class _Weighed:
    """A transport that notes how large messages get."""

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
        return len(model_of(found, topology, settings, whiten=False, single=False).to_bytes())

    hub = _Scales(4)
    models = run_agents(topology, work, hub=hub)
    limit = largest_message(sources[0], settings)
    assert max(hub.sizes) <= limit
    assert max(models) + 1000 <= limit
