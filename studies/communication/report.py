"""Write the page: assertions, measurements and method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from deepca._util.units import format_bytes
from deepca.reproduction.problems import PAPER_GRAPHS
from studies.communication.cells import (
    AGENTS,
    LADDER,
    LIMITS,
    SENDING,
    Case,
    Data,
    Graph,
    Method,
)
from studies.communication.results import Group, Results
from studies.shared.report import Assertion, Section, Table

__all__ = ["DATA", "GRAPHS", "METHODS", "assertions", "sections"]

Sent = Literal["rounds", "bytes"]
DATA: Mapping[Data, str] = {"w8a": "w8a", "a9a": "a9a", "close": "Close eigenvalues"}
GRAPHS: Mapping[Graph, str] = {
    "paper": "Erdős–Rényi",
    "ring": "ring",
    "torus": "torus 5 × 10",
    "random-regular": "random regular, degree 4",
}
METHODS: Mapping[Method, str] = {
    "DeEPCA": "DeEPCA, best K",
    "accelerated": "accelerated",
    "accelerated, float32": "accelerated, float32 messages",
    "covariance averaging": "covariance averaging",
    "block Krylov": "block Krylov over a tree",
    "DePCA": "DePCA, K growing",
    "CPCA": "CPCA: iterations",
    "pooled block Krylov": "pooled block Krylov: products",
}
_POOLED: tuple[Method, ...] = ("CPCA", "pooled block Krylov")
_NEVER = "–"


# ------------------------------------------------------------------------------------------------------ assertions


def assertions(results: Results) -> tuple[Assertion, ...]:
    """Return the assertions whose cases were run."""
    cases = set(results.scope.cases)
    w8a, a9a = Case("w8a", 5, "paper"), Case("a9a", 5, "paper")
    found = [_never_fails(results)]
    if w8a in cases:
        found.append(_saves(results, w8a, "accelerated", "rounds", 4, 7))
    if a9a in cases:
        found.append(_few_rounds(results, a9a, 110, 60))
    if w8a in cases:
        found.append(_saves(results, w8a, "accelerated, float32", "bytes", 6, 12))
    return tuple(found)


def _never_fails(results: Results) -> Assertion:
    def failures(method: Method) -> tuple[int, int, str]:
        groups = {case: results.group(case, method).outcomes for case in results.scope.cases}
        failed = {case: sum(outcome.failed for outcome in outcomes) for case, outcomes in groups.items()}
        where = "; ".join(f"{_name(case)}: {count}" for case, count in failed.items() if count)
        return sum(failed.values()), sum(map(len, groups.values())), f" ({where})" if where else ""

    failed, runs, where = failures("accelerated")
    other, others, there = failures("accelerated, float32")
    return Assertion(
        f"The accelerated method, nothing tuned, reaches {_short(min(LIMITS))} in every draw of every case.",
        f"{failed} of {runs} runs fail{where}; with float32 messages {other} of {others}{there}",
        runs > 0 and failed == 0,
    )


def _saves(results: Results, case: Case, method: Method, unit: Sent, least: int, aim: int) -> Assertion:
    """Assert that a method needs at most 1/``least`` of the paper's rounds or bytes to the smallest limit."""
    limit = min(LIMITS)
    by_limit = {at: _quotient(results, case, method, at, unit) for at in LIMITS}
    texts = [f"1/{by_limit[at]:.1f} to {_short(at)}" for at in sorted(LIMITS) if by_limit[at] is not None]
    found, failed = by_limit[limit], results.group(case, method).failures(limit)
    what = "rounds" if unit == "rounds" else "bytes"
    return Assertion(
        f"On {_name(case)}, {METHODS[method]}: at most 1/{least} of the paper's {what} "
        f"to {_short(limit)} (aim 1/{aim}).",
        (", ".join(texts) or "not comparable, because one of the two methods fails")
        + (f"; {failed} draws fail" if failed else ""),
        found is not None and failed == 0 and found >= least,
    )


