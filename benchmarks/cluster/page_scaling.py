"""Write the section that compares one core with two."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.cluster.engines import COMPONENTS, TOL
from benchmarks.cluster.formatting import in_milliseconds, power
from benchmarks.cluster.scaling import Question, Scaling
from benchmarks.timing import spread
from studies.shared.report import Section, Table

__all__ = ["points", "section"]

_TITLES = {"dense": "{rows:,} × 1,000, dense", "w8a": "w8a, {rows:,} × 300"}
_WHAT = {"fit": "whole fit", "rows": "iteration, rows", "covariance": "iteration, covariances"}
_CEILINGS = {"products": "products in cache", "reading": "reading the rows"}


def points(found: Sequence[Scaling]) -> list[str]:
    """Summarise each data set in one sentence."""
    shown = []
    for scaling in found:
        gain = spread(scaling.ratio(_ranks(1, "fit"), _ranks(2, "fit"))).median
        most = spread(scaling.ratio(_ranks(1, "products"), _ranks(2, "products"))).median
        simulated = spread(scaling.ratio(_ranks(2, "fit"), _simulator(2, "fit"))).median
        pooled = spread(scaling.ratio(_ranks(2, "fit"), scaling.best(2))).median
        shown.append(
            f"**{_title(scaling)}:** a whole fit on two ranks is {gain:.2f} times as fast as on one (products "
            f"without messages: {most:.2f}). It takes {simulated:.2f} times as long as the simulator's on two cores, "
            f"and {pooled:.2f} times as long as scikit-learn's PCA of the pooled rows."
        )
    return shown


def section(found: Sequence[Scaling], missing: Sequence[str]) -> Section:
    """Return the section, which has tables but no assertions."""
    text = (
        "Compared are two agents on one rank or on two, each rank on its own core; the simulator with both agents in "
        "one process, on one core or two; and scikit-learn's PCA of the pooled rows with as many BLAS threads as "
        "cores, with the faster of the solvers `covariance_eigh` and `arpack` (`full`, which decomposes the rows "
        f"themselves, is not run). k = {COMPONENTS}. A fit goes from rows in memory to certified components (tolerance "
        f"{power(TOL)}, default algorithm); an iteration is one of DeEPCA, on rows or on precomputed covariance "
        "matrices. It is checked that all engines find the same variances."
    )
    if missing:
        text += f"\n\nNot measured, because the data are not available: {', '.join(missing)}."
    elif not found:
        text += "\n\nNot measured: this machine has one core."
    tables = [table for scaling in found for table in (_gains(scaling), _other_engines(scaling))]
    return Section("One core and two", text, (), tuple(tables))


def _gains(scaling: Scaling) -> Table:
    rows: list[tuple[str, ...]] = []
    for what, name in _WHAT.items():
        strong = [str(spread(scaling.ratio(engine(1, what), engine(2, what)))) for engine in (_ranks, _simulator)]
        weak = ["", ""]
        if what != "covariance":  # independent of the number of rows
            weak = [
                str(spread(scaling.ratio(engine(1, what, whole=False), engine(2, what))))
                for engine in (_ranks, _simulator)
            ]
        rows.append((name, *strong, *weak, in_milliseconds(scaling.times[_ranks(1, what)])))
    one, two, half = scaling.best(1), scaling.best(2), scaling.best(1, whole=False)
    pooled = str(spread(scaling.ratio(one, two))), str(spread(scaling.ratio(half, two)))
    rows.append(("scikit-learn's fit", pooled[0], "", pooled[1], "", in_milliseconds(scaling.times[one])))
    for what, name in _CEILINGS.items():
        gain = str(spread(scaling.ratio(_ranks(1, what), _ranks(2, what))))
        rows.append((name, gain, "", "", "", in_milliseconds(scaling.times[_ranks(1, what)])))
    header = ("what", "strong: ranks", "strong: simulator", "weak: ranks", "weak: simulator", "one core, ms")
    note = (
        "Strong: speed-up on two cores, with the same rows; 2 is ideal. Weak: time on one core with half of the rows, "
        "divided by the time on two cores with all of them; 1 is ideal. In the last two rows, two ranks share work "
        "without any message: the most that the second core of this machine can contribute."
    )
    return Table(f"{_title(scaling)}: speed-up by a second core", header, tuple(rows), note)


def _other_engines(scaling: Scaling) -> Table:
    rows = []
    for what, name in _WHAT.items():
        simulated = [str(spread(scaling.ratio(_ranks(n, what), _simulator(n, what)))) for n in (1, 2)]
        pooled = ["", ""]
        if what == "fit":
            pooled = [str(spread(scaling.ratio(_ranks(n, what), scaling.best(n)))) for n in (1, 2)]
        rows.append((name, *simulated, *pooled))
    header = (
        "time on ranks divided by that of",
        "simulator, one core",
        "simulator, two",
        f"scikit-learn, one core ({scaling.best(1).what})",
        f"scikit-learn, two ({scaling.best(2).what})",
    )
    note = f"Below 1, ranks are faster. A fit takes {scaling.iterations} iterations."
    return Table(f"{_title(scaling)}: compared with other engines", header, tuple(rows), note)


def _ranks(cores: int, what: str, *, whole: bool = True) -> Question:
    return Question("mpi", cores, what, whole)


def _simulator(cores: int, what: str, *, whole: bool = True) -> Question:
    return Question("simulator", cores, what, whole)


def _title(scaling: Scaling) -> str:
    return _TITLES[scaling.data].format(rows=scaling.rows)
