"""Test that certificates detect wrong answers on which all agents agree to 1e-12."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.linalg

import deepca
from deepca import AgentNetwork, DeEPCA, FastMix, SimulatedNetwork, Tolerance, certify, solve
from deepca._util.typing import Csr, Orthonormalise
from deepca.consensus.exact import agree_on_units
from deepca.errors import ParameterError
from deepca.network import Network
from deepca.network.transports.base import Message
from deepca.operators import from_matrices, from_rows
from deepca.operators.linalg import polar, qr
from deepca.solver.certificate.bounds import Certificate
from deepca.solver.certificate.probing import probe
from deepca.solver.result import Result
from deepca.topology import Topology
from tests.support.engines import ENGINES, Stepwise, everyone, mine, network_of, of_all, of_mine
from tests.support.errors import raises
from tests.support.helpers import worst_tangent
from tests.support.problems import pooled_answer, spectrum, spectrum_problem
from tests.support.seeds import law_seeds

Array = npt.NDArray[np.float64]
M, D, K = 6, 9, 3
PLACE = deepca.topology.ring(M)


def problem(m: int = M, seed: int = 3) -> tuple[Array, Array]:
    stack = spectrum_problem(m, D, spectrum(D, K, decay=0.6), seed, heterogeneity=0.6)
    return stack, pooled_answer(stack, K)[1]


def certified(kind: str, topology: Topology, stack: Array, X: Array, **options: Any) -> list[tuple[Certificate, Array]]:
    """Return the certificate and components at every agent, in a simulator or with one thread per agent."""
    A, m = from_matrices(stack), topology.n_agents
    everywhere = np.broadcast_to(X, (m, *X.shape[-2:])) if X.ndim == 2 else X
    if kind != "threads":
        return [certify(A.agents(mine(m)), everywhere[mine(m)], network_of(topology), **options)]
    return deepca.run_agents(topology, lambda net: certify(A.agent(net.agent), everywhere[net.agent], net, **options))


# ------------------------------------------------------------------------------------------- the four wrong answers


def unreliable(network: AgentNetwork) -> AgentNetwork:
    network.reliable = False
    return network


def unheard(network: Network, x: Array, y: Array) -> Array:
    """Return a round after which agent 0 has its own value in place of agent 1's."""
    values = everyone(x, network.n_agents)
    y[network.local == 0] += network.topology.gossip_matrix[0, 1] * (values[0] - values[1])
    return y


class Lossy(Stepwise):
    """Network in which agent 0 loses a neighbour's first message of iteration 2 and uses its own value instead."""

    reliable = False

    def gossip(self, x: Array, weights: Csr | None = None, /) -> Array:
        y = super().gossip(x, weights)
        if self.phase_and_iteration == ("step", 2) and not getattr(self, "lost", False):
            self.lost = True
            y = unheard(self, x, y)
        return y


class LossyAgent(AgentNetwork):
    """Network of a single agent with the same fault."""

    def exchange(self, message: Message, receivers: tuple[int, ...], sources: tuple[int, ...]) -> dict[int, Message]:
        received = super().exchange(message, receivers, sources)
        if self.agent == 0 and self.phase_and_iteration == ("step", 2) and not getattr(self, "lost", False):
            self.lost = True
            received[1] = replace(received[1], payload=message.payload)
        return received


def run_lossy(kind: str, stack: Array, how: Orthonormalise, **options: Any) -> tuple[list[Result[Any]], Array]:
    W0 = deepca.operators.linalg.random_orthonormal(D, K, seed=1)
    A = from_matrices(stack)
    if kind != "threads":
        result = solve(DeEPCA(A, W0, Lossy(PLACE), FastMix(5), how), **options)
        return [result], everyone(result.W, M)

    def work(network: AgentNetwork) -> Result[Any]:
        lossy = LossyAgent(PLACE, network.agent, network.transport)
        return solve(DeEPCA(A.agent(network.agent), W0, lossy, FastMix(5), how), **options)

    results = deepca.run_agents(PLACE, work)
    return results, np.stack([result.W for result in results])


