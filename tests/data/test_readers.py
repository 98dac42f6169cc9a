"""Compare the readers of all formats with other readers, and check that errors locate what is wrong."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import os
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anndata
import h5py
import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.parquet
import pytest
from scipy import sparse
from sklearn.datasets import load_svmlight_file

from deepca.data import sources
from deepca.data.allocation import by_label, split_equally
from deepca.data.columns import align_columns
from deepca.data.local_data import read
from deepca.data.readers import SUFFIXES, delimited, h5ad, open_source, spool, spooling, svmlight
from deepca.data.sources import ArraySource, Block, IteratorSource, Source, as_source
from deepca.errors import DataError, MissingExtraError
from tests.support.errors import raises
from tests.support.paths import SHARED

N, D = 97, 5
NAMES = ("age", "height", "weight", "dose", "time")
Any2D = npt.NDArray[Any]


def values(dtype: npt.DTypeLike = np.float64) -> Any2D:
    """Return rows with numbers of all magnitudes, some of them integers and some zero."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((N, D)) * 10.0 ** rng.integers(-9, 9, size=(N, D))
    X[rng.random((N, D)) < 0.3] = 0.0
    X[0, 0], X[1, 1] = 7.0, -12.0
    return X.astype(dtype)


def whole(source: Source) -> Any2D:
    """Return all blocks as one dense array."""
    return np.concatenate([dense(block) for block in source.blocks()])


