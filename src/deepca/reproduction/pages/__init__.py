"""Draw the figures and write the verdict page of a reproduction."""
