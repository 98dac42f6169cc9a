"""Figures and the verdict page of a reproduction."""
