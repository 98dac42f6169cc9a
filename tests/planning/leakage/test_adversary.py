"""Test what coalitions rebuild from recorded runs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest

import deepca
from deepca.data.local_data import read
from deepca.data.sources import ArraySource
from deepca.decomposition.settings import Settings
from deepca.network.sums import Words
from deepca.planning.leakage import random_sites, recording, records
from deepca.planning.leakage.adversary import Coalition, SiteEstimate
from deepca.planning.leakage.recording import record_run
from deepca.planning.leakage.records import COUNTS, PRODUCTS, RecordedRun
from deepca.topology import Topology
from tests.support.problems import close

M, D = 5, 12
SETTINGS = Settings(n_components=3)
GRAPHS = ["ring", "star", "path", "complete"]


def rows_of(n: int, m: int = M, d: int = D) -> list[npt.NDArray[np.float64]]:
    return [np.asarray(source.matrix()) for source in random_sites(m, n, d, seed=n)]


def recorded(graph: Topology, n: int, *, private: bool, d: int = D) -> RecordedRun:
    data = [read((source,), form="covariance") for source in random_sites(graph.n_agents, n, d, seed=n)]
    return record_run(data, graph, SETTINGS, private=private)


@cache
def run(name: str, n: int, private: bool) -> RecordedRun:
    return recorded(deepca.topology.from_name(name, M), n, private=private)


def coalitions(sizes: range) -> Iterator[frozenset[int]]:
    return (frozenset(members) for size in sizes for members in combinations(range(M), size))


def same(a: SiteEstimate, b: SiteEstimate) -> bool:
    return a.n_rows == b.n_rows and np.array_equal(a.mean, b.mean) and np.array_equal(a.covariance, b.covariance)


def check_rebuilt(found: SiteEstimate, X: npt.NDArray[np.float64], tol: float = 1e-10) -> None:
    assert found.n_rows == pytest.approx(len(X), rel=1e-12)
    close(found.mean, X.mean(axis=0), atol=tol * float(np.linalg.norm(X)))
    C = np.cov(X, rowvar=False)
    close(found.covariance, C, atol=tol * float(np.linalg.norm(C)))


def leaf_and_parent(name: str) -> tuple[int, int]:
    """Return an agent that has no children in the spanning tree, and its parent."""
    root = deepca.topology.from_name(name, M).center
    depth, parent = deepca.topology.from_name(name, M).paths_to(root)
    leaf = int(depth.argmax())
    return leaf, int(parent[leaf])


# ------------------------------------------------------------------------------------------------------------- open


@pytest.mark.parametrize("n", [2, 3, 50, 1000])
@pytest.mark.parametrize("name", GRAPHS)
def test_in_an_open_network_a_parent_rebuilds_a_leaf(name: str, n: int) -> None:
    leaf, parent = leaf_and_parent(name)
    check_rebuilt(Coalition(run(name, n, False), frozenset([parent])).estimate(leaf), rows_of(n)[leaf])


def test_subtrees_that_overlap_are_equations_about_all_of_their_sites() -> None:
    """On a path of five, the root sees sums over two sites at either side; with one of them, it knows the other."""
    open_run = run("path", 50, False)
    root = open_run.topology.center
    alone = Coalition(open_run, frozenset([root]))
    assert {sites for known in alone.knowledge for sites in known} == {
        frozenset(range(M)) - {root},
        frozenset({0, 1}),
        frozenset({3, 4}),
    }
    X = rows_of(50)
    assert alone.estimate(0).n_rows == pytest.approx(50)
    close(alone.estimate(0).mean, (X[0].mean(axis=0) + X[1].mean(axis=0)) / 2.0, atol=1e-12)
    check_rebuilt(Coalition(open_run, frozenset([root, 0])).estimate(1), X[1])


def test_the_estimate_is_the_smallest_solution_of_all_equations() -> None:
    """Solve for the A_j of all honest sites at once, without any structure."""
    d, graph = 5, deepca.topology.path(M)
    open_run = recorded(graph, 50, private=False, d=d)
    coalition = Coalition(open_run, frozenset([graph.center]))
    honest = sorted(coalition.honest)
    rows, columns = np.triu_indices(d)
    basis = np.zeros((rows.size, d, d))  # orthonormal in the Frobenius norm
    basis[np.arange(rows.size), rows, columns] = np.where(rows == columns, 1.0, np.sqrt(0.5))
    basis[np.arange(rows.size), columns, rows] = basis[np.arange(rows.size), rows, columns]
    equations, right = [], []
    for part in open_run.products:
        assert part.name == PRODUCTS
        assert part.factor is not None
        for sites, words in coalition.knowledge[part.sum_index].items():
            layout = open_run.agents[0].sums[part.sum_index].layout
            right.append(layout.totals(words)[part.position].value)
            products = (basis @ part.factor).reshape(rows.size, -1).T
            equations.append(np.hstack([products * (site in sites) for site in honest]))
    solution = np.linalg.lstsq(np.vstack(equations), np.concatenate(right), rcond=1e-10)[0].reshape(len(honest), -1)
    total = float(open_run.total(COUNTS)[0])
    for site, x in zip(honest, solution, strict=True):
        A, found = np.tensordot(x, basis, axes=1), coalition.estimate(site)
        apart = found.mean - open_run.common_mean
        scatter = A * (total - 1.0) / M - found.n_rows * np.outer(apart, apart)
        close(found.covariance, scatter / (found.n_rows - 1.0), atol=1e-10 * float(np.linalg.norm(A)))


# ---------------------------------------------------------------------------------------------------------- private


@pytest.mark.parametrize("n", [2, 50])
@pytest.mark.parametrize("name", GRAPHS)
def test_in_a_private_network_no_coalition_knows_more_than_the_totals(name: str, n: int) -> None:
    """Of all coalitions of up to all but two sites; the numbers are the same bit for bit."""
    private_run = run(name, n, True)
    unmasked = False
    for members in coalitions(range(1, M - 1)):
        everything, totals = Coalition(private_run, members), Coalition(private_run, members, totals_only=True)
        unmasked |= any(everything._readable(private_run.agents[member].sums) for member in members)
        for site in everything.honest:
            assert same(everything.estimate(site), totals.estimate(site))
            true = np.cov(rows_of(n)[site], rowvar=False)
            assert np.linalg.norm(everything.estimate(site).covariance - true) > 1e-3 * np.linalg.norm(true)
    assert unmasked == (name in ("ring", "path"))  # there, sums over all honest sites pass through members


@pytest.mark.parametrize("name", GRAPHS)
def test_all_sites_but_one_rebuild_it_by_subtraction(name: str) -> None:
    for site in range(M):
        others = frozenset(range(M)) - {site}
        for private in (False, True):
            check_rebuilt(Coalition(run(name, 3, private), others).estimate(site), rows_of(3)[site])
        totals = Coalition(run(name, 3, True), others, totals_only=True).estimate(site)
        check_rebuilt(totals, rows_of(3)[site])


def test_a_coalition_of_all_partners_removes_the_masks_of_a_site() -> None:
    leaf, parent = leaf_and_parent("ring")
    private_run = run("ring", 50, True)
    others = Coalition(private_run, frozenset(range(M)) - {leaf})
    compared = 0
    for s, record in enumerate(private_run.agents[parent].sums):
        for sites, words in record.heard:
            if sites == {leaf} and others.knowledge[s]:
                plain = private_run.agents[leaf].sums[s].own
                np.testing.assert_array_equal(others.knowledge[s][sites], plain)
                assert words[0] == plain[0] == 1  # the number of agents is not masked
                assert (words[1:] != plain[1:]).mean() > 0.99
                compared += 1
    assert compared > 5


def test_messages_with_unknown_masks_are_uniformly_random() -> None:
    """As equations they would be worse than useless."""
    leaf, parent = leaf_and_parent("ring")
    private_run = run("ring", 50, True)
    heard: list[Words] = [
        words[1:] for record in private_run.agents[parent].sums for sites, words in record.heard if sites == {leaf}
    ]
    bits = np.unpackbits(np.concatenate(heard).view(np.uint8))
    assert abs(bits.mean() - 0.5) < 5.0 * 0.5 / np.sqrt(bits.size)
    part = private_run.moments[COUNTS]
    record = private_run.agents[parent].sums[part.sum_index]
    [words] = [words for sites, words in record.heard if sites == {leaf}]
    assert abs(record.layout.totals(words)[part.position].value[0] - 50.0) > 1e9


def test_where_few_pairs_share_masks_a_coalition_learns_the_sum_of_every_part_that_it_separates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Large networks have fewer masks than pairs; here, sites 0 … 4 share masks along a path."""
    for module in (recording, records):
        monkeypatch.setattr(module, "partners", lambda m, plan: frozenset((j, j + 1) for j in range(m - 1)))
    private_run = recorded(deepca.topology.star(M), 50, private=True)
    root = private_run.topology.center
    X = rows_of(50)
    assert root == 0
    for members, exposed in ((frozenset({0, 2}), {1}), (frozenset({0, 3}), {4}), (frozenset({0, 1}), set())):
        coalition = Coalition(private_run, members)
        for site in coalition.honest:
            if site in exposed:
                check_rebuilt(coalition.estimate(site), X[site])
            else:
                error = coalition.estimate(site).covariance - np.cov(X[site], rowvar=False)
                assert np.linalg.norm(error) > 1e-3


