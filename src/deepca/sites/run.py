"""The run of one site, from the first meeting to the result: the same for real processes and simulated ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from deepca._typing import Array
from deepca.algorithms.base import State
from deepca.checkpoints import Checkpoint
from deepca.data.holdings import Holdings, read
from deepca.data.sources import Source
from deepca.errors import InvalidInput, ModelError, NetworkError, NotFiniteError, Regroup
from deepca.model import Model, from_bytes
from deepca.networks.agent import AgentNetwork
from deepca.observers import Observer, Start, Step
from deepca.pca import Decomposition, Resumption, Settings, check, decompose_held, model_of
from deepca.result import Result
from deepca.sites.node import Node
from deepca.sites.records import Kept, Offer, Plan
from deepca.sites.vault import Vault
from deepca.topology import Topology, from_edges
from deepca.transports.base import Message, Tag

__all__ = ["Ending", "Job", "Store", "run_site", "schema_of"]

_ALIKE = 1e-6  # how far own numbers may be from the common result, relative; bits differ between kinds of machines


@dataclass(frozen=True)
class Job:
    """What a site brings along. every : iterations from one checkpoint to the next."""

    run: str
    sites: tuple[str, ...]
    me: int
    topology: Topology
    settings: Settings
    open: Callable[[], Source]
    every: int = 10

    @cached_property
    def interval(self) -> int:
        """Two checkpoints always suffice if nobody can be further ahead of anybody than one interval."""
        return max(self.every, self.topology.flood_rounds + 1)


class Header(Protocol):
    """What is known of a checkpoint without reading it."""

    @property
    def iteration(self) -> int: ...
    @property
    def key(self) -> bytes: ...
    @property
    def members(self) -> bytes: ...


class Store(Protocol):
    """Where checkpoints are kept; see :class:`deepca.checkpoints.Checkpoints`."""

    @property
    def run(self) -> bytes: ...
    @property
    def data(self) -> bytes: ...
    def write(self, checkpoint: Checkpoint, /) -> bool: ...
    def kept(self) -> Sequence[Header]: ...
    def load(self, key: bytes, /) -> Checkpoint | None: ...
    def keep_until(self, key: bytes, /) -> None: ...


@dataclass(frozen=True)
class Ending:
    """The result: the same bytes at every site.

    members : the sites whose rows it is about.  left_out : the others.  own : whether this site found it, too, or only
    was given it.
    """

    content: bytes
    model: Model
    members: tuple[str, ...]
    left_out: tuple[str, ...]
    own: bool


def schema_of(source: Source, settings: Settings) -> dict[str, bytes]:
    """What has to be the same everywhere, by name; names of columns only as hashes."""
    names = source.columns if source.columns is not None else tuple(f"#{i}" for i in range(source.d))
    parts = b"".join(hashlib.sha256(name.encode()).digest()[:4] for name in names)
    # of very many columns only that some differ can be told
    columns = parts if source.d <= 16_384 else hashlib.sha256(parts).digest()
    given = settings.n_components
    return {
        "columns": columns,
        "number of columns": str(source.d).encode(),
        "components": ("all" if given is None else str(given)).encode(),
        "centring": str(settings.center).encode(),
        "scaling": str(settings.scale).encode(),
        "algorithm": settings.algorithm.encode(),
        "rounds": str(settings.rounds).encode(),
        "messages": settings.messages.encode(),
        "tolerance": repr(settings.tol).encode(),
        "largest number of iterations": str(settings.max_iter).encode(),
        "seed": str(settings.seed).encode(),
    }


def run_site(
    job: Job,
    node: Node,
    checkpoints: Store,
    vault: Vault,
    *,
    observers: Sequence[Observer] = (),
    tell: Callable[..., None] = lambda *_, **__: None,
) -> Ending:
    """Gather, run, and whenever the network asks for it gather again, until there is a result.

    Raises Unfinished at the deadline, InvalidInput where this site differs from the others or its rows cannot be used.
    """
    check(job.settings)
    known = vault.load()
    if known.decided and known.outcome is not None:
        tell("result", f"the run {job.run!r} has ended before; another one needs another name, the same at all sites")
        return _ending(job, known.outcome, own=False)
    keeper = _Keeper(checkpoints, job.interval)
    held: Holdings | None = None
    source = job.open()
    while True:
        agreed = node.gather(keeper.offer(), partial(_check_ours, job, source))
        if isinstance(agreed, bytes):
            return _ending(job, agreed, own=False)
        try:
            network = AgentNetwork(_topology(job, agreed), agreed.members.index(job.me), _Transport(node, agreed))
            network.begin(agreed.epoch, 0, "gathered")
            if held is None:  # not before all agree on what the rows are
                held = read((source,), form=job.settings.form)
            resume = _resumption(keeper, agreed, network, checkpoints)
            keeper.enter(agreed)
            found = _decomposed(job, node, held, network, resume, observers, keeper)
            mine = _content(job, agreed, network, found) if job.me == agreed.members[0] else None
            content = node.settle(agreed.epoch, mine, partial(_check_alike, job, agreed, found))
        except Regroup as why:
            tell("regroup", f"gathering anew: {why}")
            continue
        return _ending(job, content, own=True)


def _decomposed(
    job: Job,
    node: Node,
    held: Holdings,
    network: AgentNetwork,
    resume: Resumption | None,
    observers: Sequence[Observer],
    keeper: _Keeper,
) -> Decomposition:
    try:
        return decompose_held(held, network, job.settings, observers=observers, keepers=(keeper,), resume=resume)
    except (InvalidInput, NotFiniteError) as error:
        # what does not name this site's file follows from numbers that all have agreed on
        if not any(source.name in str(error) for source in held.sources):
            node.failed(str(error), common=True)
        raise


class _Transport:
    """A plan's messages, agents numbered within it."""

    reliable = True

    def __init__(self, node: Node, plan: Plan) -> None:
        self._node, self._plan = node, plan

    def exchange(self, tag: Tag, outgoing: Any, sources: Any, /) -> dict[int, Message]:
        sites = self._plan.members
        received = self._node.exchange(
            self._plan, tag, {sites[j]: message for j, message in outgoing.items()}, [sites[j] for j in sources]
        )
        return {j: received[sites[j]] for j in sources}


