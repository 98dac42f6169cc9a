"""``deepca audit``: verify and compare audit logs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from deepca._util.units import counted, format_bytes
from deepca.cli.common import errors, print_json, print_unwrapped, require_agent
from deepca.cli.options import JsonOption
from deepca.cli.view.tables import columns

if TYPE_CHECKING:
    from cryptography import x509

    from deepca.sites.audit.comparison import LogAgreement
    from deepca.sites.audit.reader import AuditLog

__all__ = ["audit"]

_LogArgument = Annotated[
    Path,
    typer.Argument(metavar="LOG", help="An audit log, a folder of logs, or the site.toml of a site or its folder."),
]
_OtherArgument = Annotated[
    Path | None,
    typer.Argument(metavar="OTHER", help="Logs of another site in the same run, to compare."),
]
_AuthorityOption = Annotated[
    Path | None,
    typer.Option(
        "--authority",
        metavar="FILE",
        help="Certificate of the authority of the network (authority.pem), to check who signed a log.",
        show_default="that of site.toml, if it is given",
    ),
]
_MAX_DIFFERENCES = 20  # printed; the others are counted


def audit(
    log: _LogArgument,
    other: _OtherArgument = None,
    authority: _AuthorityOption = None,
    as_json: JsonOption = False,
) -> None:
    """Verify the audit log of a site, and summarise what has left it.

    With the log of another site, compares both: what one says that it sent must be what the other says that it
    received.

    Exit codes:

      0  the chain of every log holds, and two logs do not contradict each other
      1  a log was changed, a signature is wrong, or two logs contradict
      2  a file was not found, or is not an audit log
    """
    with errors():
        require_agent()
        from deepca.sites.audit.comparison import compare
        from deepca.sites.audit.reader import check_restarts

        here, whole = _read(log, authority)
        there = [] if other is None else _read(other, authority)[0]
        restarts = check_restarts(here) if whole else []
        wrong = bool(restarts) or not all(one.ok for one in (*here, *there))
        agreement = None if wrong or not there else compare(here, there)
        if as_json:
            print_json(_plain(here, there, restarts, agreement))
        else:
            _show(here, there, restarts, agreement)
        if wrong or (agreement is not None and not agreement.ok):
            raise typer.Exit(1)


def _read(path: Path, authority: Path | None) -> tuple[list[AuditLog], bool]:
    """Read the logs that a path stands for, and return whether these should be all logs of a folder."""
    from deepca.errors import InvalidInput
    from deepca.sites.audit.reader import read_log, read_logs
    from deepca.sites.config.site_file import read_site
    from deepca.sites.pki.certificates import load_certificate

    files, known, run = [path], authority, None
    file = path / "site.toml" if path.is_dir() and (path / "site.toml").exists() else path
    if file.suffix == ".toml":
        site = read_site(file)
        if site.audit is None:
            raise InvalidInput(f"{file}: audit = false, so this site has no audit log", file=str(file))
        files, run = read_logs(site.audit, site.site), site.network.run
        known = authority or (None if site.plaintext else site.authority)
    elif path.is_dir():
        files = read_logs(path)
    certificate: x509.Certificate | None = None if known is None else load_certificate(known)
    logs = [read_log(one, certificate) for one in files]
    found = [log for log in logs if run in (None, log.run[1])]
    if not found:
        raise InvalidInput(
            f"{logs[0].path.parent}: this folder contains no log of run {run!r}; to read those of other runs, "
            "give the folder",
            file=str(logs[0].path.parent),
        )
    return found, files != [path]


# ------------------------------------------------------------------------------------------------------------- showing


def verdict(log: AuditLog) -> str:
    """Return what is known of a log, in a few words."""
    if log.fault:
        return f"broken at line {log.faulty_line}: {log.fault}"
    if log.signed == "wrong":
        return f"chain verified, but the signature is wrong: {log.signature_fault}"
    ending = {
        "verified": f"signed by {log.site}",
        "not checked": f"signed by {log.site}; the signature was not checked against an authority (--authority)",
        "unsigned": "not signed, since this site uses no certificates",
        "unfinished": "unfinished: it has no end, because the agent still runs or was killed",
    }[log.signed]
    missing = f"; {counted(log.lost, 'message')} could not be written" if log.lost else ""
    return f"chain verified, {ending}{missing}"


def _show(here: list[AuditLog], there: list[AuditLog], restarts: list[str], agreement: LogAgreement | None) -> None:
    from deepca.sites.audit.summary import frames_of, summarise

    console = Console(emoji=False)
    for log in (*here, *there):
        colour = "bold red" if not log.ok else "yellow" if not log.complete else "green"
        print_unwrapped(console, f"{escape(str(log.path))}: [{colour}]{escape(verdict(log))}[/]")
    for text in restarts:
        print_unwrapped(console, f"[bold red]{escape(text)}[/]")
    if there:
        _show_agreement(console, agreement)
    if there or any(log.fault for log in here):
        return
    table = columns(["to", "kind"], ["messages", "bytes", "masked", "public", "structural", "open"])
    for row in summarise(here):
        shown = (row.masked, row.public, row.structural, row.open)
        table.add_row(
            escape(row.neighbor),
            escape(row.kind),
            f"{row.messages:,}",
            format_bytes(row.bytes),
            *(f"{number:,}" if number else "—" for number in shown),
        )
    console.print(table)
    frames = ", ".join(f"{kind} {format_bytes(size)} ({n:,})" for kind, (n, size) in frames_of(here).items())
    if frames:
        print_unwrapped(console, f"Frames on the wire, with everything sent again: {frames}")


def _show_agreement(console: Console, agreement: LogAgreement | None) -> None:
    if agreement is None:
        print_unwrapped(console, "[bold red]not compared, since a log cannot be relied on[/]")
        return
    one, other = agreement.sites
    for difference in agreement.differences[:_MAX_DIFFERENCES]:
        places = [f"{place[0]}:{place[1]}" for place in (difference.sent, difference.received) if place is not None]
        text = f"{', '.join(places)}: {difference.sender} to {difference.receiver}: {difference.what}"
        print_unwrapped(console, f"[bold red]{escape(text)}[/]")
    more = len(agreement.differences) - _MAX_DIFFERENCES
    if more > 0:
        print_unwrapped(console, f"[bold red]and {counted(more, 'more difference')}[/]")
    rest = ""
    if agreement.lost:
        rest += f", {counted(agreement.lost, 'message')} sent last and lost"
    if agreement.undecided:
        rest += f", {counted(agreement.undecided, 'message')} that these logs do not cover"
    colour, words = ("green", "agree") if agreement.ok else ("bold red", "contradict each other")
    console.print(
        f"[{colour}]The logs of {escape(one)} and {escape(other)} {words}[/]: "
        f"{counted(agreement.equal, 'message')} between them equal{rest}.",
        highlight=False,
    )


def _plain(
    here: list[AuditLog], there: list[AuditLog], restarts: list[str], agreement: LogAgreement | None
) -> dict[str, Any]:
    from deepca.sites.audit.summary import frames_of, summarise

    def about(log: AuditLog) -> dict[str, Any]:
        return {
            "file": str(log.path),
            "site": log.site,
            "network": log.start["network"],
            "run": log.start["run"],
            "privacy": log.start["privacy"],
            "started": log.start["time"],
            "lines": len(log.lines),
            "ok": log.ok,
            "verdict": verdict(log),
            "broken_at": log.faulty_line,
            "signature": log.signed,
            "lost": log.lost,
        }

    found: dict[str, Any] = {
        "ok": not restarts and all(log.ok for log in (*here, *there)) and (agreement is None or agreement.ok),
        "logs": [about(log) for log in (*here, *there)],
        "restarts": restarts,
        "sent": [asdict(row) | {"masked_share": row.masked_share} for row in summarise(here)],
        "frames": {kind: {"number": n, "bytes": size} for kind, (n, size) in frames_of(here).items()},
    }
    if agreement is not None:
        found["comparison"] = asdict(agreement) | {"ok": agreement.ok}
    return found
