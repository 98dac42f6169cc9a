"""Networks, through which agents exchange values: all agents in one process, or one agent among others."""

from deepca._util.renamed import renamed_names
from deepca.network.agent import AgentNetwork
from deepca.network.base import Network
from deepca.network.private import make_private
from deepca.network.reductions import PendingReduction
from deepca.network.simulated import SimulatedNetwork
from deepca.network.threads import run_agents
from deepca.network.traffic import Traffic

__getattr__ = renamed_names(__name__, Pending="PendingReduction")

__all__ = ["AgentNetwork", "Network", "PendingReduction", "SimulatedNetwork", "Traffic", "make_private", "run_agents"]
