"""Assemble the page: a summary, and one section for each part."""

from __future__ import annotations

from benchmarks.cluster import page_model, page_parity, page_rounds, page_scaling
from benchmarks.cluster.findings import Findings
from studies.shared.report import Section, page

__all__ = ["page_of"]


def page_of(found: Findings) -> str:
    """Return the page as Markdown."""
    sections = [
        _summary(found),
        page_parity.section(found.parities),
        page_rounds.section(found.timings, found.cores),
        page_scaling.section(found.scalings, found.missing),
        page_model.section(found.costs, found.checks, found.cores),
    ]
    return page("Agents on MPI ranks", sections, found.command)


def _summary(found: Findings) -> Section:
    kind = ", ".join(f"{name} {value}" for name, value in found.about.items())
    points = [
        page_parity.point(found.parities),
        page_rounds.point(found.timings),
        *page_scaling.points(found.scalings),
        page_model.point(found.costs, found.checks, found.cores),
    ]
    quick = "**A quick run:** fewer ranks, sizes, rows and repetitions than in a full run." if found.quick else ""
    busy = (
        f"**The machine was busy:** other processes used {found.load:.1f} of its {found.cores} cores when the run "
        "began. Parity is not affected, but times and ratios of times are unreliable."
        if found.busy
        else ""
    )
    machine = (
        f"Measured in one run on this machine: {kind}. Messages between ranks pass through its memory, and more than "
        f"{found.cores} ranks share its {found.cores} cores. Each rank has one BLAS thread."
    )
    reading = (
        "Compare the ratios; absolute times are shown for context only and differ on other machines. What is compared "
        "was measured in turn. A ratio is computed for each turn; its median is followed by the quartiles in brackets."
    )
    listed = "\n".join(f"* {point}" for point in points)
    text = "\n\n".join(part for part in (machine, busy, quick, reading, listed) if part)
    return Section("Summary", text, (), ())
