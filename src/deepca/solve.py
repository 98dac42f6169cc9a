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
from deepca.algorithms.base import Algorithm, State, TrackedState
from deepca.axes import principal_axes
from deepca.certificate import FAILURE, Certificate, digest_of
from deepca.certificate import certify as fresh_certificate
from deepca.errors import EpochChanged, InvalidInput, NotFiniteError, StartError
from deepca.linalg import largest_positive, symmetric_part
from deepca.networks.base import Network, Pending, Traffic
from deepca.observers import Observer, Start, Step
from deepca.pacing import Pace
from deepca.result import Result, Status
from deepca.stopping import MEASURED, Agreed, StopRule, agreed_from, at_floor, error_estimate, measure, rate, stalled
from deepca.verdict import PRESENTABLE, judge, more_iterations, not_judged

__all__ = ["solve"]

S_ = TypeVar("S_", bound=State)
_EPS = float(np.finfo(np.float64).eps)
_REMEMBERED = 64  # agreed entries; no rule looks farther back
_REPAIRS = 3  # restarts of a tracking that fresh averages contradict


def solve(
    algorithm: Algorithm[S_],
    *,
    max_iter: int,
    stop: StopRule | None = None,
    observers: Sequence[Observer] = (),
    start: S_ | None = None,
    certify: bool = True,
) -> Result[S_]:
    """Iterate ``algorithm.step`` until ``stop`` is met, and proven, or ``max_iter`` iterations are made.

    Parameters
    ----------
    algorithm : DeEPCA, DePCA, CPCA, or anything with their methods.
    max_iter : the most iterations this call makes.
    stop : e.g. ``Tolerance(1e-10)``; without one exactly ``max_iter`` iterations are made, as in the paper.
    observers : told of every step; they measure and show, and cannot change the run.
    start : the State of an earlier Result, to go on where it ended.
    certify : prove the answer by fresh averages (:mod:`deepca.certificate`), at the cost of some rounds. Where the
        proof shows that the error is still too large, iterations go on; where it shows that tracking has gone wrong,
        tracking begins again.

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
    first, last, restarts = state.t, state.t + max_iter, 0
    agreement = _Agreement(network, stop, state.W.shape[-2], _pace_of(algorithm, state), certify)
    proof = _Proof(algorithm, stop, last, first) if certify else None
    recent: deque[S_] = deque([state], maxlen=3)
    for observer in observers:
        observer.begin(Start(algorithm.name, network, state, max_iter, stop.tol if stop else None))
    network.forget()
    with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):  # what is not finite is found and named
        while True:
            try:
                if state.t >= last or agreement.over:
                    network.begin(network.epoch, state.t, "verdict")
                    agreement.close(list(recent))
                    if proof is None:
                        break
                    proof.attempt(list(recent), agreement.history)
                    if proof.over:
                        break
                    if proof.lost:
                        restarts += 1
                        state = _restarted(algorithm, state, network.epoch, agreement)
                        recent = deque([state], maxlen=3)
                    else:
                        agreement.wait(state.t + proof.more)
                    continue
                network.begin(network.epoch, state.t)
                state = algorithm.step(agreement.paced(state))
                agreement.add(recent[-1], state)
            except EpochChanged as change:
                restarts += 1
                state = _restarted(algorithm, state, change.epoch, agreement)
                recent = deque([state], maxlen=3)
                if proof is not None:
                    proof.forget()
                continue
            recent.append(state)
            spent = network.traffic - sent if proof is None else network.traffic - sent - proof.traffic
            step = Step(recent[-2], state, spent, time.perf_counter() - began, agreement.latest)
            for observer in observers:
                observer.observe(step)
    network.forget()
    certificate = proof.certificate if proof is not None else None
    eigenvalues, components = _ritz(state.multiplied(recent[-2].W if len(recent) > 1 else state.W), state)
    status, rank = _status(agreement, stop, state, proof, eigenvalues, first)
    if proof is not None and certificate is not None:
        components = np.array(np.broadcast_to(proof.components, state.W.shape))
        eigenvalues = np.array(np.broadcast_to(certificate.eigenvalues, eigenvalues.shape))
    result = Result(
        W=state.W,
        components=components,
        eigenvalues=eigenvalues,
        iterations=state.t - first,
        status=status,
        rank=rank,
        traffic=network.traffic - sent if proof is None else network.traffic - sent - proof.traffic,
        elapsed=time.perf_counter() - began,
        state=state,
        certificate=certificate,
        restarts=restarts,
    )
    for observer in observers:
        observer.end(result)
    return result


def _pace_of(algorithm: Algorithm[S_], state: S_) -> Pace | None:
    """Who chooses K, where the mixer leaves it open."""
    mixer = algorithm.mix
    if mixer is None or not mixer.auto:
        return None
    return algorithm.pace(mixer, algorithm.network.topology, state.K if isinstance(state, TrackedState) else 0)


def _status(
    agreement: _Agreement, stop: StopRule | None, state: State, proof: _Proof | None, eigenvalues: Array, first: int
) -> tuple[Status, int]:
    k, history = state.W.shape[-1], agreement.history
    if not history:
        return not_judged(), k
    certificate = proof.certificate if proof is not None else None
    if certificate is not None:
        eigenvalues = np.array(certificate.eigenvalues)  # of A itself, not of what is tracked
    lost, stuck = (proof.lost, proof.stuck) if proof is not None else (False, False)
    status = judge(history, stop, k, state.t - first, certificate, lost, stuck, eigenvalues, agreement.paces)
    return status, history[-1].rank


class _Agreement:
    """Local numbers on their way to agreement, the agreed history, and what follows from it: K, and the end."""

    def __init__(self, network: Network, stop: StopRule | None, d: int, pace: Pace | None, alarms: bool) -> None:
        self._network, self._stop, self._d, self._pace = network, stop, d, pace
        self._alarms = alarms  # whether somebody can look closer where nothing moves
        self._pending: deque[tuple[int, Pending]] = deque()
        self.history: list[Agreed] = []
        self.over = False
        self._not_before, self._no_alarm_before, self._alarm = 0, 0, False
        self._rode = network.full_rounds + network.sweeps
        self._advice: tuple[Array, Agreed] | None = None

    @property
    def paces(self) -> bool:
        """Whether K is chosen while running."""
        return self._pace is not None

    @property
    def latest(self) -> Agreed | None:
        return self.history[-1] if self.history else None

    def paced(self, state: S_) -> S_:
        """The state with K for its next mix, and with what else all agents know by now."""
        if self._advice is not None:
            state, self._advice = state.advised(*self._advice), None
        if self._pace is None or not isinstance(state, TrackedState):
            return state
        return replace(state, K=self._pace.K)

    def add(self, before: State, after: State) -> None:
        proposal = after.proposal
        if self._stop is None and self._pace is None and not proposal.shape[-1]:
            return
        first = (self._network.local == 0)[..., None]
        measured = np.concatenate([measure(before, after), np.where(first, proposal, -np.inf)], axis=-1)
        carried = self._network.full_rounds + self._network.sweeps
        if carried > self._rode:
            self._pending.append((after.t, self._network.reduce_later(measured, "max")))
        else:  # nothing to ride on
            self._network.forget()
            self._pending.clear()
            self._pending.append((after.t, Pending(self._network.reduce(measured, "max"), "max", 0)))
        self._rode = carried
        while self._pending and self._pending[0][1].ready and not self.over:
            t, pending = self._pending.popleft()
            self.history.append(_finite(agreed_from(t, self._d, pending.value[:MEASURED])))
            if pending.value.size > MEASURED:
                self._advice = pending.value[MEASURED:], self.history[-1]
            del self.history[:-_REMEMBERED]
            if self._pace is not None:
                self._pace.see(self.history[-1], after.t, after.expected)
            if self._stop is not None:
                self.over = self._ends(self._stop, after.t)

    def _ends(self, stop: StopRule, t: int) -> bool:
        """Whether to look closer: the rule is met, rounding is reached, a failed proof said so, or nothing moves."""
        if t < self._not_before and not at_floor(self.history):  # at the floor, waiting gains nothing
            return False
        self._alarm = False
        # after a proof that failed, the next attempt is due when that proof said
        if self._not_before > 0 or stop.met(self.history) or at_floor(self.history):
            return True
        self._alarm = self._alarms and t >= self._no_alarm_before and stalled(self.history)
        return self._alarm

    def wait(self, t: int) -> None:
        """Do not end before iteration t; then do. After a false alarm, only do not look at another before t."""
        self.over = False
        if self._alarm:
            self._no_alarm_before = t
        else:
            self._not_before = t

    def close(self, recent: list[State]) -> None:
        """Nothing rides along any more. Without a decision the last steps are measured now."""
        self._network.forget()
        self._pending.clear()
        if self.over or len(recent) < 2:
            return
        steps = list(pairwise(recent))
        if self.history:
            steps = [step for step in steps[-1:] if step[1].t > self.history[-1].t]  # agents alone know at once
        if not steps:
            return
        measured = np.stack([measure(before, after) for before, after in steps], axis=-2)
        values = self._network.reduce(measured, "max")
        for (_, after), value in zip(steps, values, strict=True):
            self.history.append(_finite(agreed_from(after.t, self._d, value)))

    def forget(self, t: int) -> None:
        """The past no longer tells the rate."""
        self._pending.clear()
        self.history.clear()
        self._advice = None
        self.over, self._not_before, self._no_alarm_before = False, 0, 0
        if self._pace is not None:
            self._pace.forget(t)


class _Proof:
    """Attempts at a certificate, and what follows from one that does not prove the tolerance."""

    def __init__(self, algorithm: Algorithm[S_], stop: StopRule | None, last: int, first: int) -> None:
        self._algorithm, self._stop, self._last, self._first = algorithm, stop, last, first
        self._tol = stop.tol if stop is not None else PRESENTABLE
        self._attempts, self._repairs = 0, 0
        self._known: Certificate | None = None
        self.traffic = Traffic(agents=algorithm.network.traffic.agents)
        self.certificate: Certificate | None = None
        self.components: Array = np.empty(0)
        self.over, self.lost, self.stuck, self.more = False, False, False, 0
        self._residual = math.inf

    def forget(self) -> None:
        """The network changed, and with it what is averaged."""
        self._known = None

    def attempt(self, recent: list[State], history: Sequence[Agreed]) -> None:
        network, state = self._algorithm.network, recent[-1]
        before = network.traffic
        self._attempts += 1
        network.begin(network.epoch, state.t, "certificate")
        try:
            _, own = _ritz(state.multiplied(recent[-2].W if len(recent) > 1 else state.W), state)
            certificate, self.components = fresh_certificate(
                self._algorithm.A,
                own,
                network,
                W=state.W,
                tracked=state.excess,
                tol=min(self._tol, 1e-13) if at_floor(history) else self._tol,  # at the floor, as sharp as can be
                accuracy=1.0 if self._stop is not None else _reached(history),
                gap=_gap(state, history),
                failure=FAILURE / 2.0**self._attempts,  # all attempts together stay below it
                products=max(40, (state.t - self._first) // 2),
                known=self._known,
            )
            if certificate.bound < certificate.eigenvalues[-1]:
                self._known = certificate
            self._decide(state, history, certificate)
            if self.over and certificate.averaging_ok:  # the same subspace, its axes to rounding
                self.components, theta = principal_axes(self._algorithm.A, self.components, network)
                exact, digest = tuple(map(float, theta)), digest_of(self.components)
                certificate = replace(certificate, eigenvalues=exact, coupling=certificate.noise, digest=digest)
        finally:
            self.traffic += network.traffic - before
        self.certificate = replace(certificate, traffic=self.traffic)

    def _decide(self, state: State, history: Sequence[Agreed], certificate: Certificate) -> None:
        done = certificate.proves(self._tol)
        if history and 0 < history[-1].rank < certificate.k:  # the columns that carry the data, too
            done = done and certificate.leading(history[-1].rank) <= self._tol
        self.lost = certificate.drifted(self._tol) and not done
        # while the subspace still moves, what lies outside may yet come in
        settled = at_floor(history) or (self._stop is not None and self._stop.met(history))
        hopeless = (settled and not certificate.unique) or not certificate.averaging_ok
        self.over = self._stop is None or state.t >= self._last or done
        if self.lost and not self.over:
            self._repairs += 1
            self._known = None
            self.over = self._repairs > _REPAIRS
            return
        # no smaller than before, and rounding could explain it
        self.stuck = certificate.residual > 0.5 * self._residual and certificate.residual <= 100.0 * certificate.noise
        self._residual = certificate.residual
        self.over = self.over or hopeless or at_floor(history) or self.stuck
        if state.seen_gap is not None:  # no power iteration: faster than the gap would tell, and ever faster
            r, factor = min(rate(history), 0.9) if history else 0.9, certificate.worst_angle / self._tol
            longest = self._last
        elif certificate.resolved and certificate.others:
            r, factor = certificate.next_eigenvalue / certificate.eigenvalues[-1], certificate.worst_angle / self._tol
            longest = self._last
        else:  # no gap to be seen yet: look again when the residual is a thousandth, or after as long again
            r, factor, longest = rate(history) if history else 0.99, 1e3, max(state.t - self._first, 50)
        more = min(more_iterations(min(factor, 1.0 / self._tol), 0.9, r), longest)
        self.more = max(more, 2 ** (self._attempts - 1))


def _reached(history: Sequence[Agreed]) -> float:
    """How good the answer seems to be, at least."""
    return max(error_estimate(history), history[-1].disagreement, _EPS) if history else 1.0


def _gap(state: State, history: Sequence[Agreed]) -> float:
    """A guess of the relative gap behind k, from the rate of convergence or from Ritz values."""
    if state.seen_gap is None and not history:
        return 0.1
    return min(max(1.0 - rate(history) if state.seen_gap is None else state.seen_gap, 1e-6), 0.5)


def _restarted(algorithm: Algorithm[S_], state: S_, epoch: int, agreement: _Agreement) -> S_:
    """Begin tracking again at the current W, in the same iteration everywhere, mixed long enough to lose nothing."""
    network = algorithm.network
    reached = agreement.history[-1].change if agreement.history else _EPS
    agreement.forget(state.t)
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


def _ritz(V: Array, state: State) -> tuple[Array, Array]:
    """Eigenvalues ``(*B, k)`` and principal components ``(*B, d, k)``, both by descending eigenvalue.

    S is the tracked ``A V`` of the step before, so ``VᵀS`` gives both without another round: with ``VᵀS = Q θ Qᵀ`` the
    components are ``V Q``, carried over into the newer subspace of W. The largest entry of each is positive.
    """
    W, Vt = state.W, np.swapaxes(V, -1, -2)
    B = Vt @ state.S
    theta, Q = np.linalg.eigh(symmetric_part(B))
    left, _, right = np.linalg.svd(np.swapaxes(W, -1, -2) @ V @ Q[..., ::-1])
    return np.asarray(theta[..., ::-1]), largest_positive(W @ (left @ right))
