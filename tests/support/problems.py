"""Problems with known answers, for tests: ``from tests.support.problems import spectrum_problem, pooled_answer``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.linalg

from deepca import topology
from deepca.topology import Topology

__all__ = [
    "HeterogeneousProblem",
    "close",
    "heterogeneous_problem",
    "orthogonal",
    "permuted",
    "pooled_answer",
    "random_rows",
    "spectrum",
    "spectrum_problem",
    "symmetric_noise",
]

Array = npt.NDArray[np.float64]


def close(
    actual: npt.ArrayLike, desired: npt.ArrayLike, *, atol: float = 0.0, rtol: float = 0.0, err_msg: str = ""
) -> None:
    """Assert closeness without numpy's default relative tolerance of 1e-7, which hides lost digits."""
    np.testing.assert_allclose(np.asarray(actual), np.asarray(desired), rtol=rtol, atol=atol, err_msg=err_msg)


def orthogonal(d: int, seed: int) -> Array:
    """Return a random d × d orthogonal matrix."""
    Q, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((d, d)))
    return np.asarray(Q, dtype=np.float64)


def symmetric_noise(m: int, d: int, seed: int) -> Array:
    """Return m random symmetric matrices, ``(m, d, d)``, that sum to zero (to rounding), none of norm above 1."""
    E = np.random.default_rng(seed).standard_normal((m, d, d))
    E = E + np.swapaxes(E, -1, -2)
    E -= E.mean(axis=0)
    largest = float(np.abs(np.linalg.eigvalsh(E)).max())
    return np.asarray(E / largest if largest > 0.0 else E, dtype=np.float64)


def spectrum(d: int, k: int, *, top: float = 1.0, gap: float = 0.5, decay: float = 0.9) -> Array:
    """Return d positive eigenvalues, descending by factors of ``decay``, with a drop by ``gap`` behind the first k."""
    values = top * decay ** np.arange(d, dtype=np.float64)
    values[k:] *= gap
    return values


def spectrum_problem(
    m: int,
    d: int,
    eigenvalues: npt.ArrayLike,
    seed: int,
    heterogeneity: float = 0.5,
    indefinite: bool = False,
) -> Array:
    """Return ``A_1 … A_m`` as an ``(m, d, d)`` stack whose mean has the given eigenvalues (descending, non-negative).

    ``heterogeneity`` in [0, 1) sets how much agents differ; 0 gives every agent the mean. Every ``A_j`` is positive
    semidefinite, of the form ``A^{1/2} (I + heterogeneity·E_j) A^{1/2}`` with ``‖E_j‖ ≤ 1`` and ``Σ E_j = 0``.

    With ``indefinite=True``, ``A_j = A + heterogeneity·λ_1·E_j`` instead: for a heterogeneity of about 0.5 or more each
    ``A_j`` (m ≥ 2) has negative eigenvalues while the mean stays positive semidefinite.
    """
    values = np.asarray(eigenvalues, dtype=np.float64)
    if values.shape != (d,):
        raise ValueError(f"expected {d} eigenvalues, got shape {values.shape}")
    Q = orthogonal(d, seed)
    E = symmetric_noise(m, d, seed + 1)
    if indefinite:
        stack = (Q * values) @ Q.T + heterogeneity * values.max() * E
    else:
        half = (Q * np.sqrt(values)) @ Q.T
        stack = half @ (np.eye(d) + heterogeneity * E) @ half
    return np.asarray((stack + np.swapaxes(stack, -1, -2)) / 2.0, dtype=np.float64)


def random_rows(m: int, n: int | Sequence[int], d: int, seed: int, *, decay: float = 0.8) -> list[Array]:
    """Return rows, one ``(n_j, d)`` block per agent, with column scales that shrink by ``decay``, then rotated."""
    rng = np.random.default_rng(seed)
    counts = [n] * m if isinstance(n, int) else list(n)
    scales = decay ** np.arange(d, dtype=np.float64)
    Q = orthogonal(d, seed + 1)
    return [np.asarray((rng.standard_normal((count, d)) * scales) @ Q, dtype=np.float64) for count in counts]


def pooled_answer(stack: npt.ArrayLike, k: int) -> tuple[Array, Array]:
    """Return the top-k eigenvalues (descending) and eigenvectors of the mean, by ``scipy.linalg.eigh``."""
    A = np.asarray(stack, dtype=np.float64)
    values, vectors = scipy.linalg.eigh(A.mean(axis=0) if A.ndim == 3 else A)
    return np.asarray(values[::-1][:k], dtype=np.float64), np.asarray(vectors[:, ::-1][:, :k], dtype=np.float64)


