"""Test that received arrays are checked, and that the receiver names the sender of a bad one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from deepca.data.local_data import read
from deepca.data.sources import ArraySource
from deepca.decomposition.fit import decompose
from deepca.decomposition.settings import Settings
from deepca.errors import BadArray, DataError, NetworkError, NotFiniteError, PeerFailed, PeerTimeout
from deepca.network.agent import AgentNetwork
from deepca.network.arrivals import describe_fault
from deepca.network.threads import run_agents
from deepca.network.transports.base import Message, Tag, Transport
from deepca.network.transports.memory import MemoryHub, MemoryTransport
from deepca.operators import from_matrices
from deepca.solver.certificate.certification import certify
from deepca.topology import hypercube, path, ring, star
from studies.faults.lies import ARRAYS

M, LIAR = 4, 2
_EXTRAS = 5 + 6 * 2  # in the sum of a certificate, 5 counts and 6 × 2 words of products come first
_CERTIFICATE_WORDS = _EXTRAS + 3 * 6 + 6 * 6  # then 3 and 6 numbers of 6 words


class _Lying(Transport):
    reliable = True

    def __init__(self, inner: MemoryTransport, phase: str, change: Callable[[Message], Message]) -> None:
        self._inner, self._phase, self._change = inner, phase, change

    def exchange(self, tag: Tag, outgoing: Any, sources: Any, /) -> dict[int, Message]:
        if tag.phase == self._phase:
            outgoing = {j: self._change(one) for j, one in outgoing.items()}
        return self._inner.exchange(tag, outgoing, sources)


class _Hub(MemoryHub):
    def __init__(self, phase: str, change: Callable[[Message], Message]) -> None:
        super().__init__(M, timeout=30.0)
        self._lie = phase, change

    def transport(self, agent: int) -> Any:
        honest = super().transport(agent)
        return _Lying(honest, *self._lie) if agent == LIAR else honest


def _work(rows: list[Any], settings: Settings, *, weighted: bool = True) -> Callable[[AgentNetwork], Any]:
    def work(network: AgentNetwork) -> Any:
        source = ArraySource(rows[network.agent], f"rows {network.agent}")
        return decompose(read((source,)), network, settings, weighted=weighted)

    return work


def _rows(scale: float = 1.0) -> list[Any]:
    rng = np.random.default_rng(3)
    return [scale * rng.standard_normal((20, 6)) * np.geomspace(3.0, 0.3, 6) for _ in range(M)]


@pytest.mark.parametrize("topology", [path(M), ring(M), hypercube(2)], ids=lambda one: one.name)
@pytest.mark.parametrize("what", ARRAYS)
def test_the_sender_of_a_bad_array_is_named(what: str, topology: Any) -> None:
    phase, lie = ARRAYS[what]

    def change(message: Message) -> Message:
        return message if message.payload is None else lie(message)

    algorithm = "deepca" if phase == "step" else "auto"
    with pytest.raises(BadArray) as caught:
        run_agents(topology, _work(_rows(), Settings(2, algorithm=algorithm)), hub=_Hub(phase, change))
    assert (caught.value.agent, caught.value.phase, caught.value.by) == (LIAR, phase, None)


@pytest.mark.parametrize("algorithm", ["auto", "deepca", "accelerated", "covariance"])
@pytest.mark.parametrize("topology", [path(M), ring(M), hypercube(2)], ids=lambda one: one.name)
def test_honest_agents_are_not_blamed(algorithm: str, topology: Any) -> None:
    found = run_agents(topology, _work(_rows(), Settings(2, algorithm=algorithm, tol=1e-8)), timeout=30.0)
    assert all(one.n_rows == 20 * M for one in found)


@pytest.mark.parametrize("where", [0, 1, 3])
def test_an_overflow_at_one_agent_blames_the_data(where: int) -> None:
    rows = _rows()
    rows[where] = rows[where] * 1e160
    with pytest.raises(DataError):
        run_agents(path(M), _work(rows, Settings(2)), timeout=30.0)


def test_an_overflow_of_sums_blames_the_data() -> None:
    with pytest.raises(DataError):
        run_agents(path(M), _work(_rows(2e153), Settings(2)), timeout=30.0)


def test_infinities_can_be_allowed_but_nan_cannot() -> None:
    like = np.zeros(2)
    assert not describe_fault(np.array([-np.inf, np.inf]), like, infinities=(-np.inf, np.inf))
    assert describe_fault(np.array([np.nan, 0.0]), like, infinities=(-np.inf, np.inf))
    assert not describe_fault(np.array([-np.inf, 0.0]), like, infinities=(-np.inf,))
    assert describe_fault(np.array([0.0, np.inf]), like, infinities=(-np.inf,))


def _agreed(place: int, value: float) -> Callable[[Message], Message]:
    """Return a change of one of the pending values."""

    def change(message: Message) -> Message:
        riders = [np.array(rider) for rider in message.riders]
        for rider in riders:
            rider.reshape(-1)[place] = value
        return replace(message, riders=tuple(riders))

    return change


@pytest.mark.parametrize("topology", [path(M), ring(M)], ids=lambda one: one.name)
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(("phase", "place"), [("step", 0), ("step", 1), ("certificate", 0)])
def test_pending_values_are_checked(phase: str, place: int, value: float, topology: Any) -> None:
    """The infinity that would decide a reduction is rejected, since an honest agent would be blamed for its effects."""
    with pytest.raises(BadArray) as caught:
        run_agents(topology, _work(_rows(), Settings(2, algorithm="deepca")), hub=_Hub(phase, _agreed(place, value)))
    assert (caught.value.agent, caught.value.by) == (LIAR, None)


@pytest.mark.parametrize("value", [1e300, 1e3])
def test_an_invented_angle_gives_no_result(value: float) -> None:
    work = _work(_rows(), Settings(2, tol=1e-9, algorithm="deepca", max_iter=60))
    for found in run_agents(path(M), work, hub=_Hub("certificate", _agreed(0, value)), timeout=30.0):
        assert not found.result.status.ok, found.result.status


@pytest.mark.parametrize("squared_sine", [1.0, 0.5, 4.0])
def test_an_angle_invented_in_an_exact_sum_gives_no_result(squared_sine: float) -> None:
    work = _work(_rows(), Settings(2, tol=1e-9))
    change = _word(_EXTRAS + 3 * 3 + 2, int(squared_sine * 2.0**48), size=_CERTIFICATE_WORDS)
    for found in run_agents(path(M), work, hub=_Hub("certificate", change), timeout=30.0):
        assert not found.result.status.ok, found.result.status


@pytest.mark.parametrize("op", ["min", "max"])
def test_the_infinity_that_decides_a_reduction_is_not_sent(op: Any) -> None:
    """The sender raises, since the receiver would blame it. The opposite infinity stands for a missing value."""
    sign = 1.0 if op == "min" else -1.0

    def work(network: AgentNetwork) -> Any:
        return network.reduce(np.array([sign * np.inf if network.agent else 3.0]), op)

    assert run_agents(path(M), work) == [np.array([3.0])] * M
    with pytest.raises(NotFiniteError):
        run_agents(path(M), lambda network: network.reduce(np.array([-sign * np.inf]), op))


def test_orthogonal_agents_are_not_blamed() -> None:
    """The tangent between them is infinite, which is allowed in reductions."""
    A = np.diag([3.0, 2.0, 1.0, 0.5])

    def work(network: AgentNetwork) -> Any:
        X, other = np.eye(4)[:, :1], np.eye(4)[:, 1:2]
        return certify(from_matrices(A[None]).agent(0), X, network, W=other if network.agent == 1 else X)[0]

    assert all(found.agents_angle == np.inf == found.worst_angle for found in run_agents(path(3), work))


@pytest.mark.parametrize("topology", [path(M), ring(M), hypercube(2)], ids=lambda one: one.name)
@pytest.mark.parametrize(("place", "value"), [(0, 1000), (0, 0), (0, -1), (3, -1), (3, 1 << 60)])
def test_impossible_counts_name_their_sender(place: int, value: int, topology: Any) -> None:
    """The first word is the number of agents; the fourth, after two counts of numbers in other units, that of rows."""
    with pytest.raises(BadArray) as caught:
        run_agents(topology, _work(_rows(), Settings(2), weighted=False), hub=_Hub("mean", _word(place, value)))
    assert caught.value.agent == LIAR


@pytest.mark.parametrize(
    ("phase", "change"),
    [
        ("spread", lambda: _word(3 + 2 * 6, 1 << 50)),  # adds to the sum of squares of the first column
        ("spread", lambda: _word(3 + 3 * 6, 1 << 50)),
        # in the certificate: the fourth word of the second of 3 numbers, the row count
        ("certificate", lambda: _word(_EXTRAS + 3 * 3 + 1, 1000 << 48, size=_CERTIFICATE_WORDS)),
    ],
)
def test_numbers_that_contradict_earlier_ones_give_no_result(phase: str, change: Callable[[], Any]) -> None:
    """The changed numbers cannot belong to the same rows as those sent before."""
    with pytest.raises(NetworkError) as caught:
        run_agents(star(M), _work(_rows(), Settings(2), weighted=False), hub=_Hub(phase, change()))
    assert not isinstance(caught.value, (PeerFailed, PeerTimeout))


def _word(place: int, value: int, size: int | None = None) -> Callable[[Message], Message]:
    """Return a change of one word of an exact sum, if its messages have this size."""

    def change(message: Message) -> Message:
        if message.payload is None or message.payload.dtype != np.uint64 or size not in (None, message.payload.size):
            return message
        payload = np.array(message.payload)
        payload[place] = np.int64(value).astype(np.uint64)
        return replace(message, payload=payload)

    return change
