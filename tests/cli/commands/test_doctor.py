"""`deepca doctor`: every check, in a case in which it fails, with what it says and whom it sends for."""

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

from deepca._util.logs import EventHandler, listening
from deepca.cli.app import app
from deepca.sites.admin import doctor, site_checks
from deepca.sites.admin.doctor import examine
from deepca.sites.admin.findings import Finding
from deepca.sites.admin.kits import make_kits
from deepca.sites.admin.reachability import Heard, Knock, knock
from deepca.sites.config.network_file import NetworkFile, SiteEntry, write_network
from deepca.sites.config.site_file import SiteFile, read_site, write_site
from deepca.sites.pki.authority import Authority
from deepca.sites.pki.certificates import pem, request
from deepca.sites.pki.identity import Identity
from deepca.sites.pki.keys import load_key, new_key, write_key
from deepca.sites.protocol.fingerprints import run_of
from deepca.sites.runtime.agent import run_agent

pytestmark = pytest.mark.xdist_group("real")

NOW = datetime.now(UTC)
SITES = ("north", "south")
X = np.random.default_rng(0).standard_normal((40, 5)) * np.arange(1, 6)


def free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])


@pytest.fixture
def kits(tmp_path: Path) -> Path:
    """Complete kits of two sites; north calls south."""
    entries = tuple(SiteEntry(name, f"127.0.0.1:{free_port()}") for name in SITES)
    write_network(tmp_path / "network.toml", NetworkFile("trial", entries, 2, topology_name="ring", patience=5.0))
    make_kits(tmp_path / "network.toml", tmp_path, trial=True)
    for name in SITES:
        np.save(tmp_path / name / "rows.npy", X)
        write_site(tmp_path / name / "site.toml", name, "rows.npy", deadline=90.0)
    return tmp_path


@pytest.fixture
def north(kits: Path) -> Path:
    return kits / "north"


def find(folder: Path, check: str) -> Finding:
    """What is found about something; nothing beyond is looked at."""
    seen = []
    for finding in examine(folder, seconds=0.2, patience=1.0):
        seen.append(finding)
        if finding.check == check:
            return finding
    raise AssertionError(f"{check} is not among {seen}")


def examine_rows(folder: Path) -> Iterator[Finding]:
    """What is found about the rows alone."""
    return (finding for finding, _ in site_checks.check_data(read_site(folder)))


def edit(folder: Path, file: str, old: str, new: str) -> None:
    text = (folder / file).read_text("utf-8")
    assert old in text
    (folder / file).write_text(text.replace(old, new), encoding="utf-8")


def wrong(finding: Finding, text: str, who: str) -> None:
    assert finding.verdict == "wrong", finding
    assert text in finding.text, finding
    assert who in finding.who, finding


def warned(finding: Finding, text: str, who: str) -> None:
    assert finding.verdict == "warning", finding
    assert text in finding.text, finding
    assert who in finding.who, finding


# ------------------------------------------------------------------------------------------------------- the command


