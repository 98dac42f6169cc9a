"""How many rounds the next iteration makes: ``rounds="auto"``. Two ways, :class:`Searched` and :class:`Matched`.

Each iteration costs K rounds; with too few, disagreement holds convergence back or breaks it. K* depends on graph and
data, not on the accuracy wanted, so it can be found while running. All decisions follow from agreed numbers alone, so
every agent uses the same K in the same iteration.

**Searched**, for plain power iterations, of which there are many:

*Start*, from the graph: the smallest K with which tracking settles by 0.6 per iteration
(:func:`deepca.consensus.rates.tracking_rate`, which also says which K can never work).

*Then*, from what is seen. q = disagreement/change says who leads: the data (q ≪ 1, rounds are wasted) or the mixing
(q ≫ 1, rounds are missing). Where some ``A_j`` are indefinite, less disagreement does harm, and the limits are lower.

* Trouble (agents far apart and not nearing, disagreement growing, q large): more rounds at once, and that K is avoided
  for a while that doubles with every trouble.
* Quiet: fewer rounds, as far as q is predicted to stay small.
* Between: try a neighbouring K for a few iterations.

Either way a smaller K is kept only if the error then falls faster *per round* than before.

**Matched**, for accelerated iterations, which are too few to try anything: the agents' products differ from what is
tracked by h (relative to the smallest eigenvalue tracked; agreed). A disagreement δ moves an agent's subspace by δ, its
product by h δ, and K rounds leave ``ρ_K h δ`` of that. K is the smallest with which this is well below δ. Where the
agents still come apart, or hold convergence back, it is made smaller yet. Where the subspace turns without settling, h
is made of noise as well: then K grows by four tenths every dozen iterations, and does not fall again. A resumed run
goes on with the K it had.
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
from deepca.consensus.rates import accelerated_keeps_up, first_rounds, responses, smallest_rounds, tracking_rate
from deepca.topology.graph import Topology

if TYPE_CHECKING:
    from deepca.solver.stopping import Agreed

__all__ = ["Matched", "Pace", "Searched"]

_STABLE = 0.95  # tracking may not settle slower than this
_FINE = 0.5  # q below which rounds are wasted
_FAR = 0.1  # disagreement that is not small
_WINDOW = 8  # iterations after which a rate is believed
_PATIENCE = 40
_MOVING = 1.0 - 1e-6  # a rate below which the error falls at all
_LEFT = 0.4  # of a disagreement, by which agents may be led astray in one iteration
_SWIFT = 0.73  # what disagreement may shrink by where the error could halve
_LONG = 12  # iterations over which the error should fall
_HELD_BACK = 0.35  # part of the expected rate below which something holds it back
_DROWNS = 0.1  # of a change: disagreement, at the size of the smallest eigenvalue tracked, that may hold it back
_UNKNOWN = 0.05  # what rounds leave of a disagreement, while it is not known how different the agents are


@dataclass(frozen=True)
class _Trial:
    """K before the trial, and what a round was worth then."""

    K: int
    worth: float


class Pace(Protocol):
    """Chooses K for the next iteration from the agreed numbers of earlier ones."""

    @property
    def K(self) -> int: ...

    def see(self, new: Agreed, t: int, expected: float | None = None) -> None:
        """Agreed numbers of an earlier iteration have arrived after iteration t.

        expected : by what the logarithm of the error should fall per iteration, if known.
        """
        ...

    def forget(self, t: int, K: int) -> None:
        """After a restart in iteration t: what was seen no longer counts, and all agents go on with K rounds."""
        ...


class Matched:
    """K from how different the agents are."""

    def __init__(self, mixer: Mixer, topology: Topology, K: int = 0) -> None:
        self._graph = _Graph(mixer, topology)
        self._limit = mixer.rounds_for(topology, 1e-15)
        self._share, self._since, self._least, self._resumed = _LEFT, 0, 1, K
        self._seen: list[Agreed] = []
        self._any: deque[Agreed] = deque(maxlen=_LONG)  # with whatever K
        self.K = K or self._rounds(_UNKNOWN)

    def forget(self, t: int, K: int) -> None:
        self._share, self._since, self._least, self._resumed, self.K = _LEFT, t, 1, K, K
        self._seen.clear()
        self._any.clear()

    def see(self, new: Agreed, t: int, expected: float | None = None) -> None:
        self._any.append(new)
        if self._lost(new):  # h, too, is made of noise then, and says little about K
            self._least = min(self.K + max(1, round(0.4 * self.K)), self._limit)
            self._any.clear()
        elif new.t <= self._since + 1:
            return  # made with another K
        else:
            self._seen.append(new)
            if self._trouble(new, expected):
                self._share /= 4.0 if self._limit > self.K else 1.0
                self._seen.clear()
        if self._resumed:  # what led to this K is forgotten, but it still holds
            kept = max(self._graph.rho(self._resumed), 1e-15) * max(new.heterogeneity, 1.0)
            self._share = min(self._share, 1.25 * kept)  # with room for an h that moves by little
            self._resumed = 0
        left = self._share / max(new.heterogeneity, 1.0)
        K = max(self._rounds(left), self._least)
        if K > self.K or max(self._rounds(left / 1.5), self._least) < self.K:  # fewer only with something to spare
            self.K, self._since = K, t
            self._seen.clear()

    def _lost(self, new: Agreed) -> bool:
        """Whether the subspace turns as much as ever, while what agents disagree by could explain it."""
        if len(self._any) < _LONG or new.change <= 100.0 * new.floor:
            return False
        changes = [entry.change for entry in self._any]
        half = _LONG // 2
        early, late = sorted(changes[:half])[half // 2], sorted(changes[half:])[half // 2]
        return late > 0.9 * early and (min(changes) > _FAR or _weight(new) > _DROWNS / 2.0)

    def _trouble(self, new: Agreed, expected: float | None) -> bool:
        """Agents far apart and not nearing, coming apart more than convergence explains, or holding it back."""
        recent = [entry.disagreement for entry in self._seen[-5:]]
        if new.change <= 100.0 * new.floor or len(recent) < 5:
            return False
        apart = min(recent) > _FAR and recent[-1] > 0.5 * recent[0]
        growing = recent[-1] > 3.0 * min(entry.disagreement for entry in self._seen) and _lead(new) > 0.5
        last = self._seen[-_LONG:]
        near = len(last) == _LONG and max(entry.change for entry in last) <= _FAR
        slow = near and _weight(new) > _DROWNS and -log(_rate(last)) < _HELD_BACK * min(expected or 0.0, 1.0)
        return apart or growing or slow

    def _rounds(self, left: float) -> int:
        def enough(K: int) -> bool:
            return self._limit <= K or (self._graph.rho(K) <= left and self._graph.keeps_up(K))

        return smallest_rounds(enough)


class Searched:
    """K from what other K are seen to be worth."""

    def __init__(self, mixer: Mixer, topology: Topology, K: int = 0) -> None:
        self._graph = _Graph(mixer, topology)
        self._least = self._graph.least
        self._limit = max(64, mixer.rounds_for(topology, 1e-15))
        self.K = K or first_rounds(mixer, topology)
        self._since = 0
        self._seen: list[Agreed] = []
        self._avoid: dict[int, int] = {}
        self._patience = _PATIENCE
        self._trial: _Trial | None = None

    def forget(self, t: int, K: int) -> None:
        self._seen.clear()
        self._avoid.clear()
        self.K, self._since, self._trial, self._patience = K, t, None, _PATIENCE

    def see(self, new: Agreed, t: int, expected: float | None = None) -> None:
        if new.t <= self._since + 1 or not new.change > 0.0:
            return  # made with another K
        self._seen.append(new)
        if len(self._seen) < 3 or new.change <= 100.0 * new.floor:
            return  # rounding tells nothing
        fine = _FINE / max(1.0, new.indefinite)
        q = sorted(_lead(entry) for entry in self._seen[-3:])[1]
        if self._trouble(q, fine):
            self._trial = None
            self._block(self.K, t)
            self._use(self.K + max(1, round(0.4 * self.K)), t)
            return
        if max(entry.disagreement for entry in self._seen[-3:]) > _FAR:
            return
        r = _rate(self._seen[-_WINDOW:])
        worth = -log(r) / self.K
        if self._lost_ground(r):
            self._block(self.K, t)
            self._return(t)
            return
        if q <= fine and r < _MOVING and (K := self._quiet(q, fine, r, worth, t)) < self.K:
            self._trial = self._trial or _Trial(self.K, worth)
            self._use(K, t)
            return
        if len(self._seen) < _WINDOW:
            return
        if self._trial is not None:
            if worth < (self._trial.worth if self._trial.K < self.K else 0.9 * self._trial.worth):
                self._block(self.K, t)
                self._return(t)
                return
            self._trial = None
        if _steady(self._seen[-_WINDOW:]):
            self._try(q, fine, r, worth, t)

    def _trouble(self, q: float, fine: float) -> bool:
        spreads, last = [entry.disagreement for entry in self._seen], self._seen[-3:]
        recent = spreads[-5:]
        apart = len(recent) == 5 and min(recent) > _FAR and recent[-1] > 0.5 * recent[0]
        growing = recent[-1] > 3.0 * min(spreads) and q > 0.6 * fine
        leads = q > 4.0 * fine and _lead(last[-1]) > 0.8 * _lead(last[0])
        return apart or growing or leads

    def _quiet(self, q: float, fine: float, r: float, worth: float, t: int) -> int:
        """The smallest K, not much smaller than now, with which the agents are predicted to stay together."""
        K, least = self.K, max(self._least, self.K - max(1, self.K // 3))
        while least < K and self._promising(K - 1, q, fine, r, 1.02 * worth, t):
            K -= 1
        return K

    def _try(self, q: float, fine: float, r: float, worth: float, t: int) -> None:
        down, up = self.K - max(1, round(0.2 * self.K)), self.K + max(1, round(0.3 * self.K))
        if down >= self._least and self._promising(down, q, 4.0 * fine, r, 1.05 * worth, t):
            self._trial = _Trial(self.K, worth)
            self._use(down, t)
        elif q > fine and t >= self._avoid.get(up, 0):
            self._trial = _Trial(self.K, worth)
            self._use(up, t)

    def _promising(self, K: int, q: float, limit: float, r: float, worth: float, t: int) -> bool:
        """Whether a smaller K is stable, keeps q below the limit and makes more of each round, by prediction."""
        graph = self._graph
        return (
            not any(K <= avoided < self.K and t < until for avoided, until in self._avoid.items())
            and graph.settles(K, 1.0) <= _STABLE
            and q * graph.leftover(K) / graph.leftover(self.K) <= limit
            and -log(max(r, graph.settles(K, r))) / K >= worth
        )

    def _lost_ground(self, r: float) -> bool:
        """Whether the error grows since there are fewer rounds, where it fell before."""
        return self._trial is not None and self._trial.K > self.K and len(self._seen) >= 4 and r > _MOVING

    def _return(self, t: int) -> None:
        """Back to the K before the trial."""
        if self._trial is not None:
            K, self._trial = self._trial.K, None
            self._use(K, t)

    def _block(self, K: int, t: int) -> None:
        self._avoid[K] = t + self._patience
        self._patience *= 2

    def _use(self, K: int, t: int) -> None:
        self.K, self._since = min(K, self._limit), t
        self._seen.clear()


class _Graph:
    """What the graph alone says about K; what depends on nothing else is found once."""

    def __init__(self, mixer: Mixer, topology: Topology) -> None:
        self.settles = partial(tracking_rate, mixer, topology)
        self.keeps_up = cache(partial(accelerated_keeps_up, mixer, topology, limit=_SWIFT))
        self.rho = cache(lambda K: float(np.abs(responses(mixer, topology, K)).max(initial=0.0)))

    @cached_property
    def least(self) -> int:
        """The smallest K with which tracking settles at all."""
        return smallest_rounds(lambda K: self.settles(K, 1.0) <= _STABLE)

    def leftover(self, K: int) -> float:
        """What K rounds leave of a disagreement that is fed anew in every iteration."""
        rho = min(self.rho(K), 0.98)
        return max(rho, 1e-16) / (1.0 - rho)


def _lead(entry: Agreed) -> float:
    return entry.disagreement / entry.change


def _weight(entry: Agreed) -> float:
    """Return disagreement/change in the smallest direction; disagreement is measured relative to the largest."""
    return _lead(entry) * max(entry.magnified, 1.0)


def _rate(seen: Sequence[Agreed]) -> float:
    first, last = seen[0], seen[-1]
    r = power(last.change / first.change, 1.0 / (last.t - first.t))
    return float(min(max(r, 1e-3), 1.0 - 1e-9))


def _steady(seen: Sequence[Agreed]) -> bool:
    """Whether the rate is the same in both halves."""
    early, late = _rate(seen[: len(seen) // 2 + 1]), _rate(seen[len(seen) // 2 :])
    return abs(log(early) / log(late) - 1.0) < 0.15
