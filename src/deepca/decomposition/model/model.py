"""A fitted PCA as plain arrays: what is shared, stored and applied. Needs numpy alone.

The file is an ``.npz`` without pickle::

    np.load(path)["components"]          # (k, d) float64 or float32
    np.load(path)["mean"]                # (d,)
    np.load(path)["explained_variance"]  # (k,)
    np.load(path)["scale"]               # (d,), only where columns were scaled
    np.load(path)["columns"]             # (d,) text, only where columns have names
    json.loads(str(np.load(path)["about"]))   # everything else: format, counts, certificate, how it was made

The same model is the same bytes, whatever versions of Python, numpy and zlib write it: arrays are stored as they are,
row by row and little endian, in a fixed order, and nothing else is in the file.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from deepca._util.files import write_whole
from deepca._util.masked import unmasked
from deepca._util.typing import Array
from deepca.decomposition.model.layout import FORMAT, MAGIC, checksum_of, plain_value, stored
from deepca.errors import DataError, InvalidInput
from deepca.solver.certificate.bounds import Certificate
from deepca.solver.result import Status, StatusCode

if TYPE_CHECKING:
    from sklearn.decomposition import PCA
    from sklearn.pipeline import Pipeline

__all__ = ["Model"]


@dataclass(frozen=True, eq=False)
class Model:
    """A fitted PCA.

    components : ``(k, d)`` orthonormal rows.  explained_variance : ``(k,)``, ddof 1.  total_variance : of all columns.
    mean : ``(d,)``.  scale : ``(d,)`` that columns are divided by after centring, or None.
    n_samples : rows of all agents, counted by weight.  weight : their weights together.  columns : names, or None.
    whiten : whether scores are divided by their standard deviation.
    status, certificate : how the run ended, and what is proven.  about : how the model was made (free-form, JSON).
    """

    components: npt.NDArray[Any]
    explained_variance: npt.NDArray[Any]
    total_variance: float
    mean: npt.NDArray[Any]
    scale: npt.NDArray[Any] | None
    n_samples: int
    weight: float
    columns: tuple[str, ...] | None
    whiten: bool
    status: Status
    certificate: Certificate | None
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n_components(self) -> int:
        return int(self.components.shape[0])

    @property
    def n_features(self) -> int:
        return int(self.components.shape[1])

    @property
    def n_known(self) -> int:
        """How many of the components are known; the variances of the others are bounds, lost in rounding.

        All of them unless the status is "below_rounding", or "rank_deficient" to the rounding of the rows only.
        """
        proof = self.certificate
        if proof is not None and self.status.code == StatusCode.BELOW_ROUNDING:
            return proof.known()
        if proof is not None and self.status.code == StatusCode.RANK_DEFICIENT and proof.bound > 0.0:
            return sum(map(math.isfinite, proof.parts)) if proof.parts else int(np.count_nonzero(proof.eigenvalues))
        return self.n_components

    @property
    def explained_variance_ratio(self) -> npt.NDArray[Any]:
        """Share of the total variance, by component."""
        return np.asarray(self.explained_variance / self.total_variance, dtype=self.dtype)

    @property
    def singular_values(self) -> npt.NDArray[Any]:
        """Of the centred rows."""
        variance = self.explained_variance.astype(np.float64)  # times the weight it may not fit into float32
        return np.asarray(np.sqrt(variance * (self.weight - 1.0)), dtype=self.dtype)

    @property
    def noise_variance(self) -> float:
        """Mean variance in the directions left out (probabilistic PCA); 0 where none are."""
        left = min(self.n_samples, self.n_features) - self.n_components
        rest = self.total_variance - float(self.explained_variance.sum(dtype=np.float64))
        return max(rest, 0.0) / left if left > 0 else 0.0

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.components.dtype

    # ------------------------------------------------------------------------------------------------------ applying

    def transform(self, X: Any) -> npt.NDArray[Any]:
        """Scores ``(rows, k)`` of rows, dense or sparse, in the order of the model's columns. float32 stays float32."""
        rows: Any = X if sparse.issparse(X) else np.asarray(unmasked(X, "X"))
        if rows.ndim != 2 or rows.shape[1] != self.n_features:
            raise DataError(f"rows have shape {tuple(rows.shape)}; the model has {self.n_features} columns")
        dtype = np.float32 if rows.dtype == np.float32 and self.dtype == np.float32 else np.float64
        axes, mean = self.components.astype(np.float64), self.mean.astype(np.float64)
        if self.scale is not None:
            axes = axes / self.scale
        if self.whiten:
            axes = axes / self._deviations()[:, None]
        if isinstance(rows, np.ndarray):
            return np.asarray(np.subtract(rows, mean, dtype=np.float64) @ axes.T, dtype=dtype)
        return np.asarray(rows @ axes.T - mean @ axes.T, dtype=dtype)

    def inverse_transform(self, scores: npt.ArrayLike) -> npt.NDArray[Any]:
        """The rows that the scores stand for: the projection onto the components, in the units of the data."""
        Z = np.asarray(unmasked(scores, "scores"))
        if Z.ndim != 2 or Z.shape[1] != self.n_components:
            raise DataError(f"scores have shape {Z.shape}; the model has {self.n_components} components")
        dtype = np.float32 if Z.dtype == np.float32 and self.dtype == np.float32 else np.float64
        axes = self.components.astype(np.float64)
        if self.whiten:
            axes = axes * self._deviations()[:, None]
        rows = Z.astype(np.float64) @ axes
        if self.scale is not None:
            rows *= self.scale
        return np.asarray(rows + self.mean, dtype=dtype)

    def _deviations(self) -> Array:
        """Standard deviations of the scores; one that is zero but for rounding is not divided by."""
        deviations = np.sqrt(self.explained_variance.astype(np.float64))
        return np.maximum(deviations, np.finfo(self.dtype).eps)

    # ---------------------------------------------------------------------------------------------------- elsewhere

    def to_sklearn(self) -> PCA:
        """A fitted ``sklearn.decomposition.PCA`` that gives the same scores."""
        if self.scale is not None:
            raise InvalidInput(
                "a scikit-learn PCA alone cannot scale columns; to_sklearn_pipeline() gives StandardScaler and PCA"
            )
        return self._pca(self.mean)

    def to_sklearn_pipeline(self) -> Pipeline:
        """A fitted scikit-learn Pipeline: StandardScaler where columns are scaled, and PCA."""
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        if self.scale is None:
            return make_pipeline(self._pca(self.mean))
        scaler = StandardScaler()
        scaler.mean_, scaler.scale_, scaler.var_ = self.mean, self.scale, np.square(self.scale)
        scaler.n_samples_seen_, scaler.n_features_in_ = self.n_samples, self.n_features
        if self.columns is not None:
            scaler.feature_names_in_ = np.array(self.columns, dtype=object)
        return make_pipeline(scaler, self._pca(np.zeros_like(self.mean), named=False))

    def _pca(self, mean: npt.NDArray[Any], *, named: bool = True) -> PCA:
        from sklearn.decomposition import PCA

        pca = PCA(n_components=self.n_components, whiten=self.whiten)
        pca.components_, pca.mean_ = self.components.copy(), mean.copy()
        pca.explained_variance_ = self.explained_variance.copy()
        pca.explained_variance_ratio_, pca.singular_values_ = self.explained_variance_ratio, self.singular_values
        pca.noise_variance_ = self.dtype.type(self.noise_variance)
        pca.n_components_, pca.n_samples_, pca.n_features_in_ = self.n_components, self.n_samples, self.n_features
        pca._fit_svd_solver = "full"
        if named and self.columns is not None:
            pca.feature_names_in_ = np.array(self.columns, dtype=object)
        return pca

    # --------------------------------------------------------------------------------------------------------- file

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model, whole or not at all."""
        write_whole(Path(path), self.to_bytes())

    def to_bytes(self) -> bytes:
        """The content of the model's file."""
        arrays: dict[str, npt.NDArray[Any]] = {
            "components": self.components,
            "explained_variance": self.explained_variance,
            "mean": self.mean,
        }
        if self.scale is not None:
            arrays["scale"] = self.scale
        if self.columns is not None:
            arrays["columns"] = np.array(self.columns, dtype=np.str_)
        about = self.description()
        about["checksum"] = checksum_of(arrays, about)
        arrays["about"] = np.array(json.dumps(about, ensure_ascii=False, allow_nan=False))
        return stored(arrays)

    def description(self) -> dict[str, Any]:
        """Everything in the file but the arrays and the checksum, as plain data."""
        return {
            "kind": MAGIC,
            "format": FORMAT,
            "n_samples": self.n_samples,
            "weight": self.weight,
            "total_variance": self.total_variance,
            "whiten": self.whiten,
            "status": {"code": self.status.code, "advice": self.status.advice},
            "certificate": None if self.certificate is None else plain_value(asdict(self.certificate)),
            "about": plain_value(dict(self.about)),
        }
