"""Mixers that average with neighbours: Gossip, FastMix (Algorithm 3 of the paper), Chebyshev and PositiveChebyshev."""

from __future__ import annotations

import math
from dataclasses import dataclass

from deepca._util.portable import acosh, cosh, power
from deepca._util.typing import Array
from deepca.consensus.mixer import Mixer
from deepca.errors import MixingError
from deepca.network.base import MixerNetwork
from deepca.topology.graph import Topology

__all__ = ["Chebyshev", "FastMix", "Gossip", "Mixer", "PositiveChebyshev", "default_mixer", "fastmix_eta"]


@dataclass(frozen=True)
class Gossip(Mixer):
    """Plain gossip averaging, on any graph.

    Parameters
    ----------
    rounds : int, callable or "auto", default="auto"
        K, a schedule ``t ↦ K``, or "auto" to choose K while running.
    messages : {"float64", "float32", "float16"}, default="float64"
        Precision of messages.

    Notes
    -----
    The recurrence ``x^{i+1} = 𝐋 x^i`` contracts by ``max(λ₂, −λ_min)^K``.

    On a directed graph with column-stochastic weights C it is push-sum: ``x^{i+1} = C x^i``, ``y^{i+1} = C y^i``, and
    the ratio x/y converges to the mean at the rate of :meth:`deepca.topology.directed.Digraph.contraction`.
    """

    memoryless = True

    def run(self, network: MixerNetwork, x: Array, K: int, /) -> Array:
        """Apply ``𝐋^K``."""
        for _ in range(K):
            x = network.gossip(x)
        return x

    def contraction(self, topology: Topology, K: int) -> float:
        """Return ``max(λ₂, −λ_min)^K``, or the bound for push-sum on a directed graph."""
        return topology.contraction(K)


@dataclass(frozen=True)
class FastMix(Mixer):
    """FastMix, Algorithm 3 of the paper [1]_ after Liu and Morse [2]_, for ``𝐋 ⪰ 0``.

    Parameters
    ----------
    rounds : int, callable or "auto", default="auto"
        K, a schedule ``t ↦ K``, or "auto" to choose K while running.
    messages : {"float64", "float32", "float16"}, default="float64"
        Precision of messages.

    Notes
    -----
    The recurrence::

        η = (1 − √(1−λ₂²)) / (1 + √(1−λ₂²)),    x⁻¹ = x⁰
        x^{i+1} = (1+η) 𝐋 x^i − η x^{i−1},       i = 0 … K−1

    The paper writes λ₂(W) for λ₂(𝐋), and its loop runs to i = K but returns x^K, so it uses K rounds. Proposition 1
    claims a contraction by ``(1 − √(1−λ₂))^K``, which is false for small K. The bound that holds is

        ``|p_K(λ)| ≤ [(K+1)(1−√η) + √(2η)] η^{K/2}``    for 0 ≤ λ ≤ λ₂.

    With ``λ = λ₂ cos φ`` the recurrence gives ``p_K = η^{K/2} (U_K − √η U_{K−1})(cos φ)``, where U are the Chebyshev
    polynomials of the second kind. A negative λ can exceed the bound, so 𝐋 ⪰ 0 is required.

    References
    ----------
    .. [1] H. Ye and T. Zhang, "DeEPCA: Decentralized Exact PCA with Linear Convergence Rate", Journal of Machine
       Learning Research 22 (2021).
    .. [2] J. Liu and A. S. Morse, "Accelerated linear iterations for distributed averaging", Annual Reviews in Control
       35 (2011).

    Examples
    --------
    >>> import numpy as np
    >>> import deepca
    >>> network = deepca.SimulatedNetwork(deepca.topology.ring(6))
    >>> x = deepca.FastMix(rounds=40)(network, np.arange(6.0)[:, None])
    >>> x.ravel().round(6).tolist()
    [2.5, 2.5, 2.5, 2.5, 2.5, 2.5]
    """

    def check(self, topology: Topology) -> None:
        """Raise MixingError unless the graph is static and undirected with 𝐋 ⪰ 0."""
        super().check(topology)
        if not topology.positive_semidefinite:
            raise MixingError(
                f"FastMix needs 𝐋 ⪰ 0, but the {topology.rule} weights of {topology.name} have the eigenvalue "
                f"{topology.lambda_min:.4g}, so it may diverge; use deepca.Chebyshev, which works with any 𝐋, "
                "or the weight rules 'paper' or 'lazy-metropolis'",
                parameter="mix",
                value="FastMix",
            )

    def run(self, network: MixerNetwork, x: Array, K: int, /) -> Array:
        """Apply K rounds of Algorithm 3."""
        eta = fastmix_eta(network.topology.lambda2)
        x_previous = x
        for _ in range(K):
            y = network.gossip(x)
            x, x_previous = (
                y + eta * (y - x_previous),
                x,
            )  # (1+η) y − η x^{i−1}, in a form that preserves the mean to the last digit
        return x

    def contraction(self, topology: Topology, K: int) -> float:
        """Return ``[(K+1)(1−√η) + √(2η)] η^{K/2}``."""
        self.check(topology)
        if topology.n_agents == 1:
            return 0.0
        eta = fastmix_eta(topology.lambda2)
        if eta == 0.0:
            return 0.0 if K >= 1 else 1.0
        return float(((K + 1) * (1.0 - math.sqrt(eta)) + math.sqrt(2.0 * eta)) * power(eta, K / 2))


