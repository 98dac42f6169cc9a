"""Authenticate sites: keys, certificates, the authority that signs them, and its revocation lists."""
