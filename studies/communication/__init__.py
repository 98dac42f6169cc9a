"""Rounds and bytes that methods need to the same accuracy: cells, one run, the page. ``make bench-communication``."""
