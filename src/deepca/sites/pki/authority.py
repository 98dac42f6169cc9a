"""The certificate authority of one network, which signs its sites' certificates and its revocation lists.

An authority is a folder: ``authority.pem`` and ``authority.key``; ``issued.json``, a record of all certificates and of
the number of the last revocation list; ``revoked.pem``, that list; ``columns.key``, see
:mod:`deepca.sites.pki.column_key`; and ``ledger.jsonl``, one line for every certificate, revocation, list and key for
column names. It signs each key only once, so a certificate that replaces another one always has a new key.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from deepca._util.files import exclusive_lock, write_atomic
from deepca.errors import InvalidInput, ParameterError, RevocationListError
from deepca.sites.pki.certificates import (
    CLOCK_TOLERANCE,
    alternative_names,
    format_time,
    key_usage,
    load_certificate,
    now_utc,
    pem,
    site_of,
    subject_name,
)
from deepca.sites.pki.issued import IssuedCertificate, read_issued, read_records, write_records
from deepca.sites.pki.keys import PARSE_ERRORS, Key, fingerprint, load_key, new_key, public_key, write_key
from deepca.sites.pki.revocation import (
    REVOCATION_LIST_DAYS,
    RevocationList,
    load_revocation_list,
    parse_revocation_list,
)

__all__ = [
    "LEDGER",
    "Authority",
    "add_to_ledger",
    "check_request",
    "load_own_certificate",
    "network_of",
]

LEDGER = "ledger.jsonl"
"""Name of the file that records everything the authority signs."""
_AUTHORITY_DAYS = 3650  # lifetime of an authority; nothing that it signs is valid for longer


def load_own_certificate(folder: Path) -> x509.Certificate:
    """Load the certificate of the authority in a folder; raise InvalidInput if it cannot be used."""
    if not folder.is_dir():
        raise InvalidInput(
            f"{folder}: no such folder; give the authority folder that deepca init created", file=str(folder)
        )
    path = folder / "authority.pem"
    certificate = load_certificate(path, hint="give the authority folder that deepca init created")
    if not certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME):
        raise InvalidInput(
            f"{path}: this is not the certificate of an authority created by deepca init; restore it from a backup",
            file=str(path),
            parameter="authority",
        )
    return certificate


def network_of(certificate: x509.Certificate) -> str:
    """Return the name of the network that an authority signs for."""
    return str(certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)[0].value)


def check_request(csr: x509.CertificateSigningRequest, network: str) -> tuple[str, ec.EllipticCurvePublicKey]:
    """Check a certificate request and return its site and its public key.

    Raises
    ------
    InvalidInput
        If it cannot be signed for this network; ``parameter`` says whether "request", "signature" or "network" is
        wrong.
    """
    try:
        its_network, site = site_of(csr)
        public = public_key(csr)
        genuine = csr.is_signature_valid
    except PARSE_ERRORS:
        raise InvalidInput(
            "the request does not name exactly one site, or its key is not for ECDSA on P-256; create another at the "
            "site with deepca join",
            parameter="request",
        ) from None
    if not genuine:
        raise InvalidInput(
            f"the request of {site} is not signed with the key that it contains; create another at the site with "
            "deepca join",
            parameter="signature",
        )
    if its_network != network:
        raise InvalidInput(
            f"the request of {site} is for the network {its_network}, but this authority signs for {network}; send it "
            f"to the authority of {its_network}",
            parameter="network",
            value=its_network,
        )
    return site, public


def add_to_ledger(folder: Path, event: str, now: datetime, **facts: object) -> None:
    """Append a line to the ledger of the authority in a folder, which is never rewritten."""
    line = json.dumps({"time": now.isoformat(timespec="seconds"), "event": event, **facts})
    handle = os.open(folder / LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, f"{line}\n".encode())
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(frozen=True)
class Authority:
    """The authority of one network, with its private key in memory."""

    folder: Path
    certificate: x509.Certificate
    key: Key = field(repr=False)

    @classmethod
    def create(
        cls, folder: Path, network: str, *, passphrase: bytes | None = None, now: datetime | None = None
    ) -> Authority:
        """Create an authority for ten years, with an empty revocation list; ``passphrase`` encrypts its key."""
        for name in ("authority.pem", "authority.key", "issued.json"):
            if (folder / name).exists():
                raise InvalidInput(
                    f"{folder / name}: an authority already exists here and is not replaced; choose another folder",
                    file=str(folder / name),
                )
        now = now or now_utc()
        key = new_key()
        owner = subject_name("authority", network)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(owner)
            .issuer_name(owner)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCK_TOLERANCE)
            .not_valid_after(now + timedelta(days=_AUTHORITY_DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(key_usage(authority=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        created = cls(folder, certificate, key)
        write_key(folder / "authority.key", key, passphrase)
        write_atomic(folder / "authority.pem", pem(certificate))
        write_records(folder, [], 0)
        created.reissue(now=now)
        return created

    @classmethod
    def load(cls, folder: Path, passphrase: bytes | None = None) -> Authority:
        """Load the authority in a folder; ``passphrase`` decrypts its key, if it is encrypted."""
        certificate = load_own_certificate(folder)
        key = load_key(folder / "authority.key", passphrase, of_authority=True)
        if fingerprint(key) != fingerprint(certificate):
            raise InvalidInput(
                f"{folder}: authority.key is not the key of authority.pem; restore both from a backup", file=str(folder)
            )
        return cls(folder, certificate, key)

    @property
    def network(self) -> str:
        """Name of the network that this authority signs for."""
        return network_of(self.certificate)

    def issued(self) -> tuple[IssuedCertificate, ...]:
        """Return all certificates so far, oldest first."""
        return read_issued(self.folder)

    def revocations(self) -> RevocationList | None:
        """Return the revocation list in the authority's folder; None if it is missing or sites could not use it."""
        try:
            return load_revocation_list(self.folder / "revoked.pem", self.certificate)
        except RevocationListError:
            return None

    # --------------------------------------------------------------------------------------------------- certificates

    def sign(
        self, csr: x509.CertificateSigningRequest, days: int = 365, *, now: datetime | None = None
    ) -> x509.Certificate:
        """Issue a certificate for the site that the request names, valid no longer than the authority itself.

        Raises
        ------
        InvalidInput
            If the request cannot be signed (see :func:`check_request`), or its key was signed before (``parameter`` is
            then "key"); ParameterError if ``days`` is less than 1.
        """
        now = now or now_utc()
        site, public = check_request(csr, self.network)
        end = self._expiry(days, now)
        with exclusive_lock(self.folder):  # a concurrent command must not overwrite this record
            issued, number = read_records(self.folder)
            self._check_new(fingerprint(csr), issued)
            signed = self._certificate(site, public, end, now)
            one = IssuedCertificate(
                f"{signed.serial_number:x}",
                site,
                fingerprint(csr),
                signed.not_valid_before_utc.isoformat(),
                signed.not_valid_after_utc.isoformat(),
            )
            # recorded before anybody has it: a certificate without a record could not be revoked
            write_records(self.folder, [*issued, one], number)
            facts = {"site": site, "serial": one.serial, "fingerprint": one.key}
            add_to_ledger(self.folder, "signed", now, **facts, not_before=one.not_before, not_after=one.not_after)
        return signed

    def _check_new(self, key: str, issued: list[IssuedCertificate]) -> None:
        """Raise InvalidInput if a key was signed before or is the authority's own."""
        for one in issued:
            if one.key == key:
                raise InvalidInput(
                    f"the key in this request was signed before (for {one.site}, {one.not_before[:10]}), and every "
                    "certificate needs a new key; at the site, remove the key that waits for its certificate "
                    "(site.key.new), if there is one, then run deepca join SITE --renew",
                    parameter="key",
                    value=key,
                )
        if key == fingerprint(self.certificate):
            raise InvalidInput(
                "the key in this request is the authority's own; create another request at the site with deepca join",
                parameter="key",
                value=key,
            )

    def _certificate(
        self, site: str, public: ec.EllipticCurvePublicKey, end: datetime, now: datetime
    ) -> x509.Certificate:
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        return (
            x509.CertificateBuilder()
            .subject_name(subject_name(site, self.network))
            .issuer_name(self.certificate.subject)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCK_TOLERANCE)
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(key_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(alternative_names(site, self.network), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(self._identifier(), critical=False)
            .sign(self.key, hashes.SHA256())
        )

    # ----------------------------------------------------------------------------------------------------- revocation

    def revoke(
        self, which: str, *, days: int = REVOCATION_LIST_DAYS, now: datetime | None = None
    ) -> tuple[IssuedCertificate, ...]:
        """Revoke certificates and sign the next revocation list.

        Parameters
        ----------
        which : str
            Name of a site, to revoke all its certificates, or the serial number of one certificate.
        days : int
            Days for which the list is valid.
        now : datetime, optional
            The current time, for tests.

        Returns
        -------
        tuple of IssuedCertificate
            The newly revoked certificates.

        Raises
        ------
        InvalidInput
            If no certificate matches ``which``. ParameterError if ``days`` is less than 1.
        """
        now = now or now_utc()
        with exclusive_lock(self.folder):  # a concurrent command must not overwrite this record
            issued, number = read_records(self.folder)
            chosen = [one for one in issued if one.site == which]
            chosen = chosen or [one for one in issued if one.serial == which.lower().replace(":", "").lstrip("0")]
            if not chosen:
                known = ", ".join(sorted({one.site for one in issued}))
                advice = f"give a serial number, or a site that has one: {known}" if known else "none has been issued"
                raise InvalidInput(
                    f"no certificate matches {which!r}; {advice}",
                    parameter="revoke",
                    value=which,
                )
            newly = tuple(replace(one, revoked=now.isoformat()) for one in chosen if one.revoked is None)
            serials = {one.serial: one for one in newly}
            self._next_list([serials.get(one.serial, one) for one in issued], number, days, now)
            for one in newly:
                add_to_ledger(self.folder, "revoked", now, site=one.site, serial=one.serial)
        return newly

    def reissue(self, days: int = REVOCATION_LIST_DAYS, *, now: datetime | None = None) -> RevocationList:
        """Sign the next revocation list with the same entries, valid for ``days`` days."""
        with exclusive_lock(self.folder):
            return self._next_list(*read_records(self.folder), days, now or now_utc())

    def up_to_date_revocation_list(self, *, now: datetime | None = None) -> RevocationList:
        """Return the revocation list to hand out, newly signed unless it is valid for more than half a year."""
        now, found = now or now_utc(), self.revocations()
        if found is not None and found.ends - now > timedelta(days=REVOCATION_LIST_DAYS / 2):
            return found
        return self.reissue(now=now)

    def _next_list(self, issued: list[IssuedCertificate], number: int, days: int, now: datetime) -> RevocationList:
        end = self._expiry(days, now)
        dates = {int(one.serial, 16): datetime.fromisoformat(one.revoked) for one in issued if one.revoked is not None}
        number, earlier = self._earlier_list(number)
        # before issued.json counted lists, the number of a list was its number of entries
        number = 1 + max(number, len(dates))
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(now)
            .next_update(end)
            .add_extension(x509.CRLNumber(number), critical=False)
            .add_extension(self._identifier(), critical=False)
        )
        for serial, when in {**earlier, **dates}.items():
            entry = x509.RevokedCertificateBuilder().serial_number(serial)
            builder = builder.add_revoked_certificate(entry.revocation_date(when).build())
        content = pem(builder.sign(self.key, hashes.SHA256()))
        write_records(self.folder, issued, number)  # before anybody has the list, so that no number is ever used twice
        add_to_ledger(
            self.folder, "list", now, number=number, not_after=end.isoformat(), revoked=len({**earlier, **dates})
        )
        path = self.folder / "revoked.pem"
        write_atomic(path, content)
        return parse_revocation_list(content, self.certificate, path)

    def _earlier_list(self, number: int) -> tuple[int, dict[int, datetime]]:
        """Return the highest list number so far and the entries of the list in the folder, even if it has no number."""
        if (known := self.revocations()) is not None:
            number = max(number, known.number)
        try:
            found = x509.load_pem_x509_crl((self.folder / "revoked.pem").read_bytes())
            if found.is_signature_valid(public_key(self.certificate)):
                return number, {one.serial_number: one.revocation_date_utc for one in found}
        except (OSError, *PARSE_ERRORS):
            pass  # issued.json records revocations as well
        return number, {}

    # ---------------------------------------------------------------------------------------------------------- files

    def _expiry(self, days: int, now: datetime) -> datetime:
        if days < 1:
            raise ParameterError("days", days, "a certificate or revocation list must be valid for at least 1 day")
        end = min(now + timedelta(days=min(days, _AUTHORITY_DAYS)), self.certificate.not_valid_after_utc)
        if end <= now:
            raise InvalidInput(
                f"{self.folder / 'authority.pem'}: the authority itself expired on {format_time(end)}; create another "
                "with deepca init",
                file=str(self.folder / "authority.pem"),
            )
        return end

    def _identifier(self) -> x509.AuthorityKeyIdentifier:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
