"""Measure the cost of directed, time-varying and pairwise networks, and the effect of message loss."""
