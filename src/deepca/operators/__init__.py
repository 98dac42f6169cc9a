"""The matrices ``A_j`` of the agents, and the linear algebra of tall blocks."""

from deepca.operators.base import (
    Covariances,
    DenseRows,
    Form,
    Operator,
    OperatorLike,
    PerAgent,
    Preparation,
    SparseRows,
    as_operator,
    choose_form,
    from_linear_operators,
    from_matrices,
    from_rows,
    split_rows,
)
from deepca.operators.shifted import Shifted

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