def dense(block: Block) -> Any2D:
    return block if isinstance(block, np.ndarray) else block.toarray()


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make blocks small, so that small files have many of them."""
    monkeypatch.setattr(sources, "BLOCK_BYTES", 8 * D * 10)
    monkeypatch.setattr(h5ad, "BLOCK_BYTES", 12 * 25)
    monkeypatch.setattr(h5ad, "ROW_POINTERS_AT_ONCE", 23)
    monkeypatch.setattr(delimited, "MIN_BLOCK_BYTES", 600)
    monkeypatch.setattr(delimited, "ROWS_PER_BLOCK", 4)
    monkeypatch.setattr(svmlight, "BLOCK_TEXT_BYTES", 700)


# --- one file of every kind ------------------------------------------------------------------------------------------


def csv_text(X: Any2D, names: tuple[str, ...] | None = NAMES, delimiter: str = ",") -> bytes:
    text = io.StringIO()
    out = csv.writer(text, delimiter=delimiter)
    if names is not None:
        out.writerow(names)
    out.writerows([repr(float(x)) for x in row] for row in X)
    return text.getvalue().encode()


def svm_text(X: Any2D, y: Any2D | None = None) -> bytes:
    y = np.arange(len(X)) % 3 if y is None else y
    rows = ([f"{j + 1}:{float(x)!r}" for j, x in enumerate(row) if x] for row in X)
    return "".join(f"{label} {' '.join(row)}\n" for label, row in zip(y, rows, strict=True)).encode()


def write_parquet(path: Path, X: Any2D, **columns: Any) -> None:
    table = pyarrow.table({**columns, **{name: X[:, j] for j, name in enumerate(NAMES)}})
    pyarrow.parquet.write_table(table, path, row_group_size=40)


def write_h5(path: Path, X: Any2D) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("deep/rows", data=X, chunks=(7, 2), compression="gzip")
        file["kind"] = np.arange(len(X)) % 4


def write_h5ad(path: Path, X: Any, **obs: Any) -> None:
    import pandas as pd

    frame = pd.DataFrame(obs, index=[f"cell{i}" for i in range(X.shape[0])])
    anndata.AnnData(X, obs=frame, var=pd.DataFrame(index=list(NAMES))).write_h5ad(path)


WRITE: dict[str, Callable[[Path, Any2D], object]] = {
    "a.npy": lambda path, X: np.save(path, X),
    "fortran.npy": lambda path, X: np.save(path, np.asfortranarray(X)),
    "a.npz": lambda path, X: np.savez(path, X=X),
    "packed.npz": lambda path, X: np.savez_compressed(path, X=X, y=np.arange(N)),
    "fortran.npz": lambda path, X: np.savez(path, X=np.asfortranarray(X)),
    "sparse.npz": lambda path, X: sparse.save_npz(path, sparse.csr_array(X)),
    "csc.npz": lambda path, X: sparse.save_npz(path, sparse.csc_matrix(X)),
    "a.csv": lambda path, X: path.write_bytes(csv_text(X)),
    "A.CSV.GZ": lambda path, X: path.write_bytes(gzip.compress(csv_text(X))),
    "a.csv.bz2": lambda path, X: path.write_bytes(bz2.compress(csv_text(X))),
    "bare.csv": lambda path, X: path.write_bytes(csv_text(X, None)),
    "semicolon.csv": lambda path, X: path.write_bytes(csv_text(X, delimiter=";")),
    "a.tsv": lambda path, X: path.write_bytes(csv_text(X, delimiter="\t")),
    "savetxt.txt": lambda path, X: np.savetxt(path, X, fmt="%.17g"),
    "a.parquet": write_parquet,
    "a.svm": lambda path, X: path.write_bytes(svm_text(X)),
    "a.libsvm.gz": lambda path, X: path.write_bytes(gzip.compress(svm_text(X))),
    "a9a": lambda path, X: path.write_bytes(svm_text(X)),
    "a9a.bz2": lambda path, X: path.write_bytes(bz2.compress(svm_text(X))),
    "a9a.txt": lambda path, X: path.write_bytes(svm_text(X)),
    "a.h5": write_h5,
    "a.hdf5": write_h5,
    "dense.h5ad": write_h5ad,
    "csr.h5ad": lambda path, X: write_h5ad(path, sparse.csr_matrix(X)),
    "csc.h5ad": lambda path, X: write_h5ad(path, sparse.csc_matrix(X)),
}
NAMED = {"a.csv", "A.CSV.GZ", "a.csv.bz2", "semicolon.csv", "a.tsv", "a.parquet", "dense.h5ad", "csr.h5ad", "csc.h5ad"}
SVMLIGHT = {"a.svm", "a.libsvm.gz", "a9a", "a9a.bz2", "a9a.txt"}
SPARSE = {"sparse.npz", "csc.npz", "csr.h5ad", "csc.h5ad", *SVMLIGHT}
ROWS_UNKNOWN = {name for name in WRITE if ".csv" in name.lower() or name in ("a.tsv", "savetxt.txt")}
IN_MEMORY = {"a.npy", "fortran.npy", "fortran.npz", "csc.h5ad", *SPARSE} - {"csr.h5ad"}


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", WRITE)
def test_every_format_gives_the_rows_that_were_written(name: str, tmp_path: Path) -> None:
    X, path = values(), tmp_path / name
    WRITE[name](path, X)
    source = open_source(path)

    blocks = list(source.blocks())
    assert len(blocks) > 3  # in pieces
    assert all(block.shape[1] == D for block in blocks)
    assert all(sparse.issparse(block) == (name in SPARSE) for block in blocks)
    assert {block.dtype for block in blocks} == {np.dtype(np.float64)}
    np.testing.assert_array_equal(whole(source), X)
    np.testing.assert_array_equal(whole(source), X)  # and again
    assert source.name == str(path)
    assert source.d == D
    assert source.n == (None if name in ROWS_UNKNOWN else N)
    assert source.dtype == np.float64
    assert source.is_sparse == (name in SPARSE)
    assert source.columns == (NAMES if name in NAMED else None)
    assert not source.single_pass
    assert (source.matrix() is not None) == (name in IN_MEMORY)
    assert (source.labels() is not None) == (name in SVMLIGHT)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", WRITE)
def test_two_passes_can_be_under_way_at_once(name: str, tmp_path: Path) -> None:
    X, path = values(), tmp_path / name
    WRITE[name](path, X)
    source = open_source(path)
    one, other = source.blocks(), source.blocks()
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(dense(left), dense(right))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", ["a.npy", "a.npz", "fortran.npz", "sparse.npz", "a.parquet", "a.h5", "csr.h5ad"])
def test_float32_stays_float32(name: str, tmp_path: Path) -> None:
    X, path = values(np.float32), tmp_path / name
    WRITE[name](path, X)
    source = open_source(path)
    assert source.dtype == np.float32
    assert {block.dtype for block in source.blocks()} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(whole(source), X)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", ["int16", "uint8", "bool", ">f8", "float16", "int64"])
@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.h5", "a.parquet", "dense.h5ad"])
def test_other_numbers_become_float64_block_by_block(name: str, dtype: str, tmp_path: Path) -> None:
    if (name, dtype) in {("a.parquet", ">f8"), ("dense.h5ad", "bool")}:
        pytest.skip("cannot be written")
    X, path = (np.arange(N * D).reshape(N, D) % 2).astype(dtype), tmp_path / name
    WRITE[name](path, X)
    source = open_source(path)
    assert source.matrix() is None
    assert source.dtype == np.float64
    assert {block.dtype for block in source.blocks()} == {np.dtype(np.float64)}
    np.testing.assert_array_equal(whole(source), X.astype(np.float64))


def test_big_endian_float32_is_float32(tmp_path: Path) -> None:
    X = values(np.float32)
    np.save(tmp_path / "a.npy", X.astype(">f4"))
    source = open_source(tmp_path / "a.npy")
    assert source.dtype == np.float32
    assert whole(source).dtype == np.dtype(np.float32)
    np.testing.assert_array_equal(whole(source), X)


def test_an_npy_file_is_memory_mapped(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", values())
    assert isinstance(open_source(tmp_path / "a.npy").matrix(), np.memmap)


def test_as_source_opens_paths_and_the_name_is_the_path_as_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "a.npy", values())
    monkeypatch.chdir(tmp_path)
    assert open_source("a.npy").name == "a.npy"
    np.testing.assert_array_equal(whole(as_source(Path("a.npy"), "agent 0")), values())


# --- columns and labels ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", sorted(NAMED))
def test_columns_are_read_in_the_requested_order(name: str, tmp_path: Path) -> None:
    X, path = values(), tmp_path / name
    WRITE[name](path, X)
    source = open_source(path, columns=["time", "age", "dose"])
    assert source.columns == ("time", "age", "dose")
    assert source.d == 3
    np.testing.assert_array_equal(whole(source), X[:, [4, 0, 3]])


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
@pytest.mark.parametrize("passes", [0, 1])
def test_a_column_of_a_table_can_be_the_label(name: str, passes: int, tmp_path: Path) -> None:
    X, path = values(), tmp_path / name
    WRITE[name](path, X)
    source = open_source(path, label_column="weight")
    for _ in range(passes):
        whole(source)
    labels = source.labels()
    np.testing.assert_array_equal(labels, X[:, 2])
    assert labels is not None
    assert labels.dtype == np.float64
    assert source.columns == ("age", "height", "dose", "time")
    np.testing.assert_array_equal(whole(source), X[:, [0, 1, 3, 4]])
    both = open_source(path, label_column="weight", columns=["time", "age"])
    np.testing.assert_array_equal(whole(both), X[:, [4, 0]])
    np.testing.assert_array_equal(both.labels(), X[:, 2])


def test_a_complete_pass_also_reads_the_labels(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("who,x\na,1\nb,2\n")
    source = open_source(path, label_column="who")
    whole(source)
    path.unlink()  # not read again
    np.testing.assert_array_equal(source.labels(), ["a", "b"])


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["a", "b", "a"], np.array(["a", "b", "a"])),
        (["1", "2", "-3"], np.array([1, 2, -3])),
        (["1", "2.5", "3"], np.array([1.0, 2.5, 3.0])),
        (["007", "012", "1"], np.array(["007", "012", "1"])),
        (["NA", "", '"x, ""y"""'], np.array(["NA", "", 'x, "y"'])),
        (['"two\nlines"', "ä", "1"], np.array(["two\nlines", "ä", "1"])),
    ],
)
def test_labels_of_csv_have_the_type_of_their_text(cells: list[str], expected: Any2D, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x,who\n" + "".join(f"{i},{cell}\n" for i, cell in enumerate(cells)), encoding="utf-8")
    source = open_source(path, label_column="who")
    labels = source.labels()
    assert labels is not None
    assert labels.dtype.kind == expected.dtype.kind
    np.testing.assert_array_equal(labels, expected)
    np.testing.assert_array_equal(whole(source), [[0.0], [1.0], [2.0]])


def test_labels_of_parquet_keep_their_type(tmp_path: Path) -> None:
    words = ["yes", "no", None] * 32 + ["no"]
    columns = {
        "text": words,
        "dictionary": pyarrow.array(words).dictionary_encode(),
        "whole": np.arange(N, dtype=np.int16),
        "day": np.arange(N).astype("datetime64[D]"),
    }
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"x": np.arange(N, dtype=float), **columns}), path)
    for name in columns:
        source = open_source(path, label_column=name, columns=["x"])
        labels = source.labels()
        assert labels is not None
        if name in ("text", "dictionary"):
            assert labels.tolist() == ["" if word is None else word for word in words]
        else:
            np.testing.assert_array_equal(labels, columns[name])
            assert labels.dtype.kind == np.asarray(columns[name]).dtype.kind


