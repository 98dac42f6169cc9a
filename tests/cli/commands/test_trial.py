"""Test ``deepca trial`` and ``deepca demo --real``: one process per site, and none is left running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.decomposition import PCA
from typer.testing import CliRunner

pytest.importorskip("grpc")
pytest.importorskip("cryptography")

import deepca
from deepca.cli.app import app
from deepca.data.readers import open_source
from deepca.errors import DataError, InvalidInput, NetworkError
from deepca.sites.admin import trial_network as cluster
from deepca.sites.admin.trial_agent import TrialAgentSnapshot
from deepca.sites.admin.trial_network import TrialOutcome, run_trial
from deepca.sites.admin.trial_setup import Share, allocate_rows, trial_network
from tests.support.errors import raises

pytestmark = pytest.mark.xdist_group("real")

X = load_wine().data[:, :6] / load_wine().data[:, :6].std(axis=0)
NAMES = [f"c{i}" for i in range(6)]


def run(*words: object, code: int = 0) -> Any:
    done = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200", "OPENBLAS_NUM_THREADS": "1"})
    assert done.exit_code == code, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done


def write_csv(path: Path, rows: np.ndarray, names: Sequence[str] = NAMES, labels: bool = False) -> Path:
    head = [*(["class"] if labels else []), *names]
    lines = [",".join(head)]
    lines += [",".join([*(["a"] if labels else []), *map(repr, map(float, row))]) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def assert_pooled(model: deepca.Model, rows: np.ndarray, k: int) -> None:
    exact = PCA(k, svd_solver="full").fit(rows).components_
    np.testing.assert_allclose(model.components.T @ model.components, exact.T @ exact, atol=1e-10)


# ------------------------------------------------------------------------------------------------------ real processes


def test_one_file_is_split_over_agents(tmp_path: Path) -> None:
    file, out = write_csv(tmp_path / "all.csv", X, labels=True), tmp_path / "models"
    done = run("trial", "--agents", 3, file, "-k", 2, "--label-column", "class", "-o", out, "--json")
    printed = json.loads(done.stdout)
    assert [site["rows"] for site in printed["sites"]] == [59, 59, 60]
    files = [out / f"site-{j}" / "model.npz" for j in (1, 2, 3)]
    assert [site["model"] for site in printed["sites"]] == [str(file) for file in files]
    assert len({file.read_bytes() for file in files}) == 1
    model = deepca.load(files[0])
    assert_pooled(model, X, 2)
    assert model.columns == tuple(NAMES)
    assert printed["status"]["ok"]
    assert sorted(path.name for path in out.iterdir()) == ["site-1", "site-2", "site-3"]


def test_each_agent_may_have_its_own_file_and_kits_can_be_kept(tmp_path: Path) -> None:
    north = write_csv(tmp_path / "north.csv", X[:80])
    south = write_csv(tmp_path / "South Hall.csv", X[80:, ::-1], NAMES[::-1])  # other columns first
    out = tmp_path / "models"
    done = run("trial", north, south, "-k", 2, "-o", out, "--keep")
    assert "2 model files, identical" in done.stdout
    assert_pooled(deepca.load(out / "south-hall" / "model.npz"), X, 2)
    assert (out / "north" / "model.npz").read_bytes() == (out / "south-hall" / "model.npz").read_bytes()
    events = [json.loads(line)["event"] for line in (out / "kits/north/log.jsonl").read_text("utf-8").splitlines()]
    assert "epoch" in events
    assert str(out / "kits") in run("trial", north, "-k", 2, "-o", out, "--keep", code=2).stderr


def test_a_quoted_pattern_stands_for_the_files_that_match(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    write_csv(tmp_path / "rows" / "north.csv", X[:80])
    write_csv(tmp_path / "rows" / "south.csv", X[80:])
    out = tmp_path / "models"
    run("trial", tmp_path / "rows" / "*.csv", "-k", 2, "-o", out, "-q")
    assert sorted(path.name for path in out.iterdir()) == ["north", "south"]
    assert_pooled(deepca.load(out / "north" / "model.npz"), X, 2)


def test_the_earlier_name_still_works_with_a_notice(tmp_path: Path) -> None:
    words = (tmp_path / "nope.csv", "-k", 2, "-o", tmp_path / "out")
    old, new = run("cluster", "up", *words, code=2).stderr, run("trial", *words, code=2).stderr
    notice, rest = old.split("\n", 1)
    assert notice.startswith("deprecated:")
    assert "deepca trial" in notice
    assert rest == new
    assert "cluster" not in run("--help").stdout


def test_an_agent_with_bad_rows_is_named(tmp_path: Path) -> None:
    rows = X.copy()
    rows[100, 3] = np.nan
    np.save(tmp_path / "all.npy", rows)
    began = time.monotonic()
    done = run("trial", "--agents", 3, tmp_path / "all.npy", "-k", 2, "-o", tmp_path / "out", "-q", code=2)
    assert "site-2 ended with exit code 2" in done.stderr
    assert "column 3" in done.stderr
    assert "No model was written" in done.stderr
    assert not list((tmp_path / "out").iterdir())
    assert time.monotonic() - began < 60


def test_the_demo_runs_with_real_processes() -> None:
    printed = json.loads(run("demo", "--real", "--agents", 3, "--json").stdout)
    assert printed["tan_theta"] <= 1e-10
    assert printed["model_files"] == 3
    assert [site["rows"] for site in printed["sites"]] == [599, 599, 599]
    assert len(printed["sha256"]) == 64
    assert printed["rounds"] > 0


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")
def test_sigterm_ends_all_children(tmp_path: Path) -> None:
    np.save(tmp_path / "all.npy", X)
    words = [
        "trial",
        "--agents",
        "3",
        str(tmp_path / "all.npy"),
        "-k",
        "2",
        "-o",
        str(tmp_path / "out"),
        "--keep",
    ]
    start = [sys.executable, "-c", "from deepca.cli import main; main()"]
    process = subprocess.Popen([*start, *words], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    with process, process.stderr as errors:
        assert "starting" in errors.readline()
        end = time.monotonic() + 20.0
        while len(children_below(tmp_path)) < 3 and time.monotonic() < end:
            time.sleep(0.001)  # the command line of a new process may not be visible yet
        assert len(children_below(tmp_path)) == 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 130
        assert "stopped" in errors.read()
    assert not children_below(tmp_path)


def children_below(folder: Path) -> list[int]:
    """Return the running processes of agents whose site.toml is in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"agent" in words and any(word.startswith(os.fsencode(folder)) for word in words):
                found.append(int(entry.name))
    return found


