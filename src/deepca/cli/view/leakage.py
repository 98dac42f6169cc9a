"""Show what sites learn about each other, in a table and in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape

from deepca._util.units import counted
from deepca.cli.view.tables import columns
from deepca.planning.leakage import Errors, Leakage

__all__ = ["as_plain", "sentences", "show_leakage"]

_REBUILT = 1e-6  # errors below it count as rebuilt
_TOLD = 0.1  # errors of the totals below it are worth a warning
_QUANTITIES: dict[str, Callable[[Errors], float | None]] = {
    "mean": lambda errors: errors.mean,
    "covariance": lambda errors: errors.covariance,
    "rows": lambda errors: errors.rows,
}


def as_plain(found: Leakage) -> dict[str, Any]:
    """Return everything as plain data for JSON, with the sentences."""
    facts = asdict(found)
    exposures = facts.pop("exposures")
    sites = facts.pop("names")
    for one in exposures:
        one["site"] = sites[one["site"]]
        one["members"] = [sites[member] for member in one["members"]]
    counts = [{"name": name, "rows": rows} for name, rows in zip(sites, facts.pop("n_rows"), strict=True)]
    return {**facts, "sites": counts, "exposures": exposures, "summary": sentences(found)}


def show_leakage(console: Console, found: Leakage) -> None:
    """Print the table and the sentences."""
    console.print(
        f"\n[bold]{escape(found.topology)}[/]: {counted(len(found.names), 'site')}, {found.dim:,} columns, "
        f"{counted(found.components, 'component')}",
        highlight=False,
    )
    shown = [name for name, of in _QUANTITIES.items() if name != "rows" or any(_values(found, of))]
    table = columns(padding=0)
    table.add_column("site, and\nwho sees it", overflow="fold")
    for name in shown:
        for head in (f"{name[:5]}{'.' if len(name) > 5 else ''}\nopen", "\npriv.", "\ntotals"):
            table.add_column(head, justify="right", no_wrap=True)
    for site, name in enumerate(found.names):
        table.add_row(f"[bold]{escape(name)}[/], {counted(found.n_rows[site], 'row')}")
        for one in found.exposures:
            if one.site == site and one.adversary != "all others":
                cells = [
                    _cell(_QUANTITIES[of](errors)) for of in shown for errors in (one.open, one.private, one.totals)
                ]
                table.add_row(f"  {one.adversary}{' *' if one.isolates else ''}", *cells)
    console.print(table)
    for sentence in sentences(found):
        console.print(escape(sentence), highlight=False)
    console.print(f"\n[dim]{' '.join(_legend(found))}[/]", highlight=False)


def sentences(found: Leakage) -> list[str]:
    """Say in words what the figures mean."""
    return [*_of_open(found), *_of_private(found), *_of_all_others(found), *_of_totals(found)]


def _of_open(found: Leakage) -> Iterator[str]:
    one = min((one for one in found.exposures if one.adversary == "parent"), key=lambda one: one.open.decisive)
    name, parent = found.names[one.site], found.names[one.members[0]]
    parts = [f"its mean to {_cell(one.open.mean)}"] if one.open.mean is not None else []
    if one.open.covariance is not None:
        parts.append(f"its covariance to {_cell(one.open.covariance)}")
    if one.open.rows is not None:
        n = found.n_rows[one.site]
        parts.append(f"its {counted(n, 'row')}{', up to a rotation,' if n > 2 else ''} to {_cell(one.open.rows)}")
    count = sum(
        one.adversary == "one neighbour" and one.open.decisive < _REBUILT for one in found.exposures if not one.isolates
    )
    yield (
        f"In an open network, {parent}, the parent of {name}, rebuilds {_joined(parts)}; a single neighbour rebuilds "
        f"{count} of the {counted(len(found.names), 'site')}."
    )


def _of_private(found: Leakage) -> Iterator[str]:
    if found.private_excess > 0.0:
        yield (
            "In the private network, somebody learns MORE than the sums over all sites (errors differ by up to "
            f"{_cell(found.private_excess)}): do not rely on it, and report this."
        )
        return
    errors = [
        one.private.covariance
        for one in found.exposures
        if not one.isolates and one.private.covariance is not None and one.adversary != "all but two"
    ]
    told = f": errors of covariances are {_cell(min(errors))} and more for neighbours" if errors else ""
    yield (
        "In a private one, nobody learns more than the sums over all sites tell: every coalition tried that leaves out "
        f"at least two sites makes exactly the errors that it would make with the totals and its own rows alone{told}."
    )


def _of_all_others(found: Leakage) -> Iterator[str]:
    errors = [one.private.covariance for one in found.exposures if one.isolates and one.private.covariance is not None]
    reached = f" (covariances to {_cell(max(errors))})" if errors else ""
    yield (f"No network hides a site from all others together: they subtract their own numbers from the sums{reached}.")
    near = [found.names[one.site] for one in found.exposures if one.isolates and one.adversary == "all neighbours"]
    if near:
        yield f"* The neighbours of {_joined(near)} are all other sites."


def _of_totals(found: Leakage) -> Iterator[str]:
    """Warn of sites that the totals alone describe well, since they have most of the rows or of the variance."""
    told = {
        one.site: one.totals.covariance
        for one in found.exposures
        if one.adversary == "parent" and one.totals.covariance is not None and one.totals.covariance < _TOLD
    }
    for site, error in told.items():
        yield f"The totals alone give the covariance of {found.names[site]} to {_cell(error)}."


def _legend(found: Leakage) -> Iterator[str]:
    yield "0: rebuilt exactly; about 1: nothing learned."
    yield "mean: as a share of its distance from the mean of all."
    yield "covar.: Frobenius norm of the error, as a share of that of the covariance."
    if any(_values(found, _QUANTITIES["rows"])):
        yield "rows: likewise, up to a rotation that changes neither mean nor covariance (of two rows: their order)."
    yield "priv.: private. totals: what the same sites rebuild from the sums over all sites and their own rows."


def _values(found: Leakage, of: Callable[[Errors], float | None]) -> Iterator[bool]:
    """Yield whether a quantity could be rebuilt, for every exposure."""
    return (of(one.open) is not None for one in found.exposures)


def _cell(error: float | None) -> str:
    if error is None:
        return "—"
    return "0" if error == 0.0 else f"{error:.0e}".replace("e-0", "e-") if error < 0.01 else f"{error:.2g}"


def _joined(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
