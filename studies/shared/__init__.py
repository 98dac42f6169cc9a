"""Shared parts of the studies: problems, stored runs, report pages and the command line."""
