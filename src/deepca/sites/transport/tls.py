"""Mutual TLS 1.3 with gRPC. This module must be imported before anything else imports grpc.

gRPC for Python has no option for the minimum TLS version. Site certificates are ECDSA, so a TLS 1.2 handshake needs an
ECDSA cipher suite; gRPC is configured to offer an RSA suite only, which leaves TLS 1.3, whose suites are always
enabled. gRPC reads this setting once, at its first import. If grpc was imported earlier, :func:`client_certificate`
still rejects TLS 1.2.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping

os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-RSA-AES256-GCM-SHA384"  # must precede the first import of grpc

import grpc

from deepca.errors import FrameError
from deepca.sites.protocol.handshake import Credentials

__all__ = ["channel_credentials", "client_certificate", "server_credentials"]


def channel_credentials(credentials: Credentials) -> grpc.ChannelCredentials:
    """Return the gRPC credentials of a client."""
    return grpc.ssl_channel_credentials(credentials.authority, credentials.key, credentials.certificate)


def server_credentials(credentials: Credentials) -> grpc.ServerCredentials:
    """Return the gRPC credentials of a server; to change them, start a new server.

    gRPC can replace the credentials of a running server, but its core then frees memory that pending handshakes still
    use, and the process crashes (gRPC 1.85: within seconds, if many clients connect at once).
    """
    chain = [(credentials.key, credentials.certificate)]
    return grpc.ssl_server_credentials(chain, credentials.authority, require_client_auth=True)


def client_certificate(context: Mapping[str, object]) -> bytes:
    """Return the certificate (DER) with which a client connected, from the ``auth_context`` of its call.

    Raises FrameError if the connection does not use TLS 1.3 or has no client certificate.
    """

    def first(name: str) -> bytes:
        values = context.get(name)
        return bytes(values[0]) if isinstance(values, (list, tuple)) and values else b""

    if (version := first("ssl_tls_version")) != b"TLSv1.3":
        raise FrameError(f"the connection uses {version.decode() or 'an unknown version of TLS'}, not TLS 1.3")
    pem = first("x509_pem_cert")
    if not pem:
        raise FrameError("the connection was made without a client certificate")
    return ssl.PEM_cert_to_DER_cert(pem.decode())
