"""Checks of one site by itself: its data, its folders, its certificates, its port."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from deepca._util.units import size
from deepca.data.readers import open_source
from deepca.data.sources import Source
from deepca.errors import CertificateError, DeepcaError, InvalidInput, RevocationListError
from deepca.sites.admin.findings import HERE, KEEPER, SOON, WRITER, Finding, day_of
from deepca.sites.admin.reachability import knock
from deepca.sites.config.addresses import split_address
from deepca.sites.config.network_file import read_network
from deepca.sites.config.site_file import SiteFile
from deepca.sites.pki.certificates import load_certificate, now_utc
from deepca.sites.pki.identity import Identity as Certificates
from deepca.sites.pki.keys import load_key, pending
from deepca.sites.pki.revocation import current_list, expiry_warning

_SHOWN = 5  # columns that are named


def blamed_for_files(path: Path) -> str:
    """Whether it is site.toml that cannot be used, or network.toml."""
    beside = (path if path.is_dir() else path.parent) / "network.toml"
    try:
        read_network(beside)
    except InvalidInput:
        return f"{WRITER}, as it is the same at all sites" if beside.exists() else HERE
    return HERE


def check_data(site: SiteFile) -> Iterator[tuple[Finding, Source | None]]:
    try:
        source = open_source(str(site.data), label_column=site.label_column, dataset=site.dataset)
    except (DeepcaError, OSError) as error:
        yield Finding("data", "wrong", str(error), HERE), None
        return
    shown = ", ".join((source.columns or ())[:_SHOWN]) + (", …" if source.d > _SHOWN else "")
    said = f"{source.d} columns" + (f" ({shown})" if source.columns else ", without names")
    twice = [name for name, count in Counter(source.columns or ()).items() if count > 1]
    if twice:
        text = f"{site.data.name} has more than one column {twice[0]!r}; give every column a name of its own"
        yield Finding("columns", "wrong", text, HERE), None
        return
    if source.first_index is not None:
        text = f"{said}; svmlight leaves out zeros, so see to it that all sites come to the same number"
        yield Finding("columns", "warning", text, HERE), source
    else:
        yield Finding("columns", "ok", said), source
    yield _first_rows(site, source), source
    k = site.network.components
    if isinstance(k, int) and k > source.d:
        text = f"components = {k}, and there are {source.d} columns in {site.data.name}"
        yield Finding("components", "wrong", text, f"{HERE} if columns are missing, else {WRITER}"), source
    else:
        yield Finding("components", "ok", f"{'all' if k is None else k} of {source.d} columns"), source


def _first_rows(site: SiteFile, source: Source) -> Finding:
    """Reads one block."""
    try:
        block = next(iter(source.blocks()), None)
    except (DeepcaError, OSError) as error:
        return Finding("rows", "wrong", str(error), HERE)
    if block is None or not block.shape[0]:
        return Finding("rows", "wrong", f"{site.data.name} has no rows", HERE)
    values = block if isinstance(block, np.ndarray) else block.data
    if not np.isfinite(values).all():
        dense = block if isinstance(block, np.ndarray) else block.toarray()
        places = np.argwhere(~np.isfinite(dense))
        row, column = (int(i) for i in places[0])
        name = repr(source.columns[column]) if source.columns is not None else str(column)
        what = "missing" if np.isnan(dense[row, column]) else "infinite"
        text = (
            f"row {row}, column {name} is {what} ({len(places):,} such values among the first {block.shape[0]:,} rows)"
        )
        return Finding("rows", "wrong", f"{text}; remove the rows, or fill the values in first", HERE)
    total = f"{source.n:,} rows" if source.n is not None else "rows"
    return Finding("rows", "ok", f"{total}; the first {block.shape[0]:,} were read and have no missing values")


def check_folders(site: SiteFile, source: Source | None) -> Iterator[Finding]:
    folder = site.model.parent
    if site.model.is_dir():
        yield Finding("model", "wrong", f"model = {site.model} is a folder; give the name of a file", HERE)
    elif why := _unwritable(folder):
        yield Finding("model", "wrong", f"nothing can be written to {folder}: {why}", HERE)
    else:
        there = "; the model that is there will be replaced" if site.model.exists() else ""
        yield Finding("model", "ok", f"{site.model} can be written{there}")
    if not site.checkpoints:
        yield Finding("checkpoints", "warning", "checkpoints = false: an agent that is started again begins anew", HERE)
        return
    if why := _unwritable(site.state):
        yield Finding("checkpoints", "wrong", f"nothing can be written to {site.state}: {why}", HERE)
        return
    if source is None:
        yield Finding("checkpoints", "ok", f"{site.state} can be written")
        return
    free, needed = shutil.disk_usage(_existing(site.state)).free, _needed(site, source)
    said = f"{size(free)} are free at {site.state}, and checkpoints may take {size(needed)}"
    if free < needed:
        yield Finding("checkpoints", "wrong", f"only {said}; make room, or name another folder as state", HERE)
    else:
        yield Finding("checkpoints", "ok", said)


def _needed(site: SiteFile, source: Source) -> int:
    """Bytes at most: two checkpoints are kept while a third is written, each with some arrays as large as a message."""
    from deepca.sites.runtime.agent import largest_message

    return 3 * 4 * largest_message(source, site.network.settings)


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder


def _unwritable(folder: Path) -> str:
    """Why nothing can be written there, made first if need be; leaves nothing behind."""
    try:
        tempfile.TemporaryFile(dir=_existing(folder)).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def check_certificates(site: SiteFile) -> Iterator[tuple[Finding, Certificates | None]]:
    if site.plaintext:
        text = "plaintext = true: nothing is encrypted and nobody proves who it is; for trials on one machine only"
        yield Finding("certificate", "warning", text, HERE), None
        return
    wrong = False
    try:
        load_key(site.key if site.key.exists() or not pending(site.key).exists() else pending(site.key))
        yield Finding("key", "ok", f"{site.key.name} can be read by its owner only"), None
    except InvalidInput as error:
        wrong = True
        yield Finding("key", "wrong", str(error), HERE), None
    try:
        authority = load_certificate(site.authority, hint="it comes with the kit that deepca init made")
    except InvalidInput as error:
        yield Finding("authority", "wrong", str(error), f"{HERE}, with a new copy from {KEEPER}"), None
        return
    ends = authority.not_valid_after_utc
    if ends < now_utc():
        yield Finding("authority", "wrong", f"the authority ended on {day_of(ends)}; a new one is needed", KEEPER), None
        return
    soon = ends - now_utc() < SOON
    yield Finding("authority", "warning" if soon else "ok", f"lasts until {day_of(ends)}", KEEPER if soon else ""), None
    try:
        revoked = current_list(site, authority, now_utc())
    except RevocationListError as error:
        yield Finding("revoked list", "wrong", str(error), _blamed_for_list(error.reason)), None
        return
    except InvalidInput as error:
        yield Finding("revoked list", "wrong", str(error), HERE), None
        return
    if revoked is None:
        yield Finding("revoked list", "ok", "there is none, so nobody is revoked"), None
    elif soon_over := expiry_warning(revoked, now_utc()):
        yield Finding("revoked list", "warning", soon_over, KEEPER), None
    else:
        count = len(revoked)
        said = (
            f"number {revoked.number} with {count} certificate{'s' if count != 1 else ''}, until {day_of(revoked.ends)}"
        )
        yield Finding("revoked list", "ok", said), None
    if not wrong:
        yield _own(site)


def _blamed_for_list(reason: str) -> str:
    match reason:
        case "expired" | "unnumbered":
            return f"{KEEPER} signs a new one; {HERE} installs it"
        case "missing" | "older":
            return f"{HERE}, with the newest from {KEEPER} or a neighbour"
    return f"{HERE}, with a new copy from {KEEPER}"


def _own(site: SiteFile) -> tuple[Finding, Certificates | None]:
    try:
        mine = Certificates.look(site)
    except CertificateError as error:
        return Finding("certificate", "wrong", str(error), _blamed_for_certificate(error.reason)), None
    except InvalidInput as error:
        return Finding("certificate", "wrong", str(error), HERE), None
    left = mine.not_after - now_utc()
    text = f"that of {mine.site} in {mine.network}, fits its key, lasts until {day_of(mine.not_after)}"
    if left < SOON:
        text += f", {left.days} days more; a new one is asked for with deepca join {site.path} --renew"
        return Finding("certificate", "warning", text, f"{HERE}, and {KEEPER}"), mine
    return Finding("certificate", "ok", text), mine


def _blamed_for_certificate(reason: str) -> str:
    match reason:
        case "revoked" | "issuer":
            return f"{KEEPER}; {HERE} asks"
        case "expired":
            return f"{HERE} asks, and {KEEPER} signs"
        case "early":
            return f"{HERE}: is its clock right?"
    return HERE


def check_port(site: SiteFile, mine: Certificates | None, patience: float) -> tuple[Finding, bool]:
    """Whether the own port can be had; and whether it is certain that no agent of this site runs."""
    if site.listen is None:
        return Finding("port", "ok", "none: this site calls its neighbours, and cannot be called"), False
    host, port = split_address(site.listen, lowest=0)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as door:
            if os.name == "posix":
                door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the agent does
            door.bind((host, port))
            door.listen()
        return Finding("port", "ok", f"{site.listen} is free; no agent of this site is running"), True
    except socket.gaierror as error:
        return Finding(
            "port", "wrong", f"listen = {site.listen}: {host} is not known here ({error.strerror})", HERE
        ), False
    except OSError as error:
        code, why = error.errno, error.strerror
    if code == errno.EADDRNOTAVAIL:
        text = f"listen = {site.listen}: {host} is no address of this machine; 0.0.0.0:{port} listens at all of them"
        return Finding("port", "wrong", text, HERE), False
    if code == errno.EACCES:
        text = f"listen = {site.listen}: this user may not listen there; take a port above 1023"
        return Finding("port", "wrong", text, HERE), False
    if code != errno.EADDRINUSE:
        return Finding("port", "wrong", f"listen = {site.listen}: {why}", HERE), False
    if mine is None:
        return Finding("port", "warning", f"{site.listen} is taken; by the agent of this site?", HERE), False
    inside = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    found = knock(f"{inside}:{port}", site.site, site, mine, patience)
    if found.owner == site.site:
        return Finding("port", "ok", f"{site.listen} is taken by the agent of this site: it is running"), False
    text = f"{site.listen} is taken by another program; stop that, or change listen in site.toml (and the address)"
    return Finding("port", "wrong", text, HERE), False
