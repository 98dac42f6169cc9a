"""Check that examples in docstrings run, and print what the docstrings show."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PACKAGE = ROOT / "src" / "deepca"
WITH_EXAMPLES = sorted(path for path in PACKAGE.rglob("*.py") if ">>> " in path.read_text(encoding="utf-8"))


def test_some_modules_have_examples() -> None:
    assert WITH_EXAMPLES


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_examples_of_a_module_run(path: Path) -> None:
    name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    found = doctest.testmod(import_module(name), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert found.attempted > 0
    assert found.failed == 0
