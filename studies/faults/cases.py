"""What is done to running agents, and what has to come of it, in the order of the report."""

from __future__ import annotations

from studies.faults.disturbances import disks, noise, schedules, slow_peer
from studies.faults.ends import (
    all_killed,
    deadline,
    frozen,
    frozen_too_long,
    kill_and_restart,
    kill_and_shrink,
    minority,
    one_way,
    partition,
    rejoin,
    two_killed,
)
from studies.faults.enrolment import lists, requests, revoked_site
from studies.faults.lies import arrays, leaders, old_result, results
from studies.faults.measured import large, memory, rounds
from studies.faults.playing import Case
from studies.faults.strangers import certificates, frames
from studies.faults.unlike import unlike_processors

__all__ = ["CASES"]

CASES: tuple[Case, ...] = (
    Case("killed, restarted", kill_and_restart),
    Case("killed, left out", kill_and_shrink),
    Case("two killed together", two_killed),
    Case("all killed", all_killed),
    Case("frozen", frozen),
    Case("frozen, left out, back", frozen_too_long),
    Case("killed, left out, back", rejoin),
    Case("partition", partition),
    Case("one-way loss", one_way),
    Case("minority", minority),
    Case("deadline", deadline),
    Case("noise", noise),
    Case("slow peer", slow_peer),
    Case("disks", disks),
    Case("random schedules", schedules),
    Case("frames", frames),
    Case("certificates", certificates),
    Case("requests", requests),
    Case("revocation lists", lists),
    Case("revoked site", revoked_site),
    Case("fabricated results", results),
    Case("wrong arrays", arrays),
    Case("numbers for all", leaders),
    Case("old result", old_result),
    Case("unlike processors", unlike_processors),
    Case("memory", memory),
    Case("large message", large),
    Case("time of a round", rounds),
)
