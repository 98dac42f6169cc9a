"""An agent's node: its links, what it knows of all sites, and the blocking calls that its algorithm makes."""

from deepca.sites.runtime.membership import Membership, Policy
from deepca.sites.runtime.node.node import Node
from deepca.sites.runtime.node.results import DecidedResult
from deepca.sites.runtime.node.view import LinkView, View

__all__ = ["DecidedResult", "LinkView", "Membership", "Node", "Policy", "View"]
