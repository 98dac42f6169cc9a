"""Tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

__all__ = ["columns"]


def columns(left: Sequence[str] = (), right: Sequence[str] = (), **look: Any) -> Table:
    """Return an empty table with left-aligned columns (text), then right-aligned ones (numbers)."""
    table = Table(header_style="bold", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True, **look)
    for name in left:
        table.add_column(name, no_wrap=True)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table
