"""Generate matrices ``A_1 … A_m`` whose mean has a given spectrum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from deepca._util.typing import Array
from deepca.errors import ParameterError

__all__ = ["Division", "Synthetic", "drop_for_condition", "matrices"]

Division = Literal["noise", "indefinite", "opposite"]


@dataclass(frozen=True)
class Synthetic:
    """Spectrum of the mean, as relative drops between consecutive eigenvalues, and heterogeneity of the agents.

    Parameters
    ----------
    d : int
        Number of features.
    gap : float
        ``1 − λ_(k+1)/λ_k``; 0 leaves the subspace undefined.
    inside : float
        ``1 − λ_(i+1)/λ_i`` for i < k; 0 makes the first k eigenvalues equal.
    tail : float
        ``1 − λ_(i+1)/λ_i`` for i > k.
    heterogeneity : float
        0 gives every agent the mean. Up to 1, every ``A_j`` is positive semi-definite, except with the division
        ``indefinite``.
    """

    d: int
    gap: float
    inside: float = 0.1
    tail: float = 0.1
    heterogeneity: float = 0.5

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("gap", "inside", "tail"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ParameterError(name, getattr(self, name), "must be at least 0 and less than 1")
        if not self.heterogeneity >= 0.0:
            raise ParameterError("heterogeneity", self.heterogeneity, "must not be negative")

    def eigenvalues(self, k: int) -> Array:
        """Return all d eigenvalues, descending from 1."""
        drops = np.full(self.d - 1, self.tail)
        drops[: k - 1] = self.inside
        drops[k - 1] = self.gap
        return np.concatenate([[1.0], np.cumprod(1.0 - drops)])


def drop_for_condition(condition: float, k: int) -> float:
    """Return the value of ``inside`` for which ``λ_1/λ_k = condition``."""
    return 1.0 - float(condition ** (-1.0 / (k - 1)))


def matrices(wanted: Synthetic, k: int, agents: int, division: Division, seed: int) -> Array:
    """Generate the ``A_j`` as a stack ``(m, d, d)``.

    Notes
    -----
    With the mean A in a random basis and heterogeneity h, the divisions are:

    - ``noise``: ``A^{1/2} (I + h E_j) A^{1/2}``, with random symmetric ``E_j`` of norm at most 1 that sum to zero;
    - ``indefinite``: ``A + h λ_1 E_j``; from about h = 0.5, every ``A_j`` has negative eigenvalues;
    - ``opposite``: the first half of the agents sees every other eigenvalue of A multiplied by 1 + h and the others by
      1 − h, the second half the reverse; for h near 1, the subspaces seen by the halves are orthogonal.
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
    """Draw random symmetric matrices that sum to zero, the largest of norm 1."""
    E = np.random.default_rng(seed).standard_normal((m, d, d))
    E += np.swapaxes(E, -1, -2)
    E -= E.mean(axis=0)
    largest = float(np.abs(np.linalg.eigvalsh(E)).max())
    return E / largest if largest > 0.0 else E


def _weights(m: int, d: int, h: float) -> Array:
    """Return weights ``(m, d)`` with mean 1 over the agents, also for halves of unequal size."""
    first = m // 2
    signs = np.where(np.arange(d) % 2 == 0, 1.0, -1.0)
    strength = np.where(np.arange(m) < first, 1.0, -first / (m - first))
    return 1.0 + h * strength[:, None] * signs
