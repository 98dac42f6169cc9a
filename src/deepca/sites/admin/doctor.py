"""Is this site ready? Every thing that can be looked at before a run, one after the other, and who has to mend it."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import numpy as np

from deepca._util.units import size
from deepca.data.readers import open_source
from deepca.data.sources import Source
from deepca.errors import CertificateError, DeepcaError, InvalidInput, RevocationListError
from deepca.sites.admin.reachability import Heard, Knock, knock, overhear
from deepca.sites.config.files import SiteFile, read_network, read_site, split_address
from deepca.sites.pki.certificates import load_certificate
from deepca.sites.pki.identity import Identity as Certificates
from deepca.sites.pki.keys import load_key, pending
from deepca.sites.pki.revocation import current_list, expiry_warning

__all__ = ["Finding", "Verdict", "examine"]

Verdict = Literal["ok", "warning", "wrong"]

_HERE = "this site"
_KEEPER = "whoever keeps the authority"
_WRITER = "whoever wrote network.toml"
_NETWORK = "the network people"
_SOON = timedelta(days=30)
_SKEW, _MUCH_SKEW = 5.0, 300.0  # seconds; certificates allow for as much as the latter
_SHOWN = 5  # columns that are named


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. who : has to mend it; empty where nothing has to be."""

    check: str
    verdict: Verdict
    text: str
    who: str = ""


def examine(path: Path, *, seconds: float = 3.0, patience: float = 3.0) -> Iterator[Finding]:
    """Everything about the site of a ``site.toml``, in the order in which things are needed.

    seconds : how long neighbours are listened to.  patience : in seconds, for a connection to each of them.
    """
    site: SiteFile | None = None
    try:
        site = read_site(path)
    except InvalidInput as error:
        yield Finding("site.toml", "wrong", str(error), _blamed_for_files(path))
    if site is None:
        return
    network, names = site.network, [site.network.sites[j].name for j in site.network.neighbors(site.site)]
    neighbours = ", ".join(names) or "none"
    about = f"{site.site} of {network.name}, run {network.run}: {len(network.sites)} sites, neighbours: {neighbours}"
    yield Finding("site.toml", "ok", about)
    source: Source | None = None
    for finding, opened in _data(site):
        source = opened or source
        yield finding
    yield from _folders(site, source)
    mine: Certificates | None = None
    for finding, loaded in _certificates(site):
        mine = loaded or mine
        yield finding
    if not names:
        return
    if mine is None and not site.plaintext:
        yield Finding("neighbours", "warning", "not looked at: without a certificate nobody answers", _HERE)
        return
    port, free = _port(site, mine, patience)
    yield port
    knocks = _knock_at_all(site, mine, patience)
    yield from _doors(site, knocks)
    yield from _agents(site, mine, source, knocks, free=free, seconds=seconds)


# ------------------------------------------------------------------------------------------------------- files and rows


def _blamed_for_files(path: Path) -> str:
    """Whether it is site.toml that cannot be used, or network.toml."""
    beside = (path if path.is_dir() else path.parent) / "network.toml"
    try:
        read_network(beside)
    except InvalidInput:
        return f"{_WRITER}, as it is the same at all sites" if beside.exists() else _HERE
    return _HERE


def _data(site: SiteFile) -> Iterator[tuple[Finding, Source | None]]:
    try:
        source = open_source(str(site.data), label_column=site.label_column, dataset=site.dataset)
    except (DeepcaError, OSError) as error:
        yield Finding("data", "wrong", str(error), _HERE), None
        return
    shown = ", ".join((source.columns or ())[:_SHOWN]) + (", …" if source.d > _SHOWN else "")
    said = f"{source.d} columns" + (f" ({shown})" if source.columns else ", without names")
    twice = [name for name, count in Counter(source.columns or ()).items() if count > 1]
    if twice:
        text = f"{site.data.name} has more than one column {twice[0]!r}; give every column a name of its own"
        yield Finding("columns", "wrong", text, _HERE), None
        return
    if source.first_index is not None:
        text = f"{said}; svmlight leaves out zeros, so see to it that all sites come to the same number"
        yield Finding("columns", "warning", text, _HERE), source
    else:
        yield Finding("columns", "ok", said), source
    yield _first_rows(site, source), source
    k = site.network.components
    if isinstance(k, int) and k > source.d:
        text = f"components = {k}, and there are {source.d} columns in {site.data.name}"
        yield Finding("components", "wrong", text, f"{_HERE} if columns are missing, else {_WRITER}"), source
    else:
        yield Finding("components", "ok", f"{'all' if k is None else k} of {source.d} columns"), source


