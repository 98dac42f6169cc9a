"""Communication graphs and their weights: undirected, directed and time-varying."""

from deepca._util.renamed import renamed_names
from deepca.topology.directed import Digraph
from deepca.topology.generators import (
    complete,
    erdos_renyi,
    from_name,
    from_networkx,
    grid,
    hypercube,
    path,
    random_regular,
    ring,
    star,
    torus,
)
from deepca.topology.graph import Rule, Topology, from_edges, from_gossip_matrix
from deepca.topology.local_view import Neighbourhood
from deepca.topology.time_varying import TimeVarying

__getattr__ = renamed_names(__name__, Changing="TimeVarying")

__all__ = [
    "Digraph",
    "Neighbourhood",
    "Rule",
    "TimeVarying",
    "Topology",
    "complete",
    "erdos_renyi",
    "from_edges",
    "from_gossip_matrix",
    "from_name",
    "from_networkx",
    "grid",
    "hypercube",
    "path",
    "random_regular",
    "ring",
    "star",
    "torus",
]
