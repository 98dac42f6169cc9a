"""Real data sets, read from a folder or fetched. Needs the ``data`` extra (scikit-learn, pooch)."""

from __future__ import annotations

from deepca.data import libsvm

__all__ = ["libsvm"]
