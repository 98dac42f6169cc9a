"""Test engines: what the processes of a run tell each other, timeouts if one does not answer, and progress."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.decomposition import PCA

import deepca
from deepca._util import machine
from deepca.data.sources import ArraySource, Source
from deepca.decomposition.fit import fit
from deepca.decomposition.settings import Settings
from deepca.engines.local import ENGINES, Engine, create_engine
from deepca.engines.mpi.job import MpiEngine
from deepca.engines.mpi.network import MpiNetwork
from deepca.engines.mpi.watchdog import Watchdog
from deepca.errors import (
    DataError,
    InvalidInput,
    MissingExtraError,
    NetworkError,
    NotFiniteError,
    ParameterError,
    TopologyError,
)
from deepca.network import SimulatedNetwork
from deepca.network.traffic import Traffic
from deepca.solver.observers import Observer
from deepca.solver.progress import ProgressLines
from tests.support.errors import raises
from tests.support.helpers import Recorder
from tests.support.mpi_jobs import ThreadEngine, run_ranks, user_environment
from tests.support.problems import random_rows

DATA = random_rows(4, [20, 15, 30, 8], 7, seed=5)
NAMES = tuple("abcdefg")


def sources(rows: Sequence[Any] = DATA, columns: tuple[str, ...] | None = None) -> list[Source]:
    return [ArraySource(block, f"agent {j}", columns) for j, block in enumerate(rows)]


# ------------------------------------------------------------------------------------------------------------- names


def test_engines_are_created_by_name() -> None:
    assert ENGINES == ("simulator", "mpi")
    assert type(create_engine("simulator")) is Engine
    mpi = create_engine("mpi", allreduce=True, timeout=None)
    assert isinstance(mpi, MpiEngine)
    assert (mpi.name, mpi.rank, mpi.ranks, mpi.is_root) == ("mpi", 0, 1, True)
    with raises(ParameterError, parameter="engine", value="MPI"):
        create_engine("MPI")
    with raises(InvalidInput, parameter="allreduce", value=True):
        create_engine("simulator", allreduce=True)


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_processes_that_mpi_does_not_connect_are_rejected(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """With the launcher of one MPI and the library of another, every process would run alone."""
    monkeypatch.setenv(variable, "4")
    assert machine.launched_ranks() == 4
    with pytest.raises(NetworkError, match="4 processes"):
        create_engine("mpi")
    monkeypatch.setenv(variable, "many")
    assert machine.launched_ranks() == 1


def test_only_the_mpi_engine_needs_mpi4py() -> None:
    script = """
        import sys
        sys.modules["mpi4py"] = None
        import deepca, deepca.cli.app, deepca.engines.local, deepca.estimators.pca, deepca.engines.checkpointing
        from deepca.errors import MissingExtraError
        for again in range(2):
            try:
                deepca.engines.local.create_engine("mpi")
            except MissingExtraError as error:
                assert isinstance(error, ImportError)
                print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=user_environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=120.0,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all("pip install 'deepca[mpi]'" in line for line in lines)


# --------------------------------------------------------------------------------------------------------- one rank


@pytest.mark.parametrize("name", ENGINES)
def test_a_single_rank_exchanges_only_with_itself(name: str) -> None:
    engine = create_engine(name)
    assert engine.gather_texts("é∞ ") == ["é∞ "]
    assert engine.gather_texts("") == [""]
    assert engine.gather_counts(7) == (7,)
    assert engine.agents_per_rank(5) == (5,)
    own = Traffic(3, 1, 10, 800, 16, 4)
    assert engine.total_traffic(own) == own
    found = engine.align_columns(sources(columns=NAMES))
    assert [source.columns for source in found] == [NAMES] * 4
    for error in (DataError("no"), OSError("no"), ZeroDivisionError("no"), KeyboardInterrupt("no")):
        with pytest.raises(type(error)) as caught, engine.guard(), engine.raise_on_all_ranks():
            raise error
        assert caught.value is error
    with engine.guard(), engine.raise_on_all_ranks():
        pass


@pytest.mark.parametrize("allreduce", [False, True])
@pytest.mark.parametrize("algorithm", ["krylov", "deepca", "accelerated", "covariance"])
def test_one_mpi_rank_matches_the_simulator(algorithm: str, allreduce: bool) -> None:
    topology, settings = deepca.topology.ring(4), Settings(n_components=3, algorithm=algorithm)
    engine = create_engine("mpi", allreduce=allreduce)
    network = engine.network(topology)
    assert isinstance(network, MpiNetwork)
    assert network.collective == allreduce
    found = fit(sources(), network, settings, engine=engine).decomposition
    alone = fit(sources(), SimulatedNetwork(topology), settings).decomposition
    engine.close(network)
    np.testing.assert_allclose(found.components, alone.components, atol=1e-9)
    want = PCA(3, svd_solver="full").fit(np.concatenate(DATA))
    np.testing.assert_allclose(found.components, want.components_, atol=1e-8)
    np.testing.assert_allclose(found.variances, want.explained_variance_, rtol=1e-8)
    assert network.bytes_to_other_ranks == 0


