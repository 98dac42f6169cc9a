"""Measure the effect of one-way message loss: agents agree on a wrong answer, and a certificate detects it."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from deepca import topology as graphs
from deepca.algorithms import AcceleratedDeEPCA
from deepca.consensus.mixers import Gossip
from deepca.network import SimulatedNetwork
from deepca.operators.linalg import tan_theta
from deepca.reproduction.problems import DataSource
from deepca.solver.loop import solve
from deepca.solver.stopping import Tolerance
from deepca.topology import time_varying
from studies.networks.costs import TOLERANCE
from studies.shared.problems import Problem, operator_of, start_of, truth_of
from studies.shared.report import Assertion, Section, Setting, Study, Table
from studies.shared.store import Record, run

__all__ = ["LOSSES", "MAX_ITER", "STUDY", "Outcome", "Task", "judge", "study", "work"]

_AGENTS = 20
MAX_ITER = 400  # maximum number of iterations of a run
LOSSES = (1e-4, 1e-3, 1e-2)  # probability that a message is lost
_LOSSY_ROUNDS = 300  # rounds with losses, in the runs where losses end


@dataclass(frozen=True)
class Task:
    """One draw of losses: each message is lost with probability ``loss``, in rounds before ``until`` or always."""

    loss: float
    until: int | None
    seed: int

    @property
    def cost(self) -> float:
        """Relative duration."""
        return 1.0


@dataclass(frozen=True)
class Outcome:
    """Outcome with and without a certificate, for the same losses.

    Parameters
    ----------
    error_uncertified : float
        tan θ at the worst agent without a certificate.
    disagreement_uncertified : float
        Largest tan θ between agents without a certificate.
    status_uncertified : str
        Status without a certificate.
    error : float
        tan θ at the worst agent with a certificate.
    restarts : int
        Restarts of tracking with a certificate.
    status : str
        Status with a certificate.
    proven : bool
        Whether the certificate proves the tolerance.
    """

    error_uncertified: float
    disagreement_uncertified: float
    status_uncertified: str
    error: float
    restarts: int
    status: str
    proven: bool


def work(source: DataSource, task: Task) -> Record:
    """Solve digits on an Erdős–Rényi graph with five gossip rounds per iteration."""
    problem = Problem("digits", 5, _AGENTS, arrangement="file")
    base = graphs.erdos_renyi(_AGENTS, 0.5, seed=0)
    losing = time_varying.lossy(base, task.loss, seed=task.seed, until=task.until)
    A, W0, U = operator_of(problem, source), start_of(problem, source), truth_of(problem, source).U(problem.k)

    def solved(certify: bool) -> Any:
        algorithm = AcceleratedDeEPCA(A, W0, SimulatedNetwork(losing), Gossip(5))
        return solve(algorithm, max_iter=MAX_ITER, stop=Tolerance(TOLERANCE), certify=certify)

    blind, certified = solved(False), solved(True)
    return asdict(
        Outcome(
            float(tan_theta(U, blind.W).max()),
            float(tan_theta(blind.W[0], blind.W[1:]).max()),
            blind.status.code,
            float(tan_theta(U, certified.W).max()),
            certified.restarts,
            certified.status.code,
            certified.certificate is not None and certified.certificate.proves(TOLERANCE),
        )
    )


def study(setting: Setting) -> Section:
    """Run whatever is not stored, and judge the outcomes."""
    draws = 1 if setting.reduced else 6
    tasks = [Task(loss, until, seed) for until in (_LOSSY_ROUNDS, None) for loss in LOSSES for seed in range(draws)]
    records = run(tasks, partial(work, setting.source), setting.store, setting.jobs, setting.progress)
    return judge({task: Outcome(**records[task]) for task in tasks})


STUDY = Study("one-way message loss", study)


def judge(outcomes: dict[Task, Outcome]) -> Section:
    """Judge the outcomes and return the section of the page."""
    ending = {task: outcome for task, outcome in outcomes.items() if task.until is not None}
    wrong = [outcome for outcome in ending.values() if outcome.error_uncertified > 1e3 * TOLERANCE]
    restarts = max(outcome.restarts for outcome in ending.values())
    worst = max(outcome.error_uncertified for outcome in ending.values())
    claimed = [outcome for outcome in outcomes.values() if outcome.proven or outcome.status == "converged"]
    false = [outcome for outcome in claimed if not outcome.error <= TOLERANCE]
    repaired = [outcome for outcome in ending.values() if outcome.status == "converged" and outcome.error <= TOLERANCE]
    assertions = (
        Assertion(
            "Without a certificate, losses lead to wrong answers, so the study can detect a failure.",
            f"{len(wrong)} of {len(ending)} runs more than 1e-7 off, the worst by {worst:.0e}",
            len(wrong) > len(ending) // 3,
        ),
        Assertion(
            "No run reported as proven or converged is wrong, whether or not losses end.",
            f"{len(false)} of {len(claimed)} such runs are more than 1e-10 off",
            not false,
        ),
        Assertion(
            "Where losses end, tracking restarts and every run ends within 1e-10.",
            f"{len(repaired)} of {len(ending)} runs; restarts of one run: at most {restarts}",
            len(repaired) == len(ending),
        ),
    )
    by_group: dict[tuple[float, int | None], list[Outcome]] = {}
    for task, outcome in outcomes.items():
        by_group.setdefault((task.loss, task.until), []).append(outcome)
    rows = tuple(_row(loss, until, found) for (loss, until), found in by_group.items())
    header = ("lost", "in rounds", "without: error", "disagreement", "status", "with: error", "restarts", "status")
    note = (
        f"{len(next(iter(by_group.values())))} runs per row. First without a certificate: tan θ to the pooled answer "
        "(median and worst run), tan θ between agents (worst run), and the status. Then with a certificate, which is "
        "the default, and the same losses: tan θ of the worst run, restarts of tracking, and the status."
    )
    table = Table("digits, 20 agents, the accelerated method with five rounds", header, rows, note=note, heads=2)
    return Section("One-way message loss", _TEXT, assertions, (table,))


def _row(loss: float, until: int | None, found: list[Outcome]) -> tuple[str, ...]:
    blind = np.array([outcome.error_uncertified for outcome in found])
    restarts = [outcome.restarts for outcome in found]
    return (
        f"{loss:.2%}",
        "all" if until is None else f"the first {until}",
        f"{np.median(blind):.0e}, {blind.max():.0e}",
        f"{max(outcome.disagreement_uncertified for outcome in found):.0e}",
        _status_counts([outcome.status_uncertified for outcome in found]),
        f"{max(outcome.error for outcome in found):.0e}",
        f"{min(restarts)}" if min(restarts) == max(restarts) else f"{min(restarts)} … {max(restarts)}",
        _status_counts([outcome.status for outcome in found]),
    )


def _status_counts(codes: list[str]) -> str:
    """Count the statuses, the most frequent first."""
    return ", ".join(f"{code.replace('_', ' ')} ({n})" for code, n in Counter(codes).most_common())


_TEXT = """
A link that is down for both ends costs only rounds: both ends keep what they would have sent, and the sum is preserved
(`failing`, above). A message that is lost without its sender knowing is different. The receiver uses its own values
instead (`deepca.topology.time_varying.lossy`), so the sum over all agents no longer matches the quantity being tracked.
Agents still approach a consensus, but on the wrong value. Few losses look like success, and many look like too few
rounds.

A certificate computes fresh averages, with a known error, and compares. Where tracking has drifted, it restarts from
the current subspace, up to three times. Where losses never end, the fresh averages are wrong as well: a control value
with a known mean reveals this, nothing is proven, and the status names the cause.
"""
