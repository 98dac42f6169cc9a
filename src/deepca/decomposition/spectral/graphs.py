"""Eigenvectors of graphs that agents know only locally: the network itself, or a data graph partitioned over it.

Each agent learns the entries of the eigenvectors at its nodes, and eigenvalues, residuals and bounds that are the same
at every agent. An agent knows only its block and its neighbours: a product takes one round with the neighbours, and
small matrices are summed over a spanning tree that the agents grow themselves (:mod:`deepca.network.trees`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from deepca._util.floats import EPS
from deepca._util.typing import Array
from deepca._util.validation import Integer, OneOf, check
from deepca.algorithms.partitioned_rows import FilteredSubspaceIteration
from deepca.decomposition.spectral.block_rows import BlockRows
from deepca.decomposition.spectral.blocks import GraphBlock, GraphMatrix, network_blocks, partition_graph
from deepca.decomposition.spectral.convergence import (
    EQUALITY_TOLERANCE,
    bound_on_others,
    converge,
    gap_behind,
    sine_bound,
)
from deepca.decomposition.spectral.gossip_spectrum import GossipSpectrum, LocalMixing, lambda2, local_mixing
from deepca.errors import GapError, ParameterError
from deepca.network.base import Network
from deepca.network.traffic import Traffic
from deepca.network.trees import SpanningTree
from deepca.topology.local_view import Neighbourhood

__all__ = [
    "GossipSpectrum",
    "GraphBlock",
    "GraphEigenpairs",
    "LocalMixing",
    "Neighbourhood",
    "fiedler",
    "gather_parts",
    "graph_eigenvectors",
    "lambda2",
    "local_mixing",
    "network_blocks",
    "partition_graph",
]

SpectrumEnd = Literal["smallest", "largest"]
_Number = TypeVar("_Number", bound=np.generic)
_ROUNDING = 8.0 * EPS  # error of sums of weights, roots of degrees and products, relative to the spectrum's size


@dataclass(frozen=True, eq=False)
class GraphEigenpairs:
    """Eigenvalues of a graph's matrix M, and the eigenvectors' entries at the local agents.

    Parameters
    ----------
    values : array of shape (k,)
        Eigenvalues, outermost first.
    vectors : tuple of array
        One array ``(nodes, k)`` per local agent; columns are orthonormal over the whole network.
    residuals : array of shape (k,)
        ``‖M x_i − θ_i x_i‖``; at least one eigenvalue lies within this distance of each value.
    gap : float
        Distance from the k-th value to the next one found; inf if no other was found.
    next_bound : float
        Bound beyond which only the k outermost eigenvalues lie, except with probability 1e-6.
    error : float
        Bound on the sine of the angle between the span of the vectors and the true one; inf if unproven.
    products : int
        Number of products with M; each takes one round with neighbours.
    rounds : int
        Number of rounds of all kinds.
    """

    values: Array
    vectors: tuple[Array, ...]
    residuals: Array
    gap: float
    next_bound: float
    error: float
    products: int
    rounds: int

    @property
    def proven(self) -> bool:
        """True if the values are proven to be the outermost eigenvalues."""
        return bool(np.isfinite(self.error))


def graph_eigenvectors(
    blocks: Sequence[GraphBlock],
    network: Network,
    k: int,
    *,
    matrix: GraphMatrix = "laplacian",
    which: SpectrumEnd = "smallest",
    tol: float = 1e-12,
    seed: int = 0,
) -> GraphEigenpairs:
    """Compute the k smallest or largest eigenvalues of a graph's matrix, with each agent's part of the eigenvectors.

    Parameters
    ----------
    blocks : sequence of GraphBlock
        Blocks of the local agents, in order: those of all agents in a simulator, one at a single agent.
    network : Network
        Network in which two agents are linked if an edge joins their nodes.
    k : int
        Number of eigenpairs.
    matrix : {"laplacian", "normalized", "adjacency"}
        D − W, I − D^{−1/2} W D^{−1/2}, or W.
    which : {"smallest", "largest"}
        End of the spectrum.
    tol : float
        Acceptable sine of the angle between the span of the vectors and the true one, as far as rounding allows.
    seed : int
        Seed of the random start, the same at every agent.

    Returns
    -------
    GraphEigenpairs
        Eigenvalues with bounds, and entries of the eigenvectors; the entry of largest absolute value of each vector is
        positive. The smallest eigenpairs of a Laplacian include the constant vector (D^{1/2} 1 if normalized), as in
        :func:`scipy.linalg.eigh`.

    Raises
    ------
    ParameterError
        If ``k``, ``matrix``, ``which`` or ``tol`` is invalid.
    AsymmetricError, DisconnectedError
        If the two weights of an edge differ, or the graph is disconnected and ``matrix`` is a Laplacian.
    TopologyError
        If an edge joins nodes of two agents that are not linked.
    GapError
        If eigenvalues k and k + 1 are equal, so that the k vectors are not unique.

    Examples
    --------
    >>> import deepca
    >>> from deepca.decomposition.spectral import graphs
    >>> network = deepca.SimulatedNetwork(deepca.topology.path(3))
    >>> found = graphs.graph_eigenvectors(graphs.network_blocks(network), network, 2)
    >>> found.values.round(6)
    array([0., 1.])
    """
    before = network.traffic
    rows, tree = prepare(blocks, network, k, matrix=matrix, which=which)
    found, X = compute_eigenpairs(rows, tree, k, which=which, tol=tol, seed=seed)
    return replace(found, vectors=rows.local_arrays(X), rounds=_rounds_since(network, before))


def prepare(
    blocks: Sequence[GraphBlock], network: Network, k: int, *, matrix: GraphMatrix, which: SpectrumEnd
) -> tuple[BlockRows, SpanningTree]:
    """Check the graph; return the rows of its matrix and a spanning tree for sums."""
    check("which", which, OneOf("smallest", "largest"))
    check("k", k, Integer(1))
    rows = BlockRows(blocks, network, matrix, negated=which == "smallest")
    if matrix != "adjacency":
        rows.check_connected()
    return rows, SpanningTree.grow(network)


def compute_eigenpairs(
    rows: BlockRows, tree: SpanningTree, k: int, *, which: SpectrumEnd, tol: float, seed: int
) -> tuple[GraphEigenpairs, Array]:
    """Return eigenvalues with their bounds, and the vectors as one array ``(*B, n, k)``."""
    known = rows.constant if which == "smallest" else None
    first = int(known is not None)
    sign, n, unit = -1.0 if which == "smallest" else 1.0, k - first, rows.unit
    method = FilteredSubspaceIteration(rows, tree, max(n, 1), known=known, seed=seed)
    state, bound, s, products = converge(method, tol)
    theta, r, rounding = state.theta, state.r, _ROUNDING * method.scale(state)
    if n > 0:
        _check_gap(sign * unit * theta, n, method, unit * EQUALITY_TOLERANCE * method.scale(state))
    X = np.concatenate([method.V, _oriented(rows.network, rows.numbers, state.X[..., :n])], axis=-1)
    found = GraphEigenpairs(
        values=np.concatenate([np.zeros(first), sign * unit * theta[:n]]),
        vectors=(),
        residuals=np.concatenate([np.zeros(first), unit * r[:n]]),
        gap=unit * gap_behind(theta, n),
        next_bound=sign * unit * (bound_on_others(theta, r, n, s, bound) + rounding),
        error=sine_bound(state, n, s, bound, rounding),
        products=products,
        rounds=0,
    )
    return found, X


def fiedler(
    blocks: Sequence[GraphBlock],
    network: Network,
    *,
    matrix: GraphMatrix = "laplacian",
    tol: float = 1e-12,
    seed: int = 0,
) -> tuple[float, tuple[Array, ...]]:
    """Compute the algebraic connectivity and the Fiedler vector: the second smallest eigenpair of a Laplacian.

    Parameters
    ----------
    blocks : sequence of GraphBlock
        Blocks of the local agents, in order.
    network : Network
        Network in which two agents are linked if an edge joins their nodes.
    matrix : {"laplacian", "normalized"}
        D − W or I − D^{−1/2} W D^{−1/2}.
    tol : float
        Acceptable sine of the angle to the true vector, as far as rounding allows.
    seed : int
        Seed of the random start, the same at every agent.

    Returns
    -------
    connectivity : float
        The second smallest eigenvalue.
    entries : tuple of array
        For each local agent, the entries of the vector at its nodes.

    Raises
    ------
    ParameterError
        If ``matrix`` is not a Laplacian, or ``tol`` is invalid.
    AsymmetricError, DisconnectedError, TopologyError
        If the graph cannot be used, as for :func:`graph_eigenvectors`.
    GapError
        If the vector is not unique, as on a ring; :func:`graph_eigenvectors` computes all vectors of that eigenvalue.

    Examples
    --------
    >>> import deepca
    >>> from deepca.decomposition.spectral import graphs
    >>> network = deepca.SimulatedNetwork(deepca.topology.path(3))
    >>> connectivity, entries = graphs.fiedler(graphs.network_blocks(network), network)
    >>> round(connectivity, 6)
    1.0
    """
    if matrix == "adjacency":
        raise ParameterError("matrix", matrix, "a Fiedler vector needs a Laplacian; choose 'laplacian' or 'normalized'")
    found = graph_eigenvectors(blocks, network, 2, matrix=matrix, tol=tol, seed=seed)
    return float(found.values[1]), tuple(x[:, 1] for x in found.vectors)


def gather_parts(blocks: Sequence[GraphBlock], parts: Sequence[npt.NDArray[_Number]]) -> npt.NDArray[_Number]:
    """Join the entries at all nodes, in the order of node numbers, in a process that has the blocks of all agents."""
    numbers = np.concatenate([block.nodes for block in blocks])
    return np.asarray(np.concatenate(list(parts))[np.argsort(numbers)])


def _check_gap(values: Array, n: int, method: FilteredSubspaceIteration, equal: float) -> None:
    """Raise GapError if eigenvalues n and n + 1 are equal."""
    if values.size <= n or abs(values[n] - values[n - 1]) > equal:
        return
    same, first = np.flatnonzero(np.abs(values - values[n - 1]) <= equal), method.size - method.free
    low, high = int(same[0]) + first, int(same[-1]) + first + 1
    truncated = same[-1] + 1 == values.size < method.free  # more eigenvalues may be equal to these
    last, larger = (f"at least {high}", f"k ≥ {high}") if truncated else (str(high), f"k = {high}")
    smaller = f"k = {low} or " if low > 0 else ""
    raise GapError(
        f"eigenvalues {low + 1} to {last} are equal ({values[n - 1]:.6g}), so the first {n + first} eigenvectors are "
        f"not unique; ask for {smaller}{larger}",
        parameter="k",
        value=n + first,
    )


def _oriented(network: Network, numbers: npt.NDArray[np.int64], X: Array) -> Array:
    """Flip signs so that the entry of largest absolute value of each column is positive; among equals, the first."""
    size = np.abs(X)
    largest = network.reduce(size.max(axis=-2), "max")
    among = (size >= (1.0 - 1e-6) * largest) & (numbers >= 0)[..., None]
    first = network.reduce(np.where(among, numbers[..., None], np.inf).min(axis=-2), "min")
    chosen = numbers[..., None] == first
    entry = network.reduce(np.where(chosen, X, -np.inf).max(axis=-2), "max")
    return X * np.where(entry < 0.0, -1.0, 1.0)


def _rounds_since(network: Network, before: Traffic) -> int:
    made = network.traffic - before
    return made.rounds + made.control_rounds