@pytest.mark.parametrize("kind", ENGINES)
def test_a_lost_message_absorbed_by_reweighting_is_detected(kind: str) -> None:
    """All agents agree to 1e-12 on a wrong subspace, but the fresh average contradicts them."""
    stack, U = problem()
    results, W = run_lossy(kind, stack, qr, max_iter=300)
    assert np.ptp(W, axis=0).max() <= 1e-12
    assert worst_tangent(U, W) > 1e-6
    for result in results:
        assert result.status.code == "tracking_lost"
        assert not result.status.ok
        assert result.certificate is not None
        assert not result.certificate.proves(1e-8)
        assert result.certificate.worst_angle >= worst_tangent(U, W)


@pytest.mark.parametrize("how", [qr, polar])
@pytest.mark.parametrize("kind", ENGINES)
def test_tracking_restarts_after_a_lost_message_if_there_is_a_tolerance(kind: str, how: Orthonormalise) -> None:
    """After the restart, the answer is right."""
    stack, U = problem()
    results, W = run_lossy(kind, stack, how, max_iter=400, stop=Tolerance(1e-10))
    assert worst_tangent(U, W) <= 1e-10
    for result in results:
        assert result.status.code == "converged"
        assert result.restarts == 1, "the loss had no effect, or was not noticed"


@pytest.mark.parametrize("kind", ENGINES)
def test_losing_an_agent_without_a_restart_is_detected_and_repaired(kind: str) -> None:
    """Resume from the state of five out of six agents, which still track the mean of six."""
    six, _ = problem(6)
    five = deepca.topology.ring(5)
    stack = six[:5]
    U = pooled_answer(stack, K)[1]
    W0 = deepca.operators.linalg.random_orthonormal(D, K, seed=1)
    before = of_all(solve(DeEPCA(six, W0, network_of(PLACE), FastMix(5)), max_iter=120).state, 6)
    left = replace(before, W=before.W[:5].copy(), S=before.S[:5].copy(), AW=before.AW[:5].copy())
    A = from_matrices(stack)

    def run(stop: Tolerance | None, max_iter: int) -> list[Result[Any]]:
        if kind != "threads":
            network: Network = network_of(five)
            return [solve(DeEPCA(A, W0, network, FastMix(6)), max_iter=max_iter, stop=stop, start=of_mine(left, 5))]

        def work(network: AgentNetwork) -> Result[Any]:
            j = network.agent
            own = replace(left, W=left.W[j].copy(), S=left.S[j].copy(), AW=left.AW[j].copy())
            return solve(DeEPCA(A.agent(j), W0, network, FastMix(6)), max_iter=max_iter, stop=stop, start=own)

        return deepca.run_agents(five, work)

    wrong = run(None, 60)
    W = everyone(wrong[0].W, 5) if kind != "threads" else np.stack([result.W for result in wrong])
    assert np.ptp(W, axis=0).max() <= 1e-12
    assert worst_tangent(U, W) > 1e-4
    assert {result.status.code for result in wrong} == {"tracking_lost"}
    right = run(Tolerance(1e-9), 400)
    W = everyone(right[0].W, 5) if kind != "threads" else np.stack([result.W for result in right])
    assert {result.status.code for result in right} == {"converged"}
    assert worst_tangent(U, W) <= 1e-9


@pytest.mark.parametrize("kind", ENGINES)
def test_eigenvectors_two_to_k_plus_one_are_not_the_top(kind: str) -> None:
    """The residual is zero and all agents have the same bits, but a larger eigenvalue lies outside the subspace."""
    stack, _ = problem()
    values, vectors = pooled_answer(stack, K + 1)
    for certificate, _ in certified(kind, PLACE, stack, vectors[:, 1:], tol=1e-12):
        assert certificate.residual <= 1e-11
        assert certificate.larger_outside
        assert not certificate.proves(1e-3)
        assert certificate.next_eigenvalue == pytest.approx(values[0], rel=1e-4)


