"""Test that unusable input raises errors with facts, and that no run ends silently with NaN."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, cast

import networkx as nx
import numpy as np
import pytest
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, aslinearoperator

import deepca
from deepca import CPCA, Chebyshev, DeEPCA, DePCA, FastMix, Gossip, Tolerance
from deepca._util.typing import Array
from deepca.errors import (
    AsymmetricError,
    DataError,
    DeepcaError,
    DisconnectedError,
    InvalidInput,
    MixingError,
    NotFiniteError,
    ParameterError,
    StartError,
    TopologyError,
)
from deepca.network import AgentNetwork, SimulatedNetwork
from deepca.operators import Form, from_linear_operators, from_matrices, from_rows
from deepca.solver.result import Result
from tests.support.errors import raises
from tests.support.helpers import run_threads
from tests.support.problems import random_rows

D, K_COMPONENTS, M = 6, 2, 4


def rows() -> list[Array]:
    return random_rows(M, 9, D, seed=0)


def start() -> Array:
    return deepca.operators.linalg.random_orthonormal(D, K_COMPONENTS, seed=0)


def network() -> SimulatedNetwork:
    return SimulatedNetwork(deepca.topology.ring(M))


def algorithm(A: Any = None, W0: Any = None) -> DeEPCA:
    return DeEPCA(from_rows(rows()) if A is None else A, start() if W0 is None else W0, network(), FastMix(3))


# ---------------------------------------------------------------------------------------------- exception classes


def test_all_errors_have_one_base_class_and_bad_input_is_a_value_error() -> None:
    """Builtin exception classes can be caught as well."""
    for name in deepca.errors.__all__:
        assert issubclass(getattr(deepca.errors, name), DeepcaError)
    for kind in (DataError, StartError, TopologyError, DisconnectedError, AsymmetricError, MixingError):
        assert issubclass(kind, InvalidInput)
        assert issubclass(kind, ValueError)
    assert issubclass(NotFiniteError, ArithmeticError)
    assert issubclass(deepca.errors.PeerTimeout, TimeoutError)


# ---------------------------------------------------------------------------------------------------------- data


@pytest.mark.parametrize("form", ["rows", "covariance", "auto"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array, lambda X: X.astype(np.float32)])
def test_nan_and_inf_in_rows_are_located(kind: Callable[[Array], Any], bad: float, form: Form) -> None:
    data = rows()
    data[2][4, 3] = bad
    with raises(DataError, agent=2, row=4, column=3):
        from_rows([kind(X) for X in data], form=form)


def test_nan_in_a_matrix_is_located() -> None:
    stack = np.stack([np.eye(D)] * M)
    stack[1, 2, 5] = stack[1, 5, 2] = math.nan
    with raises(DataError, agent=1, row=2, column=5):
        algorithm(stack)


def test_nan_from_an_operator_is_rejected() -> None:
    """A trial product finds it before the run."""
    good, bad = aslinearoperator(np.eye(D)), aslinearoperator(np.diag([1.0, 2.0, math.inf, 1, 1, 1]))
    with raises(DataError, agent=1, value=None):
        from_linear_operators([good, bad])


def test_agents_with_different_numbers_of_columns_are_rejected() -> None:
    """The message has both numbers of columns."""
    data = rows()
    data[3] = data[3][:, :4]
    with raises(DataError, agent=3) as caught:
        from_rows(data)
    assert "4 columns" in str(caught.value)
    assert "6" in str(caught.value)


@pytest.mark.parametrize("call", [lambda A: algorithm(A), from_matrices], ids=["DeEPCA", "from_matrices"])
def test_matrices_of_different_sizes_are_rejected(call: Callable[[Any], object]) -> None:
    """The error is raised by deepca, not by numpy."""
    with pytest.raises(DataError) as caught:
        call([np.eye(D), np.eye(D), np.eye(D - 1), np.eye(D)])
    assert caught.value.parameter in ("A", "matrices")


def test_operators_of_different_sizes_are_rejected() -> None:
    with raises(DataError, agent=1, value=3):
        from_linear_operators([aslinearoperator(np.eye(2)), aslinearoperator(np.eye(3))])


@pytest.mark.parametrize("empty", [np.zeros((0, D)), sparse.csr_array((0, D))], ids=["dense", "csr"])
def test_an_agent_without_rows_is_rejected(empty: Any) -> None:
    data: list[Any] = list(rows())
    data[1] = empty
    with raises(DataError, agent=1, value=(0, D)):
        from_rows(data)


def test_an_agent_without_columns_is_rejected() -> None:
    with raises(DataError, agent=0, value=(3, 0)):
        from_rows([np.zeros((3, 0))])


def test_empty_lists_of_agents_are_rejected() -> None:
    """All constructors reject empty input."""
    with raises(DataError, parameter="rows", agent=None):
        from_rows([])
    with raises(DataError, parameter="operators", agent=None):
        from_linear_operators([])
    with raises(DataError, parameter="matrices", value=(0,)):
        algorithm([])
    with raises(DataError, parameter="matrices", value=(0, 3, 3)):
        from_matrices(np.zeros((0, 3, 3)))


def test_rows_that_are_not_split_over_agents_are_rejected() -> None:
    """The advice for one matrix instead of a list of blocks is split_rows."""
    with raises(DataError, parameter="rows", agent=None) as caught:
        from_rows(rows()[0])  # type: ignore[arg-type]
    assert "split_rows" in str(caught.value)


def test_rows_that_are_not_a_matrix_are_rejected() -> None:
    with raises(DataError, agent=1, value=(6,)):
        from_rows([np.ones((2, 6)), np.ones(6)])


@pytest.mark.parametrize("bad", [[["a", "b"]], np.array([[1 + 2j, 0]]), np.array([[None, 1.0]], dtype=object)])
def test_rows_that_are_not_real_numbers_are_rejected(bad: Any) -> None:
    """Strings, complex numbers and objects are rejected with their type."""
    with raises(DataError, agent=0, value=np.asarray(bad).dtype):
        from_rows([bad])


@pytest.mark.parametrize("bad", [[["a"]], np.array([[1j]]), "abc"], ids=["list of strings", "complex", "a string"])
def test_matrices_that_are_not_real_numbers_are_rejected(bad: Any) -> None:
    with pytest.raises(DataError):
        from_matrices(bad)
    with pytest.raises(DataError):
        algorithm(bad)


@pytest.mark.parametrize("scale", [[1.0, 2.0], [1.0, math.nan, 1.0, 1.0], math.inf, "big"])
def test_invalid_scales_are_rejected(scale: Any) -> None:
    """There may be too few scales, or they may not be finite, or not numbers."""
    with raises(DataError, parameter="scale"):
        from_rows(rows(), scale=scale)


def test_an_unknown_form_is_rejected() -> None:
    """The message lists the three known forms."""
    with raises(ParameterError, parameter="form", value="dense") as caught:
        from_rows(rows(), form="dense")  # type: ignore[arg-type]
    assert all(form in caught.value.expected for form in ("auto", "rows", "covariance"))


def test_an_asymmetric_matrix_is_rejected() -> None:
    """The error has the agent and the entry, and its message both values."""
    stack = np.stack([np.eye(D)] * M)
    stack[2, 1, 4] = 0.5
    with raises(DataError, agent=2, row=1, column=4) as caught:
        algorithm(stack)
    assert "0.5" in str(caught.value)


def test_an_asymmetric_operator_is_rejected() -> None:
    """A trial product finds it."""
    A = np.eye(D)
    A[0, 3] = 1.0
    with raises(DataError, agent=1):
        from_linear_operators([aslinearoperator(np.eye(D)), aslinearoperator(A)])


def test_objects_that_are_not_square_operators_are_rejected() -> None:
    oblong = LinearOperator((3, 2), matvec=lambda x: np.zeros(3), dtype=np.float64)
    with raises(DataError, agent=0):
        from_linear_operators([oblong])
    with raises(DataError, agent=0):
        from_linear_operators([np.eye(3)])  # type: ignore[list-item]


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (3,), (2, 2, 3, 3)])
def test_matrices_that_are_not_square_are_rejected(shape: tuple[int, ...]) -> None:
    with raises(DataError, parameter="matrices", value=shape):
        from_matrices(np.ones(shape))


def test_operators_for_another_number_of_agents_are_rejected() -> None:
    """The error has the batch shape of the operators."""
    with raises(DataError, parameter="A", value=(3,)):
        algorithm(from_rows(rows()[:3]))
    with raises(DataError, parameter="A", value=()):
        algorithm(np.eye(D))
    with raises(DataError, parameter="A", value=(M,)):
        DeEPCA(from_rows(rows()), start(), AgentNetwork(deepca.topology.complete(1), 0), FastMix(1))
    with raises(DataError, parameter="A", value=(2,)):
        CPCA(np.stack([np.eye(D)] * 2), start())


# ---------------------------------------------------------------------------------------------------------- start


@pytest.mark.parametrize(
    "make",
    [
        lambda W0: DeEPCA(from_rows(rows()), W0, network(), FastMix(3)),
        lambda W0: DePCA(from_rows(rows()), W0, network(), FastMix(3)),
        lambda W0: CPCA(np.eye(D), W0),
    ],
    ids=["DeEPCA", "DePCA", "CPCA"],
)
@pytest.mark.parametrize(
    ("W0", "facts"),
    [
        (np.eye(D, D + 1), {"value": (D, D + 1)}),
        (np.zeros((D, 0)), {"value": (D, 0)}),
        (np.ones((D, 2)), {"value": float(D)}),  # how far W0ᵀW0 is from I
        (2.0 * np.eye(D, 2), {"value": 3.0}),
        (np.eye(D + 1, 2), {"value": (D + 1, 2)}),
        (np.where(np.eye(D, 2) == 1.0, np.nan, 0.0), {"row": 0, "column": 0}),
        (np.where(np.eye(D, 2) == 1.0, np.inf, 0.0), {"row": 0, "column": 0}),
        (np.ones(D), {"value": (D,)}),
        (np.stack([np.eye(D, 2)] * M), {"value": (M, D, 2)}),
        ("W0", {"value": np.dtype("<U2")}),
        (np.eye(D, 2) * 1j, {"value": np.dtype(complex)}),
    ],
    ids=["k > d", "k < 1", "ones", "scaled", "other d", "NaN", "Inf", "vector", "stack", "string", "complex"],
)
def test_an_unusable_start_is_rejected(make: Callable[[Any], object], W0: Any, facts: dict[str, Any]) -> None:
    """All algorithms raise the same errors."""
    with raises(StartError, parameter="W0", **facts):
        make(W0)


@pytest.mark.parametrize("k", [0, -1, D + 1])
def test_a_random_start_of_impossible_size_is_rejected(k: int) -> None:
    with raises(StartError, parameter="k", value=k):
        deepca.operators.linalg.random_orthonormal(D, k)


def test_an_unusable_W_is_rejected_by_init() -> None:
    with raises(StartError, parameter="W", value=(5, 2)):
        algorithm().init(np.eye(5, 2))
    with raises(StartError, parameter="W", value=None):
        algorithm().init(np.full((D, 2), np.nan))


def test_a_state_of_another_problem_is_rejected() -> None:
    """Resuming with a state of other shapes is rejected, not broadcast."""
    other = DeEPCA(from_rows(rows()[:3]), start(), SimulatedNetwork(deepca.topology.ring(3)), FastMix(3))
    with raises(StartError, parameter="start", value=(3, D, K_COMPONENTS)):
        deepca.solve(algorithm(), max_iter=3, start=other.init())


# ----------------------------------------------------------------------------------------------------- parameters


@pytest.mark.parametrize("max_iter", [0, -3, 2.5, math.nan, "10"])
def test_an_invalid_number_of_iterations_is_rejected(max_iter: Any) -> None:
    """An integer of at least 1 is required."""
    with raises(ParameterError, parameter="max_iter"):
        deepca.solve(algorithm(), max_iter=max_iter)


@pytest.mark.parametrize("tol", [0.0, -1.0, 1.0, math.nan, "small"])
def test_an_invalid_tolerance_is_rejected(tol: Any) -> None:
    """A number between 0 and 1 is required."""
    with raises(ParameterError, parameter="tol"):
        Tolerance(tol)


@pytest.mark.parametrize("mixer", [FastMix, Gossip, Chebyshev])
@pytest.mark.parametrize("rounds", [0, -1, 2.5, True, "3"])
def test_an_invalid_number_of_rounds_is_rejected(mixer: Callable[[Any], object], rounds: Any) -> None:
    """An integer of at least 1 is required."""
    with raises(ParameterError, parameter="rounds", value=rounds):
        mixer(rounds)


def test_an_invalid_number_of_rounds_of_a_schedule_is_rejected() -> None:
    """The message states the iteration."""
    run = DePCA(from_rows(rows()), start(), network(), FastMix(lambda t: 2 - t))
    with raises(ParameterError, parameter="rounds", value=0) as caught:
        deepca.solve(run, max_iter=5)
    assert "iteration 2" in str(caught.value)
    text = DePCA(from_rows(rows()), start(), network(), FastMix(lambda t: "auto"))  # type: ignore[arg-type, return-value]
    with raises(ParameterError, parameter="rounds", value="auto"):
        deepca.solve(text, max_iter=5)


# ---------------------------------------------------------------------------------------------------------- graph


def test_a_disconnected_graph_is_rejected() -> None:
    with raises(DisconnectedError, components=((0, 1, 2), (3, 4))):
        deepca.topology.from_edges(5, [(0, 1), (1, 2), (3, 4)])


def test_an_isolated_agent_is_rejected() -> None:
    """An agent without edges is a component of its own."""
    with raises(DisconnectedError, components=((0, 1), (2,))):
        deepca.topology.from_edges(3, [(0, 1)])


def test_an_edge_in_one_direction_is_rejected() -> None:
    with raises(AsymmetricError, edge=("b", "c")):
        deepca.topology.from_networkx(nx.DiGraph([("a", "b"), ("b", "a"), ("b", "c")]))


def test_an_asymmetric_gossip_matrix_is_rejected() -> None:
    L = np.array([[0.5, 0.5, 0.0], [0.4, 0.3, 0.3], [0.0, 0.3, 0.7]])
    with pytest.raises(AsymmetricError) as caught:
        deepca.topology.from_gossip_matrix(L)
    assert set(caught.value.edge or ()) == {0, 1}


def test_fastmix_rejects_weights_with_negative_eigenvalues() -> None:
    """The constructor rejects them and recommends Chebyshev."""
    topology = deepca.topology.ring(M, rule="best-constant")
    with pytest.raises(MixingError) as caught:
        DeEPCA(from_rows(rows()), start(), SimulatedNetwork(topology), FastMix(3))
    assert "deepca.Chebyshev" in str(caught.value)


# -------------------------------------------------------------------------------------------------- no silent NaN


@pytest.mark.parametrize("stop", [None, Tolerance(1e-6)], ids=["no stop rule", "stop rule"])
@pytest.mark.parametrize("form", ["rows", "covariance"])
def test_data_that_overflow_raise_an_error(form: Form, stop: Tolerance | None) -> None:
    """The square of 1e200 is not finite: covariances are rejected at once, and rows during the run."""
    expected: type[DeepcaError] = DataError if form == "covariance" else NotFiniteError
    with pytest.raises(expected):
        deepca.solve(algorithm(from_rows([X * 1e200 for X in rows()], form=form)), max_iter=20, stop=stop)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("form", ["rows", "covariance"])
def test_data_that_overflow_at_one_agent_end_the_run_of_all_agents(form: Form) -> None:
    """Only agent 2 overflows; all agents stop, and the cause is raised."""
    data = rows()
    data[2] = data[2] * 1e200
    with pytest.raises((NotFiniteError, DataError)):
        run_threads(
            deepca.topology.ring(M),
            from_rows(data, form=form),
            lambda A_j, net: DeEPCA(A_j, start(), net, FastMix(3)),
            max_iter=20,
            timeout=300.0,
        )


def test_an_operator_that_returns_nan_during_the_run_is_detected() -> None:
    """It is detected even if warnings are disabled."""
    calls = 0

    def matvec(x: Array) -> Array:
        nonlocal calls
        calls += 1
        return np.full(D, np.nan) if calls > 20 else np.asarray(np.arange(D, 0, -1.0) * x.ravel())

    A = [LinearOperator((D, D), matvec=matvec, dtype=np.float64)] + [aslinearoperator(np.eye(D))] * (M - 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(NotFiniteError):
            deepca.solve(algorithm(A), max_iter=50)


@pytest.mark.parametrize("stop", [None, Tolerance(1e-7)], ids=["no stop rule", "stop rule"])
@pytest.mark.parametrize("factor", [1e-100, 1e100])
def test_very_large_and_very_small_data_give_the_same_run(factor: float, stop: Tolerance | None) -> None:
    """Entries of 1e±100 have finite products: iterations, subspace and rank are those of ordinary data."""

    def run(scale: float) -> Result[Any]:
        A = from_rows([X * scale for X in random_rows(M, 30, D, seed=0, decay=0.5)])
        return deepca.solve(DeEPCA(A, start(), network(), FastMix(8)), max_iter=100, stop=stop)

    ordinary, extreme = run(1.0), run(factor)
    assert (extreme.iterations, extreme.rank) == (ordinary.iterations, K_COMPONENTS)
    assert extreme.status.code == ordinary.status.code
    assert extreme.status.ok
    projector = ordinary.W @ np.swapaxes(ordinary.W, 1, 2)
    np.testing.assert_allclose(extreme.W @ np.swapaxes(extreme.W, 1, 2), projector, atol=1e-9)


def test_sparse_complex_rows_are_rejected() -> None:
    with raises(DataError, agent=1, value=np.dtype(complex)):
        deepca.operators.from_rows([sparse.csr_array(np.eye(3)), sparse.csr_array(np.eye(3) * 1j)])


def test_masked_rows_are_rejected() -> None:
    with pytest.raises(DataError) as caught:
        deepca.operators.from_rows([np.ma.masked_array(np.eye(3), mask=np.eye(3) > 0)])
    assert "(0, 0)" in str(caught.value)


def test_one_sparse_matrix_instead_of_one_per_agent_is_rejected() -> None:
    with raises(DataError, parameter="rows", agent=None):
        deepca.operators.from_rows(cast("Any", sparse.csr_array(np.eye(5))))


def test_a_negative_scale_is_rejected() -> None:
    with raises(DataError, parameter="scale", agent=1):
        deepca.operators.from_rows([np.eye(3), np.eye(3)], scale=[1.0, -1.0])


@pytest.mark.parametrize("edges", [[(0, 1.7), (1, 2)], [(0, 1), (1,)], [("a", "b")]])
def test_edges_that_are_not_pairs_of_integers_are_rejected(edges: list[Any]) -> None:
    with raises(TopologyError, parameter="edges"):
        deepca.topology.from_edges(3, edges)


def test_arguments_of_other_types_are_rejected() -> None:
    stack = np.broadcast_to(np.eye(3), (3, 3, 3))
    W0 = deepca.operators.linalg.random_orthonormal(3, 1, seed=0)
    ring = deepca.topology.ring(3)
    network = deepca.SimulatedNetwork(ring)
    with raises(ParameterError, parameter="network", value=ring):
        deepca.DeEPCA(stack, W0, ring, deepca.FastMix(rounds=1))  # type: ignore[arg-type]
    with raises(ParameterError, parameter="mix", value=5):
        deepca.DeEPCA(stack, W0, network, 5)  # type: ignore[arg-type]
    algorithm = deepca.DeEPCA(stack, W0, network, deepca.FastMix(rounds=1))
    with raises(ParameterError, parameter="stop", value=1e-8):
        deepca.solve(algorithm, max_iter=5, stop=1e-8)  # type: ignore[arg-type]
    with raises(StartError, parameter="W", value=None):
        algorithm.init(np.zeros((3, 1)))
    other: Any = deepca.solve(deepca.CPCA(np.eye(3), W0), max_iter=2).state
    with raises(StartError, parameter="start"):
        deepca.solve(algorithm, max_iter=2, start=other)
    with raises(TopologyError, value=2.5):
        deepca.topology.ring(2.5)  # type: ignore[arg-type]


def test_a_network_of_one_agent_accepts_a_single_matrix() -> None:
    W0 = deepca.operators.linalg.random_orthonormal(3, 1, seed=0)
    network = deepca.SimulatedNetwork(deepca.topology.ring(1))
    algorithm = deepca.DeEPCA(np.diag([3.0, 1.0, 0.5]), W0, network, deepca.FastMix(rounds=1))
    result = deepca.solve(algorithm, max_iter=100)
    np.testing.assert_allclose(np.abs(result.components[0, :, 0]), [1.0, 0.0, 0.0], atol=1e-12)


def test_sparse_symmetric_matrices_are_accepted() -> None:
    matrices = [sparse.csr_array(np.diag([3.0, 1.0, 0.5]) * (j + 1)) for j in range(3)]
    W0 = deepca.operators.linalg.random_orthonormal(3, 1, seed=0)
    network = deepca.SimulatedNetwork(deepca.topology.ring(3))
    result = deepca.solve(deepca.DeEPCA(matrices, W0, network, deepca.FastMix(rounds=3)), max_iter=100)
    np.testing.assert_allclose(result.eigenvalues[:, 0], 6.0, rtol=1e-12)
