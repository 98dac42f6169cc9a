"""Test that errors on ranks give one message and one exit code, and end the whole job in time."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from sklearn.decomposition import PCA

import deepca
from tests.support.mpi_jobs import (
    WITHIN,
    Answer,
    Batch,
    Command,
    Job,
    as_words,
    assert_over,
    faulty_job,
    lines_with,
    mpi_job,
    names_in,
    run_commands,
    user_environment,
)
from tests.support.problems import random_rows

RANKS = 3
MPI = ("--engine", "mpi")


# ----------------------------------------------------------------------------------- errors that all ranks can detect


def make_shards(folder: Path, change: Callable[[int, np.ndarray], np.ndarray] = lambda j, rows: rows) -> None:
    """Write six shards, two for each of three ranks."""
    folder.mkdir()
    for j, rows in enumerate(random_rows(6, [10, 12, 9, 14, 11, 13], 5, seed=3)):
        np.save(folder / f"{j}.npy", change(j, rows))


def with_value(rows: np.ndarray, value: float) -> np.ndarray:
    rows = rows.copy()
    rows[7, 3] = value
    return rows


def make_folder(folder: Path) -> None:
    """Write files, some of which are wrong."""
    make_shards(folder / "good")
    make_shards(folder / "columns", lambda j, rows: rows[:, :4] if j == 4 else rows)
    make_shards(folder / "rows", lambda j, rows: rows[:0] if j == 3 else rows)
    make_shards(folder / "nan", lambda j, rows: with_value(rows, np.nan) if j == 5 else rows)
    make_shards(folder / "two", lambda j, rows: with_value(rows, np.inf) if j in (2, 4) else rows)
    make_shards(folder / "text", lambda j, rows: rows.astype(str) if j == 3 else rows)
    for name, content in (("bytes", b""), ("cut", (folder / "good" / "3.npy").read_bytes()[:200])):
        make_shards(folder / name)
        (folder / name / "3.npy").write_bytes(content)
    (folder / "named").mkdir()
    for j in range(3):
        header = "a,b,c" if j < 2 else "a,b,x"
        (folder / "named" / f"{j}.csv").write_text(f"{header}\n1,2,3\n4,5,7\n2,{j},1\n", encoding="utf-8")
    (folder / "empty").mkdir()
    for j in range(3):
        (folder / "empty" / f"{j}.csv").write_text("a,b,c\n1,2,3\n4,5,7\n" if j != 1 else "", encoding="utf-8")
    # the views of machines with separate disks
    for rank in range(RANKS):
        (folder / f"node{rank}").mkdir()
        make_shards(folder / f"node{rank}" / "shards")
    (folder / "node1" / "shards" / "5.npy").unlink()
    for rank in range(RANKS):
        (folder / f"disk{rank}").mkdir()
        make_shards(folder / f"disk{rank}" / "shards")
    (folder / "disk2" / "shards" / "5.npy").rename(folder / "disk2" / "shards" / "6.npy")


def fit(*words: object, out: str = "model.npz", k: int = 2) -> tuple[str, ...]:
    return as_words("fit", *MPI, *words, "-k", k, "-o", out)


WRONG: dict[str, tuple[Command, str]] = {
    "columns": (Command(fit("columns/*.npy")), "rank 2: .*columns/4.npy has 4"),
    "names": (
        Command(fit("named/*.csv")),
        "rank 2: named/2.csv has no column 'c' and has column 'x', which named/0.csv",
    ),
    "no-rows": (Command(fit("rows/*.npy")), "rank 1: rows/3.npy"),
    "no-bytes": (Command(fit("bytes/*.npy")), "rank 1: bytes/3.npy"),
    "empty-csv": (Command(fit("empty/*.csv")), "rank 1: empty/1.csv"),
    "cut": (Command(fit("cut/*.npy")), "rank 1: cut/3.npy"),
    "text": (Command(fit("text/*.npy")), "rank 1: text/3.npy"),
    "nan": (Command(fit("nan/*.npy")), "rank 2: nan/5.npy: row 7, column 3: NaN"),
    "two-ranks": (Command(fit("two/*.npy")), "rank 1: two/2.npy: row 7, column 3: .*; 1 other rank failed as well"),
    "missing": (
        Command(fit("good/0.npy", "good/1.npy", "good/nowhere.npy")),
        "^error: rank 2: good/nowhere.npy: file not found",
    ),
    "no-match": (Command(fit("nowhere/*.npy")), r"no file matches nowhere/\*\.npy"),
    "twice": (Command(fit("good/*.npy", "good/1.npy")), "good/1.npy"),
    "ranks": (Command(fit("good/0.npy", "good/1.npy")), "^error: 2 agents for 3 ranks, .*; start 2 ranks or fewer"),
    "agents": (Command(fit("good/*.npy", "--agents", 2)), "--agents 2: 2 agents for 3 ranks, .*; start 2 ranks"),
    "topology": (Command(fit("good/*.npy", "--topology", "hypercube")), "hypercube.*power of two|6 agents.*hypercube"),
    "topology-size": (Command(fit("good/*.npy", "--topology", "ring:8")), "8.*6|6.*8"),
    "components": (Command(fit("good/*.npy", k=6)), "--components 6, .*69 rows and 5 columns"),
    "no-folder": (Command(fit("good/*.npy", out="good/0.npy/model.npz")), "--out good/0.npy/model.npz"),
    "out-folder": (Command(fit("good/*.npy", out="good.npz")), "this is a folder; give the name of a file"),
    "out-suffix": (Command(fit("good/*.npy", out="model.txt")), r"--out model\.txt: .*\.npz"),
    "simulator": (
        Command(as_words("fit", "good/*.npy", "-k", 2, "-o", "model.npz")),
        "3 ranks were started, .*--engine mpi",
    ),
    "fewer-files": (
        Command(fit("shards/*.npy"), "node{rank}"),
        "rank 1 finds 5 files, and rank 0 finds 6; shards/5.npy ",
    ),
    "other-files": (
        Command(fit("shards/*.npy"), "disk{rank}"),
        "rank 2 finds 6 files, and rank 0 finds 6; shards/5.npy ",
    ),
}


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Batch]:
    """Run all wrong commands in one job, and then a right one."""
    folder = tmp_path_factory.mktemp("wrong").resolve()
    make_folder(folder)
    (folder / "good.npz").mkdir()
    commands = {name: command for name, (command, _) in WRONG.items()}
    commands["right"] = Command(fit("good/*.npy", out="right.npz"))
    return folder, run_commands(RANKS, folder, commands)


@pytest.mark.xdist_group("mpi")
@pytest.mark.parametrize("name", list(WRONG))
def test_a_wrong_command_gives_one_message_and_exit_code_2(wrong: tuple[Path, Batch], name: str) -> None:
    folder, batch = wrong
    answers: Sequence[Answer] = batch[name]
    assert [answer.code for answer in answers] == [2] * RANKS
    assert [answer.error for answer in answers] == [None] * RANKS
    said = answers[0].stderr
    assert said.startswith("error: "), said
    assert len(said.splitlines()) == 1, said
    assert re.search(WRONG[name][1], said), said
    assert all(answer.stdout == "" for answer in answers)
    if name != "simulator":  # with the simulator, ranks do not know of each other
        assert all(answer.stderr == "" for answer in answers[1:])
    assert all(answer.written == [] for answer in answers[1:])
    assert not list(folder.rglob("model*"))


@pytest.mark.xdist_group("mpi")
def test_ranks_continue_after_errors(wrong: tuple[Path, Batch]) -> None:
    """A failed command does not affect the next one."""
    folder, batch = wrong
    assert [answer.code for answer in batch["right"]] == [0] * RANKS
    rows = np.concatenate([np.load(folder / "good" / f"{j}.npy") for j in range(6)])
    model = deepca.load(folder / "right.npz")
    np.testing.assert_allclose(model.components, PCA(2, svd_solver="full").fit(rows).components_, atol=1e-8)
    assert batch.job.code == 0, batch.job.said
    made = {
        "answers",
        "commands.json",
        "good.npz",
        "right.npz",
        *(f"{n}{r}" for n in ("node", "disk") for r in range(3)),
    }
    data = {"good", "columns", "rows", "nan", "two", "text", "bytes", "cut", "named", "empty"}
    assert set(names_in(folder)) == made | data


@pytest.mark.xdist_group("mpi")
def test_a_failing_job_prints_its_error_once(tmp_path: Path) -> None:
    """The exit code of mpiexec is that of the command."""
    make_shards(tmp_path / "shards", lambda j, rows: rows[:, :4] if j == 4 else rows)
    done = mpi_job(RANKS, sys.executable, "-m", "deepca", *fit("shards/*.npy", "--checkpoints", "kept"), cwd=tmp_path)
    assert done.code == 2, done.said
    assert len(lines_with(done.stderr, "error:")) == 1, done.said
    assert "rank 2: shards/4.npy has 4 columns" in done.stderr or "shards/5.npy has 5 columns" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert done.left == ()
    assert names_in(tmp_path) == ["shards"]


# --------------------------------------------------------------------------------------- errors on a single rank


def failed(folder: Path, what: str, rank: int, *words: object) -> Job:
    """Run a fit in which a rank fails after two iterations."""
    make_shards(folder / "shards")
    return faulty_job(RANKS, folder, what, rank, 2, *fit("shards/*.npy", *words))


@pytest.mark.xdist_group("mpi")
def test_an_unexpected_error_on_one_rank_ends_the_job(tmp_path: Path) -> None:
    done = failed(tmp_path, "unexpected", 1, "--algorithm", "deepca", "--topology", "ring")
    assert_over(done, tmp_path)
    assert len(lines_with(done.stderr, "error: rank 1: Traceback")) == 1, done.said
    assert len(lines_with(done.stderr, "ZeroDivisionError")) == 1, done.said
    assert not lines_with(done.stderr, "has waited")


@pytest.mark.xdist_group("mpi")
def test_a_known_error_on_one_rank_ends_the_job(tmp_path: Path) -> None:
    """The message is one line without a traceback, even if the timeout is shorter than the grace period."""
    done = failed(tmp_path, "known", 2, "--timeout", 4)
    assert_over(done, tmp_path)
    assert done.code == 2
    assert "error: rank 2: the disk of this rank is full of holes\n" in done.stderr, done.said
    assert "Traceback" not in done.stderr
    assert not lines_with(done.stderr, "has waited")


@pytest.mark.xdist_group("mpi")
def test_an_error_while_reading_on_one_rank_ends_the_job(tmp_path: Path) -> None:
    script = """
        import time
        from pathlib import Path
        import numpy as np
        from mpi4py import MPI
        from deepca import DecentralizedPCA

        rank = MPI.COMM_WORLD.rank

        def blocks():
            for i in range(5):
                if rank == 2 and i == 3:
                    Path("moment").write_text(repr(time.time()))
                    1 // 0
                yield np.random.default_rng([rank, i]).standard_normal((10, 6))

        print("started", flush=True)
        DecentralizedPCA(2, engine="mpi").fit_agents([blocks])
        print("finished", flush=True)
    """
    (tmp_path / "script.py").write_text(textwrap.dedent(script), encoding="utf-8")
    done = mpi_job(RANKS, sys.executable, "script.py", cwd=tmp_path, deadline=120.0)
    assert_over(done, tmp_path)
    assert len(lines_with(done.stderr, "error: rank 2: Traceback")) == 1, done.said
    assert len(lines_with(done.stderr, "ZeroDivisionError")) == 1, done.said
    assert len(lines_with(done.stdout, "started")) == RANKS
    assert "finished" not in done.stdout


@pytest.mark.xdist_group("mpi")
def test_a_rank_that_does_not_answer_ends_the_job(tmp_path: Path) -> None:
    done = failed(tmp_path, "sleeps", 1, "--algorithm", "deepca", "--topology", "complete", "--timeout", 4)
    assert_over(done, tmp_path, within=4.0 + WITHIN)
    said = re.findall(
        r"error: rank (\d) has waited 4 s in iteration \d+ \(\w+\) for (.*?); terminating the job", done.stderr
    )
    assert said, done.said
    assert all(rank in "02" for rank, _ in said)
    assert any("1" in whom or whom == "all ranks" for _, whom in said)
    assert "Traceback" not in done.stderr


@pytest.mark.xdist_group("mpi")
def test_a_stopped_rank_ends_the_job(tmp_path: Path) -> None:
    """A stopped process does not even react to SIGTERM."""
    done = failed(tmp_path, "stops", 0, "--timeout", 4, "--checkpoints", "kept", "--checkpoint-every", 1)
    assert_over(done, tmp_path, within=4.0 + WITHIN)
    assert re.search(r"error: rank [12] has waited 4 s in iteration \d+ \(\w+\) for ", done.stderr), done.said
    kept = list((tmp_path / "kept").rglob("*.checkpoint"))
    assert {path.parent.name for path in kept} == {f"agents-0000{j}-0000{j + 1}" for j in (0, 2, 4)}


# ------------------------------------------------------------------------------------------------------ without MPI


ALONE = """
    import sys
    {before}
    from deepca.cli import main
    sys.argv = ["deepca", *sys.argv[1:]]
    main()
