"""Define the protocol that every algorithm implements, and the parts that algorithms share."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from deepca._util.portable import acosh
from deepca._util.typing import Array, Orthonormalise
from deepca._util.units import counted
from deepca.algorithms.state import State, TrackedState
from deepca.consensus.mixers import FastMix, Mixer, default_mixer
from deepca.consensus.pacing import MatchedRounds, Pace, SearchedRounds
from deepca.errors import DataError, ParameterError, StartError
from deepca.network.base import Network
from deepca.operators.base import MixedOperator, Operator, OperatorLike
from deepca.operators.construction import operator_from
from deepca.operators.linalg import check_start, polar, qr, signs_towards

__all__ = [
    "Algorithm",
    "Decentralized",
    "ExactlyAveraged",
    "QRSignAdjust",
    "State",
    "TrackedState",
    "chebyshev_growth",
    "local_starts",
    "matching_operator",
    "orthonormal_basis",
]

_QR_ITERATIONS = 2  # QR sorts the columns by size; after two iterations the polar factor keeps that order


S_ = TypeVar("S_", bound=State)


class Algorithm(Protocol[S_]):
    """Pair of pure functions over a network: ``init`` returns the first state, ``step`` maps a state to the next.

    Parameters
    ----------
    *args, **kwargs : object
        Parameters of the implementing class.
    """

    @property
    def name(self) -> str:
        """Name shown in reports."""
        ...

    @property
    def network(self) -> Network:
        """Network that connects the agents."""
        ...

    @property
    def A(self) -> Operator:
        """Operators ``A_j`` of the local agents."""
        ...

    @property
    def mix(self) -> Mixer | None:
        """Mixer by which agents average; None if the algorithm does not gossip."""
        ...

    def pace(self, K: int) -> Pace | None:
        """Return the policy that chooses the rounds K of each iteration.

        Parameters
        ----------
        K : int
            Number of rounds to begin with; 0 if the policy chooses it.

        Returns
        -------
        Pace or None
            The policy, or None if the number of rounds is fixed, scheduled, or not applicable.
        """
        ...

    def init(self, W: npt.ArrayLike | None = None) -> S_:
        """Return the state before the first step.

        Parameters
        ----------
        W : array_like of shape (d, k) or (*B, d, k), optional
            Orthonormal start to use instead of W⁰.

        Returns
        -------
        State
            The state at t = 0.
        """
        ...

    def step(self, state: S_) -> S_:
        """Take one iteration.

        Parameters
        ----------
        state : State
            The state at iteration t.

        Returns
        -------
        State
            The state at iteration t + 1.
        """
        ...

    def restart(self, state: S_, rounds: int) -> S_:
        """Keep W and recompute everything that depends on earlier iterations, after the network has changed.

        Parameters
        ----------
        state : State
            The state before the change.
        rounds : int
            Rounds of mixing for quantities that are averaged again.

        Returns
        -------
        State
            The state from which to continue.
        """
        ...

    def rounds_for(self, accuracy: float) -> int:
        """Return the rounds of mixing that reduce disagreement to a given fraction.

        Parameters
        ----------
        accuracy : float
            The fraction of disagreement that may remain.

        Returns
        -------
        int
            Number of rounds.
        """
        ...


@dataclass(frozen=True)
class QRSignAdjust:
    """The paper's orthonormalisation: ``W ← QR(S)``, then ``SignAdjust(W, W⁰)``; ``W R = S`` still holds.

    Parameters
    ----------
    W0 : ndarray of shape (d, k)
        The start W⁰ towards which signs are adjusted.
    """

    W0: Array

    def __call__(self, S: Array) -> tuple[Array, Array]:
        """Return ``(W, R)`` with ``W R = S``."""
        W, R = qr(S)
        signs = signs_towards(W, self.W0)
        return W * signs[..., None, :], R * signs[..., :, None]


class Decentralized:
    """Base class of the methods that average by gossip; its parameters are documented in :class:`deepca.DeEPCA`."""

    name: str
    pacing: type[SearchedRounds] | type[MatchedRounds] = SearchedRounds

    def __init__(
        self,
        A: OperatorLike,
        W0: npt.ArrayLike,
        network: Network,
        mix: Mixer | None = None,
        orthonormalise: Orthonormalise | None = None,
    ) -> None:
        self.A = matching_operator(A, network)
        if mix is None:
            mix = FastMix() if network.topology.positive_semidefinite else default_mixer(network.topology)
        if not isinstance(mix, Mixer):
            raise ParameterError("mix", mix, "expected a mixer, such as deepca.FastMix(rounds=5)")
        mix.check(network.topology)
        self.W0 = np.asfortranarray(check_start(W0, self.A.d))
        self.network, self.mix = network, mix
        self.orthonormalise = orthonormalise

    def init(self, W: npt.ArrayLike | None = None) -> TrackedState:
        """Return the state before the first step: ``W_j = W⁰`` (or W), ``S_j = 0`` and ``A_j W_j^{−1} := 0``."""
        W = local_starts(self.W0, W, self.network)
        return TrackedState(0, W, S=np.zeros_like(W), AW=np.zeros_like(W))

    def with_operator(self, A: OperatorLike) -> Self:
        """Return this method with other ``A_j``, which can continue from the same State.

        Raises DataError if their d differs, or if they do not match the network.
        """
        other = copy(self)
        other.A = matching_operator(A, self.network)
        if other.A.d != self.A.d:
            raise DataError(
                f"the new A_j have d = {other.A.d}, but the previous ones have d = {self.A.d}; d must stay the same",
                parameter="A",
                value=other.A.d,
            )
        return other

    def rounds_for(self, accuracy: float) -> int:
        """Return the rounds with which the mixer's proven contraction is at most ``accuracy``."""
        return self.mix.rounds_for(self.network.topology, accuracy)

    def pace(self, K: int) -> Pace | None:
        """Return the policy that chooses K if the mixer has ``rounds="auto"``."""
        return self.pacing(self.mix, self.network.topology, K) if self.mix.auto else None


