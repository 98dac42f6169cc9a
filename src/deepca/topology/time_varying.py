"""Time-varying networks: links and weights change from round to round, the agents stay the same.

A :class:`TimeVarying` network has weights for every round, which all agents derive from the round number and a common
seed. Every column sums to one, so each round preserves the sum over all agents, which is all that tracking needs.
Mixers that combine values of earlier rounds cannot be used, since those rounds had other weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy import sparse

from deepca._util.floats import EPS
from deepca._util.renamed import renamed_attributes
from deepca._util.typing import Array, Csr, csr
from deepca._util.units import counted
from deepca._util.validation import NONE, Integer, check
from deepca.errors import DisconnectedError, MassError, TopologyError
from deepca.topology.adjacency import check_agents, freeze, links_of
from deepca.topology.graph import Topology
from deepca.topology.time_varying_inputs import check_base, check_graphs, check_probability, check_seed
from deepca.topology.window_products import WindowProducts, pair_means

__all__ = ["TimeVarying", "failing", "lossy", "matchings", "one_peer", "periodic"]

_WINDOW = 64  # rounds from which the rate is estimated; also the largest number of short windows
_LONG_WINDOW_STARTS = (0, 7, 23)  # first rounds of the windows that are tried if K is large
_MAX_WINDOW_WORK = 1 << 23  # maximum number of entries in the products of all short windows
_MAX_FLOOD_ROUNDS = 20_000  # rounds of flooding after which the agents are considered disconnected
_CACHED_ROUNDS = 4096  # maximum number of rounds whose weights are cached
_COLUMN_SUM_TOLERANCE = 1e-12  # a column is a few divisions, each rounded to 1e-16
_NEGLIGIBLE = 1e-18  # disagreement far below rounding
_PRODUCT_ROUNDING = 16.0 * EPS  # disagreement that may be the rounding error of a product of weights


@renamed_attributes(one_way="needs_push_sum", keeps="preserves_sum")
@dataclass(frozen=True, eq=False, repr=False)
class TimeVarying(Topology):
    """A network whose weights change from round to round; :meth:`at` returns the weights of one round.

    Use the functions of :mod:`deepca.topology.time_varying` to create one.

    Parameters
    ----------
    name : str
        Name for messages and plots.
    rule : str
        ``"changing"``.
    gossip_sparse : csr_array of shape (m, m)
        Mean of the weights over the first rounds.
    lambda2, lambda_min : float
        Average factor by which a round reduces disagreement, estimated from the first rounds; and minus that factor.
    draw : callable
        Function that returns the weights of a round; :meth:`at` validates and caches them.
    needs_push_sum : bool, default=False
        Whether the rows of the weights of some round do not sum to one, so that averaging needs push-sum.
    preserves_sum : bool, default=True
        Whether every round preserves the sum over all agents; False where messages get lost.
    links : csr_array, optional
        Ones for all links of all rounds; by default those of the first rounds.
    """

    draw: Callable[[int], Csr]
    needs_push_sum: bool = False
    preserves_sum: bool = True
    links: Csr | None = None

    def __post_init__(self) -> None:
        """Make the mean weights read-only."""
        freeze(self.gossip_sparse)

    def __repr__(self) -> str:
        """Describe the network and the factor by which a round reduces disagreement."""
        size = f"{counted(self.n_agents, 'agent')}, {counted(self.n_edges, 'link')}"
        return f"TimeVarying({self.name}, {size}, a round leaves {self.lambda2:.4g})"

    @property
    def directed(self) -> bool:
        """True if the rows of the weights of some round do not sum to one."""
        return self.needs_push_sum

    @property
    def time_varying(self) -> bool:
        """True: links change between rounds."""
        return True

    @cached_property
    def adjacency(self) -> Csr:
        """Ones where two agents are connected in some round, as a CSR array."""
        found = links_of(self.gossip_sparse) if self.links is None else self.links
        freeze(found)
        return found

    @cached_property
    def _weights(self) -> Callable[[int], Csr]:
        return lru_cache(_CACHED_ROUNDS)(self._checked_weights)

    @cached_property
    def _window_products(self) -> WindowProducts:
        return WindowProducts(self.at, self.n_agents, preserves_sum=self.preserves_sum)

    def at(self, r: int) -> Csr:
        """Return the validated weights of round r; repeated calls return the same object while it is cached."""
        return self._weights(r)

    def _checked_weights(self, r: int) -> Csr:
        weights = self.draw(r)
        if weights.shape != self.gossip_sparse.shape:
            m = self.n_agents
            raise TopologyError(
                f"the weights of round {r} have shape {weights.shape}; expected ({m}, {m})", value=weights.shape
            )
        sums = np.bincount(weights.indices, weights=weights.data, minlength=self.n_agents)
        worst = int(np.abs(sums - 1.0).argmax())
        if self.preserves_sum and abs(sums[worst] - 1.0) > _COLUMN_SUM_TOLERANCE:
            raise MassError(
                f"agent {worst} loses or creates mass in round {r}: column {worst} of the weights sums to "
                f"{sums[worst]:.12g}; every column must sum to 1",
                agent=worst,
                value=float(sums[worst]),
            )
        freeze(weights)
        return weights

    def messages_at(self, r: int) -> int:
        """Return the number of nonzero weights off the diagonal in round r."""
        weights = self.at(r)
        return int(np.count_nonzero(weights.data) - np.count_nonzero(weights.diagonal()))

    def flood_rounds_from(self, r: int) -> int:
        """Return how many rounds flooding that starts in round r takes, found by simulating it.

        Raises DisconnectedError if it does not reach every agent within ``_MAX_FLOOD_ROUNDS`` rounds.
        """
        m = self.n_agents
        known = np.eye(m, dtype=bool)
        for made in range(_MAX_FLOOD_ROUNDS):
            if known.all():
                return made
            known |= np.asarray(abs(self.at(r + made)) @ known.astype(np.float64)) > 0.0
        raise DisconnectedError(
            f"{self.name}: flooding that starts in round {r} does not reach every agent within {_MAX_FLOOD_ROUNDS} "
            "rounds; the links of all rounds together must connect the agents"
        )

    @property
    def flood_rounds(self) -> int:
        """Rounds that flooding takes to reach every agent, starting in round 0."""
        return self.flood_rounds_from(0)

    def contraction(self, K: int) -> float:
        """Return the largest remaining disagreement (of ratios if directed) over up to 64 windows of K rounds.

        Short windows need more samples: a few might all contain a round in which every link happens to be up.
        """
        if K >= _WINDOW and self.lambda2**K < _NEGLIGIBLE:
            return 0.0
        windows = min(_WINDOW, _MAX_WINDOW_WORK // (K * self.n_agents**2))
        starts = range(windows) if K < _WINDOW and windows > len(_LONG_WINDOW_STARTS) else _LONG_WINDOW_STARTS
        left = max(self._window_products.remaining(start, K) for start in starts)
        return left if left > _PRODUCT_ROUNDING else 0.0

    @cached_property
    def modes(self) -> Array:
        """Average factor by which a round reduces disagreement, m − 1 times, in place of eigenvalues."""
        return np.full(max(self.n_agents - 1, 0), self.lambda2)

    @property
    def eigenvalues(self) -> Array:
        """Undefined; raise TopologyError."""
        raise TopologyError(f"{self.name} changes from round to round, so it has no eigenvalues; use `lambda2`")


def periodic(graphs: Sequence[Topology], *, name: str = "") -> TimeVarying:
    """Create a network that cycles through a list of graphs, one per round.

    Parameters
    ----------
    graphs : sequence of Topology
        Undirected or directed graphs of the same agents; together they must connect all agents.
    name : str, optional
        Name for messages and plots; by default one that lists the graphs.

    Returns
    -------
    TimeVarying
        The time-varying network.

    Raises
    ------
    InvalidInput
        If `graphs` is not a sequence of static graphs with the same number of agents.
    DisconnectedError
        If the links of all graphs together do not connect the agents.

    Examples
    --------
    >>> from deepca.topology import ring, star
    >>> from deepca.topology.time_varying import periodic
    >>> network = periodic([ring(5), star(5)])
    >>> network.messages_at(0), network.messages_at(1)
    (10, 8)
    """
    check_graphs(graphs)
    weights = [graph.gossip_sparse for graph in graphs]
    called = name or "periodic(" + ", ".join(graph.name for graph in graphs) + ")"
    return _create(
        called, weights[0].shape[0], lambda r: weights[r % len(weights)], needs_push_sum=any(g.directed for g in graphs)
    )


def matchings(base: Topology, *, seed: int = 0) -> TimeVarying:
    """Create a network in which random pairs of neighbours average their values in every round.

    Parameters
    ----------
    base : Topology
        Undirected graph along whose links agents are paired.
    seed : int, default=0
        Seed of the pairs, the same at all agents.

    Returns
    -------
    TimeVarying
        The time-varying network, in which an agent exchanges at most one message per round.

    Raises
    ------
    InvalidInput
        If `base` is not a static undirected graph, or the seed is not a nonnegative integer.
    """
    check_base(base)
    check_seed(seed)
    m, ends = base.n_agents, base.edges

    def draw(r: int) -> Csr:
        order = np.random.default_rng((61, seed, r)).permutation(len(ends))
        partner = list(range(m))
        for i, j in ends[order].tolist():
            if partner[i] == i and partner[j] == j:
                partner[i], partner[j] = j, i
        return pair_means(np.array(partner))

    return _create(f"matchings({base.name})", m, draw, links=base.adjacency)


def one_peer(m: int) -> TimeVarying:
    """Create a network in which every agent uses one link of the exponential graph per round.

    Parameters
    ----------
    m : int
        Number of agents.

    Returns
    -------
    TimeVarying
        The time-varying network, in which every agent sends and receives one message per round.

    Raises
    ------
    TopologyError
        If m is not a whole number of at least 1.

    Notes
    -----
    In round r agent j sends half of its value to ``j + 2^(r mod ⌈log₂ m⌉)`` (mod m). If m is a power of two, log₂ m
    rounds give the exact mean.
    """
    check_agents(m)
    hops = [1 << bit for bit in range(int(m - 1).bit_length())] or [0]
    agents = np.arange(m)

    def weights(hop: int) -> Csr:
        to = (agents + hop) % m
        shares = np.full(2 * m, 0.5)
        return csr(sparse.coo_array((shares, (np.r_[agents, to], np.r_[agents, agents])), shape=(m, m)))

    rounds = [weights(hop) for hop in hops]
    return _create(f"one-peer({m})", m, lambda r: rounds[r % len(rounds)])


def failing(base: Topology, p: float, *, seed: int = 0) -> TimeVarying:
    """Create a network in which each link of a graph is down with probability p in every round.

    Parameters
    ----------
    base : Topology
        Undirected graph.
    p : float
        Probability that a link is down, in [0, 1).
    seed : int, default=0
        Seed of the failures, the same at all agents.

    Returns
    -------
    TimeVarying
        The time-varying network. Both ends know that a link is down and keep what they would have sent.

    Raises
    ------
    InvalidInput
        If `base` is not a static undirected graph, p is not in [0, 1), or the seed is not a nonnegative integer.
    """
    check_base(base)
    check_probability(p)
    check_seed(seed)
    # every round has the same pattern (links and diagonal) with some entries zero
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

    return _create(f"failing({base.name}, {p:g})", m, draw, links=base.adjacency)


def lossy(base: Topology, p: float, *, seed: int = 0, until: int | None = None) -> TimeVarying:
    """Create a network that loses each message with probability p, unnoticed by its sender.

    Parameters
    ----------
    base : Topology
        Undirected graph.
    p : float
        Probability that a message is lost, in [0, 1).
    seed : int, default=0
        Seed of the losses.
    until : int, optional
        First round without losses; None if losses never end.

    Returns
    -------
    TimeVarying
        The time-varying network.

    Raises
    ------
    InvalidInput
        If `base` is not a static undirected graph, p is not in [0, 1), or the seed or `until` is not a nonnegative
        integer.
    DisconnectedError
        If p is so close to 1 that the messages that arrive do not connect the agents within 20,000 rounds.

    Notes
    -----
    A receiver uses its own value in place of a lost message, so the sum over all agents is *not* preserved: tracking
    drifts, and the agents agree on a wrong value. A certificate detects the drift. If losses end, a run with a
    tolerance restarts tracking and can still converge; otherwise its status names the failure. Functions that need
    exact sums, such as :func:`deepca.eigenpairs`, raise NetworkError.
    """
    check_base(base)
    check_probability(p)
    check_seed(seed)
    check("until", until, Integer(0), NONE)
    arcs = sparse.coo_array(links_of(base.gossip_sparse))
    m, weights = base.n_agents, base.gossip_matrix

    def draw(r: int) -> Csr:
        if until is not None and r >= until:
            return base.gossip_sparse
        lost = np.random.default_rng((63, seed, r)).random(arcs.row.size) < p
        received = weights.copy()
        np.add.at(received, (arcs.row[lost], arcs.row[lost]), weights[arcs.row[lost], arcs.col[lost]])
        received[arcs.row[lost], arcs.col[lost]] = 0.0
        return csr(received)

    return _create(f"lossy({base.name}, {p:g})", m, draw, preserves_sum=False, links=base.adjacency)


def _create(
    name: str,
    m: int,
    draw: Callable[[int], Csr],
    *,
    needs_push_sum: bool = False,
    preserves_sum: bool = True,
    links: Csr | None = None,
) -> TimeVarying:
    """Create a network: estimate its mean weights and rate, and check that its links connect the agents."""
    if m == 1:
        return TimeVarying(name, "changing", csr(np.ones((1, 1))), 0.0, 0.0, lambda r: csr(np.ones((1, 1))))
    mean = csr(sum((draw(r) for r in range(_WINDOW)), start=sparse.csr_array((m, m))) / _WINDOW)
    found = TimeVarying(name, "changing", mean, 0.5, -0.5, draw, needs_push_sum, preserves_sum, links)
    found.flood_rounds_from(0)
    left = max(found._window_products.remaining(start, _WINDOW) for start in _LONG_WINDOW_STARTS)
    rate = min(max(left, 1e-300) ** (1.0 / _WINDOW), 1.0 - 1e-9)
    return TimeVarying(name, "changing", mean, rate, -rate, draw, needs_push_sum, preserves_sum, links)
