"""Fit incrementally: between calls, an agent keeps the count, mean and scatter of its rows, but not the rows.

Before new rows are added, the weights of all earlier ones are multiplied by ``forgetting``. After T calls, a row of
call t has the weight ``forgetting^(T−t)``, as if all rows had been given at once with these weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from deepca._util.machine import available_memory
from deepca._util.typing import Array
from deepca._util.units import format_bytes
from deepca._util.validation import Real, check
from deepca.data.columns import Header, align_columns, in_order_of
from deepca.data.local_data import LocalData, read
from deepca.data.moments import Moments, empty_moments, moments
from deepca.data.sources import ArraySource, Source
from deepca.engines.local import Engine
from deepca.errors import DataError
from deepca.operators.construction import Form

__all__ = ["RowSummary", "check_forgetting", "partition_rows", "read_more", "summarize_rows"]


_MAX_COLUMNS_OF_FEW_ROWS = 128  # a matrix of this size takes 128 KB, and next to no time to form from few rows


@dataclass(frozen=True)
class RowSummary:
    """Summary of the rows of all calls so far, to which new rows can be added.

    Parameters
    ----------
    names : tuple of str
        Names of all agents, as used in messages.
    moments : tuple of Moments
        Counts, means and scatter matrices of the local agents.
    columns : tuple of str or None
        Names of the columns.
    single : bool
        Whether all rows were single precision, float32.
    """

    names: tuple[str, ...]
    moments: tuple[Moments, ...]
    columns: tuple[str, ...] | None
    single: bool

    @property
    def d(self) -> int:
        """Number of columns."""
        return self.moments[0].shift.size

    def local_data(self) -> LocalData:
        """Return the summary as local data, as if the rows had just been read."""
        nothing = np.empty((0, self.d))
        sources = tuple(ArraySource(nothing, "the rows so far", self.columns) for _ in self.moments)
        form: Form = "covariance"
        return LocalData(sources, None, (form,) * len(sources), self.moments, self.single)


Stream = RowSummary  # its name in pickles of version 0.1


def summarize_rows(local_data: LocalData, names: Sequence[str]) -> RowSummary | None:
    """Return the summary to which later rows can be added; None if rows were kept instead of covariances.

    Agents with few rows keep them even where others form covariances; theirs are formed here.
    """
    d, local = local_data.sources[0].d, local_data
    if "covariance" not in local.forms and d > _MAX_COLUMNS_OF_FEW_ROWS:
        return None
    found = tuple(
        of if form == "covariance" else moments(source, None if local.weights is None else local.weights[j])
        for j, (source, form, of) in enumerate(zip(local.sources, local.forms, local.moments, strict=True))
    )
    return RowSummary(tuple(names), found, local.sources[0].columns, local.is_float32)


def check_forgetting(forgetting: Any) -> float:
    """Return the forgetting factor, a number in (0, 1], as a float."""
    meaning = "factor by which the weight of earlier rows is multiplied; 1 forgets nothing"
    check("forgetting", forgetting, Real(0.0, 1.0, up_to=True), meaning=meaning)
    return float(forgetting)


def partition_rows(n: int, names: Sequence[str], labels: npt.NDArray[Any] | None) -> list[npt.NDArray[np.int64]]:
    """Partition n rows over agents, by label or into equal blocks; return the indices of each agent's rows."""
    if labels is None:
        return [np.arange(a, b) for a, b in pairwise(n * j // len(names) for j in range(len(names) + 1))]
    place = {name: j for j, name in enumerate(names)}
    found, index = np.unique(labels, return_inverse=True)
    unknown = [label for label in found if f"agent {label}" not in place]
    if unknown:
        row = int(np.flatnonzero(labels == unknown[0])[0])
        raise DataError(
            f"agents: row {row} belongs to 'agent {unknown[0]}', but earlier calls had only {', '.join(names[:6])}"
            f"{', …' if len(names) > 6 else ''}; start over with a new estimator (sklearn.base.clone) and include all "
            "agents in its first call: partial_fit_agents accepts None for agents without rows",
            parameter="agents",
            row=row,
            value=str(unknown[0]),
        )
    holder = np.array([place[f"agent {label}"] for label in found])[index]
    return [np.flatnonzero(holder == j) for j in range(len(names))]


def read_more(
    engine: Engine,
    names: Sequence[str],
    sources: Sequence[Source | None],
    weights: Sequence[Array | None] | None,
    before: RowSummary | None,
    forgetting: float,
) -> RowSummary:
    """Return the summary after adding new rows of the local agents; agents without new rows pass None.

    Raises DataError if no agent has new rows, or if the summary needs more than a quarter of the free memory.
    """
    given = [j for j, source in enumerate(sources) if source is not None]
    if not sum(engine.gather_counts(len(given))):
        raise DataError("no agent has any rows in this call; skip it", value=0)
    with engine.raise_on_all_ranks():
        ours = align_columns([source for source in sources if source is not None]) if given else ()
    header = engine.header(ours) if before is None else Header("the earlier data", before.d, before.columns)
    with engine.raise_on_all_ranks():
        _check_room(header.d, len(sources))
        ours = tuple(in_order_of(header, source) for source in ours)
        given_weights = None if weights is None else [w for w in (weights[j] for j in given) if w is not None]
        found = read(ours, given_weights, form="covariance").moments if given else ()
    updated = list(before.moments) if before is not None else [empty_moments(header.d) for _ in sources]
    for j, new in zip(given, found, strict=True):
        updated[j] = updated[j].scaled(forgetting).joined(new)
    for j in set(range(len(updated))) - set(given):
        updated[j] = updated[j].scaled(forgetting)
    single = engine.all_float32(ours)
    return RowSummary(tuple(names), tuple(updated), header.columns, single and (before is None or before.single))


def _check_room(d: int, agents: int) -> None:
    needed, free = 8 * agents * d * d, available_memory()
    each = "its agent" if agents == 1 else f"each of {agents} agents"
    if needed > free // 4:
        raise DataError(
            f"partial_fit keeps a matrix of {d:,} × {d:,} numbers for {each}: {format_bytes(needed)}, more than a "
            f"quarter of the {format_bytes(free)} of free memory; use fewer columns, or keep the rows and fit all of "
            "them at once",
            value=needed,
        )
