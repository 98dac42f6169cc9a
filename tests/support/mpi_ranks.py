"""What the ranks of a test job do together: take their agents, gather what all hold, and compare how a test went.

Imported under ``pytest --engine mpi`` only. All calls are for arrays, so nothing is pickled.
"""

from __future__ import annotations

import functools
import time
import traceback
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from deepca.engines.local import even_shares
from deepca.engines.mpi.network import MpiNetwork
from deepca.topology import Topology

__all__ = ["WORLD", "RankNetwork", "agree", "agreeing", "gathered", "group", "networks", "same", "texts_of"]

WORLD: MPI.Intracomm = MPI.COMM_WORLD.Dup()
"""For tests and their networks."""
_SESSION: MPI.Intracomm = MPI.COMM_WORLD.Dup()  # what a rank that is still inside of a test sends does not disturb it
_PASSED = 0
_FAILED = 1
_PAUSE = 2e-4
_PATIENCE = 20.0
"""Seconds that a rank whose test failed waits for the others: they may be waiting for it, inside of the test."""

_Test = TypeVar("_Test", bound=Callable[..., None])
_groups: dict[int, MPI.Intracomm] = {}


class Networks:
    """Those that a test has made: to be closed after it, at all ranks in the same order."""

    def __init__(self) -> None:
        self.made = 0
        self.parted: str | None = None
        """The traceback of a test that failed here while others did not come to compare."""
        self._open: list[MpiNetwork] = []

    def add(self, network: MpiNetwork) -> None:
        self.made += 1
        self._open.append(network)

    def close(self, *, ended_alike: bool = True) -> None:
        """Where ranks have parted, some may wait for others for ever: then communicators are given up, not back."""
        found, self._open = self._open, []
        if ended_alike:
            for network in found:
                network.close()


networks = Networks()


class RankNetwork(MpiNetwork):
    """The agents of this rank, as even shares. Where there are more ranks than agents, groups of them do the same."""

    def __init__(self, topology: Topology) -> None:
        if networks.parted is not None:
            raise RuntimeError("the ranks have parted")
        ranks = group(topology.n_agents)
        if not same(np.ascontiguousarray(topology.gossip_matrix).tobytes()):
            raise RuntimeError("ranks are about to run different tests: their networks differ")
        super().__init__(topology, ranks, timeout=None)  # pytest has a deadline for tests
        networks.add(self)


def group(n_agents: int) -> MPI.Intracomm:
    """The ranks among which so many agents are shared out."""
    if n_agents >= WORLD.size:
        return WORLD
    if n_agents not in _groups:
        _groups[n_agents] = MPI.Intracomm(WORLD.Split(WORLD.rank // n_agents, WORLD.rank))
    return _groups[n_agents]


def gathered(x: npt.NDArray[Any], n_agents: int) -> npt.NDArray[Any]:
    """The rows of all agents, from those of each rank."""
    ranks = group(n_agents)
    own = np.ascontiguousarray(x)
    found = np.empty((n_agents, *own.shape[1:]), dtype=own.dtype)
    row = own[0].size
    ranks.Allgatherv(own, (found, [share * row for share in even_shares(n_agents, ranks.size)]))
    return found


def same(data: bytes) -> bool:
    """Whether all ranks have given the same."""
    digest = float(zlib.crc32(data))
    ends = np.array([digest, -digest])
    WORLD.Allreduce(MPI.IN_PLACE, ends, MPI.MAX)
    return bool(ends[0] == -ends[1])


# ------------------------------------------------------------------------------------------------- how a test went


def agree(code: int) -> list[int]:
    """The codes of all ranks; just the own one if it is a failure and the others do not come."""
    own, found = np.array([code]), np.empty(_SESSION.size, dtype=np.int64)
    request = _SESSION.Iallgather(own, found)
    began = time.monotonic()
    while not request.Test():
        if code == _FAILED and time.monotonic() - began > _PATIENCE:
            return [code]
        time.sleep(_PAUSE)  # others need the processor more than this rank does
    return [int(other) for other in found]


def texts_of(text: str) -> list[str]:
    """What every rank has to say."""
    own = np.frombuffer(text.encode(), dtype=np.uint8)
    lengths = np.empty(_SESSION.size, dtype=np.int64)
    _SESSION.Allgather(np.array([own.size]), lengths)
    found = np.empty(int(lengths.sum()), dtype=np.uint8)
    _SESSION.Allgatherv(own, (found, lengths.tolist()))
    ends = np.cumsum(lengths)
    return [
        found[end - length : end].tobytes().decode(errors="replace") for end, length in zip(ends, lengths, strict=True)
    ]


def agreeing(test: _Test) -> _Test:
    """For one random example: where it fails at one rank it fails at all, so that they go on to the same next one."""

    @functools.wraps(test)
    def example(*args: Any, **kwargs: Any) -> None:
        problem: BaseException | None = None
        try:
            test(*args, **kwargs)
        except Exception as error:
            problem = error
        codes = agree(_PASSED if problem is None else _FAILED)
        if len(codes) == 1 and WORLD.size > 1 and problem is not None:
            networks.parted = "".join(traceback.format_exception(problem))
        networks.close(ended_alike=not any(codes))
        if problem is not None:
            raise problem
        failed = [str(rank) for rank, code in enumerate(codes) if code != _PASSED]
        assert not failed, f"this example failed at rank {', '.join(failed)}"

    return example  # type: ignore[return-value]
