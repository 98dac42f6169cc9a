"""The cases of the fault suite, in the order of the report."""

from __future__ import annotations

from studies.faults.cases.disturbances import disks, noise, schedules, slow_peer
from studies.faults.cases.enrolment import lists, requests, revoked_site
from studies.faults.cases.intrusions import certificates, frames
from studies.faults.cases.lying_agents import arrays, leaders, old_result, results
from studies.faults.cases.measurements import large, memory, rounds
from studies.faults.cases.outages import (
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
from studies.faults.cases.processors import mixed_processors
from studies.faults.harness import Case

__all__ = ["CASES"]

CASES: tuple[Case, ...] = (
    Case("killed and restarted", kill_and_restart),
    Case("killed and left out", kill_and_shrink),
    Case("two killed together", two_killed),
    Case("all killed", all_killed),
    Case("frozen", frozen),
    Case("frozen, left out, returned", frozen_too_long),
    Case("killed, left out, returned", rejoin),
    Case("partition", partition),
    Case("one-way loss", one_way),
    Case("minority", minority),
    Case("deadline", deadline),
    Case("noise", noise),
    Case("slow peer", slow_peer),
    Case("unusable disks", disks),
    Case("random schedules", schedules),
    Case("malformed frames", frames),
    Case("certificate faults", certificates),
    Case("certificate requests", requests),
    Case("revocation lists", lists),
    Case("revoked site", revoked_site),
    Case("fabricated results", results),
    Case("invalid messages", arrays),
    Case("false leader", leaders),
    Case("stale result", old_result),
    Case("mixed processors", mixed_processors),
    Case("memory", memory),
    Case("large message", large),
    Case("round time", rounds),
)
