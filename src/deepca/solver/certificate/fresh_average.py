"""Average fresh products with the components, and derive the part of a certificate that follows from them alone."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepca._util.floats import EPS, LARGEST, SMALLEST
from deepca._util.portable import norm, total
from deepca._util.typing import Array
from deepca._util.validation import Integer, Real, check
from deepca.consensus.averaging import AverageWithError, average_and_derive
from deepca.consensus.broadcasts import check_close, for_local_agents, packed
from deepca.consensus.exact import ProductUnits
from deepca.consensus.mixers import default_mixer
from deepca.network.base import Network
from deepca.network.sums import Addend
from deepca.operators.base import Operator
from deepca.operators.linalg import frobenius, symmetric_part, tan_theta
from deepca.operators.rounding import Rounding
from deepca.solver.certificate.agreed_rounding import SIZES_UNIT, AgreedRounding, rounding_addend
from deepca.solver.certificate.bounds import Certificate
from deepca.solver.certificate.probing import columns_for, overlap

__all__ = ["Fresh", "Goal", "digest_of", "fresh_average"]

_RIGHT_ANGLE = LARGEST  # stands for an infinite tangent, since infinity must not be sent


@dataclass(frozen=True)
class Goal:
    """Claim to prove, and limits of its cost: parameters of :func:`~deepca.solver.certificate.certify`."""

    tol: float
    accuracy: float
    gap: float
    failure: float
    max_products: int

    def __post_init__(self) -> None:
        """Raise ParameterError unless all parameters are valid."""
        check("tol", self.tol, Real(0.0, example="1e-8"))
        check("accuracy", self.accuracy, Real(0.0, up_to=True))
        check("gap", self.gap, Real(0.0))
        check("failure_probability", self.failure, Real(0.0, 1.0))
        check("max_products", self.max_products, Integer(1))


def digest_of(X: Array) -> str:
    """Return the SHA-256 of components ``(d, k)``: float64, little endian, row by row."""
    return hashlib.sha256(np.ascontiguousarray(X, dtype="<f8").tobytes()).hexdigest()


@dataclass(frozen=True)
class Fresh:
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
    """Request for one average of vectors that contain ``A_j X``, the drift, and a few more numbers of each agent.

    Attributes
    ----------
    X : ndarray of shape (d, k)
        The leader's components.
    goal : Goal
        What to prove.
    noise : float
        Rounding of the products, which limits the accuracy of every average that is not an exact sum.
    n_extras : int
        Number of values of each agent after the drift.
    """

    X: Array
    goal: Goal
    noise: float
    n_extras: int

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
        drifts = slice(d * k, -self.n_extras)
        drift = frobenius(found.mean[drifts]) - 2.0 * frobenius(found.error[drifts])
        fine = 0.1 * overlap(d - k, columns_for(k, d), self.goal.failure) if k < d else 0.0
        return packed(theta, np.linalg.norm(AX - X @ inside, 2), coupling, drift, fine)

    def check(self, network: Network, derived: Array, mean: AverageWithError) -> None:
        """Raise Contradiction unless the leader's numbers follow from the average, up to rounding."""
        own, rounded = self.numbers(mean), 16.0 * len(self.X) * EPS * norm(self.product(mean.mean))
        check_close(network, "eigenvalues or residuals", derived[:-2], own[:-2], rounded)
        check_close(network, "a drift", derived[-2], own[-2], 1e-9 * abs(float(own[-2])) + rounded)
        check_close(network, "an accuracy of probes", derived[-1], own[-1], 1e-6 * float(own[-1]))


def fresh_average(
    A: Operator,
    X: Array,
    own: Array,
    tracked: Array | None,
    network: Network,
    goal: Goal,
    units: ProductUnits,
    *,
    shared: bool,
) -> Fresh:
    """Return the part of the certificate that follows from one fresh average of ``A_j X``."""
    k, m = X.shape[1], network.n_agents
    AX = A @ for_local_agents(X, network)
    rounding, tangents = A.rounding(), np.asarray(tan_theta(X, own))
    known = _KnownBefore.agreed(network, AX, tangents, rounding, shared=shared)
    addends = [*_addends(AX, tracked, units), *_extras(network, AX, tangents, A.row_counts, rounding)]
    request = _Request(X, goal, 2.0 * EPS * known.largest, sum(addend.x.shape[-1] for addend in addends[2:]))
    rounds = default_mixer(network.topology).rounds_for(network.topology, min(max(0.01 * request.accuracy, EPS), 1e-3))
    mean, derived = average_and_derive(network, addends, rounds, request.enough, request.numbers, k + 4)
    if not network.is_leader_local:
        request.check(network, derived, mean)
    theta, (outside, coupling, drift, fine) = derived[:k], map(float, derived[k:])
    counts, agreed, agents_angle = known.completed(mean, request.n_extras, m)
    noise = mean.error_bound(agreed.size)
    error = norm(request.product(mean.error))
    residual = outside + error + noise
    largest = float(np.abs(theta).max())
    formed = agreed.bound(rounding, largest + residual)
    residual += formed
    relative = 1.0 / largest if largest >= SMALLEST else 0.0  # no digit of a smaller matrix is known
    separation = max(4.0 * noise, 16.0 * EPS * largest)
    found = Certificate(
        angle=math.inf,
        agents_angle=agents_angle,
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
        n_agents=known.n_agents,
        n_rows=counts,
        averaging_error=mean.lost,
        digest=digest_of(X),
        probes=0,
        products=0,
        traffic=network.traffic,
    )
    return Fresh(found, residual, formed, fine)


