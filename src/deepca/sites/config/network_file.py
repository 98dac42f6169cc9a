"""What is written down: ``network.toml``, the same at all sites, and ``site.toml``, one per site.

::

    name = "three-hospitals"                 site = "north"
    components = 4                           network = "network.toml"
    topology = "ring"                        data = "rows.csv"

    [[sites]]                                [security]
    name = "north"                           authority = "authority.pem"
    address = "north.example.org:7400"       certificate = "site.pem"
                                             key = "site.key"

`EXAMPLE` is a ``network.toml`` with everything that may be in it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from scipy.sparse import csgraph

from deepca import topology as topologies
from deepca._util.files import write_whole
from deepca._util.validation import Whole, check
from deepca.decomposition.settings import Settings, check_settings
from deepca.errors import InvalidInput, ParameterError
from deepca.network.compression import Messages
from deepca.sites.config.addresses import is_network_name, is_site_name, split_address
from deepca.sites.config.toml import TomlTable, as_toml, duration_text, listed, load_toml, meant
from deepca.topology.graph import Topology

__all__ = ["EXAMPLE", "RESERVED_NAMES", "NetworkFile", "OnLoss", "SiteEntry", "read_network", "write_network"]

OnLoss = Literal["wait", "shrink"]
"""What happens when a site is gone for longer than patience lasts."""

RESERVED_NAMES = ("authority", "revoked", "site")  # names of other files and folders in and beside kits
_NETWORK_KEYS = (
    "name",
    "run",
    "components",
    "tolerance",
    "center",
    "scale",
    "algorithm",
    "messages",
    "seed",
    "max_iter",
    "topology",
    "edges",
    "on_loss",
    "patience",
    "checkpoint_every",
    "sites",
)
_AS_WRITTEN = {"n_components": "components", "tol": "tolerance"}  # what settings are called in the file

EXAMPLE = """\
# The network: the same file at all sites.
name = "three-hospitals"
run = "1"                     # a new name is a new run
components = 4                # how many; or a share of variance such as 0.95; or "all"
topology = "ring"             # who talks to whom, see deepca topology; or the links one by one:
# edges = [["north", "south"], ["south", "west"]]

# tolerance = 1e-10           # largest acceptable tangent of the angle, at any site
# center = true               # subtract the common mean
# scale = false               # divide columns by their common standard deviation
# algorithm = "auto"
# messages = "float64"        # what a number takes in a message: float64, float32 or float16
# seed = 0                    # of the start, and of random networks
# max_iter = 10000
# on_loss = "wait"            # for a site that is gone; or "shrink": go on without it, by majority
# patience = "60s"            # how long a neighbour may be silent before it counts as gone
# checkpoint_every = 10       # iterations

[[sites]]
name = "north"                # small letters, digits and hyphens
address = "north.example.org:7400"

[[sites]]
name = "south"
address = "south.example.org:7400"

