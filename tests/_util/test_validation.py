"""Test constraints on parameters and the errors they raise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from deepca._util.validation import NONE, Constraint, Integer, OneOf, Real, check
from deepca.errors import InvalidInput, ParameterError

ACCEPTED: list[tuple[Constraint, list[Any], list[Any]]] = [
    (Integer(1), [1, 7, np.int64(3)], [0, -1, True, 1.0, math.nan, "1", None, [1]]),
    (Integer(0, 2), [0, 2, np.uint8(1)], [3, -1, False]),
    (Real(0.0, 1.0), [0.5, np.float32(0.5)], [0.0, 1.0, math.nan, math.inf, True, "0.5", None]),
    (Real(0.0, 1.0, up_to=True), [1, 1.0, 1e-300], [0.0, 1.0 + 1e-15]),
    (Real(0.0), [3, 1e300], [0, -1.0, math.inf]),
    (OneOf("auto", "none"), ["auto", "none"], ["Auto", "", None, 1]),
    (NONE, [None], [0, "", False]),
]


@pytest.mark.parametrize(("constraint", "good", "bad"), ACCEPTED, ids=lambda one: str(one)[:40])
def test_constraints_accept_and_reject(constraint: Constraint, good: list[Any], bad: list[Any]) -> None:
    assert all(constraint.accepts(value) for value in good)
    assert not any(constraint.accepts(value) for value in bad)


def test_the_error_states_the_parameter_its_value_and_the_accepted_values() -> None:
    check("rounds", "auto", Integer(1), OneOf("auto"))
    with pytest.raises(ParameterError) as error:
        check("rounds", 0, Integer(1), OneOf("auto"), meaning="of gossip")
    found = error.value
    assert isinstance(found, InvalidInput)
    assert (found.parameter, found.value) == ("rounds", 0)
    assert str(Integer(1)) in found.expected
    assert "'auto'" in found.expected
    assert str(found) == f"rounds = 0: {found.expected}"
