"""Input that cannot be used: a named error that says where and what to do; and no run that ends in a silent NaN."""

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


# --------------------------------------------------------------------------------------------------- the tree


def test_every_error_is_in_one_tree_and_bad_input_is_a_value_error() -> None:
    """One root to catch, and the classes that Python programmers expect."""
    for name in deepca.errors.__all__:
        assert issubclass(getattr(deepca.errors, name), DeepcaError)
    for kind in (DataError, StartError, TopologyError, DisconnectedError, AsymmetricError, MixingError):
        assert issubclass(kind, InvalidInput)
        assert issubclass(kind, ValueError)
    assert issubclass(NotFiniteError, ArithmeticError)
    assert issubclass(deepca.errors.PeerTimeout, TimeoutError)


# ----------------------------------------------------------------------------------------------------- the data


@pytest.mark.parametrize("form", ["rows", "covariance", "auto"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array, lambda X: X.astype(np.float32)])
def test_nan_or_inf_in_rows(kind: Callable[[Array], Any], bad: float, form: Form) -> None:
    """Agent, row and column are named, and the way out."""
    data = rows()
    data[2][4, 3] = bad
    with pytest.raises(DataError, match=r"agent 2: NaN or Inf in row 4, column 3; remove or impute"):
        from_rows([kind(X) for X in data], form=form)


def test_nan_in_a_matrix() -> None:
    """Agent, row and column."""
    stack = np.stack([np.eye(D)] * M)
    stack[1, 2, 5] = stack[1, 5, 2] = math.nan
    with pytest.raises(DataError, match="agent 1: NaN or Inf in row 2, column 5"):
        algorithm(stack)


def test_nan_from_an_operator() -> None:
    """Found with a probe, before the run."""
    good, bad = aslinearoperator(np.eye(D)), aslinearoperator(np.diag([1.0, 2.0, math.inf, 1, 1, 1]))
    with pytest.raises(DataError, match="agent 1: its operator gives NaN or Inf"):
        from_linear_operators([good, bad])


def test_different_columns_at_different_agents() -> None:
    """Both numbers and both agents."""
    data = rows()
    data[3] = data[3][:, :4]
    with pytest.raises(DataError, match="agent 3 has 4 columns, agent 0 has 6; all agents need the same"):
        from_rows(data)


@pytest.mark.parametrize("call", [lambda A: algorithm(A), from_matrices], ids=["DeEPCA", "from_matrices"])
def test_matrices_of_different_sizes(call: Callable[[Any], object]) -> None:
    """A DataError, not numpy's word for it."""
    with pytest.raises(DataError, match="shape"):
        call([np.eye(D), np.eye(D), np.eye(D - 1), np.eye(D)])


def test_operators_of_different_sizes() -> None:
    """Both numbers and the agent."""
    with pytest.raises(DataError, match=r"agent 1 has d = 3, that of agent 0 has d = 2"):
        from_linear_operators([aslinearoperator(np.eye(2)), aslinearoperator(np.eye(3))])


@pytest.mark.parametrize("empty", [np.zeros((0, D)), sparse.csr_array((0, D))], ids=["dense", "csr"])
def test_an_agent_without_rows(empty: Any) -> None:
    """Named, with the way out."""
    data: list[Any] = list(rows())
    data[1] = empty
    with pytest.raises(DataError, match="agent 1 has no rows; leave the agent out or give it data"):
        from_rows(data)


def test_an_agent_without_columns() -> None:
    """Nothing to find components of."""
    with pytest.raises(DataError, match="agent 0 has no columns"):
        from_rows([np.zeros((3, 0))])


def test_no_agents() -> None:
    """An empty list, however it is given."""
    with pytest.raises(DataError, match="no agents"):
        from_rows([])
    with pytest.raises(DataError, match="no agents"):
        from_linear_operators([])
    with pytest.raises(DataError, match=r"\(m, d, d\)"):
        algorithm([])
    with pytest.raises(DataError, match=r"\(m, d, d\)"):
        from_matrices(np.zeros((0, 3, 3)))


