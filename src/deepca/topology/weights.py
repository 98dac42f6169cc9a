"""Compute the gossip matrix 𝐋 of an undirected graph by one of five rules.

With M the graph Laplacian and d_i the degree of agent i, the rules are:

===================  ==============================================  =========
rule                 𝐋                                               𝐋 ⪰ 0
===================  ==============================================  =========
``paper``            ``I − M / λ_max(M)``                            always
``metropolis``       ``𝐋_ij = 1 / (1 + max(d_i, d_j))``              sometimes
``lazy-metropolis``  ``(I + metropolis) / 2``                        always
``max-degree``       ``I − M / (d_max + 1)``                         sometimes
``best-constant``    ``I − 2M / (λ_2(M) + λ_max(M))``                rarely
===================  ==============================================  =========
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from scipy import sparse

from deepca._util.typing import Csr, csr
from deepca.errors import ParameterError
from deepca.topology.adjacency import check_connected
from deepca.topology.spectra import extreme_eigenvalues, laplacian_extremes

__all__ = ["Rule", "gossip_weights"]

Rule = Literal["paper", "metropolis", "lazy-metropolis", "max-degree", "best-constant"]


def gossip_weights(adjacency: Csr, rule: Rule, dense_up_to: int) -> tuple[Csr, float, float]:
    """Compute the gossip matrix of a graph; return 𝐋, λ₂(𝐋) and λ_min(𝐋).

    Parameters
    ----------
    adjacency : csr_array of shape (m, m)
        Symmetric adjacency matrix, with ones at edges.
    rule : str
        Rule that sets the weights.
    dense_up_to : int
        Largest number of agents for which a dense eigensolver is used.

    Raises
    ------
    ParameterError
        If the rule is unknown.
    DisconnectedError
        If the graph is not connected.
    """
    if rule not in get_args(Rule):
        raise ParameterError("rule", rule, f"choose one of {', '.join(get_args(Rule))}")
    m = int(adjacency.shape[0])
    if m == 1:
        return csr(np.ones((1, 1))), 0.0, 1.0
    check_connected(adjacency)
    degrees = np.asarray(np.diff(adjacency.indptr), dtype=np.float64)
    M = csr(sparse.diags_array(degrees) - adjacency)
    eye = sparse.eye_array(m, format="csr")
    if rule in ("metropolis", "lazy-metropolis"):
        links = sparse.coo_array(adjacency)
        weights = 1.0 / (1.0 + np.maximum(degrees[links.row], degrees[links.col]))
        off = csr(sparse.coo_array((weights, (links.row, links.col)), shape=(m, m)))
        gossip = csr(off + sparse.diags_array(1.0 - np.asarray(off.sum(axis=1)).ravel()))
        if rule == "lazy-metropolis":
            gossip = csr((gossip + eye) * 0.5)
        return gossip, *extreme_eigenvalues(gossip, dense_up_to)
    mu2, mu_max = laplacian_extremes(M, dense_up_to)
    step = {"paper": 1.0 / mu_max, "max-degree": 1.0 / (degrees.max() + 1.0), "best-constant": 2.0 / (mu2 + mu_max)}
    alpha = step[rule]
    # λ_min is 0 by construction for the paper's rule; 1 − α·μ_max may be −1e-17 there
    lambda_min = 0.0 if rule == "paper" else 1.0 - alpha * mu_max
    lambda2 = 1.0 - alpha * mu2
    return csr(eye - alpha * M), 0.0 if abs(lambda2) < 1e-14 else lambda2, lambda_min
