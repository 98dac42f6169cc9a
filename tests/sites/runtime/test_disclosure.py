"""Test that disclosure rules hold while agents run: rows, directions shown by totals, and what is logged."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deepca import topology
from deepca._util.logs import EventHandler, attached
from deepca._util.typing import Array
from deepca.data.sources import ArraySource
from deepca.decomposition.fit import fit
from deepca.decomposition.settings import Settings
from deepca.errors import DisclosureError, Unfinished
from deepca.network import SimulatedNetwork, run_agents
from deepca.network.agent import AgentNetwork
from deepca.network.transports.memory import MemoryHub
from deepca.operators.covariances import Covariances
from deepca.operators.dense_rows import DenseRows
from deepca.sites.config.disclosure import DEFAULT_RULES, NO_RULES, DisclosureRules
from deepca.sites.protocol.records import Record
from deepca.sites.runtime.disclosure import ShownDirections
from deepca.sites.runtime.member_network import MemberNetwork, PlanTransport
from deepca.sites.runtime.promise_store import FilePromiseStore, MemoryPromiseStore, Promises
from deepca.sites.runtime.site_result import SiteResult
from studies.faults.schedules import Fault, Outcome, Schedule, SimulatedRun

ROW_FREE = {"spectrum", "gathered", "disclosure", "seed"}  # phases whose messages do not depend on rows
D = 80


class Governed(SimulatedRun):
    """Sites under a virtual clock, with disclosure rules of their own."""

    def __init__(self, schedule: Schedule, rows: list[Array], of: dict[int, DisclosureRules]) -> None:
        super().__init__(schedule, rows, Outcome(schedule))
        self.of = of

    def rules(self, site: int) -> DisclosureRules:
        return self.of.get(site, NO_RULES)


def rows_of(counts: tuple[int, ...], seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((n, D)) * np.geomspace(30.0, 0.3, D) for n in counts]


def play(
    rules: dict[int, DisclosureRules],
    *faults: Fault,
    counts: tuple[int, ...] = (40, 40, 40, 40),
    settings: Settings = Settings(2, tol=1e-9),  # noqa: B008
    **more: Any,
) -> Governed:
    nothing = (Fault(0.0, "slow", (0,), 0.1, 1.0),)
    schedule = Schedule(
        5, topology.ring(len(counts)), settings, more.pop("on_loss", "wait"), faults or nothing, deadline=60.0, **more
    )
    run = Governed(schedule, rows_of(counts), rules)
    try:
        run.run()
    finally:
        run.clock.end()
    return run


@pytest.fixture
def phases(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """Record the phases in which each site sends messages."""
    sent: dict[str, set[str]] = {}
    exchange, relay = PlanTransport.exchange, PlanTransport.relay

    def record(self: PlanTransport, phase: str) -> None:
        sent.setdefault(f"site-{self._node.context.me}", set()).add(phase)

    def exchanged(self: PlanTransport, tag: Any, *more: Any) -> Any:
        record(self, tag.phase)
        return exchange(self, tag, *more)

    def relayed(self: PlanTransport, steps: Any, *more: Any) -> Any:
        for step in steps:
            record(self, step.tag.phase)
        return relay(self, steps, *more)

    monkeypatch.setattr(PlanTransport, "exchange", exchanged)
    monkeypatch.setattr(PlanTransport, "relay", relayed)
    return sent


def test_a_site_with_too_few_rows_sends_nothing_that_depends_on_them(
    phases: dict[str, set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are told one fixed sentence, and wait for that site until the deadline."""
    told: set[str] = set()
    to_wire = Record.to_wire

    def record(self: Record) -> Any:
        if self.failure is not None:
            told.add(self.failure.why)
        return to_wire(self)

    monkeypatch.setattr(Record, "to_wire", record)
    run = play({1: DEFAULT_RULES}, counts=(30, 9, 30, 30))
    ended = run.outcome.endings[1]
    assert isinstance(ended, DisclosureError)
    assert (ended.rule, ended.value) == ("min_rows", 9)
    assert phases.get("site-1", set()) <= ROW_FREE
    assert all(isinstance(run.outcome.endings[site], Unfinished) for site in (0, 2, 3))
    assert told == {"its rows cannot be used; the reason is in its own log"}


def test_a_site_with_just_enough_rows_takes_part(phases: dict[str, set[str]]) -> None:
    run = play({1: DEFAULT_RULES}, counts=(30, 10, 30, 30))
    assert all(isinstance(ending, SiteResult) for ending in run.outcome.endings.values())
    assert not phases["site-1"] <= ROW_FREE


