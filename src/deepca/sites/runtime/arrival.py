"""A message that arrives in parts."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CHUNK", "Arrived"]

CHUNK = 1 << 20
"""Bytes of a body in one Part."""


@dataclass(frozen=True)
class Arrived:
    """A whole message."""

    header: bytes
    body: bytes | bytearray


class Arrival:
    """A message of which some Parts are here. Memory is taken with the first of several; one alone is kept as it is."""

    def __init__(self, total: int) -> None:
        self.header, self.total = b"", total
        self.body: bytes | bytearray = b""
        self.in_a_row = 0
        self._beyond: set[int] = set()
        self._parts = max(-(-total // CHUNK), 1)

    @property
    def complete(self) -> bool:
        return self.in_a_row == self._parts

    def add(self, index: int, header: bytes, chunk: bytes) -> None:
        if index < self.in_a_row or index in self._beyond:
            return
        if self._parts == 1:
            self.body = chunk
        else:
            if not isinstance(self.body, bytearray):
                self.body = bytearray(self.total)
            self.body[index * CHUNK : index * CHUNK + len(chunk)] = chunk
        if index == 0:
            self.header = header
        self._beyond.add(index)
        while self.in_a_row in self._beyond:
            self._beyond.remove(self.in_a_row)
            self.in_a_row += 1
