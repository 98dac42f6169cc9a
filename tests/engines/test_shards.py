"""Test files that several ranks share: each rank finds all, opens its own, and knows the columns of all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import dump_svmlight_file

from deepca._util.typing import Array
from deepca.data.readers import open_sources
from deepca.data.sources import Source
from deepca.engines.local import Engine
from deepca.engines.shards import agree_on_files, expand_patterns, open_local_files
from deepca.errors import DataError
from tests.support.errors import raises
from tests.support.mpi_jobs import run_ranks


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with contextlib.chdir(tmp_path):
        yield tmp_path


def touch(*names: str) -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(b"")


def names(found: list[Path]) -> list[str]:
    return [str(path) for path in found]


def rows_of(source: Source) -> Array:
    blocks = [block.toarray() if sparse.issparse(block) else np.asarray(block) for block in source.blocks()]
    return np.concatenate(blocks)


# ------------------------------------------------------------------------------------------------------------ patterns


def test_numbers_in_names_are_sorted_by_value(folder: Path) -> None:
    touch(*(f"s/part-{i}.npy" for i in (10, 9, 2, 100, 1, 0)), "s/part-x.npy", "s/part-3.csv")
    found = names(expand_patterns([Path("s/*.npy")]))
    assert found == [*(f"s/part-{i}.npy" for i in (0, 1, 2, 9, 10, 100)), "s/part-x.npy"]
    touch("v/a1-b10", "v/a1-b9", "v/a10-b1", "v/a2-b1", "v/007", "v/8", "v/a")
    assert names(expand_patterns([Path("v/*")])) == [
        "v/007",
        "v/8",
        "v/a",
        "v/a1-b9",
        "v/a1-b10",
        "v/a2-b1",
        "v/a10-b1",
    ]


def test_files_stay_in_the_order_of_the_arguments(folder: Path) -> None:
    touch("b/1", "b/2", "a/1", "a/2", "c")
    found = expand_patterns([Path("b/*"), Path("c"), Path("a/[12]")])
    assert names(found) == ["b/1", "b/2", "c", "a/1", "a/2"]


def test_patterns_may_be_recursive(folder: Path) -> None:
    touch("s/x/1.npy", "s/2.npy", "s/y/z/3.npy")
    assert sorted(names(expand_patterns([Path("s/**/*.npy")]))) == ["s/2.npy", "s/x/1.npy", "s/y/z/3.npy"]
    assert names(expand_patterns([folder / "s" / "*.npy"])) == [str(folder / "s" / "2.npy")]


def test_a_file_may_be_named_like_a_pattern(folder: Path) -> None:
    touch("rows[1].npy", "rows1.npy", "what?.npy")
    assert names(expand_patterns([Path("rows[1].npy"), Path("what?.npy")])) == ["rows[1].npy", "what?.npy"]


def test_a_pattern_without_matches_is_rejected(folder: Path) -> None:
    touch("a.npy")
    with raises(DataError, file="*.csv"):
        expand_patterns([Path("a.npy"), Path("*.csv")])
    assert names(expand_patterns([Path("nowhere.npy")])) == ["nowhere.npy"]  # reported by the reader


# ---------------------------------------------------------------------------------------------- the same on all ranks


def test_all_ranks_must_find_the_same_files() -> None:
    every = [Path(f"s/{i}.npy") for i in range(6)]
    agree_on_files(Engine(), every)
    assert run_ranks(3, lambda ranks: agree_on_files(ranks, every)) == [None] * 3

    def differing(rank: int, *files: Path) -> tuple[object, str | None]:
        """Return the rank and the file that the error names if the given rank finds other files."""
        found = run_ranks(3, lambda ranks: agree_on_files(ranks, list(files) if ranks.rank == rank else every))
        errors = [error for error in found if type(error) is DataError]
        assert len(errors) == 3
        assert len({str(error) for error in errors}) == 1
        return errors[0].value, errors[0].file

    assert differing(2, *every[:5]) == (2, "s/5.npy")
    assert differing(1, *every[1:], Path("s/6.npy")) == (1, "s/0.npy")
    assert differing(1, *every[1:]) == (1, "s/0.npy")
    assert differing(0, *every[1:]) == (1, "s/0.npy")
    assert differing(2, *every[::-1]) == (2, None)


# ----------------------------------------------------------------------------------------------------------- opening


def save(kind: str, name: str, rows: Array, *, first: int = 1) -> Path:
    path = Path(f"{name}.{kind}")
    if kind == "npy":
        np.save(path, rows)
    else:
        dump_svmlight_file(sparse.csr_array(rows), np.zeros(len(rows)), str(path), zero_based=first == 0)
    return path


def some_rows(d: int, last: int, seed: int) -> Array:
    """Return rows of d columns that are zero after column ``last``, where svmlight omits them."""
    rows = np.random.default_rng(seed).standard_normal((5, d)).round(3)
    rows[:, last:] = 0.0
    return rows


def opened_by_all(files: Sequence[Path], shares: tuple[int, ...]) -> list[Source]:
    """Return the sources that all ranks open, in the order of the ranks."""
    found = run_ranks(len(shares), lambda ranks: open_local_files(ranks, files, shares))
    return [source for each in found if not isinstance(each, Exception) for source in each]


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("widths", [(3, 7, 5, 2), (7, 3, 3, 3), (2, 2, 2, 7)])
def test_svmlight_files_have_the_same_width_on_all_ranks(folder: Path, widths: tuple[int, ...], first: int) -> None:
    rows = [some_rows(7, width, seed) for seed, width in enumerate(widths)]
    if first == 0:  # only one file shows that columns are counted from 0
        for block in rows[:-1]:
            block[:, 0] = 0.0
    files = [save("svm", str(j), block, first=first) for j, block in enumerate(rows)]
    alone = open_sources(files)
    for shares in ((1, 1, 1, 1), (2, 2), (1, 3), (4,)):
        opened = opened_by_all(files, shares)
        assert [source.name for source in opened] == [str(file) for file in files]
        assert (
            [(source.d, source.first_index) for source in opened]
            == [(s.d, s.first_index) for s in alone]
            == [(7, first)] * 4
        )
        for source, block in zip(opened, rows, strict=True):
            np.testing.assert_array_equal(rows_of(source), block)


def test_dense_files_determine_the_width_of_sparse_ones(folder: Path) -> None:
    """The dense files may be on any rank."""
    rows = [some_rows(6, width, seed) for seed, width in enumerate((6, 4, 5))]
    files = [save(kind, str(j), block) for j, (kind, block) in enumerate(zip(("npy", "svm", "svm"), rows, strict=True))]
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        placed = [files[j] for j in order]
        for shares in ((1, 1, 1), (1, 2), (2, 1), (3,)):
            opened = opened_by_all(placed, shares)
            assert [source.d for source in opened] == [6, 6, 6]
            for source, j in zip(opened, order, strict=True):
                np.testing.assert_array_equal(rows_of(source), rows[j])


def test_a_rank_opens_only_its_own_files(folder: Path) -> None:
    """Files of other ranks need not even exist."""
    files = [save("npy", str(j), some_rows(3, 3, j)) for j in range(5)]
    for rank, own in enumerate([("0", "1"), ("2",), ("3", "4")]):
        here = [file if file.stem in own else Path(f"elsewhere/{file}") for file in files]

        def look(ranks: Engine, rank: int = rank, here: list[Path] = here) -> list[str]:
            return [source.name for source in open_local_files(ranks, here if ranks.rank == rank else files, (2, 1, 2))]

        assert run_ranks(3, look)[rank] == [f"{name}.npy" for name in own]


def test_an_error_is_raised_on_all_ranks(folder: Path) -> None:
    files = [save("npy", str(j), some_rows(3, 3, j)) for j in range(4)]
    files[2].write_bytes(b"")
    found = run_ranks(2, lambda ranks: open_local_files(ranks, files, (2, 2)))
    assert [type(error) for error in found] == [DataError, DataError]
    assert [str(error) for error in found] == ["rank 1: 2.npy is empty; omit it, or provide rows"] * 2
    found = run_ranks(4, lambda ranks: open_local_files(ranks, [Path("no"), *files[1:]], (1, 1, 1, 1)))
    assert {getattr(error, "file", None) for error in found} == {"no"}
    assert all(str(error).startswith("rank 0: ") for error in found)
    assert all("; 1 other rank failed as well" in str(error) for error in found)


def test_options_reach_the_readers(folder: Path) -> None:
    for j in range(2):
        np.savez(f"{j}.npz", left=np.ones((3, 2)), right=np.full((3, 4), float(j)))
    files = [Path("0.npz"), Path("1.npz")]
    found = run_ranks(2, lambda ranks: open_local_files(ranks, files, (1, 1), dataset="right"))
    for j, each in enumerate(found):
        assert not isinstance(each, Exception)
        np.testing.assert_array_equal(rows_of(each[0]), np.full((3, 4), float(j)))
