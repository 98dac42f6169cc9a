"""Run an agent with injected faults: ``python -m studies.faults.faulty_agent site.toml log [name=value …]``.

This is the agent of ``deepca agent run`` with a wrapper between its node and its streams that drops, duplicates, delays
and reorders frames. Its events are logged as JSON lines, with times read from the machine's monotonic clock.
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

from deepca._util.logs import EventHandler, EventLogger, attached
from deepca.errors import DeepcaError, InvalidInput, PeerFault, Unfinished
from deepca.solver.observers import Start, Step
from deepca.solver.result import Result
from studies.faults.lies import tell_lie

__all__ = ["DIFFERS", "FAILED", "UNFINISHED", "AgentFaults", "main", "run_with_faults"]

_logger = logging.getLogger("deepca.studies.faults")  # a child of "deepca", whose events are captured

FAILED, DIFFERS, UNFINISHED = 1, 2, 3
"""Exit codes of an agent that fails, whose own input is refused or differs, or that reaches its deadline."""


@dataclass(frozen=True)
class AgentFaults:
    """Faults to inject into one agent.

    Parameters
    ----------
    loss, duplicate, delay
        Probabilities that a frame sent by the agent is dropped, sent twice, or held back for ``delay_seconds``, during
        which later frames overtake it.
    delay_seconds
        How long a delayed frame is held back, in seconds.
    slow
        Seconds added for every Part that is sent or received.
    pause
        Seconds added to every iteration, so that a run lasts long enough to inject faults.
    watch
        Index of a neighbour whose frames must have no effect, or -1; a frame that has an effect is logged.
    seed
        Seed of the random faults, combined with the process id.
    lie
        Name of a lie that the agent tells (:mod:`studies.faults.lies`); empty for an honest agent.
    """

    loss: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    delay_seconds: float = 0.03
    slow: float = 0.0
    pause: float = 0.0
    watch: int = -1
    seed: int = 0
    lie: str = ""

    @property
    def affects_frames(self) -> bool:
        """Whether frames have to pass through :class:`FaultyNode`."""
        return max(self.loss, self.duplicate, self.delay, self.slow) > 0.0 or self.watch >= 0


class FaultyNode:
    """Wrapper of a node that injects faults into its frames; called by the streams, in the event loop's thread."""

    def __init__(self, node: Any, faults: AgentFaults) -> None:
        self._node, self._faults = node, faults
        self._log = EventLogger(_logger, node.context.name(node.context.me))
        self._rng = np.random.default_rng((faults.seed, os.getpid()))
        self._ready: dict[int, list[Any]] = {}
        self.lost = self.duplicated = self.delayed = 0
        self.watched = 0

    def opened(self, peer: int) -> None:
        """Notify the node of a new stream."""
        self._ready[peer] = []
        self._node.opened(peer)

    def closed(self, peer: int, why: str) -> None:
        """Notify the node that a stream has ended, and drop the frames that were delayed on it."""
        self._ready[peer] = []
        self._node.closed(peer, why)

    def refused(self, peer: int | None, where: str, why: str) -> None:
        """Notify the node of a refused connection."""
        self._node.refused(peer, where, why)

    def received(self, peer: int, frame: Any) -> None:
        """Pass a frame to the node, after a delay if ``slow``; log it if it comes from ``watch`` and has an effect."""
        if self._faults.slow and frame.HasField("part"):
            time.sleep(self._faults.slow)
        if peer != self._faults.watch:
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
        """Return the part of the node's state that a message from this neighbour could change."""
        node = self._node
        mail = len(node.mailbox.waiting[peer])
        return (
            {record.site: record.age for record in node.assembly.table if record.site != node.context.me},
            mail,
            getattr(node.mailbox.relay, "_index", None),
            len(node.files.contents),
        )

    def next_frame(self, peer: int) -> Any:
        """Return the next frame to send to a neighbour after injecting faults, or None if no frame is ready."""
        ready, faults, rng = self._ready.setdefault(peer, []), self._faults, self._rng
        if ready:
            return ready.pop(0)
        while (frame := self._node.next_frame(peer)) is not None:
            if faults.slow and frame.HasField("part"):
                time.sleep(faults.slow)
            if frame.WhichOneof("kind") not in ("part", "beat"):
                return frame  # no faults during the handshake of a new stream
            if rng.random() < faults.loss:
                self.lost += 1
                continue
            if rng.random() < faults.delay:
                self.delayed += 1
                self._delay(peer, frame, ready)
                continue
            if rng.random() < faults.duplicate:
                self.duplicated += 1
                ready.append(frame)
            return frame
        return None

    def _delay(self, peer: int, frame: Any, ready: list[Any]) -> None:
        """Queue a frame again after ``delay_seconds``."""

        def release() -> None:
            ready.append(frame)
            self._node.neighbors.wake(peer)

        asyncio.get_running_loop().call_later(self._faults.delay_seconds, release)


