"""Whatever goes wrong inside an agent: one error of a known kind, one exit code, and a report to send along."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
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
from studies.faults.processes import free_port


@pytest.fixture
def site(tmp_path: Path) -> SiteFile:
    """A network of one site, which waits for nobody."""
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
    """An observer with a mistake."""

    def begin(self, start: Start) -> None:
        pass

    def observe(self, step: Step) -> None:
        raise ZeroDivisionError

    def end(self, result: Result[Any]) -> None:
        pass


def reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*given: Any, **more: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr("deepca.sites.runtime.run.read", read)


def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time stands still for the node, which waits; without its ticks nobody would wake it before the deadline."""
    monkeypatch.setattr(Node, "tick", lambda self: 1 // 0)
    monkeypatch.setattr(Results, "concluded", lambda self, entered: None)


def test_a_run_without_faults_writes_no_report(site: SiteFile) -> None:
    assert agents.run_agent(site).model.status.ok
    assert not (site.state / "report.json").exists()


def test_an_observer_that_raises(site: SiteFile) -> None:
    with pytest.raises(InternalError) as raised:
        agents.run_agent(site, observers=(Dividing(),))
    assert raised.value.kind == "ZeroDivisionError"
    assert raised.value.report == str(site.state / "report.json")
    assert report_in(site)["errors"][0]["type"] == "ZeroDivisionError"
    assert report_in(site)["errors"][0]["where"][-1].endswith("observe")
    assert not site.model.exists()


@pytest.mark.parametrize("broken", [reading, ticking])
def test_a_reader_or_the_ticking_thread_that_raises(
    broken: Callable[[pytest.MonkeyPatch], None], site: SiteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
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


def test_the_report_of_a_known_error_is_named_by_it(site: SiteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any, **more: Any) -> Any:
        raise NetworkError("somebody else's fault")

    monkeypatch.setattr(agents, "run_site", fails)
    with pytest.raises(NetworkError) as raised:
        agents.run_agent(site)
    assert not isinstance(raised.value, InternalError)
    assert raised.value.report == str(site.state / "report.json")


def test_the_command_ends_with_code_1_and_one_line(site: SiteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """No traceback, and the last line names the report."""
    reading(monkeypatch)
    done = CliRunner().invoke(app, ["agent", "run", str(site.path.parent)], env={"COLUMNS": "300"})
    assert done.exit_code == 1
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert "Traceback" not in done.output
    assert str(site.state / "report.json") in done.output


def test_a_run_whose_numbers_overflow_ends_with_code_1(site: SiteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose numbers did it cannot be told: it need not be a mistake at this site."""

    def fails(*given: Any, **more: Any) -> Any:
        raise NotFiniteError("W is no longer finite; scale the data")

    monkeypatch.setattr(agents, "run_site", fails)
    done = CliRunner().invoke(app, ["agent", "run", str(site.path.parent)], env={"COLUMNS": "300"})
    assert done.exit_code == 1
    assert str(site.state / "report.json") in done.output


def test_what_others_wrote_does_not_move_the_terminal(site: SiteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any, **more: Any) -> Any:
        raise NetworkError("north: \x1b[31mRED\x1b[2J\nfake line: all is well " + "x" * 100_000)

    monkeypatch.setattr(agents, "run_site", fails)
    done = CliRunner().invoke(app, ["agent", "run", str(site.path.parent), "--quiet"], env={"COLUMNS": "300"})
    assert done.exit_code == 1
    assert "\x1b" not in done.output
    assert done.output.count("\n") == 1
    assert len(done.output) < 2000


def test_inspect_says_for_which_rows_a_result_of_sites_is_proven(site: SiteFile) -> None:
    agents.run_agent(site)
    shown = CliRunner().invoke(app, ["inspect", str(site.model)], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert "a site can lie about its own rows" in shown.output
    said = json.loads(CliRunner().invoke(app, ["inspect", str(site.model), "--json"]).stdout)
    assert said["certificate"]["holds_for"] == "the rows that the sites said they have"


class Failing(Dividing):
    """Fails at the end of the iterations, where rows may be read once more."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def observe(self, step: Step) -> None:
        pass

    def end(self, result: Result[Any]) -> None:
        raise self._error


@pytest.mark.parametrize(
    ("error", "common"),
    [
        (DataError.at_entry("/home/north/rows.csv", 2, "age", "PATIENT-4711", "numbers are needed"), False),
        (DataError("/home/north/rows.csv cannot be kept on disk"), False),
        (InvalidInput("/home/north/site.toml names PATIENT-4711"), True),
        (PooledDataError("all 80 rows are equal"), True),
        (NotFiniteError("W is no longer finite"), True),
    ],
)
def test_others_are_told_by_type_and_never_of_own_rows_or_files(
    error: Exception, common: bool, site: SiteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, bool]] = []
    failed = Node.failed

    def heard(self: Node, why: str, error: BaseException | None = None, *, common: bool = False) -> None:
        told.append((why, common))
        failed(self, why, error, common=common)

    monkeypatch.setattr(Node, "failed", heard)
    with pytest.raises(type(error)):
        agents.run_agent(site, observers=(Failing(error),))
    assert told[0][1] == common  # the first is what is sent
    assert not any("PATIENT" in why or "/home" in why for why, _ in told)
    assert (told[0][0] == str(error)) == isinstance(error, PooledDataError | NotFiniteError)
