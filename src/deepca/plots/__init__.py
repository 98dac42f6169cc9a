"""Plot figures, one function for each. Needs the ``plot`` extra (matplotlib)."""

from deepca.plots.curves import Curve, convergence, scree, style

__all__ = ["Curve", "convergence", "scree", "style"]
