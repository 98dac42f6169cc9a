"""Where the passphrase of the authority's key comes from: a file, the environment, or a terminal; never the command."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import typer

from deepca.errors import EnrolmentError

__all__ = ["VARIABLE", "new_passphrase", "passphrase_for", "terminal"]

VARIABLE = "DEEPCA_AUTHORITY_PASSPHRASE"
_LEAST = 8
"""Characters that a new passphrase has at least."""
_MOST = 1023
"""Bytes that OpenSSL takes at most."""
_WAYS = f"give --passphrase-file, or the variable {VARIABLE}"


def terminal() -> bool:
    """Tell whether somebody can be asked."""
    return sys.stdin.isatty()


def new_passphrase(*, ask: bool, file: Path | None) -> bytes | None:
    """Return the passphrase for a new key; None if it shall have none.

    ask : whether to ask for it, twice, where neither file nor environment has it.
    """
    given = _given(file)
    if given is None and ask:
        given = _asked("there is no terminal to ask for a passphrase", twice=True)
    if given is not None and not (len(given.decode("utf-8", "replace")) >= _LEAST and len(given) <= _MOST):
        raise EnrolmentError(
            f"a passphrase has {_LEAST} characters at least and {_MOST} bytes at most; this one has {len(given)} bytes",
            reason="passphrase",
        )
    return given


def passphrase_for(authority: Path, file: Path | None) -> bytes | None:
    """Return the passphrase of the key in an authority's folder; None if the key has none."""
    from deepca.sites.pki.keys import is_encrypted

    if not is_encrypted(authority / "authority.key"):
        return None
    given = _given(file)
    return _asked(f"{authority / 'authority.key'}: this key has a passphrase") if given is None else given


def _asked(problem: str, *, twice: bool = False) -> bytes:
    """From whoever sits at the terminal. problem : what is said where nobody does."""
    if not terminal():
        raise EnrolmentError(f"{problem}; {_WAYS}", reason="passphrase")
    prompt = "Passphrase of the authority's key"
    return str(typer.prompt(prompt, hide_input=True, confirmation_prompt=twice, err=True)).encode()


def _given(file: Path | None) -> bytes | None:
    """From a file that only its owner can read, or from the environment."""
    from deepca.sites.pki.keys import read_private

    if file is not None:
        return read_private(file, "passphrase", missing="give the name of a file that has it").rstrip(b"\r\n")
    given = os.environ.get(VARIABLE)
    return None if given is None else os.fsencode(given)
