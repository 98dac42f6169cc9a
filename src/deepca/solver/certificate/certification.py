"""Certify an answer: average fresh products with it, then probe the space outside it."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from deepca._util.floats import EPS, LARGEST, SMALLEST
from deepca._util.portable import norm, total
from deepca._util.renamed import renamed_parameters
from deepca._util.typing import Array
from deepca._util.validation import Integer, Real, check
from deepca.consensus.averaging import AverageWithError, average_and_derive
from deepca.consensus.broadcasts import check_basis, check_close, for_local_agents, packed
from deepca.consensus.exact import ProductUnits, agree_on_units
from deepca.consensus.mixers import default_mixer
from deepca.network.base import Network
from deepca.network.sums import Addend, Unit
from deepca.operators.base import Operator, OperatorLike
from deepca.operators.construction import as_operator
from deepca.operators.linalg import frobenius, symmetric_part, tan_theta
from deepca.operators.rounding import Rounding
from deepca.solver.certificate.bounds import Certificate, tangent_bound
from deepca.solver.certificate.probing import ProbedSpectrum, ProbeFindings, columns_for, overlap, probe

__all__ = ["certify", "digest_of"]

FAILURE_PROBABILITY = 1e-6  # default probability that the bound on λ_{k+1} is wrong
_RIGHT_ANGLE = LARGEST  # stands for an infinite tangent, since infinity must not be sent
_EXTRAS_UNIT = Unit(-240, 5)  # squares of rounding errors are tiny
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
    goal = _Goal(tol, accuracy, gap, failure_probability, max_products)  # checks them
    return _certified(as_operator(A), X, W, tracked, network, goal, previous)


@dataclass(frozen=True)
class _Goal:
    """Claim to prove, and limits of its cost: parameters of :func:`certify`."""

    tol: float
    accuracy: float
    gap: float
    failure: float
    max_products: int

    def __post_init__(self) -> None:
        check("tol", self.tol, Real(0.0, example="1e-8"))
        check("accuracy", self.accuracy, Real(0.0, up_to=True))
        check("gap", self.gap, Real(0.0))
        check("failure_probability", self.failure, Real(0.0, 1.0))
        check("max_products", self.max_products, Integer(1))


def _certified(
    A: Operator,
    X: Array,
    W: Array | None,
    tracked: Array | None,
    network: Network,
    goal: _Goal,
    previous: Certificate | None,
) -> tuple[Certificate, Array]:
    """Average fresh products and bound λ_{k+1} by the previous certificate if that suffices, or else by probes."""
    before = network.traffic
    own, X = X if W is None else W, network.broadcast(X)
    check_basis(network, "components", X)
    units = agree_on_units(network, A) if network.reliable else ProductUnits()
    fresh = _fresh(A, X, own, tracked, network, goal, units)
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


def digest_of(X: Array) -> str:
    """Return the SHA-256 of components ``(d, k)``: float64, little endian, row by row."""
    return hashlib.sha256(np.ascontiguousarray(X, dtype="<f8").tobytes()).hexdigest()


@dataclass(frozen=True)
class _Fresh:
    """Certificate before the space outside has been probed, and numbers needed to complete it.

    Attributes
    ----------
    found : Certificate
        The certificate without a bound on λ_{k+1}.
    residual : float
        Norm of the residual, including all uncertainty.
    formed : float
        Part of ``residual`` due to the way in which the A_j were formed.
    fine : float
        Accuracy of averages, relative to the gap, with which probes detect an eigenvector even if the random start
        contains as little of that eigenvector as the failure probability allows.
    """

    found: Certificate
    residual: float
    formed: float
    fine: float

    @property
    def theta_low(self) -> float:
        """Lower bound on θ_k."""
        return self.found.eigenvalues[-1] - self.found.uncertainty * self.found.scale


@dataclass(frozen=True)
class _Request:
    """Request for one average of vectors that contain ``A_j X``, the drift, and four more numbers of each agent.

    Attributes
    ----------
    X : ndarray of shape (d, k)
        The leader's components.
    goal : _Goal
        What to prove.
    noise : float
        Rounding of the products, which limits the accuracy of every average.
    """

    X: Array
    goal: _Goal
    noise: float

    @property
    def accuracy(self) -> float:
        """Required accuracy of the average, relative to θ_k."""
        return min(min(self.goal.tol, self.goal.accuracy) * self.goal.gap, 1.0)

    def product(self, vector: Array) -> Array:
        """Return the part of such a vector that belongs to ``A X``, ``(d, k)``."""
        return vector[: self.X.size].reshape(self.X.shape)

    def enough(self, found: AverageWithError) -> bool:
        """Return whether an average is as accurate as rounding allows, or as tolerance and gap require."""
        theta = min(total(x * y) for x, y in zip(self.X.T, self.product(found.mean).T, strict=True))
        return norm(self.product(found.error)) <= max(0.05 * self.accuracy * theta, self.noise)

    def numbers(self, found: AverageWithError) -> Array:
        """Derive θ, ‖R‖, coupling, drift, and the accuracy that probes need; the bits depend on the processor."""
        (d, k), X, AX = self.X.shape, self.X, self.product(found.mean)
        inside = X.T @ AX
        theta = np.linalg.eigvalsh(symmetric_part(inside))[::-1]
        coupling = frobenius(inside - np.diag(theta))
        drift = frobenius(found.mean[d * k : -4]) - 2.0 * frobenius(found.error[d * k : -4])
        fine = 0.1 * overlap(d - k, columns_for(k, d), self.goal.failure) if k < d else 0.0
        return packed(theta, np.linalg.norm(AX - X @ inside, 2), coupling, drift, fine)

    def check(self, network: Network, derived: Array, mean: AverageWithError) -> None:
        """Raise Contradiction unless the leader's numbers follow from the average, up to rounding."""
        own, rounded = self.numbers(mean), 16.0 * len(self.X) * EPS * norm(self.product(mean.mean))
        check_close(network, "eigenvalues or residuals", derived[:-2], own[:-2], rounded)
        check_close(network, "a drift", derived[-2], own[-2], 1e-9 * abs(float(own[-2])) + rounded)
        check_close(network, "an accuracy of probes", derived[-1], own[-1], 1e-6 * float(own[-1]))


