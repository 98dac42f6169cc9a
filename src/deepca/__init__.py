"""deepca: exact PCA over data that stays where it is.

``m`` agents each hold their own rows and talk to their neighbours only; every agent ends with the top-k principal
components that pooling all rows would have given. The method is DeEPCA (Ye & Zhang).
"""

from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from deepca import (
    centring,
    changing,
    clustering,
    directed,
    eigen,
    errors,
    graphs,
    linalg,
    links,
    mixing,
    networks,
    observers,
    operators,
    stopping,
    streaming,
    svd,
    theory,
    topology,
    transports,
)
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
from deepca.certificate import Certificate, certify
from deepca.directed import Digraph
from deepca.eigen import Eigenpairs, eigenpairs
from deepca.links import Links, Machines
from deepca.links_csv import read_links
from deepca.mixing import Chebyshev, FastMix, Gossip, PositiveChebyshev
from deepca.model import Model, load
from deepca.networks import AgentNetwork, SimulatedNetwork, TimedNetwork, run_agents
from deepca.pairwise import Pairwise
from deepca.planning import Plan, plan
from deepca.result import Result, Status
from deepca.simulation import Simulation, simulate
from deepca.solve import solve
from deepca.stopping import Tolerance
from deepca.streaming import follow
from deepca.svd import SingularTriplets, singular_triplets
from deepca.topology import Topology

if TYPE_CHECKING:
    from deepca.estimator import DecentralizedPCA as DecentralizedPCA
    from deepca.estimator_eigen import DecentralizedEigen as DecentralizedEigen
    from deepca.estimator_svd import DecentralizedSVD as DecentralizedSVD

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
    "TimedNetwork",
    "Tolerance",
    "Topology",
    "TrackedState",
    "centring",
    "certify",
    "changing",
    "clustering",
    "directed",
    "eigen",
    "eigenpairs",
    "errors",
    "follow",
    "graphs",
    "linalg",
    "links",
    "load",
    "mixing",
    "networks",
    "observers",
    "operators",
    "plan",
    "read_links",
    "run_agents",
    "simulate",
    "singular_triplets",
    "solve",
    "stopping",
    "streaming",
    "svd",
    "theory",
    "topology",
    "transports",
]


_ESTIMATORS = {  # by their modules, and what works without scikit-learn
    "DecentralizedEigen": ("deepca.estimator_eigen", "deepca.eigenpairs"),
    "DecentralizedPCA": ("deepca.estimator", "deepca.pca"),
    "DecentralizedSVD": ("deepca.estimator_svd", "deepca.singular_triplets"),
}

if find_spec("sklearn") is not None:
    __all__ += list(_ESTIMATORS)


def __getattr__(name: str) -> Any:
    """Estimators are imported when they are asked for: without scikit-learn everything else works."""
    if name not in _ESTIMATORS:
        raise AttributeError(f"module 'deepca' has no attribute {name!r}")
    module, instead = _ESTIMATORS[name]
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as missing:
        if (missing.name or "").split(".")[0] != "sklearn":
            raise
        raise errors.MissingExtraError(
            f"{name} needs scikit-learn; pip install 'deepca[sklearn]'. {instead} works without it"
        ) from None
