"""The authority's records of the certificates that it has issued, in ``issued.json``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from deepca._util.files import write_atomic
from deepca.errors import InvalidInput
from deepca.sites.pki.certificates import read_content

__all__ = ["IssuedCertificate", "read_issued", "read_records", "write_records"]


@dataclass(frozen=True)
class IssuedCertificate:
    """A certificate in the records of the authority.

    Parameters
    ----------
    serial : str
        Serial number, in hexadecimal.
    site : str
        Name of the site.
    key : str
        Fingerprint of the public key, in hexadecimal.
    not_before, not_after : str
        Validity, as ISO 8601.
    revoked : str, optional
        When it was revoked, as ISO 8601; None if it was not.
    """

    serial: str
    site: str
    key: str
    not_before: str
    not_after: str
    revoked: str | None = None

    def valid(self, now: datetime) -> bool:
        """Return whether the certificate has neither expired nor been revoked."""
        return self.revoked is None and datetime.fromisoformat(self.not_after) > now


def read_issued(folder: Path) -> tuple[IssuedCertificate, ...]:
    """Return all certificates that the authority in a folder has issued, oldest first."""
    return tuple(read_records(folder)[0])


def read_records(folder: Path) -> tuple[list[IssuedCertificate], int]:
    """Return all certificates issued and the number of the last revocation list; 0 if the file does not record it.

    Raises InvalidInput if the file is missing, cannot be read or is damaged.
    """
    path = folder / "issued.json"
    try:
        state = json.loads(read_content(path, "restore it from a backup"))
        return [IssuedCertificate(**entry) for entry in state["issued"]], int(state.get("list", 0))
    except (ValueError, TypeError, KeyError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(
            f"{path}: damaged; restore this record of all issued certificates from a backup",
            file=str(path),
            parameter="issued",
        ) from None


def write_records(folder: Path, issued: list[IssuedCertificate], number: int) -> None:
    """Write all certificates issued and the number of the last revocation list."""
    text = json.dumps({"issued": [asdict(one) for one in issued], "list": number}, indent=2)
    write_atomic(folder / "issued.json", f"{text}\n".encode(), mode=0o600)
