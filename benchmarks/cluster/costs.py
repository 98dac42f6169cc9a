"""The times that the cost model is made of, measured on two ranks at once."""

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
from deepca.linalg import polar, random_orthonormal

if TYPE_CHECKING:
    from mpi4py import MPI

    from deepca._typing import Array

__all__ = ["Case", "Samples", "as_costs", "cases", "measure", "round_trip"]

_MESSAGES = (8, 1_000, 12_000, 100_000, 1_000_000, 4_000_000)
_BYTES = (4_000, 12_000, 40_000, 400_000, 4_000_000)
"""Of d × k numbers that are worked on at home."""
_ROWS = (1_000_000, 16_000_000, 64_000_000)
"""Bytes of rows that a product reads."""
_WIDTH = 1_000
_TINY, _AT_ONCE = 8, 50  # features of an iteration without work, and how many of them a run makes
_BLOCK = 0.03  # seconds that a timed block should last
_SHORTER = 8  # by what blocks of messages are shorter, and more


@dataclass(frozen=True)
class Case:
    """How often."""

    repetitions: int

    @property
    def cost(self) -> float:
        """Seconds it takes, about, for the time left."""
        return 1.2 * (self.repetitions + 3)


@dataclass(frozen=True)
class Samples:
    """Seconds by what was done, in pairs with the bytes: medians, and of messages the lower quartile."""

    message: tuple[tuple[float, float], ...]
    add: tuple[tuple[float, float], ...]
    combine: tuple[tuple[float, float], ...]
    track: tuple[tuple[float, float], ...]
    orthonormalise: tuple[tuple[float, float], ...]
    product: tuple[tuple[float, float], ...]
    call: float
    tiny: float
    """An iteration with one agent and almost no data: everything in it but the work."""


def cases(ranks: int, quick: bool) -> Iterator[Case]:
    """On two ranks only."""
    if ranks == 2:
        yield Case(3 if quick else 9)


def measure(case: Case, comm: MPI.Intracomm) -> Samples | None:
    """Messages by the clock; what a rank does by itself by its processor time, while the other does the same."""
    trips = {("message", nbytes): round_trip(comm, nbytes) for nbytes in _MESSAGES}
    calls: dict[tuple[str, int], Callable[[int], None]] = {}
    for nbytes in _BYTES:
        x = np.random.default_rng(0).standard_normal((1, nbytes // (8 * COLUMNS), COLUMNS))
        calls["add", nbytes] = _add(x)
        calls["combine", nbytes] = _combine(x)
        calls["track", nbytes] = _track(x)
        calls["orthonormalise", nbytes] = _repeated(partial(polar, x))
    for nbytes in _ROWS:
        calls["product", nbytes] = _product(nbytes // (8 * _WIDTH))
    calls["call", 0], calls["tiny", 0] = _alone()
    times = in_turns(comm, tuple(trips.values()), _SHORTER * case.repetitions, _BLOCK / _SHORTER)
    times += in_turns(comm, tuple(calls.values()), case.repetitions, _BLOCK, CPU)
    if comm.rank:
        return None
    found: dict[str, list[tuple[float, float]]] = {}
    for (what, size), seconds in zip((*trips, *calls), times, strict=True):
        # whoever else wants a core makes a message late, never early
        typical = np.quantile(seconds, 0.25 if what == "message" else 0.5)
        found.setdefault(what, []).append((float(size), float(typical)))
    (_, call), (_, tiny) = *found.pop("call"), *found.pop("tiny")
    tiny /= _AT_ONCE
    found["message"] = [(size, seconds / 2.0) for size, seconds in found["message"]]
    return Samples(**{what: tuple(pairs) for what, pairs in found.items()}, call=call, tiny=tiny)


def as_costs(samples: Samples) -> Costs:
    """Straight lines through them. What a tiny iteration takes beyond its known parts is the loop's."""

    def line(pairs: tuple[tuple[float, float], ...]) -> Line:
        return fitted([nbytes for nbytes, _ in pairs], [seconds for _, seconds in pairs])

    message, add, combine, track, orthonormalise, product = map(
        line,
        (samples.message, samples.add, samples.combine, samples.track, samples.orthonormalise, samples.product),
    )
    known = samples.call + combine.start + track.start + orthonormalise.start + product.start
    loop = max(samples.tiny - known, 0.0)
    return Costs(samples.call, message, add, combine, track, orthonormalise, product, loop)


def _repeated(call: Callable[[], object]) -> Callable[[int], None]:
    def many(count: int) -> None:
        for _ in range(count):
            call()

    return many


def round_trip(comm: MPI.Intracomm, nbytes: int) -> Callable[[int], None]:
    """There and back, between ranks 0 and 1."""
    buffer = np.zeros(nbytes // 8)

    def many(count: int) -> None:
        for _ in range(count):
            if comm.rank == 0:
                comm.Send(buffer, 1)
                comm.Recv(buffer, 1)
            elif comm.rank == 1:
                comm.Recv(buffer, 0)
                comm.Send(buffer, 0)

    return many


def _add(x: Array) -> Callable[[int], None]:
    y, other = x.ravel().copy(), x.ravel().copy()
    return _repeated(lambda: daxpy(other, y, a=1e-3))


def _combine(x: Array) -> Callable[[int], None]:
    before, y = x.copy(), x.copy()
    return _repeated(lambda: y + 0.3 * (y - before))


def _track(x: Array) -> Callable[[int], None]:
    S, AW, before = x.copy(), x.copy(), x.copy()
    return _repeated(lambda: S + AW - before)


def _product(rows: int) -> Callable[[int], None]:
    """Xᵀ(XW) as in an iteration in the rows form."""
    X = np.random.default_rng(0).standard_normal((rows, _WIDTH))
    A = deepca.operators.from_rows([X], form="rows", workers=1)
    W = np.ascontiguousarray(random_orthonormal(_WIDTH, COLUMNS, seed=0))[None]
    return _repeated(lambda: A @ W)


def _alone() -> tuple[Callable[[int], None], Callable[[int], None]]:
    """A round, and an iteration, of one agent that has no neighbours and next to nothing to compute."""
    from mpi4py import MPI

    from deepca.networks.mpi import MpiNetwork

    network = MpiNetwork(deepca.topology.ring(1), MPI.COMM_SELF)
    A = deepca.operators.from_rows([np.random.default_rng(0).standard_normal((_TINY, _TINY))], form="rows", workers=1)
    W0 = random_orthonormal(_TINY, COLUMNS, seed=0)
    algorithm = deepca.DeEPCA(A, W0, network, deepca.FastMix(rounds=1))
    state = deepca.solve(algorithm, max_iter=3, certify=False).state
    x = np.zeros((1, _TINY, COLUMNS))

    def iterate(count: int) -> None:
        deepca.solve(algorithm, max_iter=_AT_ONCE * count, start=state, certify=False)

    return _repeated(lambda: network.gossip(x)), iterate
