"""Cases that attack enrolment: forged certificate requests, and old, missing or forged revocation lists."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from deepca.sites.pki.authority import Authority
from deepca.sites.pki.certificates import build_request, pem
from deepca.sites.pki.issued import read_issued
from deepca.sites.pki.keys import fingerprint, new_key
from deepca.sites.pki.revocation import RevocationList, load_revocation_list
from studies.faults.faulty_agent import DIFFERS
from studies.faults.fleet import Fleet, Hung, Setup, Verdict
from studies.faults.harness import LIMIT, CaseResult, Scale, expect_codes, run_fleet, summarise

__all__ = ["lists", "requests", "revoked_site"]

_REFUSED = 2  # exit code of a command that refuses its input


@dataclass(frozen=True)
class _Attack:
    """An attack, and how the defence against it failed (empty if it did not)."""

    name: str
    problem: str = ""


def _summarise_attacks(case: str, attacks: list[_Attack], tracebacks: int) -> CaseResult:
    """Summarise the attacks of a case as a row of the report."""
    problems = [f"{one.name}: {one.problem}" for one in attacks if one.problem]
    if tracebacks:
        problems.append(f"{tracebacks} tracebacks")
    right = sum(not one.problem for one in attacks)
    done = ", ".join(one.name for one in attacks)
    figures = f"{right} refused with the cause named, {tracebacks} tracebacks"
    return CaseResult(case, done, len(attacks), 0 if tracebacks else right, 0, 0, figures, tuple(problems))


def _tracebacks(fleet: Fleet) -> int:
    """Count the tracebacks in the output of all agents."""
    return sum(path.read_bytes().count(b"Traceback") for path in fleet.folder.glob("*.out"))


def _authority(fleet: Fleet) -> Authority:
    return Authority.load(fleet.folder / "kits" / "authority")


def _distribute_list(fleet: Fleet, *sites: int) -> int:
    """Copy the authority's current revocation list to these sites and return its number."""
    authority = _authority(fleet)
    for site in sites:
        shutil.copy(authority.folder / "revoked.pem", fleet.kit(site) / "revoked.pem")
    found = authority.revocations()
    assert found is not None
    return found.number


# ------------------------------------------------------------------------------------------------------------- requests


def requests(scale: Scale) -> CaseResult:
    """Ask the authority to sign certificate requests that it must refuse, by ``deepca join --sign``."""
    with Fleet(scale.folder / "requests", Setup(agents=3, separate_interpreters=True, seed=970)) as fleet:
        kits, network = fleet.folder / "kits", fleet.network.name
        issued = len(read_issued(kits / "authority"))
        tracebacks = 0

        def attempt(name: str, *options: str, cause: str, site: str = "s0") -> _Attack:
            nonlocal tracebacks
            path = fleet.folder / "request.csr"
            words = ["join", "--sign", str(path), "--authority", str(kits / "authority"), *options]
            command = [sys.executable, "-m", "deepca", *words]
            ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
            tracebacks += ended.stderr.count("Traceback")
            if ended.returncode != _REFUSED:
                return _Attack(name, f"exit code {ended.returncode}")
            if len(read_issued(kits / "authority")) != issued or (fleet.folder / f"{site}.pem").exists():
                return _Attack(name, "a certificate was issued")
            shown = "".join(ended.stderr.split())  # without the line breaks of the terminal
            return _Attack(name, "" if cause in shown and site in shown else f"cause not named: {ended.stderr}")

        (fleet.folder / "request.csr").write_bytes(pem(build_request("s0", network, asked := new_key())))
        genuine = fingerprint(asked)
        serial = read_issued(kits / "authority")[0].serial
        attacks = [
            attempt("a second certificate for a site", "--fingerprint", genuine, cause=serial),
            attempt("a request whose fingerprint was not compared", cause=genuine),
        ]
        (fleet.folder / "request.csr").write_bytes(pem(build_request("s0", network, swapped := new_key())))
        attacks.append(
            attempt("a swapped request", "--renew", "--fingerprint", genuine, cause=fingerprint(swapped)),
        )
        stranger = build_request("s9", network, stranger_key := new_key())
        (fleet.folder / "request.csr").write_bytes(pem(stranger))
        given = ("--fingerprint", fingerprint(stranger_key))
        attacks.append(attempt("a site outside the network", *given, cause="s9", site="s9"))
    return _summarise_attacks("certificate requests", attacks, tracebacks)


# -------------------------------------------------------------------------------------------------- revocation lists


