"""Describe one run as plain data (a cell) and keep its curves (an outcome)."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from deepca._util.typing import Array
from deepca.errors import DataError

__all__ = ["Alignment", "Cell", "Method", "Order", "Outcome", "iterations_to"]

Method = Literal["DeEPCA", "DePCA", "CPCA"]
Alignment = Literal["sign-adjust", "qr", "polar", "none"]
Order = Literal["file", "label", "shuffled"]
_CURVES = ("tan_theta", "S_disagreement", "W_disagreement", "rounds")
_FORMAT = 2  # version of stored outcomes; raise it when the meaning of a cell changes


@dataclass(frozen=True)
class Cell:
    """One run, described by everything that determines it.

    Parameters
    ----------
    data : str
        Name of the data set.
    method : {"DeEPCA", "DePCA", "CPCA"}
        Algorithm.
    k : int
        Number of components.
    K : int
        Rounds per iteration; 0 for CPCA.
    agents : int
        Number of agents, m.
    rows : int
        Rows per agent, n.
    iterations : int
        Number of iterations.
    growth : int
        K grows by one every ``growth`` iterations; 0 keeps it fixed.
    graph : str
        ``"paper"`` (Erdős–Rényi with p = 0.5 and 1 − λ₂ within 0.005 of 0.4563) or a name accepted by
        :func:`deepca.topology.names.from_name`.
    order : {"file", "label", "shuffled"}
        Order in which rows are assigned to agents.
    alignment : {"sign-adjust", "qr", "polar", "none"}
        How W is computed from S.
    spread : float
        Heterogeneity: ``A_j`` is replaced by ``Ā + spread · (A_j − Ā)``, which keeps the mean. Above 1, most ``A_j``
        are indefinite.
    draw : int
        Index of the random graph and W⁰.
    """

    data: str
    method: Method
    k: int
    K: int
    agents: int
    rows: int
    iterations: int
    growth: int = 0
    graph: str = "paper"
    order: Order = "file"
    alignment: Alignment = "sign-adjust"
    spread: float = 1.0
    draw: int = 0

    @property
    def key(self) -> str:
        """Unique identifier of this cell."""
        text = json.dumps([_FORMAT, asdict(self)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    @property
    def label(self) -> str:
        """Name of the method in figures and tables."""
        return f"{self.method}, K grows" if self.growth else str(self.method)

    def with_fields(self, **changes: Any) -> Cell:
        """Return a copy with some fields changed.

        Parameters
        ----------
        **changes : Any
            New values by field name.

        Returns
        -------
        Cell
            The changed cell.
        """
        return replace(self, **changes)


def iterations_to(curve: Array, accuracy: float) -> int | None:
    """Return the number of iterations after which a curve stays at or below ``accuracy``, or None."""
    above = np.flatnonzero(~(curve <= accuracy))
    first = int(above[-1]) + 1 if above.size else 0
    return first + 1 if first < curve.size else None


@dataclass(frozen=True)
class Outcome:
    """The paper's curves of one run, with one entry per iteration.

    Parameters
    ----------
    cell : Cell
        The run.
    tan_theta : ndarray of shape (iterations,)
        ``(1/m) Σ_j tan θ_k(U, W_j)``.
    S_disagreement, W_disagreement : ndarray of shape (iterations,)
        ``‖S − S̄⊗1‖`` and ``‖W − W̄⊗1‖``.
    rounds : ndarray of shape (iterations,)
        Cumulative number of rounds of communication.
    bytes_per_agent : float
        Bytes that an agent sent on average.
    lambda2 : float
        Second-largest eigenvalue of the gossip matrix.
    tan_start : float
        ``tan θ_k(U, W⁰)``.
    seconds : float
        Duration of the run.
    worst_end : float
        ``tan θ_k(U, W_j)`` of the worst agent after the last iteration.
    """

    cell: Cell
    tan_theta: Array
    S_disagreement: Array
    W_disagreement: Array
    rounds: npt.NDArray[np.int64]
    bytes_per_agent: float
    lambda2: float
    tan_start: float
    seconds: float
    worst_end: float = float("nan")

    def iterations_to(self, accuracy: float) -> int | None:
        """Return the number of iterations after which the mean tangent stays at or below an accuracy.

        Parameters
        ----------
        accuracy : float
            The target.

        Returns
        -------
        int or None
            None if the run does not reach it.
        """
        return iterations_to(self.tan_theta, accuracy)

    def rounds_to(self, accuracy: float) -> int | None:
        """Return the number of rounds after which the mean tangent stays at or below an accuracy.

        Parameters
        ----------
        accuracy : float
            The target.

        Returns
        -------
        int or None
            None if the run does not reach it.
        """
        reached = self.iterations_to(accuracy)
        return None if reached is None else int(self.rounds[reached - 1])

    @property
    def plateau(self) -> float:
        """Final level of the mean tangent: the median of the last tenth."""
        tail = max(1, self.tan_theta.size // 10)
        return float(np.median(self.tan_theta[-tail:]))

    def to_bytes(self) -> bytes:
        """Serialize to the content of an ``.npz`` file without pickled objects.

        Returns
        -------
        bytes
            The content.
        """
        rest = {name: value for name, value in vars(self).items() if name not in ("cell", *_CURVES)}
        curves: dict[str, Any] = {name: getattr(self, name) for name in _CURVES}
        file = io.BytesIO()
        meta = np.array(json.dumps({"format": _FORMAT, "cell": asdict(self.cell), **rest}))
        np.savez(file, meta=meta, **curves)
        return file.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> Outcome:
        """Restore an outcome from the result of :meth:`to_bytes`.

        Parameters
        ----------
        content : bytes
            The content of the file.

        Returns
        -------
        Outcome
            The outcome.

        Raises
        ------
        DataError
            If the content is damaged or has a different format version.
        """
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as file:
                meta = json.loads(str(file["meta"]))
                curves = {name: file[name] for name in _CURVES}
            version = meta.pop("format")
            if version == _FORMAT:
                return cls(cell=Cell(**meta.pop("cell")), **meta, **curves)
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as damage:
            raise DataError(f"stored outcome cannot be read ({damage}); run its cell again") from None
        message = f"stored outcome has format version {version}, expected {_FORMAT}; run its cell again"
        raise DataError(message, value=version)
