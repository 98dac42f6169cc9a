"""The paper's experiments and studies beyond them, as data: cells say what to run, one runner runs them."""

from deepca.reproduction.cells import Cell, Outcome
from deepca.reproduction.problems import DataSource
from deepca.reproduction.runner import run_cells
from deepca.reproduction.studies import STUDIES, Study, paper_cells

__all__ = ["STUDIES", "Cell", "DataSource", "Outcome", "Study", "paper_cells", "run_cells"]
