"""Certify an answer: average fresh products with it, then probe the space outside it."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace

import numpy as np

from deepca._util.floats import EPS, LARGEST, SMALLEST
from deepca._util.portable import norm, total
from deepca._util.typing import Array
from deepca.consensus.averaging import Averaged, average_then
from deepca.consensus.mixers import default_mixer
from deepca.network.base import Network
from deepca.network.broadcasts import check_basis, check_close, for_local_agents, packed
from deepca.operators.base import Operator, OperatorLike
from deepca.operators.construction import as_operator
from deepca.operators.linalg import frobenius, symmetric_part, tan_theta
from deepca.solver.certificate.bounds import Certificate, tangent
from deepca.solver.certificate.probing import ProbedSpectrum, ProbeFindings, columns_for, overlap, probe

__all__ = ["certify", "digest_of"]

FAILURE = 1e-6  # probability that the bound on λ_{k+1} is wrong
_RIGHT_ANGLE = LARGEST  # stands for an infinite tangent, since infinity must not be sent
_MAX_PRODUCTS = 40  # block products with probes, unless the caller sets another limit


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
    failure: float = FAILURE,
    products: int = _MAX_PRODUCTS,
    known: Certificate | None = None,
) -> tuple[Certificate, Array]:
    """Certify the leader's components; every agent must call this at the same point.

    Parameters
    ----------
    A : OperatorLike
        The ``A_j`` of the local agents, as they are now.
    X : ndarray of shape (*B, d, k)
        Orthonormal columns, of which all agents take the leader's; principal components give meaningful eigenvalues.
    network : Network
        Network that connects the agents.
    W : ndarray of shape (*B, d, k), optional
        Each agent's own basis, to compare with the common X; X itself by default.
    tracked : ndarray of shape (*B, d, …), optional
        ``S_j − A_j W_j`` of each agent, whose mean must be zero; not checked by default.
    tol : float, default=1e-8
        Tangent to prove; probing ends once it is proven.
    accuracy : float, default=1.0
        Accuracy of residual and eigenvalues, if it is to be smaller than ``tol``.
    gap : float, default=0.1
        Guess of ``1 − λ_{k+1}/λ_k``, for the accuracy of the first averages; a wrong guess only costs rounds.
    failure : float, default=1e-6
        Acceptable probability that the bound on λ_{k+1} is wrong.
    products : int, default=40
        Maximum number of block products with probes.
    known : Certificate, optional
        Earlier certificate for the same ``A_j``, whose bound on λ_{k+1} is reused if it suffices.

    Returns
    -------
    certificate : Certificate
        Bounds on the errors of X.
    X : ndarray of shape (d, k)
        The leader's components.
    """
    operator, before = as_operator(A), network.traffic
    own, X = X if W is None else W, network.broadcast(X)
    check_basis(network, "components", X)
    fresh = _fresh(operator, X, own, tracked, network, min(tol, accuracy), gap, failure)
    found = fresh.found
    theta_low = found.eigenvalues[-1] - found.uncertainty * found.scale
    if known is not None and fresh.residual <= _sine(tol) * (theta_low - known.bound):
        found = _with_known_bound(found, known)
    elif X.shape[1] < X.shape[0]:
        found = _probed(operator, X, network, replace(found, failure=failure), fresh, tol, gap, products)
    angle = tangent(fresh.residual, theta_low - found.bound) if found.averaging_ok else math.inf
    return replace(found, angle=angle, traffic=network.traffic - before), X


def _with_known_bound(found: Certificate, known: Certificate) -> Certificate:
    """Return the certificate with the bound on λ_{k+1}, and all that belongs to it, from an earlier certificate."""
    return replace(
        found,
        others=known.others,
        bound=known.bound,
        failure=known.failure,
        smaller_k=known.smaller_k,
        larger_k=known.larger_k,
        probes=known.probes,
    )


def digest_of(X: Array) -> str:
    """Return the SHA-256 of components ``(d, k)``: float64, little endian, row by row."""
    return hashlib.sha256(np.ascontiguousarray(X, dtype="<f8").tobytes()).hexdigest()


@dataclass(frozen=True)
class _Fresh:
    """Certificate before the space outside has been probed, and numbers needed to complete it.

    Attributes
    ----------
    residual : float
        Norm of the residual, including all uncertainty.
    formed : float
        Part of it due to the way in which the A_j were formed.
    fine : float
        Accuracy of averages, relative to the gap, with which probes detect an eigenvector even if the random start
        contains as little of it as is likely.
    """

    found: Certificate
    residual: float
    formed: float
    fine: float


@dataclass(frozen=True)
class _Request:
    """Request for one average of vectors that contain ``A_j X``, the drift, and four more numbers of each agent.

    Attributes
    ----------
    noise : float
        Rounding of the products, which limits the accuracy of every average.
    """

    X: Array
    tol: float
    gap: float
    failure: float
    noise: float

    def product(self, of: Array) -> Array:
        """Return the part of such a vector that belongs to ``A X``, ``(d, k)``."""
        return of[: self.X.size].reshape(self.X.shape)

    def enough(self, found: Averaged) -> bool:
        """Return whether an average is as accurate as rounding allows, or as tolerance and gap require."""
        theta = min(total(x * y) for x, y in zip(self.X.T, self.product(found.mean).T, strict=True))
        return norm(self.product(found.error)) <= max(0.05 * self.tol * self.gap * theta, self.noise)

    def numbers(self, found: Averaged) -> Array:
        """Derive θ, ‖R‖, coupling, drift, and the accuracy that probes need; the bits depend on the processor."""
        (d, k), X, AX = self.X.shape, self.X, self.product(found.mean)
        inside = X.T @ AX
        theta = np.linalg.eigvalsh(symmetric_part(inside))[::-1]
        coupling = frobenius(inside - np.diag(theta))
        drift = frobenius(found.mean[d * k : -4]) - 2.0 * frobenius(found.error[d * k : -4])
        fine = 0.1 * overlap(d - k, columns_for(k, d), self.failure) if k < d else 0.0
        return packed(theta, np.linalg.norm(AX - X @ inside, 2), coupling, drift, fine)

    def check(self, network: Network, derived: Array, mean: Averaged) -> None:
        """Raise Contradiction unless the leader's numbers follow from the average, up to rounding."""
        own, rounded = self.numbers(mean), 16.0 * len(self.X) * EPS * norm(self.product(mean.mean))
        check_close(network, "eigenvalues or residuals", derived[:-2], own[:-2], rounded)
        check_close(network, "a drift", derived[-2], own[-2], 1e-9 * abs(float(own[-2])) + rounded)
        check_close(network, "an accuracy of probes", derived[-1], own[-1], 1e-6 * float(own[-1]))


