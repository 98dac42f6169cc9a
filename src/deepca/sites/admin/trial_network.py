"""A whole network on one machine, for trials: a process per site, streams over loopback, throw-away certificates."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deepca._util.files import write_whole
from deepca._util.machine import usable_cores
from deepca.errors import AddressInUse, NetworkError
from deepca.sites.admin.trial_agent import AgentExit, Sight, TrialAgent, agent_command
from deepca.sites.admin.trial_setup import Share, lay_out, move_ports
from deepca.sites.config.network_file import NetworkFile

__all__ = ["TrialOutcome", "keep_models", "run_cluster"]

_LOOK = 0.15  # seconds between two looks at the processes
GRACE = 3.0  # seconds that the others have to end by themselves when nothing can come of the run any more
TIME_TO_STOP = 5.0  # seconds from being asked to end to being killed
BEYOND_DEADLINE = 20.0  # seconds after the deadline of the agents, who then should have ended themselves
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


@dataclass(frozen=True)
class TrialOutcome:
    """What came of a run. sha256 : of all model files.  content : their bytes; None if there is no result."""

    agents: tuple[AgentExit, ...]
    content: bytes | None
    sha256: str
    seconds: float
    code: int
    """As ``deepca agent run`` ends."""


# -------------------------------------------------------------------------------------------------------- the processes


def run_cluster(
    shares: Sequence[Share],
    network: NetworkFile,
    folder: Path,
    *,
    deadline: float = 3600.0,
    watch: Callable[[Sequence[Sight]], None] = lambda sights: None,
    command: Callable[[Path, Path], list[str]] = agent_command,
) -> TrialOutcome:
    """Start an agent for every share, wait until all have ended, and see that all came to the same.

    folder : for kits, logs and checkpoints.  deadline : seconds, of every agent; nothing here takes much longer.
    Nothing is left running, however this ends. Raises NetworkError if model files differ.
    """
    began = time.monotonic()
    lay_out(network, shares, folder, deadline)
    agents = _run(shares, network, folder, deadline, watch, command)
    if any(agent.error == AddressInUse.__name__ for agent in agents):  # somebody else was quicker at one of the ports
        agents = _run(shares, move_ports(network, folder), folder, deadline, watch, command)
    models = {agent.site: agent.model.read_bytes() for agent in agents if agent.model is not None}
    prints = {site: hashlib.sha256(content).hexdigest() for site, content in models.items()}
    if len({*prints.values()}) > 1:
        said = ", ".join(f"{site} {print_[:16]}" for site, print_ in prints.items())
        raise NetworkError(f"the sites ended with different model files, which must not be: {said}; none is kept")
    content = next(iter(models.values()), None)
    return TrialOutcome(
        agents,
        content,
        next(iter(prints.values()), ""),
        time.monotonic() - began,
        _code(agents, any_result=content is not None),
    )


def _code(agents: Sequence[AgentExit], *, any_result: bool) -> int:
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
) -> tuple[AgentExit, ...]:
    with _started(shares, folder, command) as agents:
        end = time.monotonic() + deadline + BEYOND_DEADLINE
        hopeless: float | None = None
        while True:
            alive = [agent for agent in agents if agent.process.poll() is None]
            for agent in agents:
                agent.listen()
            watch([agent.sight() for agent in agents])
            now = time.monotonic()
            failed = [agent for agent in agents if agent not in alive and not agent.holds]
            if failed and not any(agent.first for agent in agents):
                failed[0].first = True
            if not alive:
                break
            if hopeless is None and failed and not _goes_on(network, agents, failed):
                hopeless = now + GRACE
            if hopeless is None and all(agent.state == "finished" for agent in agents):
                # finished agents wait for each other so long, not longer
                hopeless = now + network.patience + BEYOND_DEADLINE
            if now > end or (hopeless is not None and now > hopeless):
                _stop(alive)
                continue
            time.sleep(_LOOK)
        for agent in agents:
            agent.listen()
        return tuple(agent.ended() for agent in agents)


def _goes_on(network: NetworkFile, agents: Sequence[TrialAgent], failed: Sequence[TrialAgent]) -> bool:
    """Whether the others can come to a result without those that have failed."""
    begun = any(agent.state in ("running", "gathering", "finished") for agent in agents)
    return network.on_loss == "shrink" and begun and 2 * (len(agents) - len(failed)) > len(agents)


@contextmanager
def _started(
    shares: Sequence[Share], folder: Path, command: Callable[[Path, Path], list[str]]
) -> Iterator[list[TrialAgent]]:
    """The agents; all of them have ended when this is left."""
    threads = str(max(usable_cores() // len(shares), 1))
    environment = {**dict.fromkeys(_THREADS, threads), **os.environ}
    agents: list[TrialAgent] = []
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
            agents.append(TrialAgent(share, place, process))
        yield agents
    finally:
        _stop([agent for agent in agents if agent.process.poll() is None])


def _stop(agents: Sequence[TrialAgent]) -> None:
    """Ask them to end, and see to it."""
    for agent in agents:
        agent.stopped = True
        agent.process.terminate()
    end = time.monotonic() + TIME_TO_STOP
    for agent in agents:
        try:
            agent.process.wait(max(end - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            agent.process.kill()
            agent.process.wait()


def keep_models(outcome: TrialOutcome, out: Path) -> dict[str, Path]:
    """Every site's model file as ``out/<site>/model.npz``."""
    places = {agent.site: out / agent.site / "model.npz" for agent in outcome.agents if agent.model is not None}
    for place in places.values():
        write_whole(place, outcome.content or b"")
    return places
