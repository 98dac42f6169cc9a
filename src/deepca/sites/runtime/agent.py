"""Run a site's agent, which combines configuration files, node, streams and run in one process."""

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

from deepca._util.files import try_lock, write_atomic
from deepca._util.logs import EventLogger
from deepca._util.machine import keep_freed_memory
from deepca.data.readers import open_source
from deepca.data.sources import Source
from deepca.decomposition.settings import Settings
from deepca.engines.checkpoints import CheckpointFolder
from deepca.errors import DataError, DeepcaError, InternalError, InvalidInput, Unfinished
from deepca.sites.config.site_file import SiteFile
from deepca.sites.pki.column_key import column_key_of
from deepca.sites.pki.identity import Identity
from deepca.sites.protocol.fingerprints import fingerprint_of, network_digest
from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.signatures import CertificateSignatures
from deepca.sites.runtime.auditing import audited
from deepca.sites.runtime.clocks import RealClock, in_background
from deepca.sites.runtime.disclosure import enforce_rules
from deepca.sites.runtime.failure_report import report_of, write_report
from deepca.sites.runtime.node import Node, NodeConfig, Policy
from deepca.sites.runtime.node.abort_reasons import for_others
from deepca.sites.runtime.private_sums import PrivateSums
from deepca.sites.runtime.row_digests import RowBoundPromiseStore, RowDigests
from deepca.sites.runtime.run import SiteRun, run_site
from deepca.sites.runtime.site_result import SiteResult
from deepca.sites.transport.endpoint import peers_of
from deepca.sites.transport.streams import Streams
from deepca.solver.observers import Observer

__all__ = ["Agent", "largest_message", "run_agent"]

_logger = logging.getLogger(__name__)

_WORDS = 8  # words of the integers of products, at most, unless their magnitudes differ by more than 1e100
_MAX_WORDS = 40  # words of any integer, at most
_TICK_INTERVAL = 0.05  # seconds between ticks; well below the 0.4 s after which a link retransmits
_MAX_LINGER_OLD_RESULT = 30.0  # seconds to keep running if the run had finished before: most sites have the result


@dataclass
class Agent:
    """The parts of a running agent that :class:`~deepca.sites.runtime.status.Watch` inspects."""

    site: SiteFile
    node: Node
    streams: Streams


def largest_message(source: Source, settings: Settings, sites: Sequence[str] = ()) -> int:
    """Return an upper bound, in bytes, on the size of any message in a run of these columns and settings."""
    d, k = source.d, settings.n_components
    wanted = k if isinstance(k, int) else d
    columns = d if settings.algorithm == "covariance" else min(d, 4 * wanted + 64)
    # integers of sums have several words where magnitudes differ, and totals come with what follows from them
    arrays = 8 * (_WORDS * (d + columns) * columns + _MAX_WORDS * d + 65_536)
    names = 4 * d * max(map(len, source.columns or ("",)))  # numpy pads every name to the longest, 4 bytes a character
    model = 8 * d * (min(wanted, d) + 8) + names + 8 * sum(map(len, sites)) + (1 << 16)
    return max(arrays, model)


