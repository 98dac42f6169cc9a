"""Matrices ``A_1 … A_m`` whose mean has a wanted spectrum, divided among the agents in several ways."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from deepca._util.typing import Array
from deepca.errors import InvalidInput

__all__ = ["Division", "Synthetic", "drop_for_condition", "matrices"]

Division = Literal["noise", "indefinite", "opposite"]


@dataclass(frozen=True)
class Synthetic:
    """The spectrum of the mean, as relative drops between neighbours, and how much agents differ.

    d : features.  gap : ``1 − λ_(k+1)/λ_k``.  inside : ``1 − λ_(i+1)/λ_i`` for i < k; 0 makes the first k equal.
    tail : the same for i > k.  heterogeneity : 0 gives everyone the mean; up to 1 every ``A_j`` is positive
    semi-definite, unless the division says otherwise. A gap of 0 leaves the subspace undefined.
    """

    d: int
    gap: float
    inside: float = 0.1
    tail: float = 0.1
    heterogeneity: float = 0.5

    def __post_init__(self) -> None:
        if not (0.0 <= self.gap < 1.0 and 0.0 <= self.inside < 1.0 and 0.0 <= self.tail < 1.0):
            raise InvalidInput(f"{self}: drops lie between 0 and 1")
        if not self.heterogeneity >= 0.0:
            raise InvalidInput(f"heterogeneity = {self.heterogeneity}: must not be negative")

    def eigenvalues(self, k: int) -> Array:
        """All d of them, descending from 1."""
        drops = np.full(self.d - 1, self.tail)
        drops[: k - 1] = self.inside
        drops[k - 1] = self.gap
        return np.concatenate([[1.0], np.cumprod(1.0 - drops)])


def drop_for_condition(condition: float, k: int) -> float:
    """``inside`` for ``λ_1/λ_k = condition``."""
    return 1.0 - float(condition ** (-1.0 / (k - 1)))


def matrices(wanted: Synthetic, k: int, agents: int, division: Division, seed: int) -> Array:
    """The ``A_j`` as a stack ``(m, d, d)``. With A the mean, in a random basis, and h the heterogeneity:

    noise : ``A^{1/2} (I + h E_j) A^{1/2}``, with random symmetric ``E_j`` that sum to zero and have norm at most 1.
    indefinite : ``A + h λ_1 E_j``; for h from about 0.5 on every ``A_j`` has negative eigenvalues.
    opposite : the first half of the agents sees every other eigenvector of A strengthened by 1 + h and the others
    weakened by 1 − h, the second half the other way round; at h near 1 what the halves see is orthogonal.
    """
    values = wanted.eigenvalues(k)
    Q, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((wanted.d, wanted.d)))
    h = wanted.heterogeneity
    if division == "opposite":
        stack = (Q * (values * _weights(agents, wanted.d, h))[:, None, :]) @ Q.T
    elif division == "indefinite":
        stack = (Q * values) @ Q.T + h * values[0] * _noise(agents, wanted.d, seed + 1)
    else:
        half = (Q * np.sqrt(values)) @ Q.T
        stack = half @ (np.eye(wanted.d) + h * _noise(agents, wanted.d, seed + 1)) @ half
    return np.asarray((stack + np.swapaxes(stack, -1, -2)) / 2.0, dtype=np.float64)


def _noise(m: int, d: int, seed: int) -> Array:
    """Random symmetric matrices that sum to zero, the largest of norm 1."""
    E = np.random.default_rng(seed).standard_normal((m, d, d))
    E += np.swapaxes(E, -1, -2)
    E -= E.mean(axis=0)
    largest = float(np.abs(np.linalg.eigvalsh(E)).max())
    return E / largest if largest > 0.0 else E


def _weights(m: int, d: int, h: float) -> Array:
    """``(m, d)``, of mean 1 over the agents, also where the halves are not equal."""
    first = m // 2
    signs = np.where(np.arange(d) % 2 == 0, 1.0, -1.0)
    strength = np.where(np.arange(m) < first, 1.0, -first / (m - first))
    return 1.0 + h * strength[:, None] * signs
