"""Run one site from the first contact to the result; real and simulated processes share this code."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Protocol, Self

import numpy as np

from deepca._util.logs import EventLogger
from deepca._util.typing import Array
from deepca.algorithms.base import State
from deepca.consensus.broadcasts import SEMIORTHOGONALITY_TOLERANCE, share_spectrum
from deepca.data.local_data import LocalData, read
from deepca.data.sources import Source
from deepca.decomposition.fit import fit
from deepca.decomposition.model import Model
from deepca.decomposition.settings import Settings, check_settings
from deepca.engines.checkpoint_format import Checkpoint
from deepca.engines.checkpointing import CheckpointObserver, CheckpointStore, ResumePoint
from deepca.errors import (
    BadArray,
    Contradiction,
    DataError,
    InvalidInput,
    NotFiniteError,
    PooledDataError,
    Regroup,
    SumMismatch,
)
from deepca.network.agent import AgentNetwork
from deepca.network.base import Network
from deepca.network.sums.rounds import round_between
from deepca.operators.linalg import qr
from deepca.sites.config.disclosure import DEFAULT_RULES, DisclosureRules
from deepca.sites.protocol.records import Offer, RecordedCheckpoint, RunPlan
from deepca.sites.runtime.comparison import difference
from deepca.sites.runtime.disclosure import ShownDirections
from deepca.sites.runtime.member_network import MemberNetwork, PlanTransport, member_topology
from deepca.sites.runtime.node import DecidedResult, Node
from deepca.sites.runtime.node.abort_reasons import for_others
from deepca.sites.runtime.private_sums import PrivateSums
from deepca.sites.runtime.promise_store import PromiseStore
from deepca.sites.runtime.site_engine import SiteEngine
from deepca.sites.runtime.site_result import SiteResult, check_matches, site_result
from deepca.solver.observers import Observer, Step
from deepca.topology.graph import Topology

__all__ = ["SiteCheckpoints", "SiteResult", "SiteRun", "broadcast_from", "run_site"]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SiteRun:
    """Inputs of one site's run."""

    run: str  # name of the run
    sites: tuple[str, ...]
    me: int  # index of this site
    topology: Topology
    settings: Settings
    source: Source
    every: int = 10  # iterations between checkpoints
    private: PrivateSums | None = None  # keys of this process; None in an open network
    rules: DisclosureRules = DEFAULT_RULES  # of this site

    @cached_property
    def interval(self) -> int:
        """Iterations between checkpoints, enough that no site can be ahead of another by more than one interval.

        All sites then always have an iteration in common among their last two checkpoints.
        """
        return max(self.every, self.topology.flood_rounds + 1)


class CheckpointHeader(Protocol):
    """Facts about a checkpoint that are known without reading it."""

    @property
    def iteration(self) -> int:
        """Iteration of its state."""

    @property
    def key(self) -> bytes:
        """Identifier that all members of a plan share."""

    @property
    def members(self) -> bytes:
        """Digest of the sites whose rows it covers."""


class SiteCheckpoints(CheckpointStore, Protocol):
    """Storage of checkpoints; see :class:`deepca.engines.checkpoints.CheckpointFolder`."""

    def kept(self) -> Sequence[CheckpointHeader]:
        """Return the checkpoints that are stored."""

    def load(self, key: bytes, /) -> Checkpoint | None:
        """Return a checkpoint, or None if it is missing or damaged."""

    def keep_only(self, key: bytes, /) -> None:
        """Delete all other checkpoints, if this one is stored."""


