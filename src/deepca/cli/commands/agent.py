"""``deepca agent run``: a site's agent, from its start to the result."""

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
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from deepca._util.logs import EventHandler, EventLogger, listening
from deepca.cli.common import errors, examples, handling, print_json, require_agent, say
from deepca.cli.view.model import show_model, summary
from deepca.errors import (
    DeepcaError,
    InternalError,
    InvalidInput,
    NetworkError,
    NotFiniteError,
    ParameterError,
    Unfinished,
)

if TYPE_CHECKING:  # what imports grpc must wait until its core can be heard
    from deepca.cli.view.log import AgentLog, Style
    from deepca.sites.config.site_file import SiteFile
    from deepca.sites.runtime.run import Ending
    from deepca.sites.runtime.status import Watch
    from deepca.sites.transport.grpc_errors import CoreLog

__all__ = ["UNFINISHED", "UNUSABLE", "WITHOUT_US", "agent"]

_logger = logging.getLogger(__name__)

UNUSABLE, UNFINISHED, WITHOUT_US = 1, 3, 4  # exit codes
_LEVELS = {  # of last words
    "failed": logging.ERROR,
    "left_out": logging.WARNING,
    "stopped": logging.WARNING,
    "unfinished": logging.ERROR,
}
_TWICE = 2.0  # seconds: a signal may be sent to a process and to its group

agent = typer.Typer(name="agent", help="A site's agent beside its data.", no_args_is_help=True)


