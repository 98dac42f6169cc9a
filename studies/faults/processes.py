"""Agents as real processes on one machine: kits, rows, starting, hurting, waiting with a limit, and judging.

Agents are forked from a process that has imported everything, or started afresh where that matters: an interpreter
takes longer to come up than the runs here last.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from deepca._util.typing import Array
from deepca.sites.admin.kits import make_kits
from deepca.sites.config.network_file import NetworkFile, read_network
from studies.faults.hurt import Hurt, run
from studies.faults.proxies import Proxies

__all__ = [
    "CLOSE",
    "Fleet",
    "Hung",
    "Process",
    "Setup",
    "Verdict",
    "free_port",
    "free_ports",
    "in_process",
    "kernels_here",
]

CLOSE = 1e-10
"""How far a result may be from that of the pooled rows: sine of the largest angle between the components."""
_KERNELS = ("SkylakeX", "Haswell", "Zen", "Sandybridge", "Nehalem", "Prescott")
_PRODUCT = """
import hashlib, numpy
A = numpy.random.default_rng(0).standard_normal((300, 300))
Q = numpy.linalg.qr(A @ A)[0]
print(hashlib.sha256((A @ A).tobytes() + Q.tobytes()).hexdigest())
"""
_ROOT = Path(__file__).resolve().parents[2]
_CLEAR_OF = range(10_000, 30_000)  # ports that no connection from here gets as its own


class Hung(Exception):
    """Something was waited for longer than it may ever take."""


@dataclass(frozen=True)
class Setup:
    """A network, what it computes, and how long that takes.

    pause : seconds that an iteration takes every agent at least.  proxied : whether links go through proxies.
    gap : ratio of neighbouring eigenvalues, smaller is faster.  deadline, patience : seconds.
    close : how far a result may be from that of the pooled rows.
    guest : whether there is one more site, without address, with ``s1`` as its only neighbour; it calls that.
    fresh : whether every agent is an interpreter of its own, instead of forked from one that has imported everything.
    kernels : OPENBLAS_CORETYPE of each agent in turn, as if their processors were unlike; needs ``fresh``.
    """

    agents: int = 10
    topology: str = "ring"
    algorithm: str = "deepca"
    components: int = 3
    d: int = 12
    rows: int = 40
    on_loss: str = "wait"
    patience: float = 60.0
    deadline: float = 120.0
    every: int = 5
    pause: float = 0.05
    gap: float = 0.6
    tolerance: float = 1e-10
    close: float = CLOSE
    proxied: bool = False
    guest: bool = False
    seed: int = 0
    fresh: bool = False
    kernels: tuple[str, ...] = ()

    @property
    def sites(self) -> int:
        """Number of sites, the guest included."""
        return self.agents + self.guest


@dataclass
class Verdict:
    """How a run ended: exit codes by site (the last start of each), what is wrong, and what was measured.

    error : the largest difference from the pooled rows, over the results; simulated : from the simulator.
    accepted : fabricated results that somebody has written.  tracebacks : agents that ended with one.
    unnamed : honest sites that do not name who is to blame.
    """

    codes: dict[int, int | None]
    seconds: float
    problems: list[str] = field(default_factory=list)
    hung: int = 0
    wrong: bool = False
    results: int = 0
    members: tuple[str, ...] = ()
    error: float = 0.0
    simulated: float = 0.0
    epochs: int = 0
    iterations: int = 0
    repeated: int = 0
    accepted: int = 0
    tracebacks: int = 0
    unnamed: int = 0

    @property
    def finished(self) -> list[int]:
        """Sites whose agent ended with exit code 0."""
        return [site for site, code in self.codes.items() if code == 0]


class Process(Protocol):
    """A process that was started."""

    @property
    def pid(self) -> int | None:
        """Process identifier."""

    @property
    def exitcode(self) -> int | None:
        """Exit code; None while the process runs."""


class Fleet:
    """The agents of one network, in ``folder``. Used with ``with``: nothing is left running."""

    def __init__(self, folder: Path, setup: Setup, rows: Sequence[Array] | None = None) -> None:
        """``rows`` : of each site, ``(n_j, d)``; made up if not given."""
        self.setup, self.folder = setup, folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.names = tuple(f"s{j}" for j in range(setup.sites))
        self.listening = free_ports(setup.sites)
        self.rows = list(rows) if rows is not None else make_rows(setup)
        self._began = time.monotonic()
        self.processes: dict[int, Process] = {}
        self.starts: dict[int, int] = dict.fromkeys(range(setup.sites), 0)
        self.proxies: Proxies | None = None
        self._write()

    def __enter__(self) -> Fleet:
        """Return this fleet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill all agents that still run."""
        for site in list(self.processes):
            self.signal(site, signal.SIGKILL)
        for process in self.processes.values():
            _join(process, 5.0)
        if self.proxies is not None:
            self.proxies.close()

    # ----------------------------------------------------------------------------------------------------------- files

    def site(self, site: int) -> Path:
        """Return the folder of a site's kit."""
        return self.folder / "kits" / self.names[site]

    @cached_property
    def network(self) -> NetworkFile:
        """The network file of the fleet."""
        return read_network(self.folder / "network.toml")

    def _write(self) -> None:
        path = self.folder / "network.toml"
        path.write_text(self._network({}), encoding="utf-8")
        make_kits(path, self.folder / "kits", trial=True)
        if self.setup.proxied:
            links = self.network.links  # the earlier site dials
            self.proxies = Proxies({link: self.listening[link[1]] for link in links})
        for site in range(self.setup.sites):
            np.save(self.site(site) / "rows.npy", self.rows[site])
            if self.proxies is not None:
                through = {j: port for (i, j), port in self.proxies.ports.items() if i == site}
                (self.site(site) / "network.toml").write_text(self._network(through), encoding="utf-8")
            self.configure(site, data="rows.npy", deadline=f"{self.setup.deadline:g}s")
            if not self._is_guest(site):
                self.configure(site, listen=f"127.0.0.1:{self.listening[site]}")

    def _network(self, through: Mapping[int, int]) -> str:
        """``network.toml``, with other ports for some sites."""
        setup = self.setup
        lines = [
            'name = "faults"',
            f"components = {setup.components}",
            self._edges() if setup.guest else f'topology = "{setup.topology}"',
            f'algorithm = "{setup.algorithm}"',
            f"tolerance = {setup.tolerance!r}",
            f'on_loss = "{setup.on_loss}"',
            f'patience = "{setup.patience:g}s"',
            f"checkpoint_every = {setup.every}",
        ]
        for j, name in enumerate(self.names):
            lines += ["[[sites]]", f'name = "{name}"']
            if not self._is_guest(j):
                lines.append(f'address = "127.0.0.1:{through.get(j, self.listening[j])}"')
        return "\n".join(lines) + "\n"

    def _is_guest(self, site: int) -> bool:
        return site >= self.setup.agents

    def _edges(self) -> str:
        """Return the links: a ring, and a guest beside the second site."""
        m = self.setup.agents
        pairs = [[self.names[j], self.names[(j + 1) % m]] for j in range(m)]
        return f"edges = {json.dumps([*pairs, [self.names[1], self.names[m]]])}"

    def configure(self, site: int, **values: str) -> None:
        """Change texts in its ``site.toml``."""
        path = self.site(site) / "site.toml"
        text = path.read_text(encoding="utf-8")
        for name, value in values.items():
            text, found = re.subn(rf"^#? *{name} = .*$", f'{name} = "{value}"', text, count=1, flags=re.MULTILINE)
            if not found:
                raise KeyError(name)
        path.write_text(text, encoding="utf-8")

    # ------------------------------------------------------------------------------------------------------- processes

    def start(self, *sites: int, hurt: Hurt | None = None) -> None:
        """Start agents that do not run; all of them if none are named."""
        for site in sites or range(self.setup.sites):
            done = hurt if hurt is not None else Hurt()
            if not done.pause:
                done = Hurt(**{**vars(done), "pause": self.setup.pause})
            self.starts[site] += 1
            arguments = (self.site(site) / "site.toml", self.log(site), done)
            if self.setup.fresh:
                kernels = self.setup.kernels
                self.processes[site] = _Fresh(*arguments, kernels[site % len(kernels)] if kernels else None)
            else:
                self.processes[site] = in_process(_agent, *arguments)

    def signal(self, site: int, number: signal.Signals) -> bool:
        """Whether there was somebody to be told."""
        process = self.processes.get(site)
        if process is None or process.pid is None or process.exitcode is not None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
            return True
        return False

    def kill(self, *sites: int) -> float:
        """SIGKILL to these, at once; when."""
        now = time.monotonic()
        for site in sites:
            self.signal(site, signal.SIGKILL)
        for site in sites:
            if site in self.processes:
                _join(self.processes[site], 10.0)
        return now

    def alive(self, site: int) -> bool:
        """Tell whether the agent of a site runs."""
        process = self.processes.get(site)
        return process is not None and process.exitcode is None

    def wait(self, limit: float, sites: Iterable[int] | None = None) -> None:
        """Until these agents have ended; raises Hung when that takes longer than ``limit`` seconds."""
        chosen = list(range(self.setup.sites) if sites is None else sites)
        end = time.monotonic() + limit
        while running := [site for site in chosen if self.alive(site)]:
            if time.monotonic() > end:
                raise Hung(f"{', '.join(self.names[site] for site in running)} still running after {limit:g} s")
            time.sleep(0.02)

    # ---------------------------------------------------------------------------------------------------------- events

    def log(self, site: int) -> Path:
        """Return the path of a site's event log."""
        return self.folder / f"{self.names[site]}.log"

    def events(self, site: int, *kinds: str) -> list[dict[str, Any]]:
        """Return the events of a site so far, over all its starts."""
        try:
            lines = self.log(site).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            with contextlib.suppress(ValueError):  # the last words of somebody who was killed
                found.append(json.loads(line))
        return [one for one in found if isinstance(one, dict) and (not kinds or one["event"] in kinds)]

    def until(self, what: Callable[[], bool], limit: float, why: str) -> float:
        """Wait until something is the case; when that was."""
        end = time.monotonic() + limit
        while not what():
            if time.monotonic() > end:
                raise Hung(f"{why}: not within {limit:g} s")
            time.sleep(0.02)
        return time.monotonic()

    def running(self, limit: float = 60.0) -> float:
        """Wait until all have begun the first epoch."""
        return self.until(
            lambda: all(self.events(site, "epoch") for site in range(self.setup.sites)), limit, "no epoch began"
        )

    def until_left_out(self, site: int, *by: int) -> None:
        """Wait until these sites, or all others, have begun an epoch without ``site``."""
        name, who = self.names[site], by or [other for other in range(self.setup.sites) if other != site]

        def gone_on(other: int) -> bool:
            return any(name in one["left_out"] for one in self.events(other, "epoch"))

        self.until(lambda: all(map(gone_on, who)), 60.0, f"{name} was not left out")

    # --------------------------------------------------------------------------------------------------------- judging

    def verdict(self) -> Verdict:
        """Compare the results with the pooled rows, the simulator and each other."""
        codes = {site: process.exitcode for site, process in self.processes.items()}
        made = Verdict(codes, time.monotonic() - self._began)
        contents = {}
        for site in range(self.setup.sites):
            path = self.site(site) / "model.npz"
            if path.exists():
                contents[site] = path.read_bytes()
        for site, code in codes.items():
            if code == 0 and site not in contents:
                made.problems.append(f"{self.names[site]} has ended well without a model")
        made.results = len(contents)
        if len({hashlib.sha256(content).digest() for content in contents.values()}) > 1:
            made.wrong = True
            made.problems.append("model files differ")
        epochs = [one for site in range(self.setup.sites) for one in self.events(site, "epoch")]
        made.epochs = max((int(one["epoch"]) for one in epochs), default=0)
        for content in set(contents.values()):
            self._judge(content, made)
        return made

    def _judge(self, content: bytes, made: Verdict) -> None:
        from deepca.decomposition.model.file import from_bytes

        model = from_bytes(content, Path("model.npz"))
        made.members = tuple(model.about["sites"])
        made.iterations = int(model.about["iterations"])
        members = [self.names.index(name) for name in made.members]
        if 2 * len(members) <= self.setup.sites:
            made.problems.append(f"a result of a minority of {len(members)} sites")
        if not model.status.ok:
            made.problems.append(f"a result that is not proven: {model.status}")
        rows = [self.rows[site] for site in members]
        made.error = max(made.error, _apart(model.components, pooled(rows, self.setup.components)))
        made.simulated = max(made.simulated, _apart(model.components, simulated(rows, self.setup)))
        if not max(made.error, made.simulated) <= self.setup.close:
            made.wrong = True
            made.problems.append(f"wrong by {made.error:.1e}, from the simulator by {made.simulated:.1e}")


