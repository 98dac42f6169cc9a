"""Verify signed records and claims, whichever neighbour passes them on."""

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

_MAX_LOGGED = 64  # distinct refusals to log, so that a hostile site cannot fill the log


class Verification:
    """Check the signatures on records and claims, and log those that are refused."""

    def __init__(self, context: NodeContext, claims: Claims, faults: Faults) -> None:
        self._context, self._claims, self._faults = context, claims, faults
        self._log = EventLogger(_logger, context.name(context.me))
        self._refused: set[tuple[int, str]] = set()

    def record(self, peer: int, sealed: wire.Sealed) -> Record | None:
        """Return the record that a site has signed, or None if its signature is refused.

        Raises FrameError for a malformed or invalid record. If only the record's own site can have written it, the run
        also ends, with an error that names that site.
        """
        context, content = self._context, wire.Record()
        sites = len(context.membership.sites)
        try:
            content.ParseFromString(sealed.record)
        except Exception:  # the import path of protobuf's DecodeError is not stable
            raise FrameError("a malformed record") from None
        if content.site >= sites:
            raise FrameError("a record of a site that is not in the list of sites")
        fault = context.seals.record_problem(content.site, sealed)
        if fault:  # the neighbour that passed the record on may not be at fault
            context.links[peer].stale += 1
            self._refuse(peer, content.site, fault)
            return None
        try:
            return Record.from_wire(content, sites)
        except FrameError as error:
            if content.site == peer or (context.seals.unforgeable and content.site != context.me):
                self._faults.accuse(content.site, f"sent a record of itself that no honest site can send: {error}")
            raise FrameError(f"{error}, of {context.name(content.site)}") from None

    def endorsement(self, peer: int, endorsement: Endorsement) -> bool:
        """Return whether an endorsement is signed by its site, for this run."""
        if endorsement in self._claims:  # only verified endorsements are added to the claims
            return True
        fault = self._context.seals.endorsement_problem(endorsement)
        if fault:
            self._refuse(peer, endorsement.site, f"its signature of a result is not valid for this run ({fault})")
            return False
        return True

    def _refuse(self, peer: int, site: int, fault: str) -> None:
        """Log a refusal once."""
        if (site, fault) in self._refused or len(self._refused) >= _MAX_LOGGED:
            return
        self._refused.add((site, fault))
        name, where = self._context.name(site), self._context.name(peer)
        text = f"refused a record of {name}, passed on by {where}: {fault}"
        self._log.warning(text, event="refused", facts={"peer": name, "where": where, "why": fault})
