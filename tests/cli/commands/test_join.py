"""Signing at the authority: confirmed fingerprints, the ledger, and passphrases."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("cryptography")

from deepca._util.files import write_atomic
from deepca.cli.app import app
from deepca.cli.passphrase import PASSPHRASE_VARIABLE
from deepca.errors import EnrolmentError
from deepca.sites.config.example import EXAMPLE
from deepca.sites.config.site_file import read_site
from deepca.sites.pki.authority import LEDGER, Authority
from deepca.sites.pki.certificates import build_request, pem
from deepca.sites.pki.enrolment import examine_request, sign_request
from deepca.sites.pki.identity import Identity
from deepca.sites.pki.issued import read_issued
from deepca.sites.pki.keys import fingerprint, is_encrypted, load_key, new_key, write_key
from tests.support.errors import raises

SECRET = "correct horse battery"
NET = "three-hospitals"


def run(*words: str | int | Path, code: int = 0, typed: str | None = None, secret: str | None = None) -> str:
    return _invoke(words, code, typed, secret)[0]


def run_json(*words: str | int | Path, secret: str | None = None) -> Any:
    return json.loads(_invoke((*words, "--json"), 0, None, secret)[1])


def _invoke(words: Sequence[str | int | Path], code: int, typed: str | None, secret: str | None) -> tuple[str, str]:
    """Return all output, and standard output alone."""
    env = {"COLUMNS": "250", PASSPHRASE_VARIABLE: secret}
    done = CliRunner().invoke(app, [str(word) for word in words], input=typed, env=env)
    assert done.exit_code == code, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert SECRET not in done.output
    return done.output, done.stdout


@pytest.fixture
def network(tmp_path: Path) -> Path:
    path = tmp_path / "network.toml"
    path.write_text(EXAMPLE, encoding="utf-8")
    return path


@pytest.fixture
def out(network: Path, tmp_path: Path) -> Path:
    run("init", network, "--out", tmp_path / "kits")
    return tmp_path / "kits"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Act as if there were a terminal."""
    for module in ("commands.join", "passphrase"):
        monkeypatch.setattr(f"deepca.cli.{module}.is_interactive", lambda: True)


def at_authority(out: Path, site: str = "north") -> tuple[str | Path, ...]:
    return ("join", "--sign", out / site / "request.csr", "--authority", out / "authority")


