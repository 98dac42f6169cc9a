"""Transports, which move messages between agents through a single method, ``exchange``."""

from deepca.network.transports.base import Message, Tag, Transport
from deepca.network.transports.memory import MemoryHub, MemoryTransport

__all__ = ["MemoryHub", "MemoryTransport", "Message", "Tag", "Transport"]
