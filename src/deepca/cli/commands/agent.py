"""``deepca agent run``: run a site's agent."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, cast

import typer
from rich.console import Console
from rich.markup import escape

from deepca._util.logs import EventHandler, EventLogger, attached
from deepca.cli.command import Command, examples, in_options, message_for
from deepca.cli.common import errors, handle_signals, print_json, print_unwrapped, require_agent, site_file
from deepca.cli.options import OUTPUT, JsonOption, SilentOption, SiteArgument
from deepca.cli.view.model import show_model, summary
from deepca.errors import (
    DeepcaError,
    InternalError,
    NetworkError,
    NotFiniteError,
    ParameterError,
    Unfinished,
)

if TYPE_CHECKING:  # CoreLog has to be installed before anything imports grpc
    from deepca.cli.view.log import AgentLog, Style
    from deepca.sites.config.site_file import SiteFile
    from deepca.sites.runtime.site_result import SiteResult
    from deepca.sites.runtime.status import Watch
    from deepca.sites.transport.grpc_errors import CoreLog

__all__ = ["LEFT_OUT", "UNFINISHED", "UNUSABLE", "agent"]

_logger = logging.getLogger(__name__)

UNUSABLE, UNFINISHED, LEFT_OUT = 1, 3, 4  # exit codes
_LEVELS = {  # log levels of the events that end a run
    "failed": logging.ERROR,
    "left_out": logging.WARNING,
    "stopped": logging.WARNING,
    "unfinished": logging.ERROR,
}
_REPEATED_SIGNAL = 2.0  # seconds within which a second signal is the first one, sent to the process and to its group

agent = typer.Typer(name="agent", help="Run a site's agent.", no_args_is_help=True, rich_markup_mode=None)

_LogOption = Annotated[
    str | None,
    typer.Option(
        metavar="FORMAT",
        rich_help_panel=OUTPUT,
        help="Format of the log: text (default) or json. Without --log-file, the log goes to standard error; on a "
        "terminal, this option replaces the live view with the log.",
    ),
]
_LogFileOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", rich_help_panel=OUTPUT, help="Append the log to this file, even with --quiet."),
]
_RunOption = Annotated[
    str | None,
    typer.Option(
        "--run", metavar="NAME", help="Name of the run, overriding network.toml; must be the same at all sites."
    ),
]
_DeadlineOption = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Time limit of the run, such as 90s or 2h, overriding site.toml."),
]


@agent.command(
    "run",
    cls=Command,
    epilog=examples(
        "deepca agent run site.toml",
        "deepca agent run site.toml --deadline 2h --log-file agent.log",
        "deepca agent run site.toml --log json --json > result.json",
    ),
)
def run(
    site: SiteArgument,
    log: _LogOption = None,
    log_file: _LogFileOption = None,
    run_name: _RunOption = None,
    deadline: _DeadlineOption = None,
    as_json: JsonOption = False,
    quiet: SilentOption = False,
) -> None:
    """Run the agent of this site until there is a result.

    Works together with the agents of the other sites, which may be started in any order. Rows stay at the site. After a
    failure, run the same command again.

    Exit codes:

      0    a result was written
      1    the result is not usable, or the run failed
      2    a mistake at this site, or a setting that differs between sites
      3    unfinished at the deadline
      4    the other sites have a result without the rows of this site
      130  stopped by Ctrl-C or SIGTERM; the same command resumes
    """
    with errors(resumes=True):
        style = _style(log)
        require_agent()
        _run(site, style, log_file, run_name, deadline, as_json=as_json, quiet=quiet)


def _run(
    path: Path,
    style: Style | None,
    log_file: Path | None,
    run_name: str | None,
    deadline: str | None,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    with ExitStack() as stack, _stoppable():
        core = _core_log()
        from deepca.cli.view.log import AgentLog
        from deepca.sites.runtime.status import Watch

        console = Console(stderr=True, emoji=False)
        view = console.is_terminal and not quiet and not as_json and (style is None or log_file is not None)
        reporter = _Reporter(console)
        stack.callback(reporter.close)
        if log_file is not None:
            reporter.add(AgentLog(log_file, style or "text"))
        elif not view and not quiet:
            reporter.plain = style != "json"
            reporter.add(AgentLog(sys.stderr, style or "text"), endings=style == "json")
        watch = None
        try:
            site = _read(path, run_name, deadline)
            watch = Watch(site)
            reporter.begin(site.site, watch.on_event)
            from deepca.sites.runtime.agent import Agent, run_agent  # imports grpc: only after CoreLog is installed

            def ready(agent: Agent) -> None:
                watch.attach(agent)
                if core is not None:
                    core.listen(agent.streams.report_rejected_client)

            with _shown(site, watch, reporter) if view else nullcontext(), watch.reminding():
                ending = run_agent(site, observers=(watch,), ready=ready)
        except KeyboardInterrupt:
            reporter.end("stopped", _stopped(site if watch else None, finished=reporter.finished), 130)
        except Unfinished as error:
            details = [text for wait in watch.last.waits for text in wait.details] if watch else []
            text = f"{error}; allow more time with --deadline, or with deadline in site.toml"
            reporter.end("unfinished", text, UNFINISHED, *details)
        except (NetworkError, InternalError, NotFiniteError) as error:  # not this site's mistake
            report = f"; include the report {error.report} when you ask for help" if error.report else ""
            reporter.end("failed", f"{error}{report}", UNUSABLE)
        except (DeepcaError, OSError) as error:
            reporter.end("failed", message_for(error), 2, kind=type(error).__name__)
        except Exception as error:  # raised before the agent could report it
            reporter.end("failed", f"internal error in deepca: {type(error).__name__}", UNUSABLE)
        code = _warn(site, ending, reporter)
        if as_json:
            print_json(_plain(site, ending, code))
        elif not quiet:
            _show(site, ending)
        if code:
            raise typer.Exit(code)


class _Reporter:
    """Reports of an agent, apart from its result: the logs, and final messages on standard error.

    Attributes
    ----------
    plain : bool
        Whether final messages are printed as text; otherwise they are in the JSON log on standard error.
    finished : bool
        Whether this site has its result.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.plain, self.finished = True, False
        self._listener: Callable[[str, Mapping[str, object]], None] = lambda event, facts: None
        self._handlers: list[AgentLog | EventHandler] = []
        self._final = EventLogger(_logger, "")
        self._attached = ExitStack()
        self._attach(EventHandler(self._receive, ""))

    def _attach(self, handler: AgentLog | EventHandler) -> None:
        self._handlers.append(handler)
        self._attached.callback(handler.close)
        self._attached.enter_context(attached(handler))

    def add(self, log: AgentLog, *, endings: bool = True) -> None:
        """Add a log; ``endings`` tells whether it includes the final messages."""
        if not endings:
            log.addFilter(lambda record: record.name != __name__)  # final messages are all that this module logs
        self._attach(log)

    def begin(self, site: str, listener: Callable[[str, Mapping[str, object]], None]) -> None:
        """Set the site that reports, and the listener to which its events are passed."""
        self._listener, self._final.site = listener, site
        for handler in self._handlers:
            handler.site = site

    def _receive(self, site: str, event: str, text: str, facts: Mapping[str, object]) -> None:
        self.finished = self.finished or event == "finished"
        self._listener(event, facts)

    def warn(self, event: str, text: str, /, style: str, **facts: object) -> None:
        """Report a problem with the result."""
        self._final.log(_LEVELS[event], text, event=event, facts=facts)
        self._say(style, text)

    def _say(self, style: str, *lines: str) -> None:
        """Print lines as text, without control characters: other sites may have written parts of them."""
        from deepca.cli.view.log import printable

        if self.plain:
            mark = f"[{style}]{'error:' if style == 'bold red' else 'note:'}[/] " if style else ""
            text = escape("\n  ".join(map(printable, lines)))
            print_unwrapped(self.console, f"{mark}{text}")

    def end(self, event: str, text: str, code: int, *details: str, kind: str = "") -> NoReturn:
        """Report how the run ended, and exit; ``kind`` is the type of the error, for the log."""
        whole, facts = "\n  ".join([text, *details]), {"exit_code": code, **({"error": kind} if kind else {})}
        self._final.log(_LEVELS[event], whole, event=event, facts=facts, extra={"last": True})
        self._say("" if event == "stopped" else "bold red", text, *details)
        raise typer.Exit(code) from None

    def close(self) -> None:
        """Write the remaining lines of the logs and detach the logs."""
        self._attached.close()


