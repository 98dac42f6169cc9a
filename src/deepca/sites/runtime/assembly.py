"""Decide which sites are reachable and which take part, from records and time alone: nothing here waits or sends."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from deepca._util.logs import EventLogger
from deepca.errors import InvalidInput, NetworkError, PeerFault
from deepca.sites.protocol.fingerprints import as_printable, comparable_entries, differing_columns
from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.records import Difference, Edge, Record, RecordTable, RunPlan
from deepca.sites.runtime.node_config import NodeConfig, Policy

__all__ = ["USE_SAME_FILES", "Assembly"]

_logger = logging.getLogger(__name__)

USE_SAME_FILES = (
    "agree with the operators of the other sites on one network.toml, one columns.key, the same columns and the same "
    "deepca version, then start all agents again"
)
"""Advice for operators of sites whose settings or columns differ."""
_NEVER = float("-inf")
_MAX_DOUBLINGS = 6  # a site that comes and goes has to stay for at most 2⁶ times the patience to be readmitted


class Assembly:
    """Knowledge that a site has of the others, and the plan that it proposes or has entered.

    Parameters
    ----------
    config, policy, incarnation
        This site's place in the network, its policy, and its incarnation.
    now : float
        Current time, in seconds.
    epoch : int, optional
        Last epoch that an earlier incarnation of this agent has entered.

    Attributes
    ----------
    table : RecordTable
        The newest record of every site.
    record : Record
        The record of this site.
    news : int
        Counter that increases whenever the table changes.
    present : frozenset of int
        Sites that this one can reach, itself included.
    plan : RunPlan or None
        The plan that this site has entered and not left.
    disturbance : str
        Why this site has to leave that plan; empty while it can follow it.
    proposal : RunPlan or None
        The plan that this site enters next if all its members propose it.
    """

    def __init__(
        self,
        config: NodeConfig,
        policy: Policy,
        incarnation: Incarnation,
        now: float,
        epoch: int = 0,
    ) -> None:
        self._config, self._policy, self._me = config, policy, config.me
        self._log = EventLogger(_logger, self.name(self._me))
        self.table = RecordTable(len(config.sites), config.edges)
        self.record = Record(
            self._me, incarnation, fingerprint=config.fingerprint, epoch=epoch, mask_key=config.mask_key
        )
        self.table.put(self.record)
        self.news = 1
        self.present = frozenset({self._me})
        self.plan: RunPlan | None = None
        self.disturbance = ""
        self.proposal: RunPlan | None = None
        self._since = dict.fromkeys(range(len(config.sites)), now)  # when each site became reachable or unreachable
        self._down: dict[Edge, float] = {}  # since when each edge that is not up has been down
        self._left_out: dict[int, int] = {}  # how many plans each site was left out of
        self._warned: set[tuple[object, ...]] = set()

    @property
    def everyone(self) -> frozenset[int]:
        """All sites of the network."""
        return frozenset(range(len(self._config.sites)))

    def name(self, site: int) -> str:
        """Return the name of a site."""
        return self._config.sites[site]

    def names(self, sites: Collection[int]) -> tuple[str, ...]:
        """Return the names of sites, in their common order."""
        return tuple(map(self.name, sorted(sites)))

    @property
    def gone_level(self) -> int:
        """Log level of messages about lost sites, which are expected once this site has finished."""
        return logging.INFO if self.record.phase == "finished" else logging.WARNING

    # --------------------------------------------------------------------------------------------------------- records

    def publish(self, **changes: Any) -> None:
        """Update fields of this site's record and store it under the next version number."""
        self.record = replace(self.record, version=self.record.version + 1, **changes)
        self.table.put(self.record)
        self.news += 1

    def learn(self, record: Record) -> bool:
        """Store the record of another site and return whether it was new."""
        if not self.table.put(record):
            return False
        self.news += 1
        return True

    def away(self, site: int, now: float) -> float:
        """Return for how many seconds a site, which cannot be reached now, has been away."""
        return now - self._since.get(site, now)

    def unfinished(self) -> list[int]:
        """Return the sites that may still need this one after it has finished."""
        who = {*(self.plan.members if self.plan is not None else self.everyone), *self.present}
        records = {site: self.table.get(site) for site in who}
        return sorted(
            s for s, record in records.items() if record is None or record.phase not in ("finished", "failed")
        )

    # ------------------------------------------------------------------------------------------------------- presence

    def update_presence(self, now: float, reached: frozenset[int], last_heard: Mapping[int, float]) -> None:
        """Update which sites are present, given the neighbours reached and when each last sent something."""
        if reached != self.record.links:
            for peer in self.record.links - reached:
                self._log.log(
                    self.gone_level,
                    f"lost contact with {self.name(peer)}",
                    event="silent",
                    facts={"site": self.name(peer)},
                )
            self.publish(links=reached)
        present = self.table.reachable_from(self._me)
        for site in present ^ self.present:
            heard = last_heard.get(site, _NEVER)
            self._since[site] = min(now, heard) if site not in present and heard > _NEVER else now
        for site in sorted(self.present - present):
            self._log.log(
                self.gone_level,
                f"{self.name(site)} cannot be reached, directly or through other sites",
                event="lost",
                facts={"site": self.name(site)},
            )
        for site in sorted(present - self.present):
            self._warned = {key for key in self._warned if key[:2] != ("gone", site)}
            self._log.info(f"{self.name(site)} can be reached", event="found", facts={"site": self.name(site)})
        self.present = present
        for edge in self.table.edges:
            if self.table.up(edge):
                self._down.pop(edge, None)
            elif edge not in self._down:
                heard = last_heard.get(edge[0] + edge[1] - self._me, now) if self._me in edge else now
                self._down[edge] = heard if heard > _NEVER else now
        self._reconsider(now)

    # -------------------------------------------------------------------------------------------------------- gathering

    def leave_plan(self, **changes: Any) -> None:
        """Leave the current plan, if any, and get ready for the next one."""
        self.plan = self.proposal = None
        self.disturbance = ""
        self.publish(phase="gathering", plan=b"", **changes)

    def update_proposal(self, now: float) -> bool:
        """Propose the plan that follows from the records, and return whether all its members propose the same."""
        if self.proposal is not None:
            if self._all_agree(self.proposal):
                return True
            if self._entered(self.proposal, now):
                return False
        members, edges = self._candidates(now)
        if members:
            self._check_epochs()
        ready = all(self.table[site].phase == "gathering" for site in members)
        plan = self.table.plan(members, edges) if members and ready else None
        if plan is not None and (self.proposal is None or plan.digest != self.proposal.digest):
            self.proposal = plan
            self.publish(plan=plan.digest)
        elif not members:
            self.withdraw()
        return self.proposal is not None and self._all_agree(self.proposal)

    def check_epochs(self) -> None:
        """Raise PeerFault if a site reports an epoch that it cannot have entered; needs the records of all sites."""
        if all(self.table.get(site) is not None for site in self.everyone):
            self._check_epochs()

    def _check_epochs(self) -> None:
        found = self.table.implausible_epoch(self._me)
        if found is not None:
            site, common = found
            raise PeerFault(
                self.name(site),
                f"reports that it has entered epoch {self.table[site].epoch:,}, but most sites have only reached "
                f"{common:,}; its operator should check that site and its log, then all agents can be started again",
            )

    def withdraw(self) -> None:
        """Withdraw the proposal of this site, if there is one."""
        if self.proposal is not None:
            self.proposal = None
            self.publish(plan=b"")

    @property
    def next_epoch(self) -> int:
        """Epoch of the proposed plan; 0 without a proposal."""
        return 0 if self.proposal is None else self.proposal.epoch

    def enter(self, now: float) -> RunPlan:
        """Enter the proposed plan and return it."""
        plan, self.proposal = self.proposal, None
        if plan is None:
            raise NetworkError("no plan has been proposed, so none can be entered")
        self.plan, self.disturbance = plan, ""
        for edge in plan.edges:  # patience starts now: an edge that has yet to come up is not lost
            if edge in self._down:
                self._down[edge] = now
        left_out = self.everyone - frozenset(plan.members)
        for site in left_out:
            self._left_out[site] = self._left_out.get(site, 0) + 1
        self.publish(phase="running", epoch=plan.epoch, plan=plan.digest)
        start = "from the beginning" if plan.source < 0 else f"from the components found by {self.name(plan.source)}"
        start = f"from the checkpoint of iteration {plan.iteration}" if plan.resume else start
        without = f", without {', '.join(self.names(left_out))}" if left_out else ""
        self._log.info(
            f"epoch {plan.epoch} starts {start} with {len(plan.members)} of {len(self.everyone)} sites{without}",
            event="epoch",
            facts={
                "epoch": plan.epoch,
                "members": list(self.names(plan.members)),
                "left_out": list(self.names(left_out)),
                "resumed_from": plan.iteration,
            },
        )
        self._reconsider(now)
        return plan

    def _entered(self, plan: RunPlan, now: float) -> bool:
        """Return whether a member already runs the plan, and is present or away for less than the patience.

        Other members then keep proposing it: otherwise a link that comes up late would end an epoch just begun.
        """
        patience = math.inf if self._policy.on_loss == "wait" else self._policy.patience
        running = {r.site for r in self.table if r.phase == "running" and r.plan == plan.digest}
        return any(s in self.present or self.away(s, now) < patience for s in running.intersection(plan.members))

    def _all_agree(self, plan: RunPlan) -> bool:
        digest = plan.digest
        records = [self.table.get(site) for site in plan.members]
        return all(
            record is not None
            and record.incarnation == incarnation
            and record.plan == digest
            and record.phase in ("gathering", "running")
            for record, incarnation in zip(records, plan.incarnations, strict=True)
        )

    def _candidates(self, now: float) -> tuple[frozenset[int], Collection[Edge]]:
        """Return the sites that could take part now and their links; both are empty while a site is still awaited."""
        none: tuple[frozenset[int], Collection[Edge]] = frozenset(), ()
        if any(record.fingerprint != self._config.fingerprint for record in self.table if record.site in self.present):
            return none
        whole = sorted(self.table.edges)
        if self._policy.on_loss == "wait" or not self.table.started():
            return (self.everyone, whole) if self.present == self.everyone else none
        patience = self._policy.patience
        if any(now - self._since.get(site, now) < patience for site in self.everyone - self.present):
            return none
        if 2 * len(self.present) <= len(self.everyone):
            reached, sites = len(self.present), len(self.everyone)
            text = (
                f"only {reached} of {sites} sites reach each other, but more than half are needed to continue without "
                "the others; the run waits until more sites can be reached"
            )
            self._warn_once(("minority", self.present), "minority", text)
            return none
        inside = [edge for edge in whole if self.present.issuperset(edge)]
        if any(now - self._down.get(edge, now) < patience for edge in inside if not self.table.up(edge)):
            return none
        return self.present, [edge for edge in inside if self.table.up(edge)]

    # ----------------------------------------------------------------------------------------------------- differences

    def check_differences(self) -> None:
        """Warn about sites whose settings differ, and raise InvalidInput if this site has to give up because of that.

        A site gives up if it differs from the majority; where no majority agrees, every site gives up.
        """
        found = self.table.differences()
        if not found:
            return
        for one in found:
            self._warn_once(
                ("differs", one), "differs", self.describe(one), site=self.name(one.site), names=list(one.names)
            )
        odd, heard = len(found), sum(bool(record.fingerprint) for record in self.table)
        mine = next((one for one in found if one.site == self._me), None)
        if mine is not None and 2 * odd < heard:
            raise InvalidInput(f"{self.describe(mine)}; {USE_SAME_FILES}", agent=mine.site)
        if 2 * odd >= heard == len(self._config.sites):
            raise InvalidInput(
                f"{'; '.join(map(self.describe, found))}; these sites cannot run together; {USE_SAME_FILES}"
            )

    def describe(self, one: Difference) -> str:
        """Describe how a site differs from this one or, if this one differs from most sites, from the first of those.

        Values are shown only if they are short texts, not hashes.
        """
        odd = {found.site for found in self.table.differences()}
        other = self._me if self._me not in odd else min(record.site for record in self.table if record.site not in odd)
        here, there = self.table[one.site].fingerprint, self.table[other].fingerprint
        who, whom = ("this site" if site == self._me else self.name(site) for site in (one.site, other))
        found = [
            _compared_columns(here, there, who, whom) if name == "columns" else _compared(name, here, there, who, whom)
            for name in comparable_entries(one.names)
        ]
        return "; ".join(found)

    # ----------------------------------------------------------------------------------------------------- disturbances

    def _reconsider(self, now: float) -> None:
        """Set ``disturbance`` if the members no longer follow the plan, or cannot."""
        if self.plan is None or self.disturbance or self.record.phase != "running":
            return
        self.disturbance = (
            self._lost_member(self.plan) or self._lost_link(self.plan, now) or self._returned_site(self.plan, now)
        )
        if self.disturbance:
            self._log.warning(self.disturbance, event="regroup", facts={"epoch": self.plan.epoch})

    def _lost_member(self, plan: RunPlan) -> str:
        digest = plan.digest
        for site, incarnation in zip(plan.members, plan.incarnations, strict=True):
            record, name = self.table[site], self.name(site)
            if record.incarnation != incarnation:
                return f"{name} was restarted"
            if site == self._me:
                continue
            if record.phase == "failed":
                return f"{name} gave up: {record.failure.why if record.failure is not None else 'no reason given'}"
            if record.plan != digest and record.phase in ("gathering", "running"):
                return f"{name} has left epoch {plan.epoch}"
        return ""

    def _lost_link(self, plan: RunPlan, now: float) -> str:
        for edge in plan.edges:
            down = now - self._down.get(edge, now)
            if self._me not in edge or down <= self._policy.patience:
                continue
            peer = edge[0] + edge[1] - self._me
            name = self.name(peer)
            if self._policy.on_loss == "shrink" and self.table[peer].phase != "finished":
                return f"{name} is lost: nothing has arrived from it for {down:.0f} s"
            text = f"nothing has arrived from {name} for {down:.0f} s; the run waits for it"
            self._warn_once(("gone", peer), "waiting", text, site=name)
        return ""

    def _returned_site(self, plan: RunPlan, now: float) -> str:
        """Describe a site that has been back for long enough; being left out again doubles the time required."""
        if self._policy.on_loss == "shrink":
            for site in self.present - frozenset(plan.members):
                stay = self._policy.patience * 2 ** min(self._left_out.get(site, 1) - 1, _MAX_DOUBLINGS)
                if self.table[site].phase == "gathering" and now - self._since.get(site, now) >= stay:
                    return f"{self.name(site)} is back"
        return ""

    def _warn_once(self, key: tuple[object, ...], event: str, text: str, **facts: object) -> None:
        if key not in self._warned:
            self._warned.add(key)
            self._log.warning(text, event=event, facts=facts)


def _compared(name: str, here: Mapping[str, bytes], there: Mapping[str, bytes], who: str, whom: str) -> str:
    shown = as_printable(here.get(name, b""), there.get(name, b""))
    if shown is None:
        return f"the {name} differs between {who} and {whom}"
    return f"{name} is {shown[0] or 'missing'} at {who} and {shown[1] or 'missing'} at {whom}"


def _compared_columns(here: Mapping[str, bytes], there: Mapping[str, bytes], who: str, whom: str) -> str:
    wrong = differing_columns(here, there)
    if wrong is None:
        return f"the columns differ between {who} and {whom}"
    if not wrong:
        return f"the order of the columns differs between {who} and {whom}"
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    return f"column {wrong[0] + 1}{more} has a different name at {who} than at {whom}"
