"""Reference for extensions of the paper's method: scipy's answer on one data set, and a run of the paper's own case."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg

from deepca._util.typing import Array
from deepca.algorithms import DeEPCA
from deepca.consensus.mixers import FastMix, Mixer
from deepca.errors import NotFiniteError
from deepca.network import SimulatedNetwork
from deepca.operators.base import Operator
from deepca.operators.linalg import random_orthonormal
from deepca.reproduction.cells import iterations_to
from deepca.reproduction.claims.setting import Setting
from deepca.reproduction.problems import graph_of, operator_of
from deepca.reproduction.studies import PAPER
from deepca.solver.loop import solve
from deepca.solver.observers import Trace
from deepca.topology.graph import Topology

__all__ = ["ACCURACY", "ROUNDS", "Baseline", "Run", "baseline_of", "run_deepca"]

ROUNDS = 5  # K of the paper's case and, unless stated otherwise, of the extensions
ACCURACY = 1e-8  # tan θ of the worst agent at which a run has converged


@dataclass(frozen=True)
class Run:
    """Iterations and rounds until the worst agent reaches ACCURACY (None if it does not), and its final error."""

    iterations: int | None
    rounds: int | None
    end: float


@dataclass(frozen=True)
class Baseline:
    """Reference on one data set: the ``A_j``, scipy's answer for the pooled rows, and the paper's own case.

    Parameters
    ----------
    setting : Setting
        Data set, k and number of draws.
    A : Operator
        The ``A_j``.
    U : ndarray of shape (d, k)
        Top-k eigenvectors of the mean of the ``A_j``.
    values : ndarray of shape (d,)
        All eigenvalues of that mean, descending.
    graph : Topology
        The paper's graph.
    paper_run : Run
        DeEPCA with FastMix on that graph.
    """

    setting: Setting
    A: Operator
    U: Array
    values: Array
    graph: Topology
    paper_run: Run

    @property
    def about(self) -> str:
        """Data set and k, as text."""
        return f"{self.setting.data}, k = {self.setting.k}"


def baseline_of(setting: Setting) -> Baseline:
    """Compute the reference for a setting."""
    paper = PAPER[setting.data]
    A = operator_of(setting.source, setting.data, paper.agents, paper.rows, "file")
    values, vectors = scipy.linalg.eigh(A.mean())
    U = np.ascontiguousarray(vectors[:, ::-1][:, : setting.k])
    graph = graph_of("paper", paper.agents, 0)
    paper_run = run_deepca(setting, A, U, graph, FastMix(rounds=ROUNDS))
    return Baseline(setting, A, U, values[::-1].copy(), graph, paper_run)


def run_deepca(setting: Setting, A: Operator, U: Array, network: Topology, mix: Mixer) -> Run:
    """Run DeEPCA on a network with a mixer, from the start that all runs share."""
    trace = Trace(U=U)
    W0 = random_orthonormal(A.d, setting.k, seed=0)
    algorithm = DeEPCA(A, W0, SimulatedNetwork(network), mix)
    try:
        solve(algorithm, max_iter=setting.base.iterations, observers=[trace], certify=False)
    except NotFiniteError:
        return Run(None, None, float("inf"))
    worst = trace.tan_theta_max
    reached = iterations_to(worst, ACCURACY)
    return Run(reached, None if reached is None else int(trace.rounds[reached - 1]), float(worst[-1]))
