"""Write a report about a failed agent, for the people who investigate the failure.

A report contains the types of the errors, where in the program they were raised, and some attributes of deepca's own
errors. It leaves out the messages of all other errors, which might quote rows or paths.
"""

from __future__ import annotations

import json
import platform
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from deepca import __version__
from deepca._util.files import write_atomic
from deepca.errors import BadArray, PeerFault
from deepca.sites.config.site_file import SiteFile
from deepca.sites.protocol.handshake import PROTOCOL

__all__ = ["report_of", "write_report"]

_MAX_CHAIN = 8  # maximum number of errors reported from a chain of causes, which keeps reports short


def write_report(site: SiteFile, error: BaseException) -> Path | None:
    """Write a report to the state folder and return its path, or None if it cannot be written."""
    path = site.state / "report.json"
    try:
        write_atomic(path, json.dumps(report_of(site, error), indent=2).encode(), mode=0o600)
    except OSError:
        return None
    return path


def report_of(site: SiteFile, error: BaseException) -> dict[str, Any]:
    """Return the content of a report."""
    network = site.network
    chain: list[dict[str, Any]] = []
    cause: BaseException | None = error
    while cause is not None and len(chain) < _MAX_CHAIN:
        chain.append(_described(cause))
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "deepca": __version__,
        "protocol": PROTOCOL,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": f"{platform.system()} {platform.machine()}",
        "network": network.name,
        "run": network.run,
        "site": site.site,
        "sites": len(network.sites),
        "on_loss": network.on_loss,
        "algorithm": network.settings.algorithm,
        "errors": chain,
    }


def _described(error: BaseException) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": type(error).__name__}
    if isinstance(error, PeerFault):
        entry |= {"site": error.site, "what": error.what, "by": error.by}
    if isinstance(error, BadArray):
        entry |= {"phase": error.phase, "iteration": error.iteration}
    entry["where"] = [
        f"{_module(frame.filename)}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)
    ]
    return entry


def _module(filename: str) -> str:
    """Return the path of a source file relative to its import path, so that reports do not reveal local paths."""
    path = Path(filename)
    for entry in sorted(sys.path, key=len, reverse=True):
        if entry and path.is_relative_to(entry):
            return path.relative_to(entry).as_posix()
    return path.name
