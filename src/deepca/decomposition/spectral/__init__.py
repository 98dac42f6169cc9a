"""Spectral methods for graphs whose nodes are partitioned over agents: eigenvectors and clusters."""

from deepca.decomposition.spectral.clustering import Clustering, spectral_clustering
from deepca.decomposition.spectral.graphs import GraphEigenpairs, fiedler, graph_eigenvectors, lambda2

__all__ = ["Clustering", "GraphEigenpairs", "fiedler", "graph_eigenvectors", "lambda2", "spectral_clustering"]
