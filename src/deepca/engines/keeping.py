"""Runs that can be ended at any time and go on later, on engines whose processes start and end together."""

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

_BYTES = 32  # of a digest
_EXACT = 6  # bytes that a float64 holds as a whole number
_OFFERED = 2  # as many as are kept: a process may be one ahead of the others


@dataclass(frozen=True)
class Resumption:
    """Where a run goes on that was interrupted: at a State that all agents have, or at one agent's directions.

    state : of the same iteration at every agent; tracking goes on as if nothing had happened.
    directions : ``(k, d)`` orthonormal rows, the same at every agent, where who takes part has changed: tracking begins
    again there, with a first mix that is long enough to lose nothing.
    """

    state: State | None = None
    directions: Array | None = None


class RunKeeper(Observer, Protocol):
    """Writes checkpoints of a run while it lasts, and knows where it was interrupted."""

    def resumption(self) -> Resumption | None: ...
    def clear(self) -> None: ...


class RunKeeping(Protocol):
    """Makes the keeper of a run, once what it is about is known."""

    def open(self, network: Network, held: LocalData, settings: DataclassInstance, /) -> RunKeeper: ...


class CheckpointStore(Protocol):
    """Where checkpoints are written to; see :class:`deepca.engines.checkpoints.Checkpoints`."""

    @property
    def run(self) -> bytes: ...
    @property
    def data(self) -> bytes: ...
    def write(self, checkpoint: Checkpoint, /) -> bool: ...


class CheckpointObserver:
    """An observer that writes every so many states to a store.

    scope : what the states are about, part of their keys; nothing is written while it is None.  members : digest of
    the sites whose rows they are about.
    """

    def __init__(self, store: CheckpointStore, every: int, scope: bytes | None = None, members: bytes = b"") -> None:
        self._store, self._every, self._scope, self._members = store, every, scope, members

    def begin(self, start: Start) -> None:
        """Nothing to prepare."""

    def observe(self, step: Step) -> None:
        """Write the new State, if it is its turn."""
        state, scope, at = step.after, self._scope, self._store
        if scope is None or state.t % self._every:
            return
        k = state.W.shape[-1]
        key = hashlib.sha256(scope + f"{state.t}/{k}".encode()).digest()
        at.write(Checkpoint(state.t, key, self._members, k, at.data, at.run, state))

    def end(self, result: Result[Any]) -> None:
        """What is kept is of use until the result is safe: see :meth:`clear`."""

    def clear(self) -> None:
        """The result is safe; what is kept here may stay."""


@dataclass(frozen=True)
class Keeping:
    """Where checkpoints are kept, and after how many iterations one is written.

    warn : told, in a line, what is wrong with them.  say : from where a run goes on.
    """

    folder: Path
    every: int = 10
    warn: Callable[[str], None] = field(default=lambda line: None, compare=False)
    say: Callable[[str], None] = field(default=lambda line: None, compare=False)

    def __post_init__(self) -> None:
        check("every", self.every, Whole(1), meaning="iterations between checkpoints")
        if self.folder.exists() and not self.folder.is_dir():
            raise InvalidInput(f"{self.folder} is no folder; checkpoints need one")

    def open(self, network: Network, held: LocalData, settings: DataclassInstance, /) -> Keeper:
        """Make the keeper of a run over this network, of these rows."""
        return Keeper(self, network, held, settings)


class Keeper(CheckpointObserver):
    """Writes the states of the local agents down, and finds those to go on from.

    Every process has a folder of its own, named after its agents. States are of use only where all processes have those
    of the same iteration, of the same run (settings, network, share of the agents) and of the same rows, of all agents:
    a state has met what the others hold.
    """

    def __init__(self, keeping: Keeping, network: Network, held: LocalData, settings: DataclassInstance) -> None:
        self._keeping, self._network = keeping, network
        first, last = int(network.local.min()), int(network.local.max())
        asked = asdict(settings)
        del asked["max_iter"]  # a run that was given too few may go on with more
        about = {"settings": asked, "graph": graph_of(network.topology)}
        weights = np.ascontiguousarray(network.topology.gossip_sparse.data, dtype="<f8").tobytes()
        run = hashlib.sha256(json.dumps(about, sort_keys=True).encode() + weights).digest()
        folder = keeping.folder / f"agents-{first:05d}-{last:05d}"
        self._checkpoints = Checkpoints(folder, run, self._of_all(_digest(held)), warn=keeping.warn, foreign=False)
        super().__init__(self._checkpoints, keeping.every, run, run)

    def resumption(self) -> Resumption | None:
        """The State that all processes can go on from, or None."""
        network, kept = self._network, self._checkpoints.kept()[::-1]
        network.begin(network.epoch, 0, "resume")
        for i in range(_OFFERED):
            offered = self._from_first(kept[i].key if i < len(kept) else None)
            if offered is None:
                continue
            state = None
            if any(one.key == offered for one in kept):
                found = self._checkpoints.load(offered)
                state = None if found is None else found.state
            if self._all(state is not None) and state is not None:
                self._checkpoints.keep_until(offered)
                if self._network.local.min() == 0:
                    self._keeping.say(f"goes on from the checkpoint of iteration {state.t}")
                return Resumption(state=state)
        others = sorted(self._keeping.folder.glob("agents-*/*.checkpoint"))
        if others and not kept and self._network.local.min() == 0:
            self._keeping.warn(
                f"{self._keeping.folder} holds nothing to go on from: its checkpoints ({others[0].parent.name}, …) are "
                "of another number of ranks, another run or other rows; they stay there, and the run begins anew"
            )
        return None

    def clear(self) -> None:
        """The result is safe."""
        self._checkpoints.clear()

    def _of_all(self, own: bytes) -> bytes:
        """Of the rows here, and of the digests of all processes."""
        network, m = self._network, self._network.n_agents
        if network.local.size == m:
            return own
        network.begin(network.epoch, 0, "rows")
        parts = [float(int.from_bytes(own[i : i + _EXACT], "big")) for i in range(0, _BYTES, _EXACT)]
        said = np.full((*network.batch, m, len(parts)), -1.0)
        said[..., int(network.local.min()), :] = parts
        return hashlib.sha256(own + network.reduce(said, "max").astype("<f8").tobytes()).digest()

    def _from_first(self, key: bytes | None) -> bytes | None:
        """What agent 0's process offers, at all."""
        own = np.full(_BYTES, -1.0) if key is None else np.frombuffer(key, dtype=np.uint8).astype(np.float64)
        common = self._network.flood(everywhere(own, self._network), 0)
        return None if common[0] < 0.0 else common.astype(np.uint8).tobytes()

    def _all(self, here: bool) -> bool:
        own = np.full((*self._network.batch, 1), float(here))
        return bool(self._network.reduce(own, "min")[0])


def _digest(held: LocalData) -> bytes:
    """Of the local rows: of all that later products use, so other rows never pass for these."""
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