def ledger(out: Path, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (out / "authority" / LEDGER).read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


def nothing_signed(out: Path, site: str = "north") -> bool:
    signed = out / site / f"{site}.pem"
    return not read_issued(out / "authority") and not ledger(out, "signed") and not signed.exists()


# -------------------------------------------------------------------------------------------------------- fingerprints


def test_nothing_is_signed_without_a_confirmed_fingerprint(out: Path) -> None:
    asked = run_json("join", out / "north")
    run(*at_authority(out), code=2)
    assert nothing_signed(out)
    groups = " ".join(asked["fingerprint"][i : i + 4] for i in range(0, 64, 4))
    assert groups in run("join", out / "north")  # the site and the operator see the same
    assert groups in run(*at_authority(out), code=2)


def test_a_wrong_fingerprint_is_refused(out: Path) -> None:
    asked = run_json("join", out / "north")["fingerprint"]
    other = fingerprint(new_key())
    for wrong in (other, asked[:32], asked[:-1], asked + "0", "", "x" * 64):
        run(*at_authority(out), "--fingerprint", wrong, code=2)
        assert nothing_signed(out)
    spoken = ":".join(asked[i : i + 2] for i in range(0, 64, 2)).upper()
    assert run_json(*at_authority(out), "--fingerprint", f" {spoken} ")["fingerprint"] == asked


def test_a_swapped_request_is_refused(out: Path) -> None:
    """The request is replaced by another request of the same site, with another key."""
    asked = run_json("join", out / "north")["fingerprint"]
    swapped = new_key()
    (out / "north" / "request.csr").write_bytes(pem(build_request("north", NET, swapped)))
    run(*at_authority(out), "--fingerprint", asked, code=2)
    assert nothing_signed(out)
    with raises(EnrolmentError, reason="fingerprint", site="north", fingerprint=fingerprint(swapped)):
        sign_request(out / "north" / "request.csr", out / "authority", expected=asked)


@pytest.mark.usefixtures("terminal")
def test_the_operator_confirms_on_a_terminal(out: Path) -> None:
    asked = run_json("join", out / "north")["fingerprint"]
    for answer in ("n\n", "\n", "maybe\nn\n"):
        printed = run(*at_authority(out), typed=answer, code=2)
        assert asked[:4] in printed
        assert nothing_signed(out)
    run(*at_authority(out), typed="y\n")
    assert [one.key for one in read_issued(out / "authority")] == [asked]


@pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals")
def test_the_question_is_asked_on_a_real_terminal(out: Path) -> None:
    import pty

    run("join", out / "north")
    mine, theirs = pty.openpty()
    words = [sys.executable, "-m", "deepca", *map(str, at_authority(out)), "--json"]
    process = subprocess.Popen(words, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.write(mine, b"y\n")
    shown, asked = process.communicate(timeout=60)
    os.close(mine)
    os.close(theirs)
    assert process.returncode == 0, asked
    assert b"Fingerprint" in asked
    assert json.loads(shown)["site"] == "north"  # questions are not on standard output


# ------------------------------------------------------------------------------------------------- a second certificate


def joined(out: Path, site: str = "north") -> str:
    """Give a site its certificate, and return the fingerprint of its next request."""
    run(*at_authority(out, site), "--fingerprint", run_json("join", out / site)["fingerprint"])
    run("join", out / site, "--certificate", out / site / f"{site}.pem")
    return str(run_json("join", out / site, "--renew")["fingerprint"])


def test_a_second_certificate_must_be_requested(out: Path) -> None:
    again = joined(out)
    (first,) = read_issued(out / "authority")
    run(*at_authority(out), "--fingerprint", again, code=2)
    assert read_issued(out / "authority") == (first,)
    found = examine_request(out / "north" / "request.csr", out / "authority")
    assert found.valid == (first,)
    with raises(EnrolmentError, reason="certificate exists", site="north"):
        sign_request(out / "north" / "request.csr", out / "authority", expected=again)
    renewal = (*at_authority(out), "--fingerprint", again, "--renew")
    warned = subprocess.run([sys.executable, "-m", "deepca", *map(str, renewal), "--json"], capture_output=True)
    assert first.serial.encode() in warned.stderr  # the operator is warned in any case
    assert json.loads(warned.stdout)["also_valid"] == [first.serial]


@pytest.mark.usefixtures("terminal")
def test_the_operator_confirms_a_second_certificate_on_a_terminal(out: Path) -> None:
    run("join", out / "north")
    run(*at_authority(out), typed="y\n")
    run("join", out / "north", "--certificate", out / "north" / "north.pem")
    run("join", out / "north", "--renew")
    for answers in ("n\n", "y\nn\n", "y\n\n"):
        run(*at_authority(out), typed=answers, code=2)
    (first,) = read_issued(out / "authority")
    assert first.serial in run(*at_authority(out), typed="y\ny\n")
    assert len(read_issued(out / "authority")) == 2


def test_a_revoked_site_may_request_again(out: Path) -> None:
    again = joined(out)
    run("join", "--revoke", "north", "--authority", out / "authority")
    assert run_json(*at_authority(out), "--fingerprint", again)["also_valid"] == []


# --------------------------------------------------------------------------------------------------------------- ledger


def test_every_signature_is_recorded(out: Path) -> None:
    path = out / "authority" / LEDGER
    before = path.read_bytes()
    again = joined(out)
    run(*at_authority(out), "--fingerprint", again, "--renew", "--days", 20)
    assert path.read_bytes().startswith(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    issued = read_issued(out / "authority")
    printed = ledger(out, "signed")
    assert [one["serial"] for one in printed] == [one.serial for one in issued]
    assert [one["fingerprint"] for one in printed] == [one.key for one in issued]
    for one in printed:
        assert (one["site"], set(one)) == (
            "north",
            {"time", "event", "site", "serial", "fingerprint", "not_before", "not_after"},
        )
        assert abs(datetime.fromisoformat(one["time"]) - datetime.now(UTC)) < timedelta(minutes=5)
    run("join", "--revoke", issued[0].serial, "--authority", out / "authority")
    assert [one["serial"] for one in ledger(out, "revoked")] == [issued[0].serial]
    assert [one["number"] for one in ledger(out, "list")] == [1, 2]
    assert [one["revoked"] for one in ledger(out, "list")] == [0, 1]


# ---------------------------------------------------------------------------------------------------------------- lists


def test_the_next_list_is_signed_and_installed(out: Path) -> None:
    joined(out)
    done = run_json("join", "--reissue", "--authority", out / "authority", "--days", 50)
    assert (done["number"], done["revoked"]) == (2, [])
    assert timedelta(days=49) < datetime.fromisoformat(done["not_after"]) - datetime.now(UTC) < timedelta(days=51)
    older = out / "north" / "older.pem"
    older.write_bytes((out / "north" / "revoked.pem").read_bytes())
    taken = run_json("join", out / "north", "--revocation-list", done["list"])
    assert (taken["number"], taken["replaced"]) == (2, True)
    assert Identity.load(read_site(out / "north")).revocation_list_number == 2
    run("join", out / "north", "--revocation-list", older, code=2)
    assert run_json("join", "--revoke", "north", "--authority", out / "authority")["number"] == 3


# ----------------------------------------------------------------------------------------------------------- passphrase


@pytest.fixture
def protected(network: Path, tmp_path: Path) -> Path:
    run("init", network, "--out", tmp_path / "safe", secret=SECRET)
    return tmp_path / "safe"


def test_an_encrypted_key_needs_its_passphrase(protected: Path) -> None:
    key = protected / "authority" / "authority.key"
    assert is_encrypted(key)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    for given in (None, b"", b"wrong"):
        with raises(EnrolmentError, reason="passphrase"):
            load_key(key, given)
    assert fingerprint(Authority.load(key.parent, SECRET.encode()).key) == fingerprint(load_key(key, SECRET.encode()))


def test_signing_and_revoking_need_the_passphrase(protected: Path, tmp_path: Path) -> None:
    words = (*at_authority(protected), "--fingerprint", run_json("join", protected / "north")["fingerprint"])
    authority = ("--authority", protected / "authority")
    run(*words, code=2)
    run(*words, code=2, secret="wrong")
    run("join", "--revoke", "north", *authority, code=2)
    run("join", "--reissue", *authority, code=2, secret="wrong")
    assert nothing_signed(protected)
    assert len(ledger(protected, "list")) == 1
    run(*words, secret=SECRET)
    file = tmp_path / "passphrase"
    file.write_text(f"{SECRET}\n")
    file.chmod(0o644)
    assert "chmod 600" in run("join", "--reissue", *authority, "--passphrase-file", file, code=2)
    file.chmod(0o600)
    run("join", "--reissue", *authority, "--passphrase-file", file)
    run("join", "--revoke", "north", *authority, "--passphrase-file", file)


@pytest.mark.usefixtures("terminal")
def test_the_passphrase_is_asked_for_on_a_terminal(network: Path, tmp_path: Path) -> None:
    out = tmp_path / "asked"
    run("init", network, "--out", out, "--passphrase", typed=f"{SECRET}\nanother\n{SECRET}\n{SECRET}\n")
    assert is_encrypted(out / "authority" / "authority.key")
    run("join", out / "north")
    run(*at_authority(out), typed="y\nwrong\n", code=2)
    assert nothing_signed(out)
    run(*at_authority(out), typed=f"y\n{SECRET}\n")
    assert "Passphrase" not in run("join", out / "north", "--certificate", out / "north" / "north.pem")


def test_unsuitable_passphrases_are_refused(network: Path, tmp_path: Path) -> None:
    out = tmp_path / "kits"
    run("init", network, "--out", out, "--passphrase", code=2)  # no terminal
    run("init", network, "--out", out, code=2, secret="short")
    run("init", network, "--out", out, code=2, secret="")
    run("init", network, "--out", out, "--passphrase-file", tmp_path / "none", code=2)
    long = tmp_path / "long"
    write_atomic(long, b"x" * 1024, mode=0o600)  # more than OpenSSL accepts
    run("init", network, "--out", out, "--passphrase-file", long, code=2)
    assert not out.exists()


def test_a_passphrase_need_not_be_text(network: Path, tmp_path: Path) -> None:
    out = tmp_path / "kits"
    run("init", network, "--out", out, secret=os.fsdecode(b"\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8"))
    assert is_encrypted(out / "authority" / "authority.key")


def test_a_passphrase_does_not_apply_to_keys_of_trial_kits(network: Path, tmp_path: Path) -> None:
    run("init", network, "--out", tmp_path / "t", "--trial", secret=SECRET)
    assert is_encrypted(tmp_path / "t" / "authority" / "authority.key")
    assert not is_encrypted(tmp_path / "t" / "north" / "site.key")
    assert Identity.load(read_site(tmp_path / "t" / "north")).revocation_list_number == 1


def test_json_states_whether_the_key_has_a_passphrase(network: Path, tmp_path: Path) -> None:
    assert run_json("init", network, "--out", tmp_path / "with", secret=SECRET)["passphrase"]
    assert not run_json("init", network, "--out", tmp_path / "without")["passphrase"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_keys_encrypted_by_openssl_can_be_read(out: Path) -> None:
    key = out / "authority" / "authority.key"
    before = fingerprint(load_key(key))
    made = key.with_suffix(".new")
    words = ["openssl", "pkcs8", "-topk8", "-in", str(key), "-out", str(made), "-passout", f"pass:{SECRET}"]
    subprocess.run(words, check=True, capture_output=True)
    made.chmod(0o600)
    made.replace(key)
    assert is_encrypted(key)
    assert fingerprint(load_key(key, SECRET.encode())) == before


def test_an_encrypted_key_of_a_site_is_refused(out: Path) -> None:
    joined(out)
    write_key(out / "north" / "site.key", new_key(), b"passphrase")
    with raises(EnrolmentError, reason="passphrase"):
        Identity.load(read_site(out / "north"))


# ------------------------------------------------------------------------------------------------- key for column names


def secret_of(out: Path) -> Path:
    return out / "authority" / "columns.key"


def test_the_key_for_column_names_is_shared_and_installed(out: Path) -> None:
    (out / "north" / "columns.key").unlink()
    shared = run_json("join", "--share-column-key", "--authority", out / "authority")
    assert (shared["column_key"], shared["made"]) == (str(secret_of(out)), False)
    done = run_json("join", out / "north", "--column-key", shared["column_key"])
    assert done == {
        "site": "north",
        "column_key": str(out / "north" / "columns.key"),
        "identifier": shared["identifier"],
        "replaced": False,
    }
    secret = secret_of(out).read_bytes()
    assert (out / "north" / "columns.key").read_bytes() == secret
    for words in (
        ("--share-column-key", "--authority", out / "authority"),
        (out / "south", "--column-key", secret_of(out)),
    ):
        printed = run("join", *words)
        assert shared["identifier"] in printed
        assert secret.decode().strip() not in printed


def test_signing_says_where_the_key_for_column_names_is(out: Path) -> None:
    asked = run_json("join", out / "north")["fingerprint"]
    assert run_json(*at_authority(out), "--fingerprint", asked)["column_key"] == str(secret_of(out))
    assert str(secret_of(out)) in run(
        *at_authority(out, "south"), "--fingerprint", run_json("join", out / "south")["fingerprint"]
    )


def test_a_key_for_column_names_that_others_can_read_is_refused(out: Path) -> None:
    secret_of(out).chmod(0o644)
    assert "chmod 600" in run("join", "--share-column-key", "--authority", out / "authority", code=2)
    assert "chmod 600" in run("join", out / "north", "--column-key", secret_of(out), code=2)


def test_options_for_the_key_for_column_names_stand_alone(out: Path) -> None:
    authority = ("--authority", out / "authority")
    run("join", "--share-column-key", code=2)
    run("join", out / "north", "--share-column-key", *authority, code=2)
    run("join", "--share-column-key", *authority, "--days", 3, code=2)
    run("join", "--share-column-key", "--reissue", *authority, code=2)
    run("join", out / "north", "--column-key", secret_of(out), "--renew", code=2)
    run("join", "--reissue", *authority, "--column-key", secret_of(out), code=2)
    run("join", "--column-key", secret_of(out), code=2)
