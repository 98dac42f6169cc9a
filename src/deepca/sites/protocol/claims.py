"""Claims that a model file is the result of an epoch, and the signatures of the sites that verified it.

A claim consists of the epoch, the plan that was followed, its members, and the SHA-256 digest of a model file. A site
endorses a claim if every field of that file agrees with what it computed itself. A claim by one site proves nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from deepca.errors import FrameError
from deepca.sites.protocol import wire_pb2 as wire

__all__ = ["Claims", "Endorsement", "ResultClaim"]

_MAX_ENDORSEMENTS = 8  # maximum number kept per site; an honest site signs once per epoch
_EPOCH_LIMIT = 1 << 62  # leaves room to count further in 64 bits


@dataclass(frozen=True, order=True)
class ResultClaim:
    """A claim that a model file is the result of an epoch.

    Parameters
    ----------
    epoch : int
        The epoch.
    plan : bytes
        Digest of the plan that was followed.
    members : tuple of int
        Indices of the sites that took part, in increasing order.
    outcome : bytes
        SHA-256 digest of the model file.
    """

    epoch: int
    plan: bytes
    members: tuple[int, ...]
    outcome: bytes

    @property
    def proposer(self) -> int:
        """The member whose model all others compare with their own; it signs first."""
        return self.members[0]

    def to_wire(self) -> wire.Claim:
        """Return the message for this claim."""
        return wire.Claim(epoch=self.epoch, plan=self.plan, members=self.members, outcome=self.outcome)

    @classmethod
    def from_wire(cls, claim: wire.Claim, sites: int) -> ResultClaim:
        """Read a claim; raise FrameError if it is malformed."""
        members = tuple(claim.members)
        valid = (
            0 < claim.epoch < _EPOCH_LIMIT
            and len(claim.plan) == len(claim.outcome) == 32
            and bool(members)
            and members == tuple(sorted(set(members)))
            and members[-1] < sites
        )
        if not valid:
            raise FrameError("a malformed claim about a result")
        return cls(claim.epoch, claim.plan, members, claim.outcome)


@dataclass(frozen=True)
class Endorsement:
    """A site's signature on a claim, and its certificate in DER; both are empty if the network has no certificates."""

    site: int
    claim: ResultClaim
    certificate: bytes = b""
    signature: bytes = b""

    @property
    def statement(self) -> bytes:
        """The bytes to sign, before which signatures put a label and a digest of the run."""
        claim = self.claim
        content = [self.site, claim.epoch, claim.plan.hex(), claim.members, claim.outcome.hex()]
        return json.dumps(content).encode()

    def to_wire(self) -> wire.Endorsement:
        """Return the message for this endorsement."""
        return wire.Endorsement(
            site=self.site, claim=self.claim.to_wire(), certificate=self.certificate, signature=self.signature
        )

    @classmethod
    def from_wire(cls, message: wire.Endorsement, sites: int) -> Endorsement:
        """Read an endorsement without verifying it; raise FrameError if its claim is malformed or lacks its site."""
        claim = ResultClaim.from_wire(message.claim, sites)
        if message.site not in claim.members:
            raise FrameError("an endorsement by a site that is not a member")
        return cls(message.site, claim, message.certificate, message.signature)


class Claims:
    """The endorsements known at this site, at most the last few of each; callers verify them before they add them."""

    def __init__(self) -> None:
        self._by_site: dict[int, list[Endorsement]] = {}  # oldest epoch first

    def add(self, endorsement: Endorsement) -> bool:
        """Add an endorsement and return True, unless its site is known to have endorsed the same claim."""
        kept = self._by_site.setdefault(endorsement.site, [])
        if any(one.claim == endorsement.claim for one in kept):
            return False
        kept.append(endorsement)
        kept.sort(key=lambda one: one.claim.epoch)
        del kept[:-_MAX_ENDORSEMENTS]
        return True

    def __contains__(self, endorsement: Endorsement) -> bool:
        """Return whether an endorsement is known."""
        return endorsement in self._by_site.get(endorsement.site, ())

    def extend(self, endorsements: Iterable[Endorsement]) -> None:
        """Add several endorsements."""
        for one in endorsements:
            self.add(one)

    def __iter__(self) -> Iterator[ResultClaim]:
        """Iterate over all claims, the latest epoch first."""
        found = {one.claim for kept in self._by_site.values() for one in kept}
        return iter(sorted(found, reverse=True))

    def endorsements(self, claim: ResultClaim) -> tuple[Endorsement, ...]:
        """Return all known endorsements of a claim."""
        return tuple(one for kept in self._by_site.values() for one in kept if one.claim == claim)

    def proposal(self, claim: ResultClaim) -> Endorsement | None:
        """Return the proposer's endorsement of a claim, without which no other counts; None if it is unknown."""
        return next((one for one in self.endorsements(claim) if one.site == claim.proposer), None)

    def signers(self, claim: ResultClaim) -> frozenset[int]:
        """Return the sites that have endorsed a claim."""
        return frozenset(one.site for one in self.endorsements(claim))

    def about(self, outcome: bytes) -> tuple[Endorsement, ...]:
        """Return all endorsements of claims about the model file with this digest."""
        return tuple(one for kept in self._by_site.values() for one in kept if one.claim.outcome == outcome)
