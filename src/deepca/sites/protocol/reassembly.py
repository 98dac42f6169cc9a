"""Reassemble messages that arrive in parts."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CHUNK_SIZE", "PartialMessage", "ReceivedMessage"]

CHUNK_SIZE = 1 << 20
"""Number of bytes of a message body in each Part except the last, which may be smaller."""


@dataclass(frozen=True)
class ReceivedMessage:
    """A complete message."""

    header: bytes
    body: bytes | bytearray


class PartialMessage:
    """A message that is being reassembled from its Parts.

    If a message has several Parts, memory for the whole body is allocated when the first of them arrives; the body of a
    message with a single Part is not copied.

    Parameters
    ----------
    total : int
        Size of the body in bytes.
    """

    def __init__(self, total: int) -> None:
        self.header, self.total = b"", total
        self.body: bytes | bytearray = b""
        self.in_a_row = 0  # number of Parts that have arrived without a gap before them
        self._beyond: set[int] = set()  # indices of Parts that have arrived after a gap
        self._parts = max(-(-total // CHUNK_SIZE), 1)

    @property
    def complete(self) -> bool:
        """True once all Parts have arrived."""
        return self.in_a_row == self._parts

    def add(self, index: int, header: bytes, chunk: bytes) -> None:
        """Add a Part; duplicates are ignored."""
        if index < self.in_a_row or index in self._beyond:
            return
        if self._parts == 1:
            self.body = chunk
        else:
            if not isinstance(self.body, bytearray):
                self.body = bytearray(self.total)
            self.body[index * CHUNK_SIZE : index * CHUNK_SIZE + len(chunk)] = chunk
        if index == 0:
            self.header = header
        self._beyond.add(index)
        while self.in_a_row in self._beyond:
            self._beyond.remove(self.in_a_row)
            self.in_a_row += 1
