"""Run all agents as threads of one process, connected by an in-memory transport."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from deepca._util.machine import one_blas_thread
from deepca.errors import PeerFailed
from deepca.network.agent import AgentNetwork
from deepca.network.transports.memory import MemoryHub
from deepca.topology.graph import Topology

__all__ = ["run_agents"]

T = TypeVar("T")
_POLL_SECONDS = 0.5  # between checks of running agents: a Ctrl-C may not interrupt an unlimited wait
_INTERRUPT_SECONDS = 5.0  # time that agents have to stop after a Ctrl-C


def run_agents(
    topology: Topology, work: Callable[[AgentNetwork], T], *, timeout: float = 60.0, hub: MemoryHub | None = None
) -> list[T]:
    """Run every agent in a thread of its own, connected by an in-memory transport.

    Parameters
    ----------
    topology : Topology
        The network.
    work : callable
        Function of an :class:`AgentNetwork`, called once per agent.
    timeout : float, default=60.0
        Longest wait for a message, in seconds.
    hub : MemoryHub, optional
        The hub to use instead of a new one.

    Returns
    -------
    list
        The return values, in the order of agents.

    Raises
    ------
    BaseException
        The error of the first agent that failed, with the index of the agent as a note. The other agents are stopped
        at once.

    Examples
    --------
    >>> import numpy as np
    >>> from deepca import run_agents, topology
    >>> run_agents(topology.ring(4), lambda network: float(network.reduce(np.array(network.agent), "max")))
    [3.0, 3.0, 3.0, 3.0]
    """
    shared = hub if hub is not None else MemoryHub(topology.n_agents, timeout=timeout)
    results: dict[int, T] = {}
    errors: dict[int, BaseException] = {}
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()

    def run(agent: int) -> None:
        try:
            results[agent] = work(AgentNetwork(topology, agent, shared.transport(agent)))
            shared.leave(agent)
        except BaseException as error:
            error.add_note(f"(raised by agent {agent})")
            errors[agent] = error
            shared.fail(agent, error)
        finally:
            ended.put(agent)

    threads = [
        threading.Thread(target=run, args=(j,), name=f"agent-{j}", daemon=True) for j in range(topology.n_agents)
    ]
    with one_blas_thread():
        _run_threads(threads, ended, shared)
    if errors:
        raise _first_cause(list(errors.values()))
    return [results[j] for j in range(topology.n_agents)]


def _first_cause(errors: list[BaseException]) -> BaseException:
    """Return the first error that is not merely the effect of another agent's failure; if all are, the first error."""
    return next((error for error in errors if not isinstance(error, PeerFailed)), errors[0])


def _run_threads(threads: list[threading.Thread], ended: queue.SimpleQueue[int], hub: MemoryHub) -> None:
    """Start the threads of all agents and wait until they have ended; on an interrupt, stop them first."""
    running: set[int] = set()
    try:
        for agent, thread in enumerate(threads):
            running.add(agent)
            thread.start()
        while running:
            running -= _ended_within(_POLL_SECONDS, ended)
    except BaseException as error:  # Ctrl-C: the agents stop at their next exchange
        hub.fail(-1, error)
        deadline = time.monotonic() + _INTERRUPT_SECONDS
        while running and time.monotonic() < deadline:
            running -= _ended_within(0.05, ended)
        raise


def _ended_within(seconds: float, ended: queue.SimpleQueue[int]) -> set[int]:
    """Return the next agent to end, as a set; the set is empty if none ends within that time."""
    try:
        return {ended.get(timeout=seconds)}
    except queue.Empty:
        return set()
