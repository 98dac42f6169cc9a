"""Operations of the ranks of a test job: create networks, gather arrays of all agents, and compare test outcomes.

Imported under ``pytest --engine mpi`` only. All calls use arrays, so nothing is pickled.
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

from deepca.engines.local import distribute_evenly
from deepca.engines.mpi.network import MpiNetwork
from deepca.topology import Topology

__all__ = ["WORLD", "RankNetwork", "agree", "agreeing", "gathered", "group", "networks", "same", "texts_of"]

WORLD: MPI.Intracomm = MPI.COMM_WORLD.Dup()
"""Communicator of tests and their networks."""
_SESSION: MPI.Intracomm = MPI.COMM_WORLD.Dup()  # separate, so that messages of a running test do not interfere
_PASSED = 0
_FAILED = 1
_PAUSE = 2e-4  # seconds between two polls
_GRACE = 20.0  # seconds that a rank with a failed test waits for the others, which may be waiting for it in the test

_Test = TypeVar("_Test", bound=Callable[..., None])
_groups: dict[int, MPI.Intracomm] = {}


class Networks:
    """Networks that a test has created, to be closed after it on all ranks in the same order.

    Attributes
    ----------
    parted : str or None
        Traceback of a test that failed here while others did not get to the comparison.
    """

    def __init__(self) -> None:
        self.made = 0
        self.parted: str | None = None
        self._open: list[MpiNetwork] = []

    def add(self, network: MpiNetwork) -> None:
        self.made += 1
        self._open.append(network)

    def close(self, *, ended_alike: bool = True) -> None:
        """Close all networks; after a failure, which may leave ranks waiting, only abandon their communicators."""
        found, self._open = self._open, []
        if ended_alike:
            for network in found:
                network.close()


networks = Networks()


class RankNetwork(MpiNetwork):
    """Network with even shares; if there are more ranks than agents, groups of ranks run the same test."""

    def __init__(self, topology: Topology) -> None:
        if networks.parted is not None:
            raise RuntimeError("the ranks are no longer in the same test")
        ranks = group(topology.n_agents)
        if not same(np.ascontiguousarray(topology.gossip_matrix).tobytes()):
            raise RuntimeError("ranks are about to run different tests: their networks differ")
        super().__init__(topology, ranks, timeout=None)  # pytest has a deadline for tests
        networks.add(self)


def group(n_agents: int) -> MPI.Intracomm:
    """Return the ranks that share ``n_agents`` agents."""
    if n_agents >= WORLD.size:
        return WORLD
    if n_agents not in _groups:
        _groups[n_agents] = MPI.Intracomm(WORLD.Split(WORLD.rank // n_agents, WORLD.rank))
    return _groups[n_agents]


def gathered(x: npt.NDArray[Any], n_agents: int) -> npt.NDArray[Any]:
    """Gather the rows of all agents from those of each rank."""
    ranks = group(n_agents)
    own = np.ascontiguousarray(x)
    found = np.empty((n_agents, *own.shape[1:]), dtype=own.dtype)
    row = own[0].size
    ranks.Allgatherv(own, (found, [share * row for share in distribute_evenly(n_agents, ranks.size)]))
    return found


def same(data: bytes) -> bool:
    """Return whether all ranks have passed the same data."""
    digest = float(zlib.crc32(data))
    ends = np.array([digest, -digest])
    WORLD.Allreduce(MPI.IN_PLACE, ends, MPI.MAX)
    return bool(ends[0] == -ends[1])


# ------------------------------------------------------------------------------------------------ outcomes of tests


def agree(code: int) -> list[int]:
    """Return the codes of all ranks, or only this rank's code if it is a failure and the others do not respond."""
    own, found = np.array([code]), np.empty(_SESSION.size, dtype=np.int64)
    request = _SESSION.Iallgather(own, found)
    began = time.monotonic()
    while not request.Test():
        if code == _FAILED and time.monotonic() - began > _GRACE:
            return [code]
        time.sleep(_PAUSE)  # leave the processor to ranks that still work
    return [int(other) for other in found]


def texts_of(text: str) -> list[str]:
    """Return the texts of all ranks."""
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
    """Fail a random example on all ranks if it fails on one, so that all continue with the same next one."""

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
        assert not failed, f"this example failed on rank {', '.join(failed)}"

    return example  # type: ignore[return-value]
