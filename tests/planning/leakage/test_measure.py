"""Test what is measured about coalitions: who they are, and the errors of what they rebuild."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from scipy.stats import ortho_group

import deepca
from deepca.data.sources import ArraySource
from deepca.decomposition.settings import Settings
from deepca.errors import InvalidInput, ParameterError
from deepca.planning.leakage import ADVERSARIES, MAX_COLUMNS, MAX_SITES, Leakage, measure_leakage, random_sites
from deepca.planning.leakage.adversary import SiteEstimate
from deepca.planning.leakage.scoring import TrueSite
from tests.support.errors import raises

SETTINGS = Settings(n_components=2)


@cache
def measured(name: str = "ring", n: int = 3, m: int = 5) -> Leakage:
    return measure_leakage(random_sites(m, n, 8, seed=1), deepca.topology.from_name(name, m), SETTINGS)


@pytest.mark.parametrize(("name", "n"), [("ring", 3), ("complete", 3), *(("star", n) for n in (1, 2, 8, 60))])
def test_masks_hide_all_that_an_open_network_shows(name: str, n: int) -> None:
    found = measured(name, n)
    assert found.private_excess == 0.0
    assert found.status == "converged"
    parents = [one for one in found.exposures if one.adversary == "parent"]
    assert len(parents) == 4  # the root has none
    best = min(parents, key=lambda one: one.open.decisive)
    assert best.open.mean is not None
    assert best.open.mean < 1e-10
    for one in found.exposures:
        assert (one.open.covariance is None) == (n == 1)
        assert (one.open.rows is None) == (n == 60)
        if one.isolates:
            assert max(one.private.decisive, one.totals.decisive) < 1e-10
        else:
            assert one.private == one.totals
            assert one.private.decisive > 1e-3
    if n in (2, 3, 8):
        assert best.open.covariance is not None
        assert best.open.rows is not None
        assert max(best.open.covariance, best.open.rows) < 1e-10


def test_every_site_meets_every_adversary_that_exists() -> None:
    found, graph = measured("star"), deepca.topology.star(5)
    for site in range(5):
        of_site = {one.adversary: one for one in found.exposures if one.site == site}
        assert of_site.keys() == set(ADVERSARIES) - ({"parent"} if site == graph.center else set())
        assert set(of_site["all neighbours"].members) == set(graph.neighbors(site))
        assert len(of_site["all but two"].members) == 3
        assert set(of_site["all others"].members) == set(range(5)) - {site}
        assert all(site not in one.members for one in of_site.values())
    isolating = {(one.site, one.adversary) for one in found.exposures if one.isolates}
    assert isolating == {(graph.center, "all neighbours"), *((site, "all others") for site in range(5))}


def test_errors_do_not_depend_on_a_rotation_of_the_rows_that_keeps_their_mean() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((4, 6)) + 3.0
    site = TrueSite(4, X.mean(axis=0), np.cov(X, rowvar=False), X, np.zeros(6))
    exact = site.errors(SiteEstimate(4.0, X.mean(axis=0), np.cov(X, rowvar=False)))
    assert exact.mean == exact.covariance == 0.0
    assert exact.rows is not None
    assert exact.rows < 1e-14
    inside = np.linalg.svd(np.ones((1, 4)))[2][1:]
    turned = X.mean(axis=0) + inside.T @ ortho_group.rvs(3, random_state=1) @ inside @ X
    np.testing.assert_allclose(np.cov(turned, rowvar=False), np.cov(X, rowvar=False), atol=1e-12)
    nothing = site.errors(SiteEstimate(4.0, np.zeros(6), np.zeros((6, 6))))
    assert (nothing.mean, nothing.covariance, nothing.rows) == pytest.approx((1.0, 1.0, 1.0))


def test_errors_are_those_of_scaled_columns_if_the_fit_scales_them() -> None:
    sources = random_sites(4, 20, 5, seed=2)
    units = 10.0 ** np.arange(5)
    scaled = [ArraySource(np.asarray(one.matrix()) * units, one.name) for one in sources]
    settings, graph = Settings(n_components=2, scale=True), deepca.topology.ring(4)
    for one, other in zip(
        measure_leakage(sources, graph, settings).exposures,
        measure_leakage(scaled, graph, settings).exposures,
        strict=True,
    ):
        assert one.private.covariance == pytest.approx(other.private.covariance, abs=1e-6)
        assert one.private.mean == pytest.approx(other.private.mean, abs=1e-6)


def test_progress_covers_rows_runs_and_coalitions() -> None:
    read: list[int] = []
    done: list[tuple[int, int]] = []
    measure_leakage(
        random_sites(3, 20, 5, seed=2),
        deepca.topology.ring(3),
        SETTINGS,
        on_rows=read.append,
        progress=lambda i, n: done.append((i, n)),
    )
    assert sum(read) == 60
    assert [i for i, _ in done] == list(range(done[-1][1]))


def test_what_cannot_be_measured_is_refused() -> None:
    for m in (2, MAX_SITES + 1):
        with raises(InvalidInput, parameter="agents"):
            measure_leakage(random_sites(m, 3, 4, seed=0), deepca.topology.complete(m), SETTINGS)
    with raises(InvalidInput, parameter="columns"):
        measure_leakage(random_sites(3, 2, MAX_COLUMNS + 1, seed=0), deepca.topology.ring(3), SETTINGS)
    with raises(ParameterError, parameter="algorithm", value="deepca"):
        measure_leakage(
            random_sites(3, 3, 4, seed=0), deepca.topology.ring(3), Settings(n_components=2, algorithm="deepca")
        )
    for name in ("directed-ring", "matchings:ring:4"):
        graph = deepca.topology.from_name(name, 4)
        with raises(ParameterError, parameter="topology", value=graph.name):
            measure_leakage(random_sites(4, 3, 4, seed=0), graph, SETTINGS)
