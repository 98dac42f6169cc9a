"""Connect an agent to its audit log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from deepca._util.logs import EventLogger
from deepca.errors import InvalidInput
from deepca.sites.audit.writer import AuditWriter, Logged, Signature
from deepca.sites.config.site_file import SiteFile
from deepca.sites.protocol.fingerprints import network_digest
from deepca.sites.runtime.node import Node
from deepca.sites.transport.streams import Streams

__all__ = ["audited"]

_logger = logging.getLogger(__name__)


@contextmanager
def audited(site: SiteFile, private: bool, node: Node, streams: Streams) -> Iterator[None]:
    """Write an audit log while the context lasts, if the site has a folder for it; sign it at the end.

    Raises
    ------
    InvalidInput
        If the log is required and cannot be created.
    """
    log = _open(site, private, node)
    if log is None:
        yield
        return
    for peer, link in node.links.items():
        link.journal = log.journal(site.network.sites[peer].name)
    streams.count_frames(log.frames.add)
    try:
        yield
    finally:
        log.close(_signing(streams))


def _open(site: SiteFile, private: bool, node: Node) -> AuditWriter | None:
    """Create the log; without one that is required, raise InvalidInput, else log a warning."""
    if site.audit is None:
        return None
    about = Logged(
        site.site,
        site.network.name,
        site.network.run,
        network_digest(site.network),
        "private" if private else "open",
        node.assembly.record.incarnation,
    )

    def end_run(error: OSError) -> None:
        node.abort(_error(site, error))

    try:
        return AuditWriter(site.audit, about, failed=end_run if site.audit_required else None)
    except OSError as error:
        if site.audit_required:
            raise _error(site, error) from None
        EventLogger(_logger, site.site).warning(
            f"no audit log can be written to {site.audit} ({error.strerror}), and the run goes on without one; check "
            "the disk space and permissions of that folder",
            event="audit",
        )
        return None


def _error(site: SiteFile, error: OSError) -> InvalidInput:
    return InvalidInput(
        f"{site.audit}: the audit log cannot be written ({error.strerror}), and site.toml requires one; check the disk "
        "space and permissions of that folder, or write `audit = true` to run without a complete log",
        parameter="audit",
        file=str(site.audit),
    )


def _signing(streams: Streams) -> Callable[[bytes], Signature] | None:
    """Return a function that signs with the certificate in use; None without encryption."""
    credentials = streams.credentials
    if credentials is None:
        return None
    return lambda statement: (credentials.certificate_der, credentials.sign(statement))
