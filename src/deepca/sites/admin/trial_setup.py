"""Set up a trial network: allocate rows to sites, create kits and choose ports."""

from __future__ import annotations

import contextlib
import importlib.util
import random
import re
import shutil
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from deepca.data.allocation import split_equally
from deepca.data.columns import align_columns
from deepca.data.readers import open_sources, spool
from deepca.data.sources import Source
from deepca.data.writers import open_writer
from deepca.errors import DataError, InvalidInput, ParameterError
from deepca.sites.config.addresses import is_site_name
from deepca.sites.config.disclosure import NO_RULES
from deepca.sites.config.network_file import (
    RESERVED_NAMES,
    NetworkFile,
    SiteEntry,
    write_network,
)
from deepca.sites.config.privacy import Privacy, privacy_obstacle
from deepca.sites.config.site_file import write_site

__all__ = ["Share", "allocate_rows", "create_kits", "free_ports", "move_ports", "trial_network"]

_LOWEST_PORT = 10_240  # common services use lower ones
_LOWEST_DIAL_PORT = 32_768  # the first that Linux uses for outgoing connections by default


@dataclass(frozen=True)
class Share:
    """The rows of one site; ``rows`` is their number, or None if it is known only after reading."""

    site: str
    data: Path
    rows: int | None
    label_column: str | None = None
    dataset: str | None = None


def allocate_rows(
    files: Sequence[Path],
    agents: int | None,
    folder: Path,
    *,
    label_column: str | None = None,
    dataset: str | None = None,
) -> tuple[Share, ...]:
    """Allocate rows to sites: one file each, or all rows in equal shares if a number of agents is given.

    Shares are written to ``folder/<site>/``. A site with a file of its own reads it where it is, unless its columns are
    in another order than those of the first file.

    Parameters
    ----------
    files : sequence of Path
        Files of rows.
    agents : int or None
        Number of agents for equal shares; None for one file each.
    folder : Path
        Where to write the shares.
    label_column : str, optional
        Column to exclude (labels, identifiers).
    dataset : str, optional
        Array to read from .npz or HDF5 files.
    """
    repeated = [file for i, file in enumerate(files) if file.resolve() in {other.resolve() for other in files[:i]}]
    if repeated:
        raise DataError(
            f"{repeated[0]} is given twice, so its rows would count twice; give it once", file=str(repeated[0])
        )
    opened = open_sources(files, label_column=label_column, dataset=dataset)
    alike = align_columns(opened)
    if agents is not None:
        if agents < 1:
            raise ParameterError("agents", agents, "expected a whole number of at least 1")
        folder.mkdir(parents=True, exist_ok=True)
        parts = split_equally([spool(source, folder) for source in alike], agents)
        return tuple(
            Share(name, _write(source, folder / name), source.n)
            for name, source in zip(_numbered_sites(agents), parts, strict=True)
        )
    shares = []
    for name, file, source, before in zip(_site_names(files), files, alike, opened, strict=True):
        if source is before and source.first_index is None:
            shares.append(Share(name, file.absolute(), source.n, label_column, dataset))
        else:  # the number of columns in svmlight is known only from all files together
            shares.append(Share(name, _write(source, folder / name), source.n))
    return tuple(shares)


def _site_names(files: Sequence[Path]) -> list[str]:
    """Derive site names from file names; number the sites if those names are unusable or not distinct."""
    names = [re.sub("[^a-z0-9]+", "-", file.name.split(".")[0].lower()).strip("-") for file in files]
    usable = len({*names}) == len(names) and all(
        is_site_name(name) and name not in (*RESERVED_NAMES, "kits") for name in names
    )
    return names if usable else _numbered_sites(len(files))


def _numbered_sites(count: int) -> list[str]:
    return [f"site-{j:0{len(str(count))}d}" for j in range(1, count + 1)]


def _write(source: Source, folder: Path) -> Path:
    """Write the rows and column names of a source to a file, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    if source.columns is None and source.is_sparse:
        path = folder / "rows.npz"
        sparse.save_npz(path, sparse.vstack([sparse.csr_array(block) for block in source.blocks()], format="csr"))
        return path
    named = source.columns is not None
    kind = "npy" if not named else "h5" if importlib.util.find_spec("h5py") else "parquet"
    columns = source.columns or tuple(f"column {i}" for i in range(source.d))
    label = next(name for name in (f"label{'_' * i}" for i in range(len(columns) + 1)) if name not in columns)
    path = folder / f"rows.{kind}"
    with open_writer(path, columns, dtype=source.dtype, label=label) as writer:
        for block in source.blocks():
            writer.write(block if isinstance(block, np.ndarray) else block.toarray())
    return path


def trial_network(shares: Sequence[Share], *, privacy: Privacy | None = None, **options: Any) -> NetworkFile:
    """Return a network of these sites, at free ports on 127.0.0.1; ``options`` are further fields of NetworkFile.

    By default, sums are private if they can be.
    """
    if privacy is None:
        given = {"algorithm": "auto", "messages": "float64", "on_loss": "wait"} | options
        obstacle = privacy_obstacle(len(shares), given["algorithm"], given["messages"], given["on_loss"])
        privacy = "open" if obstacle else "private"
    ports = free_ports(len(shares))
    sites = tuple(SiteEntry(share.site, f"127.0.0.1:{port}") for share, port in zip(shares, ports, strict=True))
    return NetworkFile(sites=sites, privacy=privacy, **options)


def free_ports(count: int) -> list[int]:
    """Find ports that are not in use, preferably outside the range that the system uses for outgoing connections."""
    highest = _LOWEST_DIAL_PORT
    with contextlib.suppress(OSError, ValueError):
        highest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    found: list[int] = []
    rng = random.SystemRandom()
    with contextlib.ExitStack() as held:
        for attempt in range(50 * count):
            low = attempt < 40 * count and highest > 2 * _LOWEST_PORT
            tried = rng.randrange(_LOWEST_PORT, highest) if low else 0
            probe = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", tried))
                found.append(probe.getsockname()[1])
            if len(found) == count:
                return found
    raise InvalidInput(
        f"found only {len(found)} of {count} free ports on 127.0.0.1; stop other programs, or use fewer sites"
    )


def create_kits(network: NetworkFile, shares: Sequence[Share], folder: Path, deadline: float) -> None:
    """Create complete kits for all sites, without disclosure rules: all rows are on this machine."""
    from deepca.sites.admin.kits import make_kits

    folder.mkdir(parents=True, exist_ok=True)
    write_network(folder / "network.toml", network)
    make_kits(folder / "network.toml", folder, trial=True, days=30)
    for share in shares:
        write_site(
            folder / share.site / "site.toml",
            share.site,
            str(share.data),
            label_column=share.label_column,
            dataset=share.dataset,
            deadline=deadline,
            rules=NO_RULES,
        )


def move_ports(network: NetworkFile, folder: Path) -> NetworkFile:
    """Move the sites to other free ports and return the network; certificates stay valid, as they contain no ports."""
    ports = free_ports(len(network.sites))
    sites = tuple(replace(site, address=f"127.0.0.1:{port}") for site, port in zip(network.sites, ports, strict=True))
    moved = replace(network, sites=sites)
    for place in (".", "authority", *(site.name for site in sites)):
        write_network(folder / place / "network.toml", moved)
    for site in sites:
        shutil.rmtree(folder / site.name / "state", ignore_errors=True)
    return moved
