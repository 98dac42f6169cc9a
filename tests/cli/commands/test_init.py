"""Test ``deepca init`` and ``deepca join``, as they are run at the authority and at the sites."""

from __future__ import annotations

import json
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from deepca._util.files import write_atomic
from deepca.cli.app import app
from deepca.errors import Refused
from deepca.sites.admin import kits as kits_module
from deepca.sites.config.example import EXAMPLE
from deepca.sites.config.network_file import read_network
from deepca.sites.config.site_file import read_site
from deepca.sites.pki import enrolment
from deepca.sites.pki.authority import Authority
from deepca.sites.pki.certificates import build_request, pem
from deepca.sites.pki.identity import Identity
from deepca.sites.pki.keys import fingerprint, load_key, new_key, write_key
from tests.support.errors import raises

NETWORK = EXAMPLE.replace("north.example.org", "127.0.0.1").replace("south.example.org", "127.0.0.2")


def run(*words: str | int | Path, code: int = 0) -> str:
    return _invoke(words, code)[0]


def run_json(*words: str | int | Path) -> Any:
    return json.loads(_invoke((*words, "--json"), 0)[1])


def _invoke(words: Sequence[str | int | Path], code: int) -> tuple[str, str]:
    """Return all output, and standard output alone."""
    done = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "250"})
    assert done.exit_code == code, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.output, done.stdout


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b"" for p in sorted(folder.rglob("*"))}


@pytest.fixture
def network(tmp_path: Path) -> Path:
    path = tmp_path / "network.toml"
    path.write_text(NETWORK, encoding="utf-8")
    return path


@pytest.fixture
def out(network: Path, tmp_path: Path) -> Path:
    run("init", network, "--out", tmp_path / "kits")
    return tmp_path / "kits"


def certified(out: Path, site: str = "north") -> Path:
    """Give a site its certificate, and return its folder."""
    asked = run_json("join", out / site)
    signed(out, site, asked["fingerprint"])
    run("join", out / site, "--certificate", out / site / f"{site}.pem")
    return out / site


def signed(out: Path, site: str, fingerprint: str, *more: str | int | Path) -> Any:
    """Sign the request of a site as an operator who has been told the fingerprint."""
    words = ("--sign", out / site / "request.csr", "--authority", out / "authority", "--fingerprint", fingerprint)
    return run_json("join", *words, *more)


# ---------------------------------------------------------------------------------------------------------------- init


