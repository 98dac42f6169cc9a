"""Measure agents on MPI ranks (parity, rounds, scaling, a cost model): ``python -m benchmarks.cluster``."""