# ------------------------------------------------------------------------------------------------------------- runs


def test_both_runs_have_the_same_answer_and_the_same_totals() -> None:
    open_run, private_run = run("ring", 50, False), run("ring", 50, True)
    np.testing.assert_array_equal(open_run.model.components, private_run.model.components)
    pooled = np.concatenate(rows_of(50))
    close(open_run.common_mean, pooled.mean(axis=0), atol=1e-14)
    np.testing.assert_array_equal(open_run.common_mean, private_run.common_mean)
    assert open_run.total(COUNTS) == private_run.total(COUNTS) == len(pooled)
    one = Coalition(open_run, frozenset([0]), totals_only=True).estimate(1)
    other = Coalition(private_run, frozenset([0]), totals_only=True).estimate(1)
    assert same(one, other)


def test_all_messages_are_recorded() -> None:
    open_run = run("ring", 50, False)
    sent = [
        (one.agent, receiver, call.tag, id(message))
        for one in open_run.agents
        for call in one.exchanges
        for receiver, message in call.sent.items()
    ]
    received = [
        (sender, one.agent, call.tag, id(message))
        for one in open_run.agents
        for call in one.exchanges
        for sender, message in call.received.items()
    ]
    assert sorted(sent) == sorted(received)
    assert len(sent) > 100