def test_labels_of_anndata_are_a_column_of_obs(tmp_path: Path) -> None:
    import pandas as pd

    X, path = values(), tmp_path / "a.h5ad"
    words, numbers = [f"type {i % 3}" for i in range(N)], np.arange(N) * 0.5
    gaps = pd.Categorical([None if i == 4 else "x" for i in range(N)])
    some = pd.array([None if i == 4 else i for i in range(N)], dtype="Int64")
    write_h5ad(path, sparse.csr_matrix(X), kind=pd.Categorical(words), text=words, depth=numbers, gaps=gaps, some=some)
    stored = anndata.read_h5ad(path)
    for name in ("kind", "text", "depth"):
        source = open_source(path, label_column=name)
        np.testing.assert_array_equal(source.labels(), np.asarray(stored.obs[name]))
        np.testing.assert_array_equal(whole(source), X)
    labels = open_source(path, label_column="gaps").labels()
    assert labels is not None
    assert labels[3:6].tolist() == ["x", "", "x"]
    np.testing.assert_array_equal(
        open_source(path, label_column="some").labels(), [np.nan if i == 4 else i for i in range(N)]
    )
    with raises(DataError, file=str(path), parameter="label_column", column="sort"):
        open_source(path, label_column="sort")


def test_other_matrices_of_anndata_can_be_read(tmp_path: Path) -> None:
    X, path = values(), tmp_path / "a.h5ad"
    full = anndata.AnnData(sparse.csr_matrix(X))
    full.var_names = list(NAMES)
    full.raw = full
    part = full[:, [3, 1]].copy()
    part.layers["doubled"] = part.X * 2
    part.obsm["plane"] = X[:, :3] * 3
    part.write_h5ad(path)
    by_key = {key: open_source(path, dataset=key) for key in ("X", "layers/doubled", "raw/X", "obsm/plane")}
    np.testing.assert_array_equal(whole(by_key["X"]), X[:, [3, 1]])
    np.testing.assert_array_equal(whole(by_key["layers/doubled"]), X[:, [3, 1]] * 2)
    np.testing.assert_array_equal(whole(by_key["raw/X"]), X)
    np.testing.assert_array_equal(whole(by_key["obsm/plane"]), X[:, :3] * 3)
    assert [by_key[key].columns for key in by_key] == [("dose", "height"), ("dose", "height"), NAMES, None]
    with raises(DataError, file=str(path), parameter="dataset", value="Y") as caught:
        open_source(path, dataset="Y")
    assert all(key in str(caught.value) for key in by_key)
    with raises(DataError, file=str(path), parameter="columns", column=None):
        open_source(path, dataset="obsm/plane", columns=["age"])


def test_anndata_files_of_old_versions_can_be_read(tmp_path: Path) -> None:
    X, path = values(), tmp_path / "old.h5ad"
    S = sparse.csr_array(X)
    with h5py.File(path, "w") as file:
        group = file.create_group("X")
        group.attrs["h5sparse_format"], group.attrs["h5sparse_shape"] = "csr", X.shape
        group["data"], group["indices"], group["indptr"] = S.data, S.indices, S.indptr
        file["var"] = np.array([(name.encode(), 1.0) for name in NAMES], dtype=[("index", "S9"), ("mean", float)])
    source = open_source(path)
    assert source.columns == NAMES
    np.testing.assert_array_equal(whole(source), X)


def test_a_vector_of_an_archive_can_be_the_label(tmp_path: Path) -> None:
    X, y = values(), np.array(["a", "b"] * 48 + ["c"])
    np.savez(tmp_path / "a.npz", X=X, y=y, short=y[:3])
    write_h5(tmp_path / "a.h5", X)
    np.testing.assert_array_equal(open_source(tmp_path / "a.npz", label_column="y").labels(), y)
    np.testing.assert_array_equal(open_source(tmp_path / "a.h5", label_column="kind").labels(), np.arange(N) % 4)
    file = str(tmp_path / "a.npz")
    for label, value in {"z": "z", "short": 3, "X": (97, 5)}.items():
        with raises(DataError, file=file, parameter="label_column", value=value):
            open_source(file, label_column=label)


def test_a_label_of_a_sparse_archive_has_one_entry_per_row(tmp_path: Path) -> None:
    X, path = sparse.csr_array(values()), tmp_path / "s.npz"
    stored = {"format": np.array(b"csr"), "shape": np.array(X.shape), "data": X.data}
    labels = {"y": np.arange(N), "short": np.arange(3)}
    np.savez(path, allow_pickle=False, indices=X.indices, indptr=X.indptr, **stored, **labels)
    np.testing.assert_array_equal(open_source(path, label_column="y").labels(), np.arange(N))
    with raises(DataError, file=str(path), parameter="label_column", value=3):
        open_source(path, label_column="short")


