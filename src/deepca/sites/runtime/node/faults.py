"""Reasons for a site to end its run, its own and those that other members report."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from deepca.errors import (
    BadArray,
    DataError,
    DisputedResult,
    GapError,
    InvalidInput,
    NotFiniteError,
    PeerFailed,
    PeerFault,
    PooledDataError,
    Regroup,
    Unfinished,
)
from deepca.sites.protocol.records import Failure, RunPlan
from deepca.sites.runtime.node.context import NodeContext

__all__ = ["Faults", "failure_of", "for_others"]


class Faults:
    """Reasons to end the run here, raised by the calls that the algorithm waits in."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._broken: BaseException | None = None
        self._culprit: PeerFault | None = None  # a site that has sealed a record that makes no sense
        self._misconfigured = ""
        self._strangers: set[int] = set()  # neighbours of another network
        self._gave_up: dict[tuple[int, bytes], float] = {}  # since when sites say that nobody can follow a plan

    # -------------------------------------------------------------------------------------------------------- reporting

    def broken(self, error: BaseException) -> None:
        """End the run with the error of a thread of this agent."""
        self._broken = error
        self._context.changed.notify_all()

    def accuse(self, site: int, what: str) -> None:
        """End the run because of a site that has sealed a record that makes no sense."""
        self._culprit = PeerFault(self._context.name(site), what)
        self._context.changed.notify_all()

    def misconfigured(self, why: str) -> None:
        """End the run because of how this site was set up."""
        self._misconfigured = why
        self._context.changed.notify_all()

    def wrong_network(self, peer: int) -> None:
        """Note a neighbour of another network: where all are, it is this site that is wrong, or one cannot tell."""
        links, here = self._context.links, self._context.assembly
        self._strangers.add(peer)
        if self._strangers.issuperset(links) and here.plan is None:
            names = ", ".join(here.names(links))
            self.misconfigured(
                f"{names}: another network, or another list of sites, than here; give all sites the same network.toml "
                "(names and order of [[sites]] count)"
            )

    def right_network(self, peer: int) -> None:
        """Note that a neighbour is of this network."""
        self._strangers.discard(peer)

    # --------------------------------------------------------------------------------------------------------- checking

    def check(self, waiting_for: Collection[int] = ()) -> None:
        """Raise the reason to end the run if there is one: Unfinished at the deadline, or an error reported above."""
        if self._broken is not None:
            raise self._broken
        if self._culprit is not None:
            raise self._culprit
        if self._misconfigured:
            raise InvalidInput(self._misconfigured)
        context, here = self._context, self._context.assembly
        if context.clock.now() - context.began < context.policy.deadline:
            return
        names = ", ".join(here.names(here.everyone - here.present or waiting_for))
        raise Unfinished(
            f"the deadline of {context.policy.deadline:g} s has passed"
            + (f" while waiting for {names}" if names else "")
            + "; the run is unfinished, and goes on from its checkpoints when all agents are started again"
        )

    def check_undisturbed(self, plan: RunPlan) -> None:
        """Raise Regroup where the plan cannot be followed any more, or the error that a member has found in it."""
        here = self._context.assembly
        if here.plan is not plan:
            raise Regroup("another epoch has begun")
        if here.disturbance and not self.check_members(plan):
            raise Regroup(here.disturbance)

    def check_members(self, plan: RunPlan) -> bool:
        """Give up for a reason that another member has found, and that holds here as well.

        Returns whether a member says that nobody can follow the plan. It is not believed, but what it has sent before
        may be all that it takes to see for oneself, for which there is half of patience.
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
            # who has not been sent anything by a site cannot accuse it
            if failure.kind == "array" and (min(site, failure.accused), max(site, failure.accused)) in plan.edges:
                raise BadArray(accused, failure.what, phase=failure.phase, iteration=failure.iteration, by=who)
        common = {site: failure.why for site, failure in sorted(failed.items()) if failure.kind == "common"}
        now = context.clock.now()
        for site, why in common.items():
            if now - self._gave_up.setdefault((site, plan.digest), now) >= 0.5 * context.policy.patience:
                raise PeerFailed(
                    f"{name(site)} has given up and says why: {why!r}. That is not seen here; look at that site, "
                    "then start all agents again"
                )
        return bool(common)


def for_others(error: Exception) -> str:
    """Return what the other sites are told of an error here: nothing that could hold a value or a path of this site."""
    if isinstance(error, PooledDataError | GapError | NotFiniteError):
        return str(error)
    if isinstance(error, DataError):
        return "its rows cannot be used; its own log says why"
    if isinstance(error, OSError) and error.strerror:
        return f"its machine says: {error.strerror}"
    return "something has to be mended there; its own log says what"


def failure_of(why: str, error: BaseException | None, *, common: bool, sites: Sequence[str]) -> Failure:
    """Return what the other sites are told when this one gives up.

    error : the reason, whose facts are told where it accuses a site.  common : whether it holds for all alike.
    """
    if not isinstance(error, PeerFault) or error.site not in sites:
        return Failure("common" if common else "site", why)
    accused = sites.index(error.site)
    if error.by is not None:
        return Failure("follows", why, accused)
    if isinstance(error, BadArray):
        return Failure("array", str(error), accused, error.what, error.phase, error.iteration)
    return Failure("contradiction", str(error), accused, error.what)
