"""Pytest options, markers and Hypothesis profiles.

With ``--engine mpi``, the tests of the algorithms run over the ranks of an MPI job (see ``tests/support/engines.py``).
"""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.support import engines
from tests.support.seeds import SHIFT

# the default profile repeats the same examples; --hypothesis-profile=fresh draws five times as many new ones
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("fresh", max_examples=500, deadline=None, print_blob=True)
settings.load_profile("fixed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engine",
        choices=("simulator", "mpi"),
        default="simulator",
        help="network for the tests of the algorithms; with mpi, start mpiexec -n 4 … python -m pytest --engine mpi",
    )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "simulator(reason): tests the simulator itself; not run over MPI")
    config.addinivalue_line("markers", "threads(reason): tests one agent per thread; not run over MPI")
    config.addinivalue_line("markers", "mpi: tests MpiNetwork itself; run over MPI only")
    config.addinivalue_line("markers", "law: must hold for any seed; make test-laws draws new ones")
    if config.getoption("engine") == "mpi":
        engines.use_mpi()
        from tests.support.mpi_session import MpiSession

        config.pluginmanager.register(MpiSession(config), "deepca-mpi")


def pytest_report_header() -> str | None:
    return f"laws: seeds from {SHIFT}; to repeat: make test-laws SEED={SHIFT}" if SHIFT else None


_PROCESSES = ("real", "mpi")  # xdist groups whose tests start agents or ranks as separate processes


@pytest.hookimpl(tryfirst=True)  # before -m is evaluated
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if any(mark.args[0] in _PROCESSES for mark in item.iter_markers("xdist_group")):
            item.add_marker("slow")
    if config.getoption("engine") != "mpi":
        deselected = [item for item in items if item.get_closest_marker("mpi")]
        items[:] = [item for item in items if not item.get_closest_marker("mpi")]
        config.hook.pytest_deselected(items=deselected)
