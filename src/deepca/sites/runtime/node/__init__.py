"""An agent's node: its links, its knowledge of all sites, and the blocking calls of its algorithm."""

from deepca.sites.runtime.membership import Membership, Policy
from deepca.sites.runtime.node.node import Node
from deepca.sites.runtime.node.results import Concluded
from deepca.sites.runtime.node.view import LinkView, View

__all__ = ["Concluded", "LinkView", "Membership", "Node", "Policy", "View"]
