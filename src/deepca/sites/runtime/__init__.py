"""An agent at work: its links, its place in the network, its run and the state that survives a restart."""
