"""Compute the constants of the paper's theory: γ, ρ, the bound on ρ, and the K, T and C of its theorem.

Some formulas of the paper contain errors. Functions that use them have a parameter ``form``: ``"printed"`` computes the
formula as it is in the paper, and ``"corrected"``, the default, a corrected one. The errors, and what is done about
them:

* Proposition 1 (FastMix contracts by ``(1 − √(1−λ₂))^K``) is false for small K. In the corrected form, ρ is the bound
  of :class:`deepca.consensus.mixers.FastMix`.
* The theorem states ``K ≤ …`` but means ``K ≥ …``.
* The theorem derives K from only the second of three conditions on ρ; with many agents the third can be stronger. The
  corrected K is the smallest that satisfies all three.
* In the second condition the paper replaces ``2Lλ_k`` by the smaller ``2Lλ_{k+1}``. That makes ``λ_{k+1}`` a factor of
  the bound, so K is infinite for ``λ_{k+1} = 0``. The corrected form keeps ``λ_k(λ_{k+1} + 2L)`` as in the proof.
* The second logarithm in T must be ``log(4√m(λ_k−λ_{k+1})ℓ₀ / ((λ_{k+1}+2L)ε))`` for the proof to hold. In place of
  ``√m(λ_k−λ_{k+1}) / (λ_{k+1}+2L)`` the paper has ``(λ_k+2L) / (√m(λ_k−λ_{k+1}))``, about the inverse.
* The paper says that the bound on ρ decreases with t. It increases, so t = 1 is decisive.
* The lemma's bounds on the disagreement (its second and third inequality) fail for QR with SignAdjust if eigenvalues
  inside the top k are close: QR keeps rotating the basis at the rate ``max λ_{i+1}/λ_i``, which may exceed γ. The bound
  on ``tan θ_k(U, S̄^t)`` and the theorem have never been observed to fail. With the polar factor, no bound has failed.
* The base case of the lemma ignores ``A_jW_j^{−1} := W⁰``, which makes ``S⁰`` the same at all agents for any W⁰. The
  tests check the bounds from random W⁰.

References
----------
H. Ye and T. Zhang, "DeEPCA: Decentralized Exact PCA with Linear Convergence Rate", Journal of Machine Learning
Research 22 (2021).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from deepca._util.validation import Real, check
from deepca.consensus.mixers import FastMix
from deepca.errors import GapError, ParameterError
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
    """Quantities that the theory depends on.

    Parameters
    ----------
    k : int
        Number of principal components.
    m : int
        Number of agents.
    lambda_k : float
        Eigenvalue ``λ_k`` of A.
    lambda_k1 : float
        Eigenvalue ``λ_{k+1}`` of A.
    L : float
        ``max_j ‖A_j‖₂``.

    Raises
    ------
    GapError
        Unless ``λ_k > λ_{k+1} ≥ 0``.
    ParameterError
        Unless ``k, m ≥ 1`` and ``L ≥ λ_k``.

    Examples
    --------
    >>> from deepca.algorithms.theory import Problem, gamma
    >>> gamma(Problem(k=1, m=10, lambda_k=2.0, lambda_k1=1.0, L=2.0))
    0.75
    """

    k: int
    m: int
    lambda_k: float
    lambda_k1: float
    L: float

    def __post_init__(self) -> None:
        """Check the assumptions of the theory."""
        if not (self.lambda_k > self.lambda_k1 >= 0.0):
            raise GapError(
                f"λ_k = {self.lambda_k:.6g} and λ_(k+1) = {self.lambda_k1:.6g}: the theory requires "
                "λ_k > λ_(k+1) ≥ 0; choose k at a gap",
                parameter="k",
                value=self.k,
            )
        for name, value in (("k", self.k), ("m", self.m)):
            if value < 1:
                raise ParameterError(name, value, "expected a whole number of at least 1")
        if not self.lambda_k * (1 - 1e-9) <= self.L:
            raise ParameterError("L", self.L, f"L = max_j ‖A_j‖₂ cannot be below λ_k = {self.lambda_k:.6g}")

    @classmethod
    def of(cls, A: OperatorLike, k: int) -> Problem:
        """Measure the quantities of a problem whose ``A_j`` are all in this process.

        Parameters
        ----------
        A : OperatorLike
            The ``A_j`` of all agents.
        k : int
            Number of principal components, less than d.

        Returns
        -------
        Problem
            The measured quantities.

        Raises
        ------
        ParameterError
            Unless ``1 ≤ k < d``.
        """
        operator = as_operator(A)
        if not 1 <= k < operator.d:
            raise ParameterError("k", k, f"the theory requires 1 ≤ k < d = {operator.d}")
        values = np.linalg.eigvalsh(operator.mean())[::-1]
        L = max(float(np.abs(np.linalg.eigvalsh(operator.agent(j).dense())).max()) for j in range(operator.n_local))
        return cls(k, operator.n_local, float(values[k - 1]), max(float(values[k]), 0.0), L)

    @property
    def gap(self) -> float:
        """Gap after the k-th eigenvalue, ``λ_k − λ_{k+1}``."""
        return self.lambda_k - self.lambda_k1

    @property
    def heterogeneity(self) -> float:
        """Heterogeneity of the agents, ``L² / (λ_k λ_{k+1})``; infinite for λ_{k+1} = 0."""
        return self.L**2 / (self.lambda_k * self.lambda_k1) if self.lambda_k1 > 0.0 else math.inf


def gamma(problem: Problem) -> float:
    """Return the proven contraction factor per iteration.

    Parameters
    ----------
    problem : Problem
        The problem.

    Returns
    -------
    float
        ``γ = 1 − (λ_k − λ_{k+1})/(2λ_k)``.
    """
    return 1.0 - problem.gap / (2.0 * problem.lambda_k)


def rho(topology: Topology, K: int, *, form: Form = "corrected") -> float:
    """Return the contraction ρ of K rounds of FastMix.

    Parameters
    ----------
    topology : Topology
        The graph with its gossip matrix 𝐋.
    K : int
        Number of rounds.
    form : {"corrected", "printed"}, default="corrected"
        Which form of the theory to use.

    Returns
    -------
    float
        The proven bound, or ``(1 − √(1−λ₂))^K`` as printed.
    """
    if form == "printed":
        return float((1.0 - math.sqrt(1.0 - topology.lambda2)) ** K)
    return FastMix(rounds=K).contraction(topology, K)


def rho_bound(problem: Problem, tan_theta0: float, t: int = 1, *, form: Form = "corrected") -> float:
    """Return the largest ρ that the lemma allows in iteration t.

    Parameters
    ----------
    problem : Problem
        The problem.
    tan_theta0 : float
        ``tan θ_k(U, W⁰)``.
    t : int, default=1
        Iteration. The bound increases with t, so t = 1 is decisive.
    form : {"corrected", "printed"}, default="corrected"
        Which form of the theory to use.

    Returns
    -------
    float
        The minimum of the lemma's three terms.
    """
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
    """Return the theorem's K, the rounds of FastMix per iteration, which do not depend on the target accuracy.

    Parameters
    ----------
    problem : Problem
        The problem.
    topology : Topology
        The graph with its gossip matrix 𝐋.
    tan_theta0 : float
        ``tan θ_k(U, W⁰)``.
    form : {"corrected", "printed"}, default="corrected"
        Which form of the theory to use.

    Returns
    -------
    int
        Number of rounds.

    Raises
    ------
    ParameterError
        If ``λ_{k+1} = 0`` in the printed form, where K is infinite.
    """
    _check_tangent(tan_theta0)
    if form == "corrected":
        return FastMix(rounds=1).rounds_for(topology, rho_bound(problem, tan_theta0))
    p = problem
    below = p.lambda_k1 * p.gap * gamma(p) ** 2
    if below == 0.0:
        raise ParameterError("form", form, "the printed K is infinite for λ_(k+1) = 0; use 'corrected'")
    above = 96 * p.k * p.L * (math.sqrt(p.k) + 1) * (p.lambda_k + 2 * p.L) * (1 + tan_theta0) ** 4
    return math.ceil(math.log(above / below) / math.sqrt(1.0 - topology.lambda2))


def iterations(problem: Problem, tan_theta0: float, epsilon: float, *, form: Form = "corrected") -> int:
    """Return the theorem's T, the iterations after which ``tan θ_k(U, W_j) ≤ ε`` at every agent.

    Parameters
    ----------
    problem : Problem
        The problem.
    tan_theta0 : float
        ``tan θ_k(U, W⁰)``.
    epsilon : float
        Target accuracy ε, between 0 and 1.
    form : {"corrected", "printed"}, default="corrected"
        Which form of the theory to use.

    Returns
    -------
    int
        Number of iterations.
    """
    check("epsilon", epsilon, Real(0.0, 1.0))
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
        raise ParameterError("tan_theta0", tan_theta0, "tan θ_k(U, W⁰) must be finite; choose another W⁰")


def communication(
    problem: Problem, topology: Topology, tan_theta0: float, epsilon: float, *, form: Form = "corrected"
) -> int:
    """Return the theorem's C, the total number of rounds.

    Parameters
    ----------
    problem : Problem
        The problem.
    topology : Topology
        The graph with its gossip matrix 𝐋.
    tan_theta0 : float
        ``tan θ_k(U, W⁰)``.
    epsilon : float
        Target accuracy ε, between 0 and 1.
    form : {"corrected", "printed"}, default="corrected"
        Which form of the theory to use.

    Returns
    -------
    int
        ``C = T · K``.
    """
    return iterations(problem, tan_theta0, epsilon, form=form) * required_rounds(
        problem, topology, tan_theta0, form=form
    )
