"""Hand out and install the key for column names, as parts of ``deepca join``."""

from __future__ import annotations

from pathlib import Path

from rich.markup import escape

__all__ = ["how_to_share", "install_key", "share_key"]


def install_key(site: Path, file: Path) -> tuple[str, dict[str, object]]:
    """Install the key at a site; return a text and facts about it."""
    from deepca.sites.pki.column_key import install_column_key

    done = install_column_key(site, file)
    facts: dict[str, object] = {
        "site": done.site,
        "column_key": str(done.path),
        "identifier": done.identifier,
        "replaced": done.replaced,
    }
    text = (
        f"Installed the key for column names at {done.site}: {escape(str(done.path))}, identifier {done.identifier}. "
        "An agent uses it from its next start."
    )
    return text, facts


def share_key(authority: Path) -> tuple[str, dict[str, object]]:
    """Say where the key is in the authority's folder, after making it if necessary; return a text and facts."""
    from deepca.sites.pki.column_key import share_column_key

    found = share_column_key(authority)
    facts: dict[str, object] = {"column_key": str(found.path), "identifier": found.identifier, "made": found.made}
    what = "Made the key for column names" if found.made else "This network has a key for column names"
    return f"{what}, identifier {found.identifier}. {how_to_share(found.path)}", facts


def how_to_share(path: Path) -> str:
    """Say how a site gets the key for column names, which is in the authority's folder."""
    return (
        f"A site without {path.name} needs a copy of [bold]{escape(str(path))}[/], sent in a way that nobody else can "
        "read it. To install it at a site:\n"
        f"  deepca join site.toml --column-key {path.name}"
    )