def test_nobody_else_is_there_yet(north: Path) -> None:
    done = CliRunner().invoke(app, ["doctor", str(north)], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert "! south" in done.stdout
    assert "✗" not in done.stdout
    assert "Nothing is wrong; 1 warning" in done.stdout
    assert not list(north.glob("state*"))


def test_exit_codes_and_json(north: Path, tmp_path: Path) -> None:
    (north / "rows.npy").unlink()
    (north / "site.pem").unlink()
    done = CliRunner().invoke(app, ["doctor", str(north), "--json"])
    assert done.exit_code == 1
    said = json.loads(done.stdout)
    assert not said["ok"]
    assert [one["check"] for one in said["findings"] if one["verdict"] == "wrong"] == ["data", "certificate"]
    done = CliRunner().invoke(app, ["doctor", str(tmp_path / "none.toml")])
    assert done.exit_code == 2
    assert "there is no such file" in done.stderr


# ---------------------------------------------------------------------------------------------------- files and rows


def test_site_file(north: Path) -> None:
    edit(north, "site.toml", 'site = "north"', 'site = "nort"')
    wrong(find(north, "site.toml"), "did you mean 'north'?", "this site")


def test_network_file(north: Path) -> None:
    edit(north, "network.toml", "components = 2", 'components = "two"')
    wrong(find(north, "site.toml"), "components", "the author of network.toml")


def test_data(north: Path) -> None:
    (north / "rows.npy").unlink()
    wrong(find(north, "data"), "does not exist", "this site")


def test_columns(north: Path) -> None:
    pytest.importorskip("pyarrow")
    (north / "rows.csv").write_text("a,b,c\n1,2,3\n4,5,7\n", encoding="utf-8")
    edit(north, "site.toml", "rows.npy", "rows.csv")
    assert "3 columns (a, b, c)" in find(north, "columns").text
    (north / "rows.csv").write_text("a,b,a\n1,2,3\n4,5,7\n", encoding="utf-8")
    assert [one.verdict for one in (*examine_rows(north),)] == ["wrong"]
    (north / "rows.svm").write_text("0 1:1.5 3:2\n0 2:1\n", encoding="utf-8")
    edit(north, "site.toml", "rows.csv", "rows.svm")
    warned(find(north, "columns"), "all sites have the same number of columns", "this site")


def test_rows_that_cannot_be_read(north: Path) -> None:
    pytest.importorskip("pyarrow")
    (north / "rows.csv").write_text("a,b,c\n" + "1,2,3\n" * 5 + "1,none,3\n", encoding="utf-8")
    edit(north, "site.toml", "rows.npy", "rows.csv")
    [*_, found] = [one for one in examine_rows(north) if one.verdict == "wrong"]
    wrong(found, "none", "this site")


def test_missing_values(north: Path) -> None:
    rows = X.copy()
    rows[7, 2] = rows[9, 0] = np.nan
    np.save(north / "rows.npy", rows)
    wrong(find(north, "rows"), "row 7, column 2 is missing (2 such values in the first 40 rows)", "this site")


def test_components(north: Path) -> None:
    edit(north, "network.toml", "components = 2", "components = 6")
    wrong(find(north, "components"), "components = 6, but rows.npy has 5 columns", "the author of network.toml")


def test_model_folder(north: Path) -> None:
    (north / "file").write_text("", encoding="utf-8")
    edit(north, "site.toml", '"model.npz"', '"file/model.npz"')
    wrong(find(north, "model"), "cannot write to", "this site")
    edit(north, "site.toml", '"file/model.npz"', '"m.npz"')
    (north / "m.npz").mkdir()
    wrong(find(north, "model"), "is a folder", "this site")


def test_state_folder(north: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = shutil.disk_usage(north)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: room._replace(free=1000))
    wrong(find(north, "checkpoints"), "only 1 kB free", "this site")
    (north / "state").write_text("", encoding="utf-8")
    wrong(find(north, "checkpoints"), "cannot write to", "this site")
    edit(north, "site.toml", "checkpoints = true", "checkpoints = false")
    warned(find(north, "checkpoints"), "starts over", "this site")


# ------------------------------------------------------------------------------------------------------ certificates


def issue(kits: Path, site: str, *, days: int = 365, now: datetime = NOW, key: Any = None, authority: str = "") -> None:
    """A certificate, and a key, in place of the old ones."""
    key = key or new_key()
    keeper = Authority.load(kits / (authority or "authority"))
    signed = keeper.sign(request(site, "trial", key), days, now=now)
    write_key(kits / site / "site.key", key)
    (kits / site / "site.pem").write_bytes(pem(signed))


@pytest.mark.skipif(os.name != "posix", reason="permissions")
def test_key(north: Path) -> None:
    (north / "site.key").chmod(0o644)
    wrong(find(north, "key"), "chmod 600", "this site")


def test_authority(north: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_checks, "now_utc", lambda: NOW + timedelta(days=3640))
    warned(find(north, "authority"), "valid until", "the keeper of the authority")
    monkeypatch.setattr(site_checks, "now_utc", lambda: NOW + timedelta(days=4000))
    wrong(find(north, "authority"), "the authority expired on", "the keeper of the authority")
    (north / "authority.pem").write_text("nothing", encoding="utf-8")
    wrong(find(north, "authority"), "not a certificate", "a new copy from the keeper of the authority")


def test_revoked_list(north: Path) -> None:
    (north / "revoked.pem").write_text("nothing", encoding="utf-8")
    wrong(find(north, "revoked list"), "damaged", "a new copy from the keeper of the authority")


def test_certificate_ends(kits: Path, north: Path) -> None:
    issue(kits, "north", days=20)
    warned(find(north, "certificate"), "days left); request a new one with deepca join", "this site")
    issue(kits, "north", days=20, now=NOW - timedelta(days=60))
    wrong(
        find(north, "certificate"), "expired on", "this site requests another, and the keeper of the authority signs it"
    )
    issue(kits, "north", now=NOW + timedelta(days=60))
    wrong(find(north, "certificate"), "is not valid before", "check its clock")


def test_certificate_of_others(kits: Path, north: Path) -> None:
    old = load_key(north / "site.key")
    issue(kits, "north")
    write_key(north / "site.key", old)
    wrong(find(north, "certificate"), "is not the key of", "this site")
    for file in ("site.pem", "site.key"):
        shutil.copy(kits / "south" / file, north / file)
    wrong(find(north, "certificate"), "names another site, south", "this site")
    Authority.create(kits / "strangers", "trial")
    issue(kits, "north", authority="strangers")
    wrong(find(north, "certificate"), "not signed by the authority", "the keeper of the authority")


def test_certificate_revoked(kits: Path, north: Path) -> None:
    Authority.load(kits / "authority").revoke("north")
    shutil.copy(kits / "authority" / "revoked.pem", north)
    assert "number 2 with 1 certificate," in find(north, "revoked list").text
    wrong(find(north, "certificate"), "was revoked", "the keeper of the authority")


def test_plaintext(north: Path) -> None:
    with (north / "site.toml").open("a", encoding="utf-8") as file:
        file.write("plaintext = true\n")
    warned(find(north, "certificate"), "except for trials on one machine", "this site")


def test_without_a_certificate_nobody_is_asked(north: Path) -> None:
    (north / "site.pem").unlink()
    warned(find(north, "neighbours"), "not checked", "this site")


# ------------------------------------------------------------------------------------------------------------- doors


class Place(NamedTuple):
    host: str
    port: int


@contextmanager
def door(port: int, answer: Callable[[socket.socket], None]) -> Iterator[None]:
    """Something that listens, and does what it is told with whoever comes."""
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
    """Speaks TLS with the certificate in a folder, and then like an agent."""
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


def test_own_port(kits: Path, north: Path) -> None:
    port = address_of(north, "north").port
    assert "is free" in find(north, "port").text
    with door(port, lambda connection: None):
        wrong(find(north, "port"), "is in use by another program", "this site")
    with door(port, secured(kits / "south")):
        wrong(find(north, "port"), "is in use by another program", "this site")
    with door(port, secured(kits / "north")):
        found = find(north, "port")
        assert (found.verdict, "by the agent of this site, which is running" in found.text) == ("ok", True)
        assert "would disturb" in find(north, "agents").text
    edit(north, "site.toml", '# listen = "0.0.0.0:7400"', 'listen = "203.0.113.7:7400"')
    wrong(find(north, "port"), "this machine does not have the address", "this site")


def test_no_own_port(north: Path) -> None:
    edit(north, "network.toml", f'address = "127.0.0.1:{address_of(north, "north").port}"\n', "")
    assert "dials its neighbours" in find(north, "port").text
    assert "would disturb" in find(north, "agents").text


def test_a_name_that_is_not_known(north: Path) -> None:
    edit(north, "network.toml", f"127.0.0.1:{address_of(north, 'south').port}", "south.invalid:7400")
    wrong(find(north, "south"), "the name south.invalid cannot be resolved", "the network administrators")


def test_nothing_listens(north: Path, kits: Path) -> None:
    warned(find(north, "south"), "its agent may not be running yet", "south")
    found = find(kits / "south", "north")  # which calls south, and need not be reached
    assert (found.verdict, "does not matter" in found.text) == ("ok", True)


def test_no_way(north: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", lost)
    wrong(find(north, "south"), "check firewalls", "the network administrators")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "does not speak TLS"),
        (lambda connection: None, "closes the connection at once"),
        (lambda connection: time.sleep(2), "sends nothing"),
    ],
)
def test_no_agent(north: Path, answer: Callable[[socket.socket], None], text: str) -> None:
    with door(address_of(north, "south").port, answer):
        wrong(find(north, "south"), text, "south")


