"""Test ``deepca fit``, ``transform``, ``inspect`` and ``sample`` on files."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse
from sklearn.datasets import dump_svmlight_file, load_wine
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from typer.testing import CliRunner

import deepca
from deepca._util.typing import Array
from deepca.cli.app import app
from deepca.cli.options import parse_duration
from deepca.errors import ParameterError
from tests.support.errors import raises

WINE = load_wine()
X: Array = np.asarray(WINE.data, dtype=np.float64)
NAMES = [f"c{i}" for i in range(13)]
CUTS = (0, 20, 21, 110, 178)  # one agent holds a single row


def run(*words: str | int | Path) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)
    return path


@pytest.fixture
def sites(tmp_path: Path) -> list[Path]:
    """Write the wine data as four CSV files, with a class beside the values."""
    made = []
    for j, (a, b) in enumerate(pairwise(CUTS)):
        rows = [[*map(repr, map(float, row)), f"k{label}"] for row, label in zip(X[a:b], WINE.target[a:b], strict=True)]
        made.append(write_csv(tmp_path / f"site{j}.csv", [*NAMES, "class"], rows))
    return made


def assert_same(model: deepca.Model, pooled: PCA) -> None:
    np.testing.assert_allclose(model.components, pooled.components_, atol=1e-8)
    np.testing.assert_allclose(model.explained_variance, pooled.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(model.explained_variance_ratio, pooled.explained_variance_ratio_, rtol=1e-9)


# ------------------------------------------------------------------------------------------------------------ fitting


@pytest.mark.parametrize("topology", ["ring", "star", "erdos-renyi:0.7", "complete"])
def test_one_file_per_agent_gives_the_pooled_components(sites: list[Path], tmp_path: Path, topology: str) -> None:
    out = tmp_path / "model.npz"
    done = run("fit", *sites, "-k", 3, "--label-column", "class", "--topology", topology, "-o", out)
    assert done.exit_code == 0, done.output
    model = deepca.load(out)
    assert_same(model, PCA(3, svd_solver="full").fit(X))
    assert model.columns == tuple(NAMES)
    assert model.certificate is not None
    assert model.certificate.n_agents == 4
    assert model.certificate.n_rows == len(X)
    for words in ("PC1", "tan θ", "converged", str(out)):
        assert words in done.output.replace("\n", "")


def test_scaling_agrees_with_the_standard_scaler(sites: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "model.npz"
    assert run("fit", *sites, "-k", 4, "--scale", "--label-column", "class", "-o", out).exit_code == 0
    pooled = make_pipeline(StandardScaler(), PCA(4, svd_solver="full")).fit(X)
    model = deepca.load(out)
    assert_same(model, pooled[-1])
    np.testing.assert_allclose(model.transform(X), pooled.transform(X), atol=1e-8)


@pytest.mark.parametrize(
    ("option", "k"),
    [
        (("-k", "0.9"), PCA(0.9, svd_solver="full").fit(X).n_components_),
        (("-k", "all"), 13),
        (("-k", "2", "--no-center"), 2),
        (("-k", "2", "--whiten"), 2),
        (("-k", "2", "--algorithm", "deepca", "--rounds", "9"), 2),
    ],
)
def test_options_determine_the_components(tmp_path: Path, option: tuple[str, ...], k: int) -> None:
    np.save(tmp_path / "all.npy", X)
    done = run("fit", tmp_path / "all.npy", "--agents", 7, *option, "-o", tmp_path / "m.npz")
    assert done.exit_code == 0, done.output
    model = deepca.load(tmp_path / "m.npz")
    assert model.n_components == k
    assert model.about["agents"] == 7
    if "--no-center" in option:
        _, s, Vt = np.linalg.svd(X, full_matrices=False)
        np.testing.assert_allclose(model.explained_variance, s[:2] ** 2 / (len(X) - 1), rtol=1e-9)
        np.testing.assert_allclose(np.abs(np.sum(model.components * Vt[:2], axis=1)), 1.0, atol=1e-12)
    else:
        assert_same(model, PCA(k, svd_solver="full").fit(X))
    if "--whiten" in option:
        np.testing.assert_allclose(model.transform(X).std(axis=0, ddof=1), 1.0, rtol=1e-9)


def test_rows_of_several_files_can_be_reassigned_to_agents(sites: list[Path], tmp_path: Path) -> None:
    """Equal shares of all files, and agents named by a column, give the same model."""
    for option in (("--agents", "11", "--label-column", "class"), ("--agent-column", "class")):
        done = run("fit", *sites, "-k", 3, *option, "-o", tmp_path / "m.npz")
        assert done.exit_code == 0, done.output
        model = deepca.load(tmp_path / "m.npz")
        assert_same(model, PCA(3, svd_solver="full").fit(X))
        assert model.about["agents"] == (3 if option[1] == "class" else 11)


def test_files_of_different_formats_can_be_combined(tmp_path: Path) -> None:
    """CSV and Parquet with columns in another order; svmlight files without entries in the last columns."""
    order = np.random.default_rng(0).permutation(13)
    first = write_csv(tmp_path / "a.csv", NAMES, X[:60].tolist())
    second = tmp_path / "b.parquet"
    pq.write_table(pa.table({NAMES[i]: X[60:, i] for i in order}), second)
    assert run("fit", first, second, "-k", 3, "-o", tmp_path / "m.npz").exit_code == 0
    assert_same(deepca.load(tmp_path / "m.npz"), PCA(3, svd_solver="full").fit(X))

    rng = np.random.default_rng(1)
    D = rng.standard_normal((300, 20)) * np.linspace(5, 1, 20) * (rng.random((300, 20)) < 0.2)
    D[:100, 17:] = 0.0
    S = sparse.csr_array(D)
    files = [tmp_path / "one.svm", tmp_path / "two.svm"]
    dump_svmlight_file(S[:100], np.zeros(100), str(files[0]), zero_based=False)
    dump_svmlight_file(S[100:], np.zeros(200), str(files[1]), zero_based=False)
    done = run("fit", *files, "-k", 2, "-o", tmp_path / "s.npz")
    assert done.exit_code == 0, done.output
    assert_same(deepca.load(tmp_path / "s.npz"), PCA(2, svd_solver="full").fit(S.toarray()))
    assert run("transform", tmp_path / "s.npz", files[0], "-o", tmp_path / "s.npy").exit_code == 0
    np.testing.assert_allclose(
        np.load(tmp_path / "s.npy"), PCA(2, svd_solver="full").fit(S.toarray()).transform(S[:100].toarray()), atol=1e-8
    )


def test_single_precision_is_kept(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X.astype(np.float32))
    assert run("fit", tmp_path / "x.npy", "--agents", 3, "-k", 2, "--scale", "-o", tmp_path / "m.npz").exit_code == 0
    model = deepca.load(tmp_path / "m.npz")
    assert model.dtype == np.float32
    assert run("transform", tmp_path / "m.npz", tmp_path / "x.npy", "-o", tmp_path / "s.npy").exit_code == 0
    assert np.load(tmp_path / "s.npy").dtype == np.float32


def test_json_is_complete_and_quiet_prints_nothing(sites: list[Path], tmp_path: Path) -> None:
    done = run("fit", *sites, "-k", 2, "--label-column", "class", "-o", tmp_path / "m.npz", "--json")
    printed: dict[str, Any] = json.loads(done.stdout)
    assert printed["status"]["ok"]
    assert printed["certificate"]["rows"] == 178
    assert printed["columns"] == NAMES
    np.testing.assert_allclose(printed["explained_variance"], PCA(2).fit(X).explained_variance_, rtol=1e-9)
    done = run("fit", *sites, "-k", 2, "--label-column", "class", "-o", tmp_path / "m.npz", "--quiet")
    assert done.exit_code == 0
    assert done.output == ""


def test_an_unproven_model_is_not_written(sites: list[Path], tmp_path: Path) -> None:
    words: tuple[str | int | Path, ...] = (
        "fit",
        *sites,
        "-k",
        5,
        "--label-column",
        "class",
        "--algorithm",
        "deepca",
        "--max-iter",
        3,
    )
    done = run(*words, "-o", tmp_path / "m.npz")
    assert done.exit_code == 1
    assert "--accept-unproven" in done.stderr
    assert not (tmp_path / "m.npz").exists()
    assert run(*words, "-o", tmp_path / "m.npz", "--accept-unproven").exit_code == 1
    assert not deepca.load(tmp_path / "m.npz").status.ok


# --------------------------------------------------------------------------------------------------------- bad input


def assert_refused(done: Any, *printed: str) -> None:
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    for words in printed:
        assert words in done.stderr.replace("\n", " "), done.stderr


def test_unreadable_files_are_named(sites: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "m.npz"
    assert_refused(run("fit", tmp_path / "no.csv", "-k", 2, "-o", out), "no.csv")
    assert_refused(run("fit", *sites, "-k", 2, "-o", out), "site0.csv", "'class'", "k0")
    assert_refused(run("fit", sites[0], sites[0], "-k", 2, "--label-column", "class", "-o", out), str(sites[0]))
    whole = tmp_path / "whole.parquet"
    pq.write_table(pa.table({name: X[:, i] for i, name in enumerate(NAMES)}), whole)
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(whole.read_bytes()[:-200])
    assert_refused(run("fit", cut, "-k", 2, "-o", out), "cut.parquet")
    np.save(tmp_path / "whole.npy", X)
    (tmp_path / "cut.npy").write_bytes((tmp_path / "whole.npy").read_bytes()[:-800])
    assert_refused(run("fit", tmp_path / "cut.npy", "-k", 2, "-o", out), "cut.npy")
    (tmp_path / "notes.docx").write_text("words")
    assert_refused(run("fit", tmp_path / "notes.docx", "-k", 2, "-o", out), "notes.docx", ".csv")
    assert not out.exists()


def test_bad_values_are_located(tmp_path: Path) -> None:
    out = tmp_path / "m.npz"
    good = write_csv(tmp_path / "good.csv", NAMES, X[:50].tolist())
    rows: list[list[object]] = X[50:].tolist()
    rows[7][4] = ""
    missing = write_csv(tmp_path / "missing.csv", NAMES, rows)
    assert_refused(run("fit", good, missing, "-k", 2, "-o", out), "missing.csv, line 9, column 'c4'")
    rows[7][4] = "unknown"
    text = write_csv(tmp_path / "text.csv", NAMES, rows)
    assert_refused(run("fit", good, text, "-k", 2, "-o", out), "text.csv, line 9, column 'c4'", "unknown")
    other = write_csv(tmp_path / "other.csv", [*NAMES[:-1], "mood"], X[50:].tolist())
    assert_refused(run("fit", good, other, "-k", 2, "-o", out), "other.csv", "'c12'", "'mood'")
    flat = X[50:].copy()
    flat[:, 3] = X[0, 3]
    same = X[:50].copy()
    same[:, 3] = X[0, 3]
    files = [write_csv(tmp_path / f"flat{i}.csv", NAMES, part.tolist()) for i, part in enumerate((same, flat))]
    assert_refused(run("fit", *files, "-k", 2, "--scale", "-o", out), "'c3'")
    assert run("fit", *files, "-k", 2, "-o", out).exit_code == 0
    out.unlink()
    header = write_csv(tmp_path / "empty.csv", NAMES, [])
    assert_refused(run("fit", good, header, "-k", 2, "-o", out), "empty.csv")
    assert not out.exists()


@pytest.mark.parametrize(
    ("option", "printed"),
    [
        (("-k", "0"), "--components 0"),
        (("-k", "many"), "--components many"),
        (("-k", "1.5"), "--components 1.5"),
        (("-k", "14"), "13"),
        (("-k", "2", "--topology", "rign"), "ring"),
        (("-k", "2", "--agents", "1000"), "1000"),
        (("-k", "2", "--algorithm", "magic"), "krylov"),
        (("-k", "2", "--rounds", "few"), "--rounds few"),
        (("-k", "2", "--algorithm", "deepca", "--rounds", "100001"), "--rounds 100001: expected a whole number"),
        (("-k", "2", "--rounds", "3"), "--rounds 3: --algorithm auto selects krylov"),
        (("-k", "2", "--algorithm", "krylov", "--rounds", "3"), "--rounds 3: krylov averages exactly"),
        (("-k", "2", "--tolerance", "0"), "--tolerance 0"),
        (("-k", "2", "--agents", "3", "--agent-column", "c0"), "--agent-column"),
        (("-k", "2", "-o", "model.txt"), ".npz"),
        (("-k", "2", "--label-column", "c99"), "c99"),
        (("-k", "2", "--dataset", "rows"), "dataset"),
    ],
)
def test_bad_options_are_named(tmp_path: Path, option: tuple[str, ...], printed: str) -> None:
    file = write_csv(tmp_path / "x.csv", NAMES, X.tolist())
    where = () if "-o" in option else ("-o", tmp_path / "m.npz")
    assert_refused(run("fit", file, *option, *where), printed)
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"]


# -------------------------------------------------------------------------------------------------------- transforming


@pytest.fixture
def model(sites: list[Path], tmp_path: Path) -> Path:
    out = tmp_path / "model.npz"
    assert run("fit", *sites, "-k", 3, "--label-column", "class", "-o", out, "-q").exit_code == 0
    return out


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".npy", ".h5"])
def test_scores_agree_with_scikit_learn(sites: list[Path], model: Path, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"scores{suffix}"
    label: tuple[str, ...] = ("--label-column", "class")
    if suffix == ".npy":  # it cannot hold text
        label, sites[2] = (), write_csv(tmp_path / "bare.csv", NAMES, X[21:110].tolist())
    done = run("transform", model, sites[2], *label, "-o", out)
    assert done.exit_code == 0, done.output
    wanted = PCA(3, svd_solver="full").fit(X).transform(X[21:110])
    if suffix == ".npy":
        found = np.load(out)
    elif suffix == ".h5":
        import h5py

        with h5py.File(out) as file:
            (found,) = (np.asarray(part) for part in file.values() if part.ndim == 2)
    elif suffix == ".parquet":
        table = pq.read_table(out)
        assert table.column_names == ["class", "PC1", "PC2", "PC3"]
        assert table["class"].to_pylist() == [f"k{label}" for label in WINE.target[21:110]]
        found = np.stack([table[name].to_numpy() for name in ("PC1", "PC2", "PC3")], axis=1)
    else:
        with out.open(encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
        found = np.array([[float(line[name]) for name in ("PC1", "PC2", "PC3")] for line in lines])
    np.testing.assert_allclose(found, wanted, atol=1e-7)


def test_transform_reorders_columns_and_refuses_other_ones(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "s.npy"
    turned = write_csv(tmp_path / "turned.csv", NAMES[::-1], X[:5, ::-1].tolist())
    assert run("transform", model, turned, "-o", out).exit_code == 0
    np.testing.assert_allclose(np.load(out), PCA(3, svd_solver="full").fit(X).transform(X[:5]), atol=1e-7)
    out.unlink()
    more = write_csv(tmp_path / "more.csv", [*NAMES, "age"], np.hstack([X[:5], X[:5, :1]]).tolist())
    assert_refused(run("transform", model, more, "-o", out), "more.csv", "'age'", "--ignore-extra")
    assert run("transform", model, more, "--ignore-extra", "-o", out).exit_code == 0
    out.unlink()
    fewer = write_csv(tmp_path / "fewer.csv", NAMES[1:], X[:5, 1:].tolist())
    assert_refused(run("transform", model, fewer, "-o", out), "fewer.csv", "'c0'")
    broken = X[:5].copy()
    broken[3, 2] = np.nan
    np.save(tmp_path / "broken.npy", broken)
    assert_refused(run("transform", model, tmp_path / "broken.npy", "-o", out), "broken.npy", "3", "2")
    np.save(tmp_path / "narrow.npy", X[:, :4])
    assert_refused(run("transform", model, tmp_path / "narrow.npy", "-o", out), " 4 ", " 13")
    assert_refused(run("transform", model, turned, "-o", tmp_path / "s.xlsx"), ".xlsx")
    assert not out.exists()
    assert not list(tmp_path.glob("*.part*"))


# ---------------------------------------------------------------------------------------------------------- inspecting


def test_inspect_shows_variances_and_proof(model: Path, tmp_path: Path) -> None:
    done = run("inspect", model, "--plot", tmp_path / "scree.png")
    assert done.exit_code == 0
    for words in ("178 rows", "PC3", "█", "digest", "tan θ"):
        assert words in done.output
    assert (tmp_path / "scree.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    printed = json.loads(run("inspect", model, "--json").stdout)
    certificate = deepca.load(model).certificate
    assert certificate is not None
    assert printed["certificate"]["digest"] == certificate.digest
    assert printed["certificate"]["tan_theta"] <= 1e-10


def test_files_that_are_not_models_are_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.npz").write_bytes(model.read_bytes()[:300])
    for file in ("cut.npz", "missing.npz"):
        assert_refused(run("inspect", tmp_path / file), file)
        assert_refused(run("transform", tmp_path / file, tmp_path / "site0.csv", "-o", tmp_path / "s.csv"), file)
    assert_refused(run("inspect", model, "--plot", tmp_path / "scree.gif"), ".png")


def test_samples_of_an_earlier_run_are_not_left_behind(tmp_path: Path) -> None:
    words = ("sample", "wine", "--out", str(tmp_path), "--quiet")
    assert run(*words, "--agents", "3").exit_code == 0
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    refused = run(*words, "--agents", "2")
    assert refused.exit_code == 2
    assert "site2.csv" in refused.stderr
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert run(*words, "--agents", "4").exit_code == 0


def test_the_format_of_scores_is_checked_before_anything_is_read(tmp_path: Path) -> None:
    model, rows = tmp_path / "m.npz", tmp_path / "a.csv"
    rows.write_text("a,b,class\n1,2,x\n3,5,y\n4,1,x\n", encoding="utf-8")
    assert run("fit", str(rows), "-k", "1", "-o", str(model), "--label-column", "class").exit_code == 0
    for more in (("-o", str(tmp_path / "s.txt")), ("-o", str(tmp_path / "s.npy"), "--label-column", "class")):
        refused = run("transform", str(model), str(rows), *more)
        assert refused.exit_code == 2
        assert "--out" in refused.stderr
    assert run("transform", str(model), str(rows), "-o", str(tmp_path / "s.npy"), "--ignore-extra").exit_code == 0


def test_a_timeout_may_have_a_unit() -> None:
    assert parse_duration("90", "timeout", seconds=True) == 90.0
    assert parse_duration("2min", "timeout", seconds=True) == 120.0
    with raises(ParameterError, parameter="timeout", value="0.5"):
        parse_duration("0.5", "timeout", seconds=True, least=1.0)
    with raises(ParameterError, parameter="deadline", value="90"):
        parse_duration("90", "deadline")


@pytest.mark.parametrize("kind", ["csv", "parquet", "npy", "h5"])
def test_samples_can_be_fit(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "sites"
    assert run("sample", "wine", "--agents", 2, "--format", kind, "--out", folder).exit_code == 0
    files = sorted(folder.iterdir())
    assert len(files) == 2
    label = ("--label-column", "class") if kind != "npy" else ()
    done = run("fit", *files, "-k", 2, *label, "-o", tmp_path / "m.npz")
    assert done.exit_code == 0, done.output
    assert_same(deepca.load(tmp_path / "m.npz"), PCA(2, svd_solver="full").fit(X))


def test_an_unknown_sample_is_refused() -> None:
    assert_refused(run("sample", "whine"), "wine")


# ---------------------------------------------------------------------------------------------- loss of information


@pytest.mark.parametrize("option", [("--agents", "3"), ("--agents", "1"), ("--agent-column", "site")])
def test_columns_are_matched_by_name_not_by_position(tmp_path: Path, option: tuple[str, str]) -> None:
    """Columns in another order are sorted; other names are refused."""
    order = np.random.default_rng(1).permutation(13)
    site = [["a"], ["b"]]
    first = write_csv(
        tmp_path / "a.csv", [*NAMES, "site"], [[*row, *site[i % 2]] for i, row in enumerate(X[:80].tolist())]
    )
    turned = [[*row[order], *site[i % 2]] for i, row in enumerate(X[80:])]
    second = write_csv(tmp_path / "b.csv", [*(NAMES[i] for i in order), "site"], turned)
    label = ("--label-column", "site") if option[0] == "--agents" else ()
    done = run("fit", first, second, "-k", 3, *option, *label, "-o", tmp_path / "m.npz")
    assert done.exit_code == 0, done.output
    assert_same(deepca.load(tmp_path / "m.npz"), PCA(3, svd_solver="full").fit(X))
    third = write_csv(tmp_path / "c.csv", [*NAMES[:-1], "mood", "site"], [[*row, "a"] for row in X[80:].tolist()])
    assert_refused(run("fit", first, third, "-k", 3, *option, *label, "-o", tmp_path / "n.npz"), "c.csv", "'mood'")
    fewer = write_csv(tmp_path / "d.csv", [*NAMES[:4], "site"], [[*row[:4], "a"] for row in X[80:].tolist()])
    assert_refused(run("fit", first, fewer, "-k", 3, *option, *label, "-o", tmp_path / "n.npz"), "d.csv", "'c4'")


def test_agent_columns_may_mix_numbers_and_words(tmp_path: Path) -> None:
    first = write_csv(tmp_path / "a.csv", [*NAMES, "site"], [[*row, i % 2] for i, row in enumerate(X[:80].tolist())])
    second = write_csv(tmp_path / "b.csv", [*NAMES, "site"], [[*row, "x"] for row in X[80:].tolist()])
    done = run("fit", first, second, "-k", 3, "--agent-column", "site", "-o", tmp_path / "m.npz")
    assert done.exit_code == 0, done.output
    assert deepca.load(tmp_path / "m.npz").about["agents"] == 3
    assert_same(deepca.load(tmp_path / "m.npz"), PCA(3, svd_solver="full").fit(X))


def test_inputs_are_not_overwritten(model: Path, sites: list[Path], tmp_path: Path) -> None:
    before = sites[0].read_bytes(), model.read_bytes()
    words = ("--label-column", "class")
    assert_refused(run("transform", model, sites[0], *words, "-o", sites[0]), f"--out {sites[0]}")
    assert_refused(run("transform", model, sites[0], *words, "-o", tmp_path / "." / model.name), f"--out {model}")
    np.savez(tmp_path / "rows.npz", X=X)
    assert_refused(
        run("fit", tmp_path / "rows.npz", "-k", 2, "-o", tmp_path / "rows.npz"), f"--out {tmp_path / 'rows.npz'}"
    )
    assert (sites[0].read_bytes(), model.read_bytes()) == before
    (tmp_path / "folder.npz").mkdir()
    assert_refused(run("fit", *sites, "-k", 2, *words, "-o", tmp_path / "folder.npz"), "--out")
    assert_refused(run("fit", *sites, "-k", 2, *words, "-o", "/proc/nowhere/m.npz"), "--out", "/proc")


def test_svmlight_files_agree_on_their_first_column(tmp_path: Path) -> None:
    """Only one file has an entry in column 0; the model records this for files that have none."""
    rng = np.random.default_rng(3)
    D = rng.standard_normal((200, 12)) * np.linspace(4, 1, 12) * (rng.random((200, 12)) < 0.6)
    D[100:, 0] = 0.0
    files = [tmp_path / "one.svm", tmp_path / "two.svm"]
    for file, part in zip(files, (D[:100], D[100:]), strict=True):
        dump_svmlight_file(sparse.csr_array(part), np.zeros(100), str(file), zero_based=True)
    for option in ((), ("--agents", "5")):
        assert run("fit", *files, "-k", 3, *option, "-o", tmp_path / "m.npz").exit_code == 0
        assert_same(deepca.load(tmp_path / "m.npz"), PCA(3, svd_solver="full").fit(D))
        assert run("transform", tmp_path / "m.npz", files[1], "-o", tmp_path / "s.npy").exit_code == 0
        wanted = PCA(3, svd_solver="full").fit(D).transform(D[100:])
        np.testing.assert_allclose(np.load(tmp_path / "s.npy"), wanted, atol=1e-8)
    (tmp_path / "slip.svm").write_text("1 1:2 2147483640:1\n2 1:1\n")
    assert_refused(run("fit", tmp_path / "slip.svm", "-k", 1, "-o", tmp_path / "m.npz"), "2147483640")


def test_extra_columns_of_text_can_be_ignored(model: Path, sites: list[Path], tmp_path: Path) -> None:
    assert run("transform", model, sites[0], "--ignore-extra", "-o", tmp_path / "s.npy").exit_code == 0
    wanted = PCA(3, svd_solver="full").fit(X).transform(X[:20])
    np.testing.assert_allclose(np.load(tmp_path / "s.npy"), wanted, atol=1e-7)


def test_column_names_of_hdf5_samples_are_kept(tmp_path: Path) -> None:
    run("sample", "wine", "--agents", 2, "--format", "h5", "--out", tmp_path)
    done = run(
        "fit",
        tmp_path / "site0.h5",
        tmp_path / "site1.h5",
        "-k",
        2,
        "--label-column",
        "class",
        "-o",
        tmp_path / "m.npz",
    )
    assert done.exit_code == 0, done.output
    assert deepca.load(tmp_path / "m.npz").columns is not None


@pytest.mark.parametrize("width", ["40", "80", "160"])
def test_numbers_are_shown_on_narrow_terminals(model: Path, width: str) -> None:
    shown = CliRunner().invoke(app, ["inspect", str(model)], env={"COLUMNS": width}).output
    for variance in deepca.load(model).explained_variance_ratio:
        assert f"{variance:.2%}" in shown


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_anndata_cells_are_assigned_by_donor(tmp_path: Path, kind: str) -> None:
    """A column of obs names the agent of each cell, as in the help; genes keep their names."""
    anndata, pandas = pytest.importorskip("anndata"), pytest.importorskip("pandas")
    donors = np.array(["ann", "ben", "cy"])[np.arange(len(X)) % 3]
    obs = pandas.DataFrame({"donor": donors}, index=[f"cell{i}" for i in range(len(X))])
    values = X if kind == "dense" else sparse.csr_matrix(X)
    anndata.AnnData(values, obs=obs, var=pandas.DataFrame(index=NAMES)).write_h5ad(tmp_path / "cells.h5ad")
    done = run("fit", tmp_path / "cells.h5ad", "-k", 3, "--agent-column", "donor", "-o", tmp_path / "m.npz")
    assert done.exit_code == 0, done.output
    model = deepca.load(tmp_path / "m.npz")
    assert_same(model, PCA(3, svd_solver="full").fit(X))
    assert model.columns == tuple(NAMES)
    assert model.about["agents"] == 3