@agent.command(
    "run",
    epilog=examples(
        "deepca agent run site.toml",
        "deepca agent run site.toml --deadline 2h --log-file agent.log",
        "deepca agent run site.toml --log json --json > result.json",
    ),
)
def run(
    site: Annotated[Path, typer.Argument(help="The site.toml of this site, or the folder of its kit.")],
    log: Annotated[
        str | None, typer.Option(help="text or json: how the log is written; without --log-file, to standard error.")
    ] = None,
    log_file: Annotated[Path | None, typer.Option(help="The log is added to this file.")] = None,
    run_name: Annotated[
        str | None, typer.Option("--run", help="Name of the run, in place of that in network.toml; alike at all sites.")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(help="When to end as unfinished, such as 90s or 2h; in place of that in site.toml.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON instead.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No view, no log but in a file; only errors.")] = False,
) -> None:
    """Run a site's agent beside its data, together with those of the other sites, until there is a result.

    Agents may be started in any order. Rows stay here; if something breaks, start the same command again.

    Exit codes: 0 there is a result · 1 the result is not usable · 2 something has to be mended at this site (also where
    it differs from the others) · 3 unfinished at the deadline · 4 the others have a result, without the rows of this
    site · 130 stopped by Ctrl-C or SIGTERM; the same command goes on.
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
        core = _core()
        from deepca.cli.view.log import AgentLog
        from deepca.sites.runtime.status import Watch

        console = Console(stderr=True, emoji=False)
        view = console.is_terminal and not quiet and not as_json and (style is None or log_file is not None)
        voice = _Voice(console)
        stack.callback(voice.close)
        if log_file is not None:
            voice.add(AgentLog(log_file, style or "text"))
        elif not view and not quiet:
            voice.plain = style != "json"
            voice.add(AgentLog(sys.stderr, style or "text"), endings=style == "json")
        watch = None
        try:
            site = _read(path, run_name, deadline)
            watch = Watch(site)
            voice.begin(site.site, watch.hear)
            from deepca.sites.runtime.agent import Agent, run_agent  # not earlier: this imports grpc

            def ready(agent: Agent) -> None:
                watch.attach(agent)
                if core is not None:
                    core.listen(agent.streams.turned_away)

            with _shown(site, watch, voice) if view else nullcontext(), watch.reminding():
                ending = run_agent(site, observers=(watch,), ready=ready)
        except KeyboardInterrupt:
            voice.end("stopped", _stopped(site if watch else None, finished=voice.finished), 130)
        except Unfinished as error:
            details = [text for wait in watch.last.waits for text in wait.details] if watch else []
            again = "more time is given by --deadline, or by deadline in site.toml"
            voice.end("unfinished", f"{error}; {again}", UNFINISHED, *details)
        except (NetworkError, InternalError, NotFiniteError) as error:  # no mistake of this site's
            report = f"; {error.report} is a report to send along" if error.report else ""
            voice.end("failed", f"{error}{report}", UNUSABLE)
        except (DeepcaError, OSError) as error:
            voice.end("failed", str(error), 2, kind=type(error).__name__)
        except Exception as error:  # before an agent was there to report it
            voice.end("failed", f"a fault of deepca itself: {type(error).__name__}", UNUSABLE)
        code = _told(site, ending, voice)
        if as_json:
            print_json(_plain(site, ending, code))
        elif not quiet:
            _show(site, ending)
        if code:
            raise typer.Exit(code)


class _Voice:
    """All that an agent says but the result: its logs, and the last words on standard error.

    plain : whether last words are for people; else the log on standard error has them, and nothing else is there.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.plain, self.finished = True, False
        self._hear: Callable[[str, Mapping[str, object]], None] = lambda event, facts: None
        self._handlers: list[AgentLog | EventHandler] = []
        self._last_words = EventLogger(_logger, "")
        self._attached = ExitStack()
        self._attach(EventHandler(self._heard, ""))

    def _attach(self, handler: AgentLog | EventHandler) -> None:
        self._handlers.append(handler)
        self._attached.callback(handler.close)
        self._attached.enter_context(listening(handler))

    def add(self, log: AgentLog, *, endings: bool = True) -> None:
        """``endings`` : whether last words go there, too."""
        if not endings:
            log.addFilter(lambda record: record.name != __name__)  # all that this module logs
        self._attach(log)

    def begin(self, site: str, hear: Callable[[str, Mapping[str, object]], None]) -> None:
        self._hear, self._last_words.site = hear, site
        for handler in self._handlers:
            handler.site = site

    def _heard(self, site: str, event: str, text: str, facts: Mapping[str, object]) -> None:
        self.finished = self.finished or event == "finished"
        self._hear(event, facts)

    def last(self, event: str, text: str, /, style: str, **facts: object) -> None:
        """Something that nobody may miss."""
        self._last_words.log(_LEVELS[event], text, event=event, facts=facts)
        self._say(style, text)

    def _say(self, style: str, *lines: str) -> None:
        """Other sites may have written parts of it; a terminal would obey some of what is not printable."""
        from deepca.cli.view.log import printable

        if self.plain:
            mark = f"[{style}]{'error:' if style == 'bold red' else 'note:'}[/] " if style else ""
            text = escape("\n  ".join(map(printable, lines)))
            say(self.console, f"{mark}{text}")

    def end(self, event: str, text: str, code: int, *details: str, kind: str = "") -> NoReturn:
        """Say the last words. kind : of the error, for the log."""
        said, facts = "\n  ".join([text, *details]), {"exit_code": code, **({"error": kind} if kind else {})}
        self._last_words.log(_LEVELS[event], said, event=event, facts=facts, extra={"last": True})
        self._say("" if event == "stopped" else "bold red", text, *details)
        raise typer.Exit(code) from None

    def close(self) -> None:
        self._attached.close()


@contextmanager
def _shown(site: SiteFile, watch: Watch, voice: _Voice) -> Iterator[None]:
    """On a terminal; what went wrong last stays there when the view is gone."""
    from deepca.cli.view.screen import Screen

    screen = Screen(site, watch.situation, voice.console)
    voice.add(screen.log, endings=False)
    try:
        with screen:
            yield
    except BaseException:
        screen.leave()
        raise


def _read(path: Path, run_name: str | None, deadline: str | None) -> SiteFile:
    from deepca.sites.config.site_file import read_site
    from deepca.sites.config.toml import duration

    site = read_site(path)
    try:
        if deadline is not None:
            option = f"--deadline {deadline}"
            site = replace(site, deadline=duration(deadline))
        if run_name is not None:
            option = f"--run {run_name}"
            site = replace(site, network=replace(site.network, run=run_name))
    except ParameterError as error:
        raise InvalidInput(f"{option}: {error.expected}") from None
    return site


