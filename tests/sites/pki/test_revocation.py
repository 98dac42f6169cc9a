"""Test that revocation lists have a number and expire, are passed on, and are never replaced by older ones."""

from __future__ import annotations

import json
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("grpc")
pytest.importorskip("cryptography")

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from deepca._util.logs import EventHandler, attached
from deepca.errors import CertificateError, ParameterError, Refused, RevocationListError
from deepca.sites.admin.findings import AUTHORITY_OPERATOR, Finding
from deepca.sites.admin.site_checks import check_certificates
from deepca.sites.config.network_file import NetworkFile, SiteEntry, write_network
from deepca.sites.config.site_file import SiteFile, read_site, write_site
from deepca.sites.pki.authority import Authority
from deepca.sites.pki.certificates import build_request, pem
from deepca.sites.pki.enrolment import (
    examine_request,
    install,
    install_revocation_list,
    request_certificate,
    sign_request,
)
from deepca.sites.pki.identity import Identity
from deepca.sites.pki.keys import new_key, write_key
from deepca.sites.pki.revocation import (
    MAX_REVOCATION_LIST_BYTES,
    SeenRevocationLists,
    load_revocation_list,
    parse_revocation_list,
)
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.transport.streams import Peer, Streams
from tests.sites.transport.test_streams import FAST, Recorder
from tests.support.errors import raises

NET = "hospitals"
NOW = datetime.now(UTC)
SITES = ("north", "south", "west")
DAY = timedelta(days=1)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "authority", NET)


def site(tmp_path: Path, authority: Authority, name: str = "north") -> SiteFile:
    """Create a site with all files except a revocation list."""
    folder = tmp_path / name
    entries = tuple(SiteEntry(one, f"127.0.0.1:{j + 1}") for j, one in enumerate(SITES))
    write_network(folder / "network.toml", NetworkFile(NET, entries, 2, topology_name="complete"))
    write_site(folder / "site.toml", name, "rows.csv")
    (folder / "authority.pem").write_bytes(pem(authority.certificate))
    key = new_key()
    (folder / "site.pem").write_bytes(pem(authority.sign(build_request(name, NET, key))))
    write_key(folder / "site.key", key)
    return read_site(folder)


def hand_out(authority: Authority, *sites: SiteFile) -> int:
    """Copy the authority's list to these sites, and return its number."""
    for one in sites:
        one.revoked.write_bytes((authority.folder / "revoked.pem").read_bytes())
    found = authority.revocations()
    assert found is not None
    return found.number


def unnumbered(authority: Authority, *serials: int, number: int | None = None, critical: bool = False) -> bytes:
    """Return a list without a number in PEM, as the authority no longer creates them."""
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.certificate.subject)
        .last_update(NOW)
        .next_update(NOW + 3000 * DAY)
    )
    if number is not None:
        builder = builder.add_extension(x509.CRLNumber(number), critical=critical)
    for serial in serials:
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(NOW)
        builder = builder.add_revoked_certificate(entry.build())
    return pem(builder.sign(authority.key, hashes.SHA256()))


def reason_of(action: Callable[[], object]) -> str:
    """Return the reason of the RevocationListError raised by an action."""
    with pytest.raises(RevocationListError) as error:
        action()
    return error.value.reason


# -------------------------------------------------------------------------------------------------------- the authority


def test_numbers_increase_even_if_files_of_the_authority_are_lost(authority: Authority) -> None:
    numbers = [authority.reissue().number]
    authority.sign(build_request("north", NET, new_key()))
    authority.revoke("north")
    numbers.append(hand_out(authority))
    (authority.folder / "revoked.pem").unlink()
    numbers.append(authority.reissue().number)
    state = authority.folder / "issued.json"
    state.write_text(json.dumps({"issued": json.loads(state.read_text())["issued"]}))  # as earlier versions wrote it
    numbers.append(Authority.load(authority.folder).reissue().number)
    assert numbers == sorted(set(numbers))
    assert numbers[0] == 2  # the first came with the authority


def test_a_list_is_valid_as_long_as_requested_but_not_longer_than_its_authority(authority: Authority) -> None:
    assert timedelta(days=9) < authority.reissue(10).ends - NOW < timedelta(days=11)
    assert authority.reissue(10**6).ends == authority.certificate.not_valid_after_utc
    with raises(ParameterError, parameter="days", value=0):
        authority.reissue(0)


