"""Records that sites publish about themselves, and the plan of a run that follows from them.

Every site writes one record, about itself; records spread from neighbour to neighbour, and the newest of each site
counts. All sites with the same records derive the same plan, so that no leader is needed.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, cast, get_args

from deepca.errors import FrameError
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.protocol.claims import Endorsement
from deepca.sites.protocol.failures import Failure
from deepca.sites.protocol.incarnation import Incarnation

__all__ = [
    "Difference",
    "Edge",
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
# limits on a record; those of honest sites stay well below
_MAX_CHECKPOINTS, _MAX_FIELDS, _MAX_FINGERPRINT_BYTES = 8, 64, 1 << 18
_COUNTER_LIMIT = 1 << 62  # leaves room to count further in 64 bits
_MAX_EPOCHS_AHEAD = 1 << 20  # an honest site is never this many epochs ahead of the others


@dataclass(frozen=True)
class RecordedCheckpoint:
    """A checkpoint of a site.

    Parameters
    ----------
    iteration : int
        Iteration of its state.
    key : bytes
        Identifier that is the same at all sites for checkpoints that belong together.
    members : bytes
        Digest of the sites whose rows it covers.
    """

    iteration: int
    key: bytes
    members: bytes


@dataclass(frozen=True)
class Offer:
    """Contribution of a site to the next plan: the states that it can resume from, and its share of the seed.

    Parameters
    ----------
    kept : tuple of RecordedCheckpoint
        Its checkpoints.
    reached : int
        Iteration of its newest state, in memory or on disk; −1 for none.
    commitment : bytes
        Commitment to the random number that this site adds to the seed of the next plan; empty in an open network.
    """

    kept: tuple[RecordedCheckpoint, ...] = ()
    reached: int = -1
    commitment: bytes = b""


@dataclass(frozen=True)
class Record:
    """Facts that a site publishes about itself; wire.proto describes the fields."""

    site: int
    incarnation: Incarnation
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
    mask_key: bytes = b""

    @property
    def recency(self) -> tuple[Incarnation, int]:
        """Sort key of the records of one site; the newest record has the largest."""
        return self.incarnation, self.version

    def to_wire(self) -> wire.Record:
        """Return the message for this record."""
        return wire.Record(
            site=self.site,
            incarnation=self.incarnation.number,
            boot=self.incarnation.boot,
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
            mask_key=self.mask_key,
            commitment=self.offer.commitment,
        )

    @classmethod
    def from_wire(cls, record: wire.Record, sites: int) -> Record:
        """Read a record; raise FrameError if it is malformed."""
        malformed = (
            record.site >= sites
            or record.phase not in get_args(Phase)
            or len(record.kept) > _MAX_CHECKPOINTS
            or len(record.fingerprint) > _MAX_FIELDS
            or sum(len(name) + len(value) for name, value in record.fingerprint.items()) > _MAX_FINGERPRINT_BYTES
            or max(record.incarnation, record.version, record.epoch) >= _COUNTER_LIMIT
            or record.boot == 0
            or record.reached < -1
            or any(link >= sites for link in record.links)
            or len(record.plan) not in (0, 32)
            or any(len(part) not in (0, 32) for part in (record.computed, record.mask_key, record.commitment))
            or any(len(one.key) != 32 or len(one.members) != 32 or one.iteration < 0 for one in record.kept)
        )
        if malformed:
            raise FrameError("a malformed record")
        kept = tuple(RecordedCheckpoint(one.iteration, one.key, one.members) for one in record.kept)
        endorsement = Endorsement.from_wire(record.endorsement, sites) if record.HasField("endorsement") else None
        if endorsement is not None and endorsement.site != record.site:
            raise FrameError("a record with an endorsement by another site")
        proposed = Endorsement.from_wire(record.proposed, sites) if record.HasField("proposed") else None
        if proposed is not None and (
            endorsement is None or proposed.claim != endorsement.claim or proposed.site != proposed.claim.proposer
        ):
            raise FrameError("a record whose endorsement and proposal disagree")
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
            Offer(kept, record.reached, record.commitment),
            record.computed,
            endorsement,
            failure,
            proposed,
            record.mask_key,
        )


@dataclass(frozen=True)
class RunPlan:
    """Members of an epoch, the links between them, and the state from which they continue.

    Parameters
    ----------
    epoch : int
        The epoch.
    members : tuple of int
        Indices of the sites that take part, in increasing order; agent j of the epoch is ``members[j]``.
    incarnations : tuple of Incarnation
        The members' incarnations, in the same order.
    edges : tuple of (int, int)
        Links between them.
    resume : bytes
        Key of the checkpoint that all members have; empty for none.
    iteration : int
        Iteration of that checkpoint; −1 for none.
    source : int
        Site whose W all members start from if they have no checkpoint in common; −1 for none.
    mask_keys, commitments : tuple of bytes
        The members' public keys for masks and commitments to random numbers; empty in an open network.
    """

    epoch: int
    members: tuple[int, ...]
    incarnations: tuple[Incarnation, ...]
    edges: tuple[Edge, ...]
    resume: bytes = b""
    iteration: int = -1
    source: int = -1
    mask_keys: tuple[bytes, ...] = ()
    commitments: tuple[bytes, ...] = ()

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 digest of all fields."""
        content = (
            self.epoch,
            self.members,
            [(one.number, one.boot) for one in self.incarnations],
            self.edges,
            self.resume.hex(),
            self.iteration,
            self.source,
            [key.hex() for key in self.mask_keys],
            [one.hex() for one in self.commitments],
        )
        return hashlib.sha256(json.dumps(content).encode()).digest()

    @property
    def proposer(self) -> int:
        """The member whose model all others compare with their own."""
        return self.members[0]

    @property
    def members_digest(self) -> bytes:
        """Digest of the members, whose rows the result covers."""
        return digest_of_members(self.members)


