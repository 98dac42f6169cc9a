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
import ipaddress
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
from scipy.sparse import csgraph

from deepca import topology as topologies
from deepca._util.files import write_whole
from deepca.decomposition.pca import Settings, check
from deepca.errors import InvalidInput
from deepca.network.compression import Messages
from deepca.sites.config.toml import TomlTable, as_toml, duration_text, listed, load_toml, meant
from deepca.topology.graph import Topology

__all__ = [
    "EXAMPLE",
    "NetworkFile",
    "OnLoss",
    "SiteEntry",
    "SiteFile",
    "is_loopback",
    "is_network_name",
    "is_site_name",
    "read_network",
    "read_site",
    "site_text",
    "split_address",
    "write_network",
    "write_site",
]

OnLoss = Literal["wait", "shrink"]
"""What happens when a site is gone for longer than patience lasts."""

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
_HOST = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)*\.?"
)
_RESERVED = ("authority", "revoked", "site")  # names of other files and folders in and beside kits
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
_SITE_KEYS = (
    "site",
    "network",
    "data",
    "label_column",
    "dataset",
    "model",
    "state",
    "listen",
    "deadline",
    "checkpoints",
    "security",
)
_AS_WRITTEN = {"n_components": "components", "tol": "tolerance"}  # what settings are called in the file
_SECURITY_KEYS = ("authority", "certificate", "key", "revoked", "plaintext")

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
                raise InvalidInput(f"{key} = {text!r}: use up to 64 letters, digits, hyphens, dots and underscores")
        _check_sites(self.sites)
        if self.max_iter < 1 or self.checkpoint_every < 1 or self.seed < 0:
            key = "max_iter" if self.max_iter < 1 else "checkpoint_every" if self.checkpoint_every < 1 else "seed"
            raise InvalidInput(f"{key} = {getattr(self, key)}: at least {0 if key == 'seed' else 1}")
        if not 0.0 < self.patience < math.inf:
            raise InvalidInput(f"patience = {self.patience:g} s: it must be longer than nothing")
        if self.on_loss not in get_args(OnLoss):
            raise InvalidInput(f"on_loss = {self.on_loss!r}: choose {listed(get_args(OnLoss))}")
        check(self.settings)
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


@dataclass(frozen=True)
class SiteFile:
    """What ``site.toml`` says. All paths are absolute.

    listen : host:port; None for a site that cannot be reached from outside.  deadline : seconds.
    revoked : need not exist.  plaintext : without certificates; addresses are all loopback then.
    """

    path: Path
    site: str
    network: NetworkFile
    network_path: Path
    data: Path
    label_column: str | None
    dataset: str | None
    model: Path
    state: Path
    listen: str | None
    deadline: float
    checkpoints: bool
    authority: Path
    certificate: Path
    key: Path
    revoked: Path
    plaintext: bool

    @property
    def index(self) -> int:
        """The place of this site in the list of sites, from 0."""
        return self.network.index(self.site)

    @property
    def folder(self) -> Path:
        """Where ``site.toml`` lies."""
        return self.path.parent


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
    except InvalidInput as error:
        said = re.sub("^n_components|^tol(?= )", lambda name: _AS_WRITTEN[name[0]], str(error))
        raise InvalidInput(f"{path}: {said}") from None


def read_site(path: Path) -> SiteFile:
    """``site.toml`` and the network that it names, checked; the files of rows and certificates are not opened.

    ``path`` : the file, or the folder it lies in.
    """
    path = (path / "site.toml" if path.is_dir() else path).absolute()
    table = TomlTable(load_toml(path), str(path), _SITE_KEYS)
    security = TomlTable(table.table("security"), f"{path}, [security]", _SECURITY_KEYS)

    def file(where: TomlTable, key: str, *default: str) -> Path:
        name = where.text(key, *default)
        if not name:
            raise InvalidInput(f"{where.where}: {key} is empty; give the name of a file")
        return path.parent / Path(name).expanduser()

    network_path = file(table, "network", "network.toml")
    network = read_network(network_path)
    site = table.text("site")
    try:
        address = network.sites[network.index(site)].address
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None
    plaintext = bool(security.flag("plaintext", False))
    found = SiteFile(
        path=path,
        site=site,
        network=network,
        network_path=network_path,
        data=file(table, "data"),
        label_column=table.text("label_column", None),
        dataset=table.text("dataset", None),
        model=file(table, "model", "model.npz"),
        state=file(table, "state", "state"),
        listen=_listen(path, table.text("listen", None), address),
        deadline=cast("float", table.duration("deadline", 86400.0)),
        checkpoints=bool(table.flag("checkpoints", True)),
        authority=file(security, "authority", "authority.pem"),
        certificate=file(security, "certificate", "site.pem"),
        key=file(security, "key", "site.key"),
        revoked=file(security, "revoked", "revoked.pem"),
        plaintext=plaintext,
    )
    _check_site(found)
    return found


