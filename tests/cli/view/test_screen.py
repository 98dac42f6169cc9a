"""Test how the state of an agent is described in words and shown on the terminal."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from deepca._util.logs import EventHandler, EventLogger, attached
from deepca.algorithms.base import State
from deepca.cli.view.screen import Screen, render_screen
from deepca.network.traffic import Traffic
from deepca.sites.config.network_file import NetworkFile, SiteEntry
from deepca.sites.config.site_file import SiteFile
from deepca.sites.runtime.node import LinkSnapshot, NodeSnapshot
from deepca.sites.runtime.status import AgentSnapshot, Wait, Watch, span
from deepca.solver.observers import Start, Step
from deepca.solver.stopping import Agreed

SITES = ("north", "south", "west", "east")


def site_file(sites: tuple[str, ...] = SITES) -> SiteFile:
    network = NetworkFile(
        "three-hospitals",
        tuple(SiteEntry(name, f"127.0.0.1:{7400 + j}") for j, name in enumerate(sites)),
        4,
        topology_name="ring",
    )
    here = Path("/nowhere")
    return SiteFile(
        path=here / "site.toml",
        site="north",
        network=network,
        data=here / "rows.csv",
        label_column=None,
        dataset=None,
        model=here / "model.npz",
        state=here / "state",
        listen=None,
        deadline=60.0,
        checkpoints=True,
        authority=here / "a",
        certificate=here / "b",
        key=here / "c",
        revoked=here / "d",
        column_key=here / "e",
        plaintext=False,
    )


def link(site: str, state: Any = "up", silent: float | None = 0.1, skew: float | None = 0.0) -> LinkSnapshot:
    return LinkSnapshot(site, state, silent, 12_300, 45_600, 0, skew)


VIEW = NodeSnapshot("gathering", 0, (), (link("south"), link("east")), (), (), ())
RUNNING = replace(VIEW, phase="running", epoch=2, members=SITES)


def watch_of(view: NodeSnapshot, failure: str | None = None) -> Watch:
    watch = Watch(site_file())
    node, streams = SimpleNamespace(snapshot=lambda: view), SimpleNamespace(failure=lambda peer: failure)
    watch.attach(SimpleNamespace(node=node, streams=streams))
    return watch


def step(t: int, change: float) -> Step:
    before, after = (State(i, np.eye(3)[:, :1], np.eye(3)[:, :1]) for i in (t - 1, t))
    return Step(before, after, Traffic(), 0.0, Agreed(t, change, change / 2, 1, 1e-15))


def start() -> Start:
    return Start("deepca", None, State(0, np.eye(3)[:, :1], np.eye(3)[:, :1]), 100, 1e-10)  # type: ignore[arg-type]


def test_an_agent_that_is_starting_says_so() -> None:
    assert Watch(site_file()).snapshot().doing == "starting"


def test_missing_sites_are_named_with_the_reason() -> None:
    view = replace(VIEW, missing=("west", "east"), links=(link("south"), link("east", "down", None)))
    watch = watch_of(view, failure="nothing listens at 127.0.0.1:7403")
    watch.on_event("found", {"site": "west"})
    watch.on_event("lost", {"site": "west"})
    found = watch.snapshot()
    assert found.doing == "gathering"
    assert [wait.sites for wait in found.waits] == [("east",), ("west",)]
    assert found.waits[0].details == ("nothing listens at 127.0.0.1:7403",)
    watch.on_event("found", {"site": "west"})
    watch.on_event("lost", {"site": "south"})
    assert "west" in watch.snapshot().waits[0].sites


def test_busy_and_differing_sites_are_named() -> None:
    view = replace(VIEW, busy=("west",), differing=(("east", ("components",)), ("north", ("seed",))))
    text = watch_of(view).snapshot().waiting
    for word in ("west", "east", "components", "north", "seed"):
        assert word in text


def test_a_silent_neighbour_is_named_while_running() -> None:
    view = replace(RUNNING, links=(link("south", "silent", 12.0), link("east")))
    (wait,) = watch_of(view).snapshot().waits
    assert wait.sites == ("south",)
    assert "12 s" in wait.text


def test_a_site_that_was_left_out_is_not_waited_for() -> None:
    view = replace(RUNNING, members=("north", "south", "east"), missing=("west",))
    assert watch_of(view).snapshot().waits == ()


def test_each_phase_of_a_run_has_its_description() -> None:
    watch = watch_of(RUNNING)
    assert watch.snapshot().doing == "reading rows"
    watch.begin(start())
    watch.observe(step(1, 0.1))
    found = watch.snapshot()
    assert (found.doing, found.iteration, found.change, found.disagreement) == ("iterating", 1, 0.1, 0.05)
    watch.end(None)  # type: ignore[arg-type]
    assert watch.snapshot().doing == "agreeing on the result"
    watch.on_event("regroup", {})
    assert watch.snapshot().iteration is None


def test_a_run_without_progress_is_shown_as_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watch_of(RUNNING)
    watch.begin(start())
    watch.observe(step(1, 0.1))
    assert not watch.snapshot().waits
    now = time.monotonic() + 30.0
    monkeypatch.setattr("deepca.sites.runtime.status.time.monotonic", lambda: now)
    assert "30 s" in watch.snapshot().waiting


def test_the_remaining_time_follows_from_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("deepca.sites.runtime.status.time.monotonic", lambda: now[0])
    watch = watch_of(RUNNING)
    watch.begin(start())
    for t in range(1, 41):  # a factor of ten every ten iterations of one second
        now[0] += 1.0
        watch.observe(step(t, 10 ** (-t / 10)))
    left = watch.snapshot().left
    assert left is not None
    error = 1e-4 * 10**-0.1 / (1 - 10**-0.1)
    assert left == pytest.approx(10 * np.log10(error / 1e-10), rel=0.1)


def test_progress_and_waiting_are_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepca.sites.runtime.status.WAIT_POLL_INTERVAL", 0.01)
    monkeypatch.setattr("deepca.sites.runtime.status.MIN_LOGGED_WAIT", 0.05)
    events: list[tuple[str, str, Mapping[str, Any]]] = []
    watch = watch_of(replace(VIEW, missing=("west",)))
    with attached(EventHandler(lambda site, *event: events.append(event), "north")):
        with watch.reminding():
            end = time.monotonic() + 20.0
            while not events and time.monotonic() < end:
                time.sleep(0.01)
            time.sleep(0.2)
        (event, text, facts), *more = events
        assert not more
        assert (event, "west" in text, facts["sites"]) == ("waiting", True, ["west"])
        watch.begin(start())
        for t in (1, 2, 3):
            watch.observe(step(t, 0.1))
    (progress,) = [facts for event, _, facts in events if event == "progress"]
    assert progress["iteration"] == 1


def test_only_wrong_clocks_are_shown() -> None:
    view = replace(RUNNING, links=(link("south", skew=-3.0), link("east", skew=7.2)))
    assert [one.skew for one in watch_of(view).snapshot().links] == [None, 7.2]


# ------------------------------------------------------------------------------------------------------------- the view

BUSY = AgentSnapshot(
    "iterating",
    epoch=2,
    members=3,
    waits=(Wait(("west",), "unreachable", 12.0), Wait(("south",), "silent", 3.0)),
    iteration=1234,
    change=3e-5,
    disagreement=2e-5,
    left=125.0,
    links=(
        LinkSnapshot("south", "silent", 3.0, 1_234_567, 7_654_321, 3, None),
        LinkSnapshot("east", "down", None, 0, 0, 0, None, "nothing listens at 127.0.0.1:7403: east may not be there"),
        LinkSnapshot("a-site-with-a-very-long-name-" * 2, "up", 0.2, 123, 456, 0, -7.4),
    ),
)


def line(i: int, text: str) -> logging.LogRecord:
    level = logging.WARNING if i % 2 else logging.INFO
    return logging.makeLogRecord({"created": 1e9 + i, "levelno": level, "event": "lost", "msg": text})


LINES = [line(i, f"line {i} " + "x" * 150) for i in range(20)]


def shown(snapshot: AgentSnapshot, width: int, height: int = 40, lines: Any = LINES) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, record=True)
    console.print(render_screen(site_file(), snapshot, lines, 3723.0))
    return console.export_text().splitlines()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_view_is_complete_at_any_width(width: int) -> None:
    found = shown(BUSY, width)
    assert all(len(line.rstrip()) <= width for line in found)
    text = "\n".join(found)
    for words in (
        "north of three-hospitals · run 1",
        "1:02:03",
        "iterating · epoch 2 with 3 of 4 sites",
        "iteration 1234 · change 3e-05 · disagreement 2e-05",
        "waiting for west: unreachable for 12 s",
        "south: silent for 3.0 s",
        "sent 1.23 MB · received 7.65 MB",
        "never",
        "line 19",
    ):
        assert words in text
    if width >= 80:
        assert "2 min left" in text
        assert "nothing listens at 127.0.0.1:7403" in text
        assert "-7 s" in text
    assert "line 13" not in text


def test_links_in_trouble_come_first_if_not_all_fit() -> None:
    links = tuple(LinkSnapshot(f"site-{j}", "up" if j else "down", 0.1, 1, 1, 0, None) for j in range(49, -1, -1))
    found = shown(replace(BUSY, links=links), 80, height=24)
    rows = [line for line in found if "site-" in line]
    assert "site-0" in rows[0]
    assert len(found) <= 24
    assert any("more" in line and "of them up" in line for line in found)


def test_markup_in_texts_is_not_interpreted() -> None:
    text = "[bold]x[/] [/]"
    assert any(text in found for found in shown(BUSY, 80, lines=[line(0, text)]))


def test_the_view_is_removed_and_warnings_can_be_kept() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80, height=24)
    screen = Screen(site_file(), lambda: BUSY, console)
    events = EventLogger(logging.getLogger("deepca.sites"), "north")
    with screen, attached(screen.log):
        events.warning("west cannot be reached", event="lost")
        events.info("iteration 1", event="progress")
        events.info("epoch 3", event="epoch")
    assert [vars(record)["event"] for record in screen.lines] == ["lost", "epoch"]
    assert "iterating" in file.getvalue()
    before = len(file.getvalue())
    screen.print_last_problems()
    assert "west cannot be reached" in file.getvalue()[before:]
    assert "epoch 3" not in file.getvalue()[before:]


def test_time_spans_have_suitable_units() -> None:
    assert [span(s) for s in (0.25, 12.3, 300.0, 9000.0)] == ["0.2 s", "12 s", "5 min", "2.5 h"]
