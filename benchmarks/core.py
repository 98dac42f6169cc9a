"""Time one iteration in the paper's setting (50 agents, d = 300, k = 5, K = 10) against a floor and a plain loop."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from scipy import sparse

import deepca
from benchmarks import reference
from benchmarks.floor import READERS, Floor, find_floor
from benchmarks.report import Section
from benchmarks.timing import CPU, WALL, Measure, Seconds, Tick, interleave, one_core, spread, timed
from deepca._util.machine import usable_cores
from deepca._util.typing import Array, Csr, Orthonormalise, csr
from deepca.algorithms import QRSignAdjust, TrackedState
from deepca.algorithms.base import orthonormal_basis
from deepca.operators import DenseRows, Operator, SparseRows
from deepca.solver.observers import Observer
from deepca.solver.stopping import StopRule

__all__ = ["measure", "steps"]

AGENTS, FEATURES, COMPONENTS, ROUNDS = 50, 300, 5, 10
ROWS_PER_AGENT, ENTRIES_PER_ROW = 800, 11.6
TARGET_FLOOR, TARGET_REFERENCE = 2.0, 20.0
_PARTS = ("A @ W", "tracking", "mixing", "orthonormalisation")


@dataclass(frozen=True)
class Effort:
    """Numbers of repetitions, and of iterations in each of them."""

    repetitions: int
    iterations: int
    reference_iterations: int
    warm: int

    @classmethod
    def of(cls, quick: bool) -> Effort:
        return cls(5, 20, 1, 40) if quick else cls(15, 80, 2, 150)


def steps(quick: bool) -> int:
    """Return the number of calls of ``tick`` by :func:`measure`, for a progress bar."""
    effort = Effort.of(quick)
    floors = 3 * 10 * len(READERS)
    return floors + (effort.repetitions + 1) * (12 + (6 if usable_cores() > 1 else 0)) + 2


def measure(quick: bool, tick: Tick) -> list[Section]:
    """Measure an iteration and return the sections about it."""
    effort = Effort.of(quick)
    with one_core():
        bench = _Bench.build(effort)
        tick()
        bench.check_reference()
        tick()
        floors = bench.floors(tick)
        taken = interleave(bench.measures(floors), effort.repetitions, tick)
    sections = [
        _floor_section(floors["covariance floor"]),
        _iteration_section(taken),
        _forms_section(taken, floors),
        _overhead_section(taken),
    ]
    if usable_cores() > 1:
        with one_core():
            shared = interleave(bench.shared_measures(floors["covariance floor"]), effort.repetitions, tick)
        sections.append(_cores_section(shared))
    return sections


# ------------------------------------------------------------------------------------------------------ the setting


def _rows(seed: int = 0) -> list[Csr]:
    """Generate binary sparse rows like w8a: 300 features of very different frequency, 11.6 entries per row."""
    rng = np.random.default_rng(seed)
    frequency = 1.0 / np.arange(3.0, FEATURES + 3.0)
    frequency = np.minimum(frequency * (ENTRIES_PER_ROW / frequency.sum()), 0.9)
    return [csr(sparse.csr_array(rng.random((ROWS_PER_AGENT, FEATURES)) < frequency)) for _ in range(AGENTS)]


@dataclass(frozen=True)
class _Bench:
    effort: Effort
    topology: deepca.Topology
    W0: Array
    U: Array
    covariance: deepca.DeEPCA
    dense: deepca.DeEPCA
    sparse: deepca.DeEPCA
    late: TrackedState
    """State after ``warm`` iterations, from which every repetition starts."""

    @classmethod
    def build(cls, effort: Effort) -> _Bench:
        topology = deepca.topology.erdos_renyi(AGENTS, 0.5, seed=0)
        W0 = deepca.operators.linalg.random_orthonormal(FEATURES, COMPONENTS, seed=0)
        rows = _rows()
        A = deepca.operators.from_rows(rows, form="covariance", workers=1)
        covariance = _deepca(A, W0, topology)
        return cls(
            effort,
            topology,
            W0,
            deepca.operators.linalg.top_eigenvectors(A.mean(), COMPONENTS)[1],
            covariance,
            _deepca(deepca.operators.from_rows([X.toarray() for X in rows], form="rows", workers=1), W0, topology),
            _deepca(deepca.operators.from_rows(rows, form="rows"), W0, topology),
            deepca.solve(covariance, max_iter=effort.warm, certify=False).state,
        )

    def check_reference(self) -> None:
        """Raise unless the reference loop and DeEPCA with the paper's choice of basis give the same W."""
        W = np.stack(reference.run(list(self.covariance.A.dense()), self.W0, self.topology, ROUNDS, 5))
        printed = _deepca(self.covariance.A, self.W0, self.topology, QRSignAdjust(self.W0))
        difference = float(np.abs(W - deepca.solve(printed, max_iter=5, certify=False).W).max())
        if difference > 1e-8:
            raise RuntimeError(
                f"the reference loop and deepca differ by {difference:.1e}, so their times cannot be compared"
            )

    def floors(self, tick: Tick) -> dict[str, Floor]:
        rows, X = self.dense.A, self.sparse.A
        if not (isinstance(rows, DenseRows) and isinstance(X, SparseRows)):
            raise TypeError("operators of rows are no longer DenseRows and SparseRows, so the floors would be wrong")
        stored = sum(block.data.nbytes + block.indices.nbytes + block.indptr.nbytes for block in X.rows)
        blocks = {
            "covariance floor": self.covariance.A.dense(),
            "dense rows floor": np.concatenate([block.ravel() for block in rows.rows]),
            "CSR rows floor": np.ones(stored // 8),
        }
        return {name: find_floor(name, data, tick) for name, data in blocks.items()}

    def solve(
        self, algorithm: deepca.DeEPCA, n: int, *, stop: StopRule | None = None, observers: tuple[Observer, ...] = ()
    ) -> Callable[[], object]:
        """Return a function that runs n iterations of ``deepca.solve``, always from the same state."""

        def call() -> None:
            result = deepca.solve(algorithm, max_iter=n, start=self.late, stop=stop, observers=observers, certify=False)
            if result.iterations != n:
                raise RuntimeError(f"{result.iterations} iterations instead of {n}: {result.status}")

        return call

    def measures(self, floors: dict[str, Floor]) -> list[Measure]:
        n, few = self.effort.iterations, self.effort.iterations // 4
        tol = deepca.Tolerance(1e-300)
        Trace = deepca.solver.observers.Trace
        dense = list(self.covariance.A.dense())
        slow = self.effort.reference_iterations
        cov = self.covariance
        return [
            floors["covariance floor"].measure(),
            timed("iteration", self.solve(cov, n), per=n),
            self._parts,
            timed("first iterations", lambda: deepca.solve(cov, max_iter=n, certify=False), per=n),
            timed("reference", lambda: reference.run(dense, self.W0, self.topology, ROUNDS, slow), per=slow),
            timed("stop rule", self.solve(cov, n, stop=tol), per=n),
            timed("Trace()", self.solve(cov, n, observers=(Trace(),)), per=n),
            timed("Trace(U)", self.solve(cov, n, observers=(Trace(U=self.U),)), per=n),
            floors["dense rows floor"].measure(),
            timed("dense rows iteration", self.solve(self.dense, few), per=few),
            floors["CSR rows floor"].measure(),
            timed("CSR rows iteration", self.solve(self.sparse, few), per=few),
        ]

    def _parts(self) -> dict[str, float]:
        """Time the parts of ``DeEPCA.step``, in its order, so that caches are filled as in a run."""
        algorithm, state, n = self.covariance, self.late, self.effort.iterations
        total = np.zeros(len(_PARTS))
        for _ in range(n):
            start = CPU()
            AW = algorithm.A @ state.W
            multiplied = CPU()
            S = state.S + AW - state.AW
            tracked = CPU()
            S = algorithm.mix(algorithm.network, S, state.t)
            mixed = CPU()
            W, _ = orthonormal_basis(algorithm.orthonormalise, S, state.t)
            total += np.diff([start, multiplied, tracked, mixed, CPU()])
            state = TrackedState(state.t + 1, W, S, AW)
        return dict(zip(_PARTS, (total / n).tolist(), strict=True))

    def shared_measures(self, floor: Floor) -> list[Measure]:
        n, cores = self.effort.iterations, usable_cores()
        many = _deepca(deepca.operators.from_matrices(self.covariance.A.dense(), workers=cores), self.W0, self.topology)
        shares = np.array_split(floor.data, cores)
        small = [np.random.default_rng(i).standard_normal((256, 256)) for i in range(cores)]
        pool = ThreadPoolExecutor(cores)
        read = np.max  # like products, it releases the GIL
        return [
            timed("product by one", lambda: [_powers(x) for x in small], clock=WALL),
            timed("product by all", lambda: list(pool.map(_powers, small)), clock=WALL),
            timed("read by one", lambda: read(floor.data), repeat=5, clock=WALL),
            timed("read by all", lambda: list(pool.map(read, shares)), repeat=5, clock=WALL),
            timed("workers=1", self.solve(self.covariance, n), per=n, clock=WALL),
            timed("workers=all", self.solve(many, n), per=n, clock=WALL),
        ]


def _powers(x: Array) -> Array:
    """Multiply matrices in cache for some milliseconds, which uses a core but not the main memory."""
    product = x
    for _ in range(10):
        product = x @ x
    return product


def _deepca(
    A: Operator, W0: Array, topology: deepca.Topology, orthonormalise: Orthonormalise | None = None
) -> deepca.DeEPCA:
    return deepca.DeEPCA(A, W0, deepca.SimulatedNetwork(topology), deepca.FastMix(rounds=ROUNDS), orthonormalise)


# --------------------------------------------------------------------------------------------------------- sections


def _floor_section(floor: Floor) -> Section:
    section = Section(
        "The floor",
        f"Reading the {AGENTS} covariances ({floor.bytes / 2**20:.0f} MiB) once from memory on one core. "
        f"The fastest reader is the floor: {floor.reader}.",
        ("reader", "time / fastest"),
    )
    for reader, ratio in sorted(floor.others.items(), key=lambda item: item[1]):
        section.add(reader, f"{ratio:.2f}", ratio=ratio)
    return section


def _iteration_section(taken: dict[str, Seconds]) -> Section:
    floor, whole = taken["covariance floor"], taken["iteration"]
    section = Section(
        "One iteration, covariance form",
        f"{AGENTS} agents, d = {FEATURES}, k = {COMPONENTS}, FastMix with K = {ROUNDS} on erdos_renyi(50, 0.5), "
        "float64, one core. Median and quartiles over repetitions.",
        ("what", "time / floor", "share of the iteration", "target"),
    )
    ratio = spread(whole / floor)
    section.add("iteration through deepca.solve", str(ratio), "", _verdict(ratio.median, TARGET_FLOOR), ratio=ratio)
    parts = {name: taken[name] for name in _PARTS}
    parts["the loop around the step"] = whole - sum(parts.values())
    for name, seconds in parts.items():
        ratio, share = spread(seconds / floor), spread(seconds / whole)
        section.add(f"  {name}", str(ratio), f"{100 * share.median:.0f} %", "", ratio=ratio, share=share.median)
    early = spread(taken["first iterations"] / floor)
    section.add("first iterations (from W⁰)", str(early), "", "", ratio=early)
    speedup = spread(taken["reference"] / whole)
    section.add(
        "speed-up over the per-agent loop",
        f"× {speedup}",
        "",
        _verdict(speedup.median, TARGET_REFERENCE, at_least=True),
        ratio=speedup,
    )
    return section


def _forms_section(taken: dict[str, Seconds], floors: dict[str, Floor]) -> Section:
    section = Section(
        "The same data in other forms",
        f"{ROWS_PER_AGENT} binary rows per agent with {ENTRIES_PER_ROW} entries each, as in w8a. Each form is compared "
        "with its own floor: its bytes read once, from cache if they fit. Rows are read twice, for X W and for "
        "Xᵀ(X W).",
        ("form", "MiB", "time / own floor", "time / covariance form"),
    )
    forms = {"covariance": "iteration", "dense rows": "dense rows iteration", "CSR rows": "CSR rows iteration"}
    for form, name in forms.items():
        floor = floors[f"{form} floor"]
        own, beside = spread(taken[name] / taken[floor.name]), spread(taken[name] / taken["iteration"])
        section.add(form, f"{floor.bytes / 2**20:.1f}", str(own), str(beside), own=own, beside=beside)
    return section


def _overhead_section(taken: dict[str, Seconds]) -> Section:
    section = Section(
        "Cost of a stop rule and of observers",
        "Time of an iteration with a stop rule or an observer, divided by that of a plain iteration (covariance form).",
        ("with", "time / plain iteration"),
    )
    for name in ("stop rule", "Trace()", "Trace(U)"):
        ratio = spread(taken[name] / taken["iteration"])
        section.add({"stop rule": "stop=Tolerance(…)"}.get(name, name), str(ratio), ratio=ratio)
    return section


def _cores_section(taken: dict[str, Seconds]) -> Section:
    cores = usable_cores()
    free = spread(taken["product by one"] / taken["product by all"])
    reading = spread(taken["read by one"] / taken["read by all"])
    working = spread(taken["workers=1"] / taken["workers=all"])
    if working.low > 1.1:
        verdict = "yes"
    elif free.median < 0.8 * cores:
        verdict = "undecided: the cores were busy"
    else:
        verdict = "no"
    section = Section(
        f"{cores} cores",
        "Speed-up in wall-clock time from sharing the agents between cores (covariance form). Products in cache, and "
        "reading alone, show how much the cores and the memory could contribute at that moment.",
        ("what", f"one core / {cores} cores", "real?"),
    )
    section.add("products in cache", str(free), "", ratio=free)
    section.add("reading the covariances", str(reading), "", ratio=reading)
    section.add("iteration through deepca.solve", str(working), verdict, ratio=working, real=verdict)
    return section


def _verdict(value: float, target: float, *, at_least: bool = False) -> str:
    met = value >= target if at_least else value <= target
    return f"{'≥' if at_least else '≤'} {target:g}: {'met' if met else 'missed'}"
