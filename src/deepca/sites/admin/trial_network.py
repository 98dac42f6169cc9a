"""A whole network on one machine, for trials: a process per site, streams over loopback, throw-away certificates."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from deepca._util.files import write_whole
from deepca._util.machine import usable_cores
from deepca.data.allocation import in_equal_shares
from deepca.data.columns import common_columns
from deepca.data.readers import open_sources, spool
from deepca.data.sources import Source
from deepca.data.writers import open_writer
from deepca.errors import DataError, InvalidInput, NetworkError
from deepca.sites.config.files import NetworkFile, SiteEntry, is_site_name, write_network, write_site

__all__ = ["Ended", "Outcome", "Share", "Sight", "agent_command", "deal", "describe", "keep_models", "run_cluster"]

_LOOK = 0.15  # seconds between two looks at the processes
_GRACE = 3.0  # that the others have to end by themselves when nothing can come of the run any more
_TO_STOP = 5.0  # from being asked to end to being killed
_BEYOND = 20.0  # after the deadline of the agents, who then should have ended themselves
_SHOWN = 6  # last lines of a log
_LOWEST_PORT = 10_240
_RESERVED = ("authority", "revoked", "site", "kits")
_WITH_RESULT = {0, 1, 4}  # exit codes of agents that may hold one; see deepca.cli.commands.agent
_LAST_WORDS = ("failed", "unfinished", "stopped")
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_STATES = {
    "started": "waiting",
    "epoch": "running",
    "regroup": "gathering",
    "finished": "finished",
    "unfinished": "unfinished",
}


@dataclass(frozen=True)
class Share:
    """The rows of one site. rows : how many; None where only reading would tell."""

    site: str
    data: Path
    rows: int | None
    label_column: str | None = None
    dataset: str | None = None


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
class Ended:
    """An agent that has ended. model : where it holds a result.  last : its last words.  stopped : from here."""

    site: str
    rows: int | None
    code: int
    model: Path | None
    last: tuple[str, ...]
    stopped: bool
    first: bool
    """Whether it was the first to end without a result."""


@dataclass(frozen=True)
class Outcome:
    """What came of a run. sha256 : of all model files.  content : their bytes; None if there is no result."""

    agents: tuple[Ended, ...]
    content: bytes | None
    sha256: str
    seconds: float
    code: int
    """As ``deepca agent run`` ends."""


# --------------------------------------------------------------------------------------------------------- what is held


def deal(
    files: Sequence[Path],
    agents: int | None,
    folder: Path,
    *,
    label_column: str | None = None,
    dataset: str | None = None,
) -> tuple[Share, ...]:
    """Who holds which rows: the file of each, or all rows in equal shares if a number of agents is given.

    Shares are written to ``folder/<site>/``. A file of one's own stays where it is, unless its columns come in another
    order than those of the first.
    """
    twice = [file for i, file in enumerate(files) if file.resolve() in {other.resolve() for other in files[:i]}]
    if twice:
        raise DataError(f"{twice[0]} is named twice: its rows would count double")
    opened = open_sources(files, label_column=label_column, dataset=dataset)
    alike = common_columns(opened)
    if agents is not None:
        if agents < 1:
            raise InvalidInput(f"--agents {agents}: at least one is needed")
        folder.mkdir(parents=True, exist_ok=True)
        dealt = in_equal_shares([spool(source, folder) for source in alike], agents)
        names = [f"site-{j:0{len(str(agents))}d}" for j in range(1, agents + 1)]
        return tuple(
            Share(name, _write(source, folder / name), source.n) for name, source in zip(names, dealt, strict=True)
        )
    shares = []
    for name, file, source, before in zip(_names(files), files, alike, opened, strict=True):
        if source is before and source.first_index is None:
            shares.append(Share(name, file.absolute(), source.n, label_column, dataset))
        else:  # how many columns svmlight has, only all files together tell
            shares.append(Share(name, _write(source, folder / name), source.n))
    return tuple(shares)


def _names(files: Sequence[Path]) -> list[str]:
    """Of files, where they make names of sites that differ."""
    names = [re.sub("[^a-z0-9]+", "-", file.name.split(".")[0].lower()).strip("-") for file in files]
    fit = len({*names}) == len(names) and all(is_site_name(name) and name not in _RESERVED for name in names)
    return names if fit else [f"site-{j:0{len(str(len(files)))}d}" for j in range(1, len(files) + 1)]


def _write(source: Source, folder: Path) -> Path:
    """The rows of a source in a file of its own, with the names of its columns."""
    folder.mkdir(parents=True, exist_ok=True)
    if source.columns is None and source.is_sparse:
        path = folder / "rows.npz"
        sparse.save_npz(path, sparse.vstack([sparse.csr_array(block) for block in source.blocks()], format="csr"))
        return path
    named = source.columns is not None
    kind = "npy" if not named else "h5" if importlib.util.find_spec("h5py") else "parquet"
    columns = source.columns or tuple(f"column {i}" for i in range(source.d))
    label = next(name for name in (f"label{'_' * i}" for i in range(len(columns) + 1)) if name not in columns)
    path = folder / f"rows.{kind}"
    with open_writer(path, columns, dtype=source.dtype, label=label) as writer:
        for block in source.blocks():
            writer.write(block if isinstance(block, np.ndarray) else block.toarray())
    return path


# ---------------------------------------------------------------------------------------------------------- the network


def describe(shares: Sequence[Share], **options: Any) -> NetworkFile:
    """The network of these sites, at free ports of 127.0.0.1. ``options`` : fields of NetworkFile."""
    ports = _free_ports(len(shares))
    sites = tuple(SiteEntry(share.site, f"127.0.0.1:{port}") for share, port in zip(shares, ports, strict=True))
    return NetworkFile(sites=sites, **options)


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens at now; not those that the system hands out to whoever dials, if that can be told."""
    highest = 32_768
    with contextlib.suppress(OSError, ValueError):
        highest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    found: list[int] = []
    chance = random.SystemRandom()
    with contextlib.ExitStack() as held:
        for attempt in range(50 * count):
            if len(found) == count:
                return found
            low = attempt < 40 * count and highest > 2 * _LOWEST_PORT
            tried = chance.randrange(_LOWEST_PORT, highest) if low else 0
            door = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                door.bind(("127.0.0.1", tried))
                found.append(door.getsockname()[1])
    raise InvalidInput(f"there are no {count} free ports on this machine")


