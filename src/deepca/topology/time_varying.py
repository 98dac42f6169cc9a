"""Networks that change from round to round: other links, other weights, the same agents.

A :class:`Changing` network has weights for every round, the same at all agents, who find them from the number of the
round and a common seed. Columns of each sum to one, so the sum over all agents stays in every round; that, and nothing
about the links, is what tracking needs. What a mixer remembers of earlier rounds was another network's, so only those
without memory are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
from scipy import sparse

from deepca._util.floats import EPS
from deepca._util.typing import Array, Csr, csr
from deepca._util.validation import Whole, check
from deepca.errors import DisconnectedError, InvalidInput, MassError, TopologyError
from deepca.topology.graph import Topology, check_agents, freeze, links_of

__all__ = ["Changing", "failing", "lossy", "matchings", "one_peer", "periodic"]

_LOOKED_AT = 64  # rounds in a window from which the rate is estimated, and short windows at most
_STARTS = (0, 7, 23)  # first rounds of the long windows
_WORK = 1 << 23  # numbers in the products of all short windows together, about
_LONGEST = 20_000  # rounds in which everyone should have heard of everyone
_KEPT = 4096  # rounds whose weights are remembered
_SUM = 1e-12
_NOTHING = 1e-18  # left of a disagreement: less than rounding
_ROUNDING = 16.0 * EPS  # of products of weights
_PRODUCTS = 1 << 22  # numbers in all products kept, about


@dataclass(frozen=True, eq=False, repr=False)
class Changing(Topology):
    """All agents with all links that there ever are; ``at(r)`` has the weights of round r.

    ``gossip_sparse`` is the mean of the weights of some rounds, and ``lambda2`` by what a round shrinks disagreement on
    average, seen in the first rounds. Build one with the functions of this module.
    """

    draw: Callable[[int], Csr]
    """The weights of a round; ``at`` remembers them."""
    one_way: bool = False
    keeps: bool = True
    """Whether every round keeps the sum over all agents: not so where messages get lost."""
    links: Csr | None = None
    """Ones for all links that there ever are; None where the first rounds have them all."""

    def __post_init__(self) -> None:
        freeze(self.gossip_sparse)

    def __repr__(self) -> str:
        return f"Changing({self.name}, {self.n_agents} agents, {self.n_edges} links, a round leaves {self.lambda2:.4g})"

    @property
    def directed(self) -> bool:
        """Whether some round has weights whose rows do not sum to one."""
        return self.one_way

    @property
    def changing(self) -> bool:
        return True

    @cached_property
    def adjacency(self) -> Csr:
        """Ones where two agents are connected in some round, as a CSR array."""
        found = links_of(self.gossip_sparse) if self.links is None else self.links
        freeze(found)
        return found

    @cached_property
    def _weights(self) -> Callable[[int], Csr]:
        return lru_cache(_KEPT)(self._checked)

    @cached_property
    def _begun(self) -> dict[int, tuple[tuple[int, Array], ...]]:
        """By the round they start with, products of some rounds: how many, and the product; last used first."""
        return {}

    def at(self, r: int) -> Csr:
        """The weights of round r, checked, and the same object while it is remembered."""
        return self._weights(r)

    def _checked(self, r: int) -> Csr:
        weights = self.draw(r)
        if weights.shape != self.gossip_sparse.shape:
            m = self.n_agents
            raise TopologyError(f"the weights of round {r} have shape {weights.shape}; expected ({m}, {m})")
        sums = np.bincount(weights.indices, weights=weights.data, minlength=self.n_agents)
        worst = int(np.abs(sums - 1.0).argmax())
        if self.keeps and abs(sums[worst] - 1.0) > _SUM:
            raise MassError(
                f"agent {worst} loses mass in round {r}: column {worst} of its weights sums to {sums[worst]:.12g}; "
                "every column must sum to 1"
            )
        freeze(weights)
        return weights

    def messages_at(self, r: int) -> int:
        """Messages of round r."""
        weights = self.at(r)
        return int(np.count_nonzero(weights.data) - np.count_nonzero(weights.diagonal()))

    def flood_from(self, r: int) -> int:
        """Rounds after which what anyone knows at round r has reached everyone."""
        m = self.n_agents
        known = np.eye(m, dtype=bool)
        for made in range(_LONGEST):
            if known.all():
                return made
            known |= np.asarray(abs(self.at(r + made)) @ known.astype(np.float64)) > 0.0
        raise DisconnectedError(
            f"{self.name}: {_LONGEST} rounds from round {r} on, not everyone has heard of everyone; the links that are "
            "up at one time or another do not connect the agents"
        )

    @property
    def flood_rounds(self) -> int:
        return self.flood_from(0)

    def contraction(self, K: int) -> float:
        """The largest share of a disagreement that K rounds leave, over some windows; ratios count where one-way.

        Short windows are many: a few might all contain a round in which every link happens to be up.
        """
        if K >= _LOOKED_AT and self.lambda2**K < _NOTHING:
            return 0.0
        windows = min(_LOOKED_AT, _WORK // (K * self.n_agents**2))
        starts = range(windows) if K < _LOOKED_AT and windows > len(_STARTS) else _STARTS
        left = max(_left(self, start, K) for start in starts)
        return left if left > _ROUNDING else 0.0

    @cached_property
    def modes(self) -> Array:
        """In place of eigenvalues: by what a round shrinks disagreement, on average."""
        return np.full(max(self.n_agents - 1, 0), self.lambda2)

    @property
    def eigenvalues(self) -> Array:
        raise TopologyError(f"{self.name} changes from round to round, and has no eigenvalues of its own")


# ---------------------------------------------------------------------------------------------------- schedules


def periodic(graphs: Sequence[Topology], *, name: str = "") -> Changing:
    """One graph after the other, and again from the first; together they have to connect all agents."""
    if not isinstance(graphs, Sequence) or not all(isinstance(graph, Topology) for graph in graphs):
        raise InvalidInput("give graphs in a list, such as [deepca.topology.ring(5), deepca.topology.star(5)]")
    if not graphs or any(graph.n_agents != graphs[0].n_agents for graph in graphs):
        raise InvalidInput("give one graph or several, all of the same agents")
    if any(graph.changing for graph in graphs):
        raise InvalidInput("a graph that changes cannot be part of another schedule")
    weights = [graph.gossip_sparse for graph in graphs]
    called = name or "periodic(" + ", ".join(graph.name for graph in graphs) + ")"
    return _made(
        called, weights[0].shape[0], lambda r: weights[r % len(weights)], one_way=any(g.directed for g in graphs)
    )


def matchings(base: Topology, *, seed: int = 0) -> Changing:
    """In every round agents pair up at random along links of ``base``, and each pair takes its mean.

    Nobody talks to more than one other agent at a time.
    """
    _check_base(base)
    _check_seed(seed)
    m, ends = base.n_agents, base.edges

    def draw(r: int) -> Csr:
        order = np.random.default_rng((61, seed, r)).permutation(len(ends))
        partner = list(range(m))
        for i, j in ends[order].tolist():
            if partner[i] == i and partner[j] == j:
                partner[i], partner[j] = j, i
        return _means(np.array(partner))

    return _made(f"matchings({base.name})", m, draw, links=base.adjacency)


def one_peer(m: int) -> Changing:
    """Exponential graphs, one peer at a time: in round r agent j sends a half to ``j + 2^(r mod ⌈log₂ m⌉)`` (mod m).

    Everyone sends and receives one message per round. Of a power of two, log₂ m rounds give the exact mean.
    """
    check_agents(m)
    hops = [1 << bit for bit in range(int(m - 1).bit_length())] or [0]
    agents = np.arange(m)

    def of(hop: int) -> Csr:
        to = (agents + hop) % m
        shares = np.full(2 * m, 0.5)
        return csr(sparse.coo_array((shares, (np.r_[agents, to], np.r_[agents, agents])), shape=(m, m)))

    rounds = [of(hop) for hop in hops]
    return _made(f"one-peer({m})", m, lambda r: rounds[r % len(rounds)])


def failing(base: Topology, p: float, *, seed: int = 0) -> Changing:
    """In every round each link of ``base`` is down with probability p, for both ends, who keep what they would send."""
    _check_base(base)
    _check_probability(p)
    _check_seed(seed)
    # the same entries in every round, some of them zero: those between i and j, and the diagonal
    m, pattern = base.n_agents, csr(base.adjacency + sparse.eye_array(base.n_agents, format="csr"))
    rows, columns = np.repeat(np.arange(m), np.diff(pattern.indptr)), pattern.indices
    between = rows != columns
    low, high = np.minimum(rows, columns)[between], np.maximum(rows, columns)[between]
    pairs, link = np.unique(low * m + high, return_inverse=True)
    weight = np.asarray(base.gossip_sparse[low, high]).ravel()

    def draw(r: int) -> Csr:
        up = np.random.default_rng((62, seed, r)).random(pairs.size) >= p
        values = np.ones(rows.size)
        values[between] = np.where(up[link], weight, 0.0)
        values[~between] -= np.bincount(rows[between], weights=values[between], minlength=m)
        return sparse.csr_array((values, pattern.indices, pattern.indptr), shape=(m, m))

    return _made(f"failing({base.name}, {p:g})", m, draw, links=base.adjacency)


def lossy(base: Topology, p: float, *, seed: int = 0, until: int | None = None) -> Changing:
    """Messages get lost one by one, with probability p each, in rounds before ``until``; their senders do not know.

    Whoever misses a message uses its own numbers in their place. So the sum does *not* stay, and what is tracked goes
    wrong without anybody noticing: agents agree on something else. A certificate finds out, and tracking begins again.
    """
    _check_base(base)
    _check_probability(p)
    _check_seed(seed)
    arcs = sparse.coo_array(links_of(base.gossip_sparse))
    m, weights = base.n_agents, base.gossip_matrix

    def draw(r: int) -> Csr:
        if until is not None and r >= until:
            return base.gossip_sparse
        lost = np.random.default_rng((63, seed, r)).random(arcs.row.size) < p
        heard = weights.copy()
        np.add.at(heard, (arcs.row[lost], arcs.row[lost]), weights[arcs.row[lost], arcs.col[lost]])
        heard[arcs.row[lost], arcs.col[lost]] = 0.0
        return csr(heard)

    return _made(f"lossy({base.name}, {p:g})", m, draw, keeps=False, links=base.adjacency)


# ------------------------------------------------------------------------------------------------------ building


def _made(
    name: str,
    m: int,
    draw: Callable[[int], Csr],
    *,
    one_way: bool = False,
    keeps: bool = True,
    links: Csr | None = None,
) -> Changing:
    if m == 1:
        return Changing(name, "changing", csr(np.ones((1, 1))), 0.0, 0.0, lambda r: csr(np.ones((1, 1))))
    mean = csr(sum((draw(r) for r in range(_LOOKED_AT)), start=sparse.csr_array((m, m))) / _LOOKED_AT)
    found = Changing(name, "changing", mean, 0.5, -0.5, draw, one_way, keeps, links)
    found.flood_from(0)
    left = max(_left(found, start, _LOOKED_AT) for start in _STARTS)
    rate = min(max(left, 1e-300) ** (1.0 / _LOOKED_AT), 1.0 - 1e-9)
    return Changing(name, "changing", mean, rate, -rate, draw, one_way, keeps, links)


def _left(network: Changing, start: int, K: int) -> float:
    """``‖P − y1ᵀ/m‖ / min y`` of the product P of rounds start … start + K − 1, ``y = P1``."""
    m = network.n_agents
    # whoever looks for a K asks for many: on from the longest product known. Entries are replaced, never changed, since
    # agents in threads share this
    kept = network._begun.get(start, ())
    known = max((one for one in kept if one[0] <= K), key=lambda one: one[0], default=(0, np.eye(m)))
    made, product = known
    for r in range(start + made, start + K):
        product = np.asarray(network.at(r) @ product)
    if made < K:
        others = tuple(one for one in kept if one is not known)
        network._begun[start] = ((K, product), known, *others)[: min(max(_PRODUCTS // (m * m), 2), 16)]
    if not network.keeps:  # agents may agree all the same, on something else
        return float(np.linalg.norm(product - product.mean(axis=0), 2))
    y = product.sum(axis=1)
    return float(np.linalg.norm(product - y[:, None] / m, 2) / y.min()) if y.min() > 0.0 else 1.0


def _means(partner: npt.NDArray[np.int64]) -> Csr:
    """Everyone takes the mean with its partner; those alone are their own."""
    m = partner.size
    agents = np.arange(m)
    paired = partner != agents
    both = np.stack([np.minimum(agents, partner), np.maximum(agents, partner)], axis=1)
    begins = np.concatenate([[0], np.cumsum(1 + paired)])
    kept = np.stack([np.ones(m, dtype=bool), paired], axis=1)
    return sparse.csr_array((np.repeat(1.0 / (1 + paired), 1 + paired), both[kept], begins), shape=(m, m))


def _check_base(base: Topology) -> None:
    if not isinstance(base, Topology):
        raise InvalidInput(f"{base!r} is no graph; give one such as deepca.topology.ring(5)")
    if base.directed or base.changing:
        raise InvalidInput(f"{base.name}: give a graph whose links go both ways and stay")


def _check_probability(p: float) -> None:
    if not isinstance(p, (int, float, np.number)) or not 0.0 <= p < 1.0:
        raise InvalidInput(f"p = {p!r}: the probability of a failure must lie in [0, 1)")


def _check_seed(seed: int) -> None:
    check("seed", seed, Whole(0), meaning="the same at all agents")