def _few_rounds(results: Results, case: Case, most: int, aim: int) -> Assertion:
    limit = min(LIMITS)
    group = results.group(case, "accelerated")
    rounds = [mark.rounds for mark in group.marks(limit)]
    median, failed = group.median(limit, "rounds"), group.failures(limit)
    spread = f"{median:g} in the median, {min(rounds)} to {max(rounds)}" if median is not None else "never reached"
    return Assertion(
        f"On {_name(case)}, {METHODS['accelerated']}: at most {most} rounds to {_short(limit)} (aim {aim}).",
        spread + (f"; {failed} draws fail" if failed else ""),
        median is not None and failed == 0 and median <= most,
    )


def _quotient(results: Results, case: Case, method: Method, limit: float, unit: Sent) -> float | None:
    """Return what the paper's method sends, divided by what this method sends, by medians."""
    paper = results.paper(case, limit)
    whole = None if paper is None else paper.median(limit, unit)
    part = results.group(case, method).median(limit, unit)
    return None if whole is None or part is None else whole / part


# ---------------------------------------------------------------------------------------------------------- tables


def sections(results: Results, figure: tuple[str, Case] | None) -> list[Section]:
    """Return all sections of the page; ``figure`` is the link to the figure and the case it shows."""
    scope = results.scope
    text = _INTRO.strip()
    if figure is not None:
        link, case = figure
        caption = _CAPTION.format(case=_name(case), first=_short(LIMITS[0]), last=_short(LIMITS[-1]))
        text += f"\n\n![tan θ against rounds and against bytes]({link})\n\n{caption.strip()}"
    parts = [Section("Summary", text, assertions(results), tuple(_summary(results, limit) for limit in LIMITS))]
    for data in dict.fromkeys(case.data for case in scope.cases):
        graphs = dict.fromkeys(case.graph for case in scope.cases if case.data == data)
        tables = [_table(results, data, graph, limit) for graph in graphs for limit in LIMITS]
        parts.append(Section(DATA[data], _ABOUT[data].strip(), (), (*tables, _by_rounds(results, data))))
    parts.append(Section("Method", _method_text(results), (), ()))
    return parts


def _summary(results: Results, limit: float) -> Table:
    """Tabulate the real data sets with k = 5 on the paper's graphs, or the first case if there are none."""
    cases = [case for case in results.scope.cases if case.graph == "paper"]
    cases = [case for case in cases if case.data != "close" and case.k == 5] or cases[:1]
    header = ["method"]
    for case in cases:
        name = _name(case, graph=False)
        header += [f"{name}: rounds", "÷", "bytes per agent", "÷"]
    methods: tuple[Method, ...] = ("DeEPCA", *SENDING, *_POOLED)
    rows = []
    for method in methods:
        row = [METHODS[method]]
        for case in cases:
            if method in _POOLED:
                row += [_number(results.group(case, method).median(limit, "iterations")), "", "", ""]
                continue
            for unit in ("rounds", "bytes"):
                row += _pair(results, case, method, limit, unit)
        rows.append(tuple(row))
    note = (
        f"Medians over the draws, to a mean tan θ of {_short(limit)}, on {GRAPHS['paper']} graphs. ÷: what "
        "DeEPCA needs with its best K, divided by what this method needs. The two pooled methods send nothing; their "
        "iterations and products are the baseline."
    )
    return Table(f"To {_short(limit)}: rounds and bytes per agent", tuple(header), tuple(rows), note)


def _pair(results: Results, case: Case, method: Method, limit: float, unit: Sent) -> list[str]:
    if method == "DeEPCA":
        return [_paper_entry(results, case, limit, unit), ""]
    quotient = _quotient(results, case, method, limit, unit)
    return [_entry(results.group(case, method), limit, unit), "" if quotient is None else f"{quotient:.3g}"]


