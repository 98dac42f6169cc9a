"""A fitted PCA as plain arrays, and its file format."""

from deepca.decomposition.model.file import from_bytes, load
from deepca.decomposition.model.layout import FORMAT
from deepca.decomposition.model.model import Model

__all__ = ["FORMAT", "Model", "from_bytes", "load"]