@pytest.mark.parametrize("name", ["a.npz", "a.h5"])
def test_one_of_several_matrices_is_named(name: str, tmp_path: Path) -> None:
    X, path = values(), tmp_path / name
    if name == "a.npz":
        np.savez(path, first=X, second=X[:, :2], vector=X[0])
    else:
        with h5py.File(path, "w") as file:
            file["first"], file["second"], file["vector"] = X, X[:, :2], X[0]
    np.testing.assert_array_equal(whole(open_source(path, dataset="second")), X[:, :2])
    for dataset, value in {None: ("first", "second"), "third": "third", "vector": (5,)}.items():
        with raises(DataError, file=str(path), parameter="dataset", value=value):
            open_source(path, dataset=dataset)


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "dense.h5ad"])
def test_missing_and_duplicate_column_names_are_rejected(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    WRITE[name](path, values())
    file = str(path)
    if name != "dense.h5ad":
        with raises(DataError, file=file, parameter="label_column", column="sort") as caught:
            open_source(path, label_column="sort")
        assert all(repr(column) in str(caught.value) for column in NAMES)
        with raises(DataError, file=file, parameter="label_column", column="age"):
            open_source(path, label_column="age", columns=["age", "dose"])
    with raises(DataError, file=file, parameter="columns", column="sort"):
        open_source(path, columns=["age", "sort"])
    with raises(DataError, file=file, parameter="columns", column="age", value=None):
        open_source(path, columns=["age", "dose", "age"])
    with raises(DataError, file=file, parameter="columns", column=None, value="age"):
        open_source(path, columns="age")
    with raises(DataError, file=file, column=None, value=()):
        open_source(path, columns=[])


@pytest.mark.filterwarnings("ignore:Variable names are not unique")
def test_files_with_two_columns_of_the_same_name_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y, x\n1,2,3\n")
    with raises(DataError, file=str(tmp_path / "a.csv"), parameter=None, column="x"):
        open_source(tmp_path / "a.csv")
    table = pyarrow.Table.from_arrays([pyarrow.array([1.0])] * 2, names=["x", "x"])
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with raises(DataError, file=str(tmp_path / "a.parquet"), parameter=None, column="x"):
        open_source(tmp_path / "a.parquet")
    data = anndata.AnnData(values())
    data.var_names = ["a", "b", "c", "b", "d"]
    data.write_h5ad(tmp_path / "a.h5ad")
    with raises(DataError, file=str(tmp_path / "a.h5ad"), parameter=None, column="b") as caught:
        open_source(tmp_path / "a.h5ad")
    assert "var_names_make_unique" in str(caught.value)


def test_column_names_are_absent_from_redacted_messages(tmp_path: Path) -> None:
    """The first line of a file without a header may be taken for names, so names may be values of the data."""
    (tmp_path / "a.csv").write_text("1.5,secret,1.5\n1,2,3\n")
    with raises(DataError, column="1.5") as caught:
        open_source(tmp_path / "a.csv")
    assert "1.5" not in caught.value.redacted
    (tmp_path / "a.csv").write_text("1.5,secret,2.5\n1,2,3\n")
    with raises(DataError, column="who") as caught:
        open_source(tmp_path / "a.csv", label_column="who")
    assert "secret" in str(caught.value)
    assert "secret" not in caught.value.redacted


def test_many_names_are_not_all_listed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(",".join(f"c{i}" for i in range(50)) + "\n" + ",".join("1" * 50) + "\n")
    with raises(DataError, parameter="label_column", column="x") as caught:
        open_source(tmp_path / "a.csv", label_column="x")
    said = str(caught.value)
    assert [f"'c{i}'" in said for i in range(50)] == [True] * 8 + [False] * 42
    assert "50" in said


@pytest.mark.parametrize(
    ("name", "option", "given", "line"),
    [
        ("a.npy", "columns", ("x",), None),
        ("a.npy", "dataset", "x", None),
        ("a.csv", "dataset", "x", None),
        ("a.csv", "n_features", 3, None),
        ("a.svm", "label_column", "x", None),
        ("bare.csv", "label_column", "x", 1),  # the header is missing
        ("bare.csv", "columns", ("f0",), 1),
    ],
)
def test_options_that_do_not_apply_are_rejected(
    name: str, option: str, given: Any, line: int | None, tmp_path: Path
) -> None:
    path = tmp_path / name
    WRITE[name](path, values())
    with raises(DataError, file=str(path), parameter=option, line=line, value=None if line else given):
        open_source(path, **{option: given})


# --- specifics of each format ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "columns", "rows"),
    [
        ("1,2\n3,4\n", None, [[1, 2], [3, 4]]),
        ("\n\n1,2\r\n\r\n3,4", None, [[1, 2], [3, 4]]),
        ("a,2\n3,4\n", ("a", "2"), [[3, 4]]),
        ("\ufeffa,b\n3,4\n", ("a", "b"), [[3, 4]]),
        (' a ,"b, c"\n 3 ,"4"\n', ("a", "b, c"), [[3, 4]]),
        ('"a\nb",c\n3,4\n', ("a\nb", "c"), [[3, 4]]),
        ("0,1,2\n5,6,7\n", ("0", "1", "2"), [[5, 6, 7]]),
        (",0,1,2\n9,5,6,7\n", ("", "0", "1", "2"), [[9, 5, 6, 7]]),
        ("0,1\n5,6\n", None, [[0, 1], [5, 6]]),
        ("1,,nan\n5,6,NA\n", None, [[1, np.nan, np.nan], [5, 6, np.nan]]),
        ("a,b\n1,\n,2\n", ("a", "b"), [[1, np.nan], [np.nan, 2]]),
        ("a\n1e3\n-inf\n", ("a",), [[1000], [-np.inf]]),
        ("a;b\n1;2\n", ("a", "b"), [[1, 2]]),
        ("a\tb\n1\t2\n", ("a", "b"), [[1, 2]]),
        ("a,b\r1,2\r3,4\r", ("a", "b"), [[1, 2], [3, 4]]),
    ],
)
def test_headers_and_cells_of_csv_are_recognised(
    text: str, columns: tuple[str, ...] | None, rows: list[list[float]], tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode())
    source = open_source(path)
    assert source.columns == columns
    np.testing.assert_array_equal(whole(source), np.array(rows, dtype=float))