# -------------------------------------------------------------------------------------------------- scripted processes

HEAD = """
import json, pathlib, sys, time
site, log = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
me, place = site.parent.name, site.parent
def say(event, text, **facts):
    with log.open("a") as file: file.write(json.dumps({"event": event, "text": text, "facts": facts}) + "\\n")
def wait_for(name):
    end = time.monotonic() + 60
    while not (place.parent / name).exists():
        if time.monotonic() > end: sys.exit(9)
        time.sleep(0.02)
say("started", me + " listens")
"""


def acting(text: str) -> Callable[[Path, Path], list[str]]:
    return lambda site, log: [sys.executable, "-I", "-S", "-c", HEAD + text, str(site), str(log)]


def play(folder: Path, text: str, *, n: int = 3, deadline: float = 30.0, **options: Any) -> TrialOutcome:
    watch = options.pop("watch", lambda snapshots: None)
    shares = [Share(f"s{j}", folder / "rows.npy", 5) for j in range(n)]
    network = trial_network(shares, **{"name": "t", "components": 1, "topology_name": "ring", **options})
    return run_trial(shares, network, folder, deadline=deadline, watch=watch, command=acting(text))


def test_agents_are_observed_while_they_run(tmp_path: Path) -> None:
    seen: list[TrialAgentSnapshot] = []

    def watch(snapshots: Sequence[TrialAgentSnapshot]) -> None:
        seen.extend(snapshots)
        if all(sight.iteration == 7 for sight in snapshots):
            (tmp_path / "seen").touch()

    text = 'say("epoch", "epoch 1", iteration=7); wait_for("seen"); (place / "model.npz").write_bytes(b"m")'
    done = play(tmp_path, text, watch=watch)
    assert (done.code, done.content) == (0, b"m")
    assert {"running", "finished"} <= {sight.state for sight in seen}
    assert any(sight.iteration == 7 and sight.text == "epoch 1" for sight in seen)


def test_differing_model_files_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(NetworkError) as error:
        play(tmp_path, '(place / "model.npz").write_bytes(me.encode())')
    assert type(error.value) is NetworkError


def test_the_first_agent_to_fail_is_marked_and_the_others_are_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "GRACE", 0.3)
    text = """
if me == "s1":
    sys.stderr.write("error: its rows are bad\\n"); sys.exit(2)
time.sleep(60)
"""
    done = play(tmp_path, text)
    assert (done.code, done.content, done.sha256) == (2, None, "")
    assert [(one.first, one.stopped) for one in done.agents] == [(False, True), (True, False), (False, True)]
    assert done.agents[1].last == ("started: s1 listens", "error: its rows are bad")
    assert done.seconds < 15


