"""The page of the fault suite."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from studies.faults.playing import Found
from studies.shared.report import Assertion, Section, Table

__all__ = ["section"]

_TEXT = """\
Every agent is a process of its own; they talk over loopback with mutual TLS 1.3 and kits as `deepca init` makes them.
Unless a row says otherwise there are 10 agents in a ring. Each run ends by itself or counts as hung, and each model
file is compared with scikit-learn's PCA of the pooled rows of the sites that it names, with what the simulator finds in
them, and byte by byte with the model files of the other sites. The error is the sine of the largest angle between the
components.

`wait` and `shrink` are the values of `on_loss` in `network.toml`. A link is broken by a TCP proxy that stops to pass on
what it reads, so nothing is told to either side; messages are lost, doubled and reordered between an agent's node and
its streams. An agent that lies runs the same program as all others, with one piece of it replaced."""


def section(found: Sequence[Found], simulated: tuple[int, int] | None = None) -> Section:
    """All that was found. simulated : schedules under the virtual clock, and how many of them ended as they must."""
    rows = [
        (one.case, one.done, str(one.runs), str(one.success), str(one.wrong), str(one.hung), one.figures)
        for one in found
    ]
    runs, wrong, hung = sum(one.runs for one in found), sum(one.wrong for one in found), sum(one.hung for one in found)
    assertions = [
        Assertion("no wrong answer", f"{wrong} in {runs} runs", wrong == 0),
        Assertion("nothing hangs", f"{hung} in {runs} runs", hung == 0),
        *(
            Assertion(f"{one.case}: as it must", "; ".join(one.problems)[:600] or one.figures, one.holds)
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
            Assertion("nobody ends with a traceback", f"{traced} in {told} attacks", traced == 0),
            Assertion("the culprit is named at every site", f"in {named} of {told} attacks", named == told),
        ]
    if simulated is not None:
        played, right = simulated
        said = f"{right} of {played}"
        assertions.append(Assertion("simulated random schedules end as they must", said, right == played))
    header = ("Case", "What was done", "Runs", "As it must", "Wrong", "Hung", "Figures")
    note = f"{platform.machine()}, Python {platform.python_version()}."
    return Section("Faults", _TEXT, tuple(assertions), (Table("All cases", header, tuple(rows), note, 2),))
