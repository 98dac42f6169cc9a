"""The only loop."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from deepca._util.machine import one_blas_thread
from deepca._util.typing import Array
from deepca.algorithms.base import Algorithm, State, TrackedState
from deepca.errors import EpochChanged, InvalidInput, NotFiniteError, StartError
from deepca.network.base import Network
from deepca.solver.certificate.proof import Proof, ritz
from deepca.solver.monitor import Agreement, why_not_finite
from deepca.solver.observers import Observer, Start, Step
from deepca.solver.result import Result, Status
from deepca.solver.stopping import StopRule
from deepca.solver.verdict import judge, not_judged

__all__ = ["solve"]

S_ = TypeVar("S_", bound=State)
_EPS = float(np.finfo(np.float64).eps)


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
    certify : prove the answer by fresh averages (:mod:`deepca.solver.certificate.bounds`), at the cost of some rounds.
    Where the
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
        if start.W.shape != state.W.shape or type(start) is not type(state):
            raise StartError(
                f"the state to start from is a {type(start).__name__} with W of shape {start.W.shape}, but "
                f"{algorithm.name} has a {type(state).__name__} with W of shape {state.W.shape}; "
                "resume with a state of the same algorithm and problem"
            )
        state = start
    first, last, restarts = state.t, state.t + max_iter, 0
    pace = algorithm.pace(state.K if isinstance(state, TrackedState) else 0)
    agreement = Agreement(network, stop, state.W.shape[-2], pace, certify)
    proof = Proof(algorithm, stop, last, first) if certify else None
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
                        state = _restarted(algorithm, state, network.epoch, agreement, proof)
                        recent = deque([state], maxlen=3)
                    else:
                        agreement.wait(state.t + proof.more)
                    continue
                network.begin(network.epoch, state.t)
                state = algorithm.step(agreement.paced(state))
                agreement.add(recent[-1], state)
            except np.linalg.LinAlgError as failed:
                raise NotFiniteError(
                    f"numbers are no longer finite in iteration {state.t + 1} ({failed}): {why_not_finite(state.S)}"
                ) from None
            except EpochChanged as change:
                restarts += 1
                state = _restarted(algorithm, state, change.epoch, agreement, proof)
                recent = deque([state], maxlen=3)
                continue
            recent.append(state)
            spent = network.traffic - sent if proof is None else network.traffic - sent - proof.traffic
            step = Step(recent[-2], state, spent, time.perf_counter() - began, agreement.latest)
            for observer in observers:
                observer.observe(step)
    network.forget()
    certificate = proof.certificate if proof is not None else None
    eigenvalues, components = ritz(recent[-2] if len(recent) > 1 else state, state)
    status, rank = _status(agreement, stop, state, proof, eigenvalues, first)
    if proof is not None and certificate is not None and status.code == "rank_deficient":
        certificate = certificate.of_rank(rank, proof.beyond if rank else 0.0)
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
        agreed=agreement.latest,
    )
    for observer in observers:
        observer.end(result)
    return result


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
    reached = agreement.history[-1].change if agreement.history else _EPS
    attempts = 0 if proof is None else proof.attempts
    while True:
        try:
            network.begin(epoch, -1, "restart")
            own = _per_agent(network, reached, -state.t, -agreement.K, -attempts)
            accuracy, *largest = network.reduce(own, "min")
            t, K, attempts = (-round(value) for value in largest)
            agreement.forget(t, K)
            if proof is not None:
                proof.forget(attempts)
            network.begin(epoch, t, "restart")
            rounds = algorithm.rounds_for(min(max(accuracy * 1e-2, _EPS), 1e-2))
            return algorithm.restart(replace(state, t=t), rounds)
        except EpochChanged as change:
            epoch = change.epoch


def _per_agent(network: Network, *values: float) -> Array:
    return np.array(np.broadcast_to(np.array(values), (*network.batch, len(values))))
