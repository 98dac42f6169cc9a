"""Test that every entry point rejects masked entries, and accepts masked arrays without any."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import deepca
from deepca import DecentralizedEigen, DecentralizedPCA, DecentralizedSVD
from deepca.errors import DataError
from tests.support.errors import raises

Make = Callable[[Any], Any]

RNG = np.random.default_rng(0)
X = RNG.standard_normal((24, 4))
PCA = DecentralizedPCA(2, topology="ring", n_agents=3).fit(X)
SVD = DecentralizedSVD(2, topology="ring", n_agents=3).fit(X)


def blocks(masked: Any) -> list[Any]:
    return [masked[:8], masked[8:16], masked[16:]]


WAYS: dict[str, Make] = {
    "fit": lambda given: DecentralizedPCA(2, topology="ring", n_agents=3).fit(given).components_,
    "fit_agents": lambda given: DecentralizedPCA(2, topology="ring").fit_agents(blocks(given)).components_,
    "partial_fit": lambda given: DecentralizedPCA(2, topology="ring", n_agents=3).partial_fit(given).components_,
    "partial_fit_agents": lambda given: DecentralizedPCA(2).partial_fit_agents(blocks(given)).components_,
    "weights": lambda given: DecentralizedPCA(2, n_agents=3).fit(X, sample_weight=1.0 + given[:, 0] ** 2).components_,
    "weights of agents": lambda given: (
        DecentralizedPCA(2)
        .fit_agents(blocks(X), sample_weight=[1.0 + part[:, 0] ** 2 for part in blocks(given)])
        .components_
    ),
    "rows in a list": lambda given: DecentralizedPCA(2, topology="ring", n_agents=3).fit(list(given)).components_,
    "rows in lists": lambda given: DecentralizedPCA(2).fit_agents([list(part) for part in blocks(given)]).components_,
    "transform": PCA.transform,
    "inverse_transform": lambda given: PCA.inverse_transform(given[:, :2]),
    "score_samples": PCA.score_samples,
    "model": lambda given: PCA.model_.transform(given),
    "SVD by rows": lambda given: DecentralizedSVD(2, n_agents=3).fit(given).components_,
    "SVD by columns": lambda given: DecentralizedSVD(2, partition="columns", n_agents=2).fit(given).components_,
    "SVD of agents": lambda given: DecentralizedSVD(2).fit_agents(blocks(given)).components_,
    "SVD transform": SVD.transform,
    "eigen": lambda given: DecentralizedEigen(1).fit([part[:4] + part[:4].T for part in blocks(given)]).eigenvalues_,
    "eigen stack": lambda given: (
        DecentralizedEigen(1).fit(np.ma.stack([p[:4] + p[:4].T for p in blocks(given)])).eigenvalues_
    ),
    "rows of operators": lambda given: deepca.operators.from_rows(blocks(given)).mean(),
    "matrices": lambda given: deepca.operators.from_matrices([part[:4] + part[:4].T for part in blocks(given)]).mean(),
}


@pytest.mark.parametrize("way", WAYS)
def test_arrays_without_masked_entries_are_plain_data(way: str) -> None:
    given = np.ma.masked_array(X, mask=np.zeros(X.shape, dtype=bool))
    np.testing.assert_array_equal(WAYS[way](given), WAYS[way](X))


@pytest.mark.parametrize("way", WAYS)
def test_masked_entries_are_rejected(way: str) -> None:
    mask = np.zeros(X.shape, dtype=bool)
    mask[9, 0] = True  # of the second agent
    with pytest.raises(DataError):
        WAYS[way](np.ma.masked_array(X, mask=mask))


def test_the_error_names_the_agent_and_the_entry() -> None:
    mask = np.zeros(X.shape, dtype=bool)
    mask[9, 0] = True
    with raises(DataError, row=1, column=0) as caught:
        WAYS["fit_agents"](np.ma.masked_array(X, mask=mask))
    assert "agent 1" in str(caught.value)
