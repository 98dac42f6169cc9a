"""``DecentralizedPCA``: PCA as scikit-learn has it, from rows that were never pooled. Needs the ``sklearn`` extra."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import _check_sample_weight, check_array, check_is_fitted, validate_data

from deepca._typing import Array
from deepca.coding import Messages
from deepca.data.sources import ArraySource, Source, add_rows, as_source
from deepca.engines import Engine, engine_of
from deepca.errors import DataError, InvalidInput
from deepca.estimator_base import OverAgents, checked_labels, plain_number, watchers
from deepca.keeping import Keeping
from deepca.model import Model
from deepca.operators import split_rows
from deepca.pca import Settings, decompose, model_of
from deepca.topology import Topology

__all__ = ["DecentralizedPCA"]


class DecentralizedPCA(OverAgents, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
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
        Who talks to whom: ``"ring"``, ``"erdos-renyi:0.5"``, ``"torus"``, … or a :class:`deepca.Topology`. Directed
        and changing networks have names, too: ``"directed-exponential"``, ``"matchings:ring"``, ``"failing:0.2:torus"``
        (:mod:`deepca.topology_names`).
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
        Begin with the components of the fit before, as far as they go.
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
    n_components_, n_features_in_, feature_names_in_, n_samples_ : as in scikit-learn's PCA.
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
            _check_alike(engine, sources, shares)
            each = engine.shares(len(sources))
            first = sum(each[: engine.rank])
            here = slice(first, first + each[engine.rank])
            self._fitted(engine, each, sources[here], topology, None if shares is None else shares[here], seed)
        self._warn_unless_proven()
        return self

    def _warn_unless_proven(self) -> None:
        if not self.result_.status.ok:
            warnings.warn(str(self.result_.status), ConvergenceWarning, stacklevel=3)

    def _dealt(
        self, X: Any, agents: Any, sample_weight: Any, seed: int, ranks: int
    ) -> tuple[list[Source], Topology, list[Array] | None]:
        """Rows that are all here, by agent, with their network and their weights."""
        X, named = self._understood(X, ensure_min_samples=2)
        n = X.shape[0]
        weights = None if sample_weight is None else self._checked_weights(sample_weight, X)
        holders = None if agents is None else checked_labels(agents, n)
        if weights is not None and (weights == 0.0).any():
            kept = np.flatnonzero(weights)
            X, weights = X[kept], weights[kept]
            holders = None if holders is None else holders[kept]
        if holders is None:
            topology = self._topology(None, most=X.shape[0], seed=seed, ranks=ranks)
            parts, names = split_rows(X, topology.n_agents), [f"agent {j}" for j in range(topology.n_agents)]
            shares = None if weights is None else split_rows(weights, topology.n_agents)
        else:
            found, index = np.unique(holders, return_inverse=True)
            if self.n_agents is not None and self.n_agents != len(found):
                raise InvalidInput(f"n_agents = {self.n_agents}, but agents has {len(found)} different labels")
            topology = self._topology(len(found), most=len(found), seed=seed)
            rows = [np.flatnonzero(index == j) for j in range(len(found))]
            parts, names = [X[i] for i in rows], [f"agent {label}" for label in found]
            shares = None if weights is None else [weights[i] for i in rows]
        sources: list[Source] = [ArraySource(part, name, named) for part, name in zip(parts, names, strict=True)]
        return sources, topology, shares

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
        self._warn_unless_proven()
        return self

    def _fit_agents(self, engine: Engine, Xs: Any, sample_weight: Any) -> None:
        given = [Xs] if engine.name == "mpi" and _is_one_agent(Xs) else list(Xs)
        each = engine.counted(len(given))
        agents, first = sum(each), sum(each[: engine.rank])
        with engine.together():
            if not given:
                raise DataError("no agents: fit_agents needs one block of rows per agent")
            sources = [as_source(X, f"agent {first + j}") for j, X in enumerate(given)]
            weights = None
            if sample_weight is not None:
                shares = [sample_weight] if given and given[0] is Xs else list(sample_weight)
                if len(shares) != len(sources):
                    raise DataError(f"weights of {len(shares)} agents for {len(sources)} agents")
                weights = [_agent_weights(w, source) for w, source in zip(shares, sources, strict=True)]
        if self.n_agents is not None and self.n_agents != agents:
            raise InvalidInput(f"n_agents = {self.n_agents}, but rows of {agents} agents were given")
        seed = self._common_seed(engine)
        topology = self._topology(agents, most=agents, seed=seed)
        self._fitted(engine, each, sources, topology, weights, seed)
        self.n_features_in_, columns = sources[0].d, self.model_.columns
        if columns is not None:
            self.feature_names_in_ = np.array(columns, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _engine(self) -> Engine:
        return engine_of(self.engine, allreduce=bool(self.allreduce))

    def _fitted(
        self,
        engine: Engine,
        each: Sequence[int],
        sources: Sequence[Source],
        topology: Topology,
        weights: Sequence[Array] | None,
        seed: int,
    ) -> None:
        """``each`` : how many agents every rank has.  sources, weights : of the local ones."""
        network = engine.network(topology, each)
        settings = Settings(
            n_components=plain_number(self.n_components),
            center=bool(self.center),
            scale=bool(self.scale),
            algorithm=self.algorithm,
            rounds=plain_number(self.rounds),
            messages=self.messages,
            tol=self.tol,
            max_iter=self.max_iter,
            seed=seed,
        )
        start = None
        known = getattr(self, "_directions", None)
        if self.warm_start and known is not None and known.shape[1] == sources[0].d:
            start = known
        shown = watchers(bool(self.verbose) and engine.speaks)
        found = decompose(
            sources,
            network,
            settings,
            weights=weights,
            start=start,
            observers=shown,
            engine=engine,
            keeping=None if self.checkpoints is None else Keeping(Path(self.checkpoints), warn=_warn),
        )
        found = replace(found, traffic=engine.summed(found.traffic))
        engine.close(network)
        single = min(engine.counted(all(source.dtype == np.float32 for source in sources))) == 1
        self._keep(model_of(found, topology, settings, whiten=bool(self.whiten), single=single))
        self.result_, self.topology_, self.traffic_ = found.result, topology, found.traffic
        if found.keeper is not None:
            found.keeper.clear()
        self.n_iter_, self._directions = max(found.result.iterations, 1), found.directions

    def _keep(self, model: Model) -> None:
        self.model_ = model
        self.components_, self.mean_, self.scale_ = model.components, model.mean, model.scale
        self.explained_variance_ = model.explained_variance
        self.explained_variance_ratio_, self.singular_values_ = model.explained_variance_ratio, model.singular_values
        self.noise_variance_ = model.dtype.type(model.noise_variance)
        self.n_components_, self.n_samples_ = model.n_components, model.n_samples

    def _common_seed(self, engine: Engine) -> int:
        """Rank 0's, at all ranks."""
        return int(engine.texts(str(self._seed()))[0])

    @staticmethod
    def _checked_weights(sample_weight: Any, X: Any) -> Array:
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        return np.asarray(weights, dtype=np.float64)

    # ---------------------------------------------------------------------------------------------------- applying

    def transform(self, X: Any) -> npt.NDArray[Any]:
        """Scores ``(n, k)`` of rows. Every agent can do this at home, with what it has after the fit."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse=("csr", "csc"), dtype=[np.float64, np.float32], reset=False)
        return self._current().transform(X)

    def inverse_transform(self, X: Any) -> npt.NDArray[Any]:
        """The rows that scores stand for, in the units of the data."""
        check_is_fitted(self)
        return self._current().inverse_transform(check_array(X, dtype=[np.float64, np.float32]))

    def _current(self) -> Model:
        """The model, with ``whiten`` as it stands now, as scikit-learn has it."""
        return self.model_ if self.model_.whiten == self.whiten else replace(self.model_, whiten=bool(self.whiten))

    def score_samples(self, X: Any) -> Array:
        """Log-likelihood of each row under the probabilistic PCA model; of scaled rows, if columns are scaled."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
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

    @property
    def _n_features_out(self) -> int:
        return int(self.n_components_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=4)