@pytest.mark.parametrize("kind", ENGINES)
def test_a_start_orthogonal_to_the_top_ends_as_not_top(kind: str) -> None:
    """Features do not mix here, so power iterations never find directions that are missing in W⁰."""
    values = np.array([5.0, 4.0, 3.0, 2.0, 1.0, 0.5])
    stack = np.stack([np.diag(values)] * 4)
    W0 = np.eye(6)[:, 1:3]
    place = deepca.topology.ring(4)
    if kind != "threads":
        results = [solve(DeEPCA(stack, W0, network_of(place)), max_iter=200, stop=Tolerance(1e-8))]
    else:
        results = deepca.run_agents(
            place, lambda net: solve(DeEPCA(stack[net.agent], W0, net), max_iter=200, stop=Tolerance(1e-8))
        )
    for result in results:
        assert result.status.code == "not_top"
        assert np.isclose(result.status.numbers["outside"], 5.0)
        assert "random_orthonormal" in result.status.advice


@pytest.mark.parametrize("kind", ENGINES)
def test_an_agent_with_a_stale_operator_is_detected(kind: str) -> None:
    """Agent 2 computed with yesterday's rows: all agents agree to 1e-12, but the check against today's rows fails."""
    stack, U = problem()
    stale = stack.copy()
    stale[2] = 0.7 * stack[2] + 0.3 * np.roll(np.roll(stack[2], 1, axis=0), 1, axis=1)
    W0 = deepca.operators.linalg.random_orthonormal(D, K, seed=1)
    result = solve(DeEPCA(stale, W0, network_of(PLACE)), max_iter=300, stop=Tolerance(1e-12))
    assert result.status.code == "converged"
    components = everyone(result.components, M)
    assert np.ptp(components, axis=0).max() <= 1e-12
    wrong = worst_tangent(U, components)
    assert wrong > 1e-3
    for certificate, _ in certified(kind, PLACE, stack, components):
        assert not certificate.proves(1e-3)
        assert certificate.worst_angle >= wrong


# ----------------------------------------------------------------------------------------------------- old names


