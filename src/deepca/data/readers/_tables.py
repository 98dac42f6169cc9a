"""What CSV and Parquet share: batches of named Arrow columns become blocks, and the label column comes along."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from deepca.data.readers._common import Choice, extra
from deepca.data.sources import Block, Source

__all__ = ["TableSource", "as_numpy"]


class TableSource(Source):
    """Named columns that are read batch by batch. A complete pass leaves the labels behind."""

    is_sparse = False

    def __init__(self, name: str, choice: Choice, dtype: np.dtype[Any], n: int | None) -> None:
        self.name, self.dtype, self.n = name, dtype, n
        self.columns: tuple[str, ...] | None = choice.values
        self.d = len(choice.values)
        self._choice = choice

    @abstractmethod
    def _batches(self, names: Sequence[str]) -> Iterator[Sequence[Any]]:
        """The Arrow arrays of these columns, batch by batch; whatever goes wrong is a DataError."""

    @abstractmethod
    def _joined(self, parts: list[Any]) -> npt.NDArray[Any]:
        """The labels of all batches as one array."""

    def blocks(self) -> Iterator[Block]:
        label, values = self._choice.label, self._choice.values
        parts = []
        for batch in self._batches(values if label is None else (*values, label)):
            yield self._dense(batch[: self.d])
            if label is not None:
                parts.append(batch[-1])
        if label is not None:
            self._labels = self._joined(parts)

    def labels(self) -> npt.NDArray[Any] | None:
        if self._choice.label is not None and self._labels is None:
            self._labels = self._joined([batch[0] for batch in self._batches([self._choice.label])])
        return self._labels

    def _dense(self, columns: Sequence[Any]) -> Block:
        arrow = extra("pyarrow", "reading tables")
        kind = arrow.float32() if self.dtype == np.float32 else arrow.float64()
        arrays = (column if column.type == kind else column.cast(kind, safe=False) for column in columns)
        return np.stack([array.to_numpy(zero_copy_only=False) for array in arrays], axis=1)  # nulls become NaN


def as_numpy(values: Any) -> npt.NDArray[Any]:
    """An Arrow array with whatever is in it; text that is missing becomes empty."""
    arrow = extra("pyarrow", "reading tables")
    if arrow.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    found = values.to_numpy() if isinstance(values, arrow.ChunkedArray) else values.to_numpy(zero_copy_only=False)
    if found.dtype != object:
        return np.asarray(found)
    return np.array(["" if value is None else str(value) for value in found], dtype=str)
