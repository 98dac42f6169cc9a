"""Eigenpairs of means and sums of symmetric operators, against scipy's ``eigh`` of the mean itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.linalg
from scipy import sparse
from scipy.sparse.linalg import aslinearoperator

import deepca
from deepca import DeEPCA, Tolerance, solve
from deepca.decomposition.eigen import Eigenpairs, Which, eigenpairs
from deepca.decomposition.spectral_bounds import agreed_extent
from deepca.errors import DataError, GapError, InvalidInput, ParameterError, StartError
from deepca.network import Network
from deepca.operators import from_matrices
from deepca.operators.shifted import Shifted
from tests.support.engines import ENGINES, at_every_agent, everyone, mine, network_of
from tests.support.problems import close, orthogonal, permuted, symmetric_noise
from tests.support.seeds import law_seeds

Array = npt.NDArray[np.float64]
INDEFINITE = (9.0, -8.5, 7.0, -6.2, 5.0, -4.5, 2.5, 1.9, -2.2, 0.7, -0.4, 0.0, 0.3, -1.1, 1.2, -1.7)
WHICH: tuple[Which, ...] = ("LA", "SA", "LM")
M = 6


def agents_with(values: npt.ArrayLike, m: int = M, seed: int = 3, apart: float = 0.5) -> Array:
    """``(m, d, d)`` symmetric matrices, each of them indefinite, whose mean has these eigenvalues."""
    wanted = np.asarray(values, dtype=np.float64)
    Q = orthogonal(wanted.size, seed)
    stack = (Q * wanted) @ Q.T + apart * float(np.abs(wanted).max()) * symmetric_noise(m, wanted.size, seed + 1)
    return np.asarray((stack + np.swapaxes(stack, -1, -2)) / 2.0)


def pooled(stack: Array, k: int, which: Which) -> tuple[Array, Array]:
    """By scipy; the largest entry of each vector positive."""
    values, vectors = scipy.linalg.eigh(stack.mean(axis=0))
    order = {"LA": np.argsort(-values), "SA": np.argsort(values), "LM": np.argsort(-np.abs(values))}[which][:k]
    chosen = vectors[:, order]
    largest = chosen[np.abs(chosen).argmax(axis=0), np.arange(k)]
    return values[order], chosen * np.sign(largest)


def found(stack: Array, k: int, **settings: Any) -> Eigenpairs:
    return eigenpairs(stack, network_of(settings.pop("topology", deepca.topology.ring(len(stack)))), k, **settings)


# --------------------------------------------------------------------------------------------------------- exactness


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("algorithm", ["auto", "accelerated"])
@pytest.mark.parametrize("which", WHICH)
def test_pairs_of_an_indefinite_mean(which: Which, algorithm: str, engine: str) -> None:
    """Values and single vectors, at every agent, on every engine."""
    stack = agents_with(INDEFINITE)

    def work(network: Network) -> Array:
        pairs = eigenpairs(stack[network.local], network, 3, which=which, algorithm=algorithm, tol=1e-11)
        assert pairs.status.code == "converged", pairs.status
        both = np.vstack([pairs.values, pairs.residuals, pairs.vectors])
        return np.array(np.broadcast_to(both, (*network.batch, *both.shape)))

    done = at_every_agent(engine, deepca.topology.erdos_renyi(M, 0.6, seed=2), work).values
    values, vectors = pooled(stack, 3, which)
    assert (done == done[0]).all()  # the same bits everywhere
    close(done[0, 0], values, atol=1e-12 * 9.0)
    close(done[0, 2:], vectors, atol=1e-10)
    measured = np.linalg.norm(stack.mean(axis=0) @ done[0, 2:] - done[0, 2:] * done[0, 0], axis=0)
    close(done[0, 1], measured, atol=1e-14 * 9.0)


@pytest.mark.parametrize("topology", ["path", "star", "directed", "changing"])
def test_networks_of_other_kinds(topology: str) -> None:
    """Those that go one way, or change, have no exact averages to iterate with."""
    kinds = {
        "path": deepca.topology.path(M),
        "star": deepca.topology.star(M),
        "directed": deepca.topology.directed.ring(M),
        "changing": deepca.topology.time_varying.one_peer(M),
    }
    stack = agents_with(INDEFINITE)
    pairs = found(stack, 2, which="LM", algorithm="accelerated", topology=kinds[topology], tol=1e-10)
    values, vectors = pooled(stack, 2, "LM")
    assert pairs.status.code == "converged"
    close(pairs.values, values, atol=1e-11 * 9.0)
    close(pairs.vectors, vectors, atol=1e-10)


def test_the_papers_way_on_an_indefinite_mean() -> None:
    """QR with SignAdjust finds the largest in modulus, unshifted, and the polar factor does not settle there."""
    stack = agents_with(INDEFINITE)
    pairs = found(stack, 2, which="LM", algorithm="deepca")
    values, vectors = pooled(stack, 2, "LM")
    assert pairs.status.code == "converged"
    assert pairs.shifts == ()
    close(pairs.values, values, atol=1e-12 * 9.0)
    close(pairs.vectors, vectors, atol=1e-10)
    W0 = deepca.operators.linalg.random_orthonormal(len(INDEFINITE), 2, seed=0)
    polar = DeEPCA(
        stack, W0, network_of(deepca.topology.ring(M)), deepca.FastMix(rounds=8), deepca.operators.linalg.polar
    )
    stalled = solve(polar, max_iter=400, stop=Tolerance(1e-10), certify=False)
    assert not stalled.status.ok


def test_a_shift_makes_gaps_small_and_acceleration_makes_up_for_it() -> None:
    """λ_1 − λ_2 is a hundredth of the spectrum's width; tracked power iterations pay for that."""
    stack = agents_with([1.0, 0.98, *np.linspace(0.5, -1.0, 14)], apart=0.2)
    plain, fast = (found(stack, 1, which="LA", algorithm=name) for name in ("deepca", "accelerated"))
    for pairs in (plain, fast):
        assert pairs.status.code == "converged"
        close(pairs.values, pooled(stack, 1, "LA")[0], atol=1e-13)
    assert fast.iterations * 3 < plain.iterations