def test_other_kinds_of_tls(kits: Path, north: Path) -> None:
    port = address_of(north, "south").port
    with door(port, secured(kits / "south", old=True)):
        wrong(find(north, "south"), "does not speak TLS 1.3", "south")
    with door(port, secured(kits / "south", alpn=False)):
        wrong(find(north, "south"), "is not an agent", "south")


def test_certificates_of_neighbours(kits: Path, north: Path) -> None:
    port = address_of(north, "south").port
    with door(port, secured(kits / "south")):
        assert "presents the right certificate and accepts that of this site" in find(north, "south").text
    with door(port, secured(kits / "north")):
        wrong(find(north, "south"), "names another site, north", "the address leads to another site")
    issue(kits, "south", days=20)
    with door(port, secured(kits / "south")):
        warned(find(north, "south"), "its certificate expires on", "south")
    issue(kits, "south", days=20, now=NOW - timedelta(days=60))
    with door(port, secured(kits / "south")):
        wrong(
            find(north, "south"), "expired on", "south requests a certificate, and the keeper of the authority signs it"
        )
    issue(kits, "south", now=NOW + timedelta(days=60))
    with door(port, secured(kits / "south")):
        wrong(find(north, "south"), "is not valid before", "check which clock is wrong")
    Authority.load(kits / "authority").revoke("south")
    shutil.copy(kits / "authority" / "revoked.pem", north)
    issue_again = Authority.create(kits / "strangers", "trial")
    with door(port, secured(kits / "south")):
        assert find(north, "south").verdict == "wrong"
    issue(kits, "south", authority="strangers")
    with door(port, secured(kits / "south")):
        wrong(find(north, "south"), "not signed by the authority", "whose kit comes from another authority")
    assert issue_again.network == "trial"