def with_warning(work: Callable[[], Any]) -> Any:
    """Return what ``work`` returns, and assert that it warns once of a deprecated name used in this file."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        value = work()
    assert [(one.category, one.filename) for one in heard] == [(DeprecationWarning, __file__)]
    return value


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        *(("failure_probability", value) for value in (-1.0, 0.0, 1.0, 2.0, np.nan)),
        *((name, value) for name in ("tol", "accuracy", "gap") for value in (-1.0, 0.0, np.nan, "1")),
        *(("max_products", value) for value in (0, -3, 1.5, True)),
    ],
)
def test_certify_names_a_parameter_that_is_out_of_range(parameter: str, value: Any) -> None:
    stack, U = problem()
    with raises(ParameterError, parameter=parameter):
        certify(stack, np.stack([U] * M), SimulatedNetwork(PLACE), **{parameter: value})


def test_a_large_tolerance_costs_no_accuracy() -> None:
    """The bound holds whatever tolerance was asked for."""
    stack, U = problem()
    X = np.linalg.qr(U + 1e-3 * np.random.default_rng(7).standard_normal(U.shape))[0]
    certificate, _ = certify(stack, np.stack([X] * M), SimulatedNetwork(PLACE), tol=1e20, gap=1e20)
    assert worst_tangent(pooled_answer(stack, U.shape[1])[1], X[None]) <= certificate.angle < 0.1


def test_parameters_of_certify_are_accepted_under_their_old_names() -> None:
    stack, U = problem()
    network, everywhere = SimulatedNetwork(PLACE), np.stack([U] * M)
    previous, _ = certify(stack, everywhere, network, failure_probability=1e-3, max_products=2)

    def old(**option: Any) -> Certificate:
        certificate: Certificate = with_warning(lambda: certify(stack, everywhere, network, **option))[0]
        return certificate

    assert old(failure=1e-3).failure == 1e-3
    assert old(products=2).products <= 2
    assert old(known=previous).bound == previous.bound


def test_counts_of_certified_components_are_available_under_their_old_names() -> None:
    stack, U = problem()
    certificate, _ = certify(stack, np.stack([U] * M), SimulatedNetwork(PLACE))
    assert with_warning(lambda: getattr(certificate, "known"))(1e-8) == certificate.n_known(1e-8) == K  # noqa: B009
    assert with_warning(lambda: getattr(certificate, "bounded")) == certificate.n_bounded == K  # noqa: B009


@pytest.mark.parametrize(("old", "new"), [("Averaged", "AverageWithError"), ("average_then", "average_and_derive")])
def test_averages_with_an_error_are_available_under_their_old_names(old: str, new: str) -> None:
    assert with_warning(lambda: getattr(deepca.consensus, old)) is getattr(deepca.consensus, new)


# ------------------------------------------------------------------------------------------------------- averages


@pytest.mark.parametrize("kind", ENGINES)
def test_permanently_broken_averaging_is_detected_by_a_number_with_a_known_mean(kind: str) -> None:
    """Agent 0 never receives messages of agent 1: fresh averages are as wrong as tracked ones."""

    class Deaf(Stepwise):
        reliable = False

        def gossip(self, x: Array, weights: Csr | None = None, /) -> Array:
            return unheard(self, x, super().gossip(x, weights))

    class DeafAgent(AgentNetwork):
        def exchange(
            self, message: Message, receivers: tuple[int, ...], sources: tuple[int, ...]
        ) -> dict[int, Message]:
            received = super().exchange(message, receivers, sources)
            if self.agent == 0 and message.payload is not None:
                received[1] = replace(received[1], payload=message.payload)
            return received

    stack, U = problem()
    A, W0 = from_matrices(stack), deepca.operators.linalg.random_orthonormal(D, K, seed=1)
    if kind != "threads":
        result = solve(DeEPCA(A, W0, Deaf(PLACE), FastMix(8)), max_iter=80, stop=Tolerance(1e-8))
        results, W = [result], everyone(result.W, M)
    else:
        results = deepca.run_agents(
            PLACE,
            lambda net: solve(
                DeEPCA(A.agent(net.agent), W0, unreliable(DeafAgent(PLACE, net.agent, net.transport)), FastMix(8)),
                max_iter=80,
                stop=Tolerance(1e-8),
            ),
        )
        W = np.stack([result.W for result in results])
    assert worst_tangent(U, W) > 1e-3
    for result in results:
        assert result.status.code == "averaging_failed"
        assert not result.status.ok


def test_nothing_is_proven_if_messages_are_lost_while_probes_are_averaged() -> None:
    """Any fresh average can be wrong: here that of A_j X is right, and those of the probes are not."""

    class LateLoss(Stepwise):
        reliable = False
        first: tuple[int, ...] = ()

        def gossip(self, x: Array, weights: Csr | None = None, /) -> Array:
            self.first = self.first or x.shape
            y = super().gossip(x, weights)
            return y if x.shape == self.first else unheard(self, x, y)

    m, d = 4, 3
    for seed in range(8):
        rng = np.random.default_rng(seed)
        Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
        E = rng.standard_normal((m, d, d))
        E = E + np.swapaxes(E, 1, 2)
        stack = (Q * [1.0, 0.8, 0.6]) @ Q.T + 5.0 * (E - E.mean(axis=0))
        missing_the_second = np.broadcast_to(Q[:, [0, 2]], (m, d, 2))[mine(m)].copy()
        network = LateLoss(deepca.topology.ring(m))
        found, _ = certify(from_matrices(stack).agents(mine(m)), missing_the_second, network, tol=1e-6)
        assert not found.averaging_ok
        assert found.angle == np.inf
        assert not found.proves(1e-6)


@pytest.mark.parametrize("graph", ["ring", "star", "complete"])
@pytest.mark.parametrize("error", [1e-2, 1e-5, 1e-9, 0.0])
def test_the_bound_holds_and_is_not_far_from_the_truth(graph: str, error: float) -> None:
    """The bound is compared with scipy for subspaces rotated by a known angle, and for wide to narrow gaps."""
    place = {"ring": deepca.topology.ring, "star": deepca.topology.star, "complete": deepca.topology.complete}[graph](M)
    for seed, gap in enumerate((0.9, 0.5, 0.1, 0.01)):
        stack = spectrum_problem(M, D, spectrum(D, K, gap=1.0 - gap, decay=0.8), seed, heterogeneity=0.6)
        _, U = pooled_answer(stack, K)
        noise = np.random.default_rng(seed).standard_normal((D, K))
        X = np.linalg.qr(U + error * noise / np.linalg.norm(noise, 2))[0]
        true = worst_tangent(U, X)
        ((certificate, _),) = certified(ENGINES[0], place, stack, X, tol=1e-12)
        assert true <= certificate.angle
        if certificate.resolved and error > 0.0:
            assert certificate.angle <= 3.0 * true / gap + 1e-10  # the residual does not show which eigenvalues mix


@pytest.mark.threads(reason="one AgentNetwork, alone")
def test_probes_estimate_eigenvalues_from_below_and_bound_them_from_above() -> None:
    """Estimates and bounds are compared with scipy for many spectra and any number of products."""
    network = AgentNetwork(deepca.topology.complete(1), 0)
    looked = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        values = np.sort(rng.uniform(0.0, 1.0, 80) ** rng.integers(1, 6))[::-1]
        Q = np.linalg.qr(rng.standard_normal((80, 80)))[0]
        A = (Q * values) @ Q.T
        A = (A + A.T) / 2.0
        X = Q[:, :3]
        outside = scipy.linalg.eigvalsh((np.eye(80) - X @ X.T) @ A @ (np.eye(80) - X @ X.T))[::-1]
        last = -np.inf
        for found, _ in probe(from_matrices(A), X, network, seed=seed, accuracy=1e-15):
            few = min(len(found.values), 3)
            assert (found.values[:few] <= outside[:few] + 1e-12).all()
            assert found.values[0] >= last - 1e-12  # more products never find less
            assert found.bound(1e-6) >= outside[0] - 1e-12
            last, looked = found.values[0], looked + 1
        assert found.exact
        assert found.values[0] == pytest.approx(outside[0], abs=1e-12)
    assert looked > 200


@pytest.mark.threads(reason="one AgentNetwork, alone")
def test_the_bound_fails_no_more_often_than_stated() -> None:
    """Failures of both kinds of bound are counted over many starts, with a stated probability that is large enough."""
    network, failure, starts = AgentNetwork(deepca.topology.complete(1), 0), 0.3, 100
    rng = np.random.default_rng(0)
    for values in (np.linspace(1.0, 0.0, 60), 0.9 ** np.arange(60.0), np.r_[1.0, np.linspace(0.9, 0.1, 59)]):
        Q = np.linalg.qr(rng.standard_normal((60, 60)))[0]
        A = from_matrices(deepca.operators.linalg.symmetric_part((Q * values) @ Q.T))
        X = Q[:, -1:]  # the largest eigenvalue lies outside
        wrong = np.zeros((5, 2))
        better = 0
        for seed in range(starts):
            for q, (found, _) in zip(range(5), probe(A, X, network, seed=seed, accuracy=1e-15), strict=False):
                if found.exact:
                    break
                two = np.array([found.bound_a_priori(failure), found.bound_a_posteriori(failure)])
                wrong[q] += two < 1.0 - 1e-12
                better += bool(found.bound_a_posteriori(1e-6) < found.bound_a_priori(1e-6))
        assert (wrong <= (failure + 3.0 * np.sqrt(failure / starts)) * starts).all()
        assert better > 2 * starts  # most of the time


@pytest.mark.threads(reason="one AgentNetwork, alone")
def test_a_failure_probability_of_one_half_is_not_exceeded() -> None:
    """The stated probability is an upper bound on how often the bound fails."""
    network = AgentNetwork(deepca.topology.complete(1), 0)
    values = np.r_[1.0, np.full(399, 0.5)]
    A, X = from_matrices(np.diag(np.r_[2.0, values])), np.eye(401)[:, :1]
    draws, fails, told = 200, 0, 0
    for seed in range(draws):
        for found, _ in probe(A, X, network, seed=seed, accuracy=1e-15):
            bound = found.bound(0.5)
            if np.isfinite(bound):
                told += 1
                fails += bound < 1.0
                break
    assert told == draws
    assert fails <= draws / 2


@pytest.mark.parametrize("kind", ENGINES)
def test_every_agent_has_the_same_certificate_and_the_number_of_contributors(kind: str) -> None:
    """Rows are counted without revealing any agent's count; the digest is that of the components."""
    rng = np.random.default_rng(0)
    counts = [3, 17, 5, 40, 11, 8]
    rows = [rng.standard_normal((n, D)) * 0.6 ** np.arange(D) for n in counts]
    W0 = deepca.operators.linalg.random_orthonormal(D, K, seed=1)
    for form in ("rows", "covariance"):
        A = from_rows(rows, form=form)
        if kind != "threads":
            result = solve(DeEPCA(A, W0, network_of(PLACE)), max_iter=500, stop=Tolerance(1e-9))
            results, components = [result], list(everyone(result.components, M))
        else:
            results = deepca.run_agents(
                PLACE,
                lambda net, A=A: solve(DeEPCA(A.agent(net.agent), W0, net), max_iter=500, stop=Tolerance(1e-9)),  # type: ignore[misc]
            )
            components = [result.components for result in results]
        certificates = [result.certificate for result in results]
        assert all(certificate is not None for certificate in certificates)
        for certificate in certificates:
            assert certificate is not None
            assert certificate.n_agents == M
            assert certificate.n_rows == sum(counts)
            for X in components:
                assert hashlib.sha256(np.ascontiguousarray(X).tobytes()).hexdigest() == certificate.digest
        pooled = np.concatenate(rows)
        values, U = pooled_answer(pooled.T @ pooled / M, K)
        assert worst_tangent(U, np.stack(components)) <= 1e-9
        np.testing.assert_allclose(certificates[0].eigenvalues, values, rtol=1e-9)  # type: ignore[union-attr]


