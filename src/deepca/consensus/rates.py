"""How fast a mixer contracts, and how many rounds tracking needs of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from deepca._util.typing import Array
from deepca.errors import InvalidInput
from deepca.network.base import Moment, Pairs
from deepca.topology.graph import Topology

if TYPE_CHECKING:
    from deepca.consensus.mixers import Mixer

__all__ = [
    "accelerated_keeps_up",
    "accelerated_rate",
    "first_rounds",
    "response",
    "responses",
    "smallest_rounds",
    "tracking_rate",
]

_FIRST = 0.6


def response(mixer: Mixer, topology: Topology, K: int, eigenvalues: npt.ArrayLike) -> Array:
    """``p_K(λ)``: by what K rounds multiply the component of x along an eigenvector with eigenvalue λ.

    Found by running the mixer itself, with gossip replaced by multiplication with λ.
    """
    values = np.atleast_1d(np.asarray(eigenvalues) + 0.0)  # real or complex
    return mixer.run(_Diagonal(topology, values), np.ones_like(values), K)


def tracking_rate(mixer: Mixer, topology: Topology, K: int, x: float = 1.0) -> float:
    """Rate at which disagreement dies out under tracking, with K rounds; below 1 or tracking is unstable.

    Linearised at the solution with equal agents, the part of S along an eigenvector of 𝐋 with response p, and along an
    eigenvector of A whose eigenvalue is x times that of the column it disturbs, obeys

        ``s^{t+1} = p (s^t + x (s^t − s^{t−1}))``,    so    ``z² − p(1+x) z + p x = 0``.

    For p > 0 the larger root is at most √p; a negative response is far worse: at x = 1 tracking is unstable from
    p = −1/3 on. That, rather than the contraction, is why few rounds of an accelerated mixer can fail: p_K(λ) is
    negative for small λ.
    """
    p = responses(mixer, topology, K)
    b, c = p * (1.0 + x), p * x
    discriminant = b * b - 4.0 * c
    if np.iscomplexobj(p):
        root = np.sqrt(discriminant)
        return float(np.maximum(np.abs(b + root), np.abs(b - root)).max(initial=0.0) / 2.0)
    real = (np.abs(b) + np.sqrt(np.maximum(discriminant, 0.0))) / 2.0
    return float(np.where(discriminant < 0.0, np.sqrt(np.abs(c)), real).max(initial=0.0))


def accelerated_rate(mixer: Mixer, topology: Topology, K: int, growth: float = 2.0) -> float:
    """The same for accelerated iterations whose columns grow by ``growth`` per iteration, relative to the edge a.

    With ``R = a g/4``, x a disturbance of a column along an eigenvector with eigenvalue λ ≤ a, and s that of its T,

        ``s^{t+1} = p (s^t + λ (x^t − x^{t−1}))``,    ``R x^{t+1} = s^{t+1} − (a/2) x^t − (a²/16R) x^{t−1}``.

    Without rounds to spare (p = 0) that is 1/g. For g = 2 it is 0.6 with p = 0.1, and 1.1 with p = −0.1.
    """
    p = responses(mixer, topology, K)
    if p.size == 0:
        return 1.0 / growth
    worst = p if np.iscomplexobj(p) else np.array([p.min(), p.max()])
    ends, edge, g = worst[:, None], np.linspace(0.0, 1.0, 9), growth  # a = 1
    moved = ends * edge
    step = np.zeros((len(worst), edge.size, 3, 3), dtype=p.dtype)  # of (x^t, x^{t−1}, s^t)
    step[..., 0, 0] = 4.0 / g * moved - 2.0 / g
    step[..., 0, 1] = -4.0 / g * moved - g**-2
    step[..., 0, 2] = 4.0 / g * ends
    step[..., 1, 0] = 1.0
    step[..., 2, 0], step[..., 2, 1], step[..., 2, 2] = moved, -moved, ends
    return float(np.abs(np.linalg.eigvals(step)).max())


def accelerated_keeps_up(mixer: Mixer, topology: Topology, K: int, limit: float, growth: float = 2.0) -> bool:
    """Whether that rate is at most ``limit``: the same answer on every processor, where responses are real.

    The characteristic polynomial ``z³ + b₂z² + b₁z + b₀`` has all its roots in the disc by Jury's conditions.
    """
    p = responses(mixer, topology, K)
    if p.size == 0 or np.iscomplexobj(p):
        return accelerated_rate(mixer, topology, K, growth) <= limit
    ends, edge, g = np.array([p.min(), p.max()])[:, None], np.linspace(0.0, 1.0, 9), growth
    moved = ends * edge
    alpha, beta, gamma = 4.0 / g * moved - 2.0 / g, -4.0 / g * moved - 1.0 / (g * g), 4.0 / g * ends
    b2 = -(alpha + ends) / limit
    b1 = (alpha * ends - beta - gamma * moved) / (limit * limit)
    b0 = (beta * ends + gamma * moved) / (limit * limit * limit)
    inside = (1.0 + b2 + b1 + b0 >= 0.0) & (1.0 - b2 + b1 - b0 >= 0.0) & (np.abs(b0) <= 1.0)
    return bool((inside & (1.0 - b0 * b0 >= np.abs(b0 * b2 - b1))).all())


def first_rounds(mixer: Mixer, topology: Topology) -> int:
    """K to begin with under ``rounds="auto"``, when only the graph is known: tracking settles by 0.6 per iteration."""
    return smallest_rounds(lambda K: tracking_rate(mixer, topology, K) <= _FIRST)


def smallest_rounds(enough: Callable[[int], bool]) -> int:
    """A K that is enough where K − 1 is not (the smallest one, where more rounds are never worse), by bisection."""
    high = 1
    while not enough(high):
        high *= 2
    low = high // 2 + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return high


def responses(mixer: Mixer, topology: Topology, K: int) -> Array:
    """``p_K(λ)`` for the eigenvalues of 𝐋 but the first (``topology.modes``); complex where the graph is directed."""
    return mixer.factors(topology, K)


@dataclass(frozen=True)
class _Diagonal:
    """Gossip in the eigenbasis of 𝐋."""

    topology: Topology
    values: Array

    def gossip(self, x: Array, weights: object = None, /) -> Array:
        if weights is not None:
            raise InvalidInput("a mixer with weights of its own in each round has no response in the eigenbasis of 𝐋")
        return self.values * x

    @property
    def moment(self) -> Moment:
        return 0, 0, 0, 0

    def meet(self, x: Array, pairs: Pairs, rounds: int, /) -> Array:
        raise InvalidInput("meetings of pairs have no response in the eigenbasis of 𝐋")

    def total_mean(self, x: Array, /) -> Array:
        raise InvalidInput("the mean over all agents at once has no response in the eigenbasis of 𝐋")
