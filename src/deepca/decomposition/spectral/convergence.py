"""Iterate until eigenpairs of partitioned rows are accurate, and bound what lies outside them."""

from __future__ import annotations

import numpy as np

from deepca._util.floats import EPS
from deepca._util.typing import Array
from deepca._util.validation import Real, check
from deepca.algorithms.partitioned_rows import FilteredSubspaceIteration, FilteredSubspaceState, end_of_cluster

__all__ = ["EQUAL", "bound_on_others", "converge", "gap_behind", "sine_bound"]

EQUAL = 1e-10
"""Eigenvalues that are closer than this, relative to the spectrum's size, count as equal."""
_FAILURE = 1e-6  # probability with which the bound on the other eigenvalues may fail
_MAX_PRODUCTS_PER_NODE = 4  # without rounding, one per node would suffice; if more are needed, the block is widened
_MAX_IDLE_STEPS = 25  # steps without progress after which only rounding is left
_ROUNDING_STEPS = 3  # the same if residuals are already small


def converge(method: FilteredSubspaceIteration, tol: float) -> tuple[FilteredSubspaceState, float, int, int]:
    """Iterate until residuals over the gap are below ``tol`` or at rounding level, then bound the other eigenvalues.

    Returns
    -------
    state : FilteredSubspaceState
        The last iterate.
    bound : float
        Upper bound on all eigenvalues beyond the first s, except with probability 1e-6.
    s : int
        Number of columns, at least k, whose span is proven to be invariant.
    products : int
        Products with the matrix.
    """
    check("tol", tol, Real(0.0, 1.0))
    state, probing = method.init(), 0
    while True:
        state, s = _iterate(method, state, tol)
        bound, more = method.upper_bound(state, s, _FAILURE)
        probing += more
        if bound < float(state.theta[s - 1]) or not method.may_widen(state):
            return state, bound, s, state.products + probing
        state = method.widened(state)  # there may be more eigenvalues among those found


def _iterate(
    method: FilteredSubspaceIteration, state: FilteredSubspaceState, tol: float
) -> tuple[FilteredSubspaceState, int]:
    """Iterate until the residuals are small enough, or cannot get smaller."""
    best, idle = np.inf, 0
    while True:
        scale = method.scale(state)
        s = end_of_cluster(state.theta, method.k)
        drop = float(state.theta[s - 1] - state.theta[s]) if s < state.theta.size else np.inf
        worst, together = float(state.r[:s].max()), drop <= EQUAL * scale
        accuracy = max(tol * (scale if together else min(drop, scale)), 4.0 * EPS * scale)
        slow = state.t > 1 and method.remaining_products(state, accuracy) > _MAX_PRODUCTS_PER_NODE * method.size
        if (together or slow) and method.may_widen(state):
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
    """Return ``‖R‖/(θ_n − μ)`` (Davis & Kahan), with μ the bound on other eigenvalues, rounding included in both."""
    if n == 0:
        return 0.0  # the known eigenvector is exact
    length = float(np.sqrt(np.square(state.r[:n]).sum())) + rounding
    apart = float(state.theta[n - 1]) - bound_on_others(state.theta, state.r, n, s, bound) - rounding
    known = bound < float(state.theta[s - 1] - state.r[:s].max())
    return length / apart if known and apart > 0.0 else np.inf