def test_the_number_of_rows_is_unknown_if_one_operator_does_not_know_it() -> None:
    stack, _ = problem()
    ((certificate, _),) = certified(ENGINES[0], PLACE, stack, np.eye(D)[:, :K])
    assert certificate.n_rows is None
    assert certificate.n_agents == M


def test_separate_agents_and_the_simulator_give_the_same_certificate() -> None:
    stack, U = problem()
    one, X = certify(from_matrices(stack), np.stack([U] * M), SimulatedNetwork(PLACE))
    for certificate, other in certified(ENGINES[-1], PLACE, stack, U):
        np.testing.assert_array_equal(other, X)
        assert certificate.digest == one.digest
        assert certificate.products == one.products
        np.testing.assert_allclose(certificate.others, one.others, rtol=1e-9)
        np.testing.assert_allclose(certificate.eigenvalues, one.eigenvalues, rtol=1e-12)
        if ENGINES[-1] == "threads":
            assert certificate.traffic.rounds == one.traffic.rounds
            assert certificate.traffic.control_rounds == one.traffic.control_rounds


def test_rounds_of_the_certificate_are_counted_separately() -> None:
    stack, _ = problem()
    W0, network = deepca.operators.linalg.random_orthonormal(D, K, seed=1), network_of(PLACE)
    result = solve(DeEPCA(stack, W0, network, FastMix(5)), max_iter=50)
    assert result.traffic.rounds == 250
    assert result.certificate is not None
    assert result.certificate.traffic.rounds > 0
    assert network.traffic.rounds == 250 + result.certificate.traffic.rounds
    without = solve(DeEPCA(stack, W0, network_of(PLACE), FastMix(5)), max_iter=50, certify=False)
    assert without.certificate is None
    np.testing.assert_array_equal(without.W, result.W)


