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

from deepca._typing import Array, Csr, csr
from deepca.errors import DisconnectedError, InvalidInput, MassError, TopologyError
from deepca.topology import Topology, check_agents, freeze, links_of

__all__ = ["Changing", "failing", "lossy", "matchings", "one_peer", "periodic"]

_LOOKED_AT = 64  # rounds from which the rate is estimated
_LONGEST = 20_000  # rounds in which everyone should have heard of everyone
_KEPT = 4096  # rounds whose weights are remembered
_SUM = 1e-12
_NOTHING = 1e-18  # left of a disagreement: less than rounding


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

    @property
    def positive_semidefinite(self) -> bool:
        return False

    @cached_property
    def _weights(self) -> Callable[[int], Csr]:
        return lru_cache(_KEPT)(self._checked)

    def at(self, r: int) -> Csr:
        """The weights of round r, checked, and the same object while it is remembered."""
        return self._weights(r)

    def _checked(self, r: int) -> Csr:
        weights = self.draw(r)
        if weights.shape != self.gossip_sparse.shape:
            m = self.n_agents
            raise TopologyError(f"the weights of round {r} have shape {weights.shape}; expected ({m}, {m})")
        sums = np.asarray(weights.sum(axis=0), dtype=np.float64).ravel()
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
        return int(links_of(self.at(r)).nnz)

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
        """What K rounds leave of a disagreement, at most, seen from some rounds on; ratios count where one-way."""
        if self.lambda2**K < _NOTHING:
            return 0.0
        return max(_left(self, start, K) for start in (0, 7, 23))

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
    m, ends = base.n_agents, base.edges

    def draw(r: int) -> Csr:
        order = np.random.default_rng((61, seed, r)).permutation(len(ends))
        free = np.ones(m, dtype=bool)
        pairs = []
        for i, j in ends[order]:
            if free[i] and free[j]:
                free[i] = free[j] = False
                pairs.append((i, j))
        return _means(m, np.array(pairs).reshape(-1, 2))

    return _made(f"matchings({base.name})", m, draw)


def one_peer(m: int) -> Changing:
    """Exponential graphs, one peer at a time: in round r agent j sends a half to ``j + 2^(r mod ⌈log₂ m⌉)`` (mod m).

    Everyone sends and receives one message per round. Of a power of two, log₂ m rounds give the exact mean.
    """
    check_agents(m)
    hops = [1 << bit for bit in range(max(m - 1, 0).bit_length())] or [0]
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
    links = sparse.coo_array(sparse.triu(base.gossip_sparse, k=1))
    m, weight = base.n_agents, links.data

    def draw(r: int) -> Csr:
        up = np.random.default_rng((62, seed, r)).random(weight.size) >= p
        half = sparse.coo_array((weight[up], (links.row[up], links.col[up])), shape=(m, m))
        off = csr(half + half.T)
        return csr(off + sparse.diags_array(1.0 - np.asarray(off.sum(axis=0)).ravel()))

    return _made(f"failing({base.name}, {p:g})", m, draw)


def lossy(base: Topology, p: float, *, seed: int = 0, until: int | None = None) -> Changing:
    """Messages get lost one by one, with probability p each, in rounds before ``until``; their senders do not know.

    Whoever misses a message uses its own numbers in their place. So the sum does *not* stay, and what is tracked goes
    wrong without anybody noticing: agents agree on something else. A certificate finds out, and tracking begins again.
    """
    _check_base(base)
    _check_probability(p)
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

    return _made(f"lossy({base.name}, {p:g})", m, draw, keeps=False)


# ------------------------------------------------------------------------------------------------------ building


def _made(name: str, m: int, draw: Callable[[int], Csr], *, one_way: bool = False, keeps: bool = True) -> Changing:
    if m == 1:
        return Changing(name, "changing", csr(np.ones((1, 1))), 0.0, 0.0, lambda r: csr(np.ones((1, 1))))
    mean = csr(sum((draw(r) for r in range(_LOOKED_AT)), start=sparse.csr_array((m, m))) / _LOOKED_AT)
    found = Changing(name, "changing", mean, 0.5, -0.5, draw, one_way, keeps)
    found.flood_from(0)
    left = max(_left(found, start, _LOOKED_AT) for start in (0, 7, 23))
    rate = min(max(left, 1e-300) ** (1.0 / _LOOKED_AT), 1.0 - 1e-9)
    return Changing(name, "changing", mean, rate, -rate, draw, one_way, keeps)


def _left(network: Changing, start: int, K: int) -> float:
    """``‖P − y1ᵀ/m‖ / min y`` of the product P of rounds start … start + K − 1, ``y = P1``."""
    m = network.n_agents
    product = np.eye(m)
    for r in range(start, start + K):
        product = np.asarray(network.at(r) @ product)
    if not network.keeps:  # agents may agree all the same, on something else
        return float(np.linalg.norm(product - product.mean(axis=0), 2))
    y = product.sum(axis=1)
    return float(np.linalg.norm(product - y[:, None] / m, 2) / y.min()) if y.min() > 0.0 else 1.0


def _means(m: int, pairs: npt.NDArray[np.int64]) -> Csr:
    alone = np.ones(m)
    alone[pairs.ravel()] = 0.5
    rows = np.r_[np.arange(m), pairs[:, 0], pairs[:, 1]]
    columns = np.r_[np.arange(m), pairs[:, 1], pairs[:, 0]]
    values = np.r_[alone, np.full(2 * len(pairs), 0.5)]
    return csr(sparse.coo_array((values, (rows, columns)), shape=(m, m)))


def _check_base(base: Topology) -> None:
    if base.directed or base.changing:
        raise InvalidInput(f"{base.name}: give a graph whose links go both ways and stay")


def _check_probability(p: float) -> None:
    if not 0.0 <= p < 1.0:
        raise InvalidInput(f"p = {p}: the probability of a failure must lie in [0, 1)")
