"""``deepca doctor``: is this site ready, and if not, who has to mend what?"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from deepca.cli.common import errors, print_json, require_agent, say
from deepca.errors import InvalidInput

__all__ = ["doctor"]

_MARKS = {"ok": "[green]✓[/]", "warning": "[yellow]![/]", "wrong": "[bold red]✗[/]"}


def doctor(
    site: Annotated[Path, typer.Argument(help="The site.toml of this site, or the folder of its kit.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON instead.")] = False,
) -> None:
    """Look at everything that a run needs: files, rows, folders, certificates, clock, port, and each neighbour.

    Says what is wrong and who has to mend it. Nothing is changed, and a run under way is not disturbed. While this
    command runs (some seconds), the agent of this site cannot be started.

    Exit codes: 0 all is fine, or there are only warnings; 1 something is wrong; 2 there is no such file.
    """
    with errors():
        require_agent()
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what its core says of failed connections is said here better
        from deepca.sites.admin.doctor import examine

        file = site / "site.toml" if site.is_dir() else site
        if not file.is_file():
            raise InvalidInput(f"{file}: there is no such file; give the site.toml of a kit that deepca init made")
        console, found = Console(emoji=False), []
        for finding in examine(site):
            found.append(finding)
            if not as_json:
                who = f" [bold]→ {escape(finding.who)}[/]" if finding.who else ""
                say(console, f"{_MARKS[finding.verdict]} {escape(finding.check):<14} {escape(finding.text)}{who}")
        wrong = sum(one.verdict == "wrong" for one in found)
        if as_json:
            print_json({"site": str(file), "ok": not wrong, "findings": [asdict(one) for one in found]})
        else:
            doubtful = sum(one.verdict == "warning" for one in found)
            say(console, f"\n{_summary(wrong, doubtful)}")
        if wrong:
            raise typer.Exit(1)


def _summary(wrong: int, doubtful: int) -> str:
    if wrong:
        return f"[bold red]{wrong} thing{'s are' if wrong > 1 else ' is'} wrong.[/]"
    if doubtful:
        return f"[yellow]Nothing is wrong; {doubtful} warning{'s' if doubtful > 1 else ''}.[/]"
    return "[green]All is fine.[/]"
