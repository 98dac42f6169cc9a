"""A site's agent: its files, its node, its streams and its run put together in one process."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deepca import __version__
from deepca._util.files import try_lock, write_whole
from deepca._util.machine import keep_freed_memory
from deepca.data.readers import open_source
from deepca.data.sources import Source
from deepca.decomposition.settings import Settings
from deepca.engines.checkpoints import Checkpoints
from deepca.errors import DataError, DeepcaError, InternalError, InvalidInput, Unfinished
from deepca.sites.admin.failure_report import report_of, write_report
from deepca.sites.config.network_file import NetworkFile
from deepca.sites.config.site_file import SiteFile
from deepca.sites.pki.identity import Identity
from deepca.sites.protocol.handshake import PROTOCOL
from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.signatures import CertificateSeals
from deepca.sites.runtime.clocks import RealClock
from deepca.sites.runtime.node import Membership, Node, Policy
from deepca.sites.runtime.row_digests import RowsVault, SiteRows
from deepca.sites.runtime.run import Ending, Job, run_site, schema_of
from deepca.sites.transport.streams import Peer, Streams
from deepca.solver.observers import Observer

__all__ = ["Agent", "fingerprint_of", "largest_message", "run_agent", "run_of"]

_TICK = 0.05
_STAY = 30.0  # seconds at most for which a site hands out the result of a run that had ended before


@dataclass
class Agent:
    """What is alive while an agent runs; screens look at it."""

    site: SiteFile
    node: Node
    streams: Streams
    port: int


def run_of(network: NetworkFile) -> bytes:
    """32 bytes: equal for sites that can understand each other at all."""
    said = [PROTOCOL, network.name, [site.name for site in network.sites]]
    return hashlib.sha256(json.dumps(said).encode()).digest()


def fingerprint_of(network: NetworkFile, source: Source) -> dict[str, bytes]:
    """What has to be the same at all sites before anything is done, by name."""
    return {
        "version of deepca": __version__.encode(),
        "on_loss": network.on_loss.encode(),
        "patience": repr(float(network.patience)).encode(),
        "checkpoint_every": str(network.checkpoint_every).encode(),
        "run": network.run.encode(),
        "topology": hashlib.sha256(json.dumps(network.links).encode()).digest(),
        **schema_of(source, network.settings),
    }


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
    tell: Callable[..., None] = lambda *_, **__: None,
    observers: Sequence[Observer] = (),
    ready: Callable[[Agent], None] = lambda agent: None,
    wrap: Callable[[Node], Node] = lambda node: node,
) -> Ending:
    """Run one site's agent to the result, which is then in the file that site.toml names.

    tell : gets events for people and logs.  ready : called once the agent listens.  wrap : stands between node and
    streams; for tests that hurt messages.

    Raises InvalidInput for what this site has to mend, Unfinished at the deadline, NetworkError for what others did;
    InternalError for whatever else happens. A report is written where there is something to find out.
    """
    try:
        return _run_agent(site, tell, observers, ready, wrap)
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
    tell: Callable[..., None],
    observers: Sequence[Observer],
    ready: Callable[[Agent], None],
    wrap: Callable[[Node], Node],
) -> Ending:
    network, began = site.network, time.monotonic()
    keep_freed_memory()
    with _discreet():
        source = open_source(str(site.data), label_column=site.label_column, dataset=site.dataset)
    _check_writable(site.model)

    def notice(text: str) -> None:
        tell("revocations", text)

    credentials = None if site.plaintext else Identity.load(site, warn=notice)
    run = run_of(network)
    own = hashlib.sha256(run + network.run.encode()).digest()
    rows = SiteRows(site, lambda text: tell("checkpoint", text))
    rows.check(own)
    names = tuple(entry.name for entry in network.sites)
    membership = Membership(
        names,
        site.index,
        network.links,
        run,
        fingerprint_of(network, source),
        largest_message(source, network.settings, names),
    )
    linger = network.patience if network.on_loss == "shrink" else site.deadline
    policy = Policy(network.on_loss, network.patience, site.deadline, linger)
    identity = Incarnation(time.time_ns(), secrets.randbits(63) | 1)  # time only guesses; others say if it was wrong
    # not the rows: promises to the others hold whatever becomes of a file here
    agreement = membership.agreement
    vault = RowsVault(
        site.state,
        f"result-{agreement.hex()[:16]}",
        len(names),
        lambda text: tell("checkpoint", text),
        rows=rows,
        run=own,
    )
    seals = (
        None
        if credentials is None
        else CertificateSeals(lambda: streams.credentials or credentials, names, run, agreement)
    )
    node = Node(membership, policy, RealClock(), identity, tell, vault=vault, seals=seals)
    me, *peers = (
        Peer(j, network.sites[j].name, network.sites[j].address, j != site.index and network.dials(site.index, j))
        for j in (site.index, *network.neighbors(site.site))
    )
    streams = Streams(wrap(node), me, peers, site.listen if peers else None, credentials, notice=notice)
    node.attach(streams.wake)
    folder = site.state if site.checkpoints else Path(os.devnull) / "none"
    warn = (lambda text: tell("checkpoint", text)) if site.checkpoints else (lambda text: None)
    checkpoints = Checkpoints(folder, own, rows.digest, warn=warn)
    job = Job(
        network.run, names, site.index, network.topology, network.settings, lambda: source, network.checkpoint_every
    )
    ended = vault.load().decided
    with _only_one(site), _listening(streams) as port:
        tell(
            "started",
            f"{site.site} listens at port {port}" if port else f"{site.site} is up",
            site=site.site,
            port=port,
        )
        ready(Agent(site, node, streams, port))
        with _ticking(node):
            try:
                with _discreet():
                    ending = run_site(job, node, checkpoints, vault, observers=observers, tell=tell)
                write_whole(site.model, ending.content)
            except Unfinished:
                raise
            except Exception as error:
                node.failed(_for_others(error), error)
                node.farewell(0.0)
                raise
            node.finished()
            tell("finished", f"{site.model.name} is written", seconds=time.monotonic() - began, model=str(site.model))
            try:
                # of a run that had ended before, most will know; otherwise a site that is away needs somebody to ask
                late = node.farewell(min(network.patience, _STAY) if ended else None)
            except KeyboardInterrupt:  # the result is written, so leaving is fine
                late = ()
            if late:
                tell("late", f"not heard to have finished: {', '.join(late)}", sites=list(late))
            checkpoints.clear()
            return ending


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


@contextmanager
def _ticking(node: Node) -> Iterator[None]:
    """Time passes for the node, in a thread of its own."""
    over = threading.Event()

    def tick() -> None:
        try:
            while not over.wait(_TICK):
                node.tick()
        except Exception as error:  # or time would stand still, and nobody would know
            node.broken(error)

    thread = threading.Thread(target=tick, name="deepca-ticks", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _discreet() -> Iterator[None]:
    """Messages about rows name row and column, but no value: logs of agents are read by others."""
    try:
        yield
    except DataError as error:
        raise DataError(re.sub(r" is (['\"]).*\1", " is no number", str(error), count=1, flags=re.DOTALL)) from None


def _for_others(error: Exception) -> str:
    """What the other sites are told of an error here: nothing that could hold a value or a path of this site's."""
    if isinstance(error, DataError):
        return "its rows cannot be used; its own log says why"
    if isinstance(error, OSError) and error.strerror:
        return f"its machine says: {error.strerror}"
    return "something has to be mended there; its own log says what"


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