def test_revoked_neighbour(kits: Path, north: Path) -> None:
    Authority.load(kits / "authority").revoke("south")
    shutil.copy(kits / "authority" / "revoked.pem", north)
    with door(address_of(north, "south").port, secured(kits / "south")):
        wrong(find(north, "south"), "was revoked", "south requests")


def test_not_welcome(kits: Path, north: Path) -> None:
    Authority.create(kits / "strangers", "trial")
    answer = secured(kits / "south", trusts=kits / "strangers" / "authority.pem")
    with door(address_of(north, "south").port, answer):
        wrong(find(north, "south"), "it does not accept the certificate of this site", "compare authority.pem")


def test_a_renewal_that_was_cut_short(kits: Path, north: Path) -> None:
    """The key that belongs to the certificate still waits under another name."""
    old = load_key(north / "site.key")
    issue(kits, "north")
    (north / "site.key").rename(north / "site.key.new")
    write_key(north / "site.key", old)
    site = read_site(north)
    with door(address_of(north, "south").port, secured(kits / "south", trusts=north / "authority.pem")):
        place = address_of(north, "south")
        assert knock(f"{place.host}:{place.port}", "south", site, Identity.load(site)).stage == "open"


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
            with listening(EventHandler(lambda site, event, *_: self.events.append(event), self.site.site)):
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


def hurry(folder: Path, deadline: float) -> None:
    """An agent that is not meant to come to an end."""
    write_site(folder / "site.toml", folder.name, "rows.npy", deadline=deadline)


@pytest.mark.parametrize(("here", "there"), [("north", "south"), ("south", "north")])
def test_a_visit_changes_nothing(kits: Path, here: str, there: str) -> None:
    """Twice, from the side that calls and from the one that is called; and then the run takes its course."""
    with Running(kits / there) as neighbour:
        for _ in range(2):
            found = findings(kits / here)
            assert {finding.verdict for finding in found.values()} == {"ok"}, found
            assert "is running, speaks the same protocol" in found[f"{there}'s agent"].text
            assert found["agreement"].text == f"the same columns and settings as {there}"
            assert "agrees with" in found["clock"].text
        with Running(kits / here) as agent:
            pass
    assert (agent.error, neighbour.error) == ("", "")
    assert agent.content == neighbour.content != b""
    assert not {"regroup", "differs", "refused"} & {*neighbour.events, *agent.events}


def test_differences(kits: Path, north: Path) -> None:
    hurry(kits / "south", 12.0)
    edit(north, "network.toml", "scale = false", "scale = true")
    np.save(north / "rows.npy", X[:, :4])
    with Running(kits / "south") as neighbour:
        found = findings(north)["agreement"]
    wrong(found, "number of columns 4 here, 5 there; scaling True here, False there", "this site or south")
    assert "differs" not in neighbour.events  # it goes on waiting
    assert "deadline" in neighbour.error


