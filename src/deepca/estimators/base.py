"""What estimators share: who the agents are and how they are joined, what they ask for, and how it is told."""

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
from deepca._util.validation import Whole, check
from deepca.data.moments import check_finite
from deepca.data.sources import ArraySource, numeric
from deepca.decomposition.settings import SearchOptions
from deepca.errors import DataError, InvalidInput, TopologyError
from deepca.solver.observers import Observer
from deepca.solver.result import Status
from deepca.topology.graph import Topology
from deepca.topology.names import from_name, named_agents

__all__ = ["Index", "OverAgents", "RowTransformer", "checked_labels", "default_topology", "warn_unless_ok", "watchers"]

Index = npt.NDArray[np.int64]
_DEFAULT_AGENTS = 10
_FLOATS = [np.float64, np.float32]


class OverAgents:
    """An estimator that spreads data over agents for the occasion. Its parameters are the attributes."""

    topology: str | Topology
    n_agents: int | None
    algorithm: str
    rounds: int | Literal["auto"]
    tol: float
    max_iter: int
    random_state: Any
    verbose: bool | int

    def _understood(self, X: Any, **asked: int) -> tuple[Any, tuple[str, ...] | None]:
        """A whole matrix, checked, and the names of its columns, if any. ``asked`` : as for validate_data."""
        X = validate_data(
            self,
            unmasked(X, "X"),
            accept_sparse="csr",
            dtype=_FLOATS,
            ensure_all_finite=False,  # looked for below, where it can be named
            **asked,
        )
        X = numeric(X, "X")
        columns = getattr(self, "feature_names_in_", None)
        named = None if columns is None else tuple(map(str, columns))
        check_finite(ArraySource(X, "X", named), X, 0)
        return X, named

    def _seed(self) -> int:
        if Whole(0).accepts(self.random_state):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _search_options(self, seed: int) -> SearchOptions:
        return SearchOptions(
            algorithm=self.algorithm, rounds=self.rounds, tol=self.tol, max_iter=self.max_iter, seed=seed
        )

    def _check_agents(self, agents: int, found: str) -> None:
        """Raise InvalidInput where ``n_agents`` is not the number that the data say. found : what they say."""
        if self.n_agents is not None and self.n_agents != agents:
            raise InvalidInput(f"n_agents = {self.n_agents}, but {found}")

    def _by_label(
        self, labels: npt.NDArray[Any], seed: int, of: str = "row"
    ) -> tuple[Topology, list[str], list[Index]]:
        """Return the network of those who hold a row (or column), their names, and the numbers of what each holds."""
        found, index = np.unique(labels, return_inverse=True)
        m = len(found)
        self._check_agents(m, f"agents has {m} different labels")
        held = [np.flatnonzero(index == j) for j in range(m)]
        return self._topology(m, most=m, seed=seed, of=of), [f"agent {label}" for label in found], held

    def _topology(self, agents: int | None, *, most: int, seed: int, ranks: int = 1, of: str = "row") -> Topology:
        """agents : how many there are, where the data say so.  most : how many of what is spread, called ``of``."""
        given, asked = self.topology, agents if agents is not None else self.n_agents
        if isinstance(given, Topology):
            m: int | None = given.n_agents
            if asked is not None and asked != m:
                raise InvalidInput(f"the topology has {m} agents, the data has {asked}")
        elif not isinstance(given, str):
            raise InvalidInput(f"topology = {given!r}: give a name such as 'ring', or a deepca.Topology")
        elif asked is None:
            m = named_agents(given)
        else:
            check("n_agents", asked, Whole(1))
            m = int(asked)
        if m is not None and m > most:
            raise DataError(f"{most} {of}s cannot be spread over {m} agents: every agent needs at least one {of}")
        if isinstance(given, Topology):
            return given
        if m is None:
            return default_topology(given, most, seed, ranks)
        return from_name(given, None if asked is None else m, seed=seed)


def default_topology(name: str, most: int, seed: int, ranks: int) -> Topology:
    """Return a network of ten agents, or of the next smaller number that has such a network.

    On more ranks than ten, of as many as there are, or of the next larger number.
    """
    tried = [*range(min(_DEFAULT_AGENTS, most), 1, -1)]
    if ranks > _DEFAULT_AGENTS:
        tried = [*range(ranks, min(2 * ranks, most) + 1), *tried]
    for agents in tried:
        with suppress(TopologyError):
            return from_name(name, agents, seed=seed)
    return from_name(name, 1, seed=seed)


class RowTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, OverAgents, BaseEstimator):
    """An estimator with ``components_``, dense or sparse rows to transform, and ``warm_start``."""

    warm_start: bool
    components_: npt.NDArray[Any]

    def _known(self, size: int | None) -> Array | None:
        """Where the fit before ended, if that is a start for vectors with so many entries."""
        known: Array | None = getattr(self, "_directions", None)
        return known if self.warm_start and known is not None and known.shape[1] == size else None

    def _name_columns(self, d: int, columns: tuple[str, ...] | None) -> None:
        self.n_features_in_ = d
        if columns is not None:
            self.feature_names_in_ = np.array(columns, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _rows(self, X: Any, *, sparse: bool = True) -> Any:
        """Rows to apply the fit to, checked."""
        check_is_fitted(self)
        accepted = ("csr", "csc") if sparse else False
        return validate_data(self, unmasked(X, "X"), accept_sparse=accepted, dtype=_FLOATS, reset=False)

    def _scores(self, X: Any) -> npt.NDArray[Any]:
        """Scores to turn into rows again, checked."""
        check_is_fitted(self)
        return np.asarray(check_array(unmasked(X, "X"), dtype=_FLOATS))

    @property
    def _n_features_out(self) -> int:
        return int(self.components_.shape[0])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def warn_unless_ok(status: Status) -> None:
    """Warn whoever called the method of an estimator that calls this."""
    if not status.ok:
        warnings.warn(str(status), ConvergenceWarning, stacklevel=3)


def watchers(wanted: bool) -> tuple[Observer, ...]:
    """A progress bar where somebody wants one."""
    if not wanted:
        return ()
    try:
        from deepca.solver.progress import ProgressBar
    except ModuleNotFoundError:
        warnings.warn("progress is shown with rich only; pip install 'deepca[cli]'", stacklevel=4)
        return ()
    return (ProgressBar(),)


def checked_labels(agents: Any, n: int, of: str = "row") -> npt.NDArray[Any]:
    """One label for each of n rows, or columns, saying who holds it."""
    labels = np.asarray(agents)
    if labels.shape != (n,):
        raise DataError(f"agents has shape {labels.shape}; one label for each of the {n} {of}s is needed")
    missing = np.array([label is None or label != label for label in labels.tolist()], dtype=bool)  # NaN is not itself
    if missing.any():
        raise DataError(f"agents: {of} {int(np.flatnonzero(missing)[0])} has no label")
    if labels.dtype == object:  # text and numbers side by side have no order, but their texts do
        labels = labels.astype(str)
    return labels