def test_a_list_without_a_number_is_migrated_with_all_its_entries(authority: Authority) -> None:
    """Entries that are missing from issued.json are kept as well."""
    leaf, other, good = (authority.sign(build_request("north", NET, new_key())) for _ in range(3))
    authority.revoke(f"{leaf.serial_number:x}")
    (authority.folder / "revoked.pem").write_bytes(unnumbered(authority, leaf.serial_number, other.serial_number))
    assert authority.revocations() is None
    found = authority.up_to_date_revocation_list()
    assert found.number >= 1
    assert [found.revokes(one) for one in (leaf, other, good)] == [True, True, False]
    assert authority.up_to_date_revocation_list().number == found.number


def test_a_list_is_reissued_with_a_certificate_after_half_of_its_time(authority: Authority) -> None:
    first = authority.up_to_date_revocation_list()
    assert authority.up_to_date_revocation_list(now=NOW + 180 * DAY).number == first.number
    assert authority.up_to_date_revocation_list(now=NOW + 190 * DAY).number > first.number


# -------------------------------------------------------------------------------------------------------------- a site


def test_a_site_that_never_had_a_list_does_not_need_one(tmp_path: Path, authority: Authority) -> None:
    assert Identity.load(site(tmp_path, authority)).revocation_list_number == 0


def test_once_a_list_was_seen_a_missing_or_older_one_is_refused(tmp_path: Path, authority: Authority) -> None:
    north = site(tmp_path, authority)
    hand_out(authority, north)
    older = north.revoked.read_bytes()
    authority.reissue()
    number = hand_out(authority, north)
    Identity.load(north)
    north.revoked.write_bytes(older)
    with raises(RevocationListError, reason="older", number=number - 1, seen=number):
        Identity.load(north)
    north.revoked.unlink()
    with raises(RevocationListError, reason="missing", seen=number, path=str(north.revoked)):
        Identity.load(north)
    hand_out(authority, north)
    Identity.load(north)


def test_lists_of_every_authority_are_counted_separately(tmp_path: Path, authority: Authority) -> None:
    north = site(tmp_path, authority)
    for _ in range(3):
        authority.reissue()
    hand_out(authority, north)
    Identity.load(north)
    other = Authority.create(tmp_path / "other", NET)
    again = site(tmp_path, other)
    hand_out(other, again)
    assert Identity.load(again).revocation_list_number == 1
    assert SeenRevocationLists.of(north, authority.certificate).number() == 4


def test_an_expired_list_is_refused(tmp_path: Path, authority: Authority) -> None:
    north, south = site(tmp_path, authority), site(tmp_path, authority, "south")
    authority.reissue(1, now=NOW - 2 * DAY)
    hand_out(authority, north)
    assert reason_of(lambda: Identity.load(north)) == "expired"
    assert reason_of(lambda: install_revocation_list(north.path, authority.folder / "revoked.pem")) == "expired"
    authority.reissue(20)
    hand_out(authority, north)
    me, other = Identity.load(north), Identity.load(south)
    me.check_peer(other.certificate_der, "south")
    assert me.revocations is not None
    me = replace(me, revocations=replace(me.revocations, ends=NOW - DAY))
    with raises(Refused, reason="list expired"):  # while the agent runs
        me.check_peer(other.certificate_der, "south")


def test_unsupported_lists_are_refused_with_the_reason(tmp_path: Path, authority: Authority) -> None:
    north = site(tmp_path, authority)
    north.revoked.write_bytes(unnumbered(authority))
    assert reason_of(lambda: Identity.load(north)) == "unnumbered"
    north.revoked.write_bytes(unnumbered(authority, number=5, critical=True))
    assert reason_of(lambda: Identity.load(north)) == "unreadable"
    north.revoked.write_bytes(unnumbered(authority, number=1 << 80))
    assert reason_of(lambda: Identity.load(north)) == "unreadable"
    north.revoked.write_bytes((Authority.create(tmp_path / "x", NET).folder / "revoked.pem").read_bytes())
    assert reason_of(lambda: Identity.load(north)) == "foreign"
    assert SeenRevocationLists.of(north, authority.certificate).number() == 0


