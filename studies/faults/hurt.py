"""Run an agent with injected faults: ``python -m studies.faults.hurt site.toml log [name=value …]``.

This is the agent of ``deepca agent``, with a wrapper between its node and its streams that loses, duplicates, reorders
or delays frames. Its events are logged as JSON lines, timed by the monotonic clock of the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from deepca._util.logs import EventHandler, EventLogger, listening
from deepca.errors import DeepcaError, InvalidInput, PeerFault, Unfinished
from deepca.solver.observers import Start, Step
from deepca.solver.result import Result
from studies.faults.liars import lying

__all__ = ["DIFFERS", "FAILED", "UNFINISHED", "Hurt", "main", "run"]

_logger = logging.getLogger("deepca.studies.faults")  # a child of "deepca", whose events are captured

FAILED, DIFFERS, UNFINISHED = 1, 2, 3
"""Exit codes of an agent that does not succeed."""


@dataclass(frozen=True)
class Hurt:
    """Faults of one agent.

    Parameters
    ----------
    loss, double, late
        Probability that a frame it sends is lost, sent twice, or delayed by ``hold`` seconds and overtaken by others.
    hold
        Delay of late frames, in seconds.
    slow
        Seconds added to every Part, sent or received.
    pause
        Seconds added to every iteration, so that a run lasts long enough to inject faults.
    watch
        A neighbour whose frames must have no effect; each one that has an effect is logged. -1 for none.
    seed
        Seed of the random faults, combined with the process id.
    lie
        A lie that it tells (:mod:`studies.faults.liars`); empty for none.
    """

    loss: float = 0.0
    double: float = 0.0
    late: float = 0.0
    hold: float = 0.03
    slow: float = 0.0
    pause: float = 0.0
    watch: int = -1
    seed: int = 0
    lie: str = ""

    @property
    def touches_frames(self) -> bool:
        """Whether frames have to pass through :class:`HurtNode`."""
        return max(self.loss, self.double, self.late, self.slow) > 0.0 or self.watch >= 0


class HurtNode:
    """Injects faults between streams and node; called from the event loop's thread."""

    def __init__(self, node: Any, hurt: Hurt) -> None:
        self._node, self._hurt = node, hurt
        self._log = EventLogger(_logger, node.context.name(node.context.me))
        self._rng = np.random.default_rng((hurt.seed, os.getpid()))
        self._ready: dict[int, list[Any]] = {}
        self.lost = self.doubled = self.held = 0
        self.watched = 0

    def opened(self, peer: int) -> None:
        """Forward a new stream."""
        self._ready[peer] = []
        self._node.opened(peer)

    def closed(self, peer: int, why: str) -> None:
        """Forward the end of a stream, and drop delayed frames."""
        self._ready[peer] = []
        self._node.closed(peer, why)

    def refused(self, peer: int | None, where: str, why: str) -> None:
        """Forward a refused connection."""
        self._node.refused(peer, where, why)

    def received(self, peer: int, frame: Any) -> None:
        """Forward a frame, slowly if asked, and log whether one of the watched neighbour has an effect."""
        if self._hurt.slow and frame.HasField("part"):
            time.sleep(self._hurt.slow)
        if peer != self._hurt.watch:
            self._node.received(peer, frame)
            return
        before = self._state_from(peer)
        try:
            self._node.received(peer, frame)
        finally:
            self.watched += 1
            if self._state_from(peer) != before:
                self._log.warning(f"a frame of kind {frame.WhichOneof('kind')} had an effect", event="effect")

    def _state_from(self, peer: int) -> tuple[object, ...]:
        """Return the state that a message of this neighbour could change."""
        node = self._node
        mail = len(node.mailbox.waiting[peer])
        return (
            {record.site: record.age for record in node.assembly.table if record.site != node.context.me},
            mail,
            len(node.files.contents),
        )

    def next_frame(self, peer: int) -> Any:
        """Return the next frame for a neighbour after loss, delay and duplication; None if there is none."""
        ready, hurt, rng = self._ready.setdefault(peer, []), self._hurt, self._rng
        if ready:
            return ready.pop(0)
        while (frame := self._node.next_frame(peer)) is not None:
            if hurt.slow and frame.HasField("part"):
                time.sleep(hurt.slow)
            if frame.WhichOneof("kind") not in ("part", "beat"):
                return frame  # the handshake of a new stream is left alone
            if rng.random() < hurt.loss:
                self.lost += 1
                continue
            if rng.random() < hurt.late:
                self.held += 1
                self._delay(peer, frame, ready)
                continue
            if rng.random() < hurt.double:
                self.doubled += 1
                ready.append(frame)
            return frame
        return None

    def _delay(self, peer: int, frame: Any, ready: list[Any]) -> None:
        """Queue a frame again after ``hold`` seconds."""

        def release() -> None:
            ready.append(frame)
            self._node.neighbors.wake(peer)

        asyncio.get_running_loop().call_later(self._hurt.hold, release)


