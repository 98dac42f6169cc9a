"""How messages travel: gRPC streams over mutual TLS 1.3."""
