"""Measure how the time and memory of an iteration grow with agents and features, and compare the exponents."""

from __future__ import annotations

import math
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

import deepca
from benchmarks.report import Section
from benchmarks.timing import Measure, Seconds, Tick, interleave, one_core, spread, timed
from deepca._util.typing import Array
from deepca.algorithms import TrackedState
from deepca.operators import Operator

__all__ = ["measure", "steps"]

_MARGIN = 0.3  # added to allowed exponents, since caches and the choice of a method change between two sizes
_SAMPLE = 0.03  # target duration of a sample, in seconds
_ROUNDS = 3


@dataclass(frozen=True)
class Series:
    """Problems of growing size, and the exponents allowed by the operation count."""

    title: str
    text: str
    letter: str
    sizes: tuple[int, ...]
    build: Callable[[int], tuple[Operator, Array, deepca.Topology]]
    time_exponent: float
    memory_exponent: float
    dense_network: bool = False
    """Whether to show also the memory that an m × m matrix would take."""


def steps(quick: bool) -> int:
    """Return the number of calls of ``tick`` by :func:`measure`, for a progress bar."""
    return sum(len(series.sizes) * (2 + _repetitions(quick)) for series in _all_series(quick))


def measure(quick: bool, tick: Tick) -> list[Section]:
    """Measure all series and return one section for each."""
    with one_core():
        return [_measured(series, _repetitions(quick), tick) for series in _all_series(quick)]


def _repetitions(quick: bool) -> int:
    return 5 if quick else 11


# ----------------------------------------------------------------------------------------------------------- series


def _all_series(quick: bool) -> list[Series]:
    agents = (10, 100, 1000, 10_000) if quick else (10, 30, 100, 300, 1000, 3000, 10_000)
    features = (50, 500, 5000) if quick else (50, 150, 500, 1500, 5000)
    squares = (50, 200, 800) if quick else (50, 100, 200, 400, 800, 1600)
    network = "d = 8, k = 2, explicit 8 × 8 matrices, FastMix with K = 3. Allowed: linear in m, in time and in memory."
    return [
        Series(
            "Agents on a ring", network, "m", agents, lambda m: _many_agents(deepca.topology.ring(m)), 1.0, 1.0, True
        ),
        Series(
            "Agents on a random 4-regular graph",
            network,
            "m",
            agents,
            lambda m: _many_agents(deepca.topology.random_regular(m, 4, seed=0)),
            1.0,
            1.0,
            True,
        ),
        Series(
            "Features, rows form",
            "4 agents with 200 dense rows each, k = 4, K = 3. Allowed: linear in d, in time and in memory.",
            "d",
            features,
            _many_features,
            1.0,
            1.0,
        ),
        Series(
            "Features, covariance form",
            "4 agents, k = 4, K = 3. Allowed: time quadratic in d; memory linear, since the matrices are only read.",
            "d",
            squares,
            _large_matrices,
            2.0,
            1.0,
        ),
    ]


def _many_agents(topology: deepca.Topology) -> tuple[Operator, Array, deepca.Topology]:
    d, k = 8, 2
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((topology.n_agents, 2 * d, d)) * np.geomspace(3.0, 0.3, d)
    A = deepca.operators.from_matrices(np.swapaxes(rows, 1, 2) @ rows, workers=1)
    return A, deepca.operators.linalg.random_orthonormal(d, k, seed=0), topology


def _many_features(d: int) -> tuple[Operator, Array, deepca.Topology]:
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal((200, d)) * np.geomspace(3.0, 0.3, d) for _ in range(4)]
    A = deepca.operators.from_rows(rows, form="rows", workers=1)
    return A, deepca.operators.linalg.random_orthonormal(d, 4, seed=0), deepca.topology.ring(4)


def _large_matrices(d: int) -> tuple[Operator, Array, deepca.Topology]:
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal((50, d)) * np.geomspace(3.0, 0.3, d) for _ in range(4)]
    A = deepca.operators.from_rows(rows, form="covariance", workers=1)
    return A, deepca.operators.linalg.random_orthonormal(d, 4, seed=0), deepca.topology.ring(4)


# -------------------------------------------------------------------------------------------------------- measuring


