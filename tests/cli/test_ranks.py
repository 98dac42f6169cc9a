"""Test ``deepca fit --engine mpi`` and ``deepca demo --engine mpi``, on several ranks and on one."""

from __future__ import annotations

import contextlib
import csv
import fcntl
import json
import os
import struct
import sys
import termios
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import dump_svmlight_file
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

import deepca
from deepca._util.typing import Array
from deepca.cli import ranks as cli_ranks
from tests.support.helpers import json_of, run_cli
from tests.support.mpi_jobs import Batch, Command, as_words, lines_with, mpi_job, names_in, run_commands, run_job
from tests.support.problems import random_rows

RANKS = 3
MPI = ("--engine", "mpi")
NAMES = [f"c{i}" for i in range(7)]
BESIDE = Path(sys.executable).parent


def assert_same(model: deepca.Model, pooled: PCA, *, atol: float = 1e-8) -> None:
    """Compare with scikit-learn's PCA of the pooled rows."""
    assert model.n_components == pooled.n_components_
    np.testing.assert_allclose(model.components, pooled.components_, atol=atol)
    np.testing.assert_allclose(model.explained_variance, pooled.explained_variance_, rtol=atol)
    np.testing.assert_allclose(model.explained_variance_ratio, pooled.explained_variance_ratio_, rtol=atol)
    if model.scale is None:  # scaled rows were centred before
        np.testing.assert_allclose(model.mean, pooled.mean_, atol=atol)


def assert_alike(one: deepca.Model, other: deepca.Model) -> None:
    """Compare two models up to rounding, ignoring their traffic."""
    assert one.components.dtype == other.components.dtype
    np.testing.assert_allclose(one.components, other.components, atol=1e-9)
    np.testing.assert_allclose(one.explained_variance, other.explained_variance, rtol=1e-9)
    np.testing.assert_allclose(one.mean, other.mean, atol=1e-9)
    assert (one.scale is None) == (other.scale is None)
    if one.scale is not None and other.scale is not None:
        np.testing.assert_allclose(one.scale, other.scale, rtol=1e-9)
    assert one.total_variance == pytest.approx(other.total_variance, rel=1e-12)
    assert (one.n_samples, one.weight, one.columns) == (other.n_samples, other.weight, other.columns)
    assert (one.whiten, one.status.code) == (other.whiten, other.status.code)
    same = ("topology", "agents", "links", "algorithm", "tol", "center", "first_index")
    assert [one.about.get(name) for name in same] == [other.about.get(name) for name in same]
    assert one.certificate is not None
    assert other.certificate is not None
    assert (one.certificate.n_agents, one.certificate.n_rows) == (other.certificate.n_agents, other.certificate.n_rows)


def save_shards(folder: Path, blocks: Sequence[Array], names: Sequence[object]) -> list[Path]:
    folder.mkdir(parents=True)
    files = [folder / f"part-{name}.npy" for name in names]
    for file, block in zip(files, blocks, strict=True):
        np.save(file, block)
    return files


def save_csv(path: Path, columns: Sequence[str], rows: Array, labels: Sequence[str] | None = None) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*columns, *([] if labels is None else ["who"])])
        for i, row in enumerate(rows):
            writer.writerow([*map(repr, map(float, row)), *([] if labels is None else [labels[i]])])


# ------------------------------------------------------------------------------------------------------- eight ranks


@pytest.mark.xdist_group("mpi")
def test_eight_ranks_give_the_pooled_answer(tmp_path: Path) -> None:
    """Run the command of the documentation."""
    blocks = random_rows(11, [40, 31, 2, 60, 40, 44, 90, 1, 33, 25, 50], 12, seed=2)
    save_shards(tmp_path / "shards", blocks, range(11))
    out = tmp_path / "made" / "model.npz"
    done = mpi_job(8, BESIDE / "deepca", "fit", *MPI, "shards/*.npy", "-k", "5", "-o", "made/model.npz", cwd=tmp_path)
    assert done.code == 0, done.said
    assert done.left == ()
    model = deepca.load(out)
    assert_same(model, PCA(5, svd_solver="full").fit(np.concatenate(blocks)))
    assert model.certificate is not None
    assert (model.certificate.n_agents, model.certificate.n_rows) == (11, 416)
    with contextlib.chdir(tmp_path):
        assert run_cli("fit", "shards/*.npy", "-k", "5", "-o", "alone.npz").exit_code == 0
    assert_alike(model, deepca.load(tmp_path / "alone.npz"))

    # rank 0 alone prints: two lines of progress, and one table
    assert [len(lines_with(done.stderr, printed)) for printed in ("started", "iterations in", "error")] == [1, 1, 0]
    assert [len(lines_with(done.stdout, printed)) for printed in ("PC1 ", "Model: ", "converged")] == [1, 1, 1]
    assert "\x1b" not in done.stdout + done.stderr
    assert names_in(tmp_path / "made") == ["model.npz"]


