"""Transport of frames between sites: gRPC streams over mutual TLS 1.3."""