def _fresh(
    A: Operator,
    X: Array,
    own: Array,
    tracked: Array | None,
    network: Network,
    goal: _Goal,
    units: ProductUnits,
) -> _Fresh:
    """Return the part of the certificate that follows from one fresh average of ``A_j X``."""
    k, m = X.shape[1], network.n_agents
    AX = A @ for_local_agents(X, network)
    rounding = A.rounding()
    tangents = np.minimum(tan_theta(X, own), _RIGHT_ANGLE)
    local = np.stack([tangents, frobenius(AX, axis=(-2, -1)), rounding.growth], axis=-1)
    agents = (np.arange(m) == network.local[..., None]).astype(np.float64)
    highest = network.reduce(np.concatenate([local, agents], axis=-1), "max")
    noise = 2.0 * EPS * float(highest[1])

    request, addends = _Request(X, goal, noise), _addends(AX, tracked, A.row_counts, rounding, units)
    rounds = default_mixer(network.topology).rounds_for(network.topology, min(max(0.01 * request.accuracy, EPS), 1e-3))
    mean, derived = average_and_derive(network, addends, rounds, request.enough, request.numbers, k + 4)
    if not network.is_leader_local:
        request.check(network, derived, mean)
    theta, (outside, coupling, drift, fine) = derived[:k], map(float, derived[k:])
    noise = mean.error_bound(float(highest[1]))
    error = norm(request.product(mean.error))
    residual = outside + error + noise
    largest = float(np.abs(theta).max())
    row_rounding, product_rounding = map(float, mean.mean[-2:] + mean.error[-2:])
    formed = rounding.bound(largest + residual, row_rounding, product_rounding, float(highest[2]))
    residual += formed
    relative = 1.0 / largest if largest >= SMALLEST else 0.0  # no digit of a smaller matrix is known
    separation = max(4.0 * noise, 16.0 * EPS * largest)
    found = Certificate(
        angle=math.inf,
        agents_angle=float(highest[0]) if highest[0] < _RIGHT_ANGLE else math.inf,
        residual=residual * relative,
        uncertainty=(error + noise + formed) * relative,
        noise=noise * relative,
        coupling=coupling * relative,
        drift=max(drift, 0.0) * relative,
        eigenvalues=tuple(map(float, theta)),
        others=(),
        bound=-math.inf,
        failure=0.0,
        separation=separation,
        smaller_k=_largest_gap_below(theta, separation),
        larger_k=None,
        n_agents=round(float(highest[3:].sum())),
        n_rows=round(float(mean.mean[-3]) * m) if mean.mean[-4] > 1.0 - 1e-6 and m * mean.error[-3] < 0.5 else None,
        averaging_error=mean.lost,
        digest=digest_of(X),
        probes=0,
        products=0,
        traffic=network.traffic,
    )
    return _Fresh(found, residual, formed, fine)


def _addends(
    AX: Array, tracked: Array | None, rows: npt.NDArray[np.int64] | None, rounding: Rounding, units: ProductUnits
) -> list[Addend]:
    """Return the numbers of the local agents that are averaged: products, drifts, row counts and rounding errors."""
    B = AX.shape[:-2]
    extras = np.zeros((*B, 4))
    extras[..., 2], extras[..., 3] = rounding.rows, rounding.products
    if rows is not None:
        extras[..., 0], extras[..., 1] = 1.0, rows
    drifts = Addend("drifts", np.zeros((*B, 0))) if tracked is None else Addend("drifts", tracked.reshape(*B, -1))
    if tracked is not None and tracked.shape == AX.shape:
        drifts = units.addend("drifts", tracked)
    return [
        units.addend("products", AX),
        drifts,
        Addend("row counts and rounding errors", extras, guess=_EXTRAS_UNIT, nonnegative=True),
    ]


def _probed(
    A: Operator,
    X: Array,
    network: Network,
    fresh: _Fresh,
    goal: _Goal,
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


def _largest_gap_below(theta: Array, separation: float) -> int | None:
    """Return the largest j < k with a gap after θ_j."""
    return max((j for j in range(1, len(theta)) if theta[j - 1] - theta[j] > separation), default=None)


def _sine(tangent: float) -> float:
    """Return sin θ, given tan θ."""
    return tangent / math.sqrt(1.0 + tangent * tangent)
