"""Runs that go on after an interruption: with the same bits, from whatever is left of the checkpoints of all.

``python -m tests.engines.test_keeping FOLDER``, started by mpiexec, is one rank: it interrupts runs and lets them go
on.
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
from deepca.engines.keeping import Keeper, Keeping
from deepca.errors import DeepcaError, InvalidInput, ParameterError
from deepca.network import AgentNetwork, SimulatedNetwork
from deepca.solver.observers import Start, Step
from deepca.solver.progress import ProgressBar
from deepca.topology import Topology
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
    """What happens to a run."""


def interrupt() -> None:
    raise Interrupted


def sources(rows: Sequence[Array] = DATA) -> list[ArraySource]:
    return [ArraySource(block, f"agent {j}", None) for j, block in enumerate(rows)]


@dataclass
class Told:
    """A folder for checkpoints, and what was said about it."""

    folder: Path
    every: int = 1

    def __post_init__(self) -> None:
        self.warned: list[str] = []
        self.said: list[str] = []

    @property
    def keeping(self) -> Keeping:
        return Keeping(self.folder, self.every, self.warned.append, self.said.append)


def run(
    settings: Settings,
    told: Told | None = None,
    *,
    rows: Sequence[Array] = DATA,
    stop_at: int | None = None,
    topology: Topology = RING,
    weights: Sequence[Array] | None = None,
) -> Decomposition:
    """All agents in one process."""
    return fit(
        sources(rows),
        SimulatedNetwork(topology),
        settings,
        weights=weights,
        observers=() if stop_at is None else [AtIteration(stop_at, interrupt)],
        keeping=None if told is None else told.keeping,
    ).found


def interrupted(settings: Settings, told: Told, stop_at: int, **more: Any) -> None:
    with pytest.raises(Interrupted):
        run(settings, told, stop_at=stop_at, **more)


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
def test_goes_on_with_the_same_bits(tmp_path: Path, name: str) -> None:
    settings, told = WHOLE[name], Told(tmp_path / "kept", 2)
    undisturbed = run(settings)
    interrupted(settings, told, 5)
    assert len(list(told.folder.rglob("*.checkpoint"))) == 2
    found = run(settings, told)
    assert told.said == ["goes on from the checkpoint of iteration 4"]
    assert told.warned == []
    assert_same_bits(found, undisturbed)
    assert found.result.iterations == undisturbed.result.iterations - 4
    if name not in ("scaled", "depca"):
        assert_right(found)


def test_interrupted_again_and_again(tmp_path: Path) -> None:
    told = Told(tmp_path / "kept", 3)
    for stop_at in (4, 8, 9, 20, 31):
        interrupted(FIXED, told, stop_at)
    assert_same_bits(run(FIXED, told), run(FIXED))
    assert told.said == [f"goes on from the checkpoint of iteration {t}" for t in (3, 6, 6, 18, 30)]


@pytest.mark.parametrize("name", ["deepca", "krylov"])
def test_interrupted_just_before_the_end(tmp_path: Path, name: str) -> None:
    """What decides about the end may have been on its way between agents: then it is decided a few iterations later."""
    settings, undisturbed = WHOLE[name], run(WHOLE[name])
    end = undisturbed.result.state.t
    for stop_at in range(max(end - 8, 2), end + 1):
        told = Told(tmp_path / str(stop_at))
        interrupted(settings, told, stop_at)
        found = run(settings, told)
        if name == "krylov":
            assert_same_bits(found, undisturbed, iterations=False)
        assert 0 <= found.result.state.t - end <= 4
        np.testing.assert_allclose(found.components, undisturbed.components, rtol=0, atol=10 * settings.tol)
        assert found.result.status.ok


def test_a_share_of_the_variance(tmp_path: Path) -> None:
    """How many components it takes is found at a glance, of which nothing is kept; the run for them goes on."""
    settings = replace(FIXED, n_components=0.8)
    recorder, told = Recorder(), Told(tmp_path / "kept", 5)
    undisturbed = fit(sources(), SimulatedNetwork(RING), settings, observers=[recorder]).found
    glances = len(recorder.starts) - 1
    assert glances >= 1

    class Late(AtIteration):
        """Not before the glances are over."""

        begun = 0

        def begin(self, start: Start) -> None:
            self.begun += 1

        def observe(self, step: Step) -> None:
            if self.begun > glances:
                super().observe(step)

    with pytest.raises(Interrupted):
        fit(sources(), SimulatedNetwork(RING), settings, observers=[Late(12, interrupt)], keeping=told.keeping)
    assert_same_bits(run(settings, told), undisturbed)
    assert told.said == ["goes on from the checkpoint of iteration 10"]
    assert_right(undisturbed)


def test_numbers_on_their_way_are_not_kept(tmp_path: Path) -> None:
    """Methods that choose their rounds while they run go on as well, though not with the same bits."""
    for algorithm in ("deepca", "accelerated"):
        told = Told(tmp_path / algorithm, 5)
        settings = replace(FIXED, algorithm=algorithm, rounds="auto")
        interrupted(settings, told, 12)
        assert_right(run(settings, told))
        assert told.said == ["goes on from the checkpoint of iteration 10"]


def test_kept_until_the_result_is_safe(tmp_path: Path) -> None:
    told = Told(tmp_path / "kept", 5)
    found = run(FIXED, told)
    files = list(told.folder.rglob("*.checkpoint"))
    assert len(files) == 2
    again = run(FIXED, told)  # from the last one: it costs some iterations only
    assert_right(again)
    assert told.said
    assert again.result.iterations < 10
    assert found.keeper is not None
    found.keeper.clear()
    assert not list(told.folder.rglob("*.checkpoint"))
    assert names_in(told.folder) == ["agents-00000-00003"]
    assert run(FIXED).keeper is None


def test_nothing_is_written_between(tmp_path: Path) -> None:
    told = Told(tmp_path / "kept", 7)
    interrupted(FIXED, told, 6)
    assert not list(told.folder.rglob("*.checkpoint"))
    run(FIXED, told, stop_at=None)
    assert told.said == []


OTHERS: dict[str, Callable[[Told], Decomposition]] = {
    "seed": lambda told: run(replace(FIXED, seed=1), told),
    "components": lambda told: run(replace(FIXED, n_components=2), told),
    "rounds": lambda told: run(replace(FIXED, rounds=6), told),
    "tolerance": lambda told: run(replace(FIXED, tol=1e-10), told),
    "algorithm": lambda told: run(replace(FIXED, algorithm="krylov", rounds="auto"), told),
    "network": lambda told: run(FIXED, told, topology=deepca.topology.path(M)),
    "weights": lambda told: run(FIXED, told, topology=deepca.topology.ring(M, rule="metropolis")),
    "order": lambda told: run(FIXED, told, rows=DATA[::-1]),
}


@pytest.mark.parametrize("name", list(OTHERS))
def test_other_settings_begin_anew(tmp_path: Path, name: str) -> None:
    told = Told(tmp_path / "kept", 5)
    interrupted(FIXED, told, 12)
    files = sorted(told.folder.rglob("*.checkpoint"))
    found = OTHERS[name](told)
    assert_right(found)
    assert told.said == []
    assert told.warned
    assert all("another run" in line and "other rows" in line for line in told.warned)
    assert found.keeper is not None
    found.keeper.clear()
    assert sorted(told.folder.rglob("*.checkpoint")) == files  # not its own, so neither used nor touched
    assert_same_bits(run(FIXED, told), run(FIXED))
    assert told.said == ["goes on from the checkpoint of iteration 10"]


def balanced(seed: int) -> list[Array]:
    """Whole numbers, each with its negative: all sums are exact, so that an order leaves no trace in them."""
    rng = np.random.default_rng(seed)
    half = [np.round(8.0 * rng.standard_normal((25, 6)) * 0.8 ** np.arange(6)) for _ in range(M)]
    for rows in half:
        rows[:, 1] += 2.0 * rows[:, 0]
    return [np.concatenate([rows, -rows]) for rows in half]


@pytest.mark.parametrize("form", ["rows", "covariance"])
@pytest.mark.parametrize("algorithm", ["deepca", "krylov"])
def test_rows_with_the_same_sums_are_other_rows(tmp_path: Path, algorithm: str, form: Any) -> None:
    """A column shuffled within each agent: the same counts, means and squares, but other components."""
    settings = replace(
        FIXED, n_components=2, algorithm=algorithm, rounds=5 if algorithm == "deepca" else "auto", form=form
    )
    before = balanced(1)
    after = [rows.copy() for rows in before]
    for j, rows in enumerate(after):
        rows[:, 1] = np.random.default_rng(j).permutation(rows[:, 1])
    told = Told(tmp_path / "kept")
    interrupted(settings, told, 3, rows=before)
    assert_right(run(settings, told, rows=after), after)
    assert told.said == []
    assert_right(run(settings, told, rows=before), before)
    assert told.said == ["goes on from the checkpoint of iteration 2"]


def test_other_weights_are_other_rows(tmp_path: Path) -> None:
    told = Told(tmp_path / "kept")
    settings = WHOLE["krylov"]
    ones, other = [np.ones(len(rows)) for rows in DATA], [np.ones(len(rows)) for rows in DATA]
    other[2][[3, 8]] = 2.0, 0.0
    interrupted(settings, told, 3, weights=ones)
    found = run(settings, told, weights=other)
    repeated = [np.repeat(rows, w.astype(int), axis=0) for rows, w in zip(DATA, other, strict=True)]
    assert_right(found, repeated)
    assert told.said == []


@pytest.mark.parametrize("every", [0, -1, True, 2.5, "3"])
def test_every_is_a_number_of_iterations(tmp_path: Path, every: Any) -> None:
    with pytest.raises(ParameterError) as error:
        Keeping(tmp_path, every)
    assert (error.value.parameter, error.value.value) == ("every", every)


def test_a_folder_is_needed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="is no folder; checkpoints need one"):
        Keeping(tmp_path / "file")


def test_a_folder_that_cannot_be_made_does_not_stop_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told = Told(tmp_path / "file" / "kept", 5)
    assert_right(run(FIXED, told))
    assert len(told.warned) == 1
    assert "no checkpoint can be written" in told.warned[0]


# ----------------------------------------------------------------------------------------- several processes' folders


def run_apart(
    settings: Settings, folder: Path, every: int = 5, *, stop_at: int | None = None, rows: Sequence[Array] = DATA
) -> tuple[list[Decomposition], list[Told]]:
    """One agent per thread, each with checkpoints of its own."""
    told = [Told(folder, every) for _ in range(M)]

    def work(network: AgentNetwork) -> Decomposition:
        j = network.agent
        observers = () if stop_at is None else [AtIteration(stop_at, interrupt)]
        return fit([sources(rows)[j]], network, settings, observers=observers, keeping=told[j].keeping).found

    return deepca.run_agents(RING, work, timeout=60.0), told


@pytest.fixture(params=["deepca", "krylov"])
def apart(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Settings, Path, int]:
    """A run of four agents that was interrupted after two checkpoints (of every agent, the last one of some only)."""
    settings, every = WHOLE[request.param], 5 if request.param == "deepca" else 1
    with pytest.raises((Interrupted, DeepcaError)):
        run_apart(settings, tmp_path / "kept", every, stop_at=2 * every + 2)
    assert names_in(tmp_path / "kept") == [f"agents-0000{j}-0000{j}" for j in range(M)]
    return settings, tmp_path / "kept", every


def checkpoints(folder: Path, agent: int) -> list[Path]:
    """Of one agent, newest last."""
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
    """Two agents have one checkpoint each, and not the same."""
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
def test_never_a_wrong_answer(apart: tuple[Settings, Path, int], name: str) -> None:
    """All go on from the newest checkpoint that all have; where there is none, they begin anew. Bits are the same."""
    settings, folder, every = apart
    damage, goes_on = DAMAGES[name]
    damage(folder)
    found, told = run_apart(settings, folder, every)
    undisturbed, _ = run_apart(settings, folder.parent / "other", every)
    for here, want in zip(found, undisturbed, strict=True):
        assert_same_bits(here, want)
    assert_right(found[0])
    assert [len(each.said) for each in told[1:]] == [0] * (M - 1)
    if goes_on and every > 1:  # else some agents may have had one checkpoint of those only
        assert len(told[0].said) == 1
    if not goes_on and name not in ("different ones", "of another agent"):
        assert told[0].said == []


def test_a_damaged_file_is_named(apart: tuple[Settings, Path, int]) -> None:
    settings, folder, every = apart
    path = checkpoints(folder, 1)[-1]
    truncate([path])
    _, told = run_apart(settings, folder, every)
    assert [str(path) in line and "cannot be used" in line for line in told[1].warned] == [True]
    assert [each.warned for each in told if each is not told[1]] == [[], [], []]


def test_other_rows_at_one_agent(apart: tuple[Settings, Path, int]) -> None:
    """None goes on: what the others have kept has met the rows of before."""
    settings, folder, every = apart
    rows = [*DATA[:2], DATA[2] + np.arange(D), DATA[3]]
    found, told = run_apart(settings, folder, every, rows=rows)
    assert_right(found[0], rows)
    assert [each.said for each in told] == [[], [], [], []]
    assert ["other rows" in line for line in told[0].warned] == [True]
    assert [each.warned for each in told[1:]] == [[], [], []]


def test_checkpoints_of_other_rows_are_never_taken_together(apart: tuple[Settings, Path, int]) -> None:
    """A run with other rows at one agent is ended when only some have kept states of it; the others have older ones."""
    settings, folder, every = apart
    rows = [*DATA[:2], DATA[2] + np.arange(D), DATA[3]]
    with pytest.raises((Interrupted, DeepcaError)):
        run_apart(settings, folder.parent / "later", every, stop_at=2 * every + 2, rows=rows)
    for agent in (1, 2):
        name = f"agents-{agent:05d}-{agent:05d}"
        shutil.rmtree(folder / name)
        shutil.copytree(folder.parent / "later" / name, folder / name)
    found, told = run_apart(settings, folder, every, rows=rows)
    undisturbed, _ = run_apart(settings, folder.parent / "other", every, rows=rows)
    for here, want in zip(found, undisturbed, strict=True):
        assert_same_bits(here, want)
    assert [each.said for each in told] == [[], [], [], []]


def test_a_first_run_finds_nothing_to_warn_of(tmp_path: Path) -> None:
    """Processes make their folders in any order."""
    told = Told(tmp_path / "kept")

    class Agent(SimulatedNetwork):
        def __init__(self, agent: int) -> None:
            super().__init__(RING)
            self.local = np.array([agent])

    for agent in (1, 0):
        Keeper(told.keeping, Agent(agent), read([sources()[agent]]), FIXED)
    assert told.warned == []


# -------------------------------------------------------------------------------------------------- ranks of a job


RANKS = 3
ROWS = random_rows(6, [40, 33, 52, 18, 40, 29], 40, seed=3, decay=0.92)
OTHER = [*ROWS[:3], ROWS[3][::-1] * 2.0, *ROWS[4:]]  # of rank 1
EVERY = {"deepca": 10, "krylov": 1}
STOP = {"deepca": 25, "krylov": 5}
KILL = {"deepca": 20, "krylov": 4}  # where a checkpoint is due: that of the rank that is killed is not written


def words_of(algorithm: str, kept: str, out: str, *more: object, shards: str = "shards") -> tuple[str, ...]:
    rounds = ("--rounds", "6") if algorithm == "deepca" else ()
    return as_words(
        *("fit", "--engine", "mpi", f"{shards}/*.npy", "-k", 3, "--tol", 1e-9, "--topology", "ring"),
        *("--algorithm", algorithm, *rounds, "--checkpoints", kept, "--checkpoint-every", EVERY[algorithm]),
        *(*more, "-o", out),
    )


def of_rank(folder: Path, rank: int) -> list[Path]:
    return sorted((folder / f"agents-{2 * rank:05d}-{2 * rank + 1:05d}").glob("*.checkpoint"))


SPOILT: dict[str, Callable[[Path], object]] = {
    "none": lambda kept: None,
    "behind": lambda kept: of_rank(kept, 1)[-1].unlink(),
    "first-behind": lambda kept: of_rank(kept, 0)[-1].unlink(),
    "cut": lambda kept: truncate(of_rank(kept, 2)[-1:]),
    "flipped": lambda kept: flip(of_rank(kept, 0)[-1]),
    "all-cut": lambda kept: truncate(of_rank(kept, 1)),
    "gone": lambda kept: shutil.rmtree(kept / "agents-00004-00005"),
}
ANEW = ("all-cut", "gone")


def be_a_rank(folder: Path) -> None:
    """Interrupt a run of each algorithm; let it go on in every way; and go on where a rank was killed."""
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
            for name, change in SPOILT.items():
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
        """Of every rank, which have all made an end of it."""
        files = [self.folder / f"{name}.{rank}.json" for rank in range(RANKS)]
        if not all(file.exists() for file in files):
            pytest.fail(f"the job has not come to the end of {name}\n{self.job.said}")
        found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
        assert [code for code, _ in found] == [2 if name.endswith("stopped") else 0] * RANKS, found
        return [text for _, text in found]

    def model(self, name: str) -> deepca.Model:
        return deepca.load(self.folder / f"{name}.npz")


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Job]]:
    """A job of each algorithm in which rank 1 is killed."""
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
    return Resumed(folder, jobs, mpi_job(RANKS, sys.executable, "-m", "tests.engines.test_keeping", folder, cwd=ROOT))


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
def test_a_rank_is_killed(killed: tuple[Path, dict[str, Job]], algorithm: str) -> None:
    """The whole job is over in time (see the fixture); checkpoints of all ranks stay."""
    folder, jobs = killed
    assert jobs[algorithm].stdout == ""
    kept = [len(of_rank(folder / f"killed-{algorithm}", rank)) for rank in range(RANKS)]
    assert min(kept) >= 1, kept


@pytest.mark.xdist_group("mpi")
@pytest.mark.parametrize("algorithm", list(EVERY))
def test_goes_on_after_a_rank_was_killed(resumed: Resumed, algorithm: str) -> None:
    first, *others = resumed.stderr(f"{algorithm}-killed")
    assert len(lines_with(first, "goes on from the checkpoint of iteration ")) == 1, first
    assert not any(lines_with(text, "goes on") for text in others)
    assert_equal_models(resumed.model(f"{algorithm}-killed"), resumed.model(f"{algorithm}-whole"))
    assert_right_model(resumed.model(f"{algorithm}-killed"))


@pytest.mark.xdist_group("mpi")
@pytest.mark.parametrize("name", list(SPOILT))
@pytest.mark.parametrize("algorithm", list(EVERY))
def test_the_same_bits_whatever_is_left(resumed: Resumed, algorithm: str, name: str) -> None:
    case, newest = f"{algorithm}-{name}", STOP[algorithm] // EVERY[algorithm] * EVERY[algorithm]
    newest -= EVERY[algorithm] * (
        STOP[algorithm] % EVERY[algorithm] == 0
    )  # that of the iteration itself is not written
    said = resumed.stderr(case)
    assert_equal_models(resumed.model(case), resumed.model(f"{algorithm}-whole"))
    goes_on = lines_with(said[0], "goes on from")
    if name in ANEW:
        assert goes_on == []
    else:
        t = newest if name == "none" else newest - EVERY[algorithm]
        assert goes_on == [f"goes on from the checkpoint of iteration {t}"]
    if "cut" in name:
        rank = 2 if name == "cut" else 1
        assert len(lines_with(said[rank], f"rank {rank}: the checkpoint ")) == (1 if name == "cut" else 2)
    assert not list((resumed.folder / case).rglob("*.checkpoint"))  # the model is there


@pytest.mark.xdist_group("mpi")
@pytest.mark.parametrize("algorithm", list(EVERY))
def test_other_settings_or_rows_on_ranks(resumed: Resumed, algorithm: str) -> None:
    for name, rows in (("seed", ROWS), ("rows", OTHER)):
        said = resumed.stderr(f"{algorithm}-{name}")
        assert not lines_with(said[0], "goes on")
        assert len(lines_with(said[0], "another run or other rows; they stay there, and the run begins anew")) == 1
        assert said[1] == ""
        assert_right_model(resumed.model(f"{algorithm}-{name}"), rows)
        assert list((resumed.folder / f"{algorithm}-{name}").rglob("*.checkpoint"))  # those of the other run stay


@pytest.mark.xdist_group("mpi")
@pytest.mark.parametrize("engine", ["mpi", "simulator"])
@pytest.mark.parametrize("algorithm", list(EVERY))
def test_another_number_of_ranks(resumed: Resumed, algorithm: str, engine: str) -> None:
    resumed.stderr(f"{algorithm}-stopped")
    kept = f"{algorithm}-{engine}-fewer"
    shutil.copytree(resumed.folder / f"{algorithm}-kept", resumed.folder / kept)
    words = [word if word != "mpi" else engine for word in words_of(algorithm, kept, f"{kept}.npz")]
    with contextlib.chdir(resumed.folder):
        done = run_cli(*words)
    assert done.exit_code == 0, done.output
    assert "goes on" not in done.stderr
    assert "of another number of ranks" in done.stderr.replace("\n", " ")
    assert_right_model(resumed.model(kept))
    for rank in range(RANKS):
        assert of_rank(resumed.folder / kept, rank)  # not its own


@pytest.mark.xdist_group("mpi")
def test_nothing_else_is_said(resumed: Resumed) -> None:
    """A job that was not interrupted, and one that was, tell of nothing but progress."""
    assert resumed.job.code == 0, resumed.job.said
    for algorithm in EVERY:
        for name in ("whole", "none"):
            first, *others = resumed.stderr(f"{algorithm}-{name}")
            assert others == ["", ""]
            rest = [line for line in first.splitlines() if "goes on" not in line]
            assert [("begins" in line, "iterations in" in line) for line in rest] == [(True, False), (False, True)]
        first, *others = resumed.stderr(f"{algorithm}-stopped")
        assert lines_with(first, "error") == ["error: interrupted"]
        assert others == ["", ""]


if __name__ == "__main__":
    be_a_rank(Path(sys.argv[1]))