# ------------------------------------------------------------------------------------ many commands, on three ranks


@dataclass(frozen=True)
class Case:
    """Arguments of a fit, the pooled rows with columns in the order of the first agent, and the expected PCA."""

    words: tuple[str, ...]
    pooled: Array
    k: int | float
    scale: bool = False
    atol: float = 1e-8

    def answer(self) -> PCA:
        rows = StandardScaler().fit_transform(self.pooled) if self.scale else self.pooled
        return PCA(self.k, svd_solver="full").fit(np.asarray(rows, dtype=np.float64))


def make_cases(folder: Path) -> dict[str, Case]:
    """Write files of every kind, and return commands for them."""
    blocks = random_rows(8, [12, 30, 25, 1, 40, 22, 35, 28], 9, seed=4)
    numbers = (1, 2, 9, 10, 11, 12, 20, 100)  # sorted as numbers, not as text
    save_shards(folder / "npy", blocks, numbers)
    X = np.concatenate(blocks)
    np.save(folder / "all.npy", X)

    save_shards(folder / "single", [block.astype(np.float32) for block in blocks], numbers)
    save_shards(folder / "partly", [b.astype(np.float32) if i < 7 else b for i, b in enumerate(blocks)], numbers)
    single = X.astype(np.float32).astype(np.float64)
    partly = np.concatenate([*(b.astype(np.float32).astype(np.float64) for b in blocks[:7]), blocks[7]])

    # svmlight omits zeros: only the last rank sees the last columns, and only rank 1 sees the first one
    thin = [np.where(np.random.default_rng(j).random(b.shape) < 0.5, b, 0.0) for j, b in enumerate(blocks[:6])]
    for j, block in enumerate(thin):
        block[:, 4 + j // 2 :] = 0.0 if j < 4 else block[:, 4 + j // 2 :]
        block[:, 0] = 0.0 if j != 2 else 1.0 + block[:, 0]
    (folder / "svm").mkdir()
    for j, block in enumerate(thin):
        dump_svmlight_file(sparse.csr_array(block), np.zeros(len(block)), str(folder / "svm" / f"{j}.svm"))

    named = random_rows(5, [9, 20, 15, 30, 11], 7, seed=6)
    (folder / "csv").mkdir()
    for j, block in enumerate(named):
        order = np.random.default_rng(j).permutation(7) if j in (1, 3, 4) else np.arange(7)
        save_csv(folder / "csv" / f"site{j}.csv", [NAMES[i] for i in order], block[:, order], ["x"] * len(block))
    who = [f"agent-{j}" for j, block in enumerate(named) for _ in block]
    mixed = np.random.default_rng(1).permutation(len(who))
    save_csv(folder / "column.csv", NAMES, np.concatenate(named)[mixed], [who[i] for i in mixed])

    # dense and sparse files together: the dense one determines the number of columns
    (folder / "mixed").mkdir()
    np.save(folder / "mixed" / "0.npy", blocks[1])
    for j in (1, 2):
        block = blocks[j + 3].copy()
        block[:, -j:] = 0.0
        blocks[j + 3] = block
        dump_svmlight_file(
            sparse.csr_array(block), np.zeros(len(block)), str(folder / "mixed" / f"{j}.svm"), zero_based=False
        )
    kinds = np.concatenate([blocks[1], blocks[4], blocks[5]])

    def case(*words: object, pooled: Array, k: int | float, scale: bool = False, atol: float = 1e-8) -> Case:
        return Case(as_words(*words, "-k", k), pooled, k, scale, atol)

    return {
        "npy": case("npy/*.npy", pooled=X, k=5),
        "allreduce": case("npy/*.npy", "--allreduce", pooled=X, k=5),
        "deepca": case("npy/*.npy", "--algorithm", "deepca", "--topology", "ring", pooled=X, k=3),
        "deepca-allreduce": case("npy/*.npy", "--algorithm", "deepca", "--allreduce", pooled=X, k=3),
        "float32-messages": case("npy/*.npy", "--messages", "float32", pooled=X, k=3),
        "named-files": case("npy/part-100.npy", "npy/part-2.npy", "npy/part-11.npy", pooled=X[[]], k=2),
        "svmlight": case("svm/*.svm", pooled=np.concatenate(thin), k=3),
        "csv": case("csv/*.csv", "--label-column", "who", pooled=np.concatenate(named), k=3),
        "agents": case("all.npy", "--agents", 6, pooled=X, k=4),
        "agents-csv": case("csv/*.csv", "--agents", 4, "--label-column", "who", pooled=np.concatenate(named), k=2),
        "agent-column": case("column.csv", "--agent-column", "who", pooled=np.concatenate(named), k=2),
        "share": case("npy/*.npy", pooled=X, k=0.8),
        "scaled": case("npy/*.npy", "--scale", "--whiten", pooled=X, k=4, scale=True),
        "float32": case("single/*.npy", pooled=single, k=3, atol=1e-5),
        "one-float64": case("partly/*.npy", pooled=partly, k=3),
        "json": case("npy/*.npy", "--json", pooled=X, k=2),
        "quiet": case("npy/*.npy", "--quiet", pooled=X, k=2),
        "checkpoints": case("npy/*.npy", "--checkpoints", "kept", "--checkpoint-every", 1, pooled=X, k=5),
        "no-checkpoints": case("npy/*.npy", "--checkpoints", "all.npy/kept", "--checkpoint-every", 1, pooled=X, k=5),
        "mixed-kinds": case("mixed/*", pooled=kinds, k=3),
    }


def pooled_of(folder: Path, name: str, case: Case) -> PCA:
    if name == "named-files":  # in the order given
        rows = [np.load(folder / word) for word in case.words if word.endswith(".npy")]
        return PCA(case.k, svd_solver="full").fit(np.concatenate(rows))
    return case.answer()


@dataclass(frozen=True)
class Fits:
    folder: Path
    cases: Mapping[str, Case]
    batch: Batch

    def alone(self, name: str) -> deepca.Model:
        """Run the same command in the simulator."""
        words = [word for word in self.cases[name].words if word != "--allreduce"]
        if "--checkpoints" in words:  # a folder of its own
            words[words.index("--checkpoints") + 1] = f"alone-{name}"
        out = f"alone-{name}.npz"
        with contextlib.chdir(self.folder):
            done = run_cli("fit", *words, "-o", out)
        assert done.exit_code == 0, done.output
        return deepca.load(self.folder / out)


@pytest.fixture(scope="module")
def fits(tmp_path_factory: pytest.TempPathFactory) -> Fits:
    folder = tmp_path_factory.mktemp("fits").resolve()
    cases = make_cases(folder)
    commands = {name: Command(("fit", *MPI, *case.words, "-o", f"{name}.npz")) for name, case in cases.items()}
    slow = ("npy/*.npy", "-k", "3", "--algorithm", "deepca", "--rounds", "2", "--max-iter", "3")
    commands |= {
        "unproven": Command(("fit", *MPI, *slow, "-o", "unproven.npz")),
        "accepted": Command(("fit", *MPI, *slow, "--accept-unproven", "-o", "accepted.npz")),
        "inspect": Command(("inspect", "npy.npz")),
    }
    return Fits(folder, cases, run_commands(RANKS, folder, commands))


NAMES_OF_CASES = [
    "npy",
    "allreduce",
    "deepca",
    "deepca-allreduce",
    "float32-messages",
    "named-files",
    "svmlight",
    "csv",
    "agents",
    "agents-csv",
    "agent-column",
    "share",
    "scaled",
    "float32",
    "one-float64",
    "json",
    "quiet",
    "checkpoints",
    "no-checkpoints",
    "mixed-kinds",
]


@pytest.mark.xdist_group("mpi")
@pytest.mark.parametrize("name", NAMES_OF_CASES)
def test_several_ranks_give_the_pooled_answer(fits: Fits, name: str) -> None:
    first, *others = fits.batch[name]
    for answer in (first, *others):
        assert (answer.code, answer.error) == (0, None), answer.stderr
    model, case = deepca.load(fits.folder / f"{name}.npz"), fits.cases[name]
    assert_same(model, pooled_of(fits.folder, name, case), atol=case.atol)
    if name != "float32-messages":  # whose rounding depends on how agents are assigned to ranks
        assert_alike(model, fits.alone(name))
    if not name.endswith("checkpoints"):
        assert all((answer.stdout, answer.stderr) == ("", "") for answer in others)
        assert all(answer.written == [] for answer in others)


@pytest.mark.xdist_group("mpi")
def test_all_cases_are_tested(fits: Fits) -> None:
    assert sorted(fits.cases) == sorted(NAMES_OF_CASES)
    assert fits.batch.job.code == 0, fits.batch.job.said
    assert fits.batch.job.left == ()


@pytest.mark.xdist_group("mpi")
def test_a_rank_reads_only_its_own_shards(fits: Fits) -> None:
    """Of eight shards the ranks read two, three and three, in the order of their numbers."""
    shares = [(1, 2), (9, 10, 11), (12, 20, 100)]
    for name in ("npy", "allreduce", "deepca", "checkpoints"):
        for answer, share in zip(fits.batch[name], shares, strict=True):
            shards = [path for path in answer.read if path.startswith("npy/")]
            assert sorted(shards) == sorted(f"npy/part-{number}.npy" for number in share), name
    read = [[path for path in answer.read if path.endswith(".svm")] for answer in fits.batch["svmlight"]]
    assert read == [["svm/0.svm", "svm/1.svm"], ["svm/2.svm", "svm/3.svm"], ["svm/4.svm", "svm/5.svm"]]
    named = [[path for path in answer.read if path.endswith(".npy")] for answer in fits.batch["named-files"]]
    assert named == [["npy/part-100.npy"], ["npy/part-2.npy"], ["npy/part-11.npy"]]


@pytest.mark.xdist_group("mpi")
def test_only_rank_0_prints(fits: Fits) -> None:
    first = fits.batch["npy"][0]
    assert [len(lines_with(first.stderr, printed)) for printed in ("started", "iterations in")] == [1, 1]
    assert len(lines_with(first.stdout, "Model: ")) == 1
    quiet = fits.batch["quiet"][0]
    assert (quiet.stdout, quiet.stderr) == ("", "")


@pytest.mark.xdist_group("mpi")
def test_json_is_one_document(fits: Fits) -> None:
    first = fits.batch["json"][0]
    assert first.stderr == ""
    printed, model = json.loads(first.stdout), deepca.load(fits.folder / "json.npz")
    assert printed["model"] == "json.npz"
    assert printed["explained_variance"] == model.explained_variance.tolist()
    with contextlib.chdir(fits.folder):
        alone = json_of("fit", "npy/*.npy", "-k", "2", "-o", "json-alone.npz")
    assert printed.keys() == alone.keys()
    assert printed["about"]["agents"] == alone["about"]["agents"] == 8
    # bytes of agents on all ranks are counted; only reductions are sent in another way
    assert 0.2 < printed["about"]["bytes_per_agent"] / alone["about"]["bytes_per_agent"] < 5.0


@pytest.mark.xdist_group("mpi")
def test_checkpoints_are_removed_once_the_model_is_written(fits: Fits) -> None:
    written = [answer.written for answer in fits.batch["checkpoints"]]
    folders = ["agents-00000-00001", "agents-00002-00004", "agents-00005-00007"]
    assert names_in(fits.folder / "kept") == folders
    assert [names_in(fits.folder / "kept" / folder) for folder in folders] == [[], [], []]
    assert all(answer.stderr == "" for answer in fits.batch["checkpoints"][1:])
    for own, folder in zip(written, folders, strict=True):  # each rank has its own
        assert {path.split("/")[1] for path in own if path.startswith("kept/")} == {folder}


@pytest.mark.xdist_group("mpi")
def test_checkpoints_that_cannot_be_written_are_a_warning(fits: Fits) -> None:
    first, *others = fits.batch["no-checkpoints"]
    assert len(lines_with(first.stderr, "all.npy/kept/agents-00000-00001")) == 1
    for rank, answer in enumerate(others, start=1):
        assert len(lines_with(answer.stderr, f"rank {rank}: ")) == 1


@pytest.mark.xdist_group("mpi")
def test_a_model_that_misses_the_tolerance_is_not_written(fits: Fits) -> None:
    answers = fits.batch["unproven"]
    assert [answer.code for answer in answers] == [1, 1, 1]
    assert "No model was written" in answers[0].stderr
    assert [answer.stdout + answer.stderr for answer in answers[1:]] == ["", ""]
    assert not (fits.folder / "unproven.npz").exists()
    accepted = fits.batch["accepted"]
    assert [answer.code for answer in accepted] == [1, 1, 1]
    assert not deepca.load(fits.folder / "accepted.npz").status.ok


# --------------------------------------------------------------------------------------------------------- the demo


@pytest.mark.xdist_group("mpi")
def test_the_demo_starts_ranks_by_itself(tmp_path: Path) -> None:
    words = ("demo", "--agents", "6", "-k", "2", "--json", "--quiet", "--out")
    done = run_job(BESIDE / "deepca", *words, tmp_path / "out", *MPI, cwd=tmp_path)
    assert done.code == 0, done.said
    assert (done.stderr, done.left) == ("", ())
    printed, alone = json.loads(done.stdout), json.loads(run_cli(*words, str(tmp_path / "alone")).stdout)
    assert Path(printed["figure"]) == tmp_path / "out" / "convergence.png"
    assert names_in(tmp_path / "out") == ["convergence.png"]
    for row, expected in zip(printed["rows"], alone["rows"], strict=True):
        assert (row["method"], row["status"]) == (expected["method"], expected["status"])
        # ranks sum in another order: if the error falls slowly, rounding may decide which iteration is the last
        assert abs(row["iterations"] - expected["iterations"]) <= 1
        assert row["rounds"] == pytest.approx(expected["rounds"], rel=0.02)
        assert row["tan_theta"] == pytest.approx(expected["tan_theta"], rel=0.5, abs=1e-9)
    assert printed["rows"][0]["tan_theta"] < 1e-9  # compared with scikit-learn's PCA of the pooled rows


# ------------------------------------------------------------------------------------------- one rank, in this process


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[Path]:
    """Change to a folder with four shards."""
    save_shards(tmp_path / "shards", random_rows(4, 20, 6, seed=1), range(4))
    with contextlib.chdir(tmp_path):
        yield tmp_path


@pytest.mark.parametrize("more", [(), ("--allreduce",), ("--algorithm", "deepca"), ("--checkpoints", "kept")])
def test_one_rank_holds_all_agents(shards: Path, more: tuple[str, ...]) -> None:
    done = run_cli("fit", *MPI, "shards/*.npy", "-k", "3", *more, "-o", "model.npz")
    assert done.exit_code == 0, done.output
    assert_same(
        deepca.load(shards / "model.npz"), PCA(3, svd_solver="full").fit(np.concatenate(random_rows(4, 20, 6, seed=1)))
    )
    kept = [word for word in more if word != "--allreduce"]
    assert run_cli("fit", "shards/*.npy", "-k", "3", *kept, "-o", "alone.npz").exit_code == 0
    assert_alike(deepca.load(shards / "model.npz"), deepca.load(shards / "alone.npz"))


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_several_ranks_without_engine_are_an_error(
    shards: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """Otherwise every rank would do all the work and write the same file."""
    monkeypatch.setenv(variable, "4")
    for words in (("fit", "shards/*.npy", "-k", "2", "-o", "model.npz"), ("demo",)):
        done = run_cli(*words)
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr.startswith("error: 4 ranks")
        assert "--engine mpi" in done.stderr
        assert done.stderr.count("\n") == 1
    assert names_in(shards) == ["shards"]


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (("--allreduce",), "allreduce"),
        (("--engine", "slurm"), "slurm"),
        (("--engine", "mpi", "--timeout", "0"), "--timeout"),
        (("--engine", "mpi", "--timeout", "nan"), "timeout"),
        (("--engine", "mpi", "--checkpoint-every", "0"), "--checkpoint-every"),
        (("--engine", "mpi", "--checkpoints", "shards/part-0.npy"), "shards/part-0.npy"),
    ],
)
def test_bad_options_are_named(shards: Path, words: tuple[str, ...], printed: str) -> None:
    done = run_cli("fit", "shards/*.npy", "-k", "2", *words, "-o", "model.npz")
    assert done.exit_code == 2, done.output
    assert printed in done.stderr
    assert "Traceback" not in done.stderr
    assert names_in(shards) == ["shards"]


def test_demo_on_mpi_cannot_be_real() -> None:
    done = run_cli("demo", "--real", *MPI)
    assert done.exit_code == 2
    assert "--real" in done.stderr
    assert "--engine mpi" in done.stderr


def test_a_missing_launcher_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    done = run_cli("demo", *MPI)
    assert done.exit_code == 2
    assert "mpiexec" in done.stderr
    assert "pip install 'deepca[mpi]'" in done.stderr


def test_a_rank_adapts_to_the_terminal_of_its_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank's output is a pipe to its launcher, whose own output may be a terminal."""
    monkeypatch.setattr(os, "getppid", os.getpid)
    outer, inner = os.openpty()
    read, write = os.pipe()
    try:
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 77, 0, 0))
        console = cli_ranks.launcher_console(inner)
        assert (console.is_terminal, console.width) == (True, 77)
        assert not cli_ranks.launcher_console(write).is_terminal
    finally:
        for descriptor in (outer, inner, read, write):
            os.close(descriptor)
    assert not cli_ranks.launcher_console(10**6).is_terminal  # not an open descriptor
