"""What an agent is doing and what it waits for, in plain words: for its screen, its log and its last message."""

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
from deepca.sites.runtime.node import LinkView, View
from deepca.solver.observers import Start, Step
from deepca.solver.result import Result
from deepca.solver.stopping import Agreed, error_estimate

__all__ = ["Situation", "Wait", "Watch", "Watched", "span"]

_logger = logging.getLogger(__name__)

LOOK_EVERY = 0.5  # seconds between two looks at what is waited for
SETTLED_AFTER = 2.0  # seconds that something must have been waited for before the log says so
_REMIND = (60.0, 900.0)  # seconds, first and longest, until the log says it again
_REMEMBERED = 9  # numbers from which a rate is taken
_STILL = 5.0  # seconds without an iteration after which something must be waited for
_SKEWED = 5.0  # seconds


class Watched(Protocol):
    """What is looked at; :class:`deepca.sites.runtime.agent.Agent` is one."""

    @property
    def node(self) -> Any: ...
    @property
    def streams(self) -> Any: ...


@dataclass(frozen=True)
class Wait:
    """Sites, and why they are waited for. seconds : since when, where known.  details : what may help to find out."""

    sites: tuple[str, ...]
    why: str
    seconds: float | None = None
    details: tuple[str, ...] = ()

    @property
    def said(self) -> str:
        since = "" if self.seconds is None else f" for {span(self.seconds)}"
        return f"{', '.join(self.sites)}: {self.why}{since}" if self.sites else f"{self.why}{since}"


@dataclass(frozen=True)
class Situation:
    """How things stand.

    left : seconds, estimated.  waits : what is waited for now, if anything.  links : with the skew of clocks where it
    matters.
    """

    doing: str
    epoch: int = 0
    members: int = 0
    waits: tuple[Wait, ...] = ()
    iteration: int | None = None
    change: float | None = None
    disagreement: float | None = None
    left: float | None = None
    links: tuple[LinkView, ...] = ()

    @property
    def sent(self) -> int:
        return sum(link.sent_bytes for link in self.links)

    @property
    def received(self) -> int:
        return sum(link.received_bytes for link in self.links)

    @property
    def waiting(self) -> str:
        """All that is waited for; empty where nothing is."""
        return "waiting for " + "; ".join(wait.said for wait in self.waits) if self.waits else ""


@dataclass(frozen=True)
class _Steps:
    """How far the iterations have come.

    at : time of the last.  history : the newest agreed numbers.  error : what is still to come, an angle.
    worst : its largest value so far, and when that was.
    """

    began: float
    at: float
    tol: float | None
    iteration: int
    history: tuple[Agreed, ...] = ()
    error: float = math.inf
    worst: tuple[float, float] = (0.0, 0.0)
    ended: bool = False

    @property
    def change(self) -> float | None:
        return self.history[-1].change if self.history else None

    @property
    def disagreement(self) -> float | None:
        return self.history[-1].disagreement if self.history else None

    def after(self, step: Step, now: float) -> _Steps:
        agreed, history = step.agreed, self.history
        if agreed is None or (history and history[-1].t == agreed.t):
            return replace(self, at=now, iteration=step.after.t)
        history = (*history, agreed)[-_REMEMBERED:]
        error = error_estimate(history)
        worst = (error, now) if self.worst[0] < error < math.inf else self.worst
        return replace(self, at=now, iteration=step.after.t, history=history, error=error, worst=worst)

    @property
    def left(self) -> float | None:
        """Seconds until the tolerance is met, as the error came down so far; None while nothing can be said."""
        worst, since = self.worst
        if self.ended or self.tol is None or not self.error < 0.5 * worst or self.at - self.began < 2.0:
            return None
        if self.error <= self.tol:
            return 0.0
        return (self.at - since) * math.log(self.error / self.tol) / math.log(worst / self.error)


