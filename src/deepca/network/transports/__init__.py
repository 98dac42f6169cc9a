"""Transports, which move messages between agents: one exchange at a time, or several in a relay."""

from deepca.network.transports.base import Message, RelayStep, Tag, Transport
from deepca.network.transports.memory import MemoryHub, MemoryTransport

__all__ = ["MemoryHub", "MemoryTransport", "Message", "RelayStep", "Tag", "Transport"]