class _Pausing:
    """Observer that logs every iteration and sleeps, to prolong a run."""

    def __init__(self, seconds: float, tell: Callable[..., None]) -> None:
        self._seconds, self._tell = seconds, tell

    def begin(self, start: Start) -> None:
        """Do nothing."""

    def observe(self, step: Step) -> None:
        """Log an iteration and sleep."""
        self._tell("step", "", t=step.after.t)
        time.sleep(self._seconds)

    def end(self, result: Result[Any]) -> None:
        """Do nothing."""


def run(site: Path, log: Path, hurt: Hurt, heard: Callable[[Callable[[str, str], None]], None] | None = None) -> int:
    """Run an agent to its end and return its exit code.

    Parameters
    ----------
    site, log
        The agent's ``site.toml``, and the file to which its events are appended.
    hurt
        Faults to inject.
    heard
        Registers a listener for the log of gRPC's core; None if that log is not captured.
    """
    from deepca.sites.config.site_file import read_site
    from deepca.sites.runtime.agent import Agent, run_agent

    with log.open("a", buffering=1, encoding="utf-8") as file:
        lock, wraps = threading.Lock(), []

        def tell(event: str, text: str, **facts: object) -> None:
            line = json.dumps({"at": time.monotonic(), "pid": os.getpid(), "event": event, "text": text, **facts})
            with lock, contextlib.suppress(ValueError):  # the log is already closed
                file.write(line + "\n")

        def wrap(node: Any) -> Any:
            wraps.append(HurtNode(node, hurt))
            return wraps[-1]

        def ready(agent: Agent) -> None:
            if heard is not None:
                heard(agent.streams.turned_away)

        try:
            with lying(hurt.lie), listening(EventHandler(lambda site, event, text, facts: tell(event, text, **facts))):
                ending = run_agent(
                    read_site(site),
                    observers=(_Pausing(hurt.pause, tell),),
                    ready=ready,
                    wrap=cast("Any", wrap) if hurt.touches_frames else lambda node: node,
                )
        except Unfinished as error:
            tell("end", str(error), code=UNFINISHED)
            return UNFINISHED
        except InvalidInput as error:
            tell("end", str(error), code=DIFFERS, reason=getattr(error, "reason", ""))
            return DIFFERS
        except PeerFault as error:
            facts = {"blamed": error.site, "by": error.by, "what": error.what, "report": error.report}
            tell("end", f"{type(error).__name__}: {error}", code=FAILED, **facts)
            return FAILED
        except (DeepcaError, OSError) as error:
            tell("end", f"{type(error).__name__}: {error}", code=FAILED)
            return FAILED
        hurts = {"lost": wraps[0].lost, "doubled": wraps[0].doubled, "held": wraps[0].held} if wraps else {}
        if hurt.watch >= 0:
            hurts |= {"watched": wraps[0].watched}
        tell(
            "end",
            str(ending.model.status),
            code=0,
            ok=ending.model.status.ok,
            sha256=hashlib.sha256(ending.content).hexdigest(),
            members=ending.members,
            left_out=ending.left_out,
            own=ending.own,
            iterations=ending.model.about["iterations"],
            rounds=ending.model.about["rounds"],
            **hurts,
        )
        return 0


def main(arguments: Sequence[str]) -> int:
    """Run an agent given ``SITE_TOML LOG [NAME=VALUE …]``, with the fields of :class:`Hurt` as names."""
    from deepca.sites.transport.grpc_errors import CoreLog

    core = CoreLog().install()
    site, log, *more = arguments
    known: dict[str, Callable[[str], Any]] = {field.name: float for field in dataclasses.fields(Hurt)}
    known |= {"seed": int, "watch": int, "lie": str}
    given = {name: known[name](value) for name, _, value in (one.partition("=") for one in more)}
    return run(Path(site), Path(log), Hurt(**given), core.listen)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
