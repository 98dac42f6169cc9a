"""Check that all agents make the same call, by comparing hashes before anything else is sent."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from deepca._util.units import plural
from deepca.errors import InvalidInput
from deepca.network.base import Network

__all__ = ["check_same_call", "differing_agents", "name_agents"]

_DIGEST_WORDS = 8  # a SHA-256 digest as 32-bit words, which float64 messages represent exactly
_MAX_LISTED = 8  # maximum number of agents listed in an error message


def differing_agents(network: Network, own: str, phase: str) -> npt.NDArray[np.int64]:
    """Return the agents whose text differs from that of agent 0; nothing is sent if all are in one process."""
    if network.batch and network.batch[0] == network.n_agents:
        return np.zeros(0, dtype=np.int64)
    digest = np.frombuffer(hashlib.sha256(own.encode()).digest(), dtype="<u4")
    words = np.broadcast_to(digest.astype(np.float64), (*network.batch, _DIGEST_WORDS))
    network.begin(network.epoch, 0, phase)
    first = network.flood(words, 0)
    differs = (words != first).any(axis=-1)[..., None] & (np.arange(network.n_agents) == network.local[..., None])
    return np.flatnonzero(network.reduce(differs.astype(np.float64), "max"))


def name_agents(agents: npt.NDArray[np.int64]) -> str:
    """Return ``"agent 3"`` or ``"agents 1, 2"``, abbreviated after the first eight."""
    numbers = ", ".join(map(str, agents[:_MAX_LISTED])) + (", …" if agents.size > _MAX_LISTED else "")
    return f"agent{plural(agents.size)} {numbers}"


def check_same_call(network: Network, name: str, *, settings: object, **asked: str) -> None:
    """Raise InvalidInput, which names the differing agents, unless all agents make the same call as agent 0.

    Parameters
    ----------
    network : Network
        Network of the agents.
    name : str
        Name of the function or class that was called.
    settings : object
        Everything else that must be the same, compared by its ``repr``.
    **asked : str
        Arguments that must be the same, as text.
    """
    who = differing_agents(network, repr((name, settings, sorted(asked.items()))), "call")
    if who.size:
        raise InvalidInput(
            f"the call at {name_agents(who)} differs from that at agent 0; call {name} with the same k, "
            f"{', '.join(asked)}, algorithm, rounds, tol, max_iter and seed at all agents",
            agent=int(who[0]),
        )
