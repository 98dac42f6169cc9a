"""Base classes of the estimators: agents and their network, input validation, warnings and progress."""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from deepca._util.masked import unmasked
from deepca._util.typing import Array
from deepca._util.units import counted
from deepca._util.validation import Integer, check
from deepca.data.moments import check_finite
from deepca.data.sources import ArraySource, numeric
from deepca.decomposition.settings import SearchOptions
from deepca.errors import DataError, InvalidInput, ParameterError, TopologyError
from deepca.solver.observers import Observer
from deepca.solver.result import Status
from deepca.topology.graph import Topology
from deepca.topology.names import agents_in_name, from_name

__all__ = [
    "DistributedEstimatorMixin",
    "Index",
    "RowTransformer",
    "checked_labels",
    "default_topology",
    "progress_observers",
    "warn_unless_ok",
]

Index = npt.NDArray[np.int64]
_DEFAULT_AGENTS = 10  # default number of agents: enough to be decentralized, few enough to be fast
_FLOATS = [np.float64, np.float32]  # scikit-learn converts other types to the first


class DistributedEstimatorMixin:
    """Mixin for estimators that distribute data over agents; the annotated attributes are constructor parameters."""

    topology: str | Topology
    n_agents: int | None
    algorithm: str
    rounds: int | Literal["auto"]
    tol: float
    max_iter: int
    random_state: Any
    verbose: bool | int

    def _validated(self, X: Any, **asked: int) -> tuple[Any, tuple[str, ...] | None]:
        """Return a checked matrix and its column names, if any; ``asked`` is passed on to validate_data."""
        X = validate_data(
            self,
            unmasked(X, "X"),
            accept_sparse="csr",
            dtype=_FLOATS,
            ensure_all_finite=False,  # checked below, with an error that names row and column
            **asked,
        )
        X = numeric(X, "X")
        columns = getattr(self, "feature_names_in_", None)
        named = None if columns is None else tuple(map(str, columns))
        check_finite(ArraySource(X, "X", named), X, 0)
        return X, named

    def _seed(self) -> int:
        """Return an integer seed from ``random_state``."""
        if Integer(0).accepts(self.random_state):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _search_options(self, seed: int) -> SearchOptions:
        """Return the constructor parameters that control the search, as keyword arguments of the decompositions."""
        return SearchOptions(
            algorithm=self.algorithm, rounds=self.rounds, tol=self.tol, max_iter=self.max_iter, seed=seed
        )

    def _check_agents(self, agents: int, found: str) -> None:
        """Raise ParameterError if ``n_agents`` contradicts the data; ``found`` describes the data."""
        if self.n_agents is not None and self.n_agents != agents:
            raise ParameterError("n_agents", self.n_agents, f"{found}; use n_agents={agents} or None")

    def _by_label(
        self, labels: npt.NDArray[Any], seed: int, of: str = "row"
    ) -> tuple[Topology, list[str], list[Index]]:
        """Return the network, the names of the agents, and the indices of the rows (or columns) of each."""
        found, index = np.unique(labels, return_inverse=True)
        m = len(found)
        self._check_agents(m, f"agents has {m} different labels")
        indices = [np.flatnonzero(index == j) for j in range(m)]
        return self._topology(m, most=m, seed=seed, of=of), [f"agent {label}" for label in found], indices

    def _topology(self, agents: int | None, *, most: int, seed: int, ranks: int = 1, of: str = "row") -> Topology:
        """Return the network of the agents.

        Parameters
        ----------
        agents : int or None
            Number of agents, if the data determine it.
        most : int
            Maximum number of agents, which is the number of rows (or columns) to distribute.
        seed : int
            Seed of random networks.
        ranks : int, default=1
            Number of MPI ranks.
        of : str, default="row"
            What is distributed, in the singular, for messages.

        Raises
        ------
        ParameterError
            If ``topology`` is neither a name nor a Topology, or ``n_agents`` is not a positive integer.
        InvalidInput
            If ``topology`` has a different number of agents.
        DataError
            If there are more agents than ``most``.
        """
        given, asked = self.topology, agents if agents is not None else self.n_agents
        if isinstance(given, Topology):
            m: int | None = given.n_agents
            if asked is not None and asked != m:
                wanted = counted(asked, "agent")
                message = f"the topology has {given.n_agents} instead of {wanted}; use a topology of {wanted}"
                raise InvalidInput(message, parameter="topology", value=m)
        elif not isinstance(given, str):
            raise ParameterError("topology", given, "expected a name such as 'ring', or a deepca.Topology")
        elif asked is None:
            m = agents_in_name(given)
        else:
            check("n_agents", asked, Integer(1))
            m = int(asked)
        if m is not None and m > most:
            raise DataError(
                f"{most} {of}s cannot be distributed over {m} agents; use at most {most} agents, so that each has one",
                parameter="n_agents",
                value=m,
            )
        if isinstance(given, Topology):
            return given
        if m is None:
            return default_topology(given, most, seed, ranks)
        return from_name(given, None if asked is None else m, seed=seed)


