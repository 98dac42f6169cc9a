"""Tools for operators around a run: hand out kits, check a site, try a network on one machine."""
