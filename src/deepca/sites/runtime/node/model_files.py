"""Store and exchange the model files that sites claim to be the result."""

from __future__ import annotations

import hashlib

from deepca.errors import FrameError
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.protocol.claims import Claims, Endorsement, ResultClaim
from deepca.sites.protocol.parcels import Parcel
from deepca.sites.runtime.node.context import NodeContext
from deepca.sites.runtime.node.verification import Verification

__all__ = ["ModelFiles"]

_REQUEST_INTERVAL = 0.5  # seconds between requests for a file to one neighbour, which may not have it yet
_RESEND_INTERVAL = 5.0  # seconds before a file is sent to a neighbour again: the first copy may still be on its way
_NEVER = float("-inf")


class ModelFiles:
    """Model files, each kept as long as a claim refers to it.

    Attributes
    ----------
    contents : dict of bytes to bytes
        The files, keyed by SHA-256 digest.
    asked : dict of tuple to float
        When each neighbour was last asked for each file, keyed by neighbour and digest.
    """

    def __init__(self, context: NodeContext, claims: Claims, verification: Verification) -> None:
        self._context, self._claims, self._verification = context, claims, verification
        self.contents: dict[bytes, bytes] = {}
        self.asked: dict[tuple[int, bytes], float] = {}
        self._sent: dict[tuple[int, bytes], float] = {}

    def obtain(self, claim: ResultClaim) -> bool:
        """Return whether this site has the file of a claim; if it does not, ask neighbours for it."""
        digest, now = claim.outcome, self._context.clock.now()
        if digest in self.contents:
            return True
        self._forget()
        for peer, link in self._context.links.items():
            if link.up and now - self.asked.get((peer, digest), _NEVER) > _REQUEST_INTERVAL:
                self.asked[peer, digest] = now
                link.send(Parcel(wire.Parcel(wanted=wire.Wanted(outcome=digest)).SerializeToString()))
        return False

    def send(self, peer: int, digest: bytes) -> None:
        """Send a file and all its known endorsements, unless they were sent shortly before."""
        content, now = self.contents.get(digest), self._context.clock.now()
        if content is None or now - self._sent.get((peer, digest), _NEVER) < _RESEND_INTERVAL:
            return
        self._sent[peer, digest] = now
        known = [one.to_wire() for one in self._claims.about(digest)]
        header = wire.Parcel(outcome=wire.Outcome(outcome=digest, endorsements=known))
        self._context.links[peer].send(Parcel(header.SerializeToString(), (memoryview(content),)))

    def receive(self, peer: int, message: wire.Outcome, body: bytes | bytearray) -> None:
        """Store a file that was asked for, and its endorsements; raise FrameError if no claim refers to the file."""
        if (peer, message.outcome) not in self.asked:  # otherwise a neighbour could fill this site's memory
            self._context.links[peer].stale += 1
            return
        digest = hashlib.sha256(body).digest()
        for received in message.endorsements:
            one = Endorsement.from_wire(received, len(self._context.config.sites))
            if one.claim.outcome == digest and self._verification.endorsement(peer, one):
                self._claims.add(one)
        if digest != message.outcome or not self._claims.about(digest):
            raise FrameError("a result that no site has announced")
        self.contents[digest] = bytes(body)
        self._context.changed.notify_all()

    def restarted(self, peer: int) -> None:
        """Handle a neighbour's restart, which loses requests and files in flight: forget that they were sent."""
        for known in (self.asked, self._sent):
            for key in [key for key in known if key[0] == peer]:
                del known[key]

    def _forget(self) -> None:
        """Drop files that no current claim refers to; only a few claims per site are kept, so memory stays bounded."""
        current = {claim.outcome for claim in self._claims}
        self.contents = {digest: content for digest, content in self.contents.items() if digest in current}
        self.asked = {key: when for key, when in self.asked.items() if key[1] in current}
        self._sent = {key: when for key, when in self._sent.items() if key[1] in current}