class ExactlyAveraged:
    """Base class of the methods that average exactly: all agents have the same numbers, so nothing is tracked."""

    mix = None

    def __init__(self, A: OperatorLike, W0: npt.ArrayLike, network: Network) -> None:
        self.A = matching_operator(A, network)
        self.W0 = check_start(W0, self.A.d)
        self.network = network

    def rounds_for(self, accuracy: float) -> int:
        """Return the rounds with which the network's default mixer contracts to ``accuracy``."""
        return default_mixer(self.network.topology).rounds_for(self.network.topology, accuracy)

    def pace(self, K: int) -> Pace | None:
        """Return None: the number of rounds follows from the graph."""
        return None

    def _for_local_agents(self, X: Array) -> Array:
        return np.asarray(np.broadcast_to(X, (*self.network.batch, *X.shape)))


def orthonormal_basis(orthonormalise: Orthonormalise | None, S: Array, t: int) -> tuple[Array, Array]:
    """Return ``(W, R)`` with ``W R = S`` in iteration t; by default QR in the first two, then the polar factor.

    Unlike QR, the polar factor cannot flip a sign, and does not rotate columns of close eigenvalues inside the top k.
    But it preserves the mixture of directions in W⁰, in which small eigenvalues are lost in the rounding errors of
    large ones. QR, in contrast, sorts the columns by size; two iterations suffice for that, and the polar factor keeps
    the order (measured in docs/robustness.md).
    """
    if orthonormalise is None:
        orthonormalise = qr if t < _QR_ITERATIONS else polar
    return orthonormalise(S)


def chebyshev_growth(above: float, edge: float) -> float:
    """Return how fast Chebyshev iterations amplify λ = ``above`` relative to eigenvalues in [0, a], a = ``edge``.

    The value is the logarithm of the factor per iteration, ``log(ξ + √(ξ²−1))`` with ``ξ = 2λ/a − 1``.
    """
    return acosh(2.0 * above / edge - 1.0) if above > edge > 0.0 else (math.inf if above > edge else 0.0)


def matching_operator(A: OperatorLike, network: Network) -> Operator:
    """Return A as an Operator of the network's local agents, which are selected if A has the ``A_j`` of all agents.

    Raises ParameterError if ``network`` is not a Network, and DataError if A has another number of ``A_j``.
    """
    if not isinstance(network, Network):
        raise ParameterError("network", network, "expected a network, such as deepca.SimulatedNetwork(topology)")
    operator = operator_from(A, int(network.local.reshape(-1)[0]))
    if not operator.batch and network.batch == (1,):
        operator = MixedOperator([operator])
    if operator.batch == (network.n_agents,) != network.batch and network.batch:
        operator = operator.agents(network.local)
    if operator.batch != network.batch:
        have, want = (counted(b[0], "agent") if b else "a single agent" for b in (operator.batch, network.batch))
        raise DataError(
            f"A has the A_j of {have}, but the network has {want} in this process; give one A_j per local agent "
            "(operators.from_rows, an (m, d, d) array, or A.agent(j) for one)",
            parameter="A",
            value=operator.batch,
        )
    return operator


def local_starts(W0: Array, W: npt.ArrayLike | None, network: Network) -> Array:
    """Return W⁰, or another W of shape ``(d, k)`` or ``(*B, d, k)``, for every local agent.

    Raises StartError if W has any other shape, or columns that are not orthonormal.
    """
    start = W0 if W is None else np.asarray(W, dtype=np.float64)
    if start.shape not in (W0.shape, (*network.batch, *W0.shape)):
        raise StartError(
            f"the start W has shape {start.shape}; expected {W0.shape}, the shape of W0, or one such W per local agent",
            parameter="W",
            value=start.shape,
        )
    gram = np.swapaxes(start, -1, -2) @ start
    if not (np.isfinite(gram).all() and np.abs(gram - np.eye(W0.shape[1])).max() <= 1e-8):
        raise StartError(
            "the columns of the start W are not orthonormal; use the W of a result, or the Q of numpy.linalg.qr",
            parameter="W",
        )
    # the last two axes are swapped in memory, as in the products A_j W
    d, k = W0.shape
    return np.swapaxes(np.array(np.broadcast_to(np.swapaxes(start, -1, -2), (*network.batch, k, d))), -1, -2)
