"""Prove from fresh averages that an answer is the top of the spectrum.

Agents that agree can still be wrong, so the proof uses nothing that was tracked. All agents take the leader's ``X``,
average fresh products ``A_j X``, and search for larger eigenvalues outside ``span X``:

* residual ``R = AX − X(XᵀAX)``: zero for every invariant subspace, so it shows "invariant", not yet "top";
* probes (:mod:`deepca.solver.certificate.probing`): fresh random columns orthogonal to X, iterated, bound
  ``λ_{k+1} ≤ μ`` with a stated probability. The bound does not depend on X and stays valid as long as the ``A_j`` do;
* drift ``mean(S_j − A_j W_j)``, if tracking is used: zero by the tracking invariant, unless something was lost;
* angle, by Davis and Kahan: ``sin θ_k(U, X) ≤ ‖R‖₂ / (θ_k − μ)`` with θ_k the smallest eigenvalue of ``XᵀAX``.

Averages are not trusted either (:mod:`deepca.consensus.averaging`): their error is measured and enters every bound, and
control numbers whose mean is known are averaged along with them. If their mean comes out differently, averaging itself
is broken.
"""

from deepca.solver.certificate.bounds import Certificate
from deepca.solver.certificate.certification import certify

__all__ = ["Certificate", "certify"]
