"""From where to where a spectrum reaches: both ends of the mean of the ``A_j``, found and bounded by a few products."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from deepca._util.floats import EPS
from deepca._util.portable import length
from deepca._util.typing import Array
from deepca.consensus.averaging import LOST, messages_lost
from deepca.network.base import Network
from deepca.network.broadcasts import SEMI, check_bound, check_close, everywhere, packed
from deepca.operators.base import Operator
from deepca.operators.linalg import frobenius
from deepca.operators.rounding import Rounding
from deepca.solver.certificate.certification import FAILURE
from deepca.solver.certificate.probing import Outside, probe

__all__ = ["Extent", "agreed_extent", "check_ends", "ends_of", "largest_of_all", "mirrored"]

_SEED = 811
_ENOUGH = 1.1  # bounds that reach no farther than that beyond what was found
_PRODUCTS = 30
_AWAY = 0.05  # of A's size; a shift that takes nearly all of it away would leave its rounding
_APART = 0.06  # of the largest A_j; measured where these are a hundred times as large as their mean
_EXACT = 1e-3  # of the spectrum's width: what averages are good for, where they are mixed


@dataclass(frozen=True)
class Extent:
    """The spectrum of ``A = mean A_j``; every number is the same at every agent.

    low, high : no eigenvalue lies outside, but for a probability of ``failure`` at each end.
    values : Ritz values, descending; those at the ends are close to eigenvalues.  largest : about the largest ‖A_j‖_F.
    """

    low: float
    high: float
    values: Array
    failure: float
    largest: float

    @property
    def size(self) -> float:
        """The largest modulus that an eigenvalue can have."""
        return max(abs(self.low), abs(self.high))

    def shift(self, sign: int, *, tracked: bool = False) -> float:
        """σ that takes the lower end of ``sign · A + σI`` above zero, whichever side of it it was on.

        By a twentieth of A's size, so that no wanted eigenvalue drowns in the rounding of A; and where products are
        tracked, by no less than a part of the largest A_j: agents whose A_j are large and cancel in the mean would need
        many rounds to keep up with small eigenvalues, and need few beside a larger σ, at the price of iterations.
        """
        away = max(_AWAY * self.size, _APART * self.largest if tracked else 0.0)
        return (self.high if sign < 0 else -self.low) + (away or 1.0)


def agreed_extent(A: Operator, network: Network) -> Extent:
    """Block Lanczos from random columns (``solver.certificate.probing``, nothing taken out), the same at every agent.

    It looks at both ends at once. A bound is the certificate's bound on the largest eigenvalue; that on the smallest
    is the same for ``−A``, whose Ritz values are those of A with the other sign, so it takes no other products.
    """
    network.begin(network.epoch, 0, "extent")
    start = np.random.default_rng(_SEED).standard_normal((A.d, 1))
    start = start / length(start)
    off = A.rounding()
    largest, *parts = largest_of_all(network, A @ everywhere(start, network), off)
    accuracy = _EXACT * largest
    rounding = 2.0 * EPS * np.sqrt(A.d) * largest  # about eps times the norm of an A_j
    norm = float(np.sqrt(A.d)) * largest
    found = Extent(-np.inf, np.inf, np.zeros(1), 1.0, norm)

    def formed(outside: Outside) -> float:
        """By how much rounding may have moved eigenvalues when the A_j were formed, and moves them in products."""
        return off.bound(float(np.abs(outside.values).max()) + outside.doubt, *parts)

    probes = probe(
        A,
        np.empty((A.d, 0)),
        network,
        seed=_SEED,
        accuracy=accuracy,
        rounding=rounding,
        tell=lambda outside: packed(*ends_of(outside, formed(outside)), outside.values),
        size=lambda columns: 2 + columns,
    )
    for outside, told in probes:
        ends, values = (float(told[0]), float(told[1])), told[2:]
        check_ends(network, outside, ends, formed(outside))
        check_close(network, "eigenvalues", values, outside.values, SEMI * float(np.abs(outside.values).max()))
        top, bottom = float(values[0]), float(values[-1])
        found = Extent(*ends, values, FAILURE, norm)
        if found.high - found.low <= _ENOUGH * (top - bottom) or outside.products >= _PRODUCTS:
            break
    if outside.lost > LOST and not math.isfinite(found.size):
        raise messages_lost(network.topology, outside.lost)
    return found


def largest_of_all(network: Network, own: Array, off: Rounding) -> tuple[float, ...]:
    """Return the largest over all agents of the norms of their ``A_j X`` and of the parts of their Rounding."""
    local = np.stack([np.asarray(frobenius(own, axis=(-2, -1))), off.rows, off.products, off.growth], axis=-1)
    return tuple(map(float, network.reduce(local, "max")))


def ends_of(outside: Outside, formed: float = 0.0) -> tuple[float, float]:
    """No eigenvalue lies below the first or above the second, but for all looks' share of the failure probability.

    formed : by how much rounding may have changed the A_j when they were formed.
    """
    share = FAILURE * 6.0 / (math.pi * outside.products) ** 2
    return -mirrored(outside).bound(share) - formed, outside.bound(share) + formed


def check_ends(network: Network, outside: Outside, ends: tuple[float, float], formed: float = 0.0) -> None:
    """Contradiction unless the leader's ends reach about as far as those found here; bounds come in steps of 4 %."""
    if network.leads:
        return
    low, high = ends_of(outside, formed)
    top, bottom = float(outside.values[0]), float(outside.values[-1])
    size = max(abs(top), abs(bottom))
    check_bound(network, ends[1], high, (top, bottom), size)
    check_bound(network, -ends[0], -low, (-bottom, -top), size)


def mirrored(outside: Outside) -> Outside:
    """The same for the negative of the operator."""
    return replace(outside, values=-outside.values[::-1], first=outside.first[:, ::-1], last=outside.last[:, ::-1])
