"""What estimators share that spread data over agents for the occasion: who the agents are, and how they are joined."""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from deepca._util.masked import unmasked
from deepca._util.validation import Whole, check
from deepca.data.moments import check_finite
from deepca.data.sources import ArraySource, numeric
from deepca.errors import DataError, InvalidInput, TopologyError
from deepca.solver.observers import Observer
from deepca.topology.graph import Topology
from deepca.topology.names import from_name, named_agents

__all__ = ["OverAgents", "checked_labels", "plain_number", "watchers"]

_DEFAULT_AGENTS = 10


class OverAgents:
    """An estimator with the parameters ``topology``, ``n_agents`` and ``random_state``."""

    topology: str | Topology
    n_agents: int | None
    random_state: Any

    def _understood(self, X: Any, **asked: int) -> tuple[Any, tuple[str, ...] | None]:
        """A whole matrix, checked, and the names of its columns, if any. ``asked`` : as for validate_data."""
        X = validate_data(
            self,
            unmasked(X, "X"),
            accept_sparse="csr",
            dtype=[np.float64, np.float32],
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

    def _topology(self, agents: int | None, *, most: int, seed: int, ranks: int = 1, of: str = "row") -> Topology:
        """agents : how many there are, where the data say so.  most : how many of what is spread, called ``of``."""
        if isinstance(self.topology, Topology):
            asked = agents if agents is not None else self.n_agents
            m = self.topology.n_agents if asked is None else asked
            if m != self.topology.n_agents:
                raise InvalidInput(f"the topology has {self.topology.n_agents} agents, the data has {m}")
            if m > most:
                raise DataError(_too_few(most, m, of))
            return self.topology
        if not isinstance(self.topology, str):
            raise InvalidInput(f"topology = {self.topology!r}: give a name such as 'ring', or a deepca.Topology")
        wanted = agents if agents is not None else self.n_agents
        if wanted is None:
            return self._default_topology(self.topology, most, seed, ranks, of)
        m = wanted
        check("n_agents", m, Whole(1))
        if m > most:
            raise DataError(_too_few(most, m, of))
        return from_name(self.topology, int(m), seed=seed)

    def _default_topology(self, name: str, most: int, seed: int, ranks: int, of: str) -> Topology:
        """As many agents as the name says; else ten, or the next smaller number that has such a network.

        On more ranks than ten, as many as there are, or the next larger number.
        """
        m = named_agents(name)
        if m is not None and m > most:
            raise DataError(_too_few(most, m, of))
        if m is not None:
            return from_name(name, seed=seed)
        tried = [*range(min(_DEFAULT_AGENTS, most), 1, -1)]
        if ranks > _DEFAULT_AGENTS:
            tried = [*range(ranks, min(2 * ranks, most) + 1), *tried]
        for agents in tried:
            with suppress(TopologyError):
                return from_name(name, agents, seed=seed)
        return from_name(name, 1, seed=seed)


def _too_few(most: int, m: int, of: str) -> str:
    return f"{most} {of}s cannot be spread over {m} agents: every agent needs at least one {of}"


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


def plain_number(k: Any) -> Any:
    """numpy's numbers as Python's, so that an int is told from a share."""
    return k.item() if isinstance(k, np.generic) else k


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
