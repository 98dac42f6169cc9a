"""Reproduce the paper's experiments: cells describe runs as plain data, and one runner executes them."""

from deepca.reproduction.cells import Cell, Outcome
from deepca.reproduction.problems import DataSource
from deepca.reproduction.runner import run_cells
from deepca.reproduction.studies import STUDIES, Study, paper_cells

__all__ = ["STUDIES", "Cell", "DataSource", "Outcome", "Study", "paper_cells", "run_cells"]
