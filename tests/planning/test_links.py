"""Links and agents, as objects and as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deepca import Links, Machines, read_links
from deepca import topology as tp
from deepca.errors import DisconnectedError, InvalidInput
from deepca.planning.links_csv import EXAMPLE, read_machines

HEADER = "from,to,latency_ms,mbit_per_s"
TRIANGLE = f"{HEADER}\na,b,10,100\nb,c,20,50\nc,a,30,25\n"


def _file(folder: Path, text: str, name: str = "links.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def _between(links: Links, a: str, b: str) -> dict[str, float]:
    """What the direction a → b is."""
    i, j = links.names.index(a), links.names.index(b)
    [arc] = np.flatnonzero((links.senders == i) & (links.receivers == j))
    assert [arc] == links.find(np.array([j]), np.array([i])).tolist()
    return {name: float(getattr(links, name)[arc]) for name in ("latency", "bandwidth", "loss", "jitter")}


# --------------------------------------------------------------------------------------------------------- files


def test_a_row_serves_both_directions(tmp_path: Path) -> None:
    links = read_links(_file(tmp_path, TRIANGLE))
    assert links.names == ("a", "b", "c")
    assert links.topology.n_edges == 3
    for pair in (("b", "c"), ("c", "b")):
        assert _between(links, *pair) == {"latency": 0.02, "bandwidth": 50e6, "loss": 0.0, "jitter": 0.0}
    assert links.machines.slowdown.tolist() == [1.0, 1.0, 1.0]


def test_unless_the_way_back_has_its_own(tmp_path: Path) -> None:
    links = read_links(_file(tmp_path, f"{HEADER},loss\na,b,10,100,0.1\nb,c,20,50,\nb,a,40,inf,0\n"))
    assert _between(links, "a", "b") == {"latency": 0.01, "bandwidth": 100e6, "loss": 0.1, "jitter": 0.0}
    assert _between(links, "b", "a") == {"latency": 0.04, "bandwidth": np.inf, "loss": 0.0, "jitter": 0.0}
    assert links.topology.n_edges == 2


def test_remarks_spaces_and_any_order_of_columns(tmp_path: Path) -> None:
    text = "\ufeff# who\n\nto , jitter_ms, from,mbit_per_s, latency_ms\n # more\nb, 2 ,a, 8,1.5\n"
    links = read_links(_file(tmp_path, text))
    assert links.names == ("b", "a") or links.names == ("a", "b")
    assert _between(links, "a", "b") == {"latency": 0.0015, "bandwidth": 8e6, "loss": 0.0, "jitter": 0.002}


def test_agents_in_order_of_appearance_or_of_their_numbers(tmp_path: Path) -> None:
    names = read_links(_file(tmp_path, f"{HEADER}\nnorth,south,1,1\nsouth,east,1,1\n")).names
    assert names == ("north", "south", "east")
    numbers = read_links(_file(tmp_path, f"{HEADER}\n10,2,1,1\n2,1,1,1\n")).names
    assert numbers == ("1", "2", "10")


def test_a_file_of_agents(tmp_path: Path) -> None:
    agents = _file(tmp_path, "agent,slowdown,stall,stall_ms,uplink_mbit_per_s\nc,4,0.5,200,\na,,,,20\n", "agents.csv")
    machines = read_links(_file(tmp_path, TRIANGLE), agents).machines
    assert machines.slowdown.tolist() == [1.0, 1.0, 4.0]
    assert machines.stall.tolist() == [0.0, 0.0, 0.5]
    assert machines.pause.tolist() == [0.0, 0.0, 0.2]
    assert machines.uplink.tolist() == [20e6, np.inf, np.inf]
    short = _file(tmp_path, "agent,slowdown\nb,3\n", "short.csv")
    assert read_machines(short, ["a", "b", "c"]).slowdown.tolist() == [1.0, 3.0, 1.0]


def test_the_example_is_a_network(tmp_path: Path) -> None:
    links = read_links(_file(tmp_path, EXAMPLE))
    assert links.names == ("north", "south", "west", "coast", "island")
    assert links.topology.n_edges == 5
    assert _between(links, "island", "coast")["bandwidth"] == 2e6
    assert _between(links, "coast", "island")["bandwidth"] == 10e6
    assert _between(links, "south", "north") == _between(links, "north", "south")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty; its first line is from,to,latency_ms,mbit_per_s"),
        (f"{HEADER}\n", "there is no link"),
        ("from,to,latency_ms\na,b,1\n", "line 1: there is no column mbit_per_s"),
        (f"{HEADER},colour\na,b,1,1,red\n", "line 1: 'colour' is no column"),
        (f"{HEADER},to\na,b,1,1,c\n", "line 1: the column to is there twice"),
        (f"# x\n{HEADER}\na,b,1\n", "line 3: 3 values for 4 columns"),
        (f"{HEADER}\na,b,-1,1\n", "line 2, column latency_ms: '-1' must be milliseconds, 0 or more"),
        (f"{HEADER}\na,b,nan,1\n", "line 2, column latency_ms: 'nan'"),
        (f"{HEADER}\na,b,inf,1\n", "line 2, column latency_ms: 'inf'"),
        (f"{HEADER}\na,b,soon,1\n", "line 2, column latency_ms: 'soon'"),
        (f"{HEADER}\na,b,,1\n", "line 2, column latency_ms: ''"),
        (f"{HEADER}\na,b,1,0\n", "line 2, column mbit_per_s: '0' must be megabits per second above 0, or inf"),
        (f"{HEADER},loss\na,b,1,1,1\n", "line 2, column loss: '1' must be a probability, 0 or more and below 1"),
        (f"{HEADER}\na,,1,1\n", "line 2, column to: empty; give the name or number of an agent"),
        (f"{HEADER}\na,a,1,1\n", "line 2: a is linked to itself"),
        (f"{HEADER}\na,b,1,1\nb,a,1,1\na,b,2,2\n", "line 4: a,b is on line 2 already"),
        (f"{HEADER}\na,b,1,1\nc,d,1,1\n", "falls into 2 parts, {a, b} and {c, d}; add a link between them"),
    ],
)
def test_mistakes_say_where_they_are(text: str, words: str, tmp_path: Path) -> None:
    path = _file(tmp_path, text)
    with pytest.raises(InvalidInput) as caught:
        read_links(path)
    assert str(caught.value).startswith(str(path))
    assert words in str(caught.value)
    assert isinstance(caught.value, DisconnectedError) == ("parts" in words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("agent,slowdown\nd,2\n", "line 2: agent 'd' has no link; agents of the network are a, b, c"),
        ("agent,slowdown\na,2\na,3\n", "line 3: a is on line 2 already"),
        ("agent,slowdown\na,0\n", "line 2, column slowdown: '0' must be a number above 0"),
        ("agent,stall\na,1.5\n", "line 2, column stall: '1.5' must be a probability"),
        ("slowdown\n2\n", "there is no column agent"),
    ],
)
def test_mistakes_in_a_file_of_agents(text: str, words: str, tmp_path: Path) -> None:
    agents = _file(tmp_path, text, "agents.csv")
    with pytest.raises(InvalidInput) as caught:
        read_links(_file(tmp_path, TRIANGLE), agents)
    assert str(caught.value).startswith(str(agents))
    assert words in str(caught.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"nowhere.csv does not exist; deepca simulate --example"):
        read_links(tmp_path / "nowhere.csv")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(InvalidInput, match=r"bytes.csv is no text"):
        read_links(tmp_path / "bytes.csv")


# ------------------------------------------------------------------------------------------------------- objects


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"latency": -1.0}, "latency = -1"),
        ({"latency": np.inf}, "latency = inf"),
        ({"latency": [0.1, 0.2]}, "latency has shape"),
        ({"bandwidth": 0.0}, "bandwidth = 0"),
        ({"bandwidth": np.nan}, "bandwidth = nan"),
        ({"loss": 1.0}, "loss = 1"),
        ({"jitter": -0.1}, "jitter = -0.1"),
        ({"names": ("a", "b")}, "2 names"),
        ({"machines": Machines.of(3)}, "3 machines for 4 agents"),
    ],
)
def test_numbers_that_no_link_has(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        Links.of(tp.ring(4), **given)


@pytest.mark.parametrize("given", [{"slowdown": 0.0}, {"stall": 1.1}, {"pause": np.nan}, {"uplink": -1.0}])
def test_numbers_that_no_machine_has(given: dict[str, float]) -> None:
    [name] = given
    with pytest.raises(InvalidInput, match=f"{name} = "):
        Machines.of(3, **given)


def test_what_was_given_cannot_be_changed() -> None:
    links = Links.of(tp.ring(4), latency=0.1)
    with pytest.raises(ValueError, match="read-only"):
        links.latency[0] = 1.0
