"""deepca: exact PCA over data that stays where it is.

``m`` agents each hold their own rows and talk to their neighbours only; every agent ends with the top-k principal
components that pooling all rows would have given. The method is DeEPCA (Ye & Zhang).
"""

from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from deepca import (
    centring,
    changing,
    directed,
    errors,
    linalg,
    mixing,
    networks,
    observers,
    operators,
    stopping,
    streaming,
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
from deepca.mixing import Chebyshev, FastMix, Gossip, PositiveChebyshev
from deepca.model import Model, load
from deepca.networks import AgentNetwork, SimulatedNetwork, run_agents
from deepca.planning import Plan, plan
from deepca.result import Result, Status
from deepca.solve import solve
from deepca.stopping import Tolerance
from deepca.streaming import follow
from deepca.topology import Topology

if TYPE_CHECKING:
    from deepca.estimator import DecentralizedPCA

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
    "FastMix",
    "Gossip",
    "Model",
    "Plan",
    "PositiveChebyshev",
    "QRSignAdjust",
    "Result",
    "SimulatedNetwork",
    "State",
    "Status",
    "Tolerance",
    "Topology",
    "TrackedState",
    "centring",
    "certify",
    "changing",
    "directed",
    "errors",
    "follow",
    "linalg",
    "load",
    "mixing",
    "networks",
    "observers",
    "operators",
    "plan",
    "run_agents",
    "solve",
    "stopping",
    "streaming",
    "theory",
    "topology",
    "transports",
]


if find_spec("sklearn") is not None:
    __all__ += ["DecentralizedPCA"]


def __getattr__(name: str) -> Any:
    """The estimator is imported when it is asked for: without scikit-learn everything else works."""
    if name != "DecentralizedPCA":
        raise AttributeError(f"module 'deepca' has no attribute {name!r}")
    try:
        from deepca.estimator import DecentralizedPCA
    except ModuleNotFoundError as missing:
        if (missing.name or "").split(".")[0] != "sklearn":
            raise
        raise errors.MissingExtraError(
            "DecentralizedPCA needs scikit-learn; pip install 'deepca[sklearn]'. deepca.pca works without it"
        ) from None
    return DecentralizedPCA
