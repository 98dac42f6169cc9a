"""Proof that an answer is the top of the spectrum, from fresh averages only.

Agents that agree can still be wrong, so nothing here uses what was tracked. All agents take one common ``X`` (those of
one of them), average fresh products ``A_j X``, and look for larger eigenvalues outside ``span X``:

* residual ``R = AX − X(XᵀAX)``: zero for every invariant subspace, so it says "invariant", not yet "top";
* probes (:mod:`deepca.solver.certificate.probing`): fresh random columns orthogonal to X, iterated, bound
  ``λ_{k+1} ≤ μ`` with a stated probability. The bound does not depend on X and stays valid while the ``A_j`` do;
* drift ``mean(S_j − A_j W_j)``, where tracking is used: the invariant says zero, and anything else is a loss;
* angle, by Davis & Kahan: ``sin θ_k(U, X) ≤ ‖R‖₂ / (θ_k − μ)``, θ_k the smallest eigenvalue of ``XᵀAX``.

Averages are not trusted either (:mod:`deepca.consensus.averaging`): their error is measured and enters every bound, and
a number whose mean is known beforehand travels along. If it comes out differently, averaging itself is broken.
"""

from deepca.solver.certificate.bounds import Certificate
from deepca.solver.certificate.certification import certify

__all__ = ["Certificate", "certify"]