@dataclass(frozen=True)
class _KnownBefore:
    """Numbers on which agents agree by flooding before the average, and what follows together with the average.

    Attributes
    ----------
    largest, growth : float
        Largest ``‖A_jX‖_F`` and largest growth of sums; 0 and not used where averages are exact sums.
    agents_angle : float or None
        Largest tangent of the angle between X and the basis of an agent; None if it follows from the average.
    n_agents : int
        Number of agents that contribute.
    exact : bool
        Whether the average is an exact sum.
    """

    largest: float
    growth: float
    agents_angle: float | None
    n_agents: int
    exact: bool

    @classmethod
    def agreed(cls, network: Network, AX: Array, tangents: Array, rounding: Rounding, *, shared: bool) -> _KnownBefore:
        """Flood what does not follow from exact sums: there, nothing but angles between bases that agents do not share.

        An exact sum contains every agent's numbers, or it raises an error.
        """
        m, tangents = network.n_agents, np.minimum(tangents, _RIGHT_ANGLE)[..., None]
        if network.reliable:
            return cls(0.0, 0.0, None if shared else _tangent(network.reduce(tangents, "max")[0]), m, True)
        agents = (np.arange(m) == network.local[..., None]).astype(np.float64)
        local = np.stack([frobenius(AX, axis=(-2, -1)), rounding.growth], axis=-1)
        highest = network.reduce(np.concatenate([tangents, local, agents], axis=-1), "max")
        largest, growth = map(float, highest[1:3])
        return cls(largest, growth, _tangent(highest[0]), round(float(highest[3:].sum())), False)

    def completed(self, mean: AverageWithError, n_extras: int, m: int) -> tuple[int | None, AgreedRounding, float]:
        """Return the number of rows if all agents know theirs, the sizes and rounding errors, and the largest tangent.

        The mean ends with the numbers of :func:`_extras`. The sine of the largest angle is at most the root of the sum
        of the squared sines of all angles.
        """
        extras, error = mean.mean[-n_extras:], mean.error[-n_extras:]
        complete = extras[0] > 1.0 - 1e-6 and m * error[1] < 0.5
        n_rows = round(float(extras[1]) * m) if complete else None
        if not self.exact:
            rows, products = map(float, extras[2:] + error[2:])
            return n_rows, AgreedRounding(self.largest, rows, products, self.growth), self.agents_angle or 0.0
        angle = self.agents_angle
        if angle is None:
            squared = float(extras[2]) * m
            angle = math.sqrt(squared / (1.0 - squared)) if squared < 1.0 else math.inf
        return n_rows, AgreedRounding.from_means(extras[3:], m), angle


def _tangent(sent: float) -> float:
    """Return a tangent as it was before :data:`_RIGHT_ANGLE` replaced infinity."""
    return float(sent) if sent < _RIGHT_ANGLE else math.inf


def _addends(AX: Array, tracked: Array | None, units: ProductUnits) -> list[Addend]:
    """Return the products and the drifts of the local agents."""
    B = AX.shape[:-2]
    drifts = Addend("drifts", np.zeros((*B, 0))) if tracked is None else Addend("drifts", tracked.reshape(*B, -1))
    if tracked is not None and tracked.shape == AX.shape:
        drifts = units.addend("drifts", tracked)
    return [units.addend("products", AX), drifts]


def _extras(
    network: Network, AX: Array, tangents: Array, rows: npt.NDArray[np.int64] | None, rounding: Rounding
) -> list[Addend]:
    """Return what else is averaged: whether agents know their row counts, these, and numbers that bound errors.

    The latter are squared sines of the angles between X and each agent's basis, sizes, and rounding errors where
    averages are exact, and rounding errors alone elsewhere, since the largest sizes and angles are flooded there.
    """
    counts = np.zeros((*network.batch, 2))
    if rows is not None:
        counts[..., 0], counts[..., 1] = 1.0, rows
    if not network.reliable:
        errors = np.stack([rounding.rows, rounding.products], axis=-1)
        return [Addend("row counts and rounding errors", np.concatenate([counts, errors], axis=-1))]
    capped = np.minimum(tangents, _RIGHT_ANGLE)
    sines = np.square(capped / np.hypot(1.0, capped))[..., None]
    return [
        Addend("row counts", np.concatenate([counts, sines], axis=-1), guess=SIZES_UNIT, nonnegative=True),
        rounding_addend(AX, rounding),
    ]


def _largest_gap_below(theta: Array, separation: float) -> int | None:
    """Return the largest j < k with a gap after θ_j."""
    return max((j for j in range(1, len(theta)) if theta[j - 1] - theta[j] > separation), default=None)
