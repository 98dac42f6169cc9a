"""A ``network.toml`` to start from."""

__all__ = ["EXAMPLE"]

EXAMPLE = """\
# The network. This file is the same at all sites.
name = "three-hospitals"
run = "1"                     # change the name to start a new run
components = 4                # a number; or a share of variance such as 0.95; or "all"
topology = "ring"             # which sites are neighbours (see deepca topology); or list the links:
# edges = [["north", "south"], ["south", "west"]]

# tolerance = 1e-10           # largest tangent of the angle to accept at any site
# center = true               # subtract the common mean
# scale = false               # divide columns by their common standard deviation
# algorithm = "auto"
# messages = "float64"        # precision of gossip messages: float64, float32 or float16
# seed = 0                    # for the starting point and random topologies
# max_iter = 10000
# privacy = "private"         # nobody sees the numbers of a site, only sums over all; or "open"
# on_loss = "wait"            # wait for a lost site; or "shrink": a majority continues without it
# patience = "60s"            # how long a neighbour may be silent before it counts as lost
# checkpoint_every = 10       # iterations between checkpoints

[[sites]]
name = "north"                # lowercase letters, digits and hyphens
address = "north.example.org:7400"

[[sites]]
name = "south"
address = "south.example.org:7400"

[[sites]]
name = "west"                 # no address: accepts no connections, and dials its neighbours
"""
"""A ``network.toml`` with every key; those commented out have their defaults."""
