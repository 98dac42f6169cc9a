"""How well a subspace that moves is followed: by a few tracked iterations per batch, and by exact answers."""