def run_agent(
    site: SiteFile,
    *,
    observers: Sequence[Observer] = (),
    ready: Callable[[Agent], None] = lambda agent: None,
    wrap: Callable[[Node], Node] = lambda node: node,
) -> SiteResult:
    """Run one site's agent until its result is in the model file named in site.toml.

    Events are logged, see :mod:`deepca._util.logs`. For errors that need investigation, a report is written to the
    state folder, and its path is the ``report`` attribute of the error.

    Parameters
    ----------
    site : SiteFile
        Configuration of the site.
    observers : sequence of Observer, optional
        Observers of the iterations.
    ready : callable, optional
        Called once with the :class:`Agent`, when it has started to listen.
    wrap : callable, optional
        Returns the endpoint to use in place of the node; for tests that damage messages.

    Returns
    -------
    SiteResult
        The result.

    Raises
    ------
    InvalidInput
        For a problem that the operator of this site has to fix.
    OSError
        If the model or another file of this site cannot be read or written.
    Unfinished
        If the deadline has passed.
    NetworkError
        For a fault of another site, or a result that does not match this site's run.
    InternalError
        For any other exception.
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
) -> SiteResult:
    began = time.monotonic()
    keep_freed_memory()
    log = EventLogger(_logger, site.site)
    parts = _assemble(site, wrap)
    ended_before = parts.promise_store.load().decided
    recorded = audited(site, parts.job.private is not None, parts.node, parts.streams)
    with _exclusive_state_folder(site), recorded, _listening(parts.streams) as port:
        log.info(
            f"{site.site} is listening on port {port}" if port else f"{site.site} has started",
            event="started",
            facts={"site": site.site, "port": port},
        )
        ready(Agent(site, parts.node, parts.streams))
        with in_background(partial(_tick, parts.node), "deepca-ticks"):
            ending = _write_result(site, parts, observers)
            facts = {"seconds": time.monotonic() - began, "model": str(site.model)}
            log.info(f"the result was written to {site.model.name}", event="finished", facts=facts)
            # absent sites have to get the result from this one, unless the run had finished before: then most have it
            linger = min(site.network.patience, _MAX_LINGER_OLD_RESULT) if ended_before else None
            late = _hand_out_result(parts.node, linger)
            if late:
                log.warning(
                    f"{site.site} has finished, but received no confirmation from {', '.join(late)}; if the model is "
                    f"missing there, start the agent there again, and that of {site.site}, which then sends the result",
                    event="late",
                    facts={"sites": list(late)},
                )
            parts.checkpoints.clear()
            return ending


@dataclass(frozen=True)
class _Parts:
    """The parts of an agent, connected to each other but not started."""

    job: SiteRun
    node: Node
    streams: Streams
    promise_store: RowBoundPromiseStore
    checkpoints: CheckpointFolder


def _assemble(site: SiteFile, wrap: Callable[[Node], Node]) -> _Parts:
    """Read a site's files and build its agent from them; raise InvalidInput if they cannot be used."""

    def warn(text: str) -> None:
        EventLogger(_logger, site.site).warning(text, event="checkpoint")

    network, names = site.network, tuple(entry.name for entry in site.network.sites)
    with _without_values():
        source = open_source(str(site.data), label_column=site.label_column, dataset=site.dataset)
    _check_writable(site.model)
    credentials = None if site.plaintext else Identity.load(site)
    prints = fingerprint_of(network, source, column_key_of(site))
    enforce_rules(site, source.d, EventLogger(_logger, site.site))
    run = network_digest(network)
    named_run = hashlib.sha256(run + network.run.encode()).digest()
    rows = RowDigests(site)
    rows.check(named_run)
    message_limit = largest_message(source, network.settings, names)
    private = PrivateSums(names) if network.privacy == "private" else None
    mask_key = b"" if private is None else private.public_key
    config = NodeConfig(names, site.index, network.links, run, prints, message_limit, mask_key)
    # the name does not depend on the rows: promises to other sites remain valid even if the data file changes
    result = f"result-{config.agreement_digest.hex()[:16]}"
    promise_store = RowBoundPromiseStore(result, site, rows, named_run)
    node, streams = _connect(site, config, credentials, promise_store, wrap)
    checkpoints = (
        CheckpointFolder(site.state, named_run, rows.digest, warn=warn)
        if site.checkpoints
        else CheckpointFolder(Path(os.devnull) / "none", named_run, rows.digest, warn=lambda text: None)
    )
    job = SiteRun(
        network.run,
        names,
        site.index,
        network.topology,
        network.settings,
        source,
        network.checkpoint_every,
        private,
        site.rules,
    )
    return _Parts(job, node, streams, promise_store, checkpoints)


