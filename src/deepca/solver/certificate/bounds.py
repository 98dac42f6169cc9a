"""Certificate of an answer: the bounds that follow from residual, probes and rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from deepca._util.portable import hypot
from deepca._util.renamed import renamed_attributes
from deepca._util.units import plural
from deepca.consensus.averaging import MAX_CONTROL_ERROR
from deepca.network.traffic import Traffic

__all__ = ["Certificate", "tangent_bound"]

CLEAR_DIFFERENCE = 1e-2  # relative difference at which eigenvalues are clearly distinct
MAX_KNOWN_TANGENT = 1e-6  # largest tangent of a component that counts as known, if rounding allows no smaller one
_MAX_EIGENVALUE_ERROR = 1e-6  # largest relative error of an eigenvalue that counts as known
_CLEAR_GAP = 0.9  # θ_{r+1}/θ_r below which there is a clear gap after the first r components


@renamed_attributes(
    told_apart="resolution",
    drowned="hidden_by_rounding",
    missed="larger_outside",
    tells_all="proves_leading_parts",
    smallest_off="smallest_relative_error",
    worst_part="worst_leading_angle",
    of_rank="with_rank",
    at_most="eigenvalue_bound",
    known="n_known",
    bounded="n_bounded",
)
@dataclass(frozen=True)
class Certificate:
    """Proven bounds on the common components, and their cost; every number is the same at every agent.

    Parameters
    ----------
    angle : float
        Bound on ``tan θ_k`` between the components and the top-k eigenvectors; inf if no gap could be proven.
    agents_angle : float
        Largest ``tan θ_k`` between the components and the W of an agent.
    residual : float
        ``‖AX − X(XᵀAX)‖₂ / θ_1``, including all uncertainty of the averages.
    uncertainty : float
        Part of the residual due to averaging errors, rounding, and the way in which the ``A_j`` were formed
        (:meth:`Operator.rounding <deepca.operators.Operator.rounding>`).
    noise : float
        Part of the uncertainty due to the rounding of products and averages.
    coupling : float
        ``‖XᵀAX − diag(θ_1 … θ_k)‖_F / θ_1``: how much individual components are still mixed, or out of order.
    drift : float
        ``‖mean S − mean A W‖ / θ_1``, less the error of the average: zero if tracking was never disturbed.
    eigenvalues : tuple of float
        Eigenvalues θ_1 … θ_k of A within the components, descending.
    others : tuple of float
        Largest eigenvalues found outside the components, descending; the first estimates λ_{k+1} from below, up to
        averaging errors. Empty if nothing lies outside.
    bound : float
        Upper bound on λ_{k+1}, except with probability ``failure``.
    failure : float
        Probability that ``bound`` is wrong.
    separation : float
        Smallest difference of eigenvalues that counts as a gap.
    smaller_k : int or None
        Next smaller k with a gap after it; None if no smaller k has one.
    larger_k : int or None
        Next larger k with a gap after it; None if the probes did not find one.
    n_agents : int
        Number of agents that contributed.
    n_rows : int or None
        Total number of rows; None if an operator does not know its rows.
    averaging_error : float
        Error of the average of a number with a known mean, beyond the stated error of that average.
    digest : str
        SHA-256 of the components (float64, little endian, row by row).
    probes : int
        Number of probe columns.
    products : int
        Number of block products with the probes.
    traffic : Traffic
        Traffic of the certificate.
    parts : tuple of float, optional
        Bounds on ``tan θ_r`` of the first r components, r = 1 … k, if they were derived from the rows; else empty.

    Examples
    --------
    >>> import numpy as np
    >>> import deepca
    >>> A, X = np.stack([np.diag([4.0, 2.0, 1.0])] * 4), np.tile(np.eye(3)[:, :1], (4, 1, 1))
    >>> certificate, _ = deepca.certify(A, X, deepca.SimulatedNetwork(deepca.topology.ring(4)))
    >>> certificate.proves(1e-8), certificate.n_known(), certificate.n_agents
    (True, 1, 4)
    """

    angle: float
    agents_angle: float
    residual: float
    uncertainty: float
    noise: float
    coupling: float
    drift: float
    eigenvalues: tuple[float, ...]
    others: tuple[float, ...]
    bound: float
    failure: float
    separation: float
    smaller_k: int | None
    larger_k: int | None
    n_agents: int
    n_rows: int | None
    averaging_error: float
    digest: str
    probes: int
    products: int
    traffic: Traffic
    parts: tuple[float, ...] = ()

    @property
    def k(self) -> int:
        """Number of components."""
        return len(self.eigenvalues)

    @property
    def scale(self) -> float:
        """Largest eigenvalue, to which residual, uncertainty, noise and drift are relative."""
        return max(map(abs, self.eigenvalues))

    @property
    def worst_angle(self) -> float:
        """Bound on ``tan θ_k`` of the W of every agent."""
        product = self.angle * self.agents_angle  # tan(α + β) = (tan α + tan β) / (1 − tan α tan β)
        return (self.angle + self.agents_angle) / (1.0 - product) if product < 1.0 else math.inf

    @property
    def proven_angle(self) -> float:
        """Bound to report: ``worst_angle``, or at least ``worst_leading_angle`` if k = d makes the former trivial."""
        return self.worst_angle if self.others else max(self.worst_angle, self.worst_leading_angle)

    @property
    def proven_for(self) -> str:
        """Scope of :attr:`proven_angle`, in words."""
        return "at every agent" if self.others else "for all leading components with a clear gap after them"

    @property
    def next_eigenvalue(self) -> float:
        """Estimate of λ_{k+1} from below: the largest eigenvalue found outside; −inf if nothing lies outside."""
        return self.others[0] if self.others else -math.inf

    @property
    def averaging_ok(self) -> bool:
        """True if the number with a known mean was averaged correctly."""
        return self.averaging_error <= MAX_CONTROL_ERROR

    @property
    def gap(self) -> float:
        """Estimate of ``θ_k − λ_{k+1}``; the true gap is not much larger."""
        return self.eigenvalues[-1] - self.next_eigenvalue

    @property
    def larger_outside(self) -> bool:
        """True if a larger eigenvalue lies outside the components, by clearly more than the residual explains."""
        return -self.gap > 10.0 * self.residual * self.scale + self.separation

    def proves(self, tol: float) -> bool:
        """Return whether the tangent is proven to be at most ``tol`` at every agent.

        Parameters
        ----------
        tol : float
            Tangent of the angle.

        Returns
        -------
        bool
            Whether it is proven.
        """
        return self.averaging_ok and self.worst_angle <= tol

    @property
    def unique(self) -> bool:
        """True if there is a gap after k that rounding cannot account for.

        While the components still mix eigenvectors from both sides of the gap, θ_k and the value ϑ found outside may
        coincide. Then the residual r reveals the gap: the eigenvalues of ``[[θ_k, r], [r, ϑ]]`` differ by
        ``√((θ_k − ϑ)² + 4r²)``.
        """
        mixing = 2.0 * (self.residual - self.uncertainty) * self.scale
        return hypot(max(self.gap, 0.0), mixing) > self.resolution

    @property
    def resolution(self) -> float:
        """Smallest difference of eigenvalues that rounding cannot produce."""
        return max(self.separation, 100.0 * self.noise * self.scale)

    @property
    def hidden_by_rounding(self) -> bool:
        """True if rounding hides θ_k.

        That is so if rounding could produce a gap of a hundredth of θ_k or, if nothing lies outside the components,
        could have changed θ_k itself by a hundredth.
        """
        hidden = self.uncertainty * self.scale
        if self.others:
            hidden = max(self.resolution, 10.0 * hidden)
        return CLEAR_DIFFERENCE * abs(self.eigenvalues[-1]) <= hidden

    def drifted(self, tol: float) -> bool:
        """Return whether tracking has drifted from the mean by more than rounding, and too far to reach ``tol``.

        Parameters
        ----------
        tol : float
            Tangent of the angle to prove.

        Returns
        -------
        bool
            Whether tracking should be restarted.
        """
        return self.drift > 1e3 * self.noise and self.drift * self.scale > 0.1 * tol * self.gap

    @property
    def resolved(self) -> bool:
        """True if the gap is much larger than the residual."""
        return self.gap > 10.0 * self.residual * self.scale

    def leading(self, r: int) -> float:
        """Return a bound on ``tan θ_r`` of the first r components.

        Parameters
        ----------
        r : int
            Number of components, 1 … k.

        Returns
        -------
        float
            The bound; inf if no gap after them could be proven.
        """
        if self.parts:
            return self.parts[r - 1]
        residual = hypot(self.residual, self.coupling) * self.scale
        # λ_{k+1} is at most the largest outside X; λ_{r+1} exceeds both that and θ_{r+1} by at most the residual
        below = self.bound if r == self.k else max(self.bound, self.eigenvalues[r]) + residual
        return tangent_bound(residual, self.eigenvalues[r - 1] - self.uncertainty * self.scale - below)

    @property
    def n_bounded(self) -> int:
        """Largest r for which the angle of the first r components has a finite and nontrivial bound."""
        if self.others and math.isfinite(self.angle):
            return self.k
        return max((r for r in range(1, self.k) if math.isfinite(self.leading(r))), default=0)

    def with_rank(self, r: int, beyond: float = 0.0) -> Certificate:
        """Return a copy of the certificate for data of known rank.

        Parameters
        ----------
        r : int
            The rank; all eigenvalues beyond it are replaced by zero.
        beyond : float, default=0.0
            Bound on the eigenvalues that were replaced.

        Returns
        -------
        Certificate
            The copy, with nothing outside the components.
        """
        return replace(self, eigenvalues=self.eigenvalues[:r] + (0.0,) * (self.k - r), others=(), bound=beyond)

    def proves_leading_parts(self, tol: float) -> bool:
        """Return whether components are proven to ``tol``, and eigenvalues to six digits, in the case k = d.

        The angle of all d components together is trivially zero. So components count as proven if the first r are
        proven to ``tol`` for every r < d with a clear gap after the r-th.

        Parameters
        ----------
        tol : float
            Tangent of the angle.

        Returns
        -------
        bool
            Whether components and eigenvalues are proven.
        """
        return (
            self.averaging_ok
            and self.worst_leading_angle <= tol
            and self.smallest_relative_error <= _MAX_EIGENVALUE_ERROR
        )

    @property
    def smallest_relative_error(self) -> float:
        """Bound on the relative error of the smallest eigenvalue due to rounding."""
        error = max(self.uncertainty, self.noise) * self.scale
        if self.parts:  # separation is 4 e σ_k, and rounding of the rows by e changes σ_k by e at most
            error = 0.5 * self.separation
        smallest = abs(self.eigenvalues[-1])
        return error / smallest if smallest > 0.0 else math.inf

    def n_known(self, tol: float = MAX_KNOWN_TANGENT) -> int:
        """Return the number of known components: the largest r for which the first r are proven to ``tol``.

        All k count only if their eigenvalues exceed rounding, since for k = d their angle is trivially zero.

        Parameters
        ----------
        tol : float, default=1e-6
            Largest tangent of the angle.

        Returns
        -------
        int
            Number of components.
        """
        last_counts = (
            not self.hidden_by_rounding and self.eigenvalues[-1] > self.eigenvalue_bound(self.k) - self.eigenvalues[-1]
        )
        return max((r for r in range(1, self.k + last_counts) if self.leading(r) <= tol), default=0)

    def eigenvalue_bound(self, r: int) -> float:
        """Return an upper bound on the r-th eigenvalue, given that all eigenvalues outside are smaller.

        The bound is θ_r plus the residual. If θ_r was set to zero because only rounding remains in the rows, it is the
        bound on the variances that this rounding may hide.

        Parameters
        ----------
        r : int
            Index of the eigenvalue, 1 … k.

        Returns
        -------
        float
            The bound.
        """
        if self.eigenvalues[r - 1] == 0.0 and (self.parts or (self.bound >= 0.0 and not self.others)):
            return max(self.bound, 0.0)
        return self.eigenvalues[r - 1] + hypot(self.residual, self.coupling) * self.scale

    @property
    def worst_leading_angle(self) -> float:
        """Largest ``leading(r)`` over all r < k with a clear gap after θ_r; 0 without such an r."""
        theta = self.eigenvalues
        clear = [r for r in range(1, self.k) if theta[r] < _CLEAR_GAP * theta[r - 1]]
        return max((self.leading(r) for r in clear), default=0.0)

    def __str__(self) -> str:
        """Return the bounds as statuses show them."""
        rows = f", {self.n_rows:,} row{plural(self.n_rows)}" if self.n_rows is not None else ""
        rounds = self.traffic.rounds + self.traffic.control_rounds
        outside = f"λ_k+1 ≤ {self.bound:.6g} except with probability {self.failure:.0e}"
        if not self.others:
            outside = "no other eigenvalues"
        return (
            f"tan θ ≤ {self.proven_angle:.1e} {self.proven_for} (residual {self.residual:.1e}, λ_k = "
            f"{self.eigenvalues[-1]:.6g}, {outside}); "
            f"{self.n_agents} agent{plural(self.n_agents)}{rows}; {rounds} round{plural(rounds)}"
        )


def tangent_bound(residual: float, gap: float) -> float:
    """Return the bound on ``tan θ`` from ``sin θ ≤ residual / gap`` (Davis and Kahan); inf unless that is below 1."""
    sine = residual / gap if gap > 0.0 else math.inf
    return sine / math.sqrt(1.0 - sine * sine) if sine < 1.0 else math.inf
