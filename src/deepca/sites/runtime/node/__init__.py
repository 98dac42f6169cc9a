"""An agent's node: its links, what it knows of all sites, and the blocking calls that its algorithm makes."""

from deepca.sites.runtime.node.node import Node
from deepca.sites.runtime.node.results import DecidedResult
from deepca.sites.runtime.node.snapshot import LinkSnapshot, NodeSnapshot
from deepca.sites.runtime.node_config import NodeConfig, Policy

__all__ = ["DecidedResult", "LinkSnapshot", "Node", "NodeConfig", "NodeSnapshot", "Policy"]
