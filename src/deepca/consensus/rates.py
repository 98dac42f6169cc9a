"""Compute contraction rates of mixers, and the number of rounds that tracking needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from deepca._util.typing import Array
from deepca.errors import MixingError
from deepca.network.base import Pairs, Position
from deepca.topology.graph import Topology

if TYPE_CHECKING:
    from deepca.consensus.mixers import Mixer

__all__ = [
    "accelerated_rate",
    "accelerated_rate_at_most",
    "first_rounds",
    "response",
    "responses",
    "smallest_rounds",
    "tracking_rate",
]

_FIRST_RATE = 0.6  # largest decay rate of disagreement, per iteration, with the first K


def response(mixer: Mixer, topology: Topology, K: int, eigenvalues: npt.ArrayLike) -> Array:
    """Return ``p_K(λ)``, the factor by which K rounds multiply a component of x along an eigenvector of 𝐋.

    Parameters
    ----------
    mixer : Mixer
        The mixer.
    topology : Topology
        The graph with its gossip matrix 𝐋.
    K : int
        Number of rounds.
    eigenvalues : array_like
        Eigenvalues λ of 𝐋, real or complex.

    Returns
    -------
    ndarray
        ``p_K(λ)`` for every λ.

    Raises
    ------
    MixingError
        If the mixer does not apply a polynomial of 𝐋.

    Notes
    -----
    Computed by running the mixer itself, with gossip replaced by multiplication by λ.

    Examples
    --------
    >>> from deepca import Gossip, topology
    >>> response(Gossip(), topology.ring(4), 2, [1.0, 0.5]).tolist()
    [1.0, 0.25]
    """
    values = np.atleast_1d(np.asarray(eigenvalues) + 0.0)  # real or complex
    return mixer.run(_Diagonal(topology, values), np.ones_like(values), K)


def tracking_rate(mixer: Mixer, topology: Topology, K: int, x: float = 1.0) -> float:
    """Return the rate per iteration at which disagreement decays under tracking, which is unstable at 1 or more.

    Parameters
    ----------
    mixer : Mixer
        The mixer.
    topology : Topology
        The graph with its gossip matrix 𝐋.
    K : int
        Number of rounds.
    x : float, default=1.0
        Eigenvalue of A along which S is disturbed, relative to that of the disturbed column.

    Returns
    -------
    float
        The largest modulus of a root z, over all eigenvalues of 𝐋 other than the first.

    Notes
    -----
    Linearise tracking at the solution, with the same A_j at all agents. The component of S along an eigenvector of 𝐋
    with response p, and along an eigenvector of A whose eigenvalue is x times that of the disturbed column, obeys

        ``s^{t+1} = p (s^t + x (s^t − s^{t−1}))``,    so    ``z² − p(1+x) z + p x = 0``.

    For p > 0 the larger root is at most √p. A negative response is far worse: at x = 1 tracking is unstable for
    p ≤ −1/3. This, rather than the contraction, is why few rounds of an accelerated mixer can fail: p_K(λ) is negative
    for small λ.
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
    """Return the rate per iteration at which disagreement decays under accelerated tracking.

    Parameters
    ----------
    mixer : Mixer
        The mixer.
    topology : Topology
        The graph with its gossip matrix 𝐋.
    K : int
        Number of rounds.
    growth : float, default=2.0
        Growth g of the columns per iteration, relative to the edge a.

    Returns
    -------
    float
        The spectral radius of the recurrence, over all eigenvalues of 𝐋 other than the first and λ in [0, a].

    Notes
    -----
    Let x be the disturbance of a column along an eigenvector of A with eigenvalue λ ≤ a, and s that of its T. With
    ``R = a g/4``,

        ``s^{t+1} = p (s^t + λ (x^t − x^{t−1}))``,    ``R x^{t+1} = s^{t+1} − (a/2) x^t − (a²/16R) x^{t−1}``.

    With perfect averaging (p = 0) the rate is 1/g. For g = 2 it is 0.6 with p = 0.1, and 1.1 with p = −0.1.
    """
    p = responses(mixer, topology, K)
    if p.size == 0:
        return 1.0 / growth
    worst = p if np.iscomplexobj(p) else np.array([p.min(), p.max()])
    ends, edge, g = worst[:, None], np.linspace(0.0, 1.0, 9), growth  # a = 1
    moved = ends * edge
    step = np.zeros((len(worst), edge.size, 3, 3), dtype=p.dtype)  # acts on (x^t, x^{t−1}, s^t)
    step[..., 0, 0] = 4.0 / g * moved - 2.0 / g
    step[..., 0, 1] = -4.0 / g * moved - g**-2
    step[..., 0, 2] = 4.0 / g * ends
    step[..., 1, 0] = 1.0
    step[..., 2, 0], step[..., 2, 1], step[..., 2, 2] = moved, -moved, ends
    return float(np.abs(np.linalg.eigvals(step)).max())


