"""Check that tests assert facts (types, attributes, numbers) rather than the wording of messages."""

from __future__ import annotations

import ast

from tests.support.paths import ROOT

ALLOWED = 100  # maximum number, for texts of other libraries, and the few messages whose wording is itself the subject


def test_few_tests_match_the_wording_of_an_error() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{keyword.value.lineno}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "match"
    ]
    assert len(found) <= ALLOWED, "use tests.support.errors.raises instead"
