"""Check that operators in every form multiply like the dense matrices that numpy computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, aslinearoperator

import deepca
from deepca import DeEPCA, FastMix, topology
from deepca._util.typing import Array, csr
from deepca.consensus.broadcasts import for_local_agents
from deepca.network import AgentNetwork, SimulatedNetwork
from deepca.operators import Form, Operator, as_operator, choose_form, from_linear_operators, from_matrices, from_rows
from deepca.operators import split_rows as split
from deepca.operators.dense_rows import DenseRows
from deepca.operators.preparation import Preparation
from deepca.operators.sparse_rows import SparseRows
from tests.support.errors import raises
from tests.support.helpers import worst_tangent
from tests.support.problems import pooled_answer, spectrum, spectrum_problem
from tests.support.seeds import law_seeds

D, K_COMPONENTS = 7, 3
COUNTS = {"equal": [6, 6, 6, 6], "ragged": [9, 1, 4, 17], "one agent": [8], "very uneven": [1, 1, 1, 900]}


def sparse_like(X: Array) -> Array:
    """Set two thirds of the entries of X to zero."""
    return np.where(np.abs(X) > 1.0, X, 0.0)


def rows_of(counts: list[int], d: int = D, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [sparse_like(rng.standard_normal((n, d)) * 2) for n in counts]


def multiplied(rows: list[Array], scales: list[float] | float, W: Array) -> Array:
    """Compute ``c_j X_jᵀ X_j W_j``, agent by agent, by numpy."""
    each = [scales] * len(rows) if isinstance(scales, float) else scales
    return np.stack(
        [c * (np.asarray(X, float).T @ (np.asarray(X, float) @ w)) for c, X, w in zip(each, rows, W, strict=True)]
    )


def basis(m: int, d: int = D, k: int = K_COMPONENTS, seed: int = 9) -> Array:
    return np.random.default_rng(seed).standard_normal((m, d, k))


def assert_is(A: Operator, expected: list[Array], *, rtol: float = 1e-13) -> None:
    """Assert that products in both memory orders, single agents, ``dense`` and ``mean`` of A give these matrices."""
    m, d = len(expected), expected[0].shape[0]
    size = max(float(np.abs(E).max()) for E in expected)
    W = basis(m, d)
    assert (A.batch, A.d, A.n_local) == ((m,), d, m)
    product = np.stack([E @ w for E, w in zip(expected, W, strict=True)])
    atol = rtol * size * d * 10
    np.testing.assert_allclose(A @ W, product, rtol=0, atol=atol)
    fortran = np.swapaxes(np.ascontiguousarray(np.swapaxes(W, 1, 2)), 1, 2)
    np.testing.assert_allclose(A @ fortran, product, rtol=0, atol=atol)
    np.testing.assert_allclose(A.dense(), np.stack(expected), rtol=0, atol=atol)
    np.testing.assert_allclose(A.mean(), sum(expected) / m, rtol=0, atol=atol)
    for j in range(m):
        alone = A.agent(j)
        assert (alone.batch, alone.d, alone.n_local) == ((), d, 1)
        np.testing.assert_allclose(alone @ W[j], product[j], rtol=0, atol=atol)
        np.testing.assert_allclose(alone.dense(), expected[j], rtol=0, atol=atol)
        np.testing.assert_allclose(alone.mean(), expected[j], rtol=0, atol=atol)
        np.testing.assert_allclose(alone.agent(0) @ W[j], product[j], rtol=0, atol=atol)
    x, y = W[..., :1], W[..., 1:2]  # symmetric
    np.testing.assert_allclose((y * (A @ x)).sum(axis=1), (x * (A @ y)).sum(axis=1), atol=atol * 10)


KINDS: dict[str, Callable[[int, Array], Any]] = {
    "dense": lambda j, X: X,
    "csr": lambda j, X: sparse.csr_array(X),
    "csr matrix": lambda j, X: sparse.csr_matrix(X),
    "coo": lambda j, X: sparse.coo_array(X),
    "mixed": lambda j, X: sparse.csr_array(X) if j % 2 else X,
    "lists": lambda j, X: X.tolist(),
    "fortran order": lambda j, X: np.asfortranarray(X),
}


@pytest.mark.parametrize("scale", [1.0, 0.125, "per agent"])
@pytest.mark.parametrize("form", ["rows", "covariance", "auto"])
@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_every_kind_multiply_like_dense_matrices(
    kind: str, counts: str, form: Form, scale: float | str
) -> None:
    """Rows are dense, sparse or mixed, of equal or different number, kept as rows or as covariances, and scaled."""
    rows = rows_of(COUNTS[counts])
    scales = [1.0 / n for n in COUNTS[counts]] if scale == "per agent" else [float(scale)] * len(rows)
    given_scale: Any = scales if scale == "per agent" else scale
    A = from_rows([KINDS[kind](j, X) for j, X in enumerate(rows)], scale=given_scale, form=form)
    if form == "covariance":
        assert A.form == "covariance"
    elif form == "rows":
        assert A.form == ("mixed" if kind == "mixed" and len(rows) > 1 else "rows")
    assert_is(A, [c * (X.T @ X) for c, X in zip(scales, rows, strict=True)])


@pytest.mark.parametrize("form", ["rows", "covariance"])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.int8, np.uint8, np.bool_])
def test_rows_of_other_types_are_multiplied_in_float64(dtype: type[np.generic], form: Form) -> None:
    """Small integers do not wrap, and float32 loses no more digits."""
    rng = np.random.default_rng(1)
    rows = [(rng.standard_normal((30, D)) * 40).astype(np.int8 if dtype is not np.float32 else dtype) for _ in range(3)]
    typed = [X.astype(dtype) for X in rows]
    expected = [X.astype(np.float64).T @ X.astype(np.float64) for X in typed]
    assert_is(from_rows(typed, form=form), expected)
    if dtype is not np.bool_:
        assert_is(from_rows([sparse.csr_array(X) for X in typed], form=form), expected)


def test_large_agents_are_multiplied_block_by_block() -> None:
    rng = np.random.default_rng(2)
    X = rng.standard_normal((6000, 90))
    A = from_rows([X, X[:5000]], form="rows")
    W = basis(2, 90, 5)
    np.testing.assert_allclose(A @ W, multiplied([X, X[:5000]], 1.0, W), rtol=0, atol=1e-9)
    np.testing.assert_allclose(A.agent(1) @ W[1], X[:5000].T @ (X[:5000] @ W[1]), rtol=0, atol=1e-9)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_number_of_workers_does_not_change_the_product(workers: int) -> None:
    """Products large enough to be shared over cores are bitwise the same for any number of cores."""
    rng = np.random.default_rng(3)
    m, d = 9, 260
    stack = rng.standard_normal((m, d, d))
    stack = stack + np.swapaxes(stack, 1, 2)
    W = basis(m, d, 4)
    np.testing.assert_allclose(from_matrices(stack, workers=workers) @ W, stack @ W, rtol=0, atol=1e-10)
    np.testing.assert_array_equal(from_matrices(stack, workers=workers) @ W, from_matrices(stack, workers=1) @ W)
    rows = [rng.standard_normal((300 + 10 * j, d)) for j in range(m)]
    A = from_rows(rows, form="rows", workers=workers)
    assert A.bytes_read > 4 << 20
    np.testing.assert_allclose(A @ W, multiplied(rows, 1.0, W), rtol=0, atol=1e-9)
    np.testing.assert_array_equal(A @ W, from_rows(rows, form="rows", workers=1) @ W)


# ------------------------------------------------------------------------------------- matrices and operators


def symmetric(m: int, d: int = D, seed: int = 4) -> Array:
    stack = np.random.default_rng(seed).standard_normal((m, d, d))
    return stack + np.swapaxes(stack, 1, 2)


def test_explicit_matrices_multiply_as_given() -> None:
    """Matrices may be given as an (m, d, d) stack, a list or an Operator, and may be indefinite."""
    stack = symmetric(4)
    assert_is(from_matrices(stack), list(stack))
    assert_is(as_operator(stack), list(stack))
    assert_is(as_operator(list(stack)), list(stack))
    assert as_operator(A := from_matrices(stack)) is A


def test_a_single_matrix_is_a_single_agent() -> None:
    """A (d, d) matrix has no axis of agents."""
    A = symmetric(1)[0]
    operator = as_operator(A)
    assert operator.batch == ()
    W = basis(1)[0]
    np.testing.assert_allclose(operator @ W, A @ W, atol=1e-13)
    np.testing.assert_allclose(operator.mean(), A)


def test_linear_operators_multiply_like_their_matrices() -> None:
    """Operators of scipy may have only a matvec, or also a matmat."""
    stack = symmetric(3)
    operators: list[LinearOperator[Any]] = [aslinearoperator(stack[0]), aslinearoperator(stack[1])]
    operators.append(LinearOperator((D, D), matvec=lambda x: stack[2] @ x, dtype=np.float64))
    assert_is(from_linear_operators(operators), list(stack))
    assert_is(as_operator(operators), list(stack))
    alone = as_operator(operators[2])
    assert alone.batch == ()
    np.testing.assert_allclose(alone.dense(), stack[2], atol=1e-13)


@pytest.mark.parametrize("kind", ["rows", "csr", "stack", "list", "linear operators"])
def test_solve_gives_the_pooled_answer_for_every_kind(kind: str) -> None:
    """DeEPCA accepts each kind directly and agrees with scipy on the pooled matrix."""
    rng = np.random.default_rng(5)
    scales = np.array([3.0, 2.0, 1.2, 0.5, 0.4, 0.3, 0.2])
    rows = [rng.standard_normal((20, D)) * scales for _ in range(5)]
    stack = np.stack([X.T @ X for X in rows])
    kinds: dict[str, Callable[[], Any]] = {
        "rows": lambda: from_rows(rows, form="rows"),
        "csr": lambda: from_rows([sparse.csr_array(X) for X in rows], form="rows"),
        "stack": lambda: stack,
        "list": lambda: list(stack),
        "linear operators": lambda: [aslinearoperator(matrix) for matrix in stack],
    }
    A = kinds[kind]()
    _, U = pooled_answer(stack, K_COMPONENTS)
    W0 = deepca.operators.linalg.random_orthonormal(D, K_COMPONENTS, seed=0)
    network = SimulatedNetwork(deepca.topology.ring(5))
    result = deepca.solve(DeEPCA(A, W0, network, FastMix(8)), max_iter=150)
    assert worst_tangent(U, result.W) <= 1e-12


@pytest.mark.parametrize("seed", law_seeds(5))
def test_indefinite_matrices_with_a_positive_mean_are_solved_exactly(seed: int) -> None:
    """Every A_j has negative eigenvalues but the mean has none; the answer is exact, as the paper proves."""
    m = 8
    stack = spectrum_problem(m, D, spectrum(D, K_COMPONENTS, decay=0.8, gap=0.3), seed, 0.9, indefinite=True)
    assert all(np.linalg.eigvalsh(A)[0] < -1e-2 for A in stack)
    pooled = stack.mean(axis=0)
    assert scipy.linalg.eigh(pooled, eigvals_only=True)[0] > 0
    _, U = pooled_answer(stack, K_COMPONENTS)
    W0 = deepca.operators.linalg.random_orthonormal(D, K_COMPONENTS, seed=seed)
    network = SimulatedNetwork(deepca.topology.erdos_renyi(m, 0.5, seed=seed))
    result = deepca.solve(DeEPCA(stack, W0, network, FastMix(12)), max_iter=300)
    assert result.status.code == "completed"
    assert worst_tangent(U, result.W) <= 1e-12
    expected = scipy.linalg.eigh(pooled, eigvals_only=True)[::-1][:K_COMPONENTS]
    np.testing.assert_allclose(result.eigenvalues, np.broadcast_to(expected, (m, K_COMPONENTS)), rtol=1e-10)


# ----------------------------------------------------------------------------------------- rows or covariance

PLENTY = 1 << 50


def test_tall_rows_become_covariances_and_wide_rows_are_kept() -> None:
    assert choose_form(n=1_000_000, d=50, m=10, memory=PLENTY) == "covariance"
    assert choose_form(n=1_000, d=20_000, m=10, memory=PLENTY) == "rows"
    assert choose_form(n=1_000_000, d=10_000, m=10, nnz=10_000_000, memory=PLENTY) == "rows"


def test_covariances_that_do_not_fit_into_memory_are_not_chosen() -> None:
    """They may take a quarter of the free memory; 10 × 50 × 50 × 8 bytes are 200,000."""
    assert choose_form(n=1_000_000, d=50, m=10, memory=4 * 200_000) == "covariance"
    assert choose_form(n=1_000_000, d=50, m=10, memory=4 * 200_000 - 4) == "rows"


@given(
    n=st.integers(1, 10**7),
    d=st.integers(1, 5000),
    m=st.integers(1, 1000),
    more=st.integers(1, 100),
    nnz_per_row=st.integers(1, 50),
    is_sparse=st.booleans(),
)
def test_the_choice_of_the_form_is_monotone(
    n: int, d: int, m: int, more: int, nnz_per_row: int, is_sparse: bool
) -> None:
    """If covariances are chosen, they are also chosen with fewer agents, more memory, or more rows."""
    nnz = n * min(nnz_per_row, d) if is_sparse else None
    if choose_form(n, d, m, nnz=nnz, memory=PLENTY) == "covariance":
        assert choose_form(n, d, max(1, m // more), nnz=nnz, memory=PLENTY) == "covariance"
        grown = None if nnz is None else nnz * more
        assert choose_form(n * more, d, m, nnz=grown, memory=PLENTY) == "covariance"
    else:
        assert choose_form(n, d, m * more, nnz=nnz, memory=PLENTY) == "rows"
        assert choose_form(n, d, m, nnz=nnz, memory=0) == "rows"


def test_from_rows_uses_choose_form() -> None:
    tall = [np.ones((2000, 4)) for _ in range(3)]
    assert from_rows(tall).form == choose_form(6000, 4, 3) == "covariance"
    wide = [np.ones((2, 400)) for _ in range(3)]
    assert from_rows(wide).form == choose_form(6, 400, 3) == "rows"


# -------------------------------------------------------------------------------------------------- split_rows


@pytest.mark.parametrize(
    ("n", "m", "rows_per_agent", "parameter"),
    [
        (10, 0, None, "m"),
        (10, -1, 2, "m"),
        (0, 1, None, "X"),
        (10, 3, 0, "rows_per_agent"),
        (10, 3, 4, "rows_per_agent"),
    ],
)
def test_impossible_splits_name_the_parameter_at_fault(
    n: int, m: int, rows_per_agent: int | None, parameter: str
) -> None:
    with raises(deepca.errors.DataError, parameter=parameter):
        split(np.ones((n, 2)), m, rows_per_agent=rows_per_agent)


def test_errors_about_matrices_have_a_redacted_message_without_their_entries() -> None:
    with raises(deepca.errors.DataError, agent=0, row=0, column=1) as caught:
        from_matrices([[0.0, 123.5], [0.0, 0.0]])
    assert "123.5" in str(caught.value)
    assert "123.5" not in caught.value.redacted
    with raises(deepca.errors.DataError, agent=1, row=1, column=0):
        from_matrices([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [np.inf, 1.0]]])


@given(n=st.integers(1, 200), m=st.integers(1, 200))
def test_splitting_keeps_all_rows_in_order(n: int, m: int) -> None:
    """Blocks are of nearly equal size and not empty; more agents than rows are an error."""
    X = np.arange(2 * n).reshape(n, 2)
    if m > n:
        with raises(deepca.errors.DataError, parameter="m", value=m):
            split(X, m)
        return
    blocks = split(X, m)
    assert len(blocks) == m
    np.testing.assert_array_equal(np.concatenate(blocks), X)
    sizes = [len(block) for block in blocks]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


def test_splitting_as_in_the_paper_takes_the_first_rows() -> None:
    """Blocks of a given size are taken from the top; sparse rows stay sparse."""
    X = np.arange(40.0).reshape(20, 2)
    blocks = split(sparse.csr_array(X), 3, rows_per_agent=5)
    assert [block.shape for block in blocks] == [(5, 2)] * 3
    np.testing.assert_array_equal(np.concatenate([block.toarray() for block in blocks]), X[:15])
    with raises(deepca.errors.DataError, parameter="rows_per_agent", value=7):
        split(X, 3, rows_per_agent=7)
    with raises(deepca.errors.DataError, parameter="m", value=0):
        split(X, 0)


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("kind", ["dense", "large", "sparse", "covariance"])
def test_products_have_the_same_bits_with_and_without_other_agents(kind: str, k: int) -> None:
    """Otherwise a simulation would not find the bits that separate agents find."""
    rng, alone = np.random.default_rng(k), AgentNetwork(topology.complete(1), 0)
    for d in rng.integers(3, 150, 12).tolist():
        sizes = [int(n) * (40 if kind == "large" else 1) for n in rng.integers(2, 60, 5)]
        mean, weights = rng.standard_normal(d), tuple(rng.uniform(0.5, 2.0, n) for n in sizes)
        prepare = Preparation((0.01 * mean, 1e-19 * mean), None, weights)
        A: Operator
        if kind == "sparse":
            blocks = [csr(sparse.random_array((n, d), density=0.1, rng=rng, format="csr")) for n in sizes]
            A = SparseRows(blocks, np.full(5, 0.3), single=False, prepare=prepare)
        else:
            rows = [rng.standard_normal((n, d)) for n in sizes]
            A = DenseRows(rows, np.full(5, 0.3), single=False, workers=None, prepare=prepare)
            A = from_matrices(A.dense()) if kind == "covariance" else A
        P = np.linalg.qr(rng.standard_normal((d, min(k, d))))[0]
        together = A @ for_local_agents(P, SimulatedNetwork(topology.complete(5)))
        for j in range(5):
            np.testing.assert_array_equal(A.agent(j) @ for_local_agents(P, alone), together[j])
