"""Compute eigenvectors of a matrix whose rows are partitioned over agents: agent j has some rows of M and X."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import gammaincinv

from deepca._util.floats import EPS
from deepca._util.portable import acosh, cosh, log
from deepca._util.typing import Array
from deepca._util.validation import Integer, check
from deepca.algorithms.ritz_pass import correction, ritz_vectors
from deepca.consensus.broadcasts import SEMIORTHOGONALITY_TOLERANCE, checked_count, unpacked
from deepca.errors import Contradiction, InvalidInput, NotFiniteError
from deepca.network.base import Network
from deepca.network.trees import SpanningTree
from deepca.operators.linalg import symmetric_part

__all__ = ["FilteredSubspaceIteration", "FilteredSubspaceState", "PartitionedRows", "end_of_cluster", "random_rows"]

_N_GUARDS = 4  # columns beyond k, so that a λ_{k+1} close to λ_k is resolved and the filter has an edge
_MAX_COLUMNS = 96  # reached only if eigenvalues are repeated so often that fewer columns show no gap
_MAX_FILTER_GROWTH = 1e9  # largest growth of a column in one filter, so that rounding along other columns stays small
_N_PROBES = 8  # number of random columns that bound λ_{s+1}
_BLIND_DEGREE = 64  # degree of the filter of these columns if no gap determines it
_MAX_DEGREE_PER_ROW = 16  # largest degree of a filter, per row of M; a path graph needs about one per row
_MAX_ATTEMPTS = 2  # maximum number of attempts to find a bound below λ_s
_MAX_BOUNDS = 16  # number of bounds among which the failure probability is divided
_SEED_LIMIT = 1 << 63  # seeds are smaller, so that seeds derived from them fit into 64 bits


class PartitionedRows(Protocol):
    """A symmetric ``N × N`` matrix M with partitioned rows; arrays are ``(*B, n, w)``, zero in padding rows.

    Attributes
    ----------
    network : Network
        Network of the agents that have the rows.
    numbers : ndarray of shape (*B, n)
        Indices of the local rows; −1 for padding.
    lowest : float
        Lower bound on the eigenvalues, the same at every agent.
    """

    network: Network
    numbers: npt.NDArray[np.int64]
    lowest: float

    def product(self, X: Array, /) -> Array:
        """Return ``M X``, which takes one round."""
        ...


@dataclass(frozen=True)
class FilteredSubspaceState:
    """State of the subspace iteration after t steps: Ritz vectors X, their products with M, and their accuracy.

    ``X`` and ``MX`` have shape ``(*B, n, w)``; ``theta`` are the Ritz values in descending order, ``r`` the norms of
    their residuals, and ``products`` the number of multiplications by M so far.
    """

    t: int
    X: Array
    MX: Array
    theta: Array
    r: Array
    products: int


class FilteredSubspaceIteration:
    """Chebyshev-filtered subspace iterations for the k largest eigenvalues of M.

    Parameters
    ----------
    M : PartitionedRows
        The matrix.
    tree : SpanningTree
        Tree over which sums are computed.
    k : int
        Number of eigenpairs.
    known : ndarray of shape (*B, n), optional
        A known eigenvector that X must not contain, such as the constant one of a Laplacian.
    known_value : float, default=0.0
        Eigenvalue of ``known``.
    seed : int, default=0
        Seed of the start and of the probes, the same at all agents.

    Notes
    -----
    One iteration::

        Z  = T_q((2M − a − b)/(b − a)) X                 q rounds with neighbours; damps [a, b]
        G  = Σ_j Z_jᵀZ_j,   H = Σ_j Z_jᵀ(MZ)_j           w × w each, one sum over a tree
        H C = G C Θ,  CᵀGC = I,  Θ = diag(θ_1 … θ_w)     the same at every agent
        X  = Z C,   r_i² = Σ_j ‖(MX)_j − X_j Θ‖_i²       another sum
        b  = θ_w

    Neighbours exchange rows of X to multiply by M; everything else follows from sums of w × w matrices, so the columns
    of X are orthonormal over the network although no agent has a whole column. ``a`` is a lower bound (Gershgorin), and
    ``θ_w ≤ λ_w`` (Cauchy), so no wanted eigenvalue is damped. With relative gap g, power iterations need 1/g products
    and a sum for each, filtered ones 1/√g products and one sum for many of them, which matters on long thin graphs,
    where a sum takes as many rounds as the graph is long. The filter is due to Zhou and Saad [1]_.

    References
    ----------
    .. [1] Y. Zhou and Y. Saad, "A Chebyshev–Davidson Algorithm for Large Symmetric Eigenproblems", SIAM Journal on
       Matrix Analysis and Applications 29 (2007).
    """

    def __init__(
        self,
        M: PartitionedRows,
        tree: SpanningTree,
        k: int,
        *,
        known: Array | None = None,
        known_value: float = 0.0,
        seed: int = 0,
    ) -> None:
        check("seed", seed, Integer(0, _SEED_LIMIT - 1), meaning="the same at all agents")
        self.M, self.tree, self.k, self._seed = M, tree, k, int(seed)
        self.size = round(float(tree.sum(np.count_nonzero(M.numbers >= 0, axis=-1)[..., None].astype(np.float64))[0]))
        v = np.zeros((*M.numbers.shape, 0)) if known is None else known[..., None]
        self.V = v / np.sqrt(tree.sum(np.square(v).sum(axis=-2)))
        self._known_value = known_value
        self.free = self.size - self.V.shape[-1]
        if not 1 <= k <= self.free:
            if self.free == 0:
                raise InvalidInput("a graph of one node has no eigenvector to compute; give two nodes or more")
            asked = k + self.size - self.free
            raise InvalidInput(
                f"cannot compute {asked} eigenvectors of a matrix with {self.size} rows; choose from 1 to {self.size}",
                value=asked,
            )

    def init(self) -> FilteredSubspaceState:
        """Return the state for random columns that depend on row indices only, not on the partition."""
        w = min(self.k + _N_GUARDS, self.free)
        return self._ritz(random_rows(self.M.numbers, w, self._seed), 0, 0)

    def step(self, state: FilteredSubspaceState, accuracy: float) -> FilteredSubspaceState:
        """Apply one filter, then Rayleigh–Ritz.

        The degree of the filter is the one that residuals of ``accuracy`` require, or less if rounding limits it.
        """
        a, b = self.M.lowest, float(state.theta[-1])
        q = self._degree(state, accuracy)
        X, products = state.X, state.products
        if q > 0:
            X = self._filtered(state.X, state.MX, a, b, q)
            products += q - 1
        return self._ritz(X, state.t + 1, products)

    def widened(self, state: FilteredSubspaceState) -> FilteredSubspaceState:
        """Return the state with up to twice as many columns, of which the new ones are random."""
        w = state.X.shape[-1]
        more = min(2 * w, self.free, max(_MAX_COLUMNS, w)) - w
        X = np.concatenate([state.X, random_rows(self.M.numbers, more, self._seed + 1009 * w)], axis=-1)
        return self._ritz(X, state.t, state.products)

    def scale(self, state: FilteredSubspaceState) -> float:
        """Return the approximate norm of M, to which rounding errors are relative."""
        known = abs(self._known_value) if self.V.shape[-1] else 0.0
        return max(abs(self.M.lowest), float(np.abs(state.theta).max()), known)

    def may_widen(self, state: FilteredSubspaceState) -> bool:
        """Return whether columns may be added."""
        return bool(state.theta.size < min(self.free, _MAX_COLUMNS))

    def remaining_products(self, state: FilteredSubspaceState, accuracy: float) -> float:
        """Estimate the number of further products that reduce residuals to ``accuracy``, from the Ritz values."""
        s = min(end_of_cluster(state.theta, self.k), state.theta.size - 1)
        wanted = 10.0 * max(float(state.r[:s].max(initial=0.0)) / accuracy, 1.0)
        a, b = self.M.lowest, float(state.theta[-1])
        return _degree_for(wanted, _map_to_unit(float(state.theta[max(s, 1) - 1]), a, b)) if b > a else 0.0

    def upper_bound(self, state: FilteredSubspaceState, s: int, failure: float) -> tuple[float, int]:
        """Return an upper bound on λ_{s+1} that fails with probability ``failure``, and the number of products used.

        Let ``B = (I−XXᵀ) M (I−XXᵀ)``, where X consists of the first s columns and the known eigenvector. Then
        ``λ_{s+1}(M) ≤ λ₁(B)`` for every X. Let Z have p fresh Gaussian columns, and ``Y = T_q(B) Z`` with the
        polynomial of the filter. A unit eigenvector u of B for λ₁(B) gives

            ‖Y‖ ≥ ‖uᵀY‖ = T_q(λ₁(B)) ‖uᵀZ‖,     ‖uᵀZ‖² ~ χ²_p,

        so λ₁(B) is at most the point at which ``T_q`` reaches ``‖Y‖/χ(failure)``. X is invariant up to rounding, so M
        is applied instead of B, and X is projected out again before rounding errors grow. Likewise ``λ₁(B) ≤ θ_s +
        ‖(B − θ_s)Z‖/χ(failure)``, which is the sharper bound if all remaining eigenvalues are equal.
        """
        if state.theta.size == self.free:  # X spans everything
            return (float(state.theta[s] + state.r[s]) if s < self.free else -math.inf), 0
        a, b, target = self.M.lowest, self._upper_edge(state, s), float(state.theta[s - 1])
        X = np.concatenate([self.V, state.X[..., :s]], axis=-1)
        top = max(float(state.theta[0]), self._known_value if self.V.shape[-1] else -math.inf)
        min_length = _chi_quantile(failure / _MAX_BOUNDS)
        made, found = 0, math.inf
        for attempt in range(_MAX_ATTEMPTS):
            q = self._probe_degree(a, b, target, min_length)
            if q == _BLIND_DEGREE:
                b = target  # no gap determines the degree: take the bound that a few rounds give
            if not a < b:
                break
            pause = max(1, int(log(_MAX_FILTER_GROWTH) / acosh(_map_to_unit(top, a, b))))
            seed = self._seed + 7919 * (attempt + 1) + 104729 * state.theta.size
            Z = self._projected_out(random_rows(self.M.numbers, _N_PROBES, seed), X)
            MZ = self.M.product(Z)
            Y = self._projected_out(self._filtered(Z, MZ, a, b, q, X, pause), X)
            made += q
            lengths = self.tree.sum(np.stack([np.square(part).sum(axis=(-2, -1)) for part in (Y, MZ - target * Z)], -1))
            growth, deviation = np.sqrt(lengths) / min_length
            found = min(found, (a + b) / 2.0 + (b - a) / 2.0 * cosh(acosh(max(growth, 1.0)) / q), target + deviation)
            if found < target or b == target:
                break
            b = (b + target) / 2.0
        return float(found), made

    def _probe_degree(self, a: float, b: float, target: float, min_length: float) -> int:
        """Return the degree of the filter with which the bound on λ_{s+1} is likely to be below ``target``.

        Return _BLIND_DEGREE if no gap below ``target`` determines that degree, or if it would be too high.
        ``min_length`` is the length that the random columns have along any eigenvector except with the failure
        probability.
        """
        if not a < b < target:
            return _BLIND_DEGREE
        q = acosh(4.0 * math.sqrt(self.size * _N_PROBES) / min_length) / acosh(_map_to_unit(target, a, b))
        return math.ceil(q) + 1 if q < _MAX_DEGREE_PER_ROW * self.size else _BLIND_DEGREE

    def _filtered(
        self, X: Array, MX: Array, a: float, b: float, q: int, out: Array | None = None, pause: int = 0
    ) -> Array:
        """Return ``T_q((2M − a − b)/(b − a)) X``, q ≥ 1, projecting out ``out`` after every ``pause`` products."""
        c, e = (a + b) / 2.0, (b - a) / 2.0
        previous, Y = X, (MX - c * X) / e
        for i in range(1, q):
            Y, previous = (2.0 / e) * (self.M.product(Y) - c * Y) - previous, Y
            if out is not None and i % pause == 0:
                both = self._projected_out(np.concatenate([Y, previous], axis=-1), out)
                Y, previous = both[..., : Y.shape[-1]], both[..., Y.shape[-1] :]
        return Y

    def _degree(self, state: FilteredSubspaceState, accuracy: float) -> int:
        """Return the degree of the next filter, limited by rounding and by what ``accuracy`` still requires."""
        a, b, theta = self.M.lowest, float(state.theta[-1]), state.theta
        scale = self.scale(state)
        if theta.size == self.free or not b - a > 64.0 * EPS * scale:
            return 0
        # a column contains about r_1/distance of the eigenvector of θ_1, which grows with the filter
        distance = max(float(theta[0]) - b, 64.0 * EPS * scale)
        pure = 10.0 * max(distance / max(float(state.r[: self.k].max()), EPS * scale), 1.0)
        allowed = _degree_for(min(pure * 1e3, _MAX_FILTER_GROWTH), _map_to_unit(float(theta[0]), a, b))
        if self.V.shape[-1]:
            allowed = min(allowed, _degree_for(_MAX_FILTER_GROWTH * 1e3, _map_to_unit(self._known_value, a, b)))
        return int(max(2, min(allowed, self.remaining_products(state, accuracy), _MAX_DEGREE_PER_ROW * self.size)))

    def _ritz(self, Z: Array, t: int, products: int) -> FilteredSubspaceState:
        """Orthonormalise Z over the network and return its Ritz pairs."""
        MZ = self.M.product(Z)
        products += 1
        w, value = Z.shape[-1], self._known_value
        for last in (False, False, True):
            parts, derived = self._sums(
                (self.V, Z), (Z, Z), (Z, MZ), derive=partial(ritz_vectors, value, last), size=3 + w * w + w
            )
            P, G, H = parts
            Z = Z - self.V @ P
            done, recompute, kept, C, theta = unpacked(derived, (), (), (), (w, w), (w,))
            columns = checked_count(self.tree.rounds.root, "a number of columns", kept, w)
            C, theta = C[:, :columns], theta[:columns]
            if not C.size:
                raise NotFiniteError("columns became zero, NaN or Inf; check that all weights are finite and moderate")
            self._check_ritz_vectors(C, theta, G - P.T @ P, symmetric_part(H - value * (P.T @ P)), bool(done))
            if done:
                break
            Z = Z @ C  # nearly orthonormal; the next pass corrects the rest
            MZ = self.M.product(Z)
            products += 1
            w = Z.shape[-1]
        MZ = MZ - value * (self.V @ P)
        X, MX = Z @ C, MZ @ C
        if recompute:  # rounding errors of MZ were amplified by C, and residuals must be those of X
            MX = self.M.product(X)
            products += 1
        w = theta.size
        parts, derived = self._sums((self.V, X), (X, X), squared=MX - X * theta, derive=correction, size=w * w)
        P, G, squares = parts
        [corrected] = unpacked(derived, (w, w))
        if not self.tree.is_root_local:
            self._check(
                float(np.abs(corrected - correction([P, G, squares]).reshape(w, w)).max()),
                SEMIORTHOGONALITY_TOLERANCE,
            )
        X, MX = (X - self.V @ P) @ corrected, (MX - value * (self.V @ P)) @ corrected
        added = np.linalg.norm((theta[:, None] - theta) * corrected, axis=0)  # to each residual
        return FilteredSubspaceState(t, X, MX, theta, np.sqrt(squares) + added, products)

    def _check_ritz_vectors(self, C: Array, theta: Array, G: Array, H: Array, done: bool) -> None:
        """Raise Contradiction unless ``CᵀGC = I`` and, once done, ``CᵀHC = Θ``, up to rounding in G."""
        if self.tree.is_root_local:
            return
        lengths = np.sqrt(np.maximum(np.diag(G), 0.0))
        D = C * lengths[:, None]  # in terms of unit columns
        unit = np.where(lengths > 0.0, lengths, 1.0)
        scaled, rounding = G / np.outer(unit, unit), 64.0 * len(C) * EPS * np.square(np.linalg.norm(D, axis=0)).max()
        self._check(float(np.abs(D.T @ scaled @ D - np.eye(C.shape[1])).max()), 1e-8 + rounding)
        if done:
            size = float(np.abs(H / np.outer(unit, unit)).max())
            self._check(float(np.abs(C.T @ H @ C - np.diag(theta)).max()), (1e-8 + rounding) * size)

    def _check(self, departure: float, allowed: float) -> None:
        """Raise Contradiction, which names the root, if numbers differ from the expected ones by more than allowed."""
        if not departure <= allowed:
            raise Contradiction.off_by(self.tree.rounds.root, "Ritz vectors", departure, allowed)

    def _sums(
        self,
        *pairs: tuple[Array, Array],
        squared: Array | None = None,
        derive: Callable[[list[Array]], Array] = lambda _: np.empty(0),
        size: int = 0,
    ) -> tuple[list[Array], Array]:
        """Return ``Σ_j Y_jᵀZ_j`` of every pair and the squared column norms of ``squared``, from one sum over the tree.

        The second value returned contains the ``size`` numbers that the root derives from these sums.
        """
        parts = [np.swapaxes(Y, -1, -2) @ Z for Y, Z in pairs]
        parts += [] if squared is None else [np.square(squared).sum(axis=-2)]
        B = self.M.network.batch
        shapes = [part.shape[len(B) :] for part in parts]
        flat = np.concatenate([part.reshape(*B, -1) for part in parts], axis=-1)
        total, derived = self.tree.sum_and_derive(flat, lambda total: derive(unpacked(total, *shapes)), size)
        return unpacked(total, *shapes), derived

    def _projected_out(self, Y: Array, X: Array) -> Array:
        """Return ``(I − XXᵀ) Y``."""
        [P], _ = self._sums((X, Y))
        return Y - X @ P

    def _upper_edge(self, state: FilteredSubspaceState, s: int) -> float:
        """Return the upper edge b of the probes' filter: λ_{s+1} or slightly more."""
        if s >= state.theta.size:
            return float(state.theta[s - 1])
        return float(min(state.theta[s] + state.r[s], (state.theta[s - 1] + state.theta[s]) / 2.0))


