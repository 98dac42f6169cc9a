"""What sites say of themselves, and what follows when all that is known is laid side by side: a plan of who takes part.

Every site writes one record, its own; records are passed on from neighbour to neighbour, and the newest counts. All
sites that have the same records come to the same plan, so nobody has to lead.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, cast, get_args

from deepca._util.logs import one_line
from deepca.errors import FrameError
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.protocol.claims import Endorsement
from deepca.sites.protocol.incarnation import Incarnation

__all__ = [
    "Difference",
    "Edge",
    "Failure",
    "Offer",
    "Phase",
    "Record",
    "RecordTable",
    "RecordedCheckpoint",
    "RunPlan",
    "digest_of_members",
]

Phase = Literal["gathering", "running", "finished", "failed"]
Edge = tuple[int, int]
Kind = Literal["site", "common", "array", "contradiction", "follows"]
_LONGEST = 1000  # characters of a reason
_MOST_KEPT, _MOST_FIELDS, _MOST_BYTES = 8, 64, 1 << 18
_MOST = 1 << 62  # counters stay below
_FAR = 1 << 20  # epochs; no site has entered so many more than others


@dataclass(frozen=True)
class RecordedCheckpoint:
    """A checkpoint: those with the same key belong together. members : digest of the sites whose rows it is about."""

    iteration: int
    key: bytes
    members: bytes


@dataclass(frozen=True)
class Offer:
    """What a site can go on from. reached : iteration of its newest state, in memory or on disk; −1 for none."""

    kept: tuple[RecordedCheckpoint, ...] = ()
    reached: int = -1


@dataclass(frozen=True)
class Failure:
    """Why a site gave up; see wire.proto. accused : place in the list of sites, where ``kind`` accuses one.

    Others may have written parts of the texts, so they are one line each, and not long, whoever made them.
    """

    kind: Kind
    why: str
    accused: int = 0
    what: str = ""
    phase: str = ""
    iteration: int = 0

    def __post_init__(self) -> None:
        for name in ("why", "what", "phase"):
            object.__setattr__(self, name, one_line(getattr(self, name), _LONGEST))

    def to_wire(self) -> wire.Failure:
        return wire.Failure(
            kind=self.kind,
            why=self.why,
            accused=self.accused,
            what=self.what,
            phase=self.phase,
            iteration=self.iteration,
        )

    @classmethod
    def from_wire(cls, said: wire.Failure, sites: int) -> Failure:
        """Read a failure; raise FrameError for one that no site could have."""
        if said.kind not in get_args(Kind) or said.accused >= sites or len(said.phase) > _LONGEST:
            raise FrameError("a failure that makes no sense")
        kind = cast("Kind", said.kind)
        return cls(kind, said.why, said.accused, said.what, said.phase, said.iteration)


@dataclass(frozen=True)
class Record:
    """A site's own words; see wire.proto for the fields."""

    site: int
    identity: Incarnation
    version: int = 0
    phase: Phase = "gathering"
    links: frozenset[int] = frozenset()
    fingerprint: Mapping[str, bytes] = field(default_factory=dict)
    epoch: int = 0
    plan: bytes = b""
    offer: Offer = Offer()
    computed: bytes = b""
    endorsement: Endorsement | None = None
    failure: Failure | None = None
    proposed: Endorsement | None = None

    @property
    def age(self) -> tuple[Incarnation, int]:
        return self.identity, self.version

    def to_wire(self) -> wire.Record:
        return wire.Record(
            site=self.site,
            incarnation=self.identity.incarnation,
            boot=self.identity.boot,
            version=self.version,
            phase=self.phase,
            links=sorted(self.links),
            fingerprint=dict(self.fingerprint),
            epoch=self.epoch,
            plan=self.plan,
            kept=[wire.Kept(iteration=one.iteration, key=one.key, members=one.members) for one in self.offer.kept],
            reached=self.offer.reached,
            computed=self.computed,
            endorsement=None if self.endorsement is None else self.endorsement.to_wire(),
            failure=None if self.failure is None else self.failure.to_wire(),
            proposed=None if self.proposed is None else self.proposed.to_wire(),
        )

    @classmethod
    def from_wire(cls, record: wire.Record, sites: int) -> Record:
        """A record as it arrived; a FrameError for one that no site could have written."""
        bad = (
            record.site >= sites
            or record.phase not in get_args(Phase)
            or len(record.kept) > _MOST_KEPT
            or len(record.fingerprint) > _MOST_FIELDS
            or sum(len(name) + len(value) for name, value in record.fingerprint.items()) > _MOST_BYTES
            or max(record.incarnation, record.version, record.epoch) >= _MOST
            or record.boot == 0
            or record.reached < -1
            or any(link >= sites for link in record.links)
            or len(record.plan) not in (0, 32)
            or len(record.computed) not in (0, 32)
            or any(len(one.key) != 32 or len(one.members) != 32 or one.iteration < 0 for one in record.kept)
        )
        if bad:
            raise FrameError("a record that makes no sense")
        kept = tuple(RecordedCheckpoint(one.iteration, one.key, one.members) for one in record.kept)
        endorsement = Endorsement.from_wire(record.endorsement, sites) if record.HasField("endorsement") else None
        if endorsement is not None and endorsement.site != record.site:
            raise FrameError("a record with the signature of another site")
        proposed = Endorsement.from_wire(record.proposed, sites) if record.HasField("proposed") else None
        if proposed is not None and (
            endorsement is None or proposed.claim != endorsement.claim or proposed.site != proposed.claim.proposer
        ):
            raise FrameError("a record with a proposal that its signature does not rest on")
        failure = Failure.from_wire(record.failure, sites) if record.HasField("failure") else None
        return cls(
            record.site,
            Incarnation(record.incarnation, record.boot),
            record.version,
            cast("Phase", record.phase),
            frozenset(record.links),
            dict(record.fingerprint),
            record.epoch,
            record.plan,
            Offer(kept, record.reached),
            record.computed,
            endorsement,
            failure,
            proposed,
        )