@pytest.mark.usefixtures("small_blocks")
def test_a_column_may_begin_with_many_integers_before_a_float(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n" + "1,\n" * 5000 + "1.5,2\n")
    X = whole(open_source(path))
    assert X.shape == (5001, 2)
    assert X[-1].tolist() == [1.5, 2.0]
    assert np.isnan(X[:-1, 1]).all()


@pytest.mark.usefixtures("small_blocks")
def test_multiline_text_may_extend_over_blocks(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x,who\n" + "".join(f'{i},"{i}\n, of several ""lines"" \n\n"\n' for i in range(500)))
    source = open_source(path, label_column="who")
    np.testing.assert_array_equal(whole(source)[:, 0], np.arange(500))
    np.testing.assert_array_equal(source.labels(), [f'{i}\n, of several "lines" \n\n' for i in range(500)])


def test_csv_rows_may_have_thousands_of_columns(tmp_path: Path) -> None:
    X = np.random.default_rng(0).standard_normal((3, 3000))
    (tmp_path / "a.csv").write_bytes(csv_text(X, tuple(f"c{j}" for j in range(3000))))
    np.testing.assert_array_equal(whole(open_source(tmp_path / "a.csv")), X)


def test_parquet_columns_of_many_types_become_float64(tmp_path: Path) -> None:
    from decimal import Decimal

    path = tmp_path / "a.parquet"
    columns = {
        "whole": pyarrow.array([1, None, 2**53 + 1], pyarrow.int64()),
        "flag": pyarrow.array([True, False, None]),
        "money": pyarrow.array([Decimal("1.25"), None, Decimal("-3.50")]),
        "half": pyarrow.array(np.array([0.5, 1.5, 2.5], dtype=np.float16)),
        "single": pyarrow.array([0.1, 0.2, None], pyarrow.float32()),
        "dotted.name": pyarrow.array([7, 8, 9], pyarrow.uint8()),
        "nothing": pyarrow.nulls(3),
        "coded": pyarrow.array([5.0, 6.0, 5.0]).dictionary_encode(),
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    source = open_source(path)
    nan, single = np.nan, np.float32
    expected = [
        [1, 1, 1.25, 0.5, single(0.1), 7, nan, 5],
        [nan, 0, nan, 1.5, single(0.2), 8, nan, 6],
        [float(2**53 + 1), nan, -3.5, 2.5, nan, 9, nan, 5],
    ]
    assert source.columns == tuple(columns)
    assert source.dtype == np.float64
    np.testing.assert_array_equal(whole(source), np.array(expected, dtype=float))


def test_the_index_of_a_frame_is_not_data(tmp_path: Path) -> None:
    import pandas as pd

    frame = pd.DataFrame({"x": [1.0, 2.0], "y": [3.0, 4.0]}, index=pd.Index(["p", "q"], name="who"))
    frame.to_parquet(tmp_path / "a.parquet", engine="pyarrow")
    source = open_source(tmp_path / "a.parquet")
    assert source.columns == ("x", "y")
    np.testing.assert_array_equal(open_source(tmp_path / "a.parquet", label_column="who").labels(), ["p", "q"])


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("budget", [1 << 40, 0])
def test_svmlight_rows_are_kept_in_memory_or_parsed_again(
    budget: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(svmlight, "available_memory", lambda: budget)
    X, path = values(), tmp_path / "a.svm"
    path.write_bytes(b"# a comment\n\n" + svm_text(X, np.arange(N) / 4))
    expected, y = load_svmlight_file(str(path))
    source = open_source(path)
    assert isinstance(source, ArraySource) == bool(budget)
    assert source.n == N
    assert len(list(source.blocks())) > 3
    np.testing.assert_array_equal(whole(source), expected.toarray())
    np.testing.assert_array_equal(source.labels(), y)
    np.testing.assert_array_equal(whole(open_source(path, n_features=9)), np.pad(X, ((0, 0), (0, 4))))
    with raises(DataError, file=str(path), parameter="n_features", value=3):
        open_source(path, n_features=3)


def test_files_that_change_between_passes_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(svmlight, "available_memory", lambda: 0)
    path = tmp_path / "a.svm"
    path.write_text("1 1:2 3:4\n")
    source = open_source(path)
    for line in ("1 4:1\n", "1 0:1\n"):
        path.write_text(line)
        with raises(DataError, file=str(path), __cause__=None):
            list(source.blocks())
    write_parquet(tmp_path / "a.parquet", values())
    table = open_source(tmp_path / "a.parquet")
    write_parquet(tmp_path / "a.parquet", values()[:50])
    with raises(DataError, file=str(tmp_path / "a.parquet"), value=50):
        list(table.blocks())
    path.unlink()
    with raises(DataError, file=str(path)) as caught:
        list(source.blocks())
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_svmlight_files_may_have_zero_based_indices_empty_rows_and_queries(tmp_path: Path) -> None:
    path = tmp_path / "a.svm"
    path.write_text("1 qid:3 0:2 2:3\n-1\n1 1:0.5 # note\n")
    source = open_source(path)
    np.testing.assert_array_equal(whole(source), [[2, 0, 3], [0, 0, 0], [0, 0.5, 0]])
    np.testing.assert_array_equal(source.labels(), [1, -1, 1])


@pytest.mark.skipif(not (SHARED / "a9a.bz2").is_file(), reason="the LIBSVM files are not there")
@pytest.mark.shared_data
def test_the_compressed_a9a_file_can_be_read() -> None:
    source = open_source(SHARED / "a9a.bz2")
    X, y = load_svmlight_file(str(SHARED / "a9a.bz2"))
    assert (abs(source.matrix() - X)).nnz == 0
    np.testing.assert_array_equal(source.labels(), y)


@pytest.mark.parametrize("chunks", [None, (97, 1), (1, 5), (10, 5), (50, 3)])
def test_hdf5_can_be_read_whatever_its_chunks(
    chunks: tuple[int, int] | None, tmp_path: Path, small_blocks: None
) -> None:
    X, path = values(), tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("X", data=X, chunks=chunks)
    np.testing.assert_array_equal(whole(open_source(path)), X)


def test_a_large_csc_matrix_is_rejected_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(h5ad, "available_memory", lambda: 0)
    WRITE["csc.h5ad"](tmp_path / "a.h5ad", values())
    with raises(DataError, file=str(tmp_path / "a.h5ad"), value="csc") as caught:
        open_source(tmp_path / "a.h5ad")
    assert "adata.X.tocsr()" in str(caught.value)


# --- bad files -------------------------------------------------------------------------------------------------------


def error_of(path: Path, **options: Any) -> DataError:
    """Return the error raised by opening or reading a bad file, which must name the file in one line."""
    with raises(DataError, file=str(path)) as caught:
        source = open_source(path, **options)
        whole(source)
        source.labels()
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


def facts_of(error: DataError) -> tuple[int | None, int | None, int | str | None, object]:
    """Return line, row, column and value of an error."""
    return error.line, error.row, error.column, error.value


NOWHERE = (None, None, None, None)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_missing_files_folders_empty_files_and_noise_are_rejected(suffix: str, tmp_path: Path) -> None:
    assert isinstance(error_of(tmp_path / f"gone{suffix}").__cause__, FileNotFoundError)
    (tmp_path / f"folder{suffix}").mkdir()
    assert error_of(tmp_path / f"folder{suffix}").parameter == "path"
    (tmp_path / f"empty{suffix}").touch()
    empty = error_of(tmp_path / f"empty{suffix}")
    assert (facts_of(empty), empty.parameter, empty.__cause__) == (NOWHERE, None, None)
    (tmp_path / f"noise{suffix}").write_bytes(np.random.default_rng(1).bytes(20_000))
    error_of(tmp_path / f"noise{suffix}")


@pytest.mark.parametrize("name", sorted(set(WRITE) - {"savetxt.txt"}))
def test_a_file_truncated_anywhere_is_rejected(name: str, tmp_path: Path) -> None:
    WRITE[name](tmp_path / name, values())
    whole_file = (tmp_path / name).read_bytes()
    is_text = name in ROWS_UNKNOWN | {"a.svm", "a9a", "a9a.txt"} and not name.lower().endswith(("gz", "bz2"))
    rng = np.random.default_rng(2)
    for cut in {1, 10, *rng.integers(2, len(whole_file) - 8, size=8).tolist()}:
        path = tmp_path / f"cut{cut}-{name}"
        path.write_bytes(whole_file[:cut])
        if is_text:  # the rest may be valid, but no error of a library may escape
            try:
                whole(open_source(path))
            except DataError as error:
                assert error.file == str(path)  # noqa: PT017 (an error is allowed, not required)
        else:
            error_of(path)


@pytest.mark.parametrize("name", ["a.npy", "packed.npz", "sparse.npz", "a.csv", "A.CSV.GZ", "a.parquet", "a9a.bz2"])
def test_damage_anywhere_raises_a_data_error_or_is_harmless(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    WRITE[name](path, values())
    good = path.read_bytes()
    rng = np.random.default_rng(4)
    faults = 0
    for _ in range(40):
        bad = bytearray(good)
        first = int(rng.integers(len(bad)))
        bad[first : first + 16] = rng.bytes(min(16, len(bad) - first))
        path.write_bytes(bad)
        try:
            whole(open_source(path))
        except DataError as error:
            faults += 1
            assert error.file == str(path)  # noqa: PT017 (an error is allowed, not required)
    assert faults > 0


GOOD = "5,6,7\n" * 2000


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("x,age,z\n" + GOOD + "1,unknown,3\n" + GOOD, (2002, 2000, "age", "unknown")),
        (GOOD + "1,unknown,3\n", (2001, 2000, 1, "unknown")),
        ("x,y,z\n" + GOOD + "1,2\n" + GOOD, (2002, 2000, None, 2)),
        (GOOD + "1,2,3,4\n", (2001, 2000, None, 4)),
        ("x,y,z\n\n" + GOOD + "\n\n1,2\n", (2005, 2000, None, 2)),
        ("\n\nx,y,z\n\n" + GOOD + "\n1,2,no\n", (2006, 2000, "z", "no")),
        ("\r\nx,y,z\r\n1,2,no\r\n", (3, 0, "z", "no")),
        ("x,y,z\r1,2,3\r1,2,no\r", (3, 1, "z", "no")),
        ('"a\nb",y,z\n1,2,3\n"4",no,6\n', (4, 1, "y", "no")),
        ("x,y,z\n1,2,no\n", (2, 0, "z", "no")),
        ("x,y,z\n1,2\n", (2, 0, None, 2)),
        ("x,y,z\n1,2,3\n4,,6\n", (3, 1, "y", None)),
        ("1,2,3\n\n\n4,5,nan\n", (4, 1, 2, None)),
        ("x,y,z\n", NOWHERE),
        ("x,y,z", NOWHERE),
        ("\n\n\n", NOWHERE),
    ],
    ids=range(16),
)
def test_csv_errors_state_line_row_column_and_value(
    text: str, facts: tuple[Any, ...], suffix: str, tmp_path: Path
) -> None:
    """Lines are counted as in an editor, and rows from 0 without the header."""
    path = tmp_path / f"site3{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())
    with raises(DataError, file=str(path)) as caught:
        read((open_source(path),))
    found = facts_of(caught.value)
    assert (*found[:3], None if found[3] != found[3] else found[3]) == facts  # NaN differs from itself
    assert str(path) in str(caught.value)
    assert facts[0] is None or f"line {facts[0]}" in str(caught.value)


def test_csv_errors_after_multiline_text_state_the_right_line(tmp_path: Path) -> None:
    """Line breaks inside quotes count as lines."""
    path = tmp_path / "a.csv"
    path.write_text('who,x\n"two\n\nlines",1\n\n"b",2\n"c\nd",no\n')
    assert facts_of(error_of(path, label_column="who")) == (7, 2, "x", "no")
    path.write_text('who,x\n"two\nlines",1\n"b",\n')
    with raises(DataError, file=str(path), line=4, row=1, column="x"):
        read((open_source(path, label_column="who"),))


def test_csv_labels_and_encodings_that_cannot_be_read_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"x,who\n" + b"1,M\xfcller\n" * 3)
    error = error_of(path, label_column="who")
    assert facts_of(error) == NOWHERE
    assert "UTF-8" in str(error)
    path.write_text("x,who\n1,a\n")
    assert facts_of(error_of(path, label_column="x")) == (2, 0, "who", "a")


def test_errors_after_spooling_allocation_and_reordering_state_the_line(tmp_path: Path) -> None:
    """Rows that were copied still know the line of the file from which they come."""
    north, south = tmp_path / "north.csv", tmp_path / "south.csv"
    north.write_text("a,b\n1,2\n3,4\n5,6\n")
    south.write_text("b,a\n\n1,2\n,4\n5,6\n")
    opened = align_columns([spool(open_source(path)) for path in (north, south)])
    shares = split_equally([spool(source) for source in opened], 2)
    with raises(DataError, agent=1, file=str(south), line=4, row=1, column="b"):
        read(shares)
    who = tmp_path / "who.csv"
    who.write_text("who,a,b\nx,1,2\ny,3,4\nx,5,\ny,7,8\n")
    with raises(DataError, agent=0, file=str(who), line=4, row=1, column="b"):
        read(by_label([spool(open_source(who, label_column="who"))]))


@pytest.mark.usefixtures("small_blocks")
def test_a_fault_in_the_middle_of_a_file_is_reported_when_it_is_reached(tmp_path: Path) -> None:
    """Opening a file does not read all of it, so good blocks come before the error."""
    text = b"x,y\n" + b"1,2\n" * 5000
    (tmp_path / "a.csv").write_bytes(text + b"1,2,3\n")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text * 20, compresslevel=0)[:-5000])
    write_parquet(tmp_path / "a.parquet", values())
    held = bytearray((tmp_path / "a.parquet").read_bytes())
    where = pyarrow.parquet.read_metadata(tmp_path / "a.parquet").row_group(2).column(1).data_page_offset
    held[where : where + 8] = b"\xff" * 8
    (tmp_path / "a.parquet").write_bytes(held)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        stored = file.create_dataset("X", data=values(), chunks=(10, 5), compression="gzip")
        where = stored.id.get_chunk_info(7).byte_offset
    held = bytearray((tmp_path / "a.h5").read_bytes())
    held[where : where + 20] = b"\xff" * 20
    (tmp_path / "a.h5").write_bytes(held)
    for name in ("a.csv", "a.csv.gz", "a.parquet", "a.h5"):
        blocks = open_source(tmp_path / name).blocks()
        next(blocks)
        with raises(DataError, file=str(tmp_path / name)):
            list(blocks)


