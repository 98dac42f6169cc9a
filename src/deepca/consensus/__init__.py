"""Consensus averaging: mixers, the rounds that they need, and averages with a bound on their error."""

from deepca._util.renamed import renamed_names
from deepca.consensus.averaging import AverageWithError, average, average_and_derive
from deepca.consensus.centring import agreed_mean
from deepca.consensus.mixers import Chebyshev, FastMix, Gossip, Mixer, PositiveChebyshev
from deepca.consensus.pairwise import Pairwise

__all__ = [
    "AverageWithError",
    "Chebyshev",
    "FastMix",
    "Gossip",
    "Mixer",
    "Pairwise",
    "PositiveChebyshev",
    "agreed_mean",
    "average",
    "average_and_derive",
]

__getattr__ = renamed_names(__name__, Averaged="AverageWithError", average_then="average_and_derive")