class Watch:
    """Hears the events of an agent, observes its iterations, and looks at its node.

    It logs "progress" and "waiting" itself, so that a log alone says how things stand, too.
    Nothing here holds a lock while it asks the node: the node logs with its own lock held.
    """

    def __init__(self, site: SiteFile) -> None:
        self._site, self._log = site, EventLogger(_logger, site.site)
        self._agent: Watched | None = None
        self._steps: _Steps | None = None
        self._gone: dict[str, float] = {}  # when sites were lost that had been found
        self._entered = time.monotonic()
        self._logged = float("-inf")
        self.last = Situation("starting")

    def attach(self, agent: Watched) -> None:
        """From now on there is something to look at."""
        self._agent = agent

    def hear(self, event: str, facts: Mapping[str, object]) -> None:
        """Take note of an event of this site; quick, and from any thread."""
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
        now = time.monotonic()
        self._steps = _Steps(now, now, start.tol, start.state.t)

    def observe(self, step: Step) -> None:
        if self._steps is None:
            return
        now = time.monotonic()
        steps = self._steps = self._steps.after(step, now)
        if now - self._logged >= min(max(1.0, 0.02 * (now - steps.began)), 60.0):
            self._logged = now
            change, apart, left = steps.change, steps.disagreement, steps.left
            self._log.info(
                f"iteration {steps.iteration}"
                + ("" if change is None else f", change {change:.0e}, between sites {apart:.0e}")
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
        if (steps := self._steps) is not None:
            self._steps = replace(steps, at=time.monotonic(), ended=True)

    # ---------------------------------------------------------------------------------------------------- how it stands

    def situation(self) -> Situation:
        """How things stand now."""
        agent = self._agent
        if agent is None:
            return self.last
        view: View = agent.node.view()
        steps, now = self._steps, time.monotonic()
        network = self._site.network
        links = tuple(
            replace(
                link,
                why=(agent.streams.trouble(network.index(link.site)) or "") if link.state != "up" else "",
                skew=link.skew if link.skew is not None and abs(link.skew) > _SKEWED else None,
            )
            for link in view.links
        )
        if view.phase == "running":
            doing = "reading rows" if steps is None else "agreeing on the result" if steps.ended else "iterating"
        else:
            doing = {"gathering": "gathering", "finished": "finished"}.get(view.phase, view.phase)
            steps = None
        self.last = Situation(
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

    def _waits(self, view: View, links: tuple[LinkView, ...], steps: _Steps | None, now: float) -> tuple[Wait, ...]:
        if view.phase == "finished":
            return (Wait((), "others that may still need the result; the model is written, stopping does no harm"),)
        if view.phase not in ("gathering", "running"):
            return ()
        near = {link.site: link for link in links}
        shown = [name for name in view.missing if not view.members or name in view.members]
        never = [name for name in shown if name not in self._gone]
        waits = []
        if never:
            details = [near[name].why for name in never if name in near and near[name].why]
            waits.append(Wait(tuple(never), "not heard of yet", None, tuple(details)))
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
            waits.append(Wait((f"{name}{mine}",), f"differs in {', '.join(names)}, so nothing starts"))
        if view.phase == "gathering":
            if view.busy:
                waits.append(Wait(view.busy, "not ready yet, still busy with what was before"))
        elif not waits:
            still = now - (self._entered if steps is None else steps.at)
            if still > _STILL:
                what = "this site or others to read their rows" if steps is None else "this site or others to compute"
                waits.append(Wait((), what, still))
        return tuple(waits)

    # ------------------------------------------------------------------------------------------------------ for the log

    @contextmanager
    def reminding(self) -> Iterator[None]:
        """While this lasts the log is told what is waited for: soon, whenever that changes, and now and then again."""
        with in_background(self._remind, "watch", patience=2.0):
            yield

    def _remind(self, over: threading.Event) -> None:
        said: object = ()
        known: object = ()
        since = told = 0.0
        pause = _REMIND[0]
        while not over.wait(LOOK_EVERY):
            now, waits = time.monotonic(), self.situation().waits
            kind = tuple((wait.sites, wait.why) for wait in waits)
            if kind != known:
                known, since = kind, now
            if not kind or now - since < SETTLED_AFTER:
                continue
            if kind == said and now - told < pause:
                continue
            pause = min(2.0 * pause, _REMIND[1]) if kind == said else _REMIND[0]
            said, told = kind, now
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
    """A length of time, in the unit that suits."""
    if seconds < 10.0:
        return f"{seconds:.1f} s"
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    if seconds < 7200.0:
        return f"{seconds / 60.0:.0f} min"
    return f"{seconds / 3600.0:.1f} h"