def shown(run: Governed) -> int:
    """Return how many directions a finished run has shown, after checking that all sites say the same."""
    endings = run.outcome.endings
    counts = {ending.model.about["directions_shown"] for ending in endings.values() if isinstance(ending, SiteResult)}
    assert len(endings) == len(run.rows)
    assert all(isinstance(ending, SiteResult) for ending in endings.values())
    assert {disk.promise_store.load().directions for disk in run.disks} == counts
    return int(counts.pop())


@pytest.mark.parametrize("on_loss", ["wait", "shrink"])  # private, open
def test_all_sites_report_the_same_number_of_directions(on_loss: str) -> None:
    assert 2 < shown(play({}, settings=Settings(2, tol=1e-3), on_loss=on_loss)) <= D


@pytest.mark.parametrize(
    "settings", [Settings(None), Settings(2, algorithm="covariance"), Settings(2, algorithm="deepca", tol=1e-6)]
)
def test_settings_that_show_everything_count_as_all_directions(settings: Settings) -> None:
    assert shown(play({}, settings=settings)) == D


@pytest.mark.parametrize("on_loss", ["wait", "shrink"])
def test_the_smallest_limit_ends_the_run_at_all_sites_before_it_is_exceeded(on_loss: str) -> None:
    limits = {1: DisclosureRules(1, 1, 20), 2: DisclosureRules(1, 1, 0.9)}
    run = play(limits, on_loss=on_loss)
    endings = [run.outcome.endings[site] for site in range(4)]
    assert [type(ending) for ending in endings] == [DisclosureError] * 4
    assert {ending.rule for ending in endings if isinstance(ending, DisclosureError)} == {"max_directions"}
    assert len({str(ending) for ending in endings}) == 1
    assert not any(f"site-{site}" in str(endings[0]) for site in range(4))  # whose limit it is stays open
    for disk in run.disks:
        kept = disk.promise_store.load()
        assert 0 < kept.directions <= 20
        assert kept.content is None


def test_a_limit_that_is_just_enough_changes_nothing() -> None:
    loose = Settings(2, tol=1e-3)
    needed = shown(play({}, settings=loose))
    assert needed < D
    assert shown(play({0: DisclosureRules(1, 1, needed)}, settings=loose)) == needed
    run = play({0: DisclosureRules(1, 1, needed - 1)}, settings=loose)
    assert all(isinstance(ending, DisclosureError) for ending in run.outcome.endings.values())


def test_a_gossip_method_is_refused_before_anything_that_depends_on_rows(phases: dict[str, set[str]]) -> None:
    run = play({2: DisclosureRules(1, 1, D - 1)}, settings=Settings(2, algorithm="deepca", tol=1e-6))
    assert all(isinstance(ending, DisclosureError) for ending in run.outcome.endings.values())
    assert set.union(*phases.values()) <= ROW_FREE


def test_directions_of_an_interrupted_run_still_count() -> None:
    """Without a common checkpoint a private run starts over with another seed, and shows other directions."""
    loose = Settings(1, tol=1e-1)
    undisturbed = shown(play({}, settings=loose, checkpoint_every=1000))

    class Interrupted(Governed):
        def observers(self, site: int) -> tuple[Any, ...]:
            return (_KillsAll(self),)

    late = (Fault(30.0, "slow", (0,), 0.1, 1.0),)  # the simulation lasts at least that long
    schedule = Schedule(5, topology.ring(4), loose, "wait", late, deadline=120.0, checkpoint_every=1000)
    run = Interrupted(schedule, rows_of((40,) * 4), {})
    try:
        run.run()
    finally:
        run.clock.end()
    assert undisturbed < shown(run) <= D


class _KillsAll:
    """An observer that kills and restarts all agents, once, in the second iteration of any of them."""

    def __init__(self, run: SimulatedRun) -> None:
        self.run = run

    def begin(self, start: Any) -> None:
        pass

    def observe(self, step: Any) -> None:
        if step.after.t == 2 and not getattr(self.run, "killed", False):
            self.run.killed = True  # type: ignore[attr-defined]
            now = self.run.clock.time
            self.run.clock.at(now, lambda: self.run.inject(Fault(now, "kill", (0, 1, 2, 3), 1.0)))

    def end(self, result: Any) -> None:
        pass


# ---------------------------------------------------------------------------------------------------------- the count


class Counting(SimulatedNetwork):
    """Network that counts the directions of all addends."""

    count = 0

    def totals_and_derive(self, addends: Any, *more: Any) -> Any:
        self.count += sum(addend.directions for addend in addends)
        return super().totals_and_derive(addends, *more)


