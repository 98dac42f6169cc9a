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
from deepca._util.validation import Whole, check
from deepca.algorithms.base import State
from deepca.data.local_data import LocalData
from deepca.data.sources import add_rows
from deepca.engines.checkpoint_format import Checkpoint
from deepca.engines.checkpoints import Checkpoints
from deepca.errors import InvalidInput
from deepca.network.base import Network
from deepca.network.broadcasts import everywhere
from deepca.network.compression import graph_of
from deepca.solver.observers import Observer, Start, Step
from deepca.solver.result import Result

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["CheckpointObserver", "CheckpointStore", "Keeper", "Keeping", "Resumption", "RunKeeper", "RunKeeping"]

_DIGEST_BYTES = 32
_EXACT_BYTES = 6  # a float64 represents integers of this many bytes exactly
_OFFERS = 2  # as many as are kept: a process may be one ahead of the others


@dataclass(frozen=True)
class Resumption:
    """Point at which an interrupted run resumes: a State that all agents have, or one agent's directions.

    Parameters
    ----------
    state : State, optional
        State of the same iteration at every agent; tracking continues as if uninterrupted.
    directions : ndarray of shape (k, d), optional
        Orthonormal rows, the same at every agent, if the set of agents has changed: tracking restarts there, with a
        first mix that is long enough to lose no accuracy.
    """

    state: State | None = None
    directions: Array | None = None


class RunKeeper(Observer, Protocol):
    """Observer that writes checkpoints of a run, and knows where it was interrupted."""

    def resumption(self) -> Resumption | None:
        """Return where to resume; None to start over."""
        ...

    def clear(self) -> None:
        """Remove the checkpoints of a run whose result is safe."""
        ...


class RunKeeping(Protocol):
    """Factory of the keeper of a run, once network, rows and settings are known."""

    def open(self, network: Network, held: LocalData, settings: DataclassInstance, /) -> RunKeeper:
        """Return the keeper of a run."""
        ...


class CheckpointStore(Protocol):
    """Store of checkpoints; see :class:`deepca.engines.checkpoints.Checkpoints`."""

    @property
    def run(self) -> bytes:
        """Digest of the run."""
        ...

    @property
    def data(self) -> bytes:
        """Digest of the rows."""
        ...

    def write(self, checkpoint: Checkpoint, /) -> bool:
        """Write a checkpoint; return whether it is on the disk."""
        ...


class CheckpointObserver:
    """Observer that writes every n-th state to a store.

    Parameters
    ----------
    store : CheckpointStore
        Where to write.
    every : int
        Iterations between checkpoints.
    scope : bytes, optional
        Digest of what the states belong to, part of their keys; nothing is written while it is None.
    members : bytes, optional
        Digest of the sites whose rows the run uses.
    """

    def __init__(self, store: CheckpointStore, every: int, scope: bytes | None = None, members: bytes = b"") -> None:
        self._store, self._every, self._scope, self._members = store, every, scope, members

    def begin(self, start: Start) -> None:
        """Do nothing: the store is ready."""

    def observe(self, step: Step) -> None:
        """Write the new State if a checkpoint is due."""
        state, scope, at = step.after, self._scope, self._store
        if scope is None or state.t % self._every:
            return
        k = state.W.shape[-1]
        key = hashlib.sha256(scope + f"{state.t}/{k}".encode()).digest()
        at.write(Checkpoint(state.t, key, self._members, k, at.data, at.run, state))

    def end(self, result: Result[Any]) -> None:
        """Do nothing: checkpoints are kept until the result is safe; see :meth:`clear`."""

    def clear(self) -> None:
        """Do nothing: this class leaves its checkpoints in place."""


@dataclass(frozen=True)
class Keeping:
    """Folder of checkpoints, and how often to write one.

    Parameters
    ----------
    folder : Path
        Folder with one subfolder per process.
    every : int, default=10
        Iterations between checkpoints.
    warn : callable, optional
        Receives one line about each problem with checkpoints.
    say : callable, optional
        Receives one line about the iteration from which a run resumes.
    """

    folder: Path
    every: int = 10
    warn: Callable[[str], None] = field(default=lambda line: None, compare=False)
    say: Callable[[str], None] = field(default=lambda line: None, compare=False)

    def __post_init__(self) -> None:
        """Raise InvalidInput unless ``every`` is positive and ``folder`` may be a folder."""
        check("every", self.every, Whole(1), meaning="iterations between checkpoints")
        if self.folder.exists() and not self.folder.is_dir():
            raise InvalidInput(
                f"{self.folder} is not a folder; choose a folder for checkpoints",
                parameter="folder",
                file=str(self.folder),
            )

    def open(self, network: Network, held: LocalData, settings: DataclassInstance, /) -> Keeper:
        """Return the keeper of a run over this network and these rows."""
        return Keeper(self, network, held, settings)


