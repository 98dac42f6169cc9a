"""Compare decentralized spectral clustering with scikit-learn's on the pooled graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.cluster import KMeans, SpectralClustering
from sklearn.datasets import load_digits, make_moons
from sklearn.metrics import adjusted_rand_score
from sklearn.neighbors import kneighbors_graph

from deepca._util.typing import csr
from deepca.decomposition.spectral import graphs
from deepca.decomposition.spectral.clustering import spectral_clustering
from deepca.errors import DisconnectedError, ParameterError
from tests.support.engines import ENGINES, network_of
from tests.support.errors import raises
from tests.support.graph_cases import Shared, entries

DIGITS = load_digits()
POINTS: dict[str, tuple[npt.NDArray[Any], int]] = {
    "moons": (make_moons(240, noise=0.06, random_state=0)[0], 2),
    "digits": (DIGITS.data[:500], 10),
    "digits 0 to 5": (DIGITS.data[DIGITS.target < 6][:600], 6),
}


def neighbours(name: str) -> Shared:
    """Return the graph of ten nearest neighbours, partitioned over agents by region."""
    points, _ = POINTS[name]
    A = kneighbors_graph(points, 10, include_self=False)
    regions = KMeans(7, n_init=1, random_state=0).fit_predict(points)
    W = csr((A + A.T) / 2.0)
    return Shared(W, *graphs.partition_graph(W, regions))


@pytest.mark.parametrize("name", POINTS)
def test_clusters_equal_those_of_scikit_learn(name: str) -> None:
    case, k = neighbours(name), POINTS[name][1]
    found = entries(
        ENGINES[0],
        case,
        lambda blocks, network: [
            labels[:, None].astype(np.float64) for labels in spectral_clustering(blocks, network, k).labels
        ],
    )[:, 0]
    pooled = SpectralClustering(k, affinity="precomputed", eigen_solver="arpack", n_init=20, random_state=0)
    expected = pooled.fit(case.W).labels_
    assert adjusted_rand_score(expected, found) >= 0.99
    first = [int(np.flatnonzero(found == c)[0]) for c in range(k)]
    assert first == sorted(first)  # clusters are numbered by their first nodes


@pytest.mark.parametrize("name", ["moons"])
def test_engines_agree_on_clusters(name: str) -> None:
    case, k = neighbours(name), POINTS[name][1]
    found = [
        entries(
            kind,
            case,
            lambda b, n: [labels[:, None].astype(np.float64) for labels in spectral_clustering(b, n, k).labels],
        )
        for kind in ENGINES
    ]
    assert all((labels == found[0]).all() for labels in found)


def test_centres_are_as_good_as_k_means_of_the_pooled_embedding() -> None:
    case, k = neighbours("digits"), 10
    network = network_of(case.topology)
    best = spectral_clustering(case.local(network), network, k)
    points = entries(ENGINES[0], case, lambda b, n: spectral_clustering(b, n, k).embedding)
    pooled = KMeans(k, n_init=20, random_state=0).fit(points)
    assert best.inertia <= 1.01 * pooled.inertia_
    assert best.eigenpairs.proven


def test_invalid_input_is_rejected() -> None:
    case = neighbours("moons")
    network = network_of(case.topology)
    for restarts in (0, 1.5):
        with raises(ParameterError, parameter="restarts", value=restarts):
            spectral_clustering(case.local(network), network, 2, restarts=restarts)  # type: ignore[arg-type]
    with raises(ParameterError, parameter="k", value=0):
        spectral_clustering(case.local(network), network, 0)
    W = np.kron([[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]])  # two pairs
    blocks, place = graphs.partition_graph(W, [0, 1, 0, 1])
    network = network_of(place)
    with raises(DisconnectedError, value=(0, 2)):
        spectral_clustering([blocks[int(j)] for j in network.local.ravel()], network, 2)