def lists(scale: Scale) -> CaseResult:
    """Give an agent revocation lists that it must refuse: as a file, or sent by a neighbour."""
    attacks, tracebacks = [], 0
    setup = Setup(agents=3, seed=980)

    def attack(name: str, act: Callable[[Fleet], str]) -> None:
        nonlocal tracebacks
        with Fleet(scale.folder / name.replace(" ", "-"), setup) as fleet:
            try:
                problem = act(fleet)
            except Hung as error:
                problem = str(error)
            tracebacks += _tracebacks(fleet)
        attacks.append(_Attack(name, problem))

    attack("an older list restored", lambda fleet: _check_refusal(fleet, "older", _restore_older))
    attack("a missing list", lambda fleet: _check_refusal(fleet, "missing", _remove))
    attack("an expired list", lambda fleet: _check_refusal(fleet, "expired", _expire))
    attack("a list signed by another authority", lambda fleet: _check_refusal(fleet, "foreign", _sign_by_another))
    attack("a list without a number", lambda fleet: _check_refusal(fleet, "unnumbered", _strip_number))
    attack("a forged list sent by a neighbour", _send_forged_list)
    return _summarise_attacks("revocation lists", attacks, tracebacks)


def _check_refusal(fleet: Fleet, reason: str, damage: Callable[[Fleet, Path], None]) -> str:
    """Check that an agent that has used revocation list 2 refuses to start after ``damage``, for this reason.

    It has to start with the newest list. Return what went wrong, or an empty string.
    """
    before = fleet.folder / "before.pem"
    shutil.copy(fleet.kit(1) / "revoked.pem", before)
    _authority(fleet).reissue()
    _distribute_list(fleet, 1)
    fleet.start(1)
    fleet.wait_until(lambda: bool(fleet.events(1, "started")), LIMIT, "s1 did not start")
    fleet.kill(1)
    damage(fleet, before)
    fleet.start(1)
    fleet.wait(LIMIT, [1])
    ends = fleet.events(1, "end")
    if fleet.processes[1].exitcode != DIFFERS or not ends:
        return f"exit code {fleet.processes[1].exitcode}"
    if ends[-1].get("reason") != reason:
        return f"cause not named: {ends[-1]['text']}"
    # control: the agent does start with the newest list
    _authority(fleet).reissue()
    _distribute_list(fleet, 1)
    began = len(fleet.events(1, "started"))
    fleet.start(1)
    fleet.wait_until(lambda: len(fleet.events(1, "started")) > began, LIMIT, "s1 did not start with the newest list")
    return ""


def _restore_older(fleet: Fleet, before: Path) -> None:
    shutil.copy(before, fleet.kit(1) / "revoked.pem")


def _remove(fleet: Fleet, before: Path) -> None:
    (fleet.kit(1) / "revoked.pem").unlink()


def _expire(fleet: Fleet, before: Path) -> None:
    _authority(fleet).reissue(1, now=datetime.now(UTC) - timedelta(days=3))
    _distribute_list(fleet, 1)


def _sign_by_another(fleet: Fleet, before: Path) -> None:
    (fleet.kit(1) / "revoked.pem").write_bytes(_list_of_another_authority(fleet).pem)


