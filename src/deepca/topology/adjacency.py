"""Build, check and search sparse adjacency and weight matrices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse import csgraph

from deepca._util.typing import Array, Csr, csr
from deepca._util.validation import Integer
from deepca.errors import AsymmetricError, DisconnectedError, TopologyError

__all__ = [
    "adjacency_at",
    "check_agents",
    "check_connected",
    "check_gossip",
    "check_square",
    "checked_pairs",
    "components_of",
    "format_agents",
    "freeze",
    "links_of",
    "shortest_paths",
]

_SYMMETRY_TOLERANCE = 1e-12  # weights are O(1); products and inverses of degrees round to a few 1e-16
_ROW_SUM_TOLERANCE = 1e-10  # the errors of all weights in a row add up
_SHOWN_COMPONENTS, _SHOWN_AGENTS = 4, 8  # largest numbers listed in a message; more are only counted


def checked_pairs(edges: Iterable[tuple[int, int]], m: int, what: str) -> npt.NDArray[np.int64]:
    """Return edges or arcs among m agents as an ``(n, 2)`` array; raise TopologyError for the first invalid one.

    Parameters
    ----------
    edges : iterable of (int, int)
        Pairs of agents.
    m : int
        Number of agents.
    what : str
        "edge" or "arc", for messages.
    """
    check_agents(m)
    pairs = list(edges)
    given: npt.NDArray[Any] = np.empty((0, 2), dtype=np.int64)
    if pairs:
        try:
            given = np.array(pairs)
        except ValueError:  # of different lengths
            given = np.empty(0)
    if given.ndim != 2 or given.shape[1] != 2:
        raise TopologyError(
            f"an {what} is not a pair; {what}s must be pairs of agents, such as [(0, 1), (1, 2)]",
            parameter=f"{what}s",
        )
    numeric = given.dtype.kind in "iufb"
    ends = given.astype(np.int64) if numeric else np.full((1, 2), -1)
    if given.size and (not numeric or (ends != given).any()):
        raise TopologyError(
            f"an {what} is not a pair of integers; {what}s must be pairs of agent indices, such as [(0, 1), (1, 2)]",
            parameter=f"{what}s",
        )
    for i, j in ends[(ends < 0).any(axis=1) | (ends >= m).any(axis=1)].tolist():
        raise TopologyError(f"{what} ({i}, {j}) names an unknown agent; agents are numbered 0 … {m - 1}", edge=(i, j))
    for i, j in ends[ends[:, 0] == ends[:, 1]].tolist():
        raise TopologyError(f"{what} ({i}, {j}) connects an agent to itself; remove it", edge=(i, j))
    return ends


def adjacency_at(rows: npt.NDArray[np.int64], columns: npt.NDArray[np.int64], m: int) -> Csr:
    """Return an m × m adjacency matrix with ones at the given positions, which may repeat."""
    links = csr(sparse.coo_array((np.ones(len(rows)), (rows, columns)), shape=(m, m)))
    links.sum_duplicates()
    links.data = np.ones_like(links.data)
    return links


def links_of(weights: Csr) -> Csr:
    """Return the adjacency matrix of a weight matrix: ones at its nonzero entries off the diagonal."""
    links = weights.copy()
    links.setdiag(0.0)
    links.eliminate_zeros()
    links.data = np.ones_like(links.data)
    return links


def shortest_paths(links: Csr, root: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return every agent's distance from the root in hops, and its predecessor on a shortest path from the root."""
    hops, parent = csgraph.shortest_path(links, unweighted=True, indices=root, return_predecessors=True, method="D")
    return np.asarray(hops, dtype=np.int64), np.asarray(parent, dtype=np.int64)


def freeze(matrix: Csr) -> None:
    """Make the arrays of a sparse matrix read-only."""
    for part in (matrix.data, matrix.indices, matrix.indptr):
        part.flags.writeable = False


def check_agents(m: int) -> None:
    """Raise TopologyError unless m is a whole number of at least 1."""
    if not Integer(1).accepts(m):
        raise TopologyError(f"{m} agents: a network needs a whole number of agents, at least one", value=m)


def check_square(gossip: Csr) -> None:
    """Raise TopologyError unless a weight matrix is square and finite."""
    if gossip.ndim != 2 or gossip.shape[0] != gossip.shape[1] or gossip.shape[0] < 1:
        raise TopologyError(
            f"the weight matrix has shape {gossip.shape}; it must be square, m × m",
            parameter="matrix",
            value=gossip.shape,
        )
    if not np.isfinite(gossip.data).all():
        entries = sparse.coo_array(gossip)
        first = int(np.flatnonzero(~np.isfinite(entries.data))[0])
        i, j = int(entries.row[first]), int(entries.col[first])
        raise TopologyError(
            f"the weight matrix contains NaN or infinity at ({i}, {j}); give finite weights", row=i, column=j
        )


def check_gossip(gossip: Csr) -> None:
    """Raise TopologyError unless a gossip matrix is square, finite and symmetric with rows that sum to one."""
    check_square(gossip)
    difference = sparse.coo_array(gossip - gossip.T)
    if difference.nnz and (worst := int(np.abs(difference.data).argmax())) >= 0:
        i, j = int(difference.row[worst]), int(difference.col[worst])
        if abs(difference.data[worst]) > _SYMMETRY_TOLERANCE:
            raise AsymmetricError(
                f"the gossip matrix is not symmetric at edge ({i}, {j}): "
                f"𝐋[{i},{j}] = {gossip[i, j]:.6g} but 𝐋[{j},{i}] = {gossip[j, i]:.6g}; give both the same weight",
                edge=(i, j),
            )
    sums: Array = np.asarray(gossip.sum(axis=1), dtype=np.float64).ravel()
    worst = int(np.abs(sums - 1.0).argmax())
    if abs(sums[worst] - 1.0) > _ROW_SUM_TOLERANCE:
        raise TopologyError(
            f"row {worst} of the gossip matrix sums to {sums[worst]:.12g}; every row must sum to 1",
            row=worst,
            value=float(sums[worst]),
        )


def check_connected(adjacency: Csr) -> None:
    """Raise DisconnectedError, listing the components, unless an undirected graph is connected."""
    count, label = csgraph.connected_components(adjacency, directed=False)
    if count == 1:
        return
    components = components_of(label, count)
    shown = ", ".join(map(format_agents, components[:_SHOWN_COMPONENTS]))
    more = f" and {count - _SHOWN_COMPONENTS} more" if count > _SHOWN_COMPONENTS else ""
    raise DisconnectedError(
        f"the graph has {count} components: {shown}{more}; add edges between them", components=components
    )


def components_of(label: npt.NDArray[np.int32], count: int) -> tuple[tuple[int, ...], ...]:
    """Return the agents of every component, given the component label of each agent."""
    return tuple(tuple(np.flatnonzero(label == component).tolist()) for component in range(count))


def format_agents(agents: tuple[int, ...]) -> str:
    """Format a set of agents for a message, abbreviated if it is large."""
    more = f", … ({len(agents)} agents)" if len(agents) > _SHOWN_AGENTS else ""
    return "{" + ", ".join(map(str, agents[:_SHOWN_AGENTS])) + more + "}"
