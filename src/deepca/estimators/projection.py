"""Methods of a fitted PCA: transformation, likelihood and conversion to scikit-learn.

They need the ``sklearn`` extra.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.decomposition import PCA
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from deepca._util.typing import Array
from deepca.decomposition.model import Model
from deepca.estimators.base import RowTransformer

__all__ = ["Projection"]


class Projection(RowTransformer):
    """Base class of estimators that are fitted to a :class:`Model`."""

    whiten: bool
    model_: Model
    mean_: npt.NDArray[Any]
    scale_: npt.NDArray[Any] | None

    def transform(self, X: Any) -> npt.NDArray[Any]:
        """Project rows onto the components, which every agent can do locally after the fit.

        Parameters
        ----------
        X : array-like, sparse matrix or data frame of shape (n_samples, n_features)
            The rows.

        Returns
        -------
        ndarray of shape (n_samples, n_components)
            Their scores.
        """
        rows = self._rows(X)
        return self._current().transform(rows)

    def inverse_transform(self, X: Any) -> npt.NDArray[Any]:
        """Transform scores back to rows in the units of the data.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_components)
            The scores.

        Returns
        -------
        ndarray of shape (n_samples, n_features)
            The rows.
        """
        scores = self._scores(X)
        return self._current().inverse_transform(scores)

    def _current(self) -> Model:
        """Return the model with the current value of ``whiten``, which scikit-learn also reads at transform time."""
        return self.model_ if self.model_.whiten == self.whiten else replace(self.model_, whiten=bool(self.whiten))

    def score_samples(self, X: Any) -> Array:
        """Return the log-likelihood of each row under the probabilistic PCA model.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The rows. With ``scale=True`` the likelihood is that of the scaled rows.

        Returns
        -------
        ndarray of shape (n_samples,)
            Log-likelihoods.
        """
        X = self._rows(X, sparse=False)
        if self.scale_ is not None:
            X = (X - self.mean_) / self.scale_
        return np.asarray(self._pca().score_samples(X))

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log-likelihood of the rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The rows.
        y : Ignored
            Not used, present for consistency with scikit-learn.

        Returns
        -------
        float
            Mean of :meth:`score_samples`.
        """
        return float(np.mean(self.score_samples(X)))

    def get_covariance(self) -> npt.NDArray[Any]:
        """Return the covariance matrix of the probabilistic PCA model.

        Returns
        -------
        ndarray of shape (n_features, n_features)
            Covariance of the columns; of the scaled columns with ``scale=True``.
        """
        check_is_fitted(self)
        return np.asarray(self._pca().get_covariance())

    def get_precision(self) -> npt.NDArray[Any]:
        """Return the precision matrix of the probabilistic PCA model.

        Returns
        -------
        ndarray of shape (n_features, n_features)
            Inverse of :meth:`get_covariance`.
        """
        check_is_fitted(self)
        return np.asarray(self._pca().get_precision())

    def to_sklearn(self) -> PCA:
        """Return a fitted scikit-learn PCA with the same scores.

        Returns
        -------
        sklearn.decomposition.PCA
            The fitted estimator.

        Raises
        ------
        InvalidInput
            If the model scales columns, which a PCA alone cannot do.
        """
        check_is_fitted(self)
        return self._current().to_sklearn()

    def to_sklearn_pipeline(self) -> Pipeline:
        """Return a fitted scikit-learn pipeline with the same scores.

        Returns
        -------
        sklearn.pipeline.Pipeline
            StandardScaler (with ``scale=True``) and PCA.
        """
        check_is_fitted(self)
        return self._current().to_sklearn_pipeline()

    def _pca(self) -> PCA:
        """Return a fitted scikit-learn PCA for data that are already scaled, if the model scales columns."""
        return self._current().to_sklearn_pipeline()[-1]
