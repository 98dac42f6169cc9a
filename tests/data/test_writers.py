"""Rows written block by block: what was written can be read again, and a file is whole or not there."""

from __future__ import annotations

import csv
import errno
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pyarrow.parquet
import pytest

from deepca.data._npy import GrowingNpy
from deepca.data.readers import open_source
from deepca.data.writers import open_writer
from deepca.errors import DataError, MissingExtraError

NAMES = ("pc1", "pc2", "a, b")
SUFFIXES = (".parquet", ".csv", ".npy", ".h5", ".hdf5")
WITH_LABELS = (".parquet", ".csv", ".h5")


def blocks(dtype: npt.DTypeLike = np.float64) -> list[npt.NDArray[Any]]:
    """Blocks of different heights, one of them empty and one of them not contiguous."""
    rng = np.random.default_rng(0)
    scales = 10.0 ** np.arange(-150, 150, 100) if dtype == np.float64 else np.array([1e-30, 1.0, 1e30])
    X = (rng.standard_normal((500, 3)) * scales).astype(dtype)
    return [X[:7], X[7:7], np.asfortranarray(X[7:300]), X[300:301], X[301:]]


def read(path: Path, label: str | None = None) -> tuple[list[str] | None, npt.NDArray[Any], npt.NDArray[Any] | None]:
    """Names, values and labels by other means than the readers of deepca."""
    if path.suffix == ".npy":
        return None, np.load(path), None
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            names, *rows = csv.reader(file)
        table = {name: [row[j] for row in rows] for j, name in enumerate(names)}
        labels = None if label is None else np.array(table.pop(label))
        return list(table), np.array([[float(x) for x in column] for column in table.values()]).T, labels
    if path.suffix == ".parquet":
        whole = pyarrow.parquet.read_table(path)
        labels = None if label is None else np.array(whole.column(label).to_pylist())
        whole = whole if label is None else whole.drop_columns([label])
        return whole.column_names, np.stack([np.asarray(column) for column in whole.columns], axis=1), labels
    with h5py.File(path) as stored:
        labels = None if label is None else stored[label][:]
        if labels is not None and labels.dtype == object:
            labels = stored[label].asstr()[:].astype(str)
        return list(stored["columns"].asstr()[:]), stored["X"][:], labels


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_is_written_is_read_again(suffix: str, dtype: type, tmp_path: Path) -> None:
    path = tmp_path / "new" / f"a{suffix}"
    with open_writer(path, NAMES, dtype=dtype) as writer:
        for block in blocks(dtype):
            writer.write(block)
        assert not path.exists()
    X = np.concatenate(blocks(dtype))
    names, values, _ = read(path)
    assert names == (None if suffix == ".npy" else list(NAMES))
    np.testing.assert_array_equal(values.astype(dtype), X)
    if suffix != ".csv":
        assert values.dtype == dtype
    again = open_source(path)
    np.testing.assert_array_equal(np.concatenate(list(again.blocks())).astype(dtype), X)
    assert again.columns == (None if suffix == ".npy" else tuple(NAMES))
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    "labels",
    [
        np.arange(500),
        np.arange(500) / 4,
        np.array([f"p, {i % 7}" * (1 + i // 100) for i in range(500)]),
        np.array([f"ä{i % 7}" for i in range(500)], dtype=object),
        np.arange(500) % 2 == 0,
    ],
    ids=["whole", "real", "text", "object", "bool"],
)
@pytest.mark.parametrize("suffix", WITH_LABELS)
def test_labels_are_written_beside_the_values(suffix: str, labels: npt.NDArray[Any], tmp_path: Path) -> None:
    path, first = tmp_path / f"a{suffix}", 0
    with open_writer(path, NAMES, dtype=np.float64, label="who") as writer:
        for block in blocks():
            writer.write(block, labels[first : first + len(block)])
            first += len(block)
    names, values, found = read(path, "who")
    assert names == list(NAMES)
    np.testing.assert_array_equal(values, np.concatenate(blocks()))
    assert found is not None
    expected = labels.astype(str) if labels.dtype == object else labels
    if suffix == ".csv":
        words = expected.astype(str) if expected.dtype.kind == "U" else None
        if words is not None:
            np.testing.assert_array_equal(found, words)
        elif expected.dtype.kind != "b":
            np.testing.assert_array_equal(found.astype(float), expected)
    else:
        np.testing.assert_array_equal(found, expected)
    again = open_source(path, label_column="who")
    if not (suffix == ".csv" and expected.dtype.kind == "b"):  # there it is the text true
        np.testing.assert_array_equal(again.labels(), expected)
    np.testing.assert_array_equal(np.concatenate(list(again.blocks())), values)


def test_special_values_survive(tmp_path: Path) -> None:
    X = np.array([[np.nan, np.inf, -np.inf], [-0.0, 5e-324, 1.7976931348623157e308], [0.1, 1 / 3, 2**53 + 1.0]])
    for suffix in SUFFIXES:
        with open_writer(tmp_path / f"a{suffix}", NAMES, dtype="float64") as writer:
            writer.write(X)
        (block,) = open_source(tmp_path / f"a{suffix}").blocks()
        np.testing.assert_array_equal(block, X)
        assert np.signbit(np.asarray(block)[1, 0])


def test_other_numbers_are_cast(tmp_path: Path) -> None:
    with open_writer(tmp_path / "a.npy", NAMES, dtype=np.float32) as writer:
        writer.write(np.arange(6).reshape(2, 3))
    found = np.load(tmp_path / "a.npy")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [[0, 1, 2], [3, 4, 5]])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_no_rows_at_all(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    with open_writer(path, NAMES, dtype=np.float64):
        pass
    if suffix == ".csv":
        assert path.read_text().strip() == '"pc1","pc2","a, b"'
    else:
        assert read(path)[1].shape == (0, 3)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("begun", [False, True])
def test_an_error_leaves_what_was_there(suffix: str, begun: bool, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"as before")

    def fail() -> None:
        with open_writer(path, NAMES, dtype=np.float64) as writer:
            if begun:
                writer.write(blocks()[0])
            raise OSError(errno.EIO, "something else failed")

    with pytest.raises(OSError, match="something else failed"):  # the caller's own error comes through as it is
        fail()
    assert path.read_bytes() == b"as before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_finished_file_takes_the_place_of_another(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"as before")
    with open_writer(path, NAMES, dtype=np.float64) as writer:
        writer.write(blocks()[0])
        assert path.read_bytes() == b"as before"
    np.testing.assert_array_equal(read(path)[1], blocks()[0])
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("when", ["append", "finish"])
def test_a_full_disk_is_told_and_nothing_is_left(when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(GrowingNpy, when, full)
    path = tmp_path / "a.npy"

    def write() -> None:
        with open_writer(path, NAMES, dtype=np.float64) as writer:
            writer.write(blocks()[0])

    with pytest.raises(DataError, match=r"a\.npy cannot be written \(No space left on device\); make room"):
        write()
    assert not list(tmp_path.iterdir())


def test_hdf5_is_not_begun_where_there_is_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = iter([1 << 30, 1 << 30, 1 << 10])
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=next(room)))

    def write() -> None:
        with open_writer(tmp_path / "a.h5", NAMES, dtype=np.float64) as writer:
            writer.write(blocks()[0])
            writer.write(blocks()[0])

    with pytest.raises(DataError, match=r"a\.h5 cannot be written \(No space left on device\); make room"):
        write()
    assert next(room, None) is None
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no such device on this system")
@pytest.mark.parametrize("kind", [".parquet", ".csv", ".npy"])
def test_a_disk_that_is_really_full(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def on_full_disk(**_: object) -> tuple[int, str]:
        part = tmp_path / "part"
        part.symlink_to("/dev/full")
        return os.open(part, os.O_WRONLY), str(part)

    def write() -> None:
        with open_writer(tmp_path / f"a{kind}", NAMES, dtype=np.float64) as writer:
            writer.write(np.zeros((200_000, len(NAMES))))

    monkeypatch.setattr(tempfile, "mkstemp", on_full_disk)
    with pytest.raises(DataError, match="cannot be written"):
        write()
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_written(tmp_path: Path) -> None:
    def write(name: str, columns: Any = NAMES, dtype: Any = np.float64, **more: Any) -> None:
        given = more.pop("given", [])
        with open_writer(tmp_path / name, columns, dtype=dtype, **more) as writer:
            for block in given:
                writer.write(*block)

    X = np.zeros((2, 3))
    known = r"\.parquet, \.csv, \.npy, \.h5, \.hdf5"
    bad: dict[str, tuple[Any, ...]] = {
        rf"a\.xlsx: \.xlsx is not known; names of files to write end in {known}": ("a.xlsx",),
        r"a: no suffix is not known": ("a",),
        r"a\.csv: values of dtype int64 cannot be written": ("a.csv", NAMES, np.int64),
        r"a\.csv: columns and label need different names; they are 'label', 'x', 'x'": ("a.csv", ["x", "x"]),
        r"a\.csv: columns and label need different names; they are 'label', 'label'": ("a.csv", ["label"]),
        r"a\.csv: there are no columns to write": ("a.csv", []),
    }
    for message, arguments in bad.items():
        with pytest.raises(DataError, match=message):
            write(*arguments)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(DataError, match=r"folder\.csv is a folder"):
        write("folder.csv")
    (tmp_path / "folder.csv").rmdir()
    for message, name, given in (
        (r"a block of shape \(2, 2\) does not fit; expected \(rows, 3\)", "a.csv", [(X[:, :2],)]),
        (r"a block of shape \(3,\) does not fit", "a.csv", [(X[0],)]),
        (r"labels of shape \(1,\) for 2 rows", "a.csv", [(X, np.zeros(1))]),
        (r"labels are none here and int64 in rows before", "a.csv", [(X, np.arange(2)), (X,)]),
        (r"labels are int64 here and none in rows before", "a.h5", [(X,), (X, np.arange(2))]),
        (r"labels are <U1 here and int64 in rows before", "a.parquet", [(X, np.arange(2)), (X, np.array(["a", "b"]))]),
        (r"a\.npy: \.npy has no room for labels; write \.parquet, \.csv or \.h5", "a.npy", [(X, np.arange(2))]),
    ):
        with pytest.raises(DataError, match=message):
            write(name, given=given)
    with pytest.raises(DataError, match=r"a\.h5: 'X' is taken by HDF5"):
        write("a.h5", label="X")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"a\.csv cannot be written \((File exists|Not a directory)\)"):
        write("file/a.csv")
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


@pytest.mark.parametrize(
    ("suffix", "modules"),
    [(".csv", ("pyarrow", "pyarrow.csv")), (".parquet", ("pyarrow", "pyarrow.parquet")), (".h5", ("h5py",))],
)
def test_a_missing_package_is_named_with_its_extra(
    suffix: str, modules: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)

    def write() -> None:
        with open_writer(tmp_path / f"a{suffix}", NAMES, dtype=np.float64) as writer:
            writer.write(blocks()[0])

    with pytest.raises(MissingExtraError, match=rf"needs {modules[0]}; pip install 'deepca\[files\]'"):
        write()
    assert not list(tmp_path.iterdir())


def test_a_growing_file_has_room_for_any_number_of_rows(tmp_path: Path) -> None:
    """The header is as long for no rows as for a great many, so it can be written last."""
    path = tmp_path / "a.npy"
    file = GrowingNpy(path, (2,), np.float64)
    file.append(np.ones((3, 2)))
    file.rows = 10**18
    file.finish()
    with path.open("rb") as stream:
        np.lib.format.read_magic(stream)
        shape, _, _ = np.lib.format.read_array_header_1_0(stream)
        assert shape == (10**18, 2)
        np.testing.assert_array_equal(np.frombuffer(stream.read()), np.ones(6))
