"""Describe what an agent is doing and which sites it waits for, for screen, log and final message."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from deepca._util.logs import EventLogger
from deepca.sites.config.site_file import SiteFile
from deepca.sites.runtime.clocks import in_background
from deepca.sites.runtime.node import LinkSnapshot, NodeSnapshot
from deepca.solver.observers import Start, Step
from deepca.solver.result import Result
from deepca.solver.stopping import Agreed, error_estimate

__all__ = ["AgentSnapshot", "Wait", "Watch", "Watched", "span"]

_logger = logging.getLogger(__name__)

WAIT_POLL_INTERVAL = 0.5  # seconds between checks of what the agent is waiting for
MIN_LOGGED_WAIT = 2.0  # seconds of waiting before it is logged: shorter waits are normal
_REMINDER_INTERVALS = (60.0, 900.0)  # seconds between log lines about the same wait: first and longest interval
_RATE_WINDOW = 9  # number of iterations from which the rate of convergence is estimated
_STALLED_AFTER = 5.0  # seconds without an iteration after which the agent counts as waiting
_REPORTED_SKEW = 5.0  # smallest clock skew to show, in seconds; smaller ones are harmless


class Watched(Protocol):
    """An agent whose status is followed, such as :class:`deepca.sites.runtime.agent.Agent`."""

    @property
    def node(self) -> Any:
        """Its node."""

    @property
    def streams(self) -> Any:
        """Its streams."""


@dataclass(frozen=True)
class Wait:
    """Sites that the agent is waiting for, and why.

    Parameters
    ----------
    sites : tuple of str
        Names of these sites; empty if ``why`` says what the agent is waiting for instead.
    why : str
        The reason.
    seconds : float or None
        How long it has been waiting, if known.
    details : tuple of str
        Further facts that may help to find the cause.
    """

    sites: tuple[str, ...]
    why: str
    seconds: float | None = None
    details: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The wait in words, such as "south: unreachable for 12 s"."""
        since = "" if self.seconds is None else f" for {span(self.seconds)}"
        return f"{', '.join(self.sites)}: {self.why}{since}" if self.sites else f"{self.why}{since}"


@dataclass(frozen=True)
class AgentSnapshot:
    """Snapshot of an agent's activity.

    Parameters
    ----------
    doing : str
        Its activity, in a few words.
    epoch : int
        Current epoch.
    members : int
        Number of sites that take part.
    waits : tuple of Wait
        What it is waiting for.
    iteration, change, disagreement : int or float, optional
        Latest iteration, and the newest change and disagreement that all sites know.
    left : float, optional
        Estimated seconds until the tolerance is met.
    links : tuple of LinkSnapshot
        Its links, with clock skew only where it is large enough to matter.
    """

    doing: str
    epoch: int = 0
    members: int = 0
    waits: tuple[Wait, ...] = ()
    iteration: int | None = None
    change: float | None = None
    disagreement: float | None = None
    left: float | None = None
    links: tuple[LinkSnapshot, ...] = ()

    @property
    def sent(self) -> int:
        """Bytes sent over all links."""
        return sum(link.sent_bytes for link in self.links)

    @property
    def received(self) -> int:
        """Bytes received over all links."""
        return sum(link.received_bytes for link in self.links)

    @property
    def waiting(self) -> str:
        """All waits in words; empty if there are none."""
        return "waiting for " + "; ".join(wait.text for wait in self.waits) if self.waits else ""


