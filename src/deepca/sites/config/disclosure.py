"""Rules of a site on what a run may disclose, from the table ``[disclosure]`` of ``site.toml``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from deepca._util.units import counted
from deepca._util.validation import Integer, check
from deepca.errors import DisclosureError, ParameterError
from deepca.sites.config.network_file import NetworkFile
from deepca.sites.config.toml import TomlTable

__all__ = ["DEFAULT_RULES", "NO_RULES", "DisclosureRules", "Override", "read_rules", "shows_all_directions"]

_KEYS = ("min_rows", "min_sites", "max_directions")
_DIRECTIONS = 'a whole number of at least 1, a share of the columns below 1 such as 0.5, or "all"'
_EXACT_ALGORITHMS = ("auto", "krylov")  # they show products with a block of columns at a time, and nothing else
_MIN_DEFAULT_DIRECTIONS = 512  # tables with at most this many columns are shown whole by ordinary runs
_DEFAULT_SHARE = 0.5  # of the columns, in larger tables


@dataclass(frozen=True)
class Override:
    """A rule that is weaker than its default."""

    rule: str
    value: int | float | str
    default: int

    @property
    def text(self) -> str:
        """The override in words."""
        value = f'"{self.value}"' if isinstance(self.value, str) else self.value
        return f"{self.rule} = {value} is weaker than the default, {self.default}"


@dataclass(frozen=True)
class DisclosureRules:
    """Conditions under which a site sends anything that depends on its rows; checked on construction.

    Parameters
    ----------
    min_rows : int, default=10
        Smallest number of rows with which this site takes part.
    min_sites : int, default=3
        Smallest number of sites whose rows are added up.
    max_directions : int, float, "all" or None
        How many directions of the pooled covariance a run may show: a number, a share of the columns, or all. None for
        the default: half of the columns, or 512 if that is more.

    Raises
    ------
    ParameterError
        If a value cannot be used.
    """

    min_rows: int = 10
    min_sites: int = 3
    max_directions: int | float | Literal["all"] | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        check("min_rows", self.min_rows, Integer(1))
        check("min_sites", self.min_sites, Integer(1))
        most = self.max_directions
        if isinstance(most, str):
            usable = most == "all"
        else:
            usable = most is None or (most >= 1 if isinstance(most, int) else 0.0 < most < 1.0)
        if not usable or isinstance(most, bool):
            raise ParameterError("max_directions", most, _DIRECTIONS)

    def direction_limit(self, d: int) -> int:
        """Return how many directions a run may show of the covariance of ``d`` columns; d without a limit."""
        most = self.max_directions
        if most is None:
            return min(d, max(_MIN_DEFAULT_DIRECTIONS, math.ceil(_DEFAULT_SHARE * d)))
        if isinstance(most, str):
            return d
        return min(d, most) if isinstance(most, int) else max(1, math.floor(most * d))

    def overrides(self, d: int) -> Iterator[Override]:
        """Yield the rules that are weaker than their defaults in a network with ``d`` columns."""
        if self.min_rows < DEFAULT_RULES.min_rows:
            yield Override("min_rows", self.min_rows, DEFAULT_RULES.min_rows)
        if self.min_sites < DEFAULT_RULES.min_sites:
            yield Override("min_sites", self.min_sites, DEFAULT_RULES.min_sites)
        default = DEFAULT_RULES.direction_limit(d)
        if self.max_directions is not None and self.direction_limit(d) > default:
            yield Override("max_directions", self.max_directions, default)

    def check_sites(self, network: NetworkFile) -> None:
        """Raise DisclosureError if a result may cover the rows of too few sites; a single site discloses nothing."""
        m = len(network.sites)
        shrinks = network.on_loss == "shrink"
        fewest = m // 2 + 1 if shrinks else m
        if m == 1 or fewest >= self.min_sites:
            return
        found = (
            f"on_loss = 'shrink' may continue with {fewest} of the {m} sites of {network.name}"
            if shrinks
            else f"{network.name} has {counted(m, 'site')}"
        )
        raise DisclosureError(
            "min_sites",
            f"{found}, but this site takes part only with at least {self.min_sites} (min_sites in [disclosure] of "
            "site.toml): the fewer sites, the more a sum says about each of them; add sites, or lower min_sites if "
            "your data officer agrees",
            value=fewest,
        )

    def check_rows(self, n: int) -> None:
        """Raise DisclosureError if this site has too few rows."""
        if n < self.min_rows:
            raise DisclosureError(
                "min_rows",
                f"this site has {counted(n, 'row')}, but takes part only with at least {self.min_rows} (min_rows in "
                "[disclosure] of site.toml), since sums say more about each row the fewer there are; add rows, pool "
                "them with those of a site that you trust, or lower min_rows if your data officer agrees",
                value=n,
            )

    def check_settings(self, network: NetworkFile, d: int) -> None:
        """Raise DisclosureError if the settings imply that a run shows more directions than this site allows."""
        limit, k = self.direction_limit(d), network.components
        why = shows_all_directions(k, network.algorithm, network.messages)
        needed = d if why else min(k, d) if isinstance(k, int) else 1
        if len(network.sites) == 1 or needed <= limit:
            return
        raise DisclosureError(
            "max_directions",
            f"{why or f'components = {k}'} in network.toml shows at least {needed} of {d} directions of the pooled "
            f"covariance, but this site allows {limit} (max_directions in [disclosure] of site.toml); change that "
            "setting at all sites, or raise max_directions if your data officer agrees",
            value=needed,
        )


DEFAULT_RULES = DisclosureRules()
"""The rules of a site that sets none."""
NO_RULES = DisclosureRules(min_rows=1, min_sites=1, max_directions="all")
"""Rules that allow everything, for rows that all have the same owner."""


def shows_all_directions(components: int | float | None, algorithm: str, messages: str) -> str:
    """Return the setting that shows the whole pooled covariance, or neighbours that of a site; empty if none does."""
    if components is None:
        return 'components = "all"'
    if algorithm not in _EXACT_ALGORITHMS:
        return f'algorithm = "{algorithm}"'
    return "" if messages == "float64" else f'messages = "{messages}"'


def read_rules(site: TomlTable) -> DisclosureRules:
    """Read the table ``[disclosure]`` of ``site.toml``.

    Raises
    ------
    InvalidInput
        If it cannot be used; ``file``, ``line`` and ``parameter`` say where.
    """
    table = site.table("disclosure", _KEYS)
    given = {
        "min_rows": table.whole("min_rows", None),
        "min_sites": table.whole("min_sites", None),
        "max_directions": table.number_or_all("max_directions", _DIRECTIONS, None),
    }
    try:
        return DisclosureRules(**{key: value for key, value in given.items() if value is not None})
    except ParameterError as error:
        raise table.located(error, error.parameter) from None
