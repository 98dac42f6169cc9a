"""Averaging with neighbours: linear, mean-preserving, written over ``network.gossip``.

Every mixer applies a polynomial of the gossip matrix, ``x ↦ p_K(𝐋) x`` with ``p_K(1) = 1``. So the mean stays, and
what differs from the mean shrinks by ``max |p_K(λ)|`` over the other eigenvalues λ of 𝐋.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Self, get_args

import numpy as np

from deepca._util.portable import acosh, cosh, power
from deepca._util.typing import Array, Rounds
from deepca._util.validation import OneOf, Whole, check
from deepca.consensus.mixer_state import Memory, PushSum, mean_of
from deepca.consensus.rates import first_rounds, response, smallest_rounds
from deepca.errors import InvalidInput, MixingError
from deepca.network.base import Averaging, Network
from deepca.network.compression import REFRESHED, CodedAveraging, Copies, Messages
from deepca.topology.graph import Topology

__all__ = ["Chebyshev", "FastMix", "Gossip", "Mixer", "PositiveChebyshev", "averager", "fastmix_eta"]


@dataclass(frozen=True)
class Mixer(ABC):
    """K rounds of averaging; K is a number, a schedule ``t ↦ K``, or ``"auto"``.

    With "auto", :func:`deepca.solve` chooses K while it runs, from what all agents agree on
    (:mod:`deepca.consensus.pacing`).

    messages : "float64", or "float32" or "float16" for messages of a half or a quarter of the size. Those keep the mean
        as well and spoil no digit in the end, but what is sent depends on what was sent before
        (:mod:`deepca.network.compression`).
    """

    rounds: Rounds = "auto"
    messages: Messages = "float64"
    memoryless: ClassVar[bool] = False
    """Whether a round depends on nothing but what the round before has left."""

    def __post_init__(self) -> None:
        if not callable(self.rounds):
            check("rounds", self.rounds, Whole(1), OneOf("auto"))
        check("messages", self.messages, OneOf(*get_args(Messages)))

    def __call__(self, network: Network, x: Array, t: int = 0, K: int = 0) -> Array:
        """Mix ``x`` of shape ``(*B, …)`` in iteration t; ``K`` is used where ``rounds`` leaves it open."""
        return mean_of(*self.remember(network, x, None, t, K))

    def remember(
        self, network: Network, x: Array, memory: Memory | None, t: int = 0, K: int = 0
    ) -> tuple[Array, Memory | None]:
        """The same, going on from what the mix before left: copies with coded messages, weights on directed graphs.

        The sum over all agents stays. On a directed graph x alone is no mean: see
        :func:`deepca.consensus.mixer_state.mean_of`.
        """
        self.check(network.topology)
        rounds = self.rounds_in(network.topology, t, K)
        if network.topology.directed and not self.spreads:
            return _with_weight(self, network, x, memory, rounds)
        if self.messages == "float64":
            return network.mix(self, x, rounds), None
        copies = memory if isinstance(memory, Copies) and t % REFRESHED != 0 else None
        coded = CodedAveraging(network, copies, self.messages)
        return self.run(coded, x, rounds), coded.copies

    def rounds_in(self, topology: Topology, t: int, K: int = 0) -> int:
        """The rounds of a mix in iteration t; ``K`` is used where ``rounds`` leaves it open."""
        return (K or first_rounds(self, topology)) if self.auto else self.rounds_at(t)

    def rounds_at(self, t: int) -> int:
        """K in iteration t."""
        if self.rounds == "auto":
            raise InvalidInput('rounds = "auto": K is chosen while running and not known beforehand')
        if not callable(self.rounds):
            return int(self.rounds)
        return _whole_rounds(self.rounds(t), f"in iteration {t}")

    @property
    def auto(self) -> bool:
        """Whether K is chosen while running."""
        return isinstance(self.rounds, str) and self.rounds == "auto"

    @property
    def fixed(self) -> bool:
        """Whether K is the same in every iteration."""
        return not callable(self.rounds) and not self.auto

    @property
    def spreads(self) -> bool:
        """Whether after one mix everyone has heard from everyone."""
        return False

    def with_rounds(self, K: int) -> Self:
        """The same mixer with K rounds in every iteration."""
        return replace(self, rounds=K)

    def key(self, K: int) -> object:
        """Equal for two mixers that apply the same matrix with K rounds; None where no two mixes do."""
        return self.with_rounds(K)

    def check(self, topology: Topology) -> None:
        """Raise MixingError if this mixer does not contract on that gossip matrix."""
        if topology.stays:
            return
        if not self.memoryless:
            why = "changes from round to round" if topology.changing else "has messages that go one way"
            raise MixingError(
                f"{type(self).__name__} needs one symmetric 𝐋, but {topology.name} {why}: its rounds build on those "
                "before, which gains nothing there and may diverge. Use deepca.Gossip"
            )
        if self.messages != "float64":
            raise MixingError(
                f"messages = {self.messages!r}: differences are coded for graphs that stay and go both ways; use "
                f'messages="float64" on {topology.name}'
            )

    @abstractmethod
    def run(self, network: Averaging, x: Array, K: int, /) -> Array:
        """K rounds over ``network.gossip``."""

    @abstractmethod
    def contraction(self, topology: Topology, K: int) -> float:
        """Proven bound on ``‖x^K − x̄‖ / ‖x⁰ − x̄‖``."""

    def factors(self, topology: Topology, K: int) -> Array:
        """By what K rounds multiply disagreement along every mode of the graph: ``p_K(λ)``."""
        return response(self, topology, K, topology.modes)

    def rounds_for(self, topology: Topology, accuracy: float) -> int:
        """The smallest K whose proven contraction is at most ``accuracy``."""
        if not 0.0 < accuracy <= 1.0:
            raise InvalidInput(f"accuracy = {accuracy}: must lie between 0 and 1")
        if topology.n_agents == 1:
            return 1
        return smallest_rounds(lambda K: self.contraction(topology, K) <= accuracy)


@dataclass(frozen=True)
class Gossip(Mixer):
    """Plain averaging: ``x^{i+1} = 𝐋 x^i``. Contracts by ``max(λ₂, −λ_min)^K``.

    On a directed graph with column-stochastic weights C: ``x^{i+1} = C x^i``, ``y^{i+1} = C y^i`` (push-sum), and the
    ratio x/y tends to the mean, by :meth:`deepca.topology.directed.Digraph.contraction`.
    """

    memoryless = True

    def run(self, network: Averaging, x: Array, K: int, /) -> Array:
        for _ in range(K):
            x = network.gossip(x)
        return x

    def contraction(self, topology: Topology, K: int) -> float:
        return topology.contraction(K)


@dataclass(frozen=True)
class FastMix(Mixer):
    """FastMix (Algorithm 3 of the paper; Liu & Morse), for ``0 ⪯ 𝐋``::

        η = (1 − √(1−λ₂²)) / (1 + √(1−λ₂²)),    x⁻¹ = x⁰
        x^{i+1} = (1+η) 𝐋 x^i − η x^{i−1},       i = 0 … K−1

    The paper writes λ₂(W) for λ₂(𝐋), and its loop runs to K but returns x^K: K rounds. Its Proposition 1 claims a
    contraction by ``(1 − √(1−λ₂))^K``, which is false for small K. What holds is

        ``|p_K(λ)| ≤ [(K+1)(1−√η) + √(2η)] η^{K/2}``    for 0 ≤ λ ≤ λ₂.

    With ``λ = λ₂ cos φ`` the recurrence gives ``p_K = η^{K/2} (U_K − √η U_{K−1})(cos φ)``, U the Chebyshev polynomials
    of the second kind. A negative λ can exceed it, hence 𝐋 ⪰ 0 is demanded.
    """

    def check(self, topology: Topology) -> None:
        super().check(topology)
        if not topology.positive_semidefinite:
            raise MixingError(
                f"FastMix needs 𝐋 ⪰ 0, but the {topology.rule} weights of {topology.name} have the eigenvalue "
                f"{topology.lambda_min:.4g}: it may expand. Use deepca.Chebyshev, which takes any 𝐋, "
                "or the weight rules 'paper' or 'lazy-metropolis'"
            )

    def run(self, network: Averaging, x: Array, K: int, /) -> Array:
        eta = fastmix_eta(network.topology.lambda2)
        x_previous = x
        for _ in range(K):
            y = network.gossip(x)
            x, x_previous = y + eta * (y - x_previous), x  # (1+η) y − η x^{i−1}, with the mean kept to the last digit
        return x

    def contraction(self, topology: Topology, K: int) -> float:
        self.check(topology)
        if topology.n_agents == 1:
            return 0.0
        eta = fastmix_eta(topology.lambda2)
        if eta == 0.0:
            return 0.0 if K >= 1 else 1.0
        return float(((K + 1) * (1.0 - math.sqrt(eta)) + math.sqrt(2.0 * eta)) * power(eta, K / 2))


@dataclass(frozen=True)
class Chebyshev(Mixer):
    """The polynomial of degree K that is smallest on ``[λ_min, λ₂]``, for any gossip matrix::

        c = (λ₂ + λ_min)/2,   h = (λ₂ − λ_min)/2,   μ = h/(1−c)
        y^i = (𝐋 x^i − c x^i)/(1−c) = x^i + (𝐋 x^i − x^i)/(1−c)
        x^1 = y^0
        x^{i+1} = ω_{i+1} (y^i − x^{i−1}) + x^{i−1},   ω_2 = 1/(1 − μ²/2),   ω_{i+1} = 1/(1 − μ²ω_i/4)

    which is ``p_K(λ) = T_K((λ−c)/h) / T_K(1/μ)`` and contracts by ``1/T_K(1/μ)``, the best that K rounds with a fixed
    𝐋 can promise.
    """

    def run(self, network: Averaging, x: Array, K: int, /) -> Array:
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
    """Chebyshev, raised until its response is nowhere negative::

        ε = 1/T_K(1/μ),    x^K ← (x^K + ε x⁰) / (1+ε)

    so ``0 ≤ p_K(λ) ≤ 2ε/(1+ε)``, the smallest that is possible with K rounds and without negative values. Disagreement
    shrinks half as much, but tracking bears a negative response far less than a positive one (:func:`tracking_rate`,
    :func:`accelerated_rate`), and needs fewer rounds with this one.
    """

    def run(self, network: Averaging, x: Array, K: int, /) -> Array:
        epsilon = Chebyshev.contraction(self, network.topology, K)
        mixed = super().run(network, x, K)
        return mixed + (epsilon / (1.0 + epsilon)) * (x - mixed)

    def contraction(self, topology: Topology, K: int) -> float:
        epsilon = super().contraction(topology, K)
        return 2.0 * epsilon / (1.0 + epsilon)


def averager(topology: Topology) -> Mixer:
    """The mixer with which an average is made anew on any graph: Chebyshev, or Gossip where only that will do."""
    return Chebyshev() if topology.stays else Gossip()


def fastmix_eta(lambda2: float) -> float:
    """``η = (1 − √(1−λ₂²)) / (1 + √(1−λ₂²))``."""
    root = math.sqrt(1.0 - lambda2 * lambda2)
    ratio = lambda2 / (1.0 + root)
    return ratio * ratio  # the same without cancellation


def _with_weight(mixer: Mixer, network: Network, x: Array, memory: Memory | None, K: int) -> tuple[Array, PushSum]:
    """x and its push-sum weight y in the same messages."""
    B = network.batch
    y = memory.y if isinstance(memory, PushSum) else np.ones(B)
    mixed = network.mix(mixer, np.concatenate([x.reshape(*B, -1), y[..., None]], axis=-1), K)
    return np.ascontiguousarray(mixed[..., :-1]).reshape(x.shape), PushSum(np.array(mixed[..., -1]))


def _interval(topology: Topology) -> tuple[float, float]:
    """c and μ for the interval [λ_min, λ₂]."""
    if topology.n_agents == 1:
        return 0.0, 0.0
    c, h = (topology.lambda2 + topology.lambda_min) / 2.0, (topology.lambda2 - topology.lambda_min) / 2.0
    return c, max(h, 0.0) / (1.0 - c)


def _whole_rounds(K: int, where: str) -> int:
    """K of a schedule, which has to name a number."""
    check("rounds", K, Whole(1), meaning=where)
    return int(K)
