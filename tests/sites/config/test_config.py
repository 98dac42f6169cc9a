"""Test reading and writing network.toml and site.toml, their errors, and the digest that all sites must share."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from deepca._util.files import write_atomic
from deepca.decomposition.settings import Settings
from deepca.errors import DisconnectedError, InvalidInput, ParameterError, TopologyError
from deepca.sites.config.addresses import is_loopback, split_address
from deepca.sites.config.example import EXAMPLE
from deepca.sites.config.network_file import NetworkFile, SiteEntry, read_network, write_network
from deepca.sites.config.site_file import read_site, write_site
from deepca.sites.config.toml import duration, duration_text, load_toml, suggestion
from deepca.sites.config.toml_lines import Keys, find_line, find_syntax_error
from tests.support.errors import raises

NETWORK = """
name = "three-hospitals"
components = 4
topology = "ring"
[[sites]]
name = "north"
address = "north.example.org:7400"
[[sites]]
name = "south"
address = "south.example.org:7400"
[[sites]]
name = "west"
address = "west.example.org:7400"
"""
LOCAL = NETWORK
for _j, _name in enumerate(("north", "south", "west")):
    LOCAL = LOCAL.replace(f"{_name}.example.org:7400", f"127.0.0.{_j + 1}:7400")
OPEN_LOCAL = f'privacy = "open"\n{LOCAL}'
SITE = 'site = "north"\ndata = "rows.csv"\n'


def network(folder: Path, text: str = NETWORK) -> Path:
    path = folder / "network.toml"
    path.write_text(text, encoding="utf-8")
    return path


def site(folder: Path, text: str = SITE, net: str = NETWORK) -> Path:
    network(folder, net)
    path = folder / "site.toml"
    path.write_text(text, encoding="utf-8")
    return path


# ------------------------------------------------------------------------------------------------------------- network


def test_a_short_network_has_the_defaults(tmp_path: Path) -> None:
    found = read_network(network(tmp_path))
    assert [entry.name for entry in found.sites] == ["north", "south", "west"]
    assert (found.run, found.on_loss, found.patience, found.checkpoint_every) == ("1", "wait", 60.0, 10)
    assert found.settings == Settings(n_components=4)
    assert found.topology.n_agents == 3
    assert found.index("west") == 2
    assert found.neighbors("south") == (0, 2)
    assert found.links == ((0, 1), (0, 2), (1, 2))
    assert len(found.digest) == 32


def test_all_keys_of_a_network_are_read(tmp_path: Path) -> None:
    more = (
        'run = "2026-11"\ntolerance = 1e-6\ncenter = false\nscale = true\nalgorithm = "accelerated"\n'
        'privacy = "open"\nmessages = "float32"\nseed = 7\nmax_iter = 50\non_loss = "shrink"\n'
        'patience = "1.5min"\ncheckpoint_every = 3\n'
    )
    found = read_network(network(tmp_path, more + NETWORK.replace("components = 4", "components = 0.9")))
    assert found.settings == Settings(0.9, False, True, "accelerated", "auto", 1e-6, 50, 7, "auto", "float32")
    assert (found.run, found.on_loss, found.patience, found.checkpoint_every) == ("2026-11", "shrink", 90.0, 3)
    assert found.privacy == "open"


@pytest.mark.parametrize(
    "line", ['algorithm = "deepca"', 'algorithm = "accelerated"', 'messages = "float32"', 'on_loss = "shrink"']
)
def test_a_network_whose_sums_cannot_be_private_has_to_say_so(tmp_path: Path, line: str) -> None:
    with raises(InvalidInput, parameter="privacy", value="private", file=str(tmp_path / "network.toml")):
        read_network(network(tmp_path, f"{line}\n{NETWORK}"))
    assert read_network(network(tmp_path, f'{line}\nprivacy = "open"\n{NETWORK}')).privacy == "open"


def test_two_sites_cannot_be_private() -> None:
    sites = (SiteEntry("a", "a:1"), SiteEntry("b", "b:1"))
    with raises(InvalidInput, parameter="privacy", value="private"):
        NetworkFile("net", sites, 2, topology_name="ring")
    with raises(ParameterError, parameter="privacy", value="closed"):
        NetworkFile("net", sites, 2, topology_name="ring", privacy="closed")  # type: ignore[arg-type]
    assert NetworkFile("net", sites[:1], 2).privacy == "private"


def test_the_example_is_valid_and_its_comments_show_the_defaults(tmp_path: Path) -> None:
    found = read_network(network(tmp_path, EXAMPLE))
    assert found.sites[2].address is None
    text = EXAMPLE.replace("# edges", "#edges").replace("\n# The", "\n#The").split("\n", 1)[1].replace("\n# ", "\n")
    assert read_network(network(tmp_path, text)) == found


def test_all_components_can_be_requested(tmp_path: Path) -> None:
    assert read_network(network(tmp_path, NETWORK.replace("= 4", '= "all"'))).components is None


def test_edges_are_given_by_the_names_of_sites(tmp_path: Path) -> None:
    text = NETWORK.replace('topology = "ring"', 'edges = [["west", "north"], ["south", "north"], ["north", "west"]]')
    found = read_network(network(tmp_path, text))
    assert found.links == ((0, 1), (0, 2))
    assert found.neighbors("west") == (0,)


def test_a_network_may_have_a_single_site(tmp_path: Path) -> None:
    text = 'name = "alone"\ncomponents = 2\n[[sites]]\nname = "north"\n'
    for one in (text, 'topology = "ring"\n' + text, "edges = []\n" + text):
        found = read_network(network(tmp_path, one))
        assert found.topology.n_agents == 1
        assert found.neighbors("north") == ()


def test_a_site_without_an_address_dials_its_neighbours() -> None:
    sites = (SiteEntry("a", "a:1"), SiteEntry("b"), SiteEntry("c", "c:1"))
    found = NetworkFile("net", sites, 2, edges=(("a", "b"), ("b", "c"), ("a", "c")))
    assert [found.dials(i, j) for i, j in ((0, 1), (1, 0), (1, 2), (2, 1), (0, 2), (2, 0))] == [
        False,
        True,
        True,
        False,
        True,
        False,
    ]


def test_a_random_topology_follows_the_seed() -> None:
    sites = tuple(SiteEntry(f"s{j}", f"h{j}:1") for j in range(12))
    drawn = {NetworkFile("net", sites, 2, topology_name="erdos-renyi:0.4", seed=seed).links for seed in range(4)}
    assert len(drawn) == 4
    again = NetworkFile("net", sites, 2, topology_name="erdos-renyi:0.4", seed=2)
    assert again.links in drawn


INVALID_NETWORKS = [  # text of NETWORK to replace, its replacement, and the error: type, key, value, line and site
    ("components", "componnents", InvalidInput, "componnents", None, 3, None),
    ("components = 4", "", InvalidInput, "components", None, None, None),
    ("components = 4", "components = true", InvalidInput, "components", True, 3, None),
    ("components = 4", 'components = "four"', InvalidInput, "components", "four", 3, None),
    ("components = 4", "components = 1.5", ParameterError, "components", 1.5, 3, None),
    ("components = 4", "components = 0", ParameterError, "components", 0, 3, None),
    ("components = 4", "components = 4\ntolerance = 2.0", ParameterError, "tolerance", 2.0, 4, None),
    ("components = 4", 'components = 4\ncenter = "yes"', InvalidInput, "center", "yes", 4, None),
    ("components = 4", "components = 4\nmax_iter = 0", ParameterError, "max_iter", 0, 4, None),
    ("components = 4", "components = 4\nseed = -1", ParameterError, "seed", -1, 4, None),
    ("components = 4", "components = 4\nseed = 1.0", InvalidInput, "seed", 1.0, 4, None),
    ("components = 4", "components = 4\npatience = 60", InvalidInput, "patience", 60, 4, None),
    ("components = 4", 'components = 4\npatience = "60"', ParameterError, "patience", "60", 4, None),
    ("components = 4", 'components = 4\npatience = "0s"', ParameterError, "patience", "0s", 4, None),
    ("components = 4", 'components = 4\non_loss = "stop"', ParameterError, "on_loss", "stop", 4, None),
    ("components = 4", 'components = 4\nalgorithm = "magic"', ParameterError, "algorithm", "magic", 4, None),
    ("components = 4", 'components = 4\nmessages = "int8"', ParameterError, "messages", "int8", 4, None),
    ("components = 4", "components = 4\ncheckpoint_every = 0", ParameterError, "checkpoint_every", 0, 4, None),
    ('"three-hospitals"', '"three/hospitals"', ParameterError, "name", "three/hospitals", 2, None),
    ('"three-hospitals"', '"three-hospitals"\nrun = ""', ParameterError, "run", "", 3, None),
    ('"three-hospitals"', "three-hospitals", InvalidInput, None, None, 2, None),
    ('"three-hospitals"', '"three-hospitals"\nname = "three"', InvalidInput, None, None, 3, None),
    ('topology = "ring"', "", InvalidInput, "topology", None, None, None),
    ('topology = "ring"', 'topology = "rign"', TopologyError, "topology", "rign", 4, None),
    ('topology = "ring"', 'topology = "hypercube"', TopologyError, "topology", "hypercube", 4, None),
    ('topology = "ring"', 'topology = "directed-ring"', TopologyError, "topology", "directed-ring", 4, None),
    ('topology = "ring"', 'topology = "ring"\nedges = []', InvalidInput, "edges", (), 5, None),
    (
        'topology = "ring"',
        'edges = [["north", "south"]]',
        DisconnectedError,
        "edges",
        (("north", "south"), ("west",)),
        4,
        None,
    ),
    ('topology = "ring"', 'edges = [["north", "sout"]]', InvalidInput, "edges", "sout", 4, None),
    ('topology = "ring"', 'edges = [["north", "north"]]', TopologyError, "edges", ("north", "north"), 4, None),
    (
        'topology = "ring"',
        'edges = [["north", "south", "west"]]',
        InvalidInput,
        "edges",
        ["north", "south", "west"],
        4,
        None,
    ),
    ('topology = "ring"', 'edges = "ring"', InvalidInput, "edges", "ring", 4, None),
    ('"south"', '"north"', InvalidInput, "name", "north", 9, 1),
    ('"south"', '"South"', InvalidInput, "name", "South", 9, 1),
    ('"south"', '"-south"', InvalidInput, "name", "-south", 9, 1),
    ('"south"', '"south.east"', InvalidInput, "name", "south.east", 9, 1),
    ('"south"', f'"{"s" * 64}"', InvalidInput, "name", "s" * 64, 9, 1),
    ('"south"', '"authority"', InvalidInput, "name", "authority", 9, 1),
    ('name = "south"', "", InvalidInput, "name", None, 8, None),
    ('name = "south"', 'name = "south"\nport = 7', InvalidInput, "port", None, 10, None),
    ("south.example.org", "north.example.org", InvalidInput, "address", "north.example.org:7400", 10, 1),
    ("south.example.org:7400", "south.example.org", InvalidInput, "address", "south.example.org", 10, 1),
    ("south.example.org:7400", "south.example.org:0", InvalidInput, "address", "south.example.org:0", 10, 1),
    ("south.example.org:7400", "south.example.org:70000", InvalidInput, "address", "south.example.org:70000", 10, 1),
    ("south.example.org:7400", "south example:7400", InvalidInput, "address", "south example:7400", 10, 1),
    ("south.example.org:7400", "https://south:7400", InvalidInput, "address", "https://south:7400", 10, 1),
    ("south.example.org:7400", "::1:7400", InvalidInput, "address", "::1:7400", 10, 1),
    ("south.example.org:7400", "1.2.3:7400", InvalidInput, "address", "1.2.3:7400", 10, 1),
]


@pytest.mark.parametrize(("old", "new", "kind", "key", "value", "line", "agent"), INVALID_NETWORKS)
def test_an_invalid_network_is_refused_with_file_line_and_key(
    tmp_path: Path,
    old: str,
    new: str,
    kind: type[InvalidInput],
    key: str | None,
    value: object,
    line: int | None,
    agent: int | None,
) -> None:
    assert old in NETWORK
    path = network(tmp_path, NETWORK.replace(old, new, 1))
    with raises(kind, file=str(path), line=line, parameter=key, value=value, agent=agent) as error:
        read_network(path)
    assert str(error.value).startswith(f"{path}:{line}: " if line else f"{path}: ")


def test_a_tolerance_that_is_not_a_number_is_refused(tmp_path: Path) -> None:
    path = network(tmp_path, NETWORK.replace("components = 4", "components = 4\ntolerance = nan"))
    with raises(ParameterError, file=str(path), line=4, parameter="tolerance"):
        read_network(path)


def test_the_name_that_was_probably_meant_is_suggested(tmp_path: Path) -> None:
    known = ("name", "run", "components")
    assert "'components'" in suggestion("componnents", known)
    assert all(name in suggestion("xyz", known) for name in known)
    with pytest.raises(InvalidInput) as error:
        read_network(network(tmp_path, NETWORK.replace("components", "componnents")))
    assert "'components'" in str(error.value)


def test_two_neighbours_without_an_address_are_refused(tmp_path: Path) -> None:
    text = NETWORK.replace('address = "south.example.org:7400"\n', "").replace(
        'address = "west.example.org:7400"\n', ""
    )
    path = network(tmp_path, text)
    with raises(InvalidInput, file=str(path), line=8, agent=1, parameter="address"):
        read_network(path)
    apart = text.replace('topology = "ring"', 'edges = [["north", "south"], ["north", "west"]]')
    assert read_network(network(tmp_path, apart)).links == ((0, 1), (0, 2))


def test_files_that_are_not_toml_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "network.toml"
    with raises(InvalidInput, file=str(path), line=None):
        read_network(path)
    path.write_bytes(b"# \xc3\xa9\na = 1\nb = '\xff\xfe\x00'")
    with raises(InvalidInput, file=str(path), line=3):
        read_network(path)
    path.write_bytes(b"a = 1\nb = " + b"[" * 100_000)
    with raises(InvalidInput, file=str(path), line=2):
        read_network(path)
    path.write_bytes(b"\xef\xbb\xbf" + NETWORK.encode())
    assert read_network(path).name == "three-hospitals"
    with raises(InvalidInput, file=str(tmp_path), line=None):
        read_network(tmp_path)


# --------------------------------------------------------------------------------------------------------------- lines

LINES = '''# a comment
name = "a" # [b]
text = """
[sites]
x = 1
"""
edges = [
  ["a", "b"],  # 8
  ["b", "c"],
]
security.plaintext = true

[[sites]]
name = "a\u2028b"
[[sites]]

  name = "b"
  "address" = "x"
[other.inner]
key = {a = 1, b = 2}
'''


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (("name",), 2),
        (("text",), 3),
        (("x",), None),
        (("edges",), 7),
        (("edges", 1), 7),
        (("security", "plaintext"), 11),
        (("security", "key"), 11),
        (("sites", 0, "name"), 14),
        (("sites", 0, "address"), 13),
        (("sites", 1, "name"), 17),
        (("sites", 1, "address"), 18),
        (("sites", 2), None),
        (("other", "inner"), 19),
        (("other", "inner", "key", "b"), 20),
        ((), None),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_the_line_of_a_value_or_of_its_table_is_found(keys: Keys, line: int | None, newline: str) -> None:
    assert find_line(LINES.replace("\n", newline), keys) == line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1\n\nb = c\n[d]", 3),
        ("a = 1\nb = [1,\n2,\n3\nc = 4\n", 2),
        ("a = 1\nb = 2\na = 3\nc = 4", 3),
        ("[a]\nb = 1\n[c]\n[a]\nd = 1", 4),
        ("a = 1", None),
    ],
)
def test_the_line_of_a_syntax_error_is_found(text: str, line: int | None) -> None:
    assert find_syntax_error(text) == line


@pytest.mark.parametrize(
    ("text", "line", "column"), [("a = 1\nb 2\n", 2, 3), ("a = 1\nb = [1,\n2,\nc = 4\n", 2, None), ("a = ", 1, None)]
)
def test_the_place_of_a_syntax_error_is_given_once(text: str, line: int, column: int | None, tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(text, encoding="utf-8")
    with raises(InvalidInput, line=line) as caught:
        load_toml(tmp_path / "site.toml")
    found = str(caught.value)
    assert found.count("line ") + found.count(f":{line}:") == 1
    assert found.count("column ") == (column is not None)
    assert column is None or f"column {column})" in found


# -------------------------------------------------------------------------------------------------------------- digest


def test_the_digest_covers_everything_but_addresses(tmp_path: Path) -> None:
    first = replace(read_network(network(tmp_path)), privacy="open")
    other: dict[str, object] = {
        "name": "other",
        "sites": first.sites[::-1],
        "components": 5,
        "run": "2",
        "tolerance": 1e-9,
        "center": False,
        "scale": True,
        "algorithm": "krylov",
        "messages": "float32",
        "seed": 1,
        "max_iter": 9,
        "topology_name": "path",
        "privacy": "private",
        "on_loss": "shrink",
        "patience": 61.0,
        "checkpoint_every": 11,
    }
    assert {*other, "edges"} == set(NetworkFile.__dataclass_fields__)
    digests = {first.digest, *(replace(first, **{key: value}).digest for key, value in other.items())}  # type: ignore[arg-type]
    assert len(digests) == 1 + len(other)
    moved = tuple(replace(entry, address=f"10.0.0.{j}:1") for j, entry in enumerate(first.sites, 1))
    assert replace(first, sites=moved).digest == first.digest
    share, whole = replace(first, components=0.5), replace(first, components=None)
    assert len({share.digest, whole.digest, first.digest}) == 3


def test_the_digest_depends_on_the_links_only_not_on_how_they_are_written(tmp_path: Path) -> None:
    ring = read_network(network(tmp_path))
    edges = (("west", "south"), ("south", "north"), ("north", "west"), ("south", "west"))
    assert replace(ring, topology_name=None, edges=edges).digest == ring.digest
    assert replace(ring, topology_name="complete").digest == ring.digest
    assert replace(ring, topology_name=None, edges=edges[:2]).digest != ring.digest


def test_the_digest_is_the_same_on_every_machine_and_in_every_version() -> None:
    sites = (SiteEntry("a", "a:1"), SiteEntry("b", "b:1"))
    found = NetworkFile("net", sites, 2, topology_name="ring", privacy="open")
    assert found.digest.hex() == "836b036e59cbe537155fabc0dff9b4e6572aae1d16ab3017e645ae40fd6600ae"


# ---------------------------------------------------------------------------------------------------------------- site


def test_a_short_site_has_the_defaults(tmp_path: Path) -> None:
    found = read_site(site(tmp_path))
    assert found == read_site(tmp_path)  # by its folder
    assert (found.site, found.index, found.listen, found.deadline) == ("north", 0, "0.0.0.0:7400", 86400.0)
    assert (found.checkpoints, found.plaintext, found.label_column, found.dataset) == (True, False, None, None)
    paths = (found.data, found.model, found.state)
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == ["rows.csv", "model.npz", "state"]
    files = (found.authority, found.certificate, found.key, found.revoked, found.column_key)
    assert [file.name for file in files] == ["authority.pem", "site.pem", "site.key", "revoked.pem", "columns.key"]
    assert all(path.is_absolute() for path in (*paths, *files))


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "conf"
    folder.mkdir()
    site(folder, SITE.replace("rows.csv", "../rows.csv") + 'model = "/tmp/out/model.npz"\n')
    monkeypatch.chdir(tmp_path)
    found = read_site(Path("conf/site.toml"))
    assert found.data.resolve() == tmp_path / "rows.csv"
    assert found.model == Path("/tmp/out/model.npz")


def test_a_site_without_address_does_not_listen(tmp_path: Path) -> None:
    text = NETWORK.replace('address = "north.example.org:7400"\n', "")
    assert read_site(site(tmp_path, net=text)).listen is None
    assert read_site(site(tmp_path, SITE + 'listen = "0.0.0.0:0"', text)).listen == "0.0.0.0:0"


@pytest.mark.parametrize(
    ("address", "listen"),
    [
        ("10.1.2.3:81", "0.0.0.0:81"),
        ("[2001:db8::1]:81", "[::]:81"),
        ("127.0.0.1:81", "127.0.0.1:81"),
        ("[::1]:81", "[::1]:81"),
        ("localhost:81", "localhost:81"),
    ],
)
def test_a_site_listens_at_the_port_of_its_address(tmp_path: Path, address: str, listen: str) -> None:
    text = NETWORK.replace("north.example.org:7400", address)
    assert read_site(site(tmp_path, net=text)).listen == listen


@pytest.mark.parametrize(
    ("text", "key", "value", "line"),
    [
        ('site = "nroth"\ndata = "a.csv"', "site", "nroth", 1),
        ('site = "north"', "data", None, None),
        ('site = "north"\ndata = ""', "data", "", 2),
        ('site = "north"\ndata = ["a.csv", "b.csv"]', "data", ["a.csv", "b.csv"], 2),
        (SITE + 'labelcolumn = "x"', "labelcolumn", None, 3),
        (SITE + 'model = "model.pkl"', "model", "model.pkl", 3),
        ('site = "north"\ndata = "model.npz"', "data", "model.npz", 2),
        (SITE + 'listen = "7400"', "listen", "7400", 3),
        (SITE + 'deadline = "soon"', "deadline", "soon", 3),
        (SITE + 'security = "none"', "security", "none", 3),
        (SITE + '[security]\ncertficate = "x"', "certficate", None, 4),
        (SITE + "[security]\nkey = 7", "key", 7, 4),
        (SITE + "[security]\nplaintext = true", "plaintext", "north.example.org:7400", 4),
    ],
)
def test_an_invalid_site_is_refused_with_file_line_and_key(
    tmp_path: Path, text: str, key: str, value: object, line: int | None
) -> None:
    path = site(tmp_path, text)
    with raises(InvalidInput, file=str(path), parameter=key, value=value, line=line) as error:
        read_site(path)
    assert str(error.value).startswith(f"{path}:{line}: " if line else f"{path}: ")


def test_errors_of_the_network_name_its_file(tmp_path: Path) -> None:
    with raises(InvalidInput, file=str(tmp_path / "other.toml")):
        read_site(site(tmp_path, SITE + 'network = "other.toml"'))
    with raises(ParameterError, file=str(tmp_path / "network.toml"), line=3, parameter="components"):
        read_site(site(tmp_path, SITE, NETWORK.replace("components = 4", "components = 0")))


def test_plaintext_requires_loopback_addresses(tmp_path: Path) -> None:
    text = SITE + "[security]\nplaintext = true"
    assert read_site(site(tmp_path, text, OPEN_LOCAL)).plaintext
    with raises(InvalidInput, parameter="plaintext", value=True, line=4):  # keys would be unsigned
        read_site(site(tmp_path, text, LOCAL))
    for where in ("0.0.0.0:7400", "[::]:7400", "192.168.0.1:7400"):
        with raises(InvalidInput, parameter="plaintext", value=where):
            read_site(site(tmp_path, f'listen = "{where}"\n{text}', OPEN_LOCAL))
    for address in ("128.0.0.1:7400", "localhost.example.org:7400", "[::2]:7400", "127.0.0.1.example.org:7400"):
        with raises(InvalidInput, parameter="plaintext", value=address):
            read_site(site(tmp_path, text, OPEN_LOCAL.replace("127.0.0.3:7400", address)))


def test_loopback_addresses_are_recognised() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.255.0.9", "::1", "localhost", "LocalHost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "north", "127.0.0.1.org", "")))


# ------------------------------------------------------------------------------------------------------------- writing


@pytest.mark.parametrize(
    "change", [{}, {"components": None}, {"components": 0.25, "patience": 0.35, "tolerance": 1e-3}]
)
def test_a_network_is_read_back(tmp_path: Path, change: dict[str, object]) -> None:
    sites = (SiteEntry("a", "a:1"), SiteEntry("b"), SiteEntry("c", "[::1]:7"))
    first = NetworkFile("net", sites, 3, edges=(("a", "b"), ("b", "c")), run="x.1", privacy="open", on_loss="shrink")
    for one in (first, replace(first, edges=None, topology_name="star")):
        given = replace(one, **change)  # type: ignore[arg-type]
        write_network(tmp_path / "n.toml", given)
        again = read_network(tmp_path / "n.toml")
        assert again == given
        assert again.digest == given.digest


def test_a_site_is_read_back(tmp_path: Path) -> None:
    network(tmp_path, LOCAL)
    odd = 'a "b"\\c\té\u2028\U0001f600\x7f.csv'
    write_site(tmp_path / "site.toml", "south", odd)
    plain = read_site(tmp_path)
    assert plain.data == tmp_path / odd
    assert plain == replace(read_site(site(tmp_path, SITE.replace("north", "south"), LOCAL)), data=plain.data)
    write_site(tmp_path / "site.toml", "west", "x.npy", label_column='"', dataset="X", deadline=90.0)
    found = read_site(tmp_path)
    assert (found.site, found.data.name, found.label_column) == ("west", "x.npy", '"')
    assert (found.dataset, found.deadline) == ("X", 90.0)


def test_all_keys_of_a_site_are_read(tmp_path: Path) -> None:
    names = ("network", "data", "model", "state")
    text = "".join(f'{name} = "{name}.npz"\n' for name in names)
    text += 'site = "west"\nlisten = "127.0.0.1:0"\ncheckpoints = false\n[security]\nplaintext = true\n'
    text += 'authority = "a"\ncertificate = "b"\nkey = "c"\nrevoked = "d"\n'
    network(tmp_path, OPEN_LOCAL).rename(tmp_path / "network.npz")
    (tmp_path / "site.toml").write_text(text, encoding="utf-8")
    found = read_site(tmp_path)
    assert (found.listen, found.checkpoints, found.plaintext) == ("127.0.0.1:0", False, True)
    assert [found.data, found.model, found.state] == [tmp_path / f"{name}.npz" for name in names[1:]]
    paths = (found.authority, found.certificate, found.key, found.revoked)
    assert [path.name for path in paths] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("30s", 30.0), ("5min", 300.0), ("2h", 7200.0), ("1d", 86400.0), ("1.5 h", 5400.0)],
)
def test_durations_are_parsed(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "-1s", "1", "1 m", "1e3s", "nans", "infs", "0ms", "1h30min", "1" * 400 + "s"]
)
def test_a_malformed_duration_is_refused(text: str) -> None:
    with raises(ParameterError, parameter="duration", value=text):
        duration(text)


@pytest.mark.parametrize(
    "seconds", [1e-7, 0.001, 0.1, 0.35, 1 / 3, 1.0, 59.5, 60.0, 90.0, 3600.0, 86400.0, 1e9, 1e17 / 3]
)
def test_durations_are_read_back(seconds: float) -> None:
    assert duration(duration_text(seconds)) == seconds


def test_addresses_are_split_into_host_and_port() -> None:
    assert split_address("north.example.org:7400") == ("north.example.org", 7400)
    assert split_address("[2001:db8::1]:1") == ("2001:db8::1", 1)
    for wrong in ("", ":1", "a:", "a:b", "a:-1", "a:１", "[a]:1", "[::1]", "a/b:1", "256.0.0.1:1", "a..b:1", "a\n:1"):
        with raises(InvalidInput, parameter="address", value=wrong):
            split_address(wrong)


# --------------------------------------------------------------------------------------------------------------- files


def test_a_file_never_has_wider_permissions_than_requested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, fsync = tmp_path / "secret", os.fsync
    seen: list[int] = []

    def watched(handle: int) -> None:
        seen.append(os.fstat(handle).st_mode)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", watched)
    write_atomic(path, b"x", mode=0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [stat.S_IMODE(mode) for mode in seen if stat.S_ISREG(mode)] == [0o600]
    assert any(map(stat.S_ISDIR, seen))  # the folder, too
    write_atomic(path, b"y")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [file.name for file in tmp_path.iterdir()] == ["secret"]
