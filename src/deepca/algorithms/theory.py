"""What the paper proves: γ, ρ, the condition on ρ, and the K, T and C of its theorem.

Printed and corrected forms stand side by side (``form="printed"`` / ``"corrected"``, the default). The slips:

* Proposition 1 (FastMix contracts by ``(1 − √(1−λ₂))^K``) is false for small K. Corrected, ρ is the bound in
  :class:`deepca.consensus.mixers.FastMix`.
* The theorem prints ``K ≤ …`` where ``K ≥ …`` is meant.
* It derives K from the second of three conditions on ρ only; with many agents the third can be the stronger one.
  Corrected, K is the smallest that fulfils all three.
* Its second condition has ``λ_{k+1}`` as a factor, put there by ``2Lλ_k ≥ 2Lλ_{k+1}``; K is then infinite for
  ``λ_{k+1} = 0``. Corrected, the factor ``λ_k(λ_{k+1} + 2L)`` of the proof is kept.
* The proof needs the second logarithm in T as ``log(4√m(λ_k−λ_{k+1})ℓ₀ / ((λ_{k+1}+2L)ε))``; print has its inverse
  factor ``(λ_k+2L)/(√m(λ_k−λ_{k+1}))``.
* "The right-hand side decreases with t": it grows, so t = 1 decides.
* The lemma's bound on the disagreement (its second and third inequality) fails for QR with SignAdjust when
  eigenvalues inside the top k are close: QR goes on turning the basis at the rate ``max λ_{i+1}/λ_i``, which may
  exceed γ. The bound on ``tan θ_k(U, S̄^t)`` and the theorem were not seen to fail; with the polar factor none was.
* The base case of the lemma ignores ``A_jW_j^{−1} := W⁰``, by which ``S⁰`` agrees for any W⁰; the bounds are tested
  from random W⁰.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from deepca.consensus.mixers import FastMix
from deepca.errors import InvalidInput
from deepca.operators.base import OperatorLike
from deepca.operators.construction import as_operator
from deepca.topology.graph import Topology

__all__ = [
    "Form",
    "Problem",
    "communication",
    "gamma",
    "iterations",
    "required_rounds",
    "rho",
    "rho_bound",
]

Form = Literal["corrected", "printed"]


@dataclass(frozen=True)
class Problem:
    """The numbers the theory depends on: ``λ_k``, ``λ_{k+1}``, ``L = max_j ‖A_j‖₂``, k and m."""

    k: int
    m: int
    lambda_k: float
    lambda_k1: float
    L: float

    def __post_init__(self) -> None:
        if not (self.lambda_k > self.lambda_k1 >= 0.0):
            raise InvalidInput(
                f"λ_k = {self.lambda_k:.6g} and λ_(k+1) = {self.lambda_k1:.6g}: the theory needs λ_k > λ_(k+1) ≥ 0; "
                "choose k at a gap"
            )
        if self.k < 1 or self.m < 1 or not self.lambda_k * (1 - 1e-9) <= self.L:
            raise InvalidInput(f"k = {self.k}, m = {self.m}, L = {self.L:.6g}: needs k, m ≥ 1 and L ≥ λ_k")

    @classmethod
    def of(cls, A: OperatorLike, k: int) -> Problem:
        """Measured on a problem whose ``A_j`` are all at hand."""
        operator = as_operator(A)
        if not 1 <= k < operator.d:
            raise InvalidInput(f"k = {k} of d = {operator.d}: the theory needs 1 ≤ k < d")
        values = np.linalg.eigvalsh(operator.mean())[::-1]
        L = max(float(np.abs(np.linalg.eigvalsh(operator.agent(j).dense())).max()) for j in range(operator.n_local))
        return cls(k, operator.n_local, float(values[k - 1]), max(float(values[k]), 0.0), L)

    @property
    def gap(self) -> float:
        return self.lambda_k - self.lambda_k1

    @property
    def heterogeneity(self) -> float:
        """``L² / (λ_k λ_{k+1})``; inf for λ_{k+1} = 0."""
        return self.L**2 / (self.lambda_k * self.lambda_k1) if self.lambda_k1 > 0.0 else math.inf


def gamma(problem: Problem) -> float:
    """``γ = 1 − (λ_k − λ_{k+1})/(2λ_k)``, the proven factor per iteration."""
    return 1.0 - problem.gap / (2.0 * problem.lambda_k)


def rho(topology: Topology, K: int, *, form: Form = "corrected") -> float:
    """Contraction of K rounds of FastMix: proven, or ``(1 − √(1−λ₂))^K`` as printed."""
    if form == "printed":
        return float((1.0 - math.sqrt(1.0 - topology.lambda2)) ** K)
    return FastMix(rounds=K).contraction(topology, K)


def rho_bound(problem: Problem, tan_theta0: float, t: int = 1, *, form: Form = "corrected") -> float:
    """The lemma's condition: ρ must not exceed this in iteration t. It grows with t, so t = 1 decides."""
    _check_tangent(tan_theta0)
    p, l0, g = problem, tan_theta0, gamma(problem)
    root = math.sqrt(1.0 + g ** (2 * t) * l0**2)
    D = p.lambda_k1 + 2 * p.L + (p.lambda_k + 2 * p.L) * g ** (t + 1) * l0
    third_top = p.lambda_k * p.lambda_k1 + 2 * p.L * p.lambda_k
    second_top = third_top if form == "corrected" else p.lambda_k * p.lambda_k1 + 2 * p.L * p.lambda_k1
    second = p.gap * second_top * g**2 / (96 * p.k * p.L * (math.sqrt(p.k) + 1) * root**2 * D**2)
    below = 16 * p.L * p.k * (math.sqrt(p.k) + 1) * math.sqrt(p.m) * g ** (t - 1) * l0 * root * D
    third = third_top / below if below > 0.0 else math.inf
    return min(g / 2.0, second, third)


