"""Eigenvectors of graphs that agents see only locally: of the network itself, and of data graphs shared out over it.

Each agent ends with its own nodes' entries, and with eigenvalues, residuals and bounds that are the same everywhere.
What an agent needs to know is its own block and its neighbours; products take a round with them, and sums of small
matrices go over a spanning tree that agents find by themselves (:mod:`deepca.network.trees`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from deepca._util.floats import EPS
from deepca._util.typing import Array
from deepca._util.validation import OneOf, Whole, check
from deepca.algorithms.partitioned_rows import RowsApart, RowsState, split
from deepca.consensus.mixers import FastMix, Mixer, fastmix_eta
from deepca.consensus.rates import first_rounds
from deepca.decomposition.spectral.blocks import BlockRows, GraphBlock, Matrix, network_blocks, partition_graph
from deepca.errors import GapError, InvalidInput, TopologyError
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
    "assembled",
    "fiedler",
    "graph_eigenvectors",
    "lambda2",
    "local_mixing",
    "network_blocks",
    "partition_graph",
]

Which = Literal["smallest", "largest"]
_Number = TypeVar("_Number", bound=np.generic)
_EQUAL = 1e-10  # of the spectrum's size: eigenvalues this close count as one
_FAILURE = 1e-6
_SLOW = 4  # products in all, in nodes: as many as there are nodes would do, if there were no rounding
_IDLE = 25  # steps without progress
_ROUNDING = 8.0 * EPS  # of the spectrum's size: what sums of weights, roots of degrees and products may be off by


@dataclass(frozen=True, eq=False)
class GraphEigenpairs:
    """Eigenvalues, in the order asked for, and the entries of eigenvectors at the agents held here.

    values : ``(k,)``.  vectors : for each local agent ``(nodes, k)``, orthonormal over the network.
    residuals : ``‖M x_i − θ_i x_i‖``; an eigenvalue lies that close to each value.
    gap : from the k-th value to the next one found, infinite where there is none.
    next_bound : no eigenvalue beyond the k nearest to the end is farther out than this (but for a chance of 1e-6).
    error : bound on the sine of the angle between the span of the vectors and the true one; infinite where unproven.
    products : rounds with neighbours in which M was applied.  rounds : of all kinds.
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
        """Whether these are known to be the outermost eigenvalues, not just eigenvalues."""
        return bool(np.isfinite(self.error))


