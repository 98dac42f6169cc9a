"""Eigenpairs of the mean or sum of distributed operators, as an estimator. Needs the ``sklearn`` extra."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self, cast

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator
from sklearn.base import BaseEstimator

from deepca.decomposition.eigen import Of, Which, eigenpairs, symmetric_operators
from deepca.errors import DataError
from deepca.estimators.base import DistributedEstimatorMixin, progress_observers, warn_unless_ok
from deepca.network.simulated import SimulatedNetwork
from deepca.operators.base import Operator
from deepca.operators.construction import as_operator
from deepca.topology.graph import Topology

__all__ = ["DecentralizedEigen"]


class DecentralizedEigen(DistributedEstimatorMixin, BaseEstimator):
    """Eigenpairs of the mean, or the sum, of symmetric operators, one per agent.

    The result is that of :func:`scipy.linalg.eigh` on the mean, which is never formed. Operators and their mean may be
    indefinite: agents agree on a shift first.

    Parameters
    ----------
    n_components : int, default=1
        Number of eigenpairs.
    which : {"LA", "SA", "LM"}, default="LA"
        Eigenvalues to find: the algebraically largest, the smallest, or the largest in modulus.
    of : {"mean", "sum"}, default="mean"
        Whether to decompose the mean or the sum of the operators.
    topology : str or Topology, default="erdos-renyi:0.5"
        The network: ``"ring"``, ``"erdos-renyi:0.5"``, … or a :class:`deepca.Topology`.
    algorithm : {"auto", "krylov", "accelerated", "deepca", "depca", "covariance"}, default="auto"
        As for :class:`DecentralizedPCA`. With ``which="LM"``, "deepca" runs as in the paper: QR, SignAdjust, no shift.
    rounds : int or "auto", default="auto"
        Gossip rounds per iteration, for algorithms that gossip; "auto" adapts the number during the run.
    tol : float, default=1e-10
        Largest acceptable tangent of the angle between the span of the eigenvectors and the exact one.
    max_iter : int, default=10000
        Maximum number of iterations. A run that ends without reaching ``tol`` issues a warning that says why.
    random_state : int, RandomState instance or None, default=0
        Seed of random networks and of the starting point.
    verbose : bool or int, default=False
        Whether to show progress.

    Attributes
    ----------
    eigenvalues_ : ndarray of shape (n_components,)
        Eigenvalues: descending for "LA", ascending for "SA", by descending modulus for "LM".
    eigenvectors_ : ndarray of shape (n_features_in_, n_components)
        Orthonormal eigenvectors; the entry of largest absolute value of each is positive.
    residuals_ : ndarray of shape (n_components,)
        Upper bounds on ``‖A x − λ x‖`` of each pair, from newly computed averages, including their rounding errors.
    angles_ : ndarray of shape (n_components,)
        Bounds on the tangent of the angle between each vector and an eigenvector; inf within a cluster.
    clusters_ : tuple
        Groups of pairs whose eigenvalues cannot be distinguished; only the span of each group is defined.
    n_features_in_ : int
        Dimension of the operators.
    n_iter_ : int
        Number of iterations.
    result_ : Eigenpairs
        Result of the run.
    certificates_ : tuple
        Proofs of the error bounds of the runs that computed the result.
    topology_ : Topology
        The network.
    traffic_ : Traffic
        Traffic of the whole computation.

    See Also
    --------
    DecentralizedPCA : Principal components of distributed rows.
    deepca.eigenpairs : The same for agents in separate processes or on MPI ranks.

    Examples
    --------
    >>> import numpy as np
    >>> from deepca import DecentralizedEigen
    >>> A = [np.diag([4.0, -6.0, 1.0]), np.diag([2.0, -4.0, 1.0]), np.diag([3.0, -5.0, 1.0])]
    >>> DecentralizedEigen(2, which="LM", topology="path").fit(A).eigenvalues_.round(12)
    array([-5.,  3.])
    """

    def __init__(
        self,
        n_components: int = 1,
        *,
        which: Which = "LA",
        of: Of = "mean",
        topology: str | Topology = "erdos-renyi:0.5",
        algorithm: str = "auto",
        rounds: int | Literal["auto"] = "auto",
        tol: float = 1e-10,
        max_iter: int = 10_000,
        random_state: Any = 0,
        verbose: bool | int = False,
    ) -> None:
        self.n_components = n_components
        self.which = which
        self.of = of
        self.topology = topology
        self.algorithm = algorithm
        self.rounds = rounds
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state
        self.verbose = verbose

    n_agents = None  # the number of operators determines it

    def fit(self, operators: Any, y: Any = None) -> Self:
        """Compute the eigenpairs.

        Parameters
        ----------
        operators : sequence or ndarray of shape (m, d, d)
            One symmetric array, sparse matrix or LinearOperator per agent, in any combination.
        y : Ignored
            Not used, present for consistency with scikit-learn.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        DataError
            If there is not one symmetric operator per agent.
        GapError
            If the spectrum has no gap after ``n_components``, so that the eigenvectors are not unique.
        """
        A = _per_agent(operators)
        seed = self._seed()
        topology = self._topology(A.n_local, most=A.n_local, seed=seed, of="operator")
        found = eigenpairs(
            A,
            SimulatedNetwork(topology),
            self.n_components,
            which=self.which,
            of=self.of,
            observers=progress_observers(bool(self.verbose)),
            **self._search_options(seed),
        ).required()
        self.eigenvalues_, self.eigenvectors_ = found.values, found.vectors
        self.residuals_, self.angles_, self.clusters_ = found.residuals, found.angles, found.clusters
        self.result_, self.certificates_, self.traffic_ = found, found.certificates, found.traffic
        self.topology_, self.n_iter_, self.n_features_in_ = topology, max(found.iterations, 1), A.d
        warn_unless_ok(self.result_.status)
        return self


def _per_agent(operators: Any) -> Operator:
    """Return the operators of all agents as one Operator; raise DataError unless there is one per agent."""
    if isinstance(operators, LinearOperator) or sparse.issparse(operators):
        shape = cast("Any", operators).shape
        message = f"got a single operator of shape {shape}; give a list with one per agent"
        raise DataError(message, parameter="operators", value=shape)
    if isinstance(operators, np.ndarray) and operators.ndim == 2:
        message = f"got a single matrix of shape {operators.shape}; give a list with one per agent, or (m, d, d)"
        raise DataError(message, parameter="operators", value=operators.shape)
    if isinstance(operators, Sequence) and not operators:
        raise DataError("operators is empty; give one operator per agent", parameter="operators", value=())
    A = as_operator(symmetric_operators(operators))
    if not A.batch:
        raise DataError(
            "got the operator of a single agent; give those of all agents", parameter="operators", value=A.d
        )
    return A
