"""Who is there, since when, and who takes part: what follows from records and time, without waiting or sending."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from deepca._util.logs import EventLogger
from deepca.errors import InvalidInput, NetworkError, PeerFault
from deepca.sites.protocol.fingerprints import count_columns, other_columns, readable
from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.records import Difference, Edge, Record, RecordTable, RunPlan

__all__ = ["Assembly", "Membership", "Policy"]

_logger = logging.getLogger(__name__)

_NEVER = float("-inf")
_ALIKE = "make network.toml, columns and version alike at all sites, and start again"


@dataclass(frozen=True)
class Policy:
    """How patient a site is, in seconds.

    on_loss : what happens when a neighbour is lost for longer than ``patience``: it is waited for, or left out.
    deadline : after which a run ends as unfinished.  linger : how long a site that has finished stays for others.
    """

    on_loss: Literal["wait", "shrink"] = "wait"
    patience: float = 60.0
    deadline: float = 86_400.0
    linger: float = 60.0


@dataclass(frozen=True)
class Membership:
    """What does not change during a run.

    sites : names of all, in their common order.  edges : who talks to whom.  fingerprint : what has to be the same
    everywhere, by name.  limit : bytes that a message can have at most.  run : 32 bytes.
    """

    sites: tuple[str, ...]
    me: int
    edges: tuple[Edge, ...]
    run: bytes
    fingerprint: Mapping[str, bytes]
    limit: int

    @property
    def agreement(self) -> bytes:
        """32 bytes: equal for sites that agree on everything, name and settings of the run included."""
        return hashlib.sha256(repr(sorted(self.fingerprint.items())).encode() + self.run).digest()

    @property
    def neighbors(self) -> tuple[int, ...]:
        return tuple(sorted({edge[0] + edge[1] - self.me for edge in self.edges if self.me in edge}))


class Assembly:
    """All that one site knows of the others, and the plan that it proposes or has entered.

    table : the newest record of every site.  record : this site's own.  news : grows whenever the table changes.
    present : the sites that this one reaches.  plan : the one entered, if any.  disturbance : why it has to be left.
    proposal : the plan that this site would enter next, if all members do.
    """

    def __init__(
        self,
        membership: Membership,
        policy: Policy,
        identity: Incarnation,
        now: float,
        epoch: int = 0,
    ) -> None:
        self._at, self._policy, self._me = membership, policy, membership.me
        self._log = EventLogger(_logger, self.name(self._me))
        self.table = RecordTable(len(membership.sites), membership.edges)
        self.record = Record(self._me, identity, fingerprint=membership.fingerprint, epoch=epoch)
        self.table.put(self.record)
        self.news = 1
        self.present = frozenset({self._me})
        self.plan: RunPlan | None = None
        self.disturbance = ""
        self.proposal: RunPlan | None = None
        self._since = dict.fromkeys(range(len(membership.sites)), now)  # when a site was last seen to come or go
        self._down: dict[Edge, float] = {}  # since when an edge is
        self._left_out: dict[int, int] = {}  # how often
        self._warned: set[tuple[object, ...]] = set()

    @property
    def everyone(self) -> frozenset[int]:
        return frozenset(range(len(self._at.sites)))

    def name(self, site: int) -> str:
        return self._at.sites[site]

    def names(self, sites: Collection[int]) -> tuple[str, ...]:
        return tuple(map(self.name, sorted(sites)))

    @property
    def gone_level(self) -> int:
        """Level at which it is logged that others are gone, which is to be expected once this site has finished."""
        return logging.INFO if self.record.phase == "finished" else logging.WARNING

    # --------------------------------------------------------------------------------------------------------- records

    def publish(self, **changes: Any) -> None:
        """Say something new of this site."""
        self.record = replace(self.record, version=self.record.version + 1, **changes)
        self.table.put(self.record)
        self.news += 1

    def learn(self, record: Record) -> bool:
        """Whether what another site says of itself is news."""
        if not self.table.put(record):
            return False
        self.news += 1
        return True

    def away(self, site: int, now: float) -> float:
        """Seconds since a site that cannot be reached was heard of."""
        return now - self._since.get(site, now)

    def unfinished(self) -> list[int]:
        """Who is still to be waited for after the end."""
        who = {*(self.plan.members if self.plan is not None else self.everyone), *self.present}
        records = {site: self.table.get(site) for site in who}
        return sorted(
            s for s, record in records.items() if record is None or record.phase not in ("finished", "failed")
        )

    # ----------------------------------------------------------------------------------------------------- who is there

    def look(self, now: float, reached: frozenset[int], last_heard: Mapping[int, float]) -> None:
        """Who is there now. reached : neighbours that are.  last_heard : when, of each neighbour."""
        if reached != self.record.links:
            for peer in self.record.links - reached:
                self._log.log(
                    self.gone_level, f"{self.name(peer)} is silent", event="silent", facts={"site": self.name(peer)}
                )
            self.publish(links=reached)
        present = self.table.together_with(self._me)
        for site in present ^ self.present:
            heard = last_heard.get(site, _NEVER)
            self._since[site] = min(now, heard) if site not in present and heard > _NEVER else now
        for site in sorted(self.present - present):
            self._log.log(
                self.gone_level, f"{self.name(site)} cannot be reached", event="lost", facts={"site": self.name(site)}
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

    def gather(self, **changes: Any) -> None:
        """Leave the plan, if there is one, and be ready for the next."""
        self.plan = self.proposal = None
        self.disturbance = ""
        self.publish(phase="gathering", plan=b"", **changes)

    def agreed(self, now: float) -> bool:
        """Propose what the records say, and see whether all members propose the same."""
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
        """Raise PeerFault for a site that cannot have entered the epoch it speaks of; once all have been heard of."""
        if all(self.table.get(site) is not None for site in self.everyone):
            self._check_epochs()

    def _check_epochs(self) -> None:
        found = self.table.far_ahead(self._me)
        if found is not None:
            site, common = found
            said = (
                f"says that it has entered epoch {self.table[site].epoch:,}, where most sites have come to {common:,}"
            )
            raise PeerFault(self.name(site), f"{said}; look at that site, then start all agents again")

    def withdraw(self) -> None:
        """Propose nothing any more."""
        if self.proposal is not None:
            self.proposal = None
            self.publish(plan=b"")

    @property
    def next_epoch(self) -> int:
        """Of the plan proposed; 0 if there is none."""
        return 0 if self.proposal is None else self.proposal.epoch

    def enter(self, now: float) -> RunPlan:
        plan, self.proposal = self.proposal, None
        if plan is None:
            raise NetworkError("there is no plan to enter")
        self.plan, self.disturbance = plan, ""
        for edge in plan.edges:  # an edge that is still about to come up is not lost
            if edge in self._down:
                self._down[edge] = now
        left_out = self.everyone - frozenset(plan.members)
        for site in left_out:
            self._left_out[site] = self._left_out.get(site, 0) + 1
        self.publish(phase="running", epoch=plan.epoch, plan=plan.digest)
        start = "from the beginning" if plan.source < 0 else f"at the directions of {self.name(plan.source)}"
        start = f"from iteration {plan.iteration}" if plan.resume else start
        without = f", without {', '.join(self.names(left_out))}" if left_out else ""
        self._log.info(
            f"epoch {plan.epoch} begins {start} with {len(plan.members)} of {len(self._at.sites)} sites{without}",
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
        """Whether a member runs the plan already, and is present or has been away for less than patience.

        Such a plan is not given up by others: a link that comes up late would end an epoch that has just begun.
        """
        patience = math.inf if self._policy.on_loss == "wait" else self._policy.patience
        running = {r.site for r in self.table if r.phase == "running" and r.plan == plan.digest}
        return any(s in self.present or self.away(s, now) < patience for s in running.intersection(plan.members))

    def _all_agree(self, plan: RunPlan) -> bool:
        digest = plan.digest
        records = [self.table.get(site) for site in plan.members]
        return all(
            record is not None
            and record.identity == identity
            and record.plan == digest
            and record.phase in ("gathering", "running")
            for record, identity in zip(records, plan.identities, strict=True)
        )

    def _candidates(self, now: float) -> tuple[frozenset[int], Collection[Edge]]:
        """Who could take part now, over which links; nobody while somebody is still waited for."""
        nobody: tuple[frozenset[int], Collection[Edge]] = frozenset(), ()
        if any(record.fingerprint != self._at.fingerprint for record in self.table if record.site in self.present):
            return nobody
        whole = sorted(self.table.edges)
        if self._policy.on_loss == "wait" or not self.table.started():
            return (self.everyone, whole) if self.present == self.everyone else nobody
        patience = self._policy.patience
        if any(now - self._since.get(site, now) < patience for site in self.everyone - self.present):
            return nobody
        if 2 * len(self.present) <= len(self.everyone):
            few, all_of_them = len(self.present), len(self.everyone)
            text = f"only {few} of {all_of_them} sites reach each other: too few to go on without the others"
            self._warn_once(("minority", self.present), "minority", text)
            return nobody
        inside = [edge for edge in whole if self.present.issuperset(edge)]
        if any(now - self._down.get(edge, now) < patience for edge in inside if not self.table.up(edge)):
            return nobody
        return self.present, [edge for edge in inside if self.table.up(edge)]

    # ----------------------------------------------------------------------------------------------------- differences

    def check_differences(self) -> None:
        """Whoever differs is named at once. The site that differs from most gives up; where none are most, all do."""
        found = self.table.differences()
        if not found:
            return
        for one in found:
            self._warn_once(("differs", one), "differs", self._difference(one), names=list(one.names))
        odd, heard = len(found), sum(bool(record.fingerprint) for record in self.table)
        mine = next((one for one in found if one.site == self._me), None)
        if mine is not None and 2 * odd < heard:
            raise InvalidInput(f"{self._difference(mine)}; {_ALIKE}")
        if 2 * odd >= heard == len(self._at.sites):
            raise InvalidInput("; ".join(map(self._difference, found)) + f"; nothing was started; {_ALIKE}")

    def _difference(self, one: Difference) -> str:
        odd = {found.site for found in self.table.differences()}
        other = min(record.site for record in self.table if record.site not in odd)
        here, there = self.table[one.site].fingerprint, self.table[other].fingerprint
        said = [_told_apart(name, here, there) for name in one.names]
        return f"{self.name(one.site)} differs from {self.name(other)}: {'; '.join(said)}"

    # ----------------------------------------------------------------------------------------------------- disturbances

    def _reconsider(self, now: float) -> None:
        """Is the plan still one that all members follow, and that they can follow?"""
        if self.plan is None or self.disturbance or self.record.phase != "running":
            return
        self.disturbance = (
            self._members_gone(self.plan) or self._links_gone(self.plan, now) or self._back(self.plan, now)
        )
        if self.disturbance:
            self._log.warning(self.disturbance, event="regroup", facts={"epoch": self.plan.epoch})

    def _members_gone(self, plan: RunPlan) -> str:
        digest = plan.digest
        for site, identity in zip(plan.members, plan.identities, strict=True):
            record, name = self.table[site], self.name(site)
            if record.identity != identity:
                return f"{name} was restarted"
            if site == self._me:
                continue
            if record.phase == "failed":
                return f"{name} gave up: {record.failure.why if record.failure is not None else 'without a word'}"
            if record.plan != digest and record.phase in ("gathering", "running"):
                return f"{name} has left epoch {plan.epoch}"
        return ""

    def _links_gone(self, plan: RunPlan, now: float) -> str:
        for edge in plan.edges:
            down = now - self._down.get(edge, now)
            if self._me not in edge or down <= self._policy.patience:
                continue
            peer = edge[0] + edge[1] - self._me
            name = self.name(peer)
            if self._policy.on_loss == "shrink" and self.table[peer].phase != "finished":
                return f"{name} is lost: nothing was heard of it for {down:.0f} s"
            text = f"{name} was not heard of for {down:.0f} s; the run waits for it"
            self._warn_once(("gone", peer), "waiting", text, site=name)
        return ""

    def _back(self, plan: RunPlan, now: float) -> str:
        """A site that was left out and is there again; one that comes and goes has to stay longer each time."""
        if self._policy.on_loss == "shrink":
            for site in self.present - frozenset(plan.members):
                stay = self._policy.patience * 2 ** min(self._left_out.get(site, 1) - 1, 6)
                if self.table[site].phase == "gathering" and now - self._since.get(site, now) >= stay:
                    return f"{self.name(site)} is back"
        return ""

    def _warn_once(self, key: tuple[object, ...], event: str, text: str, **facts: object) -> None:
        if key not in self._warned:
            self._warned.add(key)
            self._log.warning(text, event=event, facts=facts)


def _told_apart(name: str, here: Mapping[str, bytes], there: Mapping[str, bytes]) -> str:
    """In what two sites differ. Short texts are shown; of hashes only that they differ, and of columns which."""
    if name == "columns":
        wrong, counts = other_columns(here, there), (count_columns(here), count_columns(there))
        if wrong is None:
            return "other columns" if None in counts else f"{counts[0]} columns instead of {counts[1]}"
        if not wrong:
            return "the same columns in another order"
        return f"column {wrong[0] + 1} is another one" + (f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else "")
    shown = readable(here.get(name, b""), there.get(name, b""))
    return f"{name} {shown[0]} instead of {shown[1]}" if shown is not None else f"another {name}"
