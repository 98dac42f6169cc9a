"""What the doctor found, how bad it is, and who has to act."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

__all__ = ["HERE", "KEEPER", "NETWORK", "SOON", "WRITER", "Finding", "Verdict", "day_of"]

Verdict = Literal["ok", "warning", "wrong"]


# who has to act
HERE = "this site"
KEEPER = "whoever keeps the authority"
WRITER = "whoever wrote network.toml"
NETWORK = "the network people"

SOON = timedelta(days=30)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. who : has to mend it; empty where nothing has to be."""

    check: str
    verdict: Verdict
    text: str
    who: str = ""


def day_of(moment: datetime) -> str:
    """Format the day of a moment."""
    return f"{moment:%Y-%m-%d}"
