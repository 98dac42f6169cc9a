"""Test that the promises of a site survive a restart."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from deepca.sites.protocol.claims import Endorsement, ResultClaim
from deepca.sites.runtime.promise_store import FilePromiseStore


def _promise_store(folder: Path) -> FilePromiseStore:
    return FilePromiseStore(folder, "result", "north", 3)


def _signed(folder: Path) -> None:
    claim = ResultClaim(1, b"p" * 32, (0, 1, 2), hashlib.sha256(b"model").digest())
    promise_store = _promise_store(folder)
    promise_store.store_epoch(7)
    promise_store.store_result(b"model", claim, (Endorsement(0, claim, b"s"),), decided=True)


def test_a_result_survives_a_restart(tmp_path: Path) -> None:
    _signed(tmp_path)
    found = _promise_store(tmp_path).load()
    assert (found.epoch, found.content, found.decided) == (7, b"model", True)


@pytest.mark.parametrize("damage", ["missing", "altered", "endorsements"])
def test_the_promised_epoch_survives_if_the_result_is_unusable(tmp_path: Path, damage: str) -> None:
    _signed(tmp_path)
    if damage == "missing":
        (tmp_path / "result.npz").unlink()
    elif damage == "altered":
        (tmp_path / "result.npz").write_bytes(b"other")
    else:
        about = tmp_path / "result.json"
        about.write_text(json.dumps({**json.loads(about.read_text()), "endorsements": ["00ff"]}))
    found = _promise_store(tmp_path).load()
    assert (found.epoch, found.content) == (7, None)
