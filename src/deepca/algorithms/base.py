"""What the loop in :mod:`deepca.solve` asks of an algorithm, and what algorithms share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from deepca._util.portable import acosh
from deepca._util.typing import Array, Orthonormalise
from deepca.consensus.mixer_state import Memory, mean_of
from deepca.consensus.mixers import FastMix, Mixer, averager
from deepca.consensus.pacing import Matched, Pace, Searched
from deepca.errors import DataError, InvalidInput, StartError
from deepca.network.base import Network
from deepca.operators.base import Operator, OperatorLike, PerAgent
from deepca.operators.construction import operator_from
from deepca.operators.linalg import check_start, polar, qr, signs_towards

if TYPE_CHECKING:
    from deepca.solver.stopping import Agreed

__all__ = [
    "Algorithm",
    "Decentralized",
    "OverExactAverages",
    "QRSignAdjust",
    "State",
    "TrackedState",
    "basis",
    "chebyshev_growth",
    "matching_operator",
    "spread",
]

_SORTED = 2


@dataclass(frozen=True)
class State:
    """What an algorithm carries from one iteration to the next; a checkpoint is a State.

    t : iterations made.  W : orthonormal bases.  S : what W was made from, ``W R = S``.  Both ``(*B, d, k)``.
    """

    t: int
    W: Array
    S: Array

    @property
    def seen_gap(self) -> float | None:
        """``1 − λ_{k+1}/λ_k`` where the algorithm itself sees it; None where only the rate of convergence tells."""
        return None

    @property
    def expected(self) -> float | None:
        """By what the logarithm of the error should fall per iteration, with rounds to spare; None if not known."""
        return None

    def shrinks_by(self, inside: float, outside: Sequence[float]) -> float:
        """Return the factor of the error per iteration, with rounds to spare, from λ_k and λ_{k+1}, λ_{k+2}, …"""
        return outside[0] / inside

    @property
    def most_left(self) -> int | None:
        """Iterations after which nothing can be left to find; None where there is no such number."""
        return None

    @property
    def common(self) -> bool:
        """Whether all agents have the same W and S but for rounding, which leaves directions without length open."""
        return False

    @property
    def heterogeneity(self) -> Array:
        """By how much each local agent's own product differs from what is tracked, ``(*B,)``; 0 where nobody asks."""
        return np.zeros(self.W.shape[:-2])

    @property
    def estimate(self) -> Array:
        """What S says of the mean product: S itself, or ``S / y`` on a directed graph."""
        return self.S

    @property
    def excess(self) -> Array | None:
        """What is tracked beyond the local products; its mean is zero, unless tracking was disturbed. None without."""
        return None

    @property
    def proposal(self) -> Array:
        """Numbers ``(*B, n)`` of which agent 0's are to become known to all; none by default."""
        return np.zeros((*self.W.shape[:-2], 0))

    def advised(self, values: Array, agreed: Agreed) -> Self:
        """The state after agent 0's proposal of iteration ``agreed.t`` has become known to all."""
        return self

    def multiplied(self, before: Array) -> Array:
        """The orthonormal basis whose product S is: W of the step before."""
        return before

    def __post_init__(self) -> None:
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False


@dataclass(frozen=True)
class TrackedState(State):
    """A State with ``AW = A_j W_j^{t−1}``, the product that S already contains.

    K : rounds of the next mix where the mixer leaves them open (``rounds="auto"``); 0 for the mixer's own start.
    memory : what the mixer keeps where messages are coded, or go one way only (:mod:`deepca.consensus.mixer_state`);
    None otherwise.
    """

    AW: Array
    K: int = 0
    memory: Memory | None = None

    @property
    def estimate(self) -> Array:
        return mean_of(self.S, self.memory)

    @property
    def excess(self) -> Array:
        return self.S - self.AW


S_ = TypeVar("S_", bound=State)


class Algorithm(Protocol[S_]):
    """An init/step pair over a network. Steps are pure: the same state gives the same next state."""

    @property
    def name(self) -> str: ...
    @property
    def network(self) -> Network: ...
    @property
    def A(self) -> Operator:
        """The ``A_j`` of the local agents."""
        ...

    @property
    def mix(self) -> Mixer | None:
        """How agents average; None for one that works alone."""
        ...

    def pace(self, K: int) -> Pace | None:
        """Who chooses K, beginning with that one; None where the mixer, or nobody, has rounds of its own."""
        ...

    def init(self, W: npt.ArrayLike | None = None) -> S_:
        """The state before the first step, at W⁰ or at W."""
        ...

    def step(self, state: S_) -> S_:
        """One iteration."""
        ...

    def restart(self, state: S_, rounds: int) -> S_:
        """The same W after a disturbance of the network, with whatever depends on the past made anew."""
        ...

    def rounds_for(self, accuracy: float) -> int:
        """Rounds of mixing that shrink disagreement to ``accuracy``."""
        ...


@dataclass(frozen=True)
class QRSignAdjust:
    """The paper's orthonormalisation: ``W ← QR(S)``, then ``SignAdjust(W, W⁰)``; ``W R = S`` still holds."""

    W0: Array

    def __call__(self, S: Array) -> tuple[Array, Array]:
        W, R = qr(S)
        signs = signs_towards(W, self.W0)
        return W * signs[..., None, :], R * signs[..., :, None]