def _table(results: Results, data: Data, graph: Graph, limit: float) -> Table:
    methods: tuple[Method, ...] = ("DeEPCA", *SENDING)
    header = ("k", "sent", *(METHODS[method] for method in (*methods, *_POOLED)))
    rows = []
    for case in results.scope.cases:
        if (case.data, case.graph) != (data, graph):
            continue
        for unit in ("rounds", "bytes"):
            entries = [_with_quotient(results, case, method, limit, unit) for method in methods]
            pooled = [
                _number(results.group(case, method).median(limit, "iterations")) if unit == "rounds" else ""
                for method in _POOLED
            ]
            rows.append((str(case.k), unit, *entries, *pooled))
    draws = {
        len(results.group(case, "DeEPCA", K).outcomes)
        for case in results.scope.cases
        if (case.data, case.graph) == (data, graph)
        for K in results.ladder(case)
    }
    drawn = "W⁰" if graph in ("ring", "torus") else "graph and W⁰"
    note = f"{_counted(max(draws, default=0), 'draw')} of {drawn}."
    return Table(f"{DATA[data]}, {GRAPHS[graph]}, to {_short(limit)}", header, tuple(rows), note, heads=2)


def _with_quotient(results: Results, case: Case, method: Method, limit: float, unit: Sent) -> str:
    entry, quotient = _pair(results, case, method, limit, unit)
    return f"{entry} (÷ {quotient})" if quotient else entry


def _by_rounds(results: Results, data: Data) -> Table:
    """Tabulate the rounds of the paper's method by K."""
    limit = min(LIMITS)
    cases = [case for case in results.scope.cases if case.data == data]
    rows = []
    for case in cases:
        ladder = results.ladder(case)
        entries = [_of_K(ladder.get(K), limit, best=results.best(case, limit) == K) for K in LADDER]
        rows.append((str(case.k), GRAPHS[case.graph], *entries))
    header = ("k", "graph", *(f"K = {K}" for K in LADDER))
    return Table(
        f"{DATA[data]}: rounds of DeEPCA to {_short(limit)}, by K",
        header,
        tuple(rows),
        "Bold: the best K without failed draws, which is the K of the tables for this limit. In brackets: the number "
        "of failed draws. Where all draws failed, the mean tan θ that the median draw reached is shown instead. "
        "Empty: not run, because it could not have been the best.",
        heads=2,
    )


def _of_K(group: Group | None, limit: float, *, best: bool) -> str:
    if group is None:
        return ""
    rounds, failed = group.median(limit, "rounds"), group.failures(limit)
    if best:
        return f"**{_number(rounds)}**"
    if rounds is None:
        return f"{failed} of {len(group.outcomes)} failed: {_reached(group)}"
    return f"{_number(rounds)} ({failed} of {len(group.outcomes)} failed)" if failed else _number(rounds)


def _paper_entry(results: Results, case: Case, limit: float, unit: Sent) -> str:
    K = results.best(case, limit)
    if K is not None:
        value = results.group(case, "DeEPCA", K).median(limit, unit)
        return f"{_number(value)}, K = {K}" if unit == "rounds" else _bytes(value)
    ladder = results.ladder(case)
    if not ladder:
        return ""
    K, group = min(ladder.items(), key=lambda item: item[1].failures(limit) / len(item[1].outcomes))
    return f"fails: at best {group.failures(limit)} of {len(group.outcomes)}, K = {K}" if unit == "rounds" else _NEVER


def _entry(group: Group, limit: float, unit: Sent) -> str:
    if not group.outcomes:
        return ""
    value, failed = group.median(limit, unit), group.failures(limit)
    if value is None:
        return f"never: {_reached(group)}" if unit == "rounds" else _NEVER
    text = _number(value) if unit == "rounds" else _bytes(value)
    return f"{text} [{failed} of {len(group.outcomes)} failed]" if failed and unit == "rounds" else text


# ------------------------------------------------------------------------------------------------------ formatting


def _name(case: Case, *, graph: bool = True) -> str:
    name = f"{DATA[case.data]}, k = {case.k}"
    return f"{name}, {GRAPHS[case.graph]}" if graph else name


def _number(value: float | None) -> str:
    return _NEVER if value is None else f"{value:.0f}"


def _bytes(value: float | None) -> str:
    return _NEVER if value is None else format_bytes(value)


