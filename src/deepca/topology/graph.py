"""Who talks to whom, and with which weights: the gossip matrix 𝐋.

A :class:`Topology` is frozen and checked when it is built: 𝐋 is symmetric, its rows sum to one, the graph is
connected, and every eigenvalue other than the one of the constant vector is smaller than one in modulus.

Weight rules (M is the graph Laplacian, d_i the degree of agent i):

=================  ==============================================  =========
rule               𝐋                                               𝐋 ⪰ 0
=================  ==============================================  =========
``paper``          ``I − M / λ_max(M)``                            always
``metropolis``     ``𝐋_ij = 1 / (1 + max(d_i, d_j))``              sometimes
``lazy-metropolis`` ``(I + metropolis) / 2``                       always
``max-degree``     ``I − M / (d_max + 1)``                         sometimes
``best-constant``  ``I − 2M / (λ_2(M) + λ_max(M))``                rarely
=================  ==============================================  =========
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import networkx as nx
import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse import csgraph

from deepca._util.portable import eigenvalues as portable_eigenvalues
from deepca._util.portable import power
from deepca._util.typing import Array, Csr, csr
from deepca._util.validation import Whole
from deepca.errors import AsymmetricError, DisconnectedError, InvalidInput, TopologyError
from deepca.topology.spectra import PORTABLE, extreme_eigenvalues, laplacian_extremes

if TYPE_CHECKING:
    Graph = nx.Graph[Any]
    Seed = int | np.random.Generator | None

__all__ = ["Rule", "Topology", "from_edges", "from_gossip_matrix"]

Rule = Literal["paper", "metropolis", "lazy-metropolis", "max-degree", "best-constant"]
SMALL = 1500  # up to here all eigenvalues come from one dense solve, and all distances from one search per agent
_ALL_EIGENVALUES = 500  # agents up to which all of them are looked at, where a grid would do
_SYMMETRY = 1e-12


@dataclass(frozen=True, eq=False, repr=False)
class Topology:
    """A connected undirected graph of agents with its gossip matrix 𝐋.

    Build one with the functions of this module. ``gossip_sparse`` is 𝐋 as a CSR array; ``gossip_matrix`` and
    ``laplacian`` are dense copies, made on request, for looking and for small networks.
    """

    name: str
    rule: str
    gossip_sparse: Csr = field(repr=False)
    lambda2: float
    """λ₂(𝐋), the second largest eigenvalue (0 for a single agent)."""
    lambda_min: float
    """The smallest eigenvalue of 𝐋."""

    def __post_init__(self) -> None:
        _check_gossip(self.gossip_sparse)
        freeze(self.gossip_sparse)
        if self.n_agents > 1:
            _check_connected(self.adjacency)
            largest = max(abs(self.lambda2), abs(self.lambda_min))
            if not largest < 1.0:
                raise TopologyError(
                    f"the gossip matrix of {self.name} has eigenvalues λ₂ = {self.lambda2:.6g} and "
                    f"λ_min = {self.lambda_min:.6g}; all but the first must be smaller than 1 in modulus, "
                    "or averaging never ends. Use rule='paper' or rule='max-degree'"
                )

    def __repr__(self) -> str:
        return (
            f"Topology({self.name}, rule={self.rule!r}, {self.n_agents} agents, {self.n_edges} edges, "
            f"1 − λ₂ = {1 - self.lambda2:.4g})"
        )

    @property
    def directed(self) -> bool:
        """Whether messages go one way only: see :mod:`deepca.topology.directed`."""
        return False

    @property
    def changing(self) -> bool:
        """Whether links change from round to round: see :mod:`deepca.topology.time_varying`."""
        return False

    @property
    def stays(self) -> bool:
        """Whether there is one symmetric 𝐋 for all rounds."""
        return not (self.directed or self.changing)

    @property
    def whole(self) -> bool:
        """Whether all of the graph is known here, so that agents may use the same tree of it."""
        return True

    @property
    def n_agents(self) -> int:
        return int(self.gossip_sparse.shape[0])

    @property
    def n_edges(self) -> int:
        """Pairs of agents with a link between them, in one direction at least."""
        return len(self.edges)

    @property
    def n_messages(self) -> int:
        """Messages of one round."""
        return 2 * self.n_edges

    @property
    def gossip_matrix(self) -> Array:
        """𝐋 as a dense ``(m, m)`` array."""
        return np.asarray(self.gossip_sparse.toarray())

    @cached_property
    def adjacency(self) -> Csr:
        """Ones where two agents are connected, as a CSR array."""
        links = links_of(self.gossip_sparse)
        freeze(links)
        return links

    @cached_property
    def edges(self) -> npt.NDArray[np.int64]:
        """Pairs of agents with a link between them, ``(n, 2)``, the smaller number first."""
        links = sparse.coo_array(sparse.triu(csr(self.adjacency + self.adjacency.T), k=1))
        found = np.stack([links.row, links.col], axis=1).astype(np.int64)
        found.flags.writeable = False
        return found

    @cached_property
    def degrees(self) -> npt.NDArray[np.int64]:
        """Number of neighbours of every agent."""
        return np.asarray(np.diff(self.adjacency.indptr), dtype=np.int64)

    @property
    def laplacian(self) -> Array:
        """M, the graph Laplacian, as a dense ``(m, m)`` array; of out-degrees where messages go one way."""
        return np.diag(self.degrees.astype(np.float64)) - self.adjacency.toarray()

    @property
    def positive_semidefinite(self) -> bool:
        """Whether ``𝐋 ⪰ 0``, which FastMix needs."""
        return self.stays and self.lambda_min >= -1e-12

    @cached_property
    def flood_rounds(self) -> int:
        """Rounds after which a flooded value has reached everyone: the diameter, or an upper bound for large m."""
        if self.n_agents == 1:
            return 0
        if self.n_agents <= SMALL:
            return int(csgraph.shortest_path(self.adjacency, unweighted=True).max())
        # by way of any one agent is an upper bound, and a good one in the middle
        return int(self.paths_to(self.middle)[0].max() + self.paths_from(self.middle)[0].max())

    def at(self, r: int) -> Csr:
        """The weights of round r."""
        return self.gossip_sparse

    def messages_at(self, r: int) -> int:
        """Messages of round r."""
        return self.n_messages

    def flood_from(self, r: int) -> int:
        """Rounds after which what anyone knows at round r has reached everyone."""
        return self.flood_rounds

    def contraction(self, K: int) -> float:
        """What K rounds of plain averaging leave of a disagreement, at most."""
        return power(max(abs(self.lambda2), abs(self.lambda_min)), K) if self.n_agents > 1 else 0.0

    @cached_property
    def modes(self) -> npt.NDArray[Any]:
        """The eigenvalues of 𝐋 but the first; on large graphs a fine grid that contains the extremes."""
        if self.n_agents == 1:
            return np.zeros(0)
        if self.n_agents <= _ALL_EIGENVALUES:
            return np.sort(self.eigenvalues)[:-1]
        return np.linspace(self.lambda_min, self.lambda2, _ALL_EIGENVALUES)

    @property
    def spectrum(self) -> Array:
        """λ₂, λ_min and the modes: what numbers of rounds are chosen by."""
        return np.concatenate([[self.lambda2, self.lambda_min], self.modes])

    def with_spectrum(self, spectrum: Array) -> Topology:
        """Return the same graph with the spectrum that another processor has found."""
        other = replace(self, lambda2=float(spectrum[0]), lambda_min=float(spectrum[1]))
        other.__dict__["modes"] = spectrum[2:]
        return other

    @cached_property
    def middle(self) -> int:
        """An agent from which nobody is farther away than need be; for large m the middle of a long path."""
        if self.n_agents <= SMALL:
            return int(csgraph.shortest_path(self.adjacency, unweighted=True).max(axis=1).argmin())
        hops, parent = self.paths_from(int(self.paths_from(0)[0].argmax()))
        middle = int(np.argmax(hops))
        for _ in range(int(hops.max()) // 2):
            middle = int(parent[middle])
        return middle

    def paths_from(self, source: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """How many hops every agent is away from ``source``, and its predecessor on a shortest path from there."""
        return shortest_paths(self.adjacency, source)

    def paths_to(self, target: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """How many hops ``target`` is away from every agent, and the next one on a shortest path there."""
        return self.paths_from(target)

    @cached_property
    def eigenvalues(self) -> Array:
        """All eigenvalues of 𝐋, descending (dense: meant for up to a few thousand agents)."""
        if self.n_agents <= PORTABLE:
            return portable_eigenvalues(self.gossip_matrix)[::-1]
        return np.asarray(np.linalg.eigvalsh(self.gossip_matrix)[::-1], dtype=np.float64)

    def neighbors(self, j: int) -> tuple[int, ...]:
        """The agents that agent j exchanges messages with."""
        return self._row(self.adjacency, j)

    def _row(self, links: Csr, j: int) -> tuple[int, ...]:
        if not 0 <= j < self.n_agents:
            raise TopologyError(f"there is no agent {j}: agents are numbered 0 … {self.n_agents - 1}")
        return tuple(int(i) for i in links.indices[int(links.indptr[j]) : int(links.indptr[j + 1])])

    def to_networkx(self) -> Graph:
        """The graph as networkx sees it; edges carry their gossip weight as ``weight``."""
        graph: Graph = nx.Graph(name=self.name)
        graph.add_nodes_from(range(self.n_agents))
        links = sparse.coo_array(sparse.triu(self.gossip_sparse, k=1))
        graph.add_weighted_edges_from(zip(links.row.tolist(), links.col.tolist(), links.data.tolist(), strict=True))
        return graph


# ---------------------------------------------------------------------------------------------------- generators


def from_edges(m: int, edges: Iterable[tuple[int, int]], *, rule: Rule = "paper", name: str = "edges") -> Topology:
    """Agents 0 … m − 1 with the given undirected edges; an edge named twice counts once."""
    check_agents(m)
    ends = pairs_of(edges, m, "edge")
    both = np.concatenate([ends, ends[:, ::-1]])
    return _weighted(links_at(both[:, 0], both[:, 1], m), name, rule)


def from_gossip_matrix(matrix: npt.ArrayLike | Csr, *, name: str = "custom") -> Topology:
    """A topology from 𝐋 itself (dense or scipy.sparse), for weights that no rule here gives."""
    gossip = csr(matrix if sparse.issparse(matrix) else np.atleast_2d(np.asarray(matrix, dtype=np.float64))).copy()
    gossip.eliminate_zeros()
    _check_gossip(gossip)
    _check_connected(links_of(gossip))
    lambda2, lambda_min = extreme_eigenvalues(gossip, SMALL)
    return Topology(name, "custom", gossip, lambda2, lambda_min)


# ------------------------------------------------------------------------------------------------------ building


def _weighted(adjacency: Csr, name: str, rule: Rule) -> Topology:
    """𝐋 from an adjacency matrix by one of the rules, with λ₂(𝐋) and λ_min(𝐋)."""
    if rule not in get_args(Rule):
        raise InvalidInput(f"rule = {rule!r}: choose one of {', '.join(get_args(Rule))}")
    m = int(adjacency.shape[0])
    if m == 1:
        return Topology(name, rule, csr(np.ones((1, 1))), 0.0, 1.0)
    _check_connected(adjacency)
    degrees = np.asarray(np.diff(adjacency.indptr), dtype=np.float64)
    M = csr(sparse.diags_array(degrees) - adjacency)
    eye = sparse.eye_array(m, format="csr")
    if rule in ("metropolis", "lazy-metropolis"):
        links = sparse.coo_array(adjacency)
        weights = 1.0 / (1.0 + np.maximum(degrees[links.row], degrees[links.col]))
        off = csr(sparse.coo_array((weights, (links.row, links.col)), shape=(m, m)))
        gossip = csr(off + sparse.diags_array(1.0 - np.asarray(off.sum(axis=1)).ravel()))
        if rule == "lazy-metropolis":
            gossip = csr((gossip + eye) * 0.5)
        return Topology(name, rule, gossip, *extreme_eigenvalues(gossip, SMALL))
    mu2, mu_max = laplacian_extremes(M, SMALL)
    step = {"paper": 1.0 / mu_max, "max-degree": 1.0 / (degrees.max() + 1.0), "best-constant": 2.0 / (mu2 + mu_max)}
    alpha = step[rule]
    gossip = csr(eye - alpha * M)
    # λ_min is 0 by construction for the paper's rule; 1 − α·μ_max may be −1e-17 there
    lambda_min = 0.0 if rule == "paper" else 1.0 - alpha * mu_max
    lambda2 = 1.0 - alpha * mu2
    return Topology(name, rule, gossip, 0.0 if abs(lambda2) < 1e-14 else lambda2, lambda_min)


def pairs_of(edges: Iterable[tuple[int, int]], m: int, what: str) -> npt.NDArray[np.int64]:
    """Edges, or arcs, among m agents, as an ``(n, 2)`` array; an error that names the first that is none."""
    pairs = list(edges)
    try:
        given = np.array(pairs).reshape(-1, 2)
    except ValueError:
        raise TopologyError(f"{what}s must be pairs of agents, such as [(0, 1), (1, 2)]") from None
    ends = given.astype(np.int64) if given.dtype.kind in "iufb" else np.full((1, 2), -1)
    if given.size and (given.dtype.kind not in "iufb" or (ends != given).any()):
        raise TopologyError(f"{what}s must name agents by whole numbers, such as [(0, 1), (1, 2)]")
    for i, j in ends[(ends < 0).any(axis=1) | (ends >= m).any(axis=1)]:
        raise TopologyError(f"{what} ({i}, {j}) names an agent outside 0 … {m - 1}")
    for i, j in ends[ends[:, 0] == ends[:, 1]]:
        raise TopologyError(f"{what} ({i}, {j}) joins an agent to itself; leave it out")
    return ends


def links_at(rows: npt.NDArray[np.int64], columns: npt.NDArray[np.int64], m: int) -> Csr:
    """Ones at those places of an m × m matrix, however often each is named."""
    links = csr(sparse.coo_array((np.ones(len(rows)), (rows, columns)), shape=(m, m)))
    links.sum_duplicates()
    links.data = np.ones_like(links.data)
    return links


def shortest_paths(links: Csr, root: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """How many hops along ``links`` every agent is away from the root, and its predecessor on the way from there."""
    hops, parent = csgraph.shortest_path(links, unweighted=True, indices=root, return_predecessors=True, method="D")
    return np.asarray(hops, dtype=np.int64), np.asarray(parent, dtype=np.int64)


def links_of(weights: Csr) -> Csr:
    """Ones where a weight between two agents is not zero."""
    links = weights.copy()
    links.setdiag(0.0)
    links.eliminate_zeros()
    links.data = np.ones_like(links.data)
    return links


def freeze(matrix: Csr) -> None:
    for part in (matrix.data, matrix.indices, matrix.indptr):
        part.flags.writeable = False


def check_agents(m: int) -> None:
    if not Whole(1).accepts(m):
        raise TopologyError(f"{m} agents: a network needs a whole number of them, at least one")


def check_square(gossip: Csr) -> None:
    if gossip.ndim != 2 or gossip.shape[0] != gossip.shape[1] or gossip.shape[0] < 1:
        raise TopologyError(f"the gossip matrix has shape {gossip.shape}; it must be square, m × m")
    if not np.isfinite(gossip.data).all():
        raise TopologyError("the gossip matrix contains NaN or Inf")


def _check_gossip(gossip: Csr) -> None:
    check_square(gossip)
    difference = sparse.coo_array(gossip - gossip.T)
    if difference.nnz and (worst := int(np.abs(difference.data).argmax())) >= 0:
        i, j = int(difference.row[worst]), int(difference.col[worst])
        if abs(difference.data[worst]) > _SYMMETRY:
            raise AsymmetricError(
                f"the gossip matrix is not symmetric at edge ({i}, {j}): "
                f"𝐋[{i},{j}] = {gossip[i, j]:.6g} but 𝐋[{j},{i}] = {gossip[j, i]:.6g}"
            )
    sums: Array = np.asarray(gossip.sum(axis=1), dtype=np.float64).ravel()
    worst = int(np.abs(sums - 1.0).argmax())
    if abs(sums[worst] - 1.0) > 1e-10:
        raise TopologyError(f"row {worst} of the gossip matrix sums to {sums[worst]:.12g}; every row must sum to 1")


def _check_connected(adjacency: Csr) -> None:
    count, label = csgraph.connected_components(adjacency, directed=False)
    if count == 1:
        return
    sizes = np.bincount(label)
    shown = []
    for component in range(min(count, 4)):
        members = np.flatnonzero(label == component)
        names = ", ".join(map(str, members[:8])) + (f", … ({sizes[component]} agents)" if sizes[component] > 8 else "")
        shown.append("{" + names + "}")
    more = f" and {count - 4} more" if count > 4 else ""
    raise DisconnectedError(
        f"the graph falls into {count} components: {', '.join(shown)}{more}; add edges between them"
    )
