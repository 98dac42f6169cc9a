"""Run the agents of a network as real processes on one machine, and check the models that they write.

By default, agents are forked from a server process that has already imported everything, because a new interpreter
takes longer to start than most runs here last. With ``separate_interpreters``, each agent gets a new interpreter.
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
from deepca.sites.config.disclosure import DEFAULT_RULES
from deepca.sites.config.network_file import NetworkFile, read_network
from deepca.sites.config.privacy import privacy_obstacle
from studies.faults.faulty_agent import AgentFaults, run_with_faults
from studies.faults.proxies import Proxies

__all__ = [
    "ACCURACY",
    "Fleet",
    "Hung",
    "Process",
    "Setup",
    "Verdict",
    "available_kernels",
    "free_port",
    "free_ports",
    "start_process",
]

ACCURACY = 1e-10
"""Largest error of a correct result: the sine of the largest angle to the components of the pooled rows."""
_KERNELS = ("SkylakeX", "Haswell", "Zen", "Sandybridge", "Nehalem", "Prescott")  # values of OPENBLAS_CORETYPE
_KERNEL_DIGEST = """
import hashlib, numpy
A = numpy.random.default_rng(0).standard_normal((300, 300))
Q = numpy.linalg.qr(A @ A)[0]
print(hashlib.sha256((A @ A).tobytes() + Q.tobytes()).hexdigest())
"""
_ROOT = Path(__file__).resolve().parents[2]
_PORTS = range(10_000, 30_000)  # below the ephemeral ports that the system assigns to outgoing connections


class Hung(Exception):
    """An event that must happen did not happen within its time limit."""


@dataclass(frozen=True)
class Setup:
    """Configuration of a fleet: its network, its data, and its settings.

    Parameters
    ----------
    agents, topology, algorithm, components, on_loss, tolerance
        As in ``network.toml``.
    open
        Whether the network is open even if its sums could be private.
    d, rows
        Number of columns, and number of rows per site (some sites have one or two more).
    patience, deadline
        In seconds.
    checkpoint_every
        Iterations between checkpoints.
    pause
        Seconds added to every iteration of every agent.
    eigenvalue_ratio
        Ratio of each eigenvalue to the one before it; the smaller it is, the faster a run converges.
    accuracy
        Largest error of a correct result.
    proxied
        Whether links pass through proxies that can block or reset them.
    guest
        Whether there is an additional site, without an address, that connects to ``s1`` only.
    seed
        Seed of the rows.
    separate_interpreters
        Whether every agent runs in a new interpreter instead of a forked process.
    kernels
        OPENBLAS_CORETYPE of the agents, assigned in turn, to imitate different processors; requires
        ``separate_interpreters``.
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
    checkpoint_every: int = 5
    pause: float = 0.05
    eigenvalue_ratio: float = 0.6
    tolerance: float = 1e-10
    accuracy: float = ACCURACY
    proxied: bool = False
    guest: bool = False
    seed: int = 0
    separate_interpreters: bool = False
    kernels: tuple[str, ...] = ()
    open: bool = False

    @property
    def privacy(self) -> str:
        """As in ``network.toml``: private where possible."""
        obstacle = privacy_obstacle(self.sites, self.algorithm, "float64", self.on_loss)
        return "open" if self.open or obstacle else "private"

    @property
    def sites(self) -> int:
        """Number of sites, including the guest."""
        return self.agents + self.guest


@dataclass
class Verdict:
    """How a run ended, what was wrong with it, and what was measured.

    Parameters
    ----------
    codes
        Exit code of the last process of each site.
    seconds
        Duration of the run.
    problems
        What was wrong, one line each.
    hung
        1 if the run did not end in time.
    wrong
        Whether a result was wrong or model files differed.
    results
        Number of sites that wrote a model.
    members
        Names of the sites whose rows are in the result.
    error, simulator_error
        Largest sine of the angle between a result and the components of the pooled rows, and those of the simulator.
    epochs, iterations
        Number of epochs, and iterations of the result.
    accepted
        Number of sites that wrote a fabricated result.
    tracebacks
        Number of agents that ended with a traceback.
    unnamed
        Number of honest sites that do not name the liar although each must; 1 if one of them must, and none does.
    """

    codes: dict[int, int | None]
    seconds: float
    problems: list[str] = field(default_factory=list)
    hung: int = 0
    wrong: bool = False
    results: int = 0
    members: tuple[str, ...] = ()
    error: float = 0.0
    simulator_error: float = 0.0
    epochs: int = 0
    iterations: int = 0
    accepted: int = 0
    tracebacks: int = 0
    unnamed: int = 0

    @property
    def finished(self) -> list[int]:
        """Sites whose agents ended with exit code 0."""
        return [site for site, code in self.codes.items() if code == 0]