def accelerated_rate_at_most(mixer: Mixer, topology: Topology, K: int, limit: float, growth: float = 2.0) -> bool:
    """Return whether :func:`accelerated_rate` is at most ``limit``, without computing eigenvalues if possible.

    Parameters
    ----------
    mixer : Mixer
        The mixer.
    topology : Topology
        The graph with its gossip matrix 𝐋.
    K : int
        Number of rounds.
    limit : float
        Largest acceptable rate.
    growth : float, default=2.0
        Growth g of the columns per iteration, relative to the edge a.

    Returns
    -------
    bool
        Whether the rate is at most ``limit``; the same on every processor if the responses are real.

    Notes
    -----
    If the responses are real, Jury's conditions decide whether the characteristic polynomial ``z³ + b₂z² + b₁z + b₀``,
    with z scaled by ``limit``, has all its roots in the unit disc.
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
    """Return the first K under ``rounds="auto"``, when only the graph is known.

    Parameters
    ----------
    mixer : Mixer
        The mixer.
    topology : Topology
        The graph with its gossip matrix 𝐋.

    Returns
    -------
    int
        The smallest K with which disagreement decays at a rate of at most 0.6 per iteration.
    """
    return smallest_rounds(lambda K: tracking_rate(mixer, topology, K) <= _FIRST_RATE)


def smallest_rounds(enough: Callable[[int], bool]) -> int:
    """Find the smallest sufficient K by bisection.

    Parameters
    ----------
    enough : callable
        Predicate ``K ↦ bool``, true for some K.

    Returns
    -------
    int
        A sufficient K such that K − 1 is not sufficient; the smallest such K if the predicate is monotone.
    """
    high = 1
    while not enough(high):
        high *= 2
    low = high // 2 + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return high


def responses(mixer: Mixer, topology: Topology, K: int) -> Array:
    """Return ``p_K(λ)`` for all eigenvalues of 𝐋 except the first.

    Parameters
    ----------
    mixer : Mixer
        The mixer.
    topology : Topology
        The graph with its gossip matrix 𝐋.
    K : int
        Number of rounds.

    Returns
    -------
    ndarray of shape (m - 1,)
        Responses at ``topology.modes``; complex if the graph is directed.
    """
    return mixer.factors(topology, K)


@dataclass(frozen=True)
class _Diagonal:
    """Stand-in for a network that gossips in the eigenbasis of 𝐋."""

    topology: Topology
    values: Array

    def gossip(self, x: Array, weights: object = None, /) -> Array:
        """Multiply by the eigenvalues."""
        if weights is not None:
            raise _no_response_error("a mixer with different weights in each round")
        return self.values * x

    @property
    def position(self) -> Position:
        """Position at the start of a run."""
        return 0, 0, 0, 0

    def average_pairs(self, x: Array, pairs: Pairs, rounds: int, /) -> Array:
        """Raise MixingError."""
        raise _no_response_error("a mixer of random pairs")

    def allreduce_mean(self, x: Array, /) -> Array:
        """Raise MixingError."""
        raise _no_response_error("an exact mean over all agents")


def _no_response_error(what: str) -> MixingError:
    return MixingError(f"{what} has no response in the eigenbasis of 𝐋", parameter="mixer")
