"""Estimators with scikit-learn's interface, which need the ``sklearn`` extra."""

from deepca.estimators.eigen import DecentralizedEigen
from deepca.estimators.pca import DecentralizedPCA
from deepca.estimators.svd import DecentralizedSVD

__all__ = ["DecentralizedEigen", "DecentralizedPCA", "DecentralizedSVD"]
