"""Compare singular triplets of partitioned matrices with those of the whole matrix by scipy and scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.linalg
from scipy import sparse
from sklearn.datasets import load_digits, load_wine
from sklearn.decomposition import TruncatedSVD

import deepca
from deepca.decomposition.svd import Partition, SingularTriplets, singular_triplets
from deepca.errors import DataError, GapError, InvalidInput, ParameterError
from deepca.network import Network
from tests.support.engines import ENGINES, at_every_agent, mine, network_of, over_mpi
from tests.support.errors import raises
from tests.support.problems import close, orthogonal
from tests.support.seeds import law_seeds

Array = npt.NDArray[np.float64]
PARTITIONS: tuple[Partition, ...] = ("rows", "columns")
KINDS: dict[str, Callable[[Array], Any]] = {"dense": np.asarray, "sparse": sparse.csr_array}
M = 5


def parts(X: Any, partition: Partition, m: int = M) -> list[Any]:
    count = X.shape[0 if partition == "rows" else 1]
    return [X[i] if partition == "rows" else X[:, i] for i in np.array_split(np.arange(count), m)]


def with_values(sigma: npt.ArrayLike, n: int, d: int, seed: int = 0) -> Array:
    s = np.asarray(sigma, dtype=np.float64)
    return np.asarray((orthogonal(n, seed)[:, : s.size] * s) @ orthogonal(d, seed + 1)[:, : s.size].T)


def found(X: Array, k: int, partition: Partition = "rows", **settings: Any) -> SingularTriplets:
    blocks = parts(X, partition)
    network = network_of(settings.pop("topology", deepca.topology.ring(M)))
    return singular_triplets([blocks[j] for j in mine(M)], network, k, partition=partition, **settings)


def pooled(X: Array, k: int) -> tuple[Array, Array, Array]:
    """Return scipy's triplets, with the largest entry of each right vector positive."""
    U, s, Vt = scipy.linalg.svd(X, full_matrices=False)
    signs = np.sign(Vt[np.arange(k), np.abs(Vt[:k]).argmax(axis=1)])
    return U[:, :k] * signs, s[:k], Vt[:k].T * signs


def raises_naming(kind: type[Exception], words: str) -> AbstractContextManager[object]:
    """Expect an error of another package whose message names an agent or a function."""
    return pytest.raises(kind, match=rf"\b{words}\b")


