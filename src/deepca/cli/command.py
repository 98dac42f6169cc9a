"""Base class of all commands: their help, options given twice, renamed options, and options named in errors."""

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
"""Renamed options, which still work for one release, with a notice, in all commands that have the new name."""

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
"""Parameters of the library, and the names of the commands' own parameters for them."""

_running: ContextVar[Any] = ContextVar("running", default=None)  # context of the command that runs
_WORD = re.compile(
    r"(?:\| (?:jq )?)?(?:-[-\w]+ (?=[^-\s|>]))?(?:'[^']*'|\S)+"
)  # of a shell command, with its option or pipe
_SECTIONS = (
    "Arguments",
    "Options",
    "Data",
    "Components",
    "Algorithm and network",
    "MPI",
    "Checkpoints",
)  # others follow


class Command(TyperCommand):
    """A command with one way of handling its options, whatever it does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Accept renamed options with a notice, and refuse options that are given twice."""
        if not ctx.resilient_parsing:  # shell completion must neither print nor fail
            args = list(self._with_new_names(ctx, args))
            self._check_given_once(ctx, args)
        return list(super().parse_args(ctx, args))

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and remember it for :func:`message_for`."""
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
        """Return the words of the usage line after the command's name."""
        return ["[OPTIONS]", *(_in_usage(param) for param in self.get_params(ctx) if _is_argument(param))]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the description; indented paragraphs keep their lines."""
        paragraphs = inspect.cleandoc(self.help or "").split("\n\n")
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text("\n\n".join(f"\b\n{one}" if one.startswith(" ") else one for one in paragraphs))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then options by the section that each of them names."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                title = "Arguments" if _is_argument(param) else getattr(param, "rich_help_panel", None) or "Options"
                title = "Output" if param.name == "help" else title
                names = typer.style(_in_list(param), fg=typer.colors.CYAN)
                text = re.sub(r"\[default: \((.*?)\)", r"[default: \1", record[1])  # parentheses of a described default
                sections.setdefault(title, []).append((names, text))
        order = [*_SECTIONS, *sorted(sections.keys() - {*_SECTIONS, "Output"}, reverse=True), "Output"]
        for title in sorted(sections, key=order.index):
            with formatter.section(title):
                formatter.write_dl(sections[title])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, broken where a shell continues a line."""
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

    An error about a value that was read from a file keeps the key by which the file knows it.
    """
    if isinstance(error, ParameterError):
        option = None if error.file is not None else _options().get(error.parameter)
        return str(error) if option is None else f"{option} {error.value}: {in_options(error.expected)}"
    if isinstance(error, DeepcaError):
        return in_options(str(error)) if isinstance(error, InvalidInput) else str(error)
    return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)


def in_options(text: str) -> str:
    """Replace parameters in a text of the library by options of the running command.

    These are names with a value, such as ``rounds = 3`` or ``scale=False``, and names that are not English words, such
    as ``max_iter``.
    """
    for name, option in _options().items():
        if len(name) > 2 and option.startswith("--"):  # "k = 3" is mathematics, and clear as it is
            text = re.sub(rf"(?<![-\w.]){name} ?= ?False\b", f"no {option}", text)
            text = re.sub(rf"(?<![-\w.]){name} ?= ?True\b", option, text)
            text = re.sub(rf"(?<![-\w.]){name} ?= ?(?:(['\"])(.*?)\1|(?=[^\s=]))", rf"{option} \2", text)
            text = re.sub(rf"(?<![-\w.]){name}\b", option, text) if "_" in name else text
    return text


def _options() -> dict[str, str]:
    """Return the options and arguments of the running command by the parameters of the library that they set."""
    ctx = _running.get()
    params = {} if ctx is None else {param.name: param for param in ctx.command.get_params(ctx)}
    named = {name: _metavar(p) if _is_argument(p) else str(max(p.opts, key=len)) for name, p in params.items()}
    return {**{name: named[own] for name, own in _PARAMETERS.items() if own in named}, **named}


def _is_first_rank() -> bool:
    """Tell whether this process is rank 0 of an MPI job, or not part of one."""
    return all(os.environ.get(name, "0") == "0" for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"))


def _is_argument(param: Any) -> bool:
    return bool(param.param_type_name == "argument")


def _holds_one_value(param: Any) -> bool:
    """Tell whether giving an option twice would override its first value."""
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
    """Break a shell command into lines of at most that width, where its words allow."""
    line = ""
    for word in _WORD.findall(command):
        if line.strip() and len(line) + len(word) + 3 > width:  # a space before the word, and " \" behind it
            yield f"{line} \\"
            line = "   "
        line = f"{line} {word}" if line else word
    yield line
