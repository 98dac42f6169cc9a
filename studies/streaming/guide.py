"""Guide sections of the page, read from the Markdown files beside this module; tests run their snippets."""

from __future__ import annotations

from pathlib import Path

__all__ = ["FOLLOWING", "KEEPING", "USE"]


def _text(name: str) -> str:
    return "\n" + Path(__file__).with_name(f"{name}.md").read_text(encoding="utf-8")


USE, KEEPING, FOLLOWING = _text("use"), _text("keeping"), _text("following")