def test_rows_not_split_over_agents() -> None:
    """One matrix instead of a list of blocks: the way out is split_rows."""
    with pytest.raises(DataError, match="split_rows"):
        from_rows(rows()[0])  # type: ignore[arg-type]


def test_rows_that_are_no_matrix() -> None:
    """The agent and the shape."""
    with pytest.raises(DataError, match=r"agent 1: rows have shape \(6,\)"):
        from_rows([np.ones((2, 6)), np.ones(6)])


@pytest.mark.parametrize("bad", [[["a", "b"]], np.array([[1 + 2j, 0]]), np.array([[None, 1.0]], dtype=object)])
def test_rows_that_are_no_real_numbers(bad: Any) -> None:
    """Strings, complex numbers and objects: the agent and the type."""
    with pytest.raises(DataError, match=r"agent 0: rows have dtype .* numbers are needed"):
        from_rows([bad])


@pytest.mark.parametrize("bad", [[["a"]], np.array([[1j]]), "abc"], ids=["list of strings", "complex", "a string"])
def test_matrices_that_are_no_real_numbers(bad: Any) -> None:
    """A DataError here as well."""
    with pytest.raises(DataError):
        from_matrices(bad)
    with pytest.raises(DataError):
        algorithm(bad)


@pytest.mark.parametrize("scale", [[1.0, 2.0], [1.0, math.nan, 1.0, 1.0], math.inf, "big"])
def test_scales_that_do_not_fit(scale: Any) -> None:
    """Too few, not finite, or no numbers."""
    with pytest.raises(DataError, match="scale"):
        from_rows(rows(), scale=scale)


def test_an_unknown_form() -> None:
    """The three that exist are listed."""
    with pytest.raises(InvalidInput, match="'auto', 'rows' or 'covariance'"):
        from_rows(rows(), form="dense")  # type: ignore[arg-type]


def test_an_asymmetric_matrix() -> None:
    """The agent, the entry, both values, and the way out."""
    stack = np.stack([np.eye(D)] * M)
    stack[2, 1, 4] = 0.5
    with pytest.raises(DataError, match=r"agent 2: .*not symmetric.*\(1, 4\) is 0\.5.*\(4, 1\) is 0.*\(A \+ Aᵀ\)/2"):
        algorithm(stack)


def test_an_asymmetric_operator() -> None:
    """Found with a probe."""
    A = np.eye(D)
    A[0, 3] = 1.0
    with pytest.raises(DataError, match="agent 1: its operator is not symmetric"):
        from_linear_operators([aslinearoperator(np.eye(D)), aslinearoperator(A)])


def test_something_that_is_no_operator() -> None:
    """Not square, or nothing that multiplies."""
    oblong = LinearOperator((3, 2), matvec=lambda x: np.zeros(3), dtype=np.float64)
    with pytest.raises(DataError, match="agent 0: expected a square"):
        from_linear_operators([oblong])
    with pytest.raises(DataError, match="agent 0: expected a square"):
        from_linear_operators([np.eye(3)])  # type: ignore[list-item]


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (3,), (2, 2, 3, 3)])
def test_matrices_that_are_not_square(shape: tuple[int, ...]) -> None:
    """The shape that came and the shape that is needed."""
    with pytest.raises(DataError, match=r"expected \(m, d, d\)"):
        from_matrices(np.ones(shape))


def test_more_operators_than_agents() -> None:
    """Both numbers."""
    with pytest.raises(DataError, match="3 agents, the network holds 4 agents"):
        algorithm(from_rows(rows()[:3]))
    with pytest.raises(DataError, match="one agent alone, the network holds 4 agents"):
        algorithm(np.eye(D))
    with pytest.raises(DataError, match=r"4 agents, the network holds one agent alone.*A\.agent\(j\)"):
        DeEPCA(from_rows(rows()), start(), AgentNetwork(deepca.topology.complete(1), 0), FastMix(1))
    with pytest.raises(DataError, match="the network holds one agent alone"):
        CPCA(np.stack([np.eye(D)] * 2), start())


