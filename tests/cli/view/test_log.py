"""Test the log of an agent: its lines can be parsed, repetitions are counted, and failures do not stop the agent."""

from __future__ import annotations

import io
import json
import logging
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from deepca._util.logs import EventLogger, attached
from deepca.cli.view.log import AgentLog, plain, text_of
from deepca.errors import InvalidInput
from tests.support.errors import raises


def lines(stream: io.StringIO) -> list[str]:
    return stream.getvalue().splitlines()


def written(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines(stream)]


def put(log: AgentLog, event: str, text: str, level: int = logging.INFO, *, last: bool = False, **facts: Any) -> None:
    """Pass the record of an event to a log."""
    about = {"levelno": level, "levelname": logging.getLevelName(level), "site": log.site}
    more = {"last": True} if last else {}
    log.handle(logging.makeLogRecord({"msg": text, "event": event, "facts": facts, **about, **more}))


def test_a_json_line_is_complete() -> None:
    stream = io.StringIO()
    log = AgentLog(stream, "json", site="north")
    put(log, "link_down", "south: it closed the connection", logging.WARNING, site="south", seconds=1.5)
    log.close()
    (entry,) = written(stream)
    assert list(entry) == ["time", "site", "level", "event", "text", "facts"]
    assert entry["time"].endswith("Z")
    assert entry["time"][-5] == "."
    assert abs(datetime.fromisoformat(entry["time"]).timestamp() - time.time()) < 60
    assert (entry["site"], entry["level"], entry["event"]) == ("north", "warning", "link_down")
    assert entry["facts"] == {"site": "south", "seconds": 1.5}


def test_text_lines_are_aligned() -> None:
    stream = io.StringIO()
    log = AgentLog(stream, site="north")
    put(log, "epoch", "EPOCH TEXT")
    put(log, "lost", "LOST TEXT", logging.WARNING)
    put(log, "failed", "FAILED TEXT", logging.ERROR)
    log.close()
    first, second, third = lines(stream)
    assert first.index("EPOCH TEXT") == second.index("LOST TEXT") == third.index("FAILED TEXT")
    assert "warn" not in first
    assert "warn" in second
    assert "ERROR" in third


def test_only_events_of_the_site_are_written() -> None:
    streams = {name: io.StringIO() for name in ("north", "south")}
    logs = {name: AgentLog(stream, "json", site=name) for name, stream in streams.items()}
    logger = logging.getLogger("deepca.sites.somewhere")
    with attached(logs["north"]), attached(logs["south"]):
        for name in ("north", "south", "west"):
            EventLogger(logger, name).info(f"100 % of {name}", event="found", facts={"site": "east"})
        logger.warning("a record like any other")
    EventLogger(logger, "north").error("after the end", event="failed")
    for name, log in logs.items():
        log.close()
        (line,) = written(streams[name])
        assert (line["site"], line["text"], line["facts"]) == (name, f"100 % of {name}", {"site": "east"})


def test_the_level_of_the_logger_is_restored() -> None:
    logger, logs = logging.getLogger("deepca"), [AgentLog(None) for _ in range(2)]
    before = logger.level, list(logger.handlers)
    first, second = map(attached, logs)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert logger.isEnabledFor(logging.INFO)
    second.__exit__(None, None, None)
    assert (logger.level, logger.handlers) == before
    for log in logs:
        log.close()


def test_repeated_lines_are_counted() -> None:
    stream = io.StringIO()
    log = AgentLog(stream, "json", window=3600.0)
    for _ in range(12):
        put(log, "link_down", "south: gone")
        put(log, "link_up", "south is there")
    put(log, "link_down", "south: gone")
    put(log, "epoch", "epoch 2")
    log.close()
    told = [(entry["event"], entry["facts"].get("times")) for entry in written(stream)]
    # what happened last comes last: the link is down
    assert told == [("link_down", None), ("link_up", None), ("epoch", None), ("link_up", 12), ("link_down", 13)]


def test_counts_are_written_at_the_end_of_the_window() -> None:
    heard: list[logging.LogRecord] = []
    log = AgentLog(None, window=0.2, listener=heard.append)
    for _ in range(5):
        put(log, "link_down", "south: gone")
    end = time.monotonic() + 20.0
    while sum(vars(record)["repeats"][0] for record in heard[1:]) < 4 and time.monotonic() < end:
        time.sleep(0.02)
    assert 2 <= len(heard) <= 4
    assert text_of(heard[0]) == "south: gone"
    assert "times in 1 s)" in text_of(heard[1])
    log.close()


