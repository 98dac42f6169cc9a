"""Iterate until eigenpairs of partitioned rows are accurate, and bound what lies outside them."""

from __future__ import annotations

import numpy as np

from deepca._util.floats import EPS
from deepca._util.typing import Array
from deepca._util.validation import Real, check
from deepca.algorithms.partitioned_rows import FilteredSubspaceIteration, FilteredSubspaceState, end_of_cluster

__all__ = ["EQUALITY_TOLERANCE", "bound_on_others", "converge", "gap_behind", "sine_bound"]

EQUALITY_TOLERANCE = 1e-10
"""Difference up to which eigenvalues count as equal, relative to the spectrum's size."""
_FAILURE = 1e-6  # probability with which the bound on the other eigenvalues may fail
_MAX_PRODUCTS_PER_NODE = 4  # the block is widened if more are needed; without rounding, one per node would suffice
_MAX_IDLE_STEPS = 25  # number of steps without progress after which iterations stop, since only rounding is left
_ROUNDING_STEPS = 3  # the same if residuals are already small


def converge(method: FilteredSubspaceIteration, tol: float) -> tuple[FilteredSubspaceState, float, int, int]:
    """Iterate until residuals over the gap are below ``tol`` or at rounding level, then bound the other eigenvalues.

    Returns
    -------
    state : FilteredSubspaceState
        The last iterate.
    bound : float
        Upper bound on all eigenvalues except the first s, which holds except with probability 1e-6.
    s : int
        Number of leading Ritz values, at least k, up to the end of the cluster that contains the k-th.
    products : int
        Number of products with the matrix, including those for the bound.

    Raises
    ------
    ParameterError
        If ``tol`` is not between 0 and 1.
    """
    check("tol", tol, Real(0.0, 1.0))
    state, probing = method.init(), 0
    while True:
        state, s = _iterate(method, state, tol)
        bound, more = method.upper_bound(state, s, _FAILURE)
        probing += more
        if bound < float(state.theta[s - 1]) or not method.may_widen(state):
            return state, bound, s, state.products + probing
        state = method.widened(state)  # an eigenvalue above the s-th Ritz value may have been missed


def _iterate(
    method: FilteredSubspaceIteration, state: FilteredSubspaceState, tol: float
) -> tuple[FilteredSubspaceState, int]:
    """Iterate until the residuals are small enough, or cannot get smaller."""
    best, idle = np.inf, 0
    while True:
        scale = method.scale(state)
        s = end_of_cluster(state.theta, method.k)
        drop = float(state.theta[s - 1] - state.theta[s]) if s < state.theta.size else np.inf
        worst, no_gap = float(state.r[:s].max()), drop <= EQUALITY_TOLERANCE * scale
        accuracy = max(tol * (scale if no_gap else min(drop, scale)), 4.0 * EPS * scale)
        slow = state.t > 1 and method.remaining_products(state, accuracy) > _MAX_PRODUCTS_PER_NODE * method.size
        if (no_gap or slow) and method.may_widen(state):
            state, best, idle = method.widened(state), np.inf, 0
            continue
        idle = idle + 1 if worst > 0.5 * best else 0
        best = min(best, worst)
        complete = state.theta.size == method.free
        at_rounding = idle >= _ROUNDING_STEPS and worst <= 1e-9 * scale
        if complete or worst <= accuracy or at_rounding or idle >= _MAX_IDLE_STEPS:
            return state, s
        state = method.step(state, accuracy)


def gap_behind(theta: Array, n: int) -> float:
    """Return the gap between Ritz values n and n + 1; for n = 0, between the known eigenvalue, zero, and the first."""
    return float((theta[n - 1] if n else 0.0) - theta[n]) if theta.size > n else np.inf


def bound_on_others(theta: Array, r: Array, n: int, s: int, bound: float) -> float:
    """Return an upper bound on all eigenvalues except the first n."""
    return max(bound, float(theta[n] + r[n:s].max())) if s > n else bound


def sine_bound(state: FilteredSubspaceState, n: int, s: int, bound: float, rounding: float) -> float:
    """Bound the sine of the angle between the first n Ritz vectors and the eigenvectors; inf if unproven.

    The bound of Davis and Kahan is ``‖R‖/(θ_n − μ)``, with μ the bound on all other eigenvalues; both include
    ``rounding``.
    """
    if n == 0:
        return 0.0  # the known eigenvector is exact
    length = float(np.sqrt(np.square(state.r[:n]).sum())) + rounding
    gap = float(state.theta[n - 1]) - bound_on_others(state.theta, state.r, n, s, bound) - rounding
    proven = bound < float(state.theta[s - 1] - state.r[:s].max())
    return length / gap if proven and gap > 0.0 else np.inf