class Process(Protocol):
    """A started process, forked or with its own interpreter."""

    @property
    def pid(self) -> int | None:
        """Process identifier."""

    @property
    def exitcode(self) -> int | None:
        """Exit code; None while the process runs."""


class Fleet:
    """Run the agents of one network; a context manager that kills those still running on exit."""

    def __init__(self, folder: Path, setup: Setup, rows: Sequence[Array] | None = None) -> None:
        """Write the kits of all sites below ``folder``; ``rows`` ``(n_j, d)`` of each site are random by default."""
        self.setup, self.folder = setup, folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.names = tuple(f"s{j}" for j in range(setup.sites))
        self.listening = free_ports(setup.sites)
        self.rows = list(rows) if rows is not None else random_rows(setup)
        self._began = time.monotonic()
        self.processes: dict[int, Process] = {}
        self.starts: dict[int, int] = dict.fromkeys(range(setup.sites), 0)
        self.proxies: Proxies | None = None
        self._write()

    def __enter__(self) -> Fleet:
        """Return this fleet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill all agents that are still running."""
        for site in list(self.processes):
            self.signal(site, signal.SIGKILL)
        for process in self.processes.values():
            _join(process, 5.0)
        if self.proxies is not None:
            self.proxies.close()

    # ----------------------------------------------------------------------------------------------------------- files

    def kit(self, site: int) -> Path:
        """Return the folder of a site's kit."""
        return self.folder / "kits" / self.names[site]

    @cached_property
    def network(self) -> NetworkFile:
        """The contents of the fleet's ``network.toml``."""
        return read_network(self.folder / "network.toml")

    def _write(self) -> None:
        path = self.folder / "network.toml"
        path.write_text(self._network_toml({}), encoding="utf-8")
        make_kits(path, self.folder / "kits", trial=True)
        if self.setup.proxied:
            links = self.network.links  # the first site of each link dials
            self.proxies = Proxies({link: self.listening[link[1]] for link in links})
        for site in range(self.setup.sites):
            np.save(self.kit(site) / "rows.npy", self.rows[site])
            if self.proxies is not None:
                through = {j: port for (i, j), port in self.proxies.ports.items() if i == site}
                (self.kit(site) / "network.toml").write_text(self._network_toml(through), encoding="utf-8")
            self.configure(site, data="rows.npy", deadline=f"{self.setup.deadline:g}s")
            if self.setup.sites <= 3:  # a majority of them is fewer than the sites that rules require by default
                self.configure(site, min_sites=1)
            if len(self.rows[site]) < DEFAULT_RULES.min_rows:
                self.configure(site, min_rows=1)
            if not self._is_guest(site):
                self.configure(site, listen=f"127.0.0.1:{self.listening[site]}")

    def _network_toml(self, through: Mapping[int, int]) -> str:
        """Return the text of ``network.toml``; ``through`` has the proxy ports to use for some sites."""
        setup = self.setup
        lines = [
            'name = "faults"',
            f"components = {setup.components}",
            self._edges() if setup.guest else f'topology = "{setup.topology}"',
            f'algorithm = "{setup.algorithm}"',
            f"tolerance = {setup.tolerance!r}",
            f'privacy = "{setup.privacy}"',
            f'on_loss = "{setup.on_loss}"',
            f'patience = "{setup.patience:g}s"',
            f"checkpoint_every = {setup.checkpoint_every}",
        ]
        for j, name in enumerate(self.names):
            lines += ["[[sites]]", f'name = "{name}"']
            if not self._is_guest(j):
                lines.append(f'address = "127.0.0.1:{through.get(j, self.listening[j])}"')
        return "\n".join(lines) + "\n"

    def _is_guest(self, site: int) -> bool:
        return site >= self.setup.agents

    def _edges(self) -> str:
        """Return the links as TOML: a ring of the agents, and a link between ``s1`` and the guest."""
        m = self.setup.agents
        pairs = [[self.names[j], self.names[(j + 1) % m]] for j in range(m)]
        return f"edges = {json.dumps([*pairs, [self.names[1], self.names[m]]])}"

    def configure(self, site: int, **values: str | int) -> None:
        """Set values in the ``site.toml`` of a site."""
        path = self.kit(site) / "site.toml"
        text = path.read_text(encoding="utf-8")
        for name, value in values.items():
            text, found = re.subn(
                rf"^#? *{name} = .*$", f"{name} = {json.dumps(value)}", text, count=1, flags=re.MULTILINE
            )
            if not found:
                raise KeyError(name)
        path.write_text(text, encoding="utf-8")

    # ------------------------------------------------------------------------------------------------------- processes

    def start(self, *sites: int, faults: AgentFaults | None = None) -> None:
        """Start the agents of these sites, or of all sites if none are given, with the same faults."""
        for site in sites or range(self.setup.sites):
            injected = faults if faults is not None else AgentFaults()
            if not injected.pause:
                injected = AgentFaults(**{**vars(injected), "pause": self.setup.pause})
            self.starts[site] += 1
            arguments = (self.kit(site) / "site.toml", self.log(site), injected)
            if self.setup.separate_interpreters:
                kernels = self.setup.kernels
                self.processes[site] = _AgentInterpreter(*arguments, kernels[site % len(kernels)] if kernels else None)
            else:
                self.processes[site] = start_process(_agent_process, *arguments)

    def signal(self, site: int, number: signal.Signals) -> bool:
        """Send a signal to the agent of a site and return whether it was running."""
        process = self.processes.get(site)
        if process is None or process.pid is None or process.exitcode is not None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
            return True
        return False

    def kill(self, *sites: int) -> float:
        """Kill the agents of these sites with SIGKILL and return the monotonic time at which this happened."""
        now = time.monotonic()
        for site in sites:
            self.signal(site, signal.SIGKILL)
        for site in sites:
            if site in self.processes:
                _join(self.processes[site], 10.0)
        return now

    def alive(self, site: int) -> bool:
        """Return whether the agent of a site is running."""
        process = self.processes.get(site)
        return process is not None and process.exitcode is None

    def wait(self, limit: float, sites: Iterable[int] | None = None) -> None:
        """Wait until the agents of these sites (default: all) have ended; raise Hung after ``limit`` seconds."""
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
        """Return the events that a site has logged so far, over all its starts; of these ``kinds`` only, if any."""
        try:
            lines = self.log(site).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            with contextlib.suppress(ValueError):  # the incomplete last line of an agent that was killed
                found.append(json.loads(line))
        return [one for one in found if isinstance(one, dict) and (not kinds or one["event"] in kinds)]

    def wait_until(self, condition: Callable[[], bool], limit: float, problem: str) -> float:
        """Wait until a condition is true, and return the monotonic time; raise Hung after ``limit`` seconds."""
        end = time.monotonic() + limit
        while not condition():
            if time.monotonic() > end:
                raise Hung(f"{problem} within {limit:g} s")
            time.sleep(0.02)
        return time.monotonic()

    def wait_until_running(self, limit: float = 60.0) -> float:
        """Wait until all agents have begun the first epoch."""
        return self.wait_until(
            lambda: all(self.events(site, "epoch") for site in range(self.setup.sites)), limit, "no epoch began"
        )

    def wait_until_left_out(self, site: int, *by: int) -> None:
        """Wait until the sites ``by`` (default: all others) have begun an epoch without ``site``."""
        name, who = self.names[site], by or [other for other in range(self.setup.sites) if other != site]

        def continued_without(other: int) -> bool:
            return any(name in one["left_out"] for one in self.events(other, "epoch"))

        self.wait_until(lambda: all(map(continued_without, who)), 60.0, f"{name} was not left out")

    # ----------------------------------------------------------------------------------------------------------- checks

    def verdict(self) -> Verdict:
        """Compare the model files with each other, with the pooled rows and with the simulator."""
        codes = {site: process.exitcode for site, process in self.processes.items()}
        made = Verdict(codes, time.monotonic() - self._began)
        contents = {}
        for site in range(self.setup.sites):
            path = self.kit(site) / "model.npz"
            if path.exists():
                contents[site] = path.read_bytes()
        for site, code in codes.items():
            if code == 0 and site not in contents:
                made.problems.append(f"{self.names[site]} ended with exit code 0 but wrote no model")
        made.results = len(contents)
        if len({hashlib.sha256(content).digest() for content in contents.values()}) > 1:
            made.wrong = True
            made.problems.append("model files differ")
        epochs = [one for site in range(self.setup.sites) for one in self.events(site, "epoch")]
        made.epochs = max((int(one["epoch"]) for one in epochs), default=0)
        for content in set(contents.values()):
            self._check_model(content, made)
        return made

    def _check_model(self, content: bytes, made: Verdict) -> None:
        from deepca.decomposition.model.file import from_bytes

        model = from_bytes(content, Path("model.npz"))
        made.members = tuple(model.about["sites"])
        made.iterations = int(model.about["iterations"])
        members = [self.names.index(name) for name in made.members]
        if 2 * len(members) <= self.setup.sites:
            made.problems.append(f"the {len(members)} members of the result are not a majority")
        if not model.status.ok:
            made.problems.append(f"result without a proof: {model.status}")
        rows = [self.rows[site] for site in members]
        pooled = _pooled_components(rows, self.setup.components)
        made.error = max(made.error, _sine(model.components, pooled))
        made.simulator_error = max(made.simulator_error, _sine(model.components, _simulated(rows, self.setup)))
        if not max(made.error, made.simulator_error) <= self.setup.accuracy:
            made.wrong = True
            made.problems.append(f"wrong by {made.error:.1e}; differs from the simulator by {made.simulator_error:.1e}")


