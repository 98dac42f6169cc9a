"""``DecentralizedPCA``: PCA as scikit-learn has it, from rows that were never pooled. Needs the ``sklearn`` extra."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from sklearn.decomposition import PCA
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from deepca._util.typing import Array
from deepca.decomposition.model import Model
from deepca.errors import DataError
from deepca.estimators.base import warn_unless_ok
from deepca.estimators.fitting import Fitting
from deepca.estimators.inputs import blocks_of_agents, check_alike, numbered, source_if_any
from deepca.network.compression import Messages
from deepca.topology.graph import Topology

__all__ = ["DecentralizedPCA"]


class DecentralizedPCA(Fitting):
    """Principal components of rows that are spread over agents, who talk to their neighbours only.

    The answer is that of ``sklearn.decomposition.PCA`` on the pooled rows, but no row leaves its agent, and there is no
    server. What does cross an agent's border, and what its neighbours can learn from it, is listed in docs/privacy.md.

    Parameters
    ----------
    n_components : int, float in (0, 1) or None
        How many; or the share of variance to explain (as few as explain more); or ``min(rows, columns)``.
    whiten : bool
        Divide scores by their standard deviation.
    center, scale : bool
        Subtract the agreed mean; divide columns by their agreed standard deviation (ddof 0, as StandardScaler).
    topology : str or Topology
        Who talks to whom: ``"ring"``, ``"erdos-renyi:0.5"``, ``"torus"``, … or a :class:`deepca.Topology`.
    n_agents : int or None
        Over how many agents ``fit`` spreads the rows; at most 10, or one per rank, and never more than there are rows,
        by default.
    rounds : int or "auto"
        Rounds of gossip per iteration of methods that gossip; "auto" chooses while running.
    algorithm : "auto", "krylov", "accelerated", "deepca", "depca" or "covariance"
        Block Krylov iterations over exact averages need the fewest products; "auto" takes them, since within one
        process every message arrives. "accelerated" is tracking with momentum, the choice for networks that may fail.
        DeEPCA is the paper's method; DePCA, without tracking, is there to compare with. "covariance" averages the
        covariance matrices themselves: few rounds, but it shows them to neighbours, so it is never chosen by itself.
    messages : "float64", "float32" or "float16"
        What a number takes in a message of gossip. The answer is as exact; the last two halve and quarter the bytes.
    tol : float
        Largest acceptable tangent of the angle between any agent's subspace and the true one.
    max_iter : int
        Iterations at most. A run that ends without reaching ``tol`` warns and says why.
    random_state : int, RandomState or None
        For random networks and the start. The answer does not depend on it beyond ``tol``.
    warm_start : bool
        Begin with the components of the fit before, as far as they go. ``partial_fit`` always does.
    forgetting : float in (0, 1]
        What earlier rows keep of their weight with every call of ``partial_fit``; 1 forgets nothing.
    verbose : bool or int
        Show progress and time left.
    engine : "simulator" or "mpi"
        All agents in this process, or spread over the ranks of an MPI job. There, every rank makes the same calls:
        ``fit_agents`` with the rows of its own agents (one array is one agent), ``fit`` with all rows.
    allreduce : bool
        With "mpi": exact averages by MPI_Allreduce over all ranks, instead of messages between neighbours.
    checkpoints : path or None
        Folder in which the run is kept while it lasts; a run that was interrupted goes on from there.

    Attributes
    ----------
    components_, explained_variance_, explained_variance_ratio_, singular_values_, mean_, noise_variance_,
    n_components_, n_features_in_, feature_names_in_, n_samples_ : as in scikit-learn's PCA. Variances are good to
        rounding relative to the root of the largest, as those of a pooled SVD. Where only products of rows are at hand
        (after ``partial_fit``), those beyond ``model_.n_known`` are lost in the rounding of the largest: the status is
        then "below_rounding", with a warning, and these entries are no more than orders of magnitude.
    n_samples_seen_ : rows of all agents so far. What they still weigh together is ``model_.weight``.
    scale_ : ``(d,)`` standard deviations if ``scale=True``, else None.
    n_iter_ : iterations of the (last) run.
    result_ : the :class:`deepca.Result`; ``result_.certificate`` is the proof.
    topology_ : the network.  traffic_ : all that was sent, in counting, centring, iterating and proving.
    model_ : everything that a model file holds; ``model_.save("model.npz")``.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from deepca import DecentralizedPCA
    >>> X = load_wine().data
    >>> hospitals = [X[:30], X[30:120], X[120:]]
    >>> pca = DecentralizedPCA(n_components=2, scale=True, topology="ring").fit_agents(hospitals)
    >>> pca.explained_variance_ratio_.round(4)
    array([0.362 , 0.1921])
    >>> pca.result_.status.code
    'converged'
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
        """Fit rows that are all here, spread over agents for the occasion.

        Parameters
        ----------
        X : ``(n, d)`` array, sparse matrix or data frame.
        y : ignored.
        agents : one label per row, saying who holds it; without them the rows are dealt in equal blocks.
        sample_weight : one per row; a weight of 2 counts as a row given twice.
        """
        engine = self._engine()
        with engine.guard():
            seed = self._common_seed(engine)
            with engine.together():
                sources, topology, shares = self._dealt(X, agents, sample_weight, seed, engine.ranks)
            check_alike(engine, sources, shares)
            each = engine.shares(len(sources))
            here = engine.own(each)
            names = [source.name for source in sources]
            self._fitted(engine, each, names, sources[here], topology, None if shares is None else shares[here], seed)
        warn_unless_ok(self.result_.status)
        return self

    def fit_agents(
        self, Xs: Iterable[Any], y: Any = None, *, sample_weight: npt.ArrayLike | Sequence[npt.ArrayLike] | None = None
    ) -> Self:
        """Fit rows that are apart already: one entry of ``Xs`` per agent, in any mixture of kinds.

        Parameters
        ----------
        Xs : arrays (memory-mapped ones too), sparse matrices, data frames, paths of files, iterators of blocks of rows,
            or functions that return such an iterator. Row counts may differ; columns must be the same, and are put
            into the order of the first agent where they have names. On a rank of an MPI job, the agents of that rank;
            one array alone is one agent.
        y : ignored.
        sample_weight : one array per agent; one alone where Xs is.
        """
        engine = self._engine()
        with engine.guard():
            self._fit_agents(engine, Xs, sample_weight)
        warn_unless_ok(self.result_.status)
        return self

    # --------------------------------------------------------------------------------------------------- streaming

    def partial_fit(self, X: Any, y: Any = None, agents: Any = None, sample_weight: Any = None) -> Self:
        """Add rows to those of earlier calls, of ``fit`` too, and find the components of all rows so far.

        The answer is that of ``fit`` on everything, with ``sample_weight`` ``forgetting ** age``, where a row of the
        call before has age 1, and so on; as exact, and proven likewise. Agents keep count, mean and scatter of their
        own rows (``d × d`` numbers), and no row. Iterations begin at the components so far. A call that raises changes
        nothing.

        Parameters
        ----------
        X : ``(n, d)`` array, sparse matrix or data frame; one row is enough, once there are some.
        y : ignored.
        agents : one label per row, saying who holds it; an agent may have none this time. Without them the rows are
            dealt in equal blocks.
        sample_weight : one per row, before any forgetting.
        """
        engine, before = self._engine(), self._before()
        with engine.guard():
            seed = self._common_seed(engine)
            with engine.together():
                names, sources, shares = self._dealt_more(X, agents, sample_weight, seed, engine.ranks, before)
            check_alike(engine, [source for source in sources if source is not None], shares)
            each = engine.shares(len(names)) if before is None else engine.counted(len(before.moments))
            here = engine.own(each)
            self._went_on(engine, each, names, sources[here], None if shares is None else shares[here], seed, before)
        warn_unless_ok(self.result_.status)
        return self

    def partial_fit_agents(
        self,
        Xs: Iterable[Any],
        y: Any = None,
        *,
        sample_weight: npt.ArrayLike | Sequence[npt.ArrayLike | None] | None = None,
    ) -> Self:
        """As :meth:`partial_fit`, of rows that are apart: one entry of ``Xs`` per agent, the same agents in every call.

        Parameters
        ----------
        Xs : as for :meth:`fit_agents`; None, or a block without rows, for an agent that has nothing this time.
        y : ignored.
        sample_weight : one array per agent, before any forgetting; None for an agent that has nothing.
        """
        engine, before = self._engine(), self._before()
        with engine.guard():
            each, sources, weights = blocks_of_agents(engine, Xs, sample_weight, source_if_any)
            names = numbered(sum(each)) if before is None else before.names
            if before is not None and each != engine.counted(len(before.moments)):
                raise DataError(
                    f"rows of {sum(each)} agents, but the calls before had {len(names)}; give one entry for each of "
                    "them, in the same order, and None for those who have nothing this time"
                )
            self._went_on(engine, each, names, sources, weights, self._common_seed(engine), before)
            if before is None:
                self._name_columns(self.model_.n_features, self.model_.columns)
        warn_unless_ok(self.result_.status)
        return self

    # ---------------------------------------------------------------------------------------------------- applying

    def transform(self, X: Any) -> npt.NDArray[Any]:
        """Scores ``(n, k)`` of rows. Every agent can do this at home, with what it has after the fit."""
        rows = self._rows(X)
        return self._current().transform(rows)

    def inverse_transform(self, X: Any) -> npt.NDArray[Any]:
        """The rows that scores stand for, in the units of the data."""
        scores = self._scores(X)
        return self._current().inverse_transform(scores)

    def _current(self) -> Model:
        """The model, with ``whiten`` as it stands now, as scikit-learn has it."""
        return self.model_ if self.model_.whiten == self.whiten else replace(self.model_, whiten=bool(self.whiten))

    def score_samples(self, X: Any) -> Array:
        """Log-likelihood of each row under the probabilistic PCA model; of scaled rows, if columns are scaled."""
        X = self._rows(X, sparse=False)
        if self.scale_ is not None:
            X = (X - self.mean_) / self.scale_
        return np.asarray(self._pca().score_samples(X))

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-likelihood of the rows."""
        return float(np.mean(self.score_samples(X)))

    def get_covariance(self) -> npt.NDArray[Any]:
        """Covariance matrix ``(d, d)`` of the probabilistic PCA model; of scaled columns, if columns are scaled."""
        check_is_fitted(self)
        return np.asarray(self._pca().get_covariance())

    def get_precision(self) -> npt.NDArray[Any]:
        """Its inverse."""
        check_is_fitted(self)
        return np.asarray(self._pca().get_precision())

    def to_sklearn(self) -> PCA:
        """A fitted ``sklearn.decomposition.PCA`` that gives the same scores; an error with ``scale=True``."""
        check_is_fitted(self)
        return self._current().to_sklearn()

    def to_sklearn_pipeline(self) -> Pipeline:
        """A fitted Pipeline of StandardScaler (with ``scale=True``) and PCA."""
        check_is_fitted(self)
        return self._current().to_sklearn_pipeline()

    def _pca(self) -> PCA:
        """For what only the model of the (scaled) data is needed."""
        return self._current().to_sklearn_pipeline()[-1]
