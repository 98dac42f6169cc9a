"""Tabulate the outcomes of a study."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from deepca._util.units import plural
from deepca.errors import InvalidInput
from deepca.reproduction.cells import Cell, Outcome
from deepca.reproduction.pages.report import Table
from deepca.reproduction.studies import Study, Value

__all__ = ["by_row_and_column", "name_of", "row_name", "study_table"]

Rows = dict[tuple[Any, ...], dict[Any, list[Outcome]]]


_NAMES: dict[str, dict[Any, str]] = {
    "graph": {
        "paper": "paper's graph",
        "erdos-renyi": "Erdős–Rényi",
        "random-regular": "random regular",
    },
    "alignment": {"sign-adjust": "SignAdjust", "qr": "QR, R > 0", "polar": "polar"},
    "order": {"file": "file order", "label": "sorted by label"},
}


_FIELDS = {"alignment": "sign rule", "order": "rows"}


_MEASURES: dict[Value, str] = {
    "iterations": "Iterations until the mean tan θ is at most {accuracy} and stays there",
    "rounds": "Rounds of communication until the mean tan θ is at most {accuracy} and stays there",
    "converged": "Iterations until the mean tan θ is at most {accuracy} and stays there",
}


def name_of(field: str, value: Any, *, bare: bool = False) -> str:
    """Return the text for a value of a cell's field in tables and figures; ``bare`` omits the name of the field."""
    if field in _NAMES or isinstance(value, str):
        return _NAMES.get(field, {}).get(value, str(value))
    if bare:
        return str(value)
    return f"draw {value}" if field == "draw" else f"{_FIELDS.get(field, field)} = {value}"


def row_name(study: Study, row: tuple[Any, ...]) -> str:
    """Return a row label such as "torus, k = 3", or the number of draws for a study without rows."""
    names = [name_of(field, value) for field, value in zip(study.row_names, row, strict=True)]
    return ", ".join(names) or f"{study.draws} draw{plural(study.draws)}"


def by_row_and_column(study: Study, outcomes: Mapping[Cell, Outcome]) -> Rows:
    """Arrange the outcomes of a study by row and column, with empty lists for missing runs; ignore other cells.

    Raises
    ------
    InvalidInput
        If no outcome belongs to the study, or if the outcomes contain the study more than once.
    """
    axes = dict(study.axes)
    fixed = [(field, value) for field, value in study.changes if field not in axes]
    own = [
        cell
        for cell in outcomes
        if all(getattr(cell, field) == value for field, value in fixed)
        and all(getattr(cell, field) in values for field, values in axes.items())
        and ("draw" in axes or cell.draw < study.draws)
    ]
    if not own:
        raise InvalidInput(
            f"no outcome belongs to the study {study.name!r}; run its cells first", parameter="outcomes", value=0
        )
    first = {field: values[0] for field, values in axes.items()}
    if "k" in axes:
        first["iterations"] = 0  # the length depends on k
    points = {(cell.draw, *(getattr(cell, field) for field in axes)) for cell in own}
    if len({cell.with_fields(**{"draw": 0, **first}) for cell in own}) > 1 or len(points) < len(own):
        raise InvalidInput(
            f"the outcomes contain the study {study.name!r} more than once (different data, method, k or iterations); "
            "pass one of them",
            parameter="outcomes",
            value=len(own),
        )
    rows: Rows = {
        row: {column: [] for column in axes[study.columns]}
        for row in product(*(values for field, values in study.axes if field != study.columns))
    }
    for cell in sorted(own, key=lambda cell: cell.draw):
        row = tuple(getattr(cell, field) for field in study.row_names)
        rows[row][getattr(cell, study.columns)].append(outcomes[cell])
    return rows


def study_table(study: Study, outcomes: Mapping[Cell, Outcome]) -> Table:
    """Return the table of medians over the draws, with the number of draws that converged where not all did."""
    columns = dict(study.axes)[study.columns]
    heads = tuple(_FIELDS.get(field, field) for field in study.row_names) or ("draws",)
    rows = []
    for row, entries in by_row_and_column(study, outcomes).items():
        names = tuple(name_of(field, value, bare=True) for field, value in zip(study.row_names, row, strict=True))
        rows.append((names or (str(study.draws),)) + tuple(_entry(study, entries[column]) for column in columns))
    draws = "" if study.columns == "draw" else f"; median over {study.draws} draw{plural(study.draws)}"
    note = _MEASURES[study.value].format(accuracy=_short(study.accuracy)) + draws + "."
    seen = [entry for row in rows for entry in row[len(heads) :]]
    if any("(" in entry for entry in seen):
        note += " In brackets: the number of draws that reached it, if not all did."
    if "–" in seen:
        note += " A dash: not reached." if study.columns == "draw" else " A dash: no draw reached it."
    title = f"{study.name.capitalize()}: {study.question}"
    return Table(title, heads + tuple(name_of(study.columns, c) for c in columns), tuple(rows), note, len(heads))


def _short(number: float) -> str:
    """Format a number as ``1e-8``, without the leading zero of Python's exponents."""
    return re.sub(r"e([+-])0+", r"e\1", f"{number:g}")


def _entry(study: Study, outcomes: Sequence[Outcome]) -> str:
    """Format an entry: ``312``, ``312 (4/5)``, ``–`` if no draw converged, or nothing if none was run."""
    values = study.measure(outcomes)
    reached = [value for value in values if value is not None]
    if not reached:
        return "–" if values else ""
    median = float(np.median(reached))
    text = f"{median:.0f}" if median == int(median) else f"{median:.1f}"
    return text if len(reached) == len(values) else f"{text} ({len(reached)}/{len(values)})"
