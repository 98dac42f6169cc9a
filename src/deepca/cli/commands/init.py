"""``deepca init``: a network written down becomes an authority and one kit per site."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deepca.cli.common import errors, print_json, require, say
from deepca.cli.passphrase import VARIABLE, new_passphrase
from deepca.errors import InvalidInput
from deepca.sites.config.network_file import EXAMPLE

if TYPE_CHECKING:
    from deepca.sites.admin.kits import Kit, Kits

__all__ = ["init"]


def init(
    network: Annotated[
        Path | None, typer.Argument(help="The network.toml: sites, who talks to whom, and what is asked for.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the authority and the kits.")] = Path("kits"),
    trial: Annotated[
        bool, typer.Option("--trial", help="Make the keys of all sites here, too: for trying things out.")
    ] = False,
    days: Annotated[int, typer.Option(min=1, help="How long certificates last, with --trial.")] = 365,
    passphrase: Annotated[
        bool, typer.Option("--passphrase", help="Protect the authority's key with a passphrase, which is asked for.")
    ] = False,
    passphrase_file: Annotated[
        Path | None, typer.Option(help=f"Take that passphrase from this file; or from the variable {VARIABLE}.")
    ] = None,
    example: Annotated[bool, typer.Option("--example", help="Print a network.toml to start from.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was made as JSON instead.")] = False,
) -> None:
    """Make a private authority and one kit per site from a network.toml.

    Every site gets its folder. Its key is made there (deepca join), never leaves it, and is signed from a request by
    whoever keeps the folder "authority". With --trial all keys are made here at once, and sites can start.
    """
    with errors():
        if example:
            typer.echo(EXAMPLE, nl=False)
            return
        require("cryptography", extra="agent")
        from deepca.sites.admin.kits import make_kits

        if network is None or not network.exists():
            raise InvalidInput(_missing(network))
        secret = new_passphrase(ask=passphrase, file=passphrase_file)
        made = make_kits(network, out, trial=trial, days=days, passphrase=secret)
        if as_json:
            print_json({**_plain(made), "passphrase": secret is not None})
        else:
            _show(Console(emoji=False), made, trial=trial, protected=secret is not None)


def _missing(network: Path | None) -> str:
    what = "which network?" if network is None else f"{network}: there is no such file."
    return (
        f"{what} A network.toml looks like this:\n\n"
        '  name = "three-hospitals"\n'
        "  components = 4\n"
        '  topology = "ring"\n\n'
        "  [[sites]]\n"
        '  name = "north"\n'
        '  address = "north.example.org:7400"\n\n'
        "with one [[sites]] for each. To start from one with everything in it: deepca init --example > network.toml"
    )


def _next(kit: Kit) -> str:
    if kit.complete:
        return "edit data in site.toml, then: deepca agent run site.toml"
    return "edit data in site.toml, then: deepca join site.toml"


def _plain(made: Kits) -> dict[str, object]:
    return {
        "network": made.network.name,
        "run": made.network.run,
        "digest": made.network.digest.hex(),
        "authority": str(made.authority),
        "sites": [
            {
                "site": kit.site,
                "address": kit.address,
                "neighbours": list(kit.neighbours),
                "folder": str(kit.folder),
                "complete": kit.complete,
                "next": _next(kit),
            }
            for kit in made.sites
        ],
    }


def _show(console: Console, made: Kits, *, trial: bool, protected: bool) -> None:
    table = Table(box=SIMPLE_HEAD, title=f"{escape(made.network.name)}: {len(made.sites)} sites", title_justify="left")
    for heading in ("site", "address", "neighbours", "kit", "what to do there"):
        table.add_column(heading, overflow="fold")
    for kit in made.sites:
        address = "[dim]none: it calls the others[/]" if kit.address is None else escape(kit.address)
        neighbours = ", ".join(kit.neighbours) or "[dim]none[/]"
        table.add_row(kit.site, address, neighbours, escape(str(kit.folder)), _next(kit))
    console.print(table)
    keep = f"[bold]{escape(str(made.authority))}[/]"
    if trial:
        said = f"All keys were made here: for trials only. {keep} signs certificates; do not hand it out."
    else:
        said = (
            f"Hand each folder to its site. Keep {keep} to yourself: with it requests of sites are signed\n"
            f"  deepca join --sign request.csr --authority {escape(str(made.authority))}"
        )
    if protected:
        said += (
            "\nThe authority's key has a passphrase, without which nothing can be signed or revoked. Do not lose it."
        )
    say(console, said)
