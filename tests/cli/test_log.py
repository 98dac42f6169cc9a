"""The log of an agent: lines that parse, that are counted where they repeat, and that never stop an agent."""

from __future__ import annotations

import io
import json
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deepca.cli.view.log import Entry, Log, level_of, plain
from deepca.errors import InvalidInput


def lines(stream: io.StringIO) -> list[str]:
    return stream.getvalue().splitlines()


def written(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines(stream)]


def test_a_line_of_json_has_everything() -> None:
    stream = io.StringIO()
    log = Log(stream, "json", site="north")
    log("link_down", "south: it closed the connection", site="south", seconds=1.5)
    log.close()
    (entry,) = written(stream)
    assert list(entry) == ["time", "site", "level", "event", "text", "facts"]
    assert entry["time"].endswith("Z")
    assert entry["time"][-5] == "."
    assert abs(datetime.fromisoformat(entry["time"]).timestamp() - time.time()) < 60
    assert (entry["site"], entry["level"], entry["event"]) == ("north", "warning", "link_down")
    assert entry["facts"] == {"site": "south", "seconds": 1.5}


def test_a_line_of_text_is_aligned() -> None:
    stream = io.StringIO()
    log = Log(stream, site="north")
    log("epoch", "EPOCH TEXT")
    log("lost", "LOST TEXT")
    log("failed", "FAILED TEXT")
    log.close()
    first, second, third = lines(stream)
    assert first.index("EPOCH TEXT") == second.index("LOST TEXT") == third.index("FAILED TEXT")
    assert "warn" not in first
    assert "warn" in second
    assert "ERROR" in third


@pytest.mark.parametrize("event", ["refused", "lost", "waiting", "minority", "differs", "checkpoint"])
def test_what_people_should_look_at_is_a_warning(event: str) -> None:
    assert level_of(event) == "warning"


def test_that_others_leave_after_the_end_is_no_warning() -> None:
    stream = io.StringIO()
    log = Log(stream, "json")
    for event in ("lost", "finished"):
        log(event, event)
    log("lost", "after the end")
    log("refused", "somebody")
    log.close()
    assert [entry["level"] for entry in written(stream)] == ["warning", "info", "info", "warning"]


def test_repeated_lines_are_counted() -> None:
    stream = io.StringIO()
    log = Log(stream, "json", window=3600.0)
    for _ in range(12):
        log("link_down", "south: gone")
        log("link_up", "south is there")
    log("link_down", "south: gone")
    log("epoch", "epoch 2")
    log.close()
    told = [(entry["event"], entry["facts"].get("times")) for entry in written(stream)]
    # what happened last comes last: the link is down
    assert told == [("link_down", None), ("link_up", None), ("epoch", None), ("link_up", 12), ("link_down", 13)]


def test_the_count_is_told_when_the_window_is_over_though_nothing_else_happens() -> None:
    heard: list[Entry] = []
    log = Log(None, window=0.2, listener=heard.append)
    for _ in range(5):
        log("link_down", "south: gone")
    end = time.monotonic() + 20.0
    while sum(entry.times for entry in heard[1:]) < 4 and time.monotonic() < end:
        time.sleep(0.02)
    assert 2 <= len(heard) <= 4
    assert heard[0].said == "south: gone"
    assert "times in 1 s)" in heard[1].said
    log.close()


def test_nothing_follows_the_last_line() -> None:
    stream = io.StringIO()
    log = Log(stream, "json", site="north")
    for _ in range(3):
        log("lost", "south cannot be reached")
    log("stopped", "the end")
    log.end("stopped", "the end")
    log("lost", "south cannot be reached")
    log("lost", "west cannot be reached")
    log.close()
    said = written(stream)
    assert [one["event"] for one in said] == ["lost", "stopped", "lost", "stopped"]
    assert said[2]["facts"]["times"] == 3


def test_ports_of_callers_do_not_make_lines_different() -> None:
    stream = io.StringIO()
    log = Log(stream, window=3600.0)
    for port in range(40000, 40100):
        log("refused", f"127.0.0.1:{port}: it does not speak TLS")
    log.close()
    assert len(lines(stream)) == 2
    assert "(100 times" in lines(stream)[1]


def test_what_others_have_written_cannot_forge_lines_or_move_a_cursor() -> None:
    for style in ("text", "json"):
        stream = io.StringIO()
        log = Log(stream, style)
        log("refused", "x\n2026-01-01 finished \x1b[2J\u2028\x00", why="\x1b[2J\r\n")
        log.close()
        assert len(lines(stream)) == 1
        assert "\x1b" not in stream.getvalue()
        assert "\\u001b" not in stream.getvalue()


def test_long_texts_are_cut() -> None:
    stream = io.StringIO()
    log = Log(stream)
    log("refused", "x" * 1_000_000)
    log.close()
    assert len(stream.getvalue()) < 2000


def test_rows_keys_and_other_objects_are_not_written_as_facts() -> None:
    secret = b"-----BEGIN PRIVATE KEY-----"
    assert plain(secret) == f"{len(secret)} bytes"
    assert plain(np.arange(3.0)) == "(ndarray)"
    assert plain({"a": [np.float64(1.5), float("inf"), Path("x"), None, True]}) == {"a": [1.5, None, "x", None, True]}
    assert plain(object()) == "(object)"


def test_many_threads_write_whole_lines() -> None:
    stream = io.StringIO()
    log = Log(stream, "json")

    def work(j: int) -> None:
        for i in range(200):
            log("progress", f"thread {j} line {i}")

    threads = [threading.Thread(target=work, args=(j,)) for j in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close(20.0)
    assert len({entry["text"] for entry in written(stream)}) == 800


class Stuck(io.StringIO):
    """A terminal that stands still, then goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.going = threading.Event()

    def write(self, text: str) -> int:
        self.going.wait(60.0)
        return super().write(text)


def test_a_terminal_that_stands_still_stops_nobody_and_what_is_lost_is_said() -> None:
    stream = Stuck()
    log = Log(stream, "json")
    began = time.monotonic()
    for i in range(10_500):
        log("progress", f"line {i}")
    log.close(0.1)
    assert time.monotonic() - began < 30.0
    stream.going.set()
    log("progress", "one more")
    log.close(30.0)
    log.close(30.0)
    missing = [entry["facts"]["lines"] for entry in written(stream) if entry["event"] == "log"]
    assert sum(missing) >= 400


class Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_a_full_disk_stops_nobody() -> None:
    log = Log(Full())
    log("epoch", "1")
    log("epoch", "2")
    log.close()
    assert not log._thread.is_alive()


def test_a_file_is_added_to(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "agent.log"
    for _ in range(2):
        log = Log(path, "json", site="west")
        log("started", "up")
        log.close()
    assert len(path.read_text().splitlines()) == 2


def test_a_file_that_cannot_be_written_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be written"):
        Log(tmp_path)
