"""``deepca join``: how a site comes to its certificate, renews it, and loses it."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from deepca.cli.common import errors, print_json, require, say
from deepca.cli.passphrase import VARIABLE, passphrase_for, terminal
from deepca.errors import EnrolmentError, InvalidInput

if TYPE_CHECKING:
    from deepca.sites.pki.enrolment import PendingRequest

__all__ = ["join"]

_DIGITS = 64  # of a fingerprint


_SiteArgument = Annotated[Path | None, typer.Argument(help="At the site: its site.toml, or the folder of its kit.")]
_CertificateOption = Annotated[
    Path | None, typer.Option(help="At the site: take this certificate, which came back from the authority.")
]
_RenewOption = Annotated[
    bool,
    typer.Option(
        "--renew",
        help="At the site: ask for another certificate while the old one is in use. For the keeper, with --sign: "
        "sign although the site has a valid one.",
    ),
]
_RevokedOption = Annotated[
    Path | None, typer.Option(help="At the site: take this list of revoked certificates, unless it is an old one.")
]
_SignOption = Annotated[
    Path | None, typer.Option(help="For the keeper of the authority: sign this request, once you have compared it.")
]
_FingerprintOption = Annotated[
    str | None,
    typer.Option(help="For the keeper: sign only if the request has this fingerprint, which the site has told you."),
]
_RevokeOption = Annotated[
    str | None,
    typer.Option(help="For the keeper: a site, or a serial number, whose certificates are no longer valid."),
]
_ReissueOption = Annotated[
    bool, typer.Option("--reissue", help="For the keeper: sign the next list of revoked certificates.")
]
_AuthorityOption = Annotated[Path | None, typer.Option(help="For the keeper: the folder that deepca init made.")]
_PassphraseFileOption = Annotated[
    Path | None,
    typer.Option(help=f"For the keeper: has the passphrase of the authority's key; or the variable {VARIABLE}."),
]
_DaysOption = Annotated[
    int, typer.Option(min=1, help="For the keeper: how long the certificate, or the list, can be used.")
]
_JsonOption = Annotated[bool, typer.Option("--json", help="Print what was done as JSON instead.")]


def join(
    site: _SiteArgument = None,
    certificate: _CertificateOption = None,
    renew: _RenewOption = False,
    revoked: _RevokedOption = None,
    sign: _SignOption = None,
    fingerprint: _FingerprintOption = None,
    revoke: _RevokeOption = None,
    reissue: _ReissueOption = False,
    authority: _AuthorityOption = None,
    passphrase_file: _PassphraseFileOption = None,
    days: _DaysOption = 365,
    as_json: _JsonOption = False,
) -> None:
    """A site asks for its certificate, has it signed, and takes it; its key never leaves it.

    1. At the site: deepca join site.toml makes a key and request.csr, and shows its fingerprint.

    2. The keeper of the authority: deepca join --sign request.csr --authority kits/authority
    shows the fingerprint of what came, and asks.

    3. At the site: deepca join site.toml --certificate north.pem

    Once a year the same with --renew in the first step; a running agent goes on.
    """
    with errors():
        require("cryptography", extra="agent")
        given = {
            "--certificate": certificate,
            "--renew": renew,
            "--revoked": revoked,
            "--sign": sign,
            "--fingerprint": fingerprint,
            "--revoke": revoke,
            "--reissue": reissue,
            "--authority": authority,
            "--passphrase-file": passphrase_file,
        }
        _check(given, site)
        if authority is None:
            assert site is not None
            said, facts = _at_site(site, certificate, revoked, renew=renew)
        else:
            keeper = _Keeper(authority, passphrase_file, days)
            said, facts = keeper.revoke(revoke) if sign is None else keeper.sign(sign, fingerprint, renewal=renew)
        if as_json:
            print_json(facts)
        else:
            say(Console(emoji=False), said)


def _check(given: Mapping[str, object], site: Path | None) -> None:
    """Refuse what does not go together: one thing at a time, by the site or by the keeper."""
    jobs = [name for name in ("--sign", "--revoke", "--reissue") if given[name]]
    if len(jobs) > 1:
        raise InvalidInput(f"{jobs[0]} and {jobs[1]} are two things; do one after the other")
    if jobs:
        at_site = [name for name in ("--certificate", "--revoked") if given[name]]
        if site is not None or at_site or (given["--renew"] and not given["--sign"]):
            raise InvalidInput(f"{jobs[0]} is for the keeper of the authority, the rest for the site; give one of them")
        if not given["--authority"]:
            raise InvalidInput(f"{jobs[0]} needs --authority, the folder that deepca init made")
        if given["--fingerprint"] and not given["--sign"]:
            raise InvalidInput("--fingerprint is that of a request; it goes with --sign")
        return
    for name in ("--authority", "--fingerprint", "--passphrase-file"):
        if given[name]:
            raise InvalidInput(f"{name} is for --sign, --revoke and --reissue; at a site it is not needed")
    if site is None:
        raise InvalidInput("which site? Give its site.toml; or --sign, --revoke or --reissue if you keep the authority")
    chosen = [name for name in ("--renew", "--certificate", "--revoked") if given[name]]
    if len(chosen) > 1:
        raise InvalidInput(f"{chosen[0]} and {chosen[1]} are two things; do one after the other")


def _at_site(
    site: Path, certificate: Path | None, revoked: Path | None, *, renew: bool
) -> tuple[str, dict[str, object]]:
    """Take a certificate or a list that came from the keeper, or else ask for a certificate."""
    if certificate is not None:
        return _install(site, certificate)
    if revoked is not None:
        return _install_list(site, revoked)
    return _ask(site, renew)


def _ask(site: Path, renew: bool) -> tuple[str, dict[str, object]]:
    from deepca.sites.pki.enrolment import ask

    asked = ask(site, renew=renew)
    facts: dict[str, object] = {
        "site": asked.site,
        "request": str(asked.request),
        "key": str(asked.key),
        "fingerprint": asked.fingerprint,
        "fresh": asked.fresh,
    }
    key = "A key was made" if asked.fresh else "The key made before is asked for again"
    said = (
        f"{key}: {escape(str(asked.key))}. It stays here.\n"
        f"Send [bold]{escape(str(asked.request))}[/] to whoever keeps the authority; it is no secret.\n"
        f"Its fingerprint, which the keeper asks you for by telephone: {grouped(asked.fingerprint)}\n"
        f"When {asked.site}.pem comes back: deepca join {escape(str(site))} --certificate {asked.site}.pem"
    )
    return said, facts


@dataclass(frozen=True)
class _Keeper:
    """What the keeper of an authority does. ``days`` : how long the certificate or the list can be used."""

    authority: Path
    passphrase_file: Path | None
    days: int

    def sign(self, path: Path, told: str | None, *, renewal: bool) -> tuple[str, dict[str, object]]:
        from deepca.sites.pki.enrolment import examine_request, sign_request

        found = examine_request(path, self.authority)
        expected = _confirmed(found, told)
        found.check(expected, renewal=True)
        renewal = _renewal(found, wanted=renewal)
        found.check(expected, renewal=renewal)  # before anybody is asked for a passphrase
        signed = sign_request(
            path,
            self.authority,
            expected=expected,
            renewal=renewal,
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
            "list": signed.list.number,
        }
        said = (
            f"Signed for {signed.site}, until {signed.not_after:%Y-%m-%d}: {grouped(signed.fingerprint)}\n"
            f"Send [bold]{escape(str(signed.certificate))}[/] back; it is no secret. List {signed.list.number} of "
            "revoked certificates is in it, too. Should it have been a mistake:\n"
            f"  deepca join --revoke {signed.serial} --authority {escape(str(self.authority))}"
        )
        return said, facts

    def revoke(self, which: str | None) -> tuple[str, dict[str, object]]:
        """Revoke certificates, or, with None, sign the next list as it is."""
        from deepca.sites.pki.enrolment import reissue, revoke

        secret = passphrase_for(self.authority, self.passphrase_file)
        if which is None:
            done = reissue(self.authority, days=self.days, passphrase=secret)
        else:
            done = revoke(which, self.authority, days=self.days, passphrase=secret)
        facts: dict[str, object] = {
            "revoked": [{"site": one.site, "serial": one.serial} for one in done.certificates],
            "list": str(done.path),
            "number": done.list.number,
            "not_after": done.list.ends.isoformat(),
        }
        count = len(done.certificates)
        what = f"{count} certificate{'s' if count != 1 else ''} revoked" if count else "Nothing new is revoked"
        said = (
            f"{what}. List {done.list.number}, until {done.list.ends:%Y-%m-%d}: hand [bold]{escape(str(done.path))}[/] "
            "to the sites. One that has it is enough, as agents pass it on to each other; elsewhere:\n"
            "  deepca join site.toml --revoked revoked.pem"
        )
        return said, facts


def _confirmed(found: PendingRequest, told: str | None) -> str:
    """Return the fingerprint that the keeper expects: as given, or as seen and agreed to."""
    if told is not None:
        expected = "".join(told.split()).replace(":", "").lower()
        if len(expected) != _DIGITS or not set(expected) <= set(string.hexdigits):
            raise InvalidInput(f"--fingerprint: {_DIGITS} hexadecimal digits, as deepca join at the site shows them")
        return expected
    shown = grouped(found.fingerprint)
    if not terminal():
        raise EnrolmentError(
            f"{found.site} of {found.network} asks with the fingerprint {shown}; there is no terminal to ask whether "
            "that is right: give the one that the site has told you as --fingerprint",
            reason="unconfirmed",
            site=found.site,
            fingerprint=found.fingerprint,
        )
    typer.echo(
        f"{found.site} of {found.network} asks for a certificate. Fingerprint of the request:\n  {shown}", err=True
    )
    if not typer.confirm(f"Has {found.site} told you the same, by telephone or in person?", err=True):
        raise EnrolmentError(
            f"nothing was signed for {found.site}",
            reason="unconfirmed",
            site=found.site,
            fingerprint=found.fingerprint,
        )
    return found.fingerprint


def _renewal(found: PendingRequest, *, wanted: bool) -> bool:
    """Warn of valid certificates that a site has, and ask whether it shall get another, unless that is wanted."""
    for one in found.valid:
        text = f"{found.site} has a certificate that is valid until {one.not_after[:10]}, serial {one.serial}."
        typer.secho(f"warning: {text}", fg="yellow", err=True)
    if wanted or not found.valid or not terminal():
        return wanted
    return typer.confirm(f"Does {found.site} want another one, to replace it?", err=True)


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
    then = "A running agent takes it up by itself." if done.renewed else f"Start: deepca agent run {escape(str(file))}"
    return f"{done.site} has its certificate, until {done.not_after:%Y-%m-%d}. {then}", facts


def _install_list(site: Path, file: Path) -> tuple[str, dict[str, object]]:
    from deepca.sites.pki.enrolment import install_list

    done = install_list(site, file)
    facts: dict[str, object] = {
        "site": done.site,
        "list": str(done.path),
        "number": done.list.number,
        "not_after": done.list.ends.isoformat(),
        "replaced": done.replaced,
    }
    said = (
        f"{done.site} has list {done.list.number} of revoked certificates, until {done.list.ends:%Y-%m-%d}. A running "
        "agent takes it up by itself, and passes it on."
    )
    return said, facts


def grouped(fingerprint: str) -> str:
    """Format a fingerprint in groups that can be read out."""
    return " ".join(fingerprint[i : i + 4] for i in range(0, len(fingerprint), 4))
