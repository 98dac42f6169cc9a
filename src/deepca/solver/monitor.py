"""Agree on measurements of a run in progress, which determine K, the proposal passed to the State, and the end."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

import numpy as np

from deepca._util.typing import Array
from deepca.algorithms.base import State, TrackedState
from deepca.consensus.pacing import Pace
from deepca.errors import Contradiction, NotFiniteError
from deepca.network.base import Network
from deepca.network.reductions import PendingReduction
from deepca.solver.stopping import N_MEASUREMENTS, Agreed, StopRule, agreed_from, at_floor, measure, stalled
from deepca.solver.verdict import UNDERFLOW

__all__ = ["Monitor", "why_not_finite"]

S_ = TypeVar("S_", bound=State)
_MAX_HISTORY = 64  # maximum number of agreed entries to keep; no rule uses older ones


class Monitor:
    """Measurements in transit, the history of agreed numbers, and the decisions based on them: K, and when to end.

    Parameters
    ----------
    network : Network
        Network of the run.
    stop : StopRule or None
        Stop rule of the run.
    d : int
        Dimension of the data.
    pace : Pace or None
        Policy that chooses K while running; None if K is fixed.
    alarms : bool
        Whether to interrupt a stalled run, so that a certificate can find the cause.
    """

    def __init__(self, network: Network, stop: StopRule | None, d: int, pace: Pace | None, alarms: bool) -> None:
        self._network, self._stop, self._d, self._pace = network, stop, d, pace
        self._alarms = alarms
        self._pending: deque[tuple[int, PendingReduction]] = deque()
        self.history: list[Agreed] = []
        self.over = False
        self._not_before, self._no_alarm_before, self._alarm = 0, 0, False
        self._rounds_so_far = network.full_rounds + network.sweeps
        self._advice: tuple[Array, Agreed] | None = None

    @property
    def chooses_rounds(self) -> bool:
        """True if K is chosen while running."""
        return self._pace is not None

    @property
    def latest(self) -> Agreed | None:
        """The most recent agreed numbers; None before the first."""
        return self.history[-1] if self.history else None

    def paced(self, state: S_) -> S_:
        """Return the state with K for its next mix, and with any proposal that has reached all agents."""
        if self._advice is not None:
            state, self._advice = state.with_proposal(*self._advice), None
        if self._pace is None or not isinstance(state, TrackedState):
            return state
        return replace(state, K=self._pace.K)

    def add(self, before: State, after: State) -> None:
        """Send the measurements of a step and record those of earlier steps that have now reached all agents."""
        proposal = after.proposal
        if self._stop is None and self._pace is None and not proposal.shape[-1]:
            return
        first = (self._network.local == 0)[..., None]
        measured = np.concatenate([measure(before, after), np.where(first, proposal, -np.inf)], axis=-1)
        carried = self._network.full_rounds + self._network.sweeps
        if carried > self._rounds_so_far:
            self._pending.append((after.t, self._network.reduce_later(measured, "max")))
        else:  # the step sent no messages to piggyback on
            self._network.discard_pending()
            self._pending.clear()
            self._pending.append((after.t, PendingReduction(self._network.reduce(measured, "max"), "max", 0)))
        self._rounds_so_far = carried
        while self._pending and self._pending[0][1].ready and not self.over:
            t, pending = self._pending.popleft()
            self.history.append(_finite(agreed_from(t, self._d, pending.value[:N_MEASUREMENTS]), before.S))
            if pending.value.size > N_MEASUREMENTS:
                if not (first.any() or np.isfinite(pending.value[N_MEASUREMENTS:]).all()):
                    raise Contradiction(0, "Ritz values", "infinite or missing")
                self._advice = pending.value[N_MEASUREMENTS:], self.history[-1]
            del self.history[:-_MAX_HISTORY]
            if self._pace is not None:
                self._pace.observe(self.history[-1], after.t, after.expected_log_decrease)
            if self._stop is not None:
                self.over = self._ends(self._stop, after.t)

    def _ends(self, stop: StopRule, t: int) -> bool:
        """Return whether to stop iterating, if only to attempt a proof.

        Reasons are that the rule is met, that the rounding floor is reached, that another attempt is due, or that the
        run has stalled.
        """
        if t < self._not_before and not at_floor(self.history):  # at the floor, waiting gains nothing
            return False
        self._alarm = False
        # after a failed attempt at a proof, the next one is due in iteration _not_before
        if self._not_before > 0 or stop.met(self.history) or at_floor(self.history):
            return True
        self._alarm = self._alarms and t >= self._no_alarm_before and stalled(self.history)
        return self._alarm

    def wait(self, t: int) -> None:
        """Attempt the next proof in iteration t; if the last attempt was due to a stall, only ignore stalls until t."""
        self.over = False
        if self._alarm:
            self._no_alarm_before = t
        else:
            self._not_before = t

    def close(self, recent: list[State]) -> None:
        """Discard piggybacked numbers; unless they have already ended the run, agree on the last steps now."""
        self._network.discard_pending()
        self._pending.clear()
        if self.over or len(recent) < 2:
            return
        steps = list(pairwise(recent))
        if self.history:
            # without neighbours, measurements arrive at once, and the last step is in the history already
            steps = [step for step in steps[-1:] if step[1].t > self.history[-1].t]
        if not steps:
            return
        measured = np.stack([measure(before, after) for before, after in steps], axis=-2)
        values = self._network.reduce(measured, "max")
        for (before, after), value in zip(steps, values, strict=True):
            self.history.append(_finite(agreed_from(after.t, self._d, value), before.S))

    @property
    def K(self) -> int:
        """Number of rounds of the next iteration if K is chosen while running; else 0."""
        return 0 if self._pace is None else self._pace.K

    def forget(self, t: int, K: int) -> None:
        """Discard the history, which no longer predicts the convergence rate; continue with K rounds at iteration t."""
        self._pending.clear()
        self.history.clear()
        self._advice = None
        self.over, self._not_before, self._no_alarm_before = False, 0, 0
        if self._pace is not None:
            self._pace.reset(t, K)


def why_not_finite(S: Array) -> str:
    """Return the likely cause of non-finite numbers, and what to do; S are the last finite products."""
    size = float(np.abs(S).max(initial=0.0))
    if 0.0 < size < UNDERFLOW:
        return f"the products A_j W underflow (the largest is {size:.1e}); multiply the data by a large power of ten"
    return (
        "the products A_j W overflow, or the mixer does not contract; divide the data by a large power of ten, or use "
        "a mixer that contracts on this network"
    )


def _finite(agreed: Agreed, S: Array) -> Agreed:
    """Return the numbers, or raise NotFiniteError if the change is not finite."""
    if not math.isfinite(agreed.change):
        raise NotFiniteError(f"W is no longer finite in iteration {agreed.t}: {why_not_finite(S)}")
    return agreed
