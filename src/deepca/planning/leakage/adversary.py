"""Reconstruct the numbers of single sites by least squares over everything that a coalition of agents has seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from deepca._util.typing import Array
from deepca.network.sums import SumLayout, Words
from deepca.network.sums.masks import SumMasks
from deepca.planning.leakage.records import (
    COLUMNS,
    COUNTS,
    PRODUCTS,
    SQUARES,
    Pair,
    RecordedRun,
    RecordedSum,
    Sites,
    SumPart,
)

__all__ = ["Coalition", "SiteEstimate"]

Knowledge = Mapping[Sites, Words]
"""Known sums over sets of honest agents, each as a message."""


@dataclass(frozen=True)
class SiteEstimate:
    """Estimates that an adversary makes of one site.

    Parameters
    ----------
    n_rows : float
        Number of rows.
    mean : ndarray of shape (d,)
        Their mean; divided by the units of the columns if these are scaled.
    covariance : ndarray of shape (d, d)
        Their covariance, with ddof 1.
    """

    n_rows: float
    mean: Array
    covariance: Array


class Coalition:
    """Agents that follow the protocol, and pool all that they know.

    Every message that a member receives on the way up is the sum over a set of agents. Members subtract what they have
    added themselves, and the masks that they share: what remains of a message is the sum over its honest agents, masked
    by the pairs of honest agents of which only one is in the set. If there is such a pair, the message is uniformly
    random to the members, and they know that; otherwise it is an equation. Of all numbers that satisfy the equations,
    the estimate has the smallest norm: what the equations do not determine is shared equally among the honest agents,
    and zero in directions that nothing is known about.

    Parameters
    ----------
    run : RecordedRun
        The recorded run.
    members : frozenset of int
        The members.
    totals_only : bool, default=False
        Whether to ignore all messages except for the totals, which every agent knows.

    Notes
    -----
    Equations are linear in row counts, sums of columns, sums of squares, and products ``A_j P``. Numbers that follow
    from these, or are not linear in them (lengths of products, bounds for units), are not used.
    """

    def __init__(self, run: RecordedRun, members: Sites, *, totals_only: bool = False) -> None:
        self.run, self.members = run, members
        self.honest = frozenset(range(run.topology.n_agents)) - members
        self._totals_only = totals_only
        self._order = sorted(self.honest)
        self._inverses: dict[tuple[Sites, ...], Array] = {}

    @cached_property
    def knowledge(self) -> Sequence[Knowledge]:
        """For every exact sum of the run, the sums over sets of honest agents that the members know."""
        used = {part.sum_index for part in (*self.run.moments.values(), *self.run.products)}
        views = zip(*(self.run.agents[member].sums for member in self._members), strict=True)
        return [
            self._known(seen, masks) if s in used else {}
            for s, (seen, masks) in enumerate(zip(views, self._masks(), strict=True))
        ]

    def _known(self, seen: Sequence[RecordedSum], masks: Words) -> Knowledge:
        """Return the sums over sets of honest agents that follow from what the members have seen of one sum."""
        layout = seen[0].layout
        added = dict(zip(self._members, (one.own for one in seen), strict=True))
        found = {self.honest: self._rest(layout, seen[0].total, [added[j] for j in self._members])}
        for sites, words in self._readable(seen):
            less = [added[j] for j in self._members if j in sites]
            if self.run.is_private:
                less += [masks[j] for j in sites]
            found[sites & self.honest] = self._rest(layout, words, less)
        return found

    @staticmethod
    def _rest(layout: SumLayout, words: Words, less: Sequence[Words]) -> Words:
        rest = words.copy()
        for one in less:
            layout.add_to(rest, one, negative=True)
        return rest

    def estimate(self, site: int) -> SiteEstimate:
        """Estimate the numbers of an honest site.

        Parameters
        ----------
        site : int
            Index of the site.

        Returns
        -------
        SiteEstimate
            The estimate.
        """
        n = float(self._solved[COUNTS][site][0])
        total, common = float(self.run.total(COUNTS)[0]), self.run.common_mean
        centre = common if self.run.center else np.zeros_like(common)
        sums, squares = self._solved[COLUMNS][site], self._solved[SQUARES][site]
        away = common - centre
        squares = squares + 2.0 * away * (sums - n * common) + n * np.square(away)
        units = np.ones_like(common) if self.run.model.scale is None else np.asarray(self.run.model.scale, dtype=float)
        factor = self.run.topology.n_agents / (total - 1.0)
        A = self.run.directions.complete(self._products[site], factor * squares / np.square(units))
        mean = sums / n if n > 0.0 else common
        apart = (mean - centre) / units
        return SiteEstimate(n, mean / units, (A / factor - n * np.outer(apart, apart)) / max(n - 1.0, 1.0))

    @property
    def _members(self) -> list[int]:
        return sorted(self.members)

    def _readable(self, seen: Sequence[RecordedSum]) -> list[tuple[Sites, Words]]:
        """Return the messages that are sums over honest agents without a mask that no member knows."""
        return [
            (sites, words)
            for one in seen
            for sites, words in (() if self._totals_only else one.heard)
            if sites & self.honest and not any((i in sites) != (j in sites) for i, j in self._unknown_pairs)
        ]

    @cached_property
    def _unknown_pairs(self) -> list[Pair]:
        """Pairs that mask each other, and of which neither is a member."""
        return [(i, j) for i, j in self.run.mask_pairs if i in self.honest and j in self.honest]

    def _masks(self) -> Iterator[Words]:
        """Yield, for every sum, what the masks that members know add to the message of each agent, ``(m, N)``."""
        m, some_member = self.run.topology.n_agents, self.run.agents[min(self.members)]
        if not (self.run.is_private and any(self._readable(self.run.agents[j].sums) for j in self.members)):
            yield from (np.empty((m, 0), dtype=np.uint64) for _ in some_member.sums)
            return
        secrets: dict[Pair, bytes] = {}
        for member in self.members:
            secrets.update(self.run.agents[member].secrets)
        masks = SumMasks(secrets, range(m), self.run.plan)
        for call in some_member.mask_calls:
            if call.epoch is not None:
                masks.enter(call.epoch)
            elif call.layout is not None:
                yield masks.hide(np.zeros((m, call.layout.n_words), dtype=np.uint64), call.layout)
            else:
                masks.record(*call.public)

    def _values(self, part: SumPart) -> tuple[tuple[Sites, ...], Array]:
        """Return the sets over which sums are known, and these sums."""
        known, layout = self.knowledge[part.sum_index], self.run.agents[0].sums[part.sum_index].layout
        sets = tuple(sorted(known, key=sorted))
        return sets, np.array([part.decode(layout, known[sites]) for sites in sets])

    @cached_property
    def _solved(self) -> dict[str, dict[int, Array]]:
        """Estimated row counts, sums of columns and sums of squares of every honest site."""
        found = {}
        for name, part in self.run.moments.items():
            sets, values = self._values(part)
            found[name] = dict(zip(self._order, self._inverse(sets) @ values, strict=True))
        return found

    @cached_property
    def _products(self) -> dict[int, Array]:
        """Estimated products of every honest site with all common factors, side by side."""
        d = self.run.model.mean.size
        blocks: dict[int, list[Array]] = {site: [np.empty((d, 0))] for site in self._order}
        for part in self.run.products:
            sets, values = self._values(part)
            for site, value in zip(self._order, self._inverse(sets) @ values, strict=True):
                blocks[site].append(value.reshape(d, -1) if part.name == PRODUCTS else _from_triangle(value, d))
        return {site: np.hstack(parts) for site, parts in blocks.items()}

    def _inverse(self, sets: tuple[Sites, ...]) -> Array:
        """Return the matrix that maps sums over these sets to the smallest numbers of honest sites with these sums."""
        if sets not in self._inverses:
            contains = np.array([[site in one for site in self._order] for one in sets], dtype=np.float64)
            self._inverses[sets] = np.asarray(np.linalg.pinv(contains))
        return self._inverses[sets]


def _from_triangle(values: Array, d: int) -> Array:
    rows, columns = np.triu_indices(d)
    A = np.empty((d, d))
    A[rows, columns] = A[columns, rows] = values
    return A
