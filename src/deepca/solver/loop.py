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
from deepca._util.validation import Integer, check
from deepca.algorithms.base import Algorithm, State, TrackedState
from deepca.consensus.broadcasts import for_local_agents, packed
from deepca.errors import EpochChanged, NotFiniteError, ParameterError, StartError
from deepca.network.traffic import Traffic
from deepca.solver.certificate.certifier import Certifier, ritz
from deepca.solver.monitor import Monitor, why_not_finite
from deepca.solver.observers import Observer, Start, Step
from deepca.solver.result import Result, Status, StatusCode
from deepca.solver.sentences import interrupted
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
    """Iterate an algorithm until its stop rule is met and the answer is proven.

    Parameters
    ----------
    algorithm : Algorithm
        DeEPCA, DePCA, CPCA, or any object with their methods.
    max_iter : int
        Maximum number of iterations of this call.
    stop : StopRule, optional
        Rule such as ``Tolerance(1e-10)``; without one, the run takes exactly ``max_iter`` iterations, as in the paper.
    observers : sequence of Observer, optional
        Observers to notify of every step; they can measure and display the run, but not change it.
    start : State, optional
        State of an earlier Result, to resume from.
    certify : bool, default=True
        Prove the answer from fresh averages (:mod:`deepca.solver.certificate`), at the cost of some rounds. If the
        proof fails, iterate further, or restart tracking if it has drifted.

    Returns
    -------
    Result
        Components, eigenvalues, status and certificate.

    Raises
    ------
    ParameterError
        If ``max_iter`` is not a positive integer, or ``stop`` is not a rule.
    StartError
        If ``start`` does not fit the algorithm and its problem.
    NotFiniteError
        If NaN or Inf appears.

    Notes
    -----
    All agents stop in the same iteration: the rule sees only numbers agreed through the network. These are piggybacked
    on gossip without extra rounds, so a decision about iteration t is made ``⌈diameter / K⌉`` iterations later.

    Examples
    --------
    >>> import numpy as np
    >>> import deepca
    >>> A, W0 = np.stack([np.diag([4.0, 2.0, 1.0])] * 4), np.ones((3, 1)) / 3**0.5
    >>> algorithm = deepca.DeEPCA(A, W0, deepca.SimulatedNetwork(deepca.topology.ring(4)))
    >>> result = deepca.solve(algorithm, max_iter=100, stop=deepca.Tolerance(1e-8))
    >>> result.status.ok, round(float(result.eigenvalues[0, 0]), 6)
    (True, 4.0)
    """
    check("max_iter", max_iter, Integer(1))
    if stop is not None and not hasattr(stop, "met"):
        raise ParameterError("stop", stop, "pass a rule, such as deepca.Tolerance(1e-10)")
    return _Run(algorithm, max_iter, stop, observers, start, certify).run()