# ------------------------------------------------------------------------------------------------------ the start


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
    ("W0", "said"),
    [
        (np.eye(D, D + 1), "k = 7 columns and only d = 6 rows: k must not exceed d"),
        (np.zeros((D, 0)), "no columns: k must be at least 1"),
        (np.ones((D, 2)), "not orthonormal.*random_orthonormal"),
        (2.0 * np.eye(D, 2), "not orthonormal"),
        (np.eye(D + 1, 2), "W0 has 7 rows, the operators have d = 6"),
        (np.where(np.eye(D, 2) == 1.0, np.nan, 0.0), "NaN or Inf"),
        (np.where(np.eye(D, 2) == 1.0, np.inf, 0.0), "NaN or Inf"),
        (np.ones(D), r"shape \(6,\).*d × k"),
        (np.stack([np.eye(D, 2)] * M), r"shape \(4, 6, 2\).*the same for every agent"),
        ("W0", "W0"),
        (np.eye(D, 2) * 1j, "W0"),
    ],
    ids=["k > d", "k < 1", "ones", "scaled", "other d", "NaN", "Inf", "vector", "stack", "string", "complex"],
)
def test_a_start_that_cannot_be_used(make: Callable[[Any], object], W0: Any, said: str) -> None:
    """Every reason has its own words, the same for every algorithm."""
    with pytest.raises(StartError, match=said):
        make(W0)


@pytest.mark.parametrize("k", [0, -1, D + 1])
def test_a_random_start_of_impossible_size(k: int) -> None:
    """k must lie between 1 and d."""
    with pytest.raises(StartError, match=f"k = {k} .*between 1 and d"):
        deepca.operators.linalg.random_orthonormal(D, k)


def test_a_restart_from_a_w_of_another_shape() -> None:
    """``init(W)`` compares shapes."""
    with pytest.raises(StartError, match=r"\(5, 2\).*\(6, 2\)"):
        algorithm().init(np.eye(5, 2))
    with pytest.raises(StartError):
        algorithm().init(np.full((D, 2), np.nan))


def test_a_state_of_another_problem() -> None:
    """Resuming with a state whose arrays do not fit is refused, not broadcast."""
    other = DeEPCA(from_rows(rows()[:3]), start(), SimulatedNetwork(deepca.topology.ring(3)), FastMix(3))
    with pytest.raises(InvalidInput):
        deepca.solve(algorithm(), max_iter=3, start=other.init())


# ------------------------------------------------------------------------------------------- the run's parameters


@pytest.mark.parametrize("max_iter", [0, -3, 2.5, math.nan, "10"])
def test_a_number_of_iterations_that_makes_no_sense(max_iter: Any) -> None:
    """A whole number of at least 1 is needed."""
    with pytest.raises(InvalidInput, match="max_iter"):
        deepca.solve(algorithm(), max_iter=max_iter)


@pytest.mark.parametrize("tol", [0.0, -1.0, 1.0, math.nan, "small"])
def test_a_tolerance_that_makes_no_sense(tol: Any) -> None:
    """Between 0 and 1."""
    with pytest.raises(ParameterError) as error:
        Tolerance(tol)
    assert error.value.parameter == "tol"


@pytest.mark.parametrize("mixer", [FastMix, Gossip, Chebyshev])
@pytest.mark.parametrize("rounds", [0, -1, 2.5, True, "3"])
def test_a_number_of_rounds_that_makes_no_sense(mixer: Callable[[Any], object], rounds: Any) -> None:
    """K is a whole number of at least 1."""
    with pytest.raises(InvalidInput, match="whole number of at least 1"):
        mixer(rounds)


def test_a_schedule_that_gives_a_bad_number_of_rounds() -> None:
    """The iteration is named."""
    run = DePCA(from_rows(rows()), start(), network(), FastMix(lambda t: 2 - t))
    with pytest.raises(ParameterError, match="iteration 2") as error:
        deepca.solve(run, max_iter=5)
    assert (error.value.parameter, error.value.value) == ("rounds", 0)
    told = DePCA(from_rows(rows()), start(), network(), FastMix(lambda t: "auto"))  # type: ignore[arg-type, return-value]
    with pytest.raises(ParameterError) as error:
        deepca.solve(told, max_iter=5)
    assert (error.value.parameter, error.value.value) == ("rounds", "auto")


