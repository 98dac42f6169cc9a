"""Establish who is who: keys, certificates of sites, the authority that signs them, and its revocations."""