class _AgentInterpreter:
    """An agent in a new interpreter."""

    def __init__(self, site: Path, log: Path, faults: AgentFaults, kernels: str | None = None) -> None:
        environment = _environment() if kernels is None else {**_environment(), "OPENBLAS_CORETYPE": kernels}
        more = [f"{name}={value}" for name, value in vars(faults).items()]
        command = [sys.executable, "-m", "studies.faults.faulty_agent", str(site), str(log), *more]
        with log.with_suffix(".out").open("ab") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exitcode(self) -> int | None:
        return self._process.poll()


def available_kernels() -> tuple[str, ...]:
    """Return the OpenBLAS kernels that this processor can run, one of each group that computes the same bits."""
    found: dict[str, str] = {}
    for name in _KERNELS:
        environment = {**_environment(), "OPENBLAS_CORETYPE": name}
        made = subprocess.run(
            [sys.executable, "-c", _KERNEL_DIGEST], env=environment, capture_output=True, text=True, check=False
        )
        if made.returncode == 0:  # an unsupported instruction ends the process
            found.setdefault(made.stdout, name)
    return tuple(found.values())


def _environment() -> dict[str, str]:
    """Return the environment of this process, with one BLAS thread and the studies on the module search path."""
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": path}


def _agent_process(site: Path, log: Path, faults: AgentFaults) -> None:
    """Run an agent as the main function of a forked process."""
    _redirect_output(log.with_suffix(".out"))
    faulthandler.enable()
    sys.exit(run_with_faults(site, log, faults))