def _core() -> CoreLog | None:
    """Hears of clients that were turned away, until the process ends; only where nothing has imported grpc yet."""
    from deepca.sites.transport.grpc_errors import CoreLog

    if "grpc" in sys.modules:
        return None
    return CoreLog().install()


def _stoppable() -> AbstractContextManager[None]:
    """SIGTERM, which service managers send, is as good as Ctrl-C; so is either of them twice, but then at once."""
    first: list[float] = []

    def stop(number: int, frame: object) -> None:
        now = time.monotonic()
        if not first:
            first.append(now)
            raise KeyboardInterrupt
        if now - first[0] > _TWICE:
            os._exit(130)

    return handling([n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) is not signal.SIG_IGN], stop)


def _stopped(site: SiteFile | None, *, finished: bool) -> str:
    if site is None:
        return "stopped; nothing had begun"
    if finished:
        return f"stopped while staying for the others; the model is written: {site.model}"
    if not site.checkpoints:
        return "stopped; site.toml says checkpoints = false, so the same command begins anew"
    return "stopped; checkpoints are kept, and the same command goes on from there"


def _style(given: str | None) -> Style | None:
    match given:
        case None | "text" | "json":
            return given
    raise InvalidInput(f"--log {given}: choose text or json")


# ---------------------------------------------------------------------------------------------------------- the result


def _told(site: SiteFile, ending: Ending, voice: _Voice) -> int:
    """Says what nobody may miss about a result; the exit code."""
    model = ending.model
    code = 0
    if site.site in ending.left_out:
        code = WITHOUT_US
        voice.last(
            "left_out",
            f"this result is that of the other sites; the rows of {site.site} are NOT in it. For all rows, start all"
            " agents again with another --run",
            style="bold red",
            exit_code=code,
        )
    others = [name for name in ending.left_out if name != site.site]
    if others:
        voice.last(
            "left_out",
            f"LEFT OUT: {', '.join(others)}. The rows of {'this site' if len(others) == 1 else 'these sites'} are not"
            " in the result: it is the exact PCA of the rows of the others",
            style="bold yellow",
            sites=others,
        )
    if not model.status.ok:
        code = UNUSABLE
        voice.last(
            "failed",
            f"the result is not usable: {model.status}. When that is mended, start all agents with another --run",
            style="bold red",
            exit_code=code,
        )
    return code


def _show(site: SiteFile, ending: Ending) -> None:
    console, m = Console(emoji=False), len(site.network.sites)
    show_model(console, ending.model)
    console.print()
    if not ending.own:
        say(
            console,
            f"The run {site.network.run} had been finished before: this is its result. For new rows, give all sites"
            " another run in network.toml, or --run.",
        )
    say(console, f"Sites: {len(ending.members)} of {m} took part: {', '.join(ending.members)}")
    if ending.left_out:
        say(console, f"[bold red]Left out: {', '.join(ending.left_out)}[/]")
    say(console, f"Model: [bold]{escape(_short(site.model))}[/]")
    say(console, f"Scores of your rows: {escape(_transform(site))}")


def _plain(site: SiteFile, ending: Ending, code: int) -> dict[str, Any]:
    return {
        **summary(ending.model),
        "network": site.network.name,
        "run": site.network.run,
        "site": site.site,
        "sites": list(ending.members),
        "left_out": list(ending.left_out),
        "finished_before": not ending.own,
        "model": str(site.model),
        "transform": _transform(site),
        "exit_code": code,
    }


def _transform(site: SiteFile) -> str:
    """The command that makes scores of this site's rows."""
    words = ["deepca", "transform", _short(site.model), _short(site.data)]
    words += ["--label-column", site.label_column] if site.label_column is not None else []
    words += ["--dataset", site.dataset] if site.dataset is not None else []
    return shlex.join([*words, "-o", "scores.csv"])


def _short(path: Path) -> str:
    """From here, if it is below here."""
    with suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