def required_rounds(problem: Problem, topology: Topology, tan_theta0: float, *, form: Form = "corrected") -> int:
    """K of the theorem, for FastMix: independent of the accuracy wanted."""
    _check_tangent(tan_theta0)
    if form == "corrected":
        return FastMix(rounds=1).rounds_for(topology, rho_bound(problem, tan_theta0))
    p = problem
    below = p.lambda_k1 * p.gap * gamma(p) ** 2
    if below == 0.0:
        raise InvalidInput("the printed K is infinite for λ_(k+1) = 0; use form='corrected'")
    above = 96 * p.k * p.L * (math.sqrt(p.k) + 1) * (p.lambda_k + 2 * p.L) * (1 + tan_theta0) ** 4
    return math.ceil(math.log(above / below) / math.sqrt(1.0 - topology.lambda2))


def iterations(problem: Problem, tan_theta0: float, epsilon: float, *, form: Form = "corrected") -> int:
    """T of the theorem: iterations after which ``tan θ_k(U, W_j) ≤ ε`` at every agent."""
    if not 0.0 < epsilon < 1.0:
        raise InvalidInput(f"epsilon = {epsilon}: must lie between 0 and 1")
    _check_tangent(tan_theta0)
    if tan_theta0 == 0.0:
        return 1
    p = problem
    if form == "corrected":
        factor = math.sqrt(p.m) * p.gap / (p.lambda_k1 + 2 * p.L)
    else:
        factor = (p.lambda_k + 2 * p.L) / (math.sqrt(p.m) * p.gap)
    logs = max(math.log(4 * tan_theta0 / epsilon), math.log(4 * factor * tan_theta0 / epsilon))
    return max(1, math.ceil(2 * p.lambda_k / p.gap * logs))


def _check_tangent(tan_theta0: float) -> None:
    if not 0.0 <= tan_theta0 < math.inf:
        raise InvalidInput(f"tan θ_k(U, W⁰) = {tan_theta0}: must be finite; take another W⁰")


def communication(
    problem: Problem, topology: Topology, tan_theta0: float, epsilon: float, *, form: Form = "corrected"
) -> int:
    """``C = T · K`` rounds."""
    return iterations(problem, tan_theta0, epsilon, form=form) * required_rounds(
        problem, topology, tan_theta0, form=form
    )
