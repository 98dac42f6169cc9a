"""Test that broadcasts have the same bits everywhere, are checked on arrival, and are counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse

import deepca
from deepca import topology
from deepca._util import portable
from deepca._util.typing import Array, Csr
from deepca.consensus.broadcasts import share_spectrum
from deepca.errors import Contradiction
from deepca.network import AgentNetwork, SimulatedNetwork
from deepca.network.base import Network
from deepca.network.sums import Addend, Total, Unit
from deepca.network.sums.rounds import SumTree
from deepca.topology import Topology
from tests.support.engines import ENGINES, mine, network_of, over_mpi
from tests.support.problems import spectrum_problem

PLACES = {
    "one": topology.complete(1),
    "path": topology.path(5),
    "ring": topology.ring(6),
    "hypercube": topology.hypercube(3),
    "erdos-renyi": topology.erdos_renyi(9, 0.4, seed=2),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=list(PLACES))
@pytest.mark.parametrize("engine", ENGINES)
def test_every_agent_receives_the_values_of_the_leader(engine: str, place: Topology) -> None:
    """Bits are compared, including negative zeros and infinities. Down a tree this takes m − 1 messages."""
    m = place.n_agents
    x = np.random.default_rng(1).standard_normal((m, 4, 3))
    x[:, 0] = -0.0
    x[:, 1, 0] = np.inf
    expected = x[place.center] + 0.0

    def work(network: AgentNetwork) -> tuple[Array, int]:
        assert network.is_leader_local == (network.agent == network.leader)
        found = network.broadcast(x[network.agent])
        return found, network.traffic.messages

    if engine == "threads":
        found = deepca.run_agents(place, work)
        assert sum(messages for _, messages in found) == m - 1
        for one, _ in found:
            assert one.tobytes() == expected.tobytes()
        return
    network = network_of(place)
    assert network.leader == place.center
    assert network.broadcast(x[mine(m)]).tobytes() == expected.tobytes()
    if not over_mpi():
        assert network.traffic.messages == m - 1
        assert network.traffic.rounds == int(place.paths_from(place.center)[0].max())


@pytest.mark.parametrize("place", PLACES.values(), ids=list(PLACES))
def test_from_leader_and_flood_give_the_array_of_the_leader_or_of_any_agent(place: Topology) -> None:
    """Separate agents have one array each, and a simulator has one for all."""
    m = place.n_agents
    x = np.random.default_rng(1).standard_normal((m, 4, 3))

    def work(network: AgentNetwork) -> tuple[Array, Array]:
        return network.from_leader(x[network.agent]), network.flood(x[network.agent], m - 1)

    for led, flooded in deepca.run_agents(place, work):
        np.testing.assert_array_equal(led, x[place.center])
        np.testing.assert_array_equal(flooded, x[-1])
    alone = deepca.run_agents(place, lambda network: network.from_leader(np.array(float(network.agent))))
    assert {float(one) for one in alone} == {float(place.center)}  # scalars as well
    network = SimulatedNetwork(place)
    np.testing.assert_array_equal(network.from_leader(x[0]), x[0])
    np.testing.assert_array_equal(network.flood(x, m - 1), x[-1])


@pytest.mark.skipif(over_mpi(), reason="agents in threads")
def test_broadcasts_are_flooded_without_a_tree() -> None:
    place = PLACES["ring"]

    def work(network: AgentNetwork) -> Array:
        network.reliable = False
        return network.broadcast(np.full(2, float(network.agent)))

    found = deepca.run_agents(place, work)
    assert {one.tobytes() for one in found} == {np.full(2, float(place.center)).tobytes()}


@pytest.mark.parametrize("place", PLACES.values(), ids=list(PLACES))
@pytest.mark.parametrize("engine", ENGINES)
def test_a_sum_arrives_with_what_the_leader_derives_from_it(engine: str, place: Topology) -> None:
    """``derive`` is called once, by the leader, and takes no round."""
    m = place.n_agents
    x = np.random.default_rng(3).standard_normal((m, 5))
    called: list[int] = []

    def add(network: Network, own: Array) -> tuple[Array, Array]:
        def derive(sums: Array) -> Array:
            called.append(network.leader)
            return np.array([1.0 / 3.0, sums[0]])

        [total], derived = network.totals_and_derive(
            [Addend("numbers", own, unit=Unit(-50))], lambda totals: derive(totals[0].value), 2
        )
        return total.value, derived

    if engine == "threads":
        found = deepca.run_agents(place, lambda network: (*add(network, x[network.agent]), network.traffic))
        assert len({(summed.tobytes(), told.tobytes()) for summed, told, _ in found}) == 1
        sent = sum(traffic.bytes_sent for _, _, traffic in found)
        together = SimulatedNetwork(place)
        add(together, x)
        called.pop()
        assert sent == together.traffic.bytes_sent == (m - 1) * 8 * (6 + 6 + 2)
        assert found[0][2].rounds == together.traffic.rounds
        summed, told, _ = found[0]
    else:
        network = network_of(place)
        summed, told = add(network, x[mine(m)])
    np.testing.assert_allclose(summed, x.sum(axis=0), atol=1e-14)
    assert told[1] == summed[0]
    assert over_mpi() or called == [place.center]


def krylov(network: Network, A: Any, W0: Array, **options: Any) -> Any:
    return deepca.solve(deepca.BlockKrylov(A, W0, network), max_iter=60, stop=deepca.Tolerance(1e-10), **options)


@pytest.mark.skipif(over_mpi(), reason="the simulator")
def test_nothing_is_sent_where_one_process_holds_all_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator computes blocks and sums directly, but counts the messages that separate agents would send."""
    place = PLACES["erdos-renyi"]
    A = deepca.operators.from_matrices(spectrum_problem(9, 30, 0.8 ** np.arange(30), 1))
    W0 = deepca.operators.linalg.random_orthonormal(30, 2, seed=1)
    apart = deepca.run_agents(place, lambda network: krylov(network, A.agent(network.agent), W0))

    def refused(self: SimulatedNetwork, x: Array, weights: Csr | None = None, /) -> Array:
        raise AssertionError("a round of messages")

    monkeypatch.setattr(SimulatedNetwork, "gossip", refused)
    together = krylov(SimulatedNetwork(place), A, W0)
    assert together.status.code == "converged"
    assert together.traffic.bytes_sent == sum(one.traffic.bytes_sent for one in apart)
    assert together.traffic.rounds == apart[0].traffic.rounds
    proof = sum(one.certificate.traffic.bytes_sent for one in apart)
    assert together.certificate.traffic.bytes_sent == proof


