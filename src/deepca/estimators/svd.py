"""Truncated SVD of a distributed matrix, with scikit-learn's interface. Needs the ``sklearn`` extra."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, Self, cast

import numpy as np
import numpy.typing as npt
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import check_is_fitted

from deepca._util.typing import Array
from deepca._util.units import counted
from deepca._util.validation import Integer, OneOf, check
from deepca.data.sources import ArraySource, Source, as_source, float_type, numeric
from deepca.decomposition.svd import Partition, SingularTriplets, singular_triplets
from deepca.errors import DataError
from deepca.estimators.base import Index, RowTransformer, checked_labels, progress_observers, warn_unless_ok
from deepca.estimators.inputs import default_agent_names
from deepca.network.simulated import SimulatedNetwork
from deepca.topology.graph import Topology

__all__ = ["DecentralizedSVD"]


class DecentralizedSVD(RowTransformer):
    """Truncated SVD of a matrix whose rows, or columns, are distributed over agents; nothing is centred.

    The result is that of :class:`sklearn.decomposition.TruncatedSVD` on the whole matrix, including signs (the largest
    entry of every component is positive), but exact up to ``tol``, whereas TruncatedSVD is randomized by default.

    Parameters
    ----------
    n_components : int, default=2
        Number of singular triplets.
    partition : {"rows", "columns"}, default="rows"
        Whether each agent holds some of the rows or some of the columns.
    topology : str or Topology, default="erdos-renyi:0.5"
        The network: ``"ring"``, ``"erdos-renyi:0.5"``, … or a :class:`deepca.Topology`.
    n_agents : int or None, default=None
        Number of agents over which ``fit`` distributes the matrix; at most 10 if None.
    algorithm : {"auto", "krylov", "accelerated", "deepca", "depca", "covariance"}, default="auto"
        As for :class:`DecentralizedPCA`.
    rounds : int or "auto", default="auto"
        Gossip rounds per iteration, for algorithms that gossip; "auto" adapts the number during the run.
    tol : float, default=1e-10
        Largest acceptable tangent of the angle between any agent's subspace and the exact one.
    max_iter : int, default=10000
        Maximum number of iterations. A run that ends without reaching ``tol`` issues a warning that says why.
    random_state : int, RandomState instance or None, default=0
        Seed of random networks and of the starting point.
    warm_start : bool, default=False
        Whether to start with the vectors of the previous fit.
    verbose : bool or int, default=False
        Whether to show progress.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features_in_)
        Right singular vectors.
    singular_values_ : ndarray of shape (n_components,)
        Singular values, in descending order.
    explained_variance_ : ndarray of shape (n_components,)
        Variance of the scores of each component.
    explained_variance_ratio_ : ndarray of shape (n_components,)
        Share of the total variance explained by each component.
    left_ : list of ndarray of shape (n_j, n_components)
        With distributed rows: left singular vectors of the rows of each agent.
    left_singular_vectors_ : ndarray of shape (n_samples, n_components)
        With distributed columns: left singular vectors, known to every agent.
    components_by_agent_ : list of ndarray of shape (n_components, d_j)
        With distributed columns: right singular vectors of the columns of each agent.
    reconstruction_error_ : float
        ``‖X − X̂‖_F`` of the whole matrix, combined from the errors of the agents' parts.
    reconstruction_errors_ : tuple of float
        Reconstruction error of each agent's part.
    best_error_ : float
        ``√(‖X‖_F² − Σ σ_i²)``, the smallest error possible with ``n_components``.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Column names, if all of them are strings.
    n_iter_ : int
        Number of iterations.
    result_ : SingularTriplets
        Result of the run.
    certificate_ : Certificate
        Proof of the error bound of the result.
    topology_ : Topology
        The network.
    traffic_ : Traffic
        Traffic of the whole computation.

    See Also
    --------
    DecentralizedPCA : Principal components of distributed rows, with centring.
    deepca.singular_triplets : The same for agents in separate processes or on MPI ranks.

    Notes
    -----
    With distributed rows, every agent learns the components, and its rows of the left vectors never leave it. With
    distributed columns, every agent holds some features of all samples and sends ``n × k`` numbers at a time. It
    *learns the left vectors*, that is, the scores of all samples (up to the singular values), and its entries of the
    components never leave it.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from deepca import DecentralizedSVD
    >>> X = load_wine().data
    >>> svd = DecentralizedSVD(2, topology="ring").fit_agents([X[:30], X[30:120], X[120:]])
    >>> svd.singular_values_.round(3)
    array([10886.67 ,   493.562])
    >>> bool(svd.reconstruction_error_ <= svd.best_error_ * (1 + 1e-9))
    True
    """

    def __init__(
        self,
        n_components: int = 2,
        *,
        partition: Partition = "rows",
        topology: str | Topology = "erdos-renyi:0.5",
        n_agents: int | None = None,
        algorithm: str = "auto",
        rounds: int | Literal["auto"] = "auto",
        tol: float = 1e-10,
        max_iter: int = 10_000,
        random_state: Any = 0,
        warm_start: bool = False,
        verbose: bool | int = False,
    ) -> None:
        self.n_components = n_components
        self.partition = partition
        self.topology = topology
        self.n_agents = n_agents
        self.algorithm = algorithm
        self.rounds = rounds
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state
        self.warm_start = warm_start
        self.verbose = verbose

    # ----------------------------------------------------------------------------------------------------- fitting

    def fit(self, X: Any, y: Any = None, agents: Any = None) -> Self:
        """Distribute a matrix over agents and fit the model.

        Parameters
        ----------
        X : array-like, sparse matrix or data frame of shape (n_samples, n_features)
            The whole matrix.
        y : Ignored
            Not used, present for consistency with scikit-learn.
        agents : array-like, optional
            Label of the agent that holds each row (or column). By default the rows (or columns) are partitioned into
            equal blocks.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        GapError
            If singular values ``n_components`` and the next one are equal, so that the vectors are not unique.
        """
        self._fit_whole(X, agents)
        warn_unless_ok(self.result_.status)
        return self

    def fit_transform(self, X: Any, y: Any = None, agents: Any = None) -> npt.NDArray[Any]:
        """Fit the model and return the scores ``X V`` of the rows.

        Parameters
        ----------
        X : array-like, sparse matrix or data frame of shape (n_samples, n_features)
            The whole matrix.
        y : Ignored
            Not used, present for consistency with scikit-learn.
        agents : array-like, optional
            Label of the agent that holds each row (or column), as for :meth:`fit`.

        Returns
        -------
        ndarray of shape (n_samples, n_components)
            The scores.
        """
        validated = self._fit_whole(X, agents)
        warn_unless_ok(self.result_.status)
        return cast("npt.NDArray[Any]", safe_sparse_dot(validated, self.components_.T))

    def fit_agents(self, Xs: Iterable[Any], y: Any = None) -> Self:
        """Fit the model with a matrix that is already distributed.

        Parameters
        ----------
        Xs : iterable
            One array, sparse matrix, data frame or path of a file per agent: its rows, ``(n_j, d)``, or its columns,
            ``(n, d_j)``. With distributed columns the components are concatenated in the order of the agents.
        y : Ignored
            Not used, present for consistency with scikit-learn.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        GapError
            If singular values ``n_components`` and the next one are equal, so that the vectors are not unique.
        """
        self._check_partition()
        sources = [as_source(X, f"agent {j}", agent=j) for j, X in enumerate(Xs)]
        m = len(sources)
        if not m:
            raise DataError("Xs is empty; give one block per agent", parameter="Xs", value=())
        self._check_agents(m, f"blocks of {counted(m, 'agent')} were given")
        seed = self._seed()
        self._fit_sources(sources, self._topology(m, most=m, seed=seed), seed)
        self._name_columns(self.components_.shape[1], sources[0].columns if self.partition == "rows" else None)
        warn_unless_ok(self.result_.status)
        return self

    def _check_partition(self) -> None:
        check("partition", self.partition, OneOf("rows", "columns"))

    def _fit_whole(self, X: Any, agents: Any) -> Any:
        """Distribute the matrix over agents, fit the model, and return the validated matrix."""
        self._check_partition()
        X, _ = self._validated(X, ensure_min_features=2)
        by_rows, seed = self.partition == "rows", self._seed()
        of, count = ("row", X.shape[0]) if by_rows else ("column", X.shape[1])
        if agents is None:
            topology = self._topology(None, most=count, seed=seed, of=of)
            indices, names = np.array_split(np.arange(count), topology.n_agents), default_agent_names(topology.n_agents)
        else:
            topology, names, indices = self._by_label(checked_labels(agents, count, of), seed, of)
        parts = [numeric(X[i] if by_rows else X[:, i], name) for i, name in zip(indices, names, strict=True)]
        sources = [ArraySource(part, name, agent=j) for j, (part, name) in enumerate(zip(parts, names, strict=True))]
        self._fit_sources(sources, topology, seed, columns=None if by_rows else indices)
        return X

    def _fit_sources(
        self, sources: Sequence[Source], topology: Topology, seed: int, columns: Sequence[Index] | None = None
    ) -> None:
        """Fit the sources; ``columns`` are the indices of each agent's columns, consecutive by default."""
        found = singular_triplets(
            sources,
            SimulatedNetwork(topology),
            self.n_components,
            partition=self.partition,
            start=self._warm_start_directions(sources[0].d if self.partition == "rows" else sources[0].n),
            observers=progress_observers(bool(self.verbose)),
            **self._search_options(seed),
        ).required()
        self._set_attributes(found, float_type(*(source.dtype for source in sources)), columns)
        self.topology_, self._directions = topology, found.directions

    def _set_attributes(self, found: SingularTriplets, dtype: np.dtype[Any], columns: Sequence[Index] | None) -> None:
        """Set the fitted attributes."""
        for name in ("left_", "left_singular_vectors_", "components_by_agent_"):  # left by a previous fit
            self.__dict__.pop(name, None)
        local = [part.astype(dtype) for part in found.local_vectors]
        shared = found.shared_vectors.astype(dtype)
        if found.partition == "rows":
            self.components_, self.left_ = np.ascontiguousarray(shared.T), local
        else:
            parts = [np.ascontiguousarray(part.T) for part in local]
            self.left_singular_vectors_, self.components_by_agent_ = shared, parts
            joined = np.hstack(parts)
            self.components_ = joined if columns is None else joined[:, np.argsort(np.concatenate(columns))]
        self.singular_values_ = found.values.astype(dtype)
        self.explained_variance_ = found.explained_variance.astype(dtype)
        total = found.total_variance
        self.explained_variance_ratio_ = (found.explained_variance / total if total else found.values * 0).astype(dtype)
        self.reconstruction_error_, self.best_error_ = found.error, found.best_error
        self.reconstruction_errors_ = found.local_errors
        self.result_, self.certificate_, self.traffic_ = found, found.certificate, found.traffic
        self.n_iter_ = max(found.iterations, 1)

    # --------------------------------------------------------------------------------------------------- transforming

    def transform(self, X: Any) -> npt.NDArray[Any]:
        """Return the scores ``X V`` of rows; with distributed rows every agent can do this locally.

        Parameters
        ----------
        X : array-like, sparse matrix or data frame of shape (n_samples, n_features)
            The rows.

        Returns
        -------
        ndarray of shape (n_samples, n_components)
            Their scores.
        """
        return cast("npt.NDArray[Any]", safe_sparse_dot(self._rows(X), self.components_.T))

    def inverse_transform(self, X: Any) -> npt.NDArray[Any]:
        """Transform scores back to rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_components)
            The scores.

        Returns
        -------
        ndarray of shape (n_samples, n_features)
            The rows.
        """
        return np.asarray(self._scores(X) @ self.components_)

    def reconstruct(self, agent: int) -> Array:
        """Return the rank-k approximation of an agent's part, which the agent can compute after the fit.

        Parameters
        ----------
        agent : int
            Index of the agent.

        Returns
        -------
        ndarray
            The approximation, in the shape of the agent's part.
        """
        check_is_fitted(self)
        m = self.topology_.n_agents
        check("agent", agent, Integer(0, m - 1))
        return self.result_.reconstruct(int(agent))
