"""Write the section on the cost model: its parts, its fit, and its predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.cluster.check import ROUNDS, ROW_BYTES, Check
from benchmarks.cluster.formatting import between, in_bytes, in_microseconds, in_milliseconds
from benchmarks.cluster.model import (
    NEIGHBOURS,
    Costs,
    Iteration,
    Line,
    Oversubscription,
    Share,
    StrongScaling,
    allreduce,
    gossip,
    torus_lambda2,
    torus_rounds,
    tree_sweep,
)
from benchmarks.cluster.rounds import COLUMNS
from benchmarks.timing import spread
from studies.shared.report import Section, Table

__all__ = ["Predicted", "expected", "point", "predicted", "section"]

SIDES = (8, 16, 32, 64)
PROBLEMS = (StrongScaling(4_000_000, 1_000, COLUMNS), StrongScaling(10_000_000, 10_000, COLUMNS))
LATENCY, BANDWIDTH = 1.5e-6, 12.5e9  # assumed cluster network
_ASSUMED = "1.5 µs, 100 Gbit/s (assumed)"
_HERE = "as between two cores of this machine"
_FORMULAS = """```text
round      = call(n) + g · (message(n) + add(n)) + combine(n)
gossip     = product(r) + track(n) + K · round + orthonormalise(n) + loop
allreduce  = product(r) + track(n) + call(n) + ⌈log₂ P⌉ · (message(n) + add(n)) + orthonormalise(n) + loop
tree sweep = product(r) + track(n) + 2⌈log₂ P⌉ · (call(n) + message(n) + add(n)) + orthonormalise(n) + loop
```"""


@dataclass(frozen=True)
class Predicted:
    """Predicted cost of an iteration on side × side ranks, by way of averaging; ``rounds`` is K on the torus."""

    side: int
    rounds: int
    torus: Iteration
    allreduce: Iteration
    tree: Iteration

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.side**2


def predicted(costs: Costs, problem: StrongScaling, sides: Sequence[int] = SIDES) -> list[Predicted]:
    """Predict the same problem on an increasing number of ranks."""
    found = []
    for side in sides:
        ranks, rounds = side**2, torus_rounds(side)
        share = problem.share(ranks)
        found.append(
            Predicted(
                side,
                rounds,
                gossip(costs, share, rounds=rounds, neighbours=NEIGHBOURS),
                allreduce(costs, share, ranks=ranks),
                tree_sweep(costs, share, ranks=ranks),
            )
        )
    return found


def expected(costs: Costs, check: Check, cores: int) -> float:
    """Return the predicted seconds of an iteration on a machine where ranks may share cores."""
    share = Share(check.features, COLUMNS, ROW_BYTES)
    if check.collective:
        iteration = allreduce(costs, share, ranks=check.ranks)
    else:
        iteration = gossip(costs, share, rounds=ROUNDS, neighbours=check.neighbours)
    return Oversubscription(check.ranks, cores, check.switch).seconds(iteration)


def point(costs: Costs, checks: Sequence[Check], cores: int) -> str:
    """Summarise the section in two sentences."""
    shown = []
    for problem in PROBLEMS:
        entries = predicted(costs.over(LATENCY, BANDWIDTH), problem)
        last = entries[-1]
        gains = [
            f"{first.seconds / iteration.seconds:.3g} {how}"
            for first, iteration, how in (
                (entries[0].torus, last.torus, "with gossip on a torus"),
                (entries[0].allreduce, last.allreduce, "with `MPI_Allreduce`"),
            )
        ]
        shown.append(f"{_size(problem)}, {' and '.join(gains)}")
    fewest, most = SIDES[0] ** 2, SIDES[-1] ** 2
    return (
        f"**Predicted, not measured:** from {fewest} to {most:,} ranks ({most // fewest} times as many), over an "
        f"assumed network of 1.5 µs and 100 Gbit/s, an iteration becomes faster by these factors: {'; '.join(shown)}. "
        f"Where the model could be checked, it predicts {between(_ratios(costs, checks, cores))} times the measured "
        "time."
    )


def section(costs: Costs, checks: Sequence[Check], cores: int) -> Section:
    """Return the section: formulas, measured parts, validation and predictions."""
    text = (
        "The time of an iteration of DeEPCA on more ranks than this machine has is predicted from the times of its "
        "parts, measured on two ranks. With n bytes per message (d × k numbers), K rounds, g neighbours, r bytes of "
        f"rows per rank and P ranks:\n\n{_FORMULAS}\n\n"
        "The model adds up the messages of a round, as if nothing overlapped. Networks with several links per node, "
        "and MPI libraries with better algorithms for long messages, can only be faster. The model does not include "
        "waiting for a slow rank, other jobs on the same network, and nodes on which more cores share the memory "
        "bandwidth than here."
    )
    tables = (_parts(costs), _checked(costs, checks, cores), *(_prediction(problem, costs) for problem in PROBLEMS))
    return Section("A cost model and its predictions", text, (), tables)


def _parts(costs: Costs) -> Table:
    lines: list[tuple[str, str, Line]] = [
        ("message", "from rank to rank: half a ping-pong", costs.message),
        ("call", "a round without neighbours: software overhead, weighting the agent's own value", costs.call),
        ("add", "weighting a neighbour's message and adding it", costs.add),
        ("combine", "what FastMix computes after a round", costs.combine),
        ("track", "S + AW − AW_previous, before the first round", costs.track),
        ("orthonormalise", "the polar factor of S", costs.orthonormalise),
        *(("product", f"Xᵀ(XW), by the bytes of X; d = {features:,}", line) for features, line in costs.products),
    ]
    rows = [
        (name, what, in_microseconds(line.start), f"{line.slope * 1e9:.3f}", _rate(line)) for name, what, line in lines
    ]
    rows.append(("loop", "the rest of an iteration", in_microseconds(costs.loop), "", ""))
    note = (
        "Lines, start + bytes × slope, fitted to times at several sizes by least squares of the relative errors, while "
        "both ranks were working. These are absolute times of this machine, from which the predictions are computed."
    )
    return Table("Measured parts", ("part", "what", "start, µs", "ns per byte", "GB/s"), tuple(rows), note, heads=2)


def _rate(line: Line) -> str:
    return f"{1e-9 / line.slope:.1f}" if line.slope > 0.0 else ""


def _ratios(costs: Costs, checks: Sequence[Check], cores: int) -> list[float]:
    return [expected(costs, check, cores) / float(np.median(check.seconds)) for check in checks]


def _checked(costs: Costs, checks: Sequence[Check], cores: int) -> Table:
    rows = []
    for check in sorted(checks, key=lambda check: (check.ranks, check.features, check.collective)):
        ratio = spread([expected(costs, check, cores) / seconds for seconds in check.seconds])
        neighbours = f"{check.neighbours:g} neighbour{'' if check.neighbours == 1.0 else 's'}"
        how = "`MPI_Allreduce`" if check.collective else f"gossip, K = {ROUNDS}, {neighbours}"
        message = in_bytes(8 * check.features * COLUMNS)
        rows.append((str(check.ranks), how, message, str(ratio), in_milliseconds(check.seconds)))
    note = (
        f"An iteration of DeEPCA with {in_bytes(ROW_BYTES)} of rows per rank, without shared memory. More than {cores} "
        f"ranks share the {cores} cores: the prediction is multiplied by the number of ranks per core, and each wait "
        "adds the time to switch a core from one rank to another, measured in the same job. "
        f"Predicted over measured: {between(_ratios(costs, checks, cores))}."
    )
    header = ("ranks", "averaging", "message", "predicted / measured", "measured, ms")
    return Table("The model compared with measurements", header, tuple(rows), note, heads=3)


def _prediction(problem: StrongScaling, costs: Costs) -> Table:
    rows = []
    for name, network in ((_ASSUMED, costs.over(LATENCY, BANDWIDTH)), (_HERE, costs)):
        entries = predicted(network, problem)
        first = entries[0]
        for at in entries:
            pairs = (first.torus, at.torus), (first.allreduce, at.allreduce), (first.tree, at.tree)
            cells = [_gain(start, now) for start, now in pairs]
            rows.append((name, f"{at.ranks:,}", f"{at.ranks / first.ranks:.0f}", str(at.rounds), *cells))
    whole = problem.share(1)
    gaps = ", ".join(f"{1.0 - torus_lambda2(side, side):.2g}" for side in SIDES)
    note = (
        f"**A prediction, not a measurement:** {_size(problem)} float64 ({whole.row_bytes / 1e9:,.0f} GB) divided "
        f"among the ranks, k = {whole.components}, messages of {in_bytes(whole.message)}. Speed-up of an iteration "
        f"over {SIDES[0] ** 2} ranks; in brackets, its duration and the share of averaging in it. Torus: K rounds with "
        f"four neighbours, where K is the library's first choice, which follows from 1 − λ₂ = {gaps}. Allreduce and "
        "sweep: an exact average on a fat tree, where any two ranks are equally far apart, by `MPI_Allreduce` or by "
        "messages up and down a binary tree."
    )
    header = ("messages", "ranks", "ideal", "K on a torus", "torus, gossip", "fat tree, Allreduce", "fat tree, sweep")
    return Table(f"Predicted: {_size(problem)} on up to {SIDES[-1] ** 2:,} ranks", header, tuple(rows), note)


def _gain(start: Iteration, now: Iteration) -> str:
    return f"{start.seconds / now.seconds:.3g} ({_duration(now.seconds)}, {100.0 * now.share:.0f} %)"


def _duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1.0 else f"{seconds * 1e3:.3g} ms"


def _size(problem: StrongScaling) -> str:
    return f"{problem.rows:,} × {problem.features:,}"
