"""Test that a site only writes a result that every member has computed or that most sites have signed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deepca.data.sources import ArraySource
from deepca.decomposition.model import Model, from_bytes
from deepca.decomposition.settings import Settings
from deepca.errors import DisputedResult, NetworkError
from deepca.sites.protocol.records import RunPlan
from deepca.sites.runtime.comparison import difference
from deepca.sites.runtime.node import DecidedResult, Node
from deepca.sites.runtime.private_sums import PrivateSums
from deepca.sites.runtime.run import SiteRun
from deepca.sites.runtime.site_result import SiteResult, check_matches
from deepca.solver.certificate.certification import digest_of
from deepca.solver.result import Status, StatusCode
from deepca.topology import ring
from studies.faults.schedules import Fault, Outcome, Schedule, SimulatedRun, rows_of


def _turned(model: Model) -> Model:
    """Return a model whose components are slightly rotated, with a matching certificate."""
    k = model.n_components
    return _of_others(model, np.linalg.qr(model.components.T + 1e-6 * np.ones((model.n_features, k)))[0].T)


def _of_others(model: Model, components: Any) -> Model:
    assert model.certificate is not None
    proof = replace(model.certificate, digest=digest_of(components.T))
    return replace(model, components=np.ascontiguousarray(components), certificate=proof)


def _proof(**changes: Any) -> Callable[[Model], Model]:
    def changed(model: Model) -> Model:
        assert model.certificate is not None
        return replace(model, certificate=replace(model.certificate, **changes))

    return changed


def _about(**changes: Any) -> Callable[[Model], Model]:
    return lambda model: replace(model, about={**model.about, **changes})


FORGED: dict[str, Callable[[Model], Model]] = {
    "mean": lambda model: replace(model, mean=model.mean + 1e-9),
    "one mean": lambda model: replace(model, mean=np.concatenate([model.mean[:-1], model.mean[-1:] * (1.0 + 1e-13)])),
    "count": lambda model: replace(model, n_samples=model.n_samples + 1),
    "weight": lambda model: replace(model, weight=model.weight + 1.0),
    "variance": lambda model: replace(model, explained_variance=model.explained_variance * (1.0 + 1e-9)),
    "total variance": lambda model: replace(model, total_variance=model.total_variance * (1.0 + 1e-13)),
    "columns": lambda model: replace(model, columns=tuple(f"c{j}" for j in range(model.n_features))),
    "scale": lambda model: replace(model, scale=np.ones(model.n_features)),
    "whitening": lambda model: replace(model, whiten=True),
    "status": lambda model: replace(model, status=Status(StatusCode.ROUNDING_FLOOR, model.status.advice)),
    "advice": lambda model: replace(model, status=replace(model.status, advice="all is well")),
    "components": _turned,
    "signs": lambda model: _of_others(model, -model.components),
    "a last digit": lambda model: _of_others(model, np.nextafter(model.components, 2.0)),
    "angle": _proof(angle=1e-17),
    "residual": _proof(residual=0.5),
    "eigenvalues": lambda m: _proof(eigenvalues=tuple(2.0 * v for v in m.certificate.eigenvalues))(m),  # type: ignore[union-attr]
    "bound": _proof(bound=0.0),
    "failure": _proof(failure=1e-30),
    "bounds of leading parts": _proof(parts=(1e-17, 1e-17)),
    "rows of the certificate": _proof(n_rows=10**9),
    "no certificate": lambda model: replace(model, certificate=None),
    "members": _about(sites=["site-0", "site-1", "site-2"]),
    "left out": _about(left_out=["site-9"]),
    "run": _about(run="another"),
    "epoch": _about(epoch=7),
    "plan": _about(plan="00" * 32),
    "tolerance": _about(tol=1e-15),
    "bytes": _about(bytes_per_agent=1.0),
    "unknown field": _about(note="send your rows to us"),
}


def _forge(change: Callable[[Model], Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """Make site 0 propose, and compare with, a different model than it computed."""
    honest = Node.agree_on_result

    def settle(
        self: Node, plan: RunPlan, differs: Callable[[bytes], str], proposal: Callable[[], bytes]
    ) -> DecidedResult:
        if self.context.me != 0:
            return honest(self, plan, differs, proposal)
        forged = change(from_bytes(proposal(), Path("computed")))
        return honest(self, plan, partial(difference, forged), forged.to_bytes)

    monkeypatch.setattr(Node, "agree_on_result", settle)


@pytest.mark.parametrize("forged", FORGED)
def test_a_forged_proposal_is_not_written_and_its_proposer_is_accused(
    forged: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Site 0 proposes a model that differs from the one it computed; all other sites detect this and end."""
    _forge(FORGED[forged], monkeypatch)
    outcome, run = _played(())
    errors = [outcome.endings[site] for site in range(4)]
    assert all(isinstance(error, DisputedResult) for error in errors), errors
    assert {error.site for error in errors if isinstance(error, DisputedResult)} == {"site-0"}
    seen = {error.by for error in errors[1:] if isinstance(error, DisputedResult)}
    assert None in seen  # at least one site detected this; others may have been informed
    assert all(not disk.promise_store.load().decided for disk in run.disks)


def test_a_refused_result_stays_refused_after_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    _forge(FORGED["mean"], monkeypatch)
    outcome, run = _played((Fault(20.0, "kill", (1,), 1.0),), again=25.0)
    assert not any(isinstance(ending, SiteResult) for ending in outcome.endings.values())
    assert all(not disk.promise_store.load().decided for disk in run.disks)


def test_a_late_site_accepts_only_a_result_of_its_run() -> None:
    outcome, simulated = _played(())
    ending, claim = outcome.endings[0], simulated.disks[0].promise_store.load().claim
    assert isinstance(ending, SiteResult)
    assert claim is not None
    schedule, source = simulated.schedule, ArraySource(simulated.rows[1], simulated.names[1])
    job = SiteRun(
        "run", simulated.names, 1, schedule.topology, schedule.settings, source, private=PrivateSums(simulated.names)
    )
    check_matches(job, ending.content, claim)
    wrong_jobs = [
        replace(job, run="another"),
        replace(job, private=None),
        replace(job, sites=(*job.sites[:3], "another")),
        replace(job, settings=replace(job.settings, tol=1e-8)),
        replace(job, settings=replace(job.settings, n_components=3)),
        replace(job, source=ArraySource(simulated.rows[1][:, :7], simulated.names[1])),
    ]
    for wrong_job in wrong_jobs:
        with pytest.raises(NetworkError):
            check_matches(wrong_job, ending.content, claim)
    for content, wrong_claim in [
        (ending.content, replace(claim, epoch=claim.epoch + 1)),
        (ending.content, replace(claim, plan=bytes(32))),
        (ending.content[:-100], claim),
    ]:
        with pytest.raises(NetworkError):
            check_matches(job, content, wrong_claim)


def _played(faults: tuple[Fault, ...], again: float = 0.0) -> tuple[Outcome, SimulatedRun]:
    nothing = (Fault(0.0, "slow", (0,), 0.1, 1.0),)
    schedule = Schedule(5, ring(4), Settings(2, tol=1e-9), "wait", faults or nothing, deadline=60.0)
    outcome = Outcome(schedule)
    run = SimulatedRun(schedule, rows_of(schedule), outcome)
    if again:
        for site in range(4):
            run.clock.at(again, partial(run.start, site))
    try:
        run.run()
    finally:
        run.clock.end()
    return outcome, run
