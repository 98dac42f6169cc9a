"""Judge the paper's claims about convergence and communication."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from deepca.algorithms import theory
from deepca.consensus.mixers import fastmix_eta
from deepca.reproduction.cells import Alignment, Cell, Outcome
from deepca.reproduction.claims.setting import Setting, problem_of
from deepca.reproduction.pages.report import Claim, Verdict
from deepca.reproduction.problems import graph_of, operator_of
from deepca.reproduction.studies import PAPER, paper_cells

__all__ = ["claim_cells", "judge"]

Outcomes = Mapping[Cell, Outcome]
_ALIGNMENTS: tuple[Alignment, ...] = ("sign-adjust", "qr", "polar", "none")
# cells for the claims on heterogeneity and on SignAdjust
_SPREADS, _SPREAD_ROUNDS, _SPREAD_DRAWS, _SIGN_DRAWS = (0.0, 1.0, 16.0), (1, 2, 3, 5), range(2), range(8)
_INDEFINITE_SPREAD = 4.0  # makes most A_j indefinite
_LENGTH_FACTOR = 4  # factor by which runs with K = 3 and another k are longer, so that slow convergence shows


def claim_cells(setting: Setting) -> list[Cell]:
    """Return the cells that :func:`judge` needs."""
    base = setting.base
    cells = paper_cells(setting.data, setting.k, base.iterations, setting.draws)
    cells += [base.with_fields(K=K, draw=draw) for K in setting.tried_rounds for draw in setting.draws_of(K)]
    cells += [_cpca(base, draw) for draw in setting.draws_of(3)]
    cells += [base.with_fields(method="DePCA", K=K) for K in _plateau_rounds(setting)]
    cells += [cell for k in setting.other_k for cell in _other_k(setting, k)]
    cells += [cell for cell in [_theorem_cell(setting)] if cell is not None]
    if setting.data == "a9a":  # small enough for further runs
        cells += [_scaled(base, s, K, i) for s in _SPREADS for K in _SPREAD_ROUNDS for i in _SPREAD_DRAWS]
        cells += [base.with_fields(spread=_INDEFINITE_SPREAD, K=K) for K in (2, 5, 10)]
        cells += [_aligned(base, a, i) for a in _ALIGNMENTS for i in _SIGN_DRAWS]
    return cells


def judge(setting: Setting, outcomes: Outcomes) -> list[Claim]:
    """Judge every claim of the paper about one data set, or return one unjudged claim if the runs are too short."""
    base = setting.base
    if not all(outcomes[_cpca(base, i)].iterations_to(1e-10) for i in setting.draws_of(3)):
        return [
            Claim(
                "convergence",
                "Section 5",
                f"{setting.data}: the claims about convergence.",
                f"{base.iterations} iterations are too few: not even centralized power iterations reach 1e-10.",
                "not judged",
                "Allow more iterations, or choose a k with a larger gap.",
            )
        ]
    claims = [
        _same_rate(setting, outcomes),
        _threshold(setting, outcomes),
        _independent_of_accuracy(setting, outcomes),
        _stalls(setting, outcomes),
        _communication(setting, outcomes),
    ]
    if (cell := _theorem_cell(setting)) is not None:
        claims.append(_theorem(setting, outcomes, outcomes[cell]))
    if setting.data == "a9a":
        claims += [_heterogeneity(setting, outcomes), _indefinite(setting, outcomes), _signs(setting, outcomes)]
    return claims


# ---------------------------------------------------------------------------------------------------------- cells


def _cpca(cell: Cell, draw: int) -> Cell:
    return cell.with_fields(method="CPCA", K=0, draw=draw, graph="paper", alignment="sign-adjust", spread=1.0)


def _scaled(base: Cell, spread: float, K: int, draw: int) -> Cell:
    """Return a cell with the polar factor, so that heterogeneity is measured rather than SignAdjust."""
    return base.with_fields(spread=spread, K=K, draw=draw, alignment="polar")


def _aligned(base: Cell, alignment: Alignment, draw: int) -> Cell:
    return base.with_fields(K=1, graph="erdos-renyi", alignment=alignment, draw=draw)


def _other_k(setting: Setting, k: int) -> list[Cell]:
    """Return cells for another k: K = 3 in a longer run, K = 3 with the polar factor, and CPCA."""
    cell = setting.base.with_fields(k=k, iterations=setting.iterations(k), draw=0)
    cells = []
    for draw in range(2):
        cells += [_longer(cell, draw), cell.with_fields(K=3, alignment="polar", draw=draw), _cpca(cell, draw)]
    return cells


def _longer(cell: Cell, draw: int) -> Cell:
    return cell.with_fields(K=3, draw=draw, iterations=_LENGTH_FACTOR * cell.iterations)


def _theorem_cell(setting: Setting) -> Cell | None:
    """Return the cell of DeEPCA with the theorem's K and draw 0, or None without an eigengap."""
    problem, base = problem_of(setting), setting.base
    if problem is None:
        return None
    tangent = 10.0 * math.sqrt(setting.k * base.rows)  # K grows only with its logarithm; few starts are worse
    return base.with_fields(K=theory.required_rounds(problem, graph_of(base.graph, base.agents, 0), tangent))