@dataclass(frozen=True)
class Difference:
    """A site that differs from most others, and the names of the fields in which it does."""

    site: int
    names: tuple[str, ...]


def digest_of_members(members: Iterable[int]) -> bytes:
    """Return the SHA-256 digest of a set of sites."""
    return hashlib.sha256(json.dumps(sorted(members)).encode()).digest()


class RecordTable:
    """The newest known record of every site."""

    def __init__(self, sites: int, edges: Iterable[Edge]) -> None:
        self.sites = sites
        self.edges = frozenset((min(edge), max(edge)) for edge in edges)
        self._records: dict[int, Record] = {}

    def __getitem__(self, site: int) -> Record:
        """Return the record of a site; raise KeyError if none is known."""
        return self._records[site]

    def get(self, site: int) -> Record | None:
        """Return the record of a site; None if none is known."""
        return self._records.get(site)

    def __iter__(self) -> Iterator[Record]:
        """Iterate over all records."""
        return iter(self._records.values())

    def put(self, record: Record) -> bool:
        """Store a record if it is newer than the known one; return whether it was stored."""
        known = self._records.get(record.site)
        if known is not None and known.recency >= record.recency:
            return False
        self._records[record.site] = record
        return True

    def up(self, edge: Edge) -> bool:
        """Return whether both ends of a link report that they reach each other."""
        ends = self.get(edge[0]), self.get(edge[1])
        return all(
            end is not None and end.phase != "failed" and other in end.links
            for end, other in zip(ends, reversed(edge), strict=True)
        )

    def reachable_from(self, me: int) -> frozenset[int]:
        """Return the sites that ``me`` reaches, directly or through others, itself included."""
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
        """Return whether any site has entered an epoch."""
        return any(record.epoch > 0 for record in self)

    def implausible_epoch(self, me: int) -> tuple[int, int] | None:
        """Return a site whose epoch is implausibly high, and the epoch that it was compared with; or None.

        Sites enter epochs one by one, together with most others, and never go back. All sites would have to follow a
        number that one of them made up, so an epoch is accepted only if it is close to the one that this site, ``me``,
        or most sites have entered.
        """
        entered = sorted((record.epoch for record in self), reverse=True)
        common = max(self[me].epoch, entered[self.sites // 2] if len(entered) > self.sites // 2 else 0)
        odd = min((record.site for record in self if record.epoch > common + _MAX_EPOCHS_AHEAD), default=None)
        return None if odd is None else (odd, common)

    def differences(self) -> tuple[Difference, ...]:
        """Return the sites whose fingerprint is not the most frequent one; ties go to the first site's."""
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
        """Derive the plan for these members from their records: the next epoch, and the newest state to resume from."""
        who = tuple(sorted(members))
        records = [self[site] for site in who]
        epoch = 1 + max(record.epoch for record in self)
        rows = digest_of_members(who)
        common = set.intersection(*({one for one in record.offer.kept if one.members == rows} for record in records))
        best = max(common, key=lambda one: (one.iteration, one.key), default=None)
        reached = max(record.offer.reached for record in records)
        source = next(record.site for record in records if record.offer.reached == reached) if reached >= 0 else -1
        if any(record.mask_key for record in records):
            source = -1  # a private run can be repeated from its seed, so it starts over where it cannot resume
        return RunPlan(
            epoch,
            who,
            tuple(record.incarnation for record in records),
            tuple(sorted(edges)),
            best.key if best is not None else b"",
            best.iteration if best is not None else -1,
            -1 if best is not None else source,
            tuple(record.mask_key for record in records),
            tuple(record.offer.commitment for record in records),
        )
