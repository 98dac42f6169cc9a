"""Check whether a site is ready for a run: what is wrong, what to fix, and who must fix it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from deepca._util.units import counted
from deepca.data.sources import Source
from deepca.errors import DeepcaError, InvalidInput
from deepca.sites.admin.disclosure_checks import check_disclosure
from deepca.sites.admin.findings import (
    AUTHORITY_OPERATOR,
    NETWORK_ADMINISTRATORS,
    NETWORK_AUTHOR,
    THIS_SITE,
    Finding,
    format_day,
)
from deepca.sites.admin.reachability import AddressProbe, AgentReport, probe_address, query_agents
from deepca.sites.admin.site_checks import (
    check_certificates,
    check_column_key,
    check_data,
    check_folders,
    check_port,
)
from deepca.sites.config.site_file import SiteFile, read_site
from deepca.sites.pki.certificates import now_utc
from deepca.sites.pki.identity import Identity as Certificates
from deepca.sites.pki.revocation import EXPIRY_WARNING_PERIOD
from deepca.sites.protocol.fingerprints import (
    COLUMN_KEY_ENTRY,
    as_printable,
    comparable_entries,
    differing_columns,
    fingerprint_of,
    network_digest,
)

__all__ = ["compare_clocks", "compare_settings", "examine", "explain_failed_connection"]


_SKEW_TO_WARN = 5.0  # seconds, more than message delays explain
_SKEW_TO_FAIL = 300.0  # seconds, which certificates tolerate


def examine(path: Path, *, seconds: float = 3.0, patience: float = 3.0) -> Iterator[Finding]:
    """Check a site, its files, its certificates and its neighbours, in the order in which a run needs them.

    Parameters
    ----------
    path : Path
        ``site.toml``, or its folder.
    seconds : float
        How long to listen to the agents of neighbours, at most.
    patience : float
        Seconds to wait for each step of a connection to a neighbour.

    Yields
    ------
    Finding
        The result of each check.
    """
    site: SiteFile | None = None
    try:
        site = read_site(path)
    except InvalidInput as error:
        yield Finding("site.toml", "wrong", str(error), _blamed_for_file(path, error.file))
    if site is None:
        return
    network, names = site.network, [site.network.sites[j].name for j in site.network.neighbors(site.site)]
    neighbours, sites = ", ".join(names) or "none", counted(len(network.sites), "site")
    about = f"{site.site} of {network.name}, run {network.run}: {sites}, neighbours: {neighbours}"
    yield Finding("site.toml", "ok", about)
    source: Source | None = None
    for finding, opened in check_data(site):
        source = opened or source
        yield finding
    yield from check_disclosure(site, source)
    yield from check_folders(site, source)
    mine: Certificates | None = None
    for finding, loaded in check_certificates(site):
        mine = loaded or mine
        yield finding
    of_key, column_key = check_column_key(site)
    if of_key is not None:
        yield of_key
    if not names:
        return
    if mine is None and not site.plaintext:
        text = "not checked, since neighbours do not answer without a certificate; fix that of this site first"
        yield Finding("neighbours", "warning", text, THIS_SITE)
        return
    port, free = check_port(site, mine, patience)
    yield port
    probes = _probe_neighbours(site, mine, patience)
    yield from _check_connections(site, probes)
    prints = None if source is None or column_key is None else fingerprint_of(network, source, column_key)
    columns = None if source is None else source.columns
    yield from _check_agents(site, mine, prints, columns, probes, free=free, seconds=seconds)


def _blamed_for_file(path: Path, file: str | None) -> str:
    """Return who must correct the file that cannot be used, ``site.toml`` or ``network.toml``."""
    own = (path / "site.toml" if path.is_dir() else path).absolute()
    if file is None or Path(file) == own or not Path(file).exists():
        return THIS_SITE
    return f"{NETWORK_AUTHOR}, which is the same at all sites"


# ----------------------------------------------------------------------------------------------------------- neighbours


def _probe_neighbours(site: SiteFile, mine: Certificates | None, patience: float) -> dict[int, AddressProbe]:
    """Connect to all neighbours that have an address, at the same time."""
    network = site.network
    there = {j: address for j in network.neighbors(site.site) if (address := network.sites[j].address) is not None}
    if not there:
        return {}
    with ThreadPoolExecutor(min(len(there), 16)) as pool:
        asked = {
            j: pool.submit(probe_address, address, network.sites[j].name, site, mine, patience)
            for j, address in there.items()
        }
        return {j: one.result() for j, one in asked.items()}


def _check_connections(site: SiteFile, probes: Mapping[int, AddressProbe]) -> Iterator[Finding]:
    """Report on the connections; neighbours that dial this site need not be reachable from here."""
    network = site.network
    for j in network.neighbors(site.site):
        name, address = network.sites[j].name, network.sites[j].address
        found, dialled = probes.get(j), network.dials(site.index, j)
        if found is None:
            yield Finding(name, "ok", "has no address: it dials this site")
        elif found.stage in ("name", "refused", "unreachable", "silent") and not dialled:
            yield Finding(name, "ok", f"dials this site, so it need not be reachable from here ({found.why})")
        elif found.stage == "open":
            yield _report_connected(name, found, f"{address}: " + ("reachable" if site.plaintext else _CONNECTED))
        else:
            text, who = explain_failed_connection(name, found)
            yield Finding(name, "warning" if found.stage == "refused" else "wrong", text, who)


_CONNECTED = "reachable, speaks TLS 1.3, presents the right certificate and accepts that of this site"


def _report_connected(name: str, found: AddressProbe, text: str) -> Finding:
    if found.not_after is not None and found.not_after - now_utc().timestamp() < EXPIRY_WARNING_PERIOD.total_seconds():
        day = format_day(datetime.fromtimestamp(found.not_after, UTC))
        text = f"{text}; its certificate expires on {day}: renew it with deepca join --renew"
        return Finding(name, "warning", text, f"{name}, and {AUTHORITY_OPERATOR}")
    return Finding(name, "ok", text)


def explain_failed_connection(name: str, found: AddressProbe) -> tuple[str, str]:
    """Return why the connection to a neighbour failed and what to do, and who must do it."""
    match found.stage:
        case "name":
            text = f"{found.why}; add it to DNS, or correct the address in network.toml"
            return text, f"{NETWORK_ADMINISTRATORS}, or {NETWORK_AUTHOR} if the address is wrong"
        case "refused":
            text = f"{found.why}: its agent may not be running yet; start it, or correct the port in network.toml"
            return text, f"{name}, or {NETWORK_AUTHOR} if the port is wrong"
        case "unreachable":
            return f"{found.why}; check firewalls and routes", f"{NETWORK_ADMINISTRATORS}, here or at {name}"
        case "certificate":
            wrong = "; the address leads to another site: correct it in network.toml or in DNS"
            return found.why + (wrong if found.reason == "site" else ""), _blamed_for_other(name, found.reason)
        case "welcome":
            return found.why, f"{THIS_SITE} and {name}: compare authority.pem, or ask {AUTHORITY_OPERATOR}"
    return (
        f"{found.why}; check which program listens there",
        f"{name}, or {NETWORK_ADMINISTRATORS} if there is a proxy in between",
    )


def _blamed_for_other(name: str, reason: str) -> str:
    match reason:
        case "site":
            return f"{NETWORK_AUTHOR}, or {NETWORK_ADMINISTRATORS} if the address is right"
        case "early":
            return f"{THIS_SITE} or {name}, whichever has the wrong clock"
        case "issuer":
            return (
                f"{name}, whose kit comes from another authority; or {THIS_SITE}, if its authority.pem differs from "
                "that of all others"
            )
    return f"{name} requests a certificate, and {AUTHORITY_OPERATOR} signs it"


# ----------------------------------------------------------------------------------------------- agents of neighbours


def _check_agents(
    site: SiteFile,
    mine: Certificates | None,
    ours: Mapping[str, bytes] | None,
    columns: Sequence[str] | None,
    probes: Mapping[int, AddressProbe],
    *,
    free: bool,
    seconds: float,
) -> Iterator[Finding]:
    """Compare clock, run, columns and settings with the agents of neighbours, without disturbing any run."""
    if not free:
        text = "run, settings and clock were not compared: that would disturb the agent of this site if it is running"
        yield Finding("agents", "ok", text)
        return
    network = site.network
    try:
        heard = query_agents(site, mine, network_digest(network), seconds)
    except DeepcaError as error:
        yield Finding("agents", "wrong", str(error), THIS_SITE)
        return
    for j, one in heard.items():
        yield from _check_agent(site, j, one, probes.get(j), seconds)
    yield from compare_clocks(site, heard)
    if ours is not None:
        yield from compare_settings(site, ours, columns, heard)


def _check_agent(
    site: SiteFile, j: int, heard: AgentReport, found: AddressProbe | None, seconds: float
) -> Iterator[Finding]:
    name = site.network.sites[j].name
    check = f"{name}'s agent"
    if heard.refused:
        yield Finding(check, "wrong", heard.refused, f"{THIS_SITE} and {name}: compare network.toml and certificates")
    elif heard.same_network is False:
        text = (
            "it belongs to another network: its network.toml has a different name or list of sites; use the same file "
            "at both sites"
        )
        yield Finding(check, "wrong", text, f"{THIS_SITE} or {name}, with {NETWORK_AUTHOR}")
    elif heard.same_network and heard.fingerprints is not None:
        yield Finding(check, "ok", "it is running, speaks the same protocol, and belongs to the same network")
    elif heard.same_network:
        text = (
            "it is running and belongs to the same network; its run has begun, so columns and settings were not "
            "compared"
        )
        yield Finding(check, "ok", text)
    elif not site.network.dials(site.index, j):
        where = site.network.sites[site.index].address or site.listen
        text = f"it has not dialled this site within {seconds:g} s; start it, or check that it can reach {where}"
        yield Finding(check, "warning", text, f"{name}, or {NETWORK_ADMINISTRATORS}")
    elif found is not None and found.stage == "open":
        text = (
            f"a program listens there, but no agent answered within {seconds:g} s; check that it is the agent of {name}"
        )
        yield Finding(check, "warning", text, name)


def compare_clocks(site: SiteFile, heard: Mapping[int, AgentReport]) -> Iterator[Finding]:
    """Compare this site's clock with those of its neighbours."""
    skews = {site.network.sites[j].name: one.skew for j, one in heard.items() if one.skew is not None}
    if not skews:
        return
    off = {name: skew for name, skew in skews.items() if abs(skew) > _SKEW_TO_WARN}
    if not off:
        yield Finding("clock", "ok", f"agrees with {', '.join(skews)} to {max(map(abs, skews.values())):.1f} s")
        return
    shown = ", ".join(
        f"that of {name} is {abs(skew):.0f} s {'ahead' if skew > 0 else 'behind'}" for name, skew in off.items()
    )
    others_agree = len(off) == len(skews) > 1 and max(off.values()) - min(off.values()) < _SKEW_TO_WARN
    who = (
        f"{THIS_SITE}, since the other clocks agree with each other"
        if others_agree
        else f"{THIS_SITE} or {', '.join(off)}"
    )
    failed = max(map(abs, off.values())) > _SKEW_TO_FAIL
    text = f"clocks differ: {shown}; correct the one that is wrong (NTP)"
    yield Finding("clock", "wrong" if failed else "warning", text, who)