def _fresh(
    A: Operator, X: Array, own: Array, tracked: Array | None, network: Network, tol: float, gap: float, failure: float
) -> _Fresh:
    """Return the part of the certificate that follows from one fresh average of ``A_j X``."""
    (d, k), B, m = X.shape, network.batch, network.n_agents
    AX = A @ for_local_agents(X, network)
    rounding = A.rounding()
    apart = np.minimum(tan_theta(X, own), _RIGHT_ANGLE)
    local = np.stack([apart, frobenius(AX, axis=(-2, -1)), rounding.growth], axis=-1)
    agents = (np.arange(m) == network.local[..., None]).astype(np.float64)
    highest = network.reduce(np.concatenate([local, agents], axis=-1), "max")
    noise = 2.0 * EPS * float(highest[1])

    rows = A.row_counts
    extras = np.zeros((*B, 4))
    extras[..., 2], extras[..., 3] = rounding.rows, rounding.products
    if rows is not None:
        extras[..., 0], extras[..., 1] = 1.0, rows

    request = _Request(X, tol, gap, failure, noise)
    drifts = np.zeros((*B, 0)) if tracked is None else tracked.reshape(*B, -1)
    flat = np.concatenate([AX.reshape(*B, d * k), drifts, extras], axis=-1)
    rounds = default_mixer(network.topology).rounds_for(network.topology, min(max(0.01 * tol * gap, EPS), 1e-3))
    mean, derived = average_then(network, flat, rounds, request.enough, request.numbers, k + 4)
    if not network.leads:
        request.check(network, derived, mean)
    theta, (outside, coupling, drift, fine) = derived[:k], map(float, derived[k:])
    noise *= mean.growth
    error = norm(request.product(mean.error))
    residual = outside + error + noise
    largest = float(np.abs(theta).max())
    rows_off, products_off = map(float, mean.mean[-2:] + mean.error[-2:])
    formed = rounding.bound(largest + residual, rows_off, products_off, float(highest[2]))
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


