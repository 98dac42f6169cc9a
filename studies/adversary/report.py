"""The page with the counts."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from studies.adversary import FAMILIES
from studies.adversary.reference import EPS
from studies.adversary.trial import Outcome

__all__ = ["Run", "page", "summary"]

_LISTED = 60  # violations shown in full

_ABOUT = """
- **estimators**: `DecentralizedPCA`; spectra flat, steep, clustered, equal, rank-deficient; k from 1 to d; rows far
  from zero, tiny, huge, equal, weighted, scaled, sparse, float32, whole numbers; agents of one row.
- **solve**: every algorithm and mixer, on matrices that may be very unlike and indefinite; in threads, too.
- **networks**: directed, changing, pairwise, and such as lose messages without telling.
- **messages**: float32 and float16 messages.
- **streams**: `partial_fit` with jumps and forgetting, judged after every call.
- **spectra**: eigenpairs at both ends, SVD by rows and columns, graphs, λ₂, clustering.
- **certificates**: `certify` of subspaces that are wrong on purpose.
- **averages**: averages, totals, means in two parts, coded messages, against rational numbers.

*Proven*: the library called the answer usable, and bounded its error. *Undecided* are claims that the reference is not
exact enough to judge. *Truth / bound* is the largest ratio among claims that hold; some are as tight as 1, such as a
tolerance that was just met, or the angle of a subspace that is wrong by what was put into it.
"""

_METHOD = """
Random cases that are hard for a reason, each judged by an answer that was found independently: eigenvectors by Jacobi
rotations in extended precision (of the rows themselves where there are rows), sums in rational numbers. Whatever the
library states is compared with the truth: the angle that a certificate proves for the components and for every agent,
the bound on the next eigenvalue, leading parts, variances, means; that `converged` means within the tolerance; that a
status which blames the data or the network is right; that nothing is raised but the library's own errors where they are
due, that there are no warnings, and that nothing hangs. `make adversary` draws a fresh seed; 500 cases with a fixed one
are part of `make test-slow`. To run one case again: `python -m studies.adversary --family FAMILY --seed SEED`.
"""


@dataclass(frozen=True)
class Run:
    """What was run, for the head of the page."""

    command: str
    seed: int
    seconds: float
    processes: int
    version: str


def summary(outcomes: Sequence[Outcome]) -> str:
    """One line for the terminal."""
    wrong, hung = sum(bool(o.violations) and not o.hung for o in outcomes), sum(o.hung for o in outcomes)
    proven, claims = sum(o.proven for o in outcomes), sum(o.claims for o in outcomes)
    return (
        f"{len(outcomes):,} cases, {claims:,} claims checked, {proven:,} cases proven, "
        f"{wrong} with a violation, {hung} hung"
    )


def page(outcomes: Sequence[Outcome], run: Run) -> str:
    """docs/adversary.md."""
    parts = [_head(outcomes, run), _table(outcomes), [_ABOUT.strip()], _ends(outcomes), _faults(outcomes)]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _head(outcomes: Sequence[Outcome], run: Run) -> Iterator[str]:
    yield f"# The adversary\n\n**{summary(outcomes)}.**\n{_METHOD}"
    yield f"```sh\n{run.command}\n```\n"
    yield (
        f"Seed {run.seed}, {run.processes} processes, {run.seconds / 60:.1f} minutes; {platform.machine()}, Python "
        f"{platform.python_version()}, numpy {np.__version__}, scipy {scipy.__version__}, deepca {run.version}; unit "
        f"roundoff of the reference {EPS:.1e}."
    )


def _table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield "| family | cases | proven | claims | violations | hangs | undecided | slowest | truth / bound |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for family in FAMILIES:
        of = [o for o in outcomes if o.family == family]
        if of:
            yield _row(family, of)
    yield _row("**all**", outcomes)


def _row(name: str, of: Sequence[Outcome]) -> str:
    held = [o.ratio for o in of if not o.violations]
    wrong = sum(bool(o.violations) and not o.hung for o in of)
    cells = [
        f"{len(of):,}",
        f"{sum(o.proven for o in of):,}",
        f"{sum(o.claims for o in of):,}",
        str(wrong),
        str(sum(o.hung for o in of)),
        str(sum(o.undecided for o in of)),
        f"{max(o.seconds for o in of):.1f} s",
        f"{max(held, default=0.0):.3f}",
    ]
    return f"| {name} | " + " | ".join(cells) + " |"


def _ends(outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield "## How cases ended"
    yield ""
    yield "| family | statuses and errors |"
    yield "| --- | --- |"
    for family in FAMILIES:
        ends = Counter(o.status for o in outcomes if o.family == family)
        if ends:
            yield (
                f"| {family} | " + ", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in ends.most_common()) + " |"
            )


def _faults(outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield "## Violations and hangs"
    yield ""
    wrong = sorted((o for o in outcomes if o.violations), key=lambda o: (o.family, o.seed))
    if not wrong:
        yield "None."
    for o in wrong[:_LISTED]:
        command = f"python -m studies.adversary --family {o.family} --seed {o.seed}"
        yield f"- `{command}`: {'; '.join(o.violations)} ({o.about})"
    if len(wrong) > _LISTED:
        yield f"- and {len(wrong) - _LISTED} more"
