"""Test that the simulator and separate agents (threads, MPI ranks) give the same numbers, iterations and traffic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import deepca
from deepca import Chebyshev, DeEPCA, DePCA, FastMix, Gossip, Tolerance
from deepca._util.typing import Array, Csr, Rounds, csr
from deepca.algorithms import TrackedState
from deepca.consensus.mixers import Mixer
from deepca.network import AgentNetwork, Network, SimulatedNetwork
from deepca.network.base import MixerNetwork
from deepca.operators import Operator
from deepca.solver.result import Result
from deepca.solver.stopping import StopRule
from deepca.topology import Rule, Topology
from tests.support.engines import assert_same_traffic, network_of, over_mpi, run_separately
from tests.support.helpers import GRAPHS, Make, RoundByRound, Tracked
from tests.support.problems import spectrum, spectrum_problem

D, K_COMPONENTS = 6, 2
MIXERS: dict[str, Callable[[Rounds], Mixer]] = {"FastMix": FastMix, "Gossip": Gossip, "Chebyshev": Chebyshev}
ROUNDS = {"FastMix": 3, "Gossip": 4, "Chebyshev": 3}


def growing(t: int) -> int:
    """Return K of iteration t: one more round every third iteration."""
    return 2 + t // 3


def problem(m: int, seed: int = 3) -> Operator:
    stack = spectrum_problem(m, D, spectrum(D, K_COMPONENTS, gap=0.4), seed, heterogeneity=0.3)
    return deepca.operators.from_matrices(stack)


def maker(algorithm: str, mixer: Mixer, schedule: Mixer, seed: int = 5) -> Make:
    W0 = deepca.operators.linalg.random_orthonormal(D, K_COMPONENTS, seed=seed)

    def make(A: Operator, network: Network) -> Tracked:
        if algorithm == "DeEPCA":
            return DeEPCA(A, W0, network, mixer)
        return DePCA(A, W0, network, mixer if algorithm == "DePCA" else schedule)

    return make


def assert_same(simulated: Result[TrackedState], separate: Result[TrackedState], topology: Topology) -> None:
    """Assert equal numbers to 1e-12, and exactly equal counts."""
    np.testing.assert_allclose(separate.W, simulated.W, rtol=0, atol=1e-12)
    np.testing.assert_allclose(separate.state.S, simulated.state.S, rtol=0, atol=1e-12)
    np.testing.assert_allclose(separate.eigenvalues, simulated.eigenvalues, rtol=0, atol=1e-12)
    assert separate.iterations == simulated.iterations
    assert separate.status.code == simulated.status.code
    assert separate.rank == simulated.rank
    assert_same_traffic(separate.traffic, simulated.traffic, topology)


def compare(topology: Topology, make: Make, *, max_iter: int, stop: StopRule | None) -> Result[TrackedState]:
    """Run the simulator with and without collapsed rounds, and separate agents; return the result of the simulator."""
    A = problem(topology.n_agents)
    simulated = deepca.solve(make(A, SimulatedNetwork(topology)), max_iter=max_iter, stop=stop)
    if not over_mpi():
        slowly = deepca.solve(make(A, RoundByRound(topology)), max_iter=max_iter, stop=stop)
        assert slowly.traffic == simulated.traffic
        assert slowly.iterations == simulated.iterations
        np.testing.assert_allclose(slowly.W, simulated.W, rtol=0, atol=1e-12)
    assert_same(simulated, run_separately(topology, A, make, max_iter=max_iter, stop=stop).whole, topology)
    return simulated


@pytest.mark.parametrize("algorithm", ["DeEPCA", "DePCA", "DePCA growing K"])
@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("graph", GRAPHS)
def test_separate_agents_match_the_simulator(graph: str, mixer: str, algorithm: str) -> None:
    """The runs have a fixed number of iterations, or a stop rule."""
    topology = GRAPHS[graph]()
    make = maker(algorithm, MIXERS[mixer](ROUNDS[mixer]), MIXERS[mixer](growing))
    fixed = compare(topology, make, max_iter=9, stop=None)
    assert fixed.iterations == 9
    links, payload = 2 * topology.n_edges, D * K_COMPONENTS * 8
    rounds = sum(growing(t) for t in range(9)) if algorithm == "DePCA growing K" else 9 * ROUNDS[mixer]
    assert fixed.traffic.rounds == rounds
    assert fixed.traffic.bytes_sent - fixed.traffic.control_bytes == links * rounds * payload
    assert fixed.traffic.messages == links * (rounds + fixed.traffic.control_rounds)
    stopped = compare(topology, make, max_iter=16, stop=Tolerance(1e-3))
    assert stopped.traffic.rounds * links * payload == stopped.traffic.bytes_sent - stopped.traffic.control_bytes


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("rule", ["metropolis", "lazy-metropolis", "max-degree", "best-constant"])
@pytest.mark.parametrize(
    "graph",
    [
        lambda rule: deepca.topology.erdos_renyi(7, 0.5, seed=1, rule=rule),
        lambda rule: deepca.topology.star(5, rule=rule),
        lambda rule: deepca.topology.grid(2, 3, rule=rule),
    ],
    ids=["erdos-renyi", "star", "grid"],
)
def test_separate_agents_match_the_simulator_with_every_weight_rule(
    graph: Callable[[Rule], Topology], rule: Rule, mixer: str
) -> None:
    """Each rule is combined with the mixers that it allows; FastMix rejects weights that are not PSD."""
    topology = graph(rule)
    make = maker("DeEPCA", MIXERS[mixer](5), MIXERS[mixer](5))
    if mixer == "FastMix" and not topology.positive_semidefinite:
        assert np.linalg.eigvalsh(topology.gossip_matrix)[0] < 0.0
        with pytest.raises(deepca.errors.MixingError, match="Chebyshev"):
            make(problem(topology.n_agents), network_of(topology))
        return
    compare(topology, make, max_iter=12, stop=None)


def test_a_stop_rule_ends_both_engines_in_the_same_iteration_before_the_limit() -> None:
    """The run converges well before max_iter, so that the stop rule really ends it."""
    topology = deepca.topology.ring(6)
    make = maker("DeEPCA", FastMix(4), FastMix(4))
    result = compare(topology, make, max_iter=400, stop=Tolerance(1e-9))
    assert result.status.code == "converged"
    assert result.iterations < 400
    assert result.traffic.control_rounds == 0  # the numbers were piggybacked on gossip
    assert result.traffic.control_bytes > 0


@pytest.mark.parametrize(
    "make_rows",
    [lambda X: X, sparse.csr_array, lambda X: X.astype(np.float32)],
    ids=["dense", "csr", "float32"],
)
def test_separate_agents_match_the_simulator_on_rows(make_rows: Callable[[Array], Any]) -> None:
    """The operators keep rows instead of matrices."""
    topology = deepca.topology.ring(5)
    rng = np.random.default_rng(0)
    scales = np.array([3.0, 2.0, 1.0, 0.5, 0.3, 0.2])
    rows = [make_rows(rng.standard_normal((12 + j, D)) * scales) for j in range(5)]
    A = deepca.operators.from_rows(rows, scale=1 / 12, form="rows")
    make = maker("DeEPCA", FastMix(5), FastMix(5))
    simulated = deepca.solve(make(A, SimulatedNetwork(topology)), max_iter=15)
    assert_same(simulated, run_separately(topology, A, make, max_iter=15).whole, topology)


def test_separate_agents_resume_like_the_simulator() -> None:
    """Both resume from their own last states."""
    topology = deepca.topology.star(5)
    A, make = problem(5), maker("DeEPCA", Chebyshev(4), Chebyshev(4))
    first = deepca.solve(make(A, SimulatedNetwork(topology)), max_iter=7)
    second = deepca.solve(make(A, SimulatedNetwork(topology)), max_iter=8, start=first.state)
    agents = run_separately(topology, A, make, max_iter=7)
    again = run_separately(topology, A, make, max_iter=8, start=[r.state for r in agents.parts])
    assert_same(second, again.whole, topology)
    assert again.whole.state.t == 15


# ------------------------------------------------------------------------------------------- weights in each round


@lru_cache
def pairs(m: int, first: int) -> Csr:
    """Return weights by which agents j and j + 1 average, for every second j from ``first``, around an even ring."""
    L = np.zeros((m, m))
    for j in range(first, m, 2):
        i = (j + 1) % m
        L[[j, i, j, i], [i, j, j, i]] = 0.5
    return csr(L)


@dataclass(frozen=True)
class Matchings(Mixer):
    """Pairwise averaging on an even ring, with alternating pairs, and a full round now and then."""

    full_every: int = 0

    def run(self, network: MixerNetwork, x: Array, K: int, /) -> Array:
        m = network.topology.n_agents
        for i in range(K):
            full = self.full_every and i % self.full_every == self.full_every - 1
            x = network.gossip(x) if full else network.gossip(x, pairs(m, i % 2))
        return x

    def contraction(self, topology: Topology, K: int) -> float:
        return float(0.9**K)


def test_rounds_with_their_own_weights_match_the_simulator() -> None:
    """Pairs change from round to round, and half as many messages are sent as in full rounds."""
    topology = deepca.topology.ring(6)
    make = maker("DeEPCA", Matchings(8), Matchings(8))
    result = compare(topology, make, max_iter=14, stop=None)
    gossip_messages = result.traffic.messages - 2 * topology.n_edges * result.traffic.control_rounds
    assert gossip_messages == 14 * 8 * 6  # every agent sends to one partner per round
    assert result.traffic.rounds == 14 * 8


def test_rounds_with_their_own_weights_and_a_stop_rule_match_the_simulator() -> None:
    """On all engines, pending values are carried by full rounds only."""
    topology = deepca.topology.ring(6)
    make = maker("DeEPCA", Matchings(9, full_every=3), Matchings(9, full_every=3))
    result = compare(topology, make, max_iter=200, stop=Tolerance(1e-8))
    assert result.status.code == "converged"
    assert result.traffic.control_bytes > 0


def test_a_stop_rule_works_without_full_rounds() -> None:
    """Only full rounds carry pending values, and there are none here."""
    topology = deepca.topology.ring(6)
    A, make = problem(6), maker("DeEPCA", Matchings(8), Matchings(8))
    result = deepca.solve(make(A, network_of(topology)), max_iter=400, stop=Tolerance(1e-8))
    assert result.status.code == "converged"
    assert result.iterations < 400


@pytest.mark.threads(reason="AgentNetwork")
def test_a_single_agent_needs_no_transport() -> None:
    """In a network of one agent nothing is sent; the run matches the simulator."""
    topology = deepca.topology.complete(1)
    A = problem(1)
    W0 = deepca.operators.linalg.random_orthonormal(D, K_COMPONENTS, seed=5)
    alone = deepca.solve(DeEPCA(A.agent(0), W0, AgentNetwork(topology, 0), FastMix(2)), max_iter=20)
    simulated = deepca.solve(DeEPCA(A, W0, SimulatedNetwork(topology), FastMix(2)), max_iter=20)
    np.testing.assert_allclose(alone.W, simulated.W[0], rtol=0, atol=1e-13)
    assert alone.traffic.bytes_sent == simulated.traffic.bytes_sent == 0
