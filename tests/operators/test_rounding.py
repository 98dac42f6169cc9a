"""Compare proven angles with those of exact covariances of the given doubles, far from zero and with jumps."""

from __future__ import annotations

import math
import pickle
import warnings
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import sparse

import deepca
from deepca import DecentralizedPCA, SimulatedNetwork
from deepca.data.local_data import read
from deepca.data.moments import Moments, moments
from deepca.data.sources import as_source
from deepca.data.statistics import agree_on_statistics
from deepca.decomposition.fit import Decomposition, fit
from deepca.decomposition.settings import Settings
from deepca.errors import DataError
from deepca.operators import Covariances, SparseRows, from_matrices, from_rows
from deepca.operators.rounding import Rounding, growth
from deepca.operators.shifted import Shifted
from deepca.solver.certificate.agreed_rounding import AgreedRounding
from deepca.solver.certificate.bounds import Certificate
from tests.data.test_moments import exact_mean, exact_scatter, in_blocks
from tests.support.exact import centred_rows, exact_covariance, true_angle
from tests.support.graded import long_svd, tangent_of

Array = npt.NDArray[np.float64]
AGENTS = 4
FORMS = ("rows", "covariance")
KINDS: dict[str, Callable[[Array], Any]] = {"dense": np.asarray, "csr": sparse.csr_array}


def rows(seed: int, offset: float, n: int = 48, d: int = 5) -> Array:
    """Return correlated columns, about ``offset`` deviations away from zero, with a clear gap after two components."""
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    return np.asarray((rng.standard_normal((n, d)) * np.geomspace(4.0, 0.5, d)) @ Q + offset * rng.uniform(0.3, 1.0, d))


def decomposed(Xs: Sequence[Any], k: int, w: Sequence[Array] | None = None, **asked: Any) -> Decomposition:
    network = SimulatedNetwork(deepca.topology.ring(len(Xs)))
    sources = [as_source(X, f"agent {j}") for j, X in enumerate(Xs)]
    return fit(sources, network, Settings(n_components=k, **asked), weights=w).decomposition


def proven_and_true(found: Decomposition, A: npt.NDArray[np.longdouble]) -> tuple[float, float]:
    proof = found.result.certificate
    assert proof is not None
    return proof.worst_angle, true_angle(A, found.components)


# ---------------------------------------------------------------------------------------------------------- offsets


