"""Test links and agents, as objects and in CSV files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deepca import Links, Machines, read_links
from deepca import topology as tp
from deepca.errors import DisconnectedError, InvalidInput, ParameterError
from deepca.planning.links_csv import EXAMPLE, read_machines
from tests.support.errors import raises

HEADER = "from,to,latency_ms,mbit_per_s"
TRIANGLE = f"{HEADER}\na,b,10,100\nb,c,20,50\nc,a,30,25\n"


def _file(folder: Path, text: str, name: str = "links.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def _between(links: Links, a: str, b: str) -> dict[str, float]:
    """Return the numbers of the direction a → b."""
    i, j = links.names.index(a), links.names.index(b)
    [arc] = np.flatnonzero((links.senders == i) & (links.receivers == j))
    assert [arc] == links.find(np.array([j]), np.array([i])).tolist()
    return {name: float(getattr(links, name)[arc]) for name in ("latency", "bandwidth", "loss", "jitter")}


# --------------------------------------------------------------------------------------------------------- files


def test_a_row_describes_both_directions(tmp_path: Path) -> None:
    links = read_links(_file(tmp_path, TRIANGLE))
    assert links.names == ("a", "b", "c")
    assert links.topology.n_edges == 3
    for pair in (("b", "c"), ("c", "b")):
        assert _between(links, *pair) == {"latency": 0.02, "bandwidth": 50e6, "loss": 0.0, "jitter": 0.0}
    assert links.machines.slowdown.tolist() == [1.0, 1.0, 1.0]


def test_the_way_back_may_have_its_own_row(tmp_path: Path) -> None:
    links = read_links(_file(tmp_path, f"{HEADER},loss\na,b,10,100,0.1\nb,c,20,50,\nb,a,40,inf,0\n"))
    assert _between(links, "a", "b") == {"latency": 0.01, "bandwidth": 100e6, "loss": 0.1, "jitter": 0.0}
    assert _between(links, "b", "a") == {"latency": 0.04, "bandwidth": np.inf, "loss": 0.0, "jitter": 0.0}
    assert links.topology.n_edges == 2


def test_comments_spaces_and_the_order_of_columns_do_not_matter(tmp_path: Path) -> None:
    text = "\ufeff# who\n\nto , jitter_ms, from,mbit_per_s, latency_ms\n # more\nb, 2 ,a, 8,1.5\n"
    links = read_links(_file(tmp_path, text))
    assert links.names == ("b", "a") or links.names == ("a", "b")
    assert _between(links, "a", "b") == {"latency": 0.0015, "bandwidth": 8e6, "loss": 0.0, "jitter": 0.002}


def test_agents_are_ordered_by_appearance_or_by_number(tmp_path: Path) -> None:
    names = read_links(_file(tmp_path, f"{HEADER}\nnorth,south,1,1\nsouth,east,1,1\n")).names
    assert names == ("north", "south", "east")
    numbers = read_links(_file(tmp_path, f"{HEADER}\n10,2,1,1\n2,1,1,1\n")).names
    assert numbers == ("1", "2", "10")


def test_a_file_of_agents_sets_their_speed_and_uplinks(tmp_path: Path) -> None:
    agents = _file(tmp_path, "agent,slowdown,stall,stall_ms,uplink_mbit_per_s\nc,4,0.5,200,\na,,,,20\n", "agents.csv")
    machines = read_links(_file(tmp_path, TRIANGLE), agents).machines
    assert machines.slowdown.tolist() == [1.0, 1.0, 4.0]
    assert machines.stall.tolist() == [0.0, 0.0, 0.5]
    assert machines.pause.tolist() == [0.0, 0.0, 0.2]
    assert machines.uplink.tolist() == [20e6, np.inf, np.inf]
    short = _file(tmp_path, "agent,slowdown\nb,3\n", "short.csv")
    assert read_machines(short, ["a", "b", "c"]).slowdown.tolist() == [1.0, 3.0, 1.0]


def test_the_example_can_be_read(tmp_path: Path) -> None:
    links = read_links(_file(tmp_path, EXAMPLE))
    assert links.names == ("north", "south", "west", "coast", "island")
    assert links.topology.n_edges == 5
    assert _between(links, "island", "coast")["bandwidth"] == 2e6
    assert _between(links, "coast", "island")["bandwidth"] == 10e6
    assert _between(links, "south", "north") == _between(links, "north", "south")


@pytest.mark.parametrize(
    ("text", "line", "column", "value"),
    [
        ("", None, None, None),
        (f"{HEADER}\n", None, None, None),
        ("from,to,latency_ms\na,b,1\n", 1, "mbit_per_s", None),
        (f"{HEADER},colour\na,b,1,1,red\n", 1, "colour", None),
        (f"{HEADER},to\na,b,1,1,c\n", 1, "to", None),
        (f"# x\n{HEADER}\na,b,1\n", 3, None, 3),
        (f"{HEADER}\na,b,-1,1\n", 2, "latency_ms", "-1"),
        (f"{HEADER}\na,b,nan,1\n", 2, "latency_ms", "nan"),
        (f"{HEADER}\na,b,inf,1\n", 2, "latency_ms", "inf"),
        (f"{HEADER}\na,b,soon,1\n", 2, "latency_ms", "soon"),
        (f"{HEADER}\na,b,,1\n", 2, "latency_ms", ""),
        (f"{HEADER}\na,b,1,0\n", 2, "mbit_per_s", "0"),
        (f"{HEADER}\na,b,1e301,1\n", 2, "latency_ms", "1e301"),
        (f"{HEADER}\na,b,1,1e299\n", 2, "mbit_per_s", "1e299"),
        (f"{HEADER},loss\na,b,1,1,1\n", 2, "loss", "1"),
        (f"{HEADER}\na,,1,1\n", 2, "to", ""),
        (f"{HEADER}\na,a,1,1\n", 2, None, "a"),
        (f"{HEADER}\na,b,1,1\nb,a,1,1\na,b,2,2\n", 4, None, "a,b"),
    ],
)
def test_errors_in_a_file_of_links_are_located(
    text: str, line: int | None, column: str | None, value: object, tmp_path: Path
) -> None:
    path = _file(tmp_path, text)
    with raises(InvalidInput, file=str(path), line=line, column=column, value=value) as caught:
        read_links(path)
    assert str(caught.value).startswith(str(path))
    assert line is None or f"line {line}" in str(caught.value)


def test_a_disconnected_network_is_rejected(tmp_path: Path) -> None:
    path = _file(tmp_path, f"{HEADER}\na,b,1,1\nc,d,1,1\n")
    with raises(DisconnectedError, file=str(path), value=2) as caught:
        read_links(path)
    assert "{a, b} and {c, d}" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "line", "column", "value"),
    [
        ("agent,slowdown\nd,2\n", 2, "agent", "d"),
        ("agent,slowdown\na,2\na,3\n", 3, None, "a"),
        ("agent,slowdown\na,0\n", 2, "slowdown", "0"),
        ("agent,stall\na,1.5\n", 2, "stall", "1.5"),
        ("slowdown\n2\n", 1, "agent", None),
    ],
)
def test_errors_in_a_file_of_agents_are_located(
    text: str, line: int, column: str | None, value: object, tmp_path: Path
) -> None:
    agents = _file(tmp_path, text, "agents.csv")
    with raises(InvalidInput, file=str(agents), line=line, column=column, value=value):
        read_links(_file(tmp_path, TRIANGLE), agents)


def test_missing_and_binary_files_are_rejected(tmp_path: Path) -> None:
    with raises(InvalidInput, file=str(tmp_path / "nowhere.csv")) as caught:
        read_links(tmp_path / "nowhere.csv")
    assert isinstance(caught.value.__context__, FileNotFoundError)
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00\x81")
    with raises(InvalidInput, file=str(tmp_path / "bytes.csv")) as caught:
        read_links(tmp_path / "bytes.csv")
    assert isinstance(caught.value.__context__, UnicodeDecodeError)


# ------------------------------------------------------------------------------------------------------- objects


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ({"latency": -1.0}, -1.0),
        ({"latency": np.inf}, np.inf),
        ({"latency": [0.1, 0.2]}, (2,)),
        ({"bandwidth": 0.0}, 0.0),
        ({"latency": 1e301}, 1e301),
        ({"latency": 10**400}, 10**400),
        ({"bandwidth": 1e301}, 1e301),
        ({"jitter": 1e301}, 1e301),
        ({"loss": 1.0}, 1.0),
        ({"jitter": -0.1}, -0.1),
        ({"names": ("a", "b")}, 2),
        ({"machines": Machines.of(3)}, 3),
    ],
)
def test_invalid_links_are_rejected(given: dict[str, Any], value: object) -> None:
    [name] = given
    with raises(InvalidInput, parameter=name, value=value):
        Links.of(tp.ring(4), **given)


def test_a_bandwidth_of_nan_is_rejected() -> None:
    with raises(ParameterError, parameter="bandwidth"):
        Links.of(tp.ring(4), bandwidth=np.nan)


@pytest.mark.parametrize(
    "given",
    [{"slowdown": 0.0}, {"slowdown": 1e301}, {"stall": 1.1}, {"pause": np.nan}, {"pause": 10**400}, {"uplink": -1.0}],
)
def test_invalid_machines_are_rejected(given: dict[str, float]) -> None:
    [name] = given
    with raises(ParameterError, parameter=name):
        Machines.of(3, **given)


def test_arrays_are_read_only() -> None:
    links = Links.of(tp.ring(4), latency=0.1)
    assert not links.latency.flags.writeable
    assert not links.machines.slowdown.flags.writeable