def test_another_run(kits: Path, north: Path) -> None:
    hurry(kits / "south", 8.0)
    edit(north, "network.toml", 'run = "1"', 'run = "2"')
    with Running(kits / "south"):
        wrong(findings(north)["agreement"], "differs from south: run", "this site or south")


def test_refused_by_the_agent(kits: Path, north: Path) -> None:
    """Only its agent knows that our certificate is revoked."""
    hurry(kits / "south", 8.0)
    Authority.load(kits / "authority").revoke("north")
    shutil.copy(kits / "authority" / "revoked.pem", kits / "south")
    with Running(kits / "south"):
        wrong(findings(north)["south's agent"], "revoked", "this site and south")


def test_an_agent_that_does_not_call(kits: Path) -> None:
    warned(find(kits / "south", "north's agent"), "it has not dialled within 0.2 s", "the network administrators")


def test_something_that_never_answers(kits: Path, north: Path) -> None:
    with door(address_of(north, "south").port, secured(kits / "south")):
        warned(find(north, "south's agent"), "no agent answered", "south")


def test_a_run_that_has_begun_is_left_alone(kits: Path, north: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard(stream=True, skew=0.0, same_run=True, knows_us=True)
    monkeypatch.setattr(doctor, "overhear", lambda *_: {1: heard})
    found = find(north, "south's agent")
    assert (found.verdict, "columns and settings are not compared" in found.text) == ("ok", True)
    assert heard.complete


def start(folder: Path) -> subprocess.Popen[bytes]:
    words = ["agent", "run", str(folder), "--log", "json", "--log-file", str(folder / "log"), "--quiet"]
    return subprocess.Popen([sys.executable, "-c", "from deepca.cli import main; main()", *words])


def events(folder: Path) -> list[str]:
    log = folder / "log"
    return [json.loads(line)["event"] for line in log.read_text("utf-8").splitlines()] if log.exists() else []


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_the_doctor_is_not_taken_for_an_agent_come_back(kits: Path, north: Path) -> None:
    """North is killed in the middle of a run, and looked at; the run waits for its agent, and then goes on."""
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
        assert "columns and settings are not compared" in found["south's agent"].text, found
        assert {one.verdict for one in found.values()} == {"ok"}, found
        time.sleep(1.0)
        assert not {"regroup", "found", "refused"} & {*events(south)[events(south).index("epoch") :]}
        agents[0] = start(north)
        assert [agent.wait(60) for agent in agents] == [0, 0]
        assert (north / "model.npz").read_bytes() == (south / "model.npz").read_bytes()
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()


def test_clocks(north: Path) -> None:
    site = read_site(north)
    three = replace(site, network=replace(site.network, sites=(*site.network.sites, SiteEntry("west", "127.0.0.1:7"))))
    [found] = doctor.compare_clocks(three, {1: Heard(skew=-400.0), 2: Heard(skew=-401.0)})
    wrong(found, "that of south is 400 s behind, that of west is 401 s behind", "this site: the others agree")
    [found] = doctor.compare_clocks(three, {1: Heard(skew=0.2), 2: Heard(skew=9.0)})
    warned(found, "that of west is 9 s ahead", "this site or west")
    assert not list(doctor.compare_clocks(three, {1: Heard()}))


def test_columns_that_differ(north: Path) -> None:
    site = read_site(north)
    one, two, other = b"aaaa", b"bbbb", b"cccc"
    for mine, theirs, said in (
        (one + two, two + one, "the same columns in another order"),
        (one + two, one + other, "column 2 is 'weight' here and another one there"),
    ):
        heard = {1: Heard(fingerprints={1: {"columns": theirs}})}
        [found] = doctor.compare_settings(site, {"columns": mine}, ("age", "weight"), heard)
        wrong(found, said, "this site or south")


def test_every_stage_of_a_door_names_somebody() -> None:
    for stage in ("name", "refused", "unreachable", "silent", "tls", "certificate", "welcome"):
        text, who = doctor.explain_closed_door("south", Knock(stage, "so it is"))
        assert "so it is" in text
        assert who
    assert len(run_of(NetworkFile("t", (SiteEntry("a"),), 1))) == 32
