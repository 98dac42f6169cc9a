"""Test the parts of the cluster benchmark that need no timing: formulas, cases and page."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.decomposition import PCA

import deepca
from benchmarks.cluster import check, costs, data, jobs, page, page_model, parity, ranks, rounds, scaling
from benchmarks.cluster.findings import Findings
from benchmarks.cluster.model import (
    Costs,
    Iteration,
    Line,
    Oversubscription,
    Share,
    StrongScaling,
    allreduce,
    fitted,
    gossip,
    torus_lambda2,
    torus_rounds,
    tree_sweep,
)
from tests.support.errors import raises
from tests.support.problems import close

# every part has a distinct cost that no sum of others equals, in s and s per byte
COSTS = Costs(
    call=Line(1e1, 1e-8),
    message=Line(1e2, 1e3),
    add=Line(1e4, 1e5),
    combine=Line(1e6, 1e7),
    track=Line(1e-1, 1e-2),
    orthonormalise=Line(1e-3, 1e-4),
    products=((1, Line(1e-5, 1e-6)), (1_000, Line(0.0, 7.0))),
    loop=1e-7,
)
EIGHT = Share(features=1, components=1, row_bytes=1.0)
"""Part of a problem with messages of 8 bytes."""


# ------------------------------------------------------------------------------------------------------------ model


def test_the_cost_of_gossip_is_the_sum_of_its_parts() -> None:
    found = gossip(COSTS, EIGHT, rounds=2, neighbours=3)
    exchange = 3 * (1e2 + 8e3 + 1e4 + 8e5)
    close(found.averaging, 2 * (1e1 + 8e-8 + exchange + 1e6 + 8e7), rtol=1e-14)
    close(found.local, (0.1 + 0.08) + (0.001 + 0.0008) + (1e-5 + 1e-6) + 1e-7, rtol=1e-14)
    assert found.waits == 2
    close(found.seconds, found.averaging + found.local, rtol=1e-15)
    close(found.share, found.averaging / found.seconds, rtol=1e-15)


@pytest.mark.parametrize(("n", "depth"), [(1, 0), (2, 1), (5, 3), (64, 6), (4096, 12)])
def test_exact_averages_take_logarithmically_many_steps(n: int, depth: int) -> None:
    call, one = 1e1 + 8e-8, 1e2 + 8e3 + 1e4 + 8e5
    all_at_once, swept = allreduce(COSTS, EIGHT, ranks=n), tree_sweep(COSTS, EIGHT, ranks=n)
    close(all_at_once.averaging, call + depth * one, rtol=1e-14)
    close(swept.averaging, 2 * depth * (call + one), rtol=1e-14)
    assert (all_at_once.waits, swept.waits) == (depth, 2 * depth)
    assert all_at_once.local == swept.local == gossip(COSTS, EIGHT, rounds=1, neighbours=1).local


def test_the_cost_of_a_product_is_that_of_the_nearest_number_of_features() -> None:
    assert COSTS.product(20).slope == 1e-6
    assert COSTS.product(40).slope == COSTS.product(10_000).slope == 7.0  # 40 is nearer to 1000 than to 1, as a ratio


def test_another_interconnect_changes_only_messages() -> None:
    over = COSTS.over(2.0, 4.0)
    assert over.message == Line(2.0, 0.25)
    assert replace(over, message=COSTS.message) == COSTS


def test_more_ranks_than_cores_take_turns() -> None:
    iteration = Iteration(local=3.0, averaging=1.0, waits=5)
    assert Oversubscription(2, 2, 0.5).seconds(iteration) == 4.0
    assert Oversubscription(1, 2, 0.5).seconds(iteration) == 4.0
    assert Oversubscription(8, 2, 0.5).seconds(iteration) == 4 * (4.0 + 5 * 0.5)


@pytest.mark.parametrize("shape", [(3, 3), (4, 4), (3, 5), (8, 6), (7, 10)])
def test_the_closed_form_of_a_torus_matches_its_matrix(shape: tuple[int, int]) -> None:
    torus = deepca.topology.torus(*shape)
    largest = np.linalg.eigvalsh(torus.gossip_matrix)
    close(torus_lambda2(*shape), largest[-2], atol=1e-12)


def test_a_torus_that_is_too_small_is_rejected() -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the only check in a closed formula
        torus_lambda2(2, 4)


def test_rounds_on_a_torus_are_the_fewest_that_keep_tracking_stable() -> None:
    for side in (4, 8, 16):
        torus, K = deepca.topology.torus(side, side), torus_rounds(side)
        rates = [deepca.consensus.rates.tracking_rate(deepca.FastMix(), torus, n) for n in (K - 1, K)]
        assert rates[1] <= 0.6 < rates[0]
    assert torus_rounds(16) / torus_rounds(8) == pytest.approx(
        2.0, abs=0.5
    )  # grows with the side, not with the number of ranks


def test_the_fit_recovers_an_exact_line() -> None:
    sizes = [8.0, 1e3, 1e5, 1e6]
    found = fitted(sizes, [2e-6 + 3e-10 * size for size in sizes])
    close([found.start, found.slope], [2e-6, 3e-10], rtol=1e-9)


def test_fitted_lines_have_no_negative_coefficients() -> None:
    found = fitted([1.0, 2.0, 3.0], [1.0, 3.0, 5.0])  # the unconstrained fit is −1 + 2 bytes
    assert found.start >= 0.0
    assert found.slope > 0.0
    falling = fitted([1.0, 2.0, 3.0], [3.0, 2.9, 2.8])
    assert falling.slope == 0.0


def test_a_problem_is_divided_among_ranks() -> None:
    problem = StrongScaling(4_000_000, 1_000, 5)
    assert problem.share(1).row_bytes == 32e9
    assert problem.share(64).row_bytes == 500e6
    assert problem.share(64).message == problem.share(1).message == 40_000


def test_the_cost_of_the_loop_is_the_rest_of_a_tiny_iteration() -> None:
    def pairs(line: Line) -> costs.Pairs:
        return tuple((size, line(size)) for size in (10.0, 1e3, 1e5))

    lines = {name: Line(start, 1e-9) for name, start in zip(_LINES, (1e-6, 2e-6, 3e-6, 4e-6, 5e-6, 6e-6), strict=True)}
    product = ((300, pairs(Line(0.0, 2e-9))),)
    samples = costs.Samples(**{name: pairs(line) for name, line in lines.items()}, product=product, tiny=100e-6)
    found = costs.as_costs(samples)
    close([found.message.start, found.call.start], [1e-6, 2e-6], rtol=1e-6)
    close(found.product(300).slope, 2e-9, rtol=1e-6)
    close(found.loop, 100e-6 - (2e-6 + 4e-6 + 5e-6 + 6e-6), rtol=1e-6)  # it has neither messages nor additions


_LINES = ("message", "call", "add", "combine", "track", "orthonormalise")


# ------------------------------------------------------------------------------------------------------------ cases


def test_every_case_can_be_built() -> None:
    for n in (1, 2, 4, 8, 50):
        for part, case in ranks.lines(["rounds", "parity", "check"], n, quick=False):
            graph = getattr(case, "graph", "torus" if n > 2 else "ring")
            agents = getattr(case, "agents", n)
            assert agents >= n, part
            assert deepca.topology.from_name(graph, agents, seed=0).n_agents == agents
            assert case.cost > 0.0


def test_parity_covers_one_and_several_agents_per_rank() -> None:
    found = {(case.ranks, case.agents, case.graph) for n in (4, 8, 50) for case in parity.cases(n, quick=False)}
    assert {(n, n, graph) for n in (8, 50) for graph in parity.GRAPHS} <= found
    assert {(n, 50, graph) for n in (4, 8, 50) for graph in parity.GRAPHS} <= found
    assert (4, 9, "torus") in found


def test_message_sizes_match_their_names() -> None:
    nbytes = {size: 8 * rounds.COLUMNS * rows for size, rows in rounds.SIZES.items()}
    assert nbytes == {"12 KB": 12_000, "1 MB": 1_000_000, "8 MB": 8_000_000}
    assert {case.size for case in rounds.cases(50, quick=False)} == {"12 KB", "1 MB"}
    assert {case.size for case in rounds.cases(8, quick=False)} == set(rounds.SIZES)


def test_generated_rows_do_not_depend_on_the_agent() -> None:
    close(np.concatenate([data.dense_rows(0, 700), data.dense_rows(700, 2_300)]), data.dense_rows(0, 2_300))
    close(data.dense_rows(1_500, 1_600), data.dense_rows(1_000, 2_000)[500:600])


def test_dense_rows_have_a_gap() -> None:
    variances = PCA(6, svd_solver="covariance_eigh").fit(data.dense_rows(0, 3_000)).explained_variance_
    assert variances[4] > 10 * variances[5]


def test_blocks_of_all_agents_cover_all_rows() -> None:
    both = data.blocks("dense", 2_001, list(range(data.AGENTS)), None)
    assert len(both) == data.AGENTS
    close(np.concatenate(both), data.dense_rows(0, 2_001))
    close(data.blocks("dense", 2_001, [1], None)[0], both[1])


# ------------------------------------------------------------------------------------------------------------- jobs


def test_the_output_of_a_job_is_read_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _module(tmp_path, monkeypatch, "import json\nfor i in range(3): print(json.dumps({'i': i}))")
    with jobs.Job("fake_job", deadline=60.0) as job:
        assert list(job.answers()) == [{"i": 0}, {"i": 1}, {"i": 2}]


def test_a_job_answers_questions_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _module(
        tmp_path,
        monkeypatch,
        "import json, sys\nwhile (line := sys.stdin.readline()).strip(): print(2 * json.loads(line), flush=True)",
    )
    with jobs.Job("fake_job", deadline=60.0) as job:
        assert [job.ask(i) for i in (1, 21)] == [2, 42]
        job.finish()


def test_a_failed_job_reports_its_exit_code_and_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _module(tmp_path, monkeypatch, "print(1, flush=True)\nraise SystemExit('the disk is full')")
    with (
        jobs.Job("fake_job", deadline=60.0) as job,
        raises(jobs.JobFailed, exit_code=1, late=False, output="the disk is full\n"),
    ):
        list(job.answers())


def test_a_job_is_ended_at_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _module(tmp_path, monkeypatch, "import time\ntime.sleep(600)")
    with jobs.Job("fake_job", deadline=1.0) as job, raises(jobs.JobFailed, late=True):
        list(job.answers())


def test_ranks_have_one_thread_each_and_may_run_as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    found = jobs.environment(1)
    assert found["OPENBLAS_NUM_THREADS"] == "1"
    assert found["OMPI_ALLOW_RUN_AS_ROOT"] == found["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.delenv("OMPI_ALLOW_RUN_AS_ROOT", raising=False)
    assert "OMPI_ALLOW_RUN_AS_ROOT" not in jobs.environment(2)


def test_the_launcher_beside_python_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = tmp_path / "mpiexec"
    launcher.touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert jobs.mpiexec() == str(launcher)
    launcher.unlink()
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(jobs.NoLauncher):
        jobs.mpiexec()


def _module(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (folder / "fake_job.py").write_text(text, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(folder))


# ------------------------------------------------------------------------------------------------------------- page


def _sample_findings() -> Findings:
    """Return findings in which all ratios differ."""
    parities = [
        parity.Agreement(case.ranks, case.agents, case.graph, case.algorithm, 2e-15, 3e-15, 30, 30, ("ok", "ok"))
        for n in (4, 8, 50)
        for case in parity.cases(n, quick=False)
    ]
    timings = [
        rounds.Timing(case.ranks, case.graph, case.size, 2.0, (1.1, 1.2, 1.3), (1.5, 1.6, 1.7), (1.0,) * 3, (1.4,) * 3)
        for n in (2, 4, 8, 50)
        for case in rounds.cases(n, quick=False)
    ]
    scalings = [scaling.Scaling(name, 40_000, _sample_times(), 12) for name in scaling.DATA]
    checks = [
        check.Check(case.ranks, case.features, case.collective, 2.0, (1.0, 2.0, 4.0), 0.0)
        for n in (4, 8)
        for case in check.cases(n, quick=False)
    ]
    about = {"cores": "2", "MPI": "Open MPI"}
    return Findings(about, 2, 0.3, "make bench-mpi", False, parities, timings, scalings, [], _typical_costs(), checks)


def _sample_times() -> scaling.Times:
    """Return times: a second core speeds up ranks by 1.6 and the simulator by 1.8, and eigh is the slower solver."""
    seconds = {("mpi", 1): 8.0, ("mpi", 2): 5.0, ("simulator", 1): 9.0, ("simulator", 2): 5.0}
    found: scaling.Times = {}
    for question in scaling.asked():
        base = seconds.get((question.engine, question.cores), 4.0 if question.what == "covariance_eigh" else 2.0)
        found[question] = (base if question.whole else base / 2.0,) * 3
    return found


def _typical_costs() -> Costs:
    return Costs(
        call=Line(1e-5, 1e-10),
        message=Line(1e-6, 2e-10),
        add=Line(1e-6, 1e-10),
        combine=Line(3e-6, 3e-10),
        track=Line(2e-6, 3e-10),
        orthonormalise=Line(1e-4, 1e-9),
        products=((1_000, Line(1e-5, 2e-10)), (10_000, Line(1e-5, 3e-10))),
        loop=1e-4,
    )


def _tables(text: str) -> Iterator[list[list[str]]]:
    table: list[list[str]] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            table.append([cell.strip() for cell in line.strip("|").split(" | ")])
        elif table:
            yield table
            table = []


def test_rows_of_tables_match_their_header() -> None:
    found = list(_tables(page.page_of(_sample_findings())))
    assert len(found) >= 11
    for table in found:
        assert {len(row) for row in table} == {len(table[0])}, table[0]


def test_the_page_reports_goals_that_are_met() -> None:
    text = page.page_of(_sample_findings())
    assert "**5 of 5 assertions hold.**" in text
    assert "✘" not in text.replace("✘ marks", "")


def test_the_page_reports_slow_rounds() -> None:
    found = _sample_findings()
    slow = replace(found.timings[0], ours=(1.31, 1.31, 1.31))
    text = page.page_of(replace(found, timings=[slow, *found.timings[1:]]))
    assert "**4 of 5 assertions hold.**" in text
    assert "at most 1.31, 2 ranks, ring | ✘ no" in text
    assert "1.31 (1.31 – 1.31) ✘" in text


@pytest.mark.parametrize(
    "change", [{"fixed": 2e-12}, {"stopped": 2e-12}, {"simulated": 31}, {"status": ("ok", "stalled")}]
)
def test_the_page_reports_differences_from_the_simulator(change: dict[str, Any]) -> None:
    found = _sample_findings()
    other = replace(found.parities[5], **change)
    text = page.page_of(replace(found, parities=[*found.parities[:5], other, *found.parities[6:]]))
    assert "**4 of 5 assertions hold.**" in text


def test_ratios_of_rounds_are_medians_with_quartiles() -> None:
    text = page.page_of(_sample_findings())
    assert "1.20 (1.15 – 1.25)" in text
    assert "1.60 (1.55 – 1.65)" in text  # without shared memory, which has no goal
    assert "1.40 (1.40 – 1.40)" in text


def test_scaling_is_the_ratio_of_one_core_to_two_for_the_faster_solver() -> None:
    text = page.page_of(_sample_findings())
    strong = next(table for table in _tables(text) if "strong: ranks" in table[0])
    fit = next(row for row in strong if row[0] == "whole fit")
    assert fit[1:5] == ["1.60 (1.60 – 1.60)", "1.80 (1.80 – 1.80)", "0.80 (0.80 – 0.80)", "0.90 (0.90 – 0.90)"]
    beside = next(table for table in _tables(text) if table[0][0] == "time on ranks divided by that of")
    assert "arpack" in beside[0][3]
    assert beside[2][1:] == ["0.89 (0.89 – 0.89)", "1.00 (1.00 – 1.00)", "4.00 (4.00 – 4.00)", "2.50 (2.50 – 2.50)"]


def test_the_model_is_compared_with_every_check() -> None:
    found = _sample_findings()
    table = next(table for table in _tables(page.page_of(found)) if "predicted / measured" in table[0])
    one = sorted(found.checks, key=lambda c: (c.ranks, c.features, c.collective))[0]
    seconds = page_model.expected(found.costs, one, 2)
    expected = gossip(found.costs, Share(300, 5, check.ROW_BYTES), rounds=check.ROUNDS, neighbours=2.0)
    close(seconds, 2 * expected.seconds, rtol=1e-14)  # four ranks on two cores
    assert len(table) == 2 + len(found.checks)


def test_predictions_are_labelled_and_follow_the_formulas() -> None:
    found = _sample_findings()
    text = page.page_of(found)
    assert text.count("**A prediction, not a measurement:**") == len(page_model.PROBLEMS)
    problem = page_model.PROBLEMS[0]
    last = page_model.predicted(found.costs, problem)[-1]
    assert last.ranks == 4096
    again = allreduce(found.costs, Share(1_000, 5, 32e9 / 4096), ranks=4096)
    assert last.allreduce == again
    first = page_model.predicted(found.costs, problem)[0].allreduce
    assert f"{first.seconds / again.seconds:.3g} (" in text


def test_speed_up_without_communication_is_ideal() -> None:
    nothing = Line(0.0, 0.0)
    free = Costs(nothing, nothing, nothing, nothing, nothing, nothing, ((1_000, Line(0.0, 1e-10)),), 0.0)
    seconds = [at.torus.seconds for at in page_model.predicted(free, page_model.PROBLEMS[0])]
    close(np.array(seconds[0]) / seconds, [1.0, 4.0, 16.0, 64.0], rtol=1e-12)


def test_the_page_reports_missing_measurements() -> None:
    found = _sample_findings()
    text = page.page_of(replace(found, scalings=found.scalings[:1], missing=["w8a"], quick=True))
    assert "Not measured, because the data are not available: w8a." in text
    assert "**A quick run:**" in text
    assert "this machine has one core" in page.page_of(replace(found, scalings=[]))


def test_the_page_reports_a_busy_machine() -> None:
    found = _sample_findings()
    assert "was busy" not in page.page_of(found)
    assert "**The machine was busy:** other processes used 1.2 of" in page.page_of(replace(found, load=1.2))


def test_findings_can_be_restored_from_json() -> None:
    found = _sample_findings()
    for one in (found.parities[0], found.timings[0], found.checks[0]):
        again = type(one)(**json.loads(json.dumps(asdict(one))))
        assert json.dumps(asdict(again)) == json.dumps(asdict(one))
    lines = dict.fromkeys(_LINES, ((1.0, 2.0), (3.0, 6.0)))
    samples = costs.Samples(**lines, product=((300, ((1.0, 2.0), (3.0, 6.0))),), tiny=20.0)
    read = costs.Samples(**json.loads(json.dumps(asdict(samples))))
    assert costs.as_costs(read) == costs.as_costs(samples)


def test_disagreeing_engines_are_rejected() -> None:
    answers = {"mpi": 1.0, "simulator": 1.0, "scikit-learn": 1.01}

    class FakeJob:
        def __init__(self, engine: str) -> None:
            self._engine = engine

        def ask(self, question: dict[str, Any]) -> dict[str, Any]:
            return {"seconds": 1.0, "variances": [answers[self._engine]]}

    measured = partial(scaling.measure_one, "dense", True, repetitions=1, tick=lambda _: None)
    engines: Any = {(engine, cores): FakeJob(engine) for engine in answers for cores in (1, 2)}
    with pytest.raises(scaling.EnginesDisagree):
        measured(jobs=engines)
    answers["scikit-learn"] = 1.0
    assert set(measured(jobs=engines).times) == set(scaling.asked())
