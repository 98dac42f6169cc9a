"""Eigenvectors whose entries live apart: agent j holds its rows of X, and of the matrix only what touches its nodes."""

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
from deepca._util.validation import Whole, check
from deepca.errors import Contradiction, InvalidInput, NotFiniteError
from deepca.network.base import Network
from deepca.network.broadcasts import SEMI, counted, packed, unpacked
from deepca.network.trees import SpanningTree
from deepca.operators.linalg import symmetric_part

__all__ = ["PartitionedRows", "RowsApart", "RowsState", "by_number", "split"]

_GUARDS = 4  # columns beyond k, so that a close λ_{k+1} is seen beside λ_k and the filter has an edge
_WIDEST = 96  # columns, where eigenvalues are so often repeated that fewer show no gap
_ONE_PASS = 1e4  # condition number of the scaled Gram matrix up to which one pass is orthonormal to rounding
_GROWN = 16.0  # the same, from which products are made anew instead of recombined
_GROWTH = 1e9  # of a column in one filter: rounding along the others must stay small beside it
_PROBES = 8
_LONGEST = 16  # degree of a filter, in nodes: a path needs about as many as it has
_TRIES = 2
_LOOKS = 16  # at most, all with their share of the failure probability
_SEEDS = 1 << 63
_BLIND = 64  # products of a probe without a gap to aim at


class PartitionedRows(Protocol):
    """A symmetric ``N × N`` matrix M whose rows live apart; arrays are ``(*B, n, w)``, zero in rows that only fill up.

    numbers : of the rows held here, ``(*B, n)``; −1 where they only fill up.
    lowest : no eigenvalue is smaller, the same number at every agent.
    """

    network: Network
    numbers: npt.NDArray[np.int64]
    lowest: float

    def product(self, X: Array, /) -> Array:
        """``M X``, which takes one round."""
        ...


@dataclass(frozen=True)
class RowsState:
    """Iteration t: ``X`` and ``MX`` ``(*B, n, w)``, Ritz values ``theta`` and residuals ``r`` ``(w,)``, falling.

    ``products`` counts those with M so far.
    """

    t: int
    X: Array
    MX: Array
    theta: Array
    r: Array
    products: int


