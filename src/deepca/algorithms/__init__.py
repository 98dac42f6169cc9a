"""Algorithms, written in the paper's notation as pairs of pure functions over a network: ``init`` and ``step``."""

from deepca.algorithms import theory
from deepca.algorithms.accelerated import AcceleratedDeEPCA, AcceleratedState
from deepca.algorithms.base import Algorithm, QRSignAdjust, State, TrackedState
from deepca.algorithms.covariance import CovarianceAveraging, CovarianceState
from deepca.algorithms.cpca import CPCA
from deepca.algorithms.deepca import DeEPCA
from deepca.algorithms.depca import DePCA
from deepca.algorithms.krylov import BlockKrylov, KrylovState

__all__ = [
    "CPCA",
    "AcceleratedDeEPCA",
    "AcceleratedState",
    "Algorithm",
    "BlockKrylov",
    "CovarianceAveraging",
    "CovarianceState",
    "DeEPCA",
    "DePCA",
    "KrylovState",
    "QRSignAdjust",
    "State",
    "TrackedState",
    "theory",
]