@pytest.mark.parametrize("name", ["a.npz", "packed.npz"])
def test_the_checksum_of_an_archive_is_compared(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    WRITE[name](path, values())
    with zipfile.ZipFile(path) as archive:
        expected = archive.getinfo("X.npy").CRC
    held = path.read_bytes()
    path.write_bytes(held.replace(expected.to_bytes(4, "little"), (expected ^ 1).to_bytes(4, "little")))
    assert isinstance(error_of(path).__cause__, zipfile.BadZipFile)


@pytest.mark.parametrize("ending", ["csv", "parquet", "svm", ""])
def test_values_are_attributes_of_an_error_but_absent_from_its_redacted_message(tmp_path: Path, ending: str) -> None:
    """Discreet messages go to logs that others read, so they must not quote values."""
    path = tmp_path / f"a.{ending}".rstrip(".")
    if ending == "parquet":
        pyarrow.parquet.write_table(pyarrow.table({"x": [1.0, 2.0], "age": ["secret", "1"]}), path)
    else:
        path.write_text("x,age\n1,2\n2,secret\n" if ending == "csv" else "# a comment\n1 1:2\n1 1:secret\n")
    expected = {"csv": (3, 1, "age", "secret"), "parquet": (None, 0, "age", "secret")}
    with raises(DataError, file=str(path)) as caught:
        read((open_source(str(path)),))
    assert facts_of(caught.value) == expected.get(ending, (3, 1, None, "1:secret"))
    assert "secret" in str(caught.value)
    assert "secret" not in caught.value.redacted


@pytest.mark.parametrize("name", ["a.csv", "a.svm", "a.npy", "a.parquet", "a.h5"])
def test_infinite_values_are_absent_from_redacted_messages(tmp_path: Path, name: str) -> None:
    path, X = tmp_path / name, values()
    X[3, 4] = -np.inf
    WRITE[name](path, X)
    with raises(DataError, file=str(path), row=3, value=-np.inf) as caught:
        read((open_source(str(path)),))
    assert caught.value.line == {"a.csv": 5, "a.svm": 4}.get(name)
    assert "inf" in str(caught.value)
    assert "inf" not in caught.value.redacted.replace("finite", "")


def test_parquet_columns_without_numbers_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"x": [1.0] * 3, "age": [None, None, "unknown"]}), path)
    assert facts_of(error_of(path)) == (None, 2, "age", "unknown")
    pyarrow.parquet.write_table(pyarrow.table({"x": [[1.0], [2.0]]}), path)
    assert facts_of(error_of(path)) == (None, 0, "x", "[1.0]")
    pyarrow.parquet.write_table(pyarrow.table({"x": pyarrow.nulls(3, pyarrow.string())}), path)
    assert facts_of(error_of(path)) == (None, None, "x", None)
    pyarrow.parquet.write_table(pyarrow.table({"x": pyarrow.array([], pyarrow.float64())}), path)
    assert facts_of(error_of(path)) == NOWHERE
    pyarrow.parquet.write_table(pyarrow.table({"x": [1.0]}), path)
    assert facts_of(error_of(path, label_column="x")) == (None, None, None, ())