@contextmanager
def _shown(site: SiteFile, watch: Watch, reporter: _Reporter) -> Iterator[None]:
    """Show the run on the terminal; after a failure, leave the last warnings and errors on it."""
    from deepca.cli.view.screen import Screen

    screen = Screen(site, watch.snapshot, reporter.console)
    reporter.add(screen.log, endings=False)
    try:
        with screen:
            yield
    except BaseException:
        screen.print_last_problems()
        raise


def _read(path: Path, run_name: str | None, deadline: str | None) -> SiteFile:
    from deepca.sites.config.site_file import read_site
    from deepca.sites.config.toml import duration

    site = read_site(site_file(path))
    try:
        if deadline is not None:
            parameter, value = "deadline", deadline
            site = replace(site, deadline=duration(deadline))
        if run_name is not None:
            parameter, value = "run_name", run_name
            site = replace(site, network=replace(site.network, run=run_name))
    except ParameterError as error:
        raise ParameterError(parameter, value, error.expected) from None
    return site


def _core_log() -> CoreLog | None:
    """Listen for refused clients in the log of gRPC's core, which works only before grpc is imported."""
    from deepca.sites.transport.grpc_errors import CoreLog

    return None if "grpc" in sys.modules else CoreLog().install()


def _stoppable() -> AbstractContextManager[None]:
    """Treat SIGTERM, which service managers send, like Ctrl-C; a second, later signal ends the process at once."""
    first: list[float] = []

    def stop(number: int, frame: object) -> None:
        now = time.monotonic()
        if not first:
            first.append(now)
            raise KeyboardInterrupt
        if now - first[0] > _REPEATED_SIGNAL:
            os._exit(130)

    heeded = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) is not signal.SIG_IGN]
    return handle_signals(heeded, stop)


