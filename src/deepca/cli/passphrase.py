"""Read the passphrase of the authority's key from a file, the environment or a terminal.

It is never the value of an option, since other users of the machine can see command lines.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import typer

from deepca.errors import EnrolmentError, ParameterError

__all__ = ["PASSPHRASE_VARIABLE", "is_interactive", "new_passphrase", "passphrase_for"]

PASSPHRASE_VARIABLE = "DEEPCA_AUTHORITY_PASSPHRASE"  # noqa: S105 (the name of an environment variable)
_MIN_CHARACTERS = 8  # of a new passphrase
_MAX_BYTES = 1023  # limit of OpenSSL
_ADVICE = f"give --passphrase-file, or set the variable {PASSPHRASE_VARIABLE}"


def is_interactive() -> bool:
    """Return whether standard input is a terminal, so that the user can be asked."""
    return sys.stdin.isatty()


def new_passphrase(*, ask: bool, file: Path | None) -> bytes | None:
    """Return the passphrase for a new key, or None to leave the key unprotected.

    Parameters
    ----------
    ask : bool
        Whether to prompt for it, twice, if neither the file nor the environment provides it.
    file : Path or None
        File that contains it.

    Raises
    ------
    EnrolmentError
        If the passphrase is too short or too long, or cannot be asked for without a terminal.
    InvalidInput
        If the file is missing, cannot be read, or can be read by other users.
    """
    given = _read(file)
    if given is None and ask:
        given = _prompt("cannot ask for a passphrase without a terminal", twice=True)
    if given is not None and not (
        len(given.decode("utf-8", "replace")) >= _MIN_CHARACTERS and len(given) <= _MAX_BYTES
    ):
        raise EnrolmentError(
            f"the passphrase has {len(given)} bytes; choose one of at least {_MIN_CHARACTERS} characters and at most "
            f"{_MAX_BYTES} bytes",
            reason="passphrase",
        )
    return given


def passphrase_for(authority: Path, file: Path | None) -> bytes | None:
    """Return the passphrase of the key in an authority's folder, or None if the key is not encrypted."""
    from deepca.sites.pki.keys import is_encrypted

    if not is_encrypted(authority / "authority.key"):
        return None
    given = _read(file)
    return _prompt(f"{authority / 'authority.key'} is encrypted") if given is None else given


def _prompt(problem: str, *, twice: bool = False) -> bytes:
    """Ask for the passphrase; without a terminal, raise an error that begins with ``problem``."""
    if not is_interactive():
        raise EnrolmentError(f"{problem}; {_ADVICE}", reason="passphrase")
    prompt = "Passphrase of the authority's key"
    return str(typer.prompt(prompt, hide_input=True, confirmation_prompt=twice, err=True)).encode()


def _read(file: Path | None) -> bytes | None:
    """Read the passphrase from a file that only its owner can read, or from the environment."""
    from deepca.sites.pki.keys import read_private

    if file is not None:
        if not file.exists():
            raise ParameterError("passphrase_file", file, "file not found; check the path")
        return read_private(file, "passphrase", missing="give the name of the file that contains it").rstrip(b"\r\n")
    given = os.environ.get(PASSPHRASE_VARIABLE)
    return None if given is None else os.fsencode(given)
