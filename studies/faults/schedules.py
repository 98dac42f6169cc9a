"""Inject random schedules of faults into simulated agents and check how every run ends."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np

from deepca._util.logs import EventHandler, attached
from deepca._util.typing import Array
from deepca.data.sources import ArraySource
from deepca.decomposition.settings import Settings
from deepca.engines.checkpoint_format import Checkpoint
from deepca.errors import DeepcaError, Unfinished
from deepca.sites.config.disclosure import NO_RULES, DisclosureRules
from deepca.sites.config.privacy import privacy_obstacle
from deepca.sites.protocol.fingerprints import COLUMN_KEY_BYTES, schema_of
from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.records import RecordedCheckpoint
from deepca.sites.runtime.node import Node, NodeConfig, Policy
from deepca.sites.runtime.node.abort_reasons import for_others
from deepca.sites.runtime.private_sums import PrivateSums
from deepca.sites.runtime.promise_store import MemoryPromiseStore
from deepca.sites.runtime.run import SiteRun, run_site
from deepca.sites.runtime.site_result import SiteResult
from deepca.solver.observers import Observer
from deepca.topology import Topology, complete, from_edges, path, ring
from studies.faults.virtual import Deadlock, Host, VirtualClock, VirtualNetwork

__all__ = [
    "Fault",
    "MemoryDisk",
    "Outcome",
    "Schedule",
    "SimulatedRun",
    "check_results",
    "draw_schedule",
    "rows_of",
    "simulate",
]

# killing one agent is drawn three times as often as any other fault
_KINDS = ("kill", "kill", "kill", "kill two", "kill all", "freeze", "partition", "oneway", "noise", "slow", "full")


@dataclass(frozen=True)
class Fault:
    """Fault of a schedule.

    Parameters
    ----------
    at
        Virtual seconds after the start of the run.
    kind
        ``kill``, ``freeze``, ``partition``, ``oneway``, ``noise``, ``slow`` or ``full`` (a full disk).
    sites
        Sites concerned; for a partition, those on one side of it.
    seconds
        Duration; killed agents are restarted afterwards.
    amount
        Probability of each kind of noise, or the factor by which a site is slower.
    """

    at: float
    kind: str
    sites: tuple[int, ...] = ()
    seconds: float = 0.0
    amount: float = 0.0


@dataclass(frozen=True)
class Schedule:
    """Run to simulate, and the faults to inject.

    Parameters
    ----------
    seed
        Seed of the rows and of everything random in the run.
    topology, settings, on_loss, patience, deadline
        As in ``network.toml`` and ``site.toml``; times are virtual seconds.
    faults
        Faults in the order of their times.
    checkpoint_every
        Iterations between checkpoints.
    open
        Whether the network is open even if its sums could be private.
    """

    seed: int
    topology: Topology
    settings: Settings
    on_loss: Literal["wait", "shrink"]
    faults: tuple[Fault, ...]
    patience: float = 5.0
    deadline: float = 300.0
    checkpoint_every: int = 5
    open: bool = False

    @property
    def private(self) -> bool:
        """Whether sums are private, as they are by default where they can be."""
        given = self.settings
        obstacle = privacy_obstacle(self.topology.n_agents, given.algorithm, given.messages, self.on_loss)
        return not (self.open or obstacle)


@dataclass
class Outcome:
    """How each site ended, the problems found, and the virtual seconds and epochs of the run."""

    schedule: Schedule
    endings: dict[int, SiteResult | BaseException] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0
    epochs: int = 0

    @property
    def correct(self) -> bool:
        """Whether no problem was found in the results."""
        return not self.problems


class MemoryDisk:
    """Disk in memory, which survives when its agent is killed: checkpoints and promises.

    Stands in for :class:`deepca.engines.checkpoints.CheckpointFolder`.
    """

    def __init__(self, run: bytes) -> None:
        self.run, self.data = run, b"\0" * 32
        self.checkpoints: list[Checkpoint] = []
        self.promise_store = MemoryPromiseStore()
        self.full = False

    def write(self, checkpoint: Checkpoint) -> bool:
        """Store a checkpoint unless the disk is full."""
        if self.full:
            return False
        self.checkpoints = [*self.checkpoints, checkpoint][-2:]
        return True

    def kept(self) -> tuple[RecordedCheckpoint, ...]:
        """Return the keys of the stored checkpoints, without their states."""
        return tuple(RecordedCheckpoint(one.iteration, one.key, one.members) for one in self.checkpoints)

    def load(self, key: bytes) -> Checkpoint | None:
        """Return the checkpoint with this key, or None if it is not stored."""
        return next((one for one in self.checkpoints if one.key == key), None)

    def keep_only(self, key: bytes) -> None:
        """Discard all checkpoints except the one with this key."""
        self.checkpoints = [one for one in self.checkpoints if one.key == key]

    def clear(self) -> None:
        """Discard all checkpoints."""
        self.checkpoints = []


def draw_schedule(seed: int) -> Schedule:
    """Draw a random schedule with one to five faults of any kind."""
    rng = np.random.default_rng((77, seed))
    m = int(rng.integers(3, 8))
    graphs = [ring(m), path(m), complete(m), _random_graph(m, rng)]
    topology = graphs[int(rng.integers(len(graphs)))]
    on_loss: Literal["wait", "shrink"] = "wait" if rng.random() < 0.6 else "shrink"
    algorithm = str(rng.choice(["auto", "deepca", "accelerated"]))
    faults: list[Fault] = []
    for _ in range(int(rng.integers(1, 6))):
        at = float(rng.exponential(2.0))
        kind = str(rng.choice(_KINDS))
        who = tuple(int(j) for j in rng.permutation(m))
        seconds = float(rng.choice([0.5, 3.0, 20.0]))
        if kind == "kill":
            faults.append(Fault(at, "kill", who[:1], seconds))
        elif kind == "kill two":
            faults.append(Fault(at, "kill", who[:2], seconds))
        elif kind == "kill all":
            faults.append(Fault(at, "kill", who, seconds))
        elif kind == "partition":
            faults.append(Fault(at, "partition", who[: int(rng.integers(1, m))], seconds))
        elif kind == "noise":
            faults.append(Fault(at, "noise", (), seconds, float(rng.choice([0.01, 0.1]))))
        else:
            faults.append(Fault(at, kind, who[:2], seconds, 20.0))
    settings = Settings(int(rng.integers(1, 4)), algorithm=algorithm, tol=1e-9)
    return Schedule(seed, topology, settings, on_loss, tuple(sorted(faults, key=lambda fault: fault.at)))


def _random_graph(m: int, rng: np.random.Generator) -> Topology:
    tree = {(int(rng.integers(j)), j) for j in range(1, m)}
    more = {(i, j) for j in range(m) for i in range(j) if rng.random() < 0.3}
    return from_edges(m, sorted(tree | more))


def rows_of(schedule: Schedule) -> list[Array]:
    """Draw the rows of each site."""
    rng = np.random.default_rng((78, schedule.seed))
    m, d = schedule.topology.n_agents, 8
    mixing = rng.standard_normal((d, d)) * np.geomspace(3.0, 0.3, d)
    return [rng.standard_normal((int(rng.integers(5, 30)), d)) @ mixing + rng.standard_normal(d) for _ in range(m)]


def simulate(schedule: Schedule) -> Outcome:
    """Run a schedule and compare every result with the PCA of the pooled rows of the sites that it names."""
    rows = rows_of(schedule)
    outcome = Outcome(schedule)
    simulated = SimulatedRun(schedule, rows, outcome)
    try:
        simulated.run()
    except Deadlock as deadlock:
        outcome.problems.append(str(deadlock))
    finally:
        simulated.clock.end()
    outcome.seconds = simulated.clock.time
    check_results(outcome, rows)
    return outcome


class SimulatedRun:
    """Sites under a virtual clock, and the faults of a schedule that are injected into them."""

    def __init__(self, schedule: Schedule, rows: Sequence[Array], outcome: Outcome) -> None:
        self.schedule, self.rows, self.outcome = schedule, rows, outcome
        m = schedule.topology.n_agents
        adjacency = schedule.topology.adjacency.tocoo()
        self.edges = tuple((int(i), int(j)) for i, j in zip(*adjacency.coords, strict=True) if i < j)
        self.names = tuple(f"site-{j}" for j in range(m))
        self.run_id = hashlib.sha256(f"run {schedule.seed}".encode()).digest()
        self.clock = VirtualClock()
        self.disks = [MemoryDisk(self.run_id) for _ in range(m)]
        self.network = VirtualNetwork(self.clock, [Host(j) for j in range(m)], self.edges, schedule.seed)
        self.rng = np.random.default_rng((79, schedule.seed))

    def run(self) -> None:
        """Run the schedule to its end."""
        for site in range(len(self.names)):
            self.clock.at(float(self.rng.random()) * 2.0, partial(self.start, site))
        for fault in self.schedule.faults:
            self.clock.at(2.0 + fault.at, partial(self.inject, fault))
        self.clock.at(0.0, lambda: None)
        # the clock stops when all tasks have ended, so one task lasts until all agents were started and restarted
        started = self.clock.condition()

        def wait() -> None:
            with started:
                started.wait(2.0 + max(fault.at + fault.seconds for fault in self.schedule.faults) + 1.0)

        self.clock.spawn(wait, "beginning")
        with attached(EventHandler(self.on_event)):
            self.clock.run(self.schedule.deadline + 200.0)

    def start(self, site: int) -> None:
        """Start the agent of a site, unless it is running.

        One that is killed after it has written its result is started again, too: others may still need the result.
        """
        if self.network.hosts[site].node is not None:
            return
        schedule, disk = self.schedule, self.disks[site]
        source = ArraySource(self.rows[site], self.names[site])
        policy = Policy(schedule.on_loss, schedule.patience, schedule.deadline - self.clock.time, 30.0)
        prints = schema_of(source, schedule.settings, bytes(COLUMN_KEY_BYTES))
        private = PrivateSums(self.names, self.rng.bytes) if schedule.private else None
        mask_key = b"" if private is None else private.public_key
        config = NodeConfig(self.names, site, self.edges, self.run_id, prints, 1 << 24, mask_key)
        # every start has incarnation number 1, so an agent must learn of its earlier starts from the others
        incarnation = Incarnation(1, int(self.rng.integers(1, 2**63)))
        node = Node(config, policy, self.clock, incarnation, lambda: 0.0, disk.promise_store)
        job = SiteRun(
            "run",
            self.names,
            site,
            schedule.topology,
            schedule.settings,
            source,
            schedule.checkpoint_every,
            private,
            self.rules(site),
        )

        def work() -> None:
            try:
                ending = run_site(job, node, disk, disk.promise_store, observers=self.observers(site))
                self.outcome.endings[site] = ending
                node.announce_finished()
                node.wait_until_all_finished()
            except DeepcaError as error:
                self.outcome.endings[site] = error
                if not isinstance(error, Unfinished):
                    node.announce_failure(for_others(error), error)
                    node.wait_until_all_finished(0.0)
            self.network.leave(site, node)

        self.network.start(site, node, work)

    def rules(self, site: int) -> DisclosureRules:
        """Return the disclosure rules of a site; by default none, since sites have few rows."""
        return NO_RULES

    def observers(self, site: int) -> tuple[Observer, ...]:
        """Return the observers of a site's iterations; none by default."""
        return ()

    def on_event(self, site: str, event: str, text: str, facts: Mapping[str, Any]) -> None:
        """Record an event that a site has logged."""
        if event == "epoch":
            self.outcome.epochs = max(self.outcome.epochs, facts["epoch"])

    def inject(self, fault: Fault) -> None:
        """Begin a fault and schedule its end."""
        network, after = self.network, self.clock.time + fault.seconds
        links = network.link_faults
        if fault.kind == "kill":
            for site in fault.sites:
                if network.hosts[site].node is not None:
                    network.kill(site)
                    self.clock.at(after, partial(self.start, site))
        elif fault.kind == "freeze":
            network.freeze(fault.sites[0], fault.seconds)
        elif fault.kind in ("partition", "oneway"):
            inside = set(fault.sites[:1] if fault.kind == "oneway" else fault.sites)
            every = range(len(self.names))
            cut = {(i, j) for i in every for j in every if i in inside and j not in inside}
            if fault.kind == "partition":
                cut |= {(j, i) for i, j in cut}
            links.cut |= cut
            self.clock.at(after, lambda: links.cut.difference_update(cut))
        elif fault.kind == "noise":
            links.loss = links.duplicate = links.delay = fault.amount
            self.clock.at(after, self.end_noise)
        elif fault.kind == "slow":
            links.slow[fault.sites[0]] = fault.amount
            self.clock.at(after, links.slow.clear)
        elif fault.kind == "full":
            disk = self.disks[fault.sites[0]]
            disk.full = True
            self.clock.at(after, lambda: setattr(disk, "full", False))

    def end_noise(self) -> None:
        """Stop losing, duplicating and delaying frames."""
        links = self.network.link_faults
        links.loss = links.duplicate = links.delay = 0.0