class _Keeper:
    """An observer that writes every so many states down, and remembers the newest one."""

    def __init__(self, checkpoints: Store, every: int) -> None:
        self._checkpoints, self._every = checkpoints, every
        self._plan: Plan | None = None
        self.newest: State | None = None

    def enter(self, plan: Plan) -> None:
        self._plan = plan

    def offer(self) -> Offer:
        kept = tuple(Kept(one.iteration, one.key, one.members) for one in self._checkpoints.kept())
        on_disk = max((one.iteration for one in kept), default=-1)
        return Offer(kept, on_disk if self.newest is None else self.newest.t)

    def state(self) -> State | None:
        """The newest one, from memory or disk."""
        if self.newest is not None:
            return self.newest
        for header in sorted(self._checkpoints.kept(), key=lambda one: -one.iteration):
            found = self._checkpoints.load(header.key)
            if found is not None:
                return found.state
        return None

    def begin(self, start: Start) -> None:
        pass

    def observe(self, step: Step) -> None:
        state, plan = step.after, self._plan
        self.newest = state
        if plan is None or state.t % self._every:
            return
        k = state.W.shape[-1]
        key = hashlib.sha256(plan.digest + f"{state.t}/{k}".encode()).digest()
        at = self._checkpoints
        at.write(Checkpoint(state.t, key, plan.rows_of, k, at.data, at.run, state))

    def end(self, result: Result[Any]) -> None:
        pass


def _topology(job: Job, plan: Plan) -> Topology:
    if len(plan.members) == len(job.sites) and len(plan.edges) == job.topology.n_edges:
        return job.topology
    place = {site: j for j, site in enumerate(plan.members)}
    edges = [(place[a], place[b]) for a, b in plan.edges]
    return from_edges(len(plan.members), edges, name=f"{len(plan.members)} sites of {job.topology.name}")


