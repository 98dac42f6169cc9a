"""Measure how closely tracking and exact recomputation follow a moving subspace."""