@pytest.mark.skipif(over_mpi(), reason="the simulator")
def test_broadcasts_add_at_most_half_of_the_bytes() -> None:
    """A product and a certified run are measured on the paper's graph, with m = 50 and d = 300.

    Without broadcasts, a product sent its block up the tree and its average down, and the run took 94.9 MB, since
    components were flooded over every link.
    """
    place, d, k = topology.erdos_renyi(50, 0.5, seed=1), 300, 5
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    A = deepca.operators.from_rows([(rng.standard_normal((100, d)) * 0.97 ** np.arange(d)) @ basis for _ in range(50)])
    network = SimulatedNetwork(place)
    steps: list[int] = []

    class Counting:
        def begin(self, start: Any) -> None: ...
        def end(self, result: Any) -> None: ...
        def observe(self, step: Any) -> None:
            steps.append(step.traffic.bytes_sent - step.traffic.control_bytes)

    result = krylov(network, A, deepca.operators.linalg.random_orthonormal(d, k, seed=1), observers=[Counting()])
    assert result.status.code == "converged"
    before = 2 * 49 * 8 * (d * (k + 2) + 2)  # two counts travel along
    assert np.diff(steps)[: 12 - 2].max() <= 1.5 * before  # later, some Ritz vectors are broadcast as well
    assert steps[-1] <= 1.6 * before * len(steps)
    assert result.traffic.bytes_sent + result.certificate.traffic.bytes_sent <= 94_855_000


# ------------------------------------------------------------------------------------------------------------- checks


def in_phase(phase: str, change: Callable[[Array], Array]) -> type[AgentNetwork]:
    """Return an agent class that, as the leader, broadcasts other numbers in one phase of a run."""

    class Lying(AgentNetwork):
        def totals_and_derive(
            self,
            addends: Sequence[Addend],
            derive: Callable[[list[Total]], Array],
            size: int,
            /,
            tree: SumTree | None = None,
        ) -> tuple[list[Total], Array]:
            if self.phase_and_iteration[0] != phase or not size:
                return super().totals_and_derive(addends, derive, size, tree)
            return super().totals_and_derive(addends, lambda totals: change(np.array(derive(totals))), size, tree)

    return Lying


D, K, P = 30, 2, 8


