"""Law: where sums are exact, agents flood no number that depends on the rows of a single one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import deepca
from deepca import topology
from deepca._util.typing import Array, csr
from deepca.data.local_data import read
from deepca.data.sources import ArraySource
from deepca.decomposition.fit import decompose
from deepca.decomposition.settings import Settings
from deepca.network import AgentNetwork, run_agents
from deepca.network.reductions import Op, PendingReduction

M = 4


@dataclass
class Flooded:
    """Values that an agent put into a reduction or a flood."""

    phase: str
    kind: str
    value: Array


@dataclass
class Run:
    """What one agent flooded, and how its run ended."""

    flooded: list[Flooded] = field(default_factory=list)
    result: Any = None


class RecordingNetwork(AgentNetwork):
    """Network that remembers the agent's own values in everything that is flooded."""

    def __init__(self, network: AgentNetwork) -> None:
        super().__init__(network.topology, network.agent, network.transport)
        self.run = Run()
        self._flooding = False

    def _record(self, kind: str, x: Array) -> None:
        if not self._flooding:
            self.run.flooded.append(Flooded(self.phase_and_iteration[0], kind, np.array(x, dtype=np.float64)))

    def reduce(self, x: Array, op: Op, /) -> Array:
        self._record(op, x)
        return super().reduce(x, op)

    def reduce_later(self, x: Array, op: Op, /) -> PendingReduction:
        self._record(op, x)
        return super().reduce_later(x, op)

    def flood(self, x: Array, source: int, /) -> Array:
        self._record(f"flood from {source}", x)
        self._flooding = True
        try:
            return super().flood(x, source)
        finally:
            self._flooding = False


def runs_of(work: Callable[[AgentNetwork], Any], place: topology.Topology | None = None) -> list[Run]:
    def record(network: AgentNetwork) -> Run:
        recording = RecordingNetwork(network)
        assert recording.reliable
        recording.run.result = work(recording)
        return recording.run

    return run_agents(place or topology.path(M), record)


def assert_common(runs: list[Run]) -> None:
    """Assert that all agents flooded the same numbers, up to rounding."""
    first = runs[0].flooded
    assert first  # measurements of the run
    for run in runs[1:]:
        assert [(one.phase, one.kind) for one in run.flooded] == [(one.phase, one.kind) for one in first]
        for one, other in zip(run.flooded, first, strict=True):
            np.testing.assert_allclose(one.value, other.value, rtol=1e-6, atol=1e-9, err_msg=f"{one.phase}, {one.kind}")


def site_rows(d: int = 8, decay: float = 0.3, n: int = 30) -> list[Array]:
    """Return rows of agents that differ in number, size and direction."""
    rng = np.random.default_rng(3)
    return [
        rng.standard_normal((n + 40 * j, d)) @ np.diag(np.geomspace(1.0, decay, d)) * (1.0 + j) + j for j in range(M)
    ]


CASES: dict[str, tuple[list[Any], Settings, bool]] = {
    "covariances": (site_rows(), Settings(2, form="covariance"), False),
    "rows": (site_rows(), Settings(2, form="rows"), False),
    "sparse rows": ([csr(X * (X > 0.5)) for X in site_rows()], Settings(2, form="rows"), False),
    "scaled": (site_rows(), Settings(2, scale=True), False),
    "weighted": (site_rows(), Settings(2, form="covariance"), True),
    "weighted rows, scaled": (site_rows(), Settings(3, scale=True, form="rows"), True),
    "share of variance": (site_rows(), Settings(0.9), False),
    "all components": (site_rows(), Settings(None), False),
    "steep": (site_rows(decay=1e-8), Settings(6, form="rows", tol=1e-10), False),
    "steep covariances": (site_rows(decay=1e-8), Settings(6, form="covariance", tol=1e-10), False),
    "steep share": (site_rows(decay=1e-8), Settings(None, tol=1e-10), False),
    "low rank": ([X[:, :2] @ np.ones((2, 8)) + 3.0 for X in site_rows()], Settings(4), False),
    "zero columns": ([np.hstack([X[:, :3], 0.0 * X]) for X in site_rows()], Settings(5), False),
}


@pytest.mark.parametrize("algorithm", ["krylov", "covariance"])
@pytest.mark.parametrize("case", CASES)
def test_a_fit_floods_only_what_follows_from_totals(case: str, algorithm: Any) -> None:
    rows, settings, weighted = CASES[case]
    settings = Settings(**{**vars(settings), "algorithm": algorithm})
    weights = [np.random.default_rng(j).uniform(0.5, 2.0 + j, X.shape[0]) for j, X in enumerate(rows)]

    def work(network: AgentNetwork) -> Any:
        j = network.agent
        local = read((ArraySource(rows[j], f"rows {j}"),), (weights[j],) if weighted else None, form=settings.form)
        return decompose(local, network, settings, weighted=weighted)

    runs = runs_of(work)
    assert_common(runs)
    certificate = runs[0].result.result.certificate
    assert certificate is not None
    assert certificate.n_agents == M
    phases = {one.phase for run in runs for one in run.flooded}
    assert not phases & {"certificate", "deflated products", "rounding of rows", "null vectors"}
    if case.startswith("steep"):
        assert certificate.parts  # found in stages


@pytest.mark.parametrize("which", ["LA", "SA", "LM"])
def test_eigenpairs_flood_only_what_follows_from_totals(which: Any) -> None:
    rng = np.random.default_rng(5)
    matrices = [(1.0 + 3.0 * j) * (G + G.T) for j, G in enumerate(rng.standard_normal((M, 9, 9)))]

    def work(network: AgentNetwork) -> Any:
        return deepca.eigenpairs(matrices[network.agent], network, 2, which=which)

    runs = runs_of(work)
    assert_common(runs)
    values = np.linalg.eigvalsh(np.mean(matrices, axis=0))
    expected = {"LA": values[:-3:-1], "SA": values[:2], "LM": values[np.argsort(-np.abs(values))[:2]]}[which]
    np.testing.assert_allclose(runs[0].result.values, expected, rtol=1e-9)


def test_singular_vectors_of_rows_flood_only_what_follows_from_totals() -> None:
    rows = site_rows()

    def work(network: AgentNetwork) -> Any:
        return deepca.singular_triplets([rows[network.agent]], network, 2)

    assert_common(runs_of(work))


def test_a_certificate_floods_angles_of_bases_that_agents_do_not_share() -> None:
    rows = site_rows()
    bases = [np.linalg.qr(np.eye(8)[:, :2] + 0.1 * j)[0] for j in range(M)]

    def work(network: AgentNetwork) -> Any:
        A = deepca.operators.from_rows([rows[network.agent]]).agent(0)
        shared, _ = deepca.certify(A, bases[0], network, W=bases[network.agent], shared=True)
        apart, _ = deepca.certify(A, bases[0], network, W=bases[network.agent])
        return shared.agents_angle, apart.agents_angle

    runs = runs_of(work)
    largest = max(float(deepca.operators.linalg.tan_theta(bases[0], W)) for W in bases)
    for run in runs:
        shared, apart = run.result
        assert apart == pytest.approx(largest)
        assert largest <= shared <= 3.0 * largest
