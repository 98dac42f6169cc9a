"""Eigenvectors of graphs that agents know only locally: the network itself, or a data graph partitioned over it.

Each agent learns the entries of its own nodes, and eigenvalues, residuals and bounds that are the same at every agent.
It knows only its own block and its neighbours: a product takes one round with them, and small matrices are summed over
a spanning tree that the agents grow themselves (:mod:`deepca.network.trees`).
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
from deepca.consensus.mixers import FastMix, Mixer, fastmix_eta
from deepca.consensus.rates import first_rounds
from deepca.decomposition.spectral.block_rows import BlockRows
from deepca.decomposition.spectral.blocks import GraphBlock, Matrix, network_blocks, partition_graph
from deepca.decomposition.spectral.convergence import EQUAL, bound_on_others, converge, gap_behind, sine_bound
from deepca.errors import GapError, ParameterError, TopologyError
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

Which = Literal["smallest", "largest"]
_Number = TypeVar("_Number", bound=np.generic)
_ROUNDING = 8.0 * EPS  # relative to the spectrum's size: error of sums of weights, roots of degrees and products


@dataclass(frozen=True, eq=False)
class GraphEigenpairs:
    """Eigenvalues of a graph's matrix M, and the eigenvectors' entries at the local agents.

    Parameters
    ----------
    values : array of shape (k,)
        Eigenvalues, outermost first.
    vectors : tuple of array
        For each local agent ``(nodes, k)``; columns are orthonormal over the whole network.
    residuals : array of shape (k,)
        ``‖M x_i − θ_i x_i‖``; an eigenvalue lies within that distance of each value.
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


@dataclass(frozen=True)
class GossipSpectrum:
    """λ₂ and λ_min of the gossip matrix 𝐋, the same at every agent.

    Parameters
    ----------
    lambda2, lambda_min : float
        Second largest and smallest eigenvalue.
    error : float
        Distance from each of the two within which an eigenvalue lies.
    proven : bool
        Whether no eigenvalue lies farther out by more than 1e-10, except with probability 1e-6.
    n_agents : int
        Number of agents, as counted over the tree.
    depth : int
        Depth of the spanning tree; no two agents are farther apart than twice the depth.
    rounds : int
        Number of rounds of all kinds.
    """

    lambda2: float
    lambda_min: float
    error: float
    proven: bool
    n_agents: int
    depth: int
    rounds: int


@dataclass(frozen=True)
class LocalMixing:
    """FastMix's η and a number of rounds K to begin with, found without global knowledge of the graph."""

    spectrum: GossipSpectrum
    eta: float
    rounds: int


def graph_eigenvectors(
    blocks: Sequence[GraphBlock],
    network: Network,
    k: int,
    *,
    matrix: Matrix = "laplacian",
    which: Which = "smallest",
    tol: float = 1e-12,
    seed: int = 0,
) -> GraphEigenpairs:
    """Compute the k smallest or largest eigenvalues of a graph's matrix, with each agent's part of the eigenvectors.

    Parameters
    ----------
    blocks : sequence of GraphBlock
        Blocks of the local agents, in order: all of them in a simulator, one at a single agent.
    network : Network
        Network in which agents that share an edge are linked.
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
        Eigenvalues with bounds, and entries of the eigenvectors; the largest entry of each vector is positive. The
        smallest eigenpairs of a Laplacian include the constant vector (D^{1/2} 1 if normalized), as in
        :func:`scipy.linalg.eigh`.

    Raises
    ------
    AsymmetricError, DisconnectedError, TopologyError
        If the graph cannot be used; the message names an edge or two nodes.
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
    blocks: Sequence[GraphBlock], network: Network, k: int, *, matrix: Matrix, which: Which
) -> tuple[BlockRows, SpanningTree]:
    """Check the graph; return the rows of its matrix and a spanning tree for sums."""
    check("which", which, OneOf("smallest", "largest"))
    check("k", k, Integer(1))
    rows = BlockRows(blocks, network, matrix, negated=which == "smallest")
    if matrix != "adjacency":
        rows.check_connected()
    return rows, SpanningTree.grow(network)


def compute_eigenpairs(
    rows: BlockRows, tree: SpanningTree, k: int, *, which: Which, tol: float, seed: int
) -> tuple[GraphEigenpairs, Array]:
    """Return eigenvalues with their bounds, and the vectors as one array ``(*B, n, k)``."""
    known = rows.constant if which == "smallest" else None
    first = int(known is not None)
    sign, n, unit = -1.0 if which == "smallest" else 1.0, k - first, rows.unit
    method = FilteredSubspaceIteration(rows, tree, max(n, 1), known=known, seed=seed)
    state, bound, s, products = converge(method, tol)
    theta, r, rounding = state.theta, state.r, _ROUNDING * method.scale(state)
    if n > 0:
        _check_gap(sign * unit * theta, n, method, unit * EQUAL * method.scale(state))
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
    blocks: Sequence[GraphBlock], network: Network, *, matrix: Matrix = "laplacian", tol: float = 1e-12, seed: int = 0
) -> tuple[float, tuple[Array, ...]]:
    """Compute the algebraic connectivity and the Fiedler vector: the second smallest eigenpair of a Laplacian.

    Parameters
    ----------
    blocks : sequence of GraphBlock
        Blocks of the local agents.
    network : Network
        Network in which agents that share an edge are linked.
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
        For each local agent, the entries of its nodes.

    Raises
    ------
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