@pytest.mark.parametrize(
    ("array", "value"),
    [
        (np.zeros(4), (4,)),
        (np.zeros((2, 3, 4)), (2, 3, 4)),
        (np.zeros((0, 4)), None),
        (np.zeros((4, 0)), (4, 0)),
        (np.zeros((2, 2), dtype=complex), np.dtype(complex)),
        (np.array([["a", "b"]]), np.dtype("<U1")),
        (np.array([[1, None]]), np.dtype(object)),
        (np.zeros((2, 2), dtype=[("a", float)]), np.dtype([("a", float)])),
    ],
)
def test_arrays_that_are_not_rows_are_rejected(array: Any2D, value: object, tmp_path: Path) -> None:
    """The error has the shape or type that was found."""
    np.save(tmp_path / "a.npy", array)
    assert error_of(tmp_path / "a.npy").value == value
    in_archive = value if array.ndim == 2 else ()  # no matrix among the arrays
    np.savez(tmp_path / "a.npz", X=array)
    assert error_of(tmp_path / "a.npz").value == in_archive
    if array.dtype.kind in "fc":
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["X"] = array
        assert error_of(tmp_path / "a.h5").value == in_archive


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "sprung"),)

    trapped = np.array([[Trap()]], dtype=object)
    np.save(tmp_path / "a.npy", trapped)
    np.savez(tmp_path / "a.npz", X=trapped)
    np.savez(tmp_path / "b.npz", X=values(), y=np.array([Trap()], dtype=object))
    error_of(tmp_path / "a.npy")
    error_of(tmp_path / "a.npz")
    error_of(tmp_path / "b.npz", label_column="y")
    assert not (tmp_path / "sprung").exists()


def test_svmlight_errors_state_line_row_index_and_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(svmlight, "BLOCK_TEXT_BYTES", 100)
    path, good = tmp_path / "a.svm", "1 1:2 3:4\n" * 50
    cases: dict[str, tuple[Any, ...]] = {
        good + "1 1:2 x\n": (51, 50, None, "x"),
        "# head\n\n" + good + "yes 1:2\n" + good: (53, 50, None, "yes"),
        good + "1 3:1 2:1\n": (51, 50, 2, "2:1"),
        good + "1 -4:1\n": (51, 50, -4, "-4:1"),
        "a,b\n1,2\n": (1, 0, None, "a,b"),
        "# nothing\n": NOWHERE,
        "1\n2\n": NOWHERE,
        "1 99999999999:1\n": (1, 0, 99999999999, "99999999999:1"),
        "1 99999999999999999999999:1\n": (1, 0, 99999999999999999999999, "99999999999999999999999:1"),
    }
    for text, expected in cases.items():
        path.write_text(text)
        assert facts_of(error_of(path)) == expected
    path.write_text("1\n2\n")
    assert error_of(path).parameter == "n_features"
    path.write_text("# head\n" + good + "\n1 1:2 3:nan\n")
    with raises(DataError, file=str(path), line=53, row=50, column=2):
        read((open_source(path),))
    (tmp_path / "table").write_text("a,b\n1,2\n")
    error = error_of(tmp_path / "table")
    assert facts_of(error) == (1, 0, None, "a,b")
    assert all(suffix in str(error) for suffix in SUFFIXES)  # a file without a suffix is read as svmlight


def test_sparse_matrices_with_indices_out_of_bounds_are_rejected(tmp_path: Path) -> None:
    X = values()
    S = sparse.csr_array(X)
    S.indices[3] = D + 40
    sparse.save_npz(tmp_path / "a.npz", S)
    error_of(tmp_path / "a.npz")
    for form in ("csr", "csc"):
        path = tmp_path / f"{form}.h5ad"
        WRITE[path.name](path, X)
        with h5py.File(path, "r+") as file:
            file["X/indices"][5] = 1_000_000
        error_of(path)
    WRITE["csr.h5ad"](tmp_path / "rows.h5ad", X)
    with h5py.File(tmp_path / "rows.h5ad", "r+") as file:
        file["X/indptr"][4] = 0
    error_of(tmp_path / "rows.h5ad")
    WRITE["csr.h5ad"](tmp_path / "short.h5ad", X)
    with h5py.File(tmp_path / "short.h5ad", "r+") as file:
        file["X/indptr"][-1] += 5
    assert error_of(tmp_path / "short.h5ad").__cause__ is None
    WRITE["csr.h5ad"](tmp_path / "shape.h5ad", X)
    with h5py.File(tmp_path / "shape.h5ad", "r+") as file:
        file["X"].attrs["shape"] = (N + 1, D)
    assert error_of(tmp_path / "shape.h5ad").value == (N + 1, D)


