"""Test fingerprints of columns: one hash for each, or a single hash if there are very many."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from deepca.data.sources import ArraySource
from deepca.decomposition.settings import Settings
from deepca.sites.protocol.fingerprints import count_columns, differing_columns, schema_of


def _prints(names: Sequence[str]) -> dict[str, bytes]:
    return schema_of(ArraySource(np.zeros((1, len(names))), "rows", tuple(names)), Settings())


@pytest.mark.parametrize("d", [1, 8, 16_384])
def test_each_column_has_its_own_hash(d: int) -> None:
    names = [f"column {i}" for i in range(d)]
    mine, other = _prints(names), _prints([*names[:-1], "weight"])
    assert count_columns(mine) == count_columns(other) == d
    assert differing_columns(mine, other) == (d - 1,)
    assert differing_columns(mine, _prints(names[::-1])) == ()


def test_very_many_columns_share_one_hash() -> None:
    names = [f"column {i}" for i in range(16_385)]
    mine, other = _prints(names), _prints([*names[:-1], "weight"])
    assert count_columns(mine) is None
    assert mine["columns"] != other["columns"]
    assert differing_columns(mine, other) is None
    assert len(mine["columns"]) == len(_prints(names[:8])["columns"])  # eight columns have as many bytes


@pytest.mark.parametrize("columns", [b"", b"abc", b"aaaabbbbc", b"aaaabbbbcccc"])
def test_malformed_fingerprints_are_not_compared(columns: bytes) -> None:
    other = {"columns": columns, "number of columns": b"2"}
    assert differing_columns(_prints(["a", "b"]), other) is None
    assert differing_columns(other, _prints(["a", "b"])) is None