def _plateau_rounds(setting: Setting) -> tuple[int, ...]:
    return tuple(sorted({*PAPER[setting.data].rounds, 5, 10, 15, 20}))


# --------------------------------------------------------------------------------------------------------- claims


def _same_rate(setting: Setting, outcomes: Outcomes) -> Claim:
    base, rounds = setting.base, PAPER[setting.data].rounds
    lines, worst = [], math.inf
    for K in rounds:
        gaps = [
            _difference(outcomes[base.with_fields(K=K, draw=i)], outcomes[_cpca(base, i)], accuracy)
            for i in range(setting.draws)
            for accuracy in (1e-6, 1e-10)
        ]
        worst = max(gaps)
        lines.append(f"K = {K}: {worst:.0f}" if math.isfinite(worst) else f"K = {K}: not always reached")
    needed = [outcomes[_cpca(base, i)].iterations_to(1e-10) for i in range(setting.draws)]
    return Claim(
        "speed",
        "Theorem 1, Figures 1–2",
        f"{setting.data}: once K is large enough, DeEPCA converges as fast as centralized power iterations.",
        f"Largest difference from CPCA in the iterations to 1e-6 and to 1e-10, {_draws(setting.draws)}: "
        f"{'; '.join(lines)}. Iterations of CPCA to 1e-10: {_span(needed)}.",
        "holds" if worst <= 2 else "differs",
        "" if worst <= 2 else "At the largest K of the figures DeEPCA is slower than CPCA here.",
    )  # fmt: skip


def _threshold(setting: Setting, outcomes: Outcomes) -> Claim:
    base, rounds = setting.base, PAPER[setting.data].rounds
    kept = {
        K: [_keeps_up(outcomes, base.with_fields(K=K, draw=i)) for i in setting.draws_of(K)]
        for K in setting.tried_rounds
    }
    works = [K for K, flags in kept.items() if all(flags)]
    parts = ", ".join(f"K = {K}: {sum(flags)} of {len(flags)}" for K, flags in kept.items())
    others, all_reach = [], True
    for k in setting.other_k:
        cell = base.with_fields(k=k, iterations=setting.iterations(k), draw=0)
        slow = []
        for draw in range(2):
            reached = outcomes[_longer(cell, draw)].iterations_to(1e-8)
            pooled = outcomes[_cpca(cell, draw)].iterations_to(1e-8)
            slow.append(reached / pooled if reached and pooled else math.inf)
        all_reach &= all(math.isfinite(s) for s in slow)
        polar = sum(_keeps_up(outcomes, cell.with_fields(K=3, alignment="polar", draw=draw)) for draw in range(2))
        text = f"{max(slow):.1f} × the iterations of CPCA" if math.isfinite(max(slow)) else "not reached"
        others.append(f"k = {k}: {text} (polar factor: {polar} of 2 keep up)")
    measured = (
        f"k = {setting.k}, draws that keep up with CPCA to 1e-8 (at most 10 % + 2 more iterations): {parts}; "
        f"so K ≥ {min(works) if works else '?'} here. K = 3 with other k: {'; '.join(others)}."
    )
    if setting.data == "w8a":
        three = kept[3]
        verdict: Verdict = "holds" if not any(three) else "differs" if all(three) and all_reach else "partly"
        one = "K = 1 never did" if not any(kept[1]) else "even K = 1 did in some draws"
        return Claim(
            "figure",
            "Section 5, Figure 1",
            "w8a: with K = 3 DeEPCA cannot converge to the top-k principal components.",
            measured,
            verdict,
            ""
            if verdict == "holds"
            else f"K = 3 converged in {sum(three)} of {len(three)} draws with k = {setting.k}; {one}. The paper does "
            "not state k. With larger k, K = 3 is much slower than CPCA: eigenvalues within the top k are close, QR "
            "keeps rotating the basis, and few rounds cannot follow. In a figure of limited length this looks like a "
            "failure to converge, which may be what the paper observed.",
        )
    smallest = kept[rounds[0]]
    return Claim(
        "figure",
        "Section 5, Figure 2",
        f"{setting.data}: with the K of the figure ({', '.join(map(str, rounds))}) DeEPCA is comparable to CPCA.",
        measured,
        "holds" if all(all(kept[K]) for K in rounds) else "partly" if all(kept[rounds[-1]]) else "differs",
        "" if all(smallest) else f"K = {rounds[0]} is enough in only {sum(smallest)} of {len(smallest)} draws.",
    )


