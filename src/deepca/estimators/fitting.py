"""Implement the fit methods of :class:`deepca.estimators.pca.DecentralizedPCA`.

These methods check the input, allocate it to agents, run the decomposition over the agents' network, and set the fitted
attributes. They need the ``sklearn`` extra.
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
from deepca._util.units import counted
from deepca.data.local_data import LocalData
from deepca.data.sources import ArraySource, Source, as_source
from deepca.decomposition.fit import Fitted, fit
from deepca.decomposition.model import Model
from deepca.decomposition.partial_fit import RowSummary, check_forgetting, partition_rows, read_more, summarize_rows
from deepca.decomposition.settings import Settings
from deepca.engines.checkpointing import CheckpointOptions
from deepca.engines.local import Engine, create_engine
from deepca.errors import DataError
from deepca.estimators.base import RowTransformer, checked_labels, progress_observers
from deepca.estimators.inputs import blocks_of_agents, default_agent_names
from deepca.network.base import Network
from deepca.network.compression import Messages
from deepca.operators.construction import split_rows
from deepca.topology.graph import Topology

__all__ = ["Fitting"]


class Fitting(RowTransformer):
    """Base class of estimators with ``fit`` and ``partial_fit``.

    The annotated attributes are constructor parameters, except ``_stream``, which has its name in pickles of version
    0.1.
    """

    n_components: int | float | None
    whiten: bool
    center: bool
    scale: bool
    messages: Messages
    forgetting: float
    engine: str
    allreduce: bool
    checkpoints: str | os.PathLike[str] | None
    _stream: RowSummary | None

    # ---------------------------------------------------------------------------------------------------------- input

    def _checked(
        self, X: Any, agents: Any, sample_weight: Any, *, least: int, reset: bool
    ) -> tuple[Any, npt.NDArray[Any] | None, Array | None, tuple[str, ...] | None]:
        """Return the rows with a nonzero weight, their agents' labels, their weights, and the column names."""
        X, named = self._validated(X, ensure_min_samples=least, reset=reset)
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
        """Return the weights of all rows, checked by scikit-learn."""
        weights = _check_sample_weight(
            unmasked(sample_weight, "sample_weight"), X, dtype=np.float64, ensure_non_negative=True
        )
        return np.asarray(weights, dtype=np.float64)

    def _allocated(
        self, X: Any, agents: Any, sample_weight: Any, seed: int, ranks: int
    ) -> tuple[list[Source], Topology, list[Array] | None]:
        """Return the rows of each agent, the network, and the weights of each agent."""
        X, holders, weights, named = self._checked(X, agents, sample_weight, least=2, reset=True)
        if holders is None:
            topology = self._topology(None, most=X.shape[0], seed=seed, ranks=ranks)
            parts, names = split_rows(X, topology.n_agents), default_agent_names(topology.n_agents)
            agent_weights = None if weights is None else split_rows(weights, topology.n_agents)
        else:
            topology, names, rows = self._by_label(holders, seed)
            parts = [X[i] for i in rows]
            agent_weights = None if weights is None else [weights[i] for i in rows]
        sources: list[Source] = [
            ArraySource(part, name, named, agent=j) for j, (part, name) in enumerate(zip(parts, names, strict=True))
        ]
        return sources, topology, agent_weights

    def _allocated_more(
        self, X: Any, agents: Any, sample_weight: Any, seed: int, ranks: int, before: RowSummary | None
    ) -> tuple[Sequence[str], list[Source | None], list[Array] | None]:
        """Return the names of all agents, and the additional rows and weights of each."""
        X, holders, weights, named = self._checked(X, agents, sample_weight, least=1, reset=before is None)
        if before is not None:
            names: Sequence[str] = before.names
        elif holders is not None:
            names = [f"agent {label}" for label in np.unique(holders)]
        else:  # agents without new rows are allowed, so there may be more agents than rows
            names = default_agent_names(self._topology(None, most=sys.maxsize, seed=seed, ranks=ranks).n_agents)
        rows = partition_rows(X.shape[0], names, holders)
        sources: list[Source | None] = [
            ArraySource(X[i], name, named, agent=j) if i.size else None
            for j, (i, name) in enumerate(zip(rows, names, strict=True))
        ]
        return names, sources, None if weights is None else [weights[i] for i in rows]

    def _earlier_rows(self) -> RowSummary | None:
        """Return the summary of the rows of earlier calls, None before the first; raise DataError if it is missing."""
        known: RowSummary | None = getattr(self, "_stream", None)
        if known is None and hasattr(self, "model_"):
            raise DataError(
                f"partial_fit cannot extend this fit of {self.n_samples_:,} rows with {self.n_features_in_:,} columns, "
                "which used the rows themselves and stored no moments; pass the earlier rows to partial_fit of a new "
                "estimator (sklearn.base.clone), and then the additional rows",
                value=self.n_features_in_,
            )
        return known

    # --------------------------------------------------------------------------------------------- from rows to model

    def _fit_agents(self, engine: Engine, Xs: Any, sample_weight: Any) -> None:
        """Fit rows that are already distributed over agents."""
        each, sources, weights = blocks_of_agents(engine, Xs, sample_weight, as_source)
        agents = sum(each)
        self._check_agents(agents, f"rows of {counted(agents, 'agent')} were given")
        seed = self._common_seed(engine)
        topology = self._topology(agents, most=agents, seed=seed)
        self._fit_sources(engine, each, default_agent_names(agents), sources, topology, weights, seed)
        self._name_columns(sources[0].d, self.model_.columns)

    def _fit_sources(
        self,
        engine: Engine,
        each: Sequence[int],
        names: Sequence[str],
        sources: Sequence[Source],
        topology: Topology,
        weights: Sequence[Array] | None,
        seed: int,
    ) -> None:
        """Fit the local ``sources``, given the number of agents on each rank and the names of all agents."""
        known = self._warm_start_directions(sources[0].d)
        fitted = self._decompose(engine, engine.network(topology, each), self._settings(seed), sources, weights, known)
        self._stream = summarize_rows(fitted.local_data, names)

    def _extend_fit(
        self,
        engine: Engine,
        each: Sequence[int],
        names: Sequence[str],
        sources: Sequence[Source | None],
        weights: Sequence[Array | None] | None,
        seed: int,
        before: RowSummary | None,
    ) -> None:
        """Add the local ``sources`` to the moments of earlier calls and fit all rows so far."""
        self._check_agents(len(names), f"rows of {counted(len(names), 'agent')} were given")
        topology, settings = self._topology(len(names), most=len(names), seed=seed), self._settings(seed)
        now = read_more(engine, names, sources, weights, before, check_forgetting(self.forgetting))
        start = None if before is None else self._directions
        self._decompose(engine, engine.network(topology, each), settings, now.local_data(), None, start)
        self._stream = now

    def _settings(self, seed: int) -> Settings:
        """Return the constructor parameters as settings of a fit."""
        return Settings(
            n_components=self.n_components,
            center=bool(self.center),
            scale=bool(self.scale),
            messages=self.messages,
            **self._search_options(seed),
        )

    def _decompose(
        self,
        engine: Engine,
        network: Network,
        settings: Settings,
        rows: Sequence[Source] | LocalData,
        weights: Sequence[Array] | None,
        start: Array | None,
    ) -> Fitted:
        """Run the decomposition and set the fitted attributes."""
        fitted = fit(
            rows,
            network,
            settings,
            weights=weights,
            start=start,
            observers=progress_observers(bool(self.verbose) and engine.is_root),
            engine=engine,
            checkpointing=None if self.checkpoints is None else CheckpointOptions(Path(self.checkpoints), warn=_warn),
            whiten=bool(self.whiten),
        )
        engine.close(network)
        found = fitted.decomposition
        self._set_model(fitted.model)
        self.result_, self.topology_, self.traffic_ = found.result, network.topology, found.traffic
        if found.checkpointer is not None:
            found.checkpointer.clear()
        self.n_iter_, self._directions = max(found.result.iterations, 1), found.directions
        self.n_samples_seen_ = found.n_rows
        return fitted

    def _set_model(self, model: Model) -> None:
        """Set ``model_``, and from it the attributes that scikit-learn's PCA has."""
        self.model_ = model
        self.components_, self.mean_, self.scale_ = model.components, model.mean, model.scale
        self.explained_variance_ = model.explained_variance
        self.explained_variance_ratio_, self.singular_values_ = model.explained_variance_ratio, model.singular_values
        self.noise_variance_ = model.dtype.type(model.noise_variance)
        self.n_components_, self.n_samples_ = model.n_components, model.n_samples

    # --------------------------------------------------------------------------------------------------------- engine

    def _engine(self) -> Engine:
        """Return the engine named by the constructor parameters."""
        return create_engine(self.engine, allreduce=bool(self.allreduce))

    def _common_seed(self, engine: Engine) -> int:
        """Return rank 0's seed at all ranks."""
        return int(engine.gather_texts(str(self._seed()))[0])


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=4)
