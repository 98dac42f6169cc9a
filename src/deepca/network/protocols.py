"""Interfaces between networks and mixers."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from deepca._util.typing import Array, Csr
from deepca.topology.graph import Topology

__all__ = ["Averaging", "LinearMixer", "Moment", "Pairs"]

Moment = tuple[int, int, int, int]
"""Epoch, phase (as a checksum), iteration, and number of pairs that have met since it began; equal at all agents."""
Pairs = npt.NDArray[np.int64]
"""Pairs of agents that meet, ``(n, 2)``, in sequence."""


class Averaging(Protocol):
    """The part of a network that a mixer uses; see :class:`deepca.network.Network`."""

    @property
    def topology(self) -> Topology:
        """Graph and gossip matrix."""
        ...

    @property
    def moment(self) -> Moment:
        """Current position in the run, equal at all agents."""
        ...

    def gossip(self, x: Array, weights: Csr | None = None, /) -> Array:
        """Make one round of weighted averaging with the neighbours."""
        ...

    def meet(self, x: Array, pairs: Pairs, rounds: int, /) -> Array:
        """Average pairs of neighbours in sequence."""
        ...

    def total_mean(self, x: Array, /) -> Array:
        """Compute the mean over all agents with one collective operation."""
        ...


class LinearMixer(Protocol):
    """The part of a mixer that a network uses to run it; see :mod:`deepca.consensus.mixers`."""

    @property
    def fixed(self) -> bool:
        """Whether the number of rounds is the same in every iteration."""
        ...

    @property
    def spreads(self) -> bool:
        """Whether every agent has heard from every other after one run."""
        ...

    def run(self, network: Averaging, x: Array, K: int, /) -> Array:
        """Mix x in K rounds."""
        ...

    def key(self, K: int, /) -> object:
        """Return a key that is equal for mixers that apply the same matrix in K rounds; None if no two runs do."""
        ...