def permuted(m: int, seed: int) -> npt.NDArray[np.int64]:
    """Return a random order of m agents."""
    return np.asarray(np.random.default_rng(seed).permutation(m), dtype=np.int64)


@dataclass(frozen=True)
class HeterogeneousProblem:
    """A decentralized problem with very different, indefinite ``A_j`` whose mean is positive semidefinite."""

    stack: Array
    k: int
    place: Topology
    about: str

    def answer(self) -> Array:
        """Return the top-k eigenvectors of the mean, by scipy."""
        return pooled_answer(self.stack, self.k)[1]


SPECTRA: dict[str, Callable[[int, int, np.random.Generator], Array]] = {
    "falling": lambda d, k, rng: 1.0 / np.arange(1.0, d + 1.0),
    "flat, then a gap": lambda d, k, rng: np.r_[np.linspace(1.0, 0.9, k), rng.uniform(0.3, 0.85) * np.ones(d - k)],
    "slowly falling": lambda d, k, rng: spectrum(d, k, gap=rng.uniform(0.6, 0.95), decay=0.97),
    "steep": lambda d, k, rng: rng.uniform(0.2, 0.6) ** np.arange(float(d)),
    "very steep": lambda d, k, rng: rng.uniform(0.05, 0.2) ** np.minimum(np.arange(float(d)), k + 2.0),
    "rank above k": lambda d, k, rng: np.r_[np.linspace(1.0, 0.3, min(k + 3, d)), np.zeros(max(d - k - 3, 0))],
    "rank is k": lambda d, k, rng: np.r_[np.linspace(1.0, 0.3, k), np.zeros(d - k)],
}


def heterogeneous_problem(seed: int) -> HeterogeneousProblem:
    """Return a random problem ``A_j = A + B_j`` with ``Σ B_j = 0`` and ``‖B_j‖`` from one to a hundred times ``‖A‖``.

    d is from 10 to 60, k from 1 to 6, m from 4 to 20, with all kinds of graphs and spectra; ``B_j`` has full rank, low
    rank, or is non-zero at few agents only.
    """
    rng = np.random.default_rng([seed, 17])
    d, k, m = int(rng.integers(10, 61)), int(rng.integers(1, 7)), int(rng.integers(4, 21))
    graphs: dict[str, Callable[[], Topology]] = {
        "erdos-renyi": lambda: topology.erdos_renyi(m, 0.5, seed=seed),
        "ring": lambda: topology.ring(m),
        "path": lambda: topology.path(m),
        "torus": lambda: topology.torus(3, max(m // 3, 3)),
        "star": lambda: topology.star(m),
        "grid": lambda: topology.grid(2, max(m // 2, 2)),
    }
    graph, falls, how = (str(rng.choice(names)) for names in (list(graphs), list(SPECTRA), ["full", "low rank", "few"]))
    place = graphs[graph]()
    m = place.n_agents
    values = SPECTRA[falls](d, k, rng)
    strength = float(10.0 ** rng.uniform(0.0, 2.0))
    B = _differences(how, m, d, rng)
    Q = orthogonal(d, seed)
    stack = (Q * values) @ Q.T + strength * B
    return HeterogeneousProblem(
        stack, k, place, f"{seed}: {graph} of {m}, d = {d}, k = {k}, {falls}, {how} × {strength:.1f}"
    )


def _differences(how: str, m: int, d: int, rng: np.random.Generator) -> Array:
    """Return symmetric matrices ``(m, d, d)`` that sum to zero, the largest of norm 1."""
    if how == "low rank":
        G = rng.standard_normal((m, d, int(rng.integers(1, 4))))
        B = (G * rng.choice([-1.0, 1.0], (m, 1, G.shape[2]))) @ np.swapaxes(G, -1, -2)
    else:
        B = rng.standard_normal((m, d, d))
        if how == "few":
            B[int(rng.integers(2, m)) :] = 0.0
    B = B + np.swapaxes(B, -1, -2)
    some = np.abs(B).max(axis=(-2, -1)) > 0.0
    B[some] -= B.sum(axis=0) / np.count_nonzero(some)
    return np.asarray(B / np.linalg.norm(B, 2, axis=(-2, -1)).max(), dtype=np.float64)
