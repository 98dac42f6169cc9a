"""Does it hold on hard problems as well: close eigenvalues, small gaps, ill-conditioned and badly divided data?"""
