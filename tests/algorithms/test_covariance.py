"""Check that covariance averaging is exact in few rounds, and is used only on request."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg

import deepca
from deepca import CovarianceAveraging, Tolerance
from deepca.decomposition.settings import ALGORITHMS, create_algorithm
from deepca.operators.linalg import random_orthonormal
from tests.support.engines import network_of, over_mpi, payload, total
from tests.support.helpers import GRAPHS, worst_tangent
from tests.support.problems import spectrum, spectrum_problem


@pytest.mark.parametrize("graph", GRAPHS)
def test_the_answer_equals_the_pooled_answer_and_costs_one_average(graph: str) -> None:
    place = GRAPHS[graph]()
    stack = spectrum_problem(place.n_agents, 8, spectrum(8, 3), 1, heterogeneity=0.9, indefinite=True)
    result = deepca.solve(
        CovarianceAveraging(stack, random_orthonormal(8, 3, seed=1), network_of(place)),
        max_iter=20,
        stop=Tolerance(1e-10),
    )
    U = scipy.linalg.eigh(stack.mean(axis=0), subset_by_index=(5, 7))[1]
    assert result.status.code == "converged", result.status
    assert worst_tangent(U, result.W) <= 1e-12
    assert result.certificate is not None
    assert result.certificate.proves(1e-10)
    message = 8 * (8 * 9 // 2 + 2)  # the upper triangle and two counts
    units = 8 * (1 + 2 + 1 + 2 * 8)  # bounds of the rows, and three counts
    if over_mpi():
        return  # exact sums are collective
    # up the tree, and down again with the gap that the leader computed
    links = place.n_agents - 1
    bounds = place.n_agents * links.bit_length() if graph == "hypercube" else 2 * links
    assert payload(total(result.traffic, place.n_agents)) == (2 * message + 8) * links + units * bounds


@pytest.mark.parametrize("reliable", [True, False])
@pytest.mark.parametrize("messages", ["float64", "float32"])
def test_covariance_averaging_is_never_chosen_automatically(reliable: bool, messages: str) -> None:
    place = GRAPHS["ring"]()
    network = network_of(place)
    network.reliable = reliable
    stack = spectrum_problem(6, 4, spectrum(4, 1), 3)
    chosen = create_algorithm("auto", stack, random_orthonormal(4, 1), network, messages=messages)  # type: ignore[arg-type]
    expected = deepca.BlockKrylov if reliable and messages == "float64" else deepca.AcceleratedDeEPCA
    assert isinstance(chosen, expected)
    assert isinstance(create_algorithm("covariance", stack, random_orthonormal(4, 1), network), CovarianceAveraging)
    assert "covariance" in ALGORITHMS


@pytest.mark.parametrize("name", ["krylov", "covariance"])
def test_exact_averages_require_float64_messages(name: str) -> None:
    network = network_of(GRAPHS["ring"]())
    with pytest.raises(deepca.errors.InvalidInput, match="accelerated"):
        create_algorithm(name, np.ones((6, 2, 2)), random_orthonormal(2, 1), network, messages="float32")
