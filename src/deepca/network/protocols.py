"""Define the interfaces between networks and mixers."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from deepca._util.typing import Array, Csr
from deepca.topology.graph import Topology

__all__ = ["LinearMixer", "MixerNetwork", "Pairs", "Position"]

Position = tuple[int, int, int, int]
"""Position in a run, equal at all agents: epoch, checksum of the phase, iteration, pairs averaged since it began."""
Pairs = npt.NDArray[np.int64]
"""Pairs of agents that average with each other, ``(n, 2)``, in order."""


class MixerNetwork(Protocol):
    """The part of a network that a mixer uses; see :class:`deepca.network.Network`."""

    @property
    def topology(self) -> Topology:
        """Graph and gossip matrix."""
        ...

    @property
    def position(self) -> Position:
        """Current position in the run, equal at all agents."""
        ...

    def gossip(self, x: Array, weights: Csr | None = None, /) -> Array:
        """Run one round of weighted averaging with the neighbours."""
        ...

    def average_pairs(self, x: Array, pairs: Pairs, rounds: int, /) -> Array:
        """Average pairs of neighbours, one pair after another."""
        ...

    def allreduce_mean(self, x: Array, /) -> Array:
        """Compute the mean over all agents with one collective operation."""
        ...


class LinearMixer(Protocol):
    """The part of a mixer that a network uses to run it; see :mod:`deepca.consensus.mixers`."""

    @property
    def fixed(self) -> bool:
        """True if the number of rounds is the same in every iteration."""
        ...

    @property
    def reaches_all(self) -> bool:
        """True if one run brings the values of every agent to every other agent."""
        ...

    def run(self, network: MixerNetwork, x: Array, K: int, /) -> Array:
        """Mix x in K rounds."""
        ...

    def key(self, K: int, /) -> object:
        """Return a key that is equal for mixers that apply the same matrix in K rounds; None if every run differs."""
        ...
