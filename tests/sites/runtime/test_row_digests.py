"""Test digests of a site's rows, reports of failed agents, and signatures of claims."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography")

from deepca.errors import BadArray, DisputedResult, OldResult
from deepca.sites.admin.kits import make_kits
from deepca.sites.config.site_file import SiteFile, read_site
from deepca.sites.pki.identity import Identity
from deepca.sites.protocol.claims import Endorsement, ResultClaim
from deepca.sites.protocol.signatures import CertificateSignatures
from deepca.sites.runtime.failure_report import report_of, write_report
from deepca.sites.runtime.row_digests import RowBoundPromiseStore, RowDigests, next_name
from tests.support.errors import raises

NAMES = ("north", "south", "west")
RUN, OTHER = b"r" * 32, b"o" * 32


@pytest.fixture
def kits(tmp_path: Path) -> Path:
    lines = ['name = "trial"', "components = 2", 'topology = "ring"']
    for j, name in enumerate(NAMES):
        lines += ["[[sites]]", f'name = "{name}"', f'address = "127.0.0.1:{7400 + j}"']
    (tmp_path / "network.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    make_kits(tmp_path / "network.toml", tmp_path / "kits", trial=True)
    return tmp_path / "kits"


def _site(kits: Path, name: str = "north", rows: Any = None) -> SiteFile:
    data = kits / name / "rows.npy"
    if rows is not None:
        np.save(data, rows)
    site = read_site(kits / name / "site.toml")
    return replace(site, data=data)


# ---------------------------------------------------------------------------------------------------------- old results


def test_a_result_becomes_stale_if_a_value_changes_but_not_if_the_file_is_touched(kits: Path) -> None:
    values = np.arange(12.0).reshape(4, 3)
    site = _site(kits, rows=values)
    first = RowDigests(site)
    first.check(RUN)
    first.record(RUN)
    os.utime(site.data, ns=(1, 1))
    RowDigests(site).check(RUN)
    np.save(site.data, values)  # a new file with the same content
    RowDigests(site).check(RUN)
    stat = site.data.stat()
    np.save(site.data, np.nextafter(values, np.inf))
    os.utime(site.data, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # the modification time does not reveal it
    with raises(OldResult, run="1", another="2", known=True):
        RowDigests(site).check(RUN)
    RowDigests(site).check(OTHER)
    np.save(site.data, values)
    RowDigests(site).check(RUN)


def test_a_site_that_restarts_after_signing_cannot_continue_with_other_rows(kits: Path) -> None:
    site = _site(kits, rows=np.ones((3, 2)))
    promise_store = RowBoundPromiseStore("result", site, RowDigests(site), RUN)
    np.save(site.data, np.zeros((3, 2)))
    RowDigests(site).check(RUN)  # nothing has been signed yet
    np.save(site.data, np.ones((3, 2)))
    promise_store.store_result(b"model", ResultClaim(1, b"p" * 32, (0, 1, 2), b"m" * 32), ())
    RowDigests(site).check(RUN)
    np.save(site.data, np.zeros((3, 2)))
    with raises(OldResult, known=True):
        RowDigests(site).check(RUN)


@pytest.mark.parametrize("content", [None, "", '{"salt": 3}'])
def test_a_result_without_the_digest_of_its_rows_is_not_used(kits: Path, content: str | None) -> None:
    """It is not known whether such a result belongs to the current rows."""
    site = _site(kits, rows=np.ones((3, 2)))
    content_of, claim = b"model", ResultClaim(1, b"p" * 32, (0, 1, 2), hashlib.sha256(b"model").digest())
    signed = Endorsement(0, claim, b"s")

    def promise_store() -> RowBoundPromiseStore:
        return RowBoundPromiseStore("result", site, RowDigests(site), RUN)

    promise_store().store_result(content_of, claim, (signed,), decided=True)
    assert promise_store().load().content == content_of
    if content is None:
        (site.state / "rows.json").unlink()
    else:
        (site.state / "rows.json").write_text(content, encoding="utf-8")
    with raises(OldResult, known=False, another="2"):
        promise_store()


def test_the_digest_is_salted_and_stays_at_the_site(kits: Path) -> None:
    values = np.ones((3, 2))
    one, two = RowDigests(_site(kits, "north", values)), RowDigests(_site(kits, "south", values))
    assert one.digest != two.digest
    assert RowDigests(_site(kits, "north")).digest == one.digest
    assert (kits / "north" / "state" / "rows.json").stat().st_mode & 0o077 == 0


def test_an_unchanged_file_is_not_read_again(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = _site(kits, rows=np.ones((3, 2)))
    known = RowDigests(site).digest
    monkeypatch.setattr("deepca.sites.runtime.row_digests.hashlib", None)
    assert RowDigests(site).digest == known


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"salt": 3}', '{"salt": "zz", "seen": 1, "digest": "", "ended": {}}']
)
def test_a_damaged_file_is_logged_and_replaced(kits: Path, content: str, caplog: pytest.LogCaptureFixture) -> None:
    site = _site(kits, rows=np.ones((3, 2)))
    RowDigests(site)
    (site.state / "rows.json").write_text(content, encoding="utf-8")
    assert len(RowDigests(site).digest) == 32
    (record,) = caplog.records
    assert (vars(record)["site"], vars(record)["event"]) == ("north", "checkpoint")


@pytest.mark.parametrize(("name", "following"), [("1", "2"), ("9", "10"), ("study", "study-2"), ("study-2", "study-3")])
def test_next_name_counts_up(name: str, following: str) -> None:
    assert next_name(name) == following


# -------------------------------------------------------------------------------------------------------------- reports


def _fail() -> None:
    try:
        os.environ["4711.25 /HOME/SOMEBODY/SITE.KEY"]
    except KeyError as error:
        raise RuntimeError("row 3 is 4711.25") from error


def test_a_report_contains_no_messages_that_may_quote_values(kits: Path) -> None:
    site = _site(kits, rows=np.ones((3, 2)))
    with pytest.raises(RuntimeError) as caught:
        _fail()
    path = write_report(site, caught.value)
    assert path is not None
    text = path.read_text(encoding="utf-8")
    assert "4711" not in text
    assert "SITE.KEY" not in text
    assert str(kits) not in text
    report = json.loads(text)
    assert [one["type"] for one in report["errors"]] == ["RuntimeError", "KeyError"]
    assert report["errors"][0]["where"][-1].endswith("_fail")


def test_a_report_contains_the_facts_of_faults_of_other_sites(kits: Path) -> None:
    site = _site(kits)
    entry = report_of(site, BadArray("south", "NaN in its row counts", phase="mean", iteration=0))["errors"][0]
    facts = {"site": "south", "what": "NaN in its row counts", "phase": "mean", "iteration": 0}
    assert {name: entry[name] for name in facts} == facts
    assert report_of(site, DisputedResult("west", "mean", by="south"))["errors"][0]["by"] == "south"


# ----------------------------------------------------------------------------------------------------------- signatures


def _signatures(kits: Path, name: str, agreement: bytes = b"a" * 32, run: bytes = RUN) -> CertificateSignatures:
    credentials = Identity.load(read_site(kits / name / "site.toml"))
    return CertificateSignatures(lambda: credentials, NAMES, run, agreement)


def test_an_endorsement_is_valid_for_its_site_run_and_claim_only(kits: Path) -> None:
    claim = ResultClaim(3, b"p" * 32, (0, 1, 2), b"o" * 32)
    south, north = _signatures(kits, "south"), _signatures(kits, "north")
    signed = south.endorse(1, claim)
    assert north.endorsement_problem(signed) == ""
    assert _signatures(kits, "north", agreement=b"b" * 32).endorsement_problem(
        signed
    )  # another run name, or other settings
    forged = [
        replace(signed, site=2),
        replace(signed, signature=b"x" + signed.signature[1:]),
        replace(signed, certificate=b""),
        replace(signed, claim=replace(claim, epoch=4)),
        replace(signed, claim=replace(claim, plan=b"q" * 32)),
        replace(signed, claim=replace(claim, members=(0, 1))),
        replace(signed, claim=replace(claim, outcome=b"q" * 32)),
        south.endorse(0, claim),  # in the name of another site
    ]
    assert all(north.endorsement_problem(one) for one in forged)


def test_the_signature_of_a_record_is_not_valid_as_an_endorsement(kits: Path) -> None:
    """The same key signs both, so the two kinds of signature must not be interchangeable."""
    south, north = _signatures(kits, "south", agreement=RUN), _signatures(kits, "north", agreement=RUN)
    bare = south.endorse(1, ResultClaim(3, b"p" * 32, (0, 1, 2), b"o" * 32))
    signed_record = south.sign_record(bare.statement)
    assert north.record_problem(1, signed_record) == ""
    assert north.endorsement_problem(replace(bare, signature=signed_record.signature))
