"""Count what agents send, and keep track of values that ride along with messages."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from deepca.network.protocols import Pairs
from deepca.network.reductions import PendingReduction

__all__ = ["Accounting", "Traffic"]


@dataclass(frozen=True)
class Traffic:
    """Rounds, messages and bytes that the local agents have sent.

    Parameters
    ----------
    rounds : int
        Rounds of gossip.
    control_rounds : int
        Additional rounds that served only to agree on values.
    messages : int
        Messages of any kind.
    bytes_sent : int
        Bytes of array payloads and pending values.
    control_bytes : int
        Bytes of pending values, a part of `bytes_sent`.
    agents : int
        Number of senders.
    """

    rounds: int = 0
    control_rounds: int = 0
    messages: int = 0
    bytes_sent: int = 0
    control_bytes: int = 0
    agents: int = 1

    @property
    def bytes_per_agent(self) -> float:
        """Average number of bytes sent by an agent."""
        return self.bytes_sent / self.agents

    def __add__(self, other: Traffic) -> Traffic:
        """Add the counts of another period and keep the number of agents."""
        return replace(
            self,
            rounds=self.rounds + other.rounds,
            control_rounds=self.control_rounds + other.control_rounds,
            messages=self.messages + other.messages,
            bytes_sent=self.bytes_sent + other.bytes_sent,
            control_bytes=self.control_bytes + other.control_bytes,
        )

    def __sub__(self, earlier: Traffic) -> Traffic:
        """Return the counts since an earlier time."""
        return replace(
            self,
            rounds=self.rounds - earlier.rounds,
            control_rounds=self.control_rounds - earlier.control_rounds,
            messages=self.messages - earlier.messages,
            bytes_sent=self.bytes_sent - earlier.bytes_sent,
            control_bytes=self.control_bytes - earlier.control_bytes,
        )


class Accounting:
    """Counters of a network, and its pending reductions.

    Parameters
    ----------
    agents : int
        Number of local agents.

    Attributes
    ----------
    local : ndarray of int
        Indices of the local agents.
    full_rounds : int
        Rounds so far that used every edge.
    sweeps : int
        Exact averages so far. Pending values ride along with them and with full rounds.
    next_round : int
        Index of the next round of a time-varying network; not advanced on static ones.
    """

    local: npt.NDArray[np.int64]

    def __init__(self, agents: int) -> None:
        self._agents = agents
        self.full_rounds = 0
        self.sweeps = 0
        self.next_round = 0
        self._pairs_averaged = 0
        self._pending: list[PendingReduction] = []
        self._sent = [0] * 5  # rounds, control rounds, messages, bytes, control bytes: as in Traffic

    @property
    def traffic(self) -> Traffic:
        """Everything that the local agents have sent so far."""
        rounds, control_rounds, messages, sent, control = self._sent
        return Traffic(rounds, control_rounds, messages, sent, control, self._agents)

    def discard_pending(self) -> None:
        """Discard all pending values; ``solve`` calls this before and after a run."""
        self._pending.clear()

    def _count(
        self, *, rounds: int = 0, control_rounds: int = 0, messages: int = 0, payload: int = 0, control: int = 0
    ) -> None:
        """Add rounds, and messages of ``payload`` array bytes and ``control`` bytes of pending values each."""
        sent = self._sent
        sent[0] += rounds
        sent[1] += control_rounds
        sent[2] += messages
        sent[3] += messages * (payload + control)
        sent[4] += messages * control

    def _count_piggybacked(self, nbytes: int) -> None:
        """Add bytes of pending values that travelled on messages counted elsewhere."""
        self._sent[3] += nbytes
        self._sent[4] += nbytes

    def _count_pairs(self, pairs: Pairs, rounds: int, payload: int) -> None:
        """Count the messages of pairs that averaged with each other, of ``payload`` bytes each."""
        self._pairs_averaged += len(pairs)
        self._count(rounds=rounds, messages=int(np.isin(pairs, self.local).sum()), payload=payload)

    def _advance_pending(self, rounds: int) -> None:
        """Advance pending values by that many rounds over every edge."""
        self.full_rounds += rounds
        for pending in self._pending:
            pending.rounds_left -= rounds
        self._pending = [pending for pending in self._pending if not pending.ready]

    def _complete_pending(self, completed: list[PendingReduction]) -> None:
        """Complete the values that were pending when an exact average began."""
        self.sweeps += 1
        for pending in completed:
            pending.rounds_left = 0
        self._pending = [pending for pending in self._pending if not pending.ready]