def shifted(numbers: Array) -> Array:
    return numbers + 1e-6


def low_bound(numbers: Array) -> Array:
    """Lower the bound on the complement, as if probes could not miss anything."""
    at = D * P + 2
    if numbers.size == at + 3 + P:
        numbers[at] = numbers[at + 3] + 1e-9 * abs(numbers[at + 3])
    return numbers


def larger_gap(numbers: Array) -> Array:
    """Lower the eigenvalues of the complement."""
    at = D * P + 2
    if numbers.size == at + 3 + P:
        numbers[at + 3 :] *= 0.5
    return numbers


def smaller_residual(numbers: Array) -> Array:
    if numbers.size == K + 4:
        numbers[K] = 0.0
    return numbers


@pytest.mark.skipif(over_mpi(), reason="agents in threads")
@pytest.mark.parametrize(
    ("phase", "change"),
    [
        ("step", shifted),
        ("step", lambda numbers: numbers * 0.0),
        ("certificate", shifted),
        ("certificate", low_bound),
        ("certificate", larger_gap),
        ("axes", shifted),
    ],
)
def test_inconsistent_numbers_name_the_leader(phase: str, change: Callable[[Array], Array]) -> None:
    place = PLACES["path"]
    A = deepca.operators.from_matrices(spectrum_problem(5, D, 0.8 ** np.arange(D), 1))
    W0 = deepca.operators.linalg.random_orthonormal(D, K, seed=1)
    kind = in_phase(phase, change)

    def work(network: AgentNetwork) -> Any:
        return krylov(kind(place, network.agent, network.transport), A.agent(network.agent), W0)

    with pytest.raises(Contradiction) as raised:
        deepca.run_agents(place, work, timeout=20.0)
    assert raised.value.sender == place.center
    assert raised.value.found.startswith("off by")


METHODS: dict[str, Callable[..., Any]] = {
    "krylov": deepca.BlockKrylov,
    "accelerated": deepca.AcceleratedDeEPCA,
    "deepca": deepca.DeEPCA,
    "covariance": deepca.CovarianceAveraging,
}


@pytest.mark.skipif(over_mpi(), reason="agents in threads")
@pytest.mark.parametrize("scale", [1e-320, 1e-300, 1e-160, 1e160, 1e300, 1e307])
@pytest.mark.parametrize("method", METHODS)
def test_honest_numbers_of_any_magnitude_are_accepted(method: str, scale: float) -> None:
    """Separate agents are compared with the simulator, which checks nothing. Underflow is reported as such."""
    place = topology.path(4)
    stack = scale * spectrum_problem(4, 12, 0.7 ** np.arange(12), 1)
    W0 = deepca.operators.linalg.random_orthonormal(12, 2, seed=1)

    def work(network: AgentNetwork) -> str:
        A = deepca.operators.from_matrices(stack).agent(network.agent)
        try:
            algorithm = METHODS[method](A, W0, network)
            return str(deepca.solve(algorithm, max_iter=200, stop=deepca.Tolerance(1e-10)).status)
        except deepca.errors.NotFiniteError as error:
            return f"below rounding: {error}"

    found = deepca.run_agents(place, work, timeout=60.0)
    for said in found:
        assert said.startswith("converged" if scale > 1e-200 else "below rounding"), said
        assert ("underflow" in said) == (scale < 1e-200)


@pytest.mark.skipif(over_mpi(), reason="agents in threads")
@pytest.mark.parametrize("scale", [1e-320, 1e-300, 1e-160, 1e160, 1e300, 1e306])
def test_eigenpairs_of_any_magnitude_are_accepted(scale: float) -> None:
    stack = scale * spectrum_problem(4, 12, np.r_[1.0, 0.5, np.linspace(0.1, -0.9, 10)], 1, indefinite=True)

    def work(network: AgentNetwork) -> deepca.Status:
        A = deepca.operators.from_matrices(stack).agent(network.agent)
        return deepca.eigenpairs(A, network, 2, which="LA").status

    for status in deepca.run_agents(topology.path(4), work, timeout=60.0):
        assert status.ok == (scale > 1e-200), status
        assert ("underflow" in status.advice) == (scale < 1e-200)


