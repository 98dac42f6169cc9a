"""Run the demonstration: scikit-learn's digits, distributed over agents that never pool them.

Requires the ``demo`` extra (scikit-learn provides the data and the independent answer).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from deepca import topology as topologies
from deepca._util.typing import Array
from deepca.algorithms import CPCA, DeEPCA, DePCA, QRSignAdjust
from deepca.algorithms.base import Algorithm
from deepca.consensus.centring import agreed_mean
from deepca.consensus.mixers import FastMix
from deepca.engines.local import Engine
from deepca.network import Network
from deepca.network.traffic import Traffic
from deepca.operators.base import Operator
from deepca.operators.construction import from_rows, split_rows
from deepca.operators.linalg import random_orthonormal, tan_theta
from deepca.plots.curves import Curve
from deepca.solver.loop import solve
from deepca.solver.observers import Observer, Trace
from deepca.solver.result import Result
from deepca.solver.stopping import Tolerance
from deepca.topology.graph import Topology

__all__ = ["Demo", "Row", "run"]


@dataclass(frozen=True)
class Row:
    """One method of the table: its cost, and its distance from scikit-learn's PCA of the pooled rows."""

    method: str
    iterations: int
    rounds: int
    bytes_per_agent: float
    tan_theta: float
    proven: float
    """Angle proven by the certificate; infinite if it proves none."""
    proof_rounds: int
    status: str
    advice: str


@dataclass(frozen=True)
class Demo:
    """Result of the demonstration: rows of its table, curves of its figure, and the setting."""

    topology: Topology
    n_rows: int
    n_features: int
    k: int
    K: int
    tol: float
    rows: tuple[Row, ...]
    curves: tuple[Curve, ...]
    variance: Array
    pooled_variance: Array


def run(
    *,
    agents: int = 50,
    k: int = 4,
    K: int = 5,
    tol: float = 1e-10,
    seed: int = 0,
    watch: Callable[[str], Observer] | None = None,
    engine: Engine | None = None,
) -> Demo:
    """Compare DeEPCA, DePCA and CPCA, from the same W⁰, with scikit-learn on the pooled rows.

    DeEPCA runs twice: with the defaults of the library, and as printed in the paper (K rounds, QR and SignAdjust). On
    an engine with several ranks, each rank runs some of the agents, and all of CPCA.
    """
    engine = engine or Engine()
    X = np.asarray(load_digits().data, dtype=np.float64)
    n, d = X.shape
    parts = split_rows(X, agents)  # first, so that too many agents are refused before the network is drawn
    topology = topologies.erdos_renyi(agents, 0.5, seed=seed)
    network = engine.network(topology, engine.agents_per_rank(agents))
    A, pooled_A = _centred(parts, network)
    pooled = PCA(n_components=k, svd_solver="full").fit(X)
    U = np.asarray(pooled.components_, dtype=np.float64).T
    rows, curves, variance = [], [], np.empty(0)
    limit = 2000
    for label, algorithm in _methods(A, pooled_A, network, random_orthonormal(d, k, seed=seed), K):
        trace = Trace(U=U)
        result: Result[Any] = solve(
            algorithm,
            max_iter=limit,
            stop=Tolerance(tol),
            observers=[trace, *([watch(label)] if watch else [])],
        )
        worst = _worst(network, np.asarray(tan_theta(U, result.W)))
        rows.append(_row(label, result, engine.total_traffic(result.traffic), worst))
        curve = trace.tan_theta_max
        if not isinstance(algorithm, CPCA):  # every rank runs all of CPCA, and its iterations may differ there
            curve = network.reduce(np.broadcast_to(curve, (*network.batch, len(trace))), "max")
        curves.append(Curve(label, curve, trace.rounds))
        if not variance.size:
            variance = result.eigenvalues[0] * agents / (n - 1)
            limit = max(3 * result.iterations, 50)  # so that no other method takes more than three times as long
    engine.close(network)
    return Demo(topology, n, d, k, K, tol, tuple(rows), tuple(curves), variance, pooled.explained_variance_)


def _centred(blocks: Sequence[Array], network: Network) -> tuple[Operator, Array]:
    """Return the ``A_j`` of the local agents and the mean of all ``A_j``, both of centred rows.

    The agents first agree on the mean of all rows; each subtracts it locally.
    """
    local = [blocks[j] for j in network.local]
    sums, counts = np.array([B.sum(axis=0) for B in local]), np.array([float(len(B)) for B in local])
    means = agreed_mean(network, FastMix(rounds=1), sums, counts)
    A = from_rows([B - mean for B, mean in zip(local, means, strict=True)])
    return A, from_rows([B - means[0] for B in blocks]).mean()


def _methods(A: Operator, pooled_A: Array, network: Network, W0: Array, K: int) -> list[tuple[str, Algorithm[Any]]]:
    return [
        ("DeEPCA", DeEPCA(A, W0, network)),
        ("DeEPCA, as printed", DeEPCA(A, W0, network, FastMix(rounds=K), QRSignAdjust(W0))),
        ("DePCA", DePCA(A, W0, network, FastMix(rounds=K))),
        ("CPCA, pooled", CPCA(pooled_A, W0)),
    ]


def _row(label: str, result: Result[Any], traffic: Traffic, worst: float) -> Row:
    """Return the table row of one method, given the traffic of all ranks and the largest angle of any agent."""
    proof = result.certificate
    return Row(
        method=label,
        iterations=result.iterations,
        rounds=traffic.rounds,
        bytes_per_agent=traffic.bytes_per_agent,
        tan_theta=worst,
        proven=proof.proven_angle if proof is not None else math.inf,
        proof_rounds=proof.traffic.rounds + proof.traffic.control_rounds if proof is not None else 0,
        status=result.status.code,
        advice=result.status.advice,
    )


def _worst(network: Network, angles: Array) -> float:
    """Return the largest angle over the agents of all ranks."""
    own = np.full((*network.batch, 1), float(np.max(angles)))
    return float(network.reduce(own, "max")[0])
