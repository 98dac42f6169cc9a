"""The doctor's findings: what was found, how serious it is, and who must act."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

__all__ = [
    "AUTHORITY_OPERATOR",
    "NETWORK_ADMINISTRATORS",
    "NETWORK_AUTHOR",
    "THIS_SITE",
    "Finding",
    "Verdict",
    "format_day",
]

Verdict = Literal["ok", "warning", "wrong"]


# who must act
THIS_SITE = "this site"
AUTHORITY_OPERATOR = "the operator of the authority"
NETWORK_AUTHOR = "the author of network.toml"
NETWORK_ADMINISTRATORS = "the network administrators"


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    Parameters
    ----------
    check : str
        Name of the check, or of the neighbour that was checked.
    verdict : {"ok", "warning", "wrong"}
        How serious it is.
    text : str
        What was found, and what to do about it.
    who : str
        Who must act; empty if nothing needs to be done.
    """

    check: str
    verdict: Verdict
    text: str
    who: str = ""


def format_day(moment: datetime) -> str:
    """Format the date of a time."""
    return f"{moment:%Y-%m-%d}"