@dataclass(frozen=True)
class Chebyshev(Mixer):
    """Chebyshev mixing: the polynomial of degree K that is smallest on ``[λ_min, λ₂]``, for any symmetric 𝐋.

    Parameters
    ----------
    rounds : int, callable or "auto", default="auto"
        K, a schedule ``t ↦ K``, or "auto" to choose K while running.
    messages : {"float64", "float32", "float16"}, default="float64"
        Precision of messages.

    Notes
    -----
    The recurrence::

        c = (λ₂ + λ_min)/2,   h = (λ₂ − λ_min)/2,   μ = h/(1−c)
        y^i = (𝐋 x^i − c x^i)/(1−c) = x^i + (𝐋 x^i − x^i)/(1−c)
        x^1 = y^0
        x^{i+1} = ω_{i+1} (y^i − x^{i−1}) + x^{i−1},   ω_2 = 1/(1 − μ²/2),   ω_{i+1} = 1/(1 − μ²ω_i/4)

    This is ``p_K(λ) = T_K((λ−c)/h) / T_K(1/μ)``. It contracts by ``1/T_K(1/μ)``, the best possible guarantee for K
    rounds with a fixed 𝐋.
    """

    def run(self, network: MixerNetwork, x: Array, K: int, /) -> Array:
        """Apply K rounds of the Chebyshev recurrence."""
        c, mu = _interval(network.topology)
        omega, x_previous = 1.0, x
        for i in range(K):
            y = x + (network.gossip(x) - x) / (1.0 - c)
            if i == 1:
                omega = 1.0 / (1.0 - mu**2 / 2.0)
            elif i > 1:
                omega = 1.0 / (1.0 - mu**2 * omega / 4.0)
            x, x_previous = (y if i == 0 else omega * (y - x_previous) + x_previous), x
        return x

    def contraction(self, topology: Topology, K: int) -> float:
        """Return ``1/T_K(1/μ)``."""
        self.check(topology)
        if topology.n_agents == 1:
            return 0.0
        _, mu = _interval(topology)
        if mu == 0.0:
            return 0.0 if K >= 1 else 1.0
        growth = K * acosh(1.0 / mu)
        return 1.0 / cosh(growth) if growth < 700.0 else 0.0


@dataclass(frozen=True)
class PositiveChebyshev(Chebyshev):
    """Chebyshev mixing, shifted so that its response is never negative.

    Parameters
    ----------
    rounds : int, callable or "auto", default="auto"
        K, a schedule ``t ↦ K``, or "auto" to choose K while running.
    messages : {"float64", "float32", "float16"}, default="float64"
        Precision of messages.

    Notes
    -----
    After K rounds of :class:`Chebyshev`::

        ε = 1/T_K(1/μ),    x^K ← (x^K + ε x⁰) / (1+ε)

    so ``0 ≤ p_K(λ) ≤ 2ε/(1+ε)``, the smallest bound possible for K rounds without negative values. K rounds leave
    about twice as much disagreement as with :class:`Chebyshev`, but tracking tolerates a positive response far better
    than a negative one (:func:`~deepca.consensus.rates.tracking_rate`,
    :func:`~deepca.consensus.rates.accelerated_rate`), so it needs fewer rounds with this mixer.
    """

    def run(self, network: MixerNetwork, x: Array, K: int, /) -> Array:
        """Apply K rounds of the Chebyshev recurrence and shift the result towards x⁰."""
        epsilon = Chebyshev.contraction(self, network.topology, K)
        mixed = super().run(network, x, K)
        return mixed + (epsilon / (1.0 + epsilon)) * (x - mixed)

    def contraction(self, topology: Topology, K: int) -> float:
        """Return ``2ε/(1+ε)``."""
        epsilon = super().contraction(topology, K)
        return 2.0 * epsilon / (1.0 + epsilon)


def default_mixer(topology: Topology) -> Mixer:
    """Return the default mixer for a graph: Chebyshev, or Gossip if the graph is directed or time-varying."""
    return Chebyshev() if topology.static_undirected else Gossip()


def fastmix_eta(lambda2: float) -> float:
    """Return ``η = (1 − √(1−λ₂²)) / (1 + √(1−λ₂²))``."""
    root = math.sqrt(1.0 - lambda2 * lambda2)
    ratio = lambda2 / (1.0 + root)
    return ratio * ratio  # equal to η, without cancellation


def _interval(topology: Topology) -> tuple[float, float]:
    """Return c and μ for the interval [λ_min, λ₂]."""
    if topology.n_agents == 1:
        return 0.0, 0.0
    c, h = (topology.lambda2 + topology.lambda_min) / 2.0, (topology.lambda2 - topology.lambda_min) / 2.0
    return c, max(h, 0.0) / (1.0 - c)
