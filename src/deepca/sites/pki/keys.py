"""Private keys of sites and of the authority: ECDSA on P-256, readable by their owner only."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from deepca._util.files import write_whole
from deepca.errors import EnrolmentError, InvalidInput

__all__ = [
    "UNREADABLE",
    "Key",
    "fingerprint",
    "is_encrypted",
    "key_pem",
    "load_key",
    "new_key",
    "pending",
    "public_key",
    "read_private",
    "write_key",
]

Key = ec.EllipticCurvePrivateKey

UNREADABLE = (ValueError, TypeError, x509.InvalidVersion, UnsupportedAlgorithm)
"""What `cryptography` raises for content that it cannot use."""
_ENCRYPTED = (b"-----BEGIN ENCRYPTED PRIVATE KEY-----", b"Proc-Type: 4,ENCRYPTED")
"""Marks of a PEM key with a passphrase: PKCS #8, and the older form that openssl writes."""


def new_key() -> Key:
    """Generate an ECDSA key on P-256."""
    return ec.generate_private_key(ec.SECP256R1())


def write_key(path: Path, key: Key, passphrase: bytes | None = None) -> None:
    """Write a key that only its owner can read, encrypted if there is a passphrase."""
    write_whole(path, key_pem(key, passphrase), mode=0o600)


def load_key(path: Path, passphrase: bytes | None = None) -> Key:
    """Load a key that nobody else on this machine can read.

    Raises
    ------
    EnrolmentError
        With reason "passphrase" if the key has one and it is missing or wrong.
    """
    content = read_private(path, "key", missing="deepca join makes one at the site it belongs to")
    encrypted = _has_passphrase(content)
    if encrypted and passphrase is None:
        raise EnrolmentError(f"{path}: this key has a passphrase, and none was given", reason="passphrase")
    try:
        key = serialization.load_pem_private_key(content, password=passphrase if encrypted else None)
    except UNREADABLE:
        if encrypted:
            raise EnrolmentError(f"{path}: the passphrase does not open this key", reason="passphrase") from None
        raise InvalidInput(f"{path}: this is no key that can be read; it has to be PEM") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InvalidInput(f"{path}: only keys for ECDSA on P-256 are used here; deepca join makes one")
    return key


def is_encrypted(path: Path) -> bool:
    """Tell whether a key has a passphrase."""
    return _has_passphrase(read_private(path, "key", missing="deepca init makes a folder called authority"))


def read_private(path: Path, what: str, *, missing: str) -> bytes:
    """Read a file that nobody else on this machine can read.

    what : the word for it in messages.  missing : what to do if there is none.
    """
    try:
        with path.open("rb") as file:
            loose = os.name == "posix" and stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077
            content = b"" if loose else file.read()
    except FileNotFoundError:
        raise InvalidInput(f"{path}: there is no {what}; {missing}") from None
    except OSError as error:
        raise InvalidInput(f"{path}: the {what} cannot be read ({error.strerror})") from None
    if loose:
        raise InvalidInput(f"{path}: others on this machine may read or change this {what}; run chmod 600 {path}")
    return content


def pending(key: Path) -> Path:
    """Name the file in which a new key waits for its certificate while the old one is in use."""
    return key.with_name(f"{key.name}.new")


def fingerprint(of: Key | x509.Certificate | x509.CertificateSigningRequest) -> str:
    """SHA-256 of the public key, in hexadecimal."""
    public = of.public_key()
    der = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def public_key(of: x509.Certificate | x509.CertificateSigningRequest) -> ec.EllipticCurvePublicKey:
    """Return its public key; a ValueError unless that is for ECDSA on P-256."""
    key = of.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("another kind of key")  # noqa: TRY004 - what is wrong is a file, not a type
    return key


def key_pem(key: Key, passphrase: bytes | None = None) -> bytes:
    """Return a key as PEM."""
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    if passphrase is None:
        return key.private_bytes(*form, serialization.NoEncryption())
    return key.private_bytes(*form, serialization.BestAvailableEncryption(passphrase))


def _has_passphrase(content: bytes) -> bool:
    return any(mark in content for mark in _ENCRYPTED)