def test_nothing_is_written_after_the_last_line() -> None:
    stream = io.StringIO()
    log = AgentLog(stream, "json", site="north")
    for _ in range(3):
        put(log, "lost", "south cannot be reached")
    put(log, "stopped", "the end")
    put(log, "stopped", "the end", logging.WARNING, last=True)
    put(log, "lost", "south cannot be reached")
    put(log, "lost", "west cannot be reached")
    log.close()
    printed = written(stream)
    assert [one["event"] for one in printed] == ["lost", "stopped", "lost", "stopped"]
    assert printed[2]["facts"]["times"] == 3


def test_lines_that_differ_in_a_port_are_counted_together() -> None:
    stream = io.StringIO()
    log = AgentLog(stream, window=3600.0)
    for port in range(40000, 40100):
        put(log, "refused", f"127.0.0.1:{port}: it does not speak TLS")
    log.close()
    assert len(lines(stream)) == 2
    assert "(100 times" in lines(stream)[1]


def test_control_characters_and_line_breaks_are_removed() -> None:
    for style in ("text", "json"):
        stream = io.StringIO()
        log = AgentLog(stream, style)
        put(log, "refused", "x\n2026-01-01 finished \x1b[2J\u2028\x00", why="\x1b[2J\r\n")
        log.close()
        assert len(lines(stream)) == 1
        assert "\x1b" not in stream.getvalue()
        assert "\\u001b" not in stream.getvalue()


def test_long_texts_are_truncated() -> None:
    stream = io.StringIO()
    log = AgentLog(stream)
    put(log, "refused", "x" * 1_000_000)
    log.close()
    assert len(stream.getvalue()) < 2000


def test_arrays_bytes_and_objects_are_not_written() -> None:
    secret = b"-----BEGIN PRIVATE KEY-----"
    assert plain(secret) == f"{len(secret)} bytes"
    assert plain(np.arange(3.0)) == "(ndarray)"
    assert plain({"a": [np.float64(1.5), float("inf"), Path("x"), None, True]}) == {"a": [1.5, None, "x", None, True]}
    assert plain(object()) == "(object)"


def test_lines_of_several_threads_are_not_mixed() -> None:
    stream = io.StringIO()
    log = AgentLog(stream, "json")

    def work(j: int) -> None:
        for i in range(200):
            put(log, "progress", f"thread {j} line {i}")

    threads = [threading.Thread(target=work, args=(j,)) for j in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close(20.0)
    assert len({entry["text"] for entry in written(stream)}) == 800


class Stuck(io.StringIO):
    """A terminal that blocks, then continues."""

    def __init__(self) -> None:
        super().__init__()
        self.going = threading.Event()

    def write(self, text: str) -> int:
        self.going.wait(60.0)
        return super().write(text)


def test_a_blocked_terminal_does_not_stop_an_agent_and_lost_lines_are_counted() -> None:
    stream = Stuck()
    log = AgentLog(stream, "json")
    began = time.monotonic()
    for i in range(10_500):
        put(log, "progress", f"line {i}")
    log.close(0.1)
    assert time.monotonic() - began < 30.0
    stream.going.set()
    put(log, "progress", "one more")
    log.close(30.0)
    log.close(30.0)
    missing = [entry["facts"]["lines"] for entry in written(stream) if entry["event"] == "log"]
    assert sum(missing) >= 400


class Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_a_full_disk_does_not_stop_an_agent() -> None:
    before = set(threading.enumerate())
    log = AgentLog(Full())
    put(log, "epoch", "1")
    put(log, "epoch", "2")
    log.close()
    assert set(threading.enumerate()) <= before


def test_lines_are_appended_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "agent.log"
    for _ in range(2):
        log = AgentLog(path, "json", site="west")
        put(log, "started", "up")
        log.close()
    assert len(path.read_text().splitlines()) == 2


def test_a_file_that_cannot_be_written_is_invalid_input(tmp_path: Path) -> None:
    with raises(InvalidInput, parameter="log_file", value=tmp_path):
        AgentLog(tmp_path)
