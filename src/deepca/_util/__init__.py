"""Helpers that know nothing of deepca: files, cores and BLAS threads, units, portable arithmetic."""