def test_kits_for_sites_contain_no_keys(network: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "kits"
    printed = run("init", network, "-o", out)
    for words in (
        "three-hospitals",
        "north",
        "127.0.0.2:7400",
        "deepca join site.toml",
        "--sign",
    ):
        assert words in printed
    assert "south, west" in printed
    assert sorted(path.name for path in out.iterdir()) == ["authority", "north", "south", "west"]
    kept = sorted(path.name for path in (out / "authority").iterdir())
    assert kept == [
        "authority.key",
        "authority.pem",
        "columns.key",
        "issued.json",
        "ledger.jsonl",
        "network.toml",
        "revoked.pem",
    ]
    assert stat.S_IMODE((out / "authority").stat().st_mode) == 0o700
    assert stat.S_IMODE((out / "authority" / "authority.key").stat().st_mode) == 0o600
    for site in ("north", "south", "west"):
        kit = out / site
        assert sorted(path.name for path in kit.iterdir()) == [
            "authority.pem",
            "columns.key",
            "network.toml",
            "revoked.pem",
            "site.toml",
        ]
        assert (kit / "network.toml").read_bytes() == network.read_bytes()
        assert "EDIT THIS" in (kit / "site.toml").read_text()
        assert read_site(kit).site == site


def test_trial_kits_are_complete(network: Path, tmp_path: Path) -> None:
    out = tmp_path / "kits"
    printed = run("init", network, "--out", out, "--trial", "--days", 30)
    assert "deepca agent run site.toml" in printed
    assert "for trials only" in printed
    found = {site: Identity.load(read_site(out / site)) for site in ("north", "south", "west")}
    for me in found.values():
        for name, other in found.items():
            me.check_peer(other.certificate_der, name)
            assert (out / name / "site.key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(Refused):
        found["north"].check_peer(found["west"].certificate_der, "south")
    issued = Authority.load(out / "authority").issued()
    assert [one.site for one in issued] == ["north", "south", "west"]
    assert len({me.key for me in found.values()}) == 3


def test_init_prints_json(network: Path, tmp_path: Path) -> None:
    found = run_json("init", network, "--out", tmp_path / "kits")
    assert found["network"] == "three-hospitals"
    assert found["digest"] == read_network(network).digest.hex()
    assert found["sites"][2]["address"] is None
    assert found["sites"][0]["neighbours"] == ["south", "west"]
    assert found["sites"][0]["folder"] == str(tmp_path / "kits" / "north")


@pytest.mark.parametrize(
    "file", ["authority/authority.key", "authority/issued.json", "south/site.toml", "west/network.toml"]
)
def test_existing_files_are_not_overwritten(network: Path, tmp_path: Path, file: str) -> None:
    out = tmp_path / "kits"
    write_atomic(out / file, b"precious")
    before = everything(out)
    printed = run("init", network, "--out", out, code=2)
    assert str(out / file) in printed
    assert everything(out) == before


def test_existing_folders_may_be_used(network: Path, tmp_path: Path) -> None:
    write_atomic(tmp_path / "north" / "rows.csv", b"a,b\n1,2\n")
    run("init", network, "--out", tmp_path)
    assert (tmp_path / "north" / "rows.csv").read_bytes() == b"a,b\n1,2\n"
    assert read_site(tmp_path / "north").site == "north"


@pytest.mark.parametrize("at", range(1, 18, 3))
@pytest.mark.parametrize("there", [False, True])
def test_a_failure_is_rolled_back(
    network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, there: bool
) -> None:
    out = tmp_path / "kits"
    if there:
        write_atomic(out / "north" / "rows.csv", b"1")
    before = everything(out)
    replace, count = Path.replace, [0]

    def failing(self: Path, target: Path) -> Path:
        if ".kits-" in str(self) and ".kits-" not in str(target):
            count[0] += 1
            if count[0] == at:
                raise OSError(28, "No space left on device")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", failing)
    assert "No space left" in run("init", network, "--out", out, code=2)
    assert count[0] == at
    assert everything(out) == before
    assert out.exists() == there


def test_a_full_disk_leaves_no_kits(network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kits_module, "write_site", full)
    assert "No space left" in run("init", network, "--out", tmp_path / "kits", code=2)
    assert not (tmp_path / "kits").exists()


def test_a_missing_network_file_is_explained(tmp_path: Path) -> None:
    for words in ([tmp_path / "none.toml"], []):
        printed = run("init", *words, code=2)
        assert "[[sites]]" in printed
        assert "deepca init --example > network.toml" in printed


def test_the_example_can_be_used(tmp_path: Path) -> None:
    path = tmp_path / "network.toml"
    path.write_text(run("init", "--example"), encoding="utf-8")
    assert run_json("init", path, "--out", tmp_path / "kits")["network"] == "three-hospitals"


def test_invalid_arguments_are_reported_in_one_line(network: Path, tmp_path: Path) -> None:
    network.write_text(NETWORK.replace("components", "componets"))
    printed = run("init", network, "--out", tmp_path / "kits", code=2)
    assert printed.startswith("error: ")
    assert printed.count("\n") == 1
    assert not (tmp_path / "kits").exists()
    network.write_text(NETWORK)
    assert str(network) in run("init", network, "--out", network, code=2)


# ---------------------------------------------------------------------------------------------------------------- join


def test_a_site_joins_with_a_signed_certificate(out: Path) -> None:
    north = out / "north"
    printed = run("join", north / "site.toml")
    for words in ("request.csr", "operator", "--certificate north.pem"):
        assert words in printed
    assert stat.S_IMODE((north / "site.key").stat().st_mode) == 0o600
    assert b"PRIVATE" not in (north / "request.csr").read_bytes()
    (print_,) = [line.split(": ")[1] for line in printed.splitlines() if "fingerprint" in line]
    operator = ("--authority", out / "authority", "--fingerprint", print_)
    assert print_ in run("join", "--sign", north / "request.csr", *operator, "--days", 10)
    assert "north" in run("join", north / "site.toml", "--certificate", north / "north.pem")
    me = Identity.load(read_site(north))
    assert me.site == "north"
    assert not (north / "request.csr").exists()
    other = Identity.load(read_site(certified(out, "west")))
    me.check_peer(other.certificate_der, "west")


def test_a_repeated_request_keeps_the_key(out: Path) -> None:
    first = run_json("join", out / "north")
    again = run_json("join", out / "north")
    assert first["fresh"]
    assert not again["fresh"]
    assert first["fingerprint"] == again["fingerprint"]


def test_a_site_with_a_certificate_must_renew_it(out: Path) -> None:
    certified(out)
    assert "--renew" in run("join", out / "north", code=2)


def test_a_renewal_replaces_key_and_certificate(out: Path) -> None:
    north = certified(out)
    before = Identity.load(read_site(north))
    asked = run_json("join", north, "--renew")
    assert asked["key"] == str(north / "site.key.new")
    assert not before.changed()  # a running agent keeps the old ones
    assert run_json("join", north, "--renew")["fingerprint"] == asked["fingerprint"]
    signed(out, "north", asked["fingerprint"], "--renew")
    assert not before.changed()
    done = run_json("join", north, "--certificate", north / "north.pem")
    assert done["renewed"]
    assert before.changed()
    after = before.reload()
    assert after.key != before.key
    assert after.certificate_der != before.certificate_der
    assert not (north / "site.key.new").exists()
    assert stat.S_IMODE((north / "site.key").stat().st_mode) == 0o600
    after.check_peer(before.certificate_der, "north")  # still valid and not revoked


def test_an_interrupted_renewal_is_consistent(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    north = certified(out)
    signed(out, "north", run_json("join", north, "--renew")["fingerprint"], "--renew")
    replace = Path.replace

    def dying(self: Path, target: Path) -> Path:
        if self.name == "site.key.new":
            raise OSError(5, "Input/output error")
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", dying)
        run("join", north, "--certificate", north / "north.pem", code=2)
    between = Identity.load(read_site(north))
    assert between.certificate in (north / "north.pem").read_bytes()
    run("join", north, "--certificate", north / "north.pem")
    assert (north / "site.key").read_bytes() == between.key
    assert not (north / "site.key.new").exists()


def test_a_key_is_not_signed_twice(out: Path) -> None:
    print_ = run_json("join", out / "north")["fingerprint"]
    signed(out, "north", print_)
    words = ("join", "--sign", out / "north" / "request.csr", "--authority", out / "authority", "--renew")
    issued = Authority.load(out / "authority").issued()
    run(*words, "--fingerprint", print_, code=2)
    assert Authority.load(out / "authority").issued() == issued


def test_a_single_certificate_can_be_revoked(out: Path) -> None:
    north = certified(out)
    operator = ("--authority", out / "authority")
    mistaken = signed(out, "north", run_json("join", north, "--renew")["fingerprint"], "--renew")
    done = run_json("join", "--revoke", mistaken["serial"], *operator)
    assert done["revoked"] == [{"site": "north", "serial": mistaken["serial"]}]
    (north / "revoked.pem").write_bytes((out / "authority" / "revoked.pem").read_bytes())
    Identity.load(read_site(north))  # the one in use stays valid
    assert "revoked" in run("join", north, "--certificate", north / "north.pem", code=2)


def test_unsuitable_certificates_are_refused(out: Path, tmp_path: Path) -> None:
    run("join", out / "north")
    operator = Authority.load(out / "authority")
    mine = load_key(out / "north" / "site.key")
    other = Authority.create(tmp_path / "other", "three-hospitals")
    cases = [
        (pem(operator.sign(build_request("south", "three-hospitals", new_key()))), "south"),
        (pem(operator.sign(build_request("north", "three-hospitals", new_key()))), "site.key"),
        (pem(other.sign(build_request("north", "three-hospitals", mine))), "three-hospitals"),
        (b"nonsense", "came.pem"),
    ]
    before = everything(out / "north")
    for content, printed in cases:
        (tmp_path / "came.pem").write_bytes(content)
        assert printed in run("join", out / "north", "--certificate", tmp_path / "came.pem", code=2)
        assert everything(out / "north") == before
    assert "none.pem" in run("join", out / "north", "--certificate", tmp_path / "none.pem", code=2)


def test_unsuitable_requests_are_not_signed(out: Path, tmp_path: Path) -> None:
    path = tmp_path / "request.csr"
    words = ("join", "--sign", path, "--authority", out / "authority")
    assert str(path) in run(*words, code=2)
    path.write_bytes(b"x")
    assert str(path) in run(*words, code=2)
    path.write_bytes(pem(build_request("nroth", "three-hospitals", new_key())))
    assert "nroth" in run(*words, code=2)
    path.write_bytes(pem(build_request("north", "two-hospitals", new_key())))
    assert "two-hospitals" in run(*words, code=2)
    key = new_key()
    path.write_bytes(pem(build_request("north", "three-hospitals", key)))
    (tmp_path / "north.pem").write_bytes(b"precious")
    assert "north.pem" in run(*words, "--fingerprint", fingerprint(key), code=2)
    assert (tmp_path / "north.pem").read_bytes() == b"precious"
    assert Authority.load(out / "authority").issued() == ()


def test_revoked_certificates_are_refused(out: Path) -> None:
    north, south = certified(out), certified(out, "south")
    me, other = (Identity.load(read_site(folder)) for folder in (north, south))
    me.check_peer(other.certificate_der, "south")
    printed = run("join", "--revoke", "south", "--authority", out / "authority")
    assert "1 certificate revoked" in printed
    revoked = out / "authority" / "revoked.pem"
    assert str(revoked) in printed
    assert run_json("join", "--revoke", "south", "--authority", out / "authority")["revoked"] == []
    (north / "revoked.pem").write_bytes(revoked.read_bytes())
    assert me.changed()
    with raises(Refused, reason="revoked"):
        me.reload().check_peer(other.certificate_der, "south")
    (south / "revoked.pem").write_bytes(revoked.read_bytes())
    signed(out, "south", run_json("join", south, "--renew")["fingerprint"])  # it may return with a new certificate
    run("join", south, "--certificate", south / "south.pem")
    me.reload().check_peer(Identity.load(read_site(south)).certificate_der, "south")
    assert "east" in run("join", "--revoke", "east", "--authority", out / "authority", code=2)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("", "site.toml"),
        ("--sign a.csr", "--sign --authority"),
        ("--revoke north", "--revoke --authority"),
        ("--reissue", "--reissue --authority"),
        ("--sign a.csr --revoke north --authority x", "--sign --revoke"),
        ("--revoke north --reissue --authority x", "--revoke --reissue"),
        ("site.toml --sign a.csr --authority x", "--sign"),
        ("--reissue --renew --authority x", "--reissue"),
        ("site.toml --authority x", "--authority --sign --revoke --reissue"),
        ("site.toml --fingerprint ab", "--fingerprint --sign"),
        ("--reissue --fingerprint ab --authority x", "--fingerprint --sign"),
        ("site.toml --renew --certificate a.pem", "--renew --certificate"),
        ("site.toml --renew --revocation-list a.pem", "--renew --revocation-list"),
        ("none.toml", "none.toml"),
        ("--sign a.csr --authority nowhere", "nowhere"),
    ],
)
def test_options_that_cannot_be_combined_are_refused(words: str, named: str) -> None:
    """The error names all options concerned."""
    printed = run("join", *words.split(), code=2)
    assert all(name in printed for name in named.split())


def test_a_key_that_others_can_read_is_refused(out: Path) -> None:
    print_ = run_json("join", out / "north")["fingerprint"]
    (out / "north" / "site.key").chmod(0o644)
    assert "chmod 600" in run("join", out / "north", code=2)
    (out / "authority" / "authority.key").chmod(0o640)
    words = ("join", "--sign", out / "north" / "request.csr", "--authority", out / "authority")
    assert "chmod 600" in run(*words, "--fingerprint", print_, code=2)


def test_a_failed_request_leaves_no_key(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    before = everything(out)
    monkeypatch.setattr(enrolment, "write_atomic", full)
    run("join", out / "north", code=2)
    assert everything(out) == before


def test_plaintext_sites_need_no_certificate(out: Path) -> None:
    path = out / "north" / "site.toml"
    path.write_text(path.read_text() + "plaintext = true\n")
    assert "plaintext" in run("join", path, code=2)


def test_help_shows_the_steps() -> None:
    assert "--certificate north.pem" in run("join", "--help")
    assert "--trial" in run("init", "--help")


def test_existing_keys_are_used(out: Path) -> None:
    key = new_key()
    write_key(out / "north" / "site.key", key)
    certified(out)
    assert load_key(out / "north" / "site.key").private_numbers() == key.private_numbers()


def test_a_missing_passphrase_file_is_named(network: Path, tmp_path: Path) -> None:
    missing = tmp_path / "nope"
    text = run("init", network, "--out", tmp_path / "kits", "--passphrase-file", missing, code=2)
    assert f"--passphrase-file {missing}: file not found" in text
    assert not (tmp_path / "kits").exists()