[[sites]]
name = "west"                 # no address: it cannot be reached from outside, and calls its neighbours itself
"""
"""A ``network.toml`` with everything that may be in it."""


@dataclass(frozen=True)
class SiteEntry:
    """A site as all others know it. ``address`` : host:port; None where it cannot be reached from outside."""

    name: str
    address: str | None = None


@dataclass(frozen=True)
class NetworkFile:
    """What ``network.toml`` says, checked when it is made.

    components : how many; or, in (0, 1), the share of variance to explain; or None for "all".
    topology_name : a name as :func:`deepca.topology.from_name` takes it; None where ``edges`` are given instead.
    patience : seconds.  checkpoint_every : iterations.
    """

    name: str
    sites: tuple[SiteEntry, ...]
    components: int | float | None
    run: str = "1"
    tolerance: float = 1e-10
    center: bool = True
    scale: bool = False
    algorithm: str = "auto"
    messages: Messages = "float64"
    seed: int = 0
    max_iter: int = 10_000
    topology_name: str | None = None
    edges: tuple[tuple[str, str], ...] | None = None
    on_loss: OnLoss = "wait"
    patience: float = 60.0
    checkpoint_every: int = 10

    def __post_init__(self) -> None:
        for key, text in (("name", self.name), ("run", self.run)):
            if not is_network_name(text):
                raise ParameterError(key, text, "use up to 64 letters, digits, hyphens, dots and underscores")
        _check_sites(self.sites)
        for key, least in (("max_iter", 1), ("checkpoint_every", 1), ("seed", 0)):
            check(key, getattr(self, key), Whole(least))
        if not 0.0 < self.patience < math.inf:
            raise InvalidInput(f"patience = {self.patience:g} s: it must be longer than nothing")
        if self.on_loss not in get_args(OnLoss):
            raise ParameterError("on_loss", self.on_loss, f"choose {listed(get_args(OnLoss))}")
        check_settings(self.settings)
        for i, j in self.links:
            if self.sites[i].address is None and self.sites[j].address is None:
                raise InvalidInput(
                    f"{self.sites[i].name} and {self.sites[j].name} are neighbours and both have no address, so neither"
                    " can call the other; give one of them an address, or take another topology"
                )

    @cached_property
    def topology(self) -> Topology:
        """Agent j is the site ``sites[j]``."""
        m = len(self.sites)
        if self.edges is not None and self.topology_name is not None:
            raise InvalidInput("topology and edges both say who talks to whom; leave one of them out")
        if self.edges is None and self.topology_name is None:
            if m > 1:
                raise InvalidInput(
                    'nothing says who talks to whom; write topology = "ring", or edges = [["'
                    f'{self.sites[0].name}", "{self.sites[1].name}"], …]'
                )
            return topologies.from_edges(1, [])
        if self.topology_name is not None:
            found = topologies.from_name(self.topology_name, m, seed=self.seed)
            if not found.stays:
                raise InvalidInput(
                    f"topology = {self.topology_name!r}: between sites links stay and go both ways; take another, such "
                    'as "ring" or "random-regular:4"'
                )
            return found
        pairs = [(self.index(a), self.index(b)) for a, b in self.edges or ()]
        self._check_edges(pairs)
        return topologies.from_edges(m, pairs)

    @property
    def links(self) -> tuple[tuple[int, int], ...]:
        """Pairs of neighbours i < j, in order."""
        m = len(self.sites)
        return tuple((i, j) for i in range(m) for j in sorted(self.topology.neighbors(i)) if i < j)

    @property
    def settings(self) -> Settings:
        """What is asked for."""
        return Settings(
            n_components=self.components,
            center=self.center,
            scale=self.scale,
            algorithm=self.algorithm,
            tol=self.tolerance,
            max_iter=self.max_iter,
            seed=self.seed,
            messages=self.messages,
        )

    def index(self, name: str) -> int:
        """The place of a site in the list of sites, from 0."""
        names = [site.name for site in self.sites]
        if name not in names:
            raise InvalidInput(f"there is no site {name!r} in {self.name}; {meant(name, names)}")
        return names.index(name)

    def neighbors(self, name: str) -> tuple[int, ...]:
        """The places of a site's neighbours, in order."""
        return tuple(sorted(self.topology.neighbors(self.index(name))))

    def dials(self, i: int, j: int) -> bool:
        """Whether site i is the one that calls its neighbour j: the one without address, else the earlier one."""
        here, there = self.sites[i].address, self.sites[j].address
        if (here is None) != (there is None):
            return here is None
        return i < j

    @property
    def digest(self) -> bytes:
        """32 bytes over everything that has to be the same at all sites; addresses may differ.

        The links count, not the name of the topology: random ones may be drawn differently by other versions.
        """
        said = {
            "format": 1,
            "name": self.name,
            "run": self.run,
            "sites": [site.name for site in self.sites],
            "links": self.links,
            "components": self.components,
            "tolerance": float(self.tolerance),
            "center": self.center,
            "scale": self.scale,
            "algorithm": self.algorithm,
            "messages": self.messages,
            "seed": self.seed,
            "max_iter": self.max_iter,
            "on_loss": self.on_loss,
            "patience": float(self.patience),
            "checkpoint_every": self.checkpoint_every,
        }
        return hashlib.sha256(json.dumps(said, sort_keys=True, allow_nan=False).encode()).digest()

    def _check_edges(self, pairs: Sequence[tuple[int, int]]) -> None:
        """What :func:`deepca.topology.from_edges` would say of numbers, said of sites."""
        m = len(self.sites)
        links = np.zeros((m, m))
        for i, j in pairs:
            if i == j:
                raise InvalidInput(f"edges: {self.sites[i].name} is joined to itself; leave that out")
            links[i, j] = links[j, i] = 1.0
        count, label = csgraph.connected_components(links, directed=False)
        if count > 1:
            groups = [[self.sites[i].name for i in np.flatnonzero(label == part)] for part in range(count)]
            shown = ", ".join("{" + ", ".join(group) + "}" for group in groups)
            raise InvalidInput(
                f"edges: the sites fall into {count} groups that do not hear each other: {shown}; add some between them"
            )