def _probed(
    A: Operator, X: Array, network: Network, found: Certificate, fresh: _Fresh, tol: float, gap: float, products: int
) -> Certificate:
    """Probe the space outside X, and return the certificate with the eigenvalues found and the bound on λ_{k+1}.

    The first attempt averages as accurately as the guessed gap requires; if that accuracy limits the bound, probing
    restarts with a higher one.
    """
    theta, noise = found.eigenvalues[-1], found.noise * found.scale
    theta_low = theta - found.uncertainty * found.scale
    seed, made = int(found.digest[:16], 16), 0
    accuracy = max(fresh.fine * min(gap, 1.0) * abs(theta), noise)
    p = columns_for(found.k, len(X))
    while True:

        def findings(outside: ProbedSpectrum) -> ProbeFindings:
            # all attempts together may be wrong with probability ``failure``; this is the share of one of them
            share = found.failure * 6.0 / (math.pi * (made + outside.products)) ** 2  # noqa: B023
            return ProbeFindings.of(outside, share, found.separation, fresh.formed)  # noqa: B023

        probes = probe(
            A,
            X,
            network,
            seed=seed,
            accuracy=accuracy,
            rounding=noise,
            derive=lambda outside: findings(outside).numbers,
            size=lambda _: p + 3,
        )
        for outside, derived in probes:
            seen = ProbeFindings.from_numbers(derived, network, outside.dimension)
            if not network.leads:
                seen.check(network, outside, findings(outside), found.scale)
            found = _with(found, seen, outside, made)
            proven = fresh.residual <= _sine(tol) * (theta_low - found.bound)
            limited = outside.error > 2.5 * fresh.fine * abs(found.gap) and accuracy > max(noise, outside.rounding)
            tight = theta - found.bound > 0.7 * found.gap > 0.0  # a better bound would change little
            if proven or tight or limited or found.products >= products or _hopeless(found, seen.error):
                break
        if not (limited and not proven and found.products < products):
            return found
        made, seed = found.products, seed + 1
        accuracy = max(min(fresh.fine * abs(found.gap), 0.1 * accuracy), noise)


def _with(found: Certificate, seen: ProbeFindings, outside: ProbedSpectrum, made: int) -> Certificate:
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
    """Return whether more products cannot help: a value outside exceeds θ_k, or equals it and a larger k has a gap."""
    settled = error <= max(0.05 * abs(found.gap), found.separation)
    return bool(settled and (found.larger_outside or (not found.unique and found.larger_k is not None)))


def _largest_gap_below(theta: Array, separation: float) -> int | None:
    """Return the largest j < k with a gap after θ_j."""
    return max((j for j in range(1, len(theta)) if theta[j - 1] - theta[j] > separation), default=None)


def _sine(tangent: float) -> float:
    """Return the sine that belongs to a tangent."""
    return tangent / math.sqrt(1.0 + tangent * tangent)
