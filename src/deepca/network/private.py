"""Make a network private: agree on masks that hide the numbers of single agents in sums."""

from __future__ import annotations

import numpy as np

from deepca.errors import MaskError, MixingError
from deepca.network.base import Network
from deepca.network.sums.masks import KEY_BYTES, EphemeralKey, SumMasks, common_plan, partners

__all__ = ["MIN_PRIVATE_AGENTS", "make_private"]

MIN_PRIVATE_AGENTS = 3
"""Smallest number of agents in a private network: one of two agents learns the other's number from the sum."""
_BYTES_PER_NUMBER = 4  # a float64 represents integers of four bytes exactly


def make_private(network: Network) -> None:
    """Exchange new public keys over a network and mask all sums from now on.

    The keys are neither signed nor checked, so this is for studies in one process: between sites, they travel in signed
    records.

    Parameters
    ----------
    network : Network
        The network; all its agents have to call this at the same point.

    Raises
    ------
    MixingError
        If the network has fewer than three agents, or no exact sums.
    MaskError
        If a key cannot be used.

    Examples
    --------
    >>> import numpy as np
    >>> import deepca
    >>> network = deepca.SimulatedNetwork(deepca.topology.ring(3))
    >>> deepca.network.make_private(network)
    >>> network.total(np.array([[1.0], [2.0], [3.0]])).tolist()
    [6.0]
    """
    check_can_be_private(network)
    own = [EphemeralKey() for _ in network.local.ravel()]
    local = network.local.ravel().tolist()
    keys = _exchanged(network, own)
    plan = common_plan(keys)
    secrets: dict[tuple[int, int], bytes] = {}
    for i, j in partners(network.n_agents, plan):
        for agent, other in ((i, j), (j, i)):
            if agent in local and (i, j) not in secrets:
                secrets[i, j] = _secret(own[local.index(agent)], keys[other], other)
    network.use_masks(SumMasks(secrets, local, plan))


def _exchanged(network: Network, own: list[EphemeralKey]) -> list[bytes]:
    """Return the public keys of all agents; nothing is sent if all are in this process."""
    if len(own) == network.n_agents:
        return [key.public for key in own]
    slots = np.full((len(own), network.n_agents, KEY_BYTES // _BYTES_PER_NUMBER), -1.0)
    for row, agent, key in zip(slots, network.local.ravel().tolist(), own, strict=True):
        row[agent] = np.frombuffer(key.public, dtype="<u4")
    network.begin(network.epoch, 0, "keys")
    found = network.reduce(slots.reshape(*network.batch, *slots.shape[1:]), "max")
    return [row.astype("<u4").tobytes() for row in found]


def check_can_be_private(network: Network) -> None:
    """Raise MixingError unless a network has exact sums, and enough agents to hide each of them."""
    if network.n_agents < MIN_PRIVATE_AGENTS or not network.adds_exactly or network.has_one_owner:
        raise MixingError(
            f"{network.topology.name}: a private network needs at least {MIN_PRIVATE_AGENTS} agents that are not ranks "
            "of one job, and a static graph that all of them know; use an open network",
            parameter="privacy",
            value="private",
        )


def _secret(own: EphemeralKey, key: bytes, other: int) -> bytes:
    try:
        return own.shared_secret(key)
    except MaskError as error:
        raise MaskError(f"agent {other}: {error}", agent=other) from None