def _reached(group: Group) -> str:
    if group.lowest is None:
        return "not finite"
    if group.lowest < 0.01:
        return _short(group.lowest)
    return f"{group.lowest:.1g}" if group.lowest < 1.0 else f"{group.lowest:.0f}"


def _short(value: float) -> str:
    """Format as ``3e-6``, without the leading zero that Python puts into exponents."""
    return f"{value:.0e}".replace("e-0", "e-")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


_INTRO = f"""
How much agents have to communicate until all of them know the subspace: rounds of messages between neighbours, and
bytes sent per agent, to a mean tan θ of {_short(LIMITS[0])} and of {_short(LIMITS[1])}.

* **DeEPCA** is the paper's method with FastMix and, in each case, the K that needs the fewest rounds, chosen in
  hindsight from {", ".join(map(str, LADDER[:-1]))} and {LADDER[-1]}. Columns are orthonormalised by the library's
  default, which favours DeEPCA over the paper's SignAdjust (see [robustness](robustness.md)).
* **accelerated** is `AcceleratedDeEPCA` with default arguments in all cases: nothing is tuned. With **float32
  messages** the mixer is `PositiveChebyshev(messages="float32")`.
* **covariance averaging** averages the matrices A_j themselves over a tree. For few features no method needs fewer
  rounds, but it offers no privacy: a neighbour receives an agent's entire covariance matrix.
* **block Krylov over a tree** averages every block product exactly. It sends little, but needs a reliable spanning
  tree: one lost message corrupts an average, whereas gossip carries on.
* **DePCA** is the decentralised power method without tracking. It stalls with a fixed K, so K grows: 3 + ⌊t/10⌋.
* **CPCA** and **pooled block Krylov** work on the pooled matrix and send nothing.
"""

_CAPTION = """
{case}, first draw. Dots mark the first iterations within {first} and {last}. Covariance averaging takes one step.
"""

_ABOUT: Mapping[Data, str] = {
    "w8a": "40,000 rows with 300 features, 800 rows for each of 50 agents.",
    "a9a": "30,000 rows with 123 features, 600 rows for each of 50 agents.",
    "close": """
Synthetic: 100 features, 50 agents, the first k eigenvalues within 1e-3 of each other, then a gap of 0.2 and a tail in
which each eigenvalue is 5 % below the previous one. The accuracy of a subspace does not depend on gaps within it, and
neither should the number of rounds.
""",
}


def _method_text(results: Results) -> str:
    scope = results.scope
    draws = {GRAPHS[case.graph]: len(scope.draws_of(case)) for case in scope.cases}
    fastest = results.fastest()
    seen = "" if fastest is None else f"; the smallest ratio observed here is {fastest:.2f}"
    return f"""
{AGENTS} agents; A_j = X_jᵀX_j over the agent's rows, in file order, not centred. Graphs: {PAPER_GRAPHS}; a ring;
a torus; random regular graphs. A draw consists of a graph, if it is random, and a W⁰. Draws:
{", ".join(f"{graph} {count}" for graph, count in draws.items())}.

A limit counts as reached in the first iteration from which the mean of tan θ over the agents stays within it, for at
least five more iterations. Rounds are gossip rounds and control rounds; bytes are everything that an agent sends,
averaged over the agents, including values piggybacked for agreement. Neither a stopping rule nor a certificate is
included, for any method: a run is compared with the pooled answer and ended. A stopping rule is piggybacked on gossip
and on exact averages, so it costs bytes but no rounds; what the accelerated method exchanges to choose its parameters
is piggybacked as well, and is counted.

A run has failed if it has not reached a limit after 3 × the iterations of CPCA plus 50 (at least 60 and at most 4000;
at least 200 for methods other than DeEPCA and DePCA), or if tan θ has not halved within a quarter of that and within
at least 100 iterations. DeEPCA is run with K = 1, 3, 5, … in this order. A K that reaches no limit in the first five
draws is abandoned. A K is skipped only if 0.8 × K × the iterations of CPCA already exceed the rounds of the best
smaller K{seen}.
""".strip()
