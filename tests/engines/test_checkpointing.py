"""Interrupted runs resume with the same bits, from whatever is left of the checkpoints of all processes.

``python -m tests.engines.test_checkpointing FOLDER``, started by mpiexec, is one rank: it interrupts and resumes runs.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.decomposition import PCA

import deepca
from deepca._util.typing import Array
from deepca.data.local_data import read
from deepca.data.sources import ArraySource
from deepca.decomposition.fit import Decomposition, fit
from deepca.decomposition.settings import Settings
from deepca.engines.checkpointing import Checkpointer, CheckpointOptions
from deepca.errors import DeepcaError, InvalidInput, ParameterError
from deepca.network import AgentNetwork, SimulatedNetwork
from deepca.solver.observers import Start, Step
from deepca.solver.progress import ProgressBar
from deepca.topology import Topology
from tests.support.errors import raises
from tests.support.helpers import AtIteration, Recorder, run_cli
from tests.support.mpi_jobs import Job, as_words, assert_over, faulty_job, lines_with, mpi_job, names_in
from tests.support.paths import ROOT
from tests.support.problems import random_rows

M, D, K = 4, 30, 3
DATA = random_rows(M, [30, 25, 41, 12], D, seed=7, decay=0.9)
RING = deepca.topology.ring(M)
FIXED = Settings(n_components=K, algorithm="deepca", rounds=5, tol=1e-9)
WHOLE = {
    "deepca": FIXED,
    "deepca float32": replace(FIXED, messages="float32"),
    "depca": replace(FIXED, algorithm="depca", rounds=40, tol=1e-6),
    "krylov": replace(FIXED, algorithm="krylov", rounds="auto"),
    "scaled": replace(FIXED, scale=True, center=True),
}


class Interrupted(Exception):
    """Raised to interrupt a run."""


def interrupt() -> None:
    raise Interrupted


def sources(rows: Sequence[Array] = DATA) -> list[ArraySource]:
    return [ArraySource(block, f"agent {j}", None) for j, block in enumerate(rows)]


@dataclass
class CheckpointLog:
    """A folder for checkpoints, and the messages about it."""

    folder: Path
    every: int = 1

    def __post_init__(self) -> None:
        self.warnings: list[str] = []
        self.messages: list[str] = []

    @property
    def options(self) -> CheckpointOptions:
        return CheckpointOptions(self.folder, self.every, self.warnings.append, self.messages.append)


def run(
    settings: Settings,
    log: CheckpointLog | None = None,
    *,
    rows: Sequence[Array] = DATA,
    stop_at: int | None = None,
    topology: Topology = RING,
    weights: Sequence[Array] | None = None,
) -> Decomposition:
    """Run all agents in one process."""
    return fit(
        sources(rows),
        SimulatedNetwork(topology),
        settings,
        weights=weights,
        observers=() if stop_at is None else [AtIteration(stop_at, interrupt)],
        checkpointing=None if log is None else log.options,
    ).decomposition


def interrupted(settings: Settings, log: CheckpointLog, stop_at: int, **more: Any) -> None:
    with pytest.raises(Interrupted):
        run(settings, log, stop_at=stop_at, **more)


def assert_same_bits(one: Decomposition, other: Decomposition, *, iterations: bool = True) -> None:
    for name in ("components", "variances", "mean", "directions"):
        assert np.asarray(getattr(one, name)).tobytes() == np.asarray(getattr(other, name)).tobytes(), name
    assert one.result.state.t == other.result.state.t or not iterations
    assert one.result.status.code == other.result.status.code


def assert_right(found: Decomposition, rows: Sequence[Array] = DATA) -> None:
    want = PCA(len(found.components), svd_solver="full").fit(np.concatenate(list(rows)))
    np.testing.assert_allclose(found.components, want.components_, atol=1e-7)
    np.testing.assert_allclose(found.variances, want.explained_variance_, rtol=1e-7)
    assert found.result.status.ok


# ------------------------------------------------------------------------------------------------------- one process


@pytest.mark.parametrize("name", list(WHOLE))
def test_an_interrupted_run_resumes_with_the_same_bits(tmp_path: Path, name: str) -> None:
    settings, log = WHOLE[name], CheckpointLog(tmp_path / "kept", 2)
    undisturbed = run(settings)
    interrupted(settings, log, 5)
    assert len(list(log.folder.rglob("*.checkpoint"))) == 2
    found = run(settings, log)
    assert log.messages == ["resuming from the checkpoint of iteration 4"]
    assert log.warnings == []
    assert_same_bits(found, undisturbed)
    assert found.result.iterations == undisturbed.result.iterations - 4
    if name not in ("scaled", "depca"):
        assert_right(found)


def test_a_run_may_be_interrupted_repeatedly(tmp_path: Path) -> None:
    log = CheckpointLog(tmp_path / "kept", 3)
    for stop_at in (4, 8, 9, 20, 31):
        interrupted(FIXED, log, stop_at)
    assert_same_bits(run(FIXED, log), run(FIXED))
    assert log.messages == [f"resuming from the checkpoint of iteration {t}" for t in (3, 6, 6, 18, 30)]


@pytest.mark.parametrize("name", ["deepca", "krylov"])
def test_a_run_interrupted_just_before_its_end_resumes(tmp_path: Path, name: str) -> None:
    """If numbers that decide the end were in flight, the run ends a few iterations later."""
    settings, undisturbed = WHOLE[name], run(WHOLE[name])
    end = undisturbed.result.state.t
    for stop_at in range(max(end - 8, 2), end + 1):
        log = CheckpointLog(tmp_path / str(stop_at))
        interrupted(settings, log, stop_at)
        found = run(settings, log)
        if name == "krylov":
            assert_same_bits(found, undisturbed, iterations=False)
        assert 0 <= found.result.state.t - end <= 4
        np.testing.assert_allclose(found.components, undisturbed.components, rtol=0, atol=10 * settings.tol)
        assert found.result.status.ok


def test_a_run_for_a_share_of_the_variance_resumes(tmp_path: Path) -> None:
    """Estimating the number of components writes no checkpoints; only the run that follows resumes."""
    settings = replace(FIXED, n_components=0.8)
    recorder, log = Recorder(), CheckpointLog(tmp_path / "kept", 5)
    undisturbed = fit(sources(), SimulatedNetwork(RING), settings, observers=[recorder]).decomposition
    glances = len(recorder.starts) - 1
    assert glances >= 1

    class Late(AtIteration):
        """Interrupts only after the estimates."""

        begun = 0

        def begin(self, start: Start) -> None:
            self.begun += 1

        def observe(self, step: Step) -> None:
            if self.begun > glances:
                super().observe(step)

    with pytest.raises(Interrupted):
        fit(sources(), SimulatedNetwork(RING), settings, observers=[Late(12, interrupt)], checkpointing=log.options)
    assert_same_bits(run(settings, log), undisturbed)
    assert log.messages == ["resuming from the checkpoint of iteration 10"]
    assert_right(undisturbed)


def test_runs_with_automatic_rounds_resume_with_other_bits(tmp_path: Path) -> None:
    """Numbers in flight are not part of a checkpoint."""
    for algorithm in ("deepca", "accelerated"):
        log = CheckpointLog(tmp_path / algorithm, 5)
        settings = replace(FIXED, algorithm=algorithm, rounds="auto")
        interrupted(settings, log, 12)
        assert_right(run(settings, log))
        assert log.messages == ["resuming from the checkpoint of iteration 10"]


def test_checkpoints_are_kept_until_the_result_is_safe(tmp_path: Path) -> None:
    log = CheckpointLog(tmp_path / "kept", 5)
    found = run(FIXED, log)
    files = list(log.folder.rglob("*.checkpoint"))
    assert len(files) == 2
    again = run(FIXED, log)  # resumes from the last one, with few iterations
    assert_right(again)
    assert log.messages
    assert again.result.iterations < 10
    assert found.checkpointer is not None
    found.checkpointer.clear()
    assert not list(log.folder.rglob("*.checkpoint"))
    assert names_in(log.folder) == ["agents-00000-00003"]
    assert run(FIXED).checkpointer is None


def test_checkpoints_are_written_only_when_due(tmp_path: Path) -> None:
    log = CheckpointLog(tmp_path / "kept", 7)
    interrupted(FIXED, log, 6)
    assert not list(log.folder.rglob("*.checkpoint"))
    run(FIXED, log, stop_at=None)
    assert log.messages == []


OTHERS: dict[str, Callable[[CheckpointLog], Decomposition]] = {
    "seed": lambda log: run(replace(FIXED, seed=1), log),
    "components": lambda log: run(replace(FIXED, n_components=2), log),
    "rounds": lambda log: run(replace(FIXED, rounds=6), log),
    "tolerance": lambda log: run(replace(FIXED, tol=1e-10), log),
    "algorithm": lambda log: run(replace(FIXED, algorithm="krylov", rounds="auto"), log),
    "network": lambda log: run(FIXED, log, topology=deepca.topology.path(M)),
    "weights": lambda log: run(FIXED, log, topology=deepca.topology.ring(M, rule="metropolis")),
    "order": lambda log: run(FIXED, log, rows=DATA[::-1]),
}


@pytest.mark.parametrize("name", list(OTHERS))
def test_runs_with_other_settings_start_over(tmp_path: Path, name: str) -> None:
    log = CheckpointLog(tmp_path / "kept", 5)
    interrupted(FIXED, log, 12)
    files = sorted(log.folder.rglob("*.checkpoint"))
    found = OTHERS[name](log)
    assert_right(found)
    assert log.messages == []
    assert log.warnings
    assert all(str(log.folder) in line for line in log.warnings)
    assert found.checkpointer is not None
    found.checkpointer.clear()
    assert sorted(log.folder.rglob("*.checkpoint")) == files  # those of another run are neither used nor touched
    assert_same_bits(run(FIXED, log), run(FIXED))
    assert log.messages == ["resuming from the checkpoint of iteration 10"]


def balanced(seed: int) -> list[Array]:
    """Return integers, each with its negative, whose sums are exact and therefore independent of the order."""
    rng = np.random.default_rng(seed)
    half = [np.round(8.0 * rng.standard_normal((25, 6)) * 0.8 ** np.arange(6)) for _ in range(M)]
    for rows in half:
        rows[:, 1] += 2.0 * rows[:, 0]
    return [np.concatenate([rows, -rows]) for rows in half]


@pytest.mark.parametrize("form", ["rows", "covariance"])
@pytest.mark.parametrize("algorithm", ["deepca", "krylov"])
def test_other_rows_with_the_same_sums_are_detected(tmp_path: Path, algorithm: str, form: Any) -> None:
    """Shuffling a column within each agent changes the components, but not counts, means and squares."""
    settings = replace(
        FIXED, n_components=2, algorithm=algorithm, rounds=5 if algorithm == "deepca" else "auto", form=form
    )
    before = balanced(1)
    after = [rows.copy() for rows in before]
    for j, rows in enumerate(after):
        rows[:, 1] = np.random.default_rng(j).permutation(rows[:, 1])
    log = CheckpointLog(tmp_path / "kept")
    interrupted(settings, log, 3, rows=before)
    assert_right(run(settings, log, rows=after), after)
    assert log.messages == []
    assert_right(run(settings, log, rows=before), before)
    assert log.messages == ["resuming from the checkpoint of iteration 2"]


def test_other_weights_are_detected(tmp_path: Path) -> None:
    log = CheckpointLog(tmp_path / "kept")
    settings = WHOLE["krylov"]
    ones, other = [np.ones(len(rows)) for rows in DATA], [np.ones(len(rows)) for rows in DATA]
    other[2][[3, 8]] = 2.0, 0.0
    interrupted(settings, log, 3, weights=ones)
    found = run(settings, log, weights=other)
    repeated = [np.repeat(rows, w.astype(int), axis=0) for rows, w in zip(DATA, other, strict=True)]
    assert_right(found, repeated)
    assert log.messages == []


@pytest.mark.parametrize("every", [0, -1, True, 2.5, "3"])
def test_the_interval_of_checkpoints_must_be_a_positive_integer(tmp_path: Path, every: Any) -> None:
    with raises(ParameterError, parameter="every", value=every):
        CheckpointOptions(tmp_path, every)


def test_checkpoints_require_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises(InvalidInput, parameter="folder", file=str(tmp_path / "file")):
        CheckpointOptions(tmp_path / "file")


def test_a_folder_that_cannot_be_created_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = CheckpointLog(tmp_path / "file" / "kept", 5)
    assert_right(run(FIXED, log))
    assert len(log.warnings) == 1
    assert str(log.folder) in log.warnings[0]


# ----------------------------------------------------------------------------------------- several processes' folders


def run_separately(
    settings: Settings, folder: Path, every: int = 5, *, stop_at: int | None = None, rows: Sequence[Array] = DATA
) -> tuple[list[Decomposition], list[CheckpointLog]]:
    """Run one agent per thread, each with its own checkpoints."""
    log = [CheckpointLog(folder, every) for _ in range(M)]

    def work(network: AgentNetwork) -> Decomposition:
        j = network.agent
        observers = () if stop_at is None else [AtIteration(stop_at, interrupt)]
        options = log[j].options
        return fit([sources(rows)[j]], network, settings, observers=observers, checkpointing=options).decomposition

    return deepca.run_agents(RING, work, timeout=60.0), log


@pytest.fixture(params=["deepca", "krylov"])
def apart(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Settings, Path, int]:
    """Return an interrupted run of four agents with two checkpoints each, except that some may lack the last one."""
    settings, every = WHOLE[request.param], 5 if request.param == "deepca" else 1
    with pytest.raises((Interrupted, DeepcaError)):
        run_separately(settings, tmp_path / "kept", every, stop_at=2 * every + 2)
    assert names_in(tmp_path / "kept") == [f"agents-0000{j}-0000{j}" for j in range(M)]
    return settings, tmp_path / "kept", every


def checkpoints(folder: Path, agent: int) -> list[Path]:
    """Return the checkpoints of one agent, newest last."""
    found = sorted((folder / f"agents-{agent:05d}-{agent:05d}").glob("*.checkpoint"))
    assert found
    return found


def truncate(paths: Sequence[Path], to: int = -100) -> None:
    for path in paths:
        path.write_bytes(path.read_bytes()[:to])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def different(folder: Path) -> None:
    """Leave two agents with one checkpoint each, from different iterations."""
    checkpoints(folder, 1)[0].unlink()
    checkpoints(folder, 2)[-1].unlink()


def exchanged(folder: Path) -> None:
    shutil.rmtree(folder / "agents-00002-00002")
    shutil.copytree(folder / "agents-00001-00001", folder / "agents-00002-00002")


DAMAGES: dict[str, tuple[Callable[[Path], object], bool]] = {
    "none": (lambda folder: None, True),
    "one is behind": (lambda folder: checkpoints(folder, 2)[-1].unlink(), True),
    "the first is behind": (lambda folder: checkpoints(folder, 0)[-1].unlink(), True),
    "cut short": (lambda folder: truncate(checkpoints(folder, 1)[-1:]), True),
    "a bit is wrong": (lambda folder: flip(checkpoints(folder, 0)[-1]), True),
    "all cut short": (lambda folder: truncate(checkpoints(folder, 3)), False),
    "empty": (lambda folder: truncate(checkpoints(folder, 0), to=0), False),
    "one agent has none": (lambda folder: shutil.rmtree(folder / "agents-00002-00002"), False),
    "the first has none": (lambda folder: shutil.rmtree(folder / "agents-00000-00000"), False),
    "different ones": (different, False),
    "of another agent": (exchanged, False),
}


@pytest.mark.parametrize("name", list(DAMAGES))
def test_damaged_checkpoints_never_change_the_answer(apart: tuple[Settings, Path, int], name: str) -> None:
    """All agents resume from the newest checkpoint that all of them have, or start over, with the same bits."""
    settings, folder, every = apart
    damage, resumes = DAMAGES[name]
    damage(folder)
    found, log = run_separately(settings, folder, every)
    undisturbed, _ = run_separately(settings, folder.parent / "other", every)
    for here, want in zip(found, undisturbed, strict=True):
        assert_same_bits(here, want)
    assert_right(found[0])
    assert [len(each.messages) for each in log[1:]] == [0] * (M - 1)
    if resumes and every > 1:  # otherwise some agents may have had only one of these checkpoints
        assert len(log[0].messages) == 1
    if not resumes and name not in ("different ones", "of another agent"):
        assert log[0].messages == []


def test_a_damaged_file_is_reported_by_name(apart: tuple[Settings, Path, int]) -> None:
    settings, folder, every = apart
    path = checkpoints(folder, 1)[-1]
    truncate([path])
    _, log = run_separately(settings, folder, every)
    assert [str(path) in line for line in log[1].warnings] == [True]
    assert [each.warnings for each in log if each is not log[1]] == [[], [], []]


def test_other_rows_at_one_agent_make_all_start_over(apart: tuple[Settings, Path, int]) -> None:
    """The checkpoints of the other agents depend on the former rows of that agent."""
    settings, folder, every = apart
    rows = [*DATA[:2], DATA[2] + np.arange(D), DATA[3]]
    found, log = run_separately(settings, folder, every, rows=rows)
    assert_right(found[0], rows)
    assert [each.messages for each in log] == [[], [], [], []]
    assert [str(folder) in line for line in log[0].warnings] == [True]
    assert [each.warnings for each in log[1:]] == [[], [], []]


def test_checkpoints_of_different_rows_are_never_combined(apart: tuple[Settings, Path, int]) -> None:
    """After a run with other rows at one agent, some agents have checkpoints of it, and others only older ones."""
    settings, folder, every = apart
    rows = [*DATA[:2], DATA[2] + np.arange(D), DATA[3]]
    with pytest.raises((Interrupted, DeepcaError)):
        run_separately(settings, folder.parent / "later", every, stop_at=2 * every + 2, rows=rows)
    for agent in (1, 2):
        name = f"agents-{agent:05d}-{agent:05d}"
        shutil.rmtree(folder / name)
        shutil.copytree(folder.parent / "later" / name, folder / name)
    found, log = run_separately(settings, folder, every, rows=rows)
    undisturbed, _ = run_separately(settings, folder.parent / "other", every, rows=rows)
    for here, want in zip(found, undisturbed, strict=True):
        assert_same_bits(here, want)
    assert [each.messages for each in log] == [[], [], [], []]


def test_a_first_run_gives_no_warnings(tmp_path: Path) -> None:
    """Processes may create their folders in any order."""
    log = CheckpointLog(tmp_path / "kept")

    class Agent(SimulatedNetwork):
        def __init__(self, agent: int) -> None:
            super().__init__(RING)
            self.local = np.array([agent])

    for agent in (1, 0):
        Checkpointer(log.options, Agent(agent), read([sources()[agent]]), FIXED)
    assert log.warnings == []


# -------------------------------------------------------------------------------------------------- ranks of a job


RANKS = 3
ROWS = random_rows(6, [40, 33, 52, 18, 40, 29], 40, seed=3, decay=0.92)
OTHER = [*ROWS[:3], ROWS[3][::-1] * 2.0, *ROWS[4:]]  # of rank 1
EVERY = {"deepca": 10, "krylov": 1}
STOP = {"deepca": 25, "krylov": 5}
KILL = {"deepca": 20, "krylov": 4}  # a checkpoint is due there, which the killed rank does not write


def words_of(algorithm: str, kept: str, out: str, *more: object, shards: str = "shards") -> tuple[str, ...]:
    rounds = ("--rounds", "6") if algorithm == "deepca" else ()
    return as_words(
        *("fit", "--engine", "mpi", f"{shards}/*.npy", "-k", 3, "--tolerance", 1e-9, "--topology", "ring"),
        *("--algorithm", algorithm, *rounds, "--checkpoints", kept, "--checkpoint-every", EVERY[algorithm]),
        *(*more, "-o", out),
    )


def of_rank(folder: Path, rank: int) -> list[Path]:
    return sorted((folder / f"agents-{2 * rank:05d}-{2 * rank + 1:05d}").glob("*.checkpoint"))


DAMAGED: dict[str, Callable[[Path], object]] = {
    "none": lambda kept: None,
    "behind": lambda kept: of_rank(kept, 1)[-1].unlink(),
    "first-behind": lambda kept: of_rank(kept, 0)[-1].unlink(),
    "cut": lambda kept: truncate(of_rank(kept, 2)[-1:]),
    "flipped": lambda kept: flip(of_rank(kept, 0)[-1]),
    "all-cut": lambda kept: truncate(of_rank(kept, 1)),
    "gone": lambda kept: shutil.rmtree(kept / "agents-00004-00005"),
}
STARTS_OVER = ("all-cut", "gone")


def be_a_rank(folder: Path) -> None:
    """Interrupt a run of each algorithm and resume it in every way, and resume runs in which a rank was killed."""
    from mpi4py import MPI

    command: Any = importlib.import_module("deepca.cli.commands.fit")
    rank, stop = MPI.COMM_WORLD.rank, [0]

    class Interrupting(ProgressBar):
        def observe(self, step: Any) -> None:
            super().observe(step)
            if step.after.t == stop[0]:
                raise InvalidInput("interrupted")

    command.ProgressBar = Interrupting

    def fit(name: str, *words: str) -> None:
        MPI.COMM_WORLD.Barrier()
        done = run_cli(*words)
        (folder / f"{name}.{rank}.json").write_text(json.dumps([done.exit_code, done.stderr]), encoding="utf-8")
        MPI.COMM_WORLD.Barrier()

    def prepare(source: str, kept: str, change: Callable[[Path], object] = lambda kept: None) -> None:
        if rank == 0:
            shutil.copytree(source, kept)
            change(Path(kept))

    with contextlib.chdir(folder):
        for algorithm in EVERY:
            fit(f"{algorithm}-whole", *words_of(algorithm, f"{algorithm}-fresh", f"{algorithm}-whole.npz"))
            stop[0] = STOP[algorithm]
            fit(f"{algorithm}-stopped", *words_of(algorithm, f"{algorithm}-kept", f"{algorithm}-stopped.npz"))
            stop[0] = 0
            prepare(f"killed-{algorithm}", f"{algorithm}-killed")
            fit(f"{algorithm}-killed", *words_of(algorithm, f"{algorithm}-killed", f"{algorithm}-killed.npz"))
            for name, change in DAMAGED.items():
                case = f"{algorithm}-{name}"
                prepare(f"{algorithm}-kept", case, change)
                fit(case, *words_of(algorithm, case, f"{case}.npz"))
            for name, more, shards in (("seed", ("--seed", 5), "shards"), ("rows", (), "other")):
                case = f"{algorithm}-{name}"
                prepare(f"{algorithm}-kept", case)
                fit(case, *words_of(algorithm, case, f"{case}.npz", *more, shards=shards))


@dataclass(frozen=True)
class Resumed:
    folder: Path
    killed: dict[str, Job]
    job: Job

    def stderr(self, name: str) -> list[str]:
        """Return the standard error of every rank, all of which must have ended."""
        files = [self.folder / f"{name}.{rank}.json" for rank in range(RANKS)]
        if not all(file.exists() for file in files):
            pytest.fail(f"the job did not finish {name}\n{self.job.said}")
        found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
        assert [code for code, _ in found] == [2 if name.endswith("stopped") else 0] * RANKS, found
        return [text for _, text in found]

    def model(self, name: str) -> deepca.Model:
        return deepca.load(self.folder / f"{name}.npz")


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Job]]:
    """Return a job of each algorithm in which rank 1 is killed."""
    folder = tmp_path_factory.mktemp("ranks").resolve()
    for name, rows in (("shards", ROWS), ("other", OTHER)):
        (folder / name).mkdir()
        for j, block in enumerate(rows):
            np.save(folder / name / f"{j}.npy", block)
    jobs = {}
    for algorithm in EVERY:
        words = words_of(algorithm, f"killed-{algorithm}", "killed.npz")
        jobs[algorithm] = faulty_job(RANKS, folder, "is killed", 1, KILL[algorithm], *words)
        assert_over(jobs[algorithm], folder)
    return folder, jobs


@pytest.fixture(scope="module")
def resumed(killed: tuple[Path, dict[str, Job]]) -> Resumed:
    folder, jobs = killed
    return Resumed(
        folder, jobs, mpi_job(RANKS, sys.executable, "-m", "tests.engines.test_checkpointing", folder, cwd=ROOT)
    )


def assert_equal_models(one: deepca.Model, other: deepca.Model) -> None:
    for name in ("components", "explained_variance", "mean"):
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes(), name
    assert (one.total_variance, one.status.code) == (other.total_variance, other.status.code)


def assert_right_model(model: deepca.Model, rows: Sequence[Array] = ROWS) -> None:
    want = PCA(3, svd_solver="full").fit(np.concatenate(list(rows)))
    np.testing.assert_allclose(model.components, want.components_, atol=1e-7)
    np.testing.assert_allclose(model.explained_variance, want.explained_variance_, rtol=1e-7)


@pytest.mark.xdist_group("mpi")
@pytest.mark.parametrize("algorithm", list(EVERY))
def test_a_killed_rank_ends_the_job_and_leaves_checkpoints(killed: tuple[Path, dict[str, Job]], algorithm: str) -> None:
    """The fixture asserts that the whole job ends in time."""
    folder, jobs = killed
    assert jobs[algorithm].stdout == ""
    kept = [len(of_rank(folder / f"killed-{algorithm}", rank)) for rank in range(RANKS)]
    assert min(kept) >= 1, kept


@pytest.mark.xdist_group("mpi")
@pytest.mark.parametrize("algorithm", list(EVERY))
def test_a_run_resumes_after_a_rank_was_killed(resumed: Resumed, algorithm: str) -> None:
    first, *others = resumed.stderr(f"{algorithm}-killed")
    assert len(lines_with(first, "resuming from the checkpoint of iteration ")) == 1, first
    assert not any(lines_with(text, "resuming") for text in others)
    assert_equal_models(resumed.model(f"{algorithm}-killed"), resumed.model(f"{algorithm}-whole"))
    assert_right_model(resumed.model(f"{algorithm}-killed"))


@pytest.mark.xdist_group("mpi")
@pytest.mark.parametrize("name", list(DAMAGED))
@pytest.mark.parametrize("algorithm", list(EVERY))
def test_resumed_runs_have_the_same_bits_whatever_checkpoints_are_left(
    resumed: Resumed, algorithm: str, name: str
) -> None:
    case, newest = f"{algorithm}-{name}", STOP[algorithm] // EVERY[algorithm] * EVERY[algorithm]
    newest -= EVERY[algorithm] * (STOP[algorithm] % EVERY[algorithm] == 0)  # that of the last iteration is not written
    said = resumed.stderr(case)
    assert_equal_models(resumed.model(case), resumed.model(f"{algorithm}-whole"))
    resuming = lines_with(said[0], "resuming from")
    if name in STARTS_OVER:
        assert resuming == []
    else:
        t = newest if name == "none" else newest - EVERY[algorithm]
        assert resuming == [f"resuming from the checkpoint of iteration {t}"]
    if "cut" in name:
        rank = 2 if name == "cut" else 1
        assert len(lines_with(said[rank], f"rank {rank}: the checkpoint ")) == (1 if name == "cut" else 2)
    assert not list((resumed.folder / case).rglob("*.checkpoint"))  # removed once the model is written


@pytest.mark.xdist_group("mpi")
@pytest.mark.parametrize("algorithm", list(EVERY))
def test_other_settings_or_rows_on_ranks_start_over(resumed: Resumed, algorithm: str) -> None:
    for name, rows in (("seed", ROWS), ("rows", OTHER)):
        said = resumed.stderr(f"{algorithm}-{name}")
        assert not lines_with(said[0], "resuming")
        assert len(lines_with(said[0], f"{algorithm}-{name} has no usable checkpoint")) == 1
        assert said[1] == ""
        assert_right_model(resumed.model(f"{algorithm}-{name}"), rows)
        assert list((resumed.folder / f"{algorithm}-{name}").rglob("*.checkpoint"))  # those of the other run


@pytest.mark.xdist_group("mpi")
@pytest.mark.parametrize("engine", ["mpi", "simulator"])
@pytest.mark.parametrize("algorithm", list(EVERY))
def test_another_number_of_ranks_starts_over(resumed: Resumed, algorithm: str, engine: str) -> None:
    resumed.stderr(f"{algorithm}-stopped")
    kept = f"{algorithm}-{engine}-fewer"
    shutil.copytree(resumed.folder / f"{algorithm}-kept", resumed.folder / kept)
    words = [word if word != "mpi" else engine for word in words_of(algorithm, kept, f"{kept}.npz")]
    with contextlib.chdir(resumed.folder):
        done = run_cli(*words)
    assert done.exit_code == 0, done.output
    assert "resuming" not in done.stderr
    assert f"{kept} has no usable checkpoint" in done.stderr.replace("\n", " ")
    assert_right_model(resumed.model(kept))
    for rank in range(RANKS):
        assert of_rank(resumed.folder / kept, rank)  # not its own


@pytest.mark.xdist_group("mpi")
def test_only_progress_is_logged(resumed: Resumed) -> None:
    """Both an uninterrupted and a resumed job are checked."""
    assert resumed.job.code == 0, resumed.job.said
    for algorithm in EVERY:
        for name in ("whole", "none"):
            first, *others = resumed.stderr(f"{algorithm}-{name}")
            assert others == ["", ""]
            rest = [line for line in first.splitlines() if "resuming" not in line]
            assert [("started" in line, "iterations in" in line) for line in rest] == [(True, False), (False, True)]
        first, *others = resumed.stderr(f"{algorithm}-stopped")
        assert lines_with(first, "error") == ["error: interrupted"]
        assert others == ["", ""]


if __name__ == "__main__":
    be_a_rank(Path(sys.argv[1]))
