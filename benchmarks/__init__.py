"""Measure the speed of deepca as ratios within one run: ``python -m benchmarks`` or ``make bench``."""