# ------------------------------------------------------------------------------------------------------ the graph


def test_a_disconnected_graph() -> None:
    """The components are listed, and the way out."""
    with pytest.raises(DisconnectedError, match=r"2 components: \{0, 1, 2\}, \{3, 4\}; add edges"):
        deepca.topology.from_edges(5, [(0, 1), (1, 2), (3, 4)])


def test_a_lonely_agent() -> None:
    """An agent without edges is a component of its own."""
    with pytest.raises(DisconnectedError, match=r"\{2\}"):
        deepca.topology.from_edges(3, [(0, 1)])


def test_an_edge_that_goes_one_way() -> None:
    """Named."""
    with pytest.raises(AsymmetricError, match="'b' → 'c'"):
        deepca.topology.from_networkx(nx.DiGraph([("a", "b"), ("b", "a"), ("b", "c")]))


def test_a_gossip_matrix_that_is_not_symmetric() -> None:
    """The edge and both weights."""
    L = np.array([[0.5, 0.5, 0.0], [0.4, 0.3, 0.3], [0.0, 0.3, 0.7]])
    with pytest.raises(AsymmetricError, match=r"edge \((0, 1|1, 0)\)"):
        deepca.topology.from_gossip_matrix(L)


def test_fastmix_on_weights_with_negative_eigenvalues() -> None:
    """Refused when the algorithm is built, pointing to Chebyshev."""
    topology = deepca.topology.ring(M, rule="best-constant")
    with pytest.raises(MixingError, match=r"deepca\.Chebyshev"):
        DeEPCA(from_rows(rows()), start(), SimulatedNetwork(topology), FastMix(3))


# --------------------------------------------------------------------------------------------- no silent NaN


@pytest.mark.parametrize("stop", [None, Tolerance(1e-6)], ids=["no stop rule", "stop rule"])
@pytest.mark.parametrize("form", ["rows", "covariance"])
def test_data_that_overflow_end_in_a_named_error(form: Form, stop: Tolerance | None) -> None:
    """1e200 squared is not a number any more; the error says so, and no warning is needed to see it."""
    with pytest.raises((NotFiniteError, DataError), match=r"finite|overflow|Inf"):
        deepca.solve(algorithm(from_rows([X * 1e200 for X in rows()], form=form)), max_iter=20, stop=stop)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("form", ["rows", "covariance"])
def test_data_that_overflow_at_one_agent_end_the_run_of_all_threads(form: Form) -> None:
    """Only agent 2 overflows; everyone stops, and the cause comes out."""
    data = rows()
    data[2] = data[2] * 1e200
    with pytest.raises((NotFiniteError, DataError), match=r"finite|overflow|Inf"):
        run_threads(
            deepca.topology.ring(M),
            from_rows(data, form=form),
            lambda A_j, net: DeEPCA(A_j, start(), net, FastMix(3)),
            max_iter=20,
            timeout=300.0,
        )


def test_an_operator_that_turns_to_nan_during_the_run_is_noticed() -> None:
    """With warnings off as well: not a number in, a named error out."""
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
def test_data_whose_squares_still_fit_are_no_reason_to_warn_or_to_fail(factor: float, stop: Tolerance | None) -> None:
    """Entries of 1e±100 have products that are finite: same iterations, subspace and rank as at ordinary size."""

    def run(scale: float) -> Result[Any]:
        A = from_rows([X * scale for X in random_rows(M, 30, D, seed=0, decay=0.5)])
        return deepca.solve(DeEPCA(A, start(), network(), FastMix(8)), max_iter=100, stop=stop)

    ordinary, extreme = run(1.0), run(factor)
    assert (extreme.iterations, extreme.rank) == (ordinary.iterations, K_COMPONENTS)
    assert extreme.status.code == ordinary.status.code
    assert extreme.status.ok
    projector = ordinary.W @ np.swapaxes(ordinary.W, 1, 2)
    np.testing.assert_allclose(extreme.W @ np.swapaxes(extreme.W, 1, 2), projector, atol=1e-9)


