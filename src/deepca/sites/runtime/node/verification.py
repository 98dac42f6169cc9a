"""Verify signed records and claims, whichever neighbour passes them on."""

from __future__ import annotations

import logging

from deepca._util.logs import EventLogger
from deepca.errors import FrameError
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.protocol.claims import Claims, Endorsement
from deepca.sites.protocol.records import Record
from deepca.sites.runtime.node.abort_reasons import AbortReasons
from deepca.sites.runtime.node.context import NodeContext

__all__ = ["Verification"]

_logger = logging.getLogger(__name__)

_MAX_LOGGED = 64  # maximum number of distinct refusals to log, so that a hostile site cannot fill the log


class Verification:
    """Check the signatures on records and claims; log the first ``_MAX_LOGGED`` distinct refusals."""

    def __init__(self, context: NodeContext, claims: Claims, abort_reasons: AbortReasons) -> None:
        self._context, self._claims, self._abort_reasons = context, claims, abort_reasons
        self._log = EventLogger(_logger, context.name(context.me))
        self._refused: set[tuple[int, str, str]] = set()

    def record(self, peer: int, signed_record: wire.Sealed) -> Record | None:
        """Return the record that a site has signed, or None if its signature is refused.

        Raises FrameError for a malformed or invalid record. If only the record's own site can have written it, the run
        also ends, with an error that names that site.
        """
        context, content = self._context, wire.Record()
        sites = len(context.config.sites)
        try:
            content.ParseFromString(signed_record.record)
        except Exception:  # the import path of protobuf's DecodeError is not stable
            raise FrameError("a malformed record") from None
        if content.site >= sites:
            raise FrameError("a record of a site that is not in the list of sites")
        fault = context.signatures.record_problem(content.site, signed_record)
        if fault:  # the neighbour that passed the record on may not be at fault
            context.links[peer].stale += 1
            self._log_refusal(peer, content.site, "a record", fault)
            return None
        try:
            return Record.from_wire(content, sites)
        except FrameError as error:
            if content.site == peer or (context.signatures.unforgeable and content.site != context.me):
                self._abort_reasons.accuse(
                    content.site, f"sent a record about itself that no honest site can send: {error}"
                )
            raise FrameError(f"{error} (a record of {context.name(content.site)})") from None

    def endorsement(self, peer: int, endorsement: Endorsement) -> bool:
        """Return whether an endorsement is signed by its site, for this run."""
        if endorsement in self._claims:  # only verified endorsements are added to the claims
            return True
        fault = self._context.signatures.endorsement_problem(endorsement)
        if fault:
            self._log_refusal(peer, endorsement.site, "a signature on a result", f"not valid for this run ({fault})")
            return False
        return True

    def _log_refusal(self, peer: int, site: int, what: str, fault: str) -> None:
        """Log a refusal, unless the same one or ``_MAX_LOGGED`` others have been logged."""
        if (site, what, fault) in self._refused or len(self._refused) >= _MAX_LOGGED:
            return
        self._refused.add((site, what, fault))
        name, where = self._context.name(site), self._context.name(peer)
        text = f"refused {what} by {name}, received from {where}: {fault}"
        self._log.warning(text, event="refused", facts={"peer": name, "where": where, "why": fault})
