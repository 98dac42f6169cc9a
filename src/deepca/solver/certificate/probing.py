"""The largest eigenvalues outside a given subspace, found and bounded with fresh random columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv

from deepca._util.floats import EPS, SMALLEST
from deepca._util.portable import hypot, length
from deepca._util.typing import Array
from deepca.consensus.averaging import LOST, Averaged, average_then
from deepca.consensus.mixers import averager
from deepca.network.base import Network
from deepca.network.broadcasts import (
    SEMI,
    check_basis,
    check_bound,
    check_close,
    check_small,
    counted,
    everywhere,
    packed,
    unpacked,
)
from deepca.operators.base import Operator
from deepca.operators.linalg import frobenius, orthonormal_part, symmetric_part, without

__all__ = ["Outside", "Seen", "columns_for", "overlap", "probe"]

_LEAST = 8  # columns: rounds count for more than their size


@dataclass(frozen=True)
class Outside:
    """Ritz values of ``B = (I−XXᵀ) A (I−XXᵀ)`` after some block products.

    values : descending; each is at most the eigenvalue of B at its place.  errors : an eigenvalue of B lies within that
    of each value.  first, last : what the Ritz vectors have in the first and in the last block of columns.
    doubt : what the averaged products may be wrong by.  rounding : the part of it that no better average would remove.
    exact : whether nothing is left to find.
    lost : by how much a number with known mean came out wrong in any average; above rounding all bounds are void.
    """

    values: Array
    errors: Array
    first: Array
    last: Array
    doubt: float
    columns: int
    products: int
    dimension: int
    exact: bool
    lost: float = 0.0
    rounding: float = 0.0

    def bound(self, failure: float) -> float:
        """λ₁(B), and with it λ_{k+1}(A), is at most this but for a probability of ``failure``: the better of two."""
        if self.lost > LOST:
            return math.inf
        if self.exact:
            return float(self.values[0]) + 2.0 * self.doubt
        return min(self.bound_beforehand(failure / 2.0), self.bound_afterwards(failure / 2.0))

    def bound_afterwards(self, failure: float) -> float:
        """Bound λ₁(B) by what the probes have found.

        ``BQ = QH + F Eᵀ`` with F orthogonal to Q, and E the last block of columns. So an eigenvector u to an eigenvalue
        t above all Ritz values has ``uᵀQ`` in the row space of ``Eᵀ(t − H)⁻¹``. It is at most 1 long, so its part g in
        the first block is at most the cosine between that space and the first block. But g is how much of u the random
        start contained: ``‖g‖² ~ Beta(p/2, (n−p)/2)``, shorter than :func:`overlap` with probability ``failure`` only.
        The bound is the largest t whose cosine reaches that. Products that are wrong by δ change g by
        ``2δ/(t − ϑ₁)`` at most. (For one column: van Dorsselaer, Hochstenbach & van der Vorst 2000.)
        """
        top, width = float(self.values[0]), float(self.values[0]) - float(self.values[-1])
        if not SMALLEST <= width < math.inf:
            return math.inf
        least, below = overlap(self.dimension, self.columns, failure), (top - self.values[:, None]) / width

        def may_be_missed(above: Array) -> npt.NDArray[np.bool_]:
            """Whether an eigenvalue that many widths above ϑ₁ may be."""
            turned = 2.0 * (self.doubt / width) / above
            basis, _ = np.linalg.qr(self.last.T / (above[:, None, None] + below))
            cosine = np.linalg.norm(np.swapaxes(basis, -1, -2) @ self.first.T, 2, axis=(-2, -1))
            return np.asarray(cosine * (1.0 + turned) + turned >= least)

        distance = np.geomspace(1e-9, 1e3, 49)
        missed = np.flatnonzero(may_be_missed(distance))
        if missed.size == 0:
            return top + width * float(distance[0])
        last = int(missed[-1])
        if last + 1 == distance.size:
            return math.inf
        fine = np.geomspace(distance[last], distance[last + 1], 17)
        return top + width * float(fine[min(int(np.flatnonzero(may_be_missed(fine))[-1]) + 1, fine.size - 1)])

    def bound_beforehand(self, failure: float) -> float:
        """Bound λ₁(B) by the number of products alone.

        For one uniformly random start and q products ``P[ϑ < (1−ε)λ₁] ≤ 1.648 √n e^{−√ε(2q−1)}`` if B ⪰ 0
        (Kuczyński & Woźniakowski 1992); p independent columns must all fail. Where B is indefinite the error is
        relative to λ₁ − λ_n, and both ends are bounded alike.
        """
        top, bottom = float(self.values[0]), float(self.values[-1])
        definite = bottom >= -2.0 * self.doubt
        chance = failure if definite else failure / 2.0
        logarithm = math.log(1.648 * math.sqrt(self.dimension)) - math.log(chance) / self.columns
        epsilon = (logarithm / (2 * self.products - 1)) ** 2
        if epsilon >= 0.5:
            return math.inf
        if definite:
            return max(top, 0.0) / (1.0 - epsilon) + 2.0 * self.doubt
        return top + epsilon * (top - bottom) / (1.0 - 2.0 * epsilon) + 2.0 * self.doubt


def probe(
    A: Operator,
    X: Array,
    network: Network,
    *,
    seed: int,
    accuracy: float,
    rounding: float = 0.0,
    tell: Callable[[Outside], Array] = lambda _: np.empty(0),
    size: Callable[[int], int] = lambda _: 0,
) -> Iterator[tuple[Outside, Array]]:
    """Block Lanczos on B from fresh Gaussian columns; one more block product, the same at every agent, per item.

    ``X`` is the same ``(d, k)`` everywhere. Products are averaged anew until their error is below ``accuracy``.
    ``rounding`` is that of a product with X; directions that short are noise. What is left out is added to the doubt,
    and so is the rounding of each product with probes: in proportion to its own size, the mean of which comes along.

    Blocks are the leader's, and so are the numbers that ``tell`` makes of what was found, ``size(s)`` of them where s
    columns were multiplied so far. Only these may decide anything: an Outside is the same everywhere but for rounding.
    """
    (d, k), B = X.shape, network.batch
    n = d - k
    p = columns_for(k, d)
    rounds = averager(network.topology).rounds_for(network.topology, 1e-2)
    block = np.zeros((d, p))
    if network.leads:
        block = orthonormal_part(without(np.random.default_rng(seed).standard_normal((d, p)), X), 0.0)
    block = network.from_leader(block)
    check_basis(network, "probes", block, X)
    Q, BQ, doubt, rounded, lost = np.empty((d, 0)), np.empty((d, 0)), rounding, rounding, 0.0
    for made in range(1, n + 1):
        Y = A @ everywhere(block, network)
        sizes, Y = frobenius(Y, axis=(-2, -1)), without(Y, X)
        Q = np.hstack([Q, block])
        found: list[_Looked] = []

        def looked(new: Averaged) -> _Looked:
            new = replace(new, lost=max(lost, new.lost))  # noqa: B023
            return _Looked.of(X, Q, BQ, new, (p, made), doubt, (rounding, rounded))  # noqa: B023

        def following(new: Averaged) -> Array:
            look = looked(new)
            found.append(look)  # noqa: B023
            filled = np.zeros((d, p))
            filled[:, : look.block.shape[1]] = look.block
            return packed(filled, look.block.shape[1], look.outside.doubt, tell(look.outside))

        told_size = d * p + 2 + size(Q.shape[1])
        flat = np.concatenate([Y.reshape(*B, -1), np.asarray(sizes)[..., None]], axis=-1)
        new, told = average_then(network, flat, rounds, lambda one: _off(one) <= accuracy, following, told_size)
        filled, columns, told_doubt, numbers = unpacked(told, (d, p), (), (), (size(Q.shape[1]),))
        look = found[0] if found else looked(new)
        block = np.ascontiguousarray(filled[:, : counted(network.leader, "a number of probes", columns, p)])
        look.check(network, block, float(told_doubt), hypot(hypot(doubt, _off(new)), _of_product(new)))
        rounds, doubt, BQ = new.rounds, float(told_doubt), look.BQ
        rounded, lost = look.outside.rounding, look.outside.lost
        exact = block.shape[1] == 0  # the probes' space is invariant, and every direction has a part in it
        yield replace(look.outside, doubt=doubt, exact=exact), numbers
        if exact:
            return


@dataclass(frozen=True)
class _Looked:
    """After one more product: ``BQ``, what was found, what of the last block is outside of Q, and the next block.

    short : directions this short are left out.
    """

    X: Array
    Q: Array
    BQ: Array
    outside: Outside
    left: Array
    block: Array
    short: float

    @classmethod
    def of(
        cls,
        X: Array,
        Q: Array,
        BQ: Array,
        new: Averaged,
        at: tuple[int, int],
        doubt: float,
        roundings: tuple[float, float],
    ) -> _Looked:
        """``doubt`` and ``roundings`` (of products with X, of all products) are those before this product."""
        (p, made), n, (rounding, rounded) = at, X.shape[0] - X.shape[1], roundings
        doubt, rounded = hypot(hypot(doubt, _off(new)), _of_product(new)), hypot(rounded, _of_product(new))
        last = Q.shape[1] - BQ.shape[1]
        BQ = np.hstack([BQ, without(new.mean[:-1].reshape(Q.shape[0], last), X)])
        values, vectors = np.linalg.eigh(symmetric_part(Q.T @ BQ))
        values, vectors = values[::-1], vectors[:, ::-1]
        few = vectors[:, : 2 * p + 2]
        errors = frobenius(BQ @ few - (Q @ few) * values[: few.shape[1]], axis=0) + doubt
        left = without(without(BQ[:, -last:], Q), X)
        short = max(1e-12 * float(np.abs(values).max()), rounding)
        # short directions are mostly rounding, and orthogonal to the others only after another projection
        block = np.linalg.qr(without(without(orthonormal_part(left, short), Q), X))[0][:, : n - Q.shape[1]]
        if Q.shape[1] + block.shape[1] < min((made + 1) * p, n):
            doubt = hypot(doubt, math.sqrt(p) * short)  # invariant but for what was left out
        exact = block.shape[1] == 0
        outside = Outside(values, errors, vectors[:p], vectors[-last:], doubt, p, made, n, exact, new.lost, rounded)
        return cls(X, Q, BQ, outside, left, block, short)

    def check(self, network: Network, block: Array, doubt: float, averaged: float) -> None:
        """Contradiction unless that block comes next, and no error is kept back: ``averaged``, and what is left out."""
        beyond = 10.0 * math.sqrt(self.left.shape[1]) * self.short
        check_basis(network, "probes", block, self.X, self.Q, contains=self.left, beyond=beyond)
        at, n = self.outside, self.outside.dimension
        if self.Q.shape[1] + block.shape[1] < min((at.products + 1) * at.columns, n):
            averaged = hypot(averaged, 0.5 * math.sqrt(at.columns) * self.short)
        check_small(network, "errors of averages", averaged - doubt, 0.0)


def _off(new: Averaged) -> float:
    """By how much the average of products may be off; its last number is their mean size."""
    return length(new.error[:-1])


def _of_product(new: Averaged) -> float:
    """The rounding of the mean of products: at most the mean of their roundings, and of that of adding them up."""
    return 2.0 * EPS * new.growth * max(float(new.mean[-1] + new.error[-1]), 0.0)


@dataclass(frozen=True)
class Seen:
    """What probes say after one more product, as the leader has computed it.

    bound : on the largest eigenvalue of B.  error : an eigenvalue lies that close to the first of ``values``, which are
    the largest.  larger : the place of the first gap among them, 0 where none is seen.
    """

    bound: float
    error: float
    larger: int
    values: tuple[float, ...]

    @classmethod
    def of(cls, outside: Outside, failure: float, separation: float, formed: float) -> Seen:
        """failure : probability that the bound is wrong.  separation : smallest difference that counts as a gap.

        formed : by how much rounding may have changed the A_j when they were formed.
        """
        values, errors = outside.values, outside.errors
        larger = next(
            (
                j
                for j in range(1, len(errors))
                if values[j - 1] - values[j] > max(2.0 * (errors[j - 1] + errors[j]), separation)
            ),
            len(values) if outside.exact and len(values) == len(errors) == outside.dimension else 0,
        )
        bound = outside.bound(failure) + formed
        return cls(bound, float(errors[0]), larger, tuple(map(float, values[: outside.columns])))

    @property
    def numbers(self) -> Array:
        return packed(self.bound, self.error, self.larger, np.array(self.values))

    @classmethod
    def from_numbers(cls, numbers: Array, network: Network, dimension: int) -> Seen:
        bound, error, larger, *values = map(float, numbers)
        return cls(bound, error, counted(network.leader, "the place of a gap", larger, dimension), tuple(values))

    def check(self, network: Network, outside: Outside, own: Seen, scale: float) -> None:
        """Contradiction unless values are those found here, and the bound no smaller; bounds come in steps of 4 %."""
        size = max(float(np.abs(outside.values).max()), scale)
        check_close(network, "eigenvalues outside", np.array(self.values), np.array(own.values), SEMI * size)
        check_bound(network, self.bound, own.bound, (float(outside.values[0]), float(outside.values[-1])), size)


def columns_for(k: int, d: int) -> int:
    """How many probes: as many as components, and some more, since rounds count for more than their size."""
    return min(max(k, _LEAST), d - k)


def overlap(n: int, p: int, failure: float) -> float:
    """The part of a given unit vector that p random orthonormal columns of n entries contain, but for ``failure``."""
    return math.sqrt(float(betaincinv(p / 2.0, (n - p) / 2.0, failure))) if p < n else 1.0
