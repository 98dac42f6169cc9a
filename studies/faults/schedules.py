"""Seeded random schedules of faults on simulated agents, and whether every one of them ends as it must."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np

from deepca._util.logs import EventHandler, listening
from deepca._util.typing import Array
from deepca.data.sources import ArraySource
from deepca.decomposition.settings import Settings
from deepca.engines.checkpoint_format import Checkpoint
from deepca.errors import DeepcaError, Unfinished
from deepca.sites.protocol.fingerprints import schema_of
from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.records import RecordedCheckpoint
from deepca.sites.runtime.node import Membership, Node, Policy
from deepca.sites.runtime.run import Ending, Job, run_site
from deepca.sites.runtime.vault import MemoryVault
from deepca.solver.observers import Observer
from deepca.topology import Topology, complete, from_edges, path, ring
from studies.faults.virtual import Host, Stuck, VirtualClock, VirtualNetwork

__all__ = ["Fault", "MemoryDisk", "Outcome", "Play", "Schedule", "draw", "judge", "play", "rows_of"]


_KINDS = ("kill", "kill", "kill", "kill two", "kill all", "freeze", "partition", "oneway", "noise", "slow", "full")


@dataclass(frozen=True)
class Fault:
    """At ``at`` seconds: what happens to whom, for how long."""

    at: float
    kind: str
    sites: tuple[int, ...] = ()
    seconds: float = 0.0
    amount: float = 0.0


@dataclass(frozen=True)
class Schedule:
    """A network, its rows, and what is done to it."""

    seed: int
    topology: Topology
    settings: Settings
    on_loss: Literal["wait", "shrink"]
    faults: tuple[Fault, ...]
    patience: float = 5.0
    deadline: float = 300.0
    every: int = 5


@dataclass
class Outcome:
    """How each site ended. correct : whether all results are those of the rows that they claim to be of."""

    schedule: Schedule
    endings: dict[int, Ending | BaseException] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0
    epochs: int = 0

    @property
    def correct(self) -> bool:
        """Whether no problem was found."""
        return not self.problems


class MemoryDisk:
    """What survives when an agent is killed; as :class:`deepca.engines.checkpoints.Checkpoints`, and a vault."""

    def __init__(self, run: bytes) -> None:
        self.run, self.data = run, b"\0" * 32
        self.checkpoints: list[Checkpoint] = []
        self.vault = MemoryVault()
        self.full = False

    def write(self, checkpoint: Checkpoint) -> bool:
        """Store a checkpoint unless the disk is full."""
        if self.full:
            return False
        self.checkpoints = [*self.checkpoints, checkpoint][-2:]
        return True

    def kept(self) -> tuple[RecordedCheckpoint, ...]:
        """Return the stored checkpoints without their states."""
        return tuple(RecordedCheckpoint(one.iteration, one.key, one.members) for one in self.checkpoints)

    def load(self, key: bytes) -> Checkpoint | None:
        """Return the checkpoint of a key, if it is stored."""
        return next((one for one in self.checkpoints if one.key == key), None)

    def keep_until(self, key: bytes) -> None:
        """Discard all checkpoints but one."""
        self.checkpoints = [one for one in self.checkpoints if one.key == key]

    def clear(self) -> None:
        """Discard all checkpoints."""
        self.checkpoints = []


def draw(seed: int) -> Schedule:
    """Draw a random schedule; every kind of fault occurs, alone and combined with others."""
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
    """Return the rows of each site."""
    rng = np.random.default_rng((78, schedule.seed))
    m, d = schedule.topology.n_agents, 8
    mixing = rng.standard_normal((d, d)) * np.geomspace(3.0, 0.3, d)
    return [rng.standard_normal((int(rng.integers(5, 30)), d)) @ mixing + rng.standard_normal(d) for _ in range(m)]


def play(schedule: Schedule) -> Outcome:
    """Run it, and compare every result with a PCA of the pooled rows of those it names."""
    rows = rows_of(schedule)
    outcome = Outcome(schedule)
    playing = Play(schedule, rows, outcome)
    try:
        playing.run()
    except Stuck as stuck:
        outcome.problems.append(str(stuck))
    finally:
        playing.clock.end()
    outcome.seconds = playing.clock.time
    judge(outcome, rows)
    return outcome


class Play:
    """A schedule while it is played."""

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
        """Play the schedule to its end."""
        for site in range(len(self.names)):
            self.clock.at(float(self.rng.random()) * 2.0, partial(self.start, site))
        for fault in self.schedule.faults:
            self.clock.at(2.0 + fault.at, partial(self.hurt, fault))
        self.clock.at(0.0, lambda: None)
        # a first task keeps the clock going until everybody has started
        started = self.clock.condition()

        def wait() -> None:
            with started:
                started.wait(2.0 + max(fault.at + fault.seconds for fault in self.schedule.faults) + 1.0)

        self.clock.spawn(wait, "beginning")
        with listening(EventHandler(self.hear)):
            self.clock.run(self.schedule.deadline + 200.0)

    def start(self, site: int) -> None:
        """Start the agent of a site, unless it runs or has ended."""
        if self.network.hosts[site].node is not None or isinstance(self.outcome.endings.get(site), Ending):
            return
        schedule, disk = self.schedule, self.disks[site]
        source = ArraySource(self.rows[site], self.names[site])
        policy = Policy(schedule.on_loss, schedule.patience, schedule.deadline - self.clock.time, 30.0)
        membership = Membership(
            self.names, site, self.edges, self.run_id, schema_of(source, schedule.settings), 1 << 24
        )
        # incarnations that all begin at one: what an agent is told of its earlier starts has to suffice
        identity = Incarnation(1, int(self.rng.integers(1, 2**63)))
        node = Node(membership, policy, self.clock, identity, lambda: 0.0, disk.vault)
        job = Job("run", self.names, site, schedule.topology, schedule.settings, source, schedule.every)

        def work() -> None:
            try:
                ending = run_site(job, node, disk, disk.vault, observers=self.observers(site))
                self.outcome.endings[site] = ending
                node.finished()
                node.farewell()
            except DeepcaError as error:
                self.outcome.endings[site] = error
                if not isinstance(error, Unfinished):
                    node.failed(str(error), error)
                    node.farewell(0.0)
            self.network.leave(site, node)

        self.network.start(site, node, work)

    def observers(self, site: int) -> tuple[Observer, ...]:
        """Of a site's iterations."""
        return ()

    def hear(self, site: str, event: str, text: str, facts: Mapping[str, Any]) -> None:
        """Take note of an event of a site."""
        if event == "epoch":
            self.outcome.epochs = max(self.outcome.epochs, facts["epoch"])

    def hurt(self, fault: Fault) -> None:
        """Apply a fault, and schedule its end."""
        network, after = self.network, self.clock.time + fault.seconds
        trouble = network.trouble
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
            trouble.cut |= cut
            self.clock.at(after, lambda: trouble.cut.difference_update(cut))
        elif fault.kind == "noise":
            trouble.loss = trouble.double = trouble.late = fault.amount
            self.clock.at(after, self.quiet)
        elif fault.kind == "slow":
            trouble.slow[fault.sites[0]] = fault.amount
            self.clock.at(after, trouble.slow.clear)
        elif fault.kind == "full":
            disk = self.disks[fault.sites[0]]
            disk.full = True
            self.clock.at(after, lambda: setattr(disk, "full", False))

    def quiet(self) -> None:
        """End all faults of the links."""
        trouble = self.network.trouble
        trouble.loss = trouble.double = trouble.late = 0.0