def _resumption(keeper: _Keeper, plan: Plan, network: AgentNetwork, checkpoints: Store) -> Resumption | None:
    """Where to go on: at the checkpoint that all have, at the W of whoever had come farthest, or nowhere."""
    if plan.resume:
        found = checkpoints.load(plan.resume)
        network.begin(plan.epoch, 0, "resume")
        usable = float(network.reduce(np.array([0.0 if found is None else 1.0]), "min")[0])
        if usable and found is not None:
            checkpoints.keep_until(plan.resume)
            keeper.newest = found.state
            return Resumption(state=found.state)
        raise (
            Regroup("a checkpoint that was offered cannot be read")
            if found is None
            else Regroup("a site cannot read its checkpoint")
        )
    if plan.source < 0:
        return None
    network.begin(plan.epoch, 0, "spread")
    mine = network.agent == plan.members.index(plan.source)
    state = keeper.state() if mine else None
    shape = np.array([-1.0, -1.0] if state is None else [float(n) for n in state.W.shape])
    d, k = (round(float(n)) for n in network.reduce(shape, "max"))
    if d < 1:
        return None
    own = np.full((d, k), -np.inf) if state is None else np.asarray(state.W, dtype=np.float64)
    W: Array = network.reduce(own, "max")
    return Resumption(directions=np.ascontiguousarray(np.linalg.qr(W)[0].T))


def _content(job: Job, plan: Plan, network: AgentNetwork, found: Decomposition) -> bytes:
    model = model_of(found, network.topology, job.settings, whiten=False, single=False)
    members = [job.sites[site] for site in plan.members]
    about = {
        **model.about,
        "run": job.run,
        "sites": members,
        "left_out": [name for name in job.sites if name not in members],
        "epoch": plan.epoch,
    }
    return replace(model, about=about).to_bytes()


def _ending(job: Job, content: bytes, *, own: bool) -> Ending:
    model = from_bytes(content, Path("the common result"))
    return Ending(content, model, tuple(model.about["sites"]), tuple(model.about["left_out"]), own)


def _check_ours(job: Job, source: Source, content: bytes) -> None:
    """A result that is handed to a site which has found none itself must at least be one of this run."""
    try:
        ending = _ending(job, content, own=False)
    except (ModelError, KeyError, TypeError) as error:
        raise NetworkError(f"the result that others have cannot be used: {error}") from None
    model, k = ending.model, job.settings.n_components
    ours = (
        model.about.get("run") == job.run
        and set(ending.members) <= set(job.sites)
        and 2 * len(set(ending.members)) > len(job.sites)
        and model.n_features == source.d
        and model.columns == source.columns
        and (model.scale is not None) == job.settings.scale
        and (not isinstance(k, int) or model.n_components == k)
    )
    if not ours:
        raise NetworkError("the result that others have is not one of this run, its sites and columns; it is not taken")


def _check_alike(job: Job, plan: Plan, found: Decomposition, content: bytes) -> None:
    """What this site found itself must be what all end with, if it is about the same rows."""
    ending = _ending(job, content, own=True)
    model, settings = ending.model, job.settings
    if ending.members != tuple(job.sites[site] for site in plan.members):
        return
    if found.components.shape != model.components.shape:
        raise NetworkError(
            f"this site found {found.components.shape[0]} components, the common result has "
            f"{model.components.shape[0]}; a site is wrong, and nothing was written"
        )
    if not found.result.status.ok or not model.status.ok:
        return
    apart = np.abs(found.variances - model.explained_variance).max()
    if not apart <= _ALIKE * max(float(found.variances.max()), np.finfo(np.float64).tiny):
        raise NetworkError(
            f"the variances found here differ by {apart:.1e} from those of the common result; nothing was written"
        )
    residual = found.components - (found.components @ model.components.T) @ model.components
    if not np.abs(residual).max() <= max(_ALIKE, 100.0 * settings.tol):
        raise NetworkError("the components found here are not those of the common result; nothing was written")