class Decentralized:
    """What DeEPCA and DePCA share: their parts, checked against each other, and where they start.

    Parameters
    ----------
    A : the ``A_j`` of the local agents; see :mod:`deepca.operators`.
    W0 : orthonormal ``(d, k)``, the same at every agent.
    network : who talks to whom; arrays are ``(*B, d, k)`` with ``B = network.batch``.
    mix : the mixer, e.g. ``FastMix(rounds=5)``; by default FastMix (Chebyshev where 𝐋 has negative eigenvalues, Gossip
        where the graph is directed or changes) with the rounds chosen while running.
    orthonormalise : ``S ↦ (W, R)`` with ``W R = S``: ``linalg.qr``, ``linalg.polar``, the paper's ``QRSignAdjust(W0)``;
        see :func:`basis` for the default.
    """

    name: str
    pacing: type[Searched] | type[Matched] = Searched

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
            mix = FastMix() if network.topology.positive_semidefinite else averager(network.topology)
        if not isinstance(mix, Mixer):
            raise InvalidInput(f"mix = {mix!r}: give a mixer, such as deepca.FastMix(rounds=5)")
        mix.check(network.topology)
        self.W0 = np.asfortranarray(check_start(W0, self.A.d))
        self.network, self.mix = network, mix
        self.orthonormalise = orthonormalise

    def init(self, W: npt.ArrayLike | None = None) -> TrackedState:
        W = spread(self.W0, W, self.network)
        return TrackedState(0, W, S=np.zeros_like(W), AW=np.zeros_like(W))

    def with_operator(self, A: OperatorLike) -> Self:
        """The same with other ``A_j``. Where these change while agents iterate, a State goes on there."""
        other = copy(self)
        other.A = matching_operator(A, self.network)
        if other.A.d != self.A.d:
            raise DataError(f"these A_j have d = {other.A.d}, those before had d = {self.A.d}; d has to stay the same")
        return other

    def rounds_for(self, accuracy: float) -> int:
        return self.mix.rounds_for(self.network.topology, accuracy)

    def pace(self, K: int) -> Pace | None:
        return self.pacing(self.mix, self.network.topology, K) if self.mix.auto else None


class OverExactAverages:
    """What methods share that average exactly: all agents hold the same numbers, and nothing is tracked."""

    mix = None

    def __init__(self, A: OperatorLike, W0: npt.ArrayLike, network: Network) -> None:
        self.A = matching_operator(A, network)
        self.W0 = check_start(W0, self.A.d)
        self.network = network

    def rounds_for(self, accuracy: float) -> int:
        return averager(self.network.topology).rounds_for(self.network.topology, accuracy)

    def pace(self, K: int) -> Pace | None:
        return None

    def _at_all(self, X: Array) -> Array:
        return np.asarray(np.broadcast_to(X, (*self.network.batch, *X.shape)))


def basis(orthonormalise: Orthonormalise | None, S: Array, t: int) -> tuple[Array, Array]:
    """``W R = S`` in iteration t; by default QR in the first two iterations and the polar factor from then on.

    The polar factor cannot flip a sign and does not turn with close eigenvalues inside the top k, which QR does. But it
    keeps whatever mixture of directions W⁰ has, and with it small eigenvalues drown in the rounding of large ones. QR
    sorts the columns by size; two iterations suffice, and the polar factor keeps the order. (docs/robustness.md has
    the evidence.)
    """
    if orthonormalise is None:
        orthonormalise = qr if t < _SORTED else polar
    return orthonormalise(S)


def chebyshev_growth(above: float, edge: float) -> float:
    """Return ``log(ξ + √(ξ²−1))``, ``ξ = 2λ/a − 1``: by what an eigenvalue λ outgrows those below the edge a."""
    return acosh(2.0 * above / edge - 1.0) if above > edge > 0.0 else (math.inf if above > edge else 0.0)


def matching_operator(A: OperatorLike, network: Network) -> Operator:
    """A as an Operator for just the agents that the network holds; of all agents, those of this rank are taken."""
    if not isinstance(network, Network):
        raise InvalidInput(f"network = {network!r}: give a network, such as deepca.SimulatedNetwork(topology)")
    operator = operator_from(A, int(network.local.reshape(-1)[0]))
    if not operator.batch and network.batch == (1,):
        operator = PerAgent([operator])
    if operator.batch == (network.n_agents,) != network.batch and network.batch:
        operator = operator.agents(network.local)
    if operator.batch != network.batch:
        have, want = (f"{b[0]} agents" if b else "one agent alone" for b in (operator.batch, network.batch))
        raise DataError(
            f"A holds the A_j of {have}, the network holds {want}; give one A_j per local agent "
            "(operators.from_rows, an (m, d, d) array, or A.agent(j) for one)"
        )
    return operator


def spread(W0: Array, W: npt.ArrayLike | None, network: Network) -> Array:
    """W⁰, or another W of shape ``(d, k)`` or ``(*B, d, k)``, for every local agent."""
    start = W0 if W is None else np.asarray(W, dtype=np.float64)
    if start.shape not in (W0.shape, (*network.batch, *W0.shape)):
        raise StartError(f"a start of shape {start.shape} cannot stand for W0 of shape {W0.shape}")
    gram = np.swapaxes(start, -1, -2) @ start
    if not (np.isfinite(gram).all() and np.abs(gram - np.eye(W0.shape[1])).max() <= 1e-8):
        raise StartError("the start is not orthonormal; use the W of a result, or the Q of numpy.linalg.qr")
    # with the last axes swapped in memory, as products A_j W come
    d, k = W0.shape
    return np.swapaxes(np.array(np.broadcast_to(np.swapaxes(start, -1, -2), (*network.batch, k, d))), -1, -2)
