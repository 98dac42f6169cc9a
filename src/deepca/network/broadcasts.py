"""Broadcast numbers that the leader computes, and check them on arrival.

Factorizations and matrix products have different bits on different processors, and entirely different directions for
nearly rank-deficient blocks. Everything that enters a sum, or decides about shapes or the end of a run, is therefore
computed by the leader (:attr:`deepca.network.Network.leader`) and broadcast. The other agents check up to rounding that
it follows from what they know, and raise :class:`~deepca.errors.Contradiction` if it does not.
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
"""Harmless departure from orthogonality: √eps suffices for block Lanczos to have Ritz values accurate to rounding."""


def packed(*parts: npt.ArrayLike) -> Array:
    """Concatenate the numbers of all parts."""
    return np.concatenate([np.ravel(np.asarray(part, dtype=np.float64)) for part in parts])


def unpacked(flat: Array, *shapes: tuple[int, ...]) -> list[Array]:
    """Split concatenated numbers into parts of the given shapes."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends)[:-1], shapes, strict=True)]


def counted(sender: int, what: str, value: Array | float, most: int) -> int:
    """Return a received count as an int; raise Contradiction unless it is one of 0 … ``most``."""
    count = float(value)
    if not (0.0 <= count <= most and count == math.floor(count)):
        raise Contradiction(sender, what, f"{count:g}; expected an integer from 0 to {most}")
    return int(count)


def check_small(network: Network, what: str, departure: float, allowed: float) -> None:
    """Raise Contradiction if received numbers depart by more than allowed; the leader has nothing to check."""
    if not network.leads and not departure <= allowed + SMALLEST:
        raise Contradiction.off_by(network.leader, what, departure, allowed)


def check_close(network: Network, what: str, received: Array | float, own: Array | float, allowed: float) -> None:
    """Raise Contradiction if received numbers differ by more than allowed from those computed locally."""
    if not network.leads:
        check_small(network, what, float(np.abs(np.asarray(received) - np.asarray(own)).max(initial=0.0)), allowed)


def share_spectrum(network: Network) -> None:
    """Use the leader's eigenvalues of 𝐋, which determine numbers of rounds, at all agents.

    Nothing is sent where all agents compute the same bits: in one process, and on small graphs. On directed and
    time-varying graphs, every agent uses its own.
    """
    topology = network.topology
    if network.local.size == network.n_agents or network.n_agents <= PORTABLE or not topology.stays:
        return
    own = topology.spectrum
    received = network.from_leader(own)
    check_close(network, "eigenvalues of the gossip matrix", received, own, SEMI)
    network.take_spectrum(received)


def check_bound(
    network: Network, received: float, own: float, values: tuple[float, float], size: float, what: str = "a bound"
) -> None:
    """Raise Contradiction unless a bound lies at least half as far above the largest value as the local one.

    Parameters
    ----------
    network : Network
        Tells whether this agent leads.
    received, own : float
        The leader's bound and the local one.
    values : tuple of float
        The largest and the smallest value found. Bounds further above than a thousand times their distance are all
        accepted.
    size : float
        Magnitude relative to which numbers are rounded.
    what : str
        Name of the bound for the message.
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
    """Raise Contradiction unless P is orthonormal, orthogonal to other bases, and spans given columns.

    Parameters
    ----------
    network : Network
        Tells whether this agent leads.
    what : str
        Name of the basis for the message.
    P : ndarray of shape (d, p)
        The basis received.
    *without : ndarray
        Bases to which P must be orthogonal.
    contains : ndarray, optional
        Columns that P must span up to a residual of ``beyond``, so shorter directions are arbitrary.
    beyond : float
        Largest residual.
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
    """Return a copy of X for every local agent, ``(*B, d, k)``."""
    return np.array(np.broadcast_to(X, (*network.batch, *X.shape)))
