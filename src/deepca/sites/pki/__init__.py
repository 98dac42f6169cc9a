"""Who is who: keys, certificates of sites, the authority that signs them, and what it has revoked."""
