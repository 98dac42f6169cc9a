"""Engines: the same algorithms over all agents in one array, or over one agent and its neighbours."""

from deepca.networks.agent import AgentNetwork, run_agents
from deepca.networks.base import Network, Pending, Traffic
from deepca.networks.simulated import SimulatedNetwork
from deepca.networks.timed import TimedNetwork

__all__ = ["AgentNetwork", "Network", "Pending", "SimulatedNetwork", "TimedNetwork", "Traffic", "run_agents"]