# -------------------------------------------------------------------------------------------------------------- laws


@pytest.mark.parametrize("seed", law_seeds(2))
def test_laws_of_eigenpairs(seed: int) -> None:
    """SA of A is LA of −A; a multiple of I moves values only; the sum is m times the mean; agents may be renumbered."""
    rng = np.random.default_rng(seed)
    stack = agents_with(np.sort(rng.standard_normal(12)) * 3.0, seed=10 + seed)
    one = found(stack, 3, which="LA")
    other = found(-stack, 3, which="SA")
    close(other.values, -one.values, atol=1e-13)
    close(other.vectors, one.vectors, atol=1e-11)
    moved = found(stack - 20.0 * np.eye(12), 3, which="LA")
    close(moved.values, one.values - 20.0, atol=1e-12)
    close(moved.vectors, one.vectors, atol=1e-10)
    total = found(stack, 3, which="LA", of="sum")
    close(total.values, M * one.values, atol=1e-12)
    renumbered = found(stack[permuted(M, seed)], 3, which="LA")
    close(renumbered.values, one.values, atol=1e-13)
    close(renumbered.vectors, one.vectors, atol=1e-11)
    scaled = found(stack * 2.0**-40, 3, which="LM")
    close(scaled.values * 2.0**40, found(stack, 3, which="LM").values, atol=1e-13)


@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize("seed", [1, 3])
def test_what_is_said_of_others_and_of_angles_is_true(which: Which, seed: int) -> None:
    """All other eigenvalues lie where they are said to, and no vector is farther off than its bound."""
    stack = agents_with(np.random.default_rng(seed).standard_normal(14), seed=20 + seed)
    pairs = found(stack, 4, which=which, algorithm="accelerated", tol=1e-6)
    assert pairs.status.code == "converged"
    values, vectors = pooled(stack, 14, which)
    low, high = pairs.others
    assert (values[4:] >= low).all()
    assert (values[4:] <= high).all()
    outside = np.linalg.norm(pairs.vectors - vectors[:, :4] * (vectors[:, :4] * pairs.vectors).sum(axis=0), axis=0)
    assert (outside <= pairs.angles + 1e-15).all()
    assert pairs.angle <= 1e-6


