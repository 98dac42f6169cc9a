"""Eigenvalues of the gossip matrix 𝐋, and mixing that follows from them, without global knowledge of the graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepca._util.typing import Array
from deepca.algorithms.partitioned_rows import FilteredSubspaceIteration
from deepca.consensus.mixers import FastMix, Mixer, fastmix_eta
from deepca.consensus.rates import first_rounds
from deepca.decomposition.spectral.convergence import EQUALITY_TOLERANCE, converge
from deepca.errors import TopologyError
from deepca.network.base import Network
from deepca.network.trees import SpanningTree
from deepca.topology.local_view import Neighbourhood

__all__ = ["GossipSpectrum", "LocalMixing", "lambda2", "local_mixing"]


@dataclass(frozen=True)
class GossipSpectrum:
    """λ₂ and λ_min of the gossip matrix 𝐋, the same at every agent.

    Parameters
    ----------
    lambda2, lambda_min : float
        Second largest and smallest eigenvalue.
    error : float
        Distance from each of these two values within which at least one eigenvalue lies.
    proven : bool
        True if proven that no eigenvalue except 1 lies farther out by more than 1e-10, except with probability 1e-6.
    n_agents : int
        Number of agents, as counted over the tree.
    depth : int
        Depth of the spanning tree; the diameter of the network is at most twice the depth.
    rounds : int
        Number of rounds of all kinds.
    """

    lambda2: float
    lambda_min: float
    error: float
    proven: bool
    n_agents: int
    depth: int
    rounds: int


@dataclass(frozen=True)
class LocalMixing:
    """FastMix's η and an initial number of rounds K, computed without global knowledge of the graph."""

    spectrum: GossipSpectrum
    eta: float
    rounds: int


def lambda2(network: Network, *, tol: float = 1e-12, seed: int = 0) -> GossipSpectrum:
    """Compute λ₂ and λ_min of the network's gossip matrix 𝐋, where each agent uses only its own row.

    Parameters
    ----------
    network : Network
        The network; its links must be symmetric and fixed.
    tol : float
        Acceptable sine of the angle to the true eigenvectors, as far as rounding allows.
    seed : int
        Seed of the random start, the same at every agent.

    Returns
    -------
    GossipSpectrum
        Both eigenvalues with their error bound, the same at every agent.

    Raises
    ------
    TopologyError
        If the network is directed or time-varying, so it has no single symmetric 𝐋.

    Examples
    --------
    >>> import deepca
    >>> found = lambda2(deepca.SimulatedNetwork(deepca.topology.ring(8)))
    >>> abs(found.lambda2 - deepca.topology.ring(8).lambda2) < 1e-10
    True
    """
    if not network.topology.static_undirected:
        raise TopologyError(
            f"{network.topology.name} is directed or time-varying, so it has no single symmetric 𝐋 with a λ₂; give a "
            "fixed, undirected network",
            parameter="network",
        )
    before = network.traffic
    tree = SpanningTree.grow(network)
    if tree.n_agents == 1:
        return GossipSpectrum(0.0, 1.0, 0.0, True, 1, 0, 0)
    ends = []
    for sign in (1.0, -1.0):
        rows = _GossipRows(network, sign)
        method = FilteredSubspaceIteration(
            rows, tree, 1, known=np.ones(rows.numbers.shape), known_value=sign, seed=seed
        )
        state, bound, _, _ = converge(method, tol)
        ends.append(
            (
                sign * float(state.theta[0]),
                float(state.r[0]),
                bool(bound <= state.theta[0] + EQUALITY_TOLERANCE * method.scale(state)),
            )
        )
    (second, r2, top), (lowest, r1, bottom) = ends
    used = network.traffic - before
    rounds = used.rounds + used.control_rounds
    return GossipSpectrum(second, lowest, max(r1, r2), top and bottom, tree.n_agents, tree.depth, rounds)


def local_mixing(network: Network, *, mixer: Mixer | None = None, tol: float = 1e-12) -> LocalMixing:
    """Compute FastMix's η and an initial K, where each agent uses only its own row of 𝐋.

    Parameters
    ----------
    network : Network
        The network; its links must be symmetric and fixed.
    mixer : Mixer, optional
        Mixer for which K is computed; FastMix by default.
    tol : float
        Tolerance of :func:`lambda2`.

    Returns
    -------
    LocalMixing
        Spectrum, η and K, the same at every agent.

    Notes
    -----
    With this K, tracking converges for every spectrum between λ_min and λ₂
    (:func:`deepca.consensus.rates.first_rounds`); if all eigenvalues are known, fewer rounds may suffice.
    :meth:`Neighbourhood.with_spectrum_of` makes the spectrum available to a run.
    """
    spectrum = lambda2(network, tol=tol)
    agent = int(network.local.ravel()[0])
    view = Neighbourhood.of(network.topology, agent).with_spectrum_of(spectrum)
    chosen = FastMix() if mixer is None else mixer
    chosen.check(view)
    return LocalMixing(spectrum, fastmix_eta(view.lambda2), first_rounds(chosen, view))


class _GossipRows:
    """Rows of the gossip matrix 𝐋, or of −𝐋, one per agent; a product is one round of gossip."""

    def __init__(self, network: Network, sign: float) -> None:
        self.network, self._sign = network, sign
        self.numbers: npt.NDArray[np.int64] = network.local[..., None].astype(np.int64)
        local_rows = network.topology.gossip_sparse[network.local.ravel(), :]
        centres = sign * network.topology.gossip_sparse.diagonal()[network.local]
        row_sums: Array = np.asarray(abs(local_rows).sum(axis=1), dtype=np.float64)
        radii = row_sums.reshape(network.batch) - np.abs(centres)
        self.lowest = float(network.reduce(centres - radii, "min"))  # Gershgorin

    def product(self, X: Array, /) -> Array:
        """Multiply by one round of gossip."""
        return self._sign * self.network.gossip(X)
