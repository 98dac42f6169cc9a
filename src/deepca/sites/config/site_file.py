"""Read and write ``site.toml``, the configuration of one site."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from deepca._util.files import write_atomic
from deepca.errors import InvalidInput
from deepca.sites.config.addresses import is_loopback, split_address
from deepca.sites.config.disclosure import DEFAULT_RULES, DisclosureRules, read_rules
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
    "audit",
    "audit_folder",
    "disclosure",
    "security",
)
_SECURITY_KEYS = ("authority", "certificate", "key", "revoked", "column_key", "plaintext")


@dataclass(frozen=True)
class SiteFile:
    """Contents of ``site.toml``; all paths are absolute.

    Parameters
    ----------
    path : Path
        The file itself.
    site : str
        Name of this site.
    network : NetworkFile
        The network that it belongs to.
    data : Path
        File with the rows of this site.
    label_column : str, optional
        Column to exclude (labels, identifiers).
    dataset : str, optional
        Array to read from an .npz or HDF5 file.
    model : Path
        Where to write the result.
    state : Path
        Folder for checkpoints.
    listen : str, optional
        ``host:port`` to listen at; None for a site that only dials out.
    deadline : float
        Seconds after which the run ends as unfinished.
    checkpoints : bool
        Whether to write checkpoints, from which a restarted agent can resume.
    authority, certificate, key : Path
        Certificate of the authority, certificate of this site, and its private key.
    revoked : Path
        Revocation list; need not exist.
    column_key : Path
        Key for column names, which all sites share; unused if ``plaintext``.
    plaintext : bool
        Whether to connect without certificates; all addresses must then be loopback addresses.
    audit : Path, optional
        Folder of audit logs; None for no log.
    audit_required : bool
        Whether the run ends when its audit log cannot be written.
    rules : DisclosureRules
        What has to hold before anything that depends on rows is sent.
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
    column_key: Path
    plaintext: bool
    audit: Path | None = None
    audit_required: bool = False
    rules: DisclosureRules = DEFAULT_RULES

    @property
    def index(self) -> int:
        """Index of this site in the list of sites."""
        return self.network.index(self.site)

    @property
    def folder(self) -> Path:
        """Folder of ``site.toml``."""
        return self.path.parent


def read_site(path: Path) -> SiteFile:
    """Read and check ``site.toml`` and the ``network.toml`` that it names, but open no rows or certificates.

    Parameters
    ----------
    path : Path
        The file, or its folder.

    Raises
    ------
    InvalidInput
        If one of the two files cannot be used; ``file``, ``line`` and ``parameter`` say where.
    """
    path = (path / "site.toml" if path.is_dir() else path).absolute()
    table = TomlTable(load_toml(path), _SITE_KEYS)
    security = table.table("security", _SECURITY_KEYS)

    def file(where: TomlTable, key: str, *default: str) -> Path:
        name = where.text(key, *default)
        if not name:
            raise where.error(key, f"{key} is empty; write the name of a file", value=name)
        return path.parent / Path(name).expanduser()

    network = read_network(file(table, "network", "network.toml"))
    site = table.text("site")
    try:
        address = network.sites[network.index(site)].address
    except InvalidInput as error:
        raise table.error("site", str(error), value=site) from None
    plaintext, audit = bool(security.flag("plaintext", False)), _audit(table)
    found = SiteFile(
        path=path,
        site=site,
        network=network,
        data=file(table, "data"),
        label_column=table.text("label_column", None),
        dataset=table.text("dataset", None),
        model=file(table, "model", "model.npz"),
        state=file(table, "state", "state"),
        listen=_listen(table, table.text("listen", None), address),
        deadline=cast("float", table.duration("deadline", 86400.0)),
        checkpoints=bool(table.flag("checkpoints", True)),
        authority=file(security, "authority", "authority.pem"),
        certificate=file(security, "certificate", "site.pem"),
        key=file(security, "key", "site.key"),
        revoked=file(security, "revoked", "revoked.pem"),
        column_key=file(security, "column_key", "columns.key"),
        plaintext=plaintext,
        audit=file(table, "audit_folder", "audit") if audit else None,
        audit_required=audit == "required",
        rules=read_rules(table),
    )
    _check_site(found, table, security)
    return found


def _audit(table: TomlTable) -> bool | str:
    """Return whether to write an audit log, or "required"; raise InvalidInput for anything else."""
    return table.flag_or_word("audit", "required", default=True)


