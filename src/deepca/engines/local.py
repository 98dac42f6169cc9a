"""Execute runs in this process alone, or on all ranks of an MPI job.

An engine creates the network of a run. Before there is a network, it shares between processes what all of them must
know: how many agents each holds, the names of the columns, and whether a process has failed.
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from deepca import errors
from deepca._util.renamed import renamed_attributes
from deepca._util.units import plural
from deepca.data.columns import Header, align_columns, in_order_of
from deepca.data.sources import Source
from deepca.errors import DataError, DeepcaError, InvalidInput, ParameterError, TopologyError
from deepca.network.base import Network
from deepca.network.simulated import SimulatedNetwork
from deepca.network.traffic import Traffic
from deepca.topology.graph import Topology

__all__ = ["ENGINES", "Engine", "create_engine", "distribute_evenly"]

ENGINES = ("simulator", "mpi")


@renamed_attributes(all_single="all_float32", common_columns="align_columns", shares="agents_per_rank")
class Engine:
    """Engine that has all agents in this process: the simulator.

    Engines with several processes are subclasses.

    Attributes
    ----------
    name : str
        Name of the engine.
    rank, ranks : int
        Index of this process, and number of processes.
    """

    name = "simulator"
    rank = 0
    ranks = 1

    @property
    def is_root(self) -> bool:
        """True for the process that shows progress, writes files and prints."""
        return self.rank == 0

    def gather_texts(self, own: str) -> list[str]:
        """Send a text to all other ranks and receive theirs; every rank must call this.

        Parameters
        ----------
        own : str
            Text of this rank.

        Returns
        -------
        list of str
            Texts of all ranks, in order.
        """
        return [own]

    def network(self, topology: Topology, agents_per_rank: Sequence[int] | None = None) -> Network:
        """Create the network of a run.

        Parameters
        ----------
        topology : Topology
            Graph of all agents, the same on every rank.
        agents_per_rank : sequence of int, optional
            Number of agents on each rank; by default, the numbers differ by at most one.

        Returns
        -------
        Network
            Network of the local agents.
        """
        return SimulatedNetwork(topology)

    def close(self, network: Network) -> None:
        """Release a network that is no longer needed.

        Parameters
        ----------
        network : Network
            Network that this engine created.
        """

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Run a whole program in a ``with`` block: if one rank fails, all ranks end.

        Yields
        ------
        None
            Nothing; the program runs inside the ``with`` block.
        """
        yield

    # ---------------------------------------------------------------------------------- derived from the methods above

    @contextmanager
    def raise_on_all_ranks(self) -> Iterator[None]:
        """Run a ``with`` block that may fail on some ranks only, and raise the error on all ranks.

        Ranks must not wait for each other inside the block. All ranks raise the error of the first rank that failed,
        whose message begins with the number of that rank, unless all ranks fail in the same way.

        Yields
        ------
        None
            Nothing; the work is done inside the ``with`` block.
        """
        failed: Exception | None = None
        try:
            yield
        except (DeepcaError, OSError, ValueError, TypeError) as error:  # errors that users can cause
            failed = error
        if self.ranks == 1:
            if failed is not None:
                raise failed
            return
        texts = self.gather_texts(
            "" if failed is None else json.dumps([type(failed).__name__, str(failed), _facts(failed)])
        )
        bad = [rank for rank, text in enumerate(texts) if text]
        if bad:
            kind, text, facts = json.loads(texts[bad[0]])
            if len(bad) == self.ranks and len(set(texts)) == 1:
                raise _rebuild_error(kind, text, facts) from failed  # the same on all ranks
            more = f"; {len(bad) - 1} other rank{plural(len(bad) - 1)} failed as well" if len(bad) > 1 else ""
            raise _rebuild_error(kind, f"rank {bad[0]}: {text}{more}", facts) from failed

    def agents_per_rank(self, n_agents: int) -> tuple[int, ...]:
        """Return the number of agents on each rank.

        Parameters
        ----------
        n_agents : int
            Number of agents of the run.

        Returns
        -------
        tuple of int
            Number of agents on each rank; the numbers differ by at most one.

        Raises
        ------
        TopologyError
            If there are fewer agents than ranks.
        """
        if n_agents < self.ranks:
            raise TopologyError(
                f"{n_agents} agent{plural(n_agents)} for {self.ranks} ranks, but every rank needs at least one agent; "
                f"start {n_agents} rank{plural(n_agents)} or fewer (mpiexec -n {n_agents}), or distribute "
                "the rows over more agents",
                parameter="n_agents",
                value=n_agents,
            )
        return distribute_evenly(n_agents, self.ranks)

    def local_part(self, agents_per_rank: Sequence[int]) -> slice:
        """Return the indices of the agents on this rank.

        Parameters
        ----------
        agents_per_rank : sequence of int
            Number of agents on each rank.

        Returns
        -------
        slice
            Indices of the local agents among all agents.
        """
        first = sum(agents_per_rank[: self.rank])
        return slice(first, first + agents_per_rank[self.rank])

    def gather_counts(self, own: int) -> tuple[int, ...]:
        """Collect an integer from every rank; every rank must call this.

        Parameters
        ----------
        own : int
            Integer of this rank.

        Returns
        -------
        tuple of int
            Integers of all ranks, in order.
        """
        return tuple(int(text) for text in self.gather_texts(str(int(own))))

    def all_float32(self, sources: Sequence[Source]) -> bool:
        """Return whether the rows of all ranks are float32.

        Parameters
        ----------
        sources : sequence of Source
            Rows of the local agents.

        Returns
        -------
        bool
            The same answer on every rank.
        """
        return min(self.gather_counts(all(source.dtype == np.float32 for source in sources))) == 1

    def first_differing_rank(self, own: str) -> int | None:
        """Return the first rank whose text differs from that of rank 0.

        Parameters
        ----------
        own : str
            Text of this rank.

        Returns
        -------
        int or None
            The rank; None if all texts are equal.
        """
        texts = self.gather_texts(own)
        return next((rank for rank, text in enumerate(texts) if text != texts[0]), None)

    def header(self, sources: Sequence[Source]) -> Header:
        """Return the columns of the first source of the first rank that has a source; every rank must call this.

        Parameters
        ----------
        sources : sequence of Source
            Sources of this rank; may be empty on all ranks but one.

        Returns
        -------
        Header
            Name, number of columns and column names of that source.
        """
        texts = self.gather_texts(json.dumps([sources[0].name, sources[0].d, sources[0].columns]) if sources else "")
        name, d, columns = json.loads(next(text for text in texts if text))
        return Header(name, d, None if columns is None else tuple(columns))

    def totals(self, own: Traffic, proof: Traffic | None) -> tuple[Traffic, Traffic | None]:
        """Return the traffic of a run on all ranks, and that of its certificate, as a model reports them.

        Parameters
        ----------
        own : Traffic
            Traffic of the local agents.
        proof : Traffic or None
            Traffic of the certificate, if there is one.

        Returns
        -------
        total : Traffic
            Traffic of all ranks.
        proof : Traffic or None
            Traffic of the certificate, unchanged.
        """
        return self.total_traffic(own), proof

    def align_columns(self, sources: Sequence[Source]) -> tuple[Source, ...]:
        """Return the sources with their columns in the order of the first source of rank 0.

        Parameters
        ----------
        sources : sequence of Source
            Sources of the local agents.

        Returns
        -------
        tuple of Source
            The same rows with reordered columns.

        Raises
        ------
        DataError
            If the agents do not have the same columns; raised on all ranks.
        """
        with self.raise_on_all_ranks():
            own = align_columns(sources)
        if self.ranks == 1:
            return own
        first = self.header(own if self.rank == 0 else ())
        with self.raise_on_all_ranks():
            return tuple(in_order_of(first, source) for source in own)

    def total_traffic(self, own: Traffic) -> Traffic:
        """Return the traffic of all ranks: messages and bytes are summed, rounds are the same on every rank.

        Parameters
        ----------
        own : Traffic
            Traffic of the local agents.

        Returns
        -------
        Traffic
            Traffic of all agents.
        """
        others = [json.loads(text) for text in self.gather_texts(json.dumps(_summable(own)))]
        messages, sent, control, agents = (sum(column) for column in zip(*others, strict=True))
        return Traffic(own.rounds, own.control_rounds, messages, sent, control, agents)