def _first_rows(site: SiteFile, source: Source) -> Finding:
    """Reads one block."""
    try:
        block = next(iter(source.blocks()), None)
    except (DeepcaError, OSError) as error:
        return Finding("rows", "wrong", str(error), _HERE)
    if block is None or not block.shape[0]:
        return Finding("rows", "wrong", f"{site.data.name} has no rows", _HERE)
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
        return Finding("rows", "wrong", f"{text}; remove the rows, or fill the values in first", _HERE)
    total = f"{source.n:,} rows" if source.n is not None else "rows"
    return Finding("rows", "ok", f"{total}; the first {block.shape[0]:,} were read and have no missing values")


def _folders(site: SiteFile, source: Source | None) -> Iterator[Finding]:
    folder = site.model.parent
    if site.model.is_dir():
        yield Finding("model", "wrong", f"model = {site.model} is a folder; give the name of a file", _HERE)
    elif why := _unwritable(folder):
        yield Finding("model", "wrong", f"nothing can be written to {folder}: {why}", _HERE)
    else:
        there = "; the model that is there will be replaced" if site.model.exists() else ""
        yield Finding("model", "ok", f"{site.model} can be written{there}")
    if not site.checkpoints:
        yield Finding(
            "checkpoints", "warning", "checkpoints = false: an agent that is started again begins anew", _HERE
        )
        return
    if why := _unwritable(site.state):
        yield Finding("checkpoints", "wrong", f"nothing can be written to {site.state}: {why}", _HERE)
        return
    if source is None:
        yield Finding("checkpoints", "ok", f"{site.state} can be written")
        return
    free, needed = shutil.disk_usage(_existing(site.state)).free, _needed(site, source)
    said = f"{size(free)} are free at {site.state}, and checkpoints may take {size(needed)}"
    if free < needed:
        yield Finding("checkpoints", "wrong", f"only {said}; make room, or name another folder as state", _HERE)
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


# --------------------------------------------------------------------------------------------------------- certificates


def _certificates(site: SiteFile) -> Iterator[tuple[Finding, Certificates | None]]:
    if site.plaintext:
        text = "plaintext = true: nothing is encrypted and nobody proves who it is; for trials on one machine only"
        yield Finding("certificate", "warning", text, _HERE), None
        return
    wrong = False
    try:
        load_key(site.key if site.key.exists() or not pending(site.key).exists() else pending(site.key))
        yield Finding("key", "ok", f"{site.key.name} can be read by its owner only"), None
    except InvalidInput as error:
        wrong = True
        yield Finding("key", "wrong", str(error), _HERE), None
    try:
        authority = load_certificate(site.authority, hint="it comes with the kit that deepca init made")
    except InvalidInput as error:
        yield Finding("authority", "wrong", str(error), f"{_HERE}, with a new copy from {_KEEPER}"), None
        return
    ends = authority.not_valid_after_utc
    if ends < _now():
        yield Finding("authority", "wrong", f"the authority ended on {_day(ends)}; a new one is needed", _KEEPER), None
        return
    soon = ends - _now() < _SOON
    yield Finding("authority", "warning" if soon else "ok", f"lasts until {_day(ends)}", _KEEPER if soon else ""), None
    try:
        revoked = current_list(site, authority, _now())
    except RevocationListError as error:
        yield Finding("revoked list", "wrong", str(error), _blamed_for_list(error.reason)), None
        return
    except InvalidInput as error:
        yield Finding("revoked list", "wrong", str(error), _HERE), None
        return
    if revoked is None:
        yield Finding("revoked list", "ok", "there is none, so nobody is revoked"), None
    elif soon_over := expiry_warning(revoked, _now()):
        yield Finding("revoked list", "warning", soon_over, _KEEPER), None
    else:
        count = len(revoked)
        said = (
            f"number {revoked.number} with {count} certificate{'s' if count != 1 else ''}, until {_day(revoked.ends)}"
        )
        yield Finding("revoked list", "ok", said), None
    if not wrong:
        yield _own(site)


