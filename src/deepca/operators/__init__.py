"""Operators for the matrices ``A_j`` of the agents, and the linear algebra of tall blocks."""

from deepca._util.renamed import renamed_names
from deepca.operators.base import MixedOperator, Operator, OperatorLike
from deepca.operators.construction import Form, as_operator, choose_form, from_matrices, from_rows, split_rows
from deepca.operators.covariances import Covariances
from deepca.operators.dense_rows import DenseRows
from deepca.operators.linear_operators import from_linear_operators
from deepca.operators.preparation import Preparation
from deepca.operators.shifted import Shifted
from deepca.operators.sparse_rows import SparseRows

__getattr__ = renamed_names(__name__, PerAgent="MixedOperator")

__all__ = [
    "Covariances",
    "DenseRows",
    "Form",
    "MixedOperator",
    "Operator",
    "OperatorLike",
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