def test_a_killed_agent_is_reported_with_its_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "GRACE", 0.3)
    die = 'import os, signal\nif me == "s0": os.kill(os.getpid(), signal.SIGKILL)\n'
    done = play(tmp_path, die + "time.sleep(60)")
    assert (done.code, done.agents[0].code, done.agents[0].first) == (1, -signal.SIGKILL, True)


def test_other_agents_continue_if_the_network_may_shrink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "GRACE", 0.3)
    text = """
say("epoch", "epoch 1")
wait_for("all run")
if me == "s0": sys.exit(2)
wait_for("grace is over")
(place / "model.npz").write_bytes(b"m")
"""
    failed: list[float] = []  # when

    def watch(snapshots: Sequence[TrialAgentSnapshot]) -> None:
        if all(sight.state == "running" for sight in snapshots):
            (tmp_path / "all run").touch()
        if snapshots[0].code is not None:
            failed.append(time.monotonic())
            if failed[-1] > failed[0] + 2 * cluster.GRACE:
                (tmp_path / "grace is over").touch()

    done = play(tmp_path, text, on_loss="shrink", watch=watch)
    assert done.content == b"m"
    assert [one.model is not None for one in done.agents] == [False, True, True]
    assert done.code == 2


def test_the_exit_code_is_4_if_an_agent_is_left_out(tmp_path: Path) -> None:
    text = '(place / "model.npz").write_bytes(b"m"); sys.exit(4 if me == "s2" else 0)'
    assert play(tmp_path, text).code == 4


def test_agents_that_ignore_the_deadline_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "BEYOND_DEADLINE", 0.5)
    monkeypatch.setattr(cluster, "TIME_TO_STOP", 0.5)
    done = play(tmp_path, "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)", deadline=0.5)
    assert done.content is None
    assert done.code == 1
    assert done.seconds < 20


def test_a_port_in_use_is_replaced(tmp_path: Path) -> None:
    text = """
marker = place.parent / "tried"
if me == "s1" and not marker.exists():
    marker.write_text((place / "network.toml").read_text())
    say("failed", "the port is in use", error="AddressInUse"); sys.exit(2)
(place / "model.npz").write_bytes(b"m")
"""
    assert play(tmp_path, text).code == 0
    assert (tmp_path / "tried").read_text("utf-8") != (tmp_path / "s1/network.toml").read_text("utf-8")


def test_an_interruption_stops_all_agents(tmp_path: Path) -> None:
    def stop(snapshots: Sequence[TrialAgentSnapshot]) -> None:
        raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        play(tmp_path, "time.sleep(60)", watch=stop)
    assert time.monotonic() - began < 20


# ---------------------------------------------------------------------------------------------------- splitting of rows


def test_sparse_files_keep_their_common_width(tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text("0 1:1.5 3:2\n0 2:1\n", encoding="utf-8")
    (tmp_path / "b.svm").write_text("0 1:1 5:4\n", encoding="utf-8")
    shares = allocate_rows([tmp_path / "a.svm", tmp_path / "b.svm"], None, tmp_path / "kits")
    held = [open_source(share.data) for share in shares]
    assert [(source.n, source.d, source.is_sparse) for source in held] == [(2, 5, True), (1, 5, True)]
    assert [share.site for share in shares] == ["a", "b"]


def test_file_names_that_cannot_be_sites_are_replaced(tmp_path: Path) -> None:
    for name in ("kits.npy", "b.npy"):
        np.save(tmp_path / name, X[:5])
    shares = allocate_rows([tmp_path / "kits.npy", tmp_path / "b.npy"], None, tmp_path / "kits")
    assert [share.site for share in shares] == ["site-1", "site-2"]
    assert shares[0].data == tmp_path / "kits.npy"


def test_invalid_arguments_are_named(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", X[:5])
    file, out = tmp_path / "a.npy", tmp_path / "out"
    with pytest.raises(DataError):
        allocate_rows([file, file], None, tmp_path / "kits")
    with raises(DataError, parameter="agents", value=9):
        allocate_rows([file], 9, tmp_path / "kits")
    with pytest.raises(InvalidInput):
        allocate_rows([file], 0, tmp_path / "kits")
    for words, printed in (
        (("-k", "many", "-o", out), "--components many"),
        (("-k", 2, "-o", file), f"--out {file}"),
        (("-k", 2, "-o", out, "--deadline", "soon"), "--deadline soon"),
        (("-k", 2, "-o", out, "--on-loss", "cry"), "--on-loss cry"),
        (("-k", 2, "-o", out, "--topology", "knot"), "--topology knot"),
        (("-k", 2, "-o", out, "--topology", "ring:3"), "--agents 3"),
        (("-k", 2, "-o", out, "--agents", 0), "--agents 0"),
        (("-k", 2, "-o", out, "--agents", 9), "--agents 9"),
    ):
        assert printed in run("trial", file, *words, code=2).stderr
