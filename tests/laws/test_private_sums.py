"""Law: no key masks two messages, and an agent that is sent other numbers than its peers turns the next sum into noise.

Random schedules of sums, broadcasts, interruptions, restarts, changed rows and equivocating parents are played on the
masks of several processes.
"""

from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np
import pytest

from deepca.network.sums import COUNT, WIDE, Addend, SumLayout, Unit, Words
from deepca.network.sums.masks import SumMasks, common_plan
from tests.support.engines import over_mpi
from tests.support.seeds import SHIFT

pytestmark = [pytest.mark.law, pytest.mark.skipif(over_mpi(), reason="ranks have one owner, and no masks")]

LAYOUTS = [
    SumLayout.of([Addend("numbers", np.zeros(n), unit=unit) for unit, n in units], masked=True)
    for units in (
        [(Unit(-20), 3)],
        [(Unit(-21), 3)],
        [(WIDE, 2)],
        [(COUNT, 1), (Unit(np.array([-3, -4])), 2)],
        [(COUNT, 0)],
    )
]
STEPS = 10


class Recorded(SumMasks):
    """Masks that record every key with the agent that uses it."""

    used: Counter[tuple[int, bytes]]

    def _key(self, secret: bytes, pair: tuple[int, int], layout: SumLayout) -> bytes:
        key = super()._key(secret, pair, layout)
        [agent] = self._row
        self.used[agent, key] += 1
        return key


class Schedule:
    """A random schedule on the masks of m processes."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.m, self.epoch = rng, int(rng.integers(3, 6)), 0
        self.used: Counter[tuple[int, bytes]] = Counter()
        self.keys = [rng.bytes(32) for _ in range(self.m)]
        self.detected = self.equivocations = 0
        self.enter()

    def enter(self) -> None:
        """Enter the next plan, with the keys that the processes have now."""
        self.epoch += 1
        plan = common_plan(self.keys, str(self.epoch).encode())
        self.agents = []
        for j in range(self.m):
            pairs = {(min(i, j), max(i, j)): self.secret(i, j) for i in range(self.m) if i != j}
            masks = Recorded(pairs, (j,), plan)
            masks.used = self.used
            masks.enter(self.epoch)
            self.agents.append(masks)
        self.unlike = False

    def secret(self, i: int, j: int) -> bytes:
        return hashlib.sha256(b"".join(sorted((self.keys[i], self.keys[j])))).digest()

    def restart(self) -> None:
        """Restart some processes, which get new keys, and enter another plan."""
        for j in np.flatnonzero(self.rng.random(self.m) < 0.5):
            self.keys[j] = self.rng.bytes(32)
        self.enter()

    def interrupted(self) -> None:
        """Let some agents begin a sum that is never completed."""
        layout = self.layout()
        for j in np.flatnonzero(self.rng.random(self.m) < 0.7):
            self.message(self.agents[j], layout)
        self.restart()

    def layout(self) -> SumLayout:
        return LAYOUTS[int(self.rng.integers(len(LAYOUTS)))]

    def message(self, masks: SumMasks, layout: SumLayout) -> Words:
        rows = [self.rng.integers(-9, 9, n - 1).astype(float) for n in layout.sizes[1:]]
        parts = [unit.encode(x) for unit, x in zip(layout.units[1:], rows, strict=True)]
        checked = layout.with_checks(parts, masks.weights(layout))
        return masks.hide(layout.pack([COUNT.encode(np.ones(1)), *checked]), layout)

    def sum(self) -> None:
        """Add up; afterwards a parent may tell some agents another total, with check numbers that hold."""
        layout = self.layout()
        weights = [masks.weights(layout) for masks in self.agents]
        total = layout.carry(layout.carry_free_sum(np.array([self.message(one, layout) for one in self.agents])))
        faults = [layout.describe_total_fault(total, one) for one in weights]
        if self.unlike:
            self.detected += all(faults)
            self.restart()
            return
        assert not any(faults)
        other = total
        if layout.sizes != (1, 1) and self.rng.random() < 0.3:
            parts = [part[:, :-1] + np.uint64(1) for part in layout.split(total)[1:]]
            other = layout.pack([total[None, :1], *layout.with_checks(parts, weights[0])])
            assert not layout.describe_total_fault(other, weights[0])
        self.tell(total, other)

    def broadcast(self) -> None:
        """Broadcast a block, of which some agents may get another version."""
        block = self.rng.standard_normal(4)
        self.tell(block, block + 1e-12 if self.rng.random() < 0.3 else block)

    def tell(self, numbers: np.ndarray, other: np.ndarray) -> None:
        deceived = self.rng.random(self.m) < 0.5
        for masks, lie in zip(self.agents, deceived, strict=True):
            masks.record((other if lie else numbers).tobytes())
        if not np.array_equal(numbers, other) and 0 < deceived.sum() < self.m:
            self.unlike = True
            self.equivocations += 1

    def play(self) -> None:
        for _ in range(STEPS):
            steps = [self.sum, self.sum, self.sum, self.broadcast, self.restart, self.interrupted]
            # whoever was deceived takes part in the next sum
            step = self.sum if self.unlike else steps[int(self.rng.integers(len(steps)))]
            step()
        if self.unlike:
            self.sum()


def play(schedules: int) -> None:
    rng = np.random.default_rng((4021, SHIFT))
    found = 0
    for _ in range(schedules):
        schedule = Schedule(rng)
        schedule.play()
        assert set(schedule.used.values()) <= {1}  # every agent uses a key once
        assert schedule.detected == schedule.equivocations
        found += schedule.equivocations
    assert found > schedules // 4


def test_no_key_is_used_twice_and_other_totals_are_noticed() -> None:
    play(300)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_no_key_is_used_twice_in_ten_thousand_schedules() -> None:
    play(10_000)
