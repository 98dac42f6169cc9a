"""``DecentralizedSVD``: scikit-learn's TruncatedSVD, of a matrix that was never pooled. Needs the ``sklearn`` extra."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, Self, cast

import numpy as np
import numpy.typing as npt
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import check_is_fitted

from deepca._util.typing import Array
from deepca._util.validation import Whole, check
from deepca.data.sources import ArraySource, Source, as_source, float_type, numeric
from deepca.decomposition.svd import Partition, SingularTriplets, singular_triplets
from deepca.errors import DataError, InvalidInput
from deepca.estimators.base import Index, RowTransformer, checked_labels, warn_unless_ok, watchers
from deepca.estimators.inputs import numbered
from deepca.network.simulated import SimulatedNetwork
from deepca.topology.graph import Topology

__all__ = ["DecentralizedSVD"]


class DecentralizedSVD(RowTransformer):
    """Truncated SVD of a matrix whose rows, or whose columns, are spread over agents; nothing is centred.

    The answer is that of ``sklearn.decomposition.TruncatedSVD`` on the whole matrix, signs included (the largest entry
    of every component is positive), and exact where that one is random. Rows apart: every agent learns the components,
    and the left vectors of its rows stay with it. Columns apart: every agent holds some features of all samples, sends
    n × k numbers at a time, and *learns the left vectors*, that is, the scores of all samples; the entries of the
    components that belong to its features stay with it. Where agents are processes of their own, or ranks,
    :func:`deepca.singular_triplets` makes the same over their network.

    Parameters
    ----------
    n_components : int
        How many singular triplets.
    partition : "rows" or "columns"
        What agents hold some of.
    topology : str or Topology
        Who talks to whom: ``"ring"``, ``"erdos-renyi:0.5"``, … or a :class:`deepca.Topology`.
    n_agents : int or None
        Over how many agents ``fit`` spreads the matrix; at most 10 by default.
    algorithm, rounds, tol, max_iter, random_state, warm_start, verbose
        As for :class:`deepca.DecentralizedPCA`.

    Attributes
    ----------
    components_, singular_values_, explained_variance_, explained_variance_ratio_, n_features_in_, feature_names_in_ :
        as in scikit-learn's TruncatedSVD.
    left_ : where rows are apart, the left vectors of each agent's rows, a list of ``(n_j, k)``.
    left_singular_vectors_ : where columns are apart, ``(n, k)``, known to every agent.
    components_by_agent_ : where columns are apart, ``(k, d_j)`` of each agent's features, a list.
    reconstruction_error_ : ``‖X − X̂‖_F`` of the whole matrix, measured by agents and added up.
    reconstruction_errors_ : that of each agent's part.
    best_error_ : ``√(‖X‖_F² − Σ σ_i²)``, the smallest that n_components allow.
    result_ : the :class:`deepca.SingularTriplets`.  certificate_ : the proof.
    n_iter_, topology_, traffic_ : iterations, the network, and all that was sent.

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
        """Fit a matrix that is all here, spread over agents for the occasion.

        Parameters
        ----------
        X : ``(n, d)`` array, sparse matrix or data frame.
        y : ignored.
        agents : one label per row (or column), saying who holds it; without them they are dealt in equal blocks.
        """
        self._fit_whole(X, agents)
        warn_unless_ok(self.result_.status)
        return self

    def fit_transform(self, X: Any, y: Any = None, agents: Any = None) -> npt.NDArray[Any]:
        """Fit, and the scores ``X V`` of the rows, ``(n, k)``."""
        understood = self._fit_whole(X, agents)
        warn_unless_ok(self.result_.status)
        return cast("npt.NDArray[Any]", safe_sparse_dot(understood, self.components_.T))

    def fit_agents(self, Xs: Iterable[Any], y: Any = None) -> Self:
        """Fit what is apart already: one entry of ``Xs`` per agent, in any mixture of kinds.

        Parameters
        ----------
        Xs : arrays, sparse matrices, data frames or paths of files: ``(n_j, d)`` of its rows for each agent, or
            ``(n, d_j)`` of its columns. Components of columns apart are put together in the order of the agents.
        y : ignored.
        """
        self._check_partition()
        sources = [as_source(X, f"agent {j}") for j, X in enumerate(Xs)]
        m = len(sources)
        if not m:
            raise DataError("no agents: fit_agents needs one block per agent")
        self._check_agents(m, f"blocks of {m} agents were given")
        seed = self._seed()
        self._fitted(sources, self._topology(m, most=m, seed=seed), seed)
        self._name_columns(self.components_.shape[1], sources[0].columns if self.partition == "rows" else None)
        warn_unless_ok(self.result_.status)
        return self

    def _check_partition(self) -> None:
        if self.partition not in ("rows", "columns"):
            raise InvalidInput(f"partition = {self.partition!r}: choose 'rows' or 'columns'")

    def _fit_whole(self, X: Any, agents: Any) -> Any:
        """Deal the matrix, fit it, and give it back as it was understood."""
        self._check_partition()
        X, _ = self._understood(X, ensure_min_features=2)
        by_rows, seed = self.partition == "rows", self._seed()
        of, count = ("row", X.shape[0]) if by_rows else ("column", X.shape[1])
        if agents is None:
            topology = self._topology(None, most=count, seed=seed, of=of)
            held, names = np.array_split(np.arange(count), topology.n_agents), numbered(topology.n_agents)
        else:
            topology, names, held = self._by_label(checked_labels(agents, count, of), seed, of)
        parts = [numeric(X[i] if by_rows else X[:, i], name) for i, name in zip(held, names, strict=True)]
        sources = [ArraySource(part, name) for part, name in zip(parts, names, strict=True)]
        self._fitted(sources, topology, seed, held=None if by_rows else held)
        return X

    def _fitted(
        self, sources: Sequence[Source], topology: Topology, seed: int, held: Sequence[Index] | None = None
    ) -> None:
        """``held`` : which columns each agent has, where columns are apart; one after the other by default."""
        found = singular_triplets(
            sources,
            SimulatedNetwork(topology),
            self.n_components,
            partition=self.partition,
            start=self._known(sources[0].d if self.partition == "rows" else sources[0].n),
            observers=watchers(bool(self.verbose)),
            **self._search_options(seed),
        ).required()
        self._keep(found, float_type(*(source.dtype for source in sources)), held)
        self.topology_, self._directions = topology, found.directions

    def _keep(self, found: SingularTriplets, dtype: np.dtype[Any], held: Sequence[Index] | None) -> None:
        for name in ("left_", "left_singular_vectors_", "components_by_agent_"):  # of a fit before
            self.__dict__.pop(name, None)
        own = [part.astype(dtype) for part in found.own]
        common = found.common.astype(dtype)
        if found.partition == "rows":
            self.components_, self.left_ = np.ascontiguousarray(common.T), own
        else:
            parts = [np.ascontiguousarray(part.T) for part in own]
            self.left_singular_vectors_, self.components_by_agent_ = common, parts
            joined = np.hstack(parts)
            self.components_ = joined if held is None else joined[:, np.argsort(np.concatenate(held))]
        self.singular_values_ = found.values.astype(dtype)
        self.explained_variance_ = found.explained_variance.astype(dtype)
        whole = found.total_variance
        self.explained_variance_ratio_ = (found.explained_variance / whole if whole else found.values * 0).astype(dtype)
        self.reconstruction_error_, self.best_error_ = found.error, found.best_error
        self.reconstruction_errors_ = found.own_errors
        self.result_, self.certificate_, self.traffic_ = found, found.certificate, found.traffic
        self.n_iter_ = max(found.iterations, 1)

    # ---------------------------------------------------------------------------------------------------- applying

    def transform(self, X: Any) -> npt.NDArray[Any]:
        """Scores ``X V`` of rows, ``(n, k)``. Rows apart, every agent can do this at home."""
        return cast("npt.NDArray[Any]", safe_sparse_dot(self._rows(X), self.components_.T))

    def inverse_transform(self, X: Any) -> npt.NDArray[Any]:
        """The rows that scores stand for."""
        return np.asarray(self._scores(X) @ self.components_)

    def reconstruct(self, agent: int) -> Array:
        """The approximation of rank k to what that agent held, from what it knows after the fit."""
        check_is_fitted(self)
        m = self.topology_.n_agents
        check("agent", agent, Whole(0, m - 1))
        return self.result_.reconstruct(int(agent))