def _blamed_for_list(reason: str) -> str:
    match reason:
        case "expired" | "unnumbered":
            return f"{_KEEPER} signs a new one; {_HERE} installs it"
        case "missing" | "older":
            return f"{_HERE}, with the newest from {_KEEPER} or a neighbour"
    return f"{_HERE}, with a new copy from {_KEEPER}"


def _own(site: SiteFile) -> tuple[Finding, Certificates | None]:
    try:
        mine = Certificates.look(site)
    except CertificateError as error:
        return Finding("certificate", "wrong", str(error), _blamed_for_certificate(error.reason)), None
    except InvalidInput as error:
        return Finding("certificate", "wrong", str(error), _HERE), None
    left = mine.not_after - _now()
    text = f"that of {mine.site} in {mine.network}, fits its key, lasts until {_day(mine.not_after)}"
    if left < _SOON:
        text += f", {left.days} days more; a new one is asked for with deepca join {site.path} --renew"
        return Finding("certificate", "warning", text, f"{_HERE}, and {_KEEPER}"), mine
    return Finding("certificate", "ok", text), mine


def _blamed_for_certificate(reason: str) -> str:
    match reason:
        case "revoked" | "issuer":
            return f"{_KEEPER}; {_HERE} asks"
        case "expired":
            return f"{_HERE} asks, and {_KEEPER} signs"
        case "early":
            return f"{_HERE}: is its clock right?"
    return _HERE


def _day(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d}"


def _now() -> datetime:
    return datetime.now(UTC)


# ------------------------------------------------------------------------------------------------------------- own port


def _port(site: SiteFile, mine: Certificates | None, patience: float) -> tuple[Finding, bool]:
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
            "port", "wrong", f"listen = {site.listen}: {host} is not known here ({error.strerror})", _HERE
        ), False
    except OSError as error:
        code, why = error.errno, error.strerror
    if code == errno.EADDRNOTAVAIL:
        text = f"listen = {site.listen}: {host} is no address of this machine; 0.0.0.0:{port} listens at all of them"
        return Finding("port", "wrong", text, _HERE), False
    if code == errno.EACCES:
        text = f"listen = {site.listen}: this user may not listen there; take a port above 1023"
        return Finding("port", "wrong", text, _HERE), False
    if code != errno.EADDRINUSE:
        return Finding("port", "wrong", f"listen = {site.listen}: {why}", _HERE), False
    if mine is None:
        return Finding("port", "warning", f"{site.listen} is taken; by the agent of this site?", _HERE), False
    inside = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    found = knock(f"{inside}:{port}", site.site, site, mine, patience)
    if found.owner == site.site:
        return Finding("port", "ok", f"{site.listen} is taken by the agent of this site: it is running"), False
    text = f"{site.listen} is taken by another program; stop that, or change listen in site.toml (and the address)"
    return Finding("port", "wrong", text, _HERE), False


# ----------------------------------------------------------------------------------------------------------- neighbours


def _knock_at_all(site: SiteFile, mine: Certificates | None, patience: float) -> dict[int, Knock]:
    """At all neighbours that have an address, at once."""
    network = site.network
    there = {j: address for j in network.neighbors(site.site) if (address := network.sites[j].address) is not None}
    if not there:
        return {}
    with ThreadPoolExecutor(min(len(there), 16)) as pool:
        asked = {
            j: pool.submit(knock, address, network.sites[j].name, site, mine, patience) for j, address in there.items()
        }
        return {j: one.result() for j, one in asked.items()}


