"""Check that agents that differ, finish early or are interrupted are reported, and that no agent hangs."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import deepca
from deepca.errors import NetworkError, PeerFailed, PeerTimeout
from deepca.network.transports import MemoryHub
from tests.support.problems import spectrum, spectrum_problem

STACK = spectrum_problem(4, 6, spectrum(6, 2, gap=0.5, decay=0.6), 0, 0.3)


def _solve(
    network: deepca.AgentNetwork, *, k: int = 2, stop: deepca.Tolerance | None = None, max_iter: int = 50
) -> int:
    W0 = deepca.operators.linalg.random_orthonormal(6, k, seed=0)
    A = deepca.operators.from_matrices(STACK[network.agent])
    algorithm = deepca.DeEPCA(A, W0, network, deepca.FastMix(rounds=3))
    return deepca.solve(algorithm, max_iter=max_iter, stop=stop).iterations


def test_a_different_number_of_components_at_one_agent_is_reported() -> None:
    with pytest.raises(NetworkError, match=r"\(6, [12]\).*\(6, [12]\).*same columns, components"):
        deepca.run_agents(deepca.topology.ring(4), lambda net: _solve(net, k=1 if net.agent == 2 else 2), timeout=10.0)


def test_a_stop_rule_at_one_agent_only_is_reported() -> None:
    with pytest.raises(NetworkError, match="stop rule"):
        deepca.run_agents(
            deepca.topology.ring(4),
            lambda net: _solve(net, stop=deepca.Tolerance(1e-3) if net.agent == 1 else None),
            timeout=10.0,
        )


def test_an_agent_that_finished_early_is_named_without_waiting_for_the_deadline() -> None:
    def work(network: deepca.AgentNetwork) -> None:
        network.begin(0, 0)
        for _ in range(3 if network.agent == 0 else 5):
            network.gossip(np.zeros(2))

    with pytest.raises(PeerFailed) as caught:
        deepca.run_agents(deepca.topology.ring(4), work, timeout=600.0)
    assert "agent 0" in str(caught.value)


def test_a_different_max_iter_at_one_agent_ends_at_the_deadline() -> None:
    """Agent 0 requests the final agreement while the others still iterate; no agent hangs."""
    with pytest.raises(PeerTimeout):
        deepca.run_agents(
            deepca.topology.ring(4), lambda net: _solve(net, max_iter=5 if net.agent == 0 else 50), timeout=1.0
        )


@pytest.mark.parametrize("m", [2, 6])
def test_a_restart_on_a_complete_graph_is_exact(m: int) -> None:
    """One round is enough there, so the phases of a restart follow each other immediately."""
    stack = spectrum_problem(m, 6, spectrum(6, 2, gap=0.5, decay=0.6), 1, 0.3)
    _, U = deepca.operators.linalg.top_eigenvectors(stack.mean(axis=0), 2)
    W0 = deepca.operators.linalg.random_orthonormal(6, 2, seed=0)
    for K in (1, 2, 5):
        hub = MemoryHub(m, timeout=15.0)

        class Announce:
            def begin(self, start: object) -> None: ...
            def end(self, result: object) -> None: ...
            def observe(self, step: deepca.solver.observers.Step, hub: MemoryHub = hub) -> None:
                if step.after.t == 10:
                    hub.announce_epoch(1)

        observer = Announce()

        def work(
            network: deepca.AgentNetwork, K: int = K, observer: Announce = observer
        ) -> deepca.Result[deepca.TrackedState]:
            A = deepca.operators.from_matrices(stack[network.agent])
            algorithm = deepca.DeEPCA(A, W0, network, deepca.FastMix(rounds=K))
            return deepca.solve(algorithm, max_iter=200, observers=[observer] if network.agent == 0 else [])

        for result in deepca.run_agents(deepca.topology.complete(m), work, hub=hub):
            assert deepca.operators.linalg.tan_theta(U, result.W) <= 1e-12


INTERRUPTED = """
import _thread, signal, numpy as np, deepca

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have set its jobs to ignore it
ended = []

def work(network):
    network.begin(0, 0)
    try:
        for count in range(10**9):
            network.gossip(np.zeros(3))
            if network.agent == 0 and count == 1000:
                _thread.interrupt_main()  # like a Ctrl-C that another thread received: the main thread is not woken
    finally:
        ended.append(network.agent)

try:
    deepca.run_agents(deepca.topology.ring(4), work, timeout=60.0)
except KeyboardInterrupt:
    print("interrupted", *sorted(ended), flush=True)
"""


def test_an_interrupt_ends_the_agents() -> None:
    ran = subprocess.run([sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True, timeout=60.0)
    assert ran.stdout.split() == ["interrupted", "0", "1", "2", "3"]


def test_large_operators_can_be_pickled_and_used_after_a_fork() -> None:
    big = deepca.operators.from_matrices(np.broadcast_to(np.eye(200), (20, 200, 200)).copy(), workers=2)
    W = np.random.default_rng(0).standard_normal((20, 200, 3))
    np.testing.assert_array_equal(big @ W, W)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(big)) @ W, W)
    child = os.fork()
    if child == 0:  # pragma: no cover - the child process
        signal.alarm(20)
        os._exit(0 if np.array_equal(big @ W, W) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_waiting_has_a_deadline() -> None:
    release = threading.Event()

    def work(network: deepca.AgentNetwork) -> None:
        network.begin(0, 0)
        if network.agent == 0:
            release.wait(20.0)
            return
        try:
            network.gossip(np.zeros(2))
        finally:
            release.set()

    with pytest.raises(PeerTimeout) as caught:
        deepca.run_agents(deepca.topology.path(2), work, timeout=0.5)
    assert "agent 0" in str(caught.value)
