"""Read and write ``network.toml``, which is the same at all sites, and ``site.toml``, one per site."""
