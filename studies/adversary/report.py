"""Write the page that reports the counts of claims and violations."""

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

_MAX_LISTED = 60  # more violations would only lengthen the page

_ABOUT = """
- **estimators**: `DecentralizedPCA`; flat, steep, clustered, tied and rank-deficient spectra; k from 1 to d; rows that
  are far from zero, tiny, huge, duplicated, weighted, scaled, sparse, float32 or integer; agents with a single row.
- **solve**: every algorithm and mixer, on heterogeneous and possibly indefinite matrices; also with one thread per
  agent.
- **networks**: directed, time-varying and pairwise networks, and networks that silently lose messages.
- **messages**: float32 and float16 messages.
- **streams**: `partial_fit` with jumps and forgetting, checked after every call.
- **spectra**: eigenpairs at both ends, SVD by rows and columns, graphs, λ₂, clustering.
- **certificates**: `certify` on deliberately wrong subspaces.
- **averages**: averages, totals, means in two parts and compressed messages, against rational arithmetic.

*Proven*: the library called the answer usable and bounded its error. *Undecided*: claims that the reference is not
accurate enough to judge. *Truth / bound*: the largest ratio among the claims that hold. A ratio of 1 is expected for
tight claims, such as a tolerance that was only just met or the angle of a subspace with a known perturbation.
"""

_METHOD = """
Each case is a deliberately hard random problem, judged by an answer that was computed independently: eigenvectors by
Jacobi rotations in extended precision (of the rows themselves, where there are rows), and sums in rational arithmetic.
Every claim of the library is compared with the truth: the angle that a certificate proves for the components and for
every agent, the bound on the next eigenvalue, leading parts, variances and means. `converged` must mean within the
tolerance; a status that names the data or the network as the cause must be right; only the library's own errors may be
raised, and only where they are justified; there must be no warnings and no hangs. `make adversary` draws a new seed;
500 cases with a fixed seed are part of `make test-slow`. To repeat one case, run
`python -m studies.adversary --family FAMILY --seed SEED`.
"""


@dataclass(frozen=True)
class Run:
    """How the cases were run, as stated at the head of the page."""

    command: str
    seed: int
    seconds: float
    processes: int
    version: str


def summary(outcomes: Sequence[Outcome]) -> str:
    """Summarise the outcomes in one line."""
    wrong, hung = sum(bool(o.violations) and not o.hung for o in outcomes), sum(o.hung for o in outcomes)
    proven, claims = sum(o.proven for o in outcomes), sum(o.claims for o in outcomes)
    return (
        f"{len(outcomes):,} cases, {claims:,} claims checked, {proven:,} cases proven, "
        f"{wrong} with a violation, {hung} hung"
    )


def page(outcomes: Sequence[Outcome], run: Run) -> str:
    """Render the page (docs/adversary.md)."""
    parts = [_head(outcomes, run), _table(outcomes), [_ABOUT.strip()], _statuses(outcomes), _violations(outcomes)]
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
    ratios = [o.ratio for o in of if not o.violations]
    wrong = sum(bool(o.violations) and not o.hung for o in of)
    cells = [
        f"{len(of):,}",
        f"{sum(o.proven for o in of):,}",
        f"{sum(o.claims for o in of):,}",
        str(wrong),
        str(sum(o.hung for o in of)),
        str(sum(o.undecided for o in of)),
        f"{max(o.seconds for o in of):.1f} s",
        f"{max(ratios, default=0.0):.3f}",
    ]
    return f"| {name} | " + " | ".join(cells) + " |"


def _statuses(outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield "## Statuses and errors"
    yield ""
    yield "| family | statuses and errors |"
    yield "| --- | --- |"
    for family in FAMILIES:
        ends = Counter(o.status for o in outcomes if o.family == family)
        if ends:
            yield (
                f"| {family} | " + ", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in ends.most_common()) + " |"
            )


def _violations(outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield "## Violations and hangs"
    yield ""
    wrong = sorted((o for o in outcomes if o.violations), key=lambda o: (o.family, o.seed))
    if not wrong:
        yield "None."
    for o in wrong[:_MAX_LISTED]:
        command = f"python -m studies.adversary --family {o.family} --seed {o.seed}"
        yield f"- `{command}`: {'; '.join(o.violations)} ({o.about})"
    if len(wrong) > _MAX_LISTED:
        yield f"- and {len(wrong) - _MAX_LISTED} more"
