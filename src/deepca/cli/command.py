"""Base class of all commands: layout of the help, repeated and renamed options, and errors that name options."""

from __future__ import annotations

import inspect
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar
from itertools import takewhile
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from deepca.errors import DeepcaError, InvalidInput, ParameterError, TopologyError
from deepca.solver import sentences

__all__ = ["MAX_WIDTH", "Command", "Group", "examples", "in_options", "message_for"]

MAX_WIDTH = 120  # columns of help; longer lines are hard to read

_RENAMED = {
    "--tol": "--tolerance",
    "--iterations": "--max-iter",
    "--network": "--links",
    "--agents": "--machines",
    "--revoked": "--revocation-list",
}
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
_BOUNDS = re.compile(r"(?:([\d.]+)<=)?x(?:<=([\d.]+)|>=([\d.]+))?")  # bounds of a number as typer shows them
_MAX_SHOWN_BOUND = 1e6  # larger upper bounds only guard against typing errors
_NO_BREAK = {" ": "\N{NO-BREAK SPACE}", "-": "\N{NON-BREAKING HYPHEN}"}  # keep [default: 10] on one line of the help
_WIDEST_NAMES = 30  # columns of the help for the names of options; longer names have a line of their own
_AS_TYPED = f"{__name__}.as_typed"  # key of the context's values before their conversion


class Command(TyperCommand):
    """Command with the help, the checks of options and the error messages that all commands of deepca share."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Accept renamed options with a notice and reject repeated options and values that are not numbers."""
        if ctx.resilient_parsing:  # shell completion must neither print nor fail
            return list(super().parse_args(ctx, args))
        args = list(self._with_new_names(ctx, args))
        given, _, order = self.make_parser(ctx).parse_args(args=list(args))
        self._check_given_once(ctx, order)
        ctx.meta[_AS_TYPED] = given
        try:
            return list(super().parse_args(ctx, args))
        except _UsageError:
            raise
        except typer.BadParameter as error:
            text = None if error.param is None else self._mistake(ctx, error.param, given)
            if text is None:
                raise
            raise _UsageError(text, ctx=ctx, param=error.param) from None

    def _mistake(self, ctx: Any, param: Any, given: dict[str, Any]) -> str | None:
        """Describe a missing or unusable value of a parameter; None if neither its type nor its absence explains it."""
        missing = [_name(one) for one in self.get_params(ctx) if one.required and not given.get(one.name)]
        if _name(param) in missing:
            listed = " and ".join([", ".join(missing[:-1]), missing[-1]] if len(missing) > 1 else missing)
            return f"{listed} {'are' if len(missing) > 1 else 'is'} required; see {ctx.command_path} --help"
        value = given.get(param.name)
        expected = _expected_number(param)
        return None if expected is None or not isinstance(value, str) else f"{_name(param)} {value}: {expected}"

    def invoke(self, ctx: Any) -> Any:
        """Run the command and record its context for :func:`message_for`."""
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

    def _check_given_once(self, ctx: Any, order: list[Any]) -> None:
        times = Counter(id(param) for param in order)
        for param in order:
            if times[id(param)] > 1 and _holds_one_value(param):
                raise _UsageError(f"{_name(param)}: given more than once; give it once", ctx=ctx, param=param)

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
                sections.setdefault(title, []).append((_in_list(param), record[1]))
        order = [*_SECTIONS, *sorted(sections.keys() - {*_SECTIONS, "Output"}, reverse=True), "Output"]
        for title in sorted(sections, key=order.index):
            names_width = min(max(len(names) for names, _ in sections[title]), _WIDEST_NAMES)
            width = formatter.width - names_width - 4  # two columns on either side of the names
            with formatter.section(title):
                rows = ((typer.style(names, fg="cyan"), _with_facts(text, width)) for names, text in sections[title])
                formatter.write_dl(list(rows))
        for space, kept in _NO_BREAK.items():
            formatter.buffer[:] = [part.replace(kept, space) for part in formatter.buffer]

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples."""
        _write_examples(self.epilog, formatter)


class Group(TyperGroup):
    """Group of commands with examples at the end of its help."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples."""
        _write_examples(self.epilog, formatter)


class _UsageError(typer.BadParameter):
    """A usage error, reported in the same format as all other errors."""

    def show(self, file: Any = None) -> None:
        """Print the message on standard error."""
        if _is_first_rank():
            typer.secho("error: ", fg=typer.colors.RED, bold=True, nl=False, err=True)
            typer.echo(self.message, err=True)


def examples(*commands: str) -> str:
    """Return the epilog that shows these commands as examples."""
    return "\n\n".join(["Examples:", *(f"  {command}" for command in commands)])


def _write_examples(epilog: str | None, formatter: Any) -> None:
    """Write the examples in an epilog, if there is one; a long command continues after a backslash."""
    if epilog:
        title, *commands = epilog.split("\n\n")
        lines = [line for command in commands for line in _shell_lines(command.strip(), formatter.width - 4)]
        with formatter.section(title.rstrip(":")):
            formatter.write_text("\b\n" + "\n".join(lines))


