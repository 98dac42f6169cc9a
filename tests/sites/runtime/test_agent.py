"""Test that failures in an agent end with an error of a known type, an exit code, and a report for developers."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("grpc")
pytest.importorskip("cryptography")

from typer.testing import CliRunner

from deepca.cli.app import app
from deepca.errors import DataError, InternalError, InvalidInput, NetworkError, NotFiniteError, PooledDataError
from deepca.sites.admin.kits import make_kits
from deepca.sites.config.site_file import SiteFile, read_site
from deepca.sites.runtime import agent as agents
from deepca.sites.runtime.node import Node
from deepca.sites.runtime.node.results import Results
from deepca.solver.observers import Start, Step
from deepca.solver.result import Result
from studies.faults.fleet import free_port
from tests.support.errors import raises


@pytest.fixture
def site(tmp_path: Path) -> SiteFile:
    """Return the only site of a network, which does not wait for others."""
    network = tmp_path / "network.toml"
    address = f"127.0.0.1:{free_port()}"
    network.write_text(f'name = "alone"\ncomponents = 2\n[[sites]]\nname = "north"\naddress = "{address}"\n')
    make_kits(network, tmp_path / "kits", trial=True)
    kit = tmp_path / "kits" / "north"
    np.save(kit / "rows.npy", np.random.default_rng(1).standard_normal((40, 6)) * np.geomspace(3.0, 0.3, 6))
    toml = kit / "site.toml"
    lines = [
        f'data = "{kit / "rows.npy"}"' if line.startswith("data =") else line for line in toml.read_text().split("\n")
    ]
    toml.write_text("\n".join(lines))
    return read_site(toml)


def report_in(site: SiteFile) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((site.state / "report.json").read_text())
    return found


class Dividing:
    """An observer that raises because of a bug."""

    def begin(self, start: Start) -> None:
        pass

    def observe(self, step: Step) -> None:
        raise ZeroDivisionError

    def end(self, result: Result[Any]) -> None:
        pass


def break_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*given: Any, **more: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr("deepca.sites.runtime.run.read", read)


def break_ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ticks fail while the node waits; nothing else would wake it before the deadline."""
    monkeypatch.setattr(Node, "tick", lambda self: 1 // 0)
    monkeypatch.setattr(Results, "concluded", lambda self, entered: None)


def test_a_successful_run_writes_no_report(site: SiteFile) -> None:
    assert agents.run_agent(site).model.status.ok
    assert not (site.state / "report.json").exists()


def _remove(file: Path) -> None:
    file.unlink()


def _expose(file: Path) -> None:
    file.chmod(0o644)


def _damage(file: Path) -> None:
    file.write_text(file.read_text()[1:])


@pytest.mark.skipif(os.name != "posix", reason="permissions")
@pytest.mark.parametrize("change", [_remove, _expose, _damage])
def test_an_agent_does_not_start_without_a_usable_key_for_column_names(
    site: SiteFile, change: Callable[[Path], None]
) -> None:
    change(site.column_key)
    with raises(InvalidInput, file=str(site.column_key), parameter="key for column names"):
        agents.run_agent(site)
    done = CliRunner().invoke(app, ["agent", "run", str(site.path)], env={"COLUMNS": "300"})
    assert done.exit_code == 2
    assert str(site.column_key) in done.output
    assert not site.model.exists()
    # without certificates there is nothing to protect
    assert agents.run_agent(replace(site, plaintext=True)).model.status.ok


def test_an_observer_that_raises_ends_in_an_internal_error_with_a_report(site: SiteFile) -> None:
    with raises(InternalError, kind="ZeroDivisionError", report=str(site.state / "report.json")):
        agents.run_agent(site, observers=(Dividing(),))
    assert report_in(site)["errors"][0]["type"] == "ZeroDivisionError"
    assert report_in(site)["errors"][0]["where"][-1].endswith("observe")
    assert not site.model.exists()


@pytest.mark.parametrize("break_part", [break_reading, break_ticking])
def test_errors_of_the_reader_and_of_the_ticking_thread_end_the_run(
    break_part: Callable[[pytest.MonkeyPatch], None], site: SiteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_part(monkeypatch)
    failed: list[BaseException] = []

    def work() -> None:
        try:
            agents.run_agent(site)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60.0)
    assert not thread.is_alive()
    [error] = failed
    assert isinstance(error, InternalError)
    assert error.kind == "ZeroDivisionError"
    assert report_in(site)["errors"][0]["type"] == "ZeroDivisionError"


def test_a_known_error_names_its_report(site: SiteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any, **more: Any) -> Any:
        raise NetworkError("a fault of another site")

    monkeypatch.setattr(agents, "run_site", fails)
    with raises(NetworkError, report=str(site.state / "report.json")):
        agents.run_agent(site)


def test_the_command_exits_with_1_and_names_the_report(site: SiteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command prints no traceback."""
    break_reading(monkeypatch)
    done = CliRunner().invoke(app, ["agent", "run", str(site.path.parent)], env={"COLUMNS": "300"})
    assert done.exit_code == 1
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert "Traceback" not in done.output
    assert str(site.state / "report.json") in done.output


def test_a_run_whose_numbers_overflow_exits_with_1(site: SiteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers may come from any site, so this is not reported as invalid input of this site."""

    def fails(*given: Any, **more: Any) -> Any:
        raise NotFiniteError("W is no longer finite; scale the data")

    monkeypatch.setattr(agents, "run_site", fails)
    done = CliRunner().invoke(app, ["agent", "run", str(site.path.parent)], env={"COLUMNS": "300"})
    assert done.exit_code == 1
    assert str(site.state / "report.json") in done.output


def test_text_from_other_sites_cannot_control_the_terminal(site: SiteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any, **more: Any) -> Any:
        raise NetworkError("north: \x1b[31mRED\x1b[2J\nfake line: all is well " + "x" * 100_000)

    monkeypatch.setattr(agents, "run_site", fails)
    done = CliRunner().invoke(app, ["agent", "run", str(site.path.parent), "--quiet"], env={"COLUMNS": "300"})
    assert done.exit_code == 1
    assert "\x1b" not in done.output
    assert done.output.count("\n") == 1
    assert len(done.output) < 2000


def test_inspect_states_which_rows_the_certificate_holds_for(site: SiteFile) -> None:
    agents.run_agent(site)
    shown = CliRunner().invoke(app, ["inspect", str(site.model)], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert "a site can lie about its own rows" in shown.output
    said = json.loads(CliRunner().invoke(app, ["inspect", str(site.model), "--json"]).stdout)
    assert said["certificate"]["holds_for"] == "the rows that the sites said they have"


class Failing(Dividing):
    """An observer that raises at the end of the iterations, when rows may be read again."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def observe(self, step: Step) -> None:
        pass

    def end(self, result: Result[Any]) -> None:
        raise self._error


@pytest.mark.parametrize(
    ("error", "common"),
    [
        (
            DataError.at_entry(
                "/home/north/rows.csv", "'PATIENT-4711' is not a number", "correct it", redacted="not a number", row=2
            ),
            False,
        ),
        (DataError("/home/north/rows.csv cannot be kept on disk"), False),
        (InvalidInput("/home/north/site.toml names PATIENT-4711"), True),
        (PooledDataError("all 80 rows are equal"), True),
        (NotFiniteError("W is no longer finite"), True),
    ],
)
def test_other_sites_never_receive_values_or_file_names_of_this_site(
    error: Exception, common: bool, site: SiteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, bool]] = []
    failed = Node.announce_failure

    def record(self: Node, why: str, error: BaseException | None = None, *, common: bool = False) -> None:
        sent.append((why, common))
        failed(self, why, error, common=common)

    monkeypatch.setattr(Node, "announce_failure", record)
    with pytest.raises(type(error)):
        agents.run_agent(site, observers=(Failing(error),))
    assert sent[0][1] == common  # only the first one is sent
    assert not any("PATIENT" in why or "/home" in why for why, _ in sent)
    assert (sent[0][0] == str(error)) == isinstance(error, PooledDataError | NotFiniteError)


def test_only_one_agent_may_use_a_state_folder(site: SiteFile) -> None:
    lock = site.state / "agent.lock"

    def start_another(_: agents.Agent) -> None:
        with raises(InvalidInput, parameter="state", file=str(lock)):
            agents.run_agent(replace(site, listen="127.0.0.1:0"))

    agents.run_agent(site, ready=start_another)


def test_a_model_that_cannot_be_written_is_refused_before_the_run(site: SiteFile, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for model in (tmp_path, file / "model.npz"):
        with raises(InvalidInput, parameter="model", value=str(model)):
            agents.run_agent(replace(site, model=model))
