"""Compare eigenpairs of means and sums of symmetric operators with scipy's ``eigh`` of the pooled mean."""

from __future__ import annotations

from contextlib import AbstractContextManager
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
from deepca.decomposition.spectral_bounds import agreed_spectral_bounds
from deepca.errors import DataError, GapError, InvalidInput, ParameterError, StartError
from deepca.network import Network
from deepca.operators import from_matrices
from deepca.operators.shifted import Shifted
from tests.support.engines import ENGINES, at_every_agent, everyone, mine, network_of
from tests.support.errors import raises
from tests.support.problems import close, orthogonal, permuted, symmetric_noise
from tests.support.seeds import law_seeds

Array = npt.NDArray[np.float64]
INDEFINITE = (9.0, -8.5, 7.0, -6.2, 5.0, -4.5, 2.5, 1.9, -2.2, 0.7, -0.4, 0.0, 0.3, -1.1, 1.2, -1.7)
WHICH: tuple[Which, ...] = ("LA", "SA", "LM")
M = 6


def agents_with(values: npt.ArrayLike, m: int = M, seed: int = 3, apart: float = 0.5) -> Array:
    """Return symmetric matrices ``(m, d, d)``, each of them indefinite, whose mean has these eigenvalues."""
    wanted = np.asarray(values, dtype=np.float64)
    Q = orthogonal(wanted.size, seed)
    stack = (Q * wanted) @ Q.T + apart * float(np.abs(wanted).max()) * symmetric_noise(m, wanted.size, seed + 1)
    return np.asarray((stack + np.swapaxes(stack, -1, -2)) / 2.0)


def pooled(stack: Array, k: int, which: Which) -> tuple[Array, Array]:
    """Return scipy's eigenpairs, with the largest entry of each vector positive."""
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
def test_eigenpairs_of_an_indefinite_mean_are_right_at_every_agent(which: Which, algorithm: str, engine: str) -> None:
    """Values and individual vectors are correct and identical at every agent, on every engine."""
    stack = agents_with(INDEFINITE)

    def work(network: Network) -> Array:
        pairs = eigenpairs(stack[network.local], network, 3, which=which, algorithm=algorithm, tol=1e-11)
        assert pairs.status.code == "converged", pairs.status
        both = np.vstack([pairs.values, pairs.residuals, pairs.vectors])
        return np.array(np.broadcast_to(both, (*network.batch, *both.shape)))

    done = at_every_agent(engine, deepca.topology.erdos_renyi(M, 0.6, seed=2), work).values
    values, vectors = pooled(stack, 3, which)
    assert (done == done[0]).all()  # bitwise identical
    close(done[0, 0], values, atol=1e-12 * 9.0)
    close(done[0, 2:], vectors, atol=1e-10)
    measured = np.linalg.norm(stack.mean(axis=0) @ done[0, 2:] - done[0, 2:] * done[0, 0], axis=0)
    close(done[0, 1], measured, atol=1e-14 * 9.0)


@pytest.mark.parametrize("topology", ["path", "star", "directed", "changing"])
def test_eigenpairs_are_right_on_every_kind_of_network(topology: str) -> None:
    """Directed and time-varying networks cannot average exactly."""
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


def test_the_papers_method_solves_an_indefinite_mean() -> None:
    """QR with SignAdjust needs no shift for eigenvalues largest in modulus; with the polar factor DeEPCA stalls."""
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


def test_acceleration_compensates_for_the_small_gaps_of_a_shift() -> None:
    """λ_1 − λ_2 is a hundredth of the spectrum's width, which slows down tracked power iterations."""
    stack = agents_with([1.0, 0.98, *np.linspace(0.5, -1.0, 14)], apart=0.2)
    plain, fast = (found(stack, 1, which="LA", algorithm=name) for name in ("deepca", "accelerated"))
    for pairs in (plain, fast):
        assert pairs.status.code == "converged"
        close(pairs.values, pooled(stack, 1, "LA")[0], atol=1e-13)
    assert fast.iterations * 3 < plain.iterations


# -------------------------------------------------------------------------------------------------------------- laws


@pytest.mark.parametrize("seed", law_seeds(2))
def test_eigenpairs_follow_negation_shifts_sums_scaling_and_renumbering(seed: int) -> None:
    """SA of A is LA of −A; adding cI shifts the values only; the sum is m times the mean; agents can be renumbered."""
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
def test_bounds_on_the_other_eigenvalues_and_on_angles_hold(which: Which, seed: int) -> None:
    """All other eigenvalues lie in the stated interval, and no vector has a larger error than its bound."""
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
def test_the_bounds_contain_the_spectrum(seed: int) -> None:
    """The bounds hold at both ends and are tight; the shifted operators are positive definite."""
    rng = np.random.default_rng(seed)
    stack = agents_with(rng.standard_normal(40) + rng.uniform(-3.0, 3.0), seed=seed)
    A, values = from_matrices(stack), scipy.linalg.eigvalsh(stack.mean(axis=0))
    bounds = agreed_spectral_bounds(from_matrices(stack[mine(M)]), network_of(deepca.topology.ring(M)))
    width = values[-1] - values[0]
    assert values[0] - 0.1 * width <= bounds.low <= values[0]
    assert values[-1] <= bounds.high <= values[-1] + 0.1 * width
    for sign in (1, -1):
        shifted = Shifted(A, bounds.shift(sign), sign)
        close(shifted.mean(), sign * stack.mean(axis=0) + bounds.shift(sign) * np.eye(40), atol=1e-12)
        assert np.linalg.eigvalsh(shifted.mean())[0] > 0.0
        W = rng.standard_normal((M, 40, 2))
        close(shifted @ W, shifted.dense() @ W, atol=1e-12)


