"""Show the agents of a trial network while they run, and the result."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from deepca._util.units import counted, format_bytes, plural
from deepca.cli.common import print_json, print_unwrapped
from deepca.cli.view.model import show_model, show_status, summary

if TYPE_CHECKING:
    from deepca.decomposition.model import Model
    from deepca.sites.admin.trial_agent import AgentExit, TrialAgentSnapshot
    from deepca.sites.admin.trial_network import TrialOutcome
    from deepca.sites.admin.trial_setup import Share


_COLOURS = {
    "finished": "green",
    "running": "cyan",
    "failed": "bold red",
    "killed": "bold red",
    "unfinished": "red",
    "not usable": "red",
    "left out": "yellow",
    "stopped": "dim",
}


@dataclass(frozen=True)
class TrialResult:
    """Shares of the rows, how the agents ended, and the model, or None without a result."""

    shares: tuple[Share, ...]
    outcome: TrialOutcome
    model: Model | None


@contextmanager
def agent_progress(notes: Console, *, quiet: bool) -> Iterator[Callable[[Sequence[TrialAgentSnapshot]], None]]:
    """Provide a function that shows the agents: as a live table on a terminal, otherwise as a line for each change."""
    if quiet:
        yield lambda snapshots: None
    elif notes.is_terminal:
        with Live(console=notes, auto_refresh=False, transient=True) as live:
            yield lambda snapshots: live.update(_agents_table(snapshots, notes), refresh=True)
    else:
        shown: list[str] = []

        def watch(snapshots: Sequence[TrialAgentSnapshot]) -> None:
            counts: dict[str, int] = {}
            for one in snapshots:
                counts[one.state] = counts.get(one.state, 0) + 1
            text = ", ".join(f"{count} {state}" for state, count in counts.items())
            if shown[-1:] != [text]:
                shown.append(text)
                notes.print(f"{len(snapshots)} agent{plural(len(snapshots))}: {text}", highlight=False)

        yield watch


def _agents_table(snapshots: Sequence[TrialAgentSnapshot], console: Console) -> Table:
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, collapse_padding=True)
    name = max(4, *(len(one.site) for one in snapshots))
    table.add_column("site", no_wrap=True, min_width=min(name, 20), overflow="ellipsis")
    table.add_column("rows", justify="right", no_wrap=True, min_width=8)
    table.add_column("state", no_wrap=True, min_width=13)
    table.add_column("last message", no_wrap=True, overflow="ellipsis", max_width=max(console.width - name - 28, 10))
    most = max(console.height - 5, 3)
    for one in snapshots[:most]:
        colour = _COLOURS.get(one.state, "default")
        iteration = f" ({one.iteration})" if one.iteration is not None and one.state == "running" else ""
        table.add_row(
            one.site,
            "?" if one.rows is None else f"{one.rows:,}",
            f"[{colour}]{one.state}{iteration}[/]",
            f"[dim]{escape(one.text)}[/]",
        )
    if len(snapshots) > most:
        table.add_row(f"[dim]and {len(snapshots) - most} more[/]", "", "", "")
    return table


def report_trial(result: TrialResult, out: Path, *, as_json: bool, quiet: bool, kits: Path | None) -> int:
    """Move the model files to the output folder, show the result, and return the exit code."""
    from deepca.sites.admin.trial_network import keep_models

    outcome, model, notes = result.outcome, result.model, Console(stderr=True, emoji=False)
    places = keep_models(outcome, out)
    if as_json:
        print_json(_plain(result, places, kits))
    elif model is not None and not quiet:
        console = Console(emoji=False)
        show_model(console, model)
        print_unwrapped(
            console,
            f"\n{len(places)} model file{plural(len(places))}, identical byte for byte "
            f"(sha256 {outcome.sha256[:16]}…): [bold]{escape(str(out))}/<site>/model.npz[/] · {outcome.seconds:.1f} s",
        )
    if outcome.code:
        show_failures(notes, outcome, model, shown=not as_json and not quiet)
    if kits is not None and not as_json and not quiet:
        print_unwrapped(notes, f"Kits, logs and checkpoints: {escape(str(kits))}")
    return outcome.code


def show_failures(notes: Console, outcome: TrialOutcome, model: Model | None, *, shown: bool) -> None:
    """Show which agents failed, with their last messages."""
    without = [agent for agent in outcome.agents if agent.model is None]
    for agent in sorted(without, key=lambda agent: not agent.first):
        if agent.stopped and not agent.first:
            continue
        print_unwrapped(notes, f"[bold red]error:[/] {escape(agent.site)} {_ending(agent)}")
        for line in agent.last:
            print_unwrapped(notes, f"  [dim]{escape(agent.site)}:[/] {escape(line)}")
    stopped = [agent.site for agent in without if agent.stopped and not agent.first]
    if stopped:
        print_unwrapped(notes, f"Stopped as a consequence: {escape(', '.join(stopped))}.")
    if model is None:
        notes.print("No model was written.", highlight=False)
    elif not model.status.ok and not shown:
        show_status(notes, model)
    elif model.about.get("left_out"):
        names = ", ".join(model.about["left_out"])
        notes.print(f"[bold yellow]The rows of {escape(names)} are not in this result.[/]", highlight=False)


def _ending(agent: AgentExit) -> str:
    if agent.code < 0:
        try:
            name = signal.Signals(-agent.code).name
        except ValueError:
            name = f"signal {-agent.code}"
        return f"was killed ({name}); its last messages:"
    if agent.code == 3:
        return "was not finished at the deadline; its last messages:"
    return f"ended with exit code {agent.code}; its last messages:"


def _plain(result: TrialResult, places: dict[str, Path], kits: Path | None) -> dict[str, Any]:
    outcome, model = result.outcome, result.model
    return {
        **({} if model is None else summary(model)),
        "sites": [
            {
                "site": agent.site,
                "rows": agent.rows,
                "exit_code": agent.code,
                "model": str(places[agent.site]) if agent.site in places else None,
                "last": list(agent.last) if agent.model is None else [],
            }
            for agent in outcome.agents
        ],
        "sha256": outcome.sha256 or None,
        "seconds": round(outcome.seconds, 3),
        "kits": None if kits is None else str(kits),
    }


def show_demo(console: Console, found: dict[str, Any], tol: float) -> None:
    """Show the result of ``deepca demo --real``."""
    sites = found["sites"]
    rows = [site["rows"] for site in sites]
    each = f"{rows[0]}" if min(rows) == max(rows) else f"{min(rows)} or {max(rows)}"
    mark = "green" if found["tan_theta"] <= 10 * tol else "red"
    proven = "nothing" if found["proven"] is None else f"tan θ ≤ {found['proven']:.1e} at every site"
    table = Table.grid(padding=(0, 2))
    for name, value in (
        ("sites", f"{len(sites)}, one process each, {counted(found['links'], 'link')} (ring), mutual TLS 1.3"),
        ("rows each", f"{each} of {sum(rows):,}; none left its site"),
        ("iterations", f"{found['iterations']:,}"),
        ("rounds", f"{found['rounds']:,}"),
        ("sent", f"{format_bytes(found['bytes_per_agent'])} per site"),
        ("time", f"{found['seconds']:.1f} s, including the start and stop of the processes"),
        ("status", str(found["status"]).replace("_", " ")),
        ("proven", proven),
        ("measured", f"[{mark}]tan θ = {found['tan_theta']:.1e}[/] from scikit-learn's PCA of the pooled rows"),
        ("model files", f"{found['model_files']}, identical byte for byte: sha256 {found['sha256'][:16]}…"),
    ):
        table.add_row(f"[dim]{name}[/]", value)
    console.print("\n[bold]Digits data from scikit-learn, one process per agent[/]\n")
    console.print(table, highlight=False)