def compare_settings(
    site: SiteFile, ours: Mapping[str, bytes], columns: Sequence[str] | None, heard: Mapping[int, AgentReport]
) -> Iterator[Finding]:
    """Compare columns and settings with those of every site whose record a neighbour has sent."""
    theirs: dict[int, Mapping[str, bytes]] = {}
    for one in heard.values():
        theirs.update({j: prints for j, prints in (one.fingerprints or {}).items() if prints and j != site.index})
    if not theirs:
        return
    differing = 0
    for j, prints in sorted(theirs.items()):
        names = comparable_entries(name for name in {*ours, *prints} if ours.get(name) != prints.get(name))
        if names:
            differing += 1
            name = site.network.sites[j].name
            shown = "; ".join(_describe_difference(one, ours, prints, columns) for one in names)
            who = (
                f"{THIS_SITE} or {name}"
                if len(theirs) == 1
                else f"{THIS_SITE}, or {name} if the others agree with this site"
            )
            text = (
                f"this site differs from {name}: {shown}; use the same network.toml, columns, columns.key and version "
                "everywhere"
            )
            yield Finding("agreement", "wrong", text, who)
    if not differing:
        known = ", ".join(site.network.sites[j].name for j in sorted(theirs))
        yield Finding("agreement", "ok", f"the same columns and settings as {known}")


def _describe_difference(
    name: str, here: Mapping[str, bytes], there: Mapping[str, bytes], columns: Sequence[str] | None
) -> str:
    """Describe how two sites differ in one entry; columns are called what they are called here."""
    if name == "columns":
        differing = differing_columns(here, there)
        if differing is None or columns is None:
            return "different columns"
        if not differing:
            return "the same columns in a different order"
        more = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
        return f"column {differing[0] + 1} is {columns[differing[0]]!r} here and has another name there{more}"
    shown = as_printable(here.get(name, b""), there.get(name, b""))
    if name == COLUMN_KEY_ENTRY:
        which = "" if shown is None else f" (identifier {shown[0] or 'none'} here, {shown[1] or 'none'} there)"
        return (
            f"another {name}{which}, so columns were not compared: get columns.key from the operator of the authority "
            "and install it with deepca join SITE --column-key FILE, where it differs from that"
        )
    return f"{name} {shown[0] or 'none'} here, {shown[1] or 'none'} there" if shown is not None else f"different {name}"
