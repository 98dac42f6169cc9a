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

from studies.faults.enrolment import lists, requests, revoked_site
from studies.faults.exchanges import large_message
from studies.faults.hurt import UNFINISHED, Hurt
from studies.faults.playing import Found, Scale, all_finish, play, repeated, summed
from studies.faults.processes import CLOSE, Fleet, Hung, Setup, Verdict
from studies.faults.report import section
from studies.faults.strangers import certificates

pytestmark = pytest.mark.xdist_group("real")

LIMIT = 100.0


def _right(verdict: Verdict) -> None:
    assert verdict.problems == []
    assert verdict.error <= CLOSE
    assert verdict.simulated <= CLOSE


def test_ten_agents_end_with_one_file(tmp_path: Path) -> None:
    def act(fleet: Fleet) -> None:
        fleet.start()
        fleet.wait(LIMIT)

    verdict = play(tmp_path / "f", Setup(algorithm="auto", pause=0.01), act, all_finish)
    _right(verdict)
    assert verdict.results == 10
    assert verdict.epochs == 1


def test_a_killed_agent_is_waited_for_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    resumed: list[int] = []

    def act(fleet: Fleet) -> None:
        fleet.start()
        fleet.until(lambda: len(fleet.events(2, "step")) > 12, LIMIT, "no iterations")
        fleet.kill(2)
        fleet.start(2)
        fleet.wait(LIMIT)
        resumed.extend(one["resumed_from"] for one in fleet.events(0, "epoch")[1:])
        assert repeated(fleet) <= 2 * 6  # at most one interval, and what others were ahead

    _right(play(tmp_path / "f", Setup(agents=5, gap=0.8), act, all_finish))
    assert resumed
    assert max(resumed) > 0


def test_a_lost_agent_is_left_out_by_the_majority(tmp_path: Path) -> None:
    def act(fleet: Fleet) -> None:
        fleet.start()
        fleet.until(lambda: len(fleet.events(3, "step")) > 5, LIMIT, "no iterations")
        fleet.kill(3)
        fleet.wait(LIMIT)

    def expect(fleet: Fleet, verdict: Verdict) -> None:
        assert verdict.finished == [0, 1, 2, 4]
        assert verdict.members == ("s0", "s1", "s2", "s4")

    _right(play(tmp_path / "f", Setup(agents=5, on_loss="shrink", patience=2.0, gap=0.8), act, expect))


def test_a_minority_never_has_a_result(tmp_path: Path) -> None:
    def act(fleet: Fleet) -> None:
        assert fleet.proxies is not None
        for site in (0, 1):
            fleet.configure(site, deadline="20s")
        fleet.start()
        fleet.running()
        links = fleet.proxies.between((0, 1))
        fleet.proxies.hold([*links, *((j, i) for i, j in links)])
        fleet.wait(LIMIT)

    def expect(fleet: Fleet, verdict: Verdict) -> None:
        assert [verdict.codes[site] for site in range(5)] == [UNFINISHED, UNFINISHED, 0, 0, 0]
        assert not (fleet.site(0) / "model.npz").exists()
        assert verdict.members == ("s2", "s3", "s4")

    setup = Setup(agents=5, on_loss="shrink", patience=2.0, proxied=True, gap=0.8)
    _right(play(tmp_path / "f", setup, act, expect))


def test_a_frozen_agent_is_not_left_out_while_patience_lasts(tmp_path: Path) -> None:
    began: list[float] = []

    def act(fleet: Fleet) -> None:
        fleet.start()
        fleet.until(lambda: bool(fleet.events(1, "step")), LIMIT, "no iterations")
        began.append(time.monotonic())
        fleet.signal(1, signal.SIGSTOP)
        time.sleep(5.0)
        fleet.signal(1, signal.SIGCONT)
        fleet.wait(LIMIT)

    def expect(fleet: Fleet, verdict: Verdict) -> None:
        all_finish(fleet, verdict)
        assert not [one for site in range(4) for one in fleet.events(site, "epoch") if one["at"] > began[0]]

    _right(play(tmp_path / "f", Setup(agents=4, on_loss="shrink", patience=60.0), act, expect))


def test_lost_doubled_and_late_frames_change_nothing(tmp_path: Path) -> None:
    hurts: list[int] = []

    def act(fleet: Fleet) -> None:
        fleet.start(hurt=Hurt(loss=0.02, double=0.1, late=0.1, pause=0.001))
        fleet.wait(LIMIT)
        hurts.extend(
            sum(fleet.events(site, "end")[-1][kind] for site in range(4)) for kind in ("lost", "doubled", "held")
        )

    verdict = play(tmp_path / "f", Setup(agents=4), act, all_finish)
    _right(verdict)
    assert verdict.epochs == 1
    assert min(hurts) > 0


def test_certificates_with_faults_are_refused_and_that_is_logged(tmp_path: Path) -> None:
    found = certificates(Scale(tmp_path, full=False))
    assert found.problems == ()
    assert found.success == found.runs == 15


@pytest.mark.parametrize("attacks", [requests, lists, revoked_site])
def test_attacks_on_who_may_take_part_are_refused_with_the_cause_named(
    tmp_path: Path, attacks: Callable[[Scale], Found]
) -> None:
    found = attacks(Scale(tmp_path, full=False))
    assert found.problems == ()
    assert found.success == found.runs


def test_a_message_above_the_frame_limit(tmp_path: Path) -> None:
    _, whole = large_message(tmp_path / "f", 20_000_000)
    assert whole


# ------------------------------------------------------------------------------------------- the suite itself can fail


def test_wrong_rows_are_found_out(tmp_path: Path) -> None:
    def act(fleet: Fleet) -> None:
        fleet.start()
        fleet.wait(LIMIT)
        fleet.rows[0] = fleet.rows[0][:, ::-1]

    verdict = play(tmp_path / "f", Setup(agents=3, pause=0.001), act, all_finish)
    assert any("wrong by" in problem for problem in verdict.problems)
    found = summed("case", "done", [verdict])
    assert (found.runs, found.success, found.wrong, found.hung) == (1, 0, 1, 0)


def test_model_files_that_differ_are_found_out(tmp_path: Path) -> None:
    def act(fleet: Fleet) -> None:
        fleet.start()
        fleet.wait(LIMIT)
        with np.load(fleet.site(1) / "model.npz", allow_pickle=False) as model:
            assert "components" in model
        (fleet.site(1) / "model.npz").unlink()

    verdict = play(tmp_path / "f", Setup(agents=3, pause=0.001), act, all_finish)
    assert verdict.problems == ["s1 has ended well without a model"]


def test_a_run_that_does_not_end_counts_as_hung(tmp_path: Path) -> None:
    def act(fleet: Fleet) -> None:
        fleet.start(0)
        fleet.wait(1.0, [0])

    verdict = play(tmp_path / "f", Setup(agents=3), act, lambda fleet, verdict: None)
    assert verdict.hung == 1


def test_the_page_says_what_does_not_hold() -> None:
    good = Found("good", "nothing", 2, 2, 0, 0, "fine")
    bad = Found("bad", "something", 2, 1, 1, 0, "", ("run 1: wrong by 1e-3",))
    made = section([good, bad], (200, 200))
    assert [one.holds for one in made.assertions] == [False, True, True, False, True]
    assert section([good], (200, 199)).holds is False
    assert section([good], (200, 200)).holds is True


def test_hung_is_raised_when_nothing_comes(tmp_path: Path) -> None:
    with Fleet(tmp_path / "f", Setup(agents=3)) as fleet, pytest.raises(Hung, match="not within"):
        fleet.until(lambda: False, 0.1, "never")
