"""Test ``deepca doctor`` with a failing case of every check: its verdict, its facts, and who must act."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("grpc")
pytest.importorskip("cryptography")

from deepca._util.logs import EventHandler, attached
from deepca.cli.app import app
from deepca.errors import InvalidInput
from deepca.sites.admin import doctor, site_checks
from deepca.sites.admin.doctor import examine
from deepca.sites.admin.findings import Finding
from deepca.sites.admin.kits import make_kits
from deepca.sites.admin.reachability import AddressProbe, AgentReport, probe_address
from deepca.sites.config.disclosure import DisclosureRules
from deepca.sites.config.network_file import NetworkFile, SiteEntry, write_network
from deepca.sites.config.site_file import SiteFile, read_site, write_site
from deepca.sites.pki.authority import Authority
from deepca.sites.pki.certificates import build_request, pem
from deepca.sites.pki.identity import Identity
from deepca.sites.pki.keys import load_key, new_key, write_key
from deepca.sites.protocol.fingerprints import COLUMN_KEY_ENTRY, network_digest
from deepca.sites.runtime.agent import run_agent

pytestmark = pytest.mark.xdist_group("real")

NOW = datetime.now(UTC)
SITES = ("north", "south")
OPEN_PAIR = {"privacy", "min_sites"}  # checks that warn of an open network of two sites
X = np.random.default_rng(0).standard_normal((40, 5)) * np.arange(1, 6)


def free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the time anew for every test: a session may cross midnight, and dates are compared."""
    monkeypatch.setattr(f"{__name__}.NOW", datetime.now(UTC))


@pytest.fixture
def kits(tmp_path: Path) -> Path:
    """Make complete kits of two sites; north connects to south."""
    entries = tuple(SiteEntry(name, f"127.0.0.1:{free_port()}") for name in SITES)
    write_network(
        tmp_path / "network.toml", NetworkFile("trial", entries, 2, topology_name="ring", privacy="open", patience=5.0)
    )
    make_kits(tmp_path / "network.toml", tmp_path, trial=True)
    for name in SITES:
        np.save(tmp_path / name / "rows.npy", X)
        rules = DisclosureRules(min_sites=2)
        write_site(tmp_path / name / "site.toml", name, "rows.npy", deadline=90.0, rules=rules)
    return tmp_path


@pytest.fixture
def north(kits: Path) -> Path:
    return kits / "north"


def find(folder: Path, check: str) -> Finding:
    """Return the finding of one check; later checks are not made."""
    seen = []
    for finding in examine(folder, seconds=0.2, patience=1.0):
        seen.append(finding)
        if finding.check == check:
            return finding
    raise AssertionError(f"{check} is not among {seen}")


def examine_rows(folder: Path) -> Iterator[Finding]:
    """Return the findings about the rows."""
    return (finding for finding, _ in site_checks.check_data(read_site(folder)))


def edit(folder: Path, file: str, old: str, new: str) -> None:
    text = (folder / file).read_text("utf-8")
    assert old in text
    (folder / file).write_text(text.replace(old, new), encoding="utf-8")


def assert_wrong(finding: Finding, fact: str, who: str) -> None:
    """Check that a finding is wrong, states a fact, and names who must act."""
    assert (finding.verdict, fact in finding.text, who in finding.who) == ("wrong", True, True), finding


def assert_warned(finding: Finding, fact: str, who: str) -> None:
    """Check that a finding is a warning, states a fact, and names who must act."""
    assert (finding.verdict, fact in finding.text, who in finding.who) == ("warning", True, True), finding


# ------------------------------------------------------------------------------------------------------- the command


