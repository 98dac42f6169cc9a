"""Observers, which can measure and display a run but not change it."""

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
    """Facts about a run that are known before its first step.

    Parameters
    ----------
    name : str
        Name of the algorithm.
    network : Network
        Network of the run.
    state : State
        State from which the run starts.
    max_iter : int
        Maximum number of iterations.
    tol : float or None
        Tolerance of the stop rule; None without a stop rule.
    """

    name: str
    network: Network
    state: State
    max_iter: int
    tol: float | None


@dataclass(frozen=True)
class Step:
    """Facts about one iteration.

    Parameters
    ----------
    before, after : State
        States before and after the iteration.
    traffic : Traffic
        Traffic since the start.
    elapsed : float
        Seconds since the start.
    agreed : Agreed or None
        The most recent agreed numbers; None before the first.
    """

    before: State
    after: State
    traffic: Traffic
    elapsed: float
    agreed: Agreed | None


class Observer(Protocol):
    """Interface of observers, which are notified when a run begins, after every iteration, and when it ends."""

    def begin(self, start: Start) -> None:
        """Prepare for a run.

        Parameters
        ----------
        start : Start
            Facts about the run.
        """
        ...

    def observe(self, step: Step) -> None:
        """Record one iteration.

        Parameters
        ----------
        step : Step
            The iteration.
        """
        ...

    def end(self, result: Result[Any]) -> None:
        """Conclude the run.

        Parameters
        ----------
        result : Result
            Result of the run.
        """
        ...


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
    """Record the paper's three curves, traffic and time, one entry per iteration.

    Parameters
    ----------
    U : array_like of shape (d, k), optional
        The true top-k eigenvectors, if known.

    Attributes
    ----------
    tan_theta : ndarray
        ``(1/m) Σ_j tan θ_k(U, W_j)``; NaN without U.
    tan_theta_max : ndarray
        ``tan θ_k(U, W_j)`` of the worst agent; NaN without U.
    S_disagreement, W_disagreement : ndarray
        ``‖S − S̄⊗1‖`` and ``‖W − W̄⊗1‖`` (Frobenius norms over all agents and entries). NaN unless all agents are local,
        since the values of remote agents are unknown.
    invariant : ndarray
        ``‖mean S − mean A W‖ / ‖mean S‖``, which must stay at rounding. NaN unless all agents are local, and for
        algorithms without tracking.
    rounds, bytes, time : ndarray
        Cumulative communication rounds, bytes sent and seconds.

    Examples
    --------
    >>> import numpy as np
    >>> import deepca
    >>> trace = deepca.solver.Trace(U=np.eye(3)[:, :1])
    >>> A = np.stack([np.diag([4.0, 2.0, 1.0])] * 4)
    >>> network = deepca.SimulatedNetwork(deepca.topology.ring(4))
    >>> algorithm = deepca.DeEPCA(A, np.ones((3, 1)) / 3**0.5, network)
    >>> result = deepca.solve(algorithm, max_iter=20, observers=[trace])
    >>> len(trace)
    20
    >>> bool(trace.tan_theta[-1] < 1e-4)
    True
    """

    def __init__(self, U: npt.ArrayLike | None = None) -> None:
        self._U = None if U is None else np.asarray(U, dtype=np.float64)
        self._sees_all = True
        self._rows: list[_Entry] = []

    def begin(self, start: Start) -> None:
        """Discard the entries of an earlier run.

        Parameters
        ----------
        start : Start
            Facts about the run.
        """
        self._sees_all = start.network.traffic.agents == start.network.n_agents
        self._rows.clear()

    def observe(self, step: Step) -> None:
        """Append the entry of one iteration.

        Parameters
        ----------
        step : Step
            The iteration.
        """
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
        """Do nothing: every iteration has been recorded.

        Parameters
        ----------
        result : Result
            Result of the run.
        """

    def __len__(self) -> int:
        """Return the number of recorded iterations."""
        return len(self._rows)

    def _column(self, name: str) -> Array:
        return np.array([getattr(row, name) for row in self._rows])

    @property
    def tan_theta(self) -> Array:
        """Mean tangent over the agents."""
        return self._column("tan_theta")

    @property
    def tan_theta_max(self) -> Array:
        """Tangent of the worst agent."""
        return self._column("tan_theta_max")

    @property
    def S_disagreement(self) -> Array:
        """Distance of the S_j from their mean."""
        return self._column("S_disagreement")

    @property
    def W_disagreement(self) -> Array:
        """Distance of the W_j from their mean."""
        return self._column("W_disagreement")

    @property
    def invariant(self) -> Array:
        """Relative difference between mean S and mean A W."""
        return self._column("invariant")

    @property
    def rounds(self) -> npt.NDArray[np.int64]:
        """Cumulative communication rounds."""
        return self._column("rounds").astype(np.int64)

    @property
    def bytes(self) -> npt.NDArray[np.int64]:
        """Cumulative bytes sent."""
        return self._column("bytes").astype(np.int64)

    @property
    def time(self) -> Array:
        """Seconds since the start."""
        return self._column("time")


def _spread(x: Array) -> float:
    """Return ``‖x − x̄⊗1‖`` over the axis of agents; 0 for a single agent."""
    return float(np.linalg.norm(x - x.mean(axis=0))) if x.ndim == 3 else 0.0


def _drift(state: State) -> float:
    """Return the relative drift of a tracked state; NaN for untracked ones."""
    excess = state.excess
    if excess is None:
        return float("nan")
    mean, drift = (x.mean(axis=0) if x.ndim == 3 else x for x in (state.S, excess))
    return float(np.linalg.norm(drift)) / max(float(np.linalg.norm(mean)), 1e-300)
