"""Claims that some bytes are the result of an epoch, and the signatures of the sites that have compared them.

A claim names the epoch, the plan that was followed, its members, and the SHA-256 of a model file. A site endorses a
claim when every field of that file is what it computed itself. Nobody believes a claim because one site makes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from deepca.errors import FrameError
from deepca.sites.protocol import wire_pb2 as wire

__all__ = ["Claims", "Endorsement", "ResultClaim"]

_MOST_KEPT = 8  # endorsements of one site; an honest one signs once per epoch
_MOST = 1 << 62


@dataclass(frozen=True, order=True)
class ResultClaim:
    """``outcome``, the SHA-256 of a model file, is the result of these members in this epoch, by this plan."""

    epoch: int
    plan: bytes
    members: tuple[int, ...]
    outcome: bytes

    @property
    def proposer(self) -> int:
        """The member whose model the others compare with their own: nobody else's signature comes first."""
        return self.members[0]

    def to_wire(self) -> wire.Claim:
        return wire.Claim(epoch=self.epoch, plan=self.plan, members=self.members, outcome=self.outcome)

    @classmethod
    def from_wire(cls, claim: wire.Claim, sites: int) -> ResultClaim:
        """Read a claim; raise FrameError for one that no site could make."""
        members = tuple(claim.members)
        sane = (
            0 < claim.epoch < _MOST
            and len(claim.plan) == len(claim.outcome) == 32
            and bool(members)
            and members == tuple(sorted(set(members)))
            and members[-1] < sites
        )
        if not sane:
            raise FrameError("a claim about a result that makes no sense")
        return cls(claim.epoch, claim.plan, members, claim.outcome)


@dataclass(frozen=True)
class Endorsement:
    """A site's signature under a claim. certificate : DER; both are empty where sites have no certificates."""

    site: int
    claim: ResultClaim
    certificate: bytes = b""
    signature: bytes = b""

    @property
    def statement(self) -> bytes:
        """What is signed, but for the domain and the run."""
        claim = self.claim
        said = [self.site, claim.epoch, claim.plan.hex(), claim.members, claim.outcome.hex()]
        return json.dumps(said).encode()

    def to_wire(self) -> wire.Endorsement:
        return wire.Endorsement(
            site=self.site, claim=self.claim.to_wire(), certificate=self.certificate, signature=self.signature
        )

    @classmethod
    def from_wire(cls, said: wire.Endorsement, sites: int) -> Endorsement:
        """Read an endorsement; raise FrameError for one of a site that is no member. The signature is not checked."""
        claim = ResultClaim.from_wire(said.claim, sites)
        if said.site not in claim.members:
            raise FrameError("an endorsement by a site that is no member")
        return cls(said.site, claim, said.certificate, said.signature)


class Claims:
    """The endorsements known here; whoever adds one has verified it."""

    def __init__(self) -> None:
        self._of: dict[int, list[Endorsement]] = {}  # by site, oldest epoch first

    def add(self, endorsement: Endorsement) -> bool:
        """Whether it is news."""
        kept = self._of.setdefault(endorsement.site, [])
        if any(one.claim == endorsement.claim for one in kept):
            return False
        kept.append(endorsement)
        kept.sort(key=lambda one: one.claim.epoch)
        del kept[:-_MOST_KEPT]
        return True

    def __contains__(self, endorsement: Endorsement) -> bool:
        return endorsement in self._of.get(endorsement.site, ())

    def extend(self, endorsements: Iterable[Endorsement]) -> None:
        for one in endorsements:
            self.add(one)

    def __iter__(self) -> Iterator[ResultClaim]:
        """All claims, the latest epoch first."""
        found = {one.claim for kept in self._of.values() for one in kept}
        return iter(sorted(found, reverse=True))

    def endorsements(self, claim: ResultClaim) -> tuple[Endorsement, ...]:
        return tuple(one for kept in self._of.values() for one in kept if one.claim == claim)

    def proposal(self, claim: ResultClaim) -> Endorsement | None:
        """The signature of the proposer, on which all others rest."""
        return next((one for one in self.endorsements(claim) if one.site == claim.proposer), None)

    def signers(self, claim: ResultClaim) -> frozenset[int]:
        return frozenset(one.site for one in self.endorsements(claim))

    def about(self, outcome: bytes) -> tuple[Endorsement, ...]:
        """All endorsements of claims about these bytes."""
        return tuple(one for kept in self._of.values() for one in kept if one.claim.outcome == outcome)
