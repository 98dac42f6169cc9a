"""Examine the certificate requests of sites before the authority signs them."""

from __future__ import annotations

import copy
import difflib
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from deepca.errors import EnrolmentError, InvalidInput
from deepca.sites.config.network_file import read_network
from deepca.sites.pki.authority import check_request, load_own_certificate, network_of
from deepca.sites.pki.certificates import load_request, now_utc
from deepca.sites.pki.issued import IssuedCertificate, read_issued
from deepca.sites.pki.keys import fingerprint

__all__ = ["PendingRequest", "examine_request", "read_request", "with_file"]


@dataclass(frozen=True)
class PendingRequest:
    """A request to review before signing it; ``valid`` lists the valid certificates that the site already has."""

    site: str
    network: str
    fingerprint: str
    valid: tuple[IssuedCertificate, ...]

    def check(self, expected: str, *, renew: bool) -> None:
        """Raise EnrolmentError if the fingerprint is not the expected one or the site already has a valid certificate.

        With ``renew``, the site may already have one.
        """
        if self.fingerprint != expected:
            raise EnrolmentError(
                f"the request of {self.site} has the fingerprint {self.fingerprint}, not {expected}; nothing was "
                f"signed. Somebody may have replaced the request: ask the operator of {self.site} for it again",
                reason="fingerprint",
                site=self.site,
                fingerprint=self.fingerprint,
            )
        if self.valid and not renew:
            last = self.valid[-1]
            raise EnrolmentError(
                f"{self.site} already has a certificate, valid until {last.not_after[:10]} (serial {last.serial}); "
                "if its operator asked for another, sign with --renew (in Python: renew=True); otherwise do not sign, "
                "since somebody else may be impersonating the site",
                reason="certificate exists",
                site=self.site,
                fingerprint=self.fingerprint,
            )


def examine_request(path: Path, authority: Path) -> PendingRequest:
    """Read a request for review before it is signed; raise InvalidInput if it could not be signed."""
    return read_request(path, authority)[0]


def read_request(path: Path, authority: Path) -> tuple[PendingRequest, x509.CertificateSigningRequest]:
    """Read a request and return it both as described for review and as it is signed."""
    own = load_own_certificate(authority)
    csr = load_request(path)
    try:
        site, _ = check_request(csr, network_of(own))
    except InvalidInput as error:
        raise with_file(error, path) from None
    _check_member(site, authority / "network.toml")
    now = now_utc()
    valid = tuple(one for one in read_issued(authority) if one.site == site and one.valid(now))
    return PendingRequest(site, network_of(own), fingerprint(csr), valid), csr


def _check_member(site: str, network: Path) -> None:
    """Raise InvalidInput if the authority's ``network.toml`` does not list the site."""
    if not network.exists():
        return
    names = [entry.name for entry in read_network(network).sites]
    if site not in names:
        near = difflib.get_close_matches(site, names, n=1)
        advice = f"check whether {near[0]} misspelled its name, or " if near else ""
        raise InvalidInput(
            f"{site} is not a site in {network}; {advice}add it to that file if it is new",
            file=str(network),
            parameter="site",
            value=site,
        )


def with_file(error: InvalidInput, path: Path) -> InvalidInput:
    """Return a copy of an error with the file in its message and attributes."""
    located = copy.copy(error)
    located.file, located.args = str(path), (f"{path}: {error}",)
    return located
