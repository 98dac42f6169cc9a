"""deepca: exact PCA over data that stays where it is.

``m`` agents each hold their own rows and talk to their neighbours only; every agent ends with the top-k principal
components that pooling all rows would have given. The method is DeEPCA (Ye & Zhang).
"""

from importlib.metadata import version

from deepca import (
    centring,
    errors,
    linalg,
    mixing,
    networks,
    observers,
    operators,
    stopping,
    theory,
    topology,
    transports,
)
from deepca.algorithms import CPCA, DeEPCA, DePCA, QRSignAdjust, State, TrackedState
from deepca.certificate import Certificate, certify
from deepca.mixing import Chebyshev, FastMix, Gossip
from deepca.networks import AgentNetwork, SimulatedNetwork, run_agents
from deepca.result import Result, Status
from deepca.solve import solve
from deepca.stopping import Tolerance
from deepca.topology import Topology

__version__ = version("deepca")

__all__ = [
    "CPCA",
    "AgentNetwork",
    "Certificate",
    "Chebyshev",
    "DeEPCA",
    "DePCA",
    "FastMix",
    "Gossip",
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
    "errors",
    "linalg",
    "mixing",
    "networks",
    "observers",
    "operators",
    "run_agents",
    "solve",
    "stopping",
    "theory",
    "topology",
    "transports",
]
