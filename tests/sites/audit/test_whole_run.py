"""Tap every byte that leaves the sites of a whole private run, and account for all of them by kind."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

pytest.importorskip("grpc")
pytest.importorskip("cryptography")

from deepca.cli.app import app
from deepca.network.sums import SumLayout
from deepca.network.sums.integers import Words
from deepca.network.sums.masks import SumMasks
from deepca.sites.admin.kits import make_kits
from deepca.sites.audit.lines import digest_of
from deepca.sites.audit.reader import AuditLog, read_log, read_logs
from deepca.sites.config.site_file import SiteFile, read_site
from deepca.sites.pki.identity import load_authority
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.protocol.parcels import parse_header, tag_of, unpack
from deepca.sites.runtime.agent import run_agent
from deepca.sites.transport.channels import ClientChannel, ServerChannel
from studies.faults.fleet import free_ports

SITES = ("north", "east", "south", "west")
DIFFERING_REDUCTIONS = {"certificate"}
"""Phases in which sites flood values of their own: the sizes of their products, until these are taken from totals."""


@dataclass
class Tap:
    """Every byte that one side of a stream has written."""

    site: str = ""  # from its Challenge
    receiver: str = ""
    frames: list[tuple[str, bytes]] = field(default_factory=list)

    def take(self, content: bytes) -> None:
        frame = wire.Frame.FromString(content)
        kind = frame.WhichOneof("kind") or ""
        if kind == "challenge":
            self.site = frame.challenge.site
        self.frames.append((kind, content))


class _Tapped:
    """A gRPC call whose writes are recorded."""

    def __init__(self, call: Any, tap: Tap) -> None:
        self._call, self._tap = call, tap

    async def write(self, content: bytes) -> None:
        self._tap.take(content)
        await self._call.write(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)


@dataclass(frozen=True)
class Sent:
    """A message put together from tapped Parts."""

    site: str
    header: bytes
    body: bytes

    @cached_property
    def parcel(self) -> wire.Parcel:
        return parse_header(self.header)

    @property
    def digest(self) -> str:
        return digest_of(self.header, self.body)


@dataclass
class Run:
    """A finished run: what was tapped, what was masked, and the logs."""

    sites: list[SiteFile]
    taps: list[Tap]
    hidden: list[tuple[Words, Words]]  # messages before and after masks were added
    folder: Path

    @cached_property
    def logs(self) -> dict[str, AuditLog]:
        found = {}
        for site in self.sites:
            assert site.audit is not None
            [path] = read_logs(site.audit)
            found[site.site] = read_log(path, load_authority(site))
        return found

    @cached_property
    def messages(self) -> dict[tuple[str, int, int], Sent]:
        """Messages by sender, session and number, put together from the bytes on the wire."""
        parts: dict[tuple[str, int, int], dict[int, tuple[bytes, bytes]]] = defaultdict(dict)
        for tap in self.taps:
            for kind, content in tap.frames:
                if kind == "part":
                    part = wire.Frame.FromString(content).part
                    known = parts[tap.site, part.session, part.seq]
                    assert known.setdefault(part.index, (part.parcel, part.chunk)) == (part.parcel, part.chunk)
        return {
            key: Sent(key[0], found[0][0], b"".join(found[index][1] for index in sorted(found)))
            for key, found in parts.items()
        }

    def lines(self, what: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for site, log in self.logs.items():
            for line in log.lines:
                if line.members["line"] == what:
                    yield site, dict(line.members)

    @cached_property
    def data(self) -> list[tuple[dict[str, Any], Sent]]:
        """Messages of the algorithm, each with its line in the log of its sender."""
        return [
            (line, self.messages[site, int(line["session"], 16), line["seq"]])
            for site, line in self.lines("sent")
            if line["kind"] == "data"
        ]


def _kits(folder: Path) -> list[SiteFile]:
    """Make kits of four sites in a ring, whose sums are private."""
    network, rng = folder / "network.toml", np.random.default_rng(3)
    text = 'name = "four"\ncomponents = 2\ntopology = "ring"\n'
    for name, port in zip(SITES, free_ports(4), strict=True):
        text += f'[[sites]]\nname = "{name}"\naddress = "127.0.0.1:{port}"\n'
    network.write_text(text)
    make_kits(network, folder / "kits", trial=True)
    for name in SITES:
        kit = folder / "kits" / name
        np.save(kit / "rows.npy", rng.standard_normal((30, 8)) * np.geomspace(3.0, 0.3, 8))
        toml = kit / "site.toml"
        toml.write_text(
            "\n".join(
                'data = "rows.npy"' if line.startswith("data =") else line for line in toml.read_text().split("\n")
            )
        )
    return [read_site(folder / "kits" / name / "site.toml") for name in SITES]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run four agents in this process, over loopback and with certificates, and tap their streams."""
    folder = tmp_path_factory.mktemp("audit")
    sites, taps, hidden = _kits(folder), list[Tap](), list[tuple[Words, Words]]()
    hide = SumMasks.hide

    def tapped_client(self: ClientChannel, *given: Any) -> None:
        _client(self, *given)
        taps.append(Tap(receiver=self.who))
        self._call = _Tapped(self._call, taps[-1])

    def tapped_server(self: ServerChannel, *given: Any) -> None:
        _server(self, *given)
        taps.append(Tap())
        self._context = _Tapped(self._context, taps[-1])

    def recorded(self: SumMasks, messages: Words, layout: SumLayout) -> Words:
        found = hide(self, messages, layout)
        hidden.append((np.array(messages), np.array(found)))
        return found

    _client, _server = ClientChannel.__init__, ServerChannel.__init__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClientChannel, "__init__", tapped_client)
        patch.setattr(ServerChannel, "__init__", tapped_server)
        patch.setattr(SumMasks, "hide", recorded)
        threads = [threading.Thread(target=run_agent, args=(site,), daemon=True) for site in sites]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120.0)
    assert not any(thread.is_alive() for thread in threads)
    assert len({site.model.read_bytes() for site in sites}) == 1
    return Run(sites, taps, hidden, folder)