@dataclass(frozen=True)
class _Case:
    measure: Measure
    memory: int
    """Bytes allocated at the peak of one iteration, in addition to those before it."""
    whole: int
    """The same for a short run: creating the network, the first iterations, and their result."""


def _measured(series: Series, repetitions: int, tick: Tick) -> Section:
    cases = []
    for size in series.sizes:
        cases.append(_case(size, *series.build(size)))
        tick()
    taken = interleave([case.measure for case in cases], repetitions, tick)
    return _section(series, cases, [taken[str(size)] for size in series.sizes])


def _case(size: int, A: Operator, W0: Array, topology: deepca.Topology) -> _Case:
    tracemalloc.start()
    try:
        network = deepca.SimulatedNetwork(topology)
        algorithm = deepca.DeEPCA(A, W0, network, deepca.FastMix(rounds=_ROUNDS))
        state = deepca.solve(algorithm, max_iter=3, certify=False).state
        _, whole = tracemalloc.get_traced_memory()
        network.begin(network.epoch, state.t)
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        algorithm.step(state)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    def run(iterations: int) -> None:
        now: TrackedState = state
        for _ in range(iterations):
            network.begin(network.epoch, now.t)
            now = algorithm.step(now)

    run(1)
    start = time.perf_counter()
    run(2)
    count = max(1, math.ceil(_SAMPLE / max((time.perf_counter() - start) / 2.0, 1e-6)))
    return _Case(timed(str(size), lambda: run(count), per=count), peak - before, whole)


# ---------------------------------------------------------------------------------------------------------- section


def _section(series: Series, cases: list[_Case], seconds: list[Seconds]) -> Section:
    memory = [case.memory for case in cases]
    columns: tuple[str, ...] = (
        series.letter,
        "time / smallest",
        f"exponent (≤ {series.time_exponent:g})",
        "memory of an iteration",
        f"exponent (≤ {series.memory_exponent:g})",
        "of a whole run",
    )
    if series.dense_network:
        columns = (*columns, "an m × m matrix")
    section = Section(series.title, series.text, columns)
    times, sizes = [("", 0.0)], series.sizes
    spaces = [("", 0.0)]
    for i, (small, large) in enumerate(pairwise(sizes)):
        span = math.log(large / small)
        exponent = spread(np.log(seconds[i + 1] / seconds[i]) / span)
        times.append(_judged(exponent.low, exponent.median, series.time_exponent + _MARGIN))
        growth = math.log(memory[i + 1] / memory[i]) / span
        spaces.append(_judged(growth, growth, series.memory_exponent + _MARGIN))
    for i, size in enumerate(sizes):
        relative = spread(seconds[i] / seconds[0])
        cells = [f"{size:,}", str(relative), times[i][0], _bytes(memory[i]), spaces[i][0], _bytes(cases[i].whole)]
        if series.dense_network:
            cells.append(_bytes(8 * size * size))
        section.add(
            *cells,
            time=relative,
            time_exponent=times[i][1] if i else None,
            memory=memory[i],
            memory_of_run=cases[i].whole,
            memory_exponent=spaces[i][1] if i else None,
        )
    if any("!" in text for text, _ in [*times, *spaces]):
        section.notes.append("! grows faster than allowed from the previous size to this one.")
    if series.dense_network and sizes[-1] >= 10_000:
        dense = 8 * sizes[-1] ** 2
        word = (
            "No m × m matrix is allocated" if cases[-1].whole < dense / 4 else "! An m × m matrix seems to be allocated"
        )
        section.notes.append(
            f"{word} at m = {sizes[-1]:,}: a whole run peaks at {_bytes(cases[-1].whole)}, "
            f"and the matrix would take {_bytes(dense)}."
        )
    return section


def _judged(low: float, median: float, limit: float) -> tuple[str, float]:
    """Format an exponent, marked if even its lower quartile exceeds the limit."""
    return f"{median:.2f}{' !' if low > limit else ''}", median


def _bytes(count: int) -> str:
    if count < 1e6:
        return f"{count / 1e3:.0f} kB"
    return f"{count / 1e6:.1f} MB" if count < 1e8 else f"{count / 1e6:.0f} MB"