class _Fresh:
    """An agent in an interpreter of its own."""

    def __init__(self, site: Path, log: Path, hurt: Hurt, kernels: str | None = None) -> None:
        environment = _environment() if kernels is None else {**_environment(), "OPENBLAS_CORETYPE": kernels}
        more = [f"{name}={value}" for name, value in vars(hurt).items()]
        command = [sys.executable, "-m", "studies.faults.hurt", str(site), str(log), *more]
        with log.with_suffix(".out").open("ab") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exitcode(self) -> int | None:
        return self._process.poll()


def kernels_here() -> tuple[str, ...]:
    """Names of OpenBLAS kernels that this processor can run, and that give different bits."""
    found: dict[str, str] = {}
    for name in _KERNELS:
        environment = {**_environment(), "OPENBLAS_CORETYPE": name}
        made = subprocess.run(
            [sys.executable, "-c", _PRODUCT], env=environment, capture_output=True, text=True, check=False
        )
        if made.returncode == 0:  # an instruction that the processor does not have ends the process
            found.setdefault(made.stdout, name)
    return tuple(found.values())


def _environment() -> dict[str, str]:
    """Return the environment of this process, with one BLAS thread and these studies on the path."""
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": path}


def _agent(site: Path, log: Path, hurt: Hurt) -> None:
    """In a process of its own."""
    _quiet(log.with_suffix(".out"))
    faulthandler.enable()
    sys.exit(run(site, log, hurt))