def _independent_of_accuracy(setting: Setting, outcomes: Outcomes) -> Claim:
    base, K = setting.base, 5
    tracked = outcomes[base.with_fields(K=K)]
    wanted = (1e-4, 1e-6, 1e-8, 1e-10)
    reached = [accuracy for accuracy in wanted if tracked.iterations_to(accuracy)]
    floor = 10 * outcomes[_cpca(base, 0)].plateau
    levels = {K: outcomes[base.with_fields(method="DePCA", K=K)].plateau for K in _plateau_rounds(setting) if K >= 3}
    above = [(K, level) for K, level in levels.items() if level > floor]
    bound = math.log(math.sqrt(fastmix_eta(tracked.lambda2)))
    logs = [math.log(level) for _, level in above]
    slope = float(np.polyfit([K for K, _ in above], logs, 1)[0]) if len(above) > 1 else 0.0
    grows = 0.6 <= slope / bound <= 1.4
    return Claim(
        "accuracy",
        "Abstract, Remarks 1 and 2",
        f"{setting.data}: DeEPCA's K does not depend on the accuracy ε; DePCA needs K to grow like log 1/ε.",
        f"DeEPCA with K = {K} reaches {', '.join(f'{a:.0e}' for a in reached) or 'none of 1e-4 … 1e-10'}. "
        "DePCA stalls at "
        + ", ".join(f"{level:.0e} (K = {K})" for K, level in levels.items())
        + f": the logarithm falls by {-slope:.2f} per round; FastMix contracts by {-bound:.2f} per round.",
        "differs" if len(reached) < len(wanted) else "holds" if grows else "partly",
        "" if grows else "The level at which DePCA stalls does not fall at the rate of the mixing.",
    )


def _stalls(setting: Setting, outcomes: Outcomes) -> Claim:
    base, parts, stalled = setting.base, [], []
    for K in PAPER[setting.data].rounds:
        levels = [outcomes[base.with_fields(method="DePCA", K=K, draw=i)].plateau for i in range(setting.draws)]
        parts.append(f"K = {K}: {_range(levels)}")
        stalled += [v > 10 * outcomes[_cpca(base, i)].plateau for i, v in enumerate(levels)]
    return Claim(
        "DePCA stalls",
        "Section 5, Figures 1–2",
        f"{setting.data}: without growing K, DePCA does not reach the principal components.",
        f"DePCA ends at a mean tan θ of {'; '.join(parts)} ({_draws(setting.draws)}); CPCA at "
        f"{outcomes[_cpca(base, 0)].plateau:.0e}.",
        "holds" if all(stalled) else "partly" if any(stalled) else "differs",
        "" if all(stalled) else "Not for every K of the figures.",
    )


