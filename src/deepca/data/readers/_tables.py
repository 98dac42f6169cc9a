"""Base class of the CSV and Parquet readers, which converts batches of Arrow columns to blocks of rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from deepca.data.readers._common import Selection, import_extra
from deepca.data.sources import Block, Source

__all__ = ["TableSource", "as_numpy"]


class TableSource(Source):
    """Table that is read batch by batch; a complete pass also collects the labels."""

    is_sparse = False

    def __init__(self, name: str, selection: Selection, dtype: np.dtype[Any], n: int | None) -> None:
        self.name, self.file, self.dtype, self.n = name, name, dtype, n
        self.columns: tuple[str, ...] | None = selection.values
        self.d = len(selection.values)
        self._selection = selection

    @abstractmethod
    def _batches(self, names: Sequence[str]) -> Iterator[Sequence[Any]]:
        """Yield the Arrow arrays of these columns, batch by batch; raise DataError for any failure."""

    @abstractmethod
    def _join_labels(self, parts: list[Any]) -> npt.NDArray[Any]:
        """Return the labels of all batches as one array."""

    def blocks(self) -> Iterator[Block]:
        """Yield one block per batch."""
        label, values = self._selection.label, self._selection.values
        parts = []
        for batch in self._batches(values if label is None else (*values, label)):
            yield self._dense(batch[: self.d])
            if label is not None:
                parts.append(batch[-1])
        if label is not None:
            self._labels = self._join_labels(parts)

    def labels(self) -> npt.NDArray[Any] | None:
        """Return the labels; read the label column first unless a complete pass has collected them."""
        if self._selection.label is not None and self._labels is None:
            self._labels = self._join_labels([batch[0] for batch in self._batches([self._selection.label])])
        return self._labels

    def _dense(self, columns: Sequence[Any]) -> Block:
        arrow = import_extra("pyarrow", "reading tables")
        kind = arrow.float32() if self.dtype == np.float32 else arrow.float64()
        arrays = (column if column.type == kind else column.cast(kind, safe=False) for column in columns)
        return np.stack([array.to_numpy(zero_copy_only=False) for array in arrays], axis=1)  # nulls become NaN


def as_numpy(values: Any) -> npt.NDArray[Any]:
    """Convert an Arrow array to numpy; missing text becomes an empty string."""
    arrow = import_extra("pyarrow", "reading tables")
    if arrow.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    found = values.to_numpy() if isinstance(values, arrow.ChunkedArray) else values.to_numpy(zero_copy_only=False)
    if found.dtype != object:
        return np.asarray(found)
    return np.array(["" if value is None else str(value) for value in found], dtype=str)