def test_shares_must_match_the_network() -> None:
    engine, ring = create_engine("mpi"), deepca.topology.ring(4)
    with raises(TopologyError, parameter="agents_per_rank", value=(3,)):
        engine.network(ring, [3])
    with raises(TopologyError, parameter="agents_per_rank", value=(2, 2)):
        engine.network(ring, [2, 2])
    assert isinstance(engine.network(ring, [4]), MpiNetwork)
    simulator = Engine()
    made = simulator.network(ring, [4])
    assert isinstance(made, SimulatedNetwork)
    simulator.close(made)


# ----------------------------------------------------------------------------------------------------- several ranks


@pytest.mark.parametrize(("agents", "ranks", "shares"), [(3, 3, [1, 1, 1]), (8, 3, [2, 3, 3]), (7, 2, [3, 4])])
def test_shares_are_as_even_as_possible(agents: int, ranks: int, shares: list[int]) -> None:
    for found in run_ranks(ranks, lambda engine: engine.agents_per_rank(agents)):
        assert not isinstance(found, Exception)
        assert sorted(found) == shares
        assert sum(found) == agents


@pytest.mark.parametrize("agents", [1, 2])
def test_fewer_agents_than_ranks_are_rejected(agents: int) -> None:
    for error in run_ranks(3, lambda engine: engine.agents_per_rank(agents)):
        assert type(error) is TopologyError
        assert (error.parameter, error.value) == ("n_agents", agents)
        assert f"mpiexec -n {agents}" in str(error)


def test_numbers_and_texts_are_collected_from_all_ranks() -> None:
    assert run_ranks(3, lambda engine: engine.gather_counts(10 * engine.rank)) == [(0, 10, 20)] * 3
    assert run_ranks(2, lambda engine: engine.gather_texts("ä" * engine.rank)) == [["", "ä"]] * 2
    assert run_ranks(3, lambda engine: engine.is_root) == [True, False, False]

    def add(engine: ThreadEngine) -> Traffic:
        return engine.total_traffic(Traffic(5, 2, 10 + engine.rank, 100, 8, 2))

    assert run_ranks(3, add) == [Traffic(5, 2, 33, 300, 24, 6)] * 3


def fail_at(bad: dict[int, Exception], engine: ThreadEngine) -> int:
    with engine.raise_on_all_ranks():
        if engine.rank in bad:
            raise bad[engine.rank]
    return engine.rank


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (DataError("wrong"), DataError),
        (InvalidInput("wrong"), InvalidInput),
        (TopologyError("wrong"), TopologyError),
        (NotFiniteError("wrong"), NotFiniteError),
        (MissingExtraError("wrong"), MissingExtraError),
        (OSError("wrong"), OSError),
        (FileNotFoundError("wrong"), OSError),
        (PermissionError("wrong"), OSError),
        (ValueError("wrong"), DataError),
        (TypeError("wrong"), DataError),
    ],
)
def test_an_error_on_one_rank_is_raised_on_all(error: Exception, kind: type[Exception]) -> None:
    assert run_ranks(3, lambda engine: fail_at({}, engine)) == [0, 1, 2]
    for rank in range(3):
        found = run_ranks(3, lambda engine, rank=rank: fail_at({rank: error}, engine))  # type: ignore[misc]
        assert all(isinstance(each, kind) for each in found)
        assert {str(each) for each in found} == {f"rank {rank}: wrong"}
        causes = [each.__cause__ for each in found if isinstance(each, Exception)]
        assert causes[rank] is error  # the failing rank keeps the traceback
        assert all(cause is None for i, cause in enumerate(causes) if i != rank)


def test_errors_on_several_ranks_name_the_first_and_count_the_others() -> None:
    def messages(*ranks: int) -> set[str]:
        bad: dict[int, Exception] = {rank: DataError(f"number {rank}") for rank in ranks}
        return {str(each) for each in run_ranks(4, lambda engine: fail_at(bad, engine))}

    assert messages(1, 3) == {"rank 1: number 1; 1 other rank failed as well"}
    assert messages(1, 2, 3) == {"rank 1: number 1; 2 other ranks failed as well"}
    assert messages(0, 1, 2, 3) == {"rank 0: number 0; 3 other ranks failed as well"}


