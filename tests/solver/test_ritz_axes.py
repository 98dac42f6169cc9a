"""Test that principal components are determined individually, not only as a subspace."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg

import deepca
from deepca._util.typing import Orthonormalise
from tests.support.engines import everyone, mine, network_of
from tests.support.problems import close, spectrum_problem

VALUES = np.array([5.0, 4.0, 3.0, 2.0, 1.0, 0.5])


@pytest.mark.parametrize("name", ["default", "paper", "qr", "polar"])
@pytest.mark.parametrize("k", [1, 3, 6])
def test_each_component_belongs_to_its_eigenvalue(name: str, k: int) -> None:
    stack = spectrum_problem(6, 6, VALUES, 1, 0.3)
    network = network_of(deepca.topology.complete(6))
    W0 = deepca.operators.linalg.random_orthonormal(6, k, seed=2)
    orthonormalise: Orthonormalise | None = {
        "default": None,
        "paper": deepca.QRSignAdjust(W0),
        "qr": deepca.operators.linalg.qr,
        "polar": deepca.operators.linalg.polar,
    }[name]
    algorithm = deepca.DeEPCA(stack, W0, network, deepca.FastMix(rounds=3), orthonormalise)
    result = deepca.solve(algorithm, max_iter=2000, stop=deepca.Tolerance(1e-9))
    assert result.status.ok
    values, vectors = scipy.linalg.eigh(stack.mean(axis=0))
    for j in range(len(mine(6))):
        close(result.eigenvalues[j], values[::-1][:k], atol=1e-8)
        cosines = np.abs(np.sum(result.components[j] * vectors[:, ::-1][:, :k], axis=0))
        close(cosines, np.ones(k), atol=1e-8)
    components = everyone(result.components, 6)
    close(components, np.broadcast_to(components[0], components.shape), atol=0.0)  # the same bits at every agent


def test_components_span_the_subspace_and_have_a_fixed_sign() -> None:
    stack = spectrum_problem(5, 6, VALUES, 3, 0.3)
    network = network_of(deepca.topology.ring(5))
    W0 = deepca.operators.linalg.random_orthonormal(6, 2, seed=0)
    result = deepca.solve(deepca.DeEPCA(stack, W0, network, deepca.FastMix(rounds=4)), max_iter=40)
    assert (
        deepca.operators.linalg.tan_theta(everyone(result.W, 5)[0], result.components[0]) <= 1e-12
    )  # the common components are those of agent 0
    X = result.components
    close(np.swapaxes(X, -1, -2) @ X, np.broadcast_to(np.eye(2), (len(X), 2, 2)), atol=1e-12)
    assert (np.take_along_axis(X, np.abs(X).argmax(axis=-2)[:, None, :], axis=-2) > 0).all()


def test_a_mean_with_large_negative_eigenvalues_is_reported_as_indefinite() -> None:
    values = np.array([1.0, 0.5, 0.2, 0.1, -3.0, -4.0])
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 6)))[0]
    stack = np.broadcast_to(basis @ np.diag(values) @ basis.T, (4, 6, 6))
    stack = (stack + np.swapaxes(stack, -1, -2)) / 2
    network = network_of(deepca.topology.ring(4))
    W0 = deepca.operators.linalg.random_orthonormal(6, 2, seed=0)
    result = deepca.solve(
        deepca.DeEPCA(stack, W0, network, deepca.FastMix(rounds=3)), max_iter=500, stop=deepca.Tolerance(1e-8)
    )
    assert result.status.code == "indefinite_mean"
    assert not result.status.ok
    assert result.status.numbers["smallest"] < 0.0


def test_the_states_of_a_result_cannot_be_changed() -> None:
    stack = spectrum_problem(4, 6, VALUES, 3, 0.3)
    network = network_of(deepca.topology.ring(4))
    W0 = deepca.operators.linalg.random_orthonormal(6, 2, seed=0)
    result = deepca.solve(deepca.DeEPCA(stack, W0, network, deepca.FastMix(rounds=3)), max_iter=3)
    for array in (result.W, result.state.S, result.state.AW):
        assert not array.flags.writeable
    W0[...] = 0.0  # the caller may still change their own array
    again = deepca.solve(
        deepca.DeEPCA(
            stack, deepca.operators.linalg.random_orthonormal(6, 2, seed=0), network, deepca.FastMix(rounds=3)
        ),
        max_iter=3,
    )
    close(again.W, result.W, atol=0.0)
