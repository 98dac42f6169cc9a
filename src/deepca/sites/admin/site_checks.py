"""Check one site on its own: its data, its folders, its certificates and its port."""

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

from deepca._util.units import counted, format_bytes, plural
from deepca.data.readers import open_source
from deepca.data.sources import Source
from deepca.errors import CertificateError, DeepcaError, InvalidInput, RevocationListError
from deepca.sites.admin.findings import AUTHORITY_OPERATOR, NETWORK_AUTHOR, THIS_SITE, Finding, format_day
from deepca.sites.admin.reachability import probe_address
from deepca.sites.config.addresses import split_address
from deepca.sites.config.site_file import SiteFile
from deepca.sites.pki.certificates import load_certificate, now_utc
from deepca.sites.pki.column_key import column_key_of
from deepca.sites.pki.identity import Identity as Certificates
from deepca.sites.pki.keys import load_key, pending_key_path
from deepca.sites.pki.revocation import EXPIRY_WARNING_PERIOD, current_revocation_list, expiry_warning
from deepca.sites.protocol.fingerprints import column_key_identifier

__all__ = ["check_certificates", "check_column_key", "check_data", "check_folders", "check_port"]

_MAX_COLUMNS = 5  # named in a finding, which should fit on a line


def check_data(site: SiteFile) -> Iterator[tuple[Finding, Source | None]]:
    """Check the data file, its columns, its first rows, and the number of components; yield its source as well."""
    try:
        source = open_source(str(site.data), label_column=site.label_column, dataset=site.dataset)
    except (DeepcaError, OSError) as error:
        yield Finding("data", "wrong", str(error), THIS_SITE), None
        return
    shown = ", ".join((source.columns or ())[:_MAX_COLUMNS]) + (", …" if source.d > _MAX_COLUMNS else "")
    found = counted(source.d, "column") + (f" ({shown})" if source.columns else ", without names")
    repeated = [name for name, count in Counter(source.columns or ()).items() if count > 1]
    if repeated:
        text = f"{site.data.name} has more than one column {repeated[0]!r}; give every column its own name"
        yield Finding("columns", "wrong", text, THIS_SITE), None
        return
    if source.first_index is not None:
        text = f"{found}; svmlight omits zeros, so check that all sites have the same number of columns"
        yield Finding("columns", "warning", text, THIS_SITE), source
    else:
        yield Finding("columns", "ok", found), source
    yield _first_rows(site, source), source
    k = site.network.components
    if isinstance(k, int) and k > source.d:
        text = (
            f"components = {k}, but {site.data.name} has {counted(source.d, 'column')}; add the missing columns, or "
            "request fewer components"
        )
        yield Finding("components", "wrong", text, f"{THIS_SITE} if columns are missing, else {NETWORK_AUTHOR}"), source
    else:
        yield Finding("components", "ok", f"{'all' if k is None else k} of {counted(source.d, 'column')}"), source


def _first_rows(site: SiteFile, source: Source) -> Finding:
    """Check the first block of rows."""
    try:
        block = next(iter(source.blocks()), None)
    except (DeepcaError, OSError) as error:
        return Finding("rows", "wrong", str(error), THIS_SITE)
    if block is None or not block.shape[0]:
        return Finding(
            "rows", "wrong", f"{site.data.name} has no rows; add rows, or correct `data` in site.toml", THIS_SITE
        )
    values = block if isinstance(block, np.ndarray) else block.data
    if not np.isfinite(values).all():
        dense = block if isinstance(block, np.ndarray) else block.toarray()
        places = np.argwhere(~np.isfinite(dense))
        row, column = (int(i) for i in places[0])
        name = repr(source.columns[column]) if source.columns is not None else str(column)
        what = "missing" if np.isnan(dense[row, column]) else "infinite"
        text = f"row {row}, column {name} is {what} ({len(places):,} such values in the first {block.shape[0]:,} rows)"
        return Finding("rows", "wrong", f"{text}; remove these rows, or impute the values", THIS_SITE)
    total = counted(source.n, "row") if source.n is not None else "rows"
    return Finding("rows", "ok", f"{total}; the first {block.shape[0]:,} have no missing values")


