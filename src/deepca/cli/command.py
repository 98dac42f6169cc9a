"""Base class of all commands: layout of the help, repeated and renamed options, and errors that name options."""

from __future__ import annotations

import inspect
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar
from itertools import takewhile
from typing import Any

import typer
from typer.core import TyperCommand

from deepca.errors import DeepcaError, InvalidInput, ParameterError

__all__ = ["MAX_WIDTH", "Command", "examples", "in_options", "message_for"]

MAX_WIDTH = 120  # columns of help; longer lines are hard to read

_RENAMED = {"--tol": "--tolerance", "--iterations": "--max-iter"}
"""New names of renamed options. A command that has the new name accepts the old one for one release, with a notice."""

_PARAMETERS = {
    "K": "rounds",
    "algorithm": "algorithms",
    "every": "checkpoint_every",
    "gflops": "compute_gflops",
    "k": "components",
    "m": "agents",
    "n_agents": "agents",
    "n_components": "components",
    "tolerance": "tol",
    "topology_name": "topology",
}
"""Parameters of the library, and the parameters by which commands set them."""

_KEYS = {"n_components": "components", "tol": "tolerance"}
"""Parameters of the library, and their keys in network.toml, which takes the place of options where a site is given."""

_running: ContextVar[Any] = ContextVar("running", default=None)  # context of the running command
_WORD = re.compile(
    r"(?:\| (?:jq )?)?(?:-[-\w]+ (?=[^-\s|>]))?(?:'[^']*'|\S)+"
)  # a word of a shell command, with the option or pipe before it
_SECTIONS = (
    "Arguments",
    "Options",
    "Data",
    "Components",
    "Algorithm and network",
    "MPI",
    "Checkpoints",
)  # the first sections of the help, in order; others follow
_BOUNDS = {r"\b(\d+)<=x<=(\d+)": r"\1 to \2", r"\bx>=(\d+)(\.0)?": r"at least \1", r"\bx<=(\d+)": r"at most \1"}
"""Bounds of a number as typer shows them, and in words."""
_NO_BREAK = "\N{NO-BREAK SPACE}"  # keeps a default such as [default: 10] on one line while the help is wrapped


class Command(TyperCommand):
    """Command with the help, the checks of options and the error messages that all commands of deepca share."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Accept renamed options with a notice, and reject repeated options."""
        if not ctx.resilient_parsing:  # shell completion must neither print nor fail
            args = list(self._with_new_names(ctx, args))
            self._check_given_once(ctx, args)
        return list(super().parse_args(ctx, args))

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and record its context for :func:`message_for`."""
        before = _running.set(ctx)
        try:
            return super().invoke(ctx)
        finally:
            _running.reset(before)

    def _with_new_names(self, ctx: Any, args: list[str]) -> Iterator[str]:
        known = {name for param in self.get_params(ctx) for name in param.opts}
        options = len(list(takewhile(lambda arg: arg != "--", args)))
        for place, arg in enumerate(args):
            old, equals, value = arg.partition("=")
            new = _RENAMED.get(old)
            if place >= options or new is None or new not in known or old in known:
                yield arg
                continue
            if _is_first_rank():
                typer.echo(f"deprecated: {old} is now {new}; {old} will be removed in the next release", err=True)
            yield f"{new}{equals}{value}"

    def _check_given_once(self, ctx: Any, args: list[str]) -> None:
        order: list[Any] = list(self.make_parser(ctx).parse_args(args=list(args))[2])
        times = Counter(id(param) for param in order)
        for param in order:
            if times[id(param)] > 1 and _holds_one_value(param):
                raise typer.BadParameter("given more than once; give it once", ctx=ctx, param=param)

    # ----------------------------------------------------------------------------------------------------------- help

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words that follow the command's name in the usage line."""
        return ["[OPTIONS]", *(_in_usage(param) for param in self.get_params(ctx) if _is_argument(param))]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the description; indented paragraphs keep their line breaks."""
        paragraphs = inspect.cleandoc(self.help or "").split("\n\n")
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text("\n\n".join(f"\b\n{one}" if one.startswith(" ") else one for one in paragraphs))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options by section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                title = "Arguments" if _is_argument(param) else getattr(param, "rich_help_panel", None) or "Options"
                title = "Output" if param.name == "help" else title
                names = typer.style(_in_list(param), fg=typer.colors.CYAN)
                text = re.sub(r"\[default: \((.*?)\)", r"[default: \1", record[1])  # parentheses of a default in words
                for bounds, words in _BOUNDS.items():
                    text = re.sub(bounds, words, text)
                text = re.sub(r"\[[^]]+]$", lambda found: re.sub(r"(?<!;) ", _NO_BREAK, found[0]), text)
                sections.setdefault(title, []).append((names, text))
        order = [*_SECTIONS, *sorted(sections.keys() - {*_SECTIONS, "Output"}, reverse=True), "Output"]
        for title in sorted(sections, key=order.index):
            with formatter.section(title):
                formatter.write_dl(sections[title])
        formatter.buffer[:] = [part.replace(_NO_BREAK, " ") for part in formatter.buffer]

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples; a long command continues after a backslash."""
        if self.epilog:
            title, *commands = self.epilog.split("\n\n")
            lines = [line for command in commands for line in _shell_lines(command.strip(), formatter.width - 4)]
            with formatter.section(title.rstrip(":")):
                formatter.write_text("\b\n" + "\n".join(lines))