def _quiet(out: Path) -> None:
    """Redirect the output of a process to a file."""
    with out.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def in_process(work: Callable[..., None], *arguments: object) -> Process:
    """``work(*arguments)`` in a process of its own, forked from one that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["deepca.sites.runtime.agent", "studies.faults.hurt"])
    before = os.environ.get("OPENBLAS_NUM_THREADS")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # threads do not survive a fork
    try:
        process = context.Process(target=work, args=arguments, daemon=True)
        process.start()
    finally:
        if before is None:
            del os.environ["OPENBLAS_NUM_THREADS"]
        else:
            os.environ["OPENBLAS_NUM_THREADS"] = before
    return cast("Process", process)


def _join(process: Process, limit: float) -> None:
    end = time.monotonic() + limit
    while process.exitcode is None and time.monotonic() < end:
        time.sleep(0.005)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at, and that no outgoing connection is given."""
    found: list[int] = []
    while len(found) < count:
        port = free_port()
        if port not in found:
            found.append(port)
    return found


def free_port() -> int:
    """Return a port that is not in use."""
    rng = random.SystemRandom()
    while True:
        port = rng.choice(_CLEAR_OF)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


# -------------------------------------------------------------------------------------------------------------- answers


def make_rows(setup: Setup) -> list[Array]:
    """Rows of all sites, which differ in mean and number."""
    rng = np.random.default_rng((5, setup.seed))
    d = setup.d
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    scales = setup.gap ** (np.arange(d) / 2.0)
    return [
        rng.standard_normal((setup.rows + j % 3, d)) @ (scales[:, None] * basis) + 0.1 * rng.standard_normal(d)
        for j in range(setup.sites)
    ]


def pooled(rows: Sequence[Array], components: int) -> Array:
    """Components that scikit-learn finds in all rows together."""
    from sklearn.decomposition import PCA

    found: Array = PCA(components, svd_solver="full").fit(np.vstack(rows)).components_
    return found


def simulated(rows: Sequence[Array], setup: Setup) -> Array:
    """Components that agents in one process find."""
    from deepca.estimators.pca import DecentralizedPCA

    topology = setup.topology if len(rows) == setup.sites and not setup.guest else "path"
    pca = DecentralizedPCA(setup.components, topology=topology, algorithm=setup.algorithm, tol=setup.tolerance)
    found: Array = pca.fit_agents(rows).components_
    return found


def _apart(components: Array, other: Array) -> float:
    """Sine of the largest angle between two spans of orthonormal rows: no entry of the projections is farther off."""
    return float(np.linalg.norm(other - (other @ components.T) @ components, 2))
