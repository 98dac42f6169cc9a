"""A site holds no result that contradicts its own."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from deepca.errors import NetworkError
from deepca.experiments.faults.schedules import Fault, Outcome, Play, Schedule, rows_of
from deepca.model import from_bytes
from deepca.pca import Settings
from deepca.sites import run
from deepca.sites.run import Ending
from deepca.topology import ring


@pytest.mark.parametrize("wrong", ["variances", "components", "number"])
def test_a_result_that_differs_from_ones_own_is_refused_for_good(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = run._content

    def forged(*given: Any) -> bytes:
        model = from_bytes(honest(*given), Path("forged"))
        if wrong == "variances":
            model = replace(model, explained_variance=1.5 * model.explained_variance)
        elif wrong == "components":
            model = replace(model, components=model.components[:, ::-1].copy(), certificate=None)
        else:
            model = replace(
                model,
                components=model.components[:1],
                explained_variance=model.explained_variance[:1],
                certificate=None,
            )
        return model.to_bytes()

    monkeypatch.setattr(run, "_content", forged)
    # killed and started again when they have given up: they must not take it then, either
    faults = (Fault(20.0, "kill", (1,), 1.0),)
    schedule = Schedule(5, ring(4), Settings(2, tol=1e-9), "wait", faults, deadline=60.0)
    outcome = Outcome(schedule)
    play = Play(schedule, rows_of(schedule), outcome)
    for site in range(4):
        play.clock.at(25.0, partial(play.start, site))
    try:
        play.run()
    finally:
        play.clock.end()
    assert not any(isinstance(ending, Ending) for ending in outcome.endings.values())
    assert any("common result" in str(ending) for ending in outcome.endings.values())
    assert all(isinstance(ending, NetworkError) for ending in outcome.endings.values())
    assert all(not disk.vault.load().decided for disk in play.disks)
