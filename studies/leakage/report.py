"""Write the page: what was measured, whether it is as it should be, and the figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from deepca.planning.leakage import Errors
from studies.leakage.study import Results
from studies.shared.report import Assertion, Section, Table

__all__ = ["EXACT", "sections"]

EXACT = 1e-10
"""Errors up to it count as rebuilt."""
_NOTHING = 1e-2  # errors of totals are larger in every draw

Of = Callable[[Errors], float | None]
_QUANTITIES: dict[str, Of] = {
    "mean": lambda errors: errors.mean,
    "covariance": lambda errors: errors.covariance,
    "rows": lambda errors: errors.rows,
}


def sections(results: Results, figure: str | None, made: str) -> list[Section]:
    """Return the sections of the page; ``made`` says when it was made, of which commit, and how."""
    return [_setting(results, figure, made), _open(results), _private(results)]


def _setting(results: Results, figure: str | None, made: str) -> Section:
    plan = results.plan
    picture = "" if figure is None else f"![Errors of covariances, by rows per site]({figure})\n\n"
    text = (
        f"{made}\n\n{picture}"
        "What others can rebuild of a single site's numbers from all that they see. Fits run with one thread per site; "
        "every message is recorded, in an open network and in a private one with the same rows. Then coalitions of "
        "sites pool what they know: the messages that they sent and received, their own rows, the totals, and their "
        "keys, with which they remove the masks that they share. What remains are linear equations about the row "
        "counts, sums, squares and products of the other sites, alone or added up, and a coalition takes the smallest "
        "solution. Messages with masks that no member knows are random numbers, so they are not used; nor is what "
        "agents flood instead of adding it up, such as the numbers of the stop rule. `deepca privacy` does the same "
        "for any network and rows; `src/deepca/planning/leakage` is the code.\n\n"
        f"{plan.sites} sites with {_listed(plan.rows)} Gaussian rows of {plan.columns} columns each, {plan.components} "
        f"components, on a {' and a '.join(plan.networks)}: {plan.draws} draws of each. Means and covariances differ "
        "between sites. Coalitions against every site: its parent in the spanning tree, each neighbour, all "
        "neighbours, all sites but two, all sites but one. The last one also has the totals only: subtracting its own "
        "numbers leaves those of the site.\n\n"
        "Errors are relative, and of the order of 1 where nothing has been learned. *Mean*: the distance from the true "
        "mean over the distance of the latter from the mean of all rows, which is public. *Covariance*: Frobenius "
        "norms. *Rows*: Frobenius norms up to a rotation that keeps their mean, which changes neither mean nor "
        "covariance, for sites with at most as many rows as columns; of two rows it can only change the order. *Totals "
        "only*: the same coalitions, if they forget all messages but the totals.\n\n"
        "Least squares show what follows from the numbers, not all that can be guessed: whoever knows more about the "
        "rows may come nearer, from an open network as well as from the totals."
    )
    return Section("What is measured", text, (), ())


def _open(results: Results) -> Section:
    plan = results.plan
    found = {(n, rows): results.by_parents(n, rows) for n in plan.networks for rows in plan.rows}
    worst = max(max(_values(errors, _QUANTITIES["covariance"])) for errors in found.values())
    rows = tuple(
        (network, f"{n:,}", f"{len(errors):,}", *(_largest(errors, of) for of in _QUANTITIES.values()))
        for (network, n), errors in found.items()
    )
    two = [error for (_, n), errors in found.items() if n == min(plan.rows) for error in errors]
    return Section(
        "An open network",
        "The parent of a leaf of the spanning tree receives what the leaf adds, as it is.",
        (
            Assertion(
                f"The parent rebuilds the covariance of a leaf to {EXACT:.0e} in every draw.",
                f"largest error {worst:.1e}, {sum(map(len, found.values())):,} leaves",
                worst <= EXACT,
            ),
            Assertion(
                f"It also rebuilds the rows, where there are {min(plan.rows)}.",
                f"largest error {max(_values(two, _QUANTITIES['rows'])):.1e}",
                max(_values(two, _QUANTITIES["rows"])) <= EXACT,
            ),
        ),
        (
            Table(
                "Largest errors of parents",
                ("network", "rows per site", "leaves", *_QUANTITIES),
                rows,
                "",
                heads=1,
            ),
        ),
    )


def _private(results: Results) -> Section:
    plan = results.plan
    cases = [(network, n) for network in plan.networks for n in plan.rows]
    excess = max(found.private_excess for found in results.measured.values())
    tries = sum(found.n_coalitions for found in results.measured.values())
    pairs = {case: results.pairs(*case) for case in cases}
    least = min(min(_values([private for private, _ in pairs[case]], _QUANTITIES["covariance"])) for case in cases)
    alone = {case: [private for private, _ in results.pairs(*case, isolating=True)] for case in cases}
    exposed = max(max(_values(alone[case], _QUANTITIES["covariance"])) for case in cases)
    rows = []
    for network, n in cases:
        private, totals = zip(*pairs[network, n], strict=True)
        spread = [
            _spread(errors, of)
            for of in (_QUANTITIES["mean"], _QUANTITIES["covariance"])
            for errors in (private, totals)
        ]
        last = _largest(alone[network, n], _QUANTITIES["covariance"])
        excess_here = max(found.private_excess for found in results.of(network, n))
        rows.append((network, f"{n:,}", *spread, f"{excess_here:.0e}" if excess_here else "0", last))
    return Section(
        "A private network",
        "With masks, a message can be read only if it contains all sites outside of the coalition, and then it says no "
        "more than the total.",
        (
            Assertion(
                "Every error of every coalition up to all sites but two equals that of the totals only, bit for bit.",
                f"largest difference {excess:.0e}; {tries:,} pairs of a coalition and a site"
                if excess
                else f"no difference in {tries:,} pairs of a coalition and a site",
                excess == 0.0,
            ),
            Assertion("None of them rebuilds a covariance.", f"smallest error {least:.2g}", least > _NOTHING),
            Assertion("All other sites together do, in any network.", f"largest error {exposed:.1e}", exposed <= EXACT),
        ),
        (
            Table(
                "Errors of coalitions up to all but two",
                (
                    "network",
                    "rows per site",
                    "mean, private",
                    "mean, totals only",
                    "covariance, private",
                    "covariance, totals only",
                    "largest difference",
                    "covariance, all others",
                ),
                tuple(rows),
                "Smallest error, and the median in brackets, over all draws, sites and kinds of coalition. All "
                "others: the largest error of all other sites together.",
                heads=1,
            ),
        ),
    )


def _values(errors: Sequence[Errors], of: Of) -> list[float]:
    return [error for one in errors if (error := of(one)) is not None]


def _largest(errors: Sequence[Errors], of: Of) -> str:
    values = _values(errors, of)
    return f"{max(values):.0e}" if values else "—"


def _spread(errors: Sequence[Errors], of: Of) -> str:
    values = _values(errors, of)
    return f"{min(values):.2g} ({np.median(values):.2g})"


def _listed(numbers: Sequence[int]) -> str:
    *most, last = (f"{number:,}" for number in numbers)
    return f"{', '.join(most)} or {last}" if most else last
