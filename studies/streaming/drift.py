"""Generate a stream whose principal directions rotate, with known eigenvectors, for heterogeneous agents."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deepca._util.typing import Array

__all__ = ["Drift"]

_TOP = np.array([8.0, 7.0, 6.0])
_NEXT, _LEAST = 4.0, 0.5
_HETEROGENEITY = 0.5  # agents see each eigenvalue larger or smaller by this fraction


@dataclass(frozen=True)
class Drift:
    """Everything that determines a stream.

    Parameters
    ----------
    d : int
        Number of columns.
    agents : int
        Number of agents.
    rows : int
        Rows per agent and batch.
    batches : int
        Number of batches.
    begins, ends : int
        Batches between which the top directions rotate towards others.
    turn : float
        Rotation per batch in radians.
    forgetting : float
        Factor by which the weight of earlier rows is multiplied with every batch.
    seed : int
        Seed of the directions and rows.
    """

    d: int = 30
    agents: int = 10
    rows: int = 100
    batches: int = 130
    begins: int = 20
    ends: int = 100
    turn: float = 0.015
    forgetting: float = 0.9
    seed: int = 0

    @property
    def k(self) -> int:
        """Number of components."""
        return _TOP.size

    @property
    def eigenvalues(self) -> Array:
        """Eigenvalues of the pooled covariance, which do not change over time."""
        return np.concatenate([_TOP, np.linspace(_NEXT, _LEAST, self.d - self.k)])

    @property
    def steady(self) -> range:
        """Batches in the second half of the rotation, by which the effect of its start has faded."""
        return range((self.begins + self.ends) // 2, self.ends)

    def angle(self, t: int) -> float:
        """Return the rotation by batch t, in radians."""
        return self.turn * min(max(t - self.begins, 0), self.ends - self.begins)

    def axes(self, t: int) -> Array:
        """Return the eigenvectors ``(d, d)`` of the covariance in batch t; the first k are the answer."""
        Q = np.linalg.qr(np.random.default_rng(self.seed).standard_normal((self.d, self.d)))[0]
        k, c, s = self.k, np.cos(self.angle(t)), np.sin(self.angle(t))
        first, others = Q[:, :k].copy(), Q[:, k : 2 * k].copy()
        Q[:, :k], Q[:, k : 2 * k] = c * first + s * others, c * others - s * first
        return Q

    def batch(self, t: int) -> list[Array]:
        """Draw the rows of every agent; each agent sees alternate directions stronger or weaker than the mean."""
        rng, axes = np.random.default_rng((self.seed, t)), self.axes(t)
        rows = []
        for j in range(self.agents):
            seen = self.eigenvalues * (1.0 + _HETEROGENEITY * np.where((np.arange(self.d) + j) % 2, 1.0, -1.0))
            rows.append((rng.standard_normal((self.rows, self.d)) * np.sqrt(seen)) @ axes.T)
        return rows

    def lag(self, t: int, X: Array) -> float:
        """Return how many batches the span of X ``(d, k)`` is behind, measured in the planes of the rotation."""
        Q, k = self.axes(0), self.k
        a, b = X.T @ Q[:, :k], X.T @ Q[:, k : 2 * k]
        seen = 0.5 * np.arctan2(2.0 * (a * b).sum(axis=0), (a * a - b * b).sum(axis=0))
        return float((self.angle(t) - seen.mean()) / self.turn)
