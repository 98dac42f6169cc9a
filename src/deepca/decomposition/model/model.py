"""A fitted PCA as plain arrays; its file can be read with numpy alone.

The file is an ``.npz`` without pickle::

    np.load(path)["components"]          # (k, d) float64 or float32
    np.load(path)["mean"]                # (d,)
    np.load(path)["explained_variance"]  # (k,)
    np.load(path)["scale"]               # (d,), only where columns were scaled
    np.load(path)["columns"]             # (d,) text, only where columns have names
    json.loads(str(np.load(path)["about"]))   # everything else: format, counts, certificate, provenance

Equal models have identical bytes, whichever versions of Python, numpy and zlib write them: arrays are stored
uncompressed, row by row and little endian, in a fixed order, with nothing else in the file.
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

from deepca._util.files import write_atomic
from deepca._util.masked import unmasked
from deepca._util.typing import Array
from deepca.decomposition.model.layout import FORMAT, MAGIC, checksum_of, npz_bytes, plain_value
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

    Parameters
    ----------
    components : array of shape (k, d)
        Orthonormal rows.
    explained_variance : array of shape (k,)
        Variances of the scores, with ddof 1.
    total_variance : float
        Sum of the variances of all columns, after any scaling.
    mean : array of shape (d,)
        Mean that is subtracted from rows.
    scale : array of shape (d,) or None
        Standard deviations by which columns are divided after centring (``units`` in a decomposition);
        None if columns are not scaled.
    n_samples : int
        Sum of the weights, rounded down, but at least the number of rows with a nonzero weight.
    weight : float
        Sum of the weights of all rows.
    columns : tuple of str or None
        Names of the columns.
    whiten : bool
        Whether scores are divided by their standard deviations.
    status : Status
        How the run ended.
    certificate : Certificate or None
        Error bounds on the components.
    about : mapping
        How the model was made: free-form, JSON-compatible data.

    Examples
    --------
    >>> import numpy as np
    >>> import deepca
    >>> X = np.random.default_rng(0).standard_normal((60, 4)) * [3.0, 2.0, 1.0, 0.5]
    >>> model = deepca.DecentralizedPCA(n_components=2, topology="ring", n_agents=3).fit(X).model_
    >>> model.transform(X).shape
    (60, 2)
    >>> model.save("model.npz")  # doctest: +SKIP
    >>> deepca.load("model.npz").n_components  # doctest: +SKIP
    2
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
        """Number of components k."""
        return int(self.components.shape[0])

    @property
    def n_features(self) -> int:
        """Number of columns d."""
        return int(self.components.shape[1])

    @property
    def n_known(self) -> int:
        """Number of components whose variance is known; all further variances are lost in rounding, and only bounded.

        It is k unless the status is "below_rounding", or "rank_deficient" up to the rounding of the rows.
        """
        proof = self.certificate
        if proof is not None and self.status.code == StatusCode.BELOW_ROUNDING:
            return proof.n_known()
        if proof is not None and self.status.code == StatusCode.RANK_DEFICIENT and proof.bound > 0.0:
            return sum(map(math.isfinite, proof.parts)) if proof.parts else int(np.count_nonzero(proof.eigenvalues))
        return self.n_components

    @property
    def explained_variance_ratio(self) -> npt.NDArray[Any]:
        """Share of the total variance that each component explains."""
        return np.asarray(self.explained_variance / self.total_variance, dtype=self.dtype)

    @property
    def singular_values(self) -> npt.NDArray[Any]:
        """Singular values of the centred rows."""
        variance = self.explained_variance.astype(np.float64)  # the product with the weight may overflow float32
        return np.asarray(np.sqrt(variance * (self.weight - 1.0)), dtype=self.dtype)

    @property
    def noise_variance(self) -> float:
        """Mean variance in the directions outside the components, as in probabilistic PCA; 0 if there are none."""
        left = min(self.n_samples, self.n_features) - self.n_components
        rest = self.total_variance - float(self.explained_variance.sum(dtype=np.float64))
        return max(rest, 0.0) / left if left > 0 else 0.0

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the arrays, float64 or float32."""
        return self.components.dtype

    # ------------------------------------------------------------------------------------------------------ applying

    def transform(self, X: Any) -> npt.NDArray[Any]:
        """Project rows onto the components.

        Parameters
        ----------
        X : array or sparse matrix of shape (n, d)
            Rows, with columns in the model's order.

        Returns
        -------
        array of shape (n, k)
            Scores; float32 if the rows and the model are.

        Raises
        ------
        DataError
            If the rows have a different number of columns from the model.
        """
        rows: Any = X if sparse.issparse(X) else np.asarray(unmasked(X, "X"))
        if rows.ndim != 2 or rows.shape[1] != self.n_features:
            shape = tuple(rows.shape)
            raise DataError(
                f"X has shape {shape}; expected (rows, {self.n_features}), the columns of the model",
                parameter="X",
                value=shape,
            )
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
        """Map scores back to rows in the units of the data, which lie in the span of the components.

        Parameters
        ----------
        scores : array of shape (n, k)
            Scores.

        Returns
        -------
        array of shape (n, d)
            Rows.

        Raises
        ------
        DataError
            If the scores have a different number of columns from the components of the model.
        """
        Z = np.asarray(unmasked(scores, "scores"))
        if Z.ndim != 2 or Z.shape[1] != self.n_components:
            raise DataError(
                f"scores have shape {Z.shape}; give one column for each of the {self.n_components} components",
                parameter="scores",
                value=Z.shape,
            )
        dtype = np.float32 if Z.dtype == np.float32 and self.dtype == np.float32 else np.float64
        axes = self.components.astype(np.float64)
        if self.whiten:
            axes = axes * self._deviations()[:, None]
        rows = Z.astype(np.float64) @ axes
        if self.scale is not None:
            rows *= self.scale
        return np.asarray(rows + self.mean, dtype=dtype)

    def _deviations(self) -> Array:
        """Return the standard deviations of the scores, bounded below so that rounding noise is not amplified."""
        deviations = np.sqrt(self.explained_variance.astype(np.float64))
        return np.maximum(deviations, np.finfo(self.dtype).eps)

    # -------------------------------------------------------------------------------------------------- scikit-learn

    def to_sklearn(self) -> PCA:
        """Convert to a fitted scikit-learn PCA with the same scores.

        Returns
        -------
        sklearn.decomposition.PCA
            The estimator.

        Raises
        ------
        InvalidInput
            If the model scales columns, which scikit-learn's PCA does not support.
        """
        if self.scale is not None:
            raise InvalidInput(
                "the model scales columns, which a scikit-learn PCA cannot; use to_sklearn_pipeline()",
                parameter="scale",
            )
        return self._pca(self.mean)

    def to_sklearn_pipeline(self) -> Pipeline:
        """Convert to a fitted scikit-learn Pipeline with the same scores.

        Returns
        -------
        sklearn.pipeline.Pipeline
            PCA, preceded by StandardScaler if the model scales columns.
        """
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
        """Write the model to a file, atomically.

        Parameters
        ----------
        path : path-like
            The file; an existing one is replaced.
        """
        write_atomic(Path(path), self.to_bytes())

    def to_bytes(self) -> bytes:
        """Return the content of the model's file.

        Returns
        -------
        bytes
            An ``.npz`` archive; equal models give identical bytes.
        """
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
        return npz_bytes(arrays)

    def description(self) -> dict[str, Any]:
        """Return the metadata in the file, except for the checksum.

        Returns
        -------
        dict
            JSON-compatible data.
        """
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
