"""``deepca join``: request, sign, install and revoke certificates of sites."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from deepca._util.units import plural
from deepca.cli.column_key import how_to_share, install_key, share_key
from deepca.cli.common import errors, print_json, print_unwrapped, require
from deepca.cli.options import VALIDITY_DAYS, JsonOption
from deepca.cli.passphrase import PASSPHRASE_VARIABLE, is_interactive, passphrase_for
from deepca.errors import EnrolmentError, InvalidInput, ParameterError

if TYPE_CHECKING:
    from deepca.sites.pki.enrolment import PendingRequest

__all__ = ["join"]

_FINGERPRINT_DIGITS = 64  # SHA-256 in hexadecimal


_SITE, _AUTHORITY = "At the site", "At the authority"  # sections of the help
_SiteArgument = Annotated[
    Path | None,
    typer.Argument(metavar="SITE", help="At the site: its site.toml, or the folder that contains it."),
]
_CertificateOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", rich_help_panel=_SITE, help="Install this certificate, received from the authority."),
]
_RenewOption = Annotated[
    bool,
    typer.Option(
        "--renew",
        rich_help_panel=_SITE,
        help="Request another certificate while the old one is in use. At the authority, with --sign: sign even if "
        "the site has a valid certificate.",
    ),
]
_RevocationListOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=_SITE,
        help="Install this revocation list, received from the authority.",
    ),
]
_ColumnKeyOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=_SITE,
        help="Install this key for column names (columns.key), received from the authority.",
    ),
]
_SignOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", rich_help_panel=_AUTHORITY, help="Sign this request, after its fingerprint is confirmed."
    ),
]
_FingerprintOption = Annotated[
    str | None,
    typer.Option(
        metavar="HEX",
        rich_help_panel=_AUTHORITY,
        help="Sign only if the request has this fingerprint, obtained from the site over another channel.",
    ),
]
_RevokeOption = Annotated[
    str | None,
    typer.Option(
        metavar="SITE|SERIAL",
        rich_help_panel=_AUTHORITY,
        help="Revoke all certificates of this site, or the one with this serial number.",
    ),
]
_ReissueOption = Annotated[
    bool,
    typer.Option("--reissue", rich_help_panel=_AUTHORITY, help="Sign the revocation list again, before it expires."),
]
_ShareColumnKeyOption = Annotated[
    bool,
    typer.Option(
        "--share-column-key",
        rich_help_panel=_AUTHORITY,
        help="Show which file sites need that lack the key for column names, as kits of earlier versions do; make it "
        "if it does not exist.",
    ),
]
_AuthorityOption = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", rich_help_panel=_AUTHORITY, help="Folder of the authority, made by deepca init."),
]
_PassphraseFileOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=_AUTHORITY,
        help=f"Read the passphrase of the authority's key from this file instead of {PASSPHRASE_VARIABLE}.",
    ),
]
_DaysOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        rich_help_panel=_AUTHORITY,
        help="Validity of the certificate or of the revocation list, in days.",
        show_default=str(VALIDITY_DAYS),
    ),
]


def join(
    site: _SiteArgument = None,
    certificate: _CertificateOption = None,
    renew: _RenewOption = False,
    revocation_list: _RevocationListOption = None,
    column_key: _ColumnKeyOption = None,
    sign: _SignOption = None,
    fingerprint: _FingerprintOption = None,
    revoke: _RevokeOption = None,
    reissue: _ReissueOption = False,
    share_column_key: _ShareColumnKeyOption = False,
    authority: _AuthorityOption = None,
    passphrase_file: _PassphraseFileOption = None,
    days: _DaysOption = None,
    as_json: JsonOption = False,
) -> None:
    """Request, sign, install and revoke certificates of sites.

    The key of a site never leaves it. Three steps:

      1. At the site, create a key and request.csr, and show its fingerprint:
         deepca join site.toml
      2. At the authority, compare the fingerprint of the request and sign it:
         deepca join --sign request.csr --authority kits/authority
      3. At the site, install the certificate:
         deepca join site.toml --certificate north.pem

    Before the certificate expires (see --days), repeat these steps with --renew in steps 1 and 2. A running agent is
    not interrupted.
    """
    with errors():
        require("cryptography", extra="agent")
        given = {
            "--certificate": certificate,
            "--renew": renew,
            "--revocation-list": revocation_list,
            "--column-key": column_key,
            "--sign": sign,
            "--fingerprint": fingerprint,
            "--revoke": revoke,
            "--reissue": reissue,
            "--share-column-key": share_column_key,
            "--authority": authority,
            "--passphrase-file": passphrase_file,
            "--days": days,
        }
        _check(given, site)
        if authority is None:
            assert site is not None
            text, facts = _at_site(site, certificate, revocation_list, column_key, renew=renew)
        elif share_column_key:
            text, facts = share_key(authority)
        else:
            operator = _AuthorityOperator(authority, passphrase_file, days or VALIDITY_DAYS)
            text, facts = operator.revoke(revoke) if sign is None else operator.sign(sign, fingerprint, renew=renew)
        if as_json:
            print_json(facts)
        else:
            print_unwrapped(Console(emoji=False), text)


def _check(given: Mapping[str, object], site: Path | None) -> None:
    """Raise InvalidInput unless the options ask for one action, either at the site or at the authority."""
    jobs = [name for name in ("--sign", "--revoke", "--reissue", "--share-column-key") if given[name]]
    if len(jobs) > 1:
        raise InvalidInput(f"{jobs[0]} and {jobs[1]} cannot be combined; run one after the other")
    if jobs:
        at_site = [name for name in ("--certificate", "--revocation-list", "--column-key") if given[name]]
        if site is not None or at_site or (given["--renew"] and not given["--sign"]):
            raise InvalidInput(f"{jobs[0]} is for the authority, but other arguments are for a site; omit either kind")
        if not given["--authority"]:
            raise InvalidInput(f"{jobs[0]} needs --authority; give the folder made by deepca init")
        if given["--fingerprint"] and not given["--sign"]:
            raise InvalidInput("--fingerprint needs --sign; add that, or omit --fingerprint")
        unused = [name for name in ("--passphrase-file", "--days") if given["--share-column-key"] and given[name]]
        if unused:
            raise InvalidInput(f"{unused[0]} does not apply to --share-column-key, which signs nothing; omit it")
        return
    for name in ("--authority", "--fingerprint", "--passphrase-file", "--days"):
        if given[name]:
            actions = "--sign" if name == "--fingerprint" else "one of --sign, --revoke and --reissue"
            actions = "one of --sign, --revoke, --reissue and --share-column-key" if name == "--authority" else actions
            raise InvalidInput(f"{name} needs {actions}; add that, or omit {name}")
    if site is None:
        raise InvalidInput("no site was given; give its site.toml, or --sign, --revoke or --reissue at the authority")
    chosen = [name for name in ("--renew", "--certificate", "--revocation-list", "--column-key") if given[name]]
    if len(chosen) > 1:
        raise InvalidInput(f"{chosen[0]} and {chosen[1]} cannot be combined; run one after the other")


def _at_site(
    site: Path, certificate: Path | None, revocation_list: Path | None, column_key: Path | None, *, renew: bool
) -> tuple[str, dict[str, object]]:
    """Install a file received from the authority, or else request a certificate."""
    if certificate is not None:
        return _install(site, certificate)
    if revocation_list is not None:
        return _install_revocation_list(site, revocation_list)
    if column_key is not None:
        return install_key(site, column_key)
    return _request(site, renew)


def _request(site: Path, renew: bool) -> tuple[str, dict[str, object]]:
    from deepca.sites.pki.enrolment import request_certificate

    asked = request_certificate(site, renew=renew)
    facts: dict[str, object] = {
        "site": asked.site,
        "request": str(asked.request),
        "key": str(asked.key),
        "fingerprint": asked.fingerprint,
        "fresh": asked.fresh,
    }
    key = "Created a key" if asked.fresh else "Reused the existing key"
    text = (
        f"{key}: {escape(str(asked.key))}. Keep it on this machine.\n"
        f"Send [bold]{escape(str(asked.request))}[/] to the operator of the authority; it is not secret.\n"
        f"Tell the operator the fingerprint by telephone: {grouped(asked.fingerprint)}\n"
        f"When you receive {asked.site}.pem, run: deepca join {escape(str(site))} --certificate {asked.site}.pem"
    )
    return text, facts


@dataclass(frozen=True)
class _AuthorityOperator:
    """Actions at the authority: sign requests and revoke certificates. ``days`` is the validity of what is signed."""

    authority: Path
    passphrase_file: Path | None
    days: int

    def sign(self, path: Path, claimed: str | None, *, renew: bool) -> tuple[str, dict[str, object]]:
        """Sign a request once its fingerprint is confirmed."""
        from deepca.sites.pki.enrolment import examine_request, sign_request

        found = examine_request(path, self.authority)
        expected = _confirm(found, claimed)
        found.check(expected, renew=True)
        renew = _confirm_renewal(found, requested=renew)
        found.check(expected, renew=renew)  # before asking for a passphrase
        signed = sign_request(
            path,
            self.authority,
            expected=expected,
            renew=renew,
            days=self.days,
            passphrase=passphrase_for(self.authority, self.passphrase_file),
        )
        facts: dict[str, object] = {
            "site": signed.site,
            "serial": signed.serial,
            "certificate": str(signed.certificate),
            "fingerprint": signed.fingerprint,
            "not_after": signed.not_after.isoformat(),
            "also_valid": [one.serial for one in found.valid],
            "list": signed.revocation_list.number,
            "column_key": str(signed.column_key.path),
        }
        text = (
            f"Signed for {signed.site}, valid until {signed.not_after:%Y-%m-%d}: {grouped(signed.fingerprint)}\n"
            f"Send [bold]{escape(str(signed.certificate))}[/] to the site; it is not secret. It also contains "
            f"revocation list {signed.revocation_list.number}. To revoke the certificate:\n"
            f"  deepca join --revoke {signed.serial} --authority {escape(str(self.authority))}\n"
            f"{how_to_share(signed.column_key.path)}"
        )
        return text, facts

    def revoke(self, which: str | None) -> tuple[str, dict[str, object]]:
        """Revoke the certificates of a site or with a serial number; with None, sign the list again, unchanged."""
        from deepca.sites.pki.enrolment import reissue, revoke

        secret = passphrase_for(self.authority, self.passphrase_file)
        if which is None:
            done = reissue(self.authority, days=self.days, passphrase=secret)
        else:
            done = revoke(which, self.authority, days=self.days, passphrase=secret)
        facts: dict[str, object] = {
            "revoked": [{"site": one.site, "serial": one.serial} for one in done.certificates],
            "list": str(done.path),
            "number": done.revocation_list.number,
            "not_after": done.revocation_list.ends.isoformat(),
        }
        count = len(done.certificates)
        what = f"{count} certificate{plural(count)} revoked" if count else "No new certificates revoked"
        text = (
            f"{what}. Revocation list {done.revocation_list.number} is valid until "
            f"{done.revocation_list.ends:%Y-%m-%d}.\n"
            f"Send [bold]{escape(str(done.path))}[/] to the sites; one is enough, since agents pass it on. "
            "To install it at a site:\n"
            "  deepca join site.toml --revocation-list revoked.pem"
        )
        return text, facts


def _confirm(found: PendingRequest, claimed: str | None) -> str:
    """Return the fingerprint that the operator expects: as given, or as confirmed on the terminal.

    Raises ParameterError if ``claimed`` is malformed, EnrolmentError without a terminal or if the operator says no.
    """
    if claimed is not None:
        expected = "".join(claimed.split()).replace(":", "").lower()
        if len(expected) != _FINGERPRINT_DIGITS or not set(expected) <= set(string.hexdigits):
            expected = f"expected {_FINGERPRINT_DIGITS} hexadecimal digits, as shown by deepca join at the site"
            raise ParameterError("fingerprint", claimed, expected)
        return expected
    shown = grouped(found.fingerprint)
    if not is_interactive():
        raise EnrolmentError(
            f"the request of {found.site} of {found.network} has the fingerprint {shown}, which cannot be confirmed "
            "without a terminal; give the fingerprint that the site told you as --fingerprint",
            reason="unconfirmed",
            site=found.site,
            fingerprint=found.fingerprint,
        )
    typer.echo(
        f"{found.site} of {found.network} requests a certificate. Fingerprint of the request:\n  {shown}", err=True
    )
    if not typer.confirm(f"Has {found.site} told you the same fingerprint, by telephone or in person?", err=True):
        raise EnrolmentError(
            f"the fingerprint was not confirmed, so nothing was signed for {found.site}; compare it with the site by "
            "telephone or in person, then run this again",
            reason="unconfirmed",
            site=found.site,
            fingerprint=found.fingerprint,
        )
    return found.fingerprint


def _confirm_renewal(found: PendingRequest, *, requested: bool) -> bool:
    """Warn if the site has a valid certificate, and ask whether to sign another one unless ``requested``."""
    for one in found.valid:
        text = f"{found.site} already has a certificate, valid until {one.not_after[:10]}, serial {one.serial}."
        typer.secho(f"warning: {text}", fg="yellow", err=True)
    if requested or not found.valid or not is_interactive():
        return requested
    return typer.confirm(f"Sign another certificate for {found.site}, to replace it?", err=True)


def _install(site: Path, certificate: Path) -> tuple[str, dict[str, object]]:
    from deepca.sites.pki.enrolment import install

    done = install(site, certificate)
    facts: dict[str, object] = {
        "site": done.site,
        "certificate": str(done.certificate),
        "not_after": done.not_after.isoformat(),
        "renewed": done.renewed,
    }
    file = site / "site.toml" if site.is_dir() else site
    run = f"deepca agent run {escape(str(file))}"
    then = "A running agent loads it without a restart." if done.renewed else f"Start the agent: {run}"
    return f"Installed the certificate of {done.site}, valid until {done.not_after:%Y-%m-%d}. {then}", facts


def _install_revocation_list(site: Path, file: Path) -> tuple[str, dict[str, object]]:
    from deepca.sites.pki.enrolment import install_revocation_list

    done = install_revocation_list(site, file)
    facts: dict[str, object] = {
        "site": done.site,
        "list": str(done.path),
        "number": done.revocation_list.number,
        "not_after": done.revocation_list.ends.isoformat(),
        "replaced": done.replaced,
    }
    text = (
        f"Installed revocation list {done.revocation_list.number} at {done.site}, valid until "
        f"{done.revocation_list.ends:%Y-%m-%d}. A running agent loads it without a restart and passes it on."
    )
    return text, facts


def grouped(fingerprint: str) -> str:
    """Format a fingerprint in groups of four digits, to be read aloud."""
    return " ".join(fingerprint[i : i + 4] for i in range(0, len(fingerprint), 4))
