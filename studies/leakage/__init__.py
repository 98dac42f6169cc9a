"""Measure what sites learn about each other in open and in private networks."""