def test_missing_neighbours_are_a_warning(north: Path) -> None:
    done = CliRunner().invoke(app, ["doctor", str(north)], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert "! south" in done.stdout
    assert "✗" not in done.stdout
    assert f"{1 + len(OPEN_PAIR)} warnings" in done.stdout
    assert not list(north.glob("state*"))


def test_findings_set_the_exit_code_and_can_be_printed_as_json(north: Path, tmp_path: Path) -> None:
    (north / "rows.npy").unlink()
    (north / "site.pem").unlink()
    done = CliRunner().invoke(app, ["doctor", str(north), "--json"])
    assert done.exit_code == 1
    printed = json.loads(done.stdout)
    assert not printed["ok"]
    assert [one["check"] for one in printed["findings"] if one["verdict"] == "wrong"] == ["data", "certificate"]
    done = CliRunner().invoke(app, ["doctor", str(tmp_path / "none.toml")])
    assert done.exit_code == 2
    assert "none.toml" in done.stderr


# ---------------------------------------------------------------------------------------------------- files and rows


def test_an_unknown_site_name_is_wrong(north: Path) -> None:
    edit(north, "site.toml", 'site = "north"', 'site = "nort"')
    assert_wrong(find(north, "site.toml"), "north", "this site")


def test_the_author_of_the_network_file_must_correct_a_bad_value(north: Path) -> None:
    edit(north, "network.toml", "components = 2", 'components = "two"')
    assert_wrong(find(north, "site.toml"), "components", "the author of network.toml")


def test_a_missing_data_file_is_wrong(north: Path) -> None:
    (north / "rows.npy").unlink()
    assert_wrong(find(north, "data"), "rows.npy", "this site")


def test_names_and_number_of_columns_are_checked(north: Path) -> None:
    pytest.importorskip("pyarrow")
    (north / "rows.csv").write_text("a,b,c\n1,2,3\n4,5,7\n", encoding="utf-8")
    edit(north, "site.toml", "rows.npy", "rows.csv")
    assert "3 columns (a, b, c)" in find(north, "columns").text
    (north / "rows.csv").write_text("a,b,a\n1,2,3\n4,5,7\n", encoding="utf-8")
    assert [one.verdict for one in (*examine_rows(north),)] == ["wrong"]
    (north / "rows.svm").write_text("0 1:1.5 3:2\n0 2:1\n", encoding="utf-8")
    edit(north, "site.toml", "rows.csv", "rows.svm")
    assert_warned(find(north, "columns"), "3", "this site")


def test_rows_that_cannot_be_read_are_wrong(north: Path) -> None:
    pytest.importorskip("pyarrow")
    (north / "rows.csv").write_text("a,b,c\n" + "1,2,3\n" * 5 + "1,none,3\n", encoding="utf-8")
    edit(north, "site.toml", "rows.npy", "rows.csv")
    [*_, found] = [one for one in examine_rows(north) if one.verdict == "wrong"]
    assert_wrong(found, "none", "this site")


def test_missing_values_are_located(north: Path) -> None:
    rows = X.copy()
    rows[7, 2] = rows[9, 0] = np.nan
    np.save(north / "rows.npy", rows)
    assert_wrong(find(north, "rows"), "row 7, column 2", "this site")


def test_more_components_than_columns_are_wrong(north: Path) -> None:
    edit(north, "network.toml", "components = 2", "components = 6")
    assert_wrong(find(north, "components"), "components = 6", "the author of network.toml")


def test_a_model_path_that_cannot_be_written_is_wrong(north: Path) -> None:
    (north / "file").write_text("", encoding="utf-8")
    edit(north, "site.toml", '"model.npz"', '"file/model.npz"')
    assert_wrong(find(north, "model"), "file", "this site")
    edit(north, "site.toml", '"file/model.npz"', '"m.npz"')
    (north / "m.npz").mkdir()
    assert_wrong(find(north, "model"), "m.npz", "this site")


def test_a_checkpoint_folder_that_cannot_be_used_is_wrong(north: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = shutil.disk_usage(north)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: room._replace(free=1000))
    assert_wrong(find(north, "checkpoints"), "1 kB", "this site")
    (north / "state").write_text("", encoding="utf-8")
    assert_wrong(find(north, "checkpoints"), "state", "this site")
    edit(north, "site.toml", "checkpoints = true", "checkpoints = false")
    assert_warned(find(north, "checkpoints"), "checkpoints = false", "this site")


# ------------------------------------------------------------------------------------------------------ certificates


def issue(
    kits: Path, site: str, *, days: int = 365, now: datetime | None = None, key: Any = None, authority: str = ""
) -> None:
    """Replace the certificate and the key of a site."""
    key = key or new_key()
    operator = Authority.load(kits / (authority or "authority"))
    signed = operator.sign(build_request(site, "trial", key), days, now=now or NOW)
    write_key(kits / site / "site.key", key)
    (kits / site / "site.pem").write_bytes(pem(signed))


def day(days: int) -> str:
    """Return the date ``days`` days from now; certificates are backdated by five minutes."""
    return f"{NOW + timedelta(days=days, minutes=-5 if days == 60 else 0):%Y-%m-%d}"


@pytest.mark.skipif(os.name != "posix", reason="permissions")
def test_a_key_that_others_can_read_is_wrong(north: Path) -> None:
    (north / "site.key").chmod(0o644)
    assert_wrong(find(north, "key"), "chmod 600", "this site")


def test_the_certificate_of_the_authority_must_be_readable_and_valid(
    north: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_checks, "now_utc", lambda: NOW + timedelta(days=3640))
    assert_warned(find(north, "authority"), day(3650), "authority")
    monkeypatch.setattr(site_checks, "now_utc", lambda: NOW + timedelta(days=4000))
    assert_wrong(find(north, "authority"), day(3650), "authority")
    (north / "authority.pem").write_text("nothing", encoding="utf-8")
    assert_wrong(find(north, "authority"), "authority.pem", "authority")


def test_a_damaged_revocation_list_is_wrong(north: Path) -> None:
    (north / "revoked.pem").write_text("nothing", encoding="utf-8")
    assert_wrong(find(north, "revocation list"), "revoked.pem", "authority")


def test_the_certificate_of_the_site_must_be_valid_now(kits: Path, north: Path) -> None:
    issue(kits, "north", days=20)
    assert_warned(find(north, "certificate"), "deepca join", "this site")
    issue(kits, "north", days=20, now=NOW - timedelta(days=60))
    assert_wrong(find(north, "certificate"), day(-40), "authority")
    issue(kits, "north", now=NOW + timedelta(days=60))
    assert_wrong(find(north, "certificate"), day(60), "clock")


def test_a_certificate_that_does_not_belong_to_the_site_is_wrong(kits: Path, north: Path) -> None:
    old = load_key(north / "site.key")
    issue(kits, "north")
    write_key(north / "site.key", old)
    assert_wrong(find(north, "certificate"), "site.key", "this site")
    for file in ("site.pem", "site.key"):
        shutil.copy(kits / "south" / file, north / file)
    assert_wrong(find(north, "certificate"), "south", "this site")
    Authority.create(kits / "strangers", "trial")
    issue(kits, "north", authority="strangers")
    assert_wrong(find(north, "certificate"), "authority", "authority")


def test_a_revoked_certificate_is_wrong(kits: Path, north: Path) -> None:
    Authority.load(kits / "authority").revoke("north")
    shutil.copy(kits / "authority" / "revoked.pem", north)
    assert "number 2" in find(north, "revocation list").text
    assert_wrong(find(north, "certificate"), "revoked", "authority")


def test_plaintext_is_a_warning(north: Path) -> None:
    with (north / "site.toml").open("a", encoding="utf-8") as file:
        file.write("plaintext = true\n")
    assert_warned(find(north, "certificate"), "plaintext", "this site")


@pytest.mark.skipif(os.name != "posix", reason="permissions")
def test_the_key_for_column_names_must_be_secret_and_well_formed(north: Path) -> None:
    key = north / "columns.key"
    ok = find(north, "column key")
    assert (ok.verdict, key.read_text().strip() in ok.text) == ("ok", False)
    key.chmod(0o640)
    found = find(north, "column key")
    assert_wrong(found, "chmod 600", "this site")
    assert "authority" not in found.who
    key.chmod(0o600)
    for content in ("", "xyz", key.read_text().strip()[:-2]):
        key.write_text(content)
        assert_wrong(find(north, "column key"), "--column-key", "authority")
    key.unlink()
    assert_wrong(find(north, "column key"), "--share-column-key", "authority")


def test_plaintext_sites_need_no_key_for_column_names(north: Path) -> None:
    with (north / "site.toml").open("a") as file:
        file.write("plaintext = true\n")
    (north / "columns.key").unlink()
    assert "column key" not in {finding.check for finding in examine(north, seconds=0.2, patience=1.0)}


def test_neighbours_are_not_checked_without_a_certificate(north: Path) -> None:
    (north / "site.pem").unlink()
    assert_warned(find(north, "neighbours"), "certificate", "this site")


# ------------------------------------------------------------------------------------------------------- connections


class Place(NamedTuple):
    host: str
    port: int


@contextmanager
def listen_at(port: int, answer: Callable[[socket.socket], None]) -> Iterator[None]:
    """Listen at a port, and answer each connection."""
    with socket.create_server(("127.0.0.1", port)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, suppress(OSError):
                    connection.settimeout(5)
                    answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def secured(folder: Path, *, alpn: bool = True, old: bool = False, trusts: Path | None = None) -> Any:
    """Return a function that answers a connection with TLS and the certificate in a folder, as an agent does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "site.pem", folder / "site.key")
    if alpn:
        context.set_alpn_protocols(["h2"])
    if old:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if trusts is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(trusts)

    def answer(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as stream:
            stream.sendall(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            stream.recv(100)

    return answer


def address_of(folder: Path, site: str) -> Place:
    network = read_site(folder).network
    host, _, port = (network.sites[network.index(site)].address or "").rpartition(":")
    return Place(host, int(port))


def test_the_port_of_the_site_must_be_free_or_used_by_its_own_agent(kits: Path, north: Path) -> None:
    port = address_of(north, "north").port
    assert find(north, "port").verdict == "ok"
    with listen_at(port, lambda connection: None):
        assert_wrong(find(north, "port"), str(port), "this site")
    with listen_at(port, secured(kits / "south")):
        assert_wrong(find(north, "port"), str(port), "this site")
    with listen_at(port, secured(kits / "north")):
        found = find(north, "port")
        assert (found.verdict, "agent of this site" in found.text) == ("ok", True)
        assert find(north, "agents").verdict == "ok"
    edit(north, "site.toml", '# listen = "0.0.0.0:7400"', 'listen = "203.0.113.7:7400"')
    assert_wrong(find(north, "port"), "203.0.113.7", "this site")


def test_a_site_without_an_address_needs_no_port(north: Path) -> None:
    edit(north, "network.toml", f'address = "127.0.0.1:{address_of(north, "north").port}"\n', "")
    assert find(north, "port").verdict == "ok"
    assert find(north, "agents").verdict == "ok"


def test_an_unknown_host_of_a_neighbour_is_wrong(north: Path) -> None:
    edit(north, "network.toml", f"127.0.0.1:{address_of(north, 'south').port}", "south.invalid:7400")
    assert_wrong(find(north, "south"), "south.invalid", "network")


def test_a_neighbour_that_does_not_listen_is_a_warning(north: Path, kits: Path) -> None:
    assert_warned(find(north, "south"), str(address_of(north, "south").port), "south")
    assert find(kits / "south", "north").verdict == "ok"  # north connects to south, and need not be reached


def test_an_unreachable_neighbour_is_wrong(north: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", lost)
    assert_wrong(find(north, "south"), "firewall", "network")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "TLS"),
        (lambda connection: None, "close"),
        (lambda connection: time.sleep(2), "127.0.0.1"),
    ],
)
def test_another_program_at_the_address_of_a_neighbour_is_wrong(
    north: Path, answer: Callable[[socket.socket], None], text: str
) -> None:
    with listen_at(address_of(north, "south").port, answer):
        assert_wrong(find(north, "south"), text, "south")


def test_a_neighbour_without_tls_1_3_or_http_2_is_wrong(kits: Path, north: Path) -> None:
    port = address_of(north, "south").port
    with listen_at(port, secured(kits / "south", old=True)):
        assert_wrong(find(north, "south"), "TLS 1.3", "south")
    with listen_at(port, secured(kits / "south", alpn=False)):
        assert_wrong(find(north, "south"), "agent", "south")


def test_the_certificate_of_a_neighbour_must_be_valid_and_its_own(kits: Path, north: Path) -> None:
    port = address_of(north, "south").port
    with listen_at(port, secured(kits / "south")):
        assert find(north, "south").verdict == "ok"
    with listen_at(port, secured(kits / "north")):
        assert_wrong(find(north, "south"), "north", "address")
    issue(kits, "south", days=20)
    with listen_at(port, secured(kits / "south")):
        assert_warned(find(north, "south"), "certificate", "south")
    issue(kits, "south", days=20, now=NOW - timedelta(days=60))
    with listen_at(port, secured(kits / "south")):
        assert_wrong(find(north, "south"), day(-40), "south")
    issue(kits, "south", now=NOW + timedelta(days=60))
    with listen_at(port, secured(kits / "south")):
        assert_wrong(find(north, "south"), day(60), "clock")
    Authority.load(kits / "authority").revoke("south")
    shutil.copy(kits / "authority" / "revoked.pem", north)
    issue_again = Authority.create(kits / "strangers", "trial")
    with listen_at(port, secured(kits / "south")):
        assert find(north, "south").verdict == "wrong"
    issue(kits, "south", authority="strangers")
    with listen_at(port, secured(kits / "south")):
        assert_wrong(find(north, "south"), "authority", "authority")
    assert issue_again.network == "trial"


def test_a_revoked_neighbour_is_wrong(kits: Path, north: Path) -> None:
    Authority.load(kits / "authority").revoke("south")
    shutil.copy(kits / "authority" / "revoked.pem", north)
    with listen_at(address_of(north, "south").port, secured(kits / "south")):
        assert_wrong(find(north, "south"), "revoked", "south")


def test_a_neighbour_that_refuses_our_certificate_is_wrong(kits: Path, north: Path) -> None:
    Authority.create(kits / "strangers", "trial")
    answer = secured(kits / "south", trusts=kits / "strangers" / "authority.pem")
    with listen_at(address_of(north, "south").port, answer):
        assert_wrong(find(north, "south"), "certificate", "authority.pem")


def test_the_new_key_of_an_interrupted_renewal_is_used(kits: Path, north: Path) -> None:
    """The new key still has its temporary name, while the certificate is already installed."""
    old = load_key(north / "site.key")
    issue(kits, "north")
    (north / "site.key").rename(north / "site.key.new")
    write_key(north / "site.key", old)
    site = read_site(north)
    with listen_at(address_of(north, "south").port, secured(kits / "south", trusts=north / "authority.pem")):
        place = address_of(north, "south")
        assert probe_address(f"{place.host}:{place.port}", "south", site, Identity.load(site)).stage == "open"


# ------------------------------------------------------------------------------------------------------------ agents


class Running:
    """An agent in a thread of this process."""

    def __init__(self, folder: Path) -> None:
        self.site: SiteFile = read_site(folder)
        self.events: list[str] = []
        self.content, self.error = b"", ""
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            with attached(EventHandler(lambda site, event, *_: self.events.append(event), self.site.site)):
                self.content = run_agent(self.site, ready=lambda _: self._up.set()).content
        except Exception as error:
            self.error = str(error)

    def __enter__(self) -> Running:
        self._thread.start()
        assert self._up.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()


def findings(folder: Path) -> dict[str, Finding]:
    return {finding.check: finding for finding in examine(folder, seconds=10.0)}


def shorten_deadline(folder: Path, deadline: float) -> None:
    """Shorten the deadline of an agent whose run is not meant to finish."""
    write_site(folder / "site.toml", folder.name, "rows.npy", deadline=deadline, rules=DisclosureRules(min_sites=2))


@pytest.mark.parametrize(("here", "there"), [("north", "south"), ("south", "north")])
def test_an_examination_does_not_disturb_a_run(kits: Path, here: str, there: str) -> None:
    """After two examinations, from either side of the connection, the run succeeds."""
    with Running(kits / there) as neighbour:
        for _ in range(2):
            found = findings(kits / here)
            assert {name for name, finding in found.items() if finding.verdict != "ok"} == OPEN_PAIR, found
            assert {f"{there}'s agent", "agreement", "clock"} <= found.keys()
            assert there in found["agreement"].text
        with Running(kits / here) as agent:
            pass
    assert (agent.error, neighbour.error) == ("", "")
    assert agent.content == neighbour.content != b""
    assert not {"regroup", "differs", "refused"} & {*neighbour.events, *agent.events}


def test_different_settings_of_two_sites_are_wrong(kits: Path, north: Path) -> None:
    shorten_deadline(kits / "south", 12.0)
    edit(north, "network.toml", "scale = false", "scale = true")
    np.save(north / "rows.npy", X[:, :4])
    with Running(kits / "south") as neighbour:
        found = findings(north)["agreement"]
    assert_wrong(found, "4 here, 5 there", "south")
    assert "differs" not in neighbour.events  # it keeps waiting
    assert "deadline" in neighbour.error


def test_sites_with_different_keys_for_column_names_do_not_run_together(kits: Path, north: Path) -> None:
    (north / "columns.key").write_text(f"{'0' * 64}\n")
    with Running(kits / "south") as neighbour:
        assert_wrong(findings(north)["agreement"], "--column-key", "south")
        with pytest.raises(InvalidInput):
            run_agent(read_site(north))
    assert "differs" in neighbour.events
    assert neighbour.content == b""


def test_a_different_run_name_is_wrong(kits: Path, north: Path) -> None:
    shorten_deadline(kits / "south", 8.0)
    edit(north, "network.toml", 'run = "1"', 'run = "2"')
    with Running(kits / "south"):
        assert_wrong(findings(north)["agreement"], "run", "south")


def test_the_reason_of_an_agent_that_refuses_us_is_reported(kits: Path, north: Path) -> None:
    """Only the neighbour knows that our certificate is revoked."""
    shorten_deadline(kits / "south", 8.0)
    Authority.load(kits / "authority").revoke("north")
    shutil.copy(kits / "authority" / "revoked.pem", kits / "south")
    with Running(kits / "south"):
        assert_wrong(findings(north)["south's agent"], "revoked", "south")


def test_an_agent_that_does_not_connect_is_a_warning(kits: Path) -> None:
    assert_warned(find(kits / "south", "north's agent"), "0.2 s", "network")


def test_an_agent_that_does_not_answer_is_a_warning(kits: Path, north: Path) -> None:
    with listen_at(address_of(north, "south").port, secured(kits / "south")):
        assert_warned(find(north, "south's agent"), "agent", "south")


def test_settings_are_not_compared_during_a_run(kits: Path, north: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = AgentReport(stream=True, skew=0.0, same_network=True, knows_us=True)
    monkeypatch.setattr(doctor, "query_agents", lambda *_: {1: heard})
    found = find(north, "south's agent")
    assert found.verdict == "ok"
    assert heard.complete


def start(folder: Path) -> subprocess.Popen[bytes]:
    words = ["agent", "run", str(folder), "--log", "json", "--log-file", str(folder / "log"), "--quiet"]
    return subprocess.Popen([sys.executable, "-c", "from deepca.cli import main; main()", *words])


def events(folder: Path) -> list[str]:
    log = folder / "log"
    return [json.loads(line)["event"] for line in log.read_text("utf-8").splitlines()] if log.exists() else []


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_an_examination_is_not_mistaken_for_a_restarted_agent(kits: Path, north: Path) -> None:
    """North is killed during a run and examined; the run waits for its agent, then continues."""
    rng, south = np.random.default_rng(1), kits / "south"
    for folder in (north, south):
        edit(folder, "network.toml", 'algorithm = "auto"', 'algorithm = "deepca"')
        np.save(folder / "rows.npy", rng.standard_normal((3000, 5)))
    agents = [start(north), start(south)]
    try:
        end = time.monotonic() + 60
        while "epoch" not in events(south):
            assert time.monotonic() < end
            time.sleep(0.01)
        agents[0].kill()
        agents[0].wait()
        assert "finished" not in events(south)
        found = findings(north)
        assert "agreement" not in found, found
        assert {name for name, one in found.items() if one.verdict != "ok"} == OPEN_PAIR, found
        time.sleep(1.0)
        assert not {"regroup", "found", "refused"} & {*events(south)[events(south).index("epoch") :]}
        agents[0] = start(north)
        assert [agent.wait(60) for agent in agents] == [0, 0]
        assert (north / "model.npz").read_bytes() == (south / "model.npz").read_bytes()
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()


def test_clocks_are_compared(north: Path) -> None:
    site = read_site(north)
    three = replace(site, network=replace(site.network, sites=(*site.network.sites, SiteEntry("west", "127.0.0.1:7"))))
    [found] = doctor.compare_clocks(three, {1: AgentReport(skew=-400.0), 2: AgentReport(skew=-401.0)})
    assert_wrong(found, "401 s", "this site")
    [found] = doctor.compare_clocks(three, {1: AgentReport(skew=0.2), 2: AgentReport(skew=9.0)})
    assert_warned(found, "9 s", "west")
    assert not list(doctor.compare_clocks(three, {1: AgentReport()}))


def test_different_columns_of_two_sites_are_wrong(north: Path) -> None:
    site = read_site(north)
    one, two, other = b"aaaa", b"bbbb", b"cccc"
    for mine, theirs, printed in (
        (one + two, two + one, "order"),
        (one + two, one + other, "column 2 is 'weight' here"),
    ):
        heard = {1: AgentReport(fingerprints={1: {"columns": theirs}})}
        [found] = doctor.compare_settings(site, {"columns": mine}, ("age", "weight"), heard)
        assert_wrong(found, printed, "south")


def test_different_keys_for_column_names_are_reported_as_such(north: Path) -> None:
    mine, theirs = ({"columns": key * 8, COLUMN_KEY_ENTRY: key * 16} for key in (b"a", b"b"))
    heard = {1: AgentReport(fingerprints={1: theirs})}
    [found] = doctor.compare_settings(read_site(north), mine, ("age", "weight"), heard)
    assert_wrong(found, f"{'a' * 16} here, {'b' * 16} there", "south")
    assert "--column-key" in found.text
    for other_finding in ("age", "different columns"):
        assert other_finding not in found.text


def test_every_failure_to_connect_names_who_must_act() -> None:
    for stage in ("name", "refused", "unreachable", "silent", "tls", "certificate", "welcome"):
        text, who = doctor.explain_failed_connection("south", AddressProbe(stage, "so it is"))
        assert "so it is" in text
        assert who
    assert len(network_digest(NetworkFile("t", (SiteEntry("a"),), 1))) == 32
