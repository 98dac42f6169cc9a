"""Bounds on the spectrum of the mean of the ``A_j``, at both ends, from a few products."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from deepca._util.floats import EPS
from deepca._util.portable import norm
from deepca._util.typing import Array
from deepca.consensus.averaging import LOST, messages_lost
from deepca.network.base import Network
from deepca.network.broadcasts import SEMIORTHOGONALITY, check_bound, check_close, for_local_agents, packed
from deepca.operators.base import Operator
from deepca.operators.linalg import frobenius
from deepca.operators.rounding import Rounding
from deepca.solver.certificate.certification import FAILURE
from deepca.solver.certificate.probing import ProbedSpectrum, probe

__all__ = ["Extent", "agreed_extent", "agreed_largest", "check_ends", "ends_of", "negated"]

_SEED = 811  # of the random columns, the same at every agent
_MAX_WIDTH_RATIO = 1.1  # ratio of the width of the bounds to that of the Ritz values at which probing stops
_MAX_PRODUCTS = 30  # after which probing stops, even if the bounds are still loose
_MIN_SHIFT = 0.05  # smallest shifted eigenvalue, relative to A; with less, A's rounding would hide small eigenvalues
_MIN_TRACKED_SHIFT = 0.06  # the same, relative to the largest A_j; measured with A_j 100 times as large as their mean
_MIXING_ACCURACY = 1e-3  # of averages that are mixed rather than exact, relative to the largest norm of a product


@dataclass(frozen=True)
class Extent:
    """Bounds on the spectrum of ``A = mean A_j``, the same at every agent.

    Parameters
    ----------
    low, high : float
        Interval that contains all eigenvalues, except with probability ``failure`` at each end.
    values : array
        Ritz values, descending; the outermost are close to eigenvalues.
    failure : float
        Probability with which a bound may fail.
    largest : float
        Estimate of the largest ‖A_j‖_F.
    """

    low: float
    high: float
    values: Array
    failure: float
    largest: float

    @property
    def size(self) -> float:
        """Upper bound on the modulus of all eigenvalues."""
        return max(abs(self.low), abs(self.high))

    def shift(self, sign: int, *, tracked: bool = False) -> float:
        """Return the σ that moves the lower end of ``sign · A + σI`` just above zero.

        The lower end moves to a twentieth of A's size, so that no wanted eigenvalue is lost in the rounding of A. With
        tracking, it moves to at least a fraction of the largest A_j: if the A_j are large and cancel in the mean,
        tracking small eigenvalues takes many rounds; a larger σ needs fewer rounds at the price of more iterations.
        """
        margin = max(_MIN_SHIFT * self.size, _MIN_TRACKED_SHIFT * self.largest if tracked else 0.0)
        return (self.high if sign < 0 else -self.low) + (margin or 1.0)


def agreed_extent(A: Operator, network: Network) -> Extent:
    """Bound the spectrum by block Lanczos from random columns, with the same result at every agent.

    This is the probing of certificates (:mod:`deepca.solver.certificate.probing`), but of the whole space. The smallest
    eigenvalue is bounded as the largest of ``−A``, whose Ritz values are those of A with the opposite sign, so both
    ends share the same products.
    """
    network.begin(network.epoch, 0, "extent")
    start = np.random.default_rng(_SEED).standard_normal((A.d, 1))
    start = start / norm(start)
    off = A.rounding()
    largest, *parts = agreed_largest(network, A @ for_local_agents(start, network), off)
    accuracy = _MIXING_ACCURACY * largest
    rounding = 2.0 * EPS * np.sqrt(A.d) * largest  # about eps times the norm of an A_j
    bound = float(np.sqrt(A.d)) * largest
    found = Extent(-np.inf, np.inf, np.zeros(1), 1.0, bound)

    def formed(outside: ProbedSpectrum) -> float:
        """Return how far rounding may move eigenvalues, both in forming the A_j and in products with them."""
        return off.bound(float(np.abs(outside.values).max()) + outside.error, *parts)

    probes = probe(
        A,
        np.empty((A.d, 0)),
        network,
        seed=_SEED,
        accuracy=accuracy,
        rounding=rounding,
        derive=lambda outside: packed(*ends_of(outside, formed(outside)), outside.values),
        size=lambda columns: 2 + columns,
    )
    for outside, shared in probes:
        ends, values = (float(shared[0]), float(shared[1])), shared[2:]
        check_ends(network, outside, ends, formed(outside))
        check_close(
            network, "eigenvalues", values, outside.values, SEMIORTHOGONALITY * float(np.abs(outside.values).max())
        )
        top, bottom = float(values[0]), float(values[-1])
        found = Extent(*ends, values, FAILURE, bound)
        if found.high - found.low <= _MAX_WIDTH_RATIO * (top - bottom) or outside.products >= _MAX_PRODUCTS:
            break
    if outside.lost > LOST and not math.isfinite(found.size):
        raise messages_lost(network.topology, outside.lost)
    return found


def agreed_largest(network: Network, own: Array, off: Rounding) -> tuple[float, ...]:
    """Return the largest norm of ``A_j X`` over all agents, and the largest of each part of their Rounding."""
    local = np.stack([np.asarray(frobenius(own, axis=(-2, -1))), off.rows, off.products, off.growth], axis=-1)
    return tuple(map(float, network.reduce(local, "max")))


def ends_of(outside: ProbedSpectrum, formed: float = 0.0) -> tuple[float, float]:
    """Return a lower and an upper bound on all eigenvalues.

    The bounds after every product share the failure probability. ``formed`` is the rounding error of forming the A_j.
    """
    share = FAILURE * 6.0 / (math.pi * outside.products) ** 2
    return -negated(outside).bound(share) - formed, outside.bound(share) + formed


def check_ends(network: Network, outside: ProbedSpectrum, ends: tuple[float, float], formed: float = 0.0) -> None:
    """Raise Contradiction if the leader's bounds are much tighter than those found here."""
    if network.leads:
        return
    low, high = ends_of(outside, formed)
    top, bottom = float(outside.values[0]), float(outside.values[-1])
    size = max(abs(top), abs(bottom))
    check_bound(network, ends[1], high, (top, bottom), size)
    check_bound(network, -ends[0], -low, (-bottom, -top), size)


def negated(outside: ProbedSpectrum) -> ProbedSpectrum:
    """Return the corresponding Ritz values of the negated operator."""
    return replace(outside, values=-outside.values[::-1], first=outside.first[:, ::-1], last=outside.last[:, ::-1])
