"""A running agent: links to neighbours, membership, the run itself, and state that survives a restart."""
