"""Find and bound the largest eigenvalues outside a given subspace with fresh random columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv

from deepca._util.floats import SMALLEST
from deepca._util.portable import hypot, norm
from deepca._util.typing import Array
from deepca.consensus.averaging import MAX_CONTROL_ERROR, AverageWithError, average_and_derive
from deepca.consensus.broadcasts import (
    SEMIORTHOGONALITY_TOLERANCE,
    check_basis,
    check_bound,
    check_close,
    check_small,
    checked_count,
    for_local_agents,
    packed,
    unpacked,
)
from deepca.consensus.exact import ProductUnits
from deepca.consensus.mixers import default_mixer
from deepca.network.base import Network
from deepca.network.sums import Addend, Unit
from deepca.operators.base import Operator
from deepca.operators.linalg import frobenius, orthonormal_part, project_out, symmetric_part

__all__ = ["ProbeFindings", "ProbedSpectrum", "columns_for", "overlap", "probe"]

_SIZES_UNIT = Unit(-240, 5)  # products outside the components may be tiny
_MIN_COLUMNS = 8  # minimum number of columns of a block, even if k is smaller: fewer rounds outweigh longer messages


@dataclass(frozen=True)
class ProbedSpectrum:
    """Ritz values of ``B = (I−XXᵀ) A (I−XXᵀ)`` after some block products.

    Parameters
    ----------
    values : ndarray
        Ritz values, descending; each is at most the eigenvalue of B at its position.
    errors : ndarray
        Distances within which an eigenvalue of B lies from each value.
    first, last : ndarray
        Parts of the Ritz vectors in the first and in the last block of columns.
    error : float
        Bound on the error of the averaged products.
    columns : int
        Number of columns of a block.
    products : int
        Number of block products.
    dimension : int
        Dimension d − k of the space outside X.
    exact : bool
        Whether the blocks span an invariant space, so that nothing is left to find.
    lost : float, default=0.0
        Largest error of a number with a known mean in any average; if it exceeds rounding, all bounds are void.
    rounding : float, default=0.0
        Part of the error that more accurate averages would not reduce.
    """

    values: Array
    errors: Array
    first: Array
    last: Array
    error: float
    columns: int
    products: int
    dimension: int
    exact: bool
    lost: float = 0.0
    rounding: float = 0.0

    def bound(self, failure: float) -> float:
        """Return the better of two bounds on λ₁(B), hence on λ_{k+1}(A); it fails with probability ``failure``."""
        if self.lost > MAX_CONTROL_ERROR:
            return math.inf
        if self.exact:
            return float(self.values[0]) + 2.0 * self.error
        return min(self.bound_a_priori(failure / 2.0), self.bound_a_posteriori(failure / 2.0))

    def bound_a_posteriori(self, failure: float) -> float:
        """Return the a-posteriori bound on λ₁(B), which uses the Ritz values and vectors found.

        Notes
        -----
        ``BQ = QH + F Eᵀ`` with F orthogonal to Q, and E the last block of columns. So an eigenvector u with an
        eigenvalue t above all Ritz values has ``uᵀQ`` in the row space of ``Eᵀ(t − H)⁻¹``. Its length is at most 1, so
        its part g in the first block is at most the cosine between that space and the first block. But g is the part of
        u that the random start contained: ``‖g‖² ~ Beta(p/2, (n−p)/2)``, shorter than :func:`overlap` only with
        probability ``failure``. The bound is the largest t whose cosine reaches that. Products with an error of δ
        change g by at most ``2δ/(t − ϑ₁)``. [1]_ has the case of a single column.

        References
        ----------
        .. [1] J. L. M. van Dorsselaer, M. E. Hochstenbach and H. A. van der Vorst, "Computing probabilistic bounds for
           extreme eigenvalues of symmetric matrices with the Lanczos method", SIAM J. Matrix Anal. Appl. 22, 2000.
        """
        top, width = float(self.values[0]), float(self.values[0]) - float(self.values[-1])
        if not SMALLEST <= width < math.inf:
            return math.inf
        min_overlap, below = overlap(self.dimension, self.columns, failure), (top - self.values[:, None]) / width

        def may_be_missed(above: Array) -> npt.NDArray[np.bool_]:
            """Return whether an eigenvalue this far above ϑ₁, in units of ``width``, may have been missed."""
            turned = 2.0 * (self.error / width) / above
            basis, _ = np.linalg.qr(self.last.T / (above[:, None, None] + below))
            cosine = np.linalg.norm(np.swapaxes(basis, -1, -2) @ self.first.T, 2, axis=(-2, -1))
            return np.asarray(cosine * (1.0 + turned) + turned >= min_overlap)

        distance = np.geomspace(1e-9, 1e3, 49)
        missed = np.flatnonzero(may_be_missed(distance))
        if missed.size == 0:
            return top + width * float(distance[0])
        last = int(missed[-1])
        if last + 1 == distance.size:
            return math.inf
        fine = np.geomspace(distance[last], distance[last + 1], 17)
        return top + width * float(fine[min(int(np.flatnonzero(may_be_missed(fine))[-1]) + 1, fine.size - 1)])

    def bound_a_priori(self, failure: float) -> float:
        """Return the a-priori bound on λ₁(B), which uses the number of products and the outermost Ritz values.

        Notes
        -----
        For one uniformly random start and q products ``P[ϑ < (1−ε)λ₁] ≤ 1.648 √n e^{−√ε(2q−1)}`` if B ⪰ 0 [1]_; p
        independent columns must all fail. Where B is indefinite the error is relative to λ₁ − λ_n, and both ends are
        bounded in the same way.

        References
        ----------
        .. [1] J. Kuczyński and H. Woźniakowski, "Estimating the largest eigenvalue by the power and Lanczos algorithms
           with a random start", SIAM J. Matrix Anal. Appl. 13, 1992.
        """
        top, bottom = float(self.values[0]), float(self.values[-1])
        definite = bottom >= -2.0 * self.error
        chance = failure if definite else failure / 2.0
        logarithm = math.log(1.648 * math.sqrt(self.dimension)) - math.log(chance) / self.columns
        epsilon = (logarithm / (2 * self.products - 1)) ** 2
        if epsilon >= 0.5:
            return math.inf
        if definite:
            return max(top, 0.0) / (1.0 - epsilon) + 2.0 * self.error
        return top + epsilon * (top - bottom) / (1.0 - 2.0 * epsilon) + 2.0 * self.error


def probe(
    A: Operator,
    X: Array,
    network: Network,
    *,
    seed: int,
    accuracy: float,
    rounding: float = 0.0,
    units: ProductUnits | None = None,
    derive: Callable[[ProbedSpectrum], Array] = lambda _: np.empty(0),
    size: Callable[[int], int] = lambda _: 0,
) -> Iterator[tuple[ProbedSpectrum, Array]]:
    """Run block Lanczos on B from fresh Gaussian columns; yield the Ritz values after each block product.

    ``X`` is the same ``(d, k)`` at every agent. Products are averaged until their error is below ``accuracy``.
    Directions shorter than ``rounding``, the rounding of a product with X, are noise: they are dropped, and their
    length is added to the error. The rounding of each product with probes is added, too, in proportion to the mean size
    of the local products.

    All agents use the leader's blocks, and the ``size(s)`` numbers that ``derive`` returns at the leader after products
    with s columns. Decisions must depend on these numbers only, since the bits of a ProbedSpectrum differ between
    processors. Exact sums of products use ``units``, from :func:`deepca.consensus.exact.agree_on_units`.
    """
    d, k = X.shape
    n, p = d - k, columns_for(k, d)
    rounds = default_mixer(network.topology).rounds_for(network.topology, 1e-2)
    block = _first_block(X, network, p, seed)
    Q, BQ, error, rounded, lost = np.empty((d, 0)), np.empty((d, 0)), rounding, rounding, 0.0
    for made in range(1, n + 1):
        addends = _products(A, block, X, network, units or ProductUnits())
        Q = np.hstack([Q, block])
        found: list[_LanczosStep] = []

        def take_step(new: AverageWithError) -> _LanczosStep:
            new = replace(new, lost=max(lost, new.lost))  # noqa: B023
            return _LanczosStep.of(X, Q, BQ, new, (p, made), error, (rounding, rounded))  # noqa: B023

        def next_block(new: AverageWithError) -> Array:
            step = take_step(new)
            found.append(step)  # noqa: B023
            filled = np.zeros((d, p))
            filled[:, : step.block.shape[1]] = step.block
            return packed(filled, step.block.shape[1], step.outside.error, derive(step.outside))

        count = d * p + 2 + size(Q.shape[1])
        new, derived = average_and_derive(
            network, addends, rounds, lambda one: _mean_error(one) <= accuracy, next_block, count
        )
        filled, columns, derived_error, numbers = unpacked(derived, (d, p), (), (), (size(Q.shape[1]),))
        step = found[0] if found else take_step(new)
        block = np.ascontiguousarray(filled[:, : checked_count(network.leader, "a number of probes", columns, p)])
        step.check(network, block, float(derived_error), hypot(hypot(error, _mean_error(new)), _product_rounding(new)))
        rounds, error, BQ = new.rounds, float(derived_error), step.BQ
        rounded, lost = step.outside.rounding, step.outside.lost
        exact = block.shape[1] == 0  # the probed space is invariant, and every direction has a component in it
        yield replace(step.outside, error=error, exact=exact), numbers
        if exact:
            return


def _products(A: Operator, block: Array, X: Array, network: Network, units: ProductUnits) -> list[Addend]:
    """Return the products with a block, and their sizes."""
    Y = A @ for_local_agents(block, network)
    sizes = np.asarray(frobenius(Y, axis=(-2, -1)))[..., None]
    if not network.reliable:  # small vectors mix faster; exact sums need products with bounded rows
        Y = project_out(Y, X)
    return [units.addend("products", Y), Addend("sizes", sizes, guess=_SIZES_UNIT, nonnegative=True)]


def _first_block(X: Array, network: Network, p: int, seed: int) -> Array:
    """Return the leader's p random orthonormal columns orthogonal to X."""
    block = np.zeros((len(X), p))
    if network.is_leader_local:
        block = orthonormal_part(project_out(np.random.default_rng(seed).standard_normal(block.shape), X), 0.0)
    block = network.from_leader(block)
    check_basis(network, "probes", block, X)
    return block


