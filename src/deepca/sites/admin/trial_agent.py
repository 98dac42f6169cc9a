"""Follow one agent of a trial network: its process, its log and how it ended."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deepca.sites.admin.trial_setup import Share

__all__ = ["AgentExit", "TrialAgent", "TrialAgentSnapshot", "agent_command"]

_MAX_LOG_LINES = 6  # lines shown from the end of the log of an agent that ended without a result
_CODES_WITH_RESULT = {0, 1, 4}  # exit codes after which there may be a model; see deepca.cli.commands.agent
_FINAL_EVENTS = ("failed", "unfinished", "stopped")  # they say why the agent ended; its standard error adds nothing
_STATES = {
    "started": "waiting",
    "epoch": "running",
    "regroup": "gathering",
    "finished": "finished",
    "unfinished": "unfinished",
}


@dataclass(frozen=True)
class TrialAgentSnapshot:
    """State of an agent as seen from outside.

    Parameters
    ----------
    site : str
        Name of its site.
    rows : int or None
        Number of its rows, if known.
    state : str
        What it is doing, in one or two words.
    text : str
        Last line of its log.
    iteration : int or None
        Last iteration in its log.
    code : int or None
        Exit code, once it has ended.
    """

    site: str
    rows: int | None
    state: str
    text: str
    iteration: int | None
    code: int | None


@dataclass(frozen=True)
class AgentExit:
    """An agent that has ended.

    Parameters
    ----------
    site : str
        Name of its site.
    rows : int or None
        Number of its rows, if known.
    code : int
        Exit code.
    model : Path or None
        Its model file, if it ended with a result.
    last : tuple of str
        Last lines of its log, and of its standard error if the log does not say why it ended.
    stopped : bool
        Whether it was stopped by the trial network.
    first : bool
        Whether it was the first to end without a result.
    error : str
        Type of the error that ended it, from its log.
    """

    site: str
    rows: int | None
    code: int
    model: Path | None
    last: tuple[str, ...]
    stopped: bool
    first: bool
    error: str = ""


def agent_command(site: Path, log: Path) -> list[str]:
    """Return the command that starts an agent with its log in a file."""
    start = [sys.executable, "-c", "from deepca.cli import main; main()"]
    return [*start, "agent", "run", str(site), "--log", "json", "--log-file", str(log), "--quiet"]


@dataclass
class TrialAgent:
    """A running agent, and what its log has said so far."""

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
        """File of its log."""
        return self.folder / "log.jsonl"

    @property
    def errors(self) -> Path:
        """File of its standard error."""
        return self.folder / "errors.txt"

    @property
    def model(self) -> Path:
        """Its model file."""
        return self.folder / "model.npz"

    @property
    def has_result(self) -> bool:
        """True if it has ended with a result."""
        return self.process.returncode in _CODES_WITH_RESULT and self.model.exists()

    def read_log(self) -> None:
        """Update state, text and iteration from the lines added to the log since the last call."""
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
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                self._take(record)

    def _take(self, record: dict[str, Any]) -> None:
        event, facts = str(record.get("event", "")), record.get("facts")
        known = {**(facts if isinstance(facts, dict) else {}), **record}
        if isinstance(known.get("iteration"), int):
            self.iteration = known["iteration"]
        self.error = str(known.get("error", self.error))
        if self.state == "finished":
            return  # that other agents leave the run no longer matters
        self.state, self.text = _STATES.get(event, self.state), str(record.get("text", ""))
        self.lines = [*self.lines, f"{event.replace('_', ' ')}: {self.text}"][-_MAX_LOG_LINES:]

    def snapshot(self) -> TrialAgentSnapshot:
        """Return the state of the agent as seen from outside."""
        code = self.process.returncode
        state = self.state
        if code is not None:
            state = {
                0: "finished",
                1: "not usable" if self.has_result else "failed",
                3: "unfinished",
                4: "left out",
            }.get(code, "failed")
            state = "stopped" if self.stopped and not self.has_result else "killed" if code < 0 else state
        return TrialAgentSnapshot(self.share.site, self.share.rows, state, self.text, self.iteration, code)

    def ended(self) -> AgentExit:
        """Return how the agent ended."""
        explained = any(line.startswith(_FINAL_EVENTS) for line in self.lines[-1:])
        return AgentExit(
            self.share.site,
            self.share.rows,
            self.process.returncode,
            self.model if self.has_result else None,
            (*self.lines, *([] if explained else self._last_errors())),
            self.stopped,
            self.first,
            self.error,
        )

    def _last_errors(self) -> list[str]:
        """Return the last lines of its standard error."""
        try:
            text = self.errors.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        return [line for line in text.splitlines() if line.strip()][-_MAX_LOG_LINES:]
