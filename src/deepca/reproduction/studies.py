"""Define the cells of each study: a base cell, and axes along which it varies. A new study needs no other code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from deepca.errors import ParameterError
from deepca.reproduction.cells import Cell, Outcome

__all__ = [
    "PAPER",
    "STUDIES",
    "PaperSetting",
    "Study",
    "Value",
    "base_cell",
    "paper_cells",
    "paper_curves",
    "study_named",
]

Value = Literal["iterations", "rounds", "converged"]


@dataclass(frozen=True)
class PaperSetting:
    """The paper's setting for one data set, with the K of its figures; ``growth`` is our choice."""

    data: str
    rows: int
    rounds: tuple[int, int, int]
    growth: int
    agents: int = 50


PAPER = {"w8a": PaperSetting("w8a", 800, (3, 5, 10), 20), "a9a": PaperSetting("a9a", 600, (1, 5, 10), 10)}


def base_cell(data: str, k: int, iterations: int) -> Cell:
    """Return the cell of DeEPCA in the paper's setting with its largest K."""
    paper = PAPER[data]
    return Cell(data, "DeEPCA", k, paper.rounds[-1], paper.agents, paper.rows, iterations)


def paper_cells(data: str, k: int, iterations: int, draws: int) -> list[Cell]:
    """Return the cells of the paper's figure for one data set.

    Parameters
    ----------
    data : {"w8a", "a9a"}
        The data set.
    k : int
        Number of components.
    iterations : int
        Iterations per run.
    draws : int
        Number of random graphs and starts.

    Returns
    -------
    list of Cell
        All curves of draw 0, then of draw 1, and so on.
    """
    base = base_cell(data, k, iterations)
    return [cell for draw in range(draws) for cell in paper_curves(base.with_fields(draw=draw))]


def paper_curves(base: Cell) -> list[Cell]:
    """Return the cells of CPCA, and of DeEPCA and DePCA (fixed and growing K) for each K of the paper's figure."""
    cells, paper = [base.with_fields(method="CPCA", K=0)], PAPER[base.data]
    for K in paper.rounds:
        cells += [
            base.with_fields(K=K),
            base.with_fields(method="DePCA", K=K),
            base.with_fields(method="DePCA", K=K, growth=paper.growth),
        ]
    return cells


@dataclass(frozen=True)
class Study:
    """A question, and the axes along which a base cell is varied to answer it.

    Parameters
    ----------
    name : str
        Name of the study.
    question : str
        The question it answers.
    axes : tuple of (str, tuple)
        Fields of a cell and the values they take, in all combinations.
    columns : str
        The axis that becomes the columns of the table.
    value : {"iterations", "rounds", "converged"}
        What an entry of the table shows: the median iterations or rounds over the draws. With ``"converged"`` it shows
        iterations as well, and the figure shows the share of draws that converged.
    draws : int
        Number of random graphs and starts per combination.
    changes : tuple of (str, Any)
        Fields of the base cell that differ from the paper's setting.
    accuracy : float
        Mean tangent at which a run counts as converged.
    """

    name: str
    question: str
    axes: tuple[tuple[str, tuple[Any, ...]], ...]
    columns: str
    value: Value
    draws: int
    changes: tuple[tuple[str, Any], ...] = ()
    accuracy: float = 1e-8

    def cells(self, base: Cell) -> list[Cell]:
        """Return all cells of the study, with the draws of a combination next to each other.

        Parameters
        ----------
        base : Cell
            The cell to vary.

        Returns
        -------
        list of Cell
            One per combination and draw.
        """
        start = base.with_fields(**dict(self.changes))
        axes: dict[str, Sequence[Any]] = dict(self.axes)
        axes.setdefault("draw", range(self.draws))
        return [start.with_fields(**dict(zip(axes, point, strict=True))) for point in product(*axes.values())]

    @property
    def row_names(self) -> list[str]:
        """Fields that name a row of the table."""
        return [name for name, _ in self.axes if name != self.columns]

    def measure(self, outcomes: Sequence[Outcome]) -> list[int | None]:
        """Return the measured value of each draw of one combination.

        Parameters
        ----------
        outcomes : sequence of Outcome
            The draws.

        Returns
        -------
        list of int or None
            Iterations or rounds; None where the accuracy was not reached.
        """
        if self.value == "rounds":
            return [outcome.rounds_to(self.accuracy) for outcome in outcomes]
        return [outcome.iterations_to(self.accuracy) for outcome in outcomes]


_ALL = (
    Study(
        "topology",
        "How many rounds does each network need, and do they follow 1/√(1−λ₂)?",
        (("graph", ("erdos-renyi", "hypercube", "torus", "star", "ring")), ("K", (1, 2, 3, 4, 6, 8, 12, 16, 24, 34))),
        columns="K",
        value="rounds",
        draws=3,
        changes=(("agents", 64), ("rows", 460)),
    ),
    Study(
        "heterogeneity",
        "What if rows are sorted by label instead of shuffled?",
        (("order", ("shuffled", "file", "label")), ("alignment", ("sign-adjust", "polar")), ("K", (1, 2, 3, 5, 10))),
        columns="K",
        value="converged",
        draws=5,
    ),
    Study(
        "spread",
        "What if agents differ more or less, with the same mean (most A_j are indefinite for a spread above 1)?",
        (("spread", (0.25, 1.0, 2.0, 4.0, 8.0)), ("K", (1, 3, 5, 8, 13))),
        columns="K",
        value="converged",
        draws=3,
    ),
    Study(
        "agents",
        "Does the number of agents matter?",
        (("agents", (10, 25, 50, 100)), ("alignment", ("sign-adjust", "polar")), ("K", (1, 3, 5, 10))),
        columns="K",
        value="iterations",
        draws=5,
        changes=(("rows", 300), ("graph", "erdos-renyi")),
    ),
    Study(
        "components",
        "Does k matter?",
        (("k", (1, 2, 3, 5, 8)), ("K", (1, 2, 3, 5, 10))),
        columns="K",
        value="converged",
        draws=5,
    ),
    Study(
        "threshold",
        "Above which K does DeEPCA converge, depending on graph and k?",
        (("graph", ("paper", "torus", "ring")), ("k", (1, 3, 5)), ("K", (1, 2, 3, 5, 10, 20))),
        columns="K",
        value="converged",
        draws=20,
        accuracy=1e-6,
    ),
    Study(
        "signs",
        "In which draws does SignAdjust break convergence, and do other rules break it, too?",
        (("alignment", ("sign-adjust", "qr", "polar")), ("draw", tuple(range(24)))),
        columns="draw",
        value="iterations",
        draws=1,
        changes=(("K", 1), ("graph", "erdos-renyi")),
    ),
    Study(
        "rounds",
        "How often do K = 3, 5 and 10, the K of the paper's figure for w8a, converge?",
        (("K", (3, 5, 10)),),
        columns="K",
        value="converged",
        draws=20,
    ),
)
STUDIES = {study.name: study for study in _ALL}


def study_named(name: str) -> Study:
    """Return the study with this name, or raise an error that lists the known names."""
    if name not in STUDIES:
        raise ParameterError("study", name, f"choose one of {', '.join(STUDIES)}")
    return STUDIES[name]
