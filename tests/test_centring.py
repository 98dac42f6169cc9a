"""The mean of all rows, agreed by gossip, on both networks."""

from __future__ import annotations

import numpy as np
import pytest

import deepca
from deepca.centring import agreed_mean
from tests.problems import close

TOPOLOGIES = {
    "ring": deepca.topology.ring(6),
    "complete": deepca.topology.complete(6),  # one round each: messages of two phases follow each other closely
    "path": deepca.topology.path(2),
    "single": deepca.topology.complete(1),
}


def _blocks(m: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((int(n), 5)) + 10.0 for n in rng.integers(1, 400, m)]


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_the_simulator_agrees_on_the_mean_of_all_rows(name: str) -> None:
    topology = TOPOLOGIES[name]
    blocks = _blocks(topology.n_agents)
    sums, counts = np.array([B.sum(axis=0) for B in blocks]), np.array([float(len(B)) for B in blocks])
    means = agreed_mean(deepca.SimulatedNetwork(topology), deepca.FastMix(rounds=1), sums, counts)
    close(means, np.broadcast_to(np.concatenate(blocks).mean(axis=0), means.shape), atol=1e-12)


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_agents_agree_on_the_mean_and_go_straight_on_to_solve(name: str) -> None:
    topology = TOPOLOGIES[name]
    blocks = _blocks(topology.n_agents)
    W0 = deepca.linalg.random_orthonormal(5, 2, seed=0)

    def work(network: deepca.AgentNetwork) -> tuple[np.ndarray, np.ndarray]:
        rows = blocks[network.agent]
        mean = agreed_mean(network, deepca.FastMix(rounds=1), rows.sum(axis=0), np.array(float(len(rows))))
        A = deepca.operators.from_rows([rows - mean]).agent(0)
        result = deepca.solve(
            deepca.DeEPCA(A, W0, network, deepca.FastMix(rounds=12)), max_iter=5000, stop=deepca.Tolerance(1e-9)
        )
        return mean, result.W

    pooled = np.concatenate(blocks)
    _, U = deepca.linalg.top_eigenvectors(np.cov(pooled.T), 2)
    for _ in range(5):  # an order of threads that does harm does not show every time
        for mean, W in deepca.run_agents(topology, work, timeout=20.0):
            close(mean, pooled.mean(axis=0), atol=1e-12)
            assert deepca.linalg.tan_theta(U, W) <= 1e-7