# ----------------------------------------------------------------------------------------------- equal eigenvalues


def test_equal_eigenvalues_form_a_cluster() -> None:
    """The eigenvalue 5 is double: its vectors span the same space as scipy's, and neither has a bound of its own."""
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
def test_eigenvalues_of_opposite_sign_are_only_unique_together(algorithm: str) -> None:
    """±5 together are well defined; one of them alone is not."""
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
    with raises(GapError, parameter="k", value=1):
        alone.required()


@pytest.mark.parametrize(("which", "sign"), [("LA", 1.0), ("SA", -1.0)])
def test_a_missing_gap_after_k_is_reported(which: Which, sign: float) -> None:
    """The status has the eigenvalues of the original problem, and suggests k that work."""
    stack = agents_with(sign * np.array([5.0, 4.0, 4.0, *np.linspace(1.0, -1.0, 9)]))
    pairs = found(stack, 2, which=which)
    assert pairs.status.code == "not_unique"
    assert pairs.well_defined == (1, 3)
    assert np.isinf(pairs.angles[1])
    close(pairs.values, sign * np.array([5.0, 4.0]), atol=1e-12)
    numbers = pairs.status.numbers
    assert (numbers["k"], numbers["choices"]) == (2, (1, 3))
    assert [numbers["last"], numbers["next"]] == pytest.approx([4.0 * sign, 4.0 * sign])
    with raises(GapError, parameter="k", value=2):
        pairs.required()


