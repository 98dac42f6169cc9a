"""A report of an agent that has failed, for whoever has to find out why.

It holds what kind of error it was and where in the program it came up, and the facts of errors that are known; no text
of others, which might hold values of rows or paths.
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
from deepca._util.files import write_whole
from deepca.errors import BadArray, PeerFault
from deepca.sites.config.site_file import SiteFile
from deepca.sites.protocol.handshake import PROTOCOL

__all__ = ["report_of", "write_report"]

_DEEPEST = 8  # errors that led to an error


def write_report(site: SiteFile, error: BaseException) -> Path | None:
    """Write the report into the state folder; None where that is not possible."""
    path = site.state / "report.json"
    try:
        write_whole(path, json.dumps(report_of(site, error), indent=2).encode(), mode=0o600)
    except OSError:
        return None
    return path


def report_of(site: SiteFile, error: BaseException) -> dict[str, Any]:
    """What a report says."""
    network = site.network
    chain: list[dict[str, Any]] = []
    cause: BaseException | None = error
    while cause is not None and len(chain) < _DEEPEST:
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
    said: dict[str, Any] = {"type": type(error).__name__}
    if isinstance(error, PeerFault):
        said |= {"site": error.site, "what": error.what, "by": error.by}
    if isinstance(error, BadArray):
        said |= {"phase": error.phase, "iteration": error.iteration}
    said["where"] = [
        f"{_module(frame.filename)}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)
    ]
    return said


def _module(filename: str) -> str:
    """A file of a package by its path within it; paths of a machine stay there."""
    path = Path(filename)
    for entry in sorted(sys.path, key=len, reverse=True):
        if entry and path.is_relative_to(entry):
            return path.relative_to(entry).as_posix()
    return path.name
