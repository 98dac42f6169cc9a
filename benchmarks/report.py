"""Write results as terminal tables, Markdown and JSON, with a description of the machine."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import threadpoolctl
from rich.console import Console
from rich.table import Table

import deepca
from deepca._util.machine import usable_cores

__all__ = ["Section", "cores_in_use", "machine", "show", "write_json", "write_markdown"]


_HOW_TO_READ = (
    "Compare the ratios; absolute times differ on other machines, and on this one at other times. All figures of a "
    "page come from one run, in which what is compared was measured in turn. A ratio is computed for each turn; its "
    "median is followed by the quartiles in brackets. Unless stated otherwise, times are processor times of one "
    "thread, with one BLAS thread."
)


@dataclass
class Section:
    """A table with an introduction; the numbers of its rows are kept for JSON."""

    title: str
    text: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    values: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, *cells: str, **values: Any) -> None:
        """Add a row, with its numbers for JSON."""
        self.rows.append(cells)
        plain = {name: asdict(v) if is_dataclass(v) and not isinstance(v, type) else v for name, v in values.items()}
        self.values.append({"what": cells[0].strip(), **plain})


@cache
def cores_in_use(seconds: float = 1.0) -> float:
    """Return the number of cores in use by other processes, measured once before anything else runs.

    The system's load average covers minutes and includes processes that ended long ago.
    """

    def busy() -> float:
        user, nice, system, _, _, *rest = map(int, Path("/proc/stat").read_text(encoding="ascii").split()[1:9])
        return float(user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")

    if not Path("/proc/stat").exists():
        return float(os.getloadavg()[0]) if hasattr(os, "getloadavg") else 0.0
    before = busy()
    time.sleep(seconds)
    return (busy() - before) / seconds


def machine() -> dict[str, str]:
    """Describe the machine without names or addresses."""
    pools = threadpoolctl.threadpool_info()
    blas = sorted({" ".join(_blas_words(pool)) for pool in pools if pool["user_api"] == "blas"})
    return {
        "cores": str(usable_cores()),
        "processor": platform.machine(),
        "in use by others": f"{cores_in_use():.1f} cores in the second before the run",
        "BLAS": "; ".join(blas) or "unknown",
        "Python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "deepca": deepca.__version__,
    }


def _blas_words(pool: dict[str, Any]) -> list[str]:
    words = [str(pool["internal_api"]), str(pool.get("version") or "")]
    if pool.get("architecture"):
        words.append(f"({pool['architecture']} kernels)")
    return [word for word in words if word]


def show(sections: Sequence[Section], console: Console) -> None:
    """Print all tables."""
    for section in sections:
        table = Table(title=section.title, title_justify="left", caption=section.text, caption_justify="left")
        for i, column in enumerate(section.columns):
            table.add_column(column, justify="left" if i == 0 else "right")
        for row in section.rows:
            table.add_row(*row)
        console.print()
        console.print(table)
        for note in section.notes:
            console.print(f"  {note}")


def write_markdown(path: Path, sections: Sequence[Section], command: str, about: dict[str, str]) -> None:
    """Write a page with a header and every section as a table."""
    kind = ", ".join(f"{name} {value}" for name, value in about.items())
    lines = [
        "# Benchmarks",
        "",
        f"Written by `{command}` on this machine: {kind}.",
        "",
        _HOW_TO_READ,
    ]
    for section in sections:
        lines += ["", f"## {section.title}", "", section.text, ""]
        lines.append("| " + " | ".join(section.columns) + " |")
        lines.append("|" + "|".join([" --- ", *[" ---: "] * (len(section.columns) - 1)]) + "|")
        lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in section.rows]
        for note in section.notes:
            lines += ["", note]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _cell(text: str) -> str:
    return text.strip().replace("|", "\\|") if not text.startswith("  ") else f"– {text.strip()}"


def write_json(path: Path, sections: Sequence[Section], command: str, about: dict[str, str]) -> None:
    """Write the numbers as JSON."""
    document = {
        "command": command,
        "machine": about,
        "sections": [{"title": s.title, "text": s.text, "rows": s.values, "notes": s.notes} for s in sections],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
