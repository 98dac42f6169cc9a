"""What the page says of use, from Markdown files beside this one; the tests of the documentation run its snippets."""

from __future__ import annotations

from pathlib import Path

__all__ = ["FOLLOWING", "KEEPING", "USE"]


def _text(name: str) -> str:
    return "\n" + Path(__file__).with_name(f"{name}.md").read_text(encoding="utf-8")


USE, KEEPING, FOLLOWING = _text("use"), _text("keeping"), _text("following")
