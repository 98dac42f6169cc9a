"""Test whether masked messages are uniform, and whether runs over the same rows share any of their blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deepca._util.typing import Array
from deepca.network.sums import Words
from studies.private_sums.trials import Case, Trial

__all__ = [
    "BLOCK_BYTES",
    "Uniformity",
    "blocks",
    "byte_pvalues",
    "measure_uniformity",
    "repeated_blocks",
    "upward",
]

BLOCK_BYTES = 16
"""Length of the blocks that are compared; that of AES."""
_WORD_BYTES = 8


@dataclass(frozen=True)
class Uniformity:
    """What was found in the messages on their way up in two private runs, and in an open one.

    Parameters
    ----------
    case : Case
        Sites and rows.
    n_messages, n_bytes : tuple of int
        Number of messages of each run, and of their bytes.
    pvalues : ndarray of shape (3, 8)
        P-values of the bytes at each position of a word, of each run.
    repeated : tuple of int
        Number of blocks that occur more than once within each run.
    shared : int
        Number of blocks that both private runs contain.
    shared_open : int
        Number of blocks that the open run has in common with another one over the same rows, as a control.
    """

    case: Case
    n_messages: tuple[int, ...]
    n_bytes: tuple[int, ...]
    pvalues: Array
    repeated: tuple[int, ...]
    shared: int
    shared_open: int

    @property
    def smallest(self) -> float:
        """Smallest p-value of the private runs, times their number (Bonferroni), at most 1."""
        return float(min(self.pvalues[:2].min() * self.pvalues[:2].size, 1.0))


def upward(messages: Sequence[Words], agents: int) -> list[Words]:
    """Return the words of partial sums, without the number of agents, which is not masked.

    The messages of a total, which travel down the tree and are not masked either, are left out.
    """
    return [message[1:] for message in messages if 0 < int(message[0]) < agents]


def byte_pvalues(messages: Sequence[Words]) -> Array:
    """Return the p-values of Pearson's chi-square test for uniform bytes, by their position in a word, ``(8,)``."""
    from scipy import stats

    data = np.concatenate(messages).astype("<u8").view(np.uint8).reshape(-1, _WORD_BYTES)
    counts = [np.bincount(column, minlength=256) for column in data.T]
    return np.array([stats.chisquare(one).pvalue for one in counts])


def blocks(messages: Sequence[Words]) -> list[bytes]:
    """Return all blocks of two words that follow each other in a message; they overlap."""
    found = []
    for message in messages:
        data = message.astype("<u8").tobytes()
        found += [data[i : i + BLOCK_BYTES] for i in range(0, len(data) - BLOCK_BYTES + 1, _WORD_BYTES)]
    return found


def repeated_blocks(found: Sequence[bytes]) -> int:
    """Return how many blocks occurred before."""
    return len(found) - len(set(found))


def measure_uniformity(case: Case, folder: Path) -> Uniformity:
    """Record what real agents send in two private runs over the same rows, and in two open ones."""
    trial = Trial(case, folder)
    private = [trial.run("private", record=True) for _ in range(2)]
    opened = [trial.run("open", private[0].seed, record=True) for _ in range(2)]
    runs = [upward(run.sent, case.m) for run in (*private, *opened)]
    seen = [blocks(run) for run in runs]
    return Uniformity(
        case,
        tuple(map(len, runs[:3])),
        tuple(sum(one.nbytes for one in run) for run in runs[:3]),
        np.array([byte_pvalues(run) for run in runs[:3]]),
        tuple(map(repeated_blocks, seen[:3])),
        len(set(seen[0]) & set(seen[1])),
        len(set(seen[2]) & set(seen[3])),
    )
