"""Certify an answer: average fresh products with it, then probe the space outside it."""

from __future__ import annotations

import math
from dataclasses import replace

from deepca._util.renamed import renamed_parameters
from deepca._util.typing import Array
from deepca.consensus.broadcasts import check_basis
from deepca.consensus.exact import ProductUnits, agree_on_units
from deepca.network.base import Network
from deepca.operators.base import Operator, OperatorLike
from deepca.operators.construction import as_operator
from deepca.solver.certificate.bounds import Certificate, tangent_bound
from deepca.solver.certificate.fresh_average import Fresh, Goal, digest_of, fresh_average
from deepca.solver.certificate.probing import ProbedSpectrum, ProbeFindings, columns_for, probe

__all__ = ["certify", "digest_of"]

FAILURE_PROBABILITY = 1e-6  # default probability that the bound on λ_{k+1} is wrong
_MAX_PRODUCTS = 40  # default limit on the number of block products with probes


@renamed_parameters(failure="failure_probability", products="max_products", known="previous")
def certify(
    A: OperatorLike,
    X: Array,
    network: Network,
    *,
    W: Array | None = None,
    tracked: Array | None = None,
    tol: float = 1e-8,
    accuracy: float = 1.0,
    gap: float = 0.1,
    failure_probability: float = FAILURE_PROBABILITY,
    max_products: int = _MAX_PRODUCTS,
    previous: Certificate | None = None,
    shared: bool = False,
) -> tuple[Certificate, Array]:
    """Certify the leader's components; every agent must call this at the same point.

    Parameters
    ----------
    A : OperatorLike
        The ``A_j`` of the local agents, as they are now.
    X : ndarray of shape (*B, d, k)
        Orthonormal columns; all agents use the leader's, and single columns are bounded best if principal.
    network : Network
        Network that connects the agents.
    W : ndarray of shape (*B, d, k), optional
        Each agent's own basis, to compare with the common X; X itself by default.
    tracked : ndarray of shape (*B, d, …), optional
        ``S_j − A_j W_j`` of each agent, whose mean must be zero; by default no drift is measured.
    tol : float, default=1e-8
        Tangent of the angle to prove; probing ends once it is proven.
    accuracy : float, default=1.0
        Required accuracy of residual and eigenvalues; only values smaller than ``tol`` have an effect.
    gap : float, default=0.1
        Guess of ``1 − λ_{k+1}/λ_k``, for the accuracy of the first averages; a wrong guess only costs rounds.
    failure_probability : float, default=1e-6
        Acceptable probability that the bound on λ_{k+1} is wrong.
    max_products : int, default=40
        Number of block products with probes after which probing ends, even if ``tol`` is not proven.
    previous : Certificate, optional
        Earlier certificate for the same ``A_j``, whose bound on λ_{k+1} is reused if it suffices.
    shared : bool, default=False
        Whether all agents have the same basis up to rounding. On reliable networks the largest angle between W and X
        is then bounded by a sum over all agents, and nothing is flooded.

    Returns
    -------
    certificate : Certificate
        Bounds on the errors of X.
    X : ndarray of shape (d, k)
        The leader's components.

    Raises
    ------
    ParameterError
        If ``tol``, ``accuracy`` or ``gap`` is not positive, ``failure_probability`` is not between 0 and 1, or
        ``max_products`` is not a whole number of at least 1.
    Contradiction
        If the leader sends numbers that do not follow from the averages, or columns that are not orthonormal.
    NetworkError
        If a message of an average over a spanning tree was lost or altered.
    """
    goal = Goal(tol, accuracy, gap, failure_probability, max_products)  # checks them
    return _certified(as_operator(A), X, W, tracked, network, goal, previous, shared=shared)


