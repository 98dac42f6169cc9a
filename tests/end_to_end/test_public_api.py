"""Test that public functions and exported names work as documented."""

from __future__ import annotations

import inspect
import math

import networkx as nx
import numpy as np
import scipy.linalg

import deepca


def test_public_calls_work_as_documented() -> None:
    """Go from rows to a result and check every documented attribute."""
    rng = np.random.default_rng(0)
    d, k, m = 20, 3, 50
    scales = np.array([6.0, 5.0, 4.0, *np.linspace(1.5, 0.5, d - 3)])
    rows = [rng.standard_normal((30, d)) * scales for _ in range(m)]
    A_mean = sum(X.T @ X for X in rows) / m
    values, vectors = scipy.linalg.eigh(A_mean)
    U = vectors[:, ::-1][:, :k]

    topology = deepca.topology.erdos_renyi(50, 0.5, seed=0)
    network = deepca.SimulatedNetwork(topology)
    A = deepca.operators.from_rows(rows)
    W0 = deepca.operators.linalg.random_orthonormal(d, k, seed=0)
    trace = deepca.solver.observers.Trace(U=U)
    result = deepca.solve(deepca.DeEPCA(A, W0, network, deepca.FastMix(rounds=5)), max_iter=200, observers=[trace])

    assert topology.n_agents == 50
    L = topology.gossip_matrix
    np.testing.assert_allclose(L, L.T)
    np.testing.assert_allclose(L.sum(axis=1), 1.0)
    assert math.isclose(topology.lambda2, np.linalg.eigvalsh(L)[-2], abs_tol=1e-12)
    graph = topology.to_networkx()
    assert isinstance(graph, nx.Graph)
    assert set(topology.neighbors(7)) == set(graph.neighbors(7))
    np.testing.assert_allclose(topology.laplacian, nx.laplacian_matrix(graph, weight=None).toarray())

    assert result.W.shape == (50, d, k)
    assert result.eigenvalues.shape == (50, k)
    np.testing.assert_allclose(result.eigenvalues, np.broadcast_to(values[::-1][:k], (50, k)), rtol=1e-10)
    assert result.iterations == 200
    assert isinstance(result.status, deepca.Status)
    assert result.status.code == "completed"
    assert result.traffic.rounds == 5 * 200
    assert result.traffic.bytes_sent >= 1000 * 2 * topology.n_edges * d * k * 8
    curves = (trace.tan_theta, trace.S_disagreement, trace.W_disagreement, trace.rounds, trace.bytes)
    assert all(curve.shape == (200,) for curve in curves)
    assert trace.tan_theta[-1] <= 1e-12

    tangent = deepca.operators.linalg.tan_theta(U, result.W)  # batched over leading axes
    assert tangent.shape == (50,)
    angles = np.tan([scipy.linalg.subspace_angles(U, W).max() for W in result.W])
    np.testing.assert_allclose(tangent, angles, atol=1e-14)

    stack = np.stack([X.T @ X for X in rows])  # an (m, d, d) array directly
    direct = deepca.solve(deepca.DeEPCA(stack, W0, network, deepca.FastMix(rounds=5)), max_iter=200)
    np.testing.assert_allclose(direct.W, result.W, atol=1e-10)

    depca = deepca.solve(deepca.DePCA(A, W0, network, deepca.FastMix(rounds=5)), max_iter=60)
    assert depca.W.shape == (50, d, k)
    cpca = deepca.solve(deepca.CPCA(A_mean, W0), max_iter=200)
    assert cpca.W.shape == (d, k)
    assert deepca.operators.linalg.tan_theta(U, cpca.W) <= 1e-12


def test_theory_gives_rounds_iterations_and_communication() -> None:
    """Compute K, T and C = K · T for a problem and a topology."""
    rng = np.random.default_rng(1)
    rows = [rng.standard_normal((40, 8)) * np.array([5, 4, 1, 1, 1, 1, 1, 1]) for _ in range(10)]
    A = deepca.operators.from_rows(rows)
    topology = deepca.topology.erdos_renyi(10, 0.5, seed=0)
    problem = deepca.algorithms.theory.Problem.of(A, 2)
    K = deepca.algorithms.theory.required_rounds(problem, topology, 3.0)
    T = deepca.algorithms.theory.iterations(problem, 3.0, 1e-8)
    assert K >= 1
    assert T >= 1
    assert deepca.algorithms.theory.communication(problem, topology, 3.0, 1e-8) == K * T
    assert deepca.algorithms.theory.iterations(problem, 3.0, 1e-12) > T


def test_every_public_name_exists_and_is_documented() -> None:
    """Names in ``__all__``, here and in the listed modules, exist and have docstrings."""
    for name in deepca.__all__:
        thing = getattr(deepca, name)
        assert inspect.getdoc(thing), name
        if inspect.ismodule(thing):
            for inner in thing.__all__:
                part = getattr(thing, inner)
                if inspect.isfunction(part) or inspect.isclass(part):
                    assert inspect.getdoc(part), f"{name}.{inner}"


def test_the_version_begins_with_a_number() -> None:
    assert deepca.__version__.split(".")[0].isdigit()