def check_results(outcome: Outcome, rows: Sequence[Array]) -> None:
    """Add a problem to the outcome for every site that ended wrongly; ``rows`` are those of all sites."""
    schedule, endings = outcome.schedule, outcome.endings
    names = {f"site-{j}": j for j in range(len(rows))}
    contents = set()
    for site in range(len(rows)):
        ending = endings.get(site)
        if ending is None:
            outcome.problems.append(f"site {site} never ended")
        elif isinstance(ending, Unfinished) and schedule.on_loss == "shrink":
            if not any(isinstance(one, SiteResult) for one in endings.values()):
                outcome.problems.append(f"site {site}: {ending}")
            # otherwise it returned after the others had ended
        elif not isinstance(ending, SiteResult):
            outcome.problems.append(f"site {site}: {type(ending).__name__}: {ending}")
        else:
            contents.add(ending.content)
            if not ending.model.status.ok:
                outcome.problems.append(f"site {site}: {ending.model.status}")
            members = [names[name] for name in ending.members]
            if schedule.on_loss == "wait" and len(members) < len(rows):
                outcome.problems.append(f"site {site} left sites out: {', '.join(ending.left_out)}")
            if 2 * len(members) <= len(rows):
                outcome.problems.append(f"site {site}: the {len(members)} members of the result are not a majority")
            pooled = np.vstack([rows[j] for j in members])
            error = _error(pooled, np.asarray(ending.model.components))
            if not error <= 1e-8:
                outcome.problems.append(f"site {site}: components are wrong by {error:.1e}")
    if len(contents) > 1:
        outcome.problems.append(f"{len(contents)} different results")


def _error(pooled: Array, components: Array) -> float:
    """Return the largest difference between entries of the projections onto the components and the right answer."""
    centred = pooled - pooled.mean(axis=0)
    top = np.linalg.svd(centred, full_matrices=False)[2][: len(components)]
    return float(np.abs(top.T @ top - components.T @ components).max())
