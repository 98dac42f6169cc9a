"""Broadcast numbers that the leader computes, and check them on arrival.

Factorizations and matrix products round differently on different processors, and nearly rank-deficient blocks yield
entirely different directions. Everything that enters a sum, or decides about shapes or the end of a run, is therefore
computed by the leader (:attr:`deepca.network.Network.leader`) and broadcast. All other agents check that the numbers
agree, up to rounding, with what they know, and raise :class:`~deepca.errors.Contradiction` if they do not.
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
from deepca.topology.spectra import MAX_PORTABLE_AGENTS

__all__ = [
    "SEMIORTHOGONALITY_TOLERANCE",
    "check_basis",
    "check_bound",
    "check_close",
    "check_small",
    "checked_count",
    "for_local_agents",
    "packed",
    "share_spectrum",
    "unpacked",
]

SEMIORTHOGONALITY_TOLERANCE = 1e-10
"""Largest harmless departure from orthogonality: with √eps, Ritz values of block Lanczos are accurate to rounding."""


def packed(*parts: npt.ArrayLike) -> Array:
    """Concatenate the numbers of all parts into one vector."""
    return np.concatenate([np.ravel(np.asarray(part, dtype=np.float64)) for part in parts])


def unpacked(flat: Array, *shapes: tuple[int, ...]) -> list[Array]:
    """Split a vector made by :func:`packed` into parts of the given shapes."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends)[:-1], shapes, strict=True)]


def checked_count(sender: int, what: str, value: Array | float, most: int) -> int:
    """Return a received count as an int; raise Contradiction unless it is an integer from 0 to ``most``."""
    count = float(value)
    if not (0.0 <= count <= most and count == math.floor(count)):
        raise Contradiction(sender, what, f"{count:g}; expected an integer from 0 to {most}")
    return int(count)


def check_small(network: Network, what: str, departure: float, allowed: float) -> None:
    """Raise Contradiction if the departure of received numbers is more than allowed; the leader checks nothing."""
    if not network.is_leader_local and not departure <= allowed + SMALLEST:
        raise Contradiction.off_by(network.leader, what, departure, allowed)


def check_close(network: Network, what: str, received: Array | float, own: Array | float, allowed: float) -> None:
    """Raise Contradiction if received numbers differ by more than allowed from those computed locally."""
    if not network.is_leader_local:
        check_small(network, what, float(np.abs(np.asarray(received) - np.asarray(own)).max(initial=0.0)), allowed)


def share_spectrum(network: Network) -> None:
    """Make all agents use the leader's eigenvalues of 𝐋, from which they derive numbers of rounds.

    Nothing is sent where all agents compute the same bits: in one process, and on small graphs. On directed and
    time-varying graphs, every agent uses its own eigenvalues.
    """
    topology = network.topology
    if (
        network.local.size == network.n_agents
        or network.n_agents <= MAX_PORTABLE_AGENTS
        or not topology.static_undirected
    ):
        return
    own = topology.spectrum
    received = network.from_leader(own)
    check_close(network, "eigenvalues of the gossip matrix", received, own, SEMIORTHOGONALITY_TOLERANCE)
    network.take_spectrum(received)


def check_bound(
    network: Network, received: float, own: float, values: tuple[float, float], size: float, what: str = "a bound"
) -> None:
    """Raise Contradiction unless a bound exceeds the largest value by at least half as much as the local bound does.

    Parameters
    ----------
    network : Network
        Network of the agents; the leader checks nothing.
    received, own : float
        The leader's bound and the local one.
    values : tuple of float
        The largest and the smallest value found. A bound that exceeds the largest by a thousand times their distance
        is always accepted.
    size : float
        Magnitude of the numbers, to which rounding is relative.
    what : str
        Name of the bound for the message.
    """
    if network.is_leader_local or received == math.inf:
        return
    unit = max(size, SMALLEST)
    top, bottom = (value / unit for value in values)
    reach = min(own / unit - top, 1e3 * (top - bottom))
    check_small(network, what, 0.5 * reach - (received / unit - top), SEMIORTHOGONALITY_TOLERANCE)


def check_basis(
    network: Network, what: str, P: Array, *without: Array, contains: Array | None = None, beyond: float = 0.0
) -> None:
    """Raise Contradiction unless P is orthonormal, orthogonal to other bases, and spans given columns.

    Parameters
    ----------
    network : Network
        Network of the agents; the leader checks nothing.
    what : str
        Name of the basis for the message.
    P : ndarray of shape (d, p)
        The basis received.
    *without : ndarray
        Bases to which P must be orthogonal.
    contains : ndarray, optional
        Columns that P must span up to a residual of ``beyond``; directions shorter than that are arbitrary.
    beyond : float
        Largest residual.
    """
    if network.is_leader_local:
        return
    check_small(network, what, _largest(P.T @ P - np.eye(P.shape[1])), SEMIORTHOGONALITY_TOLERANCE)
    for Q in without:
        check_small(network, what, _largest(Q.T @ P), SEMIORTHOGONALITY_TOLERANCE)
    if contains is not None:
        check_small(network, what, float(frobenius(contains - P @ (P.T @ contains))), beyond)


def _largest(M: Array) -> float:
    return float(np.abs(M).max(initial=0.0))


def for_local_agents(X: Array, network: Network) -> Array:
    """Return a copy of X for every local agent, ``(*B, …)``, each with the same layout in memory as for one agent.

    Products round differently for other layouts. As in products ``A_j W``, the last two axes are swapped in memory.
    """
    Xt = np.swapaxes(X, -1, -2) if X.ndim > 1 else X
    copies = np.array(np.broadcast_to(Xt, (*network.batch, *Xt.shape)), order="C")
    return np.swapaxes(copies, -1, -2) if X.ndim > 1 else copies