"""


def run_without(
    before: str, *words: str, cwd: Path, more: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(ALONE).format(before=before), *words],
        cwd=cwd,
        env={**user_environment(), **(more or {})},
        capture_output=True,
        text=True,
        timeout=120.0,
        check=False,
    )


BLOCKED = "sys.modules['mpi4py'] = None"


def test_a_missing_mpi4py_is_reported(tmp_path: Path) -> None:
    make_shards(tmp_path / "shards")
    done = run_without(BLOCKED, *fit("shards/*.npy"), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: engine 'mpi' needs mpi4py")
    assert "pip install 'deepca[mpi]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert names_in(tmp_path) == ["shards"]
    done = run_without(BLOCKED, "demo", *MPI, cwd=tmp_path)
    assert done.returncode == 2
    assert "mpi4py" in done.stderr
    assert "Traceback" not in done.stderr
    script = (
        "from deepca import DecentralizedPCA; DecentralizedPCA(2, engine='mpi').fit([[1, 2, 3], [4, 5, 7], [2, 2, 1]])"
    )
    done = run_without(f"{BLOCKED}; {script}", cwd=tmp_path)
    assert "deepca.errors.MissingExtraError: engine 'mpi' needs mpi4py" in done.stderr
    done = run_without(BLOCKED, "fit", "shards/*.npy", "-k", "2", "-o", "model.npz", "--quiet", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")  # other engines do not need it


def test_a_missing_mpi_library_is_reported(tmp_path: Path) -> None:
    """mpi4py does not include an MPI library, and looks for one when it is imported."""
    make_shards(tmp_path / "shards")
    more = {"MPI4PY_LIBMPI": str(tmp_path / "libmpi.so")}
    done = run_without("", *fit("shards/*.npy"), cwd=tmp_path, more=more)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: mpi4py is installed, but finds no MPI library")
    assert "Traceback" not in done.stderr
    assert names_in(tmp_path) == ["shards"]
