"""Tools for operators: create kits, check a site, and try a network on one machine."""