@pytest.mark.parametrize("scale", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize("weighted", [False, True], ids=["equal", "weighted"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_the_proven_angle_holds_at_any_distance_from_zero(form: str, kind: str, weighted: bool, scale: bool) -> None:
    """It also proves the default tolerance, since the given doubles determine the answer."""
    for power in (0, 3, 8, 12, 15):
        X = rows(power, 10.0**power)
        w = np.random.default_rng(power).uniform(0.2, 4.0, len(X)) if weighted else None
        shares = None if w is None else np.split(w, AGENTS)
        found = decomposed([KINDS[kind](part) for part in np.split(X, AGENTS)], 2, shares, form=form, scale=scale)
        proven, true = proven_and_true(found, exact_covariance(X, w, scale=scale))
        assert true <= proven <= 1e-10, f"offset 1e{power}"
        assert found.result.status.code == "converged"


@pytest.mark.parametrize("form", FORMS)
def test_the_proven_angle_holds_for_uncentred_rows_far_from_zero(form: str) -> None:
    for power in (1, 6, 12):
        X = rows(power, 10.0**power)
        found = decomposed(np.split(X, AGENTS), 1, center=False, form=form)
        proven, true = proven_and_true(found, exact_covariance(X, center=False))
        assert true <= proven <= 1e-10


@pytest.mark.parametrize("form", FORMS)
def test_the_proven_angle_holds_for_agents_far_from_each_other(form: str) -> None:
    """If agents are 1e7 deviations apart, little accuracy is left for the rest, and no more is claimed."""
    for power in range(0, 15, 2):
        X = rows(power, 1.0)
        X[: len(X) // 2] += 10.0**power * np.random.default_rng(power).standard_normal(X.shape[1])
        _, V = long_svd(centred_rows(X))
        for k in (1, 2):
            found = decomposed(np.split(X, AGENTS), k, form=form)
            assert found.result.certificate is not None
            proven = found.result.certificate.worst_angle
            assert tangent_of(V[:, :k], found.components.T) <= proven
            assert proven <= 1e-10 or k == 2


def blocks_of(X: Any, size: int) -> Callable[[], Iterator[Any]]:
    return lambda: (X[first : first + size] for first in range(0, X.shape[0], size))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 5])
def test_the_proven_angle_holds_for_blocks_whose_mean_jumps(size: int, kind: str) -> None:
    """Scatters are joined over the blocks of each agent, which have different means."""
    for power in (0, 4, 8, 12):
        X = rows(power, 1e3)
        X += 10.0**power * np.repeat(np.random.default_rng(power).standard_normal((12, X.shape[1])), 4, axis=0)
        given = [blocks_of(KINDS[kind](part), size) for part in np.split(X, AGENTS)]
        for k in (1, 2):
            proven, true = proven_and_true(decomposed(given, k), exact_covariance(X))
            assert true <= proven


def test_the_proven_angle_holds_for_files_and_memory_maps(tmp_path: Path) -> None:
    """The estimator gets all rows at once or by agent, in memory or in files."""
    for power in (0, 6, 12, 15):
        X = rows(power, 10.0**power)
        A = exact_covariance(X)
        parts = np.split(X, AGENTS)
        paths = [tmp_path / f"{power}-{j}.npy" for j in range(AGENTS)]
        for path, part in zip(paths, parts, strict=True):
            np.save(path, part)
        pca = DecentralizedPCA(2, topology="ring", n_agents=AGENTS)
        fits = [
            pca.fit(X).model_,
            pca.fit_agents(parts).model_,
            pca.fit_agents(paths).model_,
            pca.fit_agents([np.load(path, mmap_mode="r") for path in paths]).model_,
        ]
        for model in fits:
            assert model.certificate is not None
            assert true_angle(A, model.components) <= model.certificate.worst_angle <= 1e-10


# ----------------------------------------------------------------------------------------------------------- streams


def proof_of(pca: DecentralizedPCA) -> Certificate:
    assert pca.result_.certificate is not None
    return pca.result_.certificate


@pytest.mark.parametrize("forgetting", [1.0, 0.5, 1e-3])
@pytest.mark.parametrize("kind", KINDS)
def test_the_proven_angle_holds_for_streams_whose_mean_jumps(kind: str, forgetting: float) -> None:
    """Calls are up to 1e8 deviations apart; digits that are lost by this are not claimed."""
    for power in (0, 4, 8):
        rng = np.random.default_rng(power)
        pca = DecentralizedPCA(2, topology="ring", n_agents=3, forgetting=forgetting)
        seen, ages = np.empty((0, 5)), np.empty(0)
        for call in range(3):
            X = rows(call, 1.0, n=30) + 10.0**power * rng.standard_normal(5)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                pca.partial_fit(KINDS[kind](X))
            seen, ages = np.concatenate([seen, X]), np.concatenate([forgetting * ages, np.ones(len(X))])
            true = true_angle(exact_covariance(seen, ages), pca.components_)
            assert true <= proof_of(pca).worst_angle
            assert power or proof_of(pca).proves(1e-10)


def test_digits_destroyed_by_a_jump_are_not_claimed() -> None:
    """Scatters of 1e16 cannot represent variances of 1, which were known before the jump."""
    pca = DecentralizedPCA(3, topology="ring", n_agents=3)
    X = rows(0, 1.0, n=60)
    pca.partial_fit(X[:30])
    assert proof_of(pca).proves(1e-10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pca.partial_fit(X[30:] + 1e8)
    assert not proof_of(pca).proves(1e-3)


# ----------------------------------------------------------------------------------------- moments, entry by entry


def assert_within(found: Moments, X: Array, w: Array | None) -> None:
    """Assert ``|S̃ − S| ≤ s eᵀ + e sᵀ + e eᵀ`` plus the error of long sums, and the bound of the mean."""
    S = exact_scatter(X, w)
    s, e = np.sqrt(np.diagonal(S)), found.rounding
    limit = np.outer(s, e) + np.outer(e, s) + np.outer(e, e) + growth(len(X)) * np.outer(s, s)
    assert found.scatter is not None
    assert (np.abs(found.scatter - S) <= limit).all()
    assert (np.abs(found.squares - np.diagonal(S)) <= np.diagonal(limit)).all()
    for i, column in enumerate(X.T):
        weights = [Fraction(1)] * len(X) if w is None else [Fraction(float(value)) for value in w]
        mean = sum((c * Fraction(float(x)) for c, x in zip(weights, column, strict=True)), Fraction(0)) / sum(weights)
        kept = Fraction(float(found.reference[i])) + Fraction(float(found.shift[i]))
        assert abs(float(kept - mean)) <= found.mean_rounding[i]


@pytest.mark.parametrize("kind", KINDS)
def test_moments_satisfy_their_own_bounds(kind: str) -> None:
    """Offsets, jumps, zeros, weights and blocks are random, and some rows are faded."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(2, 30))
        X = rng.standard_normal((n, 3)) * 10.0 ** rng.uniform(-3, 3, 3) + 10.0 ** rng.uniform(-2, 15)
        X[int(rng.integers(0, n)) :] += 10.0 ** rng.uniform(0, 12) * rng.standard_normal(3)
        X[rng.random(X.shape) < rng.choice([0.0, 0.6])] = 0.0
        w = 10.0 ** rng.uniform(-6, 2, n) if rng.random() < 0.5 else None
        cut, fade = int(rng.integers(1, n)), 2.0 ** -int(rng.integers(0, 9))
        sizes = [size for size in rng.multinomial(cut, [0.3, 0.3, 0.4]) if size]
        first = moments(in_blocks(KINDS[kind](X[:cut]), sizes), None if w is None else w[:cut])
        assert_within(first, X[:cut], None if w is None else w[:cut])
        then = moments(in_blocks(KINDS[kind](X[cut:]), [n - cut]), None if w is None else w[cut:])
        weights = np.ones(n) if w is None else w.copy()
        weights[:cut] *= fade
        assert_within(first.scaled(fade).joined(then), X, weights)


def test_moments_stored_by_an_earlier_version_can_be_added_to() -> None:
    """They have no bounds, and get some when they are loaded."""
    X = rows(0, 1e3)
    old = pickle.loads(pickle.dumps(moments(as_source(X[:20], "agent 0"))))
    state = {name: value for name, value in vars(old).items() if "rounding" not in name}
    loaded = Moments.__new__(Moments)
    loaded.__setstate__(state)
    assert_within(loaded.joined(moments(as_source(X[20:], "agent 0"))), X, None)


# ------------------------------------------------------------------------------------------------------- sparse rows


def test_sparse_columns_far_from_zero_add_few_entries() -> None:
    """Rows stay sparse; only columns far from zero are filled, which were nearly full before."""
    rng = np.random.default_rng(0)
    X = np.where(rng.random((160, 20)) < 0.1, rng.standard_normal((160, 20)), 0.0)
    X[:, :3] = 1e9 + rng.standard_normal((160, 3)) * [3.0, 2.0, 1.0]
    given = [sparse.csr_array(part) for part in np.split(X, AGENTS)]
    held = read([as_source(part, "agent") for part in given], form="rows")
    totals = agree_on_statistics(SimulatedNetwork(deepca.topology.ring(AGENTS)), held.moments)
    A = held.operator((AGENTS,), totals.reference, totals.shift, None, 1.0)
    assert isinstance(A, SparseRows)
    word = 8  # bytes at most, of an entry, its column index or a row pointer
    as_given = sum(word * (2 * part.nnz + part.indptr.size) for part in given)
    assert A.bytes_read <= 1.01 * 2 * as_given  # a product reads them twice
    proven, true = proven_and_true(decomposed(given, 3, form="rows"), exact_covariance(X))
    assert true <= proven <= 1e-10


def test_an_agent_may_lack_entries_in_a_column_that_is_far_from_zero_elsewhere() -> None:
    X = rows(0, 1e6)
    X[:12, 1] = 0.0
    given = [sparse.csr_array(part) for part in np.split(X, AGENTS)]
    for form in FORMS:
        for k in (1, 2):
            proven, true = proven_and_true(decomposed(given, k, form=form), exact_covariance(X))
            assert true <= proven


# --------------------------------------------------------------------------------------------------------- operators


def test_rounding_bounds_are_passed_on_to_derived_operators() -> None:
    """Derived operators are single agents, selections and shifts."""
    X = np.split(rows(0, 1.0), AGENTS)
    for A in (from_rows(X, form="rows"), from_rows(X, form="covariance"), from_rows([sparse.csr_array(x) for x in X])):
        whole = A.rounding()
        assert (whole.rows > 0.0).all()
        assert (whole.growth > 0.0).all()
        one, two = A.agent(1).rounding(), A.agents(np.array([1, 3])).rounding()
        np.testing.assert_array_equal(one.rows, whole.rows[1])
        np.testing.assert_array_equal(two.rows, whole.rows[[1, 3]])
        np.testing.assert_array_equal(two.products, whole.products[[1, 3]])
        shifted = Shifted(A, -7.0).rounding()
        assert shifted.shift == 7.0
        np.testing.assert_array_equal(shifted.rows, whole.rows)
    given = from_matrices(np.stack([x.T @ x for x in X])).rounding()  # given explicitly: only products are rounded
    assert not given.rows.any()
    assert (given.products > 0.0).all()


def test_large_matrices_that_cancel_in_the_mean_are_counted() -> None:
    """The products of an agent are rounded relative to its own A_j, whose size the mean does not show."""
    rng = np.random.default_rng(1)
    d, size = 8, 1e9
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    outside = basis[:, 2:]
    B = rng.standard_normal((d - 2, d - 2))
    big = size * outside @ (B + B.T) @ outside.T
    A = basis @ np.diag([4.0, 3.0, 1.0, 0.9, 0.8, 0.5, 0.4, 0.3]) @ basis.T
    stack = np.stack([A + big, A - big])
    stack = (stack + np.swapaxes(stack, -1, -2)) / 2.0
    exact = (stack[0].astype(np.longdouble) + stack[1].astype(np.longdouble)) / 2.0
    network = SimulatedNetwork(deepca.topology.path(2))
    X = np.array(np.broadcast_to(basis[:, :2], (2, d, 2)))
    certificate, _ = deepca.certify(Covariances(stack), X, network)
    assert true_angle(exact, basis[:, :2].T) <= certificate.angle


# ----------------------------------------------------------------------------------------- constant columns, weights


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [0.1, 1.0, -7e15, 1e-12, 3e100])
def test_a_constant_column_is_distinguished_from_one_that_varies_in_its_last_digit(value: float, kind: str) -> None:
    X = rows(0, 1.0)
    X[:, 3] = value
    parts = [KINDS[kind](part) for part in np.split(X, AGENTS)]
    with pytest.raises(DataError, match="column 3"):
        decomposed(parts, 2, scale=True)
    X[5, 3] = np.nextafter(value, np.inf)
    parts = [KINDS[kind](part) for part in np.split(X, AGENTS)]
    found = decomposed(parts, 2, scale=True)
    proven, true = proven_and_true(found, exact_covariance(X, scale=True))
    assert true <= proven <= 1e-10


def test_total_weights_are_the_sum_of_the_weights() -> None:
    """Integer totals stay integers for any number of agents, and nearly integer ones are not rounded."""
    X = rows(0, 1.0, n=98)
    for agents in (1, 3, 7, 49):
        network = SimulatedNetwork(deepca.topology.complete(agents))
        parts = [as_source(part, "agent") for part in np.array_split(X, agents)]
        totals = agree_on_statistics(network, read(parts).moments)
        assert (totals.weight, totals.n_rows) == (98.0, 98)
        w = np.full(98, 1.0)
        w[11] += 1e-10
        totals = agree_on_statistics(network, read(parts, np.array_split(w, agents)).moments)
        assert totals.weight != 98.0
        assert abs(totals.weight - math.fsum(w)) <= 1e-13
        assert totals.n_rows == 98
    mean = exact_mean(X)
    np.testing.assert_allclose(decomposed(np.split(X, 7), 2).mean, mean, rtol=1e-13)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [False, True])
def test_sizes_bound_the_norms_of_the_matrices(form: Any, kind: str, scale: bool) -> None:
    X = [KINDS[kind](part) for part in np.split(rows(3, 2.0), [6, 20, 21])]
    weights = [np.random.default_rng(j).uniform(0.2, 5.0, part.shape[0]) for j, part in enumerate(X)]
    local = read([as_source(part, f"agent {j}") for j, part in enumerate(X)], weights, form=form)
    totals = agree_on_statistics(SimulatedNetwork(deepca.topology.ring(AGENTS)), local.moments)
    units = np.sqrt(totals.squares / totals.weight) if scale else None
    A = local.operator((AGENTS,), totals.reference, totals.shift, units, 0.1, unit_rounding=totals.unit_rounding)
    sizes = A.rounding().sizes
    assert sizes is not None
    norms = np.linalg.norm(A.dense(), 2, axis=(-2, -1))
    assert (sizes >= norms * (1.0 - 1e-12)).all()
    assert (sizes <= 5.0 * norms).all()
    np.testing.assert_array_equal(A.agent(2).rounding().sizes, sizes[2])


@pytest.mark.parametrize("seed", range(40))
def test_totals_bound_the_growth_of_the_longest_sum(seed: int) -> None:
    """Agents whose sums are long may have small or large matrices in any direction."""
    rng = np.random.default_rng(seed)
    m, d = int(rng.integers(1, 9)), int(rng.integers(1, 6))
    G = rng.standard_normal((m, d, d)) * np.geomspace(1.0, 10.0 ** -rng.uniform(0.0, 6.0), d)
    A = G @ np.swapaxes(G, -1, -2) * 10.0 ** rng.uniform(-3.0, 3.0, m)[:, None, None]
    g = growth(1) * np.sqrt(rng.integers(1, 10 ** rng.integers(1, 7), m))
    zero, sizes = np.zeros(m), np.linalg.norm(A, axis=(-2, -1))
    off = Rounding(zero, zero, g, sizes=sizes)
    network = SimulatedNetwork(deepca.topology.path(m))
    agreed = AgreedRounding.of_products(network, A, off)
    largest = float(np.linalg.eigvalsh(A.mean(axis=0))[-1])
    worst = float(np.linalg.eigvalsh((g[:, None, None] * A).mean(axis=0))[-1])
    assert worst <= agreed.bound(off, largest) * (1.0 + 1e-12)
    assert agreed.growth >= g.max() * (1.0 - 1e-12)
    assert agreed.size == pytest.approx(sizes.mean())
    unknown = AgreedRounding.of_products(network, A, Rounding(zero, zero, g))
    assert unknown.spread == math.inf
    assert unknown.bound(off, largest) >= float(g.max()) * largest * (1.0 - 1e-12)
