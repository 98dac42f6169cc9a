"""``deepca init``: create the certificate authority and the kits of a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deepca._util.units import counted
from deepca.cli.common import errors, print_json, print_unwrapped, require
from deepca.cli.options import OUTPUT, VALIDITY_DAYS, JsonOption
from deepca.cli.passphrase import PASSPHRASE_VARIABLE, new_passphrase
from deepca.errors import InvalidInput
from deepca.sites.config.example import EXAMPLE

if TYPE_CHECKING:
    from deepca.sites.admin.kits import Kit, Kits

__all__ = ["init"]


def init(
    network: Annotated[
        Path | None,
        typer.Argument(
            metavar="NETWORK",
            help="The network.toml, which defines the sites, the links and the result to compute. Required unless "
            "--example is given.",
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="FOLDER", rich_help_panel=OUTPUT, help="Folder for the authority and the kits."
        ),
    ] = Path("kits"),
    trial: Annotated[
        bool, typer.Option("--trial", help="Also create the keys of all sites on this machine; for trials only.")
    ] = False,
    days: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="With --trial: validity of the certificates, in days.",
            show_default=str(VALIDITY_DAYS),
        ),
    ] = None,
    passphrase: Annotated[
        bool,
        typer.Option("--passphrase", help="Ask for a passphrase and protect the authority's key with it."),
    ] = False,
    passphrase_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Read the passphrase of the authority's key from this file; by default, from the variable "
            f"{PASSPHRASE_VARIABLE}.",
        ),
    ] = None,
    example: Annotated[bool, typer.Option("--example", help="Print an example network.toml and exit.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Create a private certificate authority and one kit per site.

    Each site receives its kit, a folder, and creates its private key there with deepca join. The key never leaves the
    site; whoever holds the folder "authority" signs the certificate that the site requests. Kits are secret: all sites
    hash column names with columns.key. With --trial, all keys are created here, so that sites can start at once.
    """
    with errors():
        if example:
            typer.echo(EXAMPLE, nl=False)
            return
        require("cryptography", extra="agent")
        from deepca.sites.admin.kits import make_kits

        file = _checked_network(network, days, trial=trial)
        secret = new_passphrase(ask=passphrase, file=passphrase_file)
        made = make_kits(file, out, trial=trial, days=days or VALIDITY_DAYS, passphrase=secret)
        if as_json:
            print_json({**_plain(made), "passphrase": secret is not None})
        else:
            _show(Console(emoji=False), made, trial=trial, protected=secret is not None)


def _checked_network(network: Path | None, days: int | None, *, trial: bool) -> Path:
    """Return the path of the network.toml; raise InvalidInput unless it exists and the options go together."""
    if days is not None and not trial:
        raise InvalidInput(
            "--days applies to the certificates that --trial creates; omit it here, and give it with deepca join "
            "--sign, or add --trial"
        )
    if network is None or not network.exists():
        raise InvalidInput(_missing(network), parameter="network", file=None if network is None else str(network))
    return network


def _missing(network: Path | None) -> str:
    what = "no network.toml was given." if network is None else f"{network}: file not found; check the path."
    return (
        f"{what} Such a file looks like this:\n\n"
        '  name = "three-hospitals"\n'
        "  components = 4\n"
        '  topology = "ring"\n\n'
        "  [[sites]]\n"
        '  name = "north"\n'
        '  address = "north.example.org:7400"\n\n'
        "with one [[sites]] per site. To start from a complete example: deepca init --example > network.toml"
    )


def _next_step(kit: Kit) -> str:
    if kit.complete:
        return "set data in site.toml, then run: deepca agent run site.toml"
    return "set data in site.toml, then run: deepca join site.toml"


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
                "next": _next_step(kit),
            }
            for kit in made.sites
        ],
    }


def _show(console: Console, made: Kits, *, trial: bool, protected: bool) -> None:
    title = f"{escape(made.network.name)}: {counted(len(made.sites), 'site')}"
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left")
    for heading in ("site", "address", "neighbours", "kit"):
        table.add_column(heading, overflow="fold")
    for kit in made.sites:
        address = "[dim]none; it connects to the others[/]" if kit.address is None else escape(kit.address)
        neighbours = ", ".join(kit.neighbours) or "[dim]none[/]"
        table.add_row(kit.site, address, neighbours, escape(str(kit.folder)))
    console.print(table)
    keep = f"[bold]{escape(str(made.authority))}[/]"
    step = _next_step(made.sites[0])  # the same at all sites
    if trial:
        text = (
            f"In each kit, {step}\n"
            f"All keys were created here, for trials only. {keep} signs certificates; do not share it."
        )
    else:
        text = (
            f"Give each kit to its site; nobody else may read columns.key in it. There, {step}\n"
            f"Keep {keep} private; it signs the requests of the sites:\n"
            f"  deepca join --sign request.csr --authority {escape(str(made.authority))}"
        )
    if protected:
        text += "\nDo not lose the passphrase of the authority's key: nothing can be signed or revoked without it."
    print_unwrapped(console, text)