def _communication(setting: Setting, outcomes: Outcomes) -> Claim:
    base, paper, accuracy = setting.base, PAPER[setting.data], 1e-8
    tracked, growing = [], []
    for i in range(setting.draws):
        tracked.append(_fewest(outcomes[base.with_fields(K=K, draw=i)].rounds_to(accuracy) for K in paper.rounds))
        runs = (outcomes[base.with_fields(method="DePCA", K=K, growth=paper.growth, draw=i)] for K in paper.rounds)
        growing.append(_fewest(run.rounds_to(accuracy) for run in runs))
    ratios = [b / a for a, b in zip(tracked, growing, strict=True) if math.isfinite(a)]
    verdict: Verdict = "differs" if len(ratios) < len(tracked) or min(ratios) <= 1 else "holds"
    known = bool(ratios) and math.isfinite(min(ratios))
    more = f"at least {min(ratios):.1f} times as many" if known else "more than the run has"
    return Claim(
        "communication",
        "Section 5",
        f"{setting.data}: DeEPCA has great advantages in communication over DePCA with growing K.",
        f"Fewest rounds to {accuracy:.0e} over the K of the figure, {_draws(setting.draws)}: DeEPCA {_span(tracked)}; "
        f"DePCA with K + ⌊t/{paper.growth}⌋ {_span(growing)}, {more}.",
        verdict,
        "For this schedule, which is ours; the paper states none.",
    )  # fmt: skip


def _theorem(setting: Setting, outcomes: Outcomes, run: Outcome) -> Claim:
    base, accuracy = setting.base, 1e-10
    problem = problem_of(setting)
    assert problem is not None
    topology = graph_of(base.graph, base.agents, 0)
    K, T = (
        theory.required_rounds(problem, topology, run.tan_start),
        theory.iterations(problem, run.tan_start, accuracy),
    )
    printed = theory.required_rounds(problem, topology, run.tan_start, form="printed")
    reached, length = run.iterations_to(accuracy), run.tan_theta.size
    when = "never" if reached is None else f"after {reached} iterations"
    holds = reached is not None and reached <= T and run.worst_end <= accuracy and run.cell.K >= K
    works = [
        k
        for k in setting.tried_rounds
        if all(_keeps_up(outcomes, base.with_fields(K=k, draw=i)) for i in setting.draws_of(k))
    ]
    cheap = outcomes[base.with_fields(K=min(works))].rounds_to(accuracy) if works else None
    seen = (
        f"K = {min(works)} sufficed in all draws, with {cheap:,} rounds in draw 0" if cheap else "no smaller K sufficed"
    )
    return Claim(
        "theorem",
        "Theorem 1",
        f"{setting.data}: with K rounds per iteration, after T iterations every tan θ is at most ε; C = T·K rounds.",
        f"ε = 1e-10: K = {K} (as printed {printed}), T = {T}, C = {T * K:,}. Run with K = {run.cell.K}: mean tan θ ≤ ε "
        f"{when}, the worst agent at {run.worst_end:.0e} after {length}. Measured: {seen}. γ = "
        f"{theory.gamma(problem):.4f}; the observed factor per iteration is {_rate(run):.4f}, "
        f"λ_(k+1)/λ_k = {problem.lambda_k1 / problem.lambda_k:.4f}.",
        "holds" if holds else "differs",
        "A loose upper bound." if holds else "",
    )


def _heterogeneity(setting: Setting, outcomes: Outcomes) -> Claim:
    base, needed, parts = setting.base, [], []
    for spread in _SPREADS:
        works = [
            K for K in _SPREAD_ROUNDS if all(_keeps_up(outcomes, _scaled(base, spread, K, i)) for i in _SPREAD_DRAWS)
        ]
        needed.append(min(works) if works else _SPREAD_ROUNDS[-1] + 1)
        problem = problem_of(setting, spread)
        value = f"{problem.heterogeneity:.0f}" if problem else "?"
        parts.append(f"s = {spread:g} ({value}): " + (f"K = {min(works)}" if works else "none of those tried"))
    grows = all(a <= b for a, b in pairwise(needed)) and needed[0] < needed[-1]
    return Claim(
        "heterogeneity",
        "Remark 2",
        "The rounds needed depend on L²/(λ_k λ_(k+1)), which reflects the heterogeneity of the data.",
        f"{setting.data} with Ā + s(A_j − Ā), the same mean; L²/(λ_k λ_(k+1)) in brackets, and the smallest K of "
        f"{', '.join(map(str, _SPREAD_ROUNDS))} that keeps up with CPCA (polar factor, {len(_SPREAD_DRAWS)} draws): "
        f"{'; '.join(parts)}.",
        "partly" if grows else "differs",
        "More heterogeneous agents need more rounds, but the ratio says little about it: it is large for identical "
        "agents (s = 0) as well, since λ_1 is far above λ_k." if grows else "The K needed did not grow with s.",
    )  # fmt: skip


