"""Write the section on rounds of gossip."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.cluster.formatting import GRAPHS, between, in_milliseconds
from benchmarks.cluster.rounds import COLUMNS, GOAL, SIZES, Timing
from benchmarks.timing import Spread, spread
from studies.shared.report import Assertion, Section, Table

__all__ = ["point", "section"]


def point(found: Sequence[Timing]) -> str:
    """Summarise the section in two sentences."""
    shown = []
    for size in SIZES:
        seen = [_over_bare(timing).median for timing in found if timing.size == size]
        if seen:
            shown.append(f"{between(seen)} with messages of {size}")
    fresh = between([_ratio(timing.fresh, timing.bare).median for timing in found])
    return (
        f"**A round of gossip** takes, as a multiple of the bare exchange of messages of the same size: "
        f"{'; '.join(shown)}. Goal: {GOAL:g}. The exchange alone, with new numbers in every round as in a run, takes "
        f"{fresh} times as long as the bare one."
    )


def section(found: Sequence[Timing], cores: int) -> Section:
    """Return the section: assertions and tables."""
    assertions = []
    for size in SIZES:
        seen = [(_over_bare(timing).median, timing) for timing in found if timing.size == size]
        if not seen:
            continue
        worst, where = max(seen, key=lambda entry: entry[0])
        met = sum(median <= GOAL for median, _ in seen)
        assertions.append(
            Assertion(
                f"A round of gossip with messages of {size} takes at most {GOAL:g} times the bare exchange.",
                f"in {met} of {len(seen)} cases; at most {worst:.2f}, {where.ranks} ranks, {GRAPHS[where.graph]}",
                met == len(seen),
            )
        )
    text = (
        "`MpiNetwork.gossip` with one agent per rank, compared with a bare `Neighbor_allgather` on a distributed-graph "
        "communicator of the same graph, with the same sizes, in the same job. A block consists of rounds between two "
        "barriers; blocks are timed in turn, and ratios are those of consecutive blocks. Each round sends what the "
        "previous one returned, as in a run. The bare exchange uses the same two buffers every time, and does not "
        "weight or add what has arrived.\n\n"
        "The other two tables explain the ratios of the first. If the numbers stay the same, they are still in the "
        "caches after the previous exchange. In the second table every rank writes new numbers into its buffer before "
        "each bare exchange; the ratio is to the bare exchange of the first table. Ranks on the same machine read each "
        "other's numbers from shared memory, which ranks on different machines cannot do. In the third table every "
        "rank acts as if it were alone on its machine. Messages still pass through the memory of this machine, which "
        "is faster than a network; over a network the exchange takes longer, and the work of a round matters less."
    )
    note = (
        f"Messages are d × {COLUMNS} float64; ✘ marks medians above {GOAL:g}. More than {cores} ranks share the "
        f"{cores} cores, so their times include the switching between ranks."
    )
    tables = (
        _table("A round over the bare exchange", found, lambda timing: timing.ours, note, judged=True),
        _table("The exchange with new numbers over the bare one", found, lambda timing: timing.fresh),
        _table("A round without shared memory over the bare exchange", found, lambda timing: timing.separate_machines),
    )
    return Section("Rounds of gossip", text, tuple(assertions), tables)


def _over_bare(timing: Timing) -> Spread:
    return _ratio(timing.ours, timing.bare)


def _ratio(above: Sequence[float], below: Sequence[float]) -> Spread:
    return spread(np.array(above) / np.array(below))


def _table(
    title: str,
    found: Sequence[Timing],
    above: Callable[[Timing], Sequence[float]],
    note: str = "",
    *,
    judged: bool = False,
) -> Table:
    cells = {(timing.ranks, timing.graph, timing.size): timing for timing in found}
    rows = []
    for ranks, graph in sorted({(timing.ranks, timing.graph) for timing in found}):
        seen = {size: cells[ranks, graph, size] for size in SIZES if (ranks, graph, size) in cells}
        ratios = {size: _ratio(above(timing), timing.bare) for size, timing in seen.items()}
        texts = [_judged(ratios[size], judged) if size in ratios else "" for size in SIZES]
        neighbours = next(iter(seen.values())).neighbours
        bare = " / ".join(in_milliseconds(timing.bare) for timing in seen.values())
        rows.append((str(ranks), GRAPHS[graph], f"{neighbours:.3g}", *texts, bare))
    header = ("ranks", "graph", "neighbours", *SIZES, "bare, ms, by size")
    return Table(title, header, tuple(rows), note, heads=2)


def _judged(ratio: Spread, judged: bool) -> str:
    return f"{ratio}{' ✘' if judged and ratio.median > GOAL else ''}"
