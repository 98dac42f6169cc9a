"""Is this site ready? Every thing that can be looked at before a run, one after the other, and who has to mend it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from deepca.data.sources import Source
from deepca.errors import DeepcaError, InvalidInput
from deepca.sites.admin.findings import HERE, KEEPER, NETWORK, SOON, WRITER, Finding, day_of
from deepca.sites.admin.reachability import Heard, Knock, knock, overhear
from deepca.sites.admin.site_checks import blamed_for_files, check_certificates, check_data, check_folders, check_port
from deepca.sites.config.site_file import SiteFile, read_site
from deepca.sites.pki.certificates import now_utc
from deepca.sites.pki.identity import Identity as Certificates
from deepca.sites.protocol.fingerprints import fingerprint_of, other_columns, readable, run_of

__all__ = ["compare_clocks", "compare_settings", "examine", "explain_closed_door"]


_SKEW, _MUCH_SKEW = 5.0, 300.0  # seconds; certificates allow for as much as the latter


def examine(path: Path, *, seconds: float = 3.0, patience: float = 3.0) -> Iterator[Finding]:
    """Everything about the site of a ``site.toml``, in the order in which things are needed.

    seconds : how long neighbours are listened to.  patience : in seconds, for a connection to each of them.
    """
    site: SiteFile | None = None
    try:
        site = read_site(path)
    except InvalidInput as error:
        yield Finding("site.toml", "wrong", str(error), blamed_for_files(path))
    if site is None:
        return
    network, names = site.network, [site.network.sites[j].name for j in site.network.neighbors(site.site)]
    neighbours = ", ".join(names) or "none"
    about = f"{site.site} of {network.name}, run {network.run}: {len(network.sites)} sites, neighbours: {neighbours}"
    yield Finding("site.toml", "ok", about)
    source: Source | None = None
    for finding, opened in check_data(site):
        source = opened or source
        yield finding
    yield from check_folders(site, source)
    mine: Certificates | None = None
    for finding, loaded in check_certificates(site):
        mine = loaded or mine
        yield finding
    if not names:
        return
    if mine is None and not site.plaintext:
        yield Finding("neighbours", "warning", "not looked at: without a certificate nobody answers", HERE)
        return
    port, free = check_port(site, mine, patience)
    yield port
    knocks = _knock_at_all(site, mine, patience)
    yield from _doors(site, knocks)
    yield from _agents(site, mine, source, knocks, free=free, seconds=seconds)


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
            text, who = explain_closed_door(name, found)
            yield Finding(name, "warning" if found.stage == "refused" else "wrong", text, who)


_GOOD = "it can be reached, speaks TLS 1.3, shows the right certificate and accepts ours"


def _open_door(name: str, found: Knock, text: str) -> Finding:
    if found.not_after is not None and found.not_after - now_utc().timestamp() < SOON.total_seconds():
        day = day_of(datetime.fromtimestamp(found.not_after, UTC))
        return Finding(name, "warning", f"{text}; its certificate ends on {day}", f"{name}, and {KEEPER}")
    return Finding(name, "ok", text)


def explain_closed_door(name: str, found: Knock) -> tuple[str, str]:
    """Say in words why a neighbour cannot be reached, and who has to fix it."""
    match found.stage:
        case "name":
            return found.why, f"{NETWORK} (names), or {WRITER} if the address is wrong"
        case "refused":
            return f"{found.why}: its agent may not have been started yet", f"{name}, or {WRITER} if the port is wrong"
        case "unreachable":
            return found.why, f"{NETWORK}, here or at {name}"
        case "certificate":
            return found.why, _blamed_for_other(name, found.reason)
        case "welcome":
            return found.why, f"{HERE} and {name}, who compare their authority.pem, or {KEEPER}"
    return found.why, f"{name}, or {NETWORK} if something stands in between"


def _blamed_for_other(name: str, reason: str) -> str:
    match reason:
        case "site":
            return f"{WRITER} or {NETWORK}: the address leads to another site"
        case "early":
            return f"{HERE} or {name}: whose clock is wrong?"
        case "issuer":
            return (
                f"{name}, whose kit is of another authority; or {HERE}, if its authority.pem is not that of all others"
            )
    return f"{name} asks, and {KEEPER} signs"


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
    network = site.network
    try:
        heard = overhear(site, mine, run_of(network), seconds)
    except DeepcaError as error:
        yield Finding("agents", "wrong", str(error), HERE)
        return
    ours = fingerprint_of(network, source) if source is not None else None
    for j, one in heard.items():
        yield from _agent(site, j, one, knocks.get(j), seconds)
    yield from compare_clocks(site, heard)
    if ours is not None:
        yield from compare_settings(site, ours, source.columns if source is not None else None, heard)


def _agent(site: SiteFile, j: int, heard: Heard, found: Knock | None, seconds: float) -> Iterator[Finding]:
    name = site.network.sites[j].name
    check = f"{name}'s agent"
    if heard.refused:
        yield Finding(check, "wrong", heard.refused, f"{HERE} and {name}: compare network.toml and certificates")
    elif heard.same_run is False:
        text = "it is of another network: its network.toml has another name or other sites; give both the same file"
        yield Finding(check, "wrong", text, f"{HERE} or {name}, with {WRITER}")
    elif heard.same_run and heard.fingerprints is not None:
        yield Finding(check, "ok", "it is running, speaks our protocol, and is of the same network")
    elif heard.same_run:
        text = "it is running, and of the same network; its run has begun: columns and settings are not compared now"
        yield Finding(check, "ok", text)
    elif not site.network.dials(site.index, j):
        where = site.network.sites[site.index].address or site.listen
        text = f"it has not called within {seconds:g} s: it is not running, or cannot reach {where}"
        yield Finding(check, "warning", text, f"{name}, or {NETWORK}")
    elif found is not None and found.stage == "open":
        text = f"something listens there, but no agent has answered within {seconds:g} s"
        yield Finding(check, "warning", text, name)


def compare_clocks(site: SiteFile, heard: Mapping[int, Heard]) -> Iterator[Finding]:
    """Compare this site's clock with those of its neighbours."""
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
    who = f"{HERE}: the others agree with each other" if alone else f"{HERE} or {', '.join(off)}"
    much = max(map(abs, off.values())) > _MUCH_SKEW
    yield Finding("clock", "wrong" if much else "warning", f"clocks differ: {said}", who)


