"""``deepca join``: how a site comes to its certificate, renews it, and loses it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from deepca.cli.common import errors, require
from deepca.errors import InvalidInput

__all__ = ["join"]


def join(
    site: Annotated[Path | None, typer.Argument(help="At the site: its site.toml, or the folder of its kit.")] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="At the site: take this certificate, which came back from the authority.")
    ] = None,
    renew: Annotated[
        bool, typer.Option("--renew", help="At the site: ask for another certificate while the old one is in use.")
    ] = False,
    sign: Annotated[Path | None, typer.Option(help="For the keeper of the authority: sign this request.")] = None,
    revoke: Annotated[
        str | None,
        typer.Option(help="For the keeper: a site, or a serial number, whose certificates are no longer valid."),
    ] = None,
    authority: Annotated[
        Path | None, typer.Option(help="For the keeper: the folder that deepca init made, with --sign and --revoke.")
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="For the keeper: how long the certificate lasts.")] = 365,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON instead.")] = False,
) -> None:
    """A site asks for its certificate, has it signed, and takes it; its key never leaves it.

    1. At the site: deepca join site.toml makes a key and request.csr.

    2. The keeper of the authority: deepca join --sign request.csr --authority kits/authority

    3. At the site: deepca join site.toml --certificate north.pem

    Once a year the same with --renew in the first step; a running agent goes on.
    """
    with errors():
        require("cryptography", extra="agent")
        _check(site, certificate, renew, sign, revoke, authority)
        if sign is not None and authority is not None:
            said, facts = _sign(sign, authority, days)
        elif revoke is not None and authority is not None:
            said, facts = _revoke(revoke, authority)
        elif site is not None and certificate is not None:
            said, facts = _install(site, certificate)
        else:
            assert site is not None
            said, facts = _ask(site, renew)
        if as_json:
            typer.echo(json.dumps(facts, indent=2, ensure_ascii=False))
        else:
            Console(emoji=False).print(said, highlight=False, soft_wrap=True)


def _check(
    site: Path | None,
    certificate: Path | None,
    renew: bool,
    sign: Path | None,
    revoke: str | None,
    authority: Path | None,
) -> None:
    """One thing at a time."""
    if sign is not None and revoke is not None:
        raise InvalidInput("--sign and --revoke are two things; do one after the other")
    for_keeper = "--sign" if sign is not None else "--revoke" if revoke is not None else None
    if for_keeper is not None:
        if site is not None or certificate is not None or renew:
            raise InvalidInput(
                f"{for_keeper} is for the keeper of the authority, the rest for the site; give one of them"
            )
        if authority is None:
            raise InvalidInput(f"{for_keeper} needs --authority, the folder that deepca init made")
    elif authority is not None:
        raise InvalidInput("--authority is for --sign and --revoke; at a site it is not needed")
    elif site is None:
        raise InvalidInput("which site? Give its site.toml; or --sign or --revoke if you keep the authority")
    elif renew and certificate is not None:
        raise InvalidInput("--renew asks for a certificate, --certificate takes it; do one after the other")


def _ask(site: Path, renew: bool) -> tuple[str, dict[str, object]]:
    from deepca.sites.kits import ask

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
        f"Its fingerprint, to be compared by telephone: {_grouped(asked.fingerprint)}\n"
        f"When {asked.site}.pem comes back: deepca join {escape(str(site))} --certificate {asked.site}.pem"
    )
    return said, facts


def _sign(path: Path, authority: Path, days: int) -> tuple[str, dict[str, object]]:
    from deepca.sites.kits import sign_request

    signed = sign_request(path, authority, days=days)
    facts: dict[str, object] = {
        "site": signed.site,
        "serial": signed.serial,
        "certificate": str(signed.certificate),
        "fingerprint": signed.fingerprint,
        "not_after": signed.not_after.isoformat(),
    }
    said = (
        f"Signed for {signed.site}, until {signed.not_after:%Y-%m-%d}.\n"
        f"The fingerprint that {signed.site} must see, too: {_grouped(signed.fingerprint)}\n"
        f"If it does, send [bold]{escape(str(signed.certificate))}[/] back; it is no secret. If not, revoke it:\n"
        f"  deepca join --revoke {signed.serial} --authority {escape(str(authority))}"
    )
    return said, facts


def _install(site: Path, certificate: Path) -> tuple[str, dict[str, object]]:
    from deepca.sites.kits import install

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


def _revoke(which: str, authority: Path) -> tuple[str, dict[str, object]]:
    from deepca.sites.kits import revoke

    done = revoke(which, authority)
    facts: dict[str, object] = {
        "revoked": [{"site": one.site, "serial": one.serial} for one in done.certificates],
        "list": str(done.list),
    }
    count = len(done.certificates)
    what = f"{count} certificate{'s' if count != 1 else ''} revoked" if count else "Nothing new to revoke"
    said = (
        f"{what}. Hand [bold]{escape(str(done.list))}[/] to all sites: it goes beside their site.toml, and running "
        "agents take it up by themselves."
    )
    return said, facts


def _grouped(fingerprint: str) -> str:
    """Half of it, in groups that can be read out: 128 bits that nobody can imitate."""
    return " ".join(fingerprint[i : i + 4] for i in range(0, 32, 4))
