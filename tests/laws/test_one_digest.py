"""Law: the same rows give the same bits on every network and engine, in any order of arrival."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from deepca import topology
from deepca._util.typing import csr
from deepca.data.local_data import read, resolve_forms
from deepca.data.sources import ArraySource
from deepca.decomposition.fit import Decomposition, decompose
from deepca.decomposition.model.file import load
from deepca.decomposition.settings import Settings
from deepca.network import AgentNetwork, Network, SimulatedNetwork, make_private, run_agents
from deepca.operators import Form
from deepca.topology import Topology, directed
from tests.support.engines import ENGINES, mine, network_of
from tests.support.helpers import run_cli

M = 8
GRAPHS: dict[str, Topology] = {
    "star": topology.star(M),
    "torus": topology.torus(2, 4),
    "hypercube": topology.hypercube(3),
    "random": topology.erdos_renyi(M, 0.5, seed=1),
    "directed ring": directed.from_arcs(M, [(j, (j + 1) % M) for j in range(M)]),
}
KINDS = ("covariance", "rows", "wide rows", "few rows", "sparse", "far from zero", "weighted", "both forms")


def _case(kind: str, scale: float = 1.0) -> tuple[list[Any], tuple[np.ndarray, ...] | None, Settings]:
    """Return the rows and weights of every agent, whose numbers of rows differ, and the settings."""
    rng, (n, d) = (
        np.random.default_rng(7),
        (12, 300) if kind == "wide rows" else (4, 9) if kind == "few rows" else (60, 20),
    )
    rows: list[Any] = [rng.standard_normal((n + j, d)) * np.geomspace(3.0, 0.1, d) * scale for j in range(M)]
    if kind == "sparse":
        rows = [scale * csr(sparse.random_array((n + j, d), density=0.1, rng=rng, format="csr")) for j in range(M)]
    if kind == "far from zero":
        rows = [X + 1e6 * scale for X in rows]
    weights = tuple(rng.uniform(0.1, 3.0, len(X)) for X in rows) if kind == "weighted" else None
    if kind == "both forms":  # which is cheaper depends on an agent's own number of rows
        rows = [X if j % 2 else X[:4] for j, X in enumerate(rows)]
        assert {*resolve_forms([ArraySource(X, "rows") for X in rows])} == {"rows", "covariance"}
        return rows, None, Settings(2, scale=True, tol=1e-8)
    form: Form = "covariance" if kind in ("covariance", "far from zero", "weighted") else "rows"
    return rows, weights, Settings(2, scale=kind != "far from zero", form=form, tol=1e-8)


def _found(rows: list[Any], weights: Any, settings: Settings, network: Network) -> Decomposition:
    local = np.atleast_1d(network.local).tolist()
    sources = tuple(ArraySource(rows[j], f"rows {j}") for j in local)
    own = None if weights is None else tuple(weights[j] for j in local)
    return decompose(read(sources, own, form=settings.form), network, settings, weighted=weights is not None)


def _bits(found: Decomposition) -> tuple[bytes, ...]:
    certificate = found.result.certificate
    assert certificate is not None
    numbers = np.array([certificate.angle, certificate.bound, certificate.residual, *certificate.eigenvalues])
    return found.components.tobytes(), found.variances.tobytes(), found.mean.tobytes(), numbers.tobytes()


@pytest.mark.parametrize("scale", [1.0, 1e-100, 1e100])
@pytest.mark.parametrize("kind", KINDS)
def test_the_answer_has_the_same_bits_on_every_network_and_engine(kind: str, scale: float) -> None:
    rows, weights, settings = _case(kind, scale)
    expected = _bits(_found(rows, weights, settings, SimulatedNetwork(topology.ring(M))))
    for place in GRAPHS.values():
        assert _bits(_found(rows, weights, settings, SimulatedNetwork(place))) == expected, place.name
    if "threads" not in ENGINES:  # ranks
        assert len(mine(M)) < M
        assert _bits(_found(rows, weights, settings, network_of(topology.ring(M)))) == expected
        return

    def work(network: AgentNetwork) -> tuple[bytes, ...]:
        return _bits(_found(rows, weights, settings, network))

    def work_privately(network: AgentNetwork) -> tuple[bytes, ...]:
        make_private(network)
        return work(network)

    for place in (topology.ring(M), GRAPHS["hypercube"]):
        assert set(run_agents(place, work)) == {expected}, place.name
        assert set(run_agents(place, work_privately)) == {expected}, place.name


@pytest.mark.slow
@pytest.mark.skipif("threads" not in ENGINES, reason="real agents")
@pytest.mark.parametrize("privacy", ["private", "open"])
def test_real_agents_find_the_bits_of_the_simulator(tmp_path: Path, privacy: str) -> None:
    rows, _, _ = _case("covariance")
    files = [str(tmp_path / f"site{j}.npy") for j in range(4)]
    for file, X in zip(files, rows, strict=False):
        np.save(file, X)
    asked = ("-k", "2", "--quiet", "--privacy", privacy)
    done = run_cli("trial", *files, *asked, "--topology", "star", "--out", str(tmp_path / "trial"))
    assert done.exit_code == 0, done.stderr
    models = [load(site / "model.npz") for site in sorted((tmp_path / "trial").iterdir())]
    seed = str(models[0].about["seed"])  # of a private run, all sites have made it
    assert (seed == "0") == (privacy == "open")
    done = run_cli("fit", *files, *asked[:3], "--seed", seed, "--topology", "ring", "--out", str(tmp_path / "ring.npz"))
    assert done.exit_code == 0, done.stderr
    simulated = load(tmp_path / "ring.npz")
    for real in models:
        assert real.components.tobytes() == simulated.components.tobytes()
        assert real.explained_variance.tobytes() == simulated.explained_variance.tobytes()
        assert real.mean.tobytes() == simulated.mean.tobytes()
