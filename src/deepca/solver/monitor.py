"""What all agents agree on while a run goes on, and what follows from it: K, what a State proposes, and the end."""

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
from deepca.network.reductions import Pending
from deepca.solver.stopping import MEASURED, Agreed, StopRule, agreed_from, at_floor, measure, stalled
from deepca.solver.verdict import UNDERFLOW

__all__ = ["Agreement", "why_not_finite"]

S_ = TypeVar("S_", bound=State)
_REMEMBERED = 64  # agreed entries; no rule looks farther back


class Agreement:
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
            self.history.append(_finite(agreed_from(t, self._d, pending.value[:MEASURED]), before.S))
            if pending.value.size > MEASURED:
                if not (first.any() or np.isfinite(pending.value[MEASURED:]).all()):
                    raise Contradiction(0, "Ritz values for all", "infinity, or none")
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
        for (before, after), value in zip(steps, values, strict=True):
            self.history.append(_finite(agreed_from(after.t, self._d, value), before.S))

    @property
    def K(self) -> int:
        """Rounds of the next iteration, where they are chosen here; else 0."""
        return 0 if self._pace is None else self._pace.K

    def forget(self, t: int, K: int) -> None:
        """The past no longer tells the rate; the run goes on with K rounds in iteration t."""
        self._pending.clear()
        self.history.clear()
        self._advice = None
        self.over, self._not_before, self._no_alarm_before = False, 0, 0
        if self._pace is not None:
            self._pace.forget(t, K)


def why_not_finite(S: Array) -> str:
    """The likely cause of numbers that are not finite, after products S that still were, and what to do about it."""
    size = float(np.abs(S).max(initial=0.0))
    if 0.0 < size < UNDERFLOW:
        return f"the products A_j W underflow (the largest is {size:.1e}); scale the data"
    return (
        "the products A_j W overflow or the mixing expands; scale the data, or use a mixer that contracts on this "
        "network"
    )


def _finite(agreed: Agreed, S: Array) -> Agreed:
    if not math.isfinite(agreed.change):
        raise NotFiniteError(f"W is no longer finite in iteration {agreed.t}: {why_not_finite(S)}")
    return agreed
