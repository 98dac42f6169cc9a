"""What has to be the same at every agent, compared by hashes before anything else is sent."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from deepca.errors import InvalidInput
from deepca.network.base import Network

__all__ = ["agree_on_call", "differing", "listed"]

_WORDS = 8  # of 32 bits, as numbers that travel
_SHOWN = 8


def differing(network: Network, own: str, phase: str) -> npt.NDArray[np.int64]:
    """Numbers of the agents whose text is not that of agent 0. Nothing is sent where all are in one process."""
    if network.batch and network.batch[0] == network.n_agents:
        return np.zeros(0, dtype=np.int64)
    digest = np.frombuffer(hashlib.sha256(own.encode()).digest(), dtype="<u4")
    words = np.broadcast_to(digest.astype(np.float64), (*network.batch, _WORDS))
    network.begin(network.epoch, 0, phase)
    first = network.flood(words, 0)
    differs = (words != first).any(axis=-1)[..., None] & (np.arange(network.n_agents) == network.local[..., None])
    return np.flatnonzero(network.reduce(differs.astype(np.float64), "max"))


def listed(agents: npt.NDArray[np.int64]) -> str:
    return ", ".join(map(str, agents[:_SHOWN])) + (", …" if agents.size > _SHOWN else "")


def agree_on_call(network: Network, name: str, *, settings: object, **asked: str) -> None:
    """Raise InvalidInput that names the agents that do not ask for the same as agent 0.

    settings : whatever else has to be the same; compared by its ``repr``.
    """
    who = differing(network, repr((name, settings, sorted(asked.items()))), "call")
    if who.size:
        raise InvalidInput(
            f"agents {listed(who)} and agent 0 do not make the same call: all need {name} with the same k, "
            f"{', '.join(asked)}, algorithm, rounds, tol, max_iter and seed"
        )
