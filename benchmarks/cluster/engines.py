"""Time one engine on a number of cores, on request.

    python -m benchmarks.cluster.engines simulator --cores 2

Several engines are kept running and asked in turn, so that a disturbance affects all of them. Questions and answers are
lines of JSON: the answer to ``{"data": "dense", "rows": 40000, "what": "rows", "count": 8}`` has the seconds of an
iteration on rows.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import blas

import deepca
from benchmarks.cluster.data import AGENTS, blocks
from benchmarks.cluster.sharing import pin_to_own_core, sleeping_barrier
from deepca._util.machine import one_blas_thread
from deepca.data.sources import as_source
from deepca.decomposition.fit import fit
from deepca.decomposition.settings import Settings
from deepca.operators.linalg import random_orthonormal

if TYPE_CHECKING:
    from mpi4py import MPI

    from deepca.network.base import Network

__all__ = ["COMPONENTS", "SOLVERS", "TOL"]

COMPONENTS, TOL = 5, 1e-8
SOLVERS = ("covariance_eigh", "arpack")
_IN_CACHE, _PRODUCTS = 200, 400  # size and number of the products that are computed in cache

Answer = dict[str, Any]


@dataclass
class Bench:
    """Rows and algorithms of the local agents, built on first use."""

    network: Network
    folder: Path | None
    _blocks: dict[tuple[str, int], list[Any]] = field(default_factory=dict)
    _algorithms: dict[tuple[str, int, str], deepca.DeEPCA] = field(default_factory=dict)

    def rows(self, data: str, rows: int) -> list[Any]:
        if (data, rows) not in self._blocks:
            self._blocks[data, rows] = blocks(data, rows, [int(j) for j in self.network.local], self.folder)
        return self._blocks[data, rows]

    def prepared(self, what: str, data: str, rows: int, count: int) -> Callable[[], Answer]:
        """Prepare the inputs and return the function to time.

        ``count`` is its number of iterations; a fit, products and reading ignore it.
        """
        X = self.rows(data, rows)
        if what == "fit":
            return partial(self._fit, X)
        if what == "products":
            return partial(_multiply, _PRODUCTS * len(X) // AGENTS)
        if what == "reading":
            return partial(_read, X)
        key = (data, rows, what)
        if key not in self._algorithms:
            A = deepca.operators.from_rows(X, form="rows" if what == "rows" else "covariance")
            W0 = random_orthonormal(A.d, COMPONENTS, seed=0)
            self._algorithms[key] = deepca.DeEPCA(A, W0, self.network, deepca.FastMix(rounds=1))
        return partial(_iterate, self._algorithms[key], count)

    def _fit(self, X: list[Any]) -> Answer:
        sources = [as_source(block, f"agent {j}") for j, block in enumerate(X)]
        found = fit(sources, self.network, Settings(COMPONENTS, tol=TOL)).decomposition
        if not found.result.status.ok:
            raise RuntimeError(f"the fit failed: {found.result.status}")
        return {"variances": found.variances.tolist(), "iterations": found.result.iterations}


def _iterate(algorithm: deepca.DeEPCA, count: int) -> Answer:
    deepca.solve(algorithm, max_iter=count, certify=False)
    return {"per": count}


def _multiply(count: int) -> Answer:
    """Multiply matrices in cache on one core, to measure how fast a core is at the moment."""
    X = np.ones((_IN_CACHE, _IN_CACHE))
    with one_blas_thread():
        for _ in range(count):
            X @ X
    return {}


def _read(X: list[Any]) -> Answer:
    """Read the rows once, to measure how fast memory is at the moment."""
    for block in X:
        blas.dasum(np.asarray(block.data if not isinstance(block, np.ndarray) else block).ravel())
    return {}


# ---------------------------------------------------------------------------------------------------------- engines


def on_ranks(folder: Path | None) -> None:
    """Answer the questions that rank 0 receives; all ranks work on each of them."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    pin_to_own_core(comm)
    from deepca.engines.mpi.network import MpiNetwork

    bench = Bench(MpiNetwork(deepca.topology.ring(AGENTS), comm), folder)
    while (question := _shared_question(comm)) is not None:
        call = bench.prepared(**question)
        comm.Barrier()
        start = time.perf_counter()
        answer = call()
        comm.Barrier()
        if comm.rank == 0:
            _answer(time.perf_counter() - start, answer)
    bench.network.close()  # type: ignore[attr-defined]


def in_simulator(cores: int, folder: Path | None) -> None:
    """Answer questions with all agents in this process."""
    _pin(sorted(os.sched_getaffinity(0))[:cores])
    bench = Bench(deepca.SimulatedNetwork(deepca.topology.ring(AGENTS)), folder)
    while (question := _question()) is not None:
        call = bench.prepared(**question)
        start = time.perf_counter()
        answer = call()
        _answer(time.perf_counter() - start, answer)


def pooled(cores: int, folder: Path | None) -> None:
    """Answer questions with scikit-learn's PCA of the pooled rows; ``what`` names the solver."""
    from sklearn.decomposition import PCA

    _pin(sorted(os.sched_getaffinity(0))[:cores])
    kept: dict[tuple[str, int], Any] = {}
    while (question := _question()) is not None:
        at = (question["data"], question["rows"])
        if at not in kept:
            both = blocks(*at, list(range(AGENTS)), folder)
            kept[at] = np.concatenate(both) if isinstance(both[0], np.ndarray) else _stacked(both)
        model = PCA(COMPONENTS, svd_solver=question["what"], random_state=0)
        start = time.perf_counter()
        model.fit(kept[at])
        _answer(time.perf_counter() - start, {"variances": model.explained_variance_.tolist()})


def _stacked(both: list[Any]) -> Any:
    from scipy import sparse

    return sparse.vstack(both, format="csr")


def _pin(cores: list[int]) -> None:
    os.sched_setaffinity(0, cores)


def _question() -> Any:
    line = sys.stdin.readline()
    return json.loads(line) if line.strip() else None


def _shared_question(comm: MPI.Intracomm) -> Any:
    """Return the question that rank 0 reads; the other ranks sleep until it has been read."""
    question = _question() if comm.rank == 0 else None
    sleeping_barrier(comm, 0.02)
    return comm.bcast(question)


def _answer(seconds: float, answer: Answer) -> None:
    print(json.dumps({**answer, "seconds": seconds / answer.get("per", 1)}), flush=True)


def main() -> None:
    """Answer questions until the input ends."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster.engines", description=__doc__)
    parser.add_argument("engine", choices=("mpi", "simulator", "scikit-learn"))
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--data", type=Path)
    options = parser.parse_args()
    if options.engine == "mpi":
        on_ranks(options.data)
    else:
        (in_simulator if options.engine == "simulator" else pooled)(options.cores, options.data)


if __name__ == "__main__":
    main()
