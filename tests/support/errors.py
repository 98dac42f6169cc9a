"""Expect exceptions by their type and attributes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

Error = TypeVar("Error", bound=BaseException)


@contextmanager
def raises(kind: type[Error], /, **facts: object) -> Iterator[pytest.ExceptionInfo[Error]]:
    """Expect an exception of a type whose attributes have the given values."""
    with pytest.raises(kind) as caught:
        yield caught
    found = {name: getattr(caught.value, name) for name in facts}
    assert found == facts, f"{caught.value!r}"
