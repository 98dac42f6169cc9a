"""Write reference.md from the code: ``make reference``."""

from __future__ import annotations

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from typer.main import get_command

import deepca
from deepca.cli.app import app

COMMANDS = ("fit", "transform", "inspect", "topology", "simulate", "privacy", "sample", "demo", "reproduce")
MODULES = (
    "topology",
    "topology.directed",
    "topology.time_varying",
    "operators",
    "operators.linalg",
    "network",
    "network.transports",
    "consensus",
    "consensus.rates",
    "algorithms.theory",
    "solver",
    "solver.observers",
    "solver.stopping",
    "decomposition.eigen",
    "decomposition.svd",
    "decomposition.streaming",
    "decomposition.spectral.graphs",
    "decomposition.spectral.clustering",
    "planning.leakage",
    "planning.links",
    "errors",
)


def page() -> str:
    """Return the whole page as text."""
    parts = [
        "# Reference",
        "",
        "Made from the code by `make reference`; `help(deepca.…)` says more about each name.",
        "",
        "## Commands",
        "",
    ]
    for name in COMMANDS:
        parts += [f"### deepca {name}", "", *_command(name)]
    parts += ["## Python", "", "### deepca", ""]
    names = [name for name in deepca.__all__ if not inspect.ismodule(getattr(deepca, name))]
    parts += [_entry("deepca", name, getattr(deepca, name)) for name in sorted(names, key=str.lower)]
    for estimator in (deepca.DecentralizedPCA, deepca.DecentralizedEigen, deepca.DecentralizedSVD):
        said = inspect.cleandoc(estimator.__doc__ or "")
        parts += ["", f"### deepca.{estimator.__name__}", "", "```text", said, "```"]
    for name in MODULES:
        module = import_module(f"deepca.{name}")
        parts += ["", f"### deepca.{name}", "", _first(module), ""]
        parts += [_entry(f"deepca.{name}", entry, getattr(module, entry)) for entry in module.__all__]
    return "\n".join(parts).rstrip() + "\n"


def _command(name: str) -> list[str]:
    """Describe a command, with a table of its arguments and options."""
    command = get_command(app).commands[name]  # type: ignore[attr-defined]
    lines = [" ".join(part.split()) for part in inspect.cleandoc(command.help or "").split("\n\n")]
    table = ["| option | meaning | default |", "|---|---|---|"]
    for given in command.params:
        if given.name == "help":
            continue
        is_option = given.opts[0].startswith("-")
        written = (
            ", ".join(f"`{word}`" for word in [*given.opts, *given.secondary_opts])
            if is_option
            else given.metavar or given.name.upper()
        )
        said = re.sub(r"\[/?[a-z]*\]", "", getattr(given, "help", None) or "").replace("|", "\\|")
        shown_default = given.show_default if isinstance(getattr(given, "show_default", None), str) else given.default
        default = "required" if given.required else "" if shown_default in (None, False) else f"`{shown_default}`"
        table.append(f"| {written} | {said} | {default} |")
    examples = [line.strip() for line in (command.epilog or "").splitlines() if line.strip().startswith("deepca")]
    shown = ["", "```text", *examples, "```"] if examples else []
    return ["\n\n".join(lines), "", *table, *shown, ""]


def _entry(where: str, name: str, value: Any) -> str:
    said = _first(value) if inspect.isclass(value) or inspect.isfunction(value) else ""
    return f"- `{where}.{name}`{': ' if said else ''}{said}"


def _first(value: Any) -> str:
    """Return the first paragraph of a docstring on one line."""
    return " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split()).rstrip(":")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
