"""``site.toml``: what one site says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from deepca._util.files import write_whole
from deepca.errors import InvalidInput
from deepca.sites.config.addresses import is_loopback, split_address
from deepca.sites.config.network_file import NetworkFile, read_network
from deepca.sites.config.toml import TomlTable, as_toml, duration_text, load_toml

__all__ = ["SiteFile", "read_site", "write_site"]

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
_SECURITY_KEYS = ("authority", "certificate", "key", "revoked", "plaintext")


@dataclass(frozen=True)
class SiteFile:
    """What ``site.toml`` says. All paths are absolute.

    listen : host:port; None for a site that cannot be reached from outside.  deadline : seconds.
    revoked : need not exist.  plaintext : without certificates; addresses are all loopback then.
    """

    path: Path
    site: str
    network: NetworkFile
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

    network = read_network(file(table, "network", "network.toml"))
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


def write_site(
    path: Path,
    site: str,
    data: str,
    *,
    label_column: str | None = None,
    dataset: str | None = None,
    deadline: float = 86400.0,
    edit_data: bool = False,
) -> None:
    """Write a ``site.toml`` with remarks, and the usual names of files.

    data : relative to the folder of the file, or absolute.  deadline : seconds.
    edit_data : whether ``data`` is a mere example that somebody has to replace.
    """
    note = "EDIT THIS: the file" if edit_data else "the file"

    def line(name: str, value: object, remark: str, *, example: object = None) -> str:
        said = f"{name} = {as_toml(value)}" if value is not None else f"# {name} = {as_toml(example)}"
        return f"{said:<32}# {remark}\n"

    text = (
        "# One site of the network; paths are relative to the folder of this file.\n"
        + line("site", site, "who this is")
        + line("network", "network.toml", "the same file at all sites")
        + line("data", data, f"{note} with the rows of this site; they stay here")
        + line("label_column", label_column, "a column that is no data: left out", example="diagnosis")
        + line("dataset", dataset, "which array of an .npz or HDF5 file", example="X")
        + line("model", "model.npz", "where the result goes")
        + line("state", "state", "folder for checkpoints")
        + line("listen", None, "else: the port of this site's address", example="0.0.0.0:7400")
        + line("deadline", duration_text(deadline), "after which the run ends as unfinished")
        + line("checkpoints", True, "whether a restarted agent can go on where it was")
        + "\n[security]\n"
        + line("authority", "authority.pem", "who signs certificates in this network")
        + line("certificate", "site.pem", "who this site is, signed by the authority")
        + line("key", "site.key", "never leaves this site")
        + line("revoked", "revoked.pem", "certificates that are no longer valid; need not exist")
    )
    write_whole(path, text.encode())