def test_the_same_error_on_all_ranks_names_no_rank() -> None:
    for failing, text in ((range(4), "wrong"), (range(3), "rank 0: wrong; 2 other ranks failed as well")):
        bad: dict[int, Exception] = {rank: DataError("wrong") for rank in failing}
        found = run_ranks(4, lambda engine, bad=bad: fail_at(bad, engine))  # type: ignore[misc]
        assert {str(each) for each in found} == {text}
        assert all(isinstance(each, DataError) for each in found)


def test_columns_are_put_in_the_order_of_rank_0() -> None:
    orders = [np.arange(7), np.array([3, 1, 0, 2, 6, 5, 4]), np.arange(7)[::-1]]

    def of_rank(engine: ThreadEngine) -> list[Any]:
        order = orders[engine.rank]
        named = [ArraySource(DATA[engine.rank][:, order], f"agent {engine.rank}", tuple(NAMES[i] for i in order))]
        return [
            (source.columns, np.concatenate([np.asarray(b) for b in source.blocks()]))
            for source in engine.align_columns(named)
        ]

    for rank, found in enumerate(run_ranks(3, of_rank)):
        assert not isinstance(found, Exception), found
        ((columns, rows),) = found
        assert columns == NAMES
        np.testing.assert_array_equal(rows, DATA[rank])


def test_differing_columns_are_named_on_all_ranks() -> None:
    def check(*given: tuple[Any, tuple[str, ...] | None]) -> str:
        found = run_ranks(
            len(given),
            lambda engine: engine.align_columns(
                [ArraySource(given[engine.rank][0], f"agent {engine.rank}", given[engine.rank][1])]
            ),
        )
        assert all(type(each) is DataError for each in found)
        (said,) = {str(each) for each in found}
        return said

    narrow = DATA[1][:, :6]
    assert "rank 1: agent 1 has 6 columns, but agent 0 has 7" in check((DATA[0], None), (narrow, None))
    assert "rank 1: agent 1 has column names and agent 0 does not" in check((DATA[0], None), (DATA[1], NAMES))
    assert "rank 1: agent 0 has column names and agent 1 does not" in check((DATA[0], NAMES), (DATA[1], None))
    assert "rank 2: agent 2 has no column 'g'" in check((DATA[0], NAMES), (DATA[1], NAMES), (narrow, NAMES[:6]))
    assert "rank 0: agent 0 has duplicate column 'a'" in check((DATA[0], ("a", *NAMES[:6])), (DATA[1], NAMES))


# ------------------------------------------------------------------------------------------------------------- timeouts


OVERDUE = """
    import sys, threading, time
    from deepca.engines.mpi.watchdog import Watchdog

    watchdog = Watchdog(float(sys.argv[1]), 3, lambda: "iteration 7 (step)")
    with watchdog.waiting({whom}):
        threading.Event().wait(60.0)
    print("never")
"""


@pytest.mark.parametrize(("whom", "said"), [((1, 4), "ranks 1, 4"), ((2,), "rank 2"), ("all ranks", "all ranks")])
def test_a_wait_beyond_the_timeout_ends_the_process(whom: object, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(OVERDUE).format(whom=repr(whom)), "0.3"],
        env=user_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60.0,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert f"error: rank 3 has waited 0.3 s in iteration 7 (step) for {said}; terminating the job." in done.stderr


def watchers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "deepca-watchdog"}


