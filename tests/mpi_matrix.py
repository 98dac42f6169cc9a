"""Run the tests of the algorithms over four MPI ranks: ``python -m tests.mpi_matrix [pytest arguments]``."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

__all__ = ["MATRIX", "main"]

RANKS = 4
DEADLINE = 40 * 60.0  # seconds; three times what two idle cores need
MATRIX = (
    "parity/test_matrix.py",
    "parity/test_parity.py",
    "laws/test_graph_laws.py",
    "laws/test_invariants.py",
    "laws/test_mixing_laws.py",
    "laws/test_network_laws.py",
    "algorithms/test_accelerated.py",
    "consensus/test_centring.py",
    "topology/test_time_varying.py",
    "consensus/test_broadcasts.py",
    "solver/test_certificate.py",
    "decomposition/spectral/test_clustering.py",
    "network/test_compression.py",
    "solver/test_ritz_axes.py",
    "algorithms/test_covariance.py",
    "topology/test_directed.py",
    "end_to_end/test_edge_cases.py",
    "decomposition/test_eigen.py",
    "consensus/test_exact.py",
    "end_to_end/test_exactness.py",
    "decomposition/spectral/test_graphs.py",
    "algorithms/test_krylov.py",
    "engines/mpi/test_network.py",
    "network/test_networks.py",
    "network/sums/test_totals.py",
    "laws/test_one_digest.py",
    "solver/test_observers.py",
    "consensus/test_pacing.py",
    "consensus/test_pairwise.py",
    "solver/test_loop.py",
    "solver/test_verdict.py",
    "solver/test_stopping.py",
    "decomposition/test_svd.py",
    "decomposition/test_streaming.py",
    "algorithms/test_theory.py",
)
"""Test files whose networks come from ``tests.support.engines``."""


def main(arguments: list[str]) -> int:
    """Run the tests and return pytest's exit code, or 1 if the job was ended at its deadline."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # terminating this process also ends the job
    here = Path(__file__).parent
    mpiexec = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")
    if mpiexec is None:
        sys.stderr.write("error: mpiexec found neither beside this Python nor on the PATH; install deepca[mpi]\n")
        return 1
    command = [mpiexec, "-n", str(RANKS), "--oversubscribe", sys.executable, "-m", "pytest", "--engine", "mpi", "-q"]
    command += ["-p", "no:cacheprovider", f"--color={'auto' if sys.stdout.isatty() else 'no'}"]
    command += ["-o", "faulthandler_timeout=100"]  # every rank prints its stack shortly before a test times out
    with subprocess.Popen(
        [*command, *arguments],
        cwd=here.parent,
        env=_environment(),
        start_new_session=True,  # so that the whole group can be killed
    ) as job:
        try:
            return job.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            sys.stderr.write(f"error: the tests over MPI exceeded {DEADLINE / 60:g} minutes and were ended\n")
            return 1
        finally:
            if job.poll() is None:
                _end(job)


def _end(job: subprocess.Popen[bytes]) -> None:
    """Ask mpiexec to end its ranks, and kill the whole process group if it does not."""
    job.terminate()
    try:
        job.wait(10.0)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, 9)


def _environment() -> dict[str, str]:
    """Return an environment with one BLAS thread per rank, equal hashes on all ranks, and permission to run as root."""
    found = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        found |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
