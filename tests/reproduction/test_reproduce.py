"""Test cells, the runner, the studies, and the verdicts on real data."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import deepca
from deepca.cli.app import app
from deepca.errors import DataError, InvalidInput, ParameterError
from deepca.reproduction import STUDIES, Cell, DataSource, Outcome, paper_cells, reproduce, run_cells
from deepca.reproduction import runner as runner_module
from deepca.reproduction.claims.baseline import baseline_of
from deepca.reproduction.claims.extensions import describe_runs, judge_extensions, run_with_gossip, verdict_of_runs
from deepca.reproduction.claims.paper import claim_cells, judge
from deepca.reproduction.claims.setting import Setting
from deepca.reproduction.claims.spectra import pair_error, verdict_of
from deepca.reproduction.problems import PAPER_GAP, compute, graph_of, operator_of, pooled_of
from deepca.reproduction.studies import PAPER, base_cell, study_named
from deepca.topology import directed
from tests.reproduction.test_pages import needs_chromium, visit
from tests.support.errors import raises
from tests.support.paths import SHARED

DATA = SHARED
needs_data = [
    pytest.mark.shared_data,
    pytest.mark.skipif(not (DATA / "a9a.bz2").exists(), reason="needs a9a.bz2 and w8a.bz2 in ../shared/data"),
]


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> DataSource:
    return DataSource(DATA, tmp_path_factory.mktemp("cache"))


def _outcome(cell: Cell, curve: list[float]) -> Outcome:
    n = len(curve)
    rounds = np.arange(1, n + 1) * cell.K
    return Outcome(cell, np.array(curve), np.ones(n), np.ones(n), rounds, 1.0, 0.5, 2.0, 0.1)


CELL = Cell("a9a", "DeEPCA", 5, 5, 50, 600, 100)


# ---------------------------------------------------------------------------------------------------- plain data


def test_cells_have_unique_keys() -> None:
    cells = [
        CELL,
        *(CELL.with_fields(**{name: value}) for name, value in (("K", 6), ("draw", 1), ("spread", 2.0), ("k", 4))),
    ]
    assert len({cell.key for cell in cells}) == len(cells)
    assert CELL.key == Cell("a9a", "DeEPCA", 5, 5, 50, 600, 100).key


def test_outcomes_survive_storage() -> None:
    outcome = _outcome(CELL, [1.0, 0.1, 1e-9])
    again = Outcome.from_bytes(outcome.to_bytes())
    assert again.cell == CELL
    np.testing.assert_array_equal(again.tan_theta, outcome.tan_theta)
    np.testing.assert_array_equal(again.rounds, outcome.rounds)
    assert (again.lambda2, again.tan_start, again.bytes_per_agent) == (0.5, 2.0, 1.0)


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 not a zip", b"\x93NUMPY"])
def test_a_damaged_outcome_raises_data_error(damage: bytes) -> None:
    with pytest.raises(DataError):
        Outcome.from_bytes(damage)


def test_an_outcome_with_a_different_format_version_raises_data_error(monkeypatch: pytest.MonkeyPatch) -> None:
    content = _outcome(CELL, [1.0, 1e-9]).to_bytes()
    monkeypatch.setattr("deepca.reproduction.cells._FORMAT", 99)
    with raises(DataError, value=2) as caught:
        Outcome.from_bytes(content)
    assert "99" in str(caught.value)


def test_an_accuracy_counts_as_reached_only_if_the_error_stays_within_it() -> None:
    outcome = _outcome(CELL, [1.0, 1e-7, 1.0, 1e-7, 1e-8])
    assert outcome.iterations_to(1e-6) == 4
    assert outcome.rounds_to(1e-6) == 20
    assert outcome.iterations_to(1e-9) is None
    assert _outcome(CELL, [1e-9, 1e-9]).iterations_to(1e-6) == 1
    assert _outcome(CELL, [1.0, float("nan")]).iterations_to(1e-6) is None


def test_the_paper_has_ten_curves_for_each_draw() -> None:
    cells = paper_cells("w8a", 5, 100, 2)
    assert len(cells) == len(set(cells)) == 20
    assert {(c.K, c.method) for c in cells if c.draw == 0} == {
        (0, "CPCA"),
        *((K, m) for K in (3, 5, 10) for m in ("DeEPCA", "DePCA")),
    }
    assert {c.rows for c in cells} == {800}
    assert {c.rows for c in paper_cells("a9a", 5, 100, 1)} == {600}


@pytest.mark.parametrize("name", STUDIES)
def test_studies_are_products_of_their_axes(name: str) -> None:
    study = study_named(name)
    cells = study.cells(base_cell("a9a", 5, 50))
    expected = int(np.prod([len(values) for _, values in study.axes])) * study.draws
    assert len(cells) == len(set(cells)) == expected
    assert study.columns in dict(study.axes)
    for field, value in study.changes:
        assert {getattr(cell, field) for cell in cells} == {value}


def test_an_unknown_study_lists_the_known_ones() -> None:
    with raises(ParameterError, parameter="study", value="nothing") as caught:
        study_named("nothing")
    assert all(name in caught.value.expected for name in STUDIES)


def test_the_graphs_of_the_paper_have_its_gap_and_differ() -> None:
    graphs = [graph_of("paper", 50, draw) for draw in range(3)]
    for graph in graphs:
        values = np.linalg.eigvalsh(graph.gossip_matrix)
        assert abs((1 - values[-2]) - PAPER_GAP) < 0.005
    assert len({graph.n_edges for graph in graphs} | {graph.lambda2 for graph in graphs}) > 3


@pytest.mark.parametrize(
    "name", ["erdos-renyi", "ring", "path", "torus", "hypercube", "star", "complete", "random-regular"]
)
def test_every_named_graph_can_be_built(name: str) -> None:
    assert graph_of(name, 16, 0).n_agents == 16


def test_graphs_that_cannot_be_built_are_refused() -> None:
    with pytest.raises(InvalidInput):
        graph_of("hypercube", 50, 0)
    with pytest.raises(InvalidInput):
        graph_of("moebius", 50, 0)


# ------------------------------------------------------------------------------------------------------ the runner


def _fake(cell: Cell, source: DataSource) -> Outcome:
    if cell.draw == 99:
        raise KeyboardInterrupt
    return _outcome(cell, [1.0, 10.0 ** -(cell.K + 3)])


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "compute", _fake)
    monkeypatch.setattr(runner_module, "checksum_of", lambda *_: "0" * 64)


@pytest.mark.usefixtures("fake")
def test_finished_cells_are_stored_and_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [CELL.with_fields(draw=draw) for draw in range(3)]
    seen: list[tuple[float, float]] = []
    with pytest.raises(KeyboardInterrupt):
        run_cells([*cells, CELL.with_fields(draw=99, iterations=1)], DataSource(), tmp_path, jobs=1)
    monkeypatch.setattr(runner_module, "compute", lambda *_: pytest.fail("ran again"))
    found = run_cells(cells, DataSource(), tmp_path, jobs=1, progress=lambda done, total: seen.append((done, total)))
    assert list(found) == cells
    assert seen[-1][0] == seen[-1][1] > 0


@pytest.mark.usefixtures("fake")
def test_a_damaged_file_is_run_again(tmp_path: Path) -> None:
    run_cells([CELL], DataSource(), tmp_path, jobs=1)
    (file,) = tmp_path.glob(f"{CELL.key}-*.npz")
    file.write_bytes(file.read_bytes()[:40])
    assert run_cells([CELL], DataSource(), tmp_path, jobs=1)[CELL].cell == CELL
    assert Outcome.from_bytes(file.read_bytes()).cell == CELL
    assert [path.suffix for path in tmp_path.iterdir()] == [".npz"], "nothing half-written"


class TestRealData:
    pytestmark = needs_data

    def test_the_partition_is_that_of_the_paper(self, source: DataSource) -> None:
        """``A_j`` is the sum of v vᵀ over 600 rows in file order, read independently."""
        from sklearn.datasets import load_svmlight_file

        X = load_svmlight_file(str(DATA / "a9a.bz2"), n_features=123)[0][:30000].toarray()
        A = operator_of(source, "a9a", 50, 600, "file")
        np.testing.assert_allclose(A.agent(7).dense(), X[4200:4800].T @ X[4200:4800], atol=1e-9)
        np.testing.assert_allclose(
            pooled_of(source, "a9a", 50, 600).values, np.linalg.eigvalsh(X.T @ X / 50)[::-1], atol=1e-8
        )

    @pytest.mark.parametrize("order", ["label", "shuffled"])
    def test_another_order_keeps_the_pooled_problem(self, source: DataSource, order: str) -> None:
        there = operator_of(source, "a9a", 50, 600, order)
        here = operator_of(source, "a9a", 50, 600, "file")
        np.testing.assert_allclose(there.mean(), here.mean(), atol=1e-9)
        assert np.abs(there.agent(0).dense() - here.agent(0).dense()).max() > 1.0

    def test_spread_keeps_the_mean_and_makes_agents_indefinite(self, source: DataSource) -> None:
        wide = operator_of(source, "a9a", 50, 600, "file", 4.0)
        np.testing.assert_allclose(wide.mean(), operator_of(source, "a9a", 50, 600, "file").mean(), atol=1e-8)
        assert np.linalg.eigvalsh(wide.dense())[:, 0].min() < -1.0

    def test_a_cell_equals_a_run_built_by_hand(self, source: DataSource) -> None:
        outcome = compute(CELL.with_fields(iterations=30, draw=1), source)
        A = operator_of(source, "a9a", 50, 600, "file")
        U = np.linalg.eigh(A.mean())[1][:, ::-1][:, :5]
        trace = deepca.solver.observers.Trace(U=U)
        network = deepca.SimulatedNetwork(graph_of("paper", 50, 1))
        W0 = deepca.operators.linalg.random_orthonormal(123, 5, seed=1)
        algorithm = deepca.DeEPCA(A, W0, network, deepca.FastMix(rounds=5), deepca.QRSignAdjust(W0))
        deepca.solve(algorithm, max_iter=30, observers=[trace])
        np.testing.assert_allclose(outcome.tan_theta, trace.tan_theta, rtol=1e-6)
        assert outcome.rounds[-1] == 150

    @pytest.mark.parametrize("name", STUDIES)
    def test_every_study_writes_a_page(
        self, name: str, source: DataSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The page of a study accepts exactly the cells that the study defines (synthetic outcomes)."""

        def made_up(cells: list[Cell], *_: object, **__: object) -> dict[Cell, Outcome]:
            return {cell: _outcome(cell, [1.0, 1e-3, 10.0 ** -(3 + cell.K + cell.draw % 3)]) for cell in cells}

        monkeypatch.setattr(reproduce, "run_cells", made_up)
        report = reproduce.run_study(study_named(name), reproduce.Request(["a9a"], tmp_path, source))
        (table,) = report.tables
        columns = dict(study_named(name).axes)[study_named(name).columns]
        assert len(table.header) == len(columns) + table.heads
        assert (tmp_path / f"study-{name}-a9a.png").stat().st_size > 10_000
        assert f"study-{name}-a9a.png" in (tmp_path / f"study-{name}.md").read_text(encoding="utf-8")

    def test_iterations_follow_from_the_spectrum(self, source: DataSource) -> None:
        setting = Setting("a9a", 5, 1, source)
        values = pooled_of(source, "a9a", 50, 600).values
        assert setting.iterations(5) == int(np.ceil(np.log(1e-11) / np.log(values[5] / values[4]))) + 10
        assert Setting("a9a", 5, 1, source, max_iterations=50).iterations(5) == 50


