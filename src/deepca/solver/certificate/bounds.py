"""What a certificate states: the bounds that follow from residual, probes and rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from deepca._util.portable import hypot
from deepca.consensus.averaging import LOST
from deepca.network.traffic import Traffic

__all__ = ["Certificate", "tangent"]

VISIBLE = 1e-2  # relative difference of eigenvalues that nobody would call equal
KNOWN = 1e-6  # tangent up to which a component counts as known where rounding allows no smaller tolerance
_DIGITS = 1e-6  # relative error of an eigenvalue that is called known
_CLEARLY = 0.9  # θ_{r+1}/θ_r below which the first r components stand for themselves


@dataclass(frozen=True)
class Certificate:
    """What is proven about the common components, and what it took. Every number is the same at every agent."""

    angle: float
    """Bound on ``tan θ_k`` between the components and the top-k eigenvectors; inf where no gap could be shown."""
    agents_angle: float
    """Largest ``tan θ_k`` between the components and an agent's own W."""
    residual: float
    """``‖AX − X(XᵀAX)‖₂ / θ_1``, all uncertainty of the averages included."""
    uncertainty: float
    """The part of the residual that stands for the error of the average, for rounding, and for how the ``A_j`` were
    formed (:meth:`Operator.rounding <deepca.operators.Operator.rounding>`)."""
    noise: float
    """The part of it that stands for the rounding of the average."""
    coupling: float
    """``‖XᵀAX − diag(θ_1 … θ_k)‖_F / θ_1``: by what single components still mix, or are not in their order."""
    drift: float
    """``‖mean S − mean A W‖ / θ_1``, the error of the average taken off: zero if tracking was never disturbed."""
    eigenvalues: tuple[float, ...]
    """Of A within the components, descending: θ_1 … θ_k."""
    others: tuple[float, ...]
    """The largest found outside the components, descending; the first estimates λ_{k+1} from below, but for the error
    of averages."""
    bound: float
    """λ_{k+1} is at most this, but for the failure probability."""
    failure: float
    """Probability that ``bound`` is wrong."""
    separation: float
    """Smallest difference of eigenvalues that counts as a gap here."""
    smaller_k: int | None
    """The largest k below this one with a gap behind it; None if there is none (or this k is 1)."""
    larger_k: int | None
    """The smallest k above this one with a gap behind it; None if the probes did not reach one."""
    n_agents: int
    """Agents that contributed."""
    n_rows: int | None
    """Rows they hold together; None where an operator does not know its rows."""
    averaging_error: float
    """By how much a number with known mean came out wrong, beyond the error that the average itself admits."""
    digest: str
    """SHA-256 of the components (float64, little endian, row by row)."""
    probes: int
    """Probe columns."""
    products: int
    """Block products made with them."""
    traffic: Traffic
    parts: tuple[float, ...] = ()
    """Bound on ``tan θ_r`` of the first r components, r = 1 … k, where it comes from the rows themselves."""

    @property
    def k(self) -> int:
        return len(self.eigenvalues)

    @property
    def scale(self) -> float:
        """The largest eigenvalue, to which residual, uncertainty, noise and drift are relative."""
        return max(map(abs, self.eigenvalues))

    @property
    def worst_angle(self) -> float:
        """Bound on ``tan θ_k`` of every agent's own W."""
        together = self.angle * self.agents_angle  # tan(α + β) = (tan α + tan β) / (1 − tan α tan β)
        return (self.angle + self.agents_angle) / (1.0 - together) if together < 1.0 else math.inf

    @property
    def proven_angle(self) -> float:
        """The bound to show: ``worst_angle``, or ``worst_part`` where nothing lies outside and that one is empty."""
        return self.worst_angle if self.others else max(self.worst_angle, self.worst_part)

    @property
    def proven_for(self) -> str:
        """What :attr:`proven_angle` holds for, in words."""
        return "at every agent" if self.others else "for every leading part that stands apart"

    @property
    def next_eigenvalue(self) -> float:
        """λ_{k+1} as found, from below; −inf where nothing lies outside."""
        return self.others[0] if self.others else -math.inf

    @property
    def averaging_ok(self) -> bool:
        return self.averaging_error <= LOST

    @property
    def gap(self) -> float:
        """``θ_k − λ_{k+1}`` as found; the true gap is not much larger."""
        return self.eigenvalues[-1] - self.next_eigenvalue

    @property
    def missed(self) -> bool:
        """Whether something larger lies outside the components, clearly beyond what the residual explains."""
        return -self.gap > 10.0 * self.residual * self.scale + self.separation

    def proves(self, tol: float) -> bool:
        """Whether every agent's tangent is at most ``tol``."""
        return self.averaging_ok and self.worst_angle <= tol

    @property
    def unique(self) -> bool:
        """Whether there is a gap behind k that rounding does not fill.

        While the components still mix the two sides, θ_k and the value outside may coincide. But then the residual does
        not: ``[[θ_k, r], [r, ϑ]]`` has eigenvalues that differ by ``√((θ_k − ϑ)² + 4r²)``.
        """
        mixing = 2.0 * (self.residual - self.uncertainty) * self.scale
        return hypot(max(self.gap, 0.0), mixing) > self.told_apart

    @property
    def told_apart(self) -> float:
        """Smallest difference of eigenvalues that rounding surely does not make."""
        return max(self.separation, 100.0 * self.noise * self.scale)

    @property
    def drowned(self) -> bool:
        """Whether rounding hides θ_k.

        Where something lies outside: whether it may amount to a gap of a hundredth of θ_k. Where nothing does, whether
        it may have changed θ_k itself by a hundredth.
        """
        hidden = self.uncertainty * self.scale
        if self.others:
            hidden = max(self.told_apart, 10.0 * hidden)
        return VISIBLE * abs(self.eigenvalues[-1]) <= hidden

    def drifted(self, tol: float) -> bool:
        """Whether what is tracked has left the mean, by more than rounding and enough to spoil ``tol``."""
        return self.drift > 1e3 * self.noise and self.drift * self.scale > 0.1 * tol * self.gap

    @property
    def resolved(self) -> bool:
        """Whether the residual is small enough to tell the two sides of the gap apart."""
        return self.gap > 10.0 * self.residual * self.scale

    def leading(self, r: int) -> float:
        """Bound on ``tan θ_r`` of the first r components; inf where no gap behind them could be shown."""
        if self.parts:
            return self.parts[r - 1]
        residual = hypot(self.residual, self.coupling) * self.scale
        # λ_{k+1} is at most the largest outside X; λ_{r+1} exceeds that, or θ_{r+1}, by the residual at most
        below = self.bound if r == self.k else max(self.bound, self.eigenvalues[r]) + residual
        return tangent(residual, self.eigenvalues[r - 1] - self.uncertainty * self.scale - below)

    @property
    def bounded(self) -> int:
        """The longest leading part with a finite bound on its angle that could be exceeded."""
        if self.others and math.isfinite(self.angle):
            return self.k
        return max((r for r in range(1, self.k) if math.isfinite(self.leading(r))), default=0)

    def of_rank(self, r: int, beyond: float = 0.0) -> Certificate:
        """Return the same where all but r eigenvalues are known to be zero, or at most ``beyond``."""
        return replace(self, eigenvalues=self.eigenvalues[:r] + (0.0,) * (self.k - r), others=(), bound=beyond)

    def tells_all(self, tol: float) -> bool:
        """Whether each leading part that stands apart is proven to ``tol``, and each eigenvalue to six digits.

        What "proven" has to mean where k = d: nothing lies outside, so the angle of all components together is zero.
        """
        return self.averaging_ok and self.worst_part <= tol and self.smallest_off <= _DIGITS

    @property
    def smallest_off(self) -> float:
        """What rounding may have done to the smallest eigenvalue found, relative to it."""
        off = max(self.uncertainty, self.noise) * self.scale
        if self.parts:  # separation is 4 e σ_k, and rounding of the rows by e changes σ_k by e at most
            off = 0.5 * self.separation
        smallest = abs(self.eigenvalues[-1])
        return off / smallest if smallest > 0.0 else math.inf

    def known(self, tol: float = KNOWN) -> int:
        """How many of the components are known: the longest leading part whose tangent is at most ``tol``.

        All of them together only where their eigenvalues are above rounding: if nothing lies outside, the angle is 0.
        """
        told = not self.drowned and self.eigenvalues[-1] > self.at_most(self.k) - self.eigenvalues[-1]
        return max((r for r in range(1, self.k + told) if self.leading(r) <= tol), default=0)

    def at_most(self, r: int) -> float:
        """Bound on the r-th eigenvalue, r ≤ k, when all eigenvalues outside are smaller: θ_r and the residual.

        Where nothing more was found at the rows, the bound on whatever is left of them.
        """
        if self.eigenvalues[r - 1] == 0.0 and (self.parts or (self.bound >= 0.0 and not self.others)):
            return max(self.bound, 0.0)
        return self.eigenvalues[r - 1] + hypot(self.residual, self.coupling) * self.scale

    @property
    def worst_part(self) -> float:
        """The largest ``leading(r)`` of those r < k behind which the eigenvalues fall clearly; 0 if there are none."""
        theta = self.eigenvalues
        clear = [r for r in range(1, self.k) if theta[r] < _CLEARLY * theta[r - 1]]
        return max((self.leading(r) for r in clear), default=0.0)

    def __str__(self) -> str:
        rows = f", {self.n_rows:,} rows" if self.n_rows is not None else ""
        outside = f"λ_k+1 ≤ {self.bound:.6g} but for a probability of {self.failure:.0e}"
        if not self.others:
            outside = "nothing outside"
        return (
            f"tan θ ≤ {self.proven_angle:.1e} {self.proven_for} (residual {self.residual:.1e}, λ_k = "
            f"{self.eigenvalues[-1]:.6g}, {outside}); "
            f"{self.n_agents} agents{rows}; "
            f"{self.traffic.rounds + self.traffic.control_rounds} rounds"
        )


def tangent(residual: float, reach: float) -> float:
    """``tan θ`` from ``sin θ ≤ residual / reach`` (Davis & Kahan); inf where that says nothing."""
    sine = residual / reach if reach > 0.0 else math.inf
    return sine / math.sqrt(1.0 - sine * sine) if sine < 1.0 else math.inf
