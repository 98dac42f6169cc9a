"""Test MpiNetwork: shares, several agents per rank, shared memory between ranks, and operations over all ranks.

Run it by ``pytest --engine mpi``, on any number of ranks. Everything is compared with numpy or with the simulator,
which every rank runs on its own.
"""

from __future__ import annotations

import gc
import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import sparse

import deepca
from deepca import AcceleratedDeEPCA, BlockKrylov, CovarianceAveraging, DeEPCA, FastMix, Tolerance, topology
from deepca._util.typing import Array, Csr, csr
from deepca.algorithms.base import matching_operator
from deepca.consensus.exact import AllReduce, TreeSweep, exact_average
from deepca.errors import DataError, EpochChanged, InvalidInput, MixingError, TopologyError
from deepca.network import AgentNetwork, SimulatedNetwork
from deepca.network.compression import Code, Copies
from deepca.network.reductions import Op, PendingReduction
from deepca.network.sums import Unit
from deepca.operators import from_matrices, from_rows
from deepca.topology import Topology
from tests.support.engines import over_mpi
from tests.support.errors import raises
from tests.support.helpers import worst_tangent
from tests.support.problems import pooled_answer, random_rows, spectrum, spectrum_problem

if TYPE_CHECKING or over_mpi():
    from mpi4py import MPI

    from deepca.engines.mpi.network import MpiNetwork
    from tests.support.mpi_ranks import WORLD, networks

pytestmark = pytest.mark.mpi
RANKS = WORLD.size if over_mpi() else 1
CODES: tuple[Code, ...] = ("float32", "float16")


def shares_of(name: str) -> tuple[int, ...]:
    """Return the number of agents on each rank."""
    return {
        "one each": (1,) * RANKS,
        "three each": (3,) * RANKS,
        "uneven": (2, 1, 4, 3, *[1] * RANKS)[:RANKS],
        "one rank holds most": (9, *[1] * (RANKS - 1)),
        "many": (70,) * RANKS,  # enough for sparse weights
    }[name]


LAYOUTS = ["one each", "three each", "uneven", "one rank holds most", "many"]
FEW = LAYOUTS[:4]


def graph_of(name: str, shape: str = "random") -> Topology:
    m = sum(shares_of(name))
    kinds: dict[str, Callable[[], Topology]] = {
        "random": lambda: topology.erdos_renyi(m, 0.5 if m < 30 else 0.05, seed=1) if m > 3 else topology.path(m),
        "ring": lambda: topology.ring(m),
        "path": lambda: topology.path(m),
        "star": lambda: topology.star(m),
        "complete": lambda: topology.complete(m),
    }
    return kinds[shape]()


def network_on(place: Topology, shares: Sequence[int] | None = None, **options: Any) -> MpiNetwork:
    """Create a network over all ranks that is closed after the test."""
    network = MpiNetwork(place, WORLD, agents_per_rank=shares, timeout=None, **options)
    networks.add(network)
    return network


def laid_out(name: str, shape: str = "random", **options: Any) -> MpiNetwork:
    return network_on(graph_of(name, shape), shares_of(name), **options)


