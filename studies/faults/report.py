"""Write the page of the fault suite: its assertions and a table of its cases."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from studies.faults.harness import CaseResult
from studies.shared.report import Assertion, Section, Table

__all__ = ["section"]

_TEXT = """\
Every agent runs in its own process. Agents communicate over loopback with mutual TLS 1.3, using kits made by `deepca
init`. Unless a row says otherwise, there are 10 agents in a ring. A run that does not end by itself counts as hung.
Each model file is compared with scikit-learn's PCA of the pooled rows of the sites that it lists, with the
simulator's result for the same rows, and byte for byte with the model files of the other sites. The error is the sine
of the largest angle between the components.

`wait` and `shrink` are values of `on_loss` in `network.toml`. A link is blocked by a TCP proxy that stops forwarding,
so that neither side is notified. Frames are lost, duplicated and reordered between an agent's node and its streams.
An agent that lies has a genuine kit and runs the same program as all others, except that one function is replaced."""


def section(results: Sequence[CaseResult], simulated: tuple[int, int] | None = None) -> Section:
    """Return the section of the page with the assertions and the table of all cases.

    Parameters
    ----------
    results
        Outcomes of the cases.
    simulated
        Number of simulated schedules, and number of those that passed.
    """
    rows = [
        (one.case, one.done, str(one.runs), str(one.passed), str(one.wrong), str(one.hung), one.figures)
        for one in results
    ]
    runs, wrong, hung = (
        sum(one.runs for one in results),
        sum(one.wrong for one in results),
        sum(one.hung for one in results),
    )
    assertions = [
        Assertion("no wrong result", f"{wrong} in {runs} runs", wrong == 0),
        Assertion("no run hangs", f"{hung} in {runs} runs", hung == 0),
        *(
            Assertion(f"{one.case}: all runs pass", "; ".join(one.problems)[:600] or one.figures, one.holds)
            for one in results
        ),
    ]
    lies = [one.lies for one in results if one.lies is not None]
    if lies:
        attacks = sum(one.told for one in lies)
        accepted, traced = sum(one.accepted for one in lies), sum(one.tracebacks for one in lies)
        named = sum(one.named for one in lies)
        assertions += [
            Assertion("no fabricated result is accepted", f"{accepted} in {attacks} attacks", accepted == 0),
            Assertion("no agent ends with a traceback", f"{traced} in {attacks} attacks", traced == 0),
            Assertion("the honest sites name the liar", f"in {named} of {attacks} attacks", named == attacks),
        ]
    if simulated is not None:
        total, passed = simulated
        assertions.append(Assertion("all simulated random schedules pass", f"{passed} of {total}", passed == total))
    header = ("Case", "What was done", "Runs", "Passed", "Wrong", "Hung", "Measured")
    note = f"{platform.machine()}, Python {platform.python_version()}."
    return Section("Faults", _TEXT, tuple(assertions), (Table("All cases", header, tuple(rows), note, 2),))
