"""Bounds on the spectrum of the mean of the ``A_j``, at both ends, from a few products."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from deepca._util.floats import EPS
from deepca._util.portable import norm
from deepca._util.typing import Array
from deepca.consensus.averaging import MAX_CONTROL_ERROR, messages_lost_error
from deepca.consensus.broadcasts import SEMIORTHOGONALITY_TOLERANCE, check_bound, check_close, for_local_agents, packed
from deepca.network.base import Network
from deepca.operators.base import Operator
from deepca.solver.certificate.agreed_rounding import AgreedRounding
from deepca.solver.certificate.certification import FAILURE_PROBABILITY
from deepca.solver.certificate.probing import ProbedSpectrum, probe

__all__ = ["SpectralBounds", "agreed_spectral_bounds", "check_ends", "ends_of", "negated"]

_SEED = 811  # seed of the random columns, the same at every agent
_MAX_WIDTH_RATIO = 1.1  # probing stops when the bounds are at most this many times as wide as the Ritz values
_MAX_PRODUCTS = 30  # number of products after which probing stops, even if the bounds are still loose
_MIN_SHIFT = 0.05  # smallest shifted eigenvalue, relative to ‖A‖; below it, rounding of A could hide small eigenvalues
_MIN_TRACKED_SHIFT = 0.06  # the same, relative to the largest ‖A_j‖; measured with A_j 100 times as large as their mean
_MIXING_ACCURACY = 1e-3  # accuracy of averages that are not exact, relative to the largest norm of a product


@dataclass(frozen=True)
class SpectralBounds:
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
        Estimate of the largest ‖A_j‖_F, or of their mean if nothing is tracked.
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

        The lower end moves to 0.05 ‖A‖, so that no wanted eigenvalue is lost in the rounding of A. With tracking, it
        moves to at least 0.06 times the largest ‖A_j‖: if large A_j cancel in the mean, tracking small eigenvalues
        takes many rounds, and a larger σ needs fewer rounds at the price of more iterations.
        """
        margin = max(_MIN_SHIFT * self.size, _MIN_TRACKED_SHIFT * self.largest if tracked else 0.0)
        return (self.high if sign < 0 else -self.low) + (margin or 1.0)


def agreed_spectral_bounds(A: Operator, network: Network, *, tracked: bool = True) -> SpectralBounds:
    """Bound the spectrum by block Lanczos from random columns, with the same result at every agent.

    Certificates probe in the same way (:mod:`deepca.solver.certificate.probing`), but only outside the components. The
    smallest eigenvalue of A is minus the largest of ``−A``, whose Ritz values are those of A with the opposite sign, so
    both ends are bounded from the same products.

    Only searches with tracking depend on the largest ‖A_j‖; without, nobody learns more than the mean from exact sums.
    """
    network.begin(network.epoch, 0, "extent")
    start = np.random.default_rng(_SEED).standard_normal((A.d, 1))
    start = start / norm(start)
    off, products = A.rounding(), A @ for_local_agents(start, network)
    agree = AgreedRounding.of_largest if tracked else AgreedRounding.of_products
    agreed = agree(network, products, off)
    largest = agreed.size
    accuracy = _MIXING_ACCURACY * largest
    rounding = 2.0 * EPS * np.sqrt(A.d) * largest  # about eps times the norm of an A_j
    bound = float(np.sqrt(A.d)) * largest
    found = SpectralBounds(-np.inf, np.inf, np.zeros(1), 1.0, bound)

    def formed(outside: ProbedSpectrum) -> float:
        """Return how far rounding may move eigenvalues, both in forming the A_j and in products with them."""
        return agreed.bound(off, float(np.abs(outside.values).max()) + outside.error)

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
            network,
            "eigenvalues",
            values,
            outside.values,
            SEMIORTHOGONALITY_TOLERANCE * float(np.abs(outside.values).max()),
        )
        top, bottom = float(values[0]), float(values[-1])
        found = SpectralBounds(*ends, values, FAILURE_PROBABILITY, bound)
        if found.high - found.low <= _MAX_WIDTH_RATIO * (top - bottom) or outside.products >= _MAX_PRODUCTS:
            break
    if outside.lost > MAX_CONTROL_ERROR and not math.isfinite(found.size):
        raise messages_lost_error(network.topology, outside.lost)
    return found


def ends_of(outside: ProbedSpectrum, formed: float = 0.0) -> tuple[float, float]:
    """Return a lower and an upper bound on all eigenvalues.

    The failure probability is divided among the bounds after every product. ``formed`` is the rounding error of forming
    the A_j.
    """
    share = FAILURE_PROBABILITY * 6.0 / (math.pi * outside.products) ** 2
    return -negated(outside).bound(share) - formed, outside.bound(share) + formed


def check_ends(network: Network, outside: ProbedSpectrum, ends: tuple[float, float], formed: float = 0.0) -> None:
    """Raise Contradiction if the leader's bounds are much tighter than those found here."""
    if network.is_leader_local:
        return
    low, high = ends_of(outside, formed)
    top, bottom = float(outside.values[0]), float(outside.values[-1])
    size = max(abs(top), abs(bottom))
    check_bound(network, ends[1], high, (top, bottom), size)
    check_bound(network, -ends[0], -low, (-bottom, -top), size)


def negated(outside: ProbedSpectrum) -> ProbedSpectrum:
    """Return the corresponding Ritz values of the negated operator."""
    return replace(outside, values=-outside.values[::-1], first=outside.first[:, ::-1], last=outside.last[:, ::-1])
