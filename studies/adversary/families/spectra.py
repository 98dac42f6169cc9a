"""Check eigenpairs at both ends, singular triplets, graph eigenvectors and spectral clustering."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from scipy import sparse

from deepca import SimulatedNetwork, eigenpairs, singular_triplets
from deepca.decomposition.eigen import Eigenpairs, Which
from deepca.decomposition.spectral import graphs
from deepca.decomposition.spectral.blocks import GraphBlock, GraphMatrix
from deepca.decomposition.spectral.clustering import spectral_clustering
from deepca.decomposition.svd import Partition
from deepca.errors import DataError, DisconnectedError, GapError, NotFiniteError
from deepca.operators.linalg import frobenius
from deepca.topology import Topology
from studies.adversary.claims import check_status
from studies.adversary.families.estimators import random_rows
from studies.adversary.families.solving import mean_truth
from studies.adversary.problems import SIZES, Array, agent_matrices, sizes, spectrum, static_network
from studies.adversary.reference import Spectrum, of_matrix, of_rows, tangent
from studies.adversary.trial import Trial

__all__ = ["spectra"]

_EPS = float(np.finfo(np.float64).eps)


def spectra(trial: Trial) -> None:
    """Check one of the decompositions other than PCA."""
    kinds: tuple[Callable[[Trial], None], ...] = (_eigen, _eigen, _svd, _svd, _graph, _lambda2, _clusters)
    trial.one_of(*kinds)(trial)


def _eigen(trial: Trial) -> None:
    rng = trial.rng
    d, k = sizes(trial)
    m, which = int(rng.integers(1, 7)), trial.one_of(*get_args(Which))
    values = spectrum(trial, d, k) * np.where(rng.random(d) < trial.one_of(0.0, 0.5), -1.0, 1.0)
    stack, _ = agent_matrices(trial, values, m, size=10.0 ** trial.one_of(0, int(rng.integers(*SIZES))))
    tol = 10.0 ** rng.uniform(-12, -4)
    algorithm = trial.one_of("auto", "auto", "covariance", "accelerated")
    network = SimulatedNetwork(static_network(trial, m))
    trial.note("eigenpairs", which, algorithm, f"tol={tol:.1e}")
    found = eigenpairs(stack, network, k, which=which, algorithm=algorithm, tol=tol, max_iter=400, seed=trial.seed)
    truth = mean_truth(stack)
    order = {"LA": np.argsort(-truth.values), "SA": np.argsort(truth.values), "LM": np.argsort(-np.abs(truth.values))}
    _check_pairs(trial, found, truth.reordered(order[which]), k, tol, which)


def _check_pairs(trial: Trial, found: Eigenpairs, truth: Spectrum, k: int, tol: float, which: Which) -> None:
    trial.status, trial.proven = found.status.code, found.status.ok and math.isfinite(found.angle)
    wanted, others = truth.values[:k], truth.values[k:]
    gap = float(np.abs(wanted[:, None] - others).min()) if others.size else math.inf
    error_bound = 4.0 * truth.error_bound / gap if gap > 8.0 * truth.error_bound else math.inf
    true, size = tangent(truth.top(k), truth.vectors[:, k:], found.vectors), float(np.abs(truth.values).max())
    if found.status.code == "converged":
        trial.claim("converged, vectors", true, tol, error_bound)
    if trial.proven:
        trial.claim("angle", true, found.angle, error_bound)
        off = np.abs(np.sort(found.values) - np.sort(wanted)).astype(np.float64)
        spread = float(frobenius(found.residuals)) + 64.0 * _EPS * size
        trial.claim("eigenvalue", float(off.max()) / size, spread / size, truth.error_bound / size)
    if found.status.ok and others.size:
        low, high = found.others
        beyond = max(float(others.max()) - high, low - float(others.min()), 0.0)
        trial.claim("eigenvalue outside the interval", beyond / size, 0.0, truth.error_bound / size)
    if found.status.ok:
        for i, bound in enumerate(found.angles):
            if math.isfinite(bound):
                _check_vector(trial, truth, found.values[i], found.vectors[:, i : i + 1], float(bound))
    if found.status.code == "not_unique":
        if which == "LM" and others.size:  # compare in modulus
            gap = float(np.abs(np.abs(wanted)[:, None] - np.abs(others)).min())
        small = gap <= max(1e-2 * abs(float(wanted[-1])), 16.0 * _EPS * size)
        trial.fact(f"wrong cause: not unique, but eigenvalues differ by {gap:.1e} of {size:.1e}", small)


def _check_vector(trial: Trial, truth: Spectrum, value: float, x: Array, bound: float) -> None:
    """Compare a vector with the eigenvector whose eigenvalue is nearest."""
    near = int(np.argmin(np.abs(truth.values - value)))
    rest = np.delete(np.arange(truth.d), near)
    gap = float(np.abs(truth.values[rest] - truth.values[near]).min()) if rest.size else math.inf
    error_bound = 4.0 * truth.error_bound / gap if gap > 8.0 * truth.error_bound else math.inf
    trial.claim("angle of one vector", tangent(truth.vectors[:, [near]], truth.vectors[:, rest], x), bound, error_bound)


def _svd(trial: Trial) -> None:
    rng = trial.rng
    d, k = sizes(trial)
    rows = random_rows(trial, d, k)
    n = len(rows.dense)
    partition: Partition = trial.one_of("rows", "columns")
    count = n if partition == "rows" else d
    m, k = int(rng.integers(1, min(count, 6) + 1)), min(k, n, d)
    tol = 10.0 ** rng.uniform(-12, -4)
    owner = np.sort(np.concatenate([np.arange(m), rng.integers(m, size=count - m)]))
    X = rows.given
    parts = [X[owner == j] if partition == "rows" else X[:, owner == j] for j in range(m)]
    trial.note("svd", partition, f"n={n}", f"m={m}", f"tol={tol:.1e}")
    if rows.extreme:
        trial.may_refuse(DataError, NotFiniteError)
    if not rows.dense.any():
        trial.may_refuse(DataError)
    network = SimulatedNetwork(static_network(trial, m))
    found = singular_triplets(parts, network, k, partition=partition, tol=tol, seed=trial.seed)
    truth = of_rows(rows.dense if partition == "rows" else rows.dense.T)
    trial.status = found.status.code
    trial.proven = found.status.ok and math.isfinite(found.certificate.angle)
    check_status(trial, found.status, truth, k, tol, found.shared_vectors)
    sigma = np.sqrt(np.maximum(truth.values[:k], 0)).astype(np.float64)
    if found.status.ok:
        certificate = found.certificate
        if math.isfinite(certificate.angle) and certificate.averaging_ok:
            true = tangent(truth.top(k), truth.vectors[:, k:], found.shared_vectors)
            trial.claim("angle", true, certificate.angle, truth.angle_error_bound(k))
        slack = 1e3 * _EPS + (certificate.angle**2 if math.isfinite(certificate.angle) else 0.0)
        trial.claim("singular value", float(np.abs(found.values - sigma).max() / sigma[0]), slack, 1e-17)


def _random_graph(trial: Trial) -> tuple[Array, list[GraphBlock], Topology]:
    """Draw symmetric weights of a connected graph and partition its nodes over agents."""
    rng = trial.rng
    n, m = int(rng.integers(5, 36)), int(rng.integers(1, 6))
    W = np.where(rng.random((n, n)) < rng.uniform(0.1, 0.6), 1.0, 0.0)
    if trial.chance(0.7):
        W *= 10.0 ** rng.uniform(-trial.one_of(0.3, 4.0), 0.3, (n, n))
    W = np.triu(W, 1)
    W[np.arange(n - 1), np.arange(1, n)] += 10.0 ** rng.uniform(
        -2, 0
    )  # a path, perhaps with small weights, keeps the graph connected
    W = (W + W.T) * 10.0 ** trial.one_of(0, int(rng.integers(*SIZES)))
    labels = np.unique(np.concatenate([np.arange(m), rng.integers(m, size=n - m)]), return_inverse=True)[1]
    trial.note(f"nodes={n}", f"m={m}")
    blocks, place = graphs.partition_graph(sparse.csr_array(W), labels)
    return W, blocks, place


def _graph_matrix(W: Array, matrix: str) -> npt.NDArray[np.longdouble]:
    L = W.astype(np.longdouble)
    degrees = L.sum(axis=1)
    if matrix == "adjacency":
        return L
    if matrix == "laplacian":
        return np.diag(degrees) - L
    root = 1 / np.sqrt(degrees)
    return np.asarray(np.eye(len(L)) - root[:, None] * L * root, dtype=np.longdouble)


def _graph(trial: Trial) -> None:
    W, blocks, place = _random_graph(trial)
    n = len(W)
    matrix: GraphMatrix = trial.one_of("laplacian", "normalized", "adjacency")
    which: Literal["smallest", "largest"] = trial.one_of("smallest", "largest")
    k = int(trial.rng.integers(1, min(n, 7)))
    tol = 10.0 ** trial.rng.uniform(-12, -6)
    trial.note("graph", matrix, which, f"k={k}", f"tol={tol:.1e}")
    truth = of_matrix(_graph_matrix(W, matrix))
    if which == "smallest":
        truth = truth.reordered(np.arange(n)[::-1])
    size, gap = float(np.abs(truth.values).max()), float(abs(truth.values[k - 1] - truth.values[k]))
    if gap <= 1e-8 * size:
        trial.may_refuse(GapError)
    try:
        found = graphs.graph_eigenvectors(
            blocks, SimulatedNetwork(place), k, matrix=matrix, which=which, tol=tol, seed=trial.seed
        )
    except DisconnectedError:
        trial.status = "DisconnectedError"
        trial.fact("wrong cause: disconnected, but the graph is connected", False)
        return
    trial.status, trial.proven = ("proven" if found.proven else "not proven"), found.proven
    X = graphs.gather_parts(blocks, found.vectors)
    if found.proven:
        true = tangent(truth.top(k), truth.vectors[:, k:], X)
        error_bound = 4.0 * truth.error_bound / gap if gap > 8.0 * truth.error_bound else math.inf
        trial.claim("sine", math.sin(math.atan(true)), found.error, error_bound)
    off = np.abs(found.values - truth.values[:k]).astype(np.float64)
    if found.proven:
        trial.claim(
            "eigenvalue",
            float(off.max()) / size,
            float(found.residuals.max()) / size + 64.0 * _EPS,
            truth.error_bound / size,
        )
        beyond = float(truth.values[k] - found.next_bound) * (1.0 if which == "largest" else -1.0)
        trial.claim("next eigenvalue", max(beyond, 0.0) / size, 0.0, truth.error_bound / size)


def _lambda2(trial: Trial) -> None:
    place = static_network(trial, int(trial.rng.integers(2, 16)))
    trial.note("lambda2")
    found = graphs.lambda2(SimulatedNetwork(place), seed=trial.seed)
    truth = of_matrix(place.gossip_matrix)
    trial.status, trial.proven = ("proven" if found.proven else "not proven"), found.proven
    trial.fact("wrong number of agents", found.n_agents == place.n_agents)
    if found.proven:
        trial.claim("λ₂", float(abs(found.lambda2 - truth.values[1])), found.error + 1e-10, truth.error_bound)
        trial.claim("λ_min", float(abs(found.lambda_min - truth.values[-1])), found.error + 1e-10, truth.error_bound)


def _clusters(trial: Trial) -> None:
    W, blocks, place = _random_graph(trial)
    n, k = len(W), int(trial.rng.integers(2, 5))
    trial.note("clustering", f"k={k}")
    truth = of_matrix(_graph_matrix(W, "normalized")).reordered(np.arange(n)[::-1])
    if truth.values[k] - truth.values[k - 1] <= 1e-8:
        trial.may_refuse(GapError)
    found = spectral_clustering(blocks, SimulatedNetwork(place), k, seed=trial.seed)
    pairs = found.eigenpairs
    trial.status, trial.proven = ("proven" if pairs.proven else "not proven"), pairs.proven
    labels, points = graphs.gather_parts(blocks, found.labels), graphs.gather_parts(blocks, found.embedding)
    if pairs.proven:
        X = points * np.sqrt(W.sum(axis=1))[:, None]
        gap = float(truth.values[k] - truth.values[k - 1])
        error_bound = 4.0 * truth.error_bound / gap if gap > 8.0 * truth.error_bound else math.inf
        true = tangent(truth.top(k), truth.vectors[:, k:], X)
        trial.claim("sine", math.sin(math.atan(true)), pairs.error + 64.0 * _EPS, error_bound)
    centres = np.stack([points[labels == c].mean(axis=0) if (labels == c).any() else points[0] for c in range(k)])
    inertia = float(np.square(points - centres[labels]).sum())
    whole = float(np.square(points).sum())
    trial.claim("inertia", abs(inertia - found.inertia) / whole, 1e-12)
    distances = np.square(points[:, None] - centres).sum(axis=-1)
    trial.claim(
        "a node is nearer to another centre",
        float((distances[np.arange(n), labels] - distances.min(axis=1)).max()) / whole,
        1e-12,
    )
