"""Verify what sites have sealed and signed, whoever hands it on."""

from __future__ import annotations

import logging

from deepca._util.logs import EventLogger
from deepca.errors import FrameError
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.protocol.claims import Claims, Endorsement
from deepca.sites.protocol.records import Record
from deepca.sites.runtime.node.context import NodeContext
from deepca.sites.runtime.node.faults import Faults

__all__ = ["Verification"]

_logger = logging.getLogger(__name__)

_MOST_REFUSED = 64  # kinds of refusals that people are told of


class Verification:
    """Check the seals of records and the signatures under claims; people are told of those that are refused."""

    def __init__(self, context: NodeContext, claims: Claims, faults: Faults) -> None:
        self._context, self._claims, self._faults = context, claims, faults
        self._log = EventLogger(_logger, context.name(context.me))
        self._refused: set[tuple[int, str]] = set()

    def record(self, peer: int, sealed: wire.Sealed) -> Record | None:
        """Return the record that a site has sealed, or None if the seal is refused.

        Raises FrameError for a record that cannot be read or makes no sense; where its site must have written it, the
        run ends with that site named.
        """
        context, said = self._context, wire.Record()
        sites = len(context.membership.sites)
        try:
            said.ParseFromString(sealed.record)
        except Exception:  # protobuf's own DecodeError has no stable home
            raise FrameError("a record that cannot be read") from None
        if said.site >= sites:
            raise FrameError("a record of a site that is not in the list")
        fault = context.seals.fault(said.site, sealed)
        if fault:  # not the fault of who hands it on, perhaps
            context.links[peer].stale += 1
            self._refuse(peer, said.site, fault)
            return None
        try:
            return Record.from_wire(said, sites)
        except FrameError as error:
            if said.site == peer or (context.seals.binding and said.site != context.me):
                self._faults.accuse(said.site, f"says of itself what no site can say: {error}")
            raise FrameError(f"{error}, of {context.name(said.site)}") from None

    def endorsement(self, peer: int, endorsement: Endorsement) -> bool:
        """Return whether an endorsement is signed by its site, for this run."""
        if endorsement in self._claims:  # only what was verified gets there
            return True
        fault = self._context.seals.endorsement_fault(endorsement)
        if fault:
            self._refuse(peer, endorsement.site, f"it signs a result of another run, or not at all ({fault})")
            return False
        return True

    def _refuse(self, peer: int, site: int, fault: str) -> None:
        if (site, fault) in self._refused or len(self._refused) >= _MOST_REFUSED:
            return
        self._refused.add((site, fault))
        name, where = self._context.name(site), self._context.name(peer)
        text = f"a record of {name}, handed on by {where}, is not accepted: {fault}"
        self._log.warning(text, event="refused", facts={"peer": name, "where": where, "why": fault})