def test_k_is_divided_between_both_ends() -> None:
    """Some cases have no gap at the upper end alone, and some have all of the largest at one end."""
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
def test_an_eigenvalue_seen_from_both_ends_counts_once(seed: int) -> None:
    """In few dimensions the searches at both ends find the whole spectrum, equal up to rounding."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(3, 14))
    k = int(rng.integers(1, d))
    stack = agents_with(rng.standard_normal(d), seed=seed)
    pairs = found(stack, k, which="LM")
    assert pairs.status.code == "converged", pairs.status
    close(pairs.values, pooled(stack, k, "LM")[0], atol=1e-12)


@pytest.mark.parametrize("algorithm", ["auto", "krylov", "accelerated"])
def test_all_pairs_are_well_defined(algorithm: str) -> None:
    """Even zero or another value may be repeated."""
    stack = agents_with([2.0, 0.0, 0.0, 0.0, -1.0])
    pairs = found(stack, 5, which="LM", algorithm=algorithm)
    assert pairs.status.code == "converged", pairs.status
    close(pairs.values, [2.0, -1.0, 0.0, 0.0, 0.0], atol=1e-12)


@pytest.mark.parametrize("value", [3.0, 0.0, -2.0])
def test_only_the_whole_space_is_unique_for_a_multiple_of_the_identity(value: float) -> None:
    stack = np.broadcast_to(value * np.eye(5), (M, 5, 5))
    assert found(stack, 2).status.code == "not_unique"
    whole = found(stack, 5)
    assert whole.status.code == "converged"
    assert whole.clusters == ((0, 1, 2, 3, 4),)
    close(whole.values, np.full(5, value), atol=1e-14)


# --------------------------------------------------------------------------------------------------------- bad input


def test_operators_may_have_different_types() -> None:
    stack = agents_with(INDEFINITE)
    mixed = [
        aslinearoperator(A) if j % 3 == 0 else sparse.csr_array(A) if j % 3 == 1 else A for j, A in enumerate(stack)
    ]
    pairs = found([mixed[j] for j in mine(M)], 2, which="SA", topology=deepca.topology.ring(M))  # type: ignore[arg-type]
    close(pairs.values, pooled(stack, 2, "SA")[0], atol=1e-12)


def raises_naming(kind: type[Exception], words: str) -> AbstractContextManager[object]:
    """Expect an error of another package whose message names an agent, a parameter or a function."""
    return pytest.raises(kind, match=rf"\b{words}\b")


def test_invalid_input_is_rejected() -> None:
    stack = agents_with(INDEFINITE)
    asymmetric = stack.copy()
    asymmetric[4, 0, 1] += 1.0
    with raises_naming(DataError, "agent 4"):
        found(asymmetric, 2)
    network = deepca.SimulatedNetwork(deepca.topology.ring(M))
    with raises_naming(DataError, "agent 4"):
        eigenpairs([aslinearoperator(A) for A in asymmetric], network, 2)
    with raises(ParameterError, parameter="which", value="BE"):
        found(stack, 2, which="BE")
    with raises(ParameterError, parameter="of", value="median"):
        found(stack, 2, of="median")
    with raises(ParameterError, parameter="n_components", value=17):
        found(stack, 17)
    with raises(ParameterError, parameter="n_components", value=0.5):
        found(stack, 0.5)  # type: ignore[arg-type]
    with raises_naming(InvalidInput, "sign"):
        Shifted(from_matrices(stack), 1.0, 2)
    with raises_naming(InvalidInput, "shift"):
        Shifted(from_matrices(stack), float("nan"))


def test_complex_operators_are_rejected() -> None:
    """The real part of a Hermitian matrix is symmetric, but has other eigenpairs."""
    real, network = np.diag([3.0, 2.0, 1.0]), deepca.SimulatedNetwork(deepca.topology.ring(3))
    hermitian = real + 1j * np.array([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    sparse_one = sparse.csr_array(real)
    for bad in (sparse.csr_array(hermitian), aslinearoperator(hermitian), hermitian):
        for others in ([sparse_one, sparse_one], [real, sparse_one]):
            with raises_naming(DataError, "agent 0"):
                eigenpairs([bad, *others], network, 1)
    for other in (None, real.astype(str)):
        with raises_naming(DataError, "agent 1"):
            eigenpairs([sparse_one, other, real], network, 1)
    with raises_naming(DataError, "agent 2"):
        eigenpairs([sparse_one, real, real[0]], network, 1)
    close(eigenpairs([sparse_one, real.tolist(), real], network, 1).values, [3.0], atol=1e-14)


def test_too_few_iterations_are_reported() -> None:
    stack = agents_with([1.0, 0.999, *np.linspace(0.9, -1.0, 14)])
    pairs = found(stack, 1, algorithm="deepca", max_iter=5)
    assert pairs.status.code == "out_of_iterations"
    assert not pairs.status.ok
    assert everyone(np.full(len(mine(M)), pairs.iterations), M).max() == 5


@pytest.mark.parametrize("second", [-4.95, 4.99995])
def test_the_papers_method_out_of_iterations_does_not_report_a_missing_gap(second: float) -> None:
    """While the vectors still change, the other eigenvalues do not show whether the subspace is unique."""
    stack = agents_with([5.0, second, *np.linspace(1.0, -0.9, 6)])
    pairs = found(stack, 1, which="LM", algorithm="deepca", max_iter=100)
    assert pairs.status.code == "out_of_iterations"
    assert "algorithm='auto'" in pairs.status.advice
    automatic = found(stack, 1, which="LM", algorithm="auto", max_iter=1)
    assert automatic.status.code == "out_of_iterations"
    assert "algorithm='auto'" not in automatic.status.advice
    close(found(stack, 1, which="LM").required().values, [5.0], atol=1e-12)


def test_invalid_k_seed_and_start_are_rejected() -> None:
    stack = agents_with(INDEFINITE)
    close(found(stack, np.int64(2)).values, pooled(stack, 2, "LA")[0], atol=1e-12)  # type: ignore[arg-type]
    for k in (2.5, True, None, "2"):
        with raises(ParameterError, parameter="n_components", value=k):
            found(stack, k)  # type: ignore[arg-type]
    for seed in (-1, 1.5, True):
        with raises(ParameterError, parameter="seed", value=seed):
            found(stack, 2, seed=seed)
    for start in (np.eye(5)[:2], np.eye(16)[0], np.full((1, 16), np.nan), "start"):
        with pytest.raises(StartError):
            found(stack, 2, start=start)


@pytest.mark.threads("one agent of several that is wrong")
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array, aslinearoperator])
def test_an_error_in_one_process_names_the_agent(kind: Any) -> None:
    stack = agents_with(INDEFINITE)
    stack[4, 0, 1] += 1.0

    def work(network: Network) -> Eigenpairs:
        return eigenpairs(kind(stack[int(network.local)]), network, 2)

    with raises_naming(DataError, "agent 4"):
        deepca.run_agents(deepca.topology.ring(M), work, timeout=20.0)


@pytest.mark.threads("one agent of several that are wrong")
@pytest.mark.parametrize("other", [{"of": "sum"}, {"which": "SA"}])
def test_agents_that_make_different_calls_raise(other: dict[str, Any]) -> None:
    """Each call is valid by itself, but the agents would compute different things."""

    def work(network: Network) -> Eigenpairs:
        asked = {"which": "LA", "of": "mean", **(other if network.local == 2 else {})}
        return eigenpairs(np.diag([3.0, 2.0, 1.0, -4.0]), network, 1, **asked)

    with raises_naming(InvalidInput, "eigenpairs"):
        deepca.run_agents(deepca.topology.path(3), work, timeout=20.0)
