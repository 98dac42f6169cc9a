"""A pytest session on every rank: the same tests in the same order, with one outcome and one report.

After every test the ranks compare its outcomes. A test that failed on one rank has failed on all, so that all ranks
continue with the same next one; rank 0 reports for all ranks, while the others are silent.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.mpi_matrix import MATRIX
from tests.support.mpi_ranks import WORLD, agree, networks, same, texts_of
from tests.support.paths import ROOT

__all__ = ["MpiSession"]

_TIMEOUT = 120  # seconds per test; the silent ranks have a little longer, so that rank 0 reports first
_ERROR_LINES = 6  # lines of an error that are printed at once
_CODES = {"passed": 0, "failed": 1, "skipped": 2}


class MpiSession:
    """Pytest plugin of ``--engine mpi``."""

    def __init__(self, config: pytest.Config) -> None:
        self._counts = {"with a network": 0, "without": 0, "left out": 0}
        # ranks must draw the same examples, and a slow one must not behave differently
        settings.register_profile(
            "mpi",
            derandomize=True,
            deadline=None,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        )
        settings.load_profile("mpi")
        if WORLD.rank:
            config.pluginmanager.unregister(name="terminalreporter")
            silent = Path(os.devnull).open("w")  # noqa: SIM115 - open until the process ends
            config.pluginmanager.register(pytest.TerminalReporter(config, silent), "terminalreporter")

    def pytest_internalerror(self, excrepr: object) -> None:
        """End the job, since the others would wait for this rank."""
        _end_the_job(f"pytest failed at rank {WORLD.rank}\n{excrepr}")

    def pytest_report_header(self) -> str:
        return f"engine: MPI, {WORLD.size} ranks"

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        here = ROOT / "tests"
        inside = collection_path.suffix == ".py" and collection_path.is_relative_to(here)
        return True if inside and collection_path.relative_to(here).as_posix() not in MATRIX else None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        left_out = [
            item for item in items if item.get_closest_marker("simulator") or item.get_closest_marker("threads")
        ]
        chosen = set(items) - set(left_out)
        items[:] = [item for item in items if item in chosen]
        seconds = _TIMEOUT + (10 if WORLD.rank else 0)
        for item in items:  # by a thread, which ends the process and with it the job
            item.add_marker(pytest.mark.timeout(seconds, method="thread"), append=False)
        config.hook.pytest_deselected(items=left_out)
        self._counts["left out"] = len(left_out)
        if not same("\n".join(item.nodeid for item in items).encode()):
            pytest.exit("the ranks have collected different tests", returncode=3)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        codes = agree(_CODES[report.outcome])
        if networks.parted is not None or len(codes) < WORLD.size:
            _end_the_job(
                f"rank {WORLD.rank} failed while others are still inside {item.nodeid}\n"
                f"{networks.parted or report.longreprtext}"
            )
        if len(set(codes)) > 1 or codes[0] == 1:
            self._fail(report, codes)
        if call.when == "call":
            self._counts["with a network" if networks.made else "without"] += 1
            networks.made = 0
            networks.close(ended_alike=1 not in codes)
        return report

    def _fail(self, report: pytest.TestReport, codes: list[int]) -> None:
        """Fail the test on all ranks; rank 0 includes the differing reports of others."""
        texts, failed = texts_of(report.longreprtext), _CODES["failed"]
        said = {rank: text for rank, text in enumerate(texts) if codes[rank] == failed}
        if WORLD.rank == 0:  # at once, since there is no summary if the job is aborted
            lines = dict.fromkeys(line for text in said.values() for line in _essence(text))
            sys.stderr.write("\n".join(["", report.nodeid, *lines, ""]))
        if report.outcome != "failed":
            ended = ", ".join(f"rank {rank}: {name}" for rank, code in enumerate(codes) for name in _names(code))
            report.outcome, report.longrepr = "failed", f"the ranks differ ({ended})"
        known = [_essence(said.pop(WORLD.rank, ""))]
        for rank, text in said.items():
            if _essence(text) not in known:
                known.append(_essence(text))
                report.sections.append((f"rank {rank}", text))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        counts = self._counts
        terminalreporter.section("MPI")
        terminalreporter.write_line(
            f"{WORLD.size} ranks: {counts['with a network']} tests over MPI, {counts['without']} more without a "
            f"network, {counts['left out']} left out"
        )


def _essence(text: str) -> list[str]:
    """Return the lines of a traceback that state the error."""
    return [line for line in text.splitlines() if line.startswith("E ")][:_ERROR_LINES]


def _end_the_job(why: str) -> None:
    sys.stderr.write(f"\n{why}\n")
    sys.stderr.flush()
    WORLD.Abort(1)


def _names(code: int) -> list[str]:
    return [name for name, number in _CODES.items() if number == code]
