"""The report of the fault suite."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from studies.faults.playing import Found
from studies.shared.report import Assertion, Section, Table

__all__ = ["section"]

_TEXT = """\
Every agent is a process of its own. Agents communicate over loopback with mutual TLS 1.3, using kits made by `deepca
init`. Unless a row says otherwise, there are 10 agents in a ring. A run that does not end by itself counts as hung.
Each model file is compared with scikit-learn's PCA of the pooled rows of the sites that it lists, with the
simulator's result for the same rows, and byte for byte with the model files of the other sites. The error is the sine
of the largest angle between the components.

`wait` and `shrink` are values of `on_loss` in `network.toml`. A link is blocked by a TCP proxy that stops forwarding,
so that neither side is notified. Frames are lost, duplicated and reordered between an agent's node and its streams.
An agent that lies has a genuine kit and runs the same program as all others, with one function replaced."""


def section(found: Sequence[Found], simulated: tuple[int, int] | None = None) -> Section:
    """Return the section of the report.

    Parameters
    ----------
    found
        Outcomes of the cases.
    simulated
        Numbers of simulated schedules: all, and those that passed.
    """
    rows = [
        (one.case, one.done, str(one.runs), str(one.success), str(one.wrong), str(one.hung), one.figures)
        for one in found
    ]
    runs, wrong, hung = sum(one.runs for one in found), sum(one.wrong for one in found), sum(one.hung for one in found)
    assertions = [
        Assertion("no wrong result", f"{wrong} in {runs} runs", wrong == 0),
        Assertion("no run hangs", f"{hung} in {runs} runs", hung == 0),
        *(
            Assertion(f"{one.case}: all runs pass", "; ".join(one.problems)[:600] or one.figures, one.holds)
            for one in found
        ),
    ]
    lies = [one.lies for one in found if one.lies is not None]
    if lies:
        told = sum(one.told for one in lies)
        accepted, traced = sum(one.accepted for one in lies), sum(one.tracebacks for one in lies)
        named = sum(one.named for one in lies)
        assertions += [
            Assertion("no fabricated result is accepted", f"{accepted} in {told} attacks", accepted == 0),
            Assertion("no agent ends with a traceback", f"{traced} in {told} attacks", traced == 0),
            Assertion("every honest site names the liar", f"in {named} of {told} attacks", named == told),
        ]
    if simulated is not None:
        played, right = simulated
        measured = f"{right} of {played}"
        assertions.append(Assertion("all simulated random schedules pass", measured, right == played))
    header = ("Case", "What was done", "Runs", "Passed", "Wrong", "Hung", "Measured")
    note = f"{platform.machine()}, Python {platform.python_version()}."
    return Section("Faults", _TEXT, tuple(assertions), (Table("All cases", header, tuple(rows), note, 2),))