def _listen(path: Path, given: str | None, address: str | None) -> str | None:
    """Where to listen: as told; at the port of the address; nowhere without one."""
    if given is not None:
        try:
            split_address(given, lowest=0)
        except InvalidInput as error:
            raise InvalidInput(f"{path}: listen = {error}") from None
        return given
    if address is None:
        return None
    host, port = split_address(address)
    if is_loopback(host):
        return address  # nobody outside could use more than this
    return f"[::]:{port}" if ":" in host else f"0.0.0.0:{port}"


def _check_site(found: SiteFile) -> None:
    path = found.path
    if found.model.suffix != ".npz":
        raise InvalidInput(f"{path}: model = {found.model.name!r}: a model file ends in .npz")
    if found.model == found.data:
        raise InvalidInput(f"{path}: model and data are the same file; its rows would be lost")
    if not found.plaintext:
        return
    spoken = [(f"the address of {site.name}", site.address) for site in found.network.sites]
    for what, address in [*spoken, ("listen", found.listen)]:
        if address is not None and not is_loopback(split_address(address, lowest=0)[0]):
            raise InvalidInput(
                f"{path}: plaintext = true is for trials on one machine, and {what} is {address}; use 127.0.0.1 "
                "everywhere, or certificates (deepca join)"
            )


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
        if site.name in _RESERVED:
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


def split_address(address: str, *, lowest: int = 1) -> tuple[str, int]:
    """Host and port of ``"host:port"`` or ``"[::1]:port"``. ``lowest`` : the smallest port there may be."""
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not colon or not re.fullmatch("[0-9]{1,5}", port):
        raise InvalidInput(f"{address!r}: write host:port, such as north.example.org:7400")
    if not lowest <= int(port) <= 65535:
        raise InvalidInput(f"{address!r}: a port lies between {lowest} and 65535")
    if bracketed or ":" in host:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise InvalidInput(f"{address!r}: {host!r} is no IPv6 address; write it as in [2001:db8::1]:7400") from None
        if not bracketed:
            raise InvalidInput(f"{address!r}: write an IPv6 address in brackets, [{host}]:{port}")
    elif not _HOST.fullmatch(host):
        raise InvalidInput(f"{address!r}: {host!r} is not the name of a host")
    elif re.fullmatch("[0-9.]+", host):
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            raise InvalidInput(f"{address!r}: {host!r} is no IPv4 address") from None
    return host, int(port)


def is_site_name(text: str) -> bool:
    """Whether a site may be called so: a label as in DNS, of small letters, digits and hyphens."""
    return _LABEL.fullmatch(text) is not None


def is_network_name(text: str) -> bool:
    """Whether a network or a run may be called so."""
    return _NAME.fullmatch(text) is not None


def is_loopback(host: str) -> bool:
    """Whether a host can only be this machine: 127.0.0.0/8, ::1 or localhost."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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


def write_site(path: Path, site: str, data: str, **options: Any) -> None:
    """Write ``site.toml``; ``options`` as :func:`site_text` takes them."""
    write_whole(path, site_text(site, data, **options).encode())


def site_text(
    site: str,
    data: str,
    *,
    network: str = "network.toml",
    label_column: str | None = None,
    dataset: str | None = None,
    model: str = "model.npz",
    state: str = "state",
    listen: str | None = None,
    deadline: float = 86400.0,
    checkpoints: bool = True,
    authority: str = "authority.pem",
    certificate: str = "site.pem",
    key: str = "site.key",
    revoked: str = "revoked.pem",
    plaintext: bool = False,
    edit_data: bool = False,
) -> str:
    """A ``site.toml`` with remarks. Names of files are relative to its folder, or absolute.

    deadline : seconds.  edit_data : whether ``data`` is a mere example that somebody has to replace.
    """
    note = "EDIT THIS: the file" if edit_data else "the file"

    def line(name: str, value: object, remark: str, *, example: object = None) -> str:
        said = f"{name} = {as_toml(value)}" if value is not None else f"# {name} = {as_toml(example)}"
        return f"{said:<32}# {remark}\n"

    return (
        "# One site of the network; paths are relative to the folder of this file.\n"
        + line("site", site, "who this is")
        + line("network", network, "the same file at all sites")
        + line("data", data, f"{note} with the rows of this site; they stay here")
        + line("label_column", label_column, "a column that is no data: left out", example="diagnosis")
        + line("dataset", dataset, "which array of an .npz or HDF5 file", example="X")
        + line("model", model, "where the result goes")
        + line("state", state, "folder for checkpoints")
        + line("listen", listen, "else: the port of this site's address", example="0.0.0.0:7400")
        + line("deadline", duration_text(deadline), "after which the run ends as unfinished")
        + line("checkpoints", checkpoints, "whether a restarted agent can go on where it was")
        + "\n[security]\n"
        + line("authority", authority, "who signs certificates in this network")
        + line("certificate", certificate, "who this site is, signed by the authority")
        + line("key", key, "never leaves this site")
        + line("revoked", revoked, "certificates that are no longer valid; need not exist")
        + (line("plaintext", True, "without certificates; on one machine only") if plaintext else "")
    )
