"""Hide what single agents add to an exact sum, by pairwise masks that cancel in the total.

Every pair of agents (i, j) that mask each other shares a secret, from an X25519 exchange of keys that live as long as
the process. For every sum, both expand it to a keystream as long as their messages; i adds it and j subtracts it,
modulo ``2^(64 L)``. A masked message is uniformly random to everybody who lacks the secrets, and the total is not
changed.

The keystream of sum number c depends on everything that is public and happened before::

    h_0     = SHA-256(plan, epoch)                         the plan covers all public keys
    key_c   = HKDF-SHA256(secret_ij, salt = plan, info = (i, j, c, h_c, layout of sum c))
    mask_c  = AES-256-CTR(key_c)
    h_{c+1} = SHA-256(h_c, layout of sum c, total c, numbers that follow from it)

Broadcast numbers enter h, too. So no key masks two messages, and an agent that was sent another total, other units or
another block than its peers turns the next total into noise. That is detected by check numbers: every agent adds
``Σ_e ρ_e q_e`` to its numbers q, with public random ρ, and the total has to satisfy the same equation. A message
that is altered or missing on the way up passes with a probability of about 2⁻⁶⁴. Whoever sends totals down knows ρ and
could make them up, so agents that do not trust each other compare h at the end.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from deepca.errors import MaskError, MissingExtraError
from deepca.network.sums.integers import Words
from deepca.network.sums.messages import SumLayout

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

__all__ = ["ALL_PAIRS", "KEY_BYTES", "EphemeralKey", "SumMasks", "partners"]

KEY_BYTES = 32
"""Length of a public X25519 key."""
ALL_PAIRS = 64
"""Largest number of agents of which every pair shares a mask."""
_LABEL = b"deepca sum masks 1"
_FIELD = 2**255 - 19  # coordinates on Curve25519 are smaller
_COLLUDING_SHARE = 1.0 / 3.0  # share of agents, chosen at random, that may pool what they know in larger networks
_FAILURE_BITS = 40.0  # they isolate an honest agent with a probability of 2⁻⁴⁰
_BLOCK_BYTES = 16  # of AES
_ZEROS = bytes(1 << 16)  # which become a keystream when encrypted; short enough for the caches of a processor

Pair = tuple[int, int]


class EphemeralKey:
    """An X25519 key that is never stored; it lasts as long as the process.

    Parameters
    ----------
    random_bytes : callable, default=secrets.token_bytes
        Source of randomness; another one only for simulations that have to be repeatable.

    Raises
    ------
    MissingExtraError
        If ``cryptography`` is not installed.

    Examples
    --------
    >>> here, there = EphemeralKey(), EphemeralKey()
    >>> here.shared_secret(there.public) == there.shared_secret(here.public)
    True
    """

    def __init__(self, random_bytes: Callable[[int], bytes] = secrets.token_bytes) -> None:
        self._private: X25519PrivateKey = _x25519().X25519PrivateKey.from_private_bytes(random_bytes(KEY_BYTES))

    def __repr__(self) -> str:
        """Return a text without the secret."""
        return f"EphemeralKey({self.public.hex()})"

    def __reduce__(self) -> str:
        """Refuse to be pickled or copied."""
        raise TypeError("ephemeral keys cannot be stored or copied")

    @property
    def public(self) -> bytes:
        """The public key, 32 bytes."""
        return self._private.public_key().public_bytes_raw()

    def shared_secret(self, public: bytes) -> bytes:
        """Return the secret shared with the owner of a public key.

        Raises
        ------
        MaskError
            If the key is malformed or of low order, so that others would know the secret.
        """
        if public == self.public:
            raise MaskError("the key for masks repeats the own one")
        if int.from_bytes(public, "little") >= _FIELD:
            raise MaskError("the key for masks is not in its shortest form, so that others could repeat it unnoticed")
        try:
            return self._private.exchange(_x25519().X25519PublicKey.from_public_bytes(public))
        except ValueError:  # the exchange refuses an all-zero secret, which is that of every point of low order
            raise MaskError(
                "the key for masks is not a usable X25519 key"
                if len(public) != KEY_BYTES
                else "the key for masks is a point of low order, with which everybody knows the secret"
            ) from None


class SumMasks:
    """Masks of the local agents for the sums of one plan.

    Parameters
    ----------
    pair_secrets : mapping of (int, int) to bytes
        Secrets of the pairs i < j that mask each other and contain a local agent.
    local : sequence of int
        Indices of the local agents.
    plan : bytes
        Digest of what all agents agreed on, including all public keys.

    Notes
    -----
    Its state is the history of sums: agents have to make the same calls in the same order.
    """

    def __init__(self, pair_secrets: Mapping[Pair, bytes], local: Sequence[int], plan: bytes) -> None:
        self._secrets = dict(sorted(pair_secrets.items()))
        self._row = {agent: row for row, agent in enumerate(local)}
        self.plan, self._epoch, self._count, self._history = plan, -1, 0, b""
        self.enter(0)

    def enter(self, epoch: int) -> None:
        """Begin the history of an epoch; raise MaskError if it is not later than all before, whose keys are used up."""
        if epoch <= self._epoch:
            raise MaskError(f"epoch {epoch} of private sums began twice; start the agents again")
        self._epoch, self._count = epoch, 0
        self._history = hashlib.sha256(_LABEL + self.plan + epoch.to_bytes(8, "big")).digest()

    @property
    def history(self) -> bytes:
        """Digest of everything public so far, and of the plan."""
        return self._history

    def weights(self, layout: SumLayout) -> Words:
        """Return the weights ρ of the check numbers of the next sum, ``(N,)``."""
        key = hashlib.sha256(b"check numbers" + self._history + layout.digest).digest()
        return _keystream(key, layout.n_words)

    def hide(self, messages: Words, layout: SumLayout) -> Words:
        """Add masks to the messages of the local agents, ``(*B, N)``, and count the sum.

        The number of agents that a message sums over, its first word, stays as it is.
        """
        hidden = messages.copy()
        rows = hidden.reshape(-1, layout.n_words)
        counts = rows[:, 0].copy()
        room = _room_for(layout.n_words)  # for all keystreams: new memory for each would take longer than AES
        for (i, j), secret in self._secrets.items():
            stream = _keystream(self._key(secret, (i, j), layout), layout.n_words, room)
            for agent in (i, j):
                if (row := self._row.get(agent)) is not None:
                    layout.add_to(rows[row], stream, negative=agent == j)
        self._count += 1
        rows[:, 0] = counts
        return hidden

    def record(self, *public: bytes | np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> None:
        """Add numbers that all agents have received to the history."""
        digest = hashlib.sha256(self._history)
        for part in public:
            data = part if isinstance(part, bytes) else np.ascontiguousarray(part).data.cast("B")
            digest.update(len(data).to_bytes(8, "big"))
            digest.update(data)
        self._history = digest.digest()

    def _key(self, secret: bytes, pair: Pair, layout: SumLayout) -> bytes:
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        place = b"".join(number.to_bytes(8, "big") for number in (*pair, self._count))
        info = _LABEL + place + self._history + layout.digest
        return HKDF(algorithm=SHA256(), length=32, salt=self.plan, info=info).derive(secret)


def partners(n_agents: int, plan: bytes) -> frozenset[Pair]:
    """Return the pairs i < j of agents that mask each other.

    Parameters
    ----------
    n_agents : int
        Number of agents, m.
    plan : bytes
        Public seed of the choice.

    Returns
    -------
    frozenset of (int, int)
        All pairs of up to 64 agents; beyond, the links of a random graph.

    Notes
    -----
    The graph is a union of random cycles. Each agent has at least ``(40 + log₂ m) / log₂(1/c)`` partners, so that a
    share c = 1/3 of all agents, chosen at random, contains all partners of any honest agent with a probability of 2⁻⁴⁰
    only. Agents chosen with the graph in mind isolate an agent if they are all of its partners.

    Examples
    --------
    >>> sorted(partners(3, b"plan"))
    [(0, 1), (0, 2), (1, 2)]
    """
    if n_agents <= ALL_PAIRS:
        return frozenset((i, j) for j in range(n_agents) for i in range(j))
    least = (_FAILURE_BITS + math.log2(n_agents)) / -math.log2(_COLLUDING_SHARE)
    found: set[Pair] = set()
    degrees = dict.fromkeys(range(n_agents), 0)
    for cycle in count():
        order = sorted(range(n_agents), key=lambda j: _place(plan, cycle, j))
        for i, j in zip(order, (*order[1:], order[0]), strict=True):
            if (pair := (min(i, j), max(i, j))) not in found:  # cycles may share links
                found.add(pair)
                degrees[i] += 1
                degrees[j] += 1
        if min(degrees.values()) >= least:
            break
    return frozenset(found)


def common_plan(keys: Iterable[bytes], about: bytes = b"") -> bytes:
    """Return a digest of the public keys of all agents, in order, and of what else they agreed on.

    Raises
    ------
    MaskError
        If two agents have the same key; it names the second of them.
    """
    keys = tuple(keys)
    for agent, key in enumerate(keys):
        if (first := keys.index(key)) != agent:
            raise MaskError(f"agents {first} and {agent} sent the same key for masks", agent=agent)
    return hashlib.sha256(_LABEL + about + b"".join(keys)).digest()


def _place(plan: bytes, cycle: int, agent: int) -> bytes:
    return hashlib.sha256(plan + cycle.to_bytes(4, "big") + agent.to_bytes(4, "big")).digest()


def _room_for(n_words: int) -> bytearray:
    """Return memory for a keystream; ciphers may ask for a block more than they write."""
    return bytearray(8 * n_words + _BLOCK_BYTES)


def _keystream(key: bytes, n_words: int, room: bytearray | None = None) -> Words:
    """Return that many words of AES-256 in counter mode; no key is used twice, so the counter starts at zero.

    They lie in ``room``, if it is given, and are overwritten by the next keystream there.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    room = _room_for(n_words) if room is None else room
    encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(_BLOCK_BYTES))).encryptor()
    view, size = memoryview(room), 8 * n_words
    for start in range(0, size, len(_ZEROS)):
        encryptor.update_into(_ZEROS[: size - start], view[start:])
    return np.frombuffer(room, dtype="<u8", count=n_words).astype(np.uint64, copy=False)


def _x25519() -> ModuleType:
    try:
        from cryptography.hazmat.primitives.asymmetric import x25519
    except ImportError as error:
        raise MissingExtraError("private sums need cryptography; pip install 'deepca[agent]'") from error
    return x25519