def _listen(table: TomlTable, given: str | None, address: str | None) -> str | None:
    """Return where to listen: at ``listen`` if given, else at the port of the site's address; None without either.

    Raises InvalidInput if ``listen`` is not an address.
    """
    if given is not None:
        try:
            split_address(given, lowest=0)
        except InvalidInput as error:
            raise table.error("listen", f"listen = {error}", value=given) from None
        return given
    if address is None:
        return None
    host, port = split_address(address)
    if is_loopback(host):
        return address  # only this machine can reach it, so listening on all interfaces would gain nothing
    return f"[::]:{port}" if ":" in host else f"0.0.0.0:{port}"


def _check_site(found: SiteFile, table: TomlTable, security: TomlTable) -> None:
    if found.model.suffix != ".npz":
        name = found.model.name
        raise table.error("model", f"model = {name!r}: write a file name that ends in .npz", value=name)
    if found.model == found.data:
        raise table.error(
            "data",
            "model and data name the same file, so the result would overwrite the rows; choose another name for model",
            value=found.data.name,
        )
    if not found.plaintext:
        return
    named = [(f"the address of {site.name}", site.address) for site in found.network.sites]
    for what, address in [*named, ("listen", found.listen)]:
        if address is not None and not is_loopback(split_address(address, lowest=0)[0]):
            raise security.error(
                "plaintext",
                f"plaintext = true requires loopback addresses, but {what} is {address}; use 127.0.0.1 everywhere for "
                "a trial on one machine, or certificates (deepca join)",
                value=address,
            )
    if found.network.privacy == "private" and len(found.network.sites) > 1:
        raise security.error(
            "plaintext",
            'plaintext = true leaves keys unsigned, so sums cannot be private; add the line privacy = "open" to '
            "network.toml, or use certificates (deepca join)",
            value=True,
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
    rules: DisclosureRules | None = None,
) -> None:
    """Write a ``site.toml`` with comments and the usual file names.

    Parameters
    ----------
    path : Path
        The file to write.
    site : str
        Name of the site.
    data : str
        File with the rows of the site, absolute or relative to the folder of ``path``.
    label_column, dataset : str, optional
        As in :class:`SiteFile`.
    deadline : float
        Seconds after which the run ends as unfinished.
    edit_data : bool
        Whether ``data`` is a placeholder that the operator has to replace.
    rules : DisclosureRules, optional
        Disclosure rules; by default, lines that are commented out.
    """
    note = "EDIT THIS: the file" if edit_data else "the file"

    def line(name: str, value: object, comment: str, *, example: object = None) -> str:
        entry = f"{name} = {as_toml(value)}" if value is not None else f"# {name} = {as_toml(example)}"
        return f"{entry:<32}# {comment}\n"

    def rule(name: str) -> object:
        return None if rules is None else getattr(rules, name)

    most = 'directions that totals may show: a number, a share or "all"; default: half, but at least 512'

    text = (
        "# One site of the network. Paths are relative to the folder of this file.\n"
        + line("site", site, "name of this site")
        + line("network", "network.toml", "the same file at all sites")
        + line("data", data, f"{note} with the rows of this site; they never leave it")
        + line("label_column", label_column, "column to exclude (labels, identifiers)", example="diagnosis")
        + line("dataset", dataset, "array to read from an .npz or HDF5 file", example="X")
        + line("model", "model.npz", "where to write the result")
        + line("state", "state", "folder for checkpoints")
        + line("listen", None, "where to listen; default: the port of this site's address", example="0.0.0.0:7400")
        + line("deadline", duration_text(deadline), "the run ends as unfinished after this time")
        + line("checkpoints", True, "whether a restarted agent can resume")
        + line("audit", True, 'log what leaves this site; "required": end the run if that fails')
        + "\n[disclosure]\n"
        + line("min_rows", rule("min_rows"), "take part only with at least so many rows", example=10)
        + line("min_sites", rule("min_sites"), "take part only if rows of so many sites are added up", example=3)
        + line("max_directions", rule("max_directions"), most, example=0.5)
        + "\n[security]\n"
        + line("authority", "authority.pem", "certificate of the authority that signs for this network")
        + line("certificate", "site.pem", "certificate of this site, signed by the authority")
        + line("key", "site.key", "private key; it never leaves this site")
        + line("revoked", "revoked.pem", "revocation list; need not exist")
        + line("column_key", "columns.key", "key for column names, the same at all sites; keep it secret")
    )
    write_atomic(path, text.encode())
