"""Iterate an algorithm until its answer is proven."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np

from deepca._util.floats import EPS
from deepca._util.machine import one_blas_thread
from deepca._util.typing import Array
from deepca._util.validation import Whole, check
from deepca.algorithms.base import Algorithm, State, TrackedState
from deepca.errors import EpochChanged, InvalidInput, NotFiniteError, StartError
from deepca.network.broadcasts import everywhere, packed
from deepca.network.traffic import Traffic
from deepca.solver.certificate.proof import Proof, ritz
from deepca.solver.monitor import Agreement, why_not_finite
from deepca.solver.observers import Observer, Start, Step
from deepca.solver.result import Result, Status, StatusCode
from deepca.solver.sentences import not_judged
from deepca.solver.stopping import StopRule
from deepca.solver.verdict import judge

__all__ = ["solve"]

S_ = TypeVar("S_", bound=State)


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
    certify : prove the answer by fresh averages (:mod:`deepca.solver.certificate`), at the cost of some rounds. Where
        the proof shows that the error is still too large, iterations go on; where it shows that tracking has gone
        wrong, tracking begins again.

    Every agent stops in the same iteration: the rule sees only numbers agreed through the network. They ride along
    with gossip, so a decision about iteration t falls ``⌈diameter / K⌉`` iterations later, without extra rounds.
    """
    check("max_iter", max_iter, Whole(1))
    if stop is not None and not hasattr(stop, "met"):
        raise InvalidInput(f"stop = {stop!r}: give a rule, such as deepca.Tolerance(1e-10)")
    run = _Run(algorithm, max_iter, stop, observers, start, certify)
    for observer in observers:
        observer.begin(Start(algorithm.name, algorithm.network, run.state, max_iter, stop.tol if stop else None))
    run.iterate()
    result = run.result()
    for observer in observers:
        observer.end(result)
    return result


class _Run(Generic[S_]):
    """A run under way: where it is, what its agents have agreed on, and what is proven.

    recent : the last three states.  last : the iteration at which it ends at the latest.
    """

    def __init__(
        self,
        algorithm: Algorithm[S_],
        max_iter: int,
        stop: StopRule | None,
        observers: Sequence[Observer],
        start: S_ | None,
        certify: bool,
    ) -> None:
        self.algorithm, self.network, self.stop, self.observers = algorithm, algorithm.network, stop, observers
        self.began, self.sent, self.restarts = time.perf_counter(), algorithm.network.traffic, 0
        self.state = state = _first_state(algorithm, start)
        self.first, self.last = state.t, state.t + max_iter
        pace = algorithm.pace(state.K if isinstance(state, TrackedState) else 0)
        self.agreement = Agreement(self.network, stop, state.W.shape[-2], pace, certify)
        self.proof = Proof(algorithm, stop, self.last, self.first) if certify else None
        self.recent: deque[S_] = deque([state], maxlen=3)

    def iterate(self) -> None:
        """Step, and decide from what was agreed, until the run is over."""
        self.network.forget()
        with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):  # what is not finite is found and named
            while True:
                try:
                    if self.state.t >= self.last or self.agreement.over:
                        if self._over():
                            break
                        continue
                    self.network.begin(self.network.epoch, self.state.t)
                    self.state = self.algorithm.step(self.agreement.paced(self.state))
                    self.agreement.add(self.recent[-1], self.state)
                except np.linalg.LinAlgError as failed:
                    raise NotFiniteError(
                        f"numbers are no longer finite in iteration {self.state.t + 1} ({failed}): "
                        f"{why_not_finite(self.state.S)}"
                    ) from None
                except EpochChanged as change:
                    self._restart(change.epoch)
                    continue
                self.recent.append(self.state)
                step = Step(self.recent[-2], self.state, self._traffic(), self._elapsed(), self.agreement.latest)
                for observer in self.observers:
                    observer.observe(step)
        self.network.forget()

    def _over(self) -> bool:
        """Prove what was reached; where that fails, let iterations go on or tracking begin again."""
        self.network.begin(self.network.epoch, self.state.t, "verdict")
        self.agreement.close(list(self.recent))
        if self.proof is None:
            return True
        self.proof.attempt(list(self.recent), self.agreement.history)
        if self.proof.over:
            return True
        if self.proof.lost:
            self._restart(self.network.epoch)
        else:
            self.agreement.wait(self.state.t + self.proof.more)
        return False

    def _restart(self, epoch: int) -> None:
        self.restarts += 1
        self.state = _restarted(self.algorithm, self.state, epoch, self.agreement, self.proof)
        self.recent = deque([self.state], maxlen=3)

    def _traffic(self) -> Traffic:
        spent = self.network.traffic - self.sent
        return spent if self.proof is None else spent - self.proof.traffic

    def _elapsed(self) -> float:
        return time.perf_counter() - self.began

    def result(self) -> Result[S_]:
        """Describe the end of the run; with a proof, by what was proven instead of what is tracked."""
        state, proof = self.state, self.proof
        certificate = proof.certificate if proof is not None else None
        eigenvalues, components = ritz(self.recent[-2] if len(self.recent) > 1 else state, state)
        status, rank = _status(self.agreement, self.stop, state, proof, eigenvalues, self.first)
        if proof is not None and certificate is not None:
            if status.code == StatusCode.RANK_DEFICIENT:
                certificate = certificate.of_rank(rank, proof.beyond if rank else 0.0)
            components = np.array(np.broadcast_to(proof.components, state.W.shape))
            eigenvalues = np.array(np.broadcast_to(certificate.eigenvalues, eigenvalues.shape))
        return Result(
            W=state.W,
            components=components,
            eigenvalues=eigenvalues,
            iterations=state.t - self.first,
            status=status,
            rank=rank,
            traffic=self._traffic(),
            elapsed=self._elapsed(),
            state=state,
            certificate=certificate,
            restarts=self.restarts,
            agreed=self.agreement.latest,
        )