def judge(outcome: Outcome, rows: Sequence[Array]) -> None:
    """Note every problem of an outcome, given the rows of all sites."""
    schedule, endings = outcome.schedule, outcome.endings
    names = {f"site-{j}": j for j in range(len(rows))}
    contents = set()
    for site in range(len(rows)):
        ending = endings.get(site)
        if ending is None:
            outcome.problems.append(f"site {site} never ended")
        elif isinstance(ending, Unfinished) and schedule.on_loss == "shrink":
            if not any(isinstance(one, Ending) for one in endings.values()):
                outcome.problems.append(f"site {site}: {ending}")
            # else it came back after the others had gone
        elif not isinstance(ending, Ending):
            outcome.problems.append(f"site {site}: {type(ending).__name__}: {ending}")
        else:
            contents.add(ending.content)
            if not ending.model.status.ok:
                outcome.problems.append(f"site {site}: {ending.model.status}")
            members = [names[name] for name in ending.members]
            if schedule.on_loss == "wait" and len(members) < len(rows):
                outcome.problems.append(f"site {site} left somebody out: {ending.left_out}")
            if 2 * len(members) <= len(rows):
                outcome.problems.append(f"site {site}: a minority of {len(members)} has a result")
            pooled = np.vstack([rows[j] for j in members])
            error = _error(pooled, np.asarray(ending.model.components))
            if not error <= 1e-8:
                outcome.problems.append(f"site {site}: components are wrong by {error:.1e}")
    if len(contents) > 1:
        outcome.problems.append(f"{len(contents)} different results")


def _error(pooled: Array, components: Array) -> float:
    """Largest entry by which the projection onto the components differs from that onto the top of the pooled rows."""
    centred = pooled - pooled.mean(axis=0)
    top = np.linalg.svd(centred, full_matrices=False)[2][: len(components)]
    return float(np.abs(top.T @ top - components.T @ components).max())
