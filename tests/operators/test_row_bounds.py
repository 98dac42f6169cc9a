"""Test that bounds on the entries of products hold, for every kind of operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse
from scipy.sparse.linalg import aslinearoperator

from deepca import topology
from deepca._util.typing import csr
from deepca.consensus.exact import agree_on_units
from deepca.network import SimulatedNetwork
from deepca.network.sums import Unit
from deepca.operators import Operator, from_linear_operators, from_matrices, from_rows
from deepca.operators.dense_rows import DenseRows
from deepca.operators.preparation import Preparation
from deepca.operators.shifted import Shifted
from deepca.operators.sparse_rows import SparseRows

M, D = 3, 12


def operators() -> dict[str, Operator]:
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal((n, D)) * np.geomspace(1e4, 1e-4, D) + 3.0 for n in (5, 40, 3000)]
    sparse_rows = [csr(sparse.random_array((n, D), density=0.2, rng=rng, format="csr")) for n in (5, 40, 60)]
    weights = tuple(rng.uniform(0.1, 3.0, len(X)) for X in rows)
    centre, units = (np.full(D, 2.9), np.full(D, 1e-3)), rng.uniform(0.5, 2.0, D)
    indefinite = rng.standard_normal((M, D, D))
    V = np.linalg.qr(rng.standard_normal((D, 2)))[0]
    scales = np.array([0.1, 1.0, 3.0])
    dense = DenseRows(rows, scales, single=False, workers=None, prepare=Preparation(centre, units, weights))
    kept = SparseRows(sparse_rows, scales, single=False, prepare=Preparation((np.full(D, 0.1), np.zeros(D)), units))
    mixed: list[Any] = [rows[0], sparse_rows[1], rows[2]]
    return {
        "dense": dense,
        "one agent": dense.agent(1),
        "deflated": dense.deflated(V),
        "sparse": kept,
        "mixed": from_rows(mixed, form="rows"),
        "matrices": from_matrices(indefinite + indefinite.transpose(0, 2, 1)),
        "shifted": Shifted(dense, -7.0, sign=-1),
    }


@pytest.mark.parametrize("kind", operators())
def test_no_product_with_a_vector_of_norm_one_exceeds_the_bounds(kind: str) -> None:
    """The largest possible entry in row i is the length of that row, which the bounds exceed by at most √d."""
    A = operators()[kind]
    bounds = A.row_bounds()
    assert bounds is not None
    largest = np.linalg.norm(A.dense(), axis=-1)
    assert (largest <= bounds * (1.0 + 1e-9)).all()
    size = np.linalg.norm(largest, axis=-1)[..., None]
    assert (bounds <= np.sqrt(D) * np.sqrt(largest * size) * (1.0 + 1e-9)).all()


@pytest.mark.parametrize("kind", [kind for kind in operators() if kind != "one agent"])
@pytest.mark.parametrize("scale", [1.0, 1e-140, 1e140])
def test_sums_in_the_agreed_units_do_not_overflow_and_lose_no_digits(kind: str, scale: float) -> None:
    A = operators()[kind]
    network = SimulatedNetwork(topology.ring(M))
    scaled = from_matrices(A.dense() * scale)
    unit = agree_on_units(network, scaled).unit
    assert unit is not None
    assert unit.words == 1
    rng = np.random.default_rng(1)
    for _ in range(20):
        w = rng.standard_normal((D, 1))
        w /= np.linalg.norm(w)
        local = (scaled @ np.broadcast_to(w, (M, D, 1)))[..., 0]
        found, total = network.total(local, unit), local.sum(axis=0)
        error = np.linalg.norm(found - total)
        assert error <= M * unit.rounding(D) + 1e-15 * np.linalg.norm(np.abs(local).sum(axis=0))
        assert unit.rounding(D) <= 1e-16 * np.linalg.norm(np.linalg.norm(scaled.dense(), axis=-1))


def test_operators_known_only_by_products_have_no_units() -> None:
    A = from_linear_operators([aslinearoperator(np.eye(D)) for _ in range(M)])
    assert A.row_bounds() is None
    assert agree_on_units(SimulatedNetwork(topology.ring(M)), A).unit is None


def test_the_rounding_of_a_mean_is_bounded_even_if_all_agents_round_alike() -> None:
    rng = np.random.default_rng(0)
    unit = Unit(np.repeat([0, 3, -40], 20))
    assert unit.rounding(60) == pytest.approx(0.5 * np.sqrt(20.0 * (1.0 + 64.0 + 4.0**-40)), rel=1e-15)
    for terms in (1, 2, 50):
        for alike in (True, False):
            x = rng.uniform(-1e6, 1e6, (1 if alike else terms, 60)) * np.ones((terms, 1))
            rounded = np.array([unit.decode(unit.encode(y))[0] for y in x])
            assert np.linalg.norm(rounded.mean(axis=0) - x.mean(axis=0)) <= unit.rounding(60) * (1.0 + 1e-12)


def test_many_agents_with_many_columns_need_two_words() -> None:
    """Otherwise the rounding of their sums, which may be the same at all agents, would be noticed."""
    network = SimulatedNetwork(topology.star(2000))
    A = from_matrices(np.broadcast_to(np.eye(20), (2000, 20, 20)))
    unit = agree_on_units(network, A).unit
    assert unit is not None
    assert unit.words == 2
    assert unit.rounding(20) <= 1e-30


def test_products_beyond_outdated_bounds_are_added_exactly() -> None:
    rows = [np.random.default_rng(j).standard_normal((3000, D)) for j in range(M)]  # too many to be copied
    A = from_rows(rows, form="rows")
    network = SimulatedNetwork(topology.ring(M))
    units = agree_on_units(network, A)
    for X in rows:
        X *= 1e10
    W = np.broadcast_to(np.eye(D)[:, :2], (M, D, 2))
    products = A @ W
    found = network.totals(units.addend("products", products))[0].value
    np.testing.assert_allclose(found, products.sum(axis=0).ravel(), rtol=1e-14)


def test_rows_without_entries_do_not_coarsen_the_units_of_others() -> None:
    A = from_matrices(np.diag([1e-20, 0.0, 1e-22])[None])
    unit = agree_on_units(SimulatedNetwork(topology.complete(1)), A).unit
    assert unit is not None
    assert unit.rounding(3) <= 1e-36