def _indefinite(setting: Setting, outcomes: Outcomes) -> Claim:
    base, paper = setting.base, PAPER[setting.data]
    stack = operator_of(setting.source, setting.data, paper.agents, paper.rows, "file", _INDEFINITE_SPREAD).dense()
    lowest = np.linalg.eigvalsh(stack)[:, 0]
    ends = {K: outcomes[base.with_fields(spread=_INDEFINITE_SPREAD, K=K)] for K in (2, 5, 10)}
    return Claim(
        "indefinite",
        "Remark 1",
        "The A_j need not be positive semidefinite, only their mean.",
        f"{setting.data}, every A_j replaced by Ā + {_INDEFINITE_SPREAD:g}(A_j − Ā): {np.count_nonzero(lowest < 0)} "
        f"of {paper.agents} are indefinite (smallest eigenvalue {lowest.min():.3g}); mean tan θ ends at "
        + ", ".join(f"{run.plateau:.0e} (K = {K})" for K, run in ends.items()) + ".",
        "holds" if all(run.iterations_to(1e-10) for run in ends.values()) else "differs",
        "",
    )  # fmt: skip


def _signs(setting: Setting, outcomes: Outcomes) -> Claim:
    failed = {
        a: [i for i in _SIGN_DRAWS if not outcomes[_aligned(setting.base, a, i)].iterations_to(1e-8)]
        for a in _ALIGNMENTS
    }
    total, ours = len(_SIGN_DRAWS), failed["sign-adjust"]
    needed = len(failed["none"]) > len(ours)
    broken = [i for i in ours if i not in failed["polar"]]
    counts = ", ".join(f"{a} {total - len(f)}" for a, f in failed.items())
    return Claim(
        "signs",
        "Section 3.1",
        "Adjusting signs against W⁰ is necessary to make DeEPCA converge stably.",
        f"{setting.data}, K = 1, draws of {total} that converge to 1e-8: {counts}"
        + (f"; SignAdjust alone fails in draws {', '.join(map(str, broken))}." if broken else "."),
        "holds" if needed and not broken else "partly" if needed else "differs",
        ("Without any rule fewer draws converge. " if needed else "Without any rule no fewer draws converge. ")
        + ("SignAdjust can break convergence itself: when a column crosses the plane orthogonal to its column of W⁰, "
           "all agents flip at once and tracking is disturbed. A positive diagonal of R (qr) or the polar factor needs "
           "no reference." if broken else ""),
    )  # fmt: skip


# -------------------------------------------------------------------------------------------------------- helpers


def _keeps_up(outcomes: Outcomes, cell: Cell, accuracy: float = 1e-8) -> bool:
    """Return whether a run reaches the accuracy with at most 10 % + 2 more iterations than CPCA from the same W⁰."""
    reached, pooled = (outcomes[c].iterations_to(accuracy) for c in (cell, _cpca(cell, cell.draw)))
    return reached is not None and pooled is not None and reached <= 1.1 * pooled + 2


def _difference(one: Outcome, other: Outcome, accuracy: float) -> float:
    """Return the difference between the iterations of two runs; infinite if one does not reach the accuracy."""
    a, b = one.iterations_to(accuracy), other.iterations_to(accuracy)
    return math.inf if a is None or b is None else abs(a - b)


def _rate(outcome: Outcome) -> float:
    """Return the observed convergence factor per iteration, while the mean tangent falls from 1e-3 to 1e-9."""
    curve = outcome.tan_theta
    inside = np.flatnonzero((curve < 1e-3) & (curve > 1e-9))
    if inside.size < 2:
        return float("nan")
    a, b = int(inside[0]), int(inside[-1])
    return float((curve[b] / curve[a]) ** (1.0 / max(b - a, 1)))


def _fewest(rounds: Iterable[int | None]) -> float:
    known = [value for value in rounds if value is not None]
    return float(min(known, default=math.inf))


def _span(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return "not reached"
    text = f"{min(known):,.0f}" if min(known) == max(known) else f"{min(known):,.0f}–{max(known):,.0f}"
    return text + (f" ({len(known)} of {len(values)} draws)" if len(known) < len(values) else "")


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.0e}", f"{max(values):.0e}"
    return low if low == high else f"{low}–{high}"


def _draws(count: int) -> str:
    return "1 draw" if count == 1 else f"{count} draws"
