"""Test the completion of symmetric matrices against general least squares."""

from __future__ import annotations

import numpy as np
import pytest

from deepca.planning.leakage.directions import Directions
from tests.support.problems import close


def problem(d: int, p: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((d, d))
    return A + A.T, rng.standard_normal((d, p))


@pytest.mark.parametrize("p", [0, 1, 3, 5])
def test_the_completion_is_the_smallest_solution(p: int) -> None:
    d = 6
    A, P = problem(d, p, p)
    rows, columns = np.triu_indices(d)
    basis = np.zeros((rows.size, d, d))
    basis[np.arange(rows.size), rows, columns] = np.where(rows == columns, 1.0, np.sqrt(0.5))
    basis[np.arange(rows.size), columns, rows] = basis[np.arange(rows.size), rows, columns]
    known = np.hstack([(basis @ P).reshape(rows.size, -1), np.diagonal(basis, axis1=1, axis2=2)]).T
    right = np.concatenate([(A @ P).ravel(), np.diagonal(A)])
    expected = np.tensordot(np.linalg.lstsq(known, right, rcond=1e-12)[0], basis, axes=1)
    close(Directions(P).complete(A @ P, np.diagonal(A)), expected, atol=1e-10)


@pytest.mark.parametrize("p", [6, 9])
def test_a_matrix_is_exact_if_all_directions_are_known(p: int) -> None:
    A, P = problem(6, p, p)
    close(Directions(P).complete(A @ P, np.zeros(6)), A, atol=1e-12)


def test_directions_that_repeat_add_nothing() -> None:
    A, P = problem(6, 2, 0)
    twice = np.hstack([P, P, 1e-12 * np.eye(6)[:, :1] + P[:, :1]])
    found = Directions(twice)
    assert found.Q.shape == (6, 2)
    expected = Directions(P).complete(A @ P, np.diagonal(A))
    close(found.complete(A @ twice, np.diagonal(A)), expected, atol=1e-10)