def _lay_out(network: NetworkFile, shares: Sequence[Share], folder: Path, deadline: float) -> None:
    """Kits for all sites, ready to start."""
    from deepca.sites.admin.kits import make_kits

    folder.mkdir(parents=True, exist_ok=True)
    write_network(folder / "network.toml", network)
    make_kits(folder / "network.toml", folder, trial=True, days=30)
    for share in shares:
        write_site(
            folder / share.site / "site.toml",
            share.site,
            str(share.data),
            label_column=share.label_column,
            dataset=share.dataset,
            deadline=deadline,
        )


def _move(network: NetworkFile, folder: Path) -> NetworkFile:
    """The same sites at other ports; certificates do not name any."""
    ports = _free_ports(len(network.sites))
    sites = tuple(replace(site, address=f"127.0.0.1:{port}") for site, port in zip(network.sites, ports, strict=True))
    moved = replace(network, sites=sites)
    for place in (".", "authority", *(site.name for site in sites)):
        write_network(folder / place / "network.toml", moved)
    for site in sites:
        shutil.rmtree(folder / site.name / "state", ignore_errors=True)
    return moved


# -------------------------------------------------------------------------------------------------------- the processes


def agent_command(site: Path, log: Path) -> list[str]:
    """What starts an agent, with its log in a file."""
    start = [sys.executable, "-c", "from deepca.cli import main; main()"]
    return [*start, "agent", "run", str(site), "--log", "json", "--log-file", str(log), "--quiet"]


@dataclass
class _Agent:
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

    def ended(self) -> Ended:
        said = any(line.startswith(_LAST_WORDS) for line in self.lines[-1:])
        return Ended(
            self.share.site,
            self.share.rows,
            self.process.returncode,
            self.model if self.holds else None,
            (*self.lines, *([] if said else self.complaints())),
            self.stopped,
            self.first,
        )

    def complaints(self) -> list[str]:
        """The end of what was written to its standard error."""
        try:
            text = self.errors.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        return [line for line in text.splitlines() if line.strip()][-_SHOWN:]


