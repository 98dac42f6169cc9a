"""Where a run takes place: in this process alone, or on all ranks of an MPI job.

An engine makes the network, and lets processes that run the same program know of each other what they must before
there is one: how many agents each brings, what their columns are called, and whether one of them has failed.
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from deepca import errors
from deepca.data.columns import Header, common_columns, in_order_of
from deepca.data.sources import Source
from deepca.errors import DataError, DeepcaError, InvalidInput, TopologyError
from deepca.network.base import Network
from deepca.network.simulated import SimulatedNetwork
from deepca.network.traffic import Traffic
from deepca.topology.graph import Topology

__all__ = ["ENGINES", "Engine", "engine_of", "even_shares"]

ENGINES = ("simulator", "mpi")


class Engine:
    """All agents in this process: the simulator. Engines of several processes are subclasses.

    rank, ranks : which of how many processes this is.
    """

    name = "simulator"
    rank = 0
    ranks = 1

    @property
    def speaks(self) -> bool:
        """Whether this process is the one that shows progress, writes files and prints."""
        return self.rank == 0

    def texts(self, own: str) -> list[str]:
        """What every rank says, in their order. All have to call it."""
        return [own]

    def network(self, topology: Topology, shares: Sequence[int] | None = None) -> Network:
        """``shares`` : how many agents each rank holds; as even as possible by default."""
        return SimulatedNetwork(topology)

    def close(self, network: Network) -> None:
        """The network is not needed any more."""

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Around everything: an error of one rank alone ends all of them."""
        yield

    # ------------------------------------------------------------------------------------------ built on the above

    @contextmanager
    def together(self) -> Iterator[None]:
        """Around work that may fail at some ranks only, where none waits for another: then all raise the error."""
        failed: Exception | None = None
        try:
            yield
        except (DeepcaError, OSError, ValueError, TypeError) as error:  # what a user's mistake can raise
            failed = error
        if self.ranks == 1:
            if failed is not None:
                raise failed
            return
        said = self.texts("" if failed is None else json.dumps([type(failed).__name__, str(failed), _facts(failed)]))
        bad = [rank for rank, text in enumerate(said) if text]
        if bad:
            kind, text, facts = json.loads(said[bad[0]])
            if len(bad) == self.ranks and len(set(said)) == 1:
                raise _error_of(kind, text, facts) from failed  # of all ranks alike, so of none in particular
            more = f"; {len(bad) - 1} other rank{'s' if len(bad) > 2 else ''} failed as well" if len(bad) > 1 else ""
            raise _error_of(kind, f"rank {bad[0]}: {text}{more}", facts) from failed

    def shares(self, n_agents: int) -> tuple[int, ...]:
        """How many of so many agents each rank holds; an error where some would have none."""
        if n_agents < self.ranks:
            raise TopologyError(
                f"{n_agents} agent{'s' if n_agents > 1 else ''} for {self.ranks} ranks: every rank holds at least one; "
                f"start {n_agents} rank{'s' if n_agents > 1 else ''} or fewer (mpiexec -n {n_agents}), or spread the "
                "rows over more agents"
            )
        return even_shares(n_agents, self.ranks)

    def own(self, each: Sequence[int]) -> slice:
        """Which of all agents this rank holds, where every rank has ``each`` of them, one after the other."""
        first = sum(each[: self.rank])
        return slice(first, first + each[self.rank])

    def counted(self, own: int) -> tuple[int, ...]:
        """The numbers of all ranks."""
        return tuple(int(text) for text in self.texts(str(int(own))))

    def all_single(self, sources: Sequence[Source]) -> bool:
        """Tell whether the rows of all ranks, these and the others, are float32."""
        return min(self.counted(all(source.dtype == np.float32 for source in sources))) == 1

    def differing(self, own: str) -> int | None:
        """Return the first rank that says something else than rank 0; None where all say the same."""
        said = self.texts(own)
        return next((rank for rank, text in enumerate(said) if text != said[0]), None)

    def header(self, sources: Sequence[Source]) -> Header:
        """Return what the first rank that has sources says of the columns of its first one."""
        said = self.texts(json.dumps([sources[0].name, sources[0].d, sources[0].columns]) if sources else "")
        name, d, columns = json.loads(next(text for text in said if text))
        return Header(name, d, None if columns is None else tuple(columns))

    def totals(self, own: Traffic, proof: Traffic | None) -> tuple[Traffic, Traffic | None]:
        """Traffic of a run, and of its certificate, as the model tells it."""
        return self.summed(own), proof

    def common_columns(self, sources: Sequence[Source]) -> tuple[Source, ...]:
        """The sources with their columns in the order of the first source of all ranks."""
        with self.together():
            own = common_columns(sources)
        if self.ranks == 1:
            return own
        first = self.header(own if self.rank == 0 else ())
        with self.together():
            return tuple(in_order_of(first, source) for source in own)

    def summed(self, own: Traffic) -> Traffic:
        """Traffic of all ranks together: rounds are common, messages and bytes add up."""
        others = [json.loads(text) for text in self.texts(json.dumps(_listed(own)))]
        messages, sent, control, agents = (sum(column) for column in zip(*others, strict=True))
        return Traffic(own.rounds, own.control_rounds, messages, sent, control, agents)


def even_shares(n_agents: int, ranks: int) -> tuple[int, ...]:
    """Return how many agents each rank holds: the same number, or one more for some."""
    return tuple(n_agents * (i + 1) // ranks - n_agents * i // ranks for i in range(ranks))


def engine_of(name: str, *, allreduce: bool = False, timeout: float | None = 600.0) -> Engine:
    """Make an engine by its name; ``allreduce`` and ``timeout`` are those of an MPI network."""
    if name not in ENGINES:
        raise InvalidInput(f"engine = {name!r}: choose one of {', '.join(ENGINES)}")
    if name == "mpi":
        from deepca.engines.mpi.job import MpiEngine

        return MpiEngine(allreduce=allreduce, timeout=timeout)
    if allreduce:
        raise InvalidInput("allreduce is an operation of MPI; use engine = 'mpi' as well, or leave it out")
    return Engine()


def _facts(error: Exception) -> dict[str, str | int | float | None]:
    """Attributes of an error as they can be told to other ranks: numbers and texts, and what else there is in words."""
    plain = {name: fact.item() if isinstance(fact, np.generic) else fact for name, fact in vars(error).items()}
    return {
        name: fact if isinstance(fact, (str, int, float, type(None))) else repr(fact) for name, fact in plain.items()
    }


def _error_of(kind: str, text: str, facts: dict[str, Any]) -> Exception:
    """Another rank's error with its facts, where it is one that users can do something about."""
    found = getattr(errors, kind, None)
    if isinstance(found, type) and issubclass(found, (InvalidInput, errors.NotFiniteError, errors.MissingExtraError)):
        error = found.__new__(found, text)  # constructors differ in what they ask for
        vars(error).update(facts)
        return error
    return (OSError if issubclass(getattr(builtins, kind, Exception), OSError) else DataError)(text)


def _listed(traffic: Traffic) -> list[int]:
    return [traffic.messages, traffic.bytes_sent, traffic.control_bytes, traffic.agents]