@dataclass(frozen=True)
class RunPlan:
    """Who takes part in an epoch, over which links, and from where.

    members : places in the list of sites, rising; as agents of the epoch they are numbered in this order.
    resume : key of the checkpoint that all of them have, or empty.  iteration : of that checkpoint, or −1.
    source : without a checkpoint, the site whose W all start from; −1 for none.
    """

    epoch: int
    members: tuple[int, ...]
    identities: tuple[Incarnation, ...]
    edges: tuple[Edge, ...]
    resume: bytes = b""
    iteration: int = -1
    source: int = -1

    @cached_property
    def digest(self) -> bytes:
        said = (
            self.epoch,
            self.members,
            [(one.incarnation, one.boot) for one in self.identities],
            self.edges,
            self.resume.hex(),
            self.iteration,
            self.source,
        )
        return hashlib.sha256(json.dumps(said).encode()).digest()

    @property
    def proposer(self) -> int:
        """The member whose model the others compare with their own."""
        return self.members[0]

    @property
    def rows_of(self) -> bytes:
        return digest_of_members(self.members)


@dataclass(frozen=True)
class Difference:
    """A site that does not agree with most of the others, and in what."""

    site: int
    names: tuple[str, ...]


def digest_of_members(members: Iterable[int]) -> bytes:
    return hashlib.sha256(json.dumps(sorted(members)).encode()).digest()


class RecordTable:
    """The newest record of every site that was heard of."""

    def __init__(self, sites: int, edges: Iterable[Edge]) -> None:
        self.sites = sites
        self.edges = frozenset((min(edge), max(edge)) for edge in edges)
        self._records: dict[int, Record] = {}

    def __getitem__(self, site: int) -> Record:
        return self._records[site]

    def get(self, site: int) -> Record | None:
        return self._records.get(site)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records.values())

    def put(self, record: Record) -> bool:
        """Whether it is news."""
        known = self._records.get(record.site)
        if known is not None and known.age >= record.age:
            return False
        self._records[record.site] = record
        return True

    def up(self, edge: Edge) -> bool:
        """Whether both ends say that they reach each other."""
        ends = self.get(edge[0]), self.get(edge[1])
        return all(
            end is not None and end.phase != "failed" and other in end.links
            for end, other in zip(ends, reversed(edge), strict=True)
        )

    def together_with(self, me: int) -> frozenset[int]:
        """The sites that this one reaches, over others if need be; itself included."""
        linked: dict[int, set[int]] = {}
        for edge in self.edges:
            if self.up(edge):
                linked.setdefault(edge[0], set()).add(edge[1])
                linked.setdefault(edge[1], set()).add(edge[0])
        found, todo = {me}, [me]
        while todo:
            for other in linked.get(todo.pop(), ()):
                if other not in found:
                    found.add(other)
                    todo.append(other)
        return frozenset(found)

    def started(self) -> bool:
        return any(record.epoch > 0 for record in self)

    def far_ahead(self, me: int) -> tuple[int, int] | None:
        """A site whose epoch is far beyond what it can have entered, and the epoch that most have come to; or None.

        Epochs are entered one after the other, and together with most. A number that one site makes up would be that of
        all for good, since nobody goes back; so it counts only near what this site, ``me``, or most have entered.
        """
        entered = sorted((record.epoch for record in self), reverse=True)
        common = max(self[me].epoch, entered[self.sites // 2] if len(entered) > self.sites // 2 else 0)
        odd = min((record.site for record in self if record.epoch > common + _FAR), default=None)
        return None if odd is None else (odd, common)

    def differences(self) -> tuple[Difference, ...]:
        """Sites whose fingerprint is not that of most; where two are as frequent, of the one with the first site."""
        present = [record for record in sorted(self, key=lambda record: record.site) if record.fingerprint]
        if len(present) < 2:
            return ()
        prints = [tuple(sorted(record.fingerprint.items())) for record in present]
        counts = Counter(prints)
        most = max(counts.values())
        common = dict(next(one for one in prints if counts[one] == most))
        found = []
        for record in present:
            mine = dict(record.fingerprint)
            names = tuple(sorted(name for name in {*mine, *common} if mine.get(name) != common.get(name)))
            if names:
                found.append(Difference(record.site, names))
        return tuple(found)

    def plan(self, members: frozenset[int], edges: Iterable[Edge]) -> RunPlan:
        """The plan for these members, from their records: the next epoch, and the newest state that fits."""
        who = tuple(sorted(members))
        records = [self[site] for site in who]
        epoch = 1 + max(record.epoch for record in self)
        rows = digest_of_members(who)
        common = set.intersection(*({one for one in record.offer.kept if one.members == rows} for record in records))
        best = max(common, key=lambda one: (one.iteration, one.key), default=None)
        reached = max(record.offer.reached for record in records)
        source = next(record.site for record in records if record.offer.reached == reached) if reached >= 0 else -1
        return RunPlan(
            epoch,
            who,
            tuple(record.identity for record in records),
            tuple(sorted(edges)),
            best.key if best is not None else b"",
            best.iteration if best is not None else -1,
            -1 if best is not None else source,
        )