@pytest.mark.parametrize("form", ["covariance", "rows"])
@pytest.mark.parametrize("k", [1, 4, 0.6, None])
@pytest.mark.parametrize("steep", [False, True])
def test_the_count_is_an_upper_bound_on_the_rank_of_what_is_multiplied(
    k: Any, form: Any, steep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All columns that the ``A_j`` are multiplied with for a total span at most as many directions as are counted."""
    blocks: list[Array] = []

    def recording(multiply: Callable[[Any, Array], Array]) -> Callable[[Any, Array], Array]:
        def product(self: Any, W: Array) -> Array:
            blocks.append(np.array(W).reshape(-1, *W.shape[-2:])[0])
            return multiply(self, W)

        return product

    for kind in (Covariances, DenseRows):
        monkeypatch.setattr(kind, "__matmul__", recording(kind.__matmul__))
    rng = np.random.default_rng(3)
    rows = [rng.standard_normal((60, 30)) * np.geomspace(1.0, 1e-9 if steep else 0.2, 30) for _ in range(3)]
    network = Counting(topology.ring(3))
    fit([ArraySource(X, f"site {j}") for j, X in enumerate(rows)], network, Settings(k, form=form, tol=1e-6))
    assert blocks
    rank = np.linalg.matrix_rank(np.hstack(blocks), tol=1e-9)
    assert min(network.count, 30) >= rank


def at_agents(limits: list[int], known: list[int], work: Callable[[MemberNetwork, ShownDirections], Any]) -> list[Any]:
    """Call ``work`` at three agents with these limits, which know of these numbers of directions."""
    hub = MemoryHub(3, timeout=20.0)

    def run(network: AgentNetwork) -> Any:
        promises = MemoryPromiseStore()
        promises.store_directions(known[network.agent])
        own = ShownDirections(10, limits[network.agent], promises)
        assert network.transport is not None
        member = MemberNetwork(network.topology, network.agent, network.transport, own)
        own.agree(member, Settings(2))
        return work(member, own)

    return run_agents(topology.path(3), run, hub=hub)


def test_members_agree_on_the_smallest_limit_and_the_largest_number() -> None:
    assert at_agents([9, 7, 10], [0, 2, 1], lambda _, own: (own.limit, own.count)) == [(7, 2)] * 3


def test_a_sum_that_would_exceed_the_limit_is_not_sent() -> None:
    def work(network: MemberNetwork, own: ShownDirections) -> Any:
        from deepca.network.sums import Addend

        network.totals(Addend("products", np.ones(8), directions=4))
        network.totals(Addend("numbers", np.ones(8)))
        messages = network.traffic.messages
        with pytest.raises(DisclosureError) as caught:
            network.totals(Addend("products", np.ones(8), directions=4))
        return own.count, network.traffic.messages - messages, caught.value.value

    assert at_agents([9, 7, 10], [0, 0, 0], work) == [(4, 0, 8)] * 3


def test_without_a_limit_no_number_of_products_is_too_many() -> None:
    def work(network: MemberNetwork, own: ShownDirections) -> Any:
        for _ in range(5):
            own.add(4)
        return own.count

    assert at_agents([10, 10, 10], [0, 0, 0], work) == [10] * 3


def test_the_number_survives_on_disk(tmp_path: Path) -> None:
    store = FilePromiseStore(tmp_path, "result", "north", 3)
    store.store_directions(12)
    store.store_directions(7)  # never less
    store.store_epoch(2)
    assert FilePromiseStore(tmp_path, "result", "north", 3).load() == Promises(2, directions=12)
    earlier = json.loads((tmp_path / "result.json").read_text("utf-8"))
    del earlier["directions"]
    (tmp_path / "result.json").write_text(json.dumps(earlier), encoding="utf-8")
    assert FilePromiseStore(tmp_path, "result", "north", 3).load() == Promises(2)


# ---------------------------------------------------------------------------------------------------------- real agents


def real_site(folder: Path, names: tuple[str, ...], table: str, **settings: Any) -> Path:
    """Make the kit of the first site, and return its folder."""
    from deepca.sites.admin.kits import make_kits
    from deepca.sites.config.network_file import NetworkFile, SiteEntry, write_network
    from studies.faults.fleet import free_ports

    entries = tuple(
        SiteEntry(name, f"127.0.0.1:{port}") for name, port in zip(names, free_ports(len(names)), strict=True)
    )
    write_network(folder / "network.toml", NetworkFile("net", entries, 2, topology_name="path", **settings))
    make_kits(folder / "network.toml", folder / "kits", trial=True)
    kit = folder / "kits" / names[0]
    np.save(kit / "rows.npy", rows_of((30,))[0])
    toml = kit / "site.toml"
    text = toml.read_text("utf-8").replace('"rows.csv"', '"rows.npy"').replace('"1d"', '"1s"')
    toml.write_text(text.replace("[disclosure]", f"[disclosure]\n{table}"), encoding="utf-8")
    return kit


@pytest.mark.parametrize(
    ("names", "table", "settings", "rule"),
    [
        (("a", "b"), "", {"privacy": "open"}, "min_sites"),
        (("a", "b", "c"), "min_sites = 4", {}, "min_sites"),
        (("a", "b", "c"), f"max_directions = {D - 1}", {"algorithm": "covariance"}, "max_directions"),
    ],
)
def test_an_agent_does_not_start_against_its_rules(
    names: tuple[str, ...], table: str, settings: dict[str, Any], rule: str, tmp_path: Path
) -> None:
    pytest.importorskip("grpc")
    from typer.testing import CliRunner

    from deepca.cli.app import app
    from deepca.sites.config.site_file import read_site
    from deepca.sites.runtime.agent import run_agent
    from tests.support.errors import raises

    kit = real_site(tmp_path, names, table, **settings)
    with raises(DisclosureError, rule=rule):
        run_agent(read_site(kit), ready=lambda agent: pytest.fail("it listens"))
    done = CliRunner().invoke(app, ["agent", "run", str(kit)], env={"COLUMNS": "300"})
    assert done.exit_code == 2
    assert rule in done.output


def test_overrides_and_an_open_network_are_logged_when_the_agent_starts(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    from deepca.sites.config.site_file import read_site
    from deepca.sites.runtime.agent import run_agent

    kit = real_site(tmp_path, ("a", "b", "c"), 'min_rows = 2\nmin_sites = 1\nmax_directions = "all"', privacy="open")
    seen: list[tuple[str, dict[str, Any]]] = []
    handler = EventHandler(lambda site, event, text, facts: seen.append((event, dict(facts))))
    handler.setLevel(logging.WARNING)
    with attached(handler), pytest.raises(Unfinished):
        run_agent(replace(read_site(kit), deadline=0.2))
    assert [facts for event, facts in seen if event == "open"] == [{"privacy": "open"}]
    assert [facts for event, facts in seen if event == "disclosure"] == [
        {"rule": "min_rows", "value": 2, "default": 10},
        {"rule": "min_sites", "value": 1, "default": 3},
    ]  # all of 80 columns is the default, too


@pytest.mark.slow
@pytest.mark.xdist_group("real")
class TestRealAgents:
    """Rules of agents in processes of their own."""

    def test_too_few_rows_end_one_site_and_the_others_wait(self, tmp_path: Path) -> None:
        pytest.importorskip("grpc")
        from studies.faults.faulty_agent import UNFINISHED
        from studies.faults.fleet import Fleet, Setup

        with Fleet(tmp_path / "f", Setup(agents=3, algorithm="auto", pause=0.0, deadline=15.0)) as fleet:
            fleet.configure(1, min_rows=1000)
            fleet.start()
            fleet.wait(60.0)
            codes = [fleet.processes[site].exitcode for site in range(3)]
            assert codes == [UNFINISHED, 2, UNFINISHED]
            text = "its rows cannot be used; the reason is in its own log"
            assert any(text in json.dumps(one) for one in fleet.events(0))
            assert not any("at least 1000" in one.get("text", "") for site in (0, 2) for one in fleet.events(site))
            assert not any((fleet.kit(site) / "model.npz").exists() for site in range(3))

    def test_the_smallest_limit_of_directions_ends_all_sites(self, tmp_path: Path) -> None:
        pytest.importorskip("grpc")
        from studies.faults.fleet import Fleet, Setup

        with Fleet(tmp_path / "f", Setup(agents=3, algorithm="auto", pause=0.0)) as fleet:
            fleet.configure(1, max_directions=8)
            fleet.start()
            fleet.wait(60.0)
            assert [fleet.processes[site].exitcode for site in range(3)] == [2, 2, 2]
            assert not any((fleet.kit(site) / "model.npz").exists() for site in range(3))
            fleet.configure(1, max_directions="all")  # the same command goes on
            fleet.start()
            fleet.wait(60.0)
            assert [fleet.processes[site].exitcode for site in range(3)] == [0, 0, 0]
            assert fleet.verdict().problems == []
