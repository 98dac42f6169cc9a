"""Rows whose principal directions turn: a covariance with known eigenvectors at any time, seen by unlike agents."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deepca._util.typing import Array

__all__ = ["Drift"]

_TOP = np.array([8.0, 7.0, 6.0])
_NEXT, _LEAST = 4.0, 0.5
_UNLIKE = 0.5


@dataclass(frozen=True)
class Drift:
    """Everything that determines a stream.

    d : columns.  agents, rows : who is given how many rows with every batch.  batches : how many there are.
    begins, ends : the batches between which the top directions turn towards others, by ``turn`` (radians) with each.
    forgetting : what rows keep of their weight with every batch.
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
        return _TOP.size

    @property
    def eigenvalues(self) -> Array:
        """Of the covariance that all agents together see, at any time."""
        return np.concatenate([_TOP, np.linspace(_NEXT, _LEAST, self.d - self.k)])

    @property
    def steady(self) -> range:
        """Batches of the turn in which what came before it is forgotten."""
        return range((self.begins + self.ends) // 2, self.ends)

    def angle(self, t: int) -> float:
        """How far the directions have turned by batch t."""
        return self.turn * min(max(t - self.begins, 0), self.ends - self.begins)

    def axes(self, t: int) -> Array:
        """``(d, d)``: eigenvectors of the covariance in batch t, the first k being the answer."""
        Q = np.linalg.qr(np.random.default_rng(self.seed).standard_normal((self.d, self.d)))[0]
        k, c, s = self.k, np.cos(self.angle(t)), np.sin(self.angle(t))
        first, others = Q[:, :k].copy(), Q[:, k : 2 * k].copy()
        Q[:, :k], Q[:, k : 2 * k] = c * first + s * others, c * others - s * first
        return Q

    def batch(self, t: int) -> list[Array]:
        """The rows of every agent. Agents see every other direction stronger, or weaker, than it is."""
        rng, axes = np.random.default_rng((self.seed, t)), self.axes(t)
        out = []
        for j in range(self.agents):
            seen = self.eigenvalues * (1.0 + _UNLIKE * np.where((np.arange(self.d) + j) % 2, 1.0, -1.0))
            out.append((rng.standard_normal((self.rows, self.d)) * np.sqrt(seen)) @ axes.T)
        return out

    def lag(self, t: int, X: Array) -> float:
        """By how many batches the subspace spanned by X ``(d, k)`` is behind, as seen in the planes of the turn."""
        Q, k = self.axes(0), self.k
        a, b = X.T @ Q[:, :k], X.T @ Q[:, k : 2 * k]
        seen = 0.5 * np.arctan2(2.0 * (a * b).sum(axis=0), (a * a - b * b).sum(axis=0))
        return float((self.angle(t) - seen.mean()) / self.turn)
