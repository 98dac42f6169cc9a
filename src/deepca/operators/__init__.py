"""Operators for the matrices ``A_j`` of the agents, and the linear algebra of tall blocks."""

from deepca.operators.base import Operator, OperatorLike, PerAgent
from deepca.operators.construction import Form, as_operator, choose_form, from_matrices, from_rows, split_rows
from deepca.operators.covariances import Covariances
from deepca.operators.dense_rows import DenseRows
from deepca.operators.linear_operators import from_linear_operators
from deepca.operators.preparation import Preparation
from deepca.operators.shifted import Shifted
from deepca.operators.sparse_rows import SparseRows

__all__ = [
    "Covariances",
    "DenseRows",
    "Form",
    "Operator",
    "OperatorLike",
    "PerAgent",
    "Preparation",
    "Shifted",
    "SparseRows",
    "as_operator",
    "choose_form",
    "from_linear_operators",
    "from_matrices",
    "from_rows",
    "split_rows",
]
