"""Run DeEPCA with agents that know only their own rows and communicate only with their neighbours.

Every agent is a thread with its own network; messages pass through an in-memory transport.
"""

import numpy as np

import deepca

rng = np.random.default_rng(1)
m, d, k = 8, 12, 2
rows = [rng.standard_normal((50, d)) * np.linspace(2.0, 0.2, d) for _ in range(m)]
W0 = deepca.operators.linalg.random_orthonormal(d, k, seed=0)
topology = deepca.topology.hypercube(3)


def one_agent(network: deepca.AgentNetwork) -> deepca.Result[deepca.TrackedState]:
    """Run one agent with its own rows."""
    mine = deepca.operators.from_rows([rows[network.agent]]).agent(0)  # no other agent sees these rows
    return deepca.solve(deepca.DeEPCA(mine, W0, network), max_iter=500, stop=deepca.Tolerance(1e-10))


results = deepca.run_agents(topology, one_agent, timeout=30.0)
print("all stopped after", {result.iterations for result in results}, "iterations")
print("digests of the components:", {result.certificate.digest[:12] for result in results if result.certificate})
print("agent 3 sent", results[3].traffic.bytes_sent, "bytes in", results[3].traffic.rounds, "rounds")

pooled = np.concatenate(rows)
_, U = deepca.operators.linalg.top_eigenvectors(pooled.T @ pooled, k)
print("largest tan θ:", max(float(deepca.operators.linalg.tan_theta(U, result.W)) for result in results))
