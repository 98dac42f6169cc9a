"""One exchange with the neighbours: ``gossip``, ``total`` and ``reduce`` over all agents in one array, or one agent."""

from deepca.network.agent import AgentNetwork, run_agents
from deepca.network.base import Network
from deepca.network.reductions import Pending
from deepca.network.simulated import SimulatedNetwork
from deepca.network.traffic import Traffic

__all__ = ["AgentNetwork", "Network", "Pending", "SimulatedNetwork", "Traffic", "run_agents"]
