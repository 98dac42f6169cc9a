"""Paths of the project and of the shared data sets."""

from pathlib import Path

__all__ = ["ROOT", "SHARED"]

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data"
