"""Find the log of the start of an agent before this one, so that restarts continue its chain."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from deepca.sites.audit.lines import parsed

__all__ = ["PreviousLog", "pattern_of", "previous_log"]

_HEADER_LIMIT = 1 << 16  # bytes read to find the first line of a log
_TAIL = 1 << 20  # bytes read to find the last line of a log


@dataclass(frozen=True)
class PreviousLog:
    """An earlier log: its file name, and the hash of its last line."""

    name: str
    head: bytes


def pattern_of(site: str) -> str:
    """Return the pattern of the names of a site's logs, which end with the time of their start."""
    digit = "[0-9]"
    return f"{site}-{8 * digit}T{9 * digit}Z.jsonl"


def previous_log(folder: Path, site: str, network_digest: bytes, run: str) -> PreviousLog | None:
    """Return the newest log of a site in this run, or None for the first one.

    Raises
    ------
    OSError
        If the folder cannot be read.
    """
    for path in sorted(folder.glob(pattern_of(site)), reverse=True):  # names contain the time of the start
        try:
            with path.open("rb") as file:
                first = file.readline(_HEADER_LIMIT)
                members, _, _ = parsed(first.rstrip(b"\n"))
                about = members.get("site"), members.get("network_digest"), members.get("run")
                if about != (site, network_digest.hex(), run):
                    continue
                file.seek(max(file.seek(0, os.SEEK_END) - _TAIL, 0))
                *_, last = (
                    line for line in file.read().split(b"\n")[:-1] if line
                )  # what follows is an unfinished line
                return PreviousLog(path.name, parsed(last)[1])
        except ValueError:  # damaged, which `deepca audit` reports
            continue
    return None