def compare_settings(
    site: SiteFile, ours: Mapping[str, bytes], columns: Sequence[str] | None, heard: Mapping[int, Heard]
) -> Iterator[Finding]:
    """Compare columns and settings with those of every site that the neighbours know of."""
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
            said = "; ".join(_apart(one, ours, prints, columns) for one in names)
            who = f"{HERE} or {name}" if len(theirs) == 1 else f"{HERE}, or {name} if the others are like this site"
            yield Finding("agreement", "wrong", f"this site differs from {name}: {said}", who)
    if not wrong:
        known = ", ".join(site.network.sites[j].name for j in sorted(theirs))
        yield Finding("agreement", "ok", f"the same columns and settings as {known}")


def _apart(name: str, here: Mapping[str, bytes], there: Mapping[str, bytes], columns: Sequence[str] | None) -> str:
    """In what two sites differ; columns are named as they are called here."""
    if name == "columns":
        wrong = other_columns(here, there)
        if wrong is None or columns is None:
            return "other columns"
        if not wrong:
            return "the same columns in another order"
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        return f"column {wrong[0] + 1}, here {columns[wrong[0]]!r}, is another one there{more}"
    shown = readable(here.get(name, b""), there.get(name, b""))
    return f"{name} {shown[0] or 'none'} here, {shown[1] or 'none'} there" if shown is not None else f"another {name}"
