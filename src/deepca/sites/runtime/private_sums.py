"""Keys of one agent process for private sums, and the seed to which all sites contribute."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence

import numpy as np

from deepca.errors import MaskError, PeerFault, SumMismatch
from deepca.network.agent import AgentNetwork
from deepca.network.sums import COUNT, Addend
from deepca.network.sums.masks import EphemeralKey, SumMasks, partners
from deepca.sites.protocol.records import RunPlan

__all__ = ["PrivateSums"]

_COMMITMENT = b"deepca seed commitment 1"
_SEED = b"deepca seed 1"
_NONCE_BYTES = 32
_BYTES_PER_NUMBER = 4  # a float64 represents integers of four bytes exactly
_SEED_BITS = 63  # seeds fit into a signed integer of 64 bits


class PrivateSums:
    """Secrets of an agent process: its key for masks, and its share of the next seed. Neither is ever stored.

    Parameters
    ----------
    sites : tuple of str
        Names of all sites.
    random_bytes : callable, default=secrets.token_bytes
        Source of randomness; another one only for simulations that have to be repeatable.
    """

    def __init__(self, sites: tuple[str, ...], random_bytes: Callable[[int], bytes] = secrets.token_bytes) -> None:
        self._sites, self._random_bytes = sites, random_bytes
        self._key, self._nonce = EphemeralKey(random_bytes), b""

    @property
    def public_key(self) -> bytes:
        """Public key for masks."""
        return self._key.public

    def commit(self) -> bytes:
        """Draw a new random number for the seed of the next plan, and return the commitment to it."""
        self._nonce = self._random_bytes(_NONCE_BYTES)
        return _commitment_to(self._nonce)

    def begin(self, network: AgentNetwork, plan: RunPlan) -> None:
        """Mask all sums of a plan; raise PeerFault, before anything is sent, if the key of a member cannot be used."""
        names = [self._sites[site] for site in plan.members]
        for name, key, commitment in zip(names, plan.mask_keys, plan.commitments, strict=True):
            if not (key and commitment):
                raise PeerFault(name, "has published no key for private sums; its operator should update deepca there")
        self._check_distinct(names, plan.mask_keys)
        pair_secrets = {}
        shared = {
            other: self._secret(names[other], plan.mask_keys[other])  # of all members, so that all sites check all keys
            for other in range(len(names))
            if other != network.agent
        }
        for pair in partners(len(names), plan.digest):
            if network.agent in pair:
                pair_secrets[pair] = shared[pair[0] + pair[1] - network.agent]
        network.use_masks(SumMasks(pair_secrets, (network.agent,), plan.digest))

    def seed(self, network: AgentNetwork, plan: RunPlan, given: int) -> int:
        """Return a seed that no member could choose, the same at all members.

        All random numbers are revealed, in one sum, after every member has committed to its own, and to its key.

        Parameters
        ----------
        network : AgentNetwork
            The network of the plan.
        plan : RunPlan
            The plan.
        given : int
            Seed in network.toml.

        Raises
        ------
        SumMismatch
            If a number is not the one that a member has committed to.
        """
        slots = np.zeros((network.n_agents, _NONCE_BYTES // _BYTES_PER_NUMBER))
        slots[network.agent] = np.frombuffer(self._nonce, dtype="<u4")
        network.begin(plan.epoch, 0, "seed")
        [found] = network.totals(Addend("random numbers", slots.ravel(), unit=COUNT, nonnegative=True))
        numbers = np.clip(found.value, 0.0, 2.0**32 - 1.0).astype("<u4").reshape(slots.shape)
        revealed = [row.tobytes() for row in numbers]
        if tuple(map(_commitment_to, revealed)) != plan.commitments:  # a member can add to the number of another
            raise SumMismatch(plan.digest, "random numbers for the seed")
        digest = hashlib.sha256(_SEED + str(given).encode() + plan.digest + b"".join(revealed)).digest()
        return int.from_bytes(digest[:8], "big") >> (64 - _SEED_BITS)

    def _secret(self, name: str, key: bytes) -> bytes:
        try:
            return self._key.shared_secret(key)
        except MaskError as error:
            raise PeerFault(name, f"published an unusable key: {error}; its operator should check that site") from None

    @staticmethod
    def _check_distinct(names: Sequence[str], keys: Sequence[bytes]) -> None:
        for name, key in zip(names, keys, strict=True):
            if (first := names[keys.index(key)]) != name:
                raise PeerFault(
                    name,
                    f"published the same key for private sums as {first}; the operators of both sites should check "
                    "them",
                )


def _commitment_to(nonce: bytes) -> bytes:
    return hashlib.sha256(_COMMITMENT + nonce).digest()
