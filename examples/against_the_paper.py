"""Compare DeEPCA, DePCA (fixed and growing K) and CPCA from the same W⁰, and print the theorem's K, T and C."""

from typing import Any

import numpy as np

import deepca
from deepca.algorithms import Algorithm

rng = np.random.default_rng(2)
m, d, k, K = 20, 30, 3, 6
base = rng.standard_normal((m, 40, d)) * np.linspace(2.0, 0.3, d)
A = deepca.operators.from_rows(list(base + 0.3 * rng.standard_normal((m, 1, d))), scale=1 / 40)
topology = deepca.topology.erdos_renyi(m, 0.5, seed=0)
network = deepca.SimulatedNetwork(topology)
W0 = deepca.operators.linalg.random_orthonormal(d, k, seed=0)
_, U = deepca.operators.linalg.top_eigenvectors(A.mean(), k)

printed = deepca.QRSignAdjust(W0)  # the paper's choice of basis
methods: dict[str, Algorithm[Any]] = {
    "DeEPCA": deepca.DeEPCA(A, W0, network, deepca.FastMix(rounds=K), printed),
    "DePCA": deepca.DePCA(A, W0, network, deepca.FastMix(rounds=K), printed),
    "DePCA, K grows": deepca.DePCA(A, W0, network, deepca.FastMix(rounds=lambda t: K + t // 10), printed),
    "CPCA": deepca.CPCA(A.mean(), W0, printed),
}
for name, method in methods.items():
    trace = deepca.solver.observers.Trace(U=U)
    result = deepca.solve(method, max_iter=150, observers=[trace], certify=False)
    print(f"{name:15s} mean tan θ {trace.tan_theta[-1]:.1e} after {result.traffic.rounds} rounds")

problem = deepca.algorithms.theory.Problem.of(A, k)
start = float(deepca.operators.linalg.tan_theta(U, W0))
print(f"heterogeneity L²/(λ_k λ_k+1) = {problem.heterogeneity:.3g}")
print("theorem: K ≥", deepca.algorithms.theory.required_rounds(problem, topology, start))
print("         T =", deepca.algorithms.theory.iterations(problem, start, 1e-10))
print("         C =", deepca.algorithms.theory.communication(problem, topology, start, 1e-10), "rounds")