def _doors(site: SiteFile, knocks: Mapping[int, Knock]) -> Iterator[Finding]:
    """What follows from knocking. A neighbour that calls this site need not be reached from here."""
    network = site.network
    for j in network.neighbors(site.site):
        name, address = network.sites[j].name, network.sites[j].address
        found, dialled = knocks.get(j), network.dials(site.index, j)
        if found is None:
            yield Finding(name, "ok", "has no address: it calls this site")
        elif found.stage in ("name", "refused", "unreachable", "silent") and not dialled:
            yield Finding(name, "ok", f"calls this site, so it does not matter that {found.why}")
        elif found.stage == "open":
            yield _open_door(name, found, f"{address}: " + ("it can be reached" if site.plaintext else _GOOD))
        else:
            text, who = _closed_door(name, found)
            yield Finding(name, "warning" if found.stage == "refused" else "wrong", text, who)


_GOOD = "it can be reached, speaks TLS 1.3, shows the right certificate and accepts ours"


def _open_door(name: str, found: Knock, text: str) -> Finding:
    if found.not_after is not None and found.not_after - _now().timestamp() < _SOON.total_seconds():
        day = _day(datetime.fromtimestamp(found.not_after, UTC))
        return Finding(name, "warning", f"{text}; its certificate ends on {day}", f"{name}, and {_KEEPER}")
    return Finding(name, "ok", text)


def _closed_door(name: str, found: Knock) -> tuple[str, str]:
    """In words, and who has to mend it."""
    match found.stage:
        case "name":
            return found.why, f"{_NETWORK} (names), or {_WRITER} if the address is wrong"
        case "refused":
            return f"{found.why}: its agent may not have been started yet", f"{name}, or {_WRITER} if the port is wrong"
        case "unreachable":
            return found.why, f"{_NETWORK}, here or at {name}"
        case "certificate":
            return found.why, _blamed_for_other(name, found.reason)
        case "welcome":
            return found.why, f"{_HERE} and {name}, who compare their authority.pem, or {_KEEPER}"
    return found.why, f"{name}, or {_NETWORK} if something stands in between"


def _blamed_for_other(name: str, reason: str) -> str:
    match reason:
        case "site":
            return f"{_WRITER} or {_NETWORK}: the address leads to another site"
        case "early":
            return f"{_HERE} or {name}: whose clock is wrong?"
        case "issuer":
            return (
                f"{name}, whose kit is of another authority; or {_HERE}, if its authority.pem is not that of all others"
            )
    return f"{name} asks, and {_KEEPER} signs"


# -------------------------------------------------------------------------------------------------- what agents say


def _agents(
    site: SiteFile,
    mine: Certificates | None,
    source: Source | None,
    knocks: Mapping[int, Knock],
    *,
    free: bool,
    seconds: float,
) -> Iterator[Finding]:
    """Clock, run, columns and settings, as far as they can be asked for without disturbing anybody."""
    if not free:
        text = (
            "run, settings and clock are not compared: that would disturb the agent of this site, should it be running"
        )
        yield Finding("agents", "ok", text)
        return
    from deepca.sites.runtime.agent import fingerprint_of, run_of

    network = site.network
    try:
        heard = overhear(site, mine, run_of(network), seconds)
    except DeepcaError as error:
        yield Finding("agents", "wrong", str(error), _HERE)
        return
    ours = fingerprint_of(network, source) if source is not None else None
    for j, one in heard.items():
        yield from _agent(site, j, one, knocks.get(j), seconds)
    yield from _clocks(site, heard)
    if ours is not None:
        yield from _differences(site, ours, source.columns if source is not None else None, heard)