def _certified(
    A: Operator,
    X: Array,
    W: Array | None,
    tracked: Array | None,
    network: Network,
    goal: Goal,
    previous: Certificate | None,
    *,
    shared: bool,
) -> tuple[Certificate, Array]:
    """Average fresh products and bound λ_{k+1} by the previous certificate if that suffices, or else by probes."""
    before = network.traffic
    own, X = X if W is None else W, network.broadcast(X)
    check_basis(network, "components", X)
    units = agree_on_units(network, A) if network.reliable else ProductUnits()
    fresh = fresh_average(A, X, own, tracked, network, goal, units, shared=shared)
    found = fresh.found
    if previous is not None and fresh.residual <= _sine(goal.tol) * (fresh.theta_low - previous.bound):
        found = _with_previous_bound(found, previous)
    elif X.shape[1] < X.shape[0]:
        found = _probed(A, X, network, fresh, goal, units)
    angle = tangent_bound(fresh.residual, fresh.theta_low - found.bound) if found.averaging_ok else math.inf
    return replace(found, angle=angle, traffic=network.traffic - before), X


def _with_previous_bound(found: Certificate, previous: Certificate) -> Certificate:
    """Return the certificate with everything about the space outside from an earlier certificate."""
    return replace(
        found,
        others=previous.others,
        bound=previous.bound,
        failure=previous.failure,
        smaller_k=previous.smaller_k,
        larger_k=previous.larger_k,
        probes=previous.probes,
    )


def _probed(
    A: Operator,
    X: Array,
    network: Network,
    fresh: Fresh,
    goal: Goal,
    units: ProductUnits,
) -> Certificate:
    """Probe the space outside X and return the certificate with the eigenvalues found and the bound on λ_{k+1}.

    The first attempt averages as accurately as the guessed gap requires; if that accuracy limits the bound, probing
    restarts with a higher accuracy.
    """
    found = replace(fresh.found, failure=goal.failure)
    theta, noise = found.eigenvalues[-1], found.noise * found.scale
    seed, made = int(found.digest[:16], 16), 0
    accuracy = max(fresh.fine * min(goal.gap, 1.0) * abs(theta), noise)
    p = columns_for(found.k, len(X))
    while True:

        def findings(outside: ProbedSpectrum) -> ProbeFindings:
            # all bounds together may be wrong with probability found.failure; this is the share of one of them
            share = found.failure * 6.0 / (math.pi * (made + outside.products)) ** 2  # noqa: B023
            return ProbeFindings.of(outside, share, found.separation, fresh.formed)  # noqa: B023

        probes = probe(
            A,
            X,
            network,
            seed=seed,
            accuracy=accuracy,
            rounding=noise,
            units=units,
            derive=lambda outside: findings(outside).numbers,
            size=lambda _: p + 3,
        )
        for outside, derived in probes:
            seen = ProbeFindings.from_numbers(derived, network, outside.dimension)
            if not network.is_leader_local:
                seen.check(network, outside, findings(outside), found.scale)
            found = _with_findings(found, seen, outside, made)
            proven = fresh.residual <= _sine(goal.tol) * (fresh.theta_low - found.bound)
            limited = outside.error > 2.5 * fresh.fine * abs(found.gap) and accuracy > max(noise, outside.rounding)
            tight = theta - found.bound > 0.7 * found.gap > 0.0  # a better bound would change little
            if proven or tight or limited or found.products >= goal.max_products or _hopeless(found, seen.error):
                break
        if not (limited and not proven and found.products < goal.max_products):
            return found
        made, seed = found.products, seed + 1
        accuracy = max(min(fresh.fine * abs(found.gap), 0.1 * accuracy), noise)


def _with_findings(found: Certificate, seen: ProbeFindings, outside: ProbedSpectrum, made: int) -> Certificate:
    """Return the certificate updated by one more block product."""
    return replace(
        found,
        others=seen.values,
        bound=seen.bound,
        larger_k=found.k + seen.larger if seen.larger else None,
        averaging_error=max(found.averaging_error, outside.lost),
        probes=outside.columns,
        products=made + outside.products,
    )


def _hopeless(found: Certificate, error: float) -> bool:
    """Return whether more products cannot help: a value outside exceeds θ_k, or equals θ_k and a larger k has a gap."""
    settled = error <= max(0.05 * abs(found.gap), found.separation)
    return bool(settled and (found.larger_outside or (not found.unique and found.larger_k is not None)))


def _sine(tangent: float) -> float:
    """Return sin θ, given tan θ."""
    return tangent / math.sqrt(1.0 + tangent * tangent)