def _connect(
    site: SiteFile,
    config: NodeConfig,
    credentials: Identity | None,
    promise_store: RowBoundPromiseStore,
    wrap: Callable[[Node], Node],
) -> tuple[Node, Streams]:
    """Create a node and the streams below it, without starting them."""
    network = site.network
    linger = network.patience if network.on_loss == "shrink" else site.deadline
    policy = Policy(network.on_loss, network.patience, site.deadline, linger)
    # the clock only suggests a number: neighbours that know a higher number of this site report it
    incarnation = Incarnation(time.time_ns(), secrets.randbits(63) | 1)
    signatures = (
        None
        if credentials is None
        else CertificateSignatures(
            lambda: streams.credentials or credentials, config.sites, config.network_digest, config.agreement_digest
        )
    )
    node = Node(config, policy, RealClock(), incarnation, promise_store=promise_store, signatures=signatures)
    me, *peers = peers_of(network, site.index)
    listen = site.listen if peers else None
    streams = Streams(wrap(node), me, peers, listen, credentials)
    node.attach(streams.wake)
    return node, streams


def _write_result(site: SiteFile, parts: _Parts, observers: Sequence[Observer]) -> SiteResult:
    """Compute the result and write it; if that fails, report the failure to the other sites."""
    node = parts.node
    try:
        with _without_values():
            ending = run_site(parts.job, node, parts.checkpoints, parts.promise_store, observers=observers)
        write_atomic(site.model, ending.content)
    except Unfinished:
        raise
    except Exception as error:
        node.announce_failure(for_others(error), error)
        node.wait_until_all_finished(0.0)
        raise
    node.announce_finished()
    return ending


def _hand_out_result(node: Node, seconds: float | None) -> tuple[str, ...]:
    """Keep running to send the result to unfinished sites, and return the sites not known to have finished.

    ``seconds`` limits how long; None means the time that the policy sets.
    """
    try:
        return node.wait_until_all_finished(seconds)
    except KeyboardInterrupt:  # the result is written, so the agent may stop
        return ()


@contextmanager
def _exclusive_state_folder(site: SiteFile) -> Iterator[None]:
    """Lock the state folder: two agents that share it would overwrite each other's checkpoints."""
    path = site.state / "agent.lock"
    try:
        site.state.mkdir(parents=True, exist_ok=True)
        lock = path.open("w")
    except OSError:  # a folder that cannot be written to needs no protection
        yield
        return
    with lock:
        if not try_lock(lock):
            raise InvalidInput(
                f"an agent of site {site.site} is already running and has locked {path}; stop it before starting "
                "another",
                parameter="state",
                file=str(path),
            )
        yield


@contextmanager
def _listening(streams: Streams) -> Iterator[int]:
    try:
        yield streams.start()
    finally:
        streams.stop()


def _tick(node: Node, over: threading.Event) -> None:
    """Call ``node.tick`` regularly until ``over`` is set."""
    try:
        while not over.wait(_TICK_INTERVAL):
            node.tick()
    except Exception as error:  # otherwise timeouts would silently stop working
        node.abort(error)


@contextmanager
def _without_values() -> Iterator[None]:
    """Remove values from errors about rows, but keep row and column: others may read an agent's log."""
    try:
        yield
    except DataError as error:
        raise type(error)(error.redacted, row=error.row, column=error.column) from None


def _check_writable(path: Path) -> None:
    """Raise InvalidInput unless the model can be written, before the run rather than after hours of computing."""
    if path.is_dir():
        raise InvalidInput(
            f"{path} is a folder, so the model cannot be written there; set `model` in site.toml to the path of a file",
            parameter="model",
            value=str(path),
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise InvalidInput(
            f"{path}: the model cannot be written there ({error.strerror}); change `model` in site.toml, or the "
            "permissions of that folder",
            parameter="model",
            value=str(path),
        ) from None
