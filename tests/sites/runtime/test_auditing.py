"""Test that agents write audit logs, however they end, and what happens when they cannot."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc")
pytest.importorskip("cryptography")

from deepca._util.logs import EventHandler, attached
from deepca.errors import DeepcaError, InvalidInput, Unfinished
from deepca.sites.audit.reader import AuditLog, check_restarts, read_log, read_logs
from deepca.sites.config.site_file import SiteFile, read_site
from deepca.sites.pki.identity import load_authority
from deepca.sites.runtime.agent import Agent, run_agent
from tests.sites.audit.test_reader import kits
from tests.sites.audit.test_writer import fill_disk
from tests.sites.runtime.test_agent import Dividing, site
from tests.support.errors import raises

__all__ = ["site"]  # a fixture


def logs_of(site: SiteFile) -> list[AuditLog]:
    assert site.audit is not None
    return [read_log(path, load_authority(site)) for path in read_logs(site.audit, site.site)]


def events(action: Callable[[], Any]) -> list[str]:
    """Return the kinds of the events that an action logs."""
    found: list[str] = []
    with attached(EventHandler(lambda site, event, text, facts: found.append(event))):
        action()
    return found


def test_a_run_is_logged_and_signed(site: SiteFile) -> None:
    assert site.audit == site.folder / "audit"
    run_agent(site)
    [log] = logs_of(site)
    assert (log.ok, log.signed, log.run[1]) == (True, "verified", "1")
    assert log.start["privacy"] == "private"


def test_restarts_of_a_run_are_chained(site: SiteFile) -> None:
    for _ in range(2):
        run_agent(site)
    logs = logs_of(site)
    assert logs[1].start["previous"] == {"file": logs[0].path.name, "hash": logs[0].head.hex()}
    assert check_restarts(logs) == []


def test_a_run_that_fails_has_a_signed_log(site: SiteFile) -> None:
    with pytest.raises(DeepcaError):
        run_agent(site, observers=(Dividing(),))
    [log] = logs_of(site)
    assert log.signed == "verified"


def test_a_run_that_is_stopped_has_a_signed_log(site: SiteFile) -> None:
    def stop(agent: Agent) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_agent(site, ready=stop)
    [log] = logs_of(site)
    assert log.signed == "verified"


def test_a_run_without_certificates_has_an_unsigned_log(site: SiteFile) -> None:
    run_agent(replace(site, plaintext=True))
    [log] = logs_of(site)
    assert (log.ok, log.complete, log.signed) == (True, True, "unsigned")


def test_a_site_may_have_no_log(site: SiteFile) -> None:
    folder = site.audit
    assert folder is not None
    run_agent(replace(site, audit=None))
    assert not folder.exists()


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("", ("audit", False)),
        ("audit = true", ("audit", False)),
        ("audit = false", (None, False)),
        ('audit = "required"', ("audit", True)),
        ('audit_folder = "logs/of north"', ("logs/of north", False)),
    ],
)
def test_the_settings_of_a_log(written: str, expected: tuple[str | None, bool], site: SiteFile) -> None:
    rest = [line for line in site.path.read_text().split("\n") if not line.startswith("audit")]
    site.path.write_text("\n".join([written, *rest]))
    found = read_site(site.path)
    folder, required = expected
    assert found.audit == (None if folder is None else site.folder / folder)
    assert found.audit_required is required


@pytest.mark.parametrize("written", ['audit = "yes"', "audit = 1", "audit_folder = 3", 'audit_folder = ""'])
def test_other_settings_are_refused(written: str, site: SiteFile) -> None:
    rest = [line for line in site.path.read_text().split("\n") if not line.startswith("audit")]
    site.path.write_text("\n".join([written, *rest]))
    with raises(InvalidInput, file=str(site.path), line=1, parameter=written.split()[0]):
        read_site(site.path)


def test_a_log_that_cannot_be_created_is_a_warning(site: SiteFile) -> None:
    (site.folder / "audit").write_text("a file")
    assert "audit" in events(lambda: run_agent(site))
    assert site.model.exists()


def test_a_required_log_that_cannot_be_created_ends_the_run(site: SiteFile) -> None:
    (site.folder / "audit").write_text("a file")
    with raises(InvalidInput, parameter="audit", file=str(site.audit)):
        run_agent(replace(site, audit_required=True))
    assert not site.model.exists()


@pytest.mark.parametrize("required", [False, True])
def test_a_full_disk_is_a_warning_unless_the_log_is_required(
    required: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent waits for its neighbours, which never start."""
    north = replace(kits(tmp_path / "network")["north"], deadline=6.0, audit_required=required)
    north = replace(north, listen="127.0.0.1:0")
    (north.folder / "rows.csv").write_text("a,b,c\n1,2,3\n3,1,2\n2,2,9\n")
    north = replace(north, data=north.folder / "rows.csv")
    disks: list[threading.Event] = []

    def fill(agent: Agent) -> None:
        journal: Any = next(iter(agent.node.links.values())).journal
        disks.append(fill_disk(monkeypatch, journal._writer))
        journal.received(1, 1, b"", b"")

    found: list[str] = []

    def run() -> None:
        with raises(InvalidInput, parameter="audit") if required else pytest.raises(Unfinished):
            run_agent(north, ready=fill)

    found = events(run)
    assert found.count("audit") == (0 if required else 1)
    [log] = logs_of(north)
    assert (log.ok, log.signed) == (True, "unfinished")


def test_no_line_has_a_path_or_a_value(site: SiteFile) -> None:
    run_agent(site)
    [log] = logs_of(site)
    text = log.path.read_text()
    assert str(site.folder) not in text
    assert all(isinstance(json.loads(line), dict) for line in text.splitlines())
