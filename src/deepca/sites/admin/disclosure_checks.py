"""Check the disclosure rules of a site, and say what a run will disclose."""

from __future__ import annotations

from collections.abc import Iterator

from deepca._util.units import counted
from deepca.data.sources import Source
from deepca.errors import DisclosureError
from deepca.sites.admin.findings import NETWORK_AUTHOR, THIS_SITE, Finding
from deepca.sites.config.disclosure import shows_all_directions
from deepca.sites.config.network_file import NetworkFile
from deepca.sites.config.site_file import SiteFile

__all__ = ["check_disclosure"]

_TYPICAL_PRODUCTS = 14  # of block Krylov iterations with guards beyond k; more where eigenvalues are close
_TYPICAL_PROBES = 5  # products of the certificate with at least eight columns


def check_disclosure(site: SiteFile, source: Source | None) -> Iterator[Finding]:
    """Report the privacy mode, the disclosure rules in force, and what a run will disclose."""
    network = site.network
    if len(network.sites) == 1:
        yield Finding("privacy", "ok", "a network of one site sends nothing, so disclosure rules do not apply")
        return
    yield _privacy(network)
    overrides = {one.rule: one.text for one in site.rules.overrides(source.d)} if source is not None else {}

    def rule(name: str, text: str) -> Finding:
        """Return the finding about a rule that is met."""
        if name in overrides:
            return Finding(name, "warning", f"{text}; {overrides[name]}", THIS_SITE)
        return Finding(name, "ok", text)

    try:
        site.rules.check_sites(network)
        yield rule("min_sites", f"{counted(len(network.sites), 'site')}; at least {site.rules.min_sites} are required")
    except DisclosureError as error:
        yield Finding(error.rule, "wrong", str(error), THIS_SITE)
    if source is None:
        return
    try:
        if source.n is not None:
            site.rules.check_rows(source.n)
        found = "rows are counted when they are read" if source.n is None else counted(source.n, "row")
        yield rule("min_rows", f"{found}; at least {site.rules.min_rows} are required")
    except DisclosureError as error:
        yield Finding(error.rule, "wrong", str(error), THIS_SITE)
    try:
        site.rules.check_settings(network, source.d)
        yield _directions(site, source.d, rule("max_directions", _limit(site, source.d)))
    except DisclosureError as error:
        yield Finding(error.rule, "wrong", str(error), f"{THIS_SITE}, or {NETWORK_AUTHOR}")
    yield Finding("disclosed", "ok", _disclosed(network, source.d))


def _privacy(network: NetworkFile) -> Finding:
    if network.privacy == "private":
        return Finding("privacy", "ok", "private: only sums over all sites can be read")
    text = (
        'open: neighbours can learn the mean, covariance and row count of this site; remove privacy = "open" from '
        "network.toml unless that is intended"
    )
    return Finding("privacy", "warning", text, NETWORK_AUTHOR)


def _limit(site: SiteFile, d: int) -> str:
    limit = site.rules.direction_limit(d)
    allowed = "all" if limit == d else f"at most {limit:,}"
    text = f"totals may show {allowed} of the {d:,} directions of the pooled covariance"
    return f"{text}; the smallest limit of all sites holds"


def _directions(site: SiteFile, d: int, met: Finding) -> Finding:
    """Return the finding about a limit that the settings do not exceed, or a warning if a run probably will."""
    limit, expected = site.rules.direction_limit(d), _expected_directions(site.network, d)
    if expected is None and limit < d:
        likely = "a share of variance may need more"
    elif expected is not None and expected > limit:
        likely = f"a run of these settings shows about {expected:,}, so it may end without a result"
    else:
        return met
    text = f"{met.text}; {likely}: raise max_directions in [disclosure] of site.toml if your data officer agrees"
    return Finding(met.check, "warning", text, f"{THIS_SITE}, or {NETWORK_AUTHOR}")


def _expected_directions(network: NetworkFile, d: int) -> int | None:
    """Return in about how many directions totals show the pooled covariance; None if that depends on the spectrum."""
    k = network.components
    if shows_all_directions(k, network.algorithm, network.messages):
        return d
    if not isinstance(k, int):
        return None
    return min(d, _TYPICAL_PRODUCTS * max(k + 2, 4) + k + _TYPICAL_PROBES * max(k, 8))


def _disclosed(network: NetworkFile, d: int) -> str:
    expected = _expected_directions(network, d)
    directions = (
        "as many directions as the share of variance needs"
        if expected is None
        else f"all {d:,} directions"
        if expected == d
        else f"about {expected:,} of {d:,} directions"
    )
    text = (
        "all sites learn, of all rows together: their number, mean and sum of squares of every column, products "
        f"with the covariance in {directions}, and the result with its certificate"
    )
    return text if network.privacy == "private" else f"{text}; neighbours can learn the same of this site alone"
