"""Describe why a site gave up, in a form that all sites can read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

from deepca._util.logs import one_line
from deepca.errors import FrameError
from deepca.sites.protocol import wire_pb2 as wire

__all__ = ["Failure", "Kind"]

Kind = Literal["site", "common", "array", "contradiction", "follows"]
_MAX_CHARACTERS = 1000  # maximum length of a text shown to people


@dataclass(frozen=True)
class Failure:
    """Why a site gave up; wire.proto describes the fields.

    Parts of the texts may come from other sites, so they are cut to one line of limited length.

    Parameters
    ----------
    kind : str
        Kind of failure.
    why : str
        The reason, for people.
    accused : int
        Index of the site that is accused, if ``kind`` accuses one.
    what : str
        The array or field at fault, and what is wrong with it.
    phase : str
        Phase of the array.
    iteration : int
        Iteration of the array.
    """

    kind: Kind
    why: str
    accused: int = 0
    what: str = ""
    phase: str = ""
    iteration: int = 0

    def __post_init__(self) -> None:
        """Shorten the texts."""
        for name in ("why", "what", "phase"):
            object.__setattr__(self, name, one_line(getattr(self, name), _MAX_CHARACTERS))

    def to_wire(self) -> wire.Failure:
        """Return the message for this failure."""
        return wire.Failure(
            kind=self.kind,
            why=self.why,
            accused=self.accused,
            what=self.what,
            phase=self.phase,
            iteration=self.iteration,
        )

    @classmethod
    def from_wire(cls, message: wire.Failure, sites: int) -> Failure:
        """Read a failure; raise FrameError if it is malformed or accuses a site that does not exist."""
        if message.kind not in get_args(Kind) or message.accused >= sites or len(message.phase) > _MAX_CHARACTERS:
            raise FrameError("a malformed report of a failure")
        kind = cast("Kind", message.kind)
        return cls(kind, message.why, message.accused, message.what, message.phase, message.iteration)
