"""Check the agreed mean of all rows on every engine."""

from __future__ import annotations

import numpy as np
import pytest

import deepca
from deepca.consensus.centring import agreed_mean
from deepca.network import Network
from tests.support.engines import ENGINES, mine, network_of
from tests.support.problems import close

TOPOLOGIES = {
    "ring": deepca.topology.ring(6),
    "complete": deepca.topology.complete(6),  # one round each: messages of two phases follow each other closely
    "path": deepca.topology.path(2),
    "single": deepca.topology.complete(1),
}


def _blocks(m: int) -> list[np.ndarray]:
    rng, spread = np.random.default_rng(0), np.array([3.0, 2.0, 1.0, 0.5, 0.5])  # a gap that needs few iterations
    return [rng.standard_normal((int(n), 5)) * spread + 10.0 for n in rng.integers(1, 400, m)]


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_all_agents_agree_on_the_mean_of_all_rows(name: str) -> None:
    topology = TOPOLOGIES[name]
    blocks = _blocks(topology.n_agents)
    sums, counts = np.array([B.sum(axis=0) for B in blocks]), np.array([float(len(B)) for B in blocks])
    here = mine(topology.n_agents)
    means = agreed_mean(network_of(topology), deepca.FastMix(rounds=1), sums[here], counts[here])
    close(means, np.broadcast_to(np.concatenate(blocks).mean(axis=0), means.shape), atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_agents_agree_on_the_mean_and_continue_with_solve(name: str, engine: str) -> None:
    topology = TOPOLOGIES[name]
    blocks = _blocks(topology.n_agents)
    W0 = deepca.operators.linalg.random_orthonormal(5, 2, seed=0)

    def work(network: Network) -> tuple[np.ndarray, np.ndarray]:
        own = [blocks[j] for j in np.atleast_1d(network.local)]
        sums, counts = np.array([rows.sum(axis=0) for rows in own]), np.array([float(len(rows)) for rows in own])
        B = network.batch
        means = agreed_mean(network, deepca.FastMix(rounds=1), sums.reshape(*B, 5), counts.reshape(B))
        A = deepca.operators.from_rows([rows - m for rows, m in zip(own, means.reshape(-1, 5), strict=True)])
        result = deepca.solve(
            deepca.DeEPCA(A if B else A.agent(0), W0, network, deepca.FastMix(rounds=12)),
            max_iter=5000,
            stop=deepca.Tolerance(1e-9),
        )
        return means, result.W

    pooled = np.concatenate(blocks)
    _, U = deepca.operators.linalg.top_eigenvectors(np.cov(pooled.T), 2)
    for _ in range(5 if engine == "threads" else 1):  # a harmful order of threads does not occur every time
        ended = deepca.run_agents(topology, work, timeout=20.0) if engine == "threads" else [work(network_of(topology))]
        for mean, W in ended:
            close(mean, np.broadcast_to(pooled.mean(axis=0), mean.shape), atol=1e-12)
            assert np.max(deepca.operators.linalg.tan_theta(U, W)) <= 1e-9