@dataclass(frozen=True)
class GossipSpectrum:
    """λ₂ and λ_min of 𝐋, the same at every agent.

    error : an eigenvalue lies that close to each.  proven : whether none farther out, by more than 1e-10, was missed
        (but for a chance of 1e-6).
    n_agents : as counted.  depth : of the spanning tree; no two agents are farther apart than twice that.
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
    """What FastMix needs, found without anyone knowing the graph: η, and K to begin with."""

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
    """The k smallest or largest eigenvalues of a graph's matrix, and every agent's entries of the eigenvectors.

    The smallest of a Laplacian are those that :func:`scipy.linalg.eigh` gives first, the constant vector (with
    ``matrix="normalized"``, the roots of the degrees) among them. A vector's largest entry is positive.

    Parameters
    ----------
    blocks : of the agents held here, in order: all in a simulator, one at a single agent.
    matrix : "laplacian" D − W, "normalized" I − D^{−1/2} W D^{−1/2}, or "adjacency" W.
    tol : on the sine of the angle to the true subspace, as far as rounding allows.

    Raises
    ------
    AsymmetricError, DisconnectedError : by name of an edge, or of two nodes.
    GapError : eigenvalue k equals the next, so that which vectors belong to the k is not determined.
    """
    before = network.traffic
    rows, tree = prepared(blocks, network, k, matrix=matrix, which=which)
    found, X = eigenpairs_of(rows, tree, k, which=which, tol=tol, seed=seed)
    return replace(found, vectors=rows.local_arrays(X), rounds=_rounds_since(network, before))


def prepared(
    blocks: Sequence[GraphBlock], network: Network, k: int, *, matrix: Matrix, which: Which
) -> tuple[BlockRows, SpanningTree]:
    """The rows of the matrix and a tree over which to add up, once it is sure that the graph can be used."""
    check("which", which, OneOf("smallest", "largest"))
    check("k", k, Whole(1))
    rows = BlockRows(blocks, network, matrix, negated=which == "smallest")
    if matrix != "adjacency":
        rows.check_connected()
    return rows, SpanningTree.grow(network)


def eigenpairs_of(
    rows: BlockRows, tree: SpanningTree, k: int, *, which: Which, tol: float, seed: int
) -> tuple[GraphEigenpairs, Array]:
    """Eigenvalues with their bounds, and the vectors ``(*B, n, k)`` as algorithms have them."""
    known = rows.constant if which == "smallest" else None
    first = int(known is not None)
    sign, n, unit = -1.0 if which == "smallest" else 1.0, k - first, rows.unit
    method = RowsApart(rows, tree, max(n, 1), known=known, seed=seed)
    state, bound, s, made = _converged(method, tol)
    theta, r, rounding = state.theta, state.r, _ROUNDING * method.scale(state)
    if n > 0:
        _check_gap(sign * unit * theta, n, method, unit * _EQUAL * method.scale(state))
    X = np.concatenate([method.V, _oriented(rows.network, rows.numbers, state.X[..., :n])], axis=-1)
    found = GraphEigenpairs(
        values=np.concatenate([np.zeros(first), sign * unit * theta[:n]]),
        vectors=(),
        residuals=np.concatenate([np.zeros(first), unit * r[:n]]),
        gap=unit * _gap(theta, n),
        next_bound=sign * unit * (_next(theta, r, n, s, bound) + rounding),
        error=_angle(state, n, s, bound, rounding),
        products=made,
        rounds=0,
    )
    return found, X


def fiedler(
    blocks: Sequence[GraphBlock], network: Network, *, matrix: Matrix = "laplacian", tol: float = 1e-12, seed: int = 0
) -> tuple[float, tuple[Array, ...]]:
    """The algebraic connectivity, λ₂ of the Laplacian, and every local agent's entries of its eigenvector.

    GapError where that vector is not unique, as on a ring: ask :func:`graph_eigenvectors` for all that belong to it.
    """
    if matrix == "adjacency":
        raise InvalidInput("a Fiedler vector is that of a Laplacian: matrix = 'laplacian' or 'normalized'")
    found = graph_eigenvectors(blocks, network, 2, matrix=matrix, tol=tol, seed=seed)
    return float(found.values[1]), tuple(x[:, 1] for x in found.vectors)


def lambda2(network: Network, *, tol: float = 1e-12, seed: int = 0) -> GossipSpectrum:
    """λ₂ and λ_min of the network's own gossip matrix, from every agent's own row of it."""
    if not network.topology.stays:
        raise TopologyError(f"λ₂ is that of one symmetric 𝐋, and {network.topology.name} has none")
    before = network.traffic
    tree = SpanningTree.grow(network)
    if tree.n_agents == 1:
        return GossipSpectrum(0.0, 1.0, 0.0, True, 1, 0, 0)
    ends = []
    for sign in (1.0, -1.0):
        rows = _GossipRows(network, sign)
        method = RowsApart(rows, tree, 1, known=np.ones(rows.numbers.shape), known_value=sign, seed=seed)
        state, bound, _, _ = _converged(method, tol)
        ends.append(
            (
                sign * float(state.theta[0]),
                float(state.r[0]),
                bool(bound <= state.theta[0] + _EQUAL * method.scale(state)),
            )
        )
    (second, r2, top), (lowest, r1, bottom) = ends
    rounds = _rounds_since(network, before)
    return GossipSpectrum(second, lowest, max(r1, r2), top and bottom, tree.n_agents, tree.depth, rounds)


def local_mixing(network: Network, *, mixer: Mixer | None = None, tol: float = 1e-12) -> LocalMixing:
    """FastMix's η and a first K, from every agent's own row of 𝐋.

    K makes tracking settle for every spectrum between λ_min and λ₂ (:func:`deepca.consensus.rates.first_rounds`); who
    knows all eigenvalues may get along with fewer rounds. :meth:`Neighbourhood.knowing` takes the spectrum for a run.
    """
    spectrum = lambda2(network, tol=tol)
    agent = int(network.local.ravel()[0])
    view = Neighbourhood.of(network.topology, agent).knowing(spectrum)
    chosen = FastMix() if mixer is None else mixer
    chosen.check(view)
    return LocalMixing(spectrum, fastmix_eta(view.lambda2), first_rounds(chosen, view))


def assembled(blocks: Sequence[GraphBlock], parts: Sequence[npt.NDArray[_Number]]) -> npt.NDArray[_Number]:
    """Entries of all agents' blocks in the order of the nodes' numbers: for looking, where all are in one place."""
    numbers = np.concatenate([block.nodes for block in blocks])
    return np.asarray(np.concatenate(list(parts))[np.argsort(numbers)])


class _GossipRows:
    """𝐋 or −𝐋, one row per agent: a product is a round of gossip."""

    def __init__(self, network: Network, sign: float) -> None:
        self.network, self._sign = network, sign
        self.numbers: npt.NDArray[np.int64] = network.local[..., None].astype(np.int64)
        own = network.topology.gossip_sparse[network.local.ravel(), :]
        middle = sign * network.topology.gossip_sparse.diagonal()[network.local]
        row_sums: Array = np.asarray(abs(own).sum(axis=1), dtype=np.float64)
        reach = row_sums.reshape(network.batch) - np.abs(middle)
        self.lowest = float(network.reduce(middle - reach, "min"))

    def product(self, X: Array, /) -> Array:
        return self._sign * self.network.gossip(X)


def _converged(method: RowsApart, tol: float) -> tuple[RowsState, float, int, int]:
    """Iterations until the residuals over the gap are below ``tol`` or at rounding, and a bound on what is outside.

    With it the number of columns whose span is proven to be invariant, at least k, and the products made.
    """
    if not isinstance(tol, (int, float, np.floating)) or not 0.0 < tol < 1.0:
        raise InvalidInput(f"tol = {tol!r}: must lie between 0 and 1")
    state, made = method.init(), 0
    while True:
        state, s = _iterated(method, state, tol)
        bound, more = method.above(state, s, _FAILURE)
        made += more
        if bound < float(state.theta[s - 1]) or not method.may_widen(state):
            return state, bound, s, state.products + made
        state = method.widened(state)  # more eigenvalues are where these are


def _iterated(method: RowsApart, state: RowsState, tol: float) -> tuple[RowsState, int]:
    """Until residuals are as small as they need to be, or can be."""
    best, idle = np.inf, 0
    while True:
        scale = method.scale(state)
        s = split(state.theta, method.k)
        drop = float(state.theta[s - 1] - state.theta[s]) if s < state.theta.size else np.inf
        worst, together = float(state.r[:s].max()), drop <= _EQUAL * scale
        accuracy = max(tol * (scale if together else min(drop, scale)), 4.0 * EPS * scale)
        slow = state.t > 1 and method.to_come(state, accuracy) > _SLOW * method.size
        if (together or slow) and method.may_widen(state):
            state, best, idle = method.widened(state), np.inf, 0
            continue
        idle = idle + 1 if worst > 0.5 * best else 0
        best = min(best, worst)
        whole = state.theta.size == method.free
        if whole or worst <= accuracy or (idle >= 3 and worst <= 1e-9 * scale) or idle >= _IDLE:  # rounding
            return state, s
        state = method.step(state, accuracy)


def _gap(theta: Array, n: int) -> float:
    """From value n to the next; from the known one, zero, where n is 0."""
    return float((theta[n - 1] if n else 0.0) - theta[n]) if theta.size > n else np.inf


def _next(theta: Array, r: Array, n: int, s: int, bound: float) -> float:
    """No eigenvalue but n is above this."""
    return max(bound, float(theta[n] + r[n:s].max())) if s > n else bound


def _angle(state: RowsState, n: int, s: int, bound: float, rounding: float) -> float:
    """``‖R‖/(θ_n − μ)`` (Davis & Kahan), μ the largest that another eigenvalue can be, both with their rounding."""
    if n == 0:
        return 0.0  # what is known needs no proof
    length = float(np.sqrt(np.square(state.r[:n]).sum())) + rounding
    apart = float(state.theta[n - 1]) - _next(state.theta, state.r, n, s, bound) - rounding
    known = bound < float(state.theta[s - 1] - state.r[:s].max())
    return length / apart if known and apart > 0.0 else np.inf


def _check_gap(values: Array, n: int, method: RowsApart, equal: float) -> None:
    """GapError where value n is also the next one."""
    if values.size <= n or abs(values[n] - values[n - 1]) > equal:
        return
    same, first = np.flatnonzero(np.abs(values - values[n - 1]) <= equal), method.size - method.free
    low, high = int(same[0]) + first, int(same[-1]) + first + 1
    more = " or more" if same[-1] + 1 == values.size < method.free else ""
    fewer = f"k = {low} or " if low > 0 else ""
    raise GapError(
        f"eigenvalues {low + 1} to {high}{more} are all {values[n - 1]:.6g}: which {n + first} vectors belong to the "
        f"first {n + first} is not determined. Ask for {fewer}k = {high}{more}"
    )


def _oriented(network: Network, numbers: npt.NDArray[np.int64], X: Array) -> Array:
    """Signs such that the largest entry of a column is positive; of equal ones, that of the first node."""
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