def test_the_logs_are_verified_and_agree_with_each_other(run: Run) -> None:
    for log in run.logs.values():
        assert log.ok
        assert (log.signed, log.lost) == ("verified", 0)
    for j, site in enumerate(run.sites):
        after = run.sites[(j + 1) % 4]
        done = CliRunner().invoke(app, ["audit", str(site.path), str(after.folder)], env={"COLUMNS": "200"})
        assert done.exit_code == 0, done.output


def test_every_frame_is_counted_by_kind(run: Run) -> None:
    tapped: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for tap in run.taps:
        for kind, content in tap.frames:
            tapped[tap.site, kind][0] += 1
            tapped[tap.site, kind][1] += len(content)
    counted: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for site, line in run.lines("frames"):
        for kind, (number, size) in line["counts"].items():
            counted[site, kind][0] += number
            counted[site, kind][1] += size
    assert counted == tapped
    assert {kind for _, kind in tapped} >= {"challenge", "proof", "hello", "part"}
    assert {kind for _, kind in tapped} <= {"challenge", "proof", "hello", "part", "beat", "refusal", "revocations"}


def test_every_part_belongs_to_a_message_in_the_log(run: Run) -> None:
    logged = {(site, int(line["session"], 16), line["seq"]): line for site, line in run.lines("sent")}
    assert logged.keys() == run.messages.keys()
    for key, sent in run.messages.items():
        line = logged[key]
        assert line["digest"] == sent.digest
        assert (line["header"], line["bytes"]) == (len(sent.header), len(sent.body))
        assert line["kind"] == sent.parcel.WhichOneof("kind")
    assert {line["kind"] for line in logged.values()} <= {"data", "records", "wanted", "outcome"}


def test_what_the_wire_adds_to_messages_is_framing(run: Run) -> None:
    """Fields of Parts other than header and chunk: numbers, a checksum, tags."""
    for tap in run.taps:
        for kind, content in tap.frames:
            if kind == "part":
                part = wire.Frame.FromString(content).part
                assert len(content) - len(part.parcel) - len(part.chunk) < 100


def test_every_message_says_what_it_shows(run: Run) -> None:
    """In a private network, the messages of the algorithm are masked, public or structural, but never open."""
    assert {line["masked"] for line, _ in run.data} <= {True, "public", "structural"}
    for line, sent in run.data:
        message = unpack(sent.parcel.data, sent.body)
        if line["masked"] is True:
            assert message.payload is not None
            assert message.payload.dtype == np.uint64
        elif line["masked"] == "structural":
            assert message.payload is None
    assert {line["masked"] for _, line in run.lines("sent") if line["kind"] != "data"} == {"public"}


def test_everything_on_the_way_up_is_masked(run: Run) -> None:
    """Masked words are none of those that were masked, and look random."""
    plain = {row.tobytes() for before, _ in run.hidden for row in before.reshape(-1, before.shape[-1])}
    own = {row.tobytes() for _, after in run.hidden for row in after.reshape(-1, after.shape[-1])}
    words, leaves = [], 0
    for line, sent in run.data:
        if line["masked"] is not True:
            continue
        payload = unpack(sent.parcel.data, sent.body).payload
        assert payload is not None
        assert payload.tobytes() not in plain
        leaves += payload.tobytes() in own
        words.append(payload[1:])  # the first word counts agents
    assert leaves >= len(words) // 2
    drawn = np.concatenate(words)
    assert drawn.size > 500
    assert np.unique(drawn).size == drawn.size
    counts = np.bincount(drawn.view(np.uint8), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-6
    ones = np.unpackbits(drawn.view(np.uint8).reshape(-1, 8), axis=1).mean(axis=0)
    assert np.abs(ones - 0.5).max() < 6.0 * 0.5 / np.sqrt(drawn.size)


def test_everything_public_is_the_same_at_all_sites(run: Run) -> None:
    known: dict[bytes, set[str]] = defaultdict(set)
    for line, sent in run.data:
        if line["masked"] == "public":
            known[sent.body] |= {sent.site, line["to"]}
    assert known
    assert all(sites == set(SITES) for sites in known.values())


def test_values_that_are_flooded_are_the_same_at_all_sites(run: Run) -> None:
    """Values that ride along with sums are flooded as well."""
    flooded: dict[tuple[object, ...], set[bytes]] = defaultdict(set)
    for line, sent in run.data:
        message = unpack(sent.parcel.data, sent.body)
        if message.riders:
            tag = tag_of(sent.parcel.data)
            flooded[tag.phase, tag.t, line["masked"]].update(rider.tobytes() for rider in message.riders)
    differing = {str(phase) for (phase, *_), values in flooded.items() if len(values) > 1}
    assert differing <= DIFFERING_REDUCTIONS