class Keeper(CheckpointObserver):
    """Write checkpoints of the local agents, and find the one to resume from.

    Every process has a folder of its own, named after its agents. A state can be used only if all processes have one of
    the same iteration, of the same run (settings, network, share of the agents) and of the same rows of all agents,
    since every state depends on the rows of the other agents.
    """

    def __init__(self, keeping: Keeping, network: Network, held: LocalData, settings: DataclassInstance) -> None:
        self._keeping, self._network = keeping, network
        first, last = int(network.local.min()), int(network.local.max())
        asked = asdict(settings)
        del asked["max_iter"]  # a run that reached its limit may resume with a higher one
        about = {"settings": asked, "graph": graph_of(network.topology)}
        weights = np.ascontiguousarray(network.topology.gossip_sparse.data, dtype="<f8").tobytes()
        run = hashlib.sha256(json.dumps(about, sort_keys=True).encode() + weights).digest()
        folder = keeping.folder / f"agents-{first:05d}-{last:05d}"
        self._checkpoints = Checkpoints(
            folder, run, self._combined_digest(_digest(held)), warn=keeping.warn, foreign=False
        )
        super().__init__(self._checkpoints, keeping.every, run, run)

    def resumption(self) -> Resumption | None:
        """Return the State from which all processes can resume, or None."""
        network, kept = self._network, self._checkpoints.kept()[::-1]
        network.begin(network.epoch, 0, "resume")
        for i in range(_OFFERS):
            offered = self._first_offer(kept[i].key if i < len(kept) else None)
            if offered is None:
                continue
            state = None
            if any(one.key == offered for one in kept):
                found = self._checkpoints.load(offered)
                state = None if found is None else found.state
            if self._all_have(state is not None) and state is not None:
                self._checkpoints.keep_until(offered)
                if self._network.local.min() == 0:
                    self._keeping.say(f"resuming from the checkpoint of iteration {state.t}")
                return Resumption(state=state)
        others = sorted(self._keeping.folder.glob("agents-*/*.checkpoint"))
        if others and not kept and self._network.local.min() == 0:
            self._keeping.warn(
                f"{self._keeping.folder} has no usable checkpoint: those in it ({others[0].parent.name}, …) belong to "
                "another number of ranks, another run or other rows; they are left in place, and the run starts over"
            )
        return None

    def clear(self) -> None:
        """Remove the checkpoints of this run and these rows."""
        self._checkpoints.clear()

    def _combined_digest(self, own: bytes) -> bytes:
        """Return a digest of the local rows and of the digests of all processes."""
        network, m = self._network, self._network.n_agents
        if network.local.size == m:
            return own
        network.begin(network.epoch, 0, "rows")
        parts = [float(int.from_bytes(own[i : i + _EXACT_BYTES], "big")) for i in range(0, _DIGEST_BYTES, _EXACT_BYTES)]
        digests = np.full((*network.batch, m, len(parts)), -1.0)
        digests[..., int(network.local.min()), :] = parts
        return hashlib.sha256(own + network.reduce(digests, "max").astype("<f8").tobytes()).digest()

    def _first_offer(self, key: bytes | None) -> bytes | None:
        """Return the key that the process of agent 0 offers, at every process."""
        own = np.full(_DIGEST_BYTES, -1.0) if key is None else np.frombuffer(key, dtype=np.uint8).astype(np.float64)
        common = self._network.flood(everywhere(own, self._network), 0)
        return None if common[0] < 0.0 else common.astype(np.uint8).tobytes()

    def _all_have(self, here: bool) -> bool:
        """Return whether the condition holds at all processes."""
        own = np.full((*self._network.batch, 1), float(here))
        return bool(self._network.reduce(own, "min")[0])


def _digest(held: LocalData) -> bytes:
    """Return a digest of everything that later products use of the local rows, so that other rows never match."""
    digest = hashlib.sha256(np.array([held.form == "covariance"]).tobytes())
    for source, of in zip(held.sources, held.moments, strict=True):
        digest.update(np.array([of.n, of.weight, *of.reference, *of.shift, *of.squares], dtype="<f8").tobytes())
        if of.scatter is not None:
            digest.update(np.ascontiguousarray(of.scatter, dtype="<f8").data)
            continue
        add_rows(digest, source)  # read in every iteration anyway
    for weights in held.weights or ():
        digest.update(np.ascontiguousarray(weights).data)
    return digest.digest()
