"""A site's agent: its files, its node, its streams and its run put together in one process."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from deepca._util.files import try_lock, write_whole
from deepca._util.logs import EventLogger
from deepca._util.machine import keep_freed_memory
from deepca.data.readers import open_source
from deepca.data.sources import Source
from deepca.decomposition.settings import Settings
from deepca.engines.checkpoints import Checkpoints
from deepca.errors import DataError, DeepcaError, InternalError, InvalidInput, Unfinished
from deepca.sites.config.site_file import SiteFile
from deepca.sites.pki.identity import Identity
from deepca.sites.protocol.fingerprints import fingerprint_of, run_of
from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.signatures import CertificateSeals
from deepca.sites.runtime.clocks import RealClock, in_background
from deepca.sites.runtime.failure_report import report_of, write_report
from deepca.sites.runtime.node import Membership, Node, Policy
from deepca.sites.runtime.node.faults import for_others
from deepca.sites.runtime.row_digests import RowsVault, SiteRows
from deepca.sites.runtime.run import Ending, Job, run_site
from deepca.sites.transport.endpoint import peers_of
from deepca.sites.transport.streams import Streams
from deepca.solver.observers import Observer

__all__ = ["Agent", "largest_message", "run_agent"]

_logger = logging.getLogger(__name__)

_TICK = 0.05
_STAY = 30.0  # seconds at most for which a site hands out the result of a run that had ended before


@dataclass
class Agent:
    """What is alive while an agent runs; screens look at it."""

    site: SiteFile
    node: Node
    streams: Streams


def largest_message(source: Source, settings: Settings, sites: Sequence[str] = ()) -> int:
    """Bytes that a message of a run with these columns, settings and names of sites can have at most."""
    d, k = source.d, settings.n_components
    wanted = k if isinstance(k, int) else d
    columns = d if settings.algorithm == "covariance" else min(d, 4 * wanted + 64)
    arrays = 8 * ((d + 2) * columns + columns * columns + 4096)
    names = 4 * d * max(map(len, source.columns or ("",)))  # each takes as much as the longest
    model = 8 * d * (min(wanted, d) + 8) + names + 8 * sum(map(len, sites)) + (1 << 16)
    return max(arrays, model)


def run_agent(
    site: SiteFile,
    *,
    observers: Sequence[Observer] = (),
    ready: Callable[[Agent], None] = lambda agent: None,
    wrap: Callable[[Node], Node] = lambda node: node,
) -> Ending:
    """Run one site's agent to the result, which is then in the file that site.toml names.

    ready : called once the agent listens.  wrap : stands between node and streams; for tests that hurt messages.
    Events for people are logged, see :mod:`deepca._util.logs`.

    Raises InvalidInput for what this site has to mend, Unfinished at the deadline, NetworkError for what others did;
    InternalError for whatever else happens. A report is written where there is something to find out.
    """
    try:
        return _run_agent(site, observers, ready, wrap)
    except (Unfinished, InvalidInput, OSError):
        raise
    except DeepcaError as error:
        error.report = str(write_report(site, error) or "")
        raise
    except Exception as error:
        last = report_of(site, error)["errors"][0]["where"][-1:]
        internal = InternalError(type(error).__name__, last[0] if last else "an unknown place")
        internal.report = str(write_report(site, error) or "")
        raise internal from None


def _run_agent(
    site: SiteFile,
    observers: Sequence[Observer],
    ready: Callable[[Agent], None],
    wrap: Callable[[Node], Node],
) -> Ending:
    began = time.monotonic()
    keep_freed_memory()
    log = EventLogger(_logger, site.site)
    parts = _assemble(site, wrap)
    ended_before = parts.vault.load().decided
    with _only_one(site), _listening(parts.streams) as port:
        log.info(
            f"{site.site} listens at port {port}" if port else f"{site.site} is up",
            event="started",
            facts={"site": site.site, "port": port},
        )
        ready(Agent(site, parts.node, parts.streams))
        with in_background(partial(_tick, parts.node), "deepca-ticks"):
            ending = _write_result(site, parts, observers)
            facts = {"seconds": time.monotonic() - began, "model": str(site.model)}
            log.info(f"{site.model.name} is written", event="finished", facts=facts)
            # of a run that had ended before, most will know; otherwise a site that is away needs somebody to ask
            late = _take_leave(parts.node, min(site.network.patience, _STAY) if ended_before else None)
            if late:
                log.warning(f"not heard to have finished: {', '.join(late)}", event="late", facts={"sites": list(late)})
            parts.checkpoints.clear()
            return ending


@dataclass(frozen=True)
class _Parts:
    """The parts of an agent, connected to each other but not started."""

    job: Job
    node: Node
    streams: Streams
    vault: RowsVault
    checkpoints: Checkpoints


def _assemble(site: SiteFile, wrap: Callable[[Node], Node]) -> _Parts:
    """Read a site's files and make its agent of them; raise for whatever is wrong with them."""

    def warn(text: str) -> None:
        EventLogger(_logger, site.site).warning(text, event="checkpoint")

    network, names = site.network, tuple(entry.name for entry in site.network.sites)
    with _discreet():
        source = open_source(str(site.data), label_column=site.label_column, dataset=site.dataset)
    _check_writable(site.model)
    credentials = None if site.plaintext else Identity.load(site)
    run = run_of(network)
    named_run = hashlib.sha256(run + network.run.encode()).digest()
    rows = SiteRows(site)
    rows.check(named_run)
    message_limit = largest_message(source, network.settings, names)
    membership = Membership(names, site.index, network.links, run, fingerprint_of(network, source), message_limit)
    # not the rows: promises to the others hold whatever becomes of a file here
    result = f"result-{membership.agreement.hex()[:16]}"
    vault = RowsVault(result, site, rows, named_run)
    node, streams = _connect(site, membership, credentials, vault, wrap)
    checkpoints = (
        Checkpoints(site.state, named_run, rows.digest, warn=warn)
        if site.checkpoints
        else Checkpoints(Path(os.devnull) / "none", named_run, rows.digest, warn=lambda text: None)
    )
    job = Job(network.run, names, site.index, network.topology, network.settings, source, network.checkpoint_every)
    return _Parts(job, node, streams, vault, checkpoints)


