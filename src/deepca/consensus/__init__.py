"""Consensus averaging: mixers, the rounds that they need, and averages with a bound on their error."""

from deepca.consensus.averaging import Averaged, average, average_then
from deepca.consensus.centring import agreed_mean
from deepca.consensus.mixers import Chebyshev, FastMix, Gossip, Mixer, PositiveChebyshev
from deepca.consensus.pairwise import Pairwise

__all__ = [
    "Averaged",
    "Chebyshev",
    "FastMix",
    "Gossip",
    "Mixer",
    "Pairwise",
    "PositiveChebyshev",
    "agreed_mean",
    "average",
    "average_then",
]
