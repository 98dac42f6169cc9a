"""What happens where messages get lost one way: agents agree on something wrong, and a certificate finds out."""

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

__all__ = ["LOSSES", "MOST_ITERATIONS", "STUDY", "Outcome", "Task", "judge", "study", "work"]

_AGENTS = 20
MOST_ITERATIONS = 400
LOSSES = (1e-4, 1e-3, 1e-2)  # probabilities that a message is lost
_UNTIL = 300  # rounds


@dataclass(frozen=True)
class Task:
    """One draw of losses: each message with that probability, in rounds before ``until`` or for ever."""

    loss: float
    until: int | None
    seed: int

    @property
    def cost(self) -> float:
        return 1.0


@dataclass(frozen=True)
class Outcome:
    """With and without a certificate, from the same losses.

    blind : tan θ without one.  apart : tan θ between agents then.  said : its status.
    error : tan θ with one.  restarts : of tracking.  status : what is said.  proven : whether that is a certificate.
    """

    blind: float
    apart: float
    said: str
    error: float
    restarts: int
    status: str
    proven: bool


def work(source: DataSource, task: Task) -> Record:
    """Digits on an Erdős–Rényi graph, five rounds of gossip per iteration."""
    problem = Problem("digits", 5, _AGENTS, arrangement="file")
    base = graphs.erdos_renyi(_AGENTS, 0.5, seed=0)
    losing = time_varying.lossy(base, task.loss, seed=task.seed, until=task.until)
    A, W0, U = operator_of(problem, source), start_of(problem, source), truth_of(problem, source).U(problem.k)

    def made(certify: bool) -> Any:
        algorithm = AcceleratedDeEPCA(A, W0, SimulatedNetwork(losing), Gossip(5))
        return solve(algorithm, max_iter=MOST_ITERATIONS, stop=Tolerance(TOLERANCE), certify=certify)

    blind, seeing = made(False), made(True)
    return asdict(
        Outcome(
            float(tan_theta(U, blind.W).max()),
            float(tan_theta(blind.W[0], blind.W[1:]).max()),
            blind.status.code,
            float(tan_theta(U, seeing.W).max()),
            seeing.restarts,
            seeing.status.code,
            seeing.certificate is not None and seeing.certificate.proves(TOLERANCE),
        )
    )


def study(setting: Setting) -> Section:
    """Run what is not stored, and judge."""
    draws = 1 if setting.reduced else 6
    tasks = [Task(loss, until, seed) for until in (_UNTIL, None) for loss in LOSSES for seed in range(draws)]
    records = run(tasks, partial(work, setting.source), setting.store, setting.jobs, setting.progress)
    return judge({task: Outcome(**records[task]) for task in tasks})


STUDY = Study("messages lost one way", study)


def judge(outcomes: dict[Task, Outcome]) -> Section:
    """Judge what the runs have found, and say it in a section of the page."""
    ending = {task: outcome for task, outcome in outcomes.items() if task.until is not None}
    wrong = [outcome for outcome in ending.values() if outcome.blind > 1e3 * TOLERANCE]
    restarts = max(outcome.restarts for outcome in ending.values())
    worst = max(outcome.blind for outcome in ending.values())
    claimed = [outcome for outcome in outcomes.values() if outcome.proven or outcome.status == "converged"]
    false = [outcome for outcome in claimed if not outcome.error <= TOLERANCE]
    repaired = [outcome for outcome in ending.values() if outcome.status == "converged" and outcome.error <= TOLERANCE]
    assertions = (
        Assertion(
            "Without a certificate, losses leave wrong answers: the study can see a failure.",
            f"{len(wrong)} of {len(ending)} runs more than 1e-7 off, the worst by {worst:.0e}",
            len(wrong) > len(ending) // 3,
        ),
        Assertion(
            "Nothing that is said to be proven or converged is wrong, whether losses end or not.",
            f"{len(false)} of {len(claimed)} such runs are more than 1e-10 off",
            not false,
        ),
        Assertion(
            "Where losses end, tracking begins again and every run ends within 1e-10.",
            f"{len(repaired)} of {len(ending)} runs; restarts of one run: at most {restarts}",
            len(repaired) == len(ending),
        ),
    )
    by_group: dict[tuple[float, int | None], list[Outcome]] = {}
    for task, outcome in outcomes.items():
        by_group.setdefault((task.loss, task.until), []).append(outcome)
    rows = tuple(_row(loss, until, found) for (loss, until), found in by_group.items())
    header = ("lost", "in rounds", "without: error", "apart", "says", "with: error", "restarts", "says")
    note = (
        f"Of {len(next(iter(by_group.values())))} runs each. First without a certificate: tan θ to the pooled answer, "
        "median and worst run; tan θ between agents, worst run; and what the status says. Then the same losses with a "
        "certificate, which is the default: tan θ at the worst, restarts of tracking, and what the status says."
    )
    table = Table("digits, 20 agents, the accelerated method with five rounds", header, rows, note=note, heads=2)
    return Section("Messages lost one way", _TEXT, assertions, (table,))


def _row(loss: float, until: int | None, found: list[Outcome]) -> tuple[str, ...]:
    blind = np.array([outcome.blind for outcome in found])
    restarts = [outcome.restarts for outcome in found]
    return (
        f"{loss:.2%}",
        "all" if until is None else f"the first {until}",
        f"{np.median(blind):.0e}, {blind.max():.0e}",
        f"{max(outcome.apart for outcome in found):.0e}",
        _said([outcome.said for outcome in found]),
        f"{max(outcome.error for outcome in found):.0e}",
        f"{min(restarts)}" if min(restarts) == max(restarts) else f"{min(restarts)} … {max(restarts)}",
        _said([outcome.status for outcome in found]),
    )


def _said(codes: list[str]) -> str:
    """How often which status, the most frequent first."""
    return ", ".join(f"{code.replace('_', ' ')} ({n})" for code, n in Counter(codes).most_common())


_TEXT = """
A link that is down for both ends costs rounds and nothing else: both keep what they would have sent, and the sum
stays (`failing`, above). A message that is lost while its sender believes it has arrived is another matter. Whoever
misses it uses its own numbers in their place (`deepca.topology.time_varying.lossy`), and the sum over all agents is no
longer what is tracked. Agents still come near to each other, only around something else. Few losses look like success,
and many like too few rounds.

A certificate averages anew, with a known error, and compares. Where tracking has drifted, it begins again at the
subspace reached, up to three times. Where losses never end, fresh averages are wrong as well: a number whose mean is
known travels along and says so, nothing is proven, and the status names the cause.
"""