@pytest.mark.parametrize("k", [1, 4])
def test_a_single_agent_and_all_components_can_be_certified(k: int) -> None:
    """With k = d no eigenvalue lies outside that could be missed."""
    A = np.diag([4.0, 3.0, 2.0, 1.0])
    result = solve(
        deepca.CPCA(A, deepca.operators.linalg.random_orthonormal(4, k, seed=0)), max_iter=300, stop=Tolerance(1e-9)
    )
    assert result.status.code == "converged"
    assert result.certificate is not None
    assert result.certificate.n_agents == 1
    np.testing.assert_allclose(result.certificate.eigenvalues, [4.0, 3.0, 2.0, 1.0][:k], rtol=1e-12)


@pytest.mark.parametrize("scale", [1e-120, 1e-30, 1.0, 1e30, 1e120])
def test_scaling_the_data_does_not_change_the_certificate(scale: float) -> None:
    stack, U = problem()
    ((certificate, _),) = certified(ENGINES[0], PLACE, stack * scale, U)
    ((plain, _),) = certified(ENGINES[0], PLACE, stack, U)
    assert certificate.angle == pytest.approx(plain.angle, rel=0.5)
    np.testing.assert_allclose(np.array(certificate.eigenvalues) / scale, plain.eigenvalues, rtol=1e-12)
    assert certificate.proves(1e-8)


