"""``DecentralizedEigen``: eigenpairs of a mean or sum of operators that agents hold. Needs the ``sklearn`` extra."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator
from sklearn.base import BaseEstimator

from deepca.decomposition.eigen import Of, Which, eigenpairs, symmetric_operators
from deepca.errors import DataError, InvalidInput
from deepca.estimators.base import OverAgents, warn_unless_ok, watchers
from deepca.network.simulated import SimulatedNetwork
from deepca.operators.base import Operator
from deepca.operators.construction import as_operator
from deepca.topology.graph import Topology

__all__ = ["DecentralizedEigen"]


class DecentralizedEigen(OverAgents, BaseEstimator):
    """Eigenpairs of the mean, or the sum, of symmetric operators of which every agent holds one.

    The answer is that of ``scipy.linalg.eigh`` on the mean, which nobody forms. Operators, and their mean, may be
    indefinite: agents agree on a shift first. Where agents are processes of their own, or ranks,
    :func:`deepca.eigenpairs` makes the same over their network.

    Parameters
    ----------
    n_components : int
        How many eigenpairs.
    which : "LA", "SA" or "LM"
        The algebraically largest, the smallest, or the largest in modulus.
    of : "mean" or "sum"
        Of the agents' operators.
    topology : str or Topology
        Who talks to whom: ``"ring"``, ``"erdos-renyi:0.5"``, … or a :class:`deepca.Topology`.
    algorithm : "auto", "krylov", "accelerated", "deepca", "depca" or "covariance"
        As for :class:`deepca.DecentralizedPCA`. With "LM", "deepca" is the paper's way: QR, SignAdjust, no shift.
    rounds : int or "auto"
        Rounds of gossip per iteration of methods that gossip.
    tol : float
        Largest acceptable tangent of the angle between the span of the eigenvectors and the true one.
    max_iter : int
        Iterations at most. A run that ends without reaching ``tol`` warns and says why.
    random_state : int, RandomState or None
        For random networks and the start.
    verbose : bool or int
        Show progress.

    Attributes
    ----------
    eigenvalues_ : ``(k,)``: falling for LA, rising for SA, by falling modulus for LM.
    eigenvectors_ : ``(d, k)``, orthonormal, the largest entry of each positive.
    residuals_ : ``(k,)``, ``‖A x − λ x‖`` of each pair, from fresh averages, their rounding included.
    angles_ : ``(k,)``, bound on the tangent between each vector and an eigenvector.
    clusters_ : groups of pairs whose eigenvalues cannot be told apart; only the span of each is defined.
    result_ : the :class:`deepca.Eigenpairs`.  certificates_ : of the runs behind it.
    n_iter_, topology_, traffic_ : iterations, the network, and all that was sent.

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

    n_agents = None  # as many as there are operators

    def fit(self, operators: Any, y: Any = None) -> Self:
        """Find the eigenpairs.

        Parameters
        ----------
        operators : one symmetric array, sparse matrix or LinearOperator per agent, in any mixture; or ``(m, d, d)``.
        y : ignored.
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
            observers=watchers(bool(self.verbose)),
            **self._search_options(seed),
        ).required()
        self.eigenvalues_, self.eigenvectors_ = found.values, found.vectors
        self.residuals_, self.angles_, self.clusters_ = found.residuals, found.angles, found.clusters
        self.result_, self.certificates_, self.traffic_ = found, found.certificates, found.traffic
        self.topology_, self.n_iter_, self.n_features_in_ = topology, max(found.iterations, 1), A.d
        warn_unless_ok(self.result_.status)
        return self


def _per_agent(operators: Any) -> Operator:
    """The operators of all agents, or an error that says what is missing."""
    if isinstance(operators, LinearOperator) or sparse.issparse(operators):
        raise DataError("one operator alone: give a list with one per agent")
    if isinstance(operators, np.ndarray) and operators.ndim == 2:
        raise DataError(f"one matrix of shape {operators.shape} alone: give a list with one per agent, or (m, d, d)")
    if isinstance(operators, Sequence) and not operators:
        raise InvalidInput("no agents: give one operator per agent")
    A = as_operator(symmetric_operators(operators))
    if not A.batch:
        raise DataError("an operator of one agent alone: give those of all agents")
    return A