@dataclass(frozen=True)
class _Steps:
    """Progress of the iterations, from which the remaining time is estimated."""

    began: float
    at: float  # time of the last iteration
    tol: float | None
    iteration: int
    history: tuple[Agreed, ...] = ()  # newest last; the numbers that all sites know
    error: float = math.inf  # estimated remaining error, an angle
    worst: tuple[float, float] = (0.0, 0.0)  # largest estimate so far, and its time
    ended: bool = False

    @property
    def change(self) -> float | None:
        """Change of the subspace in the newest numbers that all sites know."""
        return self.history[-1].change if self.history else None

    @property
    def disagreement(self) -> float | None:
        """Disagreement between sites in the newest numbers that all sites know."""
        return self.history[-1].disagreement if self.history else None

    def after(self, step: Step, now: float) -> _Steps:
        """Return the progress after one more iteration."""
        agreed, history = step.agreed, self.history
        if agreed is None or (history and history[-1].t == agreed.t):
            return replace(self, at=now, iteration=step.after.t)
        history = (*history, agreed)[-_RATE_WINDOW:]
        error = error_estimate(history)
        worst = (error, now) if self.worst[0] < error < math.inf else self.worst
        return replace(self, at=now, iteration=step.after.t, history=history, error=error, worst=worst)

    @property
    def left(self) -> float | None:
        """Seconds until the tolerance is met at the rate so far; None while no estimate is possible."""
        worst, since = self.worst
        if self.ended or self.tol is None or not self.error < 0.5 * worst or self.at - self.began < 2.0:
            return None
        if self.error <= self.tol:
            return 0.0
        return (self.at - since) * math.log(self.error / self.tol) / math.log(worst / self.error)


