"""Decompositions: principal components, eigenpairs and singular triplets, and the model file."""

from deepca.decomposition import spectral
from deepca.decomposition.eigen import Eigenpairs, eigenpairs
from deepca.decomposition.model import Model
from deepca.decomposition.model.file import load
from deepca.decomposition.streaming import follow
from deepca.decomposition.svd import SingularTriplets, singular_triplets

__all__ = ["Eigenpairs", "Model", "SingularTriplets", "eigenpairs", "follow", "load", "singular_triplets", "spectral"]
