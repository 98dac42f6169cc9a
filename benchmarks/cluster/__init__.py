"""Agents on MPI ranks: parity, rounds, scaling and a cost model, taken in one run: ``python -m benchmarks.cluster``."""
