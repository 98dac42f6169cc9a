"""Run the same sites privately and openly, as real agents over loopback, and measure both.

Every site is a process with certificates of its own. Processes are forked from one that has imported everything, so
that starting them takes little time; what is measured begins later, with the epoch, and ends with the model file.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from deepca._util.typing import Array
from deepca.network.sums import Words
from deepca.network.transports.base import Combine, Message, RelayStep
from deepca.sites.admin.trial_setup import Share, create_kits, move_ports, trial_network
from deepca.sites.config.privacy import Privacy
from studies.faults.fleet import Hung, Process, start_process

__all__ = ["COMPONENTS", "TOLERANCE", "Case", "Run", "Trial", "draw_rows"]

COMPONENTS = 5
TOLERANCE = 1e-10
_VARIANCES = (100.0, 80.0, 60.0, 45.0, 30.0)  # of the components; that of the largest other direction is about 1
_OUTPUT = "output.txt"  # standard output and error of an agent
_TIME_LIMIT = 240.0  # seconds for a run


@dataclass(frozen=True)
class Case:
    """Sites and rows of a comparison.

    Parameters
    ----------
    m, d, rows : int
        Number of sites, of columns, and of rows per site.
    pairs : int
        Number of private runs, each of which an open one follows.
    """

    m: int
    d: int
    rows: int
    pairs: int


@dataclass(frozen=True)
class Run:
    """What is compared of a run.

    Parameters
    ----------
    digest : str
        SHA-256 of components, variances and mean.
    angle : float
        Bound of the certificate on the tangent of the largest angle, at every site.
    proven : bool
        Whether the certificate proves that the tolerance is met.
    seed, iterations : int
        Seed of the run, and number of iterations.
    seconds : float
        From the first site that begins the epoch to the last that has written its model.
    cpu : float
        Processor time of all sites within their parts of that time.
    others : float
        Number of cores that other processes, and the system, used meanwhile; 0 if it is unknown.
    numbers : float
        Bytes of the algorithm's messages per site, as counted in the model.
    frames : tuple of int
        Bytes of all frames that each site sent, from its start until its model was written.
    sent : tuple of ndarray of uint64
        Messages of sums that the sites sent, if they were recorded.
    """

    digest: str
    angle: float
    proven: bool
    seed: int
    iterations: int
    seconds: float
    cpu: float
    others: float
    numbers: float
    frames: tuple[int, ...]
    sent: tuple[Words, ...] = ()


def draw_rows(case: Case) -> list[Array]:
    """Draw the rows of every site; their means differ, and the pooled covariance has a clear gap."""
    rng = np.random.default_rng((31, case.m, case.d))
    axes = np.linalg.qr(rng.standard_normal((case.d, COMPONENTS)))[0] * np.sqrt(_VARIANCES)
    noise = 1.0 / (1.0 + np.sqrt(case.d / (case.rows * case.m)))
    found = []
    for _ in range(case.m):
        rows = rng.standard_normal((case.rows, case.d))
        rows *= noise
        rows += rng.standard_normal((case.rows, COMPONENTS)) @ axes.T
        rows += 0.1 * rng.standard_normal(case.d)
        found.append(rows)
    return found


class Trial:
    """The sites of a case: their rows, kits and certificates, which all runs have in common."""

    def __init__(self, case: Case, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder, self._shares = folder, []
        for j, rows in enumerate(draw_rows(case), 1):
            path = folder / f"rows-{j}.npy"
            np.save(path, rows)
            self._shares.append(Share(f"site-{j}", path, case.rows))
        self._network = trial_network(
            self._shares, name="figures", components=COMPONENTS, topology_name="ring", tolerance=TOLERANCE
        )
        create_kits(self._network, self._shares, folder, _TIME_LIMIT)

    def run(self, privacy: Privacy, seed: int = 0, *, record: bool = False) -> Run:
        """Run all sites once and return what they report; the seed of a private run is made by the sites.

        Raises
        ------
        Hung
            If the run takes too long.
        RuntimeError
            If a site ends without a result, or the models differ.
        """
        move_ports(replace(self._network, privacy=privacy, seed=seed), self._folder)  # also clears the state
        places = [self._folder / share.site for share in self._shares]
        for place in places:
            (place / "model.npz").unlink(missing_ok=True)
        _run_processes(places, record=record)
        return _measured(places)


def _run_processes(places: Sequence[Path], *, record: bool) -> None:
    processes: list[Process] = []
    end = time.monotonic() + _TIME_LIMIT
    try:
        processes.extend(start_process(_agent, place, record) for place in places)
        while any(process.exitcode is None for process in processes):
            if time.monotonic() > end:
                raise Hung(f"no result within {_TIME_LIMIT:g} s")
            time.sleep(0.05)
    finally:
        for process in processes:
            if process.exitcode is None and process.pid is not None:
                os.kill(process.pid, signal.SIGKILL)
    for place, process in zip(places, processes, strict=True):
        if process.exitcode:
            output = (place / _OUTPUT).read_text(encoding="utf-8", errors="replace")
            raise RuntimeError(f"the agent of {place.name} ended with exit code {process.exitcode}:\n{output}")


def _agent(place: Path, record: bool) -> None:
    """Run the agent of a site, and write what was measured beside its model."""
    from deepca._util.logs import EventHandler, attached
    from deepca.sites.config.site_file import read_site
    from deepca.sites.runtime.agent import Agent, run_agent

    with (place / _OUTPUT).open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    facts: dict[str, Any] = {}
    agents: list[Agent] = []
    sent: list[Words] = []

    def take(_site: str, event: str, _text: str, _facts: Mapping[str, Any]) -> None:
        if event in ("epoch", "finished"):
            facts.setdefault(event, [time.monotonic(), time.process_time(), _busy()])
            facts["epochs"] = facts.get("epochs", 0) + (event == "epoch")
        if event == "finished":
            facts["frames"] = sum(link.sent_bytes for link in agents[0].node.links.values())

    def ready(agent: Agent) -> None:
        agents.append(agent)
        if record:
            _record_sums(agent.node, sent)

    with attached(EventHandler(take)):
        run_agent(read_site(place / "site.toml"), ready=ready)
    if record:
        np.savez(place / "sent.npz", *sent)
    (place / "measured.json").write_text(json.dumps(facts), encoding="utf-8")


def _busy() -> float:
    """Return the processor time, in seconds, that all processes together have used since the system started."""
    try:
        user, nice, system, _, _, *rest = map(int, Path("/proc/stat").read_text(encoding="ascii").split()[1:9])
    except OSError:  # not on Linux
        return 0.0
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def _record_sums(node: Any, sent: list[Words]) -> None:
    """Record the messages of sums that a node sends."""
    relay = node.relay

    def recording(plan: Any, steps: Sequence[RelayStep], message: Message, combine: Combine) -> Message:
        def note(index: int, one: Message, received: dict[int, Message]) -> Message:
            if steps[index].receivers and one.payload is not None and one.payload.dtype == np.uint64:
                sent.append(one.payload.copy())
            return combine(index, one, received)

        found: Message = relay(plan, steps, message, note)
        return found

    node.relay = recording


def _measured(places: Sequence[Path]) -> Run:
    """Return what the sites of a run have measured, and what their common model says."""
    from deepca.decomposition.model.file import from_bytes

    contents = {(place / "model.npz").read_bytes() for place in places}
    if len(contents) != 1:
        raise RuntimeError("the sites ended with different model files")
    model = from_bytes(contents.pop(), Path("model.npz"))
    facts = [json.loads((place / "measured.json").read_text(encoding="utf-8")) for place in places]
    proof = model.certificate
    if proof is None:
        raise RuntimeError(f"the sites ended without a certificate: {model.status}")
    first, last = min(one["epoch"] for one in facts), max(one["finished"] for one in facts)
    seconds, cpu = last[0] - first[0], sum(one["finished"][1] - one["epoch"][1] for one in facts)
    parts = (model.components, model.explained_variance, model.mean)
    return Run(
        digest=hashlib.sha256(b"".join(part.astype("<f8").tobytes() for part in parts)).hexdigest(),
        angle=max(proof.angle, proof.agents_angle),
        proven=model.status.ok and proof.proves(TOLERANCE),
        seed=int(model.about["seed"]),
        iterations=int(model.about["iterations"]),
        seconds=seconds,
        cpu=cpu,
        others=max((last[2] - first[2] - cpu) / seconds, 0.0),
        numbers=float(model.about["bytes_per_agent"]),
        frames=tuple(one["frames"] for one in facts),
        sent=tuple(words for place in places for words in _recorded(place)),
    )


def _recorded(place: Path) -> list[Words]:
    """Return the messages that a site has recorded, and delete the file."""
    path = place / "sent.npz"
    if not path.exists():
        return []
    with np.load(path) as stored:
        found = [stored[name] for name in stored.files]
    path.unlink()
    return found
