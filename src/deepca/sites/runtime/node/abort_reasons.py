"""Decide when a site has to end its run: because of its own errors, or those that other members report."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from deepca.errors import (
    BadArray,
    DataError,
    DisclosureError,
    DisputedResult,
    GapError,
    InvalidInput,
    NotFiniteError,
    PeerFailed,
    PeerFault,
    PooledDataError,
    Regroup,
    SumMismatch,
    Unfinished,
)
from deepca.sites.protocol.failures import Failure
from deepca.sites.protocol.records import RunPlan
from deepca.sites.runtime.node.context import NodeContext

__all__ = ["AbortReasons", "failure_of", "for_others"]


class AbortReasons:
    """The reasons to end the run at this site, which the blocking calls of the algorithm raise."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._error: BaseException | None = None
        self._culprit: PeerFault | None = None  # about a site that has signed an invalid record
        self._misconfiguration: InvalidInput | None = None
        self._strangers: set[int] = set()  # neighbours that belong to another network
        # by site and plan: when this site first heard of an error that every member should find
        self._gave_up: dict[tuple[int, bytes], float] = {}

    # -------------------------------------------------------------------------------------------------------- reporting

    def abort(self, error: BaseException) -> None:
        """End the run with an error raised in another thread of this agent."""
        self._error = error
        self._context.changed.notify_all()

    def accuse(self, site: int, what: str) -> None:
        """End the run because a site has signed an invalid record; ``what`` is a predicate to follow its name."""
        self._culprit = PeerFault(self._context.name(site), what)
        self._context.changed.notify_all()

    def report_misconfiguration(self, why: str, parameter: str) -> None:
        """End the run because of the key ``parameter`` in this site's network.toml or site.toml."""
        self._misconfiguration = InvalidInput(why, parameter=parameter, agent=self._context.me)
        self._context.changed.notify_all()

    def note_wrong_network(self, peer: int) -> None:
        """Record a neighbour of another network; if all are, end the run, since this site may be the one at fault."""
        links, here = self._context.links, self._context.assembly
        self._strangers.add(peer)
        if self._strangers.issuperset(links) and here.plan is None:
            names = ", ".join(here.names(links))
            self.report_misconfiguration(
                f"{here.name(self._context.me)} and {names} have different network names or lists of sites; all sites "
                "need the same network.toml (including names and order of [[sites]]), so compare this site's file with "
                "theirs",
                parameter="sites",
            )

    def note_right_network(self, peer: int) -> None:
        """Record that a neighbour belongs to this network."""
        self._strangers.discard(peer)

    # --------------------------------------------------------------------------------------------------------- checking

    def check(self, waiting_for: Collection[int] = ()) -> None:
        """Raise the reason to end the run, if any: an error reported here, or Unfinished at the deadline.

        ``waiting_for`` are the sites whose messages are due.
        """
        if self._error is not None:
            raise self._error
        if self._culprit is not None:
            raise self._culprit
        if self._misconfiguration is not None:
            raise self._misconfiguration
        context, here = self._context, self._context.assembly
        if context.clock.now() - context.began < context.policy.deadline:
            return
        awaited = here.names(here.everyone - here.present or waiting_for)
        differing = here.names({one.site for one in here.table.differences()})
        raise Unfinished(
            f"the deadline of {context.policy.deadline:g} s has passed"
            + (f" while waiting for {', '.join(awaited)}" if awaited else "")
            + (
                f"; the settings or columns of {', '.join(differing)} differ from those of most sites"
                if differing
                else ""
            )
            + "; the run is unfinished; when all agents are started again, it resumes from its checkpoints, if any",
            awaited=awaited,
            differing=differing,
        )

    def check_undisturbed(self, plan: RunPlan) -> None:
        """Raise Regroup if the plan can no longer be followed, or the error that another member reports."""
        here = self._context.assembly
        if here.plan is not plan:
            raise Regroup("another epoch has started")
        if here.disturbance and not self.check_members(plan):
            raise Regroup(here.disturbance)

    def check_members(self, plan: RunPlan) -> bool:
        """Raise the error that another member reports, if it concerns this site as well.

        Returns whether a member reports an error that all members should find. The run does not end at once: this site
        has half of the patience to find the same error, for which the member's last messages may suffice.
        """
        context, name = self._context, self._context.name
        failed = {
            record.site: record.failure
            for record in context.assembly.table
            if record.phase == "failed" and record.failure is not None and record.plan == plan.digest
        }
        for site, failure in sorted(failed.items()):
            who, accused = name(site), name(failure.accused)
            if failure.kind == "contradiction":
                raise DisputedResult(accused, failure.what, by=who)
            # only a neighbour receives arrays from a site and can accuse it of one
            if failure.kind == "array" and (min(site, failure.accused), max(site, failure.accused)) in plan.edges:
                raise BadArray(accused, failure.what, phase=failure.phase, iteration=failure.iteration, by=who)
        common = {site: failure.why for site, failure in sorted(failed.items()) if failure.kind == "common"}
        now = context.clock.now()
        for site, why in common.items():
            if now - self._gave_up.setdefault((site, plan.digest), now) >= 0.5 * context.policy.patience:
                raise PeerFailed(
                    f"{name(site)} stopped with an error that this site cannot reproduce: {why!r}. Ask the operator "
                    f"of {name(site)} to check its log, then restart all agents"
                )
        return bool(common)


def for_others(error: Exception) -> str:
    """Return a description of an error here for other sites, without any value or path of this site."""
    few_rows = isinstance(error, DisclosureError) and error.rule == "min_rows"
    if isinstance(error, PooledDataError | GapError | NotFiniteError | SumMismatch):
        return str(error)
    if isinstance(error, DisclosureError) and error.rule == "max_directions":
        return str(error)  # all its numbers are agreed
    if isinstance(error, DataError) or few_rows:
        return "its rows cannot be used; the reason is in its own log"
    if isinstance(error, OSError) and error.strerror:
        return f"its operating system reports: {error.strerror}"
    return "the details are in its own log, which its operator should check"


def failure_of(why: str, error: BaseException | None, *, common: bool, sites: Sequence[str]) -> Failure:
    """Return the failure to publish when this site gives up.

    Parameters
    ----------
    why : str
        The reason, in words that other sites may read.
    error : BaseException or None
        The error; if it accuses a site, its attributes are included.
    common : bool
        Whether all members should find the same error.
    sites : sequence of str
        Names of all sites.
    """
    if not isinstance(error, PeerFault) or error.site not in sites:
        return Failure("common" if common else "site", why)
    accused = sites.index(error.site)
    if error.by is not None:
        return Failure("follows", why, accused)
    if isinstance(error, BadArray):
        return Failure("array", str(error), accused, error.what, error.phase, error.iteration)
    return Failure("contradiction", str(error), accused, error.what)
