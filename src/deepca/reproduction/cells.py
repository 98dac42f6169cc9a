"""A cell: everything that determines one run, as plain data. An outcome: its curves."""

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
_FORMAT = 2  # of stored outcomes; raise it when a cell means something else than before


@dataclass(frozen=True)
class Cell:
    """One run.

    data : name of the data set.  method : algorithm.  k : components.  K : rounds per iteration (0 for CPCA).
    growth : K grows by one every that many iterations; 0 keeps it fixed.
    graph : ``paper`` (Erdős–Rényi p = 0.5 with 1 − λ₂ within 0.005 of 0.4563), or a name that
    :func:`deepca.topology.names.from_name` knows.  agents : m.  rows : n, per agent.
    order : rows as in the file, sorted by label, or shuffled.  alignment : how W is made from S.
    spread : heterogeneity, ``A_j`` replaced by ``Ā + spread · (A_j − Ā)``: the mean stays, above 1 most ``A_j`` are
    indefinite.  draw : which graph and W⁰.  iterations : how many.
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
        """A name for this cell that no other has."""
        text = json.dumps([_FORMAT, asdict(self)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    @property
    def label(self) -> str:
        """How figures and tables call the method."""
        return f"{self.method}, K grows" if self.growth else str(self.method)

    def at(self, **changes: Any) -> Cell:
        """The same cell but for some fields."""
        return replace(self, **changes)


def iterations_to(curve: Array, accuracy: float) -> int | None:
    """Return after how many iterations a curve is at most ``accuracy`` and stays so; None if it never is."""
    above = np.flatnonzero(~(curve <= accuracy))
    first = int(above[-1]) + 1 if above.size else 0
    return first + 1 if first < curve.size else None


@dataclass(frozen=True)
class Outcome:
    """The paper's curves of one run, one entry per iteration, and 1 − λ₂ of its graph."""

    cell: Cell
    tan_theta: Array
    """``(1/m) Σ_j tan θ_k(U, W_j)``."""
    S_disagreement: Array
    W_disagreement: Array
    rounds: npt.NDArray[np.int64]
    bytes_per_agent: float
    lambda2: float
    tan_start: float
    """``tan θ_k(U, W⁰)``."""
    seconds: float
    worst_end: float = float("nan")
    """``tan θ_k(U, W_j)`` of the worst agent at the end."""

    def iterations_to(self, accuracy: float) -> int | None:
        """Iterations after which the mean tangent is at most ``accuracy`` and stays so; None if it never is."""
        return iterations_to(self.tan_theta, accuracy)

    def rounds_to(self, accuracy: float) -> int | None:
        """Rounds of communication by then."""
        reached = self.iterations_to(accuracy)
        return None if reached is None else int(self.rounds[reached - 1])

    @property
    def plateau(self) -> float:
        """Where the mean tangent ends: the median of the last tenth."""
        tail = max(1, self.tan_theta.size // 10)
        return float(np.median(self.tan_theta[-tail:]))

    def to_bytes(self) -> bytes:
        """As an ``.npz`` file that numpy alone can read."""
        rest = {name: value for name, value in vars(self).items() if name not in ("cell", *_CURVES)}
        curves: dict[str, Any] = {name: getattr(self, name) for name in _CURVES}
        file = io.BytesIO()
        meta = np.array(json.dumps({"format": _FORMAT, "cell": asdict(self.cell), **rest}))
        np.savez(file, meta=meta, **curves)
        return file.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> Outcome:
        """What :meth:`to_bytes` wrote, or a DataError."""
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as file:
                meta = json.loads(str(file["meta"]))
                curves = {name: file[name] for name in _CURVES}
            if meta.pop("format") != _FORMAT:
                raise DataError("a stored outcome of another version")
            return cls(cell=Cell(**meta.pop("cell")), **meta, **curves)
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as damage:
            raise DataError(f"a stored outcome cannot be read: {damage}") from None