def check_folders(site: SiteFile, source: Source | None) -> Iterator[Finding]:
    """Check that the model, the audit log and the checkpoints can be written, and that they fit on the disk."""
    folder = site.model.parent
    if site.model.is_dir():
        yield Finding("model", "wrong", f"model = {site.model} is a folder; write the name of a file", THIS_SITE)
    elif why := _unwritable(folder):
        text = f"cannot write to {folder} ({why}); check its permissions, or change model in site.toml"
        yield Finding("model", "wrong", text, THIS_SITE)
    else:
        there = "; the existing model will be replaced" if site.model.exists() else ""
        yield Finding("model", "ok", f"{site.model} is writable{there}")
    if site.audit is not None and (why := _unwritable(site.audit)):
        text = f"cannot write to {site.audit} ({why}); check its permissions, or change audit_folder in site.toml"
        yield Finding("audit log", "wrong" if site.audit_required else "warning", text, THIS_SITE)
    if not site.checkpoints:
        text = "checkpoints = false: a restarted agent starts over; set it to true to let it resume"
        yield Finding("checkpoints", "warning", text, THIS_SITE)
        return
    if why := _unwritable(site.state):
        text = f"cannot write to {site.state} ({why}); check its permissions, or change state in site.toml"
        yield Finding("checkpoints", "wrong", text, THIS_SITE)
        return
    if source is None:
        yield Finding("checkpoints", "ok", f"{site.state} is writable")
        return
    free, needed = shutil.disk_usage(_existing(site.state)).free, _needed(site, source)
    found = f"{format_bytes(free)} free at {site.state}, and checkpoints may take {format_bytes(needed)}"
    if free < needed:
        text = f"only {found}; free some space, or change state in site.toml"
        yield Finding("checkpoints", "wrong", text, THIS_SITE)
    else:
        yield Finding("checkpoints", "ok", found)


def _needed(site: SiteFile, source: Source) -> int:
    """Return an upper bound on the bytes that checkpoints take.

    There are at most three, since two are kept while a third is written, each with up to four arrays as large as the
    largest message.
    """
    from deepca.sites.runtime.agent import largest_message

    return 3 * 4 * largest_message(source, site.network.settings)


def _existing(folder: Path) -> Path:
    """Return a folder if it exists, else the nearest folder above it that does."""
    while not folder.exists():
        folder = folder.parent
    return folder


def _unwritable(folder: Path) -> str:
    """Return why a folder, which need not exist yet, cannot be written to; empty if it can."""
    try:
        tempfile.TemporaryFile(dir=_existing(folder)).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def check_certificates(site: SiteFile) -> Iterator[tuple[Finding, Certificates | None]]:
    """Check key, authority, revocation list and certificate; yield the credentials once they are usable."""
    if site.plaintext:
        text = "plaintext = true: no encryption and no authentication; remove it except in a trial on one machine"
        yield Finding("certificate", "warning", text, THIS_SITE), None
        return
    wrong = False
    try:
        waiting = pending_key_path(site.key)
        load_key(site.key if site.key.exists() or not waiting.exists() else waiting)
        yield Finding("key", "ok", f"{site.key.name} is readable only by its owner"), None
    except InvalidInput as error:
        wrong = True
        yield Finding("key", "wrong", str(error), THIS_SITE), None
    try:
        authority = load_certificate(site.authority, hint="copy it from the kit that deepca init created")
    except InvalidInput as error:
        yield Finding("authority", "wrong", str(error), f"{THIS_SITE}, with a new copy from {AUTHORITY_OPERATOR}"), None
        return
    ends = authority.not_valid_after_utc
    if ends < now_utc():
        text = f"the authority expired on {format_day(ends)}; create another with deepca init"
        yield Finding("authority", "wrong", text, AUTHORITY_OPERATOR), None
        return
    if ends - now_utc() < EXPIRY_WARNING_PERIOD:
        text = f"valid until {format_day(ends)}; create another with deepca init"
        yield Finding("authority", "warning", text, AUTHORITY_OPERATOR), None
    else:
        yield Finding("authority", "ok", f"valid until {format_day(ends)}"), None
    try:
        revoked = current_revocation_list(site, authority, now_utc())
    except RevocationListError as error:
        yield Finding("revocation list", "wrong", str(error), _blamed_for_list(error.reason)), None
        return
    except InvalidInput as error:
        yield Finding("revocation list", "wrong", str(error), THIS_SITE), None
        return
    if revoked is None:
        yield Finding("revocation list", "ok", "not installed, so no certificate counts as revoked"), None
    elif soon_over := expiry_warning(revoked, now_utc()):
        yield Finding("revocation list", "warning", soon_over, AUTHORITY_OPERATOR), None
    else:
        count = len(revoked)
        entries = f"{count} certificate{plural(count)}"
        text = f"number {revoked.number} with {entries}, valid until {format_day(revoked.ends)}"
        yield Finding("revocation list", "ok", text), None
    if not wrong:
        yield _check_own_certificate(site)


