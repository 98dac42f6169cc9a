"""Agree on the mean of all rows by gossip, without revealing any agent's rows or number of rows."""

from __future__ import annotations

import numpy as np

from deepca._util.floats import EPS
from deepca._util.typing import Array
from deepca.consensus.mixers import Mixer
from deepca.network.base import Network

__all__ = ["agreed_mean"]


def agreed_mean(network: Network, mix: Mixer, sums: Array, counts: Array) -> Array:
    """Compute the mean of all rows at every local agent.

    Parameters
    ----------
    network : Network
        Network of the agents.
    mix : Mixer
        Mixer with which to average; its ``rounds`` are ignored.
    sums : ndarray of shape (*B, d)
        Each agent's sum of rows.
    counts : ndarray of shape B
        Each agent's number of rows.

    Returns
    -------
    ndarray of shape (*B, d)
        ``Σ_j sums_j / Σ_j counts_j``, up to rounding.

    Notes
    -----
    Agents average ``(sums_j, counts_j)`` for as many rounds as the mixer needs to reach rounding error, and take the
    ratio.

    Examples
    --------
    >>> import numpy as np
    >>> import deepca
    >>> network = deepca.SimulatedNetwork(deepca.topology.ring(3))
    >>> sums, counts = np.array([[2.0], [4.0], [12.0]]), np.array([1.0, 2.0, 3.0])
    >>> agreed_mean(network, deepca.Gossip(), sums, counts).ravel().round(9).tolist()
    [3.0, 3.0, 3.0]
    """
    x = np.concatenate([sums, counts[..., None]], axis=-1)
    rounds = mix.rounds_for(network.topology, EPS)
    network.begin(network.epoch, 0, "centring")
    x = mix.with_rounds(rounds)(network, x)
    return x[..., :-1] / x[..., -1:]
