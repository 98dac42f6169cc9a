"""Families of problems on which orthonormalisations are compared, each with its own K."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from deepca.consensus.mixers import Chebyshev, FastMix, Mixer
from deepca.data.libsvm import DATA_SETS
from studies.shared.problems import Arrangement, Graph, Problem
from studies.shared.synthetic import Synthetic, drop_for_condition

__all__ = ["Family", "Group", "MixerName", "families", "few_rounds", "mixer_of", "work_of"]

Group = Literal["plain", "close", "condition", "division", "rounding", "few rounds"]
MixerName = Literal["FastMix", "Chebyshev"]
_MIXERS: dict[MixerName, Callable[[int], Mixer]] = {"FastMix": FastMix, "Chebyshev": Chebyshev}
_K, _AGENTS, _D = 4, 20, 30


@dataclass(frozen=True)
class Family:
    """Draws of one kind of problem.

    Parameters
    ----------
    name : str
        Name shown in tables.
    group : str
        Group of families, by what makes them hard.
    problem : Problem
        Problem of the first draw.
    rounds : int
        Rounds per iteration K.
    draws : tuple of int
        Seeds, in order of priority: the reduced study takes the first ones.
    mixer : str
        Name of the mixer.
    """

    name: str
    group: Group
    problem: Problem
    rounds: int
    draws: tuple[int, ...]
    mixer: MixerName = "FastMix"

    def problems(self) -> list[Problem]:
        """Return the problem of every draw."""
        return [replace(self.problem, draw=draw) for draw in self.draws]


def mixer_of(name: MixerName, rounds: int) -> Mixer:
    """Return the named mixer with a fixed number of rounds."""
    return _MIXERS[name](rounds)


def work_of(problem: Problem) -> float:
    """Estimate the relative duration of a run: iterations implied by the gap times the cost of one."""
    if isinstance(problem.data, Synthetic):
        # without a gap, the next one determines the rate
        iterations, d = math.log(1e-8) / math.log1p(-(problem.data.gap or problem.data.tail)), problem.data.d
    else:
        iterations = {"digits": 120.0, "a9a": 140.0, "w8a": 300.0}[problem.data]
        d = DATA_SETS[problem.data].n_features if problem.data in DATA_SETS else 64
    return iterations * (1.0 + problem.agents * d * d / 6e5)


def families(*, reduced: bool = False) -> list[Family]:
    """Return the families whose K is large enough for the method to work."""
    found = [*_plain(), *_close(), *_condition(), *_division(), *_rounding()]
    if not reduced:
        return found
    return [replace(family, draws=family.draws[:2]) for family in found if work_of(family.problem) < 500.0]


def few_rounds(*, reduced: bool = False) -> list[Family]:
    """Return the families with K too small, barely sufficient and sufficient."""
    few, more = (1, 2, 3, 5), (3, 5, 8, 13)
    hard: list[tuple[str, Problem, tuple[int, ...]]] = [
        ("digits on a ring", _digits("ring", "file"), more),
        ("digits on a star", _digits("star", "file"), more),
        ("digits by label on a ring", _digits("ring", "label"), more),
        ("digits by label on a star", _digits("star", "label"), more),
        ("digits on a ring, one agent holds most rows", _digits("ring", "one-holds-most"), more),
        ("indefinite", _hard("indefinite"), few),
        ("indefinite, λ₁/λ_k = 1e4", _hard("indefinite", inside=drop_for_condition(1e4, _K)), (8, 13, 20, 40)),
        ("opposite halves, nothing in common", _synthetic("opposite", gap=0.3, heterogeneity=1.0), few),
        ("a9a, one agent holds most rows", _rows("a9a", "one-holds-most"), few),
    ]
    draws = tuple(range(1 if reduced else 4))
    return [
        Family(name, "few rounds", problem, rounds, draws)
        for name, problem, all_rounds in (hard[:1] if reduced else hard)
        for rounds in (all_rounds[1:3] if reduced else all_rounds)
    ]


def _synthetic(arrangement: Arrangement = "noise", graph: Graph = "erdos-renyi", **spectrum: float) -> Problem:
    return Problem(Synthetic(_D, **spectrum), _K, _AGENTS, graph, arrangement)


def _hard(arrangement: Arrangement, graph: Graph = "erdos-renyi", inside: float = 0.1) -> Problem:
    return _synthetic(arrangement, graph, gap=0.3, inside=inside, heterogeneity=0.9)


def _digits(graph: Graph, arrangement: Arrangement, k: int = 5) -> Problem:
    return Problem("digits", k, _AGENTS, graph, arrangement)


def _rows(data: Literal["w8a", "a9a"], arrangement: Arrangement) -> Problem:
    return Problem(data, 5, 50, arrangement=arrangement)


def _plain() -> list[Family]:
    many, some, few = _first(10), _first(6), _first(4)
    return [
        Family("gap 0.5", "plain", _synthetic(gap=0.5), 3, many),
        Family("gap 0.2", "plain", _synthetic(gap=0.2), 3, many),
        Family("gap 0.1", "plain", _synthetic(gap=0.1), 3, many),
        Family("gap 0.03", "plain", _synthetic(gap=0.03), 3, few),
        Family("gap 0.01", "plain", _synthetic(gap=0.01), 3, few),
        Family("gap 0.1, one round", "plain", _synthetic(gap=0.1), 1, many),
        Family("digits on a torus", "plain", _digits("torus", "file"), 5, some),
        Family("digits on a torus, k = 10", "plain", _digits("torus", "file", k=10), 5, some),
        # SignAdjust is known to break convergence in draws 4, 5, 18, 20 and 22
        Family("a9a, one round", "plain", _rows("a9a", "file"), 1, (4, *range(4), *range(5, 24))),
        Family("w8a", "plain", _rows("w8a", "file"), 3, few),
    ]


def _close() -> list[Family]:
    kinds: tuple[tuple[str, Arrangement, float, int], ...] = (
        ("", "noise", 0.5, 10),
        (", indefinite", "indefinite", 0.9, 6),
    )
    return [
        Family(
            (f"top k within {inside:.0e}" if inside else "top k equal") + suffix,
            "close",
            _synthetic(arrangement, gap=0.3, inside=inside, heterogeneity=heterogeneity),
            3,
            _first(draws),
        )
        for suffix, arrangement, heterogeneity, draws in kinds
        for inside in (1e-3, 1e-6, 1e-12, 0.0)
    ]


def _condition() -> list[Family]:
    kinds: tuple[tuple[str, Arrangement, float, int], ...] = (
        ("", "noise", 0.5, 10),
        (", opposite halves", "opposite", 0.9, 4),
    )
    return [
        Family(
            f"λ₁/λ_k = 1e{round(math.log10(condition))}{suffix}",
            "condition",
            _synthetic(arrangement, gap=0.5, inside=drop_for_condition(condition, _K), heterogeneity=heterogeneity),
            5,
            _first(draws),
        )
        for suffix, arrangement, heterogeneity, draws in kinds
        for condition in (1e4, 1e8, 1e12)
    ]


def _division() -> list[Family]:
    many, few = _first(10), _first(4)
    small = Synthetic(10, gap=0.82, inside=0.4, tail=0.4, heterogeneity=0.9)
    stalling = Problem(small, 3, 12, arrangement="indefinite", graph_seed=3, data_seed=5, link=0.4)
    return [
        # one graph and one set of A_j; with seed 1, SignAdjust is known to stall from the start
        Family("indefinite, few features", "division", stalling, 10, (1, 0, *range(2, 10)), "Chebyshev"),
        Family("indefinite", "division", _hard("indefinite"), 3, many),
        Family("opposite halves", "division", _hard("opposite"), 3, many),
        Family("opposite halves of a ring", "division", _hard("opposite", "ring"), 13, many),
        Family("digits by label on a torus", "division", _digits("torus", "label"), 5, few),
        Family("digits by label on a star", "division", _digits("star", "label"), 13, few),
        Family("digits on a ring, one agent holds most rows", "division", _digits("ring", "one-holds-most"), 13, few),
        Family("a9a by label", "division", _rows("a9a", "label"), 3, few),
        Family("a9a, one agent holds most rows", "division", _rows("a9a", "one-holds-most"), 5, few),
        Family("w8a by label", "division", _rows("w8a", "label"), 5, _first(2)),
    ]


def _rounding() -> list[Family]:
    """Return the families most sensitive to rounding: agents differ by about λ_1 and seek directions of size λ_k."""
    return [
        Family(
            f"λ₁/λ_k = 1e{power}, indefinite",
            "rounding" if power > 4 else "condition",
            _hard("indefinite", inside=drop_for_condition(10.0**power, _K)),
            60,
            _first(4),
        )
        for power in (4, 6, 8)
    ]


def _first(count: int) -> tuple[int, ...]:
    return tuple(range(count))
