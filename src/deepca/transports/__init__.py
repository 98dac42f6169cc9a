"""What moves bytes below an agent's network: a transport is one method, ``exchange``."""

from deepca.transports.base import Message, Tag, Transport
from deepca.transports.memory import MemoryHub, MemoryTransport

__all__ = ["MemoryHub", "MemoryTransport", "Message", "Tag", "Transport"]
