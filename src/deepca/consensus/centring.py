"""The mean of all rows, agreed by gossip: no agent shows its rows, and none needs to know how many the others have."""

from __future__ import annotations

import numpy as np

from deepca._util.floats import EPS
from deepca._util.typing import Array
from deepca.consensus.mixers import Mixer
from deepca.network.base import Network

__all__ = ["agreed_mean"]


def agreed_mean(network: Network, mix: Mixer, sums: Array, counts: Array) -> Array:
    """``Σ_j sums_j / Σ_j counts_j`` at every local agent.

    sums : ``(*B, d)``, each agent's sum of rows.  counts : ``(*B,)``, its number of rows.

    Agents average ``(sums_j, counts_j)`` for as many rounds as the mixer needs to reach rounding, and take the ratio.
    """
    x = np.concatenate([sums, counts[..., None]], axis=-1)
    rounds = mix.rounds_for(network.topology, EPS)
    network.begin(network.epoch, 0, "centring")
    x = mix.with_rounds(rounds)(network, x)
    return x[..., :-1] / x[..., -1:]
