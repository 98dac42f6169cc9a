"""Test that a changed, removed, moved or added line of an audit log is found, and who signed it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from deepca.errors import InvalidInput
from deepca.sites.admin.kits import make_kits
from deepca.sites.audit.lines import SIGNATURE_LABEL, chained
from deepca.sites.audit.reader import read_log, read_logs
from deepca.sites.audit.writer import AuditWriter
from deepca.sites.config.site_file import SiteFile, read_site
from deepca.sites.pki.identity import Identity, load_authority
from tests.sites.audit.test_writer import ABOUT, parcel, write
from tests.support.errors import raises

NETWORK = """
name = "{}"
components = 2
topology = "ring"
[[sites]]
name = "north"
[[sites]]
name = "south"
address = "127.0.0.1:7401"
[[sites]]
name = "west"
address = "127.0.0.1:7402"
"""


def kits(folder: Path, network: str = "three") -> dict[str, SiteFile]:
    folder.mkdir(exist_ok=True)
    (folder / "network.toml").write_text(NETWORK.format(network))
    make_kits(folder / "network.toml", folder / "kits", trial=True)
    return {name: read_site(folder / "kits" / name / "site.toml") for name in ("north", "south", "west")}


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SiteFile]:
    return kits(tmp_path_factory.mktemp("sites") / "network")


def signed(folder: Path, signer: SiteFile) -> Path:
    """Write a log of north, signed with the key of a site."""
    writer, identity = AuditWriter(folder, ABOUT), Identity.load(signer)
    for number in range(1, 4):
        writer.journal("south").sent(7, number, parcel(number))
    writer.close(lambda statement: (identity.certificate_der, identity.sign(statement)))
    return writer.path


def test_a_signature_is_checked_with_the_certificate_of_the_authority(
    sites: dict[str, SiteFile], tmp_path: Path
) -> None:
    path, authority = signed(tmp_path, sites["north"]), load_authority(sites["north"])
    assert [one["line"] for one in map(json.loads, path.read_text().splitlines())][-2:] == ["end", "signature"]
    log = read_log(path, authority)
    assert (log.ok, log.complete, log.signed) == (True, True, "verified")
    unchecked = read_log(path)
    assert (unchecked.ok, unchecked.signed) == (True, "not checked")


def test_a_signature_of_another_site_or_another_network_is_wrong(sites: dict[str, SiteFile], tmp_path: Path) -> None:
    authority = load_authority(sites["north"])
    for number, signer in enumerate((sites["south"], kits(tmp_path / "other")["north"])):
        log = read_log(signed(tmp_path / str(number), signer), authority)
        assert (log.ok, log.signed) == (False, "wrong")
        assert log.signature_fault


def test_a_log_that_was_written_anew_has_a_wrong_signature(sites: dict[str, SiteFile], tmp_path: Path) -> None:
    """Whoever changes a line can compute the hashes again, but not sign them."""
    path = signed(tmp_path, sites["north"])
    head, lines = bytes(32), []
    for line in path.read_text().splitlines():
        members = {name: value for name, value in json.loads(line).items() if name != "hash"}
        if members.get("seq") == 2:
            members["digest"] = "0" * 32
        content, head = chained(head, members)
        lines.append(content)
    path.write_bytes(b"".join(lines))
    log = read_log(path)
    assert (log.fault, log.signed, log.ok) == ("", "wrong", False)


def test_the_format_is_that_of_the_documentation(sites: dict[str, SiteFile], tmp_path: Path) -> None:
    """Verify a log with nothing but the standard library and the certificate in it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    path, known = signed(tmp_path, sites["north"]), []
    before = bytes(32)
    for line in path.read_text().splitlines():
        text, _, claimed = line.removesuffix('"}').rpartition(',"hash":"')
        before = hashlib.sha256(before + f"{text}}}".encode()).digest()
        assert before.hex() == claimed
        known.append((json.loads(line), before))
    last, head = known[-1][0], known[-2][1]
    public = x509.load_der_x509_certificate(bytes.fromhex(last["certificate"])).public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    public.verify(bytes.fromhex(last["signature"]), SIGNATURE_LABEL + head, ec.ECDSA(hashes.SHA256()))
    assert SIGNATURE_LABEL == b"deepca.v1 audit"


