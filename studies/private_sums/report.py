"""Write the page: what was asked, and every figure with its goal and verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from studies.private_sums.comparison import BYTES_GOAL, WALL_GOAL, Comparison, Quartiles
from studies.private_sums.results import ROUND_GOAL, Results
from studies.private_sums.trials import COMPONENTS, TOLERANCE
from studies.private_sums.uniformity import BLOCK_BYTES, Uniformity
from studies.shared.report import Assertion, Section, Table

__all__ = ["sections"]

_LEVEL = 1e-3  # uniform bytes fail the test with this probability
_IDLE = 0.3  # cores that others may use before the page warns of it
_WORD_BYTES = 8

_ASKED = """\
Sums are private by default: every site masks what it adds, and only the totals can be read
([how](privacy.md#private-sums)). That must not cost more than a little, and what is sent must look random. So these
figures were asked for, all from one run: the same answer as in an open network, bit for bit and proven; at most
{wall:g} times the time and {bytes:g} times the bytes; a round of messages between agents in at most {round:g} times
the time of a bare exchange over TLS; masked bytes that pass a test of uniformity; and no block in common between two
runs over the same rows. What a neighbour can find out from the messages of an open network and of a private one is a
subject of its own and not measured here."""

_COMPARED = """\
Every site is a process with certificates of its own, in a ring over loopback, as with `deepca trial`. A private run
comes first. The sites make its seed, and the model contains it; an open run of the same sites with this seed in
`network.toml` follows. The two are a pair: digests are compared within it, and ratios taken. Rows are normal with {k}
large variances, in `.npy` files; the components are certified to {tol:g}. The time is that from the first site that
begins the epoch to the last that has written its model, so it includes reading the rows, all sums, the certificate
and the agreement on the result, but not the start of processes. The processor time is that of all sites within it.
All sites share the cores of one machine, so that wall time is about their processor time divided by the cores, and
other work on the machine changes it more than masks do; the processor time depends less on that. Medians over the
pairs, quartiles in brackets."""

_BYTES = """\
Bytes of messages are those of the algorithm, as the model counts them; there, a private run adds a check number to
each part of a message, and nothing else. Bytes of frames are everything that the nodes of all sites sent until the
model was written: also keys, records, checksums, the two sums that make the seed and confirm the last total, and what
was sent again. How many records and repetitions there are depends on timing, in open runs as well."""

_BUSY = """\
**The machine was busy:** other processes used {others:.1f} of its cores while the sites ran (median). Digests, proofs,
bytes and blocks do not depend on that. Wall times and the times of rounds do: their ratios scatter, and processor time
says more about what masks cost."""

_COSTS = """\
What masks add at one agent to the sum of a product with {columns} columns, the message of one iteration of block
Krylov, in milliseconds of processor time, measured in one process. Hiding expands the secret shared with every other
site to a keystream and adds it, so it grows with the number of sites; checking makes the weights of the check numbers
and the sums with them, before and after; recording hashes the total into the history. The rest of a private run is
that of an open one, but for two short sums: one makes the seed, one confirms the last total."""

_ROUNDS = """\
Agents are processes in a ring over loopback with mutual TLS 1.3. A bare exchange sends a message of 12 KB to both
neighbours and receives theirs, through asyncio streams; an exchange between agents does the same through the node and
gRPC, whose messages are numbered, acknowledged, checked and sent again after a loss; a round of a sum is passed on by
the event loop. The three take turns. What an exchange takes longer than a round of a sum is for waking the
algorithm's thread, which makes the next message. All large messages of a private run are those of sums; exchanges
remain for the few numbers that agents flood. Before this study, rounds took 4.2 to 4.4 times as long as bare
exchanges. Masks are not part of a round: they are added before the first one (see above)."""

_UNIFORM = """\
Real agents recorded the messages that they sent in two private runs over the same rows, and, as a control, in open
runs. Totals, which travel down the tree and are public, are left out, and so is the first word of each message, the
number of agents added up. Bytes are counted by their position in a word of {word} bytes, and compared with a uniform
distribution by Pearson's chi-square test; there are two runs with {word} positions each, so that the smallest p-value
is multiplied by {tests}. Blocks are {block} bytes long and begin at every word."""


def sections(results: Results, figure: str | None, about: str) -> list[Section]:
    """Return all sections of the page; ``figure`` is its path relative to the page, ``about`` describes the run."""
    asked = _ASKED.format(wall=WALL_GOAL, bytes=BYTES_GOAL, round=ROUND_GOAL)
    others = Quartiles.of(run.others for one in results.comparisons for pair in one.pairs for run in pair).median
    busy = [_BUSY.format(others=others)] if others > _IDLE else []
    picture = [] if figure is None else [f"![Ratio of the times of private and open runs]({figure})"]
    return [
        Section("What was asked", "\n\n".join([asked, about, *busy, *picture]), (), ()),
        _compared(results),
        _rounds(results),
        _uniform(results.uniformity),
    ]


def _compared(results: Results) -> Section:
    found = results.comparisons
    pairs, same = sum(len(one.pairs) for one in found), sum(one.same_digests for one in found)
    angle, iterations = (
        max(one.angle for one in found),
        {run.iterations for one in found for p in one.pairs for run in p},
    )
    took = _goal(f"A private run takes at most {WALL_GOAL:g} times as long.", found, "wall", WALL_GOAL)
    cpu = max(one.cpu.median for one in found)
    above = f"upper quartile above the goal in {sum(one.wall.upper > WALL_GOAL for one in found)}"
    assertions = (
        Assertion("The digest is the same at the same seed.", f"in {same} of {pairs} pairs", same == pairs),
        Assertion(
            f"Every run proves the tolerance {TOLERANCE:g}.",
            f"tan θ ≤ {angle:.0e} at every site, after {_range(iterations)} iterations",
            all(one.proven for one in found),
        ),
        replace(took, measured=f"{took.measured}; {above}; largest median of processor time {cpu:.3f}"),
        _goal(f"Its messages have at most {BYTES_GOAL:g} times the bytes.", found, "numbers", BYTES_GOAL),
        _goal(f"Its frames have at most {BYTES_GOAL:g} times the bytes.", found, "frames", BYTES_GOAL),
    )
    text = "\n\n".join([_COMPARED.format(k=COMPONENTS, tol=TOLERANCE), _BYTES])
    return Section("Private against open", text, assertions, (_times(found), _sizes(found), _costs(results)))


def _goal(statement: str, found: Sequence[Comparison], name: str, goal: float) -> Assertion:
    """Return the assertion that the median of a ratio meets its goal in all cases."""
    medians = {one: getattr(one, name).median for one in found}
    met = sum(median <= goal for median in medians.values())
    worst = max(medians, key=lambda one: medians[one])
    where = f"largest median {medians[worst]:.3f}, {worst.case.m} sites and d = {worst.case.d:,}"
    return Assertion(statement, f"in {met} of {len(found)} cases; {where}", met == len(found))


def _times(found: Sequence[Comparison]) -> Table:
    rows = [
        (
            *_case(one),
            str(len(one.pairs)),
            one.seconds(0).text(),
            one.seconds(1).text(),
            one.wall.text(),
            _verdict(one.wall.median, WALL_GOAL),
            one.cpu.text(),
            one.others.text(1),
        )
        for one in found
    ]
    header = (
        "sites",
        "d",
        "rows per site",
        "pairs",
        "private, s",
        "open, s",
        "wall time",
        f"goal {WALL_GOAL:g}",
        "processor time",
        "in use by others, cores",
    )
    return Table("Time of a private run over that of an open one", header, tuple(rows), "", 1)


def _sizes(found: Sequence[Comparison]) -> Table:
    rows = []
    for one in found:
        opened = [run for _, run in one.pairs]
        per_site = sum(sum(run.frames) for run in opened) / len(opened) / one.case.m
        verdict = _verdict(max(one.numbers.median, one.frames.median), BYTES_GOAL)
        rows.append((*_case(one), f"{per_site / 1e6:.1f}", f"{one.numbers.median:.4f}", one.frames.text(4), verdict))
    header = ("sites", "d", "rows per site", "MB per site, open", "messages", "frames", f"goal {BYTES_GOAL:g}")
    return Table("Bytes sent by a private run over those of an open one", header, tuple(rows), "", 1)


def _costs(results: Results) -> Table:
    rows = []
    for one, cost in zip(results.comparisons, results.costs, strict=True):
        parts = (cost.hiding, cost.checking, cost.recording)
        rows.append((*_case(one)[:2], f"{cost.size / 1e3:,.0f}", *(f"{part:.2f}" for part in (*parts, sum(parts)))))
    header = ("sites", "d", "message, KB", "hiding", "checking", "recording", "together")
    return Table(
        "Cost of masks in one sum, in milliseconds", header, tuple(rows), _COSTS.format(columns=COMPONENTS + 2), 1
    )


def _rounds(results: Results) -> Section:
    assertions, rows = [], []
    for name, kind in (("An exchange", "exchange"), ("A round of a sum", "relayed")):
        medians = {one.m: getattr(one, kind).median for one in results.rounds}
        measured = ", ".join(f"{median:.2f} times with {m} sites" for m, median in medians.items())
        met = max(medians.values()) <= ROUND_GOAL
        statement = f"{name} of 12 KB takes at most {ROUND_GOAL:g} times a bare exchange."
        assertions.append(Assertion(statement, measured, met))
    for one in results.rounds:
        bare, exchange, relayed = (1e3 * sorted(times)[len(times) // 2] for times in one.seconds.tolist())
        verdicts = [_verdict(ratio.median, ROUND_GOAL) for ratio in (one.exchange, one.relayed)]
        times = (f"{bare:.2f}", f"{exchange:.2f}", f"{relayed:.2f}")
        rows.append((str(one.m), *times, one.exchange.text(), verdicts[0], one.relayed.text(), verdicts[1]))
    goal = f"goal {ROUND_GOAL:g}"
    header = (
        "sites",
        "bare, ms",
        "exchange, ms",
        "round of a sum, ms",
        "exchange / bare",
        goal,
        "round of a sum / bare",
        goal,
    )
    table = Table(
        "Time of a round of 12 KB", header, tuple(rows), "Medians over repetitions, quartiles in brackets.", 1
    )
    return Section("A round of 12 KB", _ROUNDS, tuple(assertions), (table,))


def _uniform(found: Uniformity) -> Section:
    tests = found.pvalues[:2].size
    text = _UNIFORM.format(word=_WORD_BYTES, tests=tests, block=BLOCK_BYTES)
    assertions = (
        Assertion(
            f"Masked bytes are uniform at every position of a word, at the level of {_LEVEL:g}.",
            f"smallest p-value times {tests}: {found.smallest:.2g}",
            found.smallest >= _LEVEL,
        ),
        Assertion(
            "Two private runs over the same rows share no masked block.",
            f"{found.shared} blocks of {BLOCK_BYTES} bytes in common",
            found.shared == 0,
        ),
        Assertion(
            "Within a private run, no block occurs twice.",
            f"{sum(found.repeated[:2])} repetitions",
            not any(found.repeated[:2]),
        ),
    )
    names = ("private, run 1", "private, run 2", "open")
    shown = [[_pvalue(p) for p in row] for row in found.pvalues.tolist()]
    rows = [
        ("messages", *(f"{n:,}" for n in found.n_messages)),
        ("bytes", *(f"{n:,}" for n in found.n_bytes)),
        *((f"p-value, byte {i + 1} of a word", *column) for i, column in enumerate(zip(*shown, strict=True))),
        ("blocks that repeat an earlier one", *(f"{n:,}" for n in found.repeated)),
        ("blocks shared with another run over the same rows", *[f"{found.shared:,}"] * 2, f"{found.shared_open:,}"),
    ]
    case = f"{found.case.m} sites, d = {found.case.d}, {found.case.rows} rows per site."
    table = Table("Messages on their way up", ("", *names), tuple(rows), case, 1)
    return Section("What masked messages look like", text, assertions, (table,))


def _case(one: Comparison) -> tuple[str, str, str]:
    return str(one.case.m), f"{one.case.d:,}", str(one.case.rows)


def _pvalue(p: float) -> str:
    return f"{p:.3f}" if p >= 1e-3 else f"{p:.0e}" if p > 0.0 else "below 1e-300"


def _verdict(value: float, goal: float) -> str:
    return "met" if value <= goal else f"missed by {100 * (value / goal - 1):.2g} %"


def _range(numbers: set[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"
