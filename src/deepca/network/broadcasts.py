"""Numbers that one agent computes and all others take, packed for the way and checked on arrival.

Factorizations and matrix products give other bits on another processor, and where a block is nearly rank-deficient
other directions altogether. What enters a sum, and what decides about shapes or about the end of a run, is therefore
computed by the leader (:attr:`deepca.network.base.Network.leader`) and broadcast. The others check to rounding that
it follows from what they know, and end with a :class:`~deepca.errors.Contradiction` where it does not.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from deepca._util.floats import SMALLEST
from deepca._util.typing import Array
from deepca.errors import Contradiction
from deepca.network.base import Network
from deepca.operators.linalg import frobenius
from deepca.topology.spectra import PORTABLE

__all__ = [
    "SEMI",
    "check_basis",
    "check_bound",
    "check_close",
    "check_small",
    "counted",
    "everywhere",
    "packed",
    "share_spectrum",
    "unpacked",
]

SEMI = 1e-10
"""Departure from orthogonality that does no harm: block Lanczos needs √eps of it to have Ritz values to rounding."""


def packed(*parts: npt.ArrayLike) -> Array:
    """All numbers of the parts, one after the other."""
    return np.concatenate([np.ravel(np.asarray(part, dtype=np.float64)) for part in parts])


def unpacked(flat: Array, *shapes: tuple[int, ...]) -> list[Array]:
    """The parts again, by their shapes."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends)[:-1], shapes, strict=True)]


def counted(sender: int, what: str, value: Array | float, most: int) -> int:
    """A whole number that was received; Contradiction unless it is one of 0 … ``most``."""
    count = float(value)
    if not (0.0 <= count <= most and count == math.floor(count)):
        raise Contradiction(sender, what, f"{count:g}, where 0 to {most} is possible")
    return int(count)


def check_small(network: Network, what: str, departure: float, allowed: float) -> None:
    """Contradiction unless what was received departs by no more than allowed; nothing to check for the leader."""
    if not network.leads and not departure <= allowed + SMALLEST:
        raise Contradiction.off_by(network.leader, what, departure, allowed)


def check_close(network: Network, what: str, received: Array | float, own: Array | float, allowed: float) -> None:
    """The same of the largest difference to what was computed here."""
    if not network.leads:
        check_small(network, what, float(np.abs(np.asarray(received) - np.asarray(own)).max(initial=0.0)), allowed)


def share_spectrum(network: Network) -> None:
    """Take the leader's eigenvalues of 𝐋, by which numbers of rounds are chosen.

    Nothing is sent where all agents find the same bits: in one process, and on small graphs. On directed graphs and
    those that change, agents still go by what they find themselves.
    """
    topology = network.topology
    if network.local.size == network.n_agents or network.n_agents <= PORTABLE or not topology.stays:
        return
    own = topology.spectrum
    told = network.from_leader(own)
    check_close(network, "eigenvalues of the gossip matrix", told, own, SEMI)
    network.take_spectrum(told)


def check_bound(
    network: Network, received: float, own: float, values: tuple[float, float], size: float, what: str = "a bound"
) -> None:
    """Contradiction unless a bound reaches half as far above the largest of ``values`` as the one found here.

    values : the largest and the smallest found; bounds beyond a thousand times their distance are as good as none.
    size : of the numbers, relative to which they are rounded.
    """
    if network.leads or received == math.inf:
        return
    unit = max(size, SMALLEST)
    top, bottom = (value / unit for value in values)
    reach = min(own / unit - top, 1e3 * (top - bottom))
    check_small(network, what, 0.5 * reach - (received / unit - top), SEMI)


def check_basis(
    network: Network, what: str, P: Array, *without: Array, contains: Array | None = None, beyond: float = 0.0
) -> None:
    """Contradiction unless P is orthonormal, orthogonal to ``without``, and contains all but short directions.

    contains : columns whose part outside of P is at most ``beyond``. Shorter directions may be anything.
    """
    if network.leads:
        return
    check_small(network, what, _largest(P.T @ P - np.eye(P.shape[1])), SEMI)
    for Q in without:
        check_small(network, what, _largest(Q.T @ P), SEMI)
    if contains is not None:
        check_small(network, what, float(frobenius(contains - P @ (P.T @ contains))), beyond)


def _largest(M: Array) -> float:
    return float(np.abs(M).max(initial=0.0))


def everywhere(X: Array, network: Network) -> Array:
    """X at every local agent: ``(*B, d, k)``."""
    return np.array(np.broadcast_to(X, (*network.batch, *X.shape)))
