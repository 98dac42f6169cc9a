"""Checkpoint and resume runs on engines whose processes start and end together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from deepca._util.typing import Array
from deepca._util.validation import Integer, check
from deepca.algorithms.base import State
from deepca.consensus.broadcasts import for_local_agents
from deepca.data.digests import update_digest
from deepca.data.local_data import LocalData
from deepca.engines.checkpoint_format import Checkpoint
from deepca.engines.checkpoints import CheckpointFolder
from deepca.errors import InvalidInput
from deepca.network.base import Network
from deepca.network.compression import graph_digest
from deepca.solver.observers import Observer, Start, Step
from deepca.solver.result import Result

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "CheckpointObserver",
    "CheckpointOptions",
    "CheckpointStore",
    "Checkpointer",
    "CheckpointerFactory",
    "ResumePoint",
    "RunCheckpointer",
]

_DIGEST_BYTES = 32
_EXACT_BYTES = 6  # a float64 represents integers of this many bytes exactly
_MAX_OFFERS = 2  # the number of checkpoints kept: a process may be one checkpoint ahead of the others


@dataclass(frozen=True)
class ResumePoint:
    """Point from which an interrupted run resumes: the States of the local agents, or common directions.

    Parameters
    ----------
    state : State, optional
        State of the local agents, of the same iteration in every process; tracking continues as if uninterrupted.
    directions : ndarray of shape (k, d), optional
        Orthonormal rows, the same at every agent, for a run in which the set of agents has changed: tracking restarts
        from them, with enough rounds in the first mix to lose no accuracy.
    """

    state: State | None = None
    directions: Array | None = None


class RunCheckpointer(Observer, Protocol):
    """Observer that writes the checkpoints of a run and finds the one to resume from."""

    def resume_point(self) -> ResumePoint | None:
        """Return the point to resume from; None to start over."""
        ...

    def clear(self) -> None:
        """Remove the checkpoints; called once the result of the run is saved."""
        ...


class CheckpointerFactory(Protocol):
    """Factory that creates the checkpointer of a run once network, rows and settings are known."""

    def open(self, network: Network, data: LocalData, settings: DataclassInstance, /) -> RunCheckpointer:
        """Create the checkpointer of a run."""
        ...


class CheckpointStore(Protocol):
    """Storage for checkpoints; see :class:`deepca.engines.checkpoints.CheckpointFolder`."""

    @property
    def run(self) -> bytes:
        """Digest of the run."""
        ...

    @property
    def data(self) -> bytes:
        """Digest of the rows."""
        ...

    def write(self, checkpoint: Checkpoint, /) -> bool:
        """Write a checkpoint; return whether it is on disk."""
        ...


class CheckpointObserver:
    """Observer that writes every n-th State to a store.

    Parameters
    ----------
    store : CheckpointStore
        Storage for the checkpoints.
    every : int
        Iterations between checkpoints.
    scope : bytes, optional
        Digest of the run that the States belong to, which enters their keys; nothing is written while it is None.
    members : bytes, optional
        Digest of the sites whose rows the run uses.

    Attributes
    ----------
    seed : int
        Seed with which the run began.
    """

    def __init__(self, store: CheckpointStore, every: int, scope: bytes | None = None, members: bytes = b"") -> None:
        self._store, self._every, self._scope, self._members = store, every, scope, members
        self.seed = 0

    def begin(self, start: Start) -> None:
        """Do nothing, since the store is ready."""

    def observe(self, step: Step) -> None:
        """Write the new State if a checkpoint is due."""
        state, scope, store = step.after, self._scope, self._store
        if scope is None or state.t % self._every:
            return
        k = state.W.shape[-1]
        key = hashlib.sha256(scope + f"{state.t}/{k}".encode()).digest()
        store.write(Checkpoint(state.t, key, self._members, k, store.data, store.run, state, self.seed))

    def end(self, result: Result[Any]) -> None:
        """Do nothing, since checkpoints are kept until the result has been saved; see :meth:`clear`."""

    def clear(self) -> None:
        """Do nothing; subclasses may remove their checkpoints."""


@dataclass(frozen=True)
class CheckpointOptions:
    """Folder of checkpoints, and how often to write one.

    Parameters
    ----------
    folder : Path
        Folder with one subfolder per process.
    every : int, default=10
        Iterations between checkpoints.
    warn : callable, optional
        Receives one line about each problem with checkpoints.
    on_resume : callable, optional
        Receives one line that says at which iteration a run resumes.
    """

    folder: Path
    every: int = 10
    warn: Callable[[str], None] = field(default=lambda line: None, compare=False)
    on_resume: Callable[[str], None] = field(default=lambda line: None, compare=False)

    def __post_init__(self) -> None:
        """Raise InvalidInput unless ``every`` is positive and ``folder`` is a folder or does not exist."""
        check("every", self.every, Integer(1), meaning="iterations between checkpoints")
        if self.folder.exists() and not self.folder.is_dir():
            raise InvalidInput(
                f"{self.folder} is not a folder; choose a folder for checkpoints",
                parameter="folder",
                file=str(self.folder),
            )

    def open(self, network: Network, data: LocalData, settings: DataclassInstance, /) -> Checkpointer:
        """Create the checkpointer of a run over this network and these rows."""
        return Checkpointer(self, network, data, settings)


class Checkpointer(CheckpointObserver):
    """Observer that writes checkpoints of the local agents and finds the one to resume from.

    Every process has a subfolder, whose name contains the indices of its agents. A run resumes only if all processes
    have a State of the same iteration, of the same run (settings, network, partition of the agents) over the same rows
    of all agents, since every State depends on the rows of all agents.
    """

    def __init__(
        self, options: CheckpointOptions, network: Network, data: LocalData, settings: DataclassInstance
    ) -> None:
        self._options, self._network = options, network
        first, last = int(network.local.min()), int(network.local.max())
        asked = asdict(settings)
        del asked["max_iter"]  # a run that reached max_iter may resume with a higher limit
        about = {"settings": asked, "graph": graph_digest(network.topology)}
        weights = np.ascontiguousarray(network.topology.gossip_sparse.data, dtype="<f8").tobytes()
        run = hashlib.sha256(json.dumps(about, sort_keys=True).encode() + weights).digest()
        folder = options.folder / f"agents-{first:05d}-{last:05d}"
        self._checkpoints = CheckpointFolder(
            folder, run, self._combined_digest(_digest(data)), warn=options.warn, foreign=False
        )
        super().__init__(self._checkpoints, options.every, run, run)

    def resume_point(self) -> ResumePoint | None:
        """Return the newest State from which all processes can resume, or None."""
        network, kept = self._network, self._checkpoints.kept()[::-1]
        network.begin(network.epoch, 0, "resume")
        for i in range(_MAX_OFFERS):
            offered = self._first_offer(kept[i].key if i < len(kept) else None)
            if offered is None:
                continue
            state = None
            if any(one.key == offered for one in kept):
                found = self._checkpoints.load(offered)
                state = None if found is None else found.state
            if self._all_have(state is not None) and state is not None:
                self._checkpoints.keep_only(offered)
                if self._network.local.min() == 0:
                    self._options.on_resume(f"resuming from the checkpoint of iteration {state.t}")
                return ResumePoint(state=state)
        others = sorted(self._options.folder.glob("agents-*/*.checkpoint"))
        if others and not kept and self._network.local.min() == 0:
            self._options.warn(
                f"{self._options.folder} has no usable checkpoint: those in it ({others[0].parent.name}, …) belong to "
                "a run with different ranks, settings or rows; they are left in place, and the run starts over"
            )
        return None

    def clear(self) -> None:
        """Remove the checkpoints of this run and these rows."""
        self._checkpoints.clear()

    def _combined_digest(self, local: bytes) -> bytes:
        """Return a digest of the digests of the rows of all processes; ``local`` is that of this process."""
        network, m = self._network, self._network.n_agents
        if network.local.size == m:
            return local
        network.begin(network.epoch, 0, "rows")
        starts = range(0, _DIGEST_BYTES, _EXACT_BYTES)
        parts = [float(int.from_bytes(local[i : i + _EXACT_BYTES], "big")) for i in starts]
        digests = np.full((*network.batch, m, len(parts)), -1.0)
        digests[..., int(network.local.min()), :] = parts
        return hashlib.sha256(local + network.reduce(digests, "max").astype("<f8").tobytes()).digest()

    def _first_offer(self, key: bytes | None) -> bytes | None:
        """Broadcast the key that the process of agent 0 offers, and return it; None if that process offers none."""
        local = np.full(_DIGEST_BYTES, -1.0) if key is None else np.frombuffer(key, dtype=np.uint8).astype(np.float64)
        common = self._network.flood(for_local_agents(local, self._network), 0)
        return None if common[0] < 0.0 else common.astype(np.uint8).tobytes()

    def _all_have(self, here: bool) -> bool:
        """Return whether a condition holds at all processes."""
        local = np.full((*self._network.batch, 1), float(here))
        return bool(self._network.reduce(local, "min")[0])


def _digest(data: LocalData) -> bytes:
    """Return a digest of all facts about the local rows that enter a run, so that different rows never match."""
    digest = hashlib.sha256(np.array([form == "covariance" for form in data.forms]).tobytes())
    for source, of in zip(data.sources, data.moments, strict=True):
        digest.update(np.array([of.n, of.weight, *of.reference, *of.shift, *of.squares], dtype="<f8").tobytes())
        if of.scatter is not None:
            digest.update(np.ascontiguousarray(of.scatter, dtype="<f8").data)
            continue
        update_digest(digest, source)  # an acceptable cost, since every iteration reads them as well
    for weights in data.weights or ():
        digest.update(np.ascontiguousarray(weights).data)
    return digest.digest()