def test_a_damaged_record_of_seen_lists_is_refused(tmp_path: Path, authority: Authority) -> None:
    north = site(tmp_path, authority)
    hand_out(authority, north)
    Identity.load(north)
    for content in ("", "[]", "{", '{"x": "y"}', "7"):
        (north.state / "revocations.json").write_text(content)
        assert reason_of(lambda: Identity.load(north)) == "memory"


def test_a_list_that_cannot_be_recorded_is_logged(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    north = site(tmp_path, authority)
    hand_out(authority, north)
    north.state.write_text("a file, not a folder")
    assert Identity.load(north).revocation_list_number == 1
    (record,) = caplog.records
    assert (vars(record)["site"], vars(record)["event"]) == ("north", "revocations")


def test_loading_read_only_writes_nothing(tmp_path: Path, authority: Authority) -> None:
    north = site(tmp_path, authority)
    hand_out(authority, north)
    me = Identity.load_read_only(north)
    assert not north.state.exists()
    newer = authority.reissue()
    before = north.revoked.read_bytes()
    assert me.adopt(newer.der).revocation_list_number == newer.number
    assert north.revoked.read_bytes() == before
    assert not north.state.exists()


# --------------------------------------------------------------------------------------------------------------- join


def test_a_signed_certificate_comes_with_the_newest_list(tmp_path: Path, authority: Authority) -> None:
    """So a kit whose list has no number is migrated when its site joins or renews."""
    north = site(tmp_path, authority)
    north.revoked.write_bytes(unnumbered(authority))
    (authority.folder / "revoked.pem").write_bytes(unnumbered(authority))
    assert reason_of(lambda: Identity.load(north)) == "unnumbered"
    asked = request_certificate(north.path, renew=True)
    done = sign_request(asked.request, authority.folder, expected=asked.fingerprint, renew=True)
    install(north.path, done.certificate)
    assert Identity.load(north).revocation_list_number == done.revocation_list.number > 0
    assert x509.load_pem_x509_certificates(north.certificate.read_bytes())
    assert b"CRL" not in north.certificate.read_bytes()


def test_an_older_list_that_comes_with_a_certificate_does_not_replace_a_newer_one(
    tmp_path: Path, authority: Authority
) -> None:
    north = site(tmp_path, authority)
    asked = request_certificate(north.path, renew=True)
    done = sign_request(asked.request, authority.folder, expected=asked.fingerprint, renew=True)
    authority.reissue()
    number = hand_out(authority, north)
    install(north.path, done.certificate)
    assert Identity.load(north).revocation_list_number == number > done.revocation_list.number


def test_a_list_can_be_installed_on_its_own(tmp_path: Path, authority: Authority) -> None:
    north, newest = site(tmp_path, authority), authority.folder / "revoked.pem"
    older = tmp_path / "older.pem"
    older.write_bytes(newest.read_bytes())
    number = authority.reissue().number
    north.revoked.write_bytes(unnumbered(authority))
    done = install_revocation_list(north.path, newest)
    assert (done.revocation_list.number, done.replaced) == (number, True)
    assert Identity.load(north).revocation_list_number == number
    assert reason_of(lambda: install_revocation_list(north.path, older)) == "older"
    north.revoked.unlink()
    assert reason_of(lambda: install_revocation_list(north.path, older)) == "older"
    assert not install_revocation_list(north.path, newest).replaced
    foreign = Authority.create(tmp_path / "x", NET).folder / "revoked.pem"
    assert reason_of(lambda: install_revocation_list(north.path, foreign)) == "foreign"


def test_a_certificate_that_the_list_with_it_revokes_is_not_installed(tmp_path: Path, authority: Authority) -> None:
    north = site(tmp_path, authority)
    asked = request_certificate(north.path, renew=True)
    done = sign_request(asked.request, authority.folder, expected=asked.fingerprint, renew=True)
    authority.revoke(done.serial)
    newest = authority.revocations()
    assert newest is not None
    leaf = x509.load_pem_x509_certificates(done.certificate.read_bytes())[0]
    done.certificate.write_bytes(pem(leaf) + newest.pem)
    before = north.certificate.read_bytes()
    with raises(CertificateError, reason="revoked"):
        install(north.path, done.certificate)
    assert north.certificate.read_bytes() == before


def test_revoked_or_expired_certificates_do_not_count_as_valid(tmp_path: Path, authority: Authority) -> None:
    north = site(tmp_path, authority)
    asked = request_certificate(north.path, renew=True)
    assert len(examine_request(asked.request, authority.folder).valid) == 1
    authority.revoke("north")
    authority.sign(build_request("north", NET, new_key()), 1, now=NOW - 9 * DAY)
    assert examine_request(asked.request, authority.folder).valid == ()


# -------------------------------------------------------------------------------------------------------------- doctor


def finding(of: SiteFile) -> Finding:
    return next(one for one, _ in check_certificates(of) if one.check == "revocation list")


def test_the_doctor_reports_on_revocation_lists(tmp_path: Path, authority: Authority) -> None:
    north = site(tmp_path, authority)
    assert finding(north).verdict == "ok"
    hand_out(authority, north)
    assert (finding(north).verdict, finding(north).who) == ("ok", "")
    authority.reissue(31)
    hand_out(authority, north)
    assert finding(north).verdict == "ok"
    authority.reissue(29)
    hand_out(authority, north)
    assert (finding(north).verdict, finding(north).who) == ("warning", AUTHORITY_OPERATOR)
    Identity.load(north)
    north.revoked.unlink()
    assert finding(north).verdict == "wrong"
    authority.reissue(1, now=NOW - 3 * DAY)
    hand_out(authority, north)
    assert finding(north).verdict == "wrong"
    assert AUTHORITY_OPERATOR in finding(north).who


# ----------------------------------------------------------------------------------------------------------- passed on


def test_a_newer_list_is_adopted_and_kept(tmp_path: Path, authority: Authority) -> None:
    north, south = site(tmp_path, authority), site(tmp_path, authority, "south")
    hand_out(authority, north)
    me, other = Identity.load(north), Identity.load(south)
    assert me.adopt(parse_revocation_list(north.revoked.read_bytes(), authority.certificate, north.revoked).der) is me
    authority.revoke("south")
    newest = authority.revocations()
    assert newest is not None
    after = me.adopt(newest.der)
    with raises(Refused, reason="revoked"):
        after.check_peer(other.certificate_der, "south")
    assert not after.changed()
    kept = load_revocation_list(north.revoked, authority.certificate)
    assert kept is not None
    assert kept.number == newest.number == SeenRevocationLists.of(north, authority.certificate).number()
    expired = authority.reissue(1, now=NOW - 3 * DAY)
    assert after.adopt(expired.der) is after


def test_a_list_that_can_be_neither_written_nor_recorded_is_in_force_while_the_agent_runs(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    north, south = site(tmp_path, authority), site(tmp_path, authority, "south")
    hand_out(authority, north)
    north.state.write_text("a file, not a folder")
    me, other = Identity.load(north), Identity.load(south)
    authority.revoke("south")
    newest = authority.revocations()
    assert newest is not None

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("deepca.sites.pki.identity.write_atomic", full)
        after = me.adopt(newest.der)
    assert [vars(record)["site"] for record in caplog.records] == ["north"] * 3
    north.certificate.touch()
    assert after.changed()
    again = after.reload()
    assert again.revocation_list_number == newest.number
    with raises(Refused, reason="revoked"):
        again.check_peer(other.certificate_der, "south")


def test_a_list_that_the_authority_did_not_sign_is_not_adopted(tmp_path: Path, authority: Authority) -> None:
    north = site(tmp_path, authority)
    hand_out(authority, north)
    me = Identity.load(north)
    other = Authority.create(tmp_path / "x", NET)
    foreign, genuine = other.reissue(), authority.reissue()
    rng = random.Random(3)
    bad = [foreign.der, b"x", genuine.pem, genuine.der[:-1], bytes(MAX_REVOCATION_LIST_BYTES + 1)]
    for _ in range(50):
        broken = bytearray(genuine.der)
        broken[rng.randrange(len(broken) // 2)] ^= 1 << rng.randrange(8)  # in the part that is signed
        bad.append(bytes(broken))
    before = north.revoked.read_bytes()
    for content in bad:
        with raises(Refused, reason="list"):
            me.adopt(content)
    assert north.revoked.read_bytes() == before
    assert me.adopt(genuine.der).revocation_list_number == genuine.number


def test_a_site_whose_own_certificate_is_revoked_cannot_start_again(tmp_path: Path, authority: Authority) -> None:
    north = site(tmp_path, authority)
    me = Identity.load(north)
    authority.revoke("north")
    newest = authority.revocations()
    assert newest is not None
    me.adopt(newest.der)
    with raises(CertificateError, reason="revoked"):
        Identity.load(north)


@dataclass
class Side:
    """The streams of one site; ``notices`` are the log lines about revocation lists."""

    streams: Streams
    heard: Recorder
    port: int
    notices: list[str] = field(default_factory=list)

    @property
    def number(self) -> int:
        """Number of the list in force."""
        credentials = self.streams.credentials
        return 0 if credentials is None else credentials.revocation_list_number


@contextmanager
def up(name: str, mine: Identity, others: dict[str, int | None]) -> Iterator[Side]:
    """Start the streams of a site to others: it dials those with a port, and the rest dial it."""
    heard, notices = Recorder(), list[str]()
    peers = [
        Peer(SITES.index(one), one, f"127.0.0.1:{port}" if port else None, dial=port is not None)
        for one, port in others.items()
    ]
    listen = "127.0.0.1:0" if any(not peer.dial for peer in peers) else None
    me = Peer(SITES.index(name), name, None, dial=False)
    streams = Streams(heard, me, peers, listen, mine, timeouts=FAST)
    with attached(EventHandler(lambda site, event, text, facts: notices.append(text), name)):
        port = streams.start()
        try:
            yield Side(streams, heard, port, notices)
        finally:
            streams.stop()


def test_neighbours_exchange_the_newer_list_when_they_connect(tmp_path: Path, authority: Authority) -> None:
    """The list passes in both directions: from the dialling side and to it."""
    north, south, west = (site(tmp_path, authority, name) for name in SITES)
    hand_out(authority, north)
    me = Identity.load(north)
    authority.reissue()
    number = hand_out(authority, south)
    with up("north", me, {"south": None, "west": None}) as first:
        with up("south", Identity.load(south), {"north": first.port}) as second:
            second.heard.wait_for("opened")
            first.heard.wait_for("opened")
            assert first.number == second.number == number
        with up("west", Identity.load(west), {"north": first.port}) as third:
            third.heard.wait_for("opened")
            assert third.number == number
    assert len(first.notices) == len(third.notices) == 1
    for one in (north, west):
        assert Identity.load(one).revocation_list_number == number


@pytest.mark.parametrize("dials", [False, True])
def test_an_agent_whose_list_has_expired_receives_the_next_one_and_connects(
    tmp_path: Path, authority: Authority, dials: bool
) -> None:
    north, south = site(tmp_path, authority), site(tmp_path, authority, "south")
    hand_out(authority, north, south)
    before, other = Identity.load(north), Identity.load(south)
    assert before.revocations is not None
    over = replace(before, revocations=replace(before.revocations, ends=NOW - DAY))
    with raises(Refused, reason="list expired"):
        over.check_peer(other.certificate_der, "south")
    authority.reissue()
    number = hand_out(authority, south)
    names, mine = ("south", "north") if dials else ("north", "south"), {"north": over, "south": Identity.load(south)}
    with (
        up(names[0], mine[names[0]], {names[1]: None}) as first,
        up(names[1], mine[names[1]], {names[0]: first.port}) as second,
    ):
        first.heard.wait_for("opened")
        second.heard.wait_for("opened")
        assert first.number == second.number == number


def test_an_agent_whose_list_expires_closes_all_streams(tmp_path: Path, authority: Authority) -> None:
    north, south = site(tmp_path, authority), site(tmp_path, authority, "south")
    number = hand_out(authority, north, south)
    me = Identity.load(north)
    assert me.revocations is not None
    ending = replace(me, revocations=replace(me.revocations, ends=datetime.now(UTC) + timedelta(seconds=3)))
    with (
        up("north", ending, {"south": None}) as first,
        up("south", Identity.load(south), {"north": first.port}) as second,
    ):
        first.heard.wait_for("opened")
        first.heard.wait_for("closed")
        first.heard.wait_for("refused")
        authority.reissue()
        assert hand_out(authority, north) == number + 1  # the next list restores the connection
        first.heard.wait_for("opened", 2)
        _until(lambda: second.number == number + 1)


@pytest.mark.parametrize("how", ["older", "missing"])
def test_a_running_agent_keeps_the_newest_list_whatever_replaces_its_file(
    tmp_path: Path, authority: Authority, how: str
) -> None:
    north, south = site(tmp_path, authority), site(tmp_path, authority, "south")
    older = (authority.folder / "revoked.pem").read_bytes()
    other = Identity.load(south)
    authority.revoke("south")
    number = hand_out(authority, north)
    with up("north", Identity.load(north), {"south": None}) as first:
        if how == "older":
            north.revoked.write_bytes(older)
        else:
            north.revoked.unlink()
        first.heard.wait_for("refused")
        assert first.number == number
        with up("south", other, {"north": first.port}) as second:
            second.heard.wait_for("refused")
            assert second.heard.count("opened") == 0


def test_a_revoked_site_is_refused_by_a_site_that_received_the_list_from_another(
    tmp_path: Path, authority: Authority
) -> None:
    """West is revoked, and only south was given the list."""
    north, south, west = (site(tmp_path, authority, name) for name in SITES)
    hand_out(authority, north, west)
    authority.revoke("west")
    identities = [Identity.load(one) for one in (north, west)]
    hand_out(authority, south)
    with (
        up("north", identities[0], {"south": None, "west": None}) as first,
        up("south", Identity.load(south), {"north": first.port}) as second,
    ):
        second.heard.wait_for("opened")
        with up("west", identities[1], {"north": first.port}) as third:
            third.heard.wait_for("refused")
            first.heard.wait(lambda: ("refused", 2) in {one[:2] for one in first.heard.events})
            assert third.heard.count("opened") == 0


def test_a_revoked_site_loses_its_live_streams_as_the_list_spreads(tmp_path: Path, authority: Authority) -> None:
    north, south, west = (site(tmp_path, authority, name) for name in SITES)
    hand_out(authority, north, south, west)
    mine = [Identity.load(one) for one in (north, south, west)]
    with (
        up("north", mine[0], {"south": None, "west": None}) as first,
        up("south", mine[1], {"north": first.port}) as second,
        up("west", mine[2], {"north": first.port}) as third,
    ):
        first.heard.wait_for("opened", 2)
        second.heard.wait_for("opened")
        third.heard.wait_for("opened")
        authority.revoke("west")
        number = hand_out(authority, south)  # no other site is given it
        first.heard.wait(lambda: ("closed", 2) in {one[:2] for one in first.heard.events})
        assert first.number == second.number == number
        assert ("closed", 1) not in {one[:2] for one in first.heard.events}  # south's stream stays open


def test_a_forged_list_closes_the_stream_and_changes_nothing(tmp_path: Path, authority: Authority) -> None:
    north, south = site(tmp_path, authority), site(tmp_path, authority, "south")
    other = Authority.create(tmp_path / "x", NET)
    for _ in range(5):
        other.reissue()
    forged = other.reissue().der
    with (
        up("north", Identity.load(north), {"south": None}) as first,
        up("south", Identity.load(south), {"north": first.port}) as second,
    ):
        second.heard.wait_for("opened")
        second.heard.out[0] = deque([wire.Frame(revocations=wire.Revocations(list=forged))])
        second.streams.wake(0)
        first.heard.wait_for("closed")
        first.heard.wait_for("refused")
        assert first.number == 0


def test_a_running_agent_warns_that_its_list_will_expire(tmp_path: Path, authority: Authority) -> None:
    north = site(tmp_path, authority)
    authority.reissue(29)
    hand_out(authority, north)
    with up("north", Identity.load(north), {"south": None}) as side:
        _until(lambda: bool(side.notices))
    assert len(side.notices) == 1
    authority.reissue(31)
    hand_out(authority, north)
    assert Identity.load(north).warning() == ""


def _until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
