"""Test fingerprints of columns: one keyed hash for each, or a single one if there are very many."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

import numpy as np
import pytest

from deepca.data.sources import ArraySource
from deepca.decomposition.settings import Settings
from deepca.sites.config.network_file import NetworkFile, SiteEntry
from deepca.sites.protocol.fingerprints import (
    COLUMN_KEY_BYTES,
    COLUMN_KEY_ENTRY,
    column_key_identifier,
    comparable_entries,
    count_columns,
    differing_columns,
    public_column_key,
    schema_of,
)

KEY, ANOTHER = b"a" * COLUMN_KEY_BYTES, b"b" * COLUMN_KEY_BYTES


def _prints(names: Sequence[str], key: bytes = KEY) -> dict[str, bytes]:
    return schema_of(ArraySource(np.zeros((1, len(names))), "rows", tuple(names)), Settings(), key)


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


def _hashes(prints: dict[str, bytes]) -> set[bytes]:
    columns = prints["columns"]
    return {columns[i : i + 4] for i in range(0, len(columns), 4)}


@pytest.mark.parametrize("d", [2, 16_385])
def test_hashes_of_columns_depend_on_the_key(d: int) -> None:
    names = [f"column {i}" for i in range(d)]
    mine = _prints(names)
    assert mine == _prints(names)  # as all members have the same key
    other = _prints(names, ANOTHER)
    assert {name for name in mine if mine[name] != other[name]} == {"columns", COLUMN_KEY_ENTRY}
    assert not _hashes(mine) & _hashes(other)


def test_a_guessed_name_cannot_be_checked_without_the_key() -> None:
    name = b"diagnosis"
    [found] = _hashes(_prints([name.decode()]))
    plain = [hashlib.sha256(name).digest()]
    keyed = [hmac.digest(key, name, "sha256") for key in (b"", bytes(COLUMN_KEY_BYTES), ANOTHER)]
    assert not any(found in digest for digest in [*plain, *keyed])


def test_the_identifier_of_a_key_reveals_neither_the_key_nor_a_hash() -> None:
    identifier = _prints(["a"])[COLUMN_KEY_ENTRY].decode()
    assert identifier == column_key_identifier(KEY) != column_key_identifier(ANOTHER)
    assert len(identifier) == 16
    assert bytes.fromhex(identifier) not in KEY
    assert not any(bytes.fromhex(identifier).startswith(found) for found in _hashes(_prints(["", "a", identifier])))


def test_columns_are_not_compared_if_the_keys_or_the_numbers_of_columns_differ() -> None:
    names = ["a", "b"]
    assert differing_columns(_prints(names), _prints(names, ANOTHER)) is None
    assert comparable_entries({COLUMN_KEY_ENTRY, "columns", "seed"}) == [COLUMN_KEY_ENTRY, "seed"]
    assert comparable_entries({"number of columns", "columns"}) == ["number of columns"]
    assert comparable_entries({"seed", "columns"}) == ["columns", "seed"]


def test_the_public_key_is_that_of_a_network() -> None:
    sites = (SiteEntry("north", "127.0.0.1:1"), SiteEntry("south", "127.0.0.1:2"))
    one, other = (NetworkFile(name, sites, 2, topology_name="ring", privacy="open") for name in ("one", "other"))
    assert public_column_key(one) == public_column_key(one) != public_column_key(other)
    assert len(public_column_key(one)) == COLUMN_KEY_BYTES