def numbers(m: int, shape: tuple[int, ...] = (4, 2), seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((m, *shape))


def applied(L: Array | Csr, x: Array) -> Array:
    """Return ``Σ_i 𝐋_ji x_i`` by numpy."""
    dense = L.toarray() if sparse.issparse(L) else np.asarray(L)
    return np.asarray(np.tensordot(dense, x, axes=1))


def of_all(network: MpiNetwork, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the rows of all agents, for any shares."""
    own = np.ascontiguousarray(x)
    shares = np.empty(WORLD.size, dtype=np.int64)
    WORLD.Allgather(np.array([len(own)]), shares)
    found = np.empty((network.n_agents, *own.shape[1:]), dtype=own.dtype)
    WORLD.Allgatherv(own, (found, (shares * own[0].size).tolist()))
    return found


# ------------------------------------------------------------------------------------------------------------ shares


@pytest.mark.parametrize("name", LAYOUTS)
def test_agents_are_numbered_rank_by_rank(name: str) -> None:
    network, shares = laid_out(name), shares_of(name)
    first = sum(shares[: WORLD.rank])
    np.testing.assert_array_equal(network.local, np.arange(first, first + shares[WORLD.rank]))
    assert network.batch == (shares[WORLD.rank],)
    np.testing.assert_array_equal(of_all(network, network.local), np.arange(sum(shares)))


@pytest.mark.parametrize("more", [0, 1, 2, 3])
def test_shares_are_as_even_as_possible_by_default(more: int) -> None:
    m = 2 * RANKS + more
    network = network_on(topology.ring(m))
    held = np.empty(RANKS, dtype=np.int64)
    WORLD.Allgather(np.array([len(network.local)]), held)
    assert held.sum() == m
    assert held.max() - held.min() <= 1


def test_impossible_shares_are_rejected_on_all_ranks() -> None:
    """Every rank raises the error before anything is sent."""
    m = RANKS + 2
    place = topology.ring(m)
    with raises(TopologyError, parameter="agents_per_rank", value=(1,) * (RANKS + 1)):
        MpiNetwork(place, WORLD, agents_per_rank=[1] * (RANKS + 1))
    too_many = (m + 1 - (RANKS - 1), *[1] * (RANKS - 1))
    with raises(TopologyError, parameter="agents_per_rank", value=too_many):
        MpiNetwork(place, WORLD, agents_per_rank=too_many)
    if RANKS > 1:
        with raises(TopologyError, parameter="agents_per_rank[0]", value=0):
            MpiNetwork(place, WORLD, agents_per_rank=[0, m - RANKS + 2, *[1] * (RANKS - 2)])
        with raises(TopologyError, parameter="agents_per_rank[1]", value=-1):
            MpiNetwork(place, WORLD, agents_per_rank=[m + 1 - (RANKS - 2), -1, *[1] * (RANKS - 2)])
        with raises(TopologyError, parameter="topology", value=1):
            MpiNetwork(topology.complete(1), WORLD)
    if RANKS > 2:
        with raises(TopologyError, parameter="topology", value=2):
            MpiNetwork(topology.path(2), WORLD)


# ------------------------------------------------------------------------------------------------------------ rounds


@pytest.mark.parametrize("shape", [(), (1,), (5,), (4, 2), (3, 2, 2), (0,), (4, 0)], ids=str)
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_round_is_a_product_with_the_gossip_matrix(name: str, shape: tuple[int, ...]) -> None:
    """Arrays may have any shape, and may be empty."""
    network = laid_out(name)
    x = numbers(network.n_agents, shape)
    y = network.gossip(x[network.local])
    assert y.shape == (len(network.local), *shape)
    np.testing.assert_allclose(y, applied(network.topology.gossip_sparse, x)[network.local], rtol=0, atol=1e-14)


@pytest.mark.parametrize("graph", ["ring", "path", "star", "complete"])
@pytest.mark.parametrize("name", FEW)
def test_rounds_work_on_every_graph(name: str, graph: str) -> None:
    network = laid_out(name, graph)
    x = numbers(network.n_agents)
    L = network.topology.gossip_sparse
    for _ in range(3):
        expected = applied(L, x)
        y = network.gossip(x[network.local])
        np.testing.assert_allclose(y, expected[network.local], rtol=0, atol=1e-14)
        x = expected


@pytest.mark.parametrize("name", FEW)
def test_the_memory_order_does_not_matter(name: str) -> None:
    """Arrays may be in column-major order, have swapped axes or other strides, and be read-only."""
    network = laid_out(name)
    m, here = network.n_agents, network.local
    x = numbers(m, (6, 4))
    expected = applied(network.topology.gossip_sparse, x)[here]
    for y in (
        np.asfortranarray(x[here]),
        np.swapaxes(np.ascontiguousarray(np.swapaxes(x[here], 1, 2)), 1, 2),
        np.repeat(x[here], 2, axis=2)[:, :, ::2],
        np.ascontiguousarray(x[here][:, ::-1])[:, ::-1],
        np.ascontiguousarray(x[here][::-1])[::-1],
    ):
        np.testing.assert_array_equal(y, x[here])
        y.flags.writeable = False
        np.testing.assert_allclose(network.gossip(y), expected, rtol=0, atol=1e-14)
        coded = network.gossip_compressed(y, None, "float32")[0]
        np.testing.assert_allclose(coded, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", [np.float32, np.int64])
@pytest.mark.parametrize("name", ["one each", "uneven"])
def test_other_dtypes_are_averaged_as_float64(name: str, kind: type[Any]) -> None:
    """So are they in the simulator."""
    network = laid_out(name)
    x = (10.0 * numbers(network.n_agents)).astype(kind)
    expected = SimulatedNetwork(network.topology).gossip(x)[network.local]
    np.testing.assert_allclose(network.gossip(x[network.local]), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", FEW)
def test_results_of_a_round_are_not_overwritten(name: str) -> None:
    """Although buffers are reused, later rounds change neither results nor arguments."""
    network = laid_out(name)
    x = numbers(network.n_agents)[network.local]
    kept = x.copy()
    y = network.gossip(x)
    copy = y.copy()
    coded, copies = network.gossip_compressed(x, None, "float16")
    copied = (coded.copy(), copies.own.copy(), *(other.copy() for other in copies.others))
    for _ in range(3):
        network.gossip(7.0 * x)
        network.gossip_compressed(x + 1.0, copies, "float16")
    np.testing.assert_array_equal(x, kept)
    np.testing.assert_array_equal(y, copy)
    for now, before in zip((coded, copies.own, *copies.others), copied, strict=True):
        np.testing.assert_array_equal(now, before)


@pytest.mark.parametrize("name", FEW)
def test_rows_may_have_many_lengths(name: str) -> None:
    """There are more lengths than are cached, in both orders, including rows of megabytes."""
    network = laid_out(name, "ring")
    m, here = network.n_agents, network.local
    L = network.topology.gossip_sparse
    weights = pairs(m)
    lengths = [*range(1, 45), 40_000, 3, 300_000, *range(44, 0, -7), 5000]
    for n in lengths:
        x = np.linspace(-1.0, 1.0, n) + np.arange(m)[:, None]
        np.testing.assert_allclose(network.gossip(x[here]), np.asarray(L @ x)[here], rtol=0, atol=1e-13 * m)
        if n < 5000:
            np.testing.assert_allclose(
                network.gossip(x[here], weights), np.asarray(weights @ x)[here], rtol=0, atol=1e-13 * m
            )


def test_simultaneous_networks_do_not_interfere() -> None:
    """Nor do other messages over their communicator."""
    one, other = laid_out("one each", "ring"), laid_out("uneven")
    x, y = numbers(one.n_agents), numbers(other.n_agents, (3,), seed=1)
    mail, came = np.full(3, float(WORLD.rank)), np.empty(3)
    to, by = (WORLD.rank + 1) % WORLD.size, (WORLD.rank - 1) % WORLD.size
    requests = [WORLD.Irecv(came, by), WORLD.Isend(mail, to)]
    for _ in range(4):
        pending = one.reduce_later(x[one.local, 0], "max")
        expected = applied(one.topology.gossip_sparse, x), applied(other.topology.gossip_sparse, y)
        np.testing.assert_allclose(one.gossip(x[one.local]), expected[0][one.local], atol=1e-14)
        np.testing.assert_allclose(other.gossip(y[other.local]), expected[1][other.local], atol=1e-14)
        np.testing.assert_array_equal(other.reduce(y[other.local], "min"), y.min(axis=0))
        np.testing.assert_array_equal(pending.value, x[:, 0].max(axis=0))
        x, y = expected
    MPI.Request.Waitall(requests)
    assert (came == by).all()


def test_groups_of_ranks_may_have_separate_networks() -> None:
    """Every second rank runs another graph at the same time."""
    part = WORLD.Split(WORLD.rank % 2, WORLD.rank)
    m = 3 * part.size + WORLD.rank % 2
    network = MpiNetwork(topology.ring(m), MPI.Intracomm(part), timeout=None)
    x = numbers(m)
    y = network.gossip(x[network.local])
    np.testing.assert_allclose(y, applied(network.topology.gossip_sparse, x)[network.local], atol=1e-14)
    np.testing.assert_array_equal(network.reduce(x[network.local], "max"), x.max(axis=0))
    mean = exact_average(network, x[network.local])
    np.testing.assert_allclose(mean.reshape(4, 2), x.mean(axis=0), atol=1e-14)
    network.close()
    part.Free()


# -------------------------------------------------------------------------------------------- weights of their own


def pairs(m: int, first: int = 0) -> Csr:
    """Return weights by which agents j and j + 1 average for every second j; others keep their values."""
    L = np.eye(m)
    for j in range(first, m - 1, 2):
        L[j : j + 2, j : j + 2] = 0.5
    return csr(L)


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_round_may_have_its_own_weights(name: str) -> None:
    """Between full rounds there are changing pairs, directed weights, stored zeros, and rounds without messages."""
    network = laid_out(name, "path")
    m, here = network.n_agents, network.local
    down = np.eye(m)
    for j in range(1, m):
        down[j, j - 1 : j + 1] = 0.25, 0.75  # from j − 1 to j only
    stored = csr(network.topology.gossip_sparse.copy())
    stored.data[(stored.indices % 3) == 1] = 0.0
    x = numbers(m, (3, 2))
    for weights in (pairs(m), pairs(m, 1), None, csr(down), stored, csr(np.eye(m)), None, pairs(m)):
        expected = applied(network.topology.gossip_sparse if weights is None else weights, x)
        before = network.traffic.messages
        y = network.gossip(x[here], weights)
        np.testing.assert_allclose(y, expected[here], rtol=0, atol=1e-14)
        used = (network.topology.gossip_sparse if weights is None else weights).toarray()
        np.fill_diagonal(used, 0.0)
        assert network.traffic.messages - before == np.count_nonzero(used[:, here])  # column j is what agent j sends
        x = expected


@pytest.mark.parametrize("name", FEW)
def test_invalid_weights_are_rejected_before_anything_is_sent(name: str) -> None:
    network = laid_out(name, "path")
    m = network.n_agents
    x = numbers(m)[network.local]
    if m > 2:
        far = np.eye(m)
        far[0, m - 1] = far[m - 1, 0] = 0.5
        with pytest.raises(TopologyError):
            network.gossip(x, csr(far))
    with pytest.raises(TopologyError) as caught:
        network.gossip(x, csr(np.eye(m + 1)))
    assert f"({m}, {m})" in str(caught.value)
    y = network.gossip(x)
    np.testing.assert_allclose(y, applied(network.topology.gossip_sparse, numbers(m))[network.local], atol=1e-14)


# ----------------------------------------------------------------------------------------------------------- traffic


@pytest.mark.parametrize("graph", ["random", "star", "complete", "path"])
@pytest.mark.parametrize("name", FEW)
def test_bytes_that_leave_the_rank_are_counted_once_per_neighbouring_rank(name: str, graph: str) -> None:
    """Messages between neighbours on the same rank do not leave the rank, though they count as traffic."""
    network, shares = laid_out(name, graph), shares_of(name)
    place, rank_of = network.topology, np.repeat(np.arange(RANKS), shares)
    links = sum(len(place.neighbors(j)) for j in network.local)
    ranks = sum(len({rank_of[i] for i in place.neighbors(j)} - {WORLD.rank}) for j in network.local)
    x = numbers(place.n_agents)[network.local]
    assert network.bytes_to_other_ranks == 0
    network.gossip(x)
    assert network.bytes_to_other_ranks == ranks * 4 * 2 * 8
    assert (network.traffic.rounds, network.traffic.messages) == (1, links)
    assert network.traffic.bytes_sent == links * 4 * 2 * 8
    _, copies = network.gossip_compressed(x, None, "float16")
    network.gossip_compressed(x, copies, "float16")
    assert network.bytes_to_other_ranks == ranks * (4 * 2 * 8 + 5 * 2 * 8 + 5 * 2 * 2)  # exponents take another row
    assert network.traffic.bytes_sent == links * (4 * 2 * 8 + 5 * 2 * 8 + 5 * 2 * 2)
    before = network.bytes_to_other_ranks
    network.reduce(x, "max")
    network.gossip(x, csr(np.eye(place.n_agents)))
    assert network.bytes_to_other_ranks == before
    if graph == "path":
        weights = pairs(place.n_agents)
        network.gossip(x, weights)
        partners = [j + 1 if j % 2 == 0 else j - 1 for j in network.local]
        away = [i for i in partners if i < place.n_agents and rank_of[i] != WORLD.rank]
        assert network.bytes_to_other_ranks - before == len(away) * 4 * 2 * 8


@pytest.mark.parametrize("name", FEW)
def test_traffic_of_all_ranks_matches_the_simulator(name: str) -> None:
    network = laid_out(name)
    simulated = SimulatedNetwork(network.topology)
    x = numbers(network.n_agents)
    for one, values in ((network, x[network.local]), (simulated, x)):
        FastMix(3)(one, values)
        TreeSweep()(one, values)
    sent = np.array([network.traffic.messages, network.traffic.bytes_sent, network.traffic.agents])
    WORLD.Allreduce(MPI.IN_PLACE, sent)
    expected = simulated.traffic
    assert network.traffic.rounds == expected.rounds
    assert sent.tolist() == [expected.messages, expected.bytes_sent, expected.agents]


# ----------------------------------------------------------------------------------------------------- coded messages


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("name", LAYOUTS)
def test_compressed_rounds_match_the_simulator(name: str, code: Code) -> None:
    """Copies at both ends have the same bits, round after round, for columns of very different size."""
    network = laid_out(name)
    m, here, place = network.n_agents, network.local, network.topology
    simulated = SimulatedNetwork(place)
    far = sorted({i for j in here for i in place.neighbors(j)} - set(here.tolist()))
    mine: Copies | None = None
    copies: Copies | None = None
    for step in range(5):
        x = numbers(m, (6, 3), seed=step) * np.array([1.0, 1e-9, 1e200])
        expected, copies = simulated.gossip_compressed(x, copies, code)
        y, mine = network.gossip_compressed(x[here], mine, code)
        np.testing.assert_array_equal(mine.own, copies.own[here])
        if far:
            np.testing.assert_array_equal(mine.others[0], copies.own[far])
        size = np.abs(x).max(axis=(0, 1))
        assert (np.abs(y - expected[here]) <= 1e-13 * size).all()


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("shape", [(), (5,), (0,), (4, 0), (2, 3, 2)], ids=str)
def test_compressed_arrays_may_have_any_shape(shape: tuple[int, ...], code: Code) -> None:
    network = laid_out("uneven")
    simulated = SimulatedNetwork(network.topology)
    x = numbers(network.n_agents, (2, *shape))
    expected, known = simulated.gossip_compressed(x[:, 0], None, code)
    expected, _ = simulated.gossip_compressed(x[:, 1], known, code)
    _, copies = network.gossip_compressed(x[network.local, 0], None, code)
    y, _ = network.gossip_compressed(x[network.local, 1], copies, code)
    np.testing.assert_allclose(y, expected[network.local], rtol=0, atol=1e-13)


# ------------------------------------------------------------------------------------------------------------ agreed


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 2), (0,)], ids=str)
@pytest.mark.parametrize("name", FEW)
def test_reductions_match_numpy(name: str, shape: tuple[int, ...], op: Op) -> None:
    network = laid_out(name)
    x = numbers(network.n_agents, shape)
    expected = x.min(axis=0) if op == "min" else x.max(axis=0)
    found = network.reduce(x[network.local], op)
    assert found.shape == shape
    np.testing.assert_array_equal(found, expected)
    whole = (10.0 * x).astype(np.int64)
    np.testing.assert_array_equal(
        network.reduce(whole[network.local].astype(np.float64), op), getattr(whole, op)(axis=0)
    )


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("who", [0, -1])
@pytest.mark.parametrize("name", ["one each", "uneven"])
def test_nan_and_infinities_reach_all_agents(name: str, who: int, op: Op) -> None:
    """NaN at one agent gives NaN to all, even beside infinities; an infinity is an ordinary number."""
    network = laid_out(name)
    x = numbers(network.n_agents, (7,))
    x[who, 0] = np.nan
    x[who, 1], x[0, 2], x[-1, 3] = np.inf, -np.inf, np.inf
    x[:, 4], x[:, 5] = np.nan, -np.inf
    x[0, 6], x[-1, 6] = np.inf, np.nan
    reduced = np.minimum.reduce(x) if op == "min" else np.maximum.reduce(x)
    np.testing.assert_array_equal(network.reduce(x[network.local], op), reduced)
    np.testing.assert_array_equal(network.reduce_later(x[network.local], op).value, reduced)
    assert np.isnan(reduced[[0, 4, 6]]).all()


def test_an_unknown_reduction_is_rejected_before_anything_is_sent() -> None:
    network = laid_out("one each")
    with pytest.raises(InvalidInput) as caught:
        network.reduce_later(np.zeros((1, 2)), "sum")  # type: ignore[arg-type]
    assert "sum" in str(caught.value)
    np.testing.assert_array_equal(network.reduce(network.local[:, None].astype(np.float64), "max"), [float(RANKS - 1)])


def test_pending_values_may_be_read_at_any_time_and_in_any_order() -> None:
    network = laid_out("uneven", "path")
    x = numbers(network.n_agents, (5,))
    under_way: list[PendingReduction] = [network.reduce_later(x[network.local] * i, "max") for i in range(1, 6)]
    assert under_way[3].value is not None
    for i in (5, 1, 3, 2, 4):
        np.testing.assert_array_equal(under_way[i - 1].value, (x * i).max(axis=0))
    assert all(pending.ready == (network.topology.flood_rounds == 0) for pending in under_way)
    assert network.traffic.control_rounds == 0


@pytest.mark.parametrize("how", ["forget", "epoch", "close"])
def test_unread_reductions_are_completed(how: str) -> None:
    """Unread reductions do not disturb later ones, and their values may still be read."""
    network = laid_out("uneven", "path")
    x = numbers(network.n_agents, (2,))
    pending = [network.reduce_later(x[network.local] + i, "min") for i in range(3)]
    if how == "forget":
        network.discard_pending()
    elif how == "epoch":
        network.announce_epoch(3)
        with pytest.raises(EpochChanged):
            network.gossip(x[network.local])
        network.begin(3, 0)
    else:
        other = MpiNetwork(network.topology, WORLD, agents_per_rank=shares_of("uneven"), timeout=None)
        pending = [other.reduce_later(x[network.local] + i, "min") for i in range(3)]
        other.close()
    np.testing.assert_array_equal(network.reduce(x[network.local], "max"), x.max(axis=0))
    network.gossip(x[network.local])
    for i, value in enumerate(pending):
        np.testing.assert_array_equal(value.value, x.min(axis=0) + i)
    if network.topology.flood_rounds:
        assert not any(value.ready for value in pending)  # no longer carried by rounds


@pytest.mark.parametrize("name", ["one each", "uneven"])
def test_unread_values_may_be_dropped(name: str) -> None:
    """MPI still writes to their buffers, so the memory must not be reused before."""
    network = laid_out(name, "path")
    x = numbers(network.n_agents, (64,))[network.local]
    wrong = 0
    for _ in range(40):
        for _ in range(5):
            network.reduce_later(x, "max")
        for _ in range(network.topology.flood_rounds):
            network.gossip(x[:, :1])  # enough rounds to carry them to all agents
        others = [np.zeros(128, dtype=np.int64) for _ in range(10)]  # as large as the dropped buffers
        network.reduce(x[:, 0], "min")
        wrong += sum(int(np.count_nonzero(other)) for other in others)
    assert wrong == 0


# ---------------------------------------------------------------------------------------------- means by MPI_Allreduce


@pytest.mark.parametrize("name", LAYOUTS)
def test_an_exact_sum_is_one_collective_operation(name: str) -> None:
    network = laid_out(name, "path")
    x = numbers(network.n_agents, (3, 4)) * 10.0 ** np.arange(-6, 6, 3)
    before, left = network.traffic, network.bytes_to_other_ranks
    mean = exact_average(network, x[network.local], Unit(-80, 2))
    traffic = network.traffic - before
    np.testing.assert_array_equal(mean, exact_average(SimulatedNetwork(network.topology), x, Unit(-80, 2)))
    depth = (RANKS - 1).bit_length()
    assert (traffic.rounds, traffic.messages) == (depth, depth)
    # the number of agents, and two words per number in halves
    assert traffic.bytes_sent == network.bytes_to_other_ranks - left == depth * (1 + 12 * 4) * 8


@pytest.mark.parametrize("name", FEW)
def test_allreduce_is_the_same_mixer_as_in_the_simulator(name: str) -> None:
    """The map is the same even if the network does not prefer allreduce."""
    network = laid_out(name)
    x = numbers(network.n_agents)
    mixed = AllReduce()(network, x[network.local])
    np.testing.assert_allclose(mixed, np.broadcast_to(x.mean(axis=0), mixed.shape), atol=1e-15)
    whole = AllReduce()(SimulatedNetwork(network.topology), x)
    np.testing.assert_allclose(mixed, whole[network.local], atol=1e-15)
    pending = network.reduce_later(x[network.local, 0], "max")
    AllReduce()(network, x[network.local])
    assert pending.ready  # an exact average carries values to all agents
    with pytest.raises(MixingError):
        AllReduce(messages="float32")


def test_allreduce_requires_an_operation_over_all_agents() -> None:
    with pytest.raises(MixingError, match="TreeSweep"):
        AllReduce()(AgentNetwork(topology.complete(1), 0), np.ones((2, 1)))


@pytest.mark.parametrize("reliable", [True, False])
@pytest.mark.parametrize("method", [BlockKrylov, CovarianceAveraging, AcceleratedDeEPCA, DeEPCA])
def test_algorithms_can_average_by_allreduce(method: type[Any], reliable: bool) -> None:
    """Exact averages and certificates by MPI_Allreduce give the pooled answer, and the one that a tree gives.

    On unreliable networks averages are gossiped, whatever MPI offers.
    """
    place = graph_of("uneven")
    stack = spectrum_problem(place.n_agents, 8, spectrum(8, 2, decay=0.7), 3, heterogeneity=0.5 * (RANKS > 1))
    W0, U = deepca.operators.linalg.random_orthonormal(8, 2, seed=1), pooled_answer(stack, 2)[1]
    results = []
    for allreduce in (True, False):
        network = network_on(place, shares_of("uneven"), allreduce=allreduce)
        network.reliable = reliable
        results.append(deepca.solve(method(stack, W0, network), max_iter=300, stop=Tolerance(1e-10)))
    for result in results:
        assert result.status.code == "converged", result.status
        assert worst_tangent(U, result.W) <= 1e-10
        assert result.certificate is not None
        assert result.certificate.proves(1e-10)
        assert result.certificate.n_agents == place.n_agents
    assert results[0].iterations == results[1].iterations
    np.testing.assert_allclose(results[0].W, results[1].W, rtol=0, atol=1e-11)
    if reliable and RANKS > 2:
        rounds = [result.certificate.traffic.rounds for result in results if result.certificate is not None]
        assert rounds[0] < rounds[1]


# -------------------------------------------------------------------------------------------------- whole runs, shares


@pytest.mark.parametrize("method", [DeEPCA, AcceleratedDeEPCA, BlockKrylov])
@pytest.mark.parametrize("name", FEW)
def test_runs_do_not_depend_on_shares(name: str, method: type[Any]) -> None:
    """Numbers and iterations equal those of the simulator for all shares."""
    place = graph_of(name)
    stack = spectrum_problem(place.n_agents, 7, spectrum(7, 2, decay=0.6), 3, heterogeneity=0.4 * (place.n_agents > 1))
    W0 = deepca.operators.linalg.random_orthonormal(7, 2, seed=1)
    network = network_on(place, shares_of(name))
    result = deepca.solve(method(stack, W0, network), max_iter=200, stop=Tolerance(1e-9))
    simulated = deepca.solve(method(stack, W0, SimulatedNetwork(place)), max_iter=200, stop=Tolerance(1e-9))
    assert result.status.code == simulated.status.code == "converged"
    assert result.iterations == simulated.iterations
    if method is not BlockKrylov:  # exact sums are collective operations
        assert result.traffic.rounds == simulated.traffic.rounds
    np.testing.assert_allclose(result.W, simulated.W[network.local], rtol=0, atol=1e-11)
    digests = np.frombuffer(result.certificate.digest.encode(), dtype=np.uint8)  # type: ignore[union-attr]
    at_all = np.empty((RANKS, digests.size), dtype=np.uint8)
    WORLD.Allgather(digests, at_all)
    assert (at_all == digests).all()


def test_a_run_resumes_with_other_shares() -> None:
    """The state is gathered and redistributed; the run is the same as with the first shares."""
    place = graph_of("uneven")
    m = place.n_agents
    stack = spectrum_problem(m, 7, spectrum(7, 2, decay=0.6), 3, heterogeneity=0.4 * (m > 1))
    W0 = deepca.operators.linalg.random_orthonormal(7, 2, seed=1)

    def run(shares: Sequence[int] | None, max_iter: int, start: Any = None) -> tuple[MpiNetwork, Any]:
        network = network_on(place, shares)
        algorithm = DeEPCA(stack, W0, network, FastMix(4))
        return network, deepca.solve(algorithm, max_iter=max_iter, start=start, certify=False).state

    before, first = run(shares_of("uneven"), 7)
    held = {name: of_all(before, getattr(first, name)) for name in ("W", "S", "AW")}
    others = network_on(place)
    _, second = run(None, 8, type(first)(first.t, **{name: x[others.local] for name, x in held.items()}))
    last, whole = run(shares_of("uneven"), 15)
    assert second.t == whole.t == 15
    np.testing.assert_allclose(of_all(others, second.W), of_all(last, whole.W), rtol=0, atol=1e-12)


# ------------------------------------------------------------------------------------------- operators of all agents


@pytest.mark.parametrize("name", FEW)
def test_operators_of_all_agents_are_restricted_to_local_ones(name: str) -> None:
    """Operators may have any form; those of the local agents are used unchanged."""
    network = laid_out(name)
    m, here = network.n_agents, network.local
    rows = random_rows(m, [3 + j % 4 for j in range(m)], 5, seed=2)
    grams = np.stack([X.T @ X for X in rows])
    x = numbers(m, (5, 2))
    expected = np.einsum("jab,jbk->jak", grams, x)[here]
    for A in (
        grams,
        grams[here],
        from_matrices(grams),
        from_rows(rows, form="rows"),
        from_rows(rows, form="covariance"),
        from_rows([sparse.csr_array(X) for X in rows], form="rows"),
        from_rows([rows[j] for j in here], form="rows"),
    ):
        local = matching_operator(A, network)
        assert local.batch == network.batch
        np.testing.assert_allclose(local @ x[here], expected, atol=1e-12)
    counts = matching_operator(from_rows(rows, form="covariance"), network).row_counts
    assert counts is not None
    np.testing.assert_array_equal(counts, [len(rows[j]) for j in here])


def test_an_operator_of_one_agent_suffices_if_a_rank_holds_one() -> None:
    network = laid_out("one each")
    A = np.diag([3.0, 2.0, 1.0])
    np.testing.assert_array_equal(matching_operator(A, network).dense(), A[None])


@pytest.mark.skipif(RANKS == 1, reason="one rank holds all agents")
def test_operators_of_another_number_of_agents_are_rejected() -> None:
    network = laid_out("three each")
    with pytest.raises(DataError, match=r"2 agents.* 3 agents"):
        matching_operator(np.stack([np.eye(4)] * 2), network)
    with pytest.raises(DataError):
        matching_operator(np.eye(4), network)


def test_as_many_matrices_as_agents_are_those_of_all_agents() -> None:
    """They are not mistaken for the matrices of this rank."""
    network = laid_out("three each")
    stack = np.stack([(j + 1.0) * np.eye(2) for j in range(network.n_agents)])
    local = matching_operator(stack, network)
    np.testing.assert_array_equal(local.dense()[:, 0, 0], network.local + 1.0)


# ------------------------------------------------------------------------------------------------------ shared memory

NODES: dict[str, Callable[[], Any]] = {
    "one machine": lambda: None,
    "all apart": lambda: MPI.COMM_SELF,
    "two and two": lambda: WORLD.Split(WORLD.rank // 2, WORLD.rank),
    "first apart": lambda: WORLD.Split(min(WORLD.rank, 1), WORLD.rank),
}


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("graph", ["ring", "path", "star", "complete"])
def test_rounds_work_within_and_between_machines(graph: str, node: str) -> None:
    """The rounds have rows that grow and shrink, compressed messages, and weights of their own."""
    network = laid_out("one each", graph, node=NODES[node]())
    place, here = network.topology, network.local
    simulated = SimulatedNetwork(place)
    weights = pairs(place.n_agents) if graph in ("ring", "path", "complete") else csr(np.eye(place.n_agents))
    copies: tuple[Copies | None, Copies | None] = (None, None)
    for step in range(60):
        n = (3, 5, 700, 40, 1, 9000)[step % 6]
        x = numbers(place.n_agents, (n,), seed=step)
        np.testing.assert_allclose(network.gossip(x[here]), simulated.gossip(x)[here], rtol=0, atol=1e-14)
        if step % 5 == 1:
            y, z = network.gossip(x[here], weights), simulated.gossip(x, weights)
            np.testing.assert_allclose(y, z[here], rtol=0, atol=1e-14)
        if step % 4 == 2:
            y, mine = network.gossip_compressed(x[here], copies[0], "float16")
            z, known = simulated.gossip_compressed(x, copies[1], "float16")
            np.testing.assert_allclose(y, z[here], rtol=0, atol=1e-13)
            copies = (mine, known)


@pytest.mark.parametrize("node", NODES)
def test_consecutive_rounds_do_not_race(node: str) -> None:
    """A row that is written too early, or read too late, would change the result."""
    network = laid_out("one each", "ring", node=NODES[node]())
    x = numbers(network.n_agents, (2000,))
    L, y = network.topology.gossip_matrix, x[network.local]
    rounds = 300
    for _ in range(rounds):
        y = network.gossip(y)
    np.testing.assert_allclose(y, (np.linalg.matrix_power(L, rounds) @ x)[network.local], rtol=0, atol=1e-12)


@pytest.mark.parametrize("who", [0, RANKS - 1])
@pytest.mark.parametrize("step", ["making", "finding", "filling"])
def test_messages_replace_memory_that_cannot_be_shared(monkeypatch: pytest.MonkeyPatch, step: str, who: int) -> None:
    """If one rank has no memory left, or cannot open that of others, all ranks send messages instead."""
    real = os.open

    def refused(path: Any, flags: int, *more: Any, **given: Any) -> int:
        if Path(path).name.startswith("deepca-") and bool(flags & os.O_CREAT) == (step == "making"):
            raise OSError("no such file")
        return real(path, flags, *more, **given)

    if WORLD.rank == who:
        if step == "filling":
            monkeypatch.setattr(os, "posix_fallocate", _no_space)
        else:
            monkeypatch.setattr(os, "open", refused)
    network = laid_out("one each", "ring")
    for seed, n in enumerate((4, 9000, 4)):
        x = numbers(network.n_agents, (n,), seed=seed)
        y = network.gossip(x[network.local])
        np.testing.assert_allclose(y, (network.topology.gossip_matrix @ x)[network.local], rtol=0, atol=1e-14)


def test_messages_replace_memory_that_runs_out_later() -> None:
    """There is enough memory for short rows, but not for long ones."""
    network = laid_out("one each", "ring")
    x = numbers(network.n_agents, (5,))
    network.gossip(x[network.local])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mmap, "mmap", _no_space)
        for n in (100_000, 5, 100_000):
            x = numbers(network.n_agents, (n,), seed=n)
            y = network.gossip(x[network.local])
            np.testing.assert_allclose(y, (network.topology.gossip_matrix @ x)[network.local], rtol=0, atol=1e-14)


def _no_space(*_: object) -> Any:
    raise OSError("no space left on device")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="Linux")
def test_shared_memory_has_no_name_and_is_released() -> None:
    """So nothing is left behind, whatever ends the job."""

    def mapped() -> list[str]:
        lines = Path("/proc/self/maps").read_text().splitlines()
        return [line for line in lines if "/deepca-" in line]

    gc.collect()
    before = len(mapped())
    network = MpiNetwork(graph_of("one each", "ring"), WORLD, timeout=None)
    network.gossip(numbers(network.n_agents, (50_000,))[network.local])
    during = mapped()
    if RANKS > 1:
        assert len(during) > before
    assert all(line.endswith("(deleted)") for line in during)
    network.close()
    del network
    gc.collect()
    assert len(mapped()) == before


# ------------------------------------------------------------------------------------------------------------- closing


def test_communicators_are_freed() -> None:
    """The number of communicators is limited. All sizes and kinds of exchanges are used before closing."""
    for i in range(120):
        name = FEW[i % len(FEW)]
        network = MpiNetwork(graph_of(name, "ring"), WORLD, agents_per_rank=shares_of(name), timeout=None)
        x = numbers(network.n_agents, (3,))
        network.gossip(x[network.local])
        network.gossip(x[network.local], csr(np.eye(network.n_agents)))
        network.reduce_later(x[network.local], "max")
        network.close()
    last = laid_out("uneven")
    assert float(last.reduce(last.local[:, None].astype(np.float64), "max")[0]) == last.n_agents - 1


def test_a_sweep_over_a_tree_is_exact_with_several_agents_per_rank() -> None:
    """Only some ranks take part in each round."""
    for name in LAYOUTS:
        network = laid_out(name)
        x = numbers(network.n_agents, (3,))
        before = network.traffic
        for _ in range(3):
            mixed = TreeSweep()(network, x[network.local])
            np.testing.assert_allclose(mixed, np.broadcast_to(x.mean(axis=0), mixed.shape), rtol=0, atol=1e-14)
        assert (network.traffic - before).rounds == 3 * TreeSweep().length(network.topology)


def test_all_ranks_use_the_spectrum_of_the_first() -> None:
    """On ranks with different processors, the last digits of a large graph's spectrum would differ."""
    place = graph_of("many")
    own = place.with_spectrum(place.spectrum * (1.0 + 1e-14 * WORLD.rank))
    found = network_on(own, shares_of("many")).topology.spectrum
    for other in WORLD.allgather(found.tobytes()):
        assert other == found.tobytes()
    np.testing.assert_allclose(found, place.spectrum, rtol=1e-12)
