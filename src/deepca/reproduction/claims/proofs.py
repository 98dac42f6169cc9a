"""Judge the statements of the paper's proofs, most of which need no run."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from deepca import topology as graphs
from deepca.algorithms import theory
from deepca.consensus.mixers import FastMix
from deepca.consensus.rates import response
from deepca.reproduction.cells import Cell, Outcome
from deepca.reproduction.claims.setting import Setting, problem_of
from deepca.reproduction.pages.report import Claim
from deepca.reproduction.problems import graph_of

__all__ = ["judge_proofs"]


def judge_proofs(setting: Setting, outcomes: Mapping[Cell, Outcome]) -> list[Claim]:
    """Judge the FastMix proposition, and the statements that the paper misprints, with the numbers of one data set."""
    claims = [_fastmix()]
    problem = problem_of(setting)
    if problem is None:
        return claims
    outcome = outcomes[setting.base]
    start = outcome.tan_start
    return [
        *claims,
        _direction(),
        _second_logarithm(setting, problem, start),
        _monotone(setting, problem, start),
        _third_condition(setting, problem, start),
        _finite(),
        _base_case(setting, outcome),
        _disagreement(setting, problem, outcome),
    ]


def _fastmix() -> Claim:
    graph, path, mix = graph_of("paper", 50, 0), graphs.path(50), FastMix(rounds=1)
    true = [float(np.abs(response(mix, graph, K, graph.eigenvalues[1:])).max()) for K in range(1, 61)]
    printed = [theory.rho(graph, K, form="printed") for K in range(1, 61)]
    proven = [mix.contraction(graph, K) for K in range(1, 61)]
    wrong = [K for K, (a, b) in enumerate(zip(true, printed, strict=True), 1) if a > b]
    worst = max(a / b for a, b in zip(true, printed, strict=True))
    expands = float(np.abs(response(mix, path, 2, path.eigenvalues[1:])).max())
    holds = all(a <= b * (1 + 1e-9) for a, b in zip(true, proven, strict=True))
    return Claim(
        "FastMix",
        "Proposition 1",
        "FastMix contracts by (1 − √(1−λ₂))^K.",
        f"False for K ≤ {max(wrong)} on the paper's graph (up to {worst:.1f} × too small); on a path of 50, K = 2 "
        f"expands by {expands:.2f}. The bound [(K+1)(1−√η)+√(2η)] η^(K/2) "
        + ("holds for all K ≤ 60." if holds else "fails as well."),
        "differs" if wrong else "holds",
        "The proposition omits the polynomial factor of the recurrence; for large K it is correct.",
    )


def _direction() -> Claim:
    return Claim(
        "K as printed",
        "Theorem 1",
        "K ≤ 1/√(1−λ₂) · log(…).",
        "The proof needs a small ρ, hence K ≥ …; K ≤ … would not constrain K at all.",
        "differs",
        "A misprint.",
    )


def _second_logarithm(setting: Setting, problem: theory.Problem, start: float) -> Claim:
    T, printed = (theory.iterations(problem, start, 1e-10, form=form) for form in ("corrected", "printed"))
    safe = "so nothing breaks here" if printed >= T else "so the printed T is too small here"
    return Claim(
        "T as printed",
        "Theorem 1, T",
        "T has log(4(λ_k+2L)ℓ₀ / (√m(λ_k−λ_(k+1))ε)) as its second logarithm.",
        f"The proof needs log(4√m(λ_k−λ_(k+1))ℓ₀ / ((λ_(k+1)+2L)ε)). {setting.data}: T = {T}, printed {printed}, "
        f"{safe}.",
        "differs",
        "The paper prints the inverse of the factor.",
    )


def _monotone(setting: Setting, problem: theory.Problem, start: float) -> Claim:
    first, later = theory.rho_bound(problem, start, 1), theory.rho_bound(problem, start, 50)
    return Claim(
        "condition on rho",
        "Remark 1, proof of Theorem 1",
        "The right-hand side of the condition on ρ decreases with t.",
        f"{setting.data}: from {first:.1e} (t = 1) to {later:.1e} (t = 50).",
        "holds" if later < first else "differs",
        "It increases, so the first iterations decide, which strengthens the conclusion that K need not grow.",
    )


def _third_condition(setting: Setting, problem: theory.Problem, start: float) -> Claim:
    few, decides = theory.rho_bound(problem, start), None
    for power in range(2, 19):
        many = theory.Problem(problem.k, 10**power, problem.lambda_k, problem.lambda_k1, problem.L)
        if theory.rho_bound(many, start) < 0.999 * few:
            decides = power
            break
    where = f"from about 10^{decides} agents on" if decides else "for no number of agents tried"
    return Claim(
        "third condition",
        "Proof of Theorem 1",
        "Of the conditions on ρ only the second matters.",
        f"{setting.data}: the third, which has √m in its denominator, is the stronger one {where}.",
        "holds" if decides is None or decides > 6 else "partly",
        "Correct for every realistic number of agents." if decides is None or decides > 6 else "",
    )


def _finite() -> Claim:
    return Claim(
        "zero next eigenvalue",
        "Theorem 1 (implied)",
        "K is finite whenever λ_k > λ_(k+1).",
        "For λ_(k+1) = 0 the printed K is infinite; keeping the proof's factor λ_k(λ_(k+1)+2L) makes it finite.",
        "differs",
        "The proof replaces 2Lλ_k by 2Lλ_(k+1), which is not needed.",
    )


def _base_case(setting: Setting, outcome: Outcome) -> Claim:
    return Claim(
        "base case",
        "Proof of Lemma 1, base case",
        "The agents agree at first, because they share W⁰.",
        f"{setting.data}: after the first step, with K = {outcome.cell.K}, ‖S − S̄⊗1‖ = "
        f"{outcome.S_disagreement[0]:.2g}: since A_jW_j^(−1) := W⁰, the first product A_jW⁰ enters in full.",
        "differs",
        "The agents agree on S⁰ but not on S¹; with random W⁰, no bound was seen to fail for that reason.",
    )


def _disagreement(setting: Setting, problem: theory.Problem, outcome: Outcome) -> Claim:
    """Judge the lemma ``‖S^t − S̄^t⊗1‖/√m ≤ 4ρL(√k+1) γ^{t−2} ℓ₀``, down to rounding."""
    cell, gamma = outcome.cell, theory.gamma(problem)
    rho = theory.rho(graph_of(cell.graph, cell.agents, cell.draw), cell.K)
    t = np.arange(1, outcome.S_disagreement.size + 1)
    bound = 4 * rho * problem.L * (math.sqrt(problem.k) + 1) * gamma ** (t - 2.0) * outcome.tan_start
    measured = outcome.S_disagreement / math.sqrt(cell.agents)
    seen = measured > 1e-12 * problem.L  # above rounding
    ratio = float((measured[seen] / bound[seen]).max())
    return Claim(
        "disagreement",
        "Lemma 1",
        "The disagreement shrinks by γ per iteration: ‖S − S̄⊗1‖/√m ≤ 4ρL(√k+1) γ^(t−2) ℓ₀.",
        f"{setting.data}, K = {cell.K}: at most {ratio:.2g} of the bound, over all iterations above rounding.",
        "holds" if ratio <= 1 else "differs",
        "It fails for QR with SignAdjust where eigenvalues within the top k are close: QR rotates the "
        "basis at the rate λ_(i+1)/λ_i, which may exceed γ.",
    )
