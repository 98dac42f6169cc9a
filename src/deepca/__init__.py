"""Decentralized principal component analysis: exact PCA of data that stays where it is.

Each of ``m`` agents holds its own rows and exchanges messages with its neighbours only. Every agent obtains the top-k
principal components of the pooled rows. The method is DeEPCA [1]_.

References
----------
.. [1] H. Ye and T. Zhang, "DeEPCA: Decentralized Exact PCA with Linear Convergence Rate", Journal of Machine Learning
   Research 22(238), 2021.
"""

import warnings
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from deepca import algorithms, consensus, decomposition, errors, network, operators, planning, solver, topology
from deepca._util import renamed
from deepca.algorithms import (
    CPCA,
    AcceleratedDeEPCA,
    BlockKrylov,
    CovarianceAveraging,
    DeEPCA,
    DePCA,
    QRSignAdjust,
    State,
    TrackedState,
)
from deepca.consensus import Chebyshev, FastMix, Gossip, Pairwise, PositiveChebyshev
from deepca.decomposition import Eigenpairs, Model, SingularTriplets, eigenpairs, follow, load, singular_triplets
from deepca.network import AgentNetwork, SimulatedNetwork, run_agents
from deepca.planning import Links, Machines, Plan, Simulation, TimedNetwork, plan, read_links, simulate
from deepca.solver import Certificate, Result, Status, StatusCode, Tolerance, certify, solve
from deepca.topology import Digraph, Topology

if TYPE_CHECKING:
    from deepca.estimators import DecentralizedEigen as DecentralizedEigen
    from deepca.estimators import DecentralizedPCA as DecentralizedPCA
    from deepca.estimators import DecentralizedSVD as DecentralizedSVD

__version__ = version("deepca")

__all__ = [
    "CPCA",
    "AcceleratedDeEPCA",
    "AgentNetwork",
    "BlockKrylov",
    "Certificate",
    "Chebyshev",
    "CovarianceAveraging",
    "DeEPCA",
    "DePCA",
    "Digraph",
    "Eigenpairs",
    "FastMix",
    "Gossip",
    "Links",
    "Machines",
    "Model",
    "Pairwise",
    "Plan",
    "PositiveChebyshev",
    "QRSignAdjust",
    "Result",
    "SimulatedNetwork",
    "Simulation",
    "SingularTriplets",
    "State",
    "Status",
    "StatusCode",
    "TimedNetwork",
    "Tolerance",
    "Topology",
    "TrackedState",
    "algorithms",
    "certify",
    "consensus",
    "decomposition",
    "eigenpairs",
    "errors",
    "follow",
    "load",
    "network",
    "operators",
    "plan",
    "planning",
    "read_links",
    "run_agents",
    "simulate",
    "singular_triplets",
    "solve",
    "solver",
    "topology",
]


_ESTIMATORS = {  # and what to use instead of each without scikit-learn
    "DecentralizedEigen": "deepca.eigenpairs",
    "DecentralizedPCA": "deepca.decomposition.fit",
    "DecentralizedSVD": "deepca.singular_triplets",
}

if find_spec("sklearn") is not None:
    __all__ += list(_ESTIMATORS)

renamed.install()


def __getattr__(name: str) -> Any:
    """Import estimators lazily, so that the rest works without scikit-learn, and resolve deprecated module names."""
    if name in renamed.RENAMED:
        warnings.warn(renamed.replacement(name), DeprecationWarning, stacklevel=2)
        return renamed.renamed_module(name)
    if name not in _ESTIMATORS:
        raise AttributeError(f"module 'deepca' has no attribute {name!r}")
    try:
        return getattr(import_module("deepca.estimators"), name)
    except ModuleNotFoundError as missing:
        if (missing.name or "").split(".")[0] != "sklearn":
            raise
        raise errors.MissingExtraError(
            f"{name} requires scikit-learn; pip install 'deepca[sklearn]', or use {_ESTIMATORS[name]} without it"
        ) from None


def __dir__() -> list[str]:
    """List the public names."""
    return sorted({*__all__, "__version__"})
