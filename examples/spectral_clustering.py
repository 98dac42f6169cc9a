"""Cluster two moons distributed over twenty agents, each of which sees only its own points.

Usage: python examples/spectral_clustering.py [FIGURE.png]
"""

import sys

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from scipy import sparse
from scipy.spatial import cKDTree
from sklearn.cluster import KMeans, SpectralClustering
from sklearn.datasets import make_moons
from sklearn.metrics import adjusted_rand_score
from sklearn.neighbors import kneighbors_graph

import deepca
from deepca.decomposition.spectral import graphs
from deepca.decomposition.spectral.clustering import spectral_clustering

AGENTS, SIDES = 20, ("#0072B2", "#D55E00")
RADIUS = 0.15  # radius of the shaded region around each point
points, _ = make_moons(560, noise=0.1, random_state=2)
near = kneighbors_graph(points, 10, include_self=False)
weights = (near + near.T) / 2
regions = KMeans(AGENTS, n_init=4, random_state=0).fit(points)  # one region per agent

blocks, topology = graphs.partition_graph(weights, regions.labels_)
network = deepca.SimulatedNetwork(topology)  # separate agents make the same calls with an AgentNetwork and one block
found = spectral_clustering(blocks, network, 2)
connectivity, parts = graphs.fiedler(blocks, network, matrix="normalized")
labels, fiedler = graphs.gather_parts(blocks, found.labels), graphs.gather_parts(blocks, parts)

pooled = SpectralClustering(2, affinity="precomputed", eigen_solver="arpack", random_state=0).fit(weights)
inside = sum(int(block.weights[:, : block.nodes.size].nnz) for block in blocks)
print(
    f"{len(points)} points at {topology.n_agents} agents, {topology.n_edges} links between them; "
    f"{weights.nnz // 2} edges, {(weights.nnz - inside) // 2} of them between agents\n"
    f"λ₂ = {connectivity:.12f}\n"
    f"clustering: eigenvectors accurate to {found.eigenpairs.error:.0e} (proven), "
    f"{found.eigenpairs.products} rounds with neighbours\n"
    f"adjusted Rand index against scikit-learn's SpectralClustering of the pooled graph: "
    f"{adjusted_rand_score(pooled.labels_, labels):.3f}"
)

low, high = points.min(axis=0) - 0.22, points.max(axis=0) + 0.22
x, y = np.meshgrid(np.linspace(low[0], high[0], 700), np.linspace(low[1], high[1], 420))
ground = np.column_stack([x.ravel(), y.ravel()])
owner = regions.predict(ground).reshape(x.shape)
away = np.asarray(cKDTree(points).query(ground)[0]).reshape(x.shape)
tint = np.where(away < RADIUS, (owner * 5) % AGENTS / AGENTS, np.nan)  # shade the neighbourhood of the points
links = sparse.coo_array(sparse.triu(topology.adjacency, k=1))
middles = regions.cluster_centers_
edges = sparse.coo_array(sparse.triu(weights, k=1))
across = regions.labels_[edges.row] != regions.labels_[edges.col]
segments = np.stack([points[edges.row], points[edges.col]], axis=1)

figure = Figure(figsize=(12.0, 4.2), layout="constrained", facecolor="white")
left, right = figure.subplots(1, 2)
for axes in (left, right):
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")
    axes.set_axis_off()
    axes.pcolormesh(x, y, tint, cmap="Greys", vmin=-0.35, vmax=5.0, shading="nearest", zorder=0)
    for agent in range(AGENTS):
        axes.contour(x, y, (owner == agent) & (away < RADIUS), levels=[0.5], colors="white", linewidths=2.2, zorder=1)
for side, colour in enumerate(SIDES):
    chosen = points[labels == side]
    left.scatter(chosen[:, 0], chosen[:, 1], s=15, color=colour, edgecolors="white", linewidths=0.4, zorder=3)
joined = np.stack([middles[links.row], middles[links.col]], axis=1)
left.add_collection(LineCollection(list(joined), colors="#333333", linewidths=1.6, zorder=4))
left.scatter(middles[:, 0], middles[:, 1], s=170, color="#333333", edgecolors="white", linewidths=1.4, zorder=5)
for agent, (u, v) in enumerate(middles):
    left.text(u, v, str(agent), color="white", size=7.5, ha="center", va="center_baseline", zorder=6)
left.set_title("clusters found by the agents, and the links between agents", size=11)

right.add_collection(LineCollection(list(segments[~across]), colors="#9a9a9a", linewidths=0.35, zorder=2))
right.add_collection(LineCollection(list(segments[across]), colors="#009E73", linewidths=0.9, zorder=2))
most = float(np.abs(fiedler).max())
shown = right.scatter(
    *points.T,
    c=fiedler,
    cmap="coolwarm_r",
    vmin=-most,
    vmax=most,
    s=18,
    edgecolors="#444444",
    linewidths=0.35,
    zorder=3,
)
bar = figure.colorbar(shown, ax=right, shrink=0.6, pad=0.01, ticks=[-0.05, 0.0, 0.05])
bar.outline.set_visible(False)
right.set_title(f"the Fiedler vector, λ₂ = {connectivity:.5f}; green edges connect agents", size=11)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "clustering.png", dpi=130)