def _agent(site: SiteFile, j: int, heard: Heard, found: Knock | None, seconds: float) -> Iterator[Finding]:
    name = site.network.sites[j].name
    check = f"{name}'s agent"
    if heard.refused:
        yield Finding(check, "wrong", heard.refused, f"{_HERE} and {name}: compare network.toml and certificates")
    elif heard.same_run is False:
        text = "it is of another network: its network.toml has another name or other sites; give both the same file"
        yield Finding(check, "wrong", text, f"{_HERE} or {name}, with {_WRITER}")
    elif heard.same_run and heard.fingerprints is not None:
        yield Finding(check, "ok", "it is running, speaks our protocol, and is of the same network")
    elif heard.same_run:
        text = "it is running, and of the same network; its run has begun: columns and settings are not compared now"
        yield Finding(check, "ok", text)
    elif not site.network.dials(site.index, j):
        where = site.network.sites[site.index].address or site.listen
        text = f"it has not called within {seconds:g} s: it is not running, or cannot reach {where}"
        yield Finding(check, "warning", text, f"{name}, or {_NETWORK}")
    elif found is not None and found.stage == "open":
        text = f"something listens there, but no agent has answered within {seconds:g} s"
        yield Finding(check, "warning", text, name)


def _clocks(site: SiteFile, heard: Mapping[int, Heard]) -> Iterator[Finding]:
    skews = {site.network.sites[j].name: one.skew for j, one in heard.items() if one.skew is not None}
    if not skews:
        return
    off = {name: skew for name, skew in skews.items() if abs(skew) > _SKEW}
    if not off:
        yield Finding("clock", "ok", f"the same as at {', '.join(skews)}, to {max(map(abs, skews.values())):.1f} s")
        return
    said = ", ".join(
        f"that of {name} is {abs(skew):.0f} s {'ahead' if skew > 0 else 'behind'}" for name, skew in off.items()
    )
    alone = len(off) == len(skews) > 1 and max(off.values()) - min(off.values()) < _SKEW
    who = f"{_HERE}: the others agree with each other" if alone else f"{_HERE} or {', '.join(off)}"
    much = max(map(abs, off.values())) > _MUCH_SKEW
    yield Finding("clock", "wrong" if much else "warning", f"clocks differ: {said}", who)


def _differences(
    site: SiteFile, ours: Mapping[str, bytes], columns: Sequence[str] | None, heard: Mapping[int, Heard]
) -> Iterator[Finding]:
    """Against every site that the neighbours know of."""
    theirs: dict[int, Mapping[str, bytes]] = {}
    for one in heard.values():
        theirs.update({j: prints for j, prints in (one.fingerprints or {}).items() if prints and j != site.index})
    if not theirs:
        return
    wrong = 0
    for j, prints in sorted(theirs.items()):
        names = sorted(name for name in {*ours, *prints} if ours.get(name) != prints.get(name))
        if "columns" in names and "number of columns" in names:
            names.remove("columns")
        if names:
            wrong += 1
            name = site.network.sites[j].name
            said = "; ".join(_apart(one, ours.get(one, b""), prints.get(one, b""), columns) for one in names)
            who = f"{_HERE} or {name}" if len(theirs) == 1 else f"{_HERE}, or {name} if the others are like this site"
            yield Finding("agreement", "wrong", f"this site differs from {name}: {said}", who)
    if not wrong:
        known = ", ".join(site.network.sites[j].name for j in sorted(theirs))
        yield Finding("agreement", "ok", f"the same columns and settings as {known}")


def _apart(name: str, mine: bytes, other: bytes, columns: Sequence[str] | None) -> str:
    """In what two sites differ. Of columns only hashes are known, four bytes each."""
    if name == "columns":
        here, there = ([part[i : i + 4] for i in range(0, len(part), 4)] for part in (mine, other))
        if sorted(here) == sorted(there):
            return "the same columns in another order"
        wrong = [i for i, (a, b) in enumerate(zip(here, there, strict=False)) if a != b]
        if columns is None or len(here) != len(columns) or not wrong:
            return "other columns"
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        return f"column {wrong[0] + 1}, here {columns[wrong[0]]!r}, is another one there{more}"
    try:
        shown = mine.decode("ascii") or "none", other.decode("ascii") or "none"
    except UnicodeDecodeError:
        return f"another {name}"
    if all(text.isprintable() and len(text) <= 64 for text in shown):
        return f"{name} {shown[0]} here, {shown[1]} there"
    return f"another {name}"