def _redirect_output(out: Path) -> None:
    """Redirect standard output and standard error of this process to a file."""
    with out.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def start_process(work: Callable[..., None], *arguments: object) -> Process:
    """Run ``work(*arguments)`` in a process forked from a server that has already imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["deepca.sites.runtime.agent", "studies.faults.faulty_agent"])
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
    """Return distinct ports that are not in use and that the system does not assign to outgoing connections."""
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
        port = rng.choice(_PORTS)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


# ----------------------------------------------------------------------------------------------------- expected results


def random_rows(setup: Setup) -> list[Array]:
    """Draw rows for every site; means and numbers of rows differ between sites."""
    rng = np.random.default_rng((5, setup.seed))
    d = setup.d
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    scales = setup.eigenvalue_ratio ** (np.arange(d) / 2.0)
    return [
        rng.standard_normal((setup.rows + j % 3, d)) @ (scales[:, None] * basis) + 0.1 * rng.standard_normal(d)
        for j in range(setup.sites)
    ]


def _pooled_components(rows: Sequence[Array], components: int) -> Array:
    """Return scikit-learn's principal components of the pooled rows."""
    from sklearn.decomposition import PCA

    found: Array = PCA(components, svd_solver="full").fit(np.vstack(rows)).components_
    return found


def _simulated(rows: Sequence[Array], setup: Setup) -> Array:
    """Return the components that the simulator computes for the same rows."""
    from deepca.estimators.pca import DecentralizedPCA

    topology = setup.topology if len(rows) == setup.sites and not setup.guest else "path"
    pca = DecentralizedPCA(setup.components, topology=topology, algorithm=setup.algorithm, tol=setup.tolerance)
    found: Array = pca.fit_agents(rows).components_
    return found


def _sine(components: Array, other: Array) -> float:
    """Return the sine of the largest angle between the spans of two matrices with orthonormal rows."""
    return float(np.linalg.norm(other - (other @ components.T) @ components, 2))