def distribute_evenly(n_agents: int, ranks: int) -> tuple[int, ...]:
    """Distribute agents over ranks; return the number on each rank, which differ by at most one."""
    return tuple(n_agents * (i + 1) // ranks - n_agents * i // ranks for i in range(ranks))


def create_engine(name: str, *, allreduce: bool = False, timeout: float | None = 600.0) -> Engine:
    """Create an engine by name.

    Parameters
    ----------
    name : {"simulator", "mpi"}
        Name of the engine.
    allreduce : bool, default=False
        Broadcast the numbers of one agent by ``MPI_Bcast`` instead of along a tree; MPI only.
    timeout : float or None, default=600.0
        Seconds that a rank waits for others before it ends the job; MPI only.

    Returns
    -------
    Engine
        The engine.

    Raises
    ------
    ParameterError
        If ``name`` is not an engine.
    InvalidInput
        If ``allreduce`` is set without MPI.
    MissingExtraError
        If mpi4py or an MPI library is missing.

    Examples
    --------
    >>> from deepca.engines import create_engine
    >>> create_engine("simulator").ranks
    1
    """
    if name not in ENGINES:
        raise ParameterError("engine", name, f"choose one of {', '.join(ENGINES)}")
    if name == "mpi":
        from deepca.engines.mpi.job import MpiEngine

        return MpiEngine(allreduce=allreduce, timeout=timeout)
    if allreduce:
        raise InvalidInput(
            "allreduce = True needs MPI; use engine = 'mpi' as well, or omit it",
            parameter="allreduce",
            value=allreduce,
        )
    return Engine()


def _facts(error: Exception) -> dict[str, str | int | float | None]:
    """Return the attributes of an error as JSON values; objects that JSON does not support become their repr."""
    plain = {name: fact.item() if isinstance(fact, np.generic) else fact for name, fact in vars(error).items()}
    return {
        name: fact if isinstance(fact, (str, int, float, type(None))) else repr(fact) for name, fact in plain.items()
    }


def _rebuild_error(kind: str, text: str, facts: dict[str, Any]) -> Exception:
    """Rebuild an error of another rank with its attributes.

    Subclasses of OSError become OSError, and errors without a remedy for users become DataError.
    """
    found = getattr(errors, kind, None)
    if isinstance(found, type) and issubclass(found, (InvalidInput, errors.NotFiniteError, errors.MissingExtraError)):
        error = found.__new__(found, text)  # constructors have different parameters
        vars(error).update(facts)
        return error
    return (OSError if issubclass(getattr(builtins, kind, Exception), OSError) else DataError)(text)


def _summable(traffic: Traffic) -> list[int]:
    """Return the numbers of a Traffic that are summed over ranks."""
    return [traffic.messages, traffic.bytes_sent, traffic.control_bytes, traffic.agents]
