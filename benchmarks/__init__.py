"""Measure the speed of deepca as ratios of times from the same run: ``python -m benchmarks`` or ``make bench``."""
