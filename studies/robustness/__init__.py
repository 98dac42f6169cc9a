"""Test the method on hard problems: close eigenvalues, small gaps, ill-conditioned and unevenly divided data."""
