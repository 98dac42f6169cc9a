"""Measure what masks add to the computations of one agent in a sum."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from deepca._util.machine import keep_freed_memory
from deepca.network.sums import COUNT, Addend, SumLayout, Unit
from deepca.network.sums.masks import SumMasks
from studies.private_sums.trials import COMPONENTS

__all__ = ["MaskCosts", "mask_costs"]

_COLUMNS = COMPONENTS + 2  # of the products of an iteration
_REPETITIONS = 15


class MaskCosts(NamedTuple):
    """Milliseconds of processor time that an agent spends on the masks of one sum.

    Parameters
    ----------
    size : int
        Bytes of the message.
    hiding : float
        Keystreams of all partners, added to the message.
    checking : float
        Weights of check numbers, their sums, and those of the total.
    recording : float
        The total, added to the history.
    """

    size: int
    hiding: float
    checking: float
    recording: float


def mask_costs(m: int, d: int) -> MaskCosts:
    """Measure the sum of one product with a block of columns in a network of m agents."""
    keep_freed_memory()  # as agents do
    numbers = np.random.default_rng(8).standard_normal((1, d * _COLUMNS))
    layout = SumLayout.of([Addend("products", numbers, unit=Unit(-50))], masked=True)
    masks = SumMasks({(0, j): j.to_bytes(32, "big") for j in range(1, m)}, (0,), bytes(32))
    parts = [Unit(-50).encode(numbers)]
    message = layout.pack([COUNT.encode(np.ones((1, 1))), *layout.with_checks(parts, masks.weights(layout))])
    total = message[0].copy()

    def check() -> None:
        weights = masks.weights(layout)
        layout.with_checks(parts, weights)
        layout.describe_total_fault(total, weights)

    times = [_milliseconds(one) for one in (lambda: masks.hide(message, layout), check, lambda: masks.record(total))]
    return MaskCosts(message.nbytes, *times)


def _milliseconds(work: Callable[[], object]) -> float:
    """Return the median processor time of a call."""
    found = []
    for _ in range(_REPETITIONS):
        begun = time.thread_time()
        work()
        found.append(time.thread_time() - begun)
    return 1e3 * float(np.median(found))