# ------------------------------------------------------------------------------------------------------------- reading


def read_network(path: Path) -> NetworkFile:
    """``network.toml``, checked."""
    table = TomlTable(load_toml(path), str(path), _NETWORK_KEYS)
    given: dict[str, Any] = {
        "name": table.text("name"),
        "sites": tuple(_site_entry(path, j, entry) for j, entry in enumerate(table.tables("sites"), 1)),
        "components": table.components("components"),
        "topology_name": table.text("topology", None),
        "edges": table.pairs("edges"),
    }
    for key in ("run", "algorithm", "messages", "on_loss"):
        given[key] = table.text(key, None)
    for key in ("center", "scale"):
        given[key] = table.flag(key, None)
    for key in ("seed", "max_iter", "checkpoint_every"):
        given[key] = table.whole(key, None)
    given["tolerance"] = table.number("tolerance", None)
    given["patience"] = table.duration("patience", None)
    try:
        always = ("components", "topology_name", "edges")
        return NetworkFile(**{key: value for key, value in given.items() if value is not None or key in always})
    except ParameterError as error:
        key = _AS_WRITTEN.get(error.parameter, error.parameter)
        raise ParameterError(key, error.value, error.expected, file=str(path)) from None
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None


def _check_sites(sites: Sequence[SiteEntry]) -> None:
    if not sites:
        raise InvalidInput("there are no sites; each needs a [[sites]] with a name and, if it has one, an address")
    names: set[str] = set()
    addresses: dict[tuple[str, int], str] = {}
    for site in sites:
        if not is_site_name(site.name):
            raise InvalidInput(
                f"the site {site.name!r}: names have up to 63 small letters, digits and hyphens (inside only)"
            )
        if site.name in RESERVED_NAMES:
            raise InvalidInput(f"a site cannot be called {site.name!r}, as files of every kit are; choose another name")
        if site.name in names:
            raise InvalidInput(f"two sites are called {site.name!r}; names must differ")
        names.add(site.name)
        if site.address is None:
            continue
        try:
            host, port = split_address(site.address)
        except InvalidInput as error:
            raise InvalidInput(f"the address of {site.name}: {error}") from None
        if (other := addresses.setdefault((host.lower(), port), site.name)) != site.name:
            raise InvalidInput(f"{other} and {site.name} have the same address, {site.address}")


def _site_entry(path: Path, number: int, entry: Mapping[str, Any]) -> SiteEntry:
    table = TomlTable(entry, f"{path}, [[sites]] number {number}", ("name", "address"))
    return SiteEntry(table.text("name"), table.text("address", None))


# ------------------------------------------------------------------------------------------------------------- writing


def write_network(path: Path, network: NetworkFile) -> None:
    """Write ``network.toml`` with everything that is said in it."""
    components = "all" if network.components is None else network.components
    lines = [("name", network.name), ("run", network.run), ("components", components)]
    said: list[tuple[str, Any]] = [*lines, ("tolerance", float(network.tolerance))]
    said += [(key, getattr(network, key)) for key in ("center", "scale", "algorithm", "messages", "seed", "max_iter")]
    if network.topology_name is not None:
        said.append(("topology", network.topology_name))
    if network.edges is not None:
        said.append(("edges", [list(pair) for pair in network.edges]))
    said += [("on_loss", network.on_loss), ("patience", duration_text(network.patience))]
    said.append(("checkpoint_every", network.checkpoint_every))
    text = "".join(f"{key} = {as_toml(value)}\n" for key, value in said)
    for site in network.sites:
        text += f"\n[[sites]]\nname = {as_toml(site.name)}\n"
        text += "" if site.address is None else f"address = {as_toml(site.address)}\n"
    write_whole(path, text.encode())
