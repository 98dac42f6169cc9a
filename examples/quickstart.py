"""Compute the PCA of rows at ten sites without moving a row; the components equal those of the pooled rows."""

import numpy as np

import deepca

rng = np.random.default_rng(0)
d, k = 20, 3
spread = np.linspace(3.0, 0.5, d)
sites = [rng.standard_normal((int(rng.integers(30, 300)), d)) * spread for _ in range(10)]  # rows of each site

topology = deepca.topology.ring(10)  # which sites exchange messages
network = deepca.SimulatedNetwork(topology)
A = deepca.operators.from_rows(sites)  # A_j = X_jᵀX_j
W0 = deepca.operators.linalg.random_orthonormal(d, k, seed=0)  # the same start at every agent

result = deepca.solve(deepca.DeEPCA(A, W0, network), max_iter=1000, stop=deepca.Tolerance(1e-10))
print(result.status)  # the proven error bound, and its conditions

pooled = np.concatenate(sites)
values, U = deepca.operators.linalg.top_eigenvectors(pooled.T @ pooled, k)
print("largest tan θ over all agents:", deepca.operators.linalg.tan_theta(U, result.W).max())
print("first component, the same at every agent:", result.components[0, :, 0].round(3))
print("eigenvalues:", result.eigenvalues[0] * 10, "pooled:", values)
