"""Test the rows and ports of a trial network."""

from __future__ import annotations

import socket
from pathlib import Path

import numpy as np
import pytest

from deepca.errors import DataError, ParameterError
from deepca.sites.admin.trial_setup import allocate_rows, free_ports, trial_network
from tests.support.errors import raises


@pytest.fixture
def file(tmp_path: Path) -> Path:
    np.save(tmp_path / "rows.npy", np.arange(20.0).reshape(10, 2))
    return tmp_path / "rows.npy"


def test_a_file_that_is_given_twice_is_refused(file: Path, tmp_path: Path) -> None:
    with raises(DataError, file=str(file)):
        allocate_rows([file, file], None, tmp_path / "kits")


@pytest.mark.parametrize("agents", [0, -1])
def test_at_least_one_agent_is_required(file: Path, tmp_path: Path, agents: int) -> None:
    with raises(ParameterError, parameter="agents", value=agents):
        allocate_rows([file], agents, tmp_path / "kits")


def test_rows_are_shared_equally(file: Path, tmp_path: Path) -> None:
    shares = allocate_rows([file], 3, tmp_path / "kits")
    assert sum(share.rows or 0 for share in shares) == 10
    assert {share.rows for share in shares} == {3, 4}
    network = trial_network(shares, name="trial", components=1, topology_name="ring")
    assert [site.name for site in network.sites] == [share.site for share in shares]


def test_free_ports_differ_and_can_be_used() -> None:
    ports = free_ports(5)
    assert len(set(ports)) == 5
    for port in ports:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
