"""Run a whole network on one machine, for trials: one process per site, loopback addresses, own certificates."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deepca._util.files import write_atomic
from deepca._util.machine import usable_cores
from deepca.errors import AddressInUse, NetworkError
from deepca.sites.admin.trial_agent import AgentExit, TrialAgent, TrialAgentSnapshot, agent_command
from deepca.sites.admin.trial_setup import Share, create_kits, move_ports
from deepca.sites.config.network_file import NetworkFile

__all__ = ["TrialOutcome", "keep_models", "run_trial"]

_POLL_INTERVAL = 0.15  # seconds between checks of the processes
GRACE = 3.0  # seconds for the other agents to end by themselves once the run cannot succeed any more
TIME_TO_STOP = 5.0  # seconds between terminating an agent and killing it
BEYOND_DEADLINE = 20.0  # seconds after the agents' own deadline until those still running are stopped
_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


@dataclass(frozen=True)
class TrialOutcome:
    """Result of a trial.

    Parameters
    ----------
    agents : tuple of AgentExit
        How every agent ended.
    content : bytes or None
        Content of the model files, which are all the same; None without a result.
    sha256 : str
        Digest of that content; empty without a result.
    seconds : float
        How long the trial took.
    code : int
        Exit code, as of ``deepca agent run``.
    """

    agents: tuple[AgentExit, ...]
    content: bytes | None
    sha256: str
    seconds: float
    code: int


# -------------------------------------------------------------------------------------------------------- the processes


def run_trial(
    shares: Sequence[Share],
    network: NetworkFile,
    folder: Path,
    *,
    deadline: float = 3600.0,
    watch: Callable[[Sequence[TrialAgentSnapshot]], None] = lambda snapshots: None,
    command: Callable[[Path, Path], list[str]] = agent_command,
) -> TrialOutcome:
    """Start an agent for every share, wait until all have ended, and check that their results are the same.

    No process is left running, whether or not this succeeds.

    Parameters
    ----------
    shares : sequence of Share
        The rows of every site.
    network : NetworkFile
        The network.
    folder : Path
        Where to write kits, logs and checkpoints.
    deadline : float
        Deadline of every agent, in seconds; the trial does not take much longer.
    watch : callable, optional
        Called with the state of all agents, several times a second.
    command : callable, optional
        Returns the command that starts an agent.

    Raises
    ------
    NetworkError
        If the model files differ.
    """
    began = time.monotonic()
    create_kits(network, shares, folder, deadline)
    agents = _run(shares, network, folder, deadline, watch, command)
    if any(agent.error == AddressInUse.__name__ for agent in agents):  # another program took a port
        agents = _run(shares, move_ports(network, folder), folder, deadline, watch, command)
    models = {agent.site: agent.model.read_bytes() for agent in agents if agent.model is not None}
    prints = {site: hashlib.sha256(content).hexdigest() for site, content in models.items()}
    if len({*prints.values()}) > 1:
        shown = ", ".join(f"{site} {print_[:16]}" for site, print_ in prints.items())
        raise NetworkError(
            f"the sites ended with different model files: {shown} (SHA-256); none is kept. This is a bug in "
            "deepca; report it with the logs"
        )
    content = next(iter(models.values()), None)
    return TrialOutcome(
        agents,
        content,
        next(iter(prints.values()), ""),
        time.monotonic() - began,
        _exit_code(agents, any_result=content is not None),
    )


def _exit_code(agents: Sequence[AgentExit], *, any_result: bool) -> int:
    """Return one exit code for all agents: that of the first that failed, if any did."""
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
    watch: Callable[[Sequence[TrialAgentSnapshot]], None],
    command: Callable[[Path, Path], list[str]],
) -> tuple[AgentExit, ...]:
    with _started(shares, folder, command) as agents:
        end = time.monotonic() + deadline + BEYOND_DEADLINE
        give_up: float | None = None
        while True:
            alive = [agent for agent in agents if agent.process.poll() is None]
            for agent in agents:
                agent.read_log()
            watch([agent.snapshot() for agent in agents])
            now = time.monotonic()
            failed = [agent for agent in agents if agent not in alive and not agent.has_result]
            if failed and not any(agent.first for agent in agents):
                failed[0].first = True
            if not alive:
                break
            if give_up is None and failed and not _can_continue(network, agents, failed):
                give_up = now + GRACE
            if give_up is None and all(agent.state == "finished" for agent in agents):
                # finished agents wait for each other, but no longer than this
                give_up = now + network.patience + BEYOND_DEADLINE
            if now > end or (give_up is not None and now > give_up):
                _stop(alive)
                continue
            time.sleep(_POLL_INTERVAL)
        for agent in agents:
            agent.read_log()
        return tuple(agent.ended() for agent in agents)


def _can_continue(network: NetworkFile, agents: Sequence[TrialAgent], failed: Sequence[TrialAgent]) -> bool:
    """Return whether the remaining agents can reach a result without those that failed."""
    begun = any(agent.state in ("running", "gathering", "finished") for agent in agents)
    return network.on_loss == "shrink" and begun and 2 * (len(agents) - len(failed)) > len(agents)


@contextmanager
def _started(
    shares: Sequence[Share], folder: Path, command: Callable[[Path, Path], list[str]]
) -> Iterator[list[TrialAgent]]:
    """Start the agents; stop those that are still running on exit."""
    threads = str(max(usable_cores() // len(shares), 1))
    environment = {**dict.fromkeys(_THREAD_VARIABLES, threads), **os.environ}
    agents: list[TrialAgent] = []
    try:
        for share in shares:
            place = folder / share.site
            log = place / "log.jsonl"
            log.unlink(missing_ok=True)
            with (place / "errors.txt").open("wb") as errors:
                process = subprocess.Popen(  # noqa: S603 - the program itself
                    command(place / "site.toml", log),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    env=environment,
                    start_new_session=True,  # Ctrl-C reaches only this process, which then stops them
                )
            agents.append(TrialAgent(share, place, process))
        yield agents
    finally:
        _stop([agent for agent in agents if agent.process.poll() is None])


def _stop(agents: Sequence[TrialAgent]) -> None:
    """Terminate agents and kill those that do not end in time."""
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
    """Write every site's model file as ``out/<site>/model.npz`` and return these paths by site."""
    places = {agent.site: out / agent.site / "model.npz" for agent in outcome.agents if agent.model is not None}
    for place in places.values():
        write_atomic(place, outcome.content or b"")
    return places
