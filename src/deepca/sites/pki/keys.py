"""Private keys of sites and of the authority: ECDSA on P-256, readable only by their owner."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from deepca._util.files import write_atomic
from deepca.errors import EnrolmentError, InvalidInput

__all__ = [
    "PARSE_ERRORS",
    "Key",
    "fingerprint",
    "is_encrypted",
    "key_pem",
    "load_key",
    "new_key",
    "pending_key_path",
    "public_key",
    "read_private",
    "write_key",
]

Key = ec.EllipticCurvePrivateKey

PARSE_ERRORS = (ValueError, TypeError, x509.InvalidVersion, UnsupportedAlgorithm)
"""Exceptions that `cryptography` raises for content that it cannot use."""
_ENCRYPTION_MARKERS = (b"-----BEGIN ENCRYPTED PRIVATE KEY-----", b"Proc-Type: 4,ENCRYPTED")
"""Text in every encrypted PEM key: in PKCS #8, and in the older format of OpenSSL."""


def new_key() -> Key:
    """Generate an ECDSA key on P-256."""
    return ec.generate_private_key(ec.SECP256R1())


def write_key(path: Path, key: Key, passphrase: bytes | None = None) -> None:
    """Write a key to a file that only its owner can read, encrypted if a passphrase is given."""
    write_atomic(path, key_pem(key, passphrase), mode=0o600)


def load_key(path: Path, passphrase: bytes | None = None, *, of_authority: bool = False) -> Key:
    """Load a private key, whose file no other user of this machine may read.

    Parameters
    ----------
    path : Path
        The file.
    passphrase : bytes, optional
        Passphrase of an encrypted key.
    of_authority : bool, default False
        Whether the key is that of an authority rather than a site; errors advise accordingly.

    Raises
    ------
    InvalidInput
        If the file cannot be used; ``file`` names it.
    EnrolmentError
        With reason "passphrase" if the key is encrypted and the passphrase is missing or wrong.
    """
    restore, renew = "restore it from a backup", "request another with deepca join SITE --renew"
    content = read_private(path, "key", missing=restore if of_authority else f"{restore}, or {renew}")
    remedy = restore if of_authority else f"{restore}, or move it away and {renew}"
    encrypted = _has_passphrase(content)
    if encrypted and passphrase is None:
        advice = "give its" if of_authority else "decrypt it (openssl pkey), since agents cannot ask for a"
        raise EnrolmentError(f"{path}: this key is encrypted; {advice} passphrase", reason="passphrase")
    try:
        key = serialization.load_pem_private_key(content, password=passphrase if encrypted else None)
    except PARSE_ERRORS:
        if encrypted:
            raise EnrolmentError(
                f"{path}: this key cannot be decrypted: the passphrase is wrong, or the file is damaged; give the "
                "passphrase of this key, or restore the file from a backup",
                reason="passphrase",
            ) from None
        raise InvalidInput(
            f"{path}: this is not a private key in PEM, or it is damaged; {remedy}",
            file=str(path),
            parameter="key",
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InvalidInput(
            f"{path}: this key is not for ECDSA on P-256; {remedy}",
            file=str(path),
            parameter="key",
        )
    return key


def is_encrypted(path: Path) -> bool:
    """Return whether a key file is encrypted."""
    return _has_passphrase(read_private(path, "key", missing="give the authority folder that deepca init created"))


def read_private(path: Path, what: str, *, missing: str) -> bytes:
    """Read a file that no other user of this machine may read.

    Parameters
    ----------
    path : Path
        The file.
    what : str
        What the file contains, for messages.
    missing : str
        What to do if the file is missing, for the message.

    Raises
    ------
    InvalidInput
        If the file is missing, cannot be read, or has permissions for others (then ``value`` is its mode).
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            exposed = os.name == "posix" and bool(mode & 0o077)
            content = b"" if exposed else file.read()
    except FileNotFoundError:
        raise InvalidInput(
            f"{path}: file not found; this should be the {what}; {missing}", file=str(path), parameter=what
        ) from None
    except OSError as error:
        raise InvalidInput(
            f"{path}: the {what} cannot be read ({error.strerror}); check its permissions",
            file=str(path),
            parameter=what,
        ) from None
    if exposed:
        raise InvalidInput(
            f"{path}: other users of this machine can read or change this {what}; run chmod 600 {path}",
            file=str(path),
            parameter=what,
            value=mode,
        )
    return content


def pending_key_path(key: Path) -> Path:
    """Return the path at which a new key waits for its certificate while the old key is in use."""
    return key.with_name(f"{key.name}.new")


def fingerprint(of: Key | x509.Certificate | x509.CertificateSigningRequest) -> str:
    """Return the SHA-256 digest of the public key, in hexadecimal."""
    public = of.public_key()
    der = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def public_key(of: x509.Certificate | x509.CertificateSigningRequest) -> ec.EllipticCurvePublicKey:
    """Return the public key of a certificate or request; raise ValueError unless it is for ECDSA on P-256."""
    key = of.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("the key is not for ECDSA on P-256")  # noqa: TRY004 - a file is wrong, not a type
    return key


def key_pem(key: Key, passphrase: bytes | None = None) -> bytes:
    """Return a key as PEM, encrypted if a passphrase is given."""
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    if passphrase is None:
        return key.private_bytes(*form, serialization.NoEncryption())
    return key.private_bytes(*form, serialization.BestAvailableEncryption(passphrase))


def _has_passphrase(content: bytes) -> bool:
    return any(mark in content for mark in _ENCRYPTION_MARKERS)
