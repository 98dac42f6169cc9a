"""An agent whose messages can be hurt, for the fault suite: ``python -m studies.faults.hurt site.toml``.

It is the agent that people run, with something between its node and its streams that loses, doubles, reorders or delays
frames. What happens is written as JSON lines, with the time of the clock that all processes of a machine share.
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

_logger = logging.getLogger("deepca.studies.faults")  # below "deepca", or nobody would listen

FAILED, DIFFERS, UNFINISHED = 1, 2, 3
"""Exit codes."""


@dataclass(frozen=True)
class Hurt:
    """What is done to one agent.

    loss, double, late : probability that a frame it sends is lost, sent twice, or held back for ``hold`` seconds, so
    that others overtake it.  slow : seconds that every Part takes it, in and out.  pause : seconds of work that every
    iteration takes it, so that a run lasts.  watch : a neighbour whose frames must have no effect; those that had one
    are counted.  lie : what it says that is not true (:mod:`studies.faults.liars`).
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
        return max(self.loss, self.double, self.late, self.slow) > 0.0 or self.watch >= 0


class HurtNode:
    """Stands between streams and node; calls come from the event loop's thread."""

    def __init__(self, node: Any, hurt: Hurt) -> None:
        self._node, self._hurt = node, hurt
        self._log = EventLogger(_logger, node.context.name(node.context.me))
        self._rng = np.random.default_rng((hurt.seed, os.getpid()))
        self._ready: dict[int, list[Any]] = {}
        self.lost = self.doubled = self.held = 0
        self.watched = 0

    def opened(self, peer: int) -> None:
        self._ready[peer] = []
        self._node.opened(peer)

    def closed(self, peer: int, why: str) -> None:
        self._ready[peer] = []
        self._node.closed(peer, why)

    def refused(self, peer: int | None, where: str, why: str) -> None:
        self._node.refused(peer, where, why)

    def received(self, peer: int, frame: Any) -> None:
        if self._hurt.slow and frame.HasField("part"):
            time.sleep(self._hurt.slow)
        if peer != self._hurt.watch:
            self._node.received(peer, frame)
            return
        before = self._known(peer)
        try:
            self._node.received(peer, frame)
        finally:
            self.watched += 1
            if self._known(peer) != before:
                self._log.warning(f"a frame of kind {frame.WhichOneof('kind')} had an effect", event="effect")

    def _known(self, peer: int) -> tuple[object, ...]:
        """What a message of this neighbour could have changed."""
        node = self._node
        mail = len(node.mailbox.waiting[peer])
        return (
            {record.site: record.age for record in node.assembly.table if record.site != node.context.me},
            mail,
            len(node.files.contents),
        )

    def next_frame(self, peer: int) -> Any:
        ready, hurt, rng = self._ready.setdefault(peer, []), self._hurt, self._rng
        if ready:
            return ready.pop(0)
        while (frame := self._node.next_frame(peer)) is not None:
            if hurt.slow and frame.HasField("part"):
                time.sleep(hurt.slow)
            if frame.WhichOneof("kind") not in ("part", "beat"):
                return frame  # a stream that has just begun loses nothing
            if rng.random() < hurt.loss:
                self.lost += 1
                continue
            if rng.random() < hurt.late:
                self.held += 1
                self._later(peer, frame, ready)
                continue
            if rng.random() < hurt.double:
                self.doubled += 1
                ready.append(frame)
            return frame
        return None

    def _later(self, peer: int, frame: Any, ready: list[Any]) -> None:
        def release() -> None:
            ready.append(frame)
            self._node.neighbors.wake(peer)

        asyncio.get_running_loop().call_later(self._hurt.hold, release)


class _Pausing:
    """An observer for whom every iteration is much work."""

    def __init__(self, seconds: float, tell: Callable[..., None]) -> None:
        self._seconds, self._tell = seconds, tell

    def begin(self, start: Start) -> None:
        pass

    def observe(self, step: Step) -> None:
        self._tell("step", "", t=step.after.t)
        time.sleep(self._seconds)

    def end(self, result: Result[Any]) -> None:
        pass


def run(site: Path, log: Path, hurt: Hurt, heard: Callable[[Callable[[str, str], None]], None] | None = None) -> int:
    """The agent, to its end; the exit code. ``heard`` : is given whoever wants to know what gRPC's core says."""
    from deepca.sites.config.site_file import read_site
    from deepca.sites.runtime.agent import Agent, run_agent

    with log.open("a", buffering=1, encoding="utf-8") as file:
        lock, wraps = threading.Lock(), []

        def tell(event: str, text: str, **facts: object) -> None:
            line = json.dumps({"at": time.monotonic(), "pid": os.getpid(), "event": event, "text": text, **facts})
            with lock, contextlib.suppress(ValueError):  # the file is closed: nobody reads any more
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
    """``SITE_TOML LOG [NAME=VALUE …]``, with the names of :class:`Hurt`."""
    from deepca.sites.transport.grpc_errors import CoreLog

    core = CoreLog().install()
    site, log, *more = arguments
    known: dict[str, Callable[[str], Any]] = {field.name: float for field in dataclasses.fields(Hurt)}
    known |= {"seed": int, "watch": int, "lie": str}
    given = {name: known[name](value) for name, _, value in (one.partition("=") for one in more)}
    return run(Path(site), Path(log), Hurt(**given), core.listen)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
