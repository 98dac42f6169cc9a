"""Settings: plain numbers, whatever type they came in, and errors that name the parameter."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from deepca.decomposition.settings import Settings, check_settings
from deepca.errors import ParameterError


def test_numbers_of_numpy_become_plain_ones() -> None:
    """So that they can be written down, and count as the whole numbers or shares that they are."""
    share, number = np.float32(0.75), np.int64(3)
    given: dict[str, Any] = {"n_components": share, "rounds": number, "seed": np.uint8(4), "tol": np.float32(0.5)}
    settings = Settings(**given)
    check_settings(settings)
    assert json.loads(json.dumps(asdict(settings))) == asdict(Settings(0.75, rounds=3, seed=4, tol=0.5))
    assert type(Settings(**{**given, "n_components": number}).n_components) is int


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("n_components", 0),
        ("n_components", 1.0),
        ("n_components", True),
        ("n_components", "2"),
        ("rounds", 0),
        ("rounds", "some"),
        ("seed", -1),
        ("seed", 0.5),
        ("algorithm", "power"),
        ("messages", "int8"),
        ("tol", 0.0),
        ("tol", float("nan")),
    ],
)
def test_what_no_rows_could_be_fit_with(parameter: str, value: Any) -> None:
    with pytest.raises(ParameterError) as error:
        check_settings(Settings(**{parameter: value}))
    assert error.value.parameter == parameter
    assert error.value.file == ""
