"""Introductory section of the page, read from ``usage.md``; tests run its snippets."""

from __future__ import annotations

from pathlib import Path

from studies.shared.report import Section

__all__ = ["USAGE"]

_TEXT = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")

USAGE = Section("Which networks, and how to use them", f"\n{_TEXT}", (), ())