@pytest.mark.parametrize("seed", law_seeds(3))
def test_the_extent_contains_the_spectrum(seed: int) -> None:
    """Both ends, and not much more; the shifted operators are positive definite."""
    rng = np.random.default_rng(seed)
    stack = agents_with(rng.standard_normal(40) + rng.uniform(-3.0, 3.0), seed=seed)
    A, values = from_matrices(stack), scipy.linalg.eigvalsh(stack.mean(axis=0))
    extent = agreed_extent(from_matrices(stack[mine(M)]), network_of(deepca.topology.ring(M)))
    width = values[-1] - values[0]
    assert values[0] - 0.1 * width <= extent.low <= values[0]
    assert values[-1] <= extent.high <= values[-1] + 0.1 * width
    for sign in (1, -1):
        shifted = Shifted(A, extent.shift(sign), sign)
        close(shifted.mean(), sign * stack.mean(axis=0) + extent.shift(sign) * np.eye(40), atol=1e-12)
        assert np.linalg.eigvalsh(shifted.mean())[0] > 0.0
        W = rng.standard_normal((M, 40, 2))
        close(shifted @ W, shifted.dense() @ W, atol=1e-12)


# ----------------------------------------------------------------------------------------------- equal eigenvalues


def test_pairs_that_are_not_separated_are_named() -> None:
    """5 is double: its vectors span what scipy's do, and neither is claimed to be an eigenvector of its own."""
    stack = agents_with([5.0, 5.0, 4.0, *np.linspace(1.0, -1.0, 9)])
    pairs = found(stack, 3)
    values, vectors = pooled(stack, 3, "LA")
    assert pairs.status.code == "converged"
    assert pairs.clusters == ((0, 1),)
    assert np.isinf(pairs.angles[:2]).all()
    assert pairs.angles[2] <= 1e-10
    close(pairs.values, values, atol=1e-13)
    close(pairs.vectors[:, :2] @ pairs.vectors[:, :2].T, vectors[:, :2] @ vectors[:, :2].T, atol=1e-11)
    close(pairs.vectors[:, 2], vectors[:, 2], atol=1e-11)


@pytest.mark.parametrize("algorithm", ["auto", "accelerated"])
def test_a_pair_of_opposite_sign(algorithm: str) -> None:
    """±5 together are well defined, one of them alone is not."""
    stack = agents_with([5.0, -5.0, *np.linspace(1.0, -0.9, 10)])
    pairs = found(stack, 2, which="LM", algorithm=algorithm)
    assert pairs.status.code == "converged"
    close(np.sort(pairs.values), [-5.0, 5.0], atol=1e-12)
    for value, x in zip(pairs.values, pairs.vectors.T, strict=True):
        close(stack.mean(axis=0) @ x, value * x, atol=1e-10)
    alone = found(stack, 1, which="LM", algorithm=algorithm)
    assert alone.status.code == "not_unique"
    assert alone.status.numbers["k"] == 1
    assert abs(alone.status.numbers["last"]) == pytest.approx(5.0)
    assert alone.status.numbers["outside"] == pytest.approx(5.0)
    with pytest.raises(GapError):
        alone.required()


@pytest.mark.parametrize(("which", "sign"), [("LA", 1.0), ("SA", -1.0)])
def test_no_gap_behind_k(which: Which, sign: float) -> None:
    """The values are those of the problem asked, and the way out names k that work."""
    stack = agents_with(sign * np.array([5.0, 4.0, 4.0, *np.linspace(1.0, -1.0, 9)]))
    pairs = found(stack, 2, which=which)
    assert pairs.status.code == "not_unique"
    assert pairs.well_defined == (1, 3)
    assert np.isinf(pairs.angles[1])
    close(pairs.values, sign * np.array([5.0, 4.0]), atol=1e-12)
    numbers = pairs.status.numbers
    assert (numbers["k"], numbers["choices"]) == (2, (1, 3))
    assert [numbers["last"], numbers["next"]] == pytest.approx([4.0 * sign, 4.0 * sign])
    with pytest.raises(GapError):
        pairs.required()