def test_sparse_complex_rows() -> None:
    with pytest.raises(DataError, match=r"agent 1.*complex128"):
        deepca.operators.from_rows([sparse.csr_array(np.eye(3)), sparse.csr_array(np.eye(3) * 1j)])


def test_masked_rows() -> None:
    with pytest.raises(DataError, match=r"agent 0.*masked"):
        deepca.operators.from_rows([np.ma.masked_array(np.eye(3), mask=np.eye(3) > 0)])


def test_one_sparse_matrix_instead_of_one_per_agent() -> None:
    with pytest.raises(DataError, match="split_rows"):
        deepca.operators.from_rows(cast("Any", sparse.csr_array(np.eye(5))))


def test_a_negative_scale() -> None:
    with pytest.raises(DataError, match="scale of agent 1 is negative"):
        deepca.operators.from_rows([np.eye(3), np.eye(3)], scale=[1.0, -1.0])


@pytest.mark.parametrize("edges", [[(0, 1.7), (1, 2)], [(0, 1), (1,)], [("a", "b")]])
def test_edges_that_are_no_pairs_of_numbers(edges: list[Any]) -> None:
    with pytest.raises(TopologyError, match="edges must"):
        deepca.topology.from_edges(3, edges)


def test_parts_that_are_something_else() -> None:
    stack = np.broadcast_to(np.eye(3), (3, 3, 3))
    W0 = deepca.operators.linalg.random_orthonormal(3, 1, seed=0)
    ring = deepca.topology.ring(3)
    network = deepca.SimulatedNetwork(ring)
    with pytest.raises(InvalidInput, match="SimulatedNetwork"):
        deepca.DeEPCA(stack, W0, ring, deepca.FastMix(rounds=1))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="FastMix"):
        deepca.DeEPCA(stack, W0, network, 5)  # type: ignore[arg-type]
    algorithm = deepca.DeEPCA(stack, W0, network, deepca.FastMix(rounds=1))
    with pytest.raises(InvalidInput, match="Tolerance"):
        deepca.solve(algorithm, max_iter=5, stop=1e-8)  # type: ignore[arg-type]
    with pytest.raises(StartError, match="not orthonormal"):
        algorithm.init(np.zeros((3, 1)))
    other: Any = deepca.solve(deepca.CPCA(np.eye(3), W0), max_iter=2).state
    with pytest.raises(StartError, match="resume"):
        deepca.solve(algorithm, max_iter=2, start=other)
    with pytest.raises(TopologyError, match="whole number"):
        deepca.topology.ring(2.5)  # type: ignore[arg-type]


def test_one_matrix_for_a_network_of_one_agent() -> None:
    W0 = deepca.operators.linalg.random_orthonormal(3, 1, seed=0)
    network = deepca.SimulatedNetwork(deepca.topology.ring(1))
    algorithm = deepca.DeEPCA(np.diag([3.0, 1.0, 0.5]), W0, network, deepca.FastMix(rounds=1))
    result = deepca.solve(algorithm, max_iter=100)
    np.testing.assert_allclose(np.abs(result.components[0, :, 0]), [1.0, 0.0, 0.0], atol=1e-12)


def test_sparse_symmetric_matrices() -> None:
    matrices = [sparse.csr_array(np.diag([3.0, 1.0, 0.5]) * (j + 1)) for j in range(3)]
    W0 = deepca.operators.linalg.random_orthonormal(3, 1, seed=0)
    network = deepca.SimulatedNetwork(deepca.topology.ring(3))
    result = deepca.solve(deepca.DeEPCA(matrices, W0, network, deepca.FastMix(rounds=3)), max_iter=100)
    np.testing.assert_allclose(result.eigenvalues[:, 0], 6.0, rtol=1e-12)