def _strip_number(fleet: Fleet, before: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    authority, now = _authority(fleet), datetime.now(UTC)
    builder = x509.CertificateRevocationListBuilder().issuer_name(authority.certificate.subject)
    made = builder.last_update(now).next_update(now + timedelta(days=3000)).sign(authority.key, hashes.SHA256())
    (fleet.kit(1) / "revoked.pem").write_bytes(pem(made))


def _list_of_another_authority(fleet: Fleet) -> RevocationList:
    """Return a revocation list with a high number, signed by another authority with the same network name."""
    other = Authority.create(fleet.folder / "strangers", fleet.network.name)
    for _ in range(8):
        made = other.reissue()
    return made


def _send_forged_list(fleet: Fleet) -> str:
    """Send s1 a list of another authority, using the genuine kit of s0; return what went wrong."""
    _authority(fleet).reissue(20)
    _distribute_list(fleet, 1)
    fleet.start(1)
    fleet.wait_until(lambda: bool(fleet.events(1, "started")), LIMIT, "s1 did not start")
    fleet.wait_until(lambda: bool(fleet.events(1, "revocations")), LIMIT, "no warning about the expiry of its own list")
    number = _list_number(fleet, 1)
    asyncio.run(_send_list(fleet, _list_of_another_authority(fleet).der))
    fleet.wait_until(lambda: _has_refused_s0(fleet, 1), LIMIT, "the neighbour that sent the list was not named")
    if _list_number(fleet, 1) != number:
        return "the forged list was accepted"
    return "" if fleet.alive(1) else "the agent ended"


def _list_number(fleet: Fleet, site: int) -> int:
    found = load_revocation_list(fleet.kit(site) / "revoked.pem", _authority(fleet).certificate)
    return 0 if found is None else found.number


async def _send_list(fleet: Fleet, der: bytes) -> None:
    """Connect to s1 with the kit of s0 and send a revocation list."""
    from deepca.sites.transport import tls  # isort: skip  # before anything that imports grpc
    import grpc.aio

    from deepca.sites.config.site_file import read_site
    from deepca.sites.pki.identity import Identity
    from deepca.sites.protocol import wire_pb2 as wire
    from deepca.sites.protocol.handshake import Handshake

    credentials = Identity.load_read_only(read_site(fleet.kit(0)))
    options = [("grpc.ssl_target_name_override", "s1"), ("grpc.use_local_subchannel_pool", 1)]
    address = f"127.0.0.1:{fleet.listening[1]}"
    async with grpc.aio.secure_channel(address, tls.channel_credentials(credentials), options=options) as channel:
        call: Any = channel.stream_stream("/deepca.v1.Link/Talk")()
        handshake = Handshake("s0", credentials)
        await call.write(handshake.challenge().SerializeToString())
        proof = handshake.proof(wire.Frame.FromString(await asyncio.wait_for(call.read(), 5.0)))
        await call.write(proof.SerializeToString())
        await asyncio.wait_for(call.read(), 5.0)  # the Proof of s1
        await call.write(wire.Frame(revocations=wire.Revocations(list=der)).SerializeToString())
        while await asyncio.wait_for(call.read(), 10.0) is not grpc.aio.EOF:
            pass


# ------------------------------------------------------------------------------------------------------- a revoked site


def revoked_site(scale: Scale) -> CaseResult:
    """Revoke a site before or during a run and give the new list only to a site that is not its neighbour."""
    verdicts = [_before_a_run(scale, run) for run in range(scale.choose(3, 1))]
    verdicts += [_during_a_run(scale, run) for run in range(scale.choose(3, 1))]
    done = (
        "4 agents in a ring; s0 revoked before or during the run; the new list given only to s2, which is not a "
        "neighbour of s0"
    )
    return summarise(
        "revoked site", done, verdicts, "s0 named and refused by s1 and s3, which received the list from s2"
    )


def _setup(run: int) -> Setup:
    return Setup(agents=4, on_loss="shrink", patience=2.0, eigenvalue_ratio=0.8, seed=990 + run)


def _before_a_run(scale: Scale, run: int) -> Verdict:
    """Revoke s0 before its agent starts."""

    def act(fleet: Fleet) -> None:
        _authority(fleet).revoke("s0")
        number = _distribute_list(fleet, 2)
        fleet.start(1, 2, 3)
        fleet.wait_until(
            lambda: _list_number(fleet, 1) == _list_number(fleet, 3) == number, LIMIT, "the list was not passed on"
        )
        fleet.start(0)
        fleet.wait_until(lambda: _has_refused_s0(fleet, 1) and _has_refused_s0(fleet, 3), LIMIT, "s0 was not refused")
        fleet.kill(0, 1, 2, 3)  # the others would wait for s0, since a site that never joined is not left out

    def expect(fleet: Fleet, verdict: Verdict) -> None:
        _expect_s0_refused(fleet, verdict)
        if verdict.results:
            verdict.problems.append("a run began without s0")

    return run_fleet(scale.folder / f"revoked-{run}", _setup(run), act, expect)


def _during_a_run(scale: Scale, run: int) -> Verdict:
    """Revoke s0 while its agent takes part in the run."""

    def act(fleet: Fleet) -> None:
        fleet.start()
        fleet.wait_until_running()
        _authority(fleet).revoke("s0")
        _distribute_list(fleet, 2)
        fleet.wait(2 * LIMIT, [1, 2, 3])
        fleet.kill(0)

    def expect(fleet: Fleet, verdict: Verdict) -> None:
        _expect_s0_refused(fleet, verdict)
        expect_codes(fleet, verdict, dict.fromkeys((1, 2, 3), 0))
        if verdict.members != ("s1", "s2", "s3"):
            verdict.problems.append(f"result computed from {verdict.members}")

    return run_fleet(scale.folder / f"revoked-live-{run}", _setup(run), act, expect)


def _has_refused_s0(fleet: Fleet, site: int) -> bool:
    """Return whether a site has logged that it refused s0."""
    return any(one.get("peer") == "s0" for one in fleet.events(site, "refused"))


def _expect_s0_refused(fleet: Fleet, verdict: Verdict) -> None:
    for site in (1, 3):
        if not _has_refused_s0(fleet, site):
            verdict.problems.append(f"s{site} did not refuse s0")
    if (fleet.kit(0) / "model.npz").exists():
        verdict.problems.append("the revoked site has a result")
    if tracebacks := _tracebacks(fleet):
        verdict.problems.append(f"{tracebacks} tracebacks")
