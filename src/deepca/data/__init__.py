"""Rows of the agents: where they come from, and what is computed from one pass over them.

The data sets of the paper (:mod:`deepca.data.libsvm`) need the ``data`` extra (scikit-learn, pooch).
"""

from __future__ import annotations

from deepca.data import libsvm

__all__ = ["libsvm"]