def message_for(error: DeepcaError | OSError) -> str:
    """Return the message of an error, in terms of the options of the running command.

    If the value comes from a file, the message names the key in that file instead.
    """
    if isinstance(error, OSError) and not isinstance(error, DeepcaError):
        return _message_of_system(error)
    if not isinstance(error, InvalidInput) or (isinstance(error, ParameterError) and error.file is not None):
        return str(error)
    text = in_options(str(error))
    if error.file is not None:
        return text
    options = _options()
    if isinstance(error, ParameterError):
        option = options.get(error.parameter)
        return text if option is None else f"{option} {_as_typed(error)}: {in_options(error.expected)}"
    if isinstance(error, TopologyError) and error.spec is not None:
        option = options.get("topology", options.get("name"))
        if error.parameter == "m" and error.value is None and error.suggestions and "agents" in options:
            text = f"{error.spec}: the number of agents is missing; write {error.suggestions[0]}, or give --agents"
        return text if option is None else f"{option} {text}"
    option = options.get(error.parameter or "")
    if option is None or option in text or not isinstance(error.value, int | float | str) or not _has_value(option):
        return text
    return f"{option} {_as_typed(error)}: {text}"


def _message_of_system(error: OSError) -> str:
    """Return the message of an error that the operating system reported."""
    if not error.filename or not error.strerror:
        return str(error)
    if isinstance(error, FileNotFoundError):
        return f"{error.filename}: file not found; check the path"
    if isinstance(error, IsADirectoryError):
        return f"{error.filename}: this is a folder; give the name of a file"
    if isinstance(error, NotADirectoryError):
        return f"{error.filename}: a part of this path is a file, not a folder; check the path"
    return f"{error.filename}: {error.strerror}"


def _as_typed(error: InvalidInput) -> object:
    """Return the value at fault as the user typed it, or as the error has it if it comes from elsewhere."""
    ctx = _running.get()
    typed = getattr(ctx, "meta", {}).get(_AS_TYPED, {})
    for name in (error.parameter, _PARAMETERS.get(error.parameter or "")):
        value = typed.get(name)
        if isinstance(value, str):
            converted = ctx.params.get(name)
            from_file = isinstance(converted, Path)  # then the error is about the content of the file
            if from_file or (type(converted) is type(error.value) and converted == error.value):
                return value
    return error.value


def in_options(text: str) -> str:
    """Replace parameter names in a message of the library by options of the running command.

    A name is replaced if a value follows, as in ``rounds = 3`` or ``scale=False``, or if it contains an underscore, as
    in ``max_iter``. Any other name may be an English word. Advice that exists only in Python is omitted.
    """
    if _running.get() is not None:
        text = text.replace(sentences.RESUME, "")
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
    named = {name: _name(param) for name, param in params.items()}
    return {**{name: named[own] for name, own in _PARAMETERS.items() if own in named}, **named}


def _has_value(option: str) -> bool:
    """Return whether an option of the running command was given, or has a default."""
    ctx = _running.get()
    params = {} if ctx is None else {_name(param): ctx.params.get(param.name) for param in ctx.command.get_params(ctx)}
    return params.get(option) is not None


def _is_first_rank() -> bool:
    """Return whether this process is rank 0 of an MPI job, or not part of one."""
    return all(os.environ.get(name, "0") == "0" for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"))


def _expected_number(param: Any) -> str | None:
    """Describe the numbers that a parameter accepts; None if it is not a number."""
    kind = getattr(param, "type", None)
    annotation = getattr(getattr(param, "type_descriptor", None), "annotation", None)
    name = str(getattr(kind, "name", getattr(annotation, "__name__", "")))
    low, high = (getattr(param, bound, getattr(kind, bound, None)) for bound in ("min", "max"))
    if not name.startswith(("int", "float")):
        return None
    text = "expected a whole number" if name.startswith("int") else "expected a number"
    if low is not None and high is not None and high < _MAX_SHOWN_BOUND:
        return f"{text} from {low} to {high}"
    return text if low is None else f"{text} of at least {low}"


def _with_facts(text: str, width: int) -> str:
    """Word the facts in brackets at the end of a help text, and keep them on one line where they fit into ``width``."""
    text = text.replace("-", _NO_BREAK["-"])  # no name of an option or a rule is broken at a hyphen
    found = re.search(r" *\[([^]]+)]$", text)
    if found is None:
        return text
    default = re.sub(r"default: \((.*)\)", r"default: \1", found[1])  # parentheses of a default in words
    facts = [_bounds(match) if (match := _BOUNDS.fullmatch(fact)) else fact for fact in default.split("; ")]
    facts = [fact for fact in facts if fact]
    if not facts:
        return text[: found.start()]
    shown = f"[{'; '.join(facts)}]"
    if len(shown) <= width:
        shown = shown.replace(" ", _NO_BREAK[" "])
    return f"{text[: found.start()]}  {shown}"


def _bounds(found: re.Match[str]) -> str:
    """Return bounds in words; empty if they need not be mentioned."""
    low, high = found[1] or found[3] or "0", found[2] or "inf"
    if float(high) >= _MAX_SHOWN_BOUND:
        return f"at least {float(low):g}" if float(low) > 1 else ""  # other numbers make no sense anyway
    return f"{low} to {high}" if float(low) else f"at most {high}"


def _name(param: Any) -> str:
    """Return the name of a parameter as the help shows it."""
    return _metavar(param) if _is_argument(param) else str(max(param.opts, key=len))


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