@pytest.mark.skipif(over_mpi(), reason="agents in threads")
def test_a_residual_that_is_too_small_is_rejected() -> None:
    """The components have not converged, so the true residual exceeds rounding."""
    place = PLACES["path"]
    A = deepca.operators.from_matrices(spectrum_problem(5, D, 0.8 ** np.arange(D), 1))
    X = deepca.operators.linalg.random_orthonormal(D, K, seed=1)
    kind = in_phase("certificate", smaller_residual)

    def work(network: AgentNetwork) -> Any:
        there = kind(place, network.agent, network.transport)
        there.begin(0, 0, "certificate")
        return deepca.certify(A.agent(network.agent), X, there)

    with pytest.raises(Contradiction) as raised:
        deepca.run_agents(place, work, timeout=20.0)
    assert raised.value.sender == place.center


@pytest.mark.skipif(over_mpi(), reason="in threads, each with a spectrum of its own")
def test_separate_agents_share_one_spectrum(monkeypatch: pytest.MonkeyPatch) -> None:
    """They use the leader's spectrum, since the last digits would differ."""
    monkeypatch.setattr("deepca.consensus.broadcasts.MAX_PORTABLE_AGENTS", 4)
    place = topology.erdos_renyi(6, 0.6, seed=1)

    def work(network: AgentNetwork) -> Array:
        network.take_spectrum(place.spectrum * (1.0 + 1e-14 * network.agent))
        share_spectrum(network)
        return network.topology.spectrum

    found = deepca.run_agents(place, work)
    leaders = place.spectrum * (1.0 + 1e-14 * place.center)
    for one in found:
        np.testing.assert_array_equal(one, leaders)


@pytest.mark.skipif(over_mpi(), reason="in threads, one of which lies")
def test_a_false_spectrum_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepca.consensus.broadcasts.MAX_PORTABLE_AGENTS", 4)
    place = topology.ring(6)

    def work(network: AgentNetwork) -> None:
        if network.is_leader_local:
            network.take_spectrum(place.spectrum * 0.9)
        share_spectrum(network)

    with pytest.raises(Contradiction) as raised:
        deepca.run_agents(place, work, timeout=20.0)
    assert raised.value.sender == place.center


def test_small_graphs_need_no_message_to_agree_on_the_spectrum() -> None:
    network = network_of(topology.ring(8))
    before = network.traffic
    share_spectrum(network)
    assert network.traffic == before


# ----------------------------------------------------------------------------------------------------------- arithmetic


def test_portable_functions_match_the_math_library() -> None:
    rng = np.random.default_rng(0)
    for x in (10.0 ** rng.uniform(-300.0, 300.0, 500)).tolist():
        assert portable.log(x) == pytest.approx(math.log(x), rel=1e-14, abs=1e-15)
    for x in rng.uniform(-700.0, 700.0, 500).tolist():
        assert portable.exp(x) == pytest.approx(math.exp(x), rel=1e-14)
        assert portable.cosh(x) == pytest.approx(math.cosh(x), rel=1e-14)
    for x in (1.0 + 10.0 ** rng.uniform(-15.0, 20.0, 500)).tolist():
        assert portable.acosh(x) == pytest.approx(math.acosh(x), rel=1e-13)
        assert portable.power(x, 0.3) == pytest.approx(x**0.3, rel=1e-13)
    assert portable.log(0.0) == -math.inf
    assert portable.exp(1e4) == math.inf
    assert portable.exp(-1e4) == 0.0
    assert portable.power(0.0, 2.0) == 0.0
    assert portable.power(3.0, 0.0) == 1.0
    assert portable.hypot(3e200, 4e200) == pytest.approx(5e200)
    assert portable.norm(np.array([3e200, 4e200])) == pytest.approx(5e200)
    assert portable.median([3.0, 1.0, 2.0]) == 2.0
    assert portable.median([4.0, 1.0, 2.0, 3.0]) == 2.5
    assert portable.total([1e16, 1.0, -1e16]) == 1.0


@pytest.mark.parametrize("n", [1, 2, 3, 8, 40])
def test_portable_eigenvalues_match_scipy(n: int) -> None:
    rng = np.random.default_rng(n)
    A = rng.standard_normal((n, n))
    for S in (A + A.T, np.ones((n, n)), np.zeros((n, n)), np.diag(rng.integers(0, 3, n).astype(np.float64))):
        values = scipy.linalg.eigvalsh(S)
        np.testing.assert_allclose(portable.eigenvalues(S), values, rtol=0, atol=1e-14 * max(np.abs(S).sum(), 1.0))
        assert portable.eigenvalues(S, -1)[0] == portable.eigenvalues(S)[-1]
