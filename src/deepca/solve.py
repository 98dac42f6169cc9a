"""The only loop."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

import numpy as np

from deepca._machine import one_blas_thread
from deepca._typing import Array
from deepca.algorithms.base import Algorithm, State
from deepca.errors import EpochChanged, InvalidInput, NotFiniteError, StartError
from deepca.networks.base import Network, Pending
from deepca.observers import Observer, Start, Step
from deepca.result import Result, Status
from deepca.stopping import Agreed, StopRule, agreed_from, at_floor, error_estimate, measure, rate

__all__ = ["solve"]

S_ = TypeVar("S_", bound=State)
_PRESENTABLE = 1e-6  # without a stop rule: what looks converged
_EPS = float(np.finfo(np.float64).eps)


def solve(
    algorithm: Algorithm[S_],
    *,
    max_iter: int,
    stop: StopRule | None = None,
    observers: Sequence[Observer] = (),
    start: S_ | None = None,
) -> Result[S_]:
    """Iterate ``algorithm.step`` until ``stop`` is met or ``max_iter`` iterations are made.

    Parameters
    ----------
    algorithm : DeEPCA, DePCA, CPCA, or anything with their three methods.
    max_iter : the most iterations this call makes.
    stop : e.g. ``Tolerance(1e-10)``; without one exactly ``max_iter`` iterations are made, as in the paper.
    observers : told of every step; they measure and show, and cannot change the run.
    start : the State of an earlier Result, to go on where it ended.

    Every agent stops in the same iteration: the rule sees only numbers agreed through the network. They ride along
    with gossip, so a decision about iteration t falls ``⌈diameter / K⌉`` iterations later, without extra rounds.
    """
    if isinstance(max_iter, bool) or not isinstance(max_iter, (int, np.integer)) or max_iter < 1:
        raise InvalidInput(f"max_iter = {max_iter!r}: a whole number of at least one iteration is needed")
    if stop is not None and not hasattr(stop, "met"):
        raise InvalidInput(f"stop = {stop!r}: give a rule, such as deepca.Tolerance(1e-10)")
    network, began, sent = algorithm.network, time.perf_counter(), algorithm.network.traffic
    state = algorithm.init()
    if start is not None:
        if start.W.shape != state.W.shape or not isinstance(start, type(state)):
            raise StartError(
                f"the state to start from is a {type(start).__name__} with W of shape {start.W.shape}, but "
                f"{algorithm.name} has a {type(state).__name__} with W of shape {state.W.shape}; "
                "resume with a state of the same algorithm and problem"
            )
        state = start
    first, last = state.t, state.t + max_iter
    agreement = _Agreement(network, stop, state.W.shape[-2])
    recent: deque[S_] = deque([state], maxlen=3)
    for observer in observers:
        observer.begin(Start(algorithm.name, network, state, max_iter, stop.tol if stop else None))
    network.forget()
    with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):  # what is not finite is found and named
        while True:
            try:
                if state.t >= last or agreement.over:
                    network.begin(network.epoch, state.t, "verdict")
                    status, rank = agreement.verdict(list(recent), max_iter)
                    break
                network.begin(network.epoch, state.t)
                state = algorithm.step(state)
            except EpochChanged as change:
                state = _restarted(algorithm, state, change.epoch, agreement)
                recent.clear()
                recent.append(state)
                continue
            agreement.add(recent[-1], state)
            recent.append(state)
            step = Step(recent[-2], state, network.traffic - sent, time.perf_counter() - began, agreement.latest)
            for observer in observers:
                observer.observe(step)
    network.forget()
    eigenvalues, components = _ritz(recent[-2].W if len(recent) > 1 else state.W, state)
    if status.ok and eigenvalues.min() < -1e-6 * np.abs(eigenvalues).max():
        status = _indefinite(float(eigenvalues.min()))
    result = Result(
        W=state.W,
        components=components,
        eigenvalues=eigenvalues,
        iterations=state.t - first,
        status=status,
        rank=rank,
        traffic=network.traffic - sent,
        elapsed=time.perf_counter() - began,
        state=state,
    )
    for observer in observers:
        observer.end(result)
    return result


class _Agreement:
    """Local numbers on their way to agreement, the agreed history, and the decision to stop."""

    def __init__(self, network: Network, stop: StopRule | None, d: int) -> None:
        self._network, self._stop, self._d = network, stop, d
        self._pending: deque[tuple[int, Pending]] = deque()
        self.history: list[Agreed] = []
        self.over = False
        self._rode = network.full_rounds

    @property
    def latest(self) -> Agreed | None:
        return self.history[-1] if self.history else None

    def add(self, before: State, after: State) -> None:
        if self._stop is None:
            return
        measured = measure(before, after)
        if self._network.full_rounds > self._rode:
            self._pending.append((after.t, self._network.reduce_later(measured, "max")))
        else:  # a mixer with weights of its own in every round gives nothing to ride on
            self._network.forget()
            self._pending.clear()
            self._pending.append((after.t, Pending(self._network.reduce(measured, "max"), "max", 0)))
        self._rode = self._network.full_rounds
        while self._pending and self._pending[0][1].ready and not self.over:
            t, pending = self._pending.popleft()
            self.history.append(_finite(agreed_from(t, self._d, pending.value)))
            self.over = self._stop.met(self.history) or at_floor(self.history)

    def forget(self) -> None:
        """The past no longer tells the rate."""
        self._pending.clear()
        self.history.clear()

    def verdict(self, recent: list[State], max_iter: int) -> tuple[Status, int]:
        """Status and agreed rank at the end, from the history or, without one, from the last two steps."""
        if not self.over and len(recent) > 1:
            steps = list(pairwise(recent))
            if self.history:
                steps = steps[-1:]
            measured = np.stack([measure(before, after) for before, after in steps], axis=-2)
            values = self._network.reduce(measured, "max")
            for (_, after), value in zip(steps, values, strict=True):
                self.history.append(_finite(agreed_from(after.t, self._d, value)))
        k = recent[-1].W.shape[-1]
        if not self.history:
            return Status("not_converged", "the network changed in the last iteration; go on from the state"), k
        return _judge(self.history, self._stop, k, max_iter), self.history[-1].rank


def _judge(history: list[Agreed], stop: StopRule | None, k: int, max_iter: int) -> Status:
    end, error, r = history[-1], error_estimate(history), rate(history)
    tol = stop.tol if stop is not None else _PRESENTABLE
    seen = f"estimated error {error:.1e}, agents within {end.disagreement:.1e} of each other"
    met = stop.met(history) if stop is not None else max(error, end.disagreement) <= tol
    floor = end.change <= end.floor and end.disagreement <= 100.0 * end.floor
    if (met or floor) and end.rank == 0:
        return Status("rank_deficient", "the data have rank 0: every A_j W is zero, or too small to square")
    if (met or floor) and end.rank < k:
        return Status(
            "rank_deficient",
            f"the data have rank {end.rank}, less than the k = {k} components asked for; columns beyond the rank have "
            f"eigenvalue zero and only complete the basis, the same way at every agent. Ask for k ≤ {end.rank}",
        )
    if met and stop is not None:
        return Status("converged", f"{seen} (tolerance {tol:.1e})")
    if floor:
        if stop is None:
            return Status("completed", f"{max_iter} iterations, at the rounding floor; {seen}")
        return Status("rounding_floor", f"tolerance {tol:.1e} lies below what rounding allows here; {seen}")
    if met:
        return Status("completed", f"{max_iter} iterations; {seen}")
    if end.disagreement > tol and end.disagreement >= min(error, end.change):
        few = f" (the data also have rank {end.rank} only: ask for k ≤ {end.rank})" if end.rank < k else ""
        return Status(
            "not_converged",
            f"did not converge: disagreement stayed at {end.disagreement:.1e} after {max_iter} iterations; "
            f"raise rounds{few}",
        )
    if r < 1.0:
        more = math.ceil(math.log(tol / max(error, tol)) / math.log(max(r, 1e-3))) + 1
        return Status(
            "not_converged",
            f"did not converge: estimated error {error:.1e} after {max_iter} iterations, shrinking by {r:.3g} per "
            f"iteration; about {more} more are needed for {tol:.0e}. Raise max_iter, or go on from the state",
        )
    return Status(
        "not_converged",
        f"did not converge: the subspace still moves by {end.change:.1e} per iteration after {max_iter} iterations and "
        "does not settle; raise rounds, or choose k at a clear gap between eigenvalues",
    )


def _restarted(algorithm: Algorithm[S_], state: S_, epoch: int, agreement: _Agreement) -> S_:
    """Begin tracking again at the current W, in the same iteration everywhere, mixed long enough to lose nothing."""
    network = algorithm.network
    reached = agreement.history[-1].change if agreement.history else _EPS
    agreement.forget()
    while True:
        try:
            network.begin(epoch, -1, "restart")  # agents may have been caught in neighbouring iterations
            latest, accuracy = network.reduce(_per_agent(network, -state.t, reached), "min")
            t = -int(latest)
            network.begin(epoch, t, "restart")
            rounds = algorithm.rounds_for(min(max(accuracy * 1e-2, _EPS), 1e-2))
            return algorithm.restart(replace(state, t=t), rounds)
        except EpochChanged as change:
            epoch = change.epoch


def _per_agent(network: Network, *values: float) -> Array:
    return np.array(np.broadcast_to(np.array(values), (*network.batch, len(values))))


def _finite(agreed: Agreed) -> Agreed:
    if not math.isfinite(agreed.change):
        raise NotFiniteError(
            f"W is no longer finite in iteration {agreed.t}: the products A_j W overflow or the mixing expands; "
            "scale the data, or use a mixer that contracts on this network"
        )
    return agreed


def _indefinite(smallest: float) -> Status:
    return Status(
        "indefinite_mean",
        f"the mean of the A_j has the eigenvalue {smallest:.3g} < 0, so these are the eigenvalues largest in modulus, "
        "not the largest; add the same multiple of the identity to every A_j, large enough to make the mean positive",
    )


def _ritz(V: Array, state: State) -> tuple[Array, Array]:
    """Eigenvalues ``(*B, k)`` and principal components ``(*B, d, k)``, both by descending eigenvalue.

    S is the tracked ``A V`` of the step before, so ``VᵀS`` gives both without another round: with ``VᵀS = Q θ Qᵀ`` the
    components are ``V Q``, carried over into the newer subspace of W. The largest entry of each is positive.
    """
    W, Vt = state.W, np.swapaxes(V, -1, -2)
    B = Vt @ state.S
    theta, Q = np.linalg.eigh((B + np.swapaxes(B, -1, -2)) / 2.0)
    left, _, right = np.linalg.svd(np.swapaxes(W, -1, -2) @ V @ Q[..., ::-1])
    X = W @ (left @ right)
    largest = np.take_along_axis(X, np.abs(X).argmax(axis=-2)[..., None, :], axis=-2)
    return np.asarray(theta[..., ::-1]), X * np.where(largest < 0.0, -1.0, 1.0)