@pytest.mark.parametrize(
    "settings",
    [
        Settings(n_components=0.8),
        Settings(n_components=3, center=False),
        Settings(n_components=3, algorithm="covariance"),
    ],
    ids=["a share of variance", "not centred", "covariances"],
)
def test_other_settings_are_rebuilt_as_well(settings: Settings) -> None:
    graph, X = deepca.topology.hypercube(3), rows_of(40, m=8)
    data = [read((source,), form="covariance") for source in random_sites(8, 40, D, seed=40)]
    depth, parent = graph.paths_to(graph.center)
    leaf = int(depth.argmax())
    open_run = record_run(data, graph, settings, private=False)
    check_rebuilt(Coalition(open_run, frozenset([int(parent[leaf])])).estimate(leaf), X[leaf])


@pytest.mark.parametrize("scale", [1e60, 1e-60])
def test_sums_that_were_repeated_in_another_unit_are_used_once(scale: float) -> None:
    X = [scale * x for x in rows_of(3)]
    data = [read((ArraySource(x, "rows"),), form="covariance") for x in X]
    open_run = record_run(data, deepca.topology.star(M), SETTINGS, private=False)
    assert len(open_run.parts) < sum(len(record.layout.names) - 1 for record in open_run.agents[0].sums)
    found = Coalition(open_run, frozenset([0])).estimate(1)
    check_rebuilt(
        SiteEstimate(found.n_rows, found.mean / scale, found.covariance / scale / scale), rows_of(3)[1], tol=1e-10
    )
