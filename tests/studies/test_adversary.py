"""Run 500 adversary cases with a fixed seed, and test the adversary itself; ``make adversary`` runs 10,000 cases."""

from __future__ import annotations

import math
import re
import time
from multiprocessing.connection import Connection

import numpy as np
import pytest
import scipy.linalg

from deepca.operators import linalg
from deepca.solver.certificate import bounds, certification
from studies import adversary
from studies.adversary import pool, reference, report
from studies.adversary.trial import Outcome, Trial, run_case
from tests.support.paths import ROOT
from tests.support.problems import orthogonal, spectrum_problem

pytestmark = pytest.mark.slow

SEED, CHUNKS = 20_000, 10
FIXED = {  # bugs that the adversary found, with a case that revealed them
    "leading part with columns in another order": ("certificates", 245157008),
    "average with lost messages reported as rounding": ("networks", 245156784),
    "gap hidden by rounding reported as a tie": ("spectra", 914782868),
    "squares that overflow about zero but not about the mean": ("estimators", 914784575),
    "rounding residue beyond the rank shown as zero": ("estimators", 245158964),
    "product that underflows reported as rank deficiency": ("streams", 342026219),
    "Ritz axes with lost messages": ("networks", 342026049),
    "modulus below rounding reported as a tie": ("spectra", 342026350),
    "variances that fit float32 but overflow times the number of rows": ("estimators", 342026774),
    "variance with two correct digits reported as lost at k = d": ("streams", 551000828),
    "variance with two correct digits reported as lost after gossip": ("networks", 342025881),
    "variance with two correct digits reported as lost after lost messages": ("networks", 914782560),
    "variances with few digits in float32": ("estimators", 601350499),
    "unfinished average reported as rounding": ("networks", 601348509),
    "leading part near the rounding of the rows reported as proven": ("estimators", 914784854),
    "weights that sum to barely more than one": ("estimators", 596994122),
    "gap hidden by the rounding of rows reported as a tie": ("estimators", 596994879),
    "unfinished average with lost messages": ("networks", 596993623),
    "residuals without the rounding of the averaged products": ("spectra", 386224146),
}
CASES = [(family, SEED + i) for family, n in adversary.cases_of(500).items() for i in range(n)]


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_case_has_violations(chunk: int) -> None:
    outcomes = [adversary.run(*case) for case in CASES[chunk::CHUNKS]]
    wrong = [(o.family, o.seed, o.violations, o.about) for o in outcomes if o.violations]
    assert not wrong
    assert sum(o.proven for o in outcomes) > 0.4 * len(outcomes)  # otherwise the check above would be vacuous


@pytest.mark.parametrize("bug", FIXED)
def test_bugs_found_by_the_adversary_stay_fixed(bug: str) -> None:
    assert adversary.run(*FIXED[bug]).violations == ()


def test_every_family_has_enough_cases() -> None:
    assert len(CASES) >= 500
    assert sum(adversary.cases_of(10_000).values()) >= 10_000
    assert {family for family, _ in CASES} == set(adversary.FAMILIES)


def test_cases_are_reproducible() -> None:
    first, second = (adversary.run("certificates", 3) for _ in range(2))
    assert (first.about, first.status, first.claims) == (second.about, second.status, second.claims)


@pytest.mark.parametrize("family", ["certificates", "solve", "estimators"])
def test_bounds_that_are_too_small_are_detected(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = bounds.tangent_bound
    for module in (bounds, certification):
        monkeypatch.setattr(module, "tangent_bound", lambda residual, gap: 1e-3 * honest(residual, gap))
    found = [adversary.run(family, SEED + i) for i in range(25)]
    assert any("angle" in violation for o in found for violation in o.violations)


def test_missing_probes_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without probes, invariant subspaces other than the top one count as proven."""
    monkeypatch.setattr("deepca.solver.certificate.probing.ProbedSpectrum.bound", lambda self, failure: -math.inf)
    found = [adversary.run("certificates", SEED + i) for i in range(25)]
    assert any("proven" in violation for o in found for violation in o.violations)


def _raises(trial: Trial) -> None:
    raise ZeroDivisionError


def _warns(trial: Trial) -> None:
    np.log(np.zeros(1))


@pytest.mark.parametrize("family", [_raises, _warns])
def test_errors_and_warnings_are_violations(family: adversary.Family) -> None:
    assert run_case("here", family, 0).violations


def test_claims_beyond_the_accuracy_of_the_reference_are_undecided() -> None:
    trial = Trial("here", 0, np.random.default_rng(0))
    trial.claim("near", 1.5, 1.0, 0.6)
    trial.claim("within", 0.5, 1.0, 0.6)
    assert (trial.undecided, trial.violations) == (1, [])
    trial.claim("far", 1.5, 1.0, 0.4)
    assert trial.violations


def test_hanging_cases_are_killed() -> None:
    began = time.monotonic()
    [outcome] = pool.run_all([("solve", 0)], processes=1, deadline=0.2, serve=_asleep)
    assert outcome.hung
    assert time.monotonic() - began < 60.0


def _asleep(pipe: Connection) -> None:
    pipe.send(None)
    time.sleep(600.0)


def test_reference_eigenvectors_match_lapack() -> None:
    A = spectrum_problem(1, 12, 0.7 ** np.arange(12.0), seed=3)[0]
    values, vectors = scipy.linalg.eigh(A)
    found = reference.of_matrix(A)
    np.testing.assert_allclose(found.values.astype(np.float64), values[::-1], rtol=1e-12)
    assert float(linalg.tan_theta(vectors[:, ::-1][:, :4], found.top(4).astype(np.float64))) < 1e-13
    residual = A.astype(np.longdouble) @ found.vectors - found.vectors * found.values
    assert float(np.abs(residual).max()) <= found.error_bound


def test_small_reference_singular_values_are_accurate() -> None:
    """Scale orthogonal columns by powers of two whose squares span 26 decades."""
    sigma = 2.0 ** -np.arange(0.0, 44.0, 6.0)
    left, right = orthogonal(20, 1)[:, : sigma.size], orthogonal(sigma.size, 2)
    found = reference.of_rows((left.astype(np.longdouble) * sigma) @ right.T.astype(np.longdouble))
    off = np.abs(np.sqrt(found.values).astype(np.float64) - sigma)
    assert (off <= 1e-15 * sigma + 20 * found.error_bound).all()


def test_the_page_lists_only_cases_with_violations() -> None:
    good = Outcome("solve", 1, "converged", True, 1e-9, 1e-10, 5, 0, (), 0.1)
    bad = Outcome("streams", 7, "converged", True, 1e-9, 1e-3, 5, 0, ("angle: 1e-3",), 0.1)
    about = report.Run("command", 1, 60.0, 2, "0")
    text = report.page([good, bad], about)
    assert "--family streams --seed 7" in text
    assert "--family solve" not in text


def test_the_published_page_reports_10000_cases_without_violations() -> None:
    text = (ROOT / "docs" / "adversary.md").read_text(encoding="utf-8")
    counts = re.search(r"\*\*([\d,]+) cases, .* (\d+) with a violation, (\d+) hung\.\*\*", text)
    assert counts is not None
    assert int(counts[1].replace(",", "")) >= 10_000
    assert counts[2] == counts[3] == "0"
