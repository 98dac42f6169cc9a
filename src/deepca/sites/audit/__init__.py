"""The audit log: what left a site and what arrived, in files that are hash-chained and signed at the end."""
