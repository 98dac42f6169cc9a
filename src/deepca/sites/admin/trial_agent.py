"""One agent of a trial network: its process, its log, its end."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deepca.sites.admin.trial_setup import Share

__all__ = ["AgentExit", "Sight", "agent_command"]

_SHOWN = 6  # last lines of a log
_WITH_RESULT = {0, 1, 4}  # exit codes of agents that may hold one; see deepca.cli.commands.agent
_LAST_WORDS = ("failed", "unfinished", "stopped")
_STATES = {
    "started": "waiting",
    "epoch": "running",
    "regroup": "gathering",
    "finished": "finished",
    "unfinished": "unfinished",
}


@dataclass(frozen=True)
class Sight:
    """An agent as it is seen from outside. text : what it said last.  code : of its exit, once it has ended."""

    site: str
    rows: int | None
    state: str
    text: str
    iteration: int | None
    code: int | None


@dataclass(frozen=True)
class AgentExit:
    """An agent that has ended. model : where it holds a result.  last : its last words.  stopped : from here."""

    site: str
    rows: int | None
    code: int
    model: Path | None
    last: tuple[str, ...]
    stopped: bool
    first: bool
    """Whether it was the first to end without a result."""
    error: str = ""
    """The kind of the error that ended it, as its log has it."""


def agent_command(site: Path, log: Path) -> list[str]:
    """What starts an agent, with its log in a file."""
    start = [sys.executable, "-c", "from deepca.cli import main; main()"]
    return [*start, "agent", "run", str(site), "--log", "json", "--log-file", str(log), "--quiet"]


@dataclass
class TrialAgent:
    """A process and what it has said so far."""

    share: Share
    folder: Path
    process: subprocess.Popen[bytes]
    state: str = "starting"
    text: str = ""
    iteration: int | None = None
    stopped: bool = False
    first: bool = False
    lines: list[str] = field(default_factory=list)
    error: str = ""
    _read: int = 0
    _rest: bytes = b""

    @property
    def log(self) -> Path:
        return self.folder / "log.jsonl"

    @property
    def errors(self) -> Path:
        return self.folder / "errors.txt"

    @property
    def model(self) -> Path:
        return self.folder / "model.npz"

    @property
    def holds(self) -> bool:
        """Whether it has ended with a result."""
        return self.process.returncode in _WITH_RESULT and self.model.exists()

    def listen(self) -> None:
        """Reads on in the log."""
        try:
            with self.log.open("rb") as file:
                file.seek(self._read)
                new = file.read()
        except FileNotFoundError:
            return
        self._read += len(new)
        *whole, self._rest = (self._rest + new).split(b"\n")
        for line in whole:
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if isinstance(said, dict):
                self._hear(said)

    def _hear(self, said: dict[str, Any]) -> None:
        event, facts = str(said.get("event", "")), said.get("facts")
        known = {**(facts if isinstance(facts, dict) else {}), **said}
        if isinstance(known.get("iteration"), int):
            self.iteration = known["iteration"]
        self.error = str(known.get("error", self.error))
        if self.state == "finished":
            return  # that the others leave is of no interest
        self.state, self.text = _STATES.get(event, self.state), str(said.get("text", ""))
        self.lines = [*self.lines, f"{event.replace('_', ' ')}: {self.text}"][-_SHOWN:]

    def sight(self) -> Sight:
        code = self.process.returncode
        state = self.state
        if code is not None:
            state = {0: "finished", 1: "not usable" if self.holds else "failed", 3: "unfinished", 4: "left out"}.get(
                code, "failed"
            )
            state = "stopped" if self.stopped and not self.holds else "killed" if code < 0 else state
        return Sight(self.share.site, self.share.rows, state, self.text, self.iteration, code)

    def ended(self) -> AgentExit:
        said = any(line.startswith(_LAST_WORDS) for line in self.lines[-1:])
        return AgentExit(
            self.share.site,
            self.share.rows,
            self.process.returncode,
            self.model if self.holds else None,
            (*self.lines, *([] if said else self.complaints())),
            self.stopped,
            self.first,
            self.error,
        )

    def complaints(self) -> list[str]:
        """The end of what was written to its standard error."""
        try:
            text = self.errors.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        return [line for line in text.splitlines() if line.strip()][-_SHOWN:]
