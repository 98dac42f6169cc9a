"""What was sent: rounds, messages and bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["Traffic"]


@dataclass(frozen=True)
class Traffic:
    """What the local agents have sent so far.

    ``rounds`` are rounds of gossip; ``control_rounds`` are extra rounds, made only to agree on something.
    ``messages`` and ``bytes_sent`` count everything that left an agent, array payloads and agreed values alike;
    ``control_bytes`` is the part of ``bytes_sent`` that agreed values took. ``agents`` is the number of senders.
    """

    rounds: int = 0
    control_rounds: int = 0
    messages: int = 0
    bytes_sent: int = 0
    control_bytes: int = 0
    agents: int = 1

    @property
    def bytes_per_agent(self) -> float:
        return self.bytes_sent / self.agents

    def __add__(self, other: Traffic) -> Traffic:
        return replace(
            self,
            rounds=self.rounds + other.rounds,
            control_rounds=self.control_rounds + other.control_rounds,
            messages=self.messages + other.messages,
            bytes_sent=self.bytes_sent + other.bytes_sent,
            control_bytes=self.control_bytes + other.control_bytes,
        )

    def __sub__(self, earlier: Traffic) -> Traffic:
        return replace(
            self,
            rounds=self.rounds - earlier.rounds,
            control_rounds=self.control_rounds - earlier.control_rounds,
            messages=self.messages - earlier.messages,
            bytes_sent=self.bytes_sent - earlier.bytes_sent,
            control_bytes=self.control_bytes - earlier.control_bytes,
        )