def end_of_cluster(theta: Array, k: int) -> int:
    """Return the first s ≥ k after which Ritz values drop clearly, so that no cluster is split."""
    drops = theta[k - 1 : -1] - theta[k:]
    if drops.size == 0:
        return k
    clear = drops >= 0.05 * drops.max()
    return k + int(np.argmax(clear))


def _chi_quantile(failure: float) -> float:
    """Return the ``failure`` quantile of χ with _N_PROBES degrees of freedom, with the same bits on every processor."""
    return math.floor(math.sqrt(2.0 * float(gammaincinv(_N_PROBES / 2.0, failure))) * 2.0**20) / 2.0**20


def _map_to_unit(x: float, a: float, b: float) -> float:
    """Map x linearly so that ``[a, b]`` becomes ``[−1, 1]``; values up to 1 become slightly more than 1."""
    return max((2.0 * x - a - b) / (b - a), 1.0 + 1e-15)


def _degree_for(growth: float, x: float) -> float:
    """Return the degree q, not rounded, for which ``T_q(x) = growth``, with x > 1."""
    return acosh(max(growth, 1.0)) / acosh(x)


def random_rows(
    numbers: npt.NDArray[np.int64],
    w: int,
    seed: int,
    draw: Callable[[np.random.Generator, int], Array] = np.random.Generator.standard_normal,
) -> Array:
    """Return random rows ``(*B, n, w)`` that depend on the row index but not on the partition; zero for padding."""
    found = np.zeros((numbers.size, w))
    for i, number in enumerate(numbers.ravel().tolist()):
        if number >= 0:
            found[i] = draw(np.random.Generator(np.random.Philox(key=(seed << 64) | number)), w)
    return found.reshape(*numbers.shape, w)
