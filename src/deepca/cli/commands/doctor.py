"""``deepca doctor``: check whether a site is ready for a run."""

from __future__ import annotations

import os
from dataclasses import asdict

import typer
from rich.console import Console
from rich.markup import escape

from deepca._util.units import plural
from deepca.cli.common import errors, print_json, print_unwrapped, require_agent, site_file
from deepca.cli.options import JsonOption, SiteArgument

__all__ = ["doctor"]

_MARKS = {"ok": "[green]✓[/]", "warning": "[yellow]![/]", "wrong": "[bold red]✗[/]"}


def doctor(
    site: SiteArgument,
    as_json: JsonOption = False,
) -> None:
    """Check whether this site is ready for a run.

    Checks files, rows, folders, certificates, the clock, the port and each neighbour, and reports what is wrong and who
    must fix it. Changes nothing and does not disturb the running agents of other sites. The agent of this site cannot
    start during the check, which takes a few seconds.

    Exit codes:

      0  everything is in order, apart from warnings
      1  something is wrong
      2  site.toml was not found
    """
    with errors():
        require_agent()
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # failed connections are reported below
        from deepca.sites.admin.doctor import examine

        file = site_file(site)
        console, found = Console(emoji=False), []
        for finding in examine(site):
            found.append(finding)
            if not as_json:
                who = f" [bold]→ {escape(finding.who)}[/]" if finding.who else ""
                print_unwrapped(
                    console, f"{_MARKS[finding.verdict]} {escape(finding.check):<15} {escape(finding.text)}{who}"
                )
        wrong = sum(one.verdict == "wrong" for one in found)
        if as_json:
            print_json({"site": str(file), "ok": not wrong, "findings": [asdict(one) for one in found]})
        else:
            warnings = sum(one.verdict == "warning" for one in found)
            print_unwrapped(console, f"\n{_summary(wrong, warnings)}")
        if wrong:
            raise typer.Exit(1)


def _summary(wrong: int, warnings: int) -> str:
    if wrong:
        return f"[bold red]{wrong} problem{plural(wrong)} found.[/]"
    if warnings:
        return f"[yellow]No problems; {warnings} warning{plural(warnings)}.[/]"
    return "[green]No problems.[/]"
