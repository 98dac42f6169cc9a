"""Read the rows of the agents and compute their statistics in one pass.

Loading the data sets of the paper (:mod:`deepca.data.libsvm`) requires the ``data`` extra (scikit-learn, pooch).
"""

from __future__ import annotations

from deepca.data import libsvm

__all__ = ["libsvm"]