def lambda2(network: Network, *, tol: float = 1e-12, seed: int = 0) -> GossipSpectrum:
    """Compute λ₂ and λ_min of the network's gossip matrix 𝐋, each agent using only its own row.

    Parameters
    ----------
    network : Network
        The network; its links must be symmetric and fixed.
    tol : float
        Acceptable sine of the angle to the true eigenvectors, as far as rounding allows.
    seed : int
        Seed of the random start, the same at every agent.

    Returns
    -------
    GossipSpectrum
        Both eigenvalues with their error bound, the same at every agent.

    Raises
    ------
    TopologyError
        If the network is directed or time-varying, so it has no single symmetric 𝐋.

    Examples
    --------
    >>> import deepca
    >>> found = lambda2(deepca.SimulatedNetwork(deepca.topology.ring(8)))
    >>> abs(found.lambda2 - deepca.topology.ring(8).lambda2) < 1e-10
    True
    """
    if not network.topology.static_undirected:
        raise TopologyError(
            f"{network.topology.name} is directed or time-varying, so it has no single symmetric 𝐋 with a λ₂; give a "
            "fixed, undirected network",
            parameter="network",
        )
    before = network.traffic
    tree = SpanningTree.grow(network)
    if tree.n_agents == 1:
        return GossipSpectrum(0.0, 1.0, 0.0, True, 1, 0, 0)
    ends = []
    for sign in (1.0, -1.0):
        rows = _GossipRows(network, sign)
        method = FilteredSubspaceIteration(
            rows, tree, 1, known=np.ones(rows.numbers.shape), known_value=sign, seed=seed
        )
        state, bound, _, _ = converge(method, tol)
        ends.append(
            (
                sign * float(state.theta[0]),
                float(state.r[0]),
                bool(bound <= state.theta[0] + EQUAL * method.scale(state)),
            )
        )
    (second, r2, top), (lowest, r1, bottom) = ends
    rounds = _rounds_since(network, before)
    return GossipSpectrum(second, lowest, max(r1, r2), top and bottom, tree.n_agents, tree.depth, rounds)


def local_mixing(network: Network, *, mixer: Mixer | None = None, tol: float = 1e-12) -> LocalMixing:
    """Compute FastMix's η and a K to begin with, each agent using only its own row of 𝐋.

    With this K, tracking converges for every spectrum between λ_min and λ₂
    (:func:`deepca.consensus.rates.first_rounds`); knowing all eigenvalues may allow fewer rounds.
    :meth:`Neighbourhood.knowing` makes the spectrum available to a run.
    """
    spectrum = lambda2(network, tol=tol)
    agent = int(network.local.ravel()[0])
    view = Neighbourhood.of(network.topology, agent).with_spectrum_of(spectrum)
    chosen = FastMix() if mixer is None else mixer
    chosen.check(view)
    return LocalMixing(spectrum, fastmix_eta(view.lambda2), first_rounds(chosen, view))


def gather_parts(blocks: Sequence[GraphBlock], parts: Sequence[npt.NDArray[_Number]]) -> npt.NDArray[_Number]:
    """Join the entries of all agents' blocks in the order of node numbers, in a process that has all of them."""
    numbers = np.concatenate([block.nodes for block in blocks])
    return np.asarray(np.concatenate(list(parts))[np.argsort(numbers)])


class _GossipRows:
    """𝐋 or −𝐋 with one row per agent; a product is one round of gossip."""

    def __init__(self, network: Network, sign: float) -> None:
        self.network, self._sign = network, sign
        self.numbers: npt.NDArray[np.int64] = network.local[..., None].astype(np.int64)
        own = network.topology.gossip_sparse[network.local.ravel(), :]
        middle = sign * network.topology.gossip_sparse.diagonal()[network.local]
        row_sums: Array = np.asarray(abs(own).sum(axis=1), dtype=np.float64)
        reach = row_sums.reshape(network.batch) - np.abs(middle)
        self.lowest = float(network.reduce(middle - reach, "min"))

    def product(self, X: Array, /) -> Array:
        """Multiply by one round of gossip."""
        return self._sign * self.network.gossip(X)


def _check_gap(values: Array, n: int, method: FilteredSubspaceIteration, equal: float) -> None:
    """Raise GapError if eigenvalues n and n + 1 are equal."""
    if values.size <= n or abs(values[n] - values[n - 1]) > equal:
        return
    same, first = np.flatnonzero(np.abs(values - values[n - 1]) <= equal), method.size - method.free
    low, high = int(same[0]) + first, int(same[-1]) + first + 1
    more = " or more" if same[-1] + 1 == values.size < method.free else ""
    fewer = f"k = {low} or " if low > 0 else ""
    raise GapError(
        f"eigenvalues {low + 1} to {high}{more} are all {values[n - 1]:.6g}, so the first {n + first} eigenvectors are "
        f"not unique; ask for {fewer}k = {high}{more}",
        parameter="k",
        value=n + first,
    )


def _oriented(network: Network, numbers: npt.NDArray[np.int64], X: Array) -> Array:
    """Flip signs so that the largest entry of each column is positive; among equal ones, that of the first node."""
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
