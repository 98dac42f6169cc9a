"""Measure the anonymous memory (RssAnon) that a fit takes in addition to the interpreter and its imports.

    python -m benchmarks.memory --gigabytes 2 --columns 256

Pages of a memory-mapped file belong to the file and can be dropped at any time; anonymous memory cannot. Linux only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

MEGABYTE = 1 << 20


def anonymous() -> int:
    """Return RssAnon of this process, in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no RssAnon; this benchmark needs Linux 4.5 or later")


def make(path: Path, nbytes: int, columns: int) -> None:
    """Write a float64 .npy file of that size in blocks; its rows have ten dominant directions, far from zero."""
    rows = nbytes // (8 * columns)
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.standard_normal((columns, 10)))[0] * np.geomspace(20.0, 5.0, 10)
    X = np.lib.format.open_memmap(path, mode="w+", dtype=np.float64, shape=(rows, columns))
    for first in range(0, rows, 20_000):
        count = min(20_000, rows - first)
        noise = rng.standard_normal((count, columns), dtype=np.float32)
        X[first : first + count] = rng.standard_normal((count, 10)) @ axes.T + noise + 100.0
    X.flush()


def fit(path: Path, agents: int) -> dict[str, float]:
    """Fit the file in this process and return the growth of RssAnon up to its peak."""
    from deepca import SimulatedNetwork
    from deepca.data.allocation import split_equally
    from deepca.data.readers import open_source, spool
    from deepca.decomposition.fit import fit
    from deepca.decomposition.settings import Settings
    from deepca.topology.names import from_name

    network = SimulatedNetwork(from_name("ring", agents))
    before = largest = anonymous()
    ended = threading.Event()

    def watch() -> None:
        nonlocal largest
        while not ended.wait(0.002):
            largest = max(largest, anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    source = open_source(path)
    found = fit(split_equally([spool(source)], agents), network, Settings(5, tol=1e-8)).decomposition
    seconds = time.perf_counter() - began
    ended.set()
    watcher.join()
    assert found.result.status.ok, found.result.status
    return {"growth": largest - before, "before": before, "seconds": seconds, "rows": found.n_rows}


def measure(gigabytes: float, columns: int, agents: int, folder: Path | None = None) -> dict[str, float]:
    """Write a file, fit it in a new process, and remove the file."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        path = Path(place) / "rows.npy"
        make(path, int(gigabytes * (1 << 30)), columns)
        worker = [sys.executable, "-m", "benchmarks.memory", "--worker", str(path), "--agents", str(agents)]
        done = subprocess.run(worker, check=True, capture_output=True, text=True, timeout=1800)
        return dict(json.loads(done.stdout))


def main() -> None:
    """Parse the options, measure, and print the result; exit with an error above the limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--columns", type=int, default=256)
    parser.add_argument("--agents", type=int, default=10)
    parser.add_argument(
        "--most", type=float, default=300.0, help="largest growth in megabytes; exit with an error above it"
    )
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(fit(options.worker, options.agents)))
        return
    found = measure(options.gigabytes, options.columns, options.agents)
    growth = found["growth"] / MEGABYTE
    print(
        f"{options.gigabytes:g} GB, {found['rows']:,.0f} × {options.columns}, {options.agents} agents: "
        f"{growth:.0f} MB of anonymous memory in addition to the {found['before'] / MEGABYTE:.0f} MB of the "
        f"interpreter and its imports, {found['seconds']:.0f} s"
    )
    if growth > options.most:
        sys.exit(f"the fit took {growth:.0f} MB, above the limit of {options.most:g} MB")


if __name__ == "__main__":
    main()
