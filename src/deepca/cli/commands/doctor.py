"""``deepca doctor``: check whether a site is ready for a run."""

from __future__ import annotations

import os
from dataclasses import asdict

import typer
from rich.console import Console
from rich.markup import escape

from deepca.cli.common import errors, print_json, require_agent, say
from deepca.cli.options import JsonOption, SiteArgument
from deepca.errors import InvalidInput

__all__ = ["doctor"]

_MARKS = {"ok": "[green]✓[/]", "warning": "[yellow]![/]", "wrong": "[bold red]✗[/]"}


def doctor(
    site: SiteArgument,
    as_json: JsonOption = False,
) -> None:
    """Check everything that a run at this site needs.

    Checks files, rows, folders, certificates, the clock, the port and each neighbour, and reports what is wrong and who
    must fix it. Nothing is changed, and other sites that are running are not disturbed. The agent of this site cannot
    start during the check, which takes a few seconds.

    Exit codes:

      0  everything is in order, apart from warnings
      1  something is wrong
      2  the file does not exist
    """
    with errors():
        require_agent()
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # failed connections are reported below
        from deepca.sites.admin.doctor import examine

        file = site / "site.toml" if site.is_dir() else site
        if not file.is_file():
            raise InvalidInput(
                f"{file} does not exist; give the site.toml of a kit made by deepca init", file=str(file)
            )
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
        return f"[bold red]{wrong} problem{'s' if wrong > 1 else ''} found.[/]"
    if doubtful:
        return f"[yellow]No problems; {doubtful} warning{'s' if doubtful > 1 else ''}.[/]"
    return "[green]No problems.[/]"