def test_only_waiting_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time between waits does not count, and each wait may take the full timeout."""
    given_up: list[str] = []
    monkeypatch.setattr(Watchdog, "abort", lambda watchdog, timeout: given_up.append(str(watchdog.awaited_ranks)))
    watchdog = Watchdog(0.05, 0, str)
    watchdog.check()
    with watchdog.waiting("first"):
        pass
    time.sleep(0.2)
    watchdog.check()
    assert "second" not in given_up
    end = time.monotonic() + 20.0
    with watchdog.waiting("second"):
        while "second" not in given_up and time.monotonic() < end:
            watchdog.check()
    assert "second" in given_up


def test_the_watching_thread_ends_with_the_watchdog() -> None:
    before = watchers()
    watchdog = Watchdog(10.0, 0, str)
    for _ in range(3):
        with watchdog.waiting("all ranks"):
            pass
    (mine,) = watchers() - before
    del watchdog
    mine.join(60.0)
    assert not mine.is_alive()


def test_closing_ends_the_watching_thread_at_once() -> None:
    """The thread may otherwise sleep for half a minute."""
    before = watchers()
    watchdog = Watchdog(600.0, 0, str)
    (mine,) = watchers() - before
    watchdog.close()
    mine.join(5.0)
    assert not mine.is_alive()


def test_without_a_timeout_there_is_no_watching_thread() -> None:
    before = watchers()
    watchdog = Watchdog(None, 0, str)
    with watchdog.waiting("all ranks"):
        watchdog.check()
    assert not watchers() - before


@pytest.mark.parametrize("timeout", [float("inf"), 1e12, 1e300])
def test_very_long_timeouts_do_not_overflow(timeout: float, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing is logged, however long the timeout."""
    failed: list[object] = []
    hook, threading.excepthook = threading.excepthook, failed.append
    try:
        watchdog = Watchdog(timeout, 0, str)
        with watchdog.waiting("all ranks"):
            time.sleep(0.2)
        assert 0.0 < watchdog.pause <= 3600.0
    finally:
        threading.excepthook = hook
    assert failed == []
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan")])
def test_a_timeout_must_be_positive(timeout: float) -> None:
    with raises(ParameterError, parameter="timeout"):
        Watchdog(timeout, 0, str)
    with raises(ParameterError, parameter="timeout"):
        create_engine("mpi", timeout=timeout).network(deepca.topology.ring(3))


# ------------------------------------------------------------------------------------------------------------- progress


def run_with(lines: ProgressLines, settings: Settings, recorder: Recorder | None = None) -> Any:
    observers: list[Observer] = [lines] if recorder is None else [recorder, lines]
    return fit(sources(), SimulatedNetwork(deepca.topology.ring(4)), settings, observers=observers).decomposition


def test_a_short_run_logs_its_start_and_end() -> None:
    said: list[str] = []
    found = run_with(ProgressLines(said.append), Settings(n_components=2, algorithm="krylov"))
    assert len(said) == 2
    assert said[0] == "block Krylov: started"
    assert said[1].startswith(f"{found.result.iterations} iterations in ")
    assert said[1].endswith(" s: converged")


def test_a_long_run_logs_every_iteration_on_request() -> None:
    """With ``every`` = 0 there is a line for every iteration, with its numbers and the time left."""
    said: list[str] = []
    recorder = Recorder()
    settings = Settings(n_components=3, algorithm="deepca", rounds=6)
    found = run_with(ProgressLines(said.append, every=0.0), settings, recorder)
    between = said[1:-1]
    assert len(between) == found.result.iterations == len(recorder.steps)
    for i, (line, step) in enumerate(zip(between, recorder.steps, strict=True), start=1):
        assert line.startswith(f"iteration {i} after {step.elapsed:.0f} s: ")
        if step.agreed is None:
            assert "no numbers yet" in line
        else:
            assert f"{step.agreed.change:.0e}" in line
            assert f"{step.agreed.disagreement:.0e}" in line
            assert line.endswith(" s left")


def test_log_lines_are_spaced_in_time() -> None:
    """They are spaced by seconds, not by iterations, so that the log of a day has at most thousands of lines."""
    said: list[str] = []
    recorder = Recorder()
    run_with(ProgressLines(lambda line: None), Settings(n_components=3, algorithm="deepca", rounds=6), recorder)
    lines = ProgressLines(said.append, every=10.0)
    lines.begin(recorder.starts[0])
    for i, step in enumerate(recorder.steps):
        lines.observe(replace(step, elapsed=3.0 * (i + 1)))
    lines.end(recorder.ends[0])
    times = [int(line.split(" after ")[1].split(" s")[0]) for line in said[1:-1]]
    assert times == list(range(12, 3 * len(recorder.steps) + 1, 12))
    lines.begin(recorder.starts[0])  # the next run of the same command
    lines.observe(replace(recorder.steps[0], elapsed=11.0))
    assert said[-1].startswith("iteration 1 after 11 s: ")


def test_nothing_is_logged_before_the_start() -> None:
    said: list[str] = []
    recorder = Recorder()
    run_with(ProgressLines(lambda line: None), Settings(n_components=2), recorder)
    ProgressLines(said.append).observe(recorder.steps[0])
    assert said == []


def test_a_resumed_run_counts_its_own_iterations(tmp_path: Path) -> None:
    """Iterations before the checkpoint are not counted."""
    recorder, said = Recorder(), list[str]()
    settings = Settings(n_components=3, algorithm="deepca", rounds=6)
    run_with(ProgressLines(lambda line: None), settings, recorder)
    lines = ProgressLines(said.append, every=0.0)
    lines.begin(replace(recorder.starts[0], state=recorder.steps[9].after))
    lines.observe(recorder.steps[10])
    assert said[-1].startswith("iteration 1 after ")
