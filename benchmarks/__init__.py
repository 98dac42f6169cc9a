"""Speed of deepca, as ratios taken in one run: ``python -m benchmarks``, or ``make bench``."""
