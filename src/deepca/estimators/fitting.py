"""From what an estimator is given to a fitted model: checks, agents and their network, the run, what is kept of it.

The public methods are those of :class:`deepca.estimators.pca.DecentralizedPCA`. Needs the ``sklearn`` extra.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import _check_sample_weight

from deepca._util.masked import unmasked
from deepca._util.typing import Array
from deepca.data.local_data import LocalData
from deepca.data.sources import ArraySource, Source, as_source
from deepca.decomposition.fit import Fitted, fit
from deepca.decomposition.model import Model
from deepca.decomposition.partial_fit import Stream, check_forgetting, dealt, kept_of, read_more
from deepca.decomposition.settings import Settings
from deepca.engines.keeping import Keeping
from deepca.engines.local import Engine, engine_of
from deepca.errors import DataError
from deepca.estimators.base import RowTransformer, checked_labels, watchers
from deepca.estimators.inputs import blocks_of_agents, numbered
from deepca.network.base import Network
from deepca.network.compression import Messages
from deepca.operators.construction import split_rows
from deepca.topology.graph import Topology

__all__ = ["Fitting"]


class Fitting(RowTransformer):
    """What stands behind ``fit`` and ``partial_fit`` of an estimator. Its parameters are the attributes."""

    n_components: int | float | None
    whiten: bool
    center: bool
    scale: bool
    messages: Messages
    forgetting: float
    engine: str
    allreduce: bool
    checkpoints: str | os.PathLike[str] | None
    _stream: Stream | None

    # -------------------------------------------------------------------------------------------------- what is given

    def _checked(
        self, X: Any, agents: Any, sample_weight: Any, *, least: int, reset: bool
    ) -> tuple[Any, npt.NDArray[Any] | None, Array | None, tuple[str, ...] | None]:
        """Rows that have a weight, who holds each of them, their weights, and names of the columns."""
        X, named = self._understood(X, ensure_min_samples=least, reset=reset)
        n = X.shape[0]
        weights = None if sample_weight is None else self._checked_weights(sample_weight, X)
        holders = None if agents is None else checked_labels(agents, n)
        if weights is not None and (weights == 0.0).any():
            kept = np.flatnonzero(weights)
            X, weights = X[kept], weights[kept]
            holders = None if holders is None else holders[kept]
        return X, holders, weights, named

    @staticmethod
    def _checked_weights(sample_weight: Any, X: Any) -> Array:
        weights = _check_sample_weight(
            unmasked(sample_weight, "sample_weight"), X, dtype=np.float64, ensure_non_negative=True
        )
        return np.asarray(weights, dtype=np.float64)

    def _dealt(
        self, X: Any, agents: Any, sample_weight: Any, seed: int, ranks: int
    ) -> tuple[list[Source], Topology, list[Array] | None]:
        """Rows that are all here, by agent, with their network and their weights."""
        X, holders, weights, named = self._checked(X, agents, sample_weight, least=2, reset=True)
        if holders is None:
            topology = self._topology(None, most=X.shape[0], seed=seed, ranks=ranks)
            parts, names = split_rows(X, topology.n_agents), numbered(topology.n_agents)
            shares = None if weights is None else split_rows(weights, topology.n_agents)
        else:
            topology, names, rows = self._by_label(holders, seed)
            parts = [X[i] for i in rows]
            shares = None if weights is None else [weights[i] for i in rows]
        sources: list[Source] = [ArraySource(part, name, named) for part, name in zip(parts, names, strict=True)]
        return sources, topology, shares

    def _dealt_more(
        self, X: Any, agents: Any, sample_weight: Any, seed: int, ranks: int, before: Stream | None
    ) -> tuple[Sequence[str], list[Source | None], list[Array] | None]:
        """Names of all agents, and the rows and weights that each is given."""
        X, holders, weights, named = self._checked(X, agents, sample_weight, least=1, reset=before is None)
        if before is not None:
            names: Sequence[str] = before.names
        elif holders is not None:
            names = [f"agent {label}" for label in np.unique(holders)]
        else:  # an agent may go without for now, so there may be more of them than rows
            names = numbered(self._topology(None, most=sys.maxsize, seed=seed, ranks=ranks).n_agents)
        rows = dealt(X.shape[0], names, holders)
        sources: list[Source | None] = [
            ArraySource(X[i], name, named) if i.size else None for i, name in zip(rows, names, strict=True)
        ]
        return names, sources, None if weights is None else [weights[i] for i in rows]

    def _before(self) -> Stream | None:
        """What earlier calls have left; None if there were none."""
        known: Stream | None = getattr(self, "_stream", None)
        if known is None and hasattr(self, "model_"):
            raise DataError(
                f"partial_fit cannot add to this fit: with {self.n_samples_:,} rows of {self.n_features_in_:,} columns "
                "it worked with the rows themselves, and has kept none; give them to partial_fit of a new estimator "
                "(sklearn.base.clone) instead, and then those that follow"
            )
        return known

    # ------------------------------------------------------------------------------------------ from there to a model

    def _fit_agents(self, engine: Engine, Xs: Any, sample_weight: Any) -> None:
        each, sources, weights = blocks_of_agents(engine, Xs, sample_weight, as_source)
        agents = sum(each)
        self._check_agents(agents, f"rows of {agents} agents were given")
        seed = self._common_seed(engine)
        topology = self._topology(agents, most=agents, seed=seed)
        self._fitted(engine, each, numbered(agents), sources, topology, weights, seed)
        self._name_columns(sources[0].d, self.model_.columns)

    def _fitted(
        self,
        engine: Engine,
        each: Sequence[int],
        names: Sequence[str],
        sources: Sequence[Source],
        topology: Topology,
        weights: Sequence[Array] | None,
        seed: int,
    ) -> None:
        """``each`` : how many agents every rank has.  names : of all.  sources, weights : of the local ones."""
        known = self._known(sources[0].d)
        fitted = self._decomposed(engine, engine.network(topology, each), self._settings(seed), sources, weights, known)
        self._stream = kept_of(fitted.held, names)

    def _went_on(
        self,
        engine: Engine,
        each: Sequence[int],
        names: Sequence[str],
        sources: Sequence[Source | None],
        weights: Sequence[Array | None] | None,
        seed: int,
        before: Stream | None,
    ) -> None:
        self._check_agents(len(names), f"rows of {len(names)} agents were given")
        topology, settings = self._topology(len(names), most=len(names), seed=seed), self._settings(seed)
        now = read_more(engine, names, sources, weights, before, check_forgetting(self.forgetting))
        start = None if before is None else self._directions
        self._decomposed(engine, engine.network(topology, each), settings, now.held(), None, start)
        self._stream = now

    def _settings(self, seed: int) -> Settings:
        return Settings(
            n_components=self.n_components,
            center=bool(self.center),
            scale=bool(self.scale),
            messages=self.messages,
            **self._search_options(seed),
        )

    def _decomposed(
        self,
        engine: Engine,
        network: Network,
        settings: Settings,
        rows: Sequence[Source] | LocalData,
        weights: Sequence[Array] | None,
        start: Array | None,
    ) -> Fitted:
        fitted = fit(
            rows,
            network,
            settings,
            weights=weights,
            start=start,
            observers=watchers(bool(self.verbose) and engine.speaks),
            engine=engine,
            keeping=None if self.checkpoints is None else Keeping(Path(self.checkpoints), warn=_warn),
            whiten=bool(self.whiten),
        )
        engine.close(network)
        found = fitted.found
        self._keep(fitted.model)
        self.result_, self.topology_, self.traffic_ = found.result, network.topology, found.traffic
        if found.keeper is not None:
            found.keeper.clear()
        self.n_iter_, self._directions = max(found.result.iterations, 1), found.directions
        self.n_samples_seen_ = found.n_rows
        return fitted

    def _keep(self, model: Model) -> None:
        self.model_ = model
        self.components_, self.mean_, self.scale_ = model.components, model.mean, model.scale
        self.explained_variance_ = model.explained_variance
        self.explained_variance_ratio_, self.singular_values_ = model.explained_variance_ratio, model.singular_values
        self.noise_variance_ = model.dtype.type(model.noise_variance)
        self.n_components_, self.n_samples_ = model.n_components, model.n_samples

    # ------------------------------------------------------------------------------------------- where and among whom

    def _engine(self) -> Engine:
        return engine_of(self.engine, allreduce=bool(self.allreduce))

    def _common_seed(self, engine: Engine) -> int:
        """Rank 0's, at all ranks."""
        return int(engine.texts(str(self._seed()))[0])


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=4)