def _stopped(site: SiteFile | None, *, finished: bool) -> str:
    if site is None:
        return "stopped before the run began"
    if finished:
        return f"stopped while waiting for the other sites; the model was written to {site.model}"
    if not site.checkpoints:
        return "stopped; site.toml has checkpoints = false, so the same command starts over"
    return "stopped; checkpoints are kept, and the same command resumes from them"


def _style(given: str | None) -> Style | None:
    if given not in (None, "text", "json"):
        raise ParameterError("log", given, "choose text or json")
    return cast("Style | None", given)


# ---------------------------------------------------------------------------------------------------------- the result


def _warn(site: SiteFile, ending: SiteResult, reporter: _Reporter) -> int:
    """Report what is wrong with a result or missing from it, and return the exit code."""
    model, code = ending.model, 0
    if site.site in ending.left_out:
        code = LEFT_OUT
        reporter.warn(
            "left_out",
            f"this is the result of the other sites; the rows of {site.site} are NOT in it. To include all rows, start"
            " all agents again with another --run",
            style="bold red",
            exit_code=code,
        )
    others = [name for name in ending.left_out if name != site.site]
    if others:
        reporter.warn(
            "left_out",
            f"LEFT OUT: {', '.join(others)}. The rows of {'this site' if len(others) == 1 else 'these sites'} are not"
            " in the result, which is the exact PCA of all other rows",
            style="bold yellow",
            sites=others,
        )
    if not model.status.ok:
        code = UNUSABLE
        reporter.warn(
            "failed",
            f"the result is not usable: {in_options(str(model.status))}. Once this is fixed, start all agents again"
            " with another --run",
            style="bold red",
            exit_code=code,
        )
    return code


def _show(site: SiteFile, ending: SiteResult) -> None:
    console, m = Console(emoji=False), len(site.network.sites)
    show_model(console, ending.model)
    console.print()
    if not ending.compared:
        print_unwrapped(
            console,
            f"The run {site.network.run} had already finished; this is the result that its sites signed. To compute "
            "again, start all agents with another --run, or with another run in network.toml.",
        )
    print_unwrapped(console, f"Sites: {len(ending.members)} of {m} took part: {', '.join(ending.members)}")
    if ending.left_out:
        print_unwrapped(console, f"[bold red]Left out: {', '.join(ending.left_out)}[/]")
    print_unwrapped(console, f"Model: [bold]{escape(_short(site.model))}[/]")
    print_unwrapped(console, f"Scores of your rows: {escape(_transform(site))}")


def _plain(site: SiteFile, ending: SiteResult, code: int) -> dict[str, Any]:
    return {
        **summary(ending.model),
        "network": site.network.name,
        "run": site.network.run,
        "site": site.site,
        "sites": list(ending.members),
        "left_out": list(ending.left_out),
        "finished_before": not ending.compared,
        "model": str(site.model),
        "transform": _transform(site),
        "exit_code": code,
    }


def _transform(site: SiteFile) -> str:
    """Return the command that computes the scores of this site's rows."""
    words = ["deepca", "transform", _short(site.model), _short(site.data)]
    words += ["--label-column", site.label_column] if site.label_column is not None else []
    words += ["--dataset", site.dataset] if site.dataset is not None else []
    return shlex.join([*words, "-o", "scores.csv"])


def _short(path: Path) -> str:
    """Return a path relative to the current folder if it lies below it."""
    with suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