def test_the_split_between_both_ends_is_found() -> None:
    """At the upper end alone there is no gap behind two; and one end may have none of the largest."""
    for values, k, want in (
        ([5.0, -4.0, 1.0, 1.0, *[0.1] * 8], 2, [5.0, -4.0]),
        ([-5.0, -4.0, -3.0, 1.0, *[0.1] * 8], 3, [-5.0, -4.0, -3.0]),
        ([5.0, 4.0, 3.0, 1.0, *[0.1] * 8], 3, [5.0, 4.0, 3.0]),
        ([5.0, -4.5, 4.0, -3.99, *[0.1] * 8], 3, [5.0, -4.5, 4.0]),
        ([3.0, 2.0, 1.0, -4.0], 4, [-4.0, 3.0, 2.0, 1.0]),
    ):
        pairs = found(agents_with(values), k, which="LM")
        assert pairs.status.code == "converged", (values, pairs.status)
        close(pairs.values, want, atol=1e-12)


@pytest.mark.parametrize("seed", [12, 21, 88])
def test_an_eigenvalue_that_both_ends_have_seen_counts_once(seed: int) -> None:
    """In few dimensions each end sees the whole spectrum, the same values again but for their rounding."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(3, 14))
    k = int(rng.integers(1, d))
    stack = agents_with(rng.standard_normal(d), seed=seed)
    pairs = found(stack, k, which="LM")
    assert pairs.status.code == "converged", pairs.status
    close(pairs.values, pooled(stack, k, "LM")[0], atol=1e-12)


@pytest.mark.parametrize("algorithm", ["auto", "krylov", "accelerated"])
def test_all_pairs_are_well_defined(algorithm: str) -> None:
    """However often zero, or any other value, occurs among them."""
    stack = agents_with([2.0, 0.0, 0.0, 0.0, -1.0])
    pairs = found(stack, 5, which="LM", algorithm=algorithm)
    assert pairs.status.code == "converged", pairs.status
    close(pairs.values, [2.0, -1.0, 0.0, 0.0, 0.0], atol=1e-12)


@pytest.mark.parametrize("value", [3.0, 0.0, -2.0])
def test_a_multiple_of_the_identity(value: float) -> None:
    """Nothing is special; all of it is."""
    stack = np.broadcast_to(value * np.eye(5), (M, 5, 5))
    assert found(stack, 2).status.code == "not_unique"
    whole = found(stack, 5)
    assert whole.status.code == "converged"
    assert whole.clusters == ((0, 1, 2, 3, 4),)
    close(whole.values, np.full(5, value), atol=1e-14)


# --------------------------------------------------------------------------------------------------------- bad input


def test_operators_of_any_kind_side_by_side() -> None:
    stack = agents_with(INDEFINITE)
    mixed = [
        aslinearoperator(A) if j % 3 == 0 else sparse.csr_array(A) if j % 3 == 1 else A for j, A in enumerate(stack)
    ]
    pairs = found([mixed[j] for j in mine(M)], 2, which="SA", topology=deepca.topology.ring(M))  # type: ignore[arg-type]
    close(pairs.values, pooled(stack, 2, "SA")[0], atol=1e-12)


def test_bad_input_is_named() -> None:
    stack = agents_with(INDEFINITE)
    unsymmetric = stack.copy()
    unsymmetric[4, 0, 1] += 1.0
    with pytest.raises(DataError, match="agent 4: its matrix is not symmetric"):
        found(unsymmetric, 2)
    network = deepca.SimulatedNetwork(deepca.topology.ring(M))
    with pytest.raises(DataError, match="agent 4: its operator is not symmetric"):
        eigenpairs([aslinearoperator(A) for A in unsymmetric], network, 2)
    with pytest.raises(InvalidInput, match="which = 'BE'"):
        found(stack, 2, which="BE")
    with pytest.raises(InvalidInput, match="of = 'median'"):
        found(stack, 2, of="median")
    with pytest.raises(InvalidInput, match="n_components = 17, but there are 16"):
        found(stack, 17)
    with pytest.raises(InvalidInput, match=r"n_components = 0\.5"):
        found(stack, 0.5)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="sign = 2"):
        Shifted(from_matrices(stack), 1.0, 2)
    with pytest.raises(InvalidInput, match="shift = nan"):
        Shifted(from_matrices(stack), float("nan"))


def test_operators_that_are_not_real_are_named() -> None:
    """A Hermitian matrix has a real part that is symmetric; its eigenpairs are not the ones asked for."""
    real, network = np.diag([3.0, 2.0, 1.0]), deepca.SimulatedNetwork(deepca.topology.ring(3))
    hermitian = real + 1j * np.array([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    sparse_one = sparse.csr_array(real)
    for bad in (sparse.csr_array(hermitian), aslinearoperator(hermitian), hermitian):
        for others in ([sparse_one, sparse_one], [real, sparse_one]):
            with pytest.raises(DataError, match=r"agent 0: its .* has dtype complex128; real numbers are needed"):
                eigenpairs([bad, *others], network, 1)
    for other in (None, real.astype(str)):
        with pytest.raises(DataError, match=r"agent 1: its matrix has dtype .*; real numbers are needed"):
            eigenpairs([sparse_one, other, real], network, 1)
    with pytest.raises(DataError, match=r"agent 2: its matrix has shape \(3,\)"):
        eigenpairs([sparse_one, real, real[0]], network, 1)
    close(eigenpairs([sparse_one, real.tolist(), real], network, 1).values, [3.0], atol=1e-14)


def test_too_few_iterations_are_told() -> None:
    stack = agents_with([1.0, 0.999, *np.linspace(0.9, -1.0, 14)])
    pairs = found(stack, 1, algorithm="deepca", max_iter=5)
    assert pairs.status.code == "out_of_iterations"
    assert not pairs.status.ok
    assert everyone(np.full(len(mine(M)), pairs.iterations), M).max() == 5


@pytest.mark.parametrize("second", [-4.95, 4.99995])
def test_the_papers_way_cut_short_does_not_deny_a_gap(second: float) -> None:
    """What lies outside vectors that still move says nothing of uniqueness."""
    stack = agents_with([5.0, second, *np.linspace(1.0, -0.9, 6)])
    pairs = found(stack, 1, which="LM", algorithm="deepca", max_iter=100)
    assert pairs.status.code == "out_of_iterations"
    assert "algorithm='auto' would tell" in pairs.status.advice
    close(found(stack, 1, which="LM").required().values, [5.0], atol=1e-12)


def test_numbers_that_make_no_sense_are_named() -> None:
    stack = agents_with(INDEFINITE)
    close(found(stack, np.int64(2)).values, pooled(stack, 2, "LA")[0], atol=1e-12)  # type: ignore[arg-type]
    for k in (2.5, True, None, "2"):
        with pytest.raises(ParameterError, match="n_components"):
            found(stack, k)  # type: ignore[arg-type]
    for seed in (-1, 1.5, True):
        with pytest.raises(InvalidInput, match=f"seed = {seed}"):
            found(stack, 2, seed=seed)
    for start in (np.eye(5)[:2], np.eye(16)[0], np.full((1, 16), np.nan), "start"):
        with pytest.raises(StartError, match="rows of d = 16 are needed"):
            found(stack, 2, start=start)


@pytest.mark.threads("one agent of several that is wrong")
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array, aslinearoperator])
def test_an_agent_apart_is_called_by_its_number(kind: Any) -> None:
    stack = agents_with(INDEFINITE)
    stack[4, 0, 1] += 1.0

    def work(network: Network) -> Eigenpairs:
        return eigenpairs(kind(stack[int(network.local)]), network, 2)

    with pytest.raises(DataError, match=r"agent 4: its (matrix|operator) is not symmetric"):
        deepca.run_agents(deepca.topology.ring(M), work, timeout=20.0)


@pytest.mark.threads("one agent of several that are wrong")
@pytest.mark.parametrize("other", [{"of": "sum"}, {"which": "SA"}])
def test_agents_apart_notice_another_call(other: dict[str, Any]) -> None:
    """Each would be right by itself, and they would not agree."""

    def work(network: Network) -> Eigenpairs:
        asked = {"which": "LA", "of": "mean", **(other if network.local == 2 else {})}
        return eigenpairs(np.diag([3.0, 2.0, 1.0, -4.0]), network, 1, **asked)

    with pytest.raises(InvalidInput, match=r"agents 2 and agent 0 do not make the same call: all need eigenpairs"):
        deepca.run_agents(deepca.topology.path(3), work, timeout=20.0)