class _Run(Generic[S_]):
    """A run in progress: its state, the numbers agreed so far, and the attempts to prove its answer.

    Attributes
    ----------
    recent : deque of State
        The last three states.
    last : int
        Last iteration that the run may reach.
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
        self.monitor = Monitor(self.network, stop, state.W.shape[-2], pace, certify)
        self.certifier = Certifier(algorithm, stop, self.last, self.first) if certify else None
        self.recent: deque[S_] = deque([state], maxlen=3)

    def run(self) -> Result[S_]:
        """Iterate from beginning to end, notify the observers, and return the result."""
        tol = self.stop.tol if self.stop else None
        started = Start(self.algorithm.name, self.network, self.state, self.last - self.first, tol)
        for observer in self.observers:
            observer.begin(started)
        self.iterate()
        result = self.result()
        for observer in self.observers:
            observer.end(result)
        return result

    def iterate(self) -> None:
        """Take steps until the agreed numbers and the certificate end the run."""
        self.network.discard_pending()
        with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):  # non-finite numbers are detected below
            while True:
                try:
                    if self.state.t >= self.last or self.monitor.over:
                        if self._conclude():
                            break
                        continue
                    self.network.begin(self.network.epoch, self.state.t)
                    self.state = self.algorithm.step(self.monitor.paced(self.state))
                    self.monitor.add(self.recent[-1], self.state)
                except np.linalg.LinAlgError as failed:
                    raise NotFiniteError(
                        f"numbers are no longer finite in iteration {self.state.t + 1} ({failed}): "
                        f"{why_not_finite(self.state.S)}"
                    ) from None
                except EpochChanged as change:
                    self._restart(change.epoch)
                    continue
                self.recent.append(self.state)
                step = Step(self.recent[-2], self.state, self._traffic(), self._elapsed(), self.monitor.latest)
                for observer in self.observers:
                    observer.observe(step)
        self.network.discard_pending()

    def _conclude(self) -> bool:
        """Attempt a proof and return whether the run is over; if not, schedule iterations or restart tracking."""
        self.network.begin(self.network.epoch, self.state.t, "verdict")
        self.monitor.close(list(self.recent))
        if self.certifier is None:
            return True
        self.certifier.attempt(list(self.recent), self.monitor.history)
        if self.certifier.over:
            return True
        if self.certifier.lost:
            self._restart(self.network.epoch)
        else:
            self.monitor.wait(self.state.t + self.certifier.more)
        return False

    def _restart(self, epoch: int) -> None:
        """Restart tracking in a new epoch."""
        self.restarts += 1
        self.state = _restart_tracking(self.algorithm, self.state, epoch, self.monitor, self.certifier)
        self.recent = deque([self.state], maxlen=3)

    def _traffic(self) -> Traffic:
        """Return the traffic of the iterations, without that of certificates."""
        spent = self.network.traffic - self.sent
        return spent if self.certifier is None else spent - self.certifier.traffic

    def _elapsed(self) -> float:
        """Return the seconds since the start."""
        return time.perf_counter() - self.began

    def result(self) -> Result[S_]:
        """Return the result of the run, with the components and eigenvalues that were proven if there is a proof."""
        state, certifier = self.state, self.certifier
        certificate = certifier.certificate if certifier is not None else None
        eigenvalues, components = ritz(self.recent[-2] if len(self.recent) > 1 else state, state)
        status, rank = _status(self.monitor, self.stop, state, certifier, eigenvalues, self.first)
        if certifier is not None and certificate is not None:
            if status.code == StatusCode.RANK_DEFICIENT:
                certificate = certificate.with_rank(rank, certifier.beyond if rank else 0.0)
            components = np.array(np.broadcast_to(certifier.components, state.W.shape))
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
            agreed=self.monitor.latest,
        )


def _first_state(algorithm: Algorithm[S_], start: S_ | None) -> S_:
    """Return the algorithm's initial state, or ``start`` if it fits the algorithm.

    Raises StartError if ``start`` does not fit.
    """
    state = algorithm.init()
    if start is None:
        return state
    if start.W.shape != state.W.shape or type(start) is not type(state):
        raise StartError(
            f"start is a {type(start).__name__} with W of shape {start.W.shape}, but {algorithm.name} needs a "
            f"{type(state).__name__} with W of shape {state.W.shape}; resume from a state of the same algorithm and "
            "problem",
            parameter="start",
            value=start.W.shape,
        )
    return start


def _status(
    monitor: Monitor, stop: StopRule | None, state: State, certifier: Certifier | None, eigenvalues: Array, first: int
) -> tuple[Status, int]:
    """Return the status of a run and its rank."""
    k, history = state.W.shape[-1], monitor.history
    if not history:
        return interrupted(), k
    certificate = certifier.certificate if certifier is not None else None
    if certificate is not None:
        eigenvalues = np.array(certificate.eigenvalues)  # of A itself, not of the tracked estimate
    lost, stuck, beyond = False, False, None
    if certifier is not None:
        lost, stuck, beyond = certifier.lost, certifier.stuck, certifier.beyond
    made = state.t - first
    status = judge(history, stop, state, made, certificate, lost, stuck, eigenvalues, monitor.chooses_rounds, beyond)
    return status, history[-1].rank


def _restart_tracking(
    algorithm: Algorithm[S_], state: S_, epoch: int, monitor: Monitor, certifier: Certifier | None
) -> S_:
    """Restart tracking at the current W, in the same iteration at every agent, with enough mixing to lose no accuracy.

    Agents may have been interrupted in neighbouring iterations, some after a decision for which others were still
    waiting. So the numbers that control the run (iteration, K, attempts at a proof) are agreed on again, and everything
    else is discarded.
    """
    network = algorithm.network
    reached = monitor.history[-1].change if monitor.history else EPS
    attempts = 0 if certifier is None else certifier.attempts
    while True:
        try:
            network.begin(epoch, -1, "restart")
            own = packed(reached, -state.t, -monitor.K, -attempts)
            accuracy, *largest = network.reduce(for_local_agents(own, network), "min")
            t, K, attempts = (-round(value) for value in largest)
            monitor.forget(t, K)
            if certifier is not None:
                certifier.forget(attempts)
            network.begin(epoch, t, "restart")
            rounds = algorithm.rounds_for(min(max(accuracy * 1e-2, EPS), 1e-2))
            return algorithm.restart(replace(state, t=t), rounds)
        except EpochChanged as change:
            epoch = change.epoch