def _connect(
    site: SiteFile,
    membership: Membership,
    credentials: Identity | None,
    vault: RowsVault,
    wrap: Callable[[Node], Node],
) -> tuple[Node, Streams]:
    """Make a node and the streams below it, which do not flow yet."""
    network = site.network
    linger = network.patience if network.on_loss == "shrink" else site.deadline
    policy = Policy(network.on_loss, network.patience, site.deadline, linger)
    identity = Incarnation(time.time_ns(), secrets.randbits(63) | 1)  # time only guesses; others say if it was wrong
    seals = (
        None
        if credentials is None
        else CertificateSeals(
            lambda: streams.credentials or credentials, membership.sites, membership.run, membership.agreement
        )
    )
    node = Node(membership, policy, RealClock(), identity, vault=vault, seals=seals)
    me, *peers = peers_of(network, site.index)
    listen = site.listen if peers else None
    streams = Streams(wrap(node), me, peers, listen, credentials)
    node.attach(streams.wake)
    return node, streams


def _write_result(site: SiteFile, parts: _Parts, observers: Sequence[Observer]) -> Ending:
    """Run to the result and write it; tell the other sites of whatever prevents that here."""
    node = parts.node
    try:
        with _discreet():
            ending = run_site(parts.job, node, parts.checkpoints, parts.vault, observers=observers)
        write_whole(site.model, ending.content)
    except Unfinished:
        raise
    except Exception as error:
        node.failed(for_others(error), error)
        node.farewell(0.0)
        raise
    node.finished()
    return ending


def _take_leave(node: Node, seconds: float | None) -> tuple[str, ...]:
    """Hand out the result to sites that have not finished, for so long; None for as long as the policy says.

    Returns who was not heard to have finished.
    """
    try:
        return node.farewell(seconds)
    except KeyboardInterrupt:  # the result is written, so leaving is fine
        return ()


@contextmanager
def _only_one(site: SiteFile) -> Iterator[None]:
    """Two agents with the same folder would write over each other's checkpoints."""
    path = site.state / "agent.lock"
    try:
        site.state.mkdir(parents=True, exist_ok=True)
        lock = path.open("w")
    except OSError:  # where nothing can be written, nothing can be written over
        yield
        return
    with lock:
        if not try_lock(lock):
            raise InvalidInput(f"an agent of {site.site} runs already: it holds {path}; there can be one only")
        yield


@contextmanager
def _listening(streams: Streams) -> Iterator[int]:
    try:
        yield streams.start()
    finally:
        streams.stop()


def _tick(node: Node, over: threading.Event) -> None:
    """Let time pass for the node until it is over."""
    try:
        while not over.wait(_TICK):
            node.tick()
    except Exception as error:  # or time would stand still, and nobody would know
        node.broken(error)


@contextmanager
def _discreet() -> Iterator[None]:
    """Messages about rows name row and column, but no value: logs of agents are read by others."""
    try:
        yield
    except DataError as error:
        raise type(error)(error.discreet, row=error.row, column=error.column) from None


def _check_writable(path: Path) -> None:
    """Said before the run, not after hours of it."""
    if path.is_dir():
        raise InvalidInput(f"{path}, the model that site.toml names, is a folder; give the name of a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise InvalidInput(
            f"{path}, the model that site.toml names, cannot be written ({error.strerror}); name another place"
        ) from None