def _first_state(algorithm: Algorithm[S_], start: S_ | None) -> S_:
    """The State to begin with: the algorithm's own, or one that fits it."""
    state = algorithm.init()
    if start is None:
        return state
    if start.W.shape != state.W.shape or type(start) is not type(state):
        raise StartError(
            f"the state to start from is a {type(start).__name__} with W of shape {start.W.shape}, but "
            f"{algorithm.name} has a {type(state).__name__} with W of shape {state.W.shape}; "
            "resume with a state of the same algorithm and problem"
        )
    return start


def _status(
    agreement: Agreement, stop: StopRule | None, state: State, proof: Proof | None, eigenvalues: Array, first: int
) -> tuple[Status, int]:
    k, history = state.W.shape[-1], agreement.history
    if not history:
        return not_judged(), k
    certificate = proof.certificate if proof is not None else None
    if certificate is not None:
        eigenvalues = np.array(certificate.eigenvalues)  # of A itself, not of what is tracked
    lost, stuck, beyond = (proof.lost, proof.stuck, proof.beyond) if proof is not None else (False, False, None)
    made = state.t - first
    status = judge(history, stop, state, made, certificate, lost, stuck, eigenvalues, agreement.paces, beyond)
    return status, history[-1].rank


def _restarted(algorithm: Algorithm[S_], state: S_, epoch: int, agreement: Agreement, proof: Proof | None) -> S_:
    """Begin tracking again at the current W, in the same iteration everywhere, mixed long enough to lose nothing.

    Agents may have been caught in neighbouring iterations, one of them with a decision made that the others still
    waited for. So what steers the run (iteration, K, attempts at a proof) is agreed anew, and all else forgotten.
    """
    network = algorithm.network
    reached = agreement.history[-1].change if agreement.history else EPS
    attempts = 0 if proof is None else proof.attempts
    while True:
        try:
            network.begin(epoch, -1, "restart")
            own = packed(reached, -state.t, -agreement.K, -attempts)
            accuracy, *largest = network.reduce(everywhere(own, network), "min")
            t, K, attempts = (-round(value) for value in largest)
            agreement.forget(t, K)
            if proof is not None:
                proof.forget(attempts)
            network.begin(epoch, t, "restart")
            rounds = algorithm.rounds_for(min(max(accuracy * 1e-2, EPS), 1e-2))
            return algorithm.restart(replace(state, t=t), rounds)
        except EpochChanged as change:
            epoch = change.epoch
