"""Watching a run: observers measure and show; they cannot change it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from deepca._util.typing import Array
from deepca.algorithms.base import State
from deepca.network.base import Network
from deepca.network.traffic import Traffic
from deepca.operators.linalg import tan_theta
from deepca.solver.result import Result
from deepca.solver.stopping import Agreed

__all__ = ["Observer", "Start", "Step", "Trace"]


@dataclass(frozen=True)
class Start:
    """What is known before the first step."""

    name: str
    network: Network
    state: State
    max_iter: int
    tol: float | None


@dataclass(frozen=True)
class Step:
    """One iteration: the states around it, traffic and seconds since the start, the newest agreed numbers."""

    before: State
    after: State
    traffic: Traffic
    elapsed: float
    agreed: Agreed | None


class Observer(Protocol):
    """Told when a run begins, after every iteration, and when it ends."""

    def begin(self, start: Start) -> None: ...
    def observe(self, step: Step) -> None: ...
    def end(self, result: Result[Any]) -> None: ...


class _Entry(NamedTuple):
    """One iteration of a Trace."""

    tan_theta: float
    tan_theta_max: float
    S_disagreement: float
    W_disagreement: float
    invariant: float
    rounds: int
    bytes: int
    time: float


class Trace:
    """The paper's three curves, traffic and time; one entry per iteration.

    Parameters
    ----------
    U : the true top-k eigenvectors ``(d, k)``, if known.

    Attributes (arrays, one entry per iteration)
    --------------------------------------------
    tan_theta : ``(1/m) Σ_j tan θ_k(U, W_j)``;  tan_theta_max : that of the worst agent. NaN without U.
    S_disagreement, W_disagreement : ``‖S − S̄⊗1‖`` and ``‖W − W̄⊗1‖`` (Frobenius, over all agents and entries).
        NaN where the network holds only one of several agents, since one agent alone cannot know.
    invariant : ``‖mean S − mean A W‖ / ‖mean S‖``, which must stay at rounding; NaN likewise, and for untracked runs.
    rounds, bytes, time : cumulative.
    """

    def __init__(self, U: npt.ArrayLike | None = None) -> None:
        self._U = None if U is None else np.asarray(U, dtype=np.float64)
        self._sees_all = True
        self._rows: list[_Entry] = []

    def begin(self, start: Start) -> None:
        self._sees_all = start.network.traffic.agents == start.network.n_agents
        self._rows.clear()

    def observe(self, step: Step) -> None:
        W, S = step.after.W, step.after.estimate
        tangents = np.array(np.nan) if self._U is None else tan_theta(self._U, W)
        spread_S, spread_W, drift = (_spread(S), _spread(W), _drift(step.after)) if self._sees_all else (np.nan,) * 3
        traffic = step.traffic
        self._rows.append(
            _Entry(
                float(tangents.mean()),
                float(tangents.max()),
                spread_S,
                spread_W,
                drift,
                traffic.rounds,
                traffic.bytes_sent,
                step.elapsed,
            )
        )

    def end(self, result: Result[Any]) -> None:
        """Nothing to close."""

    def __len__(self) -> int:
        return len(self._rows)

    def _column(self, name: str) -> Array:
        return np.array([getattr(row, name) for row in self._rows])

    @property
    def tan_theta(self) -> Array:
        return self._column("tan_theta")

    @property
    def tan_theta_max(self) -> Array:
        return self._column("tan_theta_max")

    @property
    def S_disagreement(self) -> Array:
        return self._column("S_disagreement")

    @property
    def W_disagreement(self) -> Array:
        return self._column("W_disagreement")

    @property
    def invariant(self) -> Array:
        return self._column("invariant")

    @property
    def rounds(self) -> npt.NDArray[np.int64]:
        return self._column("rounds").astype(np.int64)

    @property
    def bytes(self) -> npt.NDArray[np.int64]:
        return self._column("bytes").astype(np.int64)

    @property
    def time(self) -> Array:
        return self._column("time")


def _spread(x: Array) -> float:
    """``‖x − x̄⊗1‖`` over the agents' axis; 0 for one agent."""
    return float(np.linalg.norm(x - x.mean(axis=0))) if x.ndim == 3 else 0.0


def _drift(state: State) -> float:
    excess = state.excess
    if excess is None:
        return float("nan")
    mean, drift = (x.mean(axis=0) if x.ndim == 3 else x for x in (state.S, excess))
    return float(np.linalg.norm(drift)) / max(float(np.linalg.norm(mean)), 1e-300)
