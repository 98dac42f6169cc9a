"""The base class of mixers: K rounds of linear, mean-preserving averaging over ``network.gossip``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Self, get_args

import numpy as np

from deepca._util.renamed import renamed_attributes
from deepca._util.typing import Array, Rounds
from deepca._util.validation import Integer, OneOf, Real, check
from deepca.consensus.mixer_state import Memory, PushSum, mean_of
from deepca.consensus.rates import first_rounds, response, smallest_rounds
from deepca.errors import MixingError, ParameterError
from deepca.network.base import MixerNetwork, Network
from deepca.network.compression import REFRESH_INTERVAL, CompressedAveraging, Copies, Messages
from deepca.topology.graph import Topology

__all__ = ["Mixer"]


@renamed_attributes(remember="mix", spreads="reaches_all")
@dataclass(frozen=True)
class Mixer(ABC):
    """Base class of mixers, which average by K rounds of gossip.

    Parameters
    ----------
    rounds : int, callable or "auto", default="auto"
        K, a schedule ``t ↦ K``, or "auto": :func:`deepca.solve` then chooses K while it runs, from numbers that all
        agents have agreed on (:mod:`deepca.consensus.pacing`).
    messages : {"float64", "float32", "float16"}, default="float64"
        Precision of messages. "float32" and "float16" send a half and a quarter of the bytes. They preserve the mean
        and do not limit the final accuracy, but each message depends on earlier ones
        (:mod:`deepca.network.compression`).

    Notes
    -----
    A mixer applies a polynomial of the gossip matrix, ``x ↦ p_K(𝐋) x`` with ``p_K(1) = 1``. So it preserves the mean,
    and the deviation from the mean shrinks by ``max |p_K(λ)|`` over the other eigenvalues λ of 𝐋.
    """

    rounds: Rounds = "auto"
    messages: Messages = "float64"
    memoryless: ClassVar[bool] = False
    """True if a round depends only on the result of the previous round."""

    def __post_init__(self) -> None:
        """Check the parameters."""
        if not callable(self.rounds):
            check("rounds", self.rounds, Integer(1), OneOf("auto"))
        check("messages", self.messages, OneOf(*get_args(Messages)))

    def __call__(self, network: Network, x: Array, t: int = 0, K: int = 0) -> Array:
        """Mix ``x`` of shape ``(*B, …)`` in iteration t; ``K`` is used if ``rounds`` is "auto"."""
        return mean_of(*self.mix(network, x, None, t, K))

    def mix(
        self, network: Network, x: Array, memory: Memory | None, t: int = 0, K: int = 0
    ) -> tuple[Array, Memory | None]:
        """Mix ``x``, continuing from the memory of the previous mix.

        Parameters
        ----------
        network : Network
            Network of the agents.
        x : ndarray of shape (*B, …)
            Values of the local agents.
        memory : Memory or None
            Copies of compressed messages, or push-sum weights on a directed graph, as the previous mix returned them.
        t : int, default=0
            Iteration.
        K : int, default=0
            Number of rounds if ``rounds`` is "auto"; 0 for :func:`~deepca.consensus.rates.first_rounds`.

        Returns
        -------
        x : ndarray of shape (*B, …)
            Mixed values with the same sum over all agents. On a directed graph they estimate the mean only after
            division by the weights: see :func:`deepca.consensus.mixer_state.mean_of`.
        memory : Memory or None
            Memory for the next mix.
        """
        self.check(network.topology)
        rounds = self.rounds_in(network.topology, t, K)
        if network.topology.directed and not self.reaches_all:
            return _mixed_with_weight(self, network, x, memory, rounds)
        if self.messages == "float64":
            return network.mix(self, x, rounds), None
        copies = memory if isinstance(memory, Copies) and t % REFRESH_INTERVAL != 0 else None
        coded = CompressedAveraging(network, copies, self.messages)
        return self.run(coded, x, rounds), coded.copies

    def rounds_in(self, topology: Topology, t: int, K: int = 0) -> int:
        """Return the number of rounds of a mix.

        Parameters
        ----------
        topology : Topology
            The graph.
        t : int
            Iteration.
        K : int, default=0
            Number of rounds if ``rounds`` is "auto"; 0 for :func:`~deepca.consensus.rates.first_rounds`.

        Returns
        -------
        int
            Number of rounds in iteration t.
        """
        return (K or first_rounds(self, topology)) if self.auto else self.rounds_at(t)

    def rounds_at(self, t: int) -> int:
        """Return K in iteration t.

        Parameters
        ----------
        t : int
            Iteration.

        Returns
        -------
        int
            The fixed or scheduled number of rounds.

        Raises
        ------
        ParameterError
            If ``rounds`` is "auto", or if a schedule returns anything but a positive whole number.
        """
        if self.rounds == "auto":
            raise ParameterError("rounds", "auto", "K is chosen while running; give a number or a schedule to fix it")
        if not callable(self.rounds):
            return int(self.rounds)
        K = self.rounds(t)
        check("rounds", K, Integer(1), meaning=f"in iteration {t}")
        return int(K)

    @property
    def auto(self) -> bool:
        """True if K is chosen while running."""
        return isinstance(self.rounds, str) and self.rounds == "auto"

    @property
    def fixed(self) -> bool:
        """True if K is the same in every iteration."""
        return not callable(self.rounds) and not self.auto

    @property
    def reaches_all(self) -> bool:
        """True if one mix brings the values of every agent to every other agent."""
        return False

    def with_rounds(self, K: int) -> Self:
        """Return the same mixer with a fixed number of rounds.

        Parameters
        ----------
        K : int
            Rounds in every iteration.

        Returns
        -------
        Mixer
            A copy with ``rounds=K``.
        """
        return replace(self, rounds=K)

    def key(self, K: int) -> object:
        """Return a key that is equal for mixers that apply the same matrix.

        Parameters
        ----------
        K : int
            Number of rounds.

        Returns
        -------
        object
            The key; None if every mix applies a different matrix.
        """
        return self.with_rounds(K)

    def check(self, topology: Topology) -> None:
        """Check that this mixer contracts on a graph.

        Parameters
        ----------
        topology : Topology
            The graph with its gossip matrix.

        Raises
        ------
        MixingError
            If it does not contract, or cannot compress its messages on that graph.
        """
        if topology.static_undirected:
            return
        why = "time-varying" if topology.time_varying else "directed"
        if not self.memoryless:
            raise MixingError(
                f"{type(self).__name__} needs the same symmetric 𝐋 in all rounds, since they build on each other, but "
                f"{topology.name} is {why}; use deepca.Gossip",
                parameter="mix",
                value=type(self).__name__,
            )
        if self.messages != "float64":
            raise MixingError(
                f"messages = {self.messages!r}: compression needs a static undirected graph, but {topology.name} is "
                f'{why}; use messages="float64"',
                parameter="messages",
                value=self.messages,
            )

    @abstractmethod
    def run(self, network: MixerNetwork, x: Array, K: int, /) -> Array:
        """Apply K rounds of ``network.gossip``.

        Parameters
        ----------
        network : MixerNetwork
            Network, or a stand-in for it that compresses messages or works in the eigenbasis of 𝐋.
        x : ndarray of shape (*B, …)
            Values of the local agents.
        K : int
            Number of rounds.

        Returns
        -------
        ndarray of shape (*B, …)
            ``p_K(𝐋) x``.
        """

    @abstractmethod
    def contraction(self, topology: Topology, K: int) -> float:
        """Return a proven bound on ``‖x^K − x̄‖ / ‖x⁰ − x̄‖``.

        Parameters
        ----------
        topology : Topology
            The graph with its gossip matrix 𝐋.
        K : int
            Number of rounds.

        Returns
        -------
        float
            The bound.
        """

    def factors(self, topology: Topology, K: int) -> Array:
        """Return the factors by which K rounds multiply disagreement along the modes of a graph.

        Parameters
        ----------
        topology : Topology
            The graph with its gossip matrix 𝐋.
        K : int
            Number of rounds.

        Returns
        -------
        ndarray of shape (m - 1,)
            ``p_K(λ)`` for the eigenvalues λ of 𝐋 other than the first; complex on directed graphs.
        """
        return response(self, topology, K, topology.modes)

    def rounds_for(self, topology: Topology, accuracy: float) -> int:
        """Return the smallest K whose proven contraction is at most ``accuracy``.

        Parameters
        ----------
        topology : Topology
            The graph with its gossip matrix 𝐋.
        accuracy : float
            Contraction to reach, in (0, 1].

        Returns
        -------
        int
            Number of rounds.
        """
        check("accuracy", accuracy, Real(0.0, 1.0, up_to=True))
        if topology.n_agents == 1:
            return 1
        return smallest_rounds(lambda K: self.contraction(topology, K) <= accuracy)


def _mixed_with_weight(
    mixer: Mixer, network: Network, x: Array, memory: Memory | None, K: int
) -> tuple[Array, PushSum]:
    """Mix x together with its push-sum weight y, in the same messages."""
    B = network.batch
    y = memory.y if isinstance(memory, PushSum) else np.ones(B)
    mixed = network.mix(mixer, np.concatenate([x.reshape(*B, -1), y[..., None]], axis=-1), K)
    return np.ascontiguousarray(mixed[..., :-1]).reshape(x.shape), PushSum(np.array(mixed[..., -1]))