class Watch:
    """Follow an agent through its events, its iterations and the state of its node.

    A watch logs "progress" and "waiting" events, so that a log shows the status even without a screen. It has no lock:
    the node logs while its lock is held, so a lock held here while calling the node could deadlock.
    """

    def __init__(self, site: SiteFile) -> None:
        self._site, self._log = site, EventLogger(_logger, site.site)
        self._agent: Watched | None = None
        self._steps: _Steps | None = None
        self._gone: dict[str, float] = {}  # when sites that had been found were lost
        self._entered = time.monotonic()
        self._logged = float("-inf")
        self.last = AgentSnapshot("starting")

    def attach(self, agent: Watched) -> None:
        """Start watching an agent."""
        self._agent = agent

    def on_event(self, event: str, facts: Mapping[str, object]) -> None:
        """Process an event of this site; called from any thread, so it must be fast."""
        if event in ("lost", "found"):
            gone = dict(self._gone)
            gone[str(facts["site"])] = time.monotonic()
            if event == "found":
                del gone[str(facts["site"])]
            self._gone = gone
        elif event in ("epoch", "regroup"):
            self._steps, self._entered = None, time.monotonic()

    # ------------------------------------------------------------------------------------------------ as an observer

    def begin(self, start: Start) -> None:
        """Start following the iterations."""
        now = time.monotonic()
        self._steps = _Steps(now, now, start.tol, start.state.t)

    def observe(self, step: Step) -> None:
        """Record an iteration and log progress from time to time."""
        if self._steps is None:
            return
        now = time.monotonic()
        steps = self._steps = self._steps.after(step, now)
        if now - self._logged >= min(max(1.0, 0.02 * (now - steps.began)), 60.0):
            self._logged = now
            change, apart, left = steps.change, steps.disagreement, steps.left
            self._log.info(
                f"iteration {steps.iteration}"
                + ("" if change is None else f", change {change:.0e}, difference between sites {apart:.0e}")
                + ("" if left is None else f", about {span(left)} left"),
                event="progress",
                facts={
                    "iteration": steps.iteration,
                    "change": change,
                    "disagreement": apart,
                    "left": left,
                    "rounds": step.traffic.rounds,
                },
            )

    def end(self, result: Result[Any]) -> None:
        """Record that the iterations have ended."""
        if (steps := self._steps) is not None:
            self._steps = replace(steps, at=time.monotonic(), ended=True)

    # ------------------------------------------------------------------------------------------------------- the status

    def snapshot(self) -> AgentSnapshot:
        """Return a snapshot of the agent's activity and keep it as ``last``."""
        agent = self._agent
        if agent is None:
            return self.last
        view: NodeSnapshot = agent.node.snapshot()
        steps, now = self._steps, time.monotonic()
        network = self._site.network
        links = tuple(
            replace(
                link,
                why=(agent.streams.failure(network.index(link.site)) or "") if link.state != "up" else "",
                skew=link.skew if link.skew is not None and abs(link.skew) > _REPORTED_SKEW else None,
            )
            for link in view.links
        )
        if view.phase == "running":
            doing = "reading rows" if steps is None else "agreeing on the result" if steps.ended else "iterating"
        else:
            doing = {"gathering": "gathering", "finished": "finished"}.get(view.phase, view.phase)
            steps = None
        self.last = AgentSnapshot(
            doing,
            view.epoch,
            len(view.members),
            self._waits(view, links, steps, now),
            None if steps is None else steps.iteration,
            None if steps is None else steps.change,
            None if steps is None else steps.disagreement,
            None if steps is None else steps.left,
            links,
        )
        return self.last

    def _waits(
        self, view: NodeSnapshot, links: tuple[LinkSnapshot, ...], steps: _Steps | None, now: float
    ) -> tuple[Wait, ...]:
        if view.phase == "finished":
            why = "other sites, which may still need the result; the model is written, so this agent can be stopped"
            return (Wait((), why),)
        if view.phase not in ("gathering", "running"):
            return ()
        near = {link.site: link for link in links}
        shown = [name for name in view.missing if not view.members or name in view.members]
        never = [name for name in shown if name not in self._gone]
        waits = []
        if never:
            details = [near[name].why for name in never if name in near and near[name].why]
            waits.append(Wait(tuple(never), "no contact yet", None, tuple(details)))
        for name in shown:
            if name in self._gone:
                why = near[name].why if name in near else ""
                waits.append(Wait((name,), "unreachable", now - self._gone[name], (why,) if why else ()))
        waits += [
            Wait((link.site,), "silent", link.silent_for)
            for link in links
            if link.state == "silent" and link.site not in shown and (not view.members or link.site in view.members)
        ]
        for name, names in view.differing:
            mine = " (this site)" if name == self._site.site else ""
            waits.append(Wait((f"{name}{mine}",), f"differs in {', '.join(names)}, so no new epoch can start"))
        if view.phase == "gathering":
            if view.busy:
                waits.append(Wait(view.busy, "not ready yet to start a new epoch"))
        elif not waits:
            stalled = now - (self._entered if steps is None else steps.at)
            if stalled > _STALLED_AFTER:
                what = "this or another site to read its rows" if steps is None else "this or another site to compute"
                waits.append(Wait((), what, stalled))
        return tuple(waits)

    # ------------------------------------------------------------------------------------------------------ for the log

    @contextmanager
    def reminding(self) -> Iterator[None]:
        """Log waits while the context lasts: soon after they start, when they change, and at growing intervals."""
        with in_background(self._remind, "watch", patience=2.0):
            yield

    def _remind(self, over: threading.Event) -> None:
        logged: object = ()
        known: object = ()
        since = logged_at = 0.0
        pause = _REMINDER_INTERVALS[0]
        while not over.wait(WAIT_POLL_INTERVAL):
            now, waits = time.monotonic(), self.snapshot().waits
            kind = tuple((wait.sites, wait.why) for wait in waits)
            if kind != known:
                known, since = kind, now
            if not kind or now - since < MIN_LOGGED_WAIT:
                continue
            if kind == logged and now - logged_at < pause:
                continue
            first, longest = _REMINDER_INTERVALS
            pause = min(2.0 * pause, longest) if kind == logged else first
            logged, logged_at = kind, now
            details = "; ".join(text for wait in waits for text in wait.details)
            self._log.warning(
                self.last.waiting + (f" ({details})" if details else ""),
                event="waiting",
                facts={
                    "sites": sorted({name for wait in waits for name in wait.sites}),
                    "doing": self.last.doing,
                },
            )


def span(seconds: float) -> str:
    """Format a duration in a suitable unit."""
    if seconds < 10.0:
        return f"{seconds:.1f} s"
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    if seconds < 7200.0:
        return f"{seconds / 60.0:.0f} min"
    return f"{seconds / 3600.0:.1f} h"