class RowsApart:
    """The k largest eigenvalues of M, by Chebyshev-filtered subspace iterations::

        Z  = T_q((2M − a − b)/(b − a)) X                 q rounds with neighbours; what lies in [a, b] does not grow
        G  = Σ_j Z_jᵀZ_j,   H = Σ_j Z_jᵀ(MZ)_j           w × w each, one sum over a tree
        H C = G C Θ,  CᵀGC = I                           at every agent alike
        X  = Z C,   r_i² = Σ_j ‖(MX)_j − X_j Θ‖_i²       another sum
        b  = θ_w

    Rows of X are nobody's but their agent's. What all share are sums of w × w matrices, so the columns of X are
    orthonormal over the network although no agent sees a whole one. ``a`` is a bound from below (Gershgorin), and
    ``θ_w ≤ λ_w`` (Cauchy), so nothing wanted is damped. Power iterations with relative gap g need 1/g products, these
    1/√g, and one sum for many of them: on long thin graphs a sum takes as many rounds as the graph is long.

    Eigenvectors known beforehand (``known`` with its value: the constant one of a Laplacian) are kept out of X.

    Parameters
    ----------
    M : the rows.  tree : over which sums are made.  k : eigenpairs wanted.
    known, known_value : an eigenvector ``(*B, n)``, not necessarily of length one, and its eigenvalue.
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
        check("seed", seed, Whole(0, _SEEDS - 1), meaning="the same at all agents")
        self.M, self.tree, self.k, self._seed = M, tree, k, int(seed)
        self.size = round(float(tree.sum(np.count_nonzero(M.numbers >= 0, axis=-1)[..., None].astype(np.float64))[0]))
        v = np.zeros((*M.numbers.shape, 0)) if known is None else known[..., None]
        self.V = v / np.sqrt(tree.sum(np.square(v).sum(axis=-2)))
        self._known_value = known_value
        self.free = self.size - self.V.shape[-1]
        if not 1 <= k <= self.free:
            fixed = self.size - self.free
            if self.free == 0:
                raise InvalidInput("a graph of one node has nothing to be found; give two nodes or more")
            raise InvalidInput(f"{k + fixed} eigenvectors of a matrix with {self.size} rows: ask for 1 to {self.size}")

    def init(self) -> RowsState:
        """From columns that are random by the number of a row, whoever holds it."""
        w = min(self.k + _GUARDS, self.free)
        return self._ritz(by_number(self.M.numbers, w, self._seed), 0, 0)

    def step(self, state: RowsState, accuracy: float) -> RowsState:
        """One filter, as long as rounding allows and residuals down to ``accuracy`` ask for, and Rayleigh–Ritz."""
        a, b = self.M.lowest, float(state.theta[-1])
        q = self._degree(state, accuracy)
        X, products = state.X, state.products
        if q > 0:
            X = self._filtered(state.X, state.MX, a, b, q)
            products += q - 1
        return self._ritz(X, state.t + 1, products)

    def widened(self, state: RowsState) -> RowsState:
        """With twice as many columns, the new ones random."""
        w = state.X.shape[-1]
        more = min(2 * w, self.free, max(_WIDEST, w)) - w
        X = np.concatenate([state.X, by_number(self.M.numbers, more, self._seed + 1009 * w)], axis=-1)
        return self._ritz(X, state.t, state.products)

    def scale(self, state: RowsState) -> float:
        """A bound on the size of eigenvalues, or nearly; rounding is relative to it."""
        known = abs(self._known_value) if self.V.shape[-1] else 0.0
        return max(abs(self.M.lowest), float(np.abs(state.theta).max()), known)

    def may_widen(self, state: RowsState) -> bool:
        return bool(state.theta.size < min(self.free, _WIDEST))

    def to_come(self, state: RowsState, accuracy: float) -> float:
        """Products until residuals are down to ``accuracy``, by the distance of Ritz values to the last one."""
        s = min(split(state.theta, self.k), state.theta.size - 1)
        wanted = 10.0 * max(float(state.r[:s].max(initial=0.0)) / accuracy, 1.0)
        b = float(state.theta[-1])
        return _times(wanted, _place(float(state.theta[max(s, 1) - 1]), self.M.lowest, b)) if b > self.M.lowest else 0.0

    def above(self, state: RowsState, s: int, failure: float) -> tuple[float, int]:
        """λ_{s+1} is at most this, but for a probability of ``failure``; and the products that it took.

        Let ``B = (I−XXᵀ) M (I−XXᵀ)`` with the first s columns (and what is known beforehand): ``λ_{s+1}(M) ≤ λ₁(B)``
        for every X. With fresh Gaussian Z, p columns, and the filter's polynomial, ``Y = T_q(B) Z``, an eigenvector u
        of B to λ₁(B) gives

            ‖Y‖ ≥ ‖uᵀY‖ = T_q(λ₁(B)) ‖uᵀZ‖,     ‖uᵀZ‖² ~ χ²_p,

        so λ₁(B) is at most where ``T_q`` reaches ``‖Y‖/χ(failure)``. X is invariant to rounding, so B is applied by M,
        and X is projected out again before rounding has grown. Likewise ``λ₁(B) ≤ θ_s + ‖(B − θ_s)Z‖/χ(failure)``,
        which decides where all that is outside has one eigenvalue.
        """
        if state.theta.size == self.free:  # X is everything
            return (float(state.theta[s] + state.r[s]) if s < self.free else -math.inf), 0
        a, b, target = self.M.lowest, self._edge(state, s), float(state.theta[s - 1])
        X = np.concatenate([self.V, state.X[..., :s]], axis=-1)
        top = max(float(state.theta[0]), self._known_value if self.V.shape[-1] else -math.inf)
        least = _least_length(failure / _LOOKS)
        made, found = 0, math.inf
        for attempt in range(_TRIES):
            q = self._probing(a, b, target, least)
            if q == _BLIND:
                b = target  # no gap to aim at: as good a bound as some rounds give
            if not a < b:
                break
            pause = max(1, int(log(_GROWTH) / acosh(_place(top, a, b))))
            seed = self._seed + 7919 * (attempt + 1) + 104729 * state.theta.size
            Z = self._without(by_number(self.M.numbers, _PROBES, seed), X)
            MZ = self.M.product(Z)
            Y = self._without(self._filtered(Z, MZ, a, b, q, X, pause), X)
            made += q
            lengths = self.tree.sum(np.stack([np.square(part).sum(axis=(-2, -1)) for part in (Y, MZ - target * Z)], -1))
            reach, off = np.sqrt(lengths) / least
            found = min(found, (a + b) / 2.0 + (b - a) / 2.0 * cosh(acosh(max(reach, 1.0)) / q), target + off)
            if found < target or b == target:
                break
            b = (b + target) / 2.0
        return float(found), made

    def _probing(self, a: float, b: float, target: float, least: float) -> int:
        """Products after which a bound should be below ``target``; _BLIND where that is too many."""
        if not a < b < target:
            return _BLIND
        q = acosh(4.0 * math.sqrt(self.size * _PROBES) / least) / acosh(_place(target, a, b))
        return math.ceil(q) + 1 if q < _LONGEST * self.size else _BLIND

    # ------------------------------------------------------------------------------------------------- the parts

    def _filtered(
        self, X: Array, MX: Array, a: float, b: float, q: int, out: Array | None = None, pause: int = 0
    ) -> Array:
        """``T_q((2M − a − b)/(b − a)) X``, q ≥ 1; ``out`` is projected out after every ``pause`` products."""
        c, e = (a + b) / 2.0, (b - a) / 2.0
        previous, Y = X, (MX - c * X) / e
        for i in range(1, q):
            Y, previous = (2.0 / e) * (self.M.product(Y) - c * Y) - previous, Y
            if out is not None and i % pause == 0:
                both = self._without(np.concatenate([Y, previous], axis=-1), out)
                Y, previous = both[..., : Y.shape[-1]], both[..., Y.shape[-1] :]
        return Y

    def _degree(self, state: RowsState, accuracy: float) -> int:
        """As many products as rounding allows, or as residuals ask for."""
        a, b, theta = self.M.lowest, float(state.theta[-1]), state.theta
        scale = self.scale(state)
        if theta.size == self.free or not b - a > 64.0 * EPS * scale:
            return 0
        # what a column has of θ_1's eigenvector is about r_1 over its distance, and grows with it
        apart = max(float(theta[0]) - b, 64.0 * EPS * scale)
        pure = 10.0 * max(apart / max(float(state.r[: self.k].max()), EPS * scale), 1.0)
        allowed = _times(min(pure * 1e3, _GROWTH), _place(float(theta[0]), a, b))
        if self.V.shape[-1]:
            allowed = min(allowed, _times(_GROWTH * 1e3, _place(self._known_value, a, b)))
        return int(max(2, min(allowed, self.to_come(state, accuracy), _LONGEST * self.size)))

    def _ritz(self, Z: Array, t: int, products: int) -> RowsState:
        MZ = self.M.product(Z)
        products += 1
        w, value = Z.shape[-1], self._known_value
        for last in (False, False, True):
            parts, told = self._sums(
                (self.V, Z), (Z, Z), (Z, MZ), derive=partial(_turn, value, last), size=3 + w * w + w
            )
            P, G, H = parts
            Z = Z - self.V @ P
            done, anew, kept, C, theta = unpacked(told, (), (), (), (w, w), (w,))
            columns = counted(self.tree.root, "a number of columns", kept, w)
            C, theta = C[:, :columns], theta[:columns]
            if not C.size:
                raise NotFiniteError("columns became zero, NaN or Inf; are all weights finite, and of moderate size?")
            self._check_turn(C, theta, G - P.T @ P, symmetric_part(H - value * (P.T @ P)), bool(done))
            if done:
                break
            Z = Z @ C  # nearly orthonormal: the next pass mends what this one has left
            MZ = self.M.product(Z)
            products += 1
            w = Z.shape[-1]
        MZ = MZ - value * (self.V @ P)
        X, MX = Z @ C, MZ @ C
        if anew:  # the rounding of MZ has grown with C; residuals are to be those of X
            MX = self.M.product(X)
            products += 1
        w = theta.size
        parts, told = self._sums((self.V, X), (X, X), squared=MX - X * theta, derive=_mended, size=w * w)
        P, G, squares = parts
        [turn] = unpacked(told, (w, w))
        if not self.tree.leads:
            self._check(float(np.abs(turn - _mended([P, G, squares]).reshape(w, w)).max()), SEMI)
        X, MX = (X - self.V @ P) @ turn, (MX - value * (self.V @ P)) @ turn
        mixed = np.linalg.norm((theta[:, None] - theta) * turn, axis=0)  # by what the turn adds to each residual
        return RowsState(t, X, MX, theta, np.sqrt(squares) + mixed, products)

    def _check_turn(self, C: Array, theta: Array, G: Array, H: Array, done: bool) -> None:
        """Contradiction unless ``CᵀGC = I`` and, at the end, ``CᵀHC = Θ``, as far as rounding in G allows."""
        if self.tree.leads:
            return
        lengths = np.sqrt(np.maximum(np.diag(G), 0.0))
        D = C * lengths[:, None]  # in terms of columns of length one
        unit = np.where(lengths > 0.0, lengths, 1.0)
        scaled, rounding = G / np.outer(unit, unit), 64.0 * len(C) * EPS * np.square(np.linalg.norm(D, axis=0)).max()
        self._check(float(np.abs(D.T @ scaled @ D - np.eye(C.shape[1])).max()), 1e-8 + rounding)
        if done:
            size = float(np.abs(H / np.outer(unit, unit)).max())
            self._check(float(np.abs(C.T @ H @ C - np.diag(theta)).max()), (1e-8 + rounding) * size)

    def _check(self, departure: float, allowed: float) -> None:
        if not departure <= allowed:
            raise Contradiction.off_by(self.tree.root, "Ritz vectors", departure, allowed)

    def _sums(
        self,
        *pairs: tuple[Array, Array],
        squared: Array | None = None,
        derive: Callable[[list[Array]], Array] = lambda _: np.empty(0),
        size: int = 0,
    ) -> tuple[list[Array], Array]:
        """``Σ_j Y_jᵀZ_j`` of every pair, and the squared lengths of the columns of ``squared``, in one sum.

        With it, ``size`` numbers that the root derives from them.
        """
        parts = [np.swapaxes(Y, -1, -2) @ Z for Y, Z in pairs]
        parts += [] if squared is None else [np.square(squared).sum(axis=-2)]
        B = self.M.network.batch
        shapes = [part.shape[len(B) :] for part in parts]
        flat = np.concatenate([part.reshape(*B, -1) for part in parts], axis=-1)
        total, told = self.tree.sum_then(flat, lambda total: derive(unpacked(total, *shapes)), size)
        return unpacked(total, *shapes), told

    def _without(self, Y: Array, X: Array) -> Array:
        """``(I − XXᵀ) Y``."""
        [P], _ = self._sums((X, Y))
        return Y - X @ P

    def _edge(self, state: RowsState, s: int) -> float:
        """Of what probes should not see grow: λ_{s+1} or a bit more."""
        if s >= state.theta.size:
            return float(state.theta[s - 1])
        return float(min(state.theta[s] + state.r[s], (state.theta[s - 1] + state.theta[s]) / 2.0))


def _turn(value: float, last: bool, sums: list[Array]) -> Array:
    """From ``P, G, H``: whether this is the last pass, and products are due anew; columns kept; C and Θ with zeros."""
    P, G, H = sums
    w = len(G)
    G, H = G - P.T @ P, symmetric_part(H - value * (P.T @ P))
    lengths = np.sqrt(np.maximum(np.diag(G), 0.0))
    C, theta = np.zeros((w, w)), np.zeros(w)
    if not (np.isfinite(H).all() and (lengths > 0.0).all()):
        return packed(1.0, 0.0, 0.0, C, theta)
    sigma, U = np.linalg.eigh(G / np.outer(lengths, lengths))
    kept = sigma > 64.0 * w * EPS * sigma[-1]
    some = (U[:, kept] / np.sqrt(sigma[kept])) / lengths[:, None]
    done = last or bool(kept.all() and sigma[-1] <= _ONE_PASS * sigma[0])
    anew, n = bool(sigma[-1] > _GROWN * sigma[kept][0]), some.shape[1]
    if done:
        values, Y = np.linalg.eigh(symmetric_part(some.T @ H @ some))
        some, theta[:n] = some @ Y[:, ::-1], values[::-1]
    C[:, :n] = some
    return packed(done, anew, n, C, theta)


def _mended(sums: list[Array]) -> Array:
    """``G^{−1/2}`` to second order, for columns that are orthonormal but for rounding."""
    P, G, _ = sums
    return packed(np.eye(len(G)) - (G - P.T @ P - np.eye(len(G))) / 2.0)


def split(theta: Array, k: int) -> int:
    """The first s ≥ k behind which Ritz values fall clearly: nothing that belongs together is torn apart there."""
    drops = theta[k - 1 : -1] - theta[k:]
    if drops.size == 0:
        return k
    clear = drops >= 0.05 * drops.max()
    return k + int(np.argmax(clear))


def _least_length(failure: float) -> float:
    """χ of _PROBES degrees of freedom is shorter with that probability; rounded down to bits that all agents have."""
    return math.floor(math.sqrt(2.0 * float(gammaincinv(_PROBES / 2.0, failure))) * 2.0**20) / 2.0**20


def _place(x: float, a: float, b: float) -> float:
    """Where [a, b] is [−1, 1]; at least a little outside."""
    return max((2.0 * x - a - b) / (b - a), 1.0 + 1e-15)


def _times(growth: float, place: float) -> float:
    """The q with ``T_q(place) = growth``."""
    return acosh(max(growth, 1.0)) / acosh(place)


def by_number(
    numbers: npt.NDArray[np.int64],
    w: int,
    seed: int,
    draw: Callable[[np.random.Generator, int], Array] = np.random.Generator.standard_normal,
) -> Array:
    """Random rows ``(*B, n, w)`` by their number: the same whoever holds them, zero where they only fill up."""
    found = np.zeros((numbers.size, w))
    for i, number in enumerate(numbers.ravel().tolist()):
        if number >= 0:
            found[i] = draw(np.random.Generator(np.random.Philox(key=(seed << 64) | number)), w)
    return found.reshape(*numbers.shape, w)
