"""Networks whose messages go one way: strongly connected directed graphs with column-stochastic weights.

Agent i sends to its out-neighbours, and knows no more of the graph than these: it keeps one part of what it holds and
sends each of them one, ``C_ji = 1 / (1 + out-degree of i)``. Columns of C sum to one, so the sum over all agents stays;
rows do not, so what agents come to hold is not the mean but ``π_j m`` times the mean, ``C π = π``. Who listens to more
holds more. The push-sum weight y, mixed alike from ones, tends to ``π_j m`` as well, and the ratio to the mean.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse import csgraph
from scipy.sparse.linalg import ArpackNoConvergence, eigs

from deepca._util.typing import Array, Csr, csr
from deepca.errors import DisconnectedError, MassError, TopologyError
from deepca.topology.graph import (
    SMALL,
    Topology,
    check_agents,
    check_square,
    freeze,
    links_at,
    links_of,
    pairs_of,
    shortest_paths,
)

if TYPE_CHECKING:
    from deepca.topology.graph import Seed

__all__ = ["Digraph", "exponential", "from_arcs", "from_weights", "random_digraph", "ring"]

_SUM = 1e-12  # by how much a column may miss one


@dataclass(frozen=True, eq=False, repr=False)
class Digraph(Topology):
    """A strongly connected directed graph of agents with its column-stochastic weights C, ``gossip_sparse``.

    Build one with the functions of this module. ``C[j, i]`` is what agent j takes of what agent i sends; ``adjacency``
    has a one there. ``lambda2`` is the second largest modulus of an eigenvalue of C.
    """

    def __post_init__(self) -> None:
        _check_columns(self.gossip_sparse)
        freeze(self.gossip_sparse)
        _check_strongly_connected(self.adjacency)
        if self.n_agents > 1 and not self.lambda2 < 1.0 - 1e-12:
            raise TopologyError(
                f"the weights of {self.name} have a second eigenvalue of modulus {self.lambda2:.6g}: what agents hold "
                "goes round for ever. Let every agent keep a part of it (a positive diagonal)"
            )

    def __repr__(self) -> str:
        arcs = f"{self.n_agents} agents, {self.n_messages} arcs"
        return f"Digraph({self.name}, {arcs}, 1 − |λ₂| = {1 - self.lambda2:.4g})"

    @property
    def directed(self) -> bool:
        return True

    @property
    def n_messages(self) -> int:
        return int(self.adjacency.nnz)

    @cached_property
    def degrees(self) -> npt.NDArray[np.int64]:
        """To how many agents every agent sends."""
        return np.bincount(self.adjacency.indices, minlength=self.n_agents).astype(np.int64)

    @cached_property
    def middle(self) -> int:
        """An agent from which the way to all others and back is not longer than need be; of a sample for large m."""
        m = self.n_agents
        tried = np.arange(m) if m <= SMALL else np.random.default_rng(0).choice(m, 16, replace=False)
        there = csgraph.shortest_path(self.adjacency, unweighted=True, indices=tried).max(axis=1)
        back = csgraph.shortest_path(csr(self.adjacency.T), unweighted=True, indices=tried).max(axis=1)
        return int(tried[int((there + back).argmin())])

    def paths_from(self, source: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        return shortest_paths(self._outward, source)

    def paths_to(self, target: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        return shortest_paths(self.adjacency, target)

    @cached_property
    def modes(self) -> npt.NDArray[np.complex128]:
        """The eigenvalues of C but the first, largest modulus first (dense: for up to a few thousand agents)."""
        values = np.linalg.eigvals(self.gossip_matrix).astype(np.complex128)
        others = np.delete(values, int(np.abs(values - 1.0).argmin()))
        return others[np.argsort(-np.abs(others))]

    @property
    def eigenvalues(self) -> Array:
        """Real only where C is symmetric: see :attr:`modes`."""
        raise TopologyError(f"{self.name} is directed: its eigenvalues are complex, and found in `modes`")

    @cached_property
    def limit(self) -> Array:
        """π, what agents come to hold of a sum of one: ``C π = π``, positive."""
        m = self.n_agents
        system = np.concatenate([self.gossip_matrix - np.eye(m), np.ones((1, m))])
        return np.asarray(np.linalg.lstsq(system, np.eye(m + 1)[-1])[0])

    def contraction(self, K: int) -> float:
        """``‖C^K − π1ᵀ‖ / min_j y_j``: by what K rounds shrink the distance of ratios x/y to the mean, at worst.

        For ``x − x̄y = (C^K − π1ᵀ)(x⁰ − x̄1)``, whose entries are divided by those of ``y = C^K 1``. Beyond some
        thousand agents an estimate from λ₂.
        """
        m = self.n_agents
        if m == 1:
            return 0.0
        if m > SMALL:
            return float(min(np.sqrt(m) * self.lambda2**K * m, 1e300))
        if _far(self) <= K:
            return 0.0
        power = np.linalg.matrix_power(self.gossip_matrix, K)
        y = power.sum(axis=1)
        return float(np.linalg.norm(power - y[:, None] / m, 2) / y.min())

    def senders(self, j: int) -> tuple[int, ...]:
        """Those that agent j hears."""
        return self._row(self.adjacency, j)

    def receivers(self, j: int) -> tuple[int, ...]:
        """Those that hear agent j."""
        return self._row(self._outward, j)

    def neighbors(self, j: int) -> tuple[int, ...]:
        """Those that agent j hears, or is heard by."""
        return tuple(sorted({*self.senders(j), *self.receivers(j)}))

    def to_networkx(self) -> nx.DiGraph[Any]:
        """Arcs go from who sends to who receives, and carry the weight."""
        graph: nx.DiGraph[Any] = nx.DiGraph(name=self.name)
        graph.add_nodes_from(range(self.n_agents))
        arcs = sparse.coo_array(self.gossip_sparse)
        sent = [(int(i), int(j), float(part)) for j, i, part in zip(arcs.row, arcs.col, arcs.data, strict=True)]
        graph.add_weighted_edges_from((i, j, part) for i, j, part in sent if i != j)
        return graph

    @cached_property
    def _outward(self) -> Csr:
        return csr(self.adjacency.T)


# ---------------------------------------------------------------------------------------------------- generators


def from_arcs(m: int, arcs: Iterable[tuple[int, int]], *, name: str = "arcs") -> Digraph:
    """Agents 0 … m − 1, where ``(i, j)`` says that i sends to j; an arc named twice counts once."""
    check_agents(m)
    ends = pairs_of(arcs, m, "arc")
    links = links_at(ends[:, 1], ends[:, 0], m)
    _check_strongly_connected(links)
    kept = csr(links + sparse.eye_array(m, format="csr"))
    shares = 1.0 / np.bincount(kept.indices, minlength=m)
    return _weighted(csr(kept @ sparse.diags_array(shares)), name, "out-degree")


def from_weights(matrix: npt.ArrayLike | Csr, *, name: str = "custom") -> Digraph:
    """A network from C itself (dense or scipy.sparse): ``C[j, i]`` is the part of what i holds that goes to j."""
    weights = csr(matrix if sparse.issparse(matrix) else np.atleast_2d(np.asarray(matrix, dtype=np.float64))).copy()
    weights.eliminate_zeros()
    _check_columns(weights)
    _check_strongly_connected(links_of(weights))
    return _weighted(weights, name, "custom")


def ring(m: int) -> Digraph:
    """Agent j sends to j + 1 (mod m), and hears j − 1."""
    check_agents(m)
    return from_arcs(m, [(j, (j + 1) % m) for j in range(m)] if m > 1 else [], name=f"directed-ring({m})")


def exponential(m: int) -> Digraph:
    """Agent j sends to j + 1, j + 2, j + 4, … (mod m): few neighbours, and nobody far away."""
    check_agents(m)
    hops = [1 << bit for bit in range(int(m - 1).bit_length())]
    arcs = [(j, (j + hop) % m) for j in range(m) for hop in hops]
    return from_arcs(m, arcs, name=f"directed-exponential({m})")


def random_digraph(m: int, p: float, *, seed: Seed = None, attempts: int = 100) -> Digraph:
    """Every agent sends to every other with probability p, drawn again until strongly connected."""
    check_agents(m)
    if not 0.0 < p <= 1.0:
        raise TopologyError(f"p = {p}: the probability of an arc must lie in (0, 1]")
    rng = np.random.default_rng(seed)
    for _ in range(attempts):
        drawn = rng.random((m, m)) < p
        np.fill_diagonal(drawn, val=False)
        if csgraph.connected_components(drawn, directed=True, connection="strong")[0] == 1:
            return from_arcs(m, [(int(i), int(j)) for i, j in np.argwhere(drawn)], name=f"random-digraph({m}, {p:g})")
    raise DisconnectedError(
        f"{attempts} draws of a directed graph with m = {m}, p = {p:g} were not strongly connected; raise p "
        f"(p ≥ {min(1.0, 2 * np.log(max(m, 2)) / m):.2g} usually is)"
    )


# ------------------------------------------------------------------------------------------------------ building


def _weighted(weights: Csr, name: str, rule: str) -> Digraph:
    weights.sort_indices()
    m = int(weights.shape[0])
    if m == 1:
        return Digraph(name, rule, csr(np.ones((1, 1))), 0.0, 0.0)
    if m <= SMALL:
        values = np.sort(np.abs(np.linalg.eigvals(weights.toarray())))
        second = float(values[-2])
    else:
        second = float(np.sort(np.abs(_largest(weights, m)))[-2])
    second = 0.0 if second < 1e-14 else second
    return Digraph(name, rule, weights, second, -second)


def _largest(weights: Csr, m: int) -> npt.NDArray[np.complex128]:
    """Some eigenvalues, the two of largest modulus among them."""
    try:
        return np.asarray(eigs(weights, k=2, which="LM", v0=np.ones(m), maxiter=500, return_eigenvectors=False))
    except ArpackNoConvergence:  # on long thin graphs many have nearly the same modulus; the largest lie next to 1
        found = eigs(weights.tocsc(), k=3, sigma=1.0 + 1e-3 / m, v0=np.ones(m), return_eigenvectors=False)
        return np.asarray(found)


def _far(graph: Digraph) -> int:
    """Rounds after which nothing is left but rounding, and powers need not be formed."""
    if graph.lambda2 <= 0.0:
        return graph.n_agents + 1
    return int(np.ceil(np.log(1e-30) / np.log(graph.lambda2))) + graph.n_agents


def _check_columns(weights: Csr) -> None:
    check_square(weights)
    if weights.data.size and weights.data.min() < 0.0:
        i = int(sparse.coo_array(weights).col[int(sparse.coo_array(weights).data.argmin())])
        raise TopologyError(f"agent {i} sends a negative part of what it holds; weights must not be negative")
    sums = np.asarray(weights.sum(axis=0), dtype=np.float64).ravel()
    worst = int(np.abs(sums - 1.0).argmax())
    if abs(sums[worst] - 1.0) > _SUM:
        what = "loses mass" if sums[worst] < 1.0 else "makes mass out of nothing"
        raise MassError(
            f"agent {worst} {what}: the parts that it keeps and sends, column {worst} of the weights, sum to "
            f"{sums[worst]:.12g}; every column must sum to 1"
        )


def _check_strongly_connected(links: Csr) -> None:
    count, label = csgraph.connected_components(links, directed=True, connection="strong")
    if count == 1:
        return
    # links[j, i]: j hears i. A part that nobody outside hears, or that hears nobody outside
    entries = sparse.coo_array(links)
    leaves = {int(label[i]) for j, i in zip(entries.row, entries.col, strict=True) if label[i] != label[j]}
    unheard = next((c for c in range(count) if c not in leaves), 0)
    members = np.flatnonzero(label == unheard)
    named = ", ".join(map(str, members[:8])) + (f", … ({members.size} agents)" if members.size > 8 else "")
    raise DisconnectedError(
        f"the directed graph is not strongly connected: it has {count} parts, and nothing that agents {{{named}}} send "
        "reaches the others; add arcs, so that there is a way from every agent to every other"
    )