def default_topology(name: str, most: int, seed: int, ranks: int) -> Topology:
    """Return a named network of ten agents, or of the next smaller number for which it exists.

    With more than ten ranks, it has one agent per rank, or the next larger number for which it exists.
    """
    tried = [*range(min(_DEFAULT_AGENTS, most), 1, -1)]
    if ranks > _DEFAULT_AGENTS:
        tried = [*range(ranks, min(2 * ranks, most) + 1), *tried]
    for agents in tried:
        with suppress(TopologyError):
            return from_name(name, agents, seed=seed)
    return from_name(name, 1, seed=seed)


class RowTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, DistributedEstimatorMixin, BaseEstimator):
    """Base class of estimators with ``components_`` and ``warm_start`` that transform dense or sparse rows."""

    warm_start: bool
    components_: npt.NDArray[Any]

    def _warm_start_directions(self, size: int | None) -> Array | None:
        """Return the directions of the previous fit if ``warm_start`` is set and their length is ``size``."""
        known: Array | None = getattr(self, "_directions", None)
        return known if self.warm_start and known is not None and known.shape[1] == size else None

    def _name_columns(self, d: int, columns: tuple[str, ...] | None) -> None:
        """Set ``n_features_in_`` and ``feature_names_in_``."""
        self.n_features_in_ = d
        if columns is not None:
            self.feature_names_in_ = np.array(columns, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _rows(self, X: Any, *, sparse: bool = True) -> Any:
        """Check the rows to transform and return them."""
        check_is_fitted(self)
        accepted = ("csr", "csc") if sparse else False
        return validate_data(self, unmasked(X, "X"), accept_sparse=accepted, dtype=_FLOATS, reset=False)

    def _scores(self, X: Any) -> npt.NDArray[Any]:
        """Check the scores to transform back and return them."""
        check_is_fitted(self)
        return np.asarray(check_array(unmasked(X, "X"), dtype=_FLOATS))

    @property
    def _n_features_out(self) -> int:
        return int(self.components_.shape[0])

    def __sklearn_tags__(self) -> Any:
        """Declare that sparse input is accepted and float32 is preserved."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def warn_unless_ok(status: Status) -> None:
    """Issue a ConvergenceWarning unless the run succeeded; to be called directly by a public method."""
    if not status.ok:
        warnings.warn(str(status), ConvergenceWarning, stacklevel=3)


def progress_observers(wanted: bool) -> tuple[Observer, ...]:
    """Return a progress bar if ``wanted``, and if rich is installed."""
    if not wanted:
        return ()
    try:
        from deepca.solver.progress import ProgressBar
    except ModuleNotFoundError:
        warnings.warn("verbose needs rich to show progress; pip install 'deepca[cli]'", stacklevel=4)
        return ()
    return (ProgressBar(),)


def checked_labels(agents: Any, n: int, of: str = "row") -> npt.NDArray[Any]:
    """Check the labels that assign n rows (or columns) to agents, and return them."""
    labels = np.asarray(agents)
    if labels.shape != (n,):
        raise DataError(
            f"agents has shape {labels.shape}; give one label for each of the {n} {of}s",
            parameter="agents",
            value=labels.shape,
        )
    # NaN differs from itself
    missing = np.array([label is None or label != label for label in labels.tolist()], dtype=bool)
    if missing.any():
        place = int(np.flatnonzero(missing)[0])
        row, column = (place, None) if of == "row" else (None, place)
        message = f"agents: {of} {place} has no label; give every {of} a label"
        raise DataError(message, parameter="agents", row=row, column=column)
    if labels.dtype == object:  # a mixture of text and numbers can be sorted only as text
        labels = labels.astype(str)
    return labels
