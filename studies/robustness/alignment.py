"""Compare orthonormalisations: QR with SignAdjust, QR with a positive diagonal, and the polar factor."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, get_args

import numpy as np

from deepca._util.typing import Array, Orthonormalise
from deepca.algorithms import DeEPCA
from deepca.algorithms.base import QRSignAdjust
from deepca.operators.linalg import polar, qr
from deepca.reproduction.problems import DataSource
from studies.robustness.convergence import centralised, decentralised, settle
from studies.robustness.families import Family, MixerName, families, few_rounds, mixer_of, work_of
from studies.shared.problems import Problem, accuracy_of, build_inputs, is_available, run_problems
from studies.shared.report import Assertion, Section, Setting, Study, Table
from studies.shared.store import Record

__all__ = ["STUDY", "Alignment", "Outcome", "Task", "judge", "study", "tasks_of", "work"]

Alignment = Literal["sign-adjust", "qr", "polar", "default"]
_ALIGNMENTS: tuple[Alignment, ...] = get_args(Alignment)
_NAMES: dict[Alignment, str] = {"sign-adjust": "SignAdjust", "qr": "QR", "polar": "polar", "default": "default"}
_MAKE: dict[Alignment, Callable[[Array], Orthonormalise | None]] = {
    "sign-adjust": QRSignAdjust,
    "qr": lambda _W0: qr,
    "polar": lambda _W0: polar,
    "default": lambda _W0: None,
}
_PATIENCE, _EXTRA = 5, 100  # a run may take _PATIENCE times the iterations of the power method, plus _EXTRA
_POWER_MAX_ITER = 1_000_000  # more than any problem here needs
_MAX_SLOWDOWN = 1.1  # allowed median ratio of iterations to the power method's


@dataclass(frozen=True)
class Task:
    """One run of DeEPCA with one orthonormalisation."""

    problem: Problem
    rounds: int
    mixer: MixerName
    alignment: Alignment

    @property
    def cost(self) -> float:
        """Relative duration."""
        return work_of(self.problem)


@dataclass(frozen=True)
class Outcome:
    """Iterations and final errors of a run.

    Parameters
    ----------
    iterations : int or None
        Iterations after which the worst agent stayed within the accuracy; None if that took longer than allowed.
    yardstick : int
        The same for power iterations on the pooled matrix.
    error, yardstick_error : float or None
        Errors at the end; None if not finite.
    accuracy : float
        tan θ that counts as converged.
    """

    iterations: int | None
    yardstick: int
    error: float | None
    yardstick_error: float | None
    accuracy: float

    @property
    def converged(self) -> bool:
        """Whether the accuracy was reached."""
        return self.iterations is not None

    @property
    def ratio(self) -> float:
        """Iterations as a multiple of the yardstick; infinite if not converged."""
        return math.inf if self.iterations is None else self.iterations / self.yardstick


Outcomes = dict[Alignment, list[Outcome]]
"""Outcomes of the draws of one family, by orthonormalisation."""


def work(source: DataSource, task: Task) -> Record:
    """Run the power method as the yardstick, then DeEPCA."""
    problem = task.problem
    A, W0, network, truth, U = build_inputs(problem, source)
    accuracy = accuracy_of(truth, problem.k)
    yardstick = settle(centralised(A.mean(), W0, U), accuracy, _POWER_MAX_ITER)
    if yardstick.iterations is None:
        raise RuntimeError(f"the power method does not reach {accuracy:.0e} on {problem}")
    algorithm = DeEPCA(A, W0, network, mixer_of(task.mixer, task.rounds), _MAKE[task.alignment](W0))
    settled = settle(decentralised(algorithm, U), accuracy, _PATIENCE * yardstick.iterations + _EXTRA)
    return asdict(Outcome(settled.iterations, yardstick.iterations, settled.error, yardstick.error, accuracy))


def study(setting: Setting) -> Section:
    """Run whatever is not stored, and judge the outcomes."""
    wanted = [*families(reduced=setting.reduced), *few_rounds(reduced=setting.reduced)]
    here = [family for family in wanted if is_available(family.problem, setting.source)]
    records = run_problems([task for family in here for task in tasks_of(family)], work, setting)
    results = {family: _outcomes(family, records) for family in here}
    return judge(results, [family for family in wanted if family not in results])


STUDY = Study("alignment", study)


def tasks_of(family: Family) -> list[Task]:
    """Return the tasks of a family: each of its problems with every orthonormalisation."""
    return [
        Task(problem, family.rounds, family.mixer, alignment)
        for problem in family.problems()
        for alignment in _ALIGNMENTS
    ]


def _outcomes(family: Family, records: Mapping[Task, Record]) -> Outcomes:
    found: Outcomes = {alignment: [] for alignment in _ALIGNMENTS}
    for task in tasks_of(family):
        found[task.alignment].append(Outcome(**records[task]))
    return found


# ---------------------------------------------------------------------------------------------------------- verdicts

Results = Mapping[Family, Outcomes]
_TEXT = f"""
Every agent turns its S_j into an orthonormal W_j. DeEPCA uses QR and flips the sign of columns that point away from W⁰
(SignAdjust). It is compared with QR with a positive diagonal of R; with the polar factor, the orthonormal matrix
nearest to S_j; and with the default, which uses QR in the first two iterations to sort the columns by size, and the
polar factor afterwards. Each family has draws of graph, W⁰ and data, shared by all four, and one K with which the
method is known to work; the last table shows the effect of fewer rounds. A run has converged when the tan θ of its
worst agent is at most 1e-8 (or 100 eps λ₁/(λ_k − λ_(k+1)), where rounding prevents 1e-8) and stays there. It may take
{_PATIENCE} times the iterations of the power method on the pooled matrix from the same W⁰, called the yardstick, plus
{_EXTRA}; any run that takes longer counts as not converged, whether it is stuck or slow.
"""


def judge(results: Results, missing: Sequence[Family]) -> Section:
    """Judge the outcomes and return the section of the page."""
    main = {family: found for family, found in results.items() if family.group != "few rounds"}
    edge = {family: found for family, found in results.items() if family.group == "few rounds"}
    names = ", ".join(dict.fromkeys(str(family.problem.data) for family in missing))
    skipped = f"\n\nNot run, because no data folder was given: the families on {names}." if names else ""
    return Section(
        "Orthonormalisation",
        " ".join(_TEXT.split()) + skipped,
        _assertions(main),
        (_main_table(main), _floor_table(main), _edge_table(edge)),
    )


def _assertions(main: Results) -> tuple[Assertion, ...]:
    usual = {family: found for family, found in main.items() if family.group != "rounding"}
    close = {family: found for family, found in usual.items() if family.group == "close"}
    rest = {family: found for family, found in main.items() if family.group != "close"}
    rounding = {family: found for family, found in main.items() if family.group == "rounding"}
    signs = sum(
        qr_run.converged and not adjusted.converged
        for found in main.values()
        for qr_run, adjusted in zip(found["qr"], found["sign-adjust"], strict=True)
    )
    stuck, broken = _where_lost(main, "default"), _where_lost(usual, "sign-adjust")
    return (
        Assertion(
            "The default converges in every draw.",
            f"{_share(main, 'default')} draws{f'; failures in {stuck}' if stuck else ''}. "
            f"Polar alone: {_share(main, 'polar')}, because rounding stops it where the A_j are indefinite and "
            f"λ₁/λ_k ≥ 1e6 ({_share(rounding, 'polar')}; default {_share(rounding, 'default')}, "
            f"QR {_share(rounding, 'qr')})",
            not stuck,
        ),
        Assertion(
            "SignAdjust does not, so the study can detect a failure.",
            f"{_share(usual, 'sign-adjust')} draws; failures in {broken or 'none'}. "
            f"In {signs} of them QR converges, so the signs are the cause",
            bool(broken),
        ),
        _keeps_pace("The default keeps pace with the power method where eigenvalues in the top k are close", close),
        _keeps_pace("The same in every other family", rest),
    )


def _share(results: Results, alignment: Alignment) -> str:
    outcomes = [outcome for found in results.values() for outcome in found[alignment]]
    return f"{len(outcomes) - _lost(outcomes)} of {len(outcomes)}"


def _where_lost(results: Results, alignment: Alignment) -> str:
    lost = {family.name: _lost(found[alignment]) for family, found in results.items()}
    return ", ".join(f"{name} ({count})" for name, count in lost.items() if count)


def _keeps_pace(statement: str, results: Results) -> Assertion:
    median = {family.name: _median(found["default"]) for family, found in results.items()}
    behind = {
        family.name: float(np.median([(outcome.ratio - 1.0) * outcome.yardstick for outcome in found["default"]]))
        for family, found in results.items()
    }
    slowest = max(median, key=lambda name: median[name])
    worst = max(outcome.ratio for found in results.values() for outcome in found["default"])
    return Assertion(
        f"{statement}: at most {_MAX_SLOWDOWN} × its iterations, or two more, in the median of each family.",
        f"largest median {_times(median[slowest])} ({slowest}), worst draw {_times(worst)}",
        all(median[name] <= _MAX_SLOWDOWN or behind[name] <= 2.0 for name in median),
    )


def _lost(outcomes: Sequence[Outcome]) -> int:
    return sum(not outcome.converged for outcome in outcomes)


def _median(outcomes: Sequence[Outcome]) -> float:
    return float(np.median([outcome.ratio for outcome in outcomes]))


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if math.isfinite(ratio) else "–"


def _main_table(main: Results) -> Table:
    header = ["family", "K", "draws", "yardstick"]
    for alignment in _ALIGNMENTS:
        header += [f"{_NAMES[alignment]}: converged", "median", "worst"]
    rows = []
    for family, found in main.items():
        yardstick = float(np.median([outcome.yardstick for outcome in found["polar"]]))
        row = [family.name, str(family.rounds), str(len(found["polar"])), f"{yardstick:g}"]
        for alignment in _ALIGNMENTS:
            outcomes = found[alignment]
            worst = max(outcome.ratio for outcome in outcomes)
            row += [str(len(outcomes) - _lost(outcomes)), _times(_median(outcomes)), _times(worst)]
        rows.append(tuple(row))
    return Table(
        "Iterations as multiples of the yardstick",
        tuple(header),
        tuple(rows),
        "A dash means that the median or worst draw did not reach the accuracy. Ratios below 1, that is, fewer "
        "iterations than the power method, occur where agents differ strongly and K is small; with more rounds the "
        "ratio approaches 1.",
    )


def _floor_table(main: Results) -> Table:
    chosen = {family: found for family, found in main.items() if family.group in ("condition", "rounding")}
    rows = []
    for family, found in chosen.items():
        ends = [_end([outcome.yardstick_error for outcome in found["polar"]])]
        ends += [_end([outcome.error for outcome in found[alignment]]) for alignment in _ALIGNMENTS]
        rows.append((family.name, f"{found['polar'][0].accuracy:.0e}", *ends))
    return Table(
        "Rounding floor",
        ("family", "required", "power method", *(_NAMES[alignment] for alignment in _ALIGNMENTS)),
        tuple(rows),
        "tan θ of the worst agent at the end of the run, median over the draws. With indefinite A_j, the floor "
        "of polar grows like (λ₁/λ_k)²: its columns mix all directions, so rounding errors in the large ones, which "
        "differ between agents, reach the small ones through A_j. The columns of QR are sorted by size.",
    )


def _end(errors: Sequence[float | None]) -> str:
    return f"{float(np.median([math.inf if error is None else error for error in errors])):.0e}"


def _edge_table(edge: Results) -> Table:
    rows, behind = [], []
    for family, found in edge.items():
        converged = {alignment: len(found[alignment]) - _lost(found[alignment]) for alignment in _ALIGNMENTS}
        cells = [
            f"{converged[alignment]} ({_times(_median(found[alignment]))})" if converged[alignment] else "0"
            for alignment in _ALIGNMENTS
        ]
        rows.append((family.name, str(family.rounds), str(len(found["polar"])), *cells))
        if converged["default"] < converged["qr"]:
            behind.append(f"{family.name} with K = {family.rounds}")
    note = "In brackets: median iterations as a multiple of the yardstick, – if most draws do not converge. "
    note += (
        f"The default converges in fewer draws than QR for: {'; '.join(behind)}."
        if behind
        else "The default converges in at least as many draws as QR in every row."
    )
    return Table(
        "Too few rounds: draws that converge",
        ("problem", "K", "draws", *(_NAMES[alignment] for alignment in _ALIGNMENTS)),
        tuple(rows),
        note,
        heads=1,
    )
