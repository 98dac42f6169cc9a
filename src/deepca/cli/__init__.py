"""Command-line interface of deepca. Requires the ``cli`` extra (typer, rich)."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the ``deepca`` command."""
    try:
        from deepca.cli.app import app
    except ModuleNotFoundError as missing:
        if (missing.name or "").split(".")[0] not in ("typer", "rich", "click"):
            raise
        sys.stderr.write(f"deepca: the command line needs {missing.name}; pip install 'deepca[cli]'\n")
        sys.exit(2)
    for stream in (sys.stdout, sys.stderr):  # an ASCII terminal gets ? for other characters, not a traceback
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    app(prog_name="deepca")