class _Pausing:
    """Observer that logs every iteration and then sleeps, to prolong a run."""

    def __init__(self, seconds: float, log: Callable[..., None]) -> None:
        self._seconds, self._log = seconds, log

    def begin(self, start: Start) -> None:
        """Do nothing."""

    def observe(self, step: Step) -> None:
        """Log an iteration and sleep."""
        self._log("step", "", t=step.after.t)
        time.sleep(self._seconds)

    def end(self, result: Result[Any]) -> None:
        """Do nothing."""


def run_with_faults(
    site: Path, log: Path, faults: AgentFaults, subscribe: Callable[[Callable[[str, str], None]], None] | None = None
) -> int:
    """Run an agent until it ends and return its exit code.

    Parameters
    ----------
    site, log
        The agent's ``site.toml``, and the file to which its events are appended.
    faults
        Faults to inject.
    subscribe
        Registers a listener for the log of gRPC's core; None if that log is not captured.
    """
    from deepca.sites.config.site_file import read_site
    from deepca.sites.runtime.agent import Agent, run_agent

    with log.open("a", buffering=1, encoding="utf-8") as file:
        lock, wrapped = threading.Lock(), []

        def write_event(event: str, text: str, **facts: object) -> None:
            line = json.dumps({"at": time.monotonic(), "pid": os.getpid(), "event": event, "text": text, **facts})
            with lock, contextlib.suppress(ValueError):  # the log is already closed
                file.write(line + "\n")

        def wrap(node: Any) -> Any:
            wrapped.append(FaultyNode(node, faults))
            return wrapped[-1]

        def ready(agent: Agent) -> None:
            if subscribe is not None:
                subscribe(agent.streams.report_rejected_client)

        try:
            with (
                tell_lie(faults.lie),
                attached(EventHandler(lambda site, event, text, facts: write_event(event, text, **facts))),
            ):
                ending = run_agent(
                    read_site(site),
                    observers=(_Pausing(faults.pause, write_event),),
                    ready=ready,
                    wrap=cast("Any", wrap) if faults.affects_frames else lambda node: node,
                )
        except Unfinished as error:
            write_event("end", str(error), code=UNFINISHED)
            return UNFINISHED
        except InvalidInput as error:
            write_event("end", str(error), code=DIFFERS, reason=getattr(error, "reason", ""))
            return DIFFERS
        except PeerFault as error:
            facts = {"blamed": error.site, "by": error.by, "what": error.what, "report": error.report}
            write_event("end", f"{type(error).__name__}: {error}", code=FAILED, **facts)
            return FAILED
        except (DeepcaError, OSError) as error:
            write_event("end", f"{type(error).__name__}: {error}", code=FAILED)
            return FAILED
        injected = {name: getattr(wrapped[0], name) for name in ("lost", "duplicated", "delayed")} if wrapped else {}
        if faults.watch >= 0:
            injected |= {"watched": wrapped[0].watched}
        write_event(
            "end",
            str(ending.model.status),
            code=0,
            ok=ending.model.status.ok,
            sha256=hashlib.sha256(ending.content).hexdigest(),
            members=ending.members,
            left_out=ending.left_out,
            compared=ending.compared,
            iterations=ending.model.about["iterations"],
            rounds=ending.model.about["rounds"],
            **injected,
        )
        return 0


def main(arguments: Sequence[str]) -> int:
    """Run an agent given ``SITE_TOML LOG [NAME=VALUE …]``, with the fields of :class:`AgentFaults` as names."""
    from deepca.sites.transport.grpc_errors import CoreLog

    core = CoreLog().install()
    site, log, *more = arguments
    known: dict[str, Callable[[str], Any]] = {field.name: float for field in dataclasses.fields(AgentFaults)}
    known |= {"seed": int, "watch": int, "lie": str}
    given = {name: known[name](value) for name, _, value in (one.partition("=") for one in more)}
    return run_with_faults(Path(site), Path(log), AgentFaults(**given), core.listen)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
