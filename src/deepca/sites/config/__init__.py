"""What is written down: network.toml, the same at all sites, and site.toml, one per site."""