def test_incomplete_anndata_files_are_rejected(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5ad", "w") as file:
        file["other"] = [1.0]
    assert (error_of(tmp_path / "a.h5ad").parameter, error_of(tmp_path / "a.h5ad").value) == ("dataset", "X")
    with h5py.File(tmp_path / "b.h5ad", "w") as file:
        file.create_group("X")
    assert (error_of(tmp_path / "b.h5ad").parameter, error_of(tmp_path / "b.h5ad").value) == ("dataset", "")
    WRITE["dense.h5ad"](tmp_path / "c.h5ad", values())
    with h5py.File(tmp_path / "c.h5ad", "r+") as file:
        del file["X"]
        file["X"] = values()[:, :3]
    assert error_of(tmp_path / "c.h5ad").value == 3


@pytest.mark.parametrize("name", ["a.xlsx", "a.npy.gz", "a.parquet.bz2", "a.pkl"])
def test_unknown_suffixes_are_rejected_with_the_known_ones(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"x")
    error = error_of(tmp_path / name)
    assert error.value == "".join(Path(name).suffixes)
    assert all(suffix in str(error) for suffix in SUFFIXES)


@pytest.mark.skipif(not hasattr(os, "mkfifo") or not hasattr(os, "geteuid"), reason="not available on this system")
def test_pipes_and_unreadable_files_are_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.csv")
    assert error_of(tmp_path / "a.csv").parameter == "path"
    if os.geteuid():  # root may read everything
        np.save(tmp_path / "a.npy", values())
        (tmp_path / "a.npy").chmod(0)
        assert isinstance(error_of(tmp_path / "a.npy").__cause__, PermissionError)


@pytest.mark.parametrize(
    ("name", "modules", "package"),
    [
        ("a.csv", ("pyarrow", "pyarrow.csv"), "pyarrow"),
        ("a.parquet", ("pyarrow", "pyarrow.parquet"), "pyarrow"),
        ("a.svm", ("sklearn", "sklearn.datasets"), "scikit-learn"),
        ("a.h5", ("h5py",), "h5py"),
        ("dense.h5ad", ("h5py",), "h5py"),
        ("dense.h5ad", ("anndata",), "anndata"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    name: str, modules: tuple[str, ...], package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    if name == "dense.h5ad":
        write_h5ad(path, values(), kind=["a"] * N)
    else:
        WRITE[name](path, values())
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    with raises(MissingExtraError, name=package):
        open_source(path, label_column="kind" if package == "anndata" else None)


def test_reading_imports_only_what_the_format_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "a.npy", values())
    write_h5ad(tmp_path / "a.h5ad", values())
    for module in ("pyarrow", "pyarrow.csv", "pyarrow.parquet", "sklearn", "sklearn.datasets", "anndata"):
        monkeypatch.setitem(sys.modules, module, None)
    whole(open_source(tmp_path / "a.npy"))
    whole(open_source(tmp_path / "a.h5ad"))


# --- spool -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("budget", [1 << 40, 4000, 0])
@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.h5", "csr.h5ad", "packed.npz"])
def test_spooling_keeps_a_source_in_memory_or_on_disk(
    name: str, budget: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spooling, "available_memory", lambda: budget)
    X, path, folder = values(), tmp_path / name, tmp_path / "kept"
    folder.mkdir()
    WRITE[name](path, X)
    source = open_source(path)
    kept = spool(source, folder)
    path.unlink()
    held = kept.matrix()
    parts = [held] if isinstance(held, np.ndarray) else [held.data, held.indices, held.indptr]
    on_disk = [_is_mapped(part) for part in parts]
    assert on_disk == [budget < 1 << 40] * len(parts)
    assert not list(folder.iterdir())  # the files have no name, so that a killed process leaves no rows behind
    np.testing.assert_array_equal(whole(kept), X)
    np.testing.assert_array_equal(whole(kept), X)
    assert (kept.name, kept.columns, kept.d, kept.n) == (str(path), source.columns, D, N)
    assert kept.dtype == source.dtype
    assert kept.is_sparse == source.is_sparse
    if not isinstance(held, np.ndarray):
        held.check_format(full_check=True)
    del kept
    np.testing.assert_array_equal(dense(held), X)  # they are still there


def _is_mapped(part: Any) -> bool:
    while part is not None and not isinstance(part, np.memmap):
        part = getattr(part, "base", None)
    return part is not None


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("budget", [1 << 40, 0])
def test_spooling_keeps_type_and_labels(
    dtype: type, budget: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spooling, "available_memory", lambda: budget)
    X = values(dtype)
    write_parquet(tmp_path / "a.parquet", X, who=[f"p{i % 3}" for i in range(N)])
    kept = spool(open_source(tmp_path / "a.parquet", label_column="who"), tmp_path)
    assert kept.dtype == dtype
    assert kept.matrix().dtype == dtype
    assert kept.columns == NAMES
    np.testing.assert_array_equal(kept.labels(), [f"p{i % 3}" for i in range(N)])
    np.testing.assert_array_equal(whole(kept), X)


def test_spooling_does_not_copy_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", values())
    source = open_source(tmp_path / "a.npy")
    assert spool(source).matrix() is source.matrix()


def test_spooling_reads_an_iterator_once() -> None:
    X = values()
    kept = spool(IteratorSource(iter([X[:30], X[30:]]), "agent 4"))
    np.testing.assert_array_equal(whole(kept), X)
    np.testing.assert_array_equal(whole(kept), X)


@pytest.mark.usefixtures("small_blocks")
def test_a_failed_spooling_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spooling, "available_memory", lambda: 0)

    def broken() -> Iterator[Any2D]:
        yield values()
        raise DataError("the rest is gone")

    with raises(DataError, args=("the rest is gone",)):
        spool(IteratorSource(broken, "agent 4"), tmp_path)
    assert not list(tmp_path.iterdir())
    source = IteratorSource(lambda: iter([values()]), "agent 4")
    with raises(DataError, parameter="folder") as caught:
        spool(source, tmp_path / "gone")
    assert isinstance(caught.value.__cause__, FileNotFoundError)
