"""Agents on the ranks of an MPI job; requires the ``mpi`` extra (mpi4py)."""
