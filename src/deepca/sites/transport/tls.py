"""gRPC with mutual TLS 1.3. Import this before anything else imports grpc.

gRPC for Python offers no lowest version of TLS. The certificates of sites are ECDSA, so a handshake of TLS 1.2 needs an
ECDSA suite; gRPC is told to offer an RSA suite only, which leaves TLS 1.3, whose suites are always on. gRPC reads this
once, at its first import. Where something else was earlier, the version that :func:`peer_of` finds still counts.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping

os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-RSA-AES256-GCM-SHA384"  # has to come before the first import of grpc

import grpc

from deepca.errors import FrameError
from deepca.sites.protocol.handshake import Credentials

__all__ = ["channel_credentials", "peer_of", "server_credentials"]


def channel_credentials(credentials: Credentials) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(credentials.authority, credentials.key, credentials.certificate)


def server_credentials(credentials: Credentials) -> grpc.ServerCredentials:
    """Of a server that keeps them; for others a new server is needed.

    gRPC can change the credentials of a server, but its core then frees what handshakes under way still use, and the
    process dies (1.85: within seconds, where many knock at once).
    """
    chain = [(credentials.key, credentials.certificate)]
    return grpc.ssl_server_credentials(chain, credentials.authority, require_client_auth=True)


def peer_of(context: Mapping[str, object]) -> bytes:
    """The certificate (DER) that a client made its connection with, from the ``auth_context`` of its call."""

    def first(name: str) -> bytes:
        values = context.get(name)
        return bytes(values[0]) if isinstance(values, (list, tuple)) and values else b""

    if (version := first("ssl_tls_version")) != b"TLSv1.3":
        raise FrameError(f"the connection is made with {version.decode() or 'an unknown version of TLS'}, not TLS 1.3")
    pem = first("x509_pem_cert")
    if not pem:
        raise FrameError("the connection is made without a certificate")
    return ssl.PEM_cert_to_DER_cert(pem.decode())