def _changed(lines: list[bytes]) -> list[bytes]:
    return [*lines[:2], lines[2].replace(b'"seq":2', b'"seq":3'), *lines[3:]]


def _hidden(lines: list[bytes]) -> list[bytes]:
    return [*lines[:2], lines[2].replace(b'"masked":true', b'"masked":false'), *lines[3:]]


TAMPERED: dict[str, tuple[Callable[[list[bytes]], list[bytes]], int]] = {
    "changed": (_changed, 3),
    "another visibility": (_hidden, 3),
    "removed": (lambda lines: [*lines[:2], *lines[3:]], 3),
    "moved": (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], 2),
    "doubled": (lambda lines: [*lines[:3], *lines[2:]], 4),
    "without a hash": (lambda lines: [*lines[:2], lines[2].partition(b',"hash"')[0] + b"}", *lines[3:]], 3),
    "not JSON": (lambda lines: [*lines[:2], lines[2][1:], *lines[3:]], 3),
    "added at the end": (lambda lines: [*lines[:-1], lines[1], b""], 7),
    "started anew": (lambda lines: [*lines[:-1], *lines], 7),
    "text after the end": (lambda lines: [*lines[:-1], b'{"line"'], 7),
    "first line": (lambda lines: [lines[0].replace(b'"private"', b'"open"'), *lines[1:]], 1),
    "empty line": (lambda lines: [*lines[:2], b"", *lines[2:]], 3),
    "hash": (lambda lines: [*lines[:2], lines[2][:-4] + b"00" + lines[2][-2:], *lines[3:]], 3),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_tampering_is_found(what: str, sites: dict[str, SiteFile], tmp_path: Path) -> None:
    path = signed(tmp_path, sites["north"])
    change, line = TAMPERED[what]
    lines = path.read_bytes().split(b"\n")
    assert len(lines) == 7  # start, three messages, end, signature, and nothing after the last newline
    path.write_bytes(b"\n".join(change(lines)))
    log = read_log(path, load_authority(sites["north"]))
    assert not log.ok
    assert log.faulty_line == line
    assert log.fault
    assert len(log.lines) == line - 1


@pytest.mark.parametrize("kept", [1, 3, 4, 5])
def test_a_log_without_its_end_is_unfinished(kept: int, sites: dict[str, SiteFile], tmp_path: Path) -> None:
    path = signed(tmp_path, sites["north"])
    path.write_bytes(b"\n".join([*path.read_bytes().split(b"\n")[:kept], b""]))
    log = read_log(path)
    assert log.ok
    assert log.signed == ("unsigned" if kept == 5 else "unfinished")


def test_totals_must_be_those_of_the_lines(tmp_path: Path) -> None:
    path = write(tmp_path)
    *lines, end = path.read_text().splitlines()
    members = {name: value for name, value in json.loads(end).items() if name != "hash"}
    members["totals"]["sent"]["south"]["data"] = [2, 48]
    content, _ = chained(bytes.fromhex(json.loads(lines[-1])["hash"]), members)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode() + content)
    assert read_log(path).faulty_line == len(lines) + 1


@pytest.mark.parametrize("content", [b"", b"\n", b"a,b\n1,2\n", b'{"line":"start"}\n', b"\xff\xfe\n"])
def test_a_file_that_is_no_log_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "north.jsonl"
    path.write_bytes(content)
    with raises(InvalidInput, file=str(path), line=1):
        read_log(path)


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    members = {**read_log(write(tmp_path)).start, "format": 2}
    del members["hash"]
    path.write_bytes(chained(bytes(32), members)[0])
    with raises(InvalidInput, file=str(path), line=1):
        read_log(path)


def test_missing_files_and_empty_folders_are_refused(tmp_path: Path) -> None:
    with raises(InvalidInput, file=str(tmp_path / "none")):
        read_log(tmp_path / "none")
    with raises(InvalidInput, file=str(tmp_path)):
        read_logs(tmp_path)
