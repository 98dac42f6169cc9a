"""PCA of distributed rows, with scikit-learn's interface. Needs the ``sklearn`` extra."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Self

import numpy.typing as npt

from deepca.errors import DataError
from deepca.estimators.base import warn_unless_ok
from deepca.estimators.fitting import Fitting
from deepca.estimators.inputs import blocks_of_agents, check_same_on_all_ranks, default_agent_names, source_if_any
from deepca.estimators.projection import Projection
from deepca.network.compression import Messages
from deepca.topology.graph import Topology

__all__ = ["DecentralizedPCA"]


class DecentralizedPCA(Projection, Fitting):
    """Principal component analysis (PCA) of rows that are distributed over agents.

    Agents communicate with their neighbours only. The result is that of :class:`sklearn.decomposition.PCA` on the
    pooled rows, but no row leaves its agent, and no server is involved. docs/privacy.md lists what an agent does send,
    and what its neighbours can learn from it.

    Parameters
    ----------
    n_components : int, float or None, default=None
        Number of components. A number in (0, 1) selects the fewest components that explain more than this share of the
        variance; None selects ``min(n_samples, n_features)``.
    whiten : bool, default=False
        Whether to divide scores by their standard deviation.
    center : bool, default=True
        Whether to subtract the agreed mean.
    scale : bool, default=False
        Whether to divide columns by their agreed standard deviation (ddof 0, as StandardScaler does).
    topology : str or Topology, default="erdos-renyi:0.5"
        The network: ``"ring"``, ``"erdos-renyi:0.5"``, ``"torus"``, … or a :class:`deepca.Topology`.
    n_agents : int or None, default=None
        Number of agents over which ``fit`` distributes the rows. If None, at most 10, but at least one per MPI rank;
        never more than there are rows.
    rounds : int or "auto", default="auto"
        Gossip rounds per iteration, for algorithms that gossip; "auto" adapts the number during the run.
    algorithm : {"auto", "krylov", "accelerated", "deepca", "depca", "covariance"}, default="auto"
        "krylov", block Krylov iterations over exact averages, needs the fewest products; "auto" selects it where every
        message is certain to arrive and ``messages`` is "float64", and "accelerated" elsewhere. "accelerated" is
        tracking with momentum, for networks that may lose messages. "deepca" is the method of the paper; "depca",
        without tracking, is for comparison. "covariance" averages the covariance matrices themselves: it needs few
        rounds, but discloses them to neighbours, so "auto" never selects it.
    messages : {"float64", "float32", "float16"}, default="float64"
        Precision of gossip messages. The result is equally exact; float32 halves the bytes sent, float16 quarters them.
    tol : float, default=1e-10
        Largest acceptable tangent of the angle between any agent's subspace and the exact one.
    max_iter : int, default=10000
        Maximum number of iterations. A run that ends without reaching ``tol`` issues a warning that says why.
    random_state : int, RandomState instance or None, default=0
        Seed of random networks and of the starting point. The result does not depend on it beyond ``tol``.
    warm_start : bool, default=False
        Whether ``fit`` starts with the components of the previous fit; ``partial_fit`` always does.
    forgetting : float, default=1.0
        Factor in (0, 1] by which every call of ``partial_fit`` multiplies the weight of earlier rows.
    verbose : bool or int, default=False
        Whether to show progress and the remaining time.
    engine : {"simulator", "mpi"}, default="simulator"
        Whether all agents are in this process or distributed over the ranks of an MPI job. With "mpi" every rank makes
        the same calls: ``fit_agents`` with the rows of its own agents (one array is one agent), ``fit`` with all rows.
    allreduce : bool, default=False
        With "mpi", whether broadcasts use MPI_Bcast over all ranks instead of messages along a tree.
    checkpoints : str, path or None, default=None
        Folder for checkpoints of the run; an interrupted run resumes from there.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features_in_)
        Principal axes, by descending explained variance.
    explained_variance_ : ndarray of shape (n_components_,)
        Variance explained by each component.
    explained_variance_ratio_ : ndarray of shape (n_components_,)
        Share of the total variance explained by each component.
    singular_values_ : ndarray of shape (n_components_,)
        Singular values of the centred pooled rows.
    mean_ : ndarray of shape (n_features_in_,)
        Mean of each column over all agents.
    scale_ : ndarray of shape (n_features_in_,) or None
        Standard deviations by which columns are divided; None unless ``scale=True``.
    noise_variance_ : float
        Noise variance of the probabilistic PCA model.
    n_components_ : int
        Number of components.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Column names, if all of them are strings.
    n_samples_ : int
        Sum of the weights, rounded down, but at least the number of rows with a nonzero weight.
    n_samples_seen_ : int
        Number of rows with a nonzero weight in the last ``fit`` and all later calls of ``partial_fit``; the sum of
        their current weights is ``model_.weight``.
    n_iter_ : int
        Number of iterations of the last run.
    result_ : Result
        Result of the run; ``result_.certificate`` proves its error bound.
    topology_ : Topology
        The network.
    traffic_ : Traffic
        Traffic of the whole computation: counting, centring, iterations and proof.
    model_ : Model
        The contents of a model file; ``model_.save("model.npz")`` writes it.

    See Also
    --------
    DecentralizedSVD : Singular value decomposition without centring, of distributed rows or columns.
    DecentralizedEigen : Eigenpairs of a mean or sum of distributed symmetric operators.
    deepca.eigenpairs : Eigenpairs for agents in separate processes or on MPI ranks.

    Notes
    -----
    Square roots of the variances are accurate to rounding relative to the largest of them, as in a pooled SVD. If only
    products of rows are available (after ``partial_fit``), variances beyond ``model_.n_known`` are lost in the rounding
    of the largest one and show only the order of magnitude; the status is then "below_rounding", with a warning.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from deepca import DecentralizedPCA
    >>> X = load_wine().data
    >>> hospitals = [X[:30], X[30:120], X[120:]]
    >>> pca = DecentralizedPCA(n_components=2, scale=True, topology="ring").fit_agents(hospitals)
    >>> pca.explained_variance_ratio_.round(4)
    array([0.362 , 0.1921])
    >>> pca.result_.status.ok
    True
    """

    def __init__(
        self,
        n_components: int | float | None = None,
        *,
        whiten: bool = False,
        center: bool = True,
        scale: bool = False,
        topology: str | Topology = "erdos-renyi:0.5",
        n_agents: int | None = None,
        rounds: int | Literal["auto"] = "auto",
        algorithm: str = "auto",
        messages: Messages = "float64",
        tol: float = 1e-10,
        max_iter: int = 10_000,
        random_state: Any = 0,
        warm_start: bool = False,
        forgetting: float = 1.0,
        verbose: bool | int = False,
        engine: str = "simulator",
        allreduce: bool = False,
        checkpoints: str | os.PathLike[str] | None = None,
    ) -> None:
        self.n_components = n_components
        self.whiten = whiten
        self.center = center
        self.scale = scale
        self.topology = topology
        self.n_agents = n_agents
        self.rounds = rounds
        self.algorithm = algorithm
        self.messages = messages
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state
        self.warm_start = warm_start
        self.forgetting = forgetting
        self.verbose = verbose
        self.engine = engine
        self.allreduce = allreduce
        self.checkpoints = checkpoints

    # ----------------------------------------------------------------------------------------------------- fitting

    def fit(self, X: Any, y: Any = None, agents: Any = None, sample_weight: Any = None) -> Self:
        """Distribute rows over agents and fit the model.

        Parameters
        ----------
        X : array-like, sparse matrix or data frame of shape (n_samples, n_features)
            All rows.
        y : Ignored
            Not used, present for consistency with scikit-learn.
        agents : array-like of shape (n_samples,), optional
            Label of the agent that holds each row. By default the rows are partitioned into equal blocks.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows; a row of weight 2 counts as two equal rows.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        engine = self._engine()
        with engine.guard():
            seed = self._common_seed(engine)
            with engine.raise_on_all_ranks():
                sources, topology, weights = self._allocated(X, agents, sample_weight, seed, engine.ranks)
            check_same_on_all_ranks(engine, sources, weights)
            each = engine.agents_per_rank(len(sources))
            local = engine.local_part(each)
            names = [source.name for source in sources]
            local_weights = None if weights is None else weights[local]
            self._fit_sources(engine, each, names, sources[local], topology, local_weights, seed)
        warn_unless_ok(self.result_.status)
        return self

    def fit_agents(
        self, Xs: Iterable[Any], y: Any = None, *, sample_weight: npt.ArrayLike | Sequence[npt.ArrayLike] | None = None
    ) -> Self:
        """Fit the model with rows that are already distributed.

        Parameters
        ----------
        Xs : iterable
            One entry per agent, of any of these types: array (also memory-mapped), sparse matrix, data frame, path of
            a file, iterator of blocks of rows, or function that returns such an iterator. Row counts may differ.
            Columns must be the same; named columns are put into the order of the first agent. With ``engine="mpi"``,
            the entries of the agents on this rank; a single array is one agent.
        y : Ignored
            Not used, present for consistency with scikit-learn.
        sample_weight : sequence of array-like, optional
            Weights of the rows, one array per agent; a single array if ``Xs`` is a single array.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        engine = self._engine()
        with engine.guard():
            self._fit_agents(engine, Xs, sample_weight)
        warn_unless_ok(self.result_.status)
        return self

    # --------------------------------------------------------------------------------------------------- streaming

    def partial_fit(self, X: Any, y: Any = None, agents: Any = None, sample_weight: Any = None) -> Self:
        """Add rows to those of earlier calls, including ``fit``, and fit all rows so far.

        Parameters
        ----------
        X : array-like, sparse matrix or data frame of shape (n_samples, n_features)
            Additional rows; a single row is enough if there are earlier ones.
        y : Ignored
            Not used, present for consistency with scikit-learn.
        agents : array-like of shape (n_samples,), optional
            Label of the agent that holds each row; agents without new rows are allowed. By default the rows are
            partitioned into equal blocks.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows, before any forgetting.

        Returns
        -------
        self : object
            The fitted estimator.

        Notes
        -----
        The result is that of ``fit`` on all rows with ``sample_weight`` ``forgetting ** age``, where rows of the
        previous call have age 1, and so on; it is as exact and has the same proof. Agents store the count, mean and
        scatter of their rows (``d × d`` numbers), but no rows. Iterations start from the current components. A call
        that raises an error changes nothing.
        """
        engine, before = self._engine(), self._earlier_rows()
        with engine.guard():
            seed = self._common_seed(engine)
            with engine.raise_on_all_ranks():
                names, sources, weights = self._allocated_more(X, agents, sample_weight, seed, engine.ranks, before)
            check_same_on_all_ranks(engine, [source for source in sources if source is not None], weights)
            each = engine.agents_per_rank(len(names)) if before is None else engine.gather_counts(len(before.moments))
            local = engine.local_part(each)
            local_weights = None if weights is None else weights[local]
            self._extend_fit(engine, each, names, sources[local], local_weights, seed, before)
        warn_unless_ok(self.result_.status)
        return self

    def partial_fit_agents(
        self,
        Xs: Iterable[Any],
        y: Any = None,
        *,
        sample_weight: npt.ArrayLike | Sequence[npt.ArrayLike | None] | None = None,
    ) -> Self:
        """Add distributed rows to those of earlier calls and fit all rows so far.

        Parameters
        ----------
        Xs : iterable
            One entry per agent, as for :meth:`fit_agents`, for the same agents in every call. Agents without new rows
            pass None or a block without rows.
        y : Ignored
            Not used, present for consistency with scikit-learn.
        sample_weight : sequence of array-like or None, optional
            Weights of the rows, one array per agent, before any forgetting; None for agents without new rows.

        Returns
        -------
        self : object
            The fitted estimator.

        See Also
        --------
        partial_fit : The same for rows that are not distributed yet.
        """
        engine, before = self._engine(), self._earlier_rows()
        with engine.guard():
            each, sources, weights = blocks_of_agents(engine, Xs, sample_weight, source_if_any)
            names = default_agent_names(sum(each)) if before is None else before.names
            if before is not None and each != engine.gather_counts(len(before.moments)):
                raise DataError(
                    f"Xs has entries for {sum(each)} agents, but earlier calls had {len(names)}; give one entry per "
                    "agent in the same order, and None for agents without new rows",
                    parameter="Xs",
                    value=sum(each),
                )
            self._extend_fit(engine, each, names, sources, weights, self._common_seed(engine), before)
            if before is None:
                self._name_columns(self.model_.n_features, self.model_.columns)
        warn_unless_ok(self.result_.status)
        return self