@pytest.fixture(scope="session")
def reproduced(source: DataSource, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    """`deepca reproduce a9a`, with just enough iterations for 1e-10."""
    out = tmp_path_factory.mktemp("reproduced")
    arguments = ["reproduce", "a9a", "--data", str(DATA), "--out", str(out), "--seeds", "1", "--max-iter", "190"]
    done = CliRunner().invoke(app, [*arguments, "--json", "--quiet"])
    assert done.exit_code == 0, done.output
    return out, json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.xdist_group("reproduced")
class TestVerdicts:
    pytestmark = needs_data

    def _claim(self, found: dict[str, object], name: str) -> dict[str, str]:
        claims = found["claims"]
        assert isinstance(claims, list)
        return next(claim for claim in claims if claim["name"] == name)

    def _outcomes(self, out: Path) -> dict[Cell, Outcome]:
        outcomes = [Outcome.from_bytes(path.read_bytes()) for path in (out / "cells").glob("*.npz")]
        return {outcome.cell: outcome for outcome in outcomes}

    def test_deepca_is_as_fast_as_centralised_power_iterations(
        self, reproduced: tuple[Path, dict[str, object]]
    ) -> None:
        out, found = reproduced
        outcomes = self._outcomes(out)
        base = next(cell for cell in outcomes if cell.method == "CPCA" and cell.k == 5 and cell.draw == 0)
        for K in (5, 10):
            for accuracy in (1e-6, 1e-10):
                tracked = outcomes[base.with_fields(method="DeEPCA", K=K)].iterations_to(accuracy)
                pooled = outcomes[base].iterations_to(accuracy)
                assert tracked is not None
                assert pooled is not None
                assert abs(tracked - pooled) <= 2
        assert self._claim(found, "speed")["verdict"] == "holds"

    def test_depca_stalls_above_the_accuracy_of_deepca(self, reproduced: tuple[Path, dict[str, object]]) -> None:
        out, found = reproduced
        outcomes = self._outcomes(out)
        base = next(cell for cell in outcomes if cell.method == "CPCA" and cell.k == 5 and cell.draw == 0)
        assert 1e-5 < outcomes[base.with_fields(method="DePCA", K=5)].plateau < 1e-2
        assert 1e-8 < outcomes[base.with_fields(method="DePCA", K=10)].plateau < 1e-4
        assert self._claim(found, "DePCA stalls")["verdict"] == "holds"

    def test_the_other_verdicts_of_the_page_are_as_expected(self, reproduced: tuple[Path, dict[str, object]]) -> None:
        _, found = reproduced
        verdicts = {
            "accuracy": "holds",
            "communication": "holds",
            "theorem": "holds",
            "indefinite": "holds",
            "heterogeneity": "partly",
            "FastMix": "differs",
            "directed": "holds",
            "time-varying": "holds",
            "gossip model": "holds",
            "eigenvalues": "holds",
            "SVD": "holds",
            "low rank": "holds",
            "spectral analysis": "holds",
        }
        assert {name: self._claim(found, name)["verdict"] for name in verdicts} == verdicts
        mixing = self._claim(found, "FastMix")["measured"]
        assert "K ≤ 34" in mixing
        assert "expands by 1.12" in mixing
        signs = self._claim(found, "signs")["measured"]
        assert "fails in draws 4, 5" in signs, "the draws in which SignAdjust breaks convergence"

    def test_figures_curves_and_pages_are_written(self, reproduced: tuple[Path, dict[str, object]]) -> None:
        out, _ = reproduced
        for name in ("a9a-iterations", "a9a-rounds"):
            assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
            assert "<svg" in (out / f"{name}.svg").read_text(encoding="utf-8")[:2000]
        page = (out / "report.html").read_text(encoding="utf-8")
        assert 'src="http' not in page
        assert re.search(r"\d+ of \d+ claims hold", page)
        header, first, *_ = (out / "curves.csv").read_text(encoding="utf-8").splitlines()
        row = dict(zip(header.split(","), first.split(","), strict=True))
        assert row["data"] == "a9a"
        assert float(row["tan_theta"]) > 0
        assert not list(out.glob("*.part"))

    @needs_chromium
    def test_the_page_opens_in_a_browser(self, reproduced: tuple[Path, dict[str, object]], tmp_path: Path) -> None:
        document, console, asked = visit(reproduced[0] / "report.html", tmp_path)
        assert "claims hold" in document
        assert (console, asked) == ([], [])

    def test_a_second_call_runs_nothing_again(
        self, reproduced: tuple[Path, dict[str, object]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        out, _ = reproduced
        before = {path: path.stat().st_mtime_ns for path in (out / "cells").iterdir()}
        arguments = ["reproduce", "a9a", "--data", str(DATA), "--out", str(out), "--seeds", "1", "--max-iter", "190"]
        assert CliRunner().invoke(app, [*arguments, "--quiet"]).exit_code == 0
        assert {path: path.stat().st_mtime_ns for path in (out / "cells").iterdir()} == before

    def test_a_study_writes_its_page(self, source: DataSource, tmp_path: Path) -> None:
        arguments = ["reproduce", "a9a", "--data", str(DATA), "--out", str(tmp_path), "--study", "heterogeneity"]
        done = CliRunner().invoke(app, [*arguments, "--max-iter", "20", "--quiet", "--jobs", "2"])
        assert done.exit_code == 0, done.output
        assert (tmp_path / "study-heterogeneity.html").exists()
        assert (tmp_path / "study-heterogeneity-a9a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("iterations", [20, 60])
@pytest.mark.parametrize("k", [1, 5])
def test_runs_that_are_too_short_are_not_judged(iterations: int, k: int, tmp_path: Path, source: DataSource) -> None:
    if not (DATA / "a9a.bz2").exists():
        pytest.skip("needs a9a.bz2 in ../shared/data")
    setting = Setting("a9a", k, 1, source, max_iterations=iterations)
    curve = [0.5 * 0.99**t for t in range(iterations)]
    outcomes = {cell: _outcome(cell, curve[: cell.iterations]) for cell in claim_cells(setting)}
    (claim,) = judge(setting, outcomes)
    assert claim.verdict == "not judged"


def test_a_claim_can_fail(source: DataSource) -> None:
    """Every claim differs if tracked runs stall and untracked ones do not."""
    if not (DATA / "a9a.bz2").exists():
        pytest.skip("needs a9a.bz2 in ../shared/data")
    setting = Setting("a9a", 5, 1, source)
    good, bad = [0.8**t for t in range(200)], [max(0.8**t, 1e-2) for t in range(200)]
    outcomes = {cell: _outcome(cell, bad if cell.method == "DeEPCA" else good) for cell in claim_cells(setting)}
    verdicts = {claim.name: claim.verdict for claim in judge(setting, outcomes)}
    assert set(verdicts.values()) == {"differs"}, verdicts


def test_nan_vectors_count_as_errors() -> None:
    network = deepca.SimulatedNetwork(deepca.topology.ring(3))
    found = deepca.eigenpairs(np.stack([np.diag([3.0, 2.0, 1.0])] * 3), network, 1)
    assert verdict_of(pair_error(found, np.array([3.0]), np.eye(3)[:, :1])) == "holds"
    lost = replace(found, vectors=np.full((3, 1), np.nan))
    assert verdict_of(pair_error(lost, np.array([3.0]), np.eye(3)[:, :1])) == "differs"


def test_extensions_that_are_too_short_are_not_judged_and_others_can_fail(source: DataSource) -> None:
    if not (DATA / "a9a.bz2").exists():
        pytest.skip("needs a9a.bz2 in ../shared/data")
    (claim,) = judge_extensions(Setting("a9a", 5, 1, source, max_iterations=30))
    assert claim.verdict == "not judged"
    baseline = baseline_of(Setting("a9a", 5, 1, source))
    far, near = directed.ring(50), directed.exponential(50)
    runs = run_with_gossip(baseline, [far, near])  # five rounds on a directed ring are far too few
    assert runs[far.name].iterations is None
    assert verdict_of_runs(baseline, runs) == "partly"
    assert verdict_of_runs(baseline, {"far": runs[far.name]}) == "differs"
    assert verdict_of_runs(baseline, {"near": runs[near.name]}) == "holds"
    assert [verdict_of(*errors) for errors in ((1e-11, 0.0), (1e-9, 0.0), (1e-9, float("nan")))] == [
        "holds",
        "partly",
        "differs",
    ]
    assert "directed-ring(50): not reached" in describe_runs(baseline, runs)
    slow = replace(runs[near.name], iterations=2 * (baseline.paper_run.iterations or 0))
    assert verdict_of_runs(baseline, {"near": slow}) == "partly"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("a9a", "--components", "123", "--data", str(DATA)), "between 1 and 122"),
        (("a9a", "--jobs", "0"), "--jobs 0"),
        (("mnist",), "w8a, a9a or all"),
        (("a9a", "--study", "nothing"), "nothing"),
        (("a9a", "--components", "0"), "--components 0"),
        (("a9a", "--seeds", "0"), "--seeds 0"),
        (("a9a", "--max-iter", "3"), "--max-iter 3"),
        (("a9a", "--data", "nowhere"), "nowhere"),
    ],
)
def test_invalid_options_are_named_and_exit_with_code_2(
    arguments: tuple[str, ...], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["reproduce", *arguments, "--quiet"])
    assert done.exit_code == 2
    assert named in done.stderr
    assert "Traceback" not in done.stderr


def test_settings_are_serialisable() -> None:
    assert json.loads(json.dumps(asdict(PAPER["w8a"])))["rounds"] == [3, 5, 10]
