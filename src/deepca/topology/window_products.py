"""Measure how much disagreement remains after consecutive rounds of a time-varying network."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import sparse

from deepca._util.typing import Array, Csr

__all__ = ["WindowProducts", "pair_means"]

_MAX_CACHED_ENTRIES = 1 << 22  # maximum number of entries of all cached products with the same first round


class WindowProducts:
    """Products of the weights of consecutive rounds, cached by first round.

    Parameters
    ----------
    at : callable
        Function that returns the weights of a round.
    m : int
        Number of agents.
    preserves_sum : bool
        Whether every round preserves the sum over all agents.
    """

    def __init__(self, at: Callable[[int], Csr], m: int, *, preserves_sum: bool) -> None:
        self._at, self._m, self._preserves_sum = at, m, preserves_sum
        self._products: dict[int, tuple[tuple[int, Array], ...]] = {}  # (rounds, product) by start, last used first
        self._max_products = min(max(_MAX_CACHED_ENTRIES // (m * m), 2), 16)

    def remaining(self, start: int, K: int) -> float:
        """Bound the disagreement after rounds start … start + K − 1, relative to the initial one.

        With P the product of their weights and ``y = P1``, the bound is ``‖P − y1ᵀ/m‖ / min y``, or 1 if y is not
        positive. If rounds do not preserve the sum, it is ``‖(I − 11ᵀ/m)P‖``.
        """
        product = self._product(start, K)
        if not self._preserves_sum:  # the agents can still agree, but on a value other than the mean
            return float(np.linalg.norm(product - product.mean(axis=0), 2))
        y = product.sum(axis=1)
        return float(np.linalg.norm(product - y[:, None] / self._m, 2) / y.min()) if y.min() > 0.0 else 1.0

    def _product(self, start: int, K: int) -> Array:
        # the search for K needs many products, so each extends the longest one that is cached; cached tuples are
        # replaced, never modified, since agents in threads share them
        kept = self._products.get(start, ())
        known = max((one for one in kept if one[0] <= K), key=lambda one: one[0], default=(0, np.eye(self._m)))
        rounds, product = known
        for r in range(start + rounds, start + K):
            product = np.asarray(self._at(r) @ product)
        if rounds < K:
            others = tuple(one for one in kept if one is not known)
            self._products[start] = ((K, product), known, *others)[: self._max_products]
        return product


def pair_means(partner: npt.NDArray[np.int64]) -> Csr:
    """Return weights that average every agent with its partner; an unpaired agent is its own partner."""
    m = partner.size
    agents = np.arange(m)
    paired = partner != agents
    both = np.stack([np.minimum(agents, partner), np.maximum(agents, partner)], axis=1)
    begins = np.concatenate([[0], np.cumsum(1 + paired)])
    kept = np.stack([np.ones(m, dtype=bool), paired], axis=1)
    return sparse.csr_array((np.repeat(1.0 / (1 + paired), 1 + paired), both[kept], begins), shape=(m, m))
