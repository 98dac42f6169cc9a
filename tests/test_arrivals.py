"""Arrays are checked on arrival: the one that sent it is named, by the one that received it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from deepca.data.holdings import read
from deepca.data.sources import ArraySource
from deepca.errors import BadArray, DataError
from deepca.experiments.faults.liars import ARRAYS
from deepca.networks.agent import AgentNetwork, run_agents
from deepca.networks.arrivals import Part, fault_in
from deepca.pca import Settings, decompose_held
from deepca.topology import hypercube, path, ring
from deepca.transports.base import Message, Tag
from deepca.transports.memory import MemoryHub, MemoryTransport

M, LIAR = 4, 2


class _Lying:
    reliable = True

    def __init__(self, inner: MemoryTransport, phase: str, change: Callable[[Message], Message]) -> None:
        self._inner, self._phase, self._change = inner, phase, change

    def exchange(self, tag: Tag, outgoing: Any, sources: Any, /) -> dict[int, Message]:
        if tag.phase == self._phase:
            outgoing = {j: self._change(one) if one.payload is not None else one for j, one in outgoing.items()}
        return self._inner.exchange(tag, outgoing, sources)


class _Hub(MemoryHub):
    def __init__(self, phase: str, change: Callable[[Message], Message]) -> None:
        super().__init__(M, timeout=30.0)
        self._lie = phase, change

    def transport(self, agent: int) -> Any:
        honest = super().transport(agent)
        return _Lying(honest, *self._lie) if agent == LIAR else honest


def _work(rows: list[Any], settings: Settings) -> Callable[[AgentNetwork], Any]:
    def work(network: AgentNetwork) -> Any:
        source = ArraySource(rows[network.agent], f"rows {network.agent}")
        return decompose_held(read((source,)), network, settings)

    return work


def _rows(scale: float = 1.0) -> list[Any]:
    rng = np.random.default_rng(3)
    return [scale * rng.standard_normal((20, 6)) * np.geomspace(3.0, 0.3, 6) for _ in range(M)]


@pytest.mark.parametrize("topology", [path(M), ring(M), hypercube(2)], ids=lambda one: one.name)
@pytest.mark.parametrize("what", ARRAYS)
def test_the_sender_is_named(what: str, topology: Any) -> None:
    phase, change = ARRAYS[what]
    algorithm = "deepca" if phase == "step" else "auto"
    with pytest.raises(BadArray) as caught:
        run_agents(topology, _work(_rows(), Settings(2, algorithm=algorithm)), hub=_Hub(phase, change))
    assert (caught.value.agent, caught.value.phase, caught.value.by) == (LIAR, phase, None)


@pytest.mark.parametrize("algorithm", ["auto", "deepca", "accelerated", "covariance"])
@pytest.mark.parametrize("topology", [path(M), ring(M), hypercube(2)], ids=lambda one: one.name)
def test_nobody_is_named_where_nobody_lies(algorithm: str, topology: Any) -> None:
    found = run_agents(topology, _work(_rows(), Settings(2, algorithm=algorithm, tol=1e-8)), timeout=30.0)
    assert all(one.n_rows == 20 * M for one in found)


@pytest.mark.parametrize("where", [0, 1, 3])
def test_numbers_that_overflow_at_an_honest_agent_name_nobody(where: int) -> None:
    rows = _rows()
    rows[where] = rows[where] * 1e160
    with pytest.raises(DataError, match="overflow"):
        run_agents(path(M), _work(rows, Settings(2)), timeout=30.0)


def test_sums_that_overflow_between_honest_agents_name_nobody() -> None:
    with pytest.raises(DataError, match="overflow"):
        run_agents(path(M), _work(_rows(2e153), Settings(2)), timeout=30.0)


PARTS = (Part("row counts", 1, True, True), Part("weights", 1, True), Part("sums", 2))


@pytest.mark.parametrize(
    ("values", "unit", "right"),
    [
        ((3.0, 2.5, -1.0, 0.0), 1.0, True),
        ((2.5, 2.5, 0.0, 0.0), 1.0, False),
        ((2.5, 2.5, 0.0, 0.0), 0.25, True),
        ((-3.0, 2.5, 0.0, 0.0), 1.0, False),
        ((3.0, -2.5, 0.0, 0.0), 1.0, False),
        ((3.0, 2.5, np.inf, 0.0), 1.0, False),
        ((3.0, 2.5, 1e308, 1e308), 1.0, True),
        ((1e300, 2.5, 0.0, 0.0), 1.0, True),
    ],
)
def test_counts_are_whole_and_not_negative(values: tuple[float, ...], unit: float, right: bool) -> None:
    like = np.zeros(4)
    assert (fault_in(np.array(values), like, PARTS, unit=unit) == "") is right


def test_infinity_may_be_agreed_on_and_nan_not() -> None:
    like = np.zeros(2)
    assert not fault_in(np.array([-np.inf, np.inf]), like, finite=False)
    assert fault_in(np.array([np.nan, 0.0]), like, finite=False)


def test_values_to_agree_on_are_checked_too() -> None:
    def change(message: Message) -> Message:
        return replace(message, riders=tuple(np.full(rider.shape, np.nan) for rider in message.riders))

    hub = _Hub("step", change)
    with pytest.raises(BadArray) as caught:
        run_agents(ring(M), _work(_rows(), Settings(2, algorithm="deepca")), hub=hub)
    assert caught.value.agent == LIAR
