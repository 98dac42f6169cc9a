"""Test ``deepca agent run``: real processes over the loopback interface, and the messages of the command."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.decomposition import PCA
from typer.testing import CliRunner

import deepca.sites.runtime.agent
from deepca import SimulatedNetwork, topology
from deepca.cli.app import app
from deepca.data.readers import open_source
from deepca.decomposition.fit import build_model, fit
from deepca.decomposition.model import Model
from deepca.decomposition.model.file import load
from deepca.decomposition.settings import Settings
from deepca.errors import NetworkError, Unfinished
from deepca.sites.admin.kits import make_kits
from deepca.sites.config.site_file import SiteFile
from deepca.sites.runtime.site_result import SiteResult
from deepca.solver.result import Status, StatusCode

NAMES = ("north", "south", "west")
LIMIT = 150.0  # seconds, for a busy machine
real = pytest.mark.xdist_group("real")


class Trial:
    """Kits of a small network on this machine, and the agents that were started."""

    def __init__(self, folder: Path, names: tuple[str, ...] = NAMES) -> None:
        self.folder = folder
        self.agents: list[subprocess.Popen[str]] = []
        sockets = [socket.socket() for _ in names]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        sites = "".join(
            f'[[sites]]\nname = "{name}"\naddress = "127.0.0.1:{one.getsockname()[1]}"\n'
            for name, one in zip(names, sockets, strict=True)
        )
        self.addresses = {name: one.getsockname() for name, one in zip(names, sockets, strict=True)}
        for one in sockets:
            one.close()
        network = folder / "network.toml"
        network.write_text(f'name = "trial"\ncomponents = 3\ntopology = "ring"\npatience = "5s"\n{sites}')
        make_kits(network, folder / "kits", trial=True)
        rng = np.random.default_rng(7)
        mix = rng.standard_normal((12, 12)) * np.geomspace(3.0, 0.3, 12)
        self.rows = [rng.standard_normal((30, 12)) @ mix + 5.0 for _ in names]
        for name, rows in zip(names, self.rows, strict=True):
            np.save(self.kit(name) / "rows.npy", rows)
            self.change(name, "site.toml", r"^data = .*$", 'data = "rows.npy"')

    def kit(self, name: str) -> Path:
        return self.folder / "kits" / name

    def model(self, name: str) -> Path:
        return self.kit(name) / "model.npz"

    def change(self, name: str, file: str, pattern: str, text: str) -> None:
        path = self.kit(name) / file
        found, count = re.subn(pattern, text, path.read_text(), flags=re.MULTILINE)
        assert count == 1
        path.write_text(found)

    def start(self, name: str, *options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-W", "error", "-c", "from deepca.cli import main; main()", "agent", "run"]
        agent = subprocess.Popen(
            [*command, str(self.kit(name)), *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.agents.append(agent)
        return agent

    def log(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / f"{name}.log"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def logged(self, name: str) -> tuple[str, ...]:
        return "--log", "json", "--log-file", str(self.folder / f"{name}.log")

    def wait_for(self, name: str, event: str) -> dict[str, Any]:
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            for entry in self.log(name):
                if entry["event"] == event:
                    return entry
            time.sleep(0.05)
        raise AssertionError(f"{name} has not logged {event}: {self.log(name)}")

    def wait_until_listening(self, name: str) -> None:
        end = time.monotonic() + LIMIT
        while True:
            try:
                socket.create_connection(self.addresses[name], timeout=1.0).close()
            except OSError:
                assert time.monotonic() < end, f"{name} does not listen"
                time.sleep(0.05)
            else:
                return

    def stop(self) -> None:
        for agent in self.agents:
            if agent.poll() is None:
                agent.kill()
                agent.communicate()


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    made = Trial(tmp_path)
    yield made
    made.stop()


def ended(agent: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = agent.communicate(timeout=LIMIT)
    return agent.returncode, out, err


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# ------------------------------------------------------------------------------------------------------ real processes


@real
def test_three_agents_end_with_the_same_model(trial: Trial) -> None:
    north = trial.start("north", "--log", "json", "--json")
    trial.wait_until_listening("north")
    south = trial.start("south", *trial.logged("south"))
    assert trial.wait_for("south", "waiting")["facts"]["sites"]  # names the missing sites
    west = trial.start("west", "--quiet")
    (rc0, out0, err0), (rc1, out1, err1), (rc2, out2, err2) = ended(north), ended(south), ended(west)
    assert (rc0, rc1, rc2) == (0, 0, 0), err0 + err1 + err2

    assert (out2, err1, err2) == ("", "", "")
    entries = [json.loads(line) for line in err0.splitlines()]
    assert all(list(entry) == ["time", "site", "level", "event", "text", "facts"] for entry in entries)
    assert {entry["site"] for entry in entries} == {"north"}
    events = [entry["event"] for entry in entries]
    assert {"started", "link_up", "found", "epoch", "progress", "finished"} <= set(events)
    printed = json.loads(out0)
    assert (printed["sites"], printed["left_out"], printed["exit_code"]) == (list(NAMES), [], 0)
    assert printed["status"]["ok"]
    for words in ("3 components", "3 of 3 took part: north, south, west", "model.npz", "deepca transform"):
        assert words in out1

    assert len({digest(trial.model(name)) for name in NAMES}) == 1
    pooled = PCA(3, svd_solver="full").fit(np.vstack(trial.rows))
    model = load(trial.model("south"))
    mine, right = (c.T @ c for c in (model.components, pooled.components_))
    assert np.abs(mine - right).max() <= 1e-10
    np.testing.assert_allclose(model.explained_variance, pooled.explained_variance_, rtol=1e-10)

    scores = trial.folder / "scores.npy"
    command = ["transform", str(trial.model("west")), str(trial.kit("west") / "rows.npy"), "-o", str(scores)]
    assert CliRunner().invoke(app, [*command, "--quiet"]).exit_code == 0
    np.testing.assert_allclose(np.abs(np.load(scores)), np.abs(pooled.transform(trial.rows[2])), atol=1e-8)

    # the run is over: starting it again gives the same result, although no other agent is running
    before = digest(trial.model("north"))
    trial.model("north").unlink()
    code, out, err = ended(trial.start("north", "--deadline", "100s"))
    assert code == 0, err
    assert "already finished" in out
    assert digest(trial.model("north")) == before


@real
def test_a_site_that_differs_fails_at_once_and_sigterm_stops_the_others(trial: Trial) -> None:
    trial.change("west", "network.toml", "^components = 3$", "components = 5")
    waiting = [trial.start(name, *trial.logged(name)) for name in ("north", "south")]
    west = trial.start("west", *trial.logged("west"))
    code, _, err = ended(west)
    assert code == 2
    for word in ("north", "components", "5", "3"):
        assert word in err
    for name in ("north", "south"):
        assert trial.wait_for(name, "differs")["facts"] == {"site": "west", "names": ["components"]}
    moments = {entry["event"]: datetime.fromisoformat(entry["time"]) for entry in reversed(trial.log("west"))}
    assert (moments["failed"] - moments["found"]).total_seconds() < 5.0
    for agent in waiting:
        agent.send_signal(signal.SIGTERM)
    began = time.monotonic()
    for agent in waiting:
        code, _, err = ended(agent)
        assert code == 130
        assert "checkpoints are kept" in err
    assert time.monotonic() - began < 30.0
    assert trial.log("north")[-1]["event"] == "stopped"
    assert not any(trial.model(name).exists() for name in NAMES)


@real
def test_at_the_deadline_missing_sites_are_named(trial: Trial) -> None:
    code, out, err = ended(trial.start("south", "--deadline", "3s"))
    assert code == 3
    assert out == ""
    printed = err.replace("\n", " ")
    assert printed.count("north, west") >= 2  # in the log, and in the final message
    assert "--deadline" in printed
    assert "handshake" not in err  # nothing of gRPC's own log
    assert "Traceback" not in err


@real
def test_standard_error_is_json_even_after_a_failure(trial: Trial) -> None:
    (trial.kit("west") / "site.key").chmod(0o644)
    code, out, err = ended(trial.start("west", "--log", "json"))
    assert code == 2
    assert out == ""
    (entry,) = [json.loads(line) for line in err.splitlines()]
    assert (entry["event"], entry["level"], entry["facts"]["exit_code"]) == ("failed", "error", 2)
    assert "site.key" in entry["text"]
    assert "PRIVATE" not in err


# -------------------------------------------------------------------------------------- messages, without any process


@pytest.fixture
def model(trial: Trial) -> Model:
    settings = Settings(n_components=3)
    net = topology.ring(3)
    sources = [open_source(trial.kit(name) / "rows.npy") for name in NAMES]
    found = fit(sources, SimulatedNetwork(net), settings).decomposition
    return build_model(found, net, settings, whiten=False, single_precision=False)


Result = Callable[[SiteFile], SiteResult]


def invoked(monkeypatch: pytest.MonkeyPatch, trial: Trial, run: Result, *options: str) -> tuple[int, str, str]:
    def run_agent(site: SiteFile, **_: object) -> SiteResult:
        return run(site)

    monkeypatch.setattr(deepca.sites.runtime.agent, "run_agent", run_agent)
    done = CliRunner().invoke(app, ["agent", "run", str(trial.kit("north")), *options], env={"COLUMNS": "200"})
    return done.exit_code, done.stdout, done.stderr


def ending(model: Model, members: tuple[str, ...] = NAMES, *, own: bool = True) -> SiteResult:
    left_out = tuple(name for name in NAMES if name not in members)
    return SiteResult(b"", model, members, left_out, own)


def raising(error: BaseException) -> Result:
    def run(site: SiteFile) -> SiteResult:
        raise error

    return run


def test_sites_that_were_left_out_are_named(monkeypatch: pytest.MonkeyPatch, trial: Trial, model: Model) -> None:
    code, out, err = invoked(monkeypatch, trial, lambda site: ending(model, ("north", "south")))
    assert code == 0
    assert "LEFT OUT: west" in err
    assert "2 of 3 took part: north, south" in out
    assert "Left out: west" in out
    code, out, err = invoked(monkeypatch, trial, lambda site: ending(model, ("north", "south")), "--quiet")
    assert "LEFT OUT: west" in err
    assert out == ""


def test_a_site_whose_rows_are_not_in_the_result_is_warned(
    monkeypatch: pytest.MonkeyPatch, trial: Trial, model: Model
) -> None:
    code, out, err = invoked(monkeypatch, trial, lambda site: ending(model, ("south", "west"), own=False), "--json")
    assert code == 4
    assert "the rows of north are NOT in it" in err
    assert json.loads(out)["left_out"] == ["north"]
    assert json.loads(out)["exit_code"] == 4


def test_an_unusable_result_is_an_error(monkeypatch: pytest.MonkeyPatch, trial: Trial, model: Model) -> None:
    bad = replace(model, status=Status(StatusCode.OUT_OF_ITERATIONS, "more iterations are needed"))
    code, _, err = invoked(monkeypatch, trial, lambda site: ending(bad))
    assert code == 1
    assert "not usable" in err
    assert "more iterations are needed" in err


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (Unfinished("the deadline of 3 s has passed"), 3, "--deadline"),
        (NetworkError("the components found here are not those of the common result"), 1, "not those of the common"),
        (OSError(28, "No space left on device", "model.npz"), 2, "No space left"),
        (KeyboardInterrupt(), 130, "checkpoints are kept"),
    ],
)
def test_each_failure_has_its_exit_code_and_message(
    monkeypatch: pytest.MonkeyPatch, trial: Trial, error: BaseException, code: int, words: str
) -> None:
    found, out, err = invoked(monkeypatch, trial, raising(error))
    assert (found, out) == (code, "")
    assert words in err
    assert "Traceback" not in err


def test_without_checkpoints_a_stopped_run_starts_over(monkeypatch: pytest.MonkeyPatch, trial: Trial) -> None:
    trial.change("north", "site.toml", "^checkpoints = true", "checkpoints = false")
    code, _, err = invoked(monkeypatch, trial, raising(KeyboardInterrupt()))
    assert code == 130
    assert "checkpoints = false" in err


def test_run_and_deadline_override_the_files(monkeypatch: pytest.MonkeyPatch, trial: Trial, model: Model) -> None:
    seen: list[SiteFile] = []

    def run(site: SiteFile) -> SiteResult:
        seen.append(site)
        return ending(model)

    code, out, _ = invoked(monkeypatch, trial, run, "--run", "second", "--deadline", "2h", "--json", "--quiet")
    assert code == 0
    assert (seen[0].network.run, seen[0].deadline) == ("second", 7200.0)
    assert json.loads(out)["run"] == "second"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--log", "xml"), "--log xml: "),
        (("--deadline", "soon"), "--deadline soon: "),
        (("--run", "a b"), "--run a b: "),
        (("--log-file", "/proc/nothing/here.log"), "here.log"),
    ],
)
def test_bad_options_are_named(
    monkeypatch: pytest.MonkeyPatch, trial: Trial, options: tuple[str, ...], words: str
) -> None:
    code, out, err = invoked(monkeypatch, trial, raising(AssertionError()), *options)
    assert (code, out) == (2, "")
    assert words in err


def test_a_missing_site_file_is_named(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["agent", "run", str(tmp_path / "site.toml")], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert str(tmp_path / "site.toml") in done.stderr


def test_help_lists_the_exit_codes() -> None:
    shown = CliRunner().invoke(app, ["agent", "run", "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    for words in ("Exit codes", "unfinished at the deadline", "130", "--log-file"):
        assert words in shown


def test_the_command_line_does_not_import_grpc() -> None:
    code = "import sys, deepca.cli.app; sys.exit('grpc' in sys.modules or 'cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=LIMIT).returncode == 0