def run_cluster(
    shares: Sequence[Share],
    network: NetworkFile,
    folder: Path,
    *,
    deadline: float = 3600.0,
    watch: Callable[[Sequence[Sight]], None] = lambda sights: None,
    command: Callable[[Path, Path], list[str]] = agent_command,
) -> Outcome:
    """Start an agent for every share, wait until all have ended, and see that all came to the same.

    folder : for kits, logs and checkpoints.  deadline : seconds, of every agent; nothing here takes much longer.
    Nothing is left running, however this ends. Raises NetworkError if model files differ.
    """
    began = time.monotonic()
    _lay_out(network, shares, folder, deadline)
    agents = _run(shares, network, folder, deadline, watch, command)
    if any("cannot listen at" in line for agent in agents for line in agent.last if agent.code == 2):
        # somebody else was quicker at one of the ports
        agents = _run(shares, _move(network, folder), folder, deadline, watch, command)
    models = {agent.site: agent.model.read_bytes() for agent in agents if agent.model is not None}
    prints = {site: hashlib.sha256(content).hexdigest() for site, content in models.items()}
    if len({*prints.values()}) > 1:
        said = ", ".join(f"{site} {print_[:16]}" for site, print_ in prints.items())
        raise NetworkError(f"the sites ended with different model files, which must not be: {said}; none is kept")
    content = next(iter(models.values()), None)
    return Outcome(
        agents,
        content,
        next(iter(prints.values()), ""),
        time.monotonic() - began,
        _code(agents, any_result=content is not None),
    )


def _code(agents: Sequence[Ended], *, any_result: bool) -> int:
    """One exit code for all: that of whoever failed first, if anybody did."""
    codes = {agent.code for agent in agents}
    if codes == {0}:
        return 0
    if any_result and all(agent.model is not None for agent in agents):
        return 1 if 1 in codes else 4
    failed = next((agent.code for agent in agents if agent.first), 1)
    return failed if failed in (2, 3) else 1


def _run(
    shares: Sequence[Share],
    network: NetworkFile,
    folder: Path,
    deadline: float,
    watch: Callable[[Sequence[Sight]], None],
    command: Callable[[Path, Path], list[str]],
) -> tuple[Ended, ...]:
    with _started(shares, folder, command) as agents:
        end = time.monotonic() + deadline + _BEYOND
        hopeless: float | None = None
        while True:
            alive = [agent for agent in agents if agent.process.poll() is None]
            for agent in agents:
                agent.listen()
            watch([agent.sight() for agent in agents])
            if not alive:
                break
            now = time.monotonic()
            failed = [agent for agent in agents if agent not in alive and not agent.holds]
            if failed and not any(agent.first for agent in agents):
                failed[0].first = True
            if hopeless is None and failed and not _goes_on(network, agents, failed):
                hopeless = now + _GRACE
            if hopeless is None and all(agent.state == "finished" for agent in agents):
                hopeless = now + network.patience + _BEYOND  # finished agents wait for each other so long, not longer
            if now > end or (hopeless is not None and now > hopeless):
                _stop(alive)
                continue
            time.sleep(_LOOK)
        for agent in agents:
            agent.listen()
        if not any(agent.first for agent in agents):
            for agent in agents:
                if not agent.holds:
                    agent.first = True
                    break
        return tuple(agent.ended() for agent in agents)


def _goes_on(network: NetworkFile, agents: Sequence[_Agent], failed: Sequence[_Agent]) -> bool:
    """Whether the others can come to a result without those that have failed."""
    begun = any(agent.state in ("running", "gathering", "finished") for agent in agents)
    return network.on_loss == "shrink" and begun and 2 * (len(agents) - len(failed)) > len(agents)


@contextmanager
def _started(
    shares: Sequence[Share], folder: Path, command: Callable[[Path, Path], list[str]]
) -> Iterator[list[_Agent]]:
    """The agents; all of them have ended when this is left."""
    threads = str(max(usable_cores() // len(shares), 1))
    environment = {**dict.fromkeys(_THREADS, threads), **os.environ}
    agents: list[_Agent] = []
    try:
        for share in shares:
            place = folder / share.site
            log = place / "log.jsonl"
            log.unlink(missing_ok=True)
            with (place / "errors.txt").open("wb") as errors:
                process = subprocess.Popen(  # noqa: S603 - this very program
                    command(place / "site.toml", log),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    env=environment,
                    start_new_session=True,  # Ctrl-C is for this process, which then stops them
                )
            agents.append(_Agent(share, place, process))
        yield agents
    finally:
        _stop([agent for agent in agents if agent.process.poll() is None])


def _stop(agents: Sequence[_Agent]) -> None:
    """Ask them to end, and see to it."""
    for agent in agents:
        agent.stopped = True
        agent.process.terminate()
    end = time.monotonic() + _TO_STOP
    for agent in agents:
        try:
            agent.process.wait(max(end - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            agent.process.kill()
            agent.process.wait()


def keep_models(outcome: Outcome, out: Path) -> dict[str, Path]:
    """Every site's model file as ``out/<site>/model.npz``."""
    places = {agent.site: out / agent.site / "model.npz" for agent in outcome.agents if agent.model is not None}
    for place in places.values():
        write_whole(place, outcome.content or b"")
    return places
