"""Test that files are written block by block and atomically, and can be read again."""

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
from tests.support.errors import raises

NAMES = ("pc1", "pc2", "a, b")
SUFFIXES = (".parquet", ".csv", ".npy", ".h5", ".hdf5")
WITH_LABELS = (".parquet", ".csv", ".h5")


def blocks(dtype: npt.DTypeLike = np.float64) -> list[npt.NDArray[Any]]:
    """Return blocks of different heights, one of them empty and one of them not contiguous."""
    rng = np.random.default_rng(0)
    scales = 10.0 ** np.arange(-150, 150, 100) if dtype == np.float64 else np.array([1e-30, 1.0, 1e30])
    X = (rng.standard_normal((500, 3)) * scales).astype(dtype)
    return [X[:7], X[7:7], np.asfortranarray(X[7:300]), X[300:301], X[301:]]


def read(path: Path, label: str | None = None) -> tuple[list[str] | None, npt.NDArray[Any], npt.NDArray[Any] | None]:
    """Return names, values and labels, without using the readers of deepca."""
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
def test_files_can_be_read_again(suffix: str, dtype: type, tmp_path: Path) -> None:
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
def test_labels_are_stored_with_the_values(suffix: str, labels: npt.NDArray[Any], tmp_path: Path) -> None:
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
    if not (suffix == ".csv" and expected.dtype.kind == "b"):  # CSV stores the text true
        np.testing.assert_array_equal(again.labels(), expected)
    np.testing.assert_array_equal(np.concatenate(list(again.blocks())), values)


def test_special_values_are_preserved(tmp_path: Path) -> None:
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
def test_a_file_may_have_no_rows(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    with open_writer(path, NAMES, dtype=np.float64):
        pass
    if suffix == ".csv":
        assert path.read_text().strip() == '"pc1","pc2","a, b"'
    else:
        assert read(path)[1].shape == (0, 3)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("begun", [False, True])
def test_an_error_leaves_the_existing_file_unchanged(suffix: str, begun: bool, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"as before")

    def fail() -> None:
        with open_writer(path, NAMES, dtype=np.float64) as writer:
            if begun:
                writer.write(blocks()[0])
            raise OSError(errno.EIO, "something else failed")

    with raises(OSError, errno=errno.EIO, strerror="something else failed"):  # the caller's own error is not replaced
        fail()
    assert path.read_bytes() == b"as before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_finished_file_replaces_another(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"as before")
    with open_writer(path, NAMES, dtype=np.float64) as writer:
        writer.write(blocks()[0])
        assert path.read_bytes() == b"as before"
    np.testing.assert_array_equal(read(path)[1], blocks()[0])
    assert path.stat().st_mode & 0o777 == 0o644


def no_space(error: DataError) -> bool:
    """Return whether an error was caused by a full disk."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.ENOSPC


@pytest.mark.parametrize("when", ["append", "finish"])
def test_a_full_disk_is_reported_and_no_file_is_left(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(GrowingNpy, when, full)
    path = tmp_path / "a.npy"

    def write() -> None:
        with open_writer(path, NAMES, dtype=np.float64) as writer:
            writer.write(blocks()[0])

    with raises(DataError, file=str(path)) as caught:
        write()
    assert no_space(caught.value)
    assert not list(tmp_path.iterdir())


def test_hdf5_is_not_written_without_disk_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = iter([1 << 30, 1 << 30, 1 << 10])
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=next(room)))

    def write() -> None:
        with open_writer(tmp_path / "a.h5", NAMES, dtype=np.float64) as writer:
            writer.write(blocks()[0])
            writer.write(blocks()[0])

    with raises(DataError, file=str(tmp_path / "a.h5")) as caught:
        write()
    assert no_space(caught.value)
    assert next(room, None) is None
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is not available on this system")
@pytest.mark.parametrize("kind", [".parquet", ".csv", ".npy"])
def test_writing_to_a_full_device_is_an_error(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def on_full_disk(**_: object) -> tuple[int, str]:
        part = tmp_path / "part"
        part.symlink_to("/dev/full")
        return os.open(part, os.O_WRONLY), str(part)

    def write() -> None:
        with open_writer(tmp_path / f"a{kind}", NAMES, dtype=np.float64) as writer:
            writer.write(np.zeros((200_000, len(NAMES))))

    monkeypatch.setattr(tempfile, "mkstemp", on_full_disk)
    with raises(DataError, file=str(tmp_path / f"a{kind}")) as caught:
        write()
    assert no_space(caught.value)
    assert not list(tmp_path.iterdir())


def test_input_that_cannot_be_written_is_rejected(tmp_path: Path) -> None:
    def write(name: str, columns: Any = NAMES, dtype: Any = np.float64, **more: Any) -> None:
        given = more.pop("given", [])
        with open_writer(tmp_path / name, columns, dtype=dtype, **more) as writer:
            for block in given:
                writer.write(*block)

    X = np.zeros((2, 3))
    for name, columns, dtype, parameter, value in (
        ("a.xlsx", NAMES, np.float64, None, ".xlsx"),
        ("a", NAMES, np.float64, None, ""),
        ("a.csv", NAMES, np.int64, "dtype", np.int64),
        ("a.csv", ["x", "x"], np.float64, "columns", ("x", "x")),
        ("a.csv", ["label"], np.float64, "columns", ("label",)),
        ("a.csv", [], np.float64, "columns", None),
    ):
        with raises(DataError, file=str(tmp_path / name), parameter=parameter, value=value):
            write(name, columns, dtype)
    (tmp_path / "folder.csv").mkdir()
    with raises(DataError, file=str(tmp_path / "folder.csv"), parameter="path"):
        write("folder.csv")
    (tmp_path / "folder.csv").rmdir()
    for name, given, option, found in (
        ("a.csv", [(X[:, :2],)], None, (2, 2)),
        ("a.csv", [(X[0],)], None, (3,)),
        ("a.csv", [(X, np.zeros(1))], "labels", (1,)),
        ("a.csv", [(X, np.arange(2)), (X,)], "labels", None),
        ("a.h5", [(X,), (X, np.arange(2))], "labels", np.int64),
        ("a.parquet", [(X, np.arange(2)), (X, np.array(["a", "b"]))], "labels", np.dtype("<U1")),
        ("a.npy", [(X, np.arange(2))], "labels", None),
    ):
        with raises(DataError, file=str(tmp_path / name), parameter=option, value=found):
            write(name, given=given)
    with raises(DataError, file=str(tmp_path / "a.h5"), parameter="label", value="X"):
        write("a.h5", label="X")
    (tmp_path / "file").touch()
    with raises(DataError, file=str(tmp_path / "file/a.csv")) as caught:
        write("file/a.csv")
    assert isinstance(caught.value.__cause__, FileExistsError | NotADirectoryError)
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

    with raises(MissingExtraError, name=modules[0]):
        write()
    assert not list(tmp_path.iterdir())


def test_a_growing_npy_file_has_space_for_any_number_of_rows(tmp_path: Path) -> None:
    """The header has the same length for any number of rows, so it can be rewritten at the end."""
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