def run_site(
    job: SiteRun,
    node: Node,
    checkpoints: SiteCheckpoints,
    promises: PromiseStore,
    *,
    observers: Sequence[Observer] = (),
) -> SiteResult:
    """Compute the result with the other sites and regroup whenever one of them is lost, restarts or comes back.

    If the run has already finished, return its recorded result. Raise InvalidInput if settings or columns of this site
    differ from those of the others, or its rows cannot be used; NetworkError if another site is at fault, or the sites
    cannot agree on a result; Unfinished at the deadline.
    """
    check_settings(job.settings)
    log = EventLogger(_logger, job.sites[job.me])
    known = promises.load()
    if known.decided and known.content is not None:
        log.warning(
            f"run {job.run!r} has already finished, and its result is reused; to compute again, agree with the other "
            "sites on a new name for `run` in network.toml",
            event="result",
        )
        return site_result(known.content, compared=False)
    checkpointer = _Checkpointer(checkpoints, job.interval)
    shown = ShownDirections(job.source.d, job.rules.direction_limit(job.source.d), promises)
    data: LocalData | None = None
    while True:
        offer = checkpointer.offer(b"" if job.private is None else job.private.commit())
        agreed = node.agree_on_plan(offer, partial(check_matches, job))
        if isinstance(agreed, DecidedResult):
            return site_result(agreed.content, compared=agreed.compared)
        try:
            network = MemberNetwork(
                member_topology(job.topology, agreed),
                agreed.members.index(job.me),
                PlanTransport(node, agreed),
                shown,
            )
            if job.private is not None:
                job.private.begin(network, agreed)
            network.begin(agreed.epoch, 0, "spectrum")
            share_spectrum(network)
            network.begin(agreed.epoch, 0, "gathered")
            if data is None:  # only now: all members agree on columns and settings
                data = _read(job)
            k, d = job.settings.n_components, job.source.d
            checkpointer.enter(agreed, network, d, min(k, d) if isinstance(k, int) else d)
            settings = _with_seed(job, network, agreed, checkpointer)
            model = _fitted(settings, node, data, network, shown, observers, checkpointer)
            facts = {"seed": checkpointer.seed, "history": network.history.hex(), "directions_shown": shown.count}
            mine = _model(job, agreed, model, facts)
            decided = node.agree_on_result(agreed, partial(difference, mine), mine.to_bytes)
        except Regroup as why:
            log.warning(f"regrouping with the other sites: {why}", event="regroup")
            continue
        except SumMismatch as error:  # all members find it in this sum or the next
            node.announce_failure(for_others(error), common=True)
            raise
        except (BadArray, Contradiction) as error:
            raise _named(job, node, agreed, network, error) from None
        return site_result(decided.content, compared=decided.compared)


def _read(job: SiteRun) -> LocalData:
    """Return the rows of this site; raise DisclosureError if they are too few for others to learn sums over them."""
    data = read((job.source,), form=job.settings.form)
    if len(job.sites) > 1:
        job.rules.check_rows(data.moments[0].n)
    return data


def _with_seed(job: SiteRun, network: AgentNetwork, plan: RunPlan, checkpointer: _Checkpointer) -> Settings:
    """Return the settings with the seed of this run: in a private network, that of the checkpoint or a common new one.

    No site can choose its rows to suit a seed that follows from random numbers of all sites.
    """
    if job.private is not None and not plan.resume:
        checkpointer.seed = job.private.seed(network, plan, job.settings.seed or 0)
    elif job.private is None:
        checkpointer.seed = job.settings.seed or 0
    return replace(job.settings, seed=checkpointer.seed)


def _fitted(
    settings: Settings,
    node: Node,
    data: LocalData,
    network: AgentNetwork,
    shown: ShownDirections,
    observers: Sequence[Observer],
    checkpointer: _Checkpointer,
) -> Model:
    """Return the fitted model; report an error to the other sites if they should find it as well."""
    try:
        shown.agree(network, settings)
        engine = SiteEngine(network)
        return fit(
            data, network, settings, observers=observers, engine=engine, checkpointing=checkpointer, weighted=False
        ).model
    except (InvalidInput, NotFiniteError) as error:
        if isinstance(error, PooledDataError) or not isinstance(error, DataError):
            node.announce_failure(for_others(error), common=True)  # follows from numbers that all members agreed on
        raise  # other errors may concern this site alone, for example when it reads its rows again


def _named(job: SiteRun, node: Node, plan: RunPlan, network: AgentNetwork, error: BadArray | Contradiction) -> BadArray:
    """Return an error that accuses the site from which this one received invalid numbers.

    Numbers that come down the tree are received from the parent, which passes them on before it can check them. An
    honest parent refuses them as well, so this waits for its report, which accuses the site that computed them.
    """
    if isinstance(error, BadArray):
        if error.agent < 0:
            return error
        agent, what = error.agent, error.what
    else:
        agent = int(network.topology.paths_from(error.sender)[1][network.agent])
        by = ""
        if agent != error.sender:
            node.await_fault(plan, plan.members[agent])
            by = f", computed by {job.sites[plan.members[error.sender]]}"
        what = f"{error.what}{by}: {error.found}"
    phase, iteration = (error.phase, error.iteration) if isinstance(error, BadArray) else network.phase_and_iteration
    return BadArray(job.sites[plan.members[agent]], what, phase=phase, iteration=iteration, agent=agent)


