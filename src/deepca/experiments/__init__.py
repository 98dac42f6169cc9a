"""The paper's experiments and studies beyond them, as data: cells say what to run, one runner runs them."""

from deepca.experiments.cells import Cell, Outcome
from deepca.experiments.runner import Source, run_cells
from deepca.experiments.studies import STUDIES, Study, paper_cells

__all__ = ["STUDIES", "Cell", "Outcome", "Source", "Study", "paper_cells", "run_cells"]
