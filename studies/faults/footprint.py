"""Measure the memory of agents: each in its own process, or all in one process without a network."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from studies.faults.fleet import Fleet, Hung, start_process

__all__ = ["Footprint", "measure_in_one_process", "measure_separately", "memory_of"]

_SAMPLING_INTERVAL = 0.05  # seconds between two readings of a process's memory


@dataclass(frozen=True)
class Footprint:
    """Anonymous memory of a process in MB: its maximum, and its value before the work began."""

    peak: float
    before: float


def memory_of(pid: int | None, field: str = "VmRSS") -> float:
    """Return a memory field of ``/proc/PID/status`` in MB (10⁶ bytes); 0 if the process has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def measure_separately(fleet: Fleet, limit: float) -> Footprint:
    """Run a fleet and return the footprint of the agent that used most memory."""
    fleet.start()
    sites = range(fleet.setup.sites)
    most, before = [0.0 for _ in sites], [0.0 for _ in sites]
    end = time.monotonic() + limit
    while any(map(fleet.alive, sites)):
        for site in sites:
            now = memory_of(fleet.processes[site].pid, "RssAnon")
            most[site] = max(most[site], now)
            if not before[site] and fleet.events(site, "started"):
                before[site] = now
        if time.monotonic() > end:
            raise Hung(f"no result within {limit:g} s")
        time.sleep(_SAMPLING_INTERVAL)
    return Footprint(max(most), before[most.index(max(most))])


def measure_in_one_process(sites: Sequence[Path], limit: float) -> Footprint:
    """Run the agents of these ``site.toml`` files in the threads of one process, and return its footprint."""
    process = start_process(_run_in_threads, list(sites))
    try:
        end = time.monotonic() + limit
        time.sleep(0.5)
        before = most = memory_of(process.pid, "RssAnon")
        while process.exitcode is None:
            most = max(most, memory_of(process.pid, "RssAnon"))
            if time.monotonic() > end:
                raise Hung(f"no result within {limit:g} s")
            time.sleep(_SAMPLING_INTERVAL)
    finally:
        if process.exitcode is None and process.pid is not None:
            os.kill(process.pid, signal.SIGKILL)
    if process.exitcode:
        raise RuntimeError(f"agents in one process ended with exit code {process.exitcode}")
    return Footprint(most, before)


def _run_in_threads(sites: Sequence[Path]) -> None:
    """Run all agents of a network in threads of this process."""
    from deepca.data.local_data import read
    from deepca.data.readers import open_source
    from deepca.decomposition.fit import decompose
    from deepca.network.agent import AgentNetwork
    from deepca.network.threads import run_agents
    from deepca.sites.config.site_file import read_site

    files = [read_site(site) for site in sites]
    network = files[0].network
    settings = network.settings
    time.sleep(1.0)  # so that the parent can measure the memory before anything is read

    def work(agents: AgentNetwork) -> None:
        source = open_source(str(files[agents.agent].data))
        decompose(read((source,), form=settings.form), agents, settings)

    run_agents(network.topology, work, timeout=600.0)