def test_a_nearly_flat_spectrum_is_not_considered_exhausted() -> None:
    """λ = 1 + 2e-11, 1 + 1e-11, 1, 1, …, started at the second: after one product only rounding adds directions."""
    d, m, tiny = 50, 4, 2e-11
    A = np.eye(d)
    A[0, 0] += tiny
    A[1, 1] += tiny / 2.0
    X = np.eye(d)[:, [1]]
    network = network_of(deepca.topology.complete(m))
    result = solve(DeEPCA(np.stack([A] * m), X, network), max_iter=300, stop=Tolerance(1e-2))
    assert not result.status.ok
    assert result.certificate is not None
    assert not result.certificate.proves(1e-2)


def test_data_of_low_rank_do_not_hide_a_broken_network() -> None:
    """With rank 2 and k = 3, the columns within the rank must be proven before the status names the rank."""

    class Silent(Stepwise):
        """Agent 2 loses everything it receives from iteration 5 on."""

        reliable = False

        def gossip(self, x: Array, weights: Csr | None = None, /) -> Array:
            y = super().gossip(x, weights)
            if self.phase_and_iteration[1] >= 5:
                y[self.local == 2] = 0.0
            return y

    stack = spectrum_problem(6, 6, np.array([2.0, 1.0, 0.0, 0.0, 0.0, 0.0]), 1, 0.9)
    W0 = deepca.operators.linalg.random_orthonormal(6, 3, seed=1)
    result = solve(DeEPCA(stack, W0, Silent(PLACE), FastMix(4)), max_iter=120, stop=Tolerance(1e-8))
    assert not result.status.ok, str(result.status)
    healthy = solve(DeEPCA(stack, W0, network_of(PLACE), FastMix(4)), max_iter=400, stop=Tolerance(1e-8))
    assert healthy.status.code == "below_rounding"  # without rows, zero and small cannot be distinguished
    assert healthy.certificate is not None
    assert healthy.certificate.n_known(1e-8) == 2
    true = worst_tangent(pooled_answer(stack, 2)[1], healthy.components[:, :, :2])
    assert true <= healthy.certificate.leading(2) <= 1e-8


@pytest.mark.parametrize("place", [PLACE, deepca.topology.ring(9), deepca.topology.star(7)], ids=lambda p: p.name)
@pytest.mark.parametrize("error", [0.0, 1e-6, 1e-3])
def test_averages_by_gossip_prove_what_exact_averages_prove(place: Topology, error: float) -> None:
    """Where messages may get lost, averages are gossiped and their error is measured; the bound is as tight."""
    stack = spectrum_problem(place.n_agents, D, spectrum(D, K), 3, 0.5)
    _, U = pooled_answer(stack, K)
    X = np.linalg.qr(U + error * np.random.default_rng(0).standard_normal(U.shape))[0]
    everywhere, found = np.stack([X] * place.n_agents), {}
    for reliable in (True, False):
        network = network_of(place)
        network.reliable = reliable
        A = from_matrices(stack[network.local])
        found[reliable], _ = certify(A, everywhere[network.local], network, tol=1e-9)
        assert worst_tangent(U, X) <= found[reliable].worst_angle + 1e-14
        np.testing.assert_allclose(found[reliable].eigenvalues, scipy_values(stack, X), rtol=1e-9)
    assert found[False].traffic.rounds > found[True].traffic.rounds
    assert found[False].worst_angle <= 2.0 * found[True].worst_angle + 1e-9


