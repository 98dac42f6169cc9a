"""Compare plans, and their recommendations, with runs on actual data."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.decomposition import PCA

import deepca
from deepca import topology as tp
from deepca.consensus.exact import TreeSweep, exact_average
from deepca.consensus.mixers import FastMix
from deepca.data.sources import as_source
from deepca.decomposition.settings import create_algorithm
from deepca.errors import DataError, GapError, InvalidInput, MixingError, ParameterError, TopologyError
from deepca.network.sums import Unit
from deepca.planning import (
    PLANNED_ALGORITHMS,
    Plan,
    Prediction,
    bits_per_second,
    plan,
    probed_eigenvalues,
    read_eigenvalues,
    rehearsal,
    seconds,
)
from deepca.planning.inputs import spectrum_of
from deepca.planning.metered import Cost, LinkSpeed, MeteredNetwork, Sent
from deepca.planning.rehearsal import MessageLength, SurrogateAgents
from deepca.solver.result import Result
from deepca.topology import Topology
from tests.support.errors import raises
from tests.support.helpers import GRAPHS, run_threads
from tests.support.problems import spectrum_problem

Array = npt.NDArray[np.float64]
TOL = 1e-8
LINK = LinkSpeed(0.03, 30e6)
SLOW = LinkSpeed(0.001, 1e6)  # bytes dominate, not rounds

GRAPHS_OF_THE_SUITE: dict[str, Callable[[], Topology]] = {
    "erdos-renyi": lambda: tp.erdos_renyi(20, 0.5, seed=0),
    "ring": lambda: tp.ring(12),
    "torus": lambda: tp.torus(3, 4),
    "star": lambda: tp.star(12),
}


@lru_cache
def _rows(name: str) -> Array:
    if name == "digits":
        return np.asarray(load_digits().data, dtype=np.float64)
    if name == "cancer":
        return np.asarray(load_breast_cancer().data, dtype=np.float64)
    if name == "cancer, scaled":
        X = _rows("cancer")
        return np.asarray((X - X.mean(axis=0)) / X.std(axis=0))
    rng = np.random.default_rng(3)  # gaps of three percent behind the second and the fifth
    values = np.concatenate([[2.0, 1.9, 1.84, 1.5, 1.2], 1.16 * 0.97 ** np.arange(55)])
    Q = np.linalg.qr(rng.standard_normal((60, 60)))[0]
    length = np.sqrt(rng.exponential(size=(3000, 1)))  # Laplace: heavy tails, as in real data
    return np.asarray((length * rng.standard_normal((3000, 60)) * np.sqrt(values)) @ Q)


@dataclass(frozen=True)
class Measured:
    """A problem of the suite: its plan, and runs on the rows themselves."""

    plan: Plan
    runs: dict[str, Result[Any]]
    seconds: dict[str, float]


@lru_cache
def _measured(data: str, graph: str, k: int, link: LinkSpeed = LINK, *, unreliable: bool = False) -> Measured:
    net = GRAPHS_OF_THE_SUITE[graph]()
    X = _rows(data)
    m, n = net.n_agents, len(X)
    pooled = PCA(svd_solver="full").fit(X)
    A = deepca.operators.from_rows(deepca.operators.split_rows(X - X.mean(axis=0), m), scale=m / (n - 1))
    found = plan(
        net,
        k,
        eigenvalues=pooled.explained_variance_,
        rows_per_agent=n // m,
        latency=link.latency,
        bandwidth=link.bandwidth,
        tol=TOL,
        unreliable=unreliable,
    )
    W0 = deepca.operators.linalg.random_orthonormal(A.d, k, seed=7)
    runs, times = {}, {}
    for method in PLANNED_ALGORITHMS:
        network = MeteredNetwork(net, link, reliable=not unreliable)
        runs[method] = deepca.solve(
            create_algorithm(method, A, W0, network), max_iter=20_000, stop=deepca.Tolerance(TOL)
        )
        times[method] = (network.running + network.proving).seconds
    return Measured(found, runs, times)


SUITE = [
    ("digits", "erdos-renyi", 2),
    ("digits", "ring", 5),
    ("digits", "star", 2),
    ("cancer", "erdos-renyi", 5),
    ("cancer", "ring", 5),
    ("cancer", "torus", 2),
    ("cancer", "star", 5),
    ("cancer, scaled", "star", 2),
    ("cancer, scaled", "torus", 5),
    ("close", "erdos-renyi", 2),
    ("close", "ring", 2),
    ("close", "torus", 5),
]


# --------------------------------------------------------------------------------------- compared with actual runs


@pytest.mark.parametrize(("data", "graph", "k"), SUITE)
@pytest.mark.parametrize("method", PLANNED_ALGORITHMS)
def test_predictions_are_within_a_factor_of_two_of_actual_runs(data: str, graph: str, k: int, method: str) -> None:
    measured = _measured(data, graph, k)
    run, predicted = measured.runs[method], measured.plan[method]
    assert run.status.code == "converged"
    assert run.certificate is not None
    assert predicted.reaches_tol
    sent = run.traffic + run.certificate.traffic
    rounds = sent.rounds + sent.control_rounds
    assert rounds / 2 <= predicted.total.all_rounds <= rounds * 2
    assert sent.bytes_per_agent / 2 <= predicted.total.bytes_per_agent <= sent.bytes_per_agent * 2
    assert run.iterations / 2 <= predicted.iterations <= run.iterations * 2 + 2


@pytest.mark.parametrize(("data", "graph", "k"), SUITE)
def test_the_recommended_method_is_the_fastest_in_actual_runs(data: str, graph: str, k: int) -> None:
    measured = _measured(data, graph, k)
    best = min(time for method, time in measured.seconds.items() if method != "covariance")
    assert measured.plan.recommended is not None
    assert measured.seconds[measured.plan.recommended] <= 1.3 * best


@pytest.mark.parametrize(
    ("data", "graph", "k"),
    [("digits", "erdos-renyi", 2), ("cancer", "torus", 2), ("cancer", "star", 5), ("close", "ring", 2)],
)
def test_plans_include_the_more_expensive_proofs_of_unreliable_networks(data: str, graph: str, k: int) -> None:
    measured = _measured(data, graph, k, unreliable=True)
    tracked = ("accelerated", "deepca")
    assert measured.plan.recommended in tracked
    best = min(measured.seconds[method] for method in tracked)
    assert measured.seconds[measured.plan.recommended] <= 1.3 * best
    for method in tracked:
        proof = measured.runs[method].certificate
        assert proof is not None
        rounds = proof.traffic.rounds + proof.traffic.control_rounds
        assert rounds / 2 <= measured.plan[method].certificate_cost.all_rounds <= rounds * 2
        assert (
            measured.plan[method].certificate_cost.all_rounds
            > _measured(data, graph, k).plan[method].certificate_cost.all_rounds
        )


@pytest.mark.parametrize(("data", "graph", "k"), [("digits", "erdos-renyi", 2), ("cancer", "torus", 2)])
def test_the_recommended_method_is_the_fastest_if_bytes_dominate(data: str, graph: str, k: int) -> None:
    measured = _measured(data, graph, k, SLOW)
    best = min(time for method, time in measured.seconds.items() if method != "covariance")
    assert measured.seconds[measured.plan.recommended or ""] <= 1.3 * best
    for method in PLANNED_ALGORITHMS:
        assert measured.seconds[method] / 2 <= measured.plan[method].total.seconds <= measured.seconds[method] * 2


@pytest.mark.parametrize("data", ["digits", "close"])
def test_plans_count_compressed_messages(data: str) -> None:
    net, X, k = tp.ring(12), _rows(data), 2
    pooled = PCA(svd_solver="full").fit(X)
    A = deepca.operators.from_rows(deepca.operators.split_rows(X - X.mean(axis=0), 12), scale=12 / (len(X) - 1))
    found = plan(
        net,
        k,
        eigenvalues=pooled.explained_variance_,
        rows_per_agent=len(X) // 12,
        latency=0.03,
        bandwidth=30e6,
        messages="float32",
    )
    W0 = deepca.operators.linalg.random_orthonormal(A.d, k, seed=7)
    for method in ("accelerated", "deepca"):
        algorithm = create_algorithm(method, A, W0, deepca.SimulatedNetwork(net), messages="float32")
        run = deepca.solve(algorithm, max_iter=20_000, stop=deepca.Tolerance(TOL))
        assert run.certificate is not None
        sent = run.traffic + run.certificate.traffic
        assert sent.bytes_per_agent / 2 <= found[method].total.bytes_per_agent <= sent.bytes_per_agent * 2
        assert (sent.rounds + sent.control_rounds) / 2 <= found[method].total.all_rounds
    assert "float64" in found["krylov"].remark
    assert "float64" not in found["accelerated"].remark


# ------------------------------------------------------------------------------------- large d, many iterations


@pytest.mark.parametrize("graph", ["erdos-renyi", "ring"])
def test_representing_all_columns_by_fewer_changes_little(graph: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, values = GRAPHS_OF_THE_SUITE[graph](), 1.0 / np.arange(1.0, 301.0)

    def made() -> Plan:
        return plan(net, 5, eigenvalues=values, latency=0.03, bandwidth=30e6, rows_per_agent=300)

    whole = made()
    monkeypatch.setattr(rehearsal, "MAX_COLUMNS", 70 * net.n_agents)
    fewer = made()
    assert (whole.tried_dim, fewer.tried_dim) == (300, 70)
    assert whole.dim == fewer.dim == 300
    for method in PLANNED_ALGORITHMS:
        assert fewer[method].total.all_rounds == pytest.approx(whole[method].total.all_rounds, rel=0.5), method
        assert fewer[method].total.bytes_per_agent == pytest.approx(whole[method].total.bytes_per_agent, rel=0.5)
    covariance = fewer["covariance"].iteration_cost
    assert covariance.bytes_per_agent == pytest.approx(whole["covariance"].iteration_cost.bytes_per_agent, rel=1e-3)
    assert fewer.preparation == whole.preparation


def test_one_matrix_can_represent_very_many_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    values = 0.7 ** np.arange(40.0)
    whole = plan("ring:8", 2, eigenvalues=values, latency=0.03, bandwidth=30e6, rows_per_agent=100_000)
    monkeypatch.setattr(rehearsal, "MAX_ENTRIES", 0)
    alike = plan("ring:8", 2, eigenvalues=values, latency=0.03, bandwidth=30e6, rows_per_agent=100_000)
    for method in PLANNED_ALGORITHMS:
        assert alike[method].reaches_tol
        assert alike[method].total.all_rounds == pytest.approx(whole[method].total.all_rounds, rel=0.5), method
    assert alike["covariance"].iteration_cost.busiest_bytes == whole["covariance"].iteration_cost.busiest_bytes


def test_a_long_run_is_extrapolated(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.concatenate([[2.0, 1.5, 1.0], 0.98 * 0.95 ** np.arange(30)])
    net = tp.erdos_renyi(10, 0.5, seed=0)

    def deepca_of() -> Prediction:
        made = plan(net, 3, eigenvalues=values, latency=0.03, bandwidth=30e6, algorithms=["deepca"], tol=1e-8)
        return made["deepca"]

    to_the_end = deepca_of()
    monkeypatch.setattr(rehearsal, "MAX_REHEARSED_ITERATIONS", 120)
    begun = deepca_of()
    assert not to_the_end.extrapolated
    assert to_the_end.iterations > 600
    assert begun.extrapolated
    assert "120 iterations" in begun.remark
    assert begun.iterations == pytest.approx(to_the_end.iterations, rel=0.1)
    assert begun.total.seconds == pytest.approx(to_the_end.total.seconds, rel=0.3)
    assert begun.total.bytes_per_agent == pytest.approx(to_the_end.total.bytes_per_agent, rel=0.3)


def test_a_method_that_takes_too_many_iterations_is_not_recommended() -> None:
    values = np.concatenate([[1.0, 0.5, 0.5 - 1e-7], 0.1 * 0.9 ** np.arange(20)])
    found = plan("ring:5", 2, eigenvalues=values, latency=0.03, bandwidth=30e6, unreliable=True, algorithms=["deepca"])
    assert not found["deepca"].reaches_tol
    assert "1,000,000 iterations" in found["deepca"].remark
    assert found.recommended is None


# ------------------------------------------------------------------------------------------------ recommendation


def test_covariance_is_recommended_only_if_allowed() -> None:
    """On this problem it is the fastest method, both as predicted and in actual runs."""
    measured = _measured("cancer", "ring", 5)
    assert min(measured.seconds, key=lambda method: measured.seconds[method]) == "covariance"
    made = measured.plan
    assert made["covariance"].total.seconds < made["krylov"].total.seconds
    assert made.recommended == "krylov"
    assert "unless allowed" in made["covariance"].remark
    assert "tree" in made.reason
    pooled = PCA(svd_solver="full").fit(_rows("cancer"))
    allowed = plan(
        tp.ring(12),
        5,
        eigenvalues=pooled.explained_variance_,
        rows_per_agent=47,
        latency=0.03,
        bandwidth=30e6,
        allow_covariance=True,
    )
    assert allowed.recommended == "covariance"
    assert "reveals" in allowed.reason


@pytest.mark.parametrize("graph", list(GRAPHS_OF_THE_SUITE))
@pytest.mark.parametrize("dim", [4, 12, 80])
def test_covariance_is_never_recommended_by_default(graph: str, dim: int) -> None:
    for unreliable in (False, True):
        made = plan(GRAPHS_OF_THE_SUITE[graph](), 1, dim=dim, latency=0.1, bandwidth=1e9, unreliable=unreliable)
        assert made.recommended in ("accelerated", "krylov", "deepca")
        assert "covariance" not in made.reason


def test_no_method_that_needs_a_tree_is_recommended_on_an_unreliable_network() -> None:
    made = plan("torus:3x4", 2, dim=30, latency="30ms", bandwidth="30Mbit", unreliable=True, allow_covariance=True)
    assert made["krylov"].total.seconds < made["accelerated"].total.seconds
    assert made.recommended in ("accelerated", "deepca")
    assert "tree" not in made.reason
    for method in ("krylov", "covariance"):
        assert "not recommended" in made[method].remark


def test_the_reason_compares_with_the_second_best() -> None:
    made = plan("torus:3x4", 2, dim=30, latency="30ms", bandwidth="30Mbit", algorithms=["krylov", "deepca"])
    factor = made["deepca"].total.seconds / made["krylov"].total.seconds
    assert f"{factor:.1f} times as fast as deepca" in made.reason
    alone = plan("torus:3x4", 2, dim=30, latency="30ms", bandwidth="30Mbit", algorithms=["deepca"])
    assert alone.recommended == "deepca"
    assert "only" in alone.reason


def test_a_plan_is_frozen_and_plain() -> None:
    made = plan("ring:6", 2, dim=20, latency="30ms", bandwidth="30Mbit", algorithms=["krylov"])
    with pytest.raises(FrozenInstanceError):
        made.dim = 3  # type: ignore[misc]
    assert json.loads(json.dumps(asdict(made)))["predictions"][0]["algorithm"] == "krylov"
    assert made["krylov"] is made.predictions[0]
    with raises(ParameterError, parameter="algorithm", value="deepca"):
        made["deepca"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_names_of_version_0_1_still_work() -> None:
    old: dict[str, Any] = {"methods": ["krylov"]}
    with pytest.deprecated_call():
        made = plan("ring:6", 2, dim=20, latency="30ms", bandwidth="30Mbit", **old)
    prediction: Any = made["krylov"]
    assert prediction.method == prediction.algorithm == "krylov"
    assert prediction.running is prediction.iteration_cost
    assert prediction.proof is prediction.certificate_cost
    assert prediction.reaches is prediction.reaches_tol
    assert deepca.planning.METHODS is PLANNED_ALGORITHMS


def test_plans_are_reproducible() -> None:
    made = [plan("ring:6", 2, dim=20, latency="30ms", bandwidth="30Mbit") for _ in range(2)]
    assert made[0] == made[1]


def test_without_a_spectrum_the_plan_states_its_assumption() -> None:
    made = plan("ring:6", 2, dim=20, latency=0.0, bandwidth=1e9, algorithms=["krylov"])
    assert "1/i" in made.spectrum
    given = plan("ring:6", 2, eigenvalues=1 / np.arange(1, 21), latency=0.0, bandwidth=1e9, algorithms=["krylov"])
    assert given.predictions == made.predictions  # it did assume 1/i
    assert "20 eigenvalues" in given.spectrum


def test_order_and_unit_of_eigenvalues_do_not_matter() -> None:
    values = 0.8 ** np.arange(20.0)
    made = [
        plan("ring:6", 2, eigenvalues=given, latency=0.01, bandwidth=1e8, algorithms=["accelerated"]).predictions
        for given in (values, values[::-1], 2.0**40 * values)
    ]
    assert made[0] == made[1] == made[2]


def test_missing_eigenvalues_are_continued_geometrically() -> None:
    values, source = spectrum_of([1.0, 0.5, 0.25], 6, 1)
    np.testing.assert_allclose(values, 0.5 ** np.arange(6), rtol=1e-12)
    assert "3 more" in source
    values, _ = spectrum_of([4.0, 2.0, 0.0], 5, 1)
    np.testing.assert_array_equal(values, [1.0, 0.5, 0.0, 0.0, 0.0])


def test_surrogates_have_the_given_spectrum_and_differ_like_samples() -> None:
    values = 0.8 ** np.arange(15.0)
    few, many = (SurrogateAgents.of(values, 3, 200, rows, 0, 15) for rows in (10, 1000))
    for agents in (few, many):
        mean = agents.A.mean()
        np.testing.assert_allclose(np.linalg.eigvalsh(mean)[::-1], values, atol=1e-12)
        np.testing.assert_allclose(mean @ agents.U, agents.U * values[:3], atol=1e-12)
    # Wishart: E ‖A_j − A‖² = (tr² + tr A²) / n; that of real data is twice as large
    expected = values.sum() ** 2 + np.square(values).sum()
    for agents, rows in ((few, 10), (many, 1000)):
        apart = np.square(agents.A.dense() - agents.A.mean()).sum(axis=(1, 2)).mean()
        assert apart == pytest.approx(2.0 * expected / rows, rel=0.15)


@pytest.mark.parametrize("data", ["digits", "cancer", "cancer, scaled", "close"])
def test_surrogates_differ_about_as_much_as_sites_with_real_data(data: str) -> None:
    X, m = _rows(data), 20
    stack = np.stack([B.T @ B / len(B) for B in np.array_split(X - X.mean(axis=0), m)])
    values = np.linalg.eigvalsh(stack.mean(axis=0))[::-1]
    agents = SurrogateAgents.of(np.maximum(values, 0.0), 2, m, len(X) // m, 0, 64)
    there, here = (np.square(A - A.mean(axis=0)).sum() for A in (stack, agents.A.dense()))
    assert 0.5 <= here / there <= 2.0


def test_the_start_of_fewer_columns_is_as_far_from_the_answer() -> None:
    """The leading subspace contains k²/d of the squared norm of a random start in d dimensions."""
    within = []
    for seed in range(40):
        agents = SurrogateAgents.of(1.0 / np.arange(1.0, 5001.0), 2, 3, 100, seed, 64)
        assert agents.A.d < 1000
        within.append(np.square(agents.U.T @ agents.W0).sum())
    assert np.mean(within) == pytest.approx(4 / 5000, rel=0.4)


# --------------------------------------------------------------------------------------------------------- meter


@pytest.mark.parametrize("name", list(GRAPHS))
@pytest.mark.parametrize("method", PLANNED_ALGORITHMS)
def test_the_meter_counts_what_the_network_counts(name: str, method: str) -> None:
    net = GRAPHS[name]()
    stack = spectrum_problem(net.n_agents, 12, 0.6 ** np.arange(12.0), seed=1)
    network = MeteredNetwork(net, LINK)
    W0 = deepca.operators.linalg.random_orthonormal(12, 2, seed=0)
    run = deepca.solve(create_algorithm(method, stack, W0, network), max_iter=500, stop=deepca.Tolerance(TOL))
    assert run.certificate is not None
    for sent, traffic in ((network.running, run.traffic), (network.proving, run.certificate.traffic)):
        assert (sent.rounds, sent.control_rounds) == (traffic.rounds, traffic.control_rounds)
        assert sent.bytes.sum() == pytest.approx(traffic.bytes_sent, rel=1e-12)


@pytest.mark.parametrize("name", ["erdos-renyi", "star", "path", "hypercube"])
def test_bytes_of_each_agent_are_those_of_separate_agents(name: str) -> None:
    """The engine with a thread per agent counts what each agent has sent."""
    net = GRAPHS[name]()
    m = net.n_agents
    stack = spectrum_problem(m, 10, 0.6 ** np.arange(10.0), seed=1)
    W0 = deepca.operators.linalg.random_orthonormal(10, 2, seed=0)
    network = MeteredNetwork(net, LINK)
    stop = deepca.Tolerance(1e-6)
    deepca.solve(deepca.DeEPCA(stack, W0, network, FastMix(4)), max_iter=100, stop=stop)
    runs = run_threads(
        net,
        deepca.operators.from_matrices(stack),
        lambda A, agent: deepca.DeEPCA(A, W0, agent, FastMix(4)),
        max_iter=100,
        stop=stop,
    )
    np.testing.assert_allclose(network.running.bytes, [run.traffic.bytes_sent for run in runs], rtol=1e-12)
    proofs = [run.certificate.traffic.bytes_sent for run in runs if run.certificate is not None]
    np.testing.assert_allclose(network.proving.bytes, proofs, rtol=1e-12)


def test_time_is_latency_plus_what_the_busiest_agent_sends() -> None:
    """A star of five, by hand: in a round of gossip the centre sends four messages, every other agent one."""
    link = LinkSpeed(0.5, 1000.0)
    network = MeteredNetwork(tp.star(5), link)
    network.gossip(np.zeros((5, 10)))
    assert network.running.cost() == Cost(1, 0, 8 / 5 * 80, 320.0, 0.5 + 4 * 80 * 8 / 1000)
    network = MeteredNetwork(tp.star(5), link)
    # plus the number of agents; up, one each, then down, four from the centre
    exact_average(network, np.zeros((5, 9)), Unit(0))
    assert network.running.cost() == Cost(2, 0, 8 / 5 * 80, 320.0, 2 * 0.5 + (1 + 4) * 80 * 8 / 1000)
    up, down = TreeSweep().weights(tp.star(5))
    for weights, sent in ((up, [0, 80, 80, 80, 80]), (down, [320, 0, 0, 0, 0])):
        network = MeteredNetwork(tp.star(5), link)
        network.gossip(np.zeros((5, 10)), weights)
        np.testing.assert_array_equal(network.running.bytes, sent)
        assert network.running.seconds == 0.5 + max(sent) * 8 / 1000
    network = MeteredNetwork(tp.path(3), link)
    network.reduce(np.zeros((3, 2)), "max")
    assert network.running.cost() == Cost(0, 2, 2 * 4 / 3 * 16, 2 * 2 * 16.0, 2 * 0.5 + 2 * 2 * 16 * 8 / 1000)


def test_proof_and_iterations_are_counted_separately() -> None:
    network = MeteredNetwork(tp.ring(4), LINK)
    for phase, made in (("step", 1), ("certificate", 2), ("axes", 3), ("verdict", 4)):
        network.begin(0, 0, phase)
        for _ in range(made):
            network.gossip(np.zeros((4, 1)))
    assert (network.running.rounds, network.proving.rounds) == (5, 5)


def test_totals_add_and_scale() -> None:
    one = Sent(2, 1, np.array([8.0, 16.0]), 0.5)
    twice = one + one
    assert (twice.rounds, twice.control_rounds, twice.seconds) == (4, 2, 1.0)
    assert (twice - one).cost() == one.cost() == (twice * 0.5).cost()
    assert one.cost() == Cost(2, 1, 12.0, 16.0, 0.5)
    assert one.cost().all_rounds == 3


@pytest.mark.parametrize("size", [2, 4, 8])
def test_only_messages_with_columns_grow(size: int) -> None:
    length = MessageLength(used=100, d=5000, m=30, columns=3)
    for columns in (3, 8, 17):
        assert length(size * columns * 100) == size * columns * 5000
        assert length(size * columns * 101) == size * columns * 5001  # plus exponents, or eigenvalues
    assert length(8 * (2 * 3 * 100 + 3)) == 8 * (2 * 3 * 5000 + 3)
    assert length(8 * 20) == 8 * 20  # a few scalars
    assert MessageLength(100, 5000, 1000, 3)(8 * 1002) == 8 * 1002  # one number per agent, plus two
    assert length(8 * (100 * 101 // 2 + 1)) == 8 * (5000 * 5001 // 2 + 1)  # a covariance
    assert MessageLength(100, 100, 30, 3)(8 * 300) == 8 * 300


# --------------------------------------------------------------------------------------------------------- input


@pytest.mark.parametrize(
    ("text", "value"),
    [("30ms", 0.03), ("0.03s", 0.03), ("500us", 5e-4), ("500 µs", 5e-4), (" 2 s ", 2.0), ("0ms", 0.0), ("1e2ns", 1e-7)],
)
def test_latencies_are_parsed(text: str, value: float) -> None:
    assert seconds(text) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize("text", ["30", "ms", "30 m", "-3ms", "1.2.3ms", "30MS", "", "nans", "inf s"])
def test_invalid_latencies_are_rejected(text: str) -> None:
    with raises(ParameterError, parameter="latency", value=text):
        seconds(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("30Mbit", 30e6),
        ("30Mbit/s", 30e6),
        ("30 Mbps", 30e6),
        ("1Gbit", 1e9),
        ("2MB", 16e6),
        ("2MB/s", 16e6),
        ("64kbit", 64e3),
        ("9600bit", 9600.0),
        ("1.5TB", 12e12),
    ],
)
def test_bandwidths_are_parsed(text: str, value: float) -> None:
    assert bits_per_second(text) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize("text", ["30", "30M", "30Mb", "30mb", "0Mbit", "-1Mbit", "fast", "1..2Mbit", ""])
def test_invalid_bandwidths_are_rejected(text: str) -> None:
    with raises(ParameterError, parameter="bandwidth", value=text):
        bits_per_second(text)


@pytest.mark.parametrize(
    ("changes", "error", "facts"),
    [
        ({"n_components": 0}, ParameterError, {"parameter": "n_components", "value": 0}),
        ({"n_components": True}, ParameterError, {"parameter": "n_components", "value": True}),
        ({"n_components": 20}, ParameterError, {"parameter": "n_components", "value": 20}),
        ({"dim": None}, ParameterError, {"parameter": "dim", "value": None}),
        ({"dim": 1, "n_components": 1}, ParameterError, {"parameter": "n_components", "value": 1}),
        ({"latency": -1.0}, ParameterError, {"parameter": "latency", "value": -1.0}),
        ({"latency": math.nan}, ParameterError, {"parameter": "latency"}),
        ({"bandwidth": 0.0}, ParameterError, {"parameter": "bandwidth", "value": 0.0}),
        ({"bandwidth": math.inf}, ParameterError, {"parameter": "bandwidth", "value": math.inf}),
        ({"latency": 1e301}, ParameterError, {"parameter": "latency", "value": 1e301}),
        ({"latency": 10**400}, ParameterError, {"parameter": "latency", "value": 10**400}),
        ({"bandwidth": 1e301}, ParameterError, {"parameter": "bandwidth", "value": 1e301}),
        ({"bandwidth": 1e-301}, ParameterError, {"parameter": "bandwidth", "value": 1e-301}),
        ({"bandwidth": 10**400}, ParameterError, {"parameter": "bandwidth", "value": 10**400}),
        ({"eigenvalues": [10**400, 3, 2]}, InvalidInput, {"parameter": "eigenvalues"}),
        ({"tol": 0.0}, ParameterError, {"parameter": "tol", "value": 0.0}),
        ({"rows_per_agent": 0}, ParameterError, {"parameter": "rows_per_agent", "value": 0}),
        ({"messages": "int8"}, ParameterError, {"parameter": "messages", "value": "int8"}),
        ({"algorithms": ["power"]}, ParameterError, {"parameter": "algorithms", "value": "power"}),
        ({"topology": "complete:1"}, InvalidInput, {"parameter": "topology", "value": "complete(1)"}),
        ({"eigenvalues": [3.0, 2.0]}, InvalidInput, {"parameter": "eigenvalues", "value": 2}),
        ({"eigenvalues": [3.0, 2.0, 2.0]}, GapError, {"parameter": "n_components", "value": 2}),
        ({"eigenvalues": [1.0, 1e-6, 1e-6 * (1 - 1e-4)]}, GapError, {"parameter": "n_components", "value": 2}),
        ({"eigenvalues": [3.0, 2.0, -1.0]}, InvalidInput, {"parameter": "eigenvalues", "value": -1.0}),
        ({"eigenvalues": [3.0, 2.0, math.nan]}, InvalidInput, {"parameter": "eigenvalues", "value": None}),
        ({"eigenvalues": [0.0, 0.0, 0.0]}, InvalidInput, {"parameter": "eigenvalues", "value": None}),
        ({"eigenvalues": np.arange(1.0, 30.0)}, InvalidInput, {"parameter": "eigenvalues", "value": 29}),
    ],
)
def test_invalid_arguments_are_rejected(
    changes: dict[str, Any], error: type[Exception], facts: dict[str, object]
) -> None:
    arguments = {"topology": "ring:6", "n_components": 2, "dim": 20, "latency": "1ms", "bandwidth": "1Gbit", **changes}
    with raises(error, **facts):
        plan(**arguments)


def test_the_name_of_a_network_must_contain_the_number_of_agents() -> None:
    with pytest.raises(TopologyError):
        plan("ring", 2, dim=20, latency="1ms", bandwidth="1Gbit")


def test_eigenvalues_are_read_from_files(tmp_path: Path) -> None:
    values = np.array([3.0, 1.0, 0.25, 2e-3])
    np.save(tmp_path / "v.npy", values.reshape(2, 2))
    (tmp_path / "lines.txt").write_text("# largest first\n3\n1.0  # the second\n\n0.25\n2e-3\n")
    (tmp_path / "commas.csv").write_text("3, 1.0,0.25;2e-3")
    for name in ("v.npy", "lines.txt", "commas.csv"):
        np.testing.assert_array_equal(read_eigenvalues(tmp_path / name), values)


def test_files_without_eigenvalues_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("three\ntwo\n")
    (tmp_path / "broken.npy").write_bytes(b"\x93NUMPY")
    np.save(tmp_path / "names.npy", np.array(["a", "b"]))
    for name in ("words.txt", "broken.npy", "names.npy"):
        with raises(DataError, file=str(tmp_path / name)):
            read_eigenvalues(tmp_path / name)
    (tmp_path / "typo.txt").write_text("3, 2\n# more\n1, l.5\n")
    with raises(DataError, file=str(tmp_path / "typo.txt"), line=3, value="l.5"):
        read_eigenvalues(tmp_path / "typo.txt")
    np.save(tmp_path / "objects.npy", np.array([1.0, None]), allow_pickle=True)
    with pytest.raises(DataError) as caught:
        read_eigenvalues(tmp_path / "objects.npy")
    assert "pickle" not in str(caught.value)
    (tmp_path / "latin.txt").write_bytes(b"3.0 \xe9\n")
    with raises(DataError, file=str(tmp_path / "latin.txt")):
        read_eigenvalues(tmp_path / "latin.txt")
    with pytest.raises(FileNotFoundError):
        read_eigenvalues(tmp_path / "none.txt")


@pytest.mark.parametrize("data", ["digits", "cancer"])
def test_eigenvalues_of_a_probe_equal_those_of_scikit_learn(data: str) -> None:
    X = _rows(data)
    values, n = probed_eigenvalues(as_source(X + 100.0, "probe"))
    pooled = PCA(svd_solver="full").fit(X)
    assert n == len(X)
    np.testing.assert_allclose(values, pooled.explained_variance_, atol=1e-9 * pooled.explained_variance_[0])


def test_eigenvalues_of_a_scaled_probe_are_those_of_the_correlations() -> None:
    values, _ = probed_eigenvalues(as_source(_rows("cancer"), "probe"), scale=True)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(np.corrcoef(_rows("cancer").T))[::-1], atol=1e-10)
    constant, _ = probed_eigenvalues(as_source(np.array([[1.0, 2.0], [1.0, 4.0]]), "probe"), scale=True)
    np.testing.assert_allclose(constant, [1.0, 0.0], atol=1e-15)


def test_a_probe_needs_at_least_two_rows() -> None:
    with raises(DataError, value=1):
        probed_eigenvalues(as_source(np.ones((1, 3)), "probe"))


@pytest.mark.parametrize(("parameter", "value"), [("dim", 10**301), ("dim", 0), ("rows_per_agent", 10**301)])
def test_sizes_beyond_any_memory_are_rejected(parameter: str, value: int) -> None:
    with raises(ParameterError, parameter=parameter, value=value):
        given: dict[str, Any] = {"dim": 20, parameter: value}
        plan("ring:6", 2, latency="1ms", bandwidth="1Gbit", **given)


def test_a_private_plan_recommends_methods_that_only_add_up() -> None:
    asked = {"latency": 0.02, "bandwidth": 5e7, "dim": 40}
    open_plan, private = (deepca.plan("ring:6", 3, private=private, **asked) for private in (False, True))  # type: ignore[arg-type]
    assert private.private
    assert private.recommended == "krylov"
    assert all("gossips" in one.remark for one in private.predictions if one.algorithm not in ("krylov", "covariance"))
    krylov, masked = open_plan["krylov"], private["krylov"]
    assert (masked.iterations, masked.iteration_cost.rounds) == (krylov.iterations, krylov.iteration_cost.rounds)
    assert 1.0 < masked.total.bytes_per_agent / krylov.total.bytes_per_agent < 1.05  # check numbers
    with raises(MixingError, parameter="privacy"):
        deepca.plan("path:2", 3, private=True, **asked)  # type: ignore[arg-type]