def examples(*commands: str) -> str:
    """Return the epilog that shows these commands as examples."""
    return "\n\n".join(["Examples:", *(f"  {command}" for command in commands)])


def message_for(error: DeepcaError | OSError) -> str:
    """Return the message of an error, in terms of the options of the running command.

    If the value comes from a file, the message names the key in that file instead.
    """
    if isinstance(error, ParameterError):
        if error.file is not None:
            return str(error)
        option = _options().get(error.parameter)
        return in_options(str(error)) if option is None else f"{option} {error.value}: {in_options(error.expected)}"
    if isinstance(error, DeepcaError):
        return in_options(str(error)) if isinstance(error, InvalidInput) else str(error)
    return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)


def in_options(text: str) -> str:
    """Replace parameter names in a message of the library by options of the running command.

    A name is replaced if a value follows, as in ``rounds = 3`` or ``scale=False``, or if it contains an underscore, as
    in ``max_iter``. Any other name may be an English word.
    """
    for name, option in _options().items():
        if len(name) > 2 and option.startswith("--"):  # "k = 3" is mathematics, and clear as it is
            text = re.sub(rf"(?<![-\w.]){name} ?= ?False\b", f"no {option}", text)
            text = re.sub(rf"(?<![-\w.]){name} ?= ?True\b", option, text)
            text = re.sub(rf"(?<![-\w.]){name} ?= ?(?:(['\"])(.*?)\1|(?=[^\s=]))", rf"{option} \2", text)
            text = re.sub(rf"(?<![-\w.]){name}\b", option, text) if "_" in name else text
    for name, key in _KEYS.items() if _running.get() is not None else ():  # names that no option has replaced
        end = r"\b" if "_" in name else "(?= ?=)"
        text = re.sub(rf"(?<![-\w.]){name}{end}", key, text)
    return text


def _options() -> dict[str, str]:
    """Map parameters of the library to the options and arguments of the running command that set them."""
    ctx = _running.get()
    params = {} if ctx is None else {param.name: param for param in ctx.command.get_params(ctx)}
    named = {name: _metavar(p) if _is_argument(p) else str(max(p.opts, key=len)) for name, p in params.items()}
    return {**{name: named[own] for name, own in _PARAMETERS.items() if own in named}, **named}


def _is_first_rank() -> bool:
    """Return whether this process is rank 0 of an MPI job, or not part of one."""
    return all(os.environ.get(name, "0") == "0" for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"))


def _is_argument(param: Any) -> bool:
    return bool(param.param_type_name == "argument")


def _holds_one_value(param: Any) -> bool:
    """Return whether an option keeps only the last of several values."""
    if _is_argument(param) or param.multiple or param.count:
        return False
    return not param.is_flag or bool(param.secondary_opts)


def _metavar(param: Any) -> str:
    return str(param.metavar or param.name.upper())


def _in_usage(param: Any) -> str:
    name = _metavar(param) if param.required else f"[{_metavar(param)}]"
    return name if param.nargs == 1 else f"{name}..."


def _in_list(param: Any) -> str:
    if _is_argument(param):
        return _metavar(param) if param.nargs == 1 else f"{_metavar(param)}..."
    names = ", ".join(sorted(param.opts, key=len)) + "".join(f" / {name}" for name in param.secondary_opts)
    return names if param.is_flag or param.count else f"{names} {_metavar(param)}"


def _shell_lines(command: str, width: int) -> Iterator[str]:
    """Break a shell command between words into lines of at most ``width`` characters."""
    line = ""
    for word in _WORD.findall(command):
        if line.strip() and len(line) + len(word) + 3 > width:  # a space before the word, and " \" after it
            yield f"{line} \\"
            line = "   "
        line = f"{line} {word}" if line else word
    yield line
