"""Kill, freeze, disconnect and attack real processes: a selection of the cases of ``make faults``."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("grpc")
pytest.importorskip("cryptography")
pytest.importorskip("sklearn")

from deepca.sites.audit.comparison import LogAgreement, compare
from deepca.sites.audit.reader import check_restarts, read_log, read_logs
from deepca.sites.config.site_file import read_site
from deepca.sites.pki.identity import load_authority
from studies.faults.cases.enrolment import lists, requests, revoked_site
from studies.faults.cases.intrusions import certificates
from studies.faults.faulty_agent import UNFINISHED, AgentFaults
from studies.faults.fleet import ACCURACY, Fleet, Hung, Setup, Verdict
from studies.faults.harness import CaseResult, Scale, expect_all_finish, repeated_iterations, run_fleet, summarise
from studies.faults.message_timing import large_message
from studies.faults.report import section

pytestmark = pytest.mark.xdist_group("real")

LIMIT = 100.0


def _assert_right(verdict: Verdict) -> None:
    assert verdict.problems == []
    assert verdict.error <= ACCURACY
    assert verdict.simulator_error <= ACCURACY


def test_ten_agents_write_the_same_result(tmp_path: Path) -> None:
    def act(fleet: Fleet) -> None:
        fleet.start()
        fleet.wait(LIMIT)

    verdict = run_fleet(tmp_path / "f", Setup(algorithm="auto", pause=0.01), act, expect_all_finish)
    _assert_right(verdict)
    assert verdict.results == 10
    assert verdict.epochs == 1


def test_a_killed_agent_is_waited_for_and_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    resumed: list[int] = []

    def act(fleet: Fleet) -> None:
        fleet.start()
        fleet.wait_until(lambda: len(fleet.events(2, "step")) > 12, LIMIT, "no iterations")
        fleet.kill(2)
        fleet.start(2)
        fleet.wait(LIMIT)
        resumed.extend(one["resumed_from"] for one in fleet.events(0, "epoch")[1:])
        assert (
            repeated_iterations(fleet) <= 2 * 6
        )  # a checkpoint interval, and the iterations by which others were ahead

    _assert_right(run_fleet(tmp_path / "f", Setup(agents=5, eigenvalue_ratio=0.8), act, expect_all_finish))
    assert resumed
    assert max(resumed) > 0


def test_the_majority_continues_without_a_lost_agent(tmp_path: Path) -> None:
    def act(fleet: Fleet) -> None:
        fleet.start()
        fleet.wait_until(lambda: len(fleet.events(3, "step")) > 5, LIMIT, "no iterations")
        fleet.kill(3)
        fleet.wait(LIMIT)

    def expect(fleet: Fleet, verdict: Verdict) -> None:
        assert verdict.finished == [0, 1, 2, 4]
        assert verdict.members == ("s0", "s1", "s2", "s4")

    _assert_right(
        run_fleet(tmp_path / "f", Setup(agents=5, on_loss="shrink", patience=2.0, eigenvalue_ratio=0.8), act, expect)
    )


def test_a_minority_never_gets_a_result(tmp_path: Path) -> None:
    def act(fleet: Fleet) -> None:
        assert fleet.proxies is not None
        for site in (0, 1):
            fleet.configure(site, deadline="20s")
        fleet.start()
        fleet.wait_until_running()
        links = fleet.proxies.between((0, 1))
        fleet.proxies.hold([*links, *((j, i) for i, j in links)])
        fleet.wait(LIMIT)

    def expect(fleet: Fleet, verdict: Verdict) -> None:
        assert [verdict.codes[site] for site in range(5)] == [UNFINISHED, UNFINISHED, 0, 0, 0]
        assert not (fleet.kit(0) / "model.npz").exists()
        assert verdict.members == ("s2", "s3", "s4")

    setup = Setup(agents=5, on_loss="shrink", patience=2.0, proxied=True, eigenvalue_ratio=0.8)
    _assert_right(run_fleet(tmp_path / "f", setup, act, expect))


def test_an_agent_frozen_for_less_than_the_patience_is_not_left_out(tmp_path: Path) -> None:
    began: list[float] = []

    def act(fleet: Fleet) -> None:
        fleet.start()
        fleet.wait_until(lambda: bool(fleet.events(1, "step")), LIMIT, "no iterations")
        began.append(time.monotonic())
        fleet.signal(1, signal.SIGSTOP)
        time.sleep(5.0)
        fleet.signal(1, signal.SIGCONT)
        fleet.wait(LIMIT)

    def expect(fleet: Fleet, verdict: Verdict) -> None:
        expect_all_finish(fleet, verdict)
        assert not [one for site in range(4) for one in fleet.events(site, "epoch") if one["at"] > began[0]]

    _assert_right(run_fleet(tmp_path / "f", Setup(agents=4, on_loss="shrink", patience=60.0), act, expect))


def test_lost_duplicated_and_delayed_frames_do_not_change_the_result(tmp_path: Path) -> None:
    injected: list[int] = []

    def act(fleet: Fleet) -> None:
        fleet.start(faults=AgentFaults(loss=0.02, duplicate=0.1, delay=0.1, pause=0.001))
        fleet.wait(LIMIT)
        injected.extend(
            sum(fleet.events(site, "end")[-1][kind] for site in range(4)) for kind in ("lost", "duplicated", "delayed")
        )

    verdict = run_fleet(tmp_path / "f", Setup(agents=4), act, expect_all_finish)
    _assert_right(verdict)
    assert verdict.epochs == 1
    assert min(injected) > 0


def test_audit_logs_agree_with_each_other_whatever_happens(tmp_path: Path) -> None:
    """Kill an agent while frames are lost and doubled; logs are chained across the restart, and cover both starts."""
    found: list[LogAgreement] = []

    def act(fleet: Fleet) -> None:
        fleet.start(faults=AgentFaults(loss=0.02, duplicate=0.1, delay=0.1, pause=0.001))
        fleet.wait_until(lambda: len(fleet.events(2, "step")) > 12, LIMIT, "no iterations")
        fleet.kill(2)
        fleet.start(2)
        fleet.wait(LIMIT)

    def expect(fleet: Fleet, verdict: Verdict) -> None:
        expect_all_finish(fleet, verdict)
        logs = []
        for number in range(4):
            site = read_site(fleet.kit(number) / "site.toml")
            assert site.audit is not None
            logs.append([read_log(path, load_authority(site)) for path in read_logs(site.audit, site.site)])
            assert check_restarts(logs[-1]) == []
        assert [[log.signed for log in own] for own in logs] == [
            ["verified"],
            ["verified"],
            ["unfinished", "verified"],
            ["verified"],
        ]
        found.extend(compare(logs[number], logs[(number + 1) % 4]) for number in range(4))

    _assert_right(run_fleet(tmp_path / "f", Setup(agents=4, eigenvalue_ratio=0.8), act, expect))
    assert [difference for one in found for difference in one.differences] == []
    assert min(one.equal for one in found) > 20


def test_faulty_certificates_are_refused_and_the_refusal_is_logged(tmp_path: Path) -> None:
    found = certificates(Scale(tmp_path, full=False))
    assert found.problems == ()
    assert found.passed == found.runs == 15


@pytest.mark.parametrize("attacks", [requests, lists, revoked_site])
def test_attacks_on_enrolment_are_refused_and_the_cause_is_named(
    tmp_path: Path, attacks: Callable[[Scale], CaseResult]
) -> None:
    found = attacks(Scale(tmp_path, full=False))
    assert found.problems == ()
    assert found.passed == found.runs


def test_a_message_larger_than_a_frame_arrives_intact(tmp_path: Path) -> None:
    _, whole = large_message(tmp_path / "f", 20_000_000)
    assert whole


# ------------------------------------------------------------------------------------------- the suite itself can fail


def test_the_suite_detects_a_wrong_result(tmp_path: Path) -> None:
    def act(fleet: Fleet) -> None:
        fleet.start()
        fleet.wait(LIMIT)
        fleet.rows[0] = fleet.rows[0][:, ::-1]

    verdict = run_fleet(tmp_path / "f", Setup(agents=3, pause=0.001), act, expect_all_finish)
    assert any("wrong by" in problem for problem in verdict.problems)
    found = summarise("case", "done", [verdict])
    assert (found.runs, found.passed, found.wrong, found.hung) == (1, 0, 1, 0)


def test_the_suite_detects_a_missing_model_file(tmp_path: Path) -> None:
    def act(fleet: Fleet) -> None:
        fleet.start()
        fleet.wait(LIMIT)
        with np.load(fleet.kit(1) / "model.npz", allow_pickle=False) as model:
            assert "components" in model
        (fleet.kit(1) / "model.npz").unlink()

    verdict = run_fleet(tmp_path / "f", Setup(agents=3, pause=0.001), act, expect_all_finish)
    assert verdict.problems == ["s1 ended with exit code 0 but wrote no model"]


def test_a_run_that_does_not_end_counts_as_hung(tmp_path: Path) -> None:
    def act(fleet: Fleet) -> None:
        fleet.start(0)
        fleet.wait(1.0, [0])

    verdict = run_fleet(tmp_path / "f", Setup(agents=3), act, lambda fleet, verdict: None)
    assert verdict.hung == 1


def test_the_report_marks_failed_assertions() -> None:
    good = CaseResult("good", "nothing", 2, 2, 0, 0, "fine")
    bad = CaseResult("bad", "something", 2, 1, 1, 0, "", ("run 1: wrong by 1e-3",))
    made = section([good, bad], (200, 200))
    assert [one.holds for one in made.assertions] == [False, True, True, False, True]
    assert section([good], (200, 199)).holds is False
    assert section([good], (200, 200)).holds is True


def test_waiting_beyond_the_limit_raises_hung(tmp_path: Path) -> None:
    with Fleet(tmp_path / "f", Setup(agents=3)) as fleet, pytest.raises(Hung, match="no event within"):
        fleet.wait_until(lambda: False, 0.1, "no event")