def _blamed_for_list(reason: str) -> str:
    match reason:
        case "expired" | "unnumbered":
            return f"{AUTHORITY_OPERATOR}, who signs a new list, and {THIS_SITE}, which installs it"
        case "missing" | "older":
            return f"{THIS_SITE}, with the newest list from {AUTHORITY_OPERATOR} or from a neighbour"
    return f"{THIS_SITE}, with a new copy from {AUTHORITY_OPERATOR}"


def _check_own_certificate(site: SiteFile) -> tuple[Finding, Certificates | None]:
    try:
        mine = Certificates.load_read_only(site)
    except CertificateError as error:
        return Finding("certificate", "wrong", str(error), _blamed_for_certificate(error.reason)), None
    except InvalidInput as error:
        return Finding("certificate", "wrong", str(error), THIS_SITE), None
    left = mine.not_after - now_utc()
    text = f"issued to {mine.site} in {mine.network}, matches its key, valid until {format_day(mine.not_after)}"
    if left < EXPIRY_WARNING_PERIOD:
        text += f" ({left.days} day{plural(left.days)} left); request a new one with deepca join {site.path} --renew"
        return Finding("certificate", "warning", text, f"{THIS_SITE}, and {AUTHORITY_OPERATOR}"), mine
    return Finding("certificate", "ok", text), mine


def _blamed_for_certificate(reason: str) -> str:
    match reason:
        case "revoked" | "issuer":
            return f"{AUTHORITY_OPERATOR}, and {THIS_SITE}, which requests another"
        case "expired":
            return f"{THIS_SITE}, which requests another, and {AUTHORITY_OPERATOR}, who signs it"
        case "early":
            return f"{THIS_SITE}, if its clock is wrong"
    return THIS_SITE


def check_column_key(site: SiteFile) -> tuple[Finding | None, bytes | None]:
    """Check the key for column names, and return it if it can be used; a plaintext site has nothing to check."""
    try:
        key = column_key_of(site)
    except InvalidInput as error:
        exposed = error.value is not None  # the file is right, its permissions are not
        who = THIS_SITE if exposed else f"{THIS_SITE}, with a copy from {AUTHORITY_OPERATOR}"
        return Finding("column key", "wrong", str(error), who), None
    if site.plaintext:
        return None, key
    text = f"{site.column_key.name} is readable only by its owner; identifier {column_key_identifier(key)}"
    return Finding("column key", "ok", text), key


def check_port(site: SiteFile, mine: Certificates | None, patience: float) -> tuple[Finding, bool]:
    """Check that the agent can listen; also return whether it is certain that no agent of this site is running."""
    if site.listen is None:
        return Finding("port", "ok", "none: this site dials its neighbours and accepts no connections"), False
    host, port = split_address(site.listen, lowest=0)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            if os.name == "posix":
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the agent does
            probe.bind((host, port))
            probe.listen()
        return Finding("port", "ok", f"{site.listen} is free; no agent of this site is running"), True
    except socket.gaierror as error:
        text = f"listen = {site.listen}: the name {host} cannot be resolved ({error.strerror}); correct it in site.toml"
        return Finding("port", "wrong", text, THIS_SITE), False
    except OSError as error:
        code, why = error.errno, error.strerror
    if code == errno.EADDRNOTAVAIL:
        text = (
            f"listen = {site.listen}: this machine does not have the address {host}; write 0.0.0.0:{port} to listen at "
            "all addresses of this machine"
        )
        return Finding("port", "wrong", text, THIS_SITE), False
    if code == errno.EACCES:
        text = f"listen = {site.listen}: this user is not allowed to listen at that port; choose one above 1023"
        return Finding("port", "wrong", text, THIS_SITE), False
    if code != errno.EADDRINUSE:
        return Finding("port", "wrong", f"listen = {site.listen}: {why}; choose another address", THIS_SITE), False
    if mine is None:
        text = f"{site.listen} is in use; check that the program that uses it is the agent of this site"
        return Finding("port", "warning", text, THIS_SITE), False
    inside = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    found = probe_address(f"{inside}:{port}", site.site, site, mine, patience)
    if found.owner == site.site:
        return Finding("port", "ok", f"{site.listen} is in use by the agent of this site, which is running"), False
    text = (
        f"{site.listen} is in use by another program; stop it, or change listen in site.toml and the address in "
        "network.toml"
    )
    return Finding("port", "wrong", text, THIS_SITE), False
