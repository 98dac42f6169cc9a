"""Compare what an adversary has rebuilt of a site with the true numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from deepca._util.typing import Array
from deepca.data.local_data import LocalData
from deepca.data.sources import Source
from deepca.operators.linalg import frobenius
from deepca.planning.leakage.adversary import SiteEstimate
from deepca.planning.leakage.records import RecordedRun

__all__ = ["Errors", "TrueSite"]


@dataclass(frozen=True)
class Errors:
    """Relative errors of what an adversary has rebuilt of a site; None if there is nothing to rebuild.

    Parameters
    ----------
    mean : float or None
        Distance from the mean of the site, divided by the distance between the latter and the mean of all rows, which
        everybody knows.
    covariance : float or None
        Frobenius norm of the error of the covariance (about the site's own mean), divided by that of the covariance;
        None if the site has a single row.
    rows : float or None
        Frobenius norm of the error of the rows, up to a rotation that keeps their mean, divided by that of the rows
        minus the mean of all rows. Such a rotation changes neither mean nor covariance; of two rows it can only change
        the order. None for sites with more rows than columns.
    """

    mean: float | None
    covariance: float | None
    rows: float | None

    @property
    def decisive(self) -> float:
        """Error of the covariance or, where it is unknown, of the mean; infinite if both are unknown."""
        return next((one for one in (self.covariance, self.mean) if one is not None), math.inf)


@dataclass(frozen=True)
class TrueSite:
    """True numbers of a site; columns are divided by their units if the fit scales them."""

    n: int
    mean: Array
    covariance: Array
    rows: Array | None
    common: Array

    @classmethod
    def of(cls, source: Source, data: LocalData, run: RecordedRun) -> TrueSite:
        """Compute the numbers of a site from its rows."""
        [moments], d = data.moments, source.d
        units = np.ones(d) if run.model.scale is None else np.asarray(run.model.scale, dtype=np.float64)
        covariance = moments.scatter_about(moments.reference, moments.shift) / max(moments.n - 1, 1)
        rows = None
        if moments.n <= d:
            blocks = [block if isinstance(block, np.ndarray) else block.toarray() for block in source.blocks()]
            rows = np.concatenate(blocks).astype(np.float64) / units
        scaled = covariance / np.outer(units, units)
        return cls(moments.n, moments.mean / units, scaled, rows, run.common_mean / units)

    def errors(self, found: SiteEstimate) -> Errors:
        """Return the errors of an estimate."""
        return Errors(
            mean=_relative(found.mean - self.mean, self.mean - self.common),
            covariance=_relative(found.covariance - self.covariance, self.covariance) if self.n > 1 else None,
            rows=None if self.rows is None else self._rows_error(found, self.rows),
        )

    def _rows_error(self, found: SiteEstimate, rows: Array) -> float | None:
        """Return the error of rows with the estimated mean and covariance, turned to be as near as possible."""
        n = self.n
        basis = np.linalg.svd(np.ones((1, n)))[2][1:]  # of the space of n numbers with sum zero
        true = basis @ rows
        values, vectors = np.linalg.eigh(found.covariance)
        values, vectors = np.maximum(values[::-1][: n - 1], 0.0), vectors[:, ::-1][:, : n - 1]
        guess = np.sqrt((n - 1) * values)[:, None] * vectors.T
        left, _, right = np.linalg.svd(true @ guess.T)
        apart = [true - left @ right @ guess, np.sqrt(n) * (self.mean - found.mean)[None]]
        return _relative(np.concatenate(apart), rows - self.common)


def _relative(error: Array, size: Array) -> float | None:
    """Return the quotient of two norms; None if the second is zero."""
    whole = float(frobenius(np.atleast_2d(size)))
    return float(frobenius(np.atleast_2d(error))) / whole if whole > 0.0 else None
