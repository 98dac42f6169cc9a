"""Networks, through which agents exchange values: all agents in one process, or one agent among others."""

from deepca.network.agent import AgentNetwork, run_agents
from deepca.network.base import Network
from deepca.network.reductions import PendingReduction
from deepca.network.simulated import SimulatedNetwork
from deepca.network.traffic import Traffic

__all__ = ["AgentNetwork", "Network", "PendingReduction", "SimulatedNetwork", "Traffic", "run_agents"]
