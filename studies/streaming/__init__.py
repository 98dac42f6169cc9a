"""Measure how well a moving subspace is followed, by tracking and by exact recomputation."""
