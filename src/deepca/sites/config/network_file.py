"""Read and write ``network.toml``, which is the same at all sites; ``site.toml`` refers to it.

::

    name = "three-hospitals"                 site = "north"
    components = 4                           network = "network.toml"
    topology = "ring"                        data = "rows.csv"

    [[sites]]                                [security]
    name = "north"                           authority = "authority.pem"
    address = "north.example.org:7400"       certificate = "site.pem"
                                             key = "site.key"

`deepca.sites.config.example.EXAMPLE` is a ``network.toml`` with every key.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from scipy.sparse import csgraph

from deepca import topology as topologies
from deepca._util.files import write_atomic
from deepca._util.validation import Integer, check
from deepca.decomposition.settings import Settings, check_settings
from deepca.errors import DisconnectedError, InvalidInput, ParameterError, TopologyError
from deepca.network.compression import Messages
from deepca.sites.config.addresses import is_network_name
from deepca.sites.config.privacy import Privacy, privacy_obstacle
from deepca.sites.config.site_entries import RESERVED_NAMES, SiteEntry, check_sites
from deepca.sites.config.toml import COMPONENTS, TomlTable, as_toml, duration_text, load_toml, suggestion
from deepca.sites.config.toml_lines import Keys
from deepca.topology.graph import Topology

__all__ = [
    "RESERVED_NAMES",
    "NetworkFile",
    "OnLoss",
    "SiteEntry",
    "read_network",
    "write_network",
]

OnLoss = Literal["wait", "shrink"]
"""What to do when a site has been silent for longer than ``patience``."""

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
    "privacy",
    "on_loss",
    "patience",
    "checkpoint_every",
    "sites",
)
_SETTING_KEYS = {"n_components": "components", "tol": "tolerance"}  # settings that have a different key in network.toml


@dataclass(frozen=True)
class NetworkFile:
    """Contents of ``network.toml``, checked on construction.

    Parameters
    ----------
    name : str
        Name of the network.
    sites : tuple of SiteEntry
        Its sites; agent j is ``sites[j]``.
    components : int, float or None
        Number of components; or, in (0, 1), the share of variance to explain; or None for all.
    run : str
        Name of the run; changing it starts a new run.
    tolerance, center, scale, algorithm, messages, seed, max_iter
        Settings of the fit, see :class:`~deepca.decomposition.settings.Settings`.
    topology_name : str, optional
        A name that :func:`deepca.topology.from_name` accepts; None if ``edges`` are given instead.
    edges : tuple of (str, str), optional
        Pairs of neighbouring sites.
    privacy : {"private", "open"}
        Whether sums hide what each site adds to them.
    on_loss : {"wait", "shrink"}
        What to do when a site is lost.
    patience : float
        Seconds for which a neighbour may be silent before it counts as lost.
    checkpoint_every : int
        Iterations between checkpoints.

    Raises
    ------
    InvalidInput
        If a value cannot be used. ``parameter`` is its key in the file; for an entry of ``sites``, ``agent`` is its
        index and ``parameter`` a key of the entry.
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
    privacy: Privacy = "private"
    on_loss: OnLoss = "wait"
    patience: float = 60.0
    checkpoint_every: int = 10

    def __post_init__(self) -> None:
        """Check all values."""
        for key, text in (("name", self.name), ("run", self.run)):
            if not is_network_name(text):
                raise ParameterError(
                    key,
                    text,
                    "use up to 64 letters, digits, hyphens, dots and underscores, with a letter or digit at both ends",
                )
        check_sites(self.sites)
        for key, least in (("max_iter", 1), ("checkpoint_every", 1), ("seed", 0)):
            check(key, getattr(self, key), Integer(least))
        if not 0.0 < self.patience < math.inf:
            raise ParameterError("patience", self.patience, "a positive number of seconds, such as 60")
        for key, choices in (("on_loss", get_args(OnLoss)), ("privacy", get_args(Privacy))):
            if getattr(self, key) not in choices:
                raise ParameterError(key, getattr(self, key), f"choose {' or '.join(choices)}")
        check_settings(self.settings)
        if self.privacy == "private" and (
            obstacle := privacy_obstacle(len(self.sites), self.algorithm, self.messages, self.on_loss)
        ):
            raise InvalidInput(
                f'{obstacle}; add the line privacy = "open" to network.toml if neighbours may learn the numbers of '
                "a site (docs/privacy.md), or change that",
                parameter="privacy",
                value=self.privacy,
            )
        for i, j in self.links:
            if self.sites[i].address is None and self.sites[j].address is None:
                raise InvalidInput(
                    f"{self.sites[i].name} and {self.sites[j].name} are neighbours and neither has an address, so "
                    "neither can dial the other; give one of them an address, or choose another topology",
                    parameter="address",
                    agent=i,
                )

    @cached_property
    def topology(self) -> Topology:
        """Graph of the network; agent j is the site ``sites[j]``."""
        m = len(self.sites)
        if self.edges is not None and self.topology_name is not None:
            raise InvalidInput(
                "both topology and edges say which sites are neighbours; remove one of them",
                parameter="edges",
                value=self.edges,
            )
        if self.topology_name is not None:
            return self._named_topology(self.topology_name)
        if self.edges is not None:
            pairs = [(self._end(a), self._end(b)) for a, b in self.edges]
            self._check_edges(pairs)
            return topologies.from_edges(m, pairs)
        if m > 1:
            raise InvalidInput(
                'topology is missing; write topology = "ring", or list the links: edges = [["'
                f'{self.sites[0].name}", "{self.sites[1].name}"], …]',
                parameter="topology",
            )
        return topologies.from_edges(1, [])

    def _named_topology(self, name: str) -> Topology:
        try:
            found = topologies.from_name(name, len(self.sites), seed=self.seed)
        except InvalidInput as error:
            raise TopologyError(f"topology = {name!r}: {error}", parameter="topology", value=name) from None
        if not found.static_undirected:
            raise TopologyError(
                f"topology = {name!r} is time-varying or directed, but links between sites must be fixed and "
                'undirected; choose another topology, such as "ring" or "random-regular:4"',
                parameter="topology",
                value=name,
            )
        return found

    @property
    def links(self) -> tuple[tuple[int, int], ...]:
        """Pairs of neighbours i < j, in order."""
        m = len(self.sites)
        return tuple((i, j) for i in range(m) for j in sorted(self.topology.neighbors(i)) if i < j)

    @property
    def settings(self) -> Settings:
        """Settings of the fit."""
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
        """Return the index of a site in the list of sites.

        Raises
        ------
        InvalidInput
            If the network has no site of that name; ``parameter`` is "site" and ``value`` the name.
        """
        names = [site.name for site in self.sites]
        if name not in names:
            raise InvalidInput(
                f"{self.name} has no site {name!r}; {suggestion(name, names)}", parameter="site", value=name
            )
        return names.index(name)

    def neighbors(self, name: str) -> tuple[int, ...]:
        """Return the indices of a site's neighbours, in increasing order."""
        return tuple(sorted(self.topology.neighbors(self.index(name))))

    def dials(self, i: int, j: int) -> bool:
        """Return whether site i dials its neighbour j: a site without an address dials, else the one listed first."""
        here, there = self.sites[i].address, self.sites[j].address
        if (here is None) != (there is None):
            return here is None
        return i < j

    @property
    def digest(self) -> bytes:
        """SHA-256 digest of everything in the file that must be the same at all sites; addresses may differ.

        The digest covers the links, not the topology's name, for which another version of networkx may generate another
        graph.
        """
        content = {
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
            "privacy": self.privacy,
            "on_loss": self.on_loss,
            "patience": float(self.patience),
            "checkpoint_every": self.checkpoint_every,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).digest()

    def _end(self, name: str) -> int:
        """Return the index of a site named in ``edges``; raise InvalidInput if the network has no such site."""
        try:
            return self.index(name)
        except InvalidInput as error:
            raise InvalidInput(f"edges: {error}", parameter="edges", value=name) from None

    def _check_edges(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Check what :func:`deepca.topology.from_edges` checks, with errors that name sites."""
        m = len(self.sites)
        links = np.zeros((m, m))
        for i, j in pairs:
            if i == j:
                name = self.sites[i].name
                raise TopologyError(
                    f"edges: {name} is linked to itself; remove that pair", parameter="edges", value=(name, name)
                )
            links[i, j] = links[j, i] = 1.0
        count, label = csgraph.connected_components(links, directed=False)
        if count > 1:
            groups = tuple(tuple(self.sites[i].name for i in np.flatnonzero(label == part)) for part in range(count))
            shown = ", ".join("{" + ", ".join(group) + "}" for group in groups)
            raise DisconnectedError(
                f"edges: the sites fall into {count} groups without a link between them: {shown}; add links to "
                "connect them",
                parameter="edges",
                value=groups,
            )


# ------------------------------------------------------------------------------------------------------------- reading


def read_network(path: Path) -> NetworkFile:
    """Read and check ``network.toml``.

    Raises
    ------
    InvalidInput
        If the file cannot be used; ``file``, ``line`` and ``parameter`` say where.
    """
    file = load_toml(path)
    table = TomlTable(file, _NETWORK_KEYS)
    given: dict[str, Any] = {
        "name": table.text("name"),
        "sites": tuple(
            SiteEntry(entry.text("name"), entry.text("address", None))
            for entry in table.tables("sites", ("name", "address"))
        ),
        "components": table.components("components"),
        "topology_name": table.text("topology", None),
        "edges": table.pairs("edges"),
    }
    for key in ("run", "algorithm", "messages", "privacy", "on_loss"):
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
    except InvalidInput as error:
        if isinstance(error, ParameterError) and error.parameter == "n_components":
            error.expected = COMPONENTS  # how to write the value in this file, not in Python
        raise file.located(error, _keys_of(error)) from None


def _keys_of(error: InvalidInput) -> Keys:
    """Return the keys in ``network.toml`` of the value that an error is about."""
    if error.parameter is None:
        return ()
    key = _SETTING_KEYS.get(error.parameter, error.parameter)
    return (key,) if error.agent is None else ("sites", error.agent, key)


# ------------------------------------------------------------------------------------------------------------- writing


def write_network(path: Path, network: NetworkFile) -> None:
    """Write ``network.toml`` with every value, defaults included."""
    entries: list[tuple[str, Any]] = [
        ("name", network.name),
        ("run", network.run),
        ("components", "all" if network.components is None else network.components),
        ("tolerance", float(network.tolerance)),
    ]
    entries += [
        (key, getattr(network, key)) for key in ("center", "scale", "algorithm", "messages", "seed", "max_iter")
    ]
    if network.topology_name is not None:
        entries.append(("topology", network.topology_name))
    if network.edges is not None:
        entries.append(("edges", [list(pair) for pair in network.edges]))
    entries += [
        ("privacy", network.privacy),
        ("on_loss", network.on_loss),
        ("patience", duration_text(network.patience)),
    ]
    entries.append(("checkpoint_every", network.checkpoint_every))
    text = "".join(f"{key} = {as_toml(value)}\n" for key, value in entries)
    for site in network.sites:
        text += f"\n[[sites]]\nname = {as_toml(site.name)}\n"
        text += "" if site.address is None else f"address = {as_toml(site.address)}\n"
    write_atomic(path, text.encode())
