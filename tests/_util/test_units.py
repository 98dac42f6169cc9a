"""Test the formatting of numbers with units."""

from __future__ import annotations

import pytest

from deepca._util.units import format_duration


@pytest.mark.parametrize(
    ("time", "text"),
    [
        (0.0, "0 s"),
        (5e-4, "500 µs"),
        (0.03, "30 ms"),
        (1.234, "1.23 s"),
        (99.95, "100 s"),
        (150.0, "2.5 min"),
        (3600.0, "60 min"),
        (9000.0, "2.5 h"),
        (86_400.0 * 12, "12 days"),
        (86_400.0 * 12_345, "12300 days"),
    ],
)
def test_durations_are_formatted_with_a_suitable_unit(time: float, text: str) -> None:
    assert format_duration(time) == text