def scipy_values(stack: Array, X: Array) -> Array:
    """Return the eigenvalues of the mean within X, by scipy."""
    return np.asarray(scipy.linalg.eigvalsh(X.T @ stack.mean(axis=0) @ X)[::-1])


@pytest.mark.parametrize("seed", law_seeds(40))
def test_bounds_on_leading_parts_hold_for_any_subspace(seed: int) -> None:
    """The bounds also hold for columns that are not principal components, or are in another order."""
    rng = np.random.default_rng(seed)
    d, k = 4 + seed % 3, 3
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    values = 10.0 ** -np.sort(rng.uniform(0.0, 4.0, d))
    stack = np.stack([(Q * values) @ Q.T] * 3)
    if seed % 2:
        X = np.linalg.qr(rng.standard_normal((d, k)))[0]
    else:  # eigenvectors, nearly, in another order
        X = np.linalg.qr(Q[:, rng.permutation(k)] + 1e-3 * rng.standard_normal((d, k)))[0]
    certificate, _ = certify(stack, np.stack([X] * 3), SimulatedNetwork(deepca.topology.complete(3)))
    for r in range(1, k):
        truth = worst_tangent(Q[:, :r], X[None, :, :r])
        assert truth <= certificate.leading(r), (r, truth)


@pytest.mark.simulator("checks the arithmetic of many agents")
@pytest.mark.parametrize("m", [2, 200, 3000])
def test_the_bound_holds_if_all_agents_round_their_products_alike(m: int) -> None:
    """Entries of 0.49 units are lost in the sum, whatever the number of agents: averaging does not help."""
    d, network = 20, SimulatedNetwork(deepca.topology.star(m))
    A = np.diag([1.0, *[0.99] * (d - 1)])
    unit = agree_on_units(network, from_matrices(np.broadcast_to(A, (m, d, d)))).unit
    assert unit is not None
    assert unit.words == (1 if m < 1000 else 2)
    lost = 0.49 * 2.0 ** float(np.min(unit.exponent))
    A[0, 1:] = A[1:, 0] = lost
    X = np.broadcast_to(np.eye(d)[:, :1], (m, d, 1))
    certificate, _ = certify(from_matrices(np.broadcast_to(A, (m, d, d))), X, network)
    true = np.tan(0.5 * np.arctan2(2.0 * lost * np.sqrt(d - 1.0), 0.01))
    assert true <= certificate.angle <= 1e-11


@pytest.mark.simulator("checks the arithmetic of a few agents")
def test_the_bound_holds_for_matrices_that_are_not_quite_symmetric() -> None:
    """Products use the columns of such a matrix; its rows are shorter."""
    A = np.array([[1e12, 100.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    network = SimulatedNetwork(deepca.topology.ring(4))
    certificate, _ = certify(np.stack([A] * 4), np.broadcast_to(np.eye(3)[:, :1], (4, 3, 1)), network)
    _, V = np.linalg.eigh((A + A.T) / 2.0)
    assert abs(V[1, -1] / V[0, -1]) <= certificate.angle <= 1e-9


@pytest.mark.simulator("checks the arithmetic of a few agents")
@pytest.mark.parametrize("scale", [1e-150, 1e-12, 1e-6, 1.0, 1e150])
def test_a_row_of_zeros_does_not_affect_the_bound(scale: float) -> None:
    A = scale * np.diag([3.0, 1.0, 0.5, 0.0])
    network = SimulatedNetwork(deepca.topology.ring(4))
    certificate, _ = certify(np.stack([A] * 4), np.broadcast_to(np.eye(4)[:, :1], (4, 4, 1)), network)
    assert certificate.angle <= 1e-14