# --------------------------------------------------------------------------------------------------------- exactness


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("partition", PARTITIONS)
def test_triplets_are_right_at_every_agent(partition: Partition, engine: str) -> None:
    """Common results are bitwise identical everywhere; each agent also has its rows of the other vectors."""
    X = with_values(0.8 ** np.arange(10), 40, 20)
    blocks = parts(X, partition)
    sizes: list[int] = []

    def work(network: Network) -> Array:
        Xs = [blocks[j] for j in network.local.reshape(-1)]
        got = singular_triplets(Xs, network, 3, partition=partition, tol=1e-11)
        assert got.status.code == "converged", got.status
        common = np.vstack([got.values, np.full(3, got.error), np.full(3, got.best_error), got.shared_vectors])
        everywhere = np.broadcast_to(common, (len(Xs), *common.shape))
        both = np.concatenate([everywhere, np.stack(got.local_vectors)], axis=1)
        sizes.append(common.shape[0])
        return both if network.batch else both[0]

    done = at_every_agent(engine, deepca.topology.erdos_renyi(M, 0.6, seed=1), work).values
    U, s, V = pooled(X, 3)
    known, own = done[:, : sizes[0]], np.concatenate(done[:, sizes[0] :])
    assert (known == known[0]).all()
    left, right = (own, known[0, 3:]) if partition == "rows" else (known[0, 3:], own)
    close(known[0, 0], s, rtol=1e-13)
    close(left, U, atol=1e-10)
    close(right, V, atol=1e-10)
    rest = np.sqrt(np.square(scipy.linalg.svdvals(X)[3:]).sum())
    close(known[0, 1:3], np.full((2, 3), rest), rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("algorithm", ["auto", "accelerated"])
def test_triplets_of_digits_equal_those_of_truncated_svd(algorithm: str, partition: Partition, kind: str) -> None:
    """Signs and variances are equal, too."""
    X = load_digits().data
    X = X if partition == "rows" else X[:300]  # messages are as long as there are samples
    k = 5
    network = network_of(deepca.topology.ring(M))
    blocks = parts(X, partition)
    got = singular_triplets(
        [KINDS[kind](blocks[j]) for j in mine(M)], network, k, partition=partition, algorithm=algorithm, tol=1e-11
    )
    U, s, V = pooled(X, k)
    sk = TruncatedSVD(k, algorithm="arpack").fit(X)
    assert got.status.code == "converged"
    close(got.values, s, rtol=1e-13)
    close(sk.components_.T, V, atol=1e-10)
    close(got.explained_variance, sk.explained_variance_, rtol=1e-11)
    close(got.explained_variance / got.total_variance, sk.explained_variance_ratio_, rtol=1e-11)
    close(got.shared_vectors, V if partition == "rows" else U, atol=1e-10)
    others = parts(U, "rows") if partition == "rows" else parts(V, "rows")
    for own, j in zip(got.local_vectors, mine(M), strict=True):
        close(own, others[j], atol=1e-10)
    assert got.shape == X.shape


def test_small_singular_values_keep_their_digits() -> None:
    """As lengths of X v they are accurate to eps σ_1; roots of eigenvalues of XᵀX have errors of eps σ_1²/σ_i."""
    sigma = 10.0 ** -np.arange(0.0, 6.5, 1.0)
    X = with_values([*sigma, 1e-9], 60, 12)
    got = found(X, 7, tol=1e-3)
    exact = scipy.linalg.svdvals(X)[:7]
    assert np.abs(got.values - exact).max() <= 20 * np.finfo(float).eps
    gram = np.sqrt(np.abs(np.linalg.eigvalsh(X.T @ X)[::-1][:7]))
    assert abs(gram[-1] - exact[-1]) > 10 * abs(got.values[-1] - exact[-1])


def test_old_names_of_fields_work() -> None:
    """Fields have new names since version 0.1, and so have those of objects that version 0.1 pickled."""
    got = found(with_values(0.7 ** np.arange(8), 30, 15), 3)
    with pytest.deprecated_call():
        assert getattr(got, "common") is got.shared_vectors  # noqa: B009 (type checkers know the new name only)
    new = {"common": "shared_vectors", "own": "local_vectors", "own_errors": "local_errors"}
    old = {name: getattr(got, new.get(name, name)) for name in (*new, "partition", "values")}
    restored = SingularTriplets.__new__(SingularTriplets)
    getattr(restored, "__setstate__")(old)  # noqa: B009 (added by a decorator)
    assert restored.local_vectors is got.local_vectors
    assert restored.local_errors is got.local_errors
    assert restored.partition == got.partition
    assert not vars(restored).keys() & new.keys()


# -------------------------------------------------------------------------------------------------------------- laws


@pytest.mark.parametrize("seed", law_seeds(3))
def test_rows_of_a_matrix_are_columns_of_its_transpose(seed: int) -> None:
    X = with_values(0.7 ** np.arange(8), 30, 15, seed=seed)
    one, other = found(X, 3, "rows"), found(X.T, 3, "columns")
    close(other.values, one.values, rtol=1e-13)
    # signs follow the right vectors, which are the left vectors of X.T
    signs = np.sign((other.shared_vectors * one.shared_vectors).sum(axis=0))
    close(other.shared_vectors * signs, one.shared_vectors, atol=1e-11)
    assert other.shape == one.shape[::-1]
    close([other.error, other.norm], [one.error, one.norm], rtol=1e-12)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_the_approximation_is_the_best_of_its_rank(partition: Partition) -> None:
    """By the theorem of Eckart, Young and Mirsky; compared with scipy's truncated SVD and with other subspaces."""
    X = with_values(0.8 ** np.arange(12), 40, 20)
    U, s, V = pooled(X, 4)
    best = (U * s) @ V.T
    got = found(X, 4, partition, tol=1e-11)
    wanted, blocks = parts(best, partition), parts(X, partition)
    for local, j in enumerate(mine(M)):
        close(got.reconstruct(local), wanted[j], atol=1e-10)
        close(got.local_errors[local], np.linalg.norm(blocks[j] - wanted[j]), rtol=1e-10)
    close(got.error, np.linalg.norm(X - best), rtol=1e-12)
    close(got.best_error, np.sqrt(np.square(scipy.linalg.svdvals(X)[4:]).sum()), rtol=1e-12)
    for seed in range(5):
        Q = np.linalg.qr(np.random.default_rng(seed).standard_normal((20, 4)))[0]
        assert np.linalg.norm(X - X @ Q @ Q.T) > got.error
    close(got.norm**2, got.best_error**2 + np.square(got.values).sum(), rtol=1e-13)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_values_beyond_the_rank_are_zero(partition: Partition) -> None:
    """Beyond the rank, shared vectors complete the basis, and local vectors are zero."""
    X = with_values([3.0, 2.0], 25, 15)
    got = found(X, 4, partition)
    assert got.status.code == "rank_deficient"
    close(got.values, [3.0, 2.0, 0.0, 0.0], atol=1e-14)
    close(got.shared_vectors.T @ got.shared_vectors, np.eye(4), atol=1e-13)
    assert all((own[:, 2:] == 0.0).all() for own in got.local_vectors)
    assert got.error <= 1e-13
    assert got.best_error <= got.error


def test_a_warm_start_needs_fewer_iterations() -> None:
    X = load_digits().data
    cold = found(X, 5, tol=1e-8)
    warm = found(X + 1e-6, 5, tol=1e-8, start=cold.directions)
    assert warm.iterations < cold.iterations


# --------------------------------------------------------------------------------------------------------- bad input


def test_a_missing_gap_is_reported_in_singular_values() -> None:
    X = with_values([3.0, 2.0, 2.0, 1.0], 25, 15)
    got = found(X, 2)
    assert got.status.code == "not_unique"
    numbers = got.status.numbers
    assert (numbers["k"], numbers["choices"]) == (2, (1, 3))
    assert [numbers["last"], numbers["next"]] == pytest.approx([2.0, 2.0])
    with raises(GapError, parameter="k", value=2):
        got.required()


def test_no_more_triplets_are_suggested_than_exist() -> None:
    """By columns, the operator has one eigenvalue per sample, but the matrix has 5 singular values."""
    got = found(with_values([1.0, 0.5, 1e-1, 1e-2, 1e-2], 9, 5), 4, "columns")
    assert got.status.code == "not_unique"
    assert got.certificate.larger_k in (None, 5)


@pytest.mark.parametrize("engine", ENGINES)
def test_steep_singular_values_are_right_at_every_agent(engine: str) -> None:
    """Separate agents go through the same stages, with bitwise identical results."""
    X = with_values([1.0, 0.5, 1e-6, 1e-10], 20, 6)

    def work(network: Network) -> Array:
        got = singular_triplets([parts(X, "rows")[j] for j in network.local.reshape(-1)], network, 4)
        assert got.status.ok, got.status
        known = np.vstack([got.values, got.shared_vectors])
        return np.array(np.broadcast_to(known, (*network.batch, *known.shape)))

    done = at_every_agent(engine, deepca.topology.erdos_renyi(M, 0.6, seed=1), work).values
    assert (done == done[0]).all()
    close(done[0, 0], np.array([1.0, 0.5, 1e-6, 1e-10]), atol=1e-14)


@pytest.mark.parametrize("partition", ["rows", "columns"])
def test_a_singular_value_below_the_rounding_of_squares_is_found(partition: Partition) -> None:
    """The square of 1e-10 σ₁ is far below ``eps σ₁²``."""
    values = np.array([1.0, 0.5, 1e-1, 1e-2, 1e-10])
    got = found(with_values(list(values), 9, 5), 5, partition)
    assert got.status.ok
    np.testing.assert_allclose(got.values, values, atol=1e-14, rtol=1e-12)


@pytest.mark.simulator("blocks of all agents")
def test_invalid_input_is_rejected() -> None:
    X = load_wine().data
    network = deepca.SimulatedNetwork(deepca.topology.ring(3))
    blocks = parts(X, "columns", 3)
    with raises(ParameterError, parameter="partition", value="diagonal"):
        singular_triplets(blocks, network, 2, partition="diagonal")  # type: ignore[arg-type]
    with raises(DataError, parameter="Xs", value=2):
        singular_triplets(blocks[:2], network, 2)
    with raises(DataError, agent=1, value=177):
        singular_triplets([blocks[0], blocks[1][1:], blocks[2]], network, 2, partition="columns")
    with raises_naming(DataError, "agent 1"):
        singular_triplets(blocks, network, 2)
    with raises(ParameterError, parameter="n_components", value=14):
        singular_triplets(parts(X, "rows", 3), network, 14)
    with raises(ParameterError, parameter="n_components", value=3):
        singular_triplets(parts(X[:2], "columns", 3), network, 3, partition="columns")
    with raises(DataError, value=0.0):
        singular_triplets([np.zeros((3, 4))] * 3, network, 2)
    with raises(DataError, value=0.0):
        singular_triplets([np.full((3, 4), 1e-170)] * 3, network, 2)
    bad = X.copy()
    bad[70, 3] = np.nan
    places: dict[Partition, str] = {"rows": "agent 1: row 10, column 3", "columns": "agent 0: row 70, column 3"}
    for partition, place in places.items():
        with raises_naming(DataError, place):
            singular_triplets(parts(bad, partition, 3), network, 2, partition=partition)
    with raises(DataError, parameter="Xs", agent=0):
        singular_triplets([iter([block]) for block in parts(X, "rows", 3)], network, 2)


@pytest.mark.threads("one agent of several that are wrong")
def test_agents_with_different_samples_raise() -> None:
    assert not over_mpi()
    blocks = parts(load_wine().data, "columns", 3)
    blocks[2] = blocks[2][:-1]

    def work(network: Network) -> SingularTriplets:
        return singular_triplets([blocks[int(network.local)]], network, 2, partition="columns")

    with raises(DataError, value=(177, 178)):
        deepca.run_agents(deepca.topology.path(3), work, timeout=20.0)


@pytest.mark.threads("one agent of several that are wrong")
@pytest.mark.parametrize("other", [{"partition": "columns"}, {"k": 1}, {"tol": 1e-6}])
def test_agents_that_make_different_calls_raise(other: dict[str, Any]) -> None:
    """They do so before anything about the rows is sent, and without waiting for a timeout."""
    assert not over_mpi()
    X = load_wine().data[:30, :10]

    def work(network: Network) -> SingularTriplets:
        return singular_triplets([X], network, **{"k": 2, **(other if network.local == 1 else {})})

    with raises_naming(InvalidInput, "singular_triplets"):
        deepca.run_agents(deepca.topology.path(3), work, timeout=20.0)
