"""Choose K while running (``rounds="auto"``): :class:`SearchedRounds` by trials, :class:`MatchedRounds` directly.

Each iteration costs K rounds; with too few, disagreement slows convergence down or prevents it. The best K depends on
the graph and the data, not on the target accuracy, so it can be found while running. All decisions follow from agreed
numbers alone, so every agent uses the same K in the same iteration.

**SearchedRounds** is for plain power iterations, of which there are many.

*At first*, K follows from the graph: it is the smallest K with which disagreement decays at a rate of at most 0.6 per
iteration (:func:`deepca.consensus.rates.tracking_rate`, which also shows which K can never work).

*Later*, K follows from observation. The ratio q = disagreement/change shows what limits progress: the iteration itself
(q ≪ 1, fewer rounds would do) or the mixing (q ≫ 1, more rounds are needed). If some ``A_j`` are indefinite, even a
smaller disagreement slows convergence, so the limits on q are lower.

* If agents differ widely and do not approach each other, if disagreement grows, or if q is large, K increases at once,
  and the old K is avoided for a period that doubles every time.
* If q is small, K decreases, as long as q is predicted to stay small.
* Otherwise, a smaller or a larger K is tried for a few iterations.

What counts is how fast the error falls *per round*. A larger K is kept only if the error falls at least as fast as
before, a smaller K also if it falls slower by less than a tenth.

**MatchedRounds** is for accelerated iterations, which are too few for trials. The local products differ from the
tracked ones by h, relative to the smallest tracked eigenvalue; h is an agreed number. A disagreement δ moves an agent's
subspace by δ and its product by h δ, of which K rounds leave ``ρ_K h δ``. K is the smallest number of rounds for which
this is well below δ. If disagreement still grows or slows convergence down, the limit is lowered. If the subspace keeps
rotating, h is dominated by noise as well: K then grows by 40 % every twelve iterations and does not decrease again. A
resumed run continues with its last K.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from deepca._util.portable import log, power
from deepca.consensus.mixers import Mixer
from deepca.consensus.rates import accelerated_rate_at_most, first_rounds, responses, smallest_rounds, tracking_rate
from deepca.topology.graph import Topology

if TYPE_CHECKING:
    from deepca.solver.stopping import Agreed

__all__ = ["MatchedRounds", "Pace", "SearchedRounds"]

_MAX_STABLE_RATE = 0.95  # largest decay rate of disagreement, per iteration, with which K counts as stable
_QUIET_RATIO = 0.5  # largest q at which fewer rounds would do
_MAX_SHARED_DISAGREEMENT = 0.1  # disagreement above which agents do not share a subspace yet
_WINDOW = 8  # iterations over which a rate is measured
_FIRST_AVOIDANCE = 40  # iterations for which a K that caused trouble is avoided; doubles every time
_CONVERGING_RATE = 1.0 - 1e-6  # largest rate at which the error counts as falling
_MAX_LEFTOVER = 0.4  # largest share of a disagreement that the rounds of one iteration may leave
_FIRST_LEFTOVER = 0.05  # the same limit as long as the heterogeneity of the agents is unknown
_MAX_ACCELERATED_RATE = 0.73  # largest decay rate of disagreement if the error could halve per iteration
_LONG_WINDOW = 12  # iterations over which the error should fall
_MIN_RATE_SHARE = 0.35  # a smaller share of the expected rate suggests that disagreement slows convergence down
_MAX_WEIGHTED_RATIO = 0.1  # largest disagreement/change in the smallest direction that cannot slow convergence down


@dataclass(frozen=True)
class _Trial:
    """K before a trial, and the decrease of the log-error per round with that K."""

    K: int
    worth: float


class Pace(Protocol):
    """Policy that chooses K for the next iteration from the agreed numbers of earlier ones."""

    @property
    def K(self) -> int:
        """Number of rounds of the next iteration."""
        ...

    def observe(self, new: Agreed, t: int, expected: float | None = None) -> None:
        """Take the agreed numbers of an earlier iteration into account.

        Parameters
        ----------
        new : Agreed
            The agreed numbers, which became known after iteration t.
        t : int
            Current iteration.
        expected : float, optional
            Expected decrease of the log-error per iteration, if known.
        """
        ...

    def reset(self, t: int, K: int) -> None:
        """Discard all observations after a restart in iteration t and continue with K rounds."""
        ...


class MatchedRounds:
    """Policy that derives K from the heterogeneity of the agents."""

    def __init__(self, mixer: Mixer, topology: Topology, K: int = 0) -> None:
        self._graph = _Graph(mixer, topology)
        self._limit = mixer.rounds_for(topology, 1e-15)
        self._share, self._since, self._min_K, self._resumed = _MAX_LEFTOVER, 0, 1, K
        self._seen: list[Agreed] = []
        self._recent: deque[Agreed] = deque(maxlen=_LONG_WINDOW)  # regardless of K
        self.K = K or self._rounds(_FIRST_LEFTOVER)

    def reset(self, t: int, K: int) -> None:
        """Discard all observations and reset the limit on the disagreement that rounds may leave."""
        self._share, self._since, self._min_K, self._resumed, self.K = _MAX_LEFTOVER, t, 1, K, K
        self._seen.clear()
        self._recent.clear()

    def observe(self, new: Agreed, t: int, expected: float | None = None) -> None:
        """Add rounds if the iteration stagnates or disagreement slows it down; otherwise follow the heterogeneity."""
        self._recent.append(new)
        if self._stagnates(new):  # h is dominated by noise, too, and says little about K
            self._min_K = min(self.K + max(1, round(0.4 * self.K)), self._limit)
            self._recent.clear()
        elif new.t <= self._since + 1:
            return  # computed with another K
        else:
            self._seen.append(new)
            if self._in_trouble(new, expected):
                self._share /= 4.0 if self._limit > self.K else 1.0
                self._seen.clear()
        if self._resumed:  # the reasons for this K are not stored, but still apply
            kept = max(self._graph.rho(self._resumed), 1e-15) * max(new.heterogeneity, 1.0)
            self._share = min(self._share, 1.25 * kept)  # with room for small changes of h
            self._resumed = 0
        left = self._share / max(new.heterogeneity, 1.0)
        K = max(self._rounds(left), self._min_K)
        if K > self.K or max(self._rounds(left / 1.5), self._min_K) < self.K:  # fewer only with a margin
            self.K, self._since = K, t
            self._seen.clear()

    def _stagnates(self, new: Agreed) -> bool:
        """Return whether the subspace keeps rotating although it should converge, and disagreement could explain it."""
        if len(self._recent) < _LONG_WINDOW or new.change <= 100.0 * new.floor:
            return False
        changes = [entry.change for entry in self._recent]
        half = _LONG_WINDOW // 2
        early, late = sorted(changes[:half])[half // 2], sorted(changes[half:])[half // 2]
        return late > 0.9 * early and (
            min(changes) > _MAX_SHARED_DISAGREEMENT or _weighted_ratio(new) > _MAX_WEIGHTED_RATIO / 2.0
        )

    def _in_trouble(self, new: Agreed, expected: float | None) -> bool:
        """Return whether disagreement stays large, grows, or slows convergence down."""
        recent = [entry.disagreement for entry in self._seen[-5:]]
        if new.change <= 100.0 * new.floor or len(recent) < 5:
            return False
        persistent = min(recent) > _MAX_SHARED_DISAGREEMENT and recent[-1] > 0.5 * recent[0]
        growing = recent[-1] > 3.0 * min(entry.disagreement for entry in self._seen) and _ratio(new) > 0.5
        last = self._seen[-_LONG_WINDOW:]
        near = len(last) == _LONG_WINDOW and max(entry.change for entry in last) <= _MAX_SHARED_DISAGREEMENT
        slow = (
            near
            and _weighted_ratio(new) > _MAX_WEIGHTED_RATIO
            and -log(_rate(last)) < _MIN_RATE_SHARE * min(expected or 0.0, 1.0)
        )
        return persistent or growing or slow

    def _rounds(self, left: float) -> int:
        """Return the smallest K that leaves at most ``left`` of a disagreement and keeps up with acceleration."""

        def enough(K: int) -> bool:
            return self._limit <= K or (self._graph.rho(K) <= left and self._graph.keeps_up(K))

        return smallest_rounds(enough)


class SearchedRounds:
    """Policy that finds K by comparing the progress per round of neighbouring K."""

    def __init__(self, mixer: Mixer, topology: Topology, K: int = 0) -> None:
        self._graph = _Graph(mixer, topology)
        self._min_K = self._graph.min_K
        self._limit = max(64, mixer.rounds_for(topology, 1e-15))
        self.K = K or first_rounds(mixer, topology)
        self._since = 0
        self._seen: list[Agreed] = []
        self._avoid: dict[int, int] = {}
        self._patience = _FIRST_AVOIDANCE
        self._trial: _Trial | None = None

    def reset(self, t: int, K: int) -> None:
        """Discard all observations, trials and avoided K."""
        self._seen.clear()
        self._avoid.clear()
        self.K, self._since, self._trial, self._patience = K, t, None, _FIRST_AVOIDANCE

    def observe(self, new: Agreed, t: int, expected: float | None = None) -> None:
        """Add rounds if disagreement slows progress, remove them if q is small, and try a neighbouring K in between."""
        if new.t <= self._since + 1 or not new.change > 0.0:
            return  # computed with another K
        self._seen.append(new)
        if len(self._seen) < 3 or new.change <= 100.0 * new.floor:
            return  # too few observations, or dominated by rounding
        fine = _QUIET_RATIO / max(1.0, new.indefinite)
        q = sorted(_ratio(entry) for entry in self._seen[-3:])[1]
        if self._in_trouble(q, fine):
            self._trial = None
            self._avoid_rounds(self.K, t)
            self._set_rounds(self.K + max(1, round(0.4 * self.K)), t)
            return
        if max(entry.disagreement for entry in self._seen[-3:]) > _MAX_SHARED_DISAGREEMENT:
            return
        r = _rate(self._seen[-_WINDOW:])
        worth = -log(r) / self.K
        if self._has_lost_ground(r):
            self._avoid_rounds(self.K, t)
            self._end_trial(t)
            return
        if q <= fine and r < _CONVERGING_RATE and (K := self._fewer_rounds(q, fine, r, worth, t)) < self.K:
            self._trial = self._trial or _Trial(self.K, worth)
            self._set_rounds(K, t)
            return
        if len(self._seen) < _WINDOW:
            return
        if self._trial is not None:
            if worth < (self._trial.worth if self._trial.K < self.K else 0.9 * self._trial.worth):
                self._avoid_rounds(self.K, t)
                self._end_trial(t)
                return
            self._trial = None
        if _is_steady(self._seen[-_WINDOW:]):
            self._start_trial(q, fine, r, worth, t)

    def _in_trouble(self, q: float, fine: float) -> bool:
        """Return whether disagreement stays large or grows, or q is large and not falling."""
        spreads, last = [entry.disagreement for entry in self._seen], self._seen[-3:]
        recent = spreads[-5:]
        persistent = len(recent) == 5 and min(recent) > _MAX_SHARED_DISAGREEMENT and recent[-1] > 0.5 * recent[0]
        growing = recent[-1] > 3.0 * min(spreads) and q > 0.6 * fine
        dominant = q > 4.0 * fine and _ratio(last[-1]) > 0.8 * _ratio(last[0])
        return persistent or growing or dominant

    def _fewer_rounds(self, q: float, fine: float, r: float, worth: float, t: int) -> int:
        """Return the smallest K, at most a third below the current one, with which q is predicted to stay small."""
        K, lowest = self.K, max(self._min_K, self.K - max(1, self.K // 3))
        while lowest < K and self._is_promising(K - 1, q, fine, r, 1.02 * worth, t):
            K -= 1
        return K

    def _start_trial(self, q: float, fine: float, r: float, worth: float, t: int) -> None:
        """Try a smaller K if it is promising, or else a larger one if q is not small."""
        down, up = self.K - max(1, round(0.2 * self.K)), self.K + max(1, round(0.3 * self.K))
        if down >= self._min_K and self._is_promising(down, q, 4.0 * fine, r, 1.05 * worth, t):
            self._trial = _Trial(self.K, worth)
            self._set_rounds(down, t)
        elif q > fine and t >= self._avoid.get(up, 0):
            self._trial = _Trial(self.K, worth)
            self._set_rounds(up, t)

    def _is_promising(self, K: int, q: float, limit: float, r: float, worth: float, t: int) -> bool:
        """Predict whether a smaller K is stable, keeps q below the limit and gains more per round."""
        graph = self._graph
        return (
            not any(K <= avoided < self.K and t < until for avoided, until in self._avoid.items())
            and graph.settles(K, 1.0) <= _MAX_STABLE_RATE
            and q * graph.leftover(K) / graph.leftover(self.K) <= limit
            and -log(max(r, graph.settles(K, r))) / K >= worth
        )

    def _has_lost_ground(self, r: float) -> bool:
        """Return whether the error stopped falling after K was reduced."""
        return self._trial is not None and self._trial.K > self.K and len(self._seen) >= 4 and r > _CONVERGING_RATE

    def _end_trial(self, t: int) -> None:
        """Return to the K before the trial."""
        if self._trial is not None:
            K, self._trial = self._trial.K, None
            self._set_rounds(K, t)

    def _avoid_rounds(self, K: int, t: int) -> None:
        """Avoid K for a period that doubles every time."""
        self._avoid[K] = t + self._patience
        self._patience *= 2

    def _set_rounds(self, K: int, t: int) -> None:
        """Use K from now on and discard the observations of another K."""
        self.K, self._since = min(K, self._limit), t
        self._seen.clear()


class _Graph:
    """Properties of K that follow from mixer and graph alone."""

    def __init__(self, mixer: Mixer, topology: Topology) -> None:
        self.settles = partial(tracking_rate, mixer, topology)
        self.keeps_up = cache(partial(accelerated_rate_at_most, mixer, topology, limit=_MAX_ACCELERATED_RATE))
        self.rho = cache(lambda K: float(np.abs(responses(mixer, topology, K)).max(initial=0.0)))

    @cached_property
    def min_K(self) -> int:
        """Smallest K with which tracking is stable."""
        return smallest_rounds(lambda K: self.settles(K, 1.0) <= _MAX_STABLE_RATE)

    def leftover(self, K: int) -> float:
        """Return the share of a disagreement that remains after K rounds if it arises again in every iteration."""
        rho = min(self.rho(K), 0.98)
        return max(rho, 1e-16) / (1.0 - rho)


def _ratio(entry: Agreed) -> float:
    """Return q, disagreement/change."""
    return entry.disagreement / entry.change


def _weighted_ratio(entry: Agreed) -> float:
    """Return disagreement/change in the smallest direction, since disagreement is relative to the largest one."""
    return _ratio(entry) * max(entry.magnified, 1.0)


def _rate(seen: Sequence[Agreed]) -> float:
    """Return the factor per iteration by which the change of the subspace fell."""
    first, last = seen[0], seen[-1]
    r = power(last.change / first.change, 1.0 / (last.t - first.t))
    return float(min(max(r, 1e-3), 1.0 - 1e-9))


def _is_steady(seen: Sequence[Agreed]) -> bool:
    """Return whether the rate is about the same in both halves of the observations."""
    early, late = _rate(seen[: len(seen) // 2 + 1]), _rate(seen[len(seen) // 2 :])
    return abs(log(early) / log(late) - 1.0) < 0.15
