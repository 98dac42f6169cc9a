"""Measure the parts of the cost model on two ranks that work at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg.blas import daxpy

import deepca
from benchmarks.cluster.model import Costs, Line, fitted
from benchmarks.cluster.rounds import COLUMNS, in_turns
from benchmarks.timing import CPU
from deepca.operators.linalg import polar, random_orthonormal

if TYPE_CHECKING:
    from mpi4py import MPI

    from deepca._util.typing import Array
    from deepca.network.base import Network

__all__ = ["Case", "Samples", "as_costs", "cases", "measure", "round_trip"]

_MESSAGES = (8, 1_000, 12_000, 100_000, 1_000_000, 4_000_000)
_BYTES = (4_000, 12_000, 40_000, 400_000, 4_000_000)
"""Sizes in bytes of the d × k arrays for which local operations are timed."""
_FEATURES = (300, 1_000, 10_000)
_ROWS = (16_000_000, 64_000_000)
"""Sizes in bytes of the rows for which products are timed; larger than the caches."""
# a run that computes almost nothing shows the cost of the loop
_TINY_FEATURES, _TINY_ITERATIONS = 8, 50
_BLOCK = 0.03  # target duration of a timed block, in seconds
_MESSAGE_BLOCKS = 8  # factor by which blocks of messages are more numerous, and shorter, than blocks of local work

Pairs = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Case:
    """One measurement of all parts, with a number of repetitions."""

    repetitions: int

    @property
    def cost(self) -> float:
        """Approximate seconds, for progress bars."""
        return 2.0 * (self.repetitions + 3)


@dataclass(frozen=True)
class Samples:
    """Measured times as pairs (bytes, seconds), by operation: medians, or lower quartiles for messages.

    ``product`` has one entry per number of features; ``tiny`` is the time of an iteration with almost no data.
    """

    message: Pairs
    call: Pairs
    add: Pairs
    combine: Pairs
    track: Pairs
    orthonormalise: Pairs
    product: tuple[tuple[int, Pairs], ...]
    tiny: float


def cases(ranks: int, quick: bool) -> Iterator[Case]:
    """Return the cases; they run on two ranks only."""
    if ranks == 2:
        yield Case(3 if quick else 9)


def measure(case: Case, comm: MPI.Intracomm) -> Samples | None:
    """Measure messages in wall-clock time and local work in processor time, while the other rank does the same."""
    trips = {nbytes: round_trip(comm, nbytes) for nbytes in _MESSAGES}
    calls = _local_calls()
    there = in_turns(comm, tuple(trips.values()), _MESSAGE_BLOCKS * case.repetitions, _BLOCK / _MESSAGE_BLOCKS)
    times = in_turns(comm, tuple(calls.values()), case.repetitions, _BLOCK, CPU)
    if comm.rank:
        return None
    found: dict[str, list[tuple[float, float]]] = {}
    for (what, size), seconds in zip(calls, times, strict=True):
        found.setdefault(what, []).append((float(size), float(np.median(seconds))))
    ((_, tiny),), written = found.pop("tiny"), dict(found.pop("write"))
    # the lower quartile, since other processes can only delay a message
    trip = {nbytes: float(np.quantile(seconds, 0.25)) for nbytes, seconds in zip(trips, there, strict=True)}
    found["message"] = [(float(nbytes), max(trip[nbytes] / 2.0 - written[nbytes], 1e-9)) for nbytes in trips]
    products = tuple((features, tuple(found.pop(f"product {features}"))) for features in _FEATURES)
    rest: dict[str, Pairs] = {what: tuple(pairs) for what, pairs in found.items()}
    return Samples(**rest, product=products, tiny=tiny / _TINY_ITERATIONS)


def as_costs(samples: Samples) -> Costs:
    """Fit a line to each part; the loop costs what remains of a tiny iteration without its known parts."""

    def line(pairs: Pairs) -> Line:
        return fitted([nbytes for nbytes, _ in pairs], [seconds for _, seconds in pairs])

    call, combine, track, orthonormalise = map(
        line, (samples.call, samples.combine, samples.track, samples.orthonormalise)
    )
    known = call.start + combine.start + track.start + orthonormalise.start
    return Costs(
        call,
        line(samples.message),
        line(samples.add),
        combine,
        track,
        orthonormalise,
        tuple((features, line(pairs)) for features, pairs in samples.product),
        max(samples.tiny - known, 0.0),
    )


def round_trip(comm: MPI.Intracomm, nbytes: int) -> Callable[[int], None]:
    """Return a function that makes round trips between ranks 0 and 1.

    New numbers are written before each message, so that they are not in the cache of the receiving core.
    """
    buffer = np.zeros(nbytes // 8)
    write = _write(buffer)

    def many(count: int) -> None:
        for _ in range(count):
            if comm.rank == 0:
                write(1)
                comm.Send(buffer, 1)
                comm.Recv(buffer, 1)
            elif comm.rank == 1:
                comm.Recv(buffer, 0)
                write(1)
                comm.Send(buffer, 0)

    return many


def _local_calls() -> dict[tuple[str, int], Callable[[int], None]]:
    calls: dict[tuple[str, int], Callable[[int], None]] = {}
    alone, iterate = _alone()
    for nbytes in _BYTES:
        x = np.random.default_rng(0).standard_normal((1, nbytes // (8 * COLUMNS), COLUMNS))
        calls["call", nbytes] = _repeated(partial(alone.gossip, x))
        calls["add", nbytes] = _add(x)
        calls["combine", nbytes] = _combine(x)
        calls["track", nbytes] = _track(x)
        calls["orthonormalise", nbytes] = _repeated(partial(polar, x))
    for features in _FEATURES:
        for nbytes in _ROWS:
            calls[f"product {features}", nbytes] = _product(nbytes // (8 * features), features)
    for nbytes in _MESSAGES:
        calls["write", nbytes] = _write(np.zeros(nbytes // 8))
    calls["tiny", 0] = iterate
    return calls


def _repeated(call: Callable[[], object]) -> Callable[[int], None]:
    def many(count: int) -> None:
        for _ in range(count):
            call()

    return many


def _write(buffer: Array) -> Callable[[int], None]:
    return _repeated(partial(np.add, buffer, 1.0, out=buffer))


def _add(x: Array) -> Callable[[int], None]:
    y, other = x.ravel().copy(), x.ravel().copy()
    return _repeated(lambda: daxpy(other, y, a=1e-3))


def _combine(x: Array) -> Callable[[int], None]:
    before, y = x.copy(), x.copy()
    return _repeated(lambda: y + 0.3 * (y - before))


def _track(x: Array) -> Callable[[int], None]:
    """Return the tracking update; as in a run, only products have their last axes swapped in memory."""
    S, AW = x.copy(), np.swapaxes(np.swapaxes(x, -1, -2).copy(), -1, -2)
    before = AW.copy(order="K")
    return _repeated(lambda: S + AW - before)


def _product(rows: int, features: int) -> Callable[[int], None]:
    """Return the product Xᵀ(XW) of an iteration on rows."""
    X = np.random.default_rng(0).standard_normal((rows, features))
    A = deepca.operators.from_rows([X], form="rows", workers=1)
    W = np.ascontiguousarray(random_orthonormal(features, COLUMNS, seed=0))[None]
    return _repeated(lambda: A @ W)


def _alone() -> tuple[Network, Callable[[int], None]]:
    """Return a network of one agent, and a function that runs iterations on it with almost nothing to compute."""
    from mpi4py import MPI

    from deepca.engines.mpi.network import MpiNetwork

    network = MpiNetwork(deepca.topology.ring(1), MPI.COMM_SELF)
    A = deepca.operators.from_rows(
        [np.random.default_rng(0).standard_normal((_TINY_FEATURES, _TINY_FEATURES))], form="rows", workers=1
    )
    W0 = random_orthonormal(_TINY_FEATURES, COLUMNS, seed=0)
    algorithm = deepca.DeEPCA(A, W0, network, deepca.FastMix(rounds=1))
    state = deepca.solve(algorithm, max_iter=3, certify=False).state

    def iterate(count: int) -> None:
        deepca.solve(algorithm, max_iter=_TINY_ITERATIONS * count, start=state, certify=False)

    return network, iterate
