"""Assemble the page: a summary, then each part."""

from __future__ import annotations

from benchmarks.cluster import page_model, page_parity, page_rounds, page_scaling
from benchmarks.cluster.findings import Findings
from studies.shared.report import Section, page

__all__ = ["page_of"]


def page_of(found: Findings) -> str:
    """Return the page as Markdown."""
    sections = [
        _in_short(found),
        page_parity.section(found.parities),
        page_rounds.section(found.timings, found.cores),
        page_scaling.section(found.scalings, found.missing),
        page_model.section(found.costs, found.checks, found.cores),
    ]
    return page("Agents on MPI ranks", sections, found.command)


def _in_short(found: Findings) -> Section:
    kind = ", ".join(f"{name} {value}" for name, value in found.about.items())
    points = [
        page_parity.point(found.parities),
        page_rounds.point(found.timings),
        *page_scaling.points(found.scalings),
        page_model.point(found.costs, found.checks, found.cores),
    ]
    quick = "**A quick run:** fewer ranks, sizes, rows and repetitions than in the full one." if found.quick else ""
    busy = (
        f"**The machine was busy:** others used {found.load:.1f} of its {found.cores} cores when the run began. "
        "Parity does not mind; times, and ratios of times, are not to be relied on."
        if found.busy
        else ""
    )
    machine = (
        f"Measured in one run on this kind of machine: {kind}. It is one machine: messages between ranks go through "
        f"its memory, and more than {found.cores} ranks share its {found.cores} cores. One BLAS thread per rank."
    )
    reading = (
        "Read the ratios; absolute times stand there as context, and mean nothing on another machine. Things compared "
        "took turns; a ratio is taken in each turn, and the median stands before the quartiles in brackets."
    )
    listed = "\n".join(f"* {point}" for point in points)
    text = "\n\n".join(part for part in (machine, busy, quick, reading, listed) if part)
    return Section("In short", text, (), ())
