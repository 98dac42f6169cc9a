"""Memory of agents: of a process each, and of the same run with all of them in one process, without a network."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from studies.faults.processes import Fleet, Hung, in_process

__all__ = ["Footprint", "apart", "resident", "together"]

_STEP = 0.05


@dataclass(frozen=True)
class Footprint:
    """Anonymous memory in MB: the most, and what there was before the work began."""

    most: float
    before: float


def resident(pid: int | None, name: str = "VmRSS") -> float:
    """Memory of a process in MB (10⁶ bytes); 0 if it is gone. ``name`` : a line of ``/proc/PID/status``."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def apart(fleet: Fleet, limit: float) -> Footprint:
    """Of the largest agent of a fleet that is started here and runs to its end."""
    fleet.start()
    sites = range(fleet.setup.sites)
    most, before = [0.0 for _ in sites], [0.0 for _ in sites]
    end = time.monotonic() + limit
    while any(map(fleet.alive, sites)):
        for site in sites:
            now = resident(fleet.processes[site].pid, "RssAnon")
            most[site] = max(most[site], now)
            if not before[site] and fleet.events(site, "started"):
                before[site] = now
        if time.monotonic() > end:
            raise Hung(f"no result within {limit:g} s")
        time.sleep(_STEP)
    return Footprint(max(most), before[most.index(max(most))])


def together(sites: Sequence[Path], limit: float) -> Footprint:
    """Of one process in which all agents of a network run; ``sites`` : their ``site.toml``."""
    process = in_process(_together, list(sites))
    try:
        end = time.monotonic() + limit
        time.sleep(0.5)
        before = most = resident(process.pid, "RssAnon")
        while process.exitcode is None:
            most = max(most, resident(process.pid, "RssAnon"))
            if time.monotonic() > end:
                raise Hung(f"no result within {limit:g} s")
            time.sleep(_STEP)
    finally:
        if process.exitcode is None and process.pid is not None:
            os.kill(process.pid, signal.SIGKILL)
    if process.exitcode:
        raise RuntimeError(f"exit code {process.exitcode}")
    return Footprint(most, before)


def _together(sites: Sequence[Path]) -> None:
    from deepca.data.local_data import read
    from deepca.data.readers import open_source
    from deepca.decomposition.fit import decompose
    from deepca.network.agent import AgentNetwork, run_agents
    from deepca.sites.config.site_file import read_site

    files = [read_site(site) for site in sites]
    network = files[0].network
    settings = network.settings
    time.sleep(1.0)  # to be measured before anything is read

    def work(agents: AgentNetwork) -> None:
        source = open_source(str(files[agents.agent].data))
        decompose(read((source,), form=settings.form), agents, settings)

    run_agents(network.topology, work, timeout=600.0)
