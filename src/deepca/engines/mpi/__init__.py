"""Agents over the ranks of an MPI job. Needs the ``mpi`` extra (mpi4py)."""