class _Checkpointer(CheckpointObserver):
    """Write checkpoints at intervals, remember the newest state, and agree with members on where to resume."""

    def __init__(self, checkpoints: SiteCheckpoints, every: int) -> None:
        super().__init__(checkpoints, every)
        self._checkpoints = checkpoints
        self._resume_point: ResumePoint | None = None
        self.newest: State | None = None

    def enter(self, plan: RunPlan, network: AgentNetwork, d: int, max_k: int) -> None:
        """Agree with the members of a plan on where to resume, and mark later checkpoints as theirs.

        ``d`` is the number of columns, ``max_k`` the largest number of components that can be found.
        """
        self._resume_point = self._agree(plan, network, d, max_k)
        self._scope, self._members = plan.digest, plan.members_digest
        self._history = lambda: network.history

    def _agree(self, plan: RunPlan, network: AgentNetwork, d: int, max_k: int) -> ResumePoint | None:
        """Return where to resume: at the checkpoint that all members have, else from the most advanced member's W.

        Raises Regroup if any member cannot read the checkpoint.
        """
        if plan.resume:
            found = self._checkpoints.load(plan.resume)
            network.begin(plan.epoch, 0, "resume")
            usable = float(network.reduce(np.array([0.0 if found is None else 1.0]), "min")[0])
            if usable and found is not None:
                self._checkpoints.keep_only(plan.resume)
                self.newest, self.seed = found.state, found.seed
                return ResumePoint(state=found.state)
            who = "this" if found is None else "another"
            raise Regroup(f"{who} site cannot read the checkpoint that it offered")
        if plan.source < 0:
            return None
        source = plan.members.index(plan.source)
        state = self.state() if network.agent == source else None
        W = np.empty((d, 0)) if state is None else qr(np.asarray(state.W, dtype=np.float64))[0]
        network.begin(plan.epoch, 0, "directions")
        [k] = broadcast_from(network, source, np.array([float(W.shape[1])]), lambda x: x[0] in range(max_k + 1))
        if k == 0.0:
            return None
        W, inside = W if network.agent == source else np.zeros((d, int(k))), np.eye(int(k))
        W = broadcast_from(
            network, source, W, lambda x: bool(np.abs(x.T @ x - inside).max() <= SEMIORTHOGONALITY_TOLERANCE)
        )
        return ResumePoint(directions=np.ascontiguousarray(W.T))

    def open(self, network: Network, data: LocalData, settings: Any, /) -> Self:
        """Return this object; the members have already agreed on where to resume (:meth:`enter`)."""
        return self

    def resume_point(self) -> ResumePoint | None:
        """Return where the plan resumes; None for a fresh start."""
        return self._resume_point

    def offer(self, commitment: bytes = b"") -> Offer:
        """Return the checkpoints of this site, the iteration that it has reached, and its commitment for the seed."""
        kept = tuple(RecordedCheckpoint(one.iteration, one.key, one.members) for one in self._checkpoints.kept())
        on_disk = max((one.iteration for one in kept), default=-1)
        return Offer(kept, on_disk if self.newest is None else self.newest.t, commitment)

    def state(self) -> State | None:
        """Return the newest state, from memory or disk."""
        if self.newest is not None:
            return self.newest
        for header in sorted(self._checkpoints.kept(), key=lambda one: -one.iteration):
            found = self._checkpoints.load(header.key)
            if found is not None:
                return found.state
        return None

    def observe(self, step: Step) -> None:
        """Remember the new state, and write it if a checkpoint is due."""
        self.newest = step.after
        super().observe(step)


def broadcast_from(network: AgentNetwork, source: int, x: Array, is_valid: Callable[[Array], bool]) -> Array:
    """Send the numbers of one agent to all others: along a path to the leader, then down the tree.

    They pass through the leader because all agents have to start from the numbers that the leader has. Agents on the
    path call ``is_valid`` before they pass the numbers on, so that invalid ones are detected next to their source.
    """
    what, found = "starting directions", "not orthonormal or too many of them"
    _, before = network.topology.paths_from(source)
    path = [network.leader]
    while path[-1] != source:
        path.append(int(before[path[-1]]))
    for receiver, sender in zip(path[-2::-1], path[:0:-1], strict=True):
        keep = np.ones(network.n_agents)
        keep[receiver] = 0.0
        with network.public_numbers():  # W follows from sums
            x = network.gossip(x, round_between(keep, np.array([receiver]), np.array([sender]), 1.0))
        if network.agent == receiver and not is_valid(x):
            phase, iteration = network.phase_and_iteration
            raise BadArray(f"agent {sender}", f"{what}: {found}", phase=phase, iteration=iteration, agent=sender)
    x = network.broadcast(x)
    if not (network.is_leader_local or is_valid(x)):
        raise Contradiction(network.leader, what, found)
    return x


def _model(job: SiteRun, plan: RunPlan, model: Model, facts: Mapping[str, object]) -> Model:
    """Add facts about the run to the model; comparing models compares them, all totals (``history``) included."""
    members = [job.sites[site] for site in plan.members]
    about = {
        **model.about,
        "run": job.run,
        "sites": members,
        "left_out": [name for name in job.sites if name not in members],
        "epoch": plan.epoch,
        "plan": plan.digest.hex(),
        "privacy": "open" if job.private is None else "private",
        **facts,
    }
    return replace(model, about=about)