@dataclass(frozen=True)
class _LanczosStep:
    """Outcome of one more block product: ``BQ``, the Ritz values, the remainder outside Q, and the next block.

    Attributes
    ----------
    X, Q, BQ : ndarray
        The subspace that is projected out, the basis of all blocks, and its product with B.
    outside : ProbedSpectrum
        The Ritz values.
    remainder : ndarray
        Part of the last product outside the span of Q.
    block : ndarray
        The next block.
    short : float
        Largest length of directions that are dropped.
    """

    X: Array
    Q: Array
    BQ: Array
    outside: ProbedSpectrum
    remainder: Array
    block: Array
    short: float

    @classmethod
    def of(
        cls,
        X: Array,
        Q: Array,
        BQ: Array,
        new: AverageWithError,
        at: tuple[int, int],
        error: float,
        roundings: tuple[float, float],
    ) -> _LanczosStep:
        """Take one step, given the error of averages and the rounding of products (with X, of all) before it.

        ``at`` holds the number of columns of a block, and the number of products including this one.
        """
        (p, made), n, (rounding, rounded) = at, X.shape[0] - X.shape[1], roundings
        error = hypot(hypot(error, _mean_error(new)), _product_rounding(new))
        rounded = hypot(rounded, _product_rounding(new))
        last = Q.shape[1] - BQ.shape[1]
        BQ = np.hstack([BQ, project_out(new.mean[:-1].reshape(Q.shape[0], last), X)])
        values, vectors = np.linalg.eigh(symmetric_part(Q.T @ BQ))
        values, vectors = values[::-1], vectors[:, ::-1]
        few = vectors[:, : 2 * p + 2]
        errors = frobenius(BQ @ few - (Q @ few) * values[: few.shape[1]], axis=0) + error
        remainder = project_out(project_out(BQ[:, -last:], Q), X)
        short = max(1e-12 * float(np.abs(values).max()), rounding)
        # short directions consist mostly of rounding errors, and need another projection to be orthogonal to the others
        block = np.linalg.qr(project_out(project_out(orthonormal_part(remainder, short), Q), X))[0][:, : n - Q.shape[1]]
        if Q.shape[1] + block.shape[1] < min((made + 1) * p, n):
            error = hypot(error, math.sqrt(p) * short)  # invariant up to the dropped directions
        exact = block.shape[1] == 0
        outside = ProbedSpectrum(
            values, errors, vectors[:p], vectors[-last:], error, p, made, n, exact, new.lost, rounded
        )
        return cls(X, Q, BQ, outside, remainder, block, short)

    def check(self, network: Network, block: Array, error: float, averaged: float) -> None:
        """Raise Contradiction unless ``block`` is the next block and ``error`` covers all errors so far.

        These are ``averaged``, the error of the averages, and that of the dropped directions, which is added here.
        """
        beyond = 10.0 * math.sqrt(self.remainder.shape[1]) * self.short
        check_basis(network, "probes", block, self.X, self.Q, contains=self.remainder, beyond=beyond)
        at, n = self.outside, self.outside.dimension
        if self.Q.shape[1] + block.shape[1] < min((at.products + 1) * at.columns, n):
            averaged = hypot(averaged, 0.5 * math.sqrt(at.columns) * self.short)
        check_small(network, "errors of averages", averaged - error, 0.0)


