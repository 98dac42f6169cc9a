"""General helpers: files, cores and BLAS threads, units, validation, logging, portable arithmetic."""
