"""Guide sections of the page, read from the Markdown files beside this module; tests run their snippets."""

from __future__ import annotations

from pathlib import Path

__all__ = ["FOLLOW_GUIDE", "LIMITATIONS_GUIDE", "PARTIAL_FIT_GUIDE"]


def _text(name: str) -> str:
    return "\n" + Path(__file__).with_name(f"{name}.md").read_text(encoding="utf-8")


PARTIAL_FIT_GUIDE, LIMITATIONS_GUIDE, FOLLOW_GUIDE = _text("use"), _text("keeping"), _text("following")