def _mean_error(new: AverageWithError) -> float:
    """Return the error of the averaged products, whose last entry is their mean size."""
    return norm(new.error[:-1])


def _product_rounding(new: AverageWithError) -> float:
    """Return the rounding of the mean of products: at most the mean of their roundings, plus that of the summation."""
    return new.error_bound(max(float(new.mean[-1] + new.error[-1]), 0.0))


@dataclass(frozen=True)
class ProbeFindings:
    """Findings of the probes after a product, as computed by the leader.

    Parameters
    ----------
    bound : float
        Bound on the largest eigenvalue of B.
    error : float
        Distance from the first of ``values`` within which an eigenvalue lies.
    larger : int
        Number of Ritz values before the first gap between them; 0 if no gap was found.
    values : tuple of float
        The largest Ritz values.
    """

    bound: float
    error: float
    larger: int
    values: tuple[float, ...]

    @classmethod
    def of(cls, outside: ProbedSpectrum, failure: float, separation: float, formed: float) -> ProbeFindings:
        """Derive the findings from Ritz values.

        Parameters
        ----------
        outside : ProbedSpectrum
            The Ritz values.
        failure : float
            Probability that the bound may be wrong.
        separation : float
            Smallest difference that counts as a gap.
        formed : float
            Bound on the change of the A_j by rounding when they were formed.
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
        """The findings as one array, to be sent."""
        return packed(self.bound, self.error, self.larger, np.array(self.values))

    @classmethod
    def from_numbers(cls, numbers: Array, network: Network, dimension: int) -> ProbeFindings:
        """Return the findings that the leader sent."""
        bound, error, larger, *values = map(float, numbers)
        return cls(
            bound, error, checked_count(network.leader, "the position of a gap", larger, dimension), tuple(values)
        )

    def check(self, network: Network, outside: ProbedSpectrum, own: ProbeFindings, scale: float) -> None:
        """Raise Contradiction unless the values equal this agent's and the bound is not much below this agent's.

        Bounds are points of a grid with steps of 4 %, so rounding may change them by a step.
        """
        size = max(float(np.abs(outside.values).max()), scale)
        allowed = SEMIORTHOGONALITY_TOLERANCE * size
        check_close(network, "eigenvalues outside", np.array(self.values), np.array(own.values), allowed)
        check_bound(network, self.bound, own.bound, (float(outside.values[0]), float(outside.values[-1])), size)


def columns_for(k: int, d: int) -> int:
    """Return the number of probe columns: k, or more if k is small, since fewer rounds outweigh longer messages."""
    return min(max(k, _MIN_COLUMNS), d - k)


def overlap(n: int, p: int, failure: float) -> float:
    """Return a lower bound on the length of a unit vector's projection onto p random orthonormal columns.

    The columns have n entries each. The bound fails with probability ``failure``.
    """
    return math.sqrt(float(betaincinv(p / 2.0, (n - p) / 2.0, failure))) if p < n else 1.0