def _is_one_agent(Xs: Any) -> bool:
    """Whether these are the rows of one agent, not a collection of agents."""
    return isinstance(Xs, (str, os.PathLike)) or getattr(Xs, "ndim", 0) == 2


def _check_alike(engine: Engine, sources: Sequence[Source], weights: Sequence[Array] | None) -> None:
    """Whether all ranks were given the same rows, and the same weights of them."""
    if engine.ranks == 1:
        return
    digest = hashlib.sha256()
    for source in sources:
        add_rows(digest, source)
    for own in weights or ():
        digest.update(np.ascontiguousarray(own).data)
    said = engine.texts(digest.hexdigest())
    other = next((rank for rank, text in enumerate(said) if text != said[0]), None)
    if other is not None:
        raise DataError(
            f"rank {other} was given other rows than rank 0: fit(X) needs all rows at every rank; where each rank has "
            "rows of its own, use fit_agents"
        )


def _agent_weights(given: npt.ArrayLike, source: Source) -> Array:
    try:
        weights = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError(f"{source.name}: its weights are not one number per row") from None
    if weights.ndim != 1 or (source.n is not None and weights.size != source.n):
        raise DataError(f"{source.name}: weights of shape {weights.shape} for {source.n} rows")
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0.0)))
    if bad.size:
        raise DataError(f"{source.name}: the weight of row {int(bad[0])} is {weights[bad[0]]}; weights are 0 or more")
    return weights
