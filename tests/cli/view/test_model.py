"""Test what a model's summary says about what the run has shown."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from deepca import topology
from deepca.cli.view.model import show_model, summary
from deepca.data.sources import ArraySource
from deepca.decomposition.fit import fit
from deepca.decomposition.model import Model
from deepca.decomposition.settings import Settings
from deepca.network import SimulatedNetwork


@pytest.fixture(scope="module")
def model() -> Model:
    rng = np.random.default_rng(0)
    rows = [ArraySource(rng.standard_normal((50, 30)) * np.geomspace(9.0, 0.1, 30), f"site {j}") for j in range(3)]
    return fit(rows, SimulatedNetwork(topology.ring(3)), Settings(2)).model


def shown(model: Model) -> str:
    console = Console(file=StringIO(), width=200)
    show_model(console, model)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def with_count(model: Model, count: Any) -> Model:
    return replace(model, about={**model.about, "directions_shown": count})


def test_the_certificate_states_how_many_directions_were_shown(model: Model) -> None:
    counted = with_count(model, 12)
    assert "totals in 12 of 30 directions of the pooled covariance" in shown(counted)
    assert summary(counted)["certificate"]["directions_shown"] == 12
    assert summary(counted)["n_features"] == 30


@pytest.mark.parametrize("count", [None, 0, -1, 31, 2.5, "[bold]12", True])
def test_a_model_without_a_usable_count_says_nothing(count: Any, model: Model) -> None:
    for other in (model, with_count(model, count)):
        assert "directions" not in shown(other)
        assert summary(other)["certificate"]["directions_shown"] is None
