"""Test that checkpoints restore States bit for bit, are never used if damaged, and never end a run by disk errors."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import struct
import subprocess
import sys
import textwrap
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deepca
from deepca.algorithms.accelerated import AcceleratedDeEPCA, AcceleratedState
from deepca.algorithms.base import Algorithm, State, TrackedState
from deepca.algorithms.covariance import CovarianceAveraging, CovarianceState
from deepca.algorithms.krylov import BlockKrylov, KrylovState
from deepca.engines import checkpoint_format
from deepca.engines.checkpoint_format import Checkpoint, CheckpointInfo
from deepca.engines.checkpoints import CheckpointFolder
from deepca.network.agent import AgentNetwork
from deepca.network.compression import Copies
from deepca.network.threads import run_agents
from deepca.operators import as_operator
from tests.support.paths import ROOT
from tests.support.problems import spectrum, spectrum_problem

RUN, DATA, MEMBERS = (hashlib.sha256(word).digest() for word in (b"run", b"data", b"members"))
M, D, K = 4, 12, 3
TOPOLOGY = deepca.topology.ring(M)
STACK = as_operator(spectrum_problem(M, D, spectrum(D, K, gap=0.8), seed=5))
W0 = deepca.operators.linalg.random_orthonormal(D, K, seed=1)

Make = Callable[[AgentNetwork], Algorithm[Any]]
ALGORITHMS: dict[str, Make] = {
    "DeEPCA": lambda network: deepca.DeEPCA(_own(network), W0, network, deepca.FastMix(rounds=4)),
    "DeEPCA float32": lambda network: deepca.DeEPCA(
        _own(network), W0, network, deepca.FastMix(rounds=4, messages="float32")
    ),
    "DeEPCA float16": lambda network: deepca.DeEPCA(
        _own(network), W0, network, deepca.FastMix(rounds=4, messages="float16")
    ),
    "DeEPCA one component": lambda network: deepca.DeEPCA(_own(network), W0[:, :1], network, deepca.FastMix(rounds=4)),
    "DeEPCA automatic": lambda network: deepca.DeEPCA(_own(network), W0, network),
    "DePCA": lambda network: deepca.DePCA(_own(network), W0, network, deepca.FastMix(rounds=6)),
    "accelerated": lambda network: AcceleratedDeEPCA(_own(network), W0, network),
    "accelerated float32": lambda network: AcceleratedDeEPCA(
        _own(network), W0, network, deepca.FastMix(rounds=4, messages="float32")
    ),
    "krylov": lambda network: BlockKrylov(_own(network), W0, network),
    "covariance": lambda network: CovarianceAveraging(_own(network), W0, network),
}
# These methods resume bit for bit, since everything that determines them is in their State. Elsewhere numbers in flight
# (for K, and for the edge and the columns of the accelerated method) are not: such runs resume, but with other bits.
WHOLE = ("DeEPCA", "DeEPCA float32", "DeEPCA float16", "DeEPCA one component", "DePCA", "krylov", "covariance")


def _own(network: AgentNetwork) -> Any:
    return STACK.agent(network.agent)


def after(name: str, iterations: int, start: list[State] | None = None) -> list[State]:
    """Return the State of every agent after some iterations, with each agent in its own thread."""

    def work(network: AgentNetwork) -> State:
        begun = None if start is None else start[network.agent]
        algorithm = ALGORITHMS[name](network)
        state = deepca.solve(algorithm, max_iter=iterations, start=begun, certify=False).state
        assert isinstance(state, State)
        return state

    return run_agents(TOPOLOGY, work)


def initial(name: str) -> list[State]:
    def work(network: AgentNetwork) -> State:
        state = ALGORITHMS[name](network).init()
        assert isinstance(state, State)
        return state

    return run_agents(TOPOLOGY, work)


def made_of(state: State, **changes: Any) -> Checkpoint:
    about = {
        "key": hashlib.sha256(f"{state.t}".encode()).digest(),
        "members": MEMBERS,
        "k": K,
        "data": DATA,
        "run": RUN,
    }
    return Checkpoint(iteration=state.t, state=state, **{**about, **changes})


def small(t: int, d: int = 2, k: int = 1) -> State:
    return State(t, np.full((d, k), float(t)), np.asfortranarray(np.arange(float(d * k)).reshape(d, k)))


class Folder:
    """A folder for checkpoints that can be opened repeatedly, and the warnings that were logged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.warnings: list[str] = []

    def open(self, run: bytes = RUN, data: bytes = DATA) -> CheckpointFolder:
        return CheckpointFolder(self.path, run, data, warn=self.warnings.append)

    def files(self) -> list[Path]:
        return sorted(self.path.iterdir())


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "deep" / "state")


def again(folder: Folder, state: State) -> State:
    """Return the state after writing it to the disk and loading it with a new CheckpointFolder."""
    checkpoint = made_of(state)
    assert folder.open().write(checkpoint)
    found = folder.open().load(checkpoint.key)
    assert found is not None
    assert replace(found, state=state) == replace(checkpoint, state=state)
    return found.state


def assert_same(a: Any, b: Any) -> None:
    """Assert equal types, bits and memory layout."""
    assert type(a) is type(b)
    if isinstance(a, np.ndarray):
        assert (a.dtype, a.shape, a.flags.writeable) == (b.dtype, b.shape, b.flags.writeable)
        assert a.strides == b.strides or not a.size
        assert a.tobytes() == b.tobytes()
    elif isinstance(a, tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    elif isinstance(a, (State, Copies)):
        for entry in fields(a):
            assert_same(getattr(a, entry.name), getattr(b, entry.name))
    else:
        assert repr(a) == repr(b)


# ------------------------------------------------------------------------------------------------------- every State


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("iterations", [0, 1, 7])
def test_every_state_is_restored_bit_for_bit(folder: Folder, name: str, iterations: int) -> None:
    states = after(name, iterations) if iterations else initial(name)
    for state in states:
        assert_same(again(folder, state), state)
    assert folder.warnings == []


def test_the_tested_runs_cover_all_classes_of_state() -> None:
    made = {name: after(name, 3)[0] for name in ALGORITHMS}
    assert {type(state) for state in made.values()} == {TrackedState, AcceleratedState, KrylovState, CovarianceState}
    coded = made["DeEPCA float32"]
    assert isinstance(coded, TrackedState)
    assert isinstance(coded.memory, Copies)
    assert len(coded.memory.others) == 2


def test_every_class_of_state_can_be_stored() -> None:
    def below(cls: type[State]) -> Iterator[type[State]]:
        yield cls
        for child in cls.__subclasses__():
            yield from below(child)

    for cls in below(State):
        if cls.__module__.startswith("deepca."):
            assert checkpoint_format.CLASSES[cls.__name__] is cls
            for entry in fields(cls):
                assert str(entry.type) in checkpoint_format.FIELD_CHECKS, f"{cls.__name__}.{entry.name}"


@pytest.mark.parametrize("gap", [None, 0.1, float("inf"), -0.0, float("nan"), 5e-324])
def test_floats_are_restored_exactly(folder: Folder, gap: float | None) -> None:
    state = CovarianceState(3, np.eye(2), np.array([[np.nan, -0.0], [np.inf, 5e-324]]), np.empty((0, 0)), gap)
    assert_same(again(folder, state), state)


def test_every_memory_layout_is_restored(folder: Folder) -> None:
    base = np.random.default_rng(0).standard_normal((6, 8, 10))
    views = [
        base,
        base.transpose(2, 0, 1),
        base[::-1, :, ::-1],
        base[:, 1:7, 2:9],
        base[:, ::2].swapaxes(-1, -2),
        base[:1, :, :2],
        base[2, 3],
        base[2, 3, ::-1],
        np.asarray(base[2, 3, 4]),
        base[:, :0],
        base[::-1, :0].T,
        np.asfortranarray(base),
        base.astype(np.float32)[:, ::-1],
    ]
    for view in views:
        state = KrylovState(1, view.view(), view[...], view[...], view[...], view[...])
        found = again(folder, state)
        assert found.W.shape == view.shape
        if view.size:  # empty arrays have no layout
            assert_same(found, state)


def test_a_small_view_of_a_large_array_is_stored_without_the_rest(folder: Folder) -> None:
    large = np.zeros((1000, 1000))
    state = State(1, large[::100, ::100].T, np.broadcast_to(np.array([1.0, 2.0]), (5, 2)).copy()[:, ::-1])
    found = again(folder, state)
    np.testing.assert_array_equal(found.W, state.W)
    assert found.W.flags.f_contiguous
    (file,) = folder.files()
    assert file.stat().st_size < 5000
    spread = replace(state, t=2, W=np.broadcast_to(np.arange(3.0)[:, None], (3, 4)))
    np.testing.assert_array_equal(again(folder, spread).W, spread.W)


def test_large_arrays_are_stored_in_pieces(folder: Folder) -> None:
    numbers = np.random.default_rng(1).standard_normal((700, 613))  # several pieces, the last one partial
    state = State(1, numbers, numbers.T[:, :650])
    assert_same(again(folder, state), state)


def test_an_array_that_appears_twice_is_restored_as_one(folder: Folder) -> None:
    state = initial("accelerated")[0]
    assert isinstance(state, AcceleratedState)
    found = again(folder, state)
    assert isinstance(found, AcceleratedState)
    assert state.V is state.W
    assert found.V is found.W
    assert found.T is found.AX


# ----------------------------------------------------------------------------------------------------------- resuming


@pytest.mark.parametrize("name", WHOLE)
def test_a_resumed_run_ends_with_the_same_bits(folder: Folder, name: str) -> None:
    whole = after(name, 17)
    halfway = after(name, 6)
    resumed = after(name, 11, [again(folder, state) for state in halfway])
    for one, other in zip(resumed, whole, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_resuming_from_a_file_equals_resuming_from_the_state(folder: Folder, name: str) -> None:
    halfway = after(name, 6)
    from_memory = after(name, 9, halfway)
    from_files = after(name, 9, [again(folder, state) for state in halfway])
    for one, other in zip(from_files, from_memory, strict=True):
        assert_same(one, other)


# ------------------------------------------------------------------------------------------------------ files to keep


def iterations(found: CheckpointFolder) -> list[int]:
    return [one.iteration for one in found.kept()]


def test_the_last_two_checkpoints_are_kept(folder: Folder) -> None:
    found = folder.open()
    assert found.kept() == ()
    for t in (10, 20, 30):
        assert found.write(made_of(small(t)))
    assert iterations(found) == [20, 30]
    # after resuming from an earlier state, a lower iteration is the newer one
    assert found.write(made_of(small(15)))
    assert iterations(found) == iterations(folder.open()) == [30, 15]
    assert len(folder.files()) == 2
    one = made_of(small(15))
    assert found.kept()[-1] == CheckpointInfo(15, one.key, MEMBERS, K)
    assert folder.warnings == []


def test_a_checkpoint_with_the_same_key_is_replaced(folder: Folder) -> None:
    found = folder.open()
    for t in (10, 20):
        found.write(made_of(small(t)))
    found.write(made_of(replace(small(20), W=np.full((2, 1), 7.0))))
    assert iterations(found) == iterations(folder.open()) == [10, 20]
    loaded = folder.open().load(made_of(small(20)).key)
    assert loaded is not None
    assert loaded.state.W[0, 0] == 7.0


def test_keep_only_discards_the_others(folder: Folder) -> None:
    found = folder.open()
    for t in (10, 20):
        found.write(made_of(small(t)))
    found.keep_only(b"?" * 32)
    assert iterations(found) == [10, 20]
    found.keep_only(made_of(small(10)).key)
    assert iterations(found) == iterations(folder.open()) == [10]
    found.write(made_of(small(12)))
    assert iterations(found) == iterations(folder.open()) == [10, 12]


def test_clear_removes_only_its_own_files(folder: Folder) -> None:
    found, other = folder.open(), folder.open(run=b"r" * 32)
    found.write(made_of(small(10)))
    other.write(made_of(small(10), run=b"r" * 32))
    found.clear()
    assert found.kept() == folder.open().kept() == ()
    assert len(folder.files()) == 1
    assert iterations(other) == [10]


@pytest.mark.parametrize("what", ["run", "data"])
def test_foreign_checkpoints_are_left_alone_with_one_warning(folder: Folder, what: str) -> None:
    foreign = {what: b"o" * 32}
    first = folder.open(**foreign)
    for t in (10, 20):
        first.write(made_of(small(t), **foreign))
    before = folder.files()
    found = folder.open()
    assert found.kept() == ()
    assert len(folder.warnings) == 1
    assert str(folder.path) in folder.warnings[0]
    for t in (1, 2, 3):
        assert found.write(made_of(small(t)))
    assert set(before) < set(folder.files())
    assert iterations(folder.open(**foreign)) == [10, 20]
    with pytest.raises(ValueError, match="different run"):
        found.write(made_of(small(4), **foreign))


def test_partial_files_are_removed_and_foreign_files_kept(folder: Folder) -> None:
    folder.open().write(made_of(small(10)))
    (name,) = (file.name for file in folder.files())
    part, stranger = folder.path / f"{name}.abc.part", folder.path / "notes.part"
    for file in (part, stranger):
        file.write_bytes(b"half")
    (folder.path / f"{RUN.hex()[:8]}-0000000009.checkpoint").mkdir()
    assert iterations(folder.open()) == [10]
    assert not part.exists()
    assert stranger.exists()


def test_checkpoints_are_readable_by_their_owner_only(folder: Folder) -> None:
    old = os.umask(0)
    try:
        folder.open().write(made_of(small(10)))
    finally:
        os.umask(old)
    (file,) = folder.files()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


def test_checkpoints_with_inconsistent_fields_are_rejected() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        made_of(small(1), key=b"short")
    with pytest.raises(ValueError, match="iteration 2"):
        Checkpoint(2, RUN, MEMBERS, K, DATA, RUN, small(1))


# ------------------------------------------------------------------------------------------------------------- damage


def damaged(content: bytes) -> Iterator[bytes]:
    for length in range(len(content)):
        yield content[:length]
    yield content + b"\0"
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << (place % 8)
        yield bytes(flipped)


def test_damaged_files_are_never_loaded(folder: Folder) -> None:
    checkpoint = made_of(small(10))
    folder.open().write(checkpoint)
    (file,) = folder.files()
    content = file.read_bytes()
    assert len(content) < 1500
    for count, bad in enumerate(damaged(content), start=1):
        found = folder.open()
        file.write_bytes(bad)
        assert found.load(checkpoint.key) is None  # damaged after it was verified
        assert found.kept() == ()
        assert len(folder.warnings) == count * 2 - 1
        assert folder.open().kept() == ()  # damaged before it was verified
        assert len(folder.warnings) == count * 2
        file.write_bytes(content)
    assert folder.open().load(checkpoint.key) is not None


START = struct.Struct("<8sII")  # magic, version of the format, length of the header


def forged(content: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """Return the content with another header and a valid checksum."""
    magic, version, length = START.unpack_from(content)
    start = START.size
    header = json.loads(content[start : start + length])
    change(header)
    text = json.dumps(header).encode()
    body = START.pack(magic, version, len(text)) + text + content[start + length : -32]
    return body + hashlib.sha256(body).digest()


FORGERIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "class": lambda h: h.update(state={"Path": {"t": 10}}),
    "builtin": lambda h: h.update(state={"tuple": [1]}),
    "no state": lambda h: h.update(state=3),
    "field missing": lambda h: h["state"]["TrackedState"].pop("S"),
    "field unknown": lambda h: h["state"]["TrackedState"].update(extra=1),
    "field of another type": lambda h: h["state"]["TrackedState"].update(W={"float": "1.5"}),
    "field of a kind unknown": lambda h: h["state"]["TrackedState"].update(W=1.5),
    "field with a default missing": lambda h: h["state"]["TrackedState"].pop("K"),
    "array unknown": lambda h: h["state"]["TrackedState"].update(W={"array": 7}),
    "array negative": lambda h: h["state"]["TrackedState"].update(W={"array": -1}),
    "two kinds": lambda h: h["state"]["TrackedState"].update(W={"array": 0, "float": "1.0"}),
    "iteration": lambda h: h.update(iteration=11),
    "iteration no number": lambda h: h.update(iteration=True),
    "dtype": lambda h: h["arrays"][0].update(dtype="O8"),
    "shape larger": lambda h: h["arrays"][0].update(shape=[1 << 40, 1 << 20]),
    "shape negative": lambda h: h["arrays"][0].update(shape=[-2, -1]),
    "strides overlap": lambda h: h["arrays"][0].update(strides=[0, 0]),
    "strides far apart": lambda h: h["arrays"][0].update(strides=[1 << 50, 1]),
    "strides too few": lambda h: h["arrays"][0].update(strides=[1]),
    "arrays missing": lambda h: h["arrays"].pop(),
    "more in the header": lambda h: h.update(more=1),
    "key short": lambda h: h.update(key="00"),
    "deep": lambda h: h["state"]["TrackedState"].update(t=_nested(300)),
}


def _nested(depth: int) -> Any:
    tree: Any = 1
    for _ in range(depth):
        tree = {"tuple": [tree]}
    return tree


@pytest.mark.parametrize("what", FORGERIES)
def test_inconsistent_contents_are_not_loaded(folder: Folder, what: str) -> None:
    checkpoint = made_of(TrackedState(10, np.eye(2), np.ones((2, 2)), np.zeros((2, 2))))
    folder.open().write(checkpoint)
    (file,) = folder.files()
    content = file.read_bytes()
    assert forged(content, lambda header: None) == content
    found = folder.open()
    file.write_bytes(forged(content, FORGERIES[what]))
    assert found.load(checkpoint.key) is None
    assert len(folder.warnings) == 1


def test_another_format_is_neither_used_nor_removed(folder: Folder) -> None:
    folder.open().write(made_of(small(10)))
    (file,) = folder.files()
    content = bytearray(file.read_bytes())
    content[8] += 1
    file.write_bytes(content)
    found = folder.open()
    assert found.kept() == ()
    assert "format 2" in folder.warnings[0]
    found.write(made_of(small(20)))
    assert file in folder.files()


def test_the_previous_checkpoint_is_used_if_the_newest_is_damaged(folder: Folder) -> None:
    found = folder.open()
    for t in (10, 20):
        found.write(made_of(small(t)))
    _, newest = folder.files()
    newest.write_bytes(newest.read_bytes()[:-1])
    found = folder.open()
    assert iterations(found) == [10]
    assert str(newest) in folder.warnings[0]
    found.write(made_of(small(21)))
    assert iterations(folder.open()) == [10, 21]
    assert newest not in folder.files()


def test_missing_and_unknown_checkpoints_are_reported(folder: Folder) -> None:
    found = folder.open()
    found.write(made_of(small(10)))
    shutil.rmtree(folder.path)
    assert found.load(made_of(small(10)).key) is None
    assert found.load(b"?" * 32) is None
    assert len(folder.warnings) == 2
    assert all(str(folder.path) in line for line in folder.warnings)
    assert (b"?" * 4).hex() in folder.warnings[1]
    assert found.kept() == ()


# ----------------------------------------------------------------------------------------------- full or missing disk


def check_continues_in_memory(folder: Folder, found: CheckpointFolder, on_disk: list[int]) -> None:
    """Assert that new checkpoints are kept in memory, since none can be written, and that existing files stay."""
    told = len(folder.warnings)
    for t in (30, 40, 50):
        assert found.write(made_of(small(t, 100, 50))) is False
    assert len(folder.warnings) == told + 1
    assert str(folder.path) in folder.warnings[-1]
    assert iterations(found) == [*on_disk, 40, 50]
    for t in (40, 50):
        loaded = found.load(made_of(small(t)).key)
        assert loaded is not None
        assert_same(loaded.state, small(t, 100, 50))
    if folder.path.is_dir():
        assert len(folder.files()) == len(on_disk)  # no partial file is left


def check_recovers(folder: Folder, found: CheckpointFolder) -> None:
    """Assert that checkpoints kept in memory are written once the disk works again."""
    assert found.write(made_of(small(60)))
    assert iterations(found) == iterations(folder.open()) == [50, 60]
    assert len(folder.files()) == 2


def test_a_disk_that_fails_while_writing_does_not_end_the_run(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    found = folder.open()
    for t in (10, 20):
        found.write(made_of(small(t)))

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        check_continues_in_memory(folder, found, [10, 20])
    assert os.strerror(errno.ENOSPC) in folder.warnings[-1]
    check_recovers(folder, found)


def test_a_folder_that_cannot_be_synced_does_not_end_the_run(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    found, sync = folder.open(), os.fsync

    def only_files(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", only_files)
        check_continues_in_memory(folder, found, [])
    check_recovers(folder, found)


def test_a_file_size_limit_does_not_end_the_run(folder: Folder) -> None:
    resource = pytest.importorskip("resource")
    found = folder.open()
    for t in (10, 20):
        found.write(made_of(small(t)))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        check_continues_in_memory(folder, found, [10, 20])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    check_recovers(folder, found)


def test_a_read_only_folder_does_not_end_the_run(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    found, opened = folder.open(), os.open
    found.write(made_of(small(10)))

    def read_only(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return opened(path, flags, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", read_only)
        check_continues_in_memory(folder, found, [10])
    check_recovers(folder, found)


def test_a_folder_below_a_file_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = Folder(tmp_path / "file" / "state")
    check_continues_in_memory(folder, folder.open(), [])


def test_a_deleted_folder_is_not_created_again(folder: Folder) -> None:
    found = folder.open()
    shutil.rmtree(folder.path)
    check_continues_in_memory(folder, found, [])
    assert not folder.path.exists()
    found.keep_only(made_of(small(40)).key)
    assert iterations(found) == [40]
    found.clear()
    assert iterations(found) == []


def run_script(script: str, *arguments: str, before: tuple[str, ...] = ()) -> Any:
    """Run a script, which can use the helpers of this file, in a new process, and return the JSON that it prints."""
    root = ROOT
    done = subprocess.run(
        [*before, sys.executable, "-c", textwrap.dedent(script), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=root,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


FULL = """
    import json, pathlib, sys
    from tests.engines.test_checkpoints import Folder, check_continues_in_memory, check_recovers
    from tests.engines.test_checkpoints import iterations, made_of, small
    folder = Folder(pathlib.Path(sys.argv[1]))
    found = folder.open()
    for t in (10, 20):
        assert found.write(made_of(small(t)))
    # two arrays of 40,000 bytes do not fit into 64 KB
    check_continues_in_memory(folder, found, [10, 20])
    small_again = found.write(made_of(small(40)))
    print(json.dumps([folder.warnings, iterations(found), small_again]))
"""


def test_a_full_disk_does_not_end_the_run(tmp_path: Path) -> None:
    mount = 'mount -t tmpfs -o size=64k tmpfs "$0" && exec "$@"'
    space = ("unshare", "--mount", "sh", "-c", mount, str(tmp_path))
    if shutil.which("unshare") is None or subprocess.run([*space, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a file system of a given size cannot be mounted here")
    warnings, kept, written = run_script(FULL, str(tmp_path), before=space)
    assert len(warnings) == 1
    assert os.strerror(errno.ENOSPC) in warnings[0]
    assert kept == [10, 20, 50, 40]
    assert written is False  # that of iteration 50 is retried first and does not fit


# ---------------------------------------------------------------------------------------------------------- SIGKILL


KILLED = """
    import json, os, pathlib, random, signal, sys, time
    import numpy as np
    from tests.engines.test_checkpoints import Folder, made_of, small
    folder, chance = Folder(pathlib.Path(sys.argv[1])), random.Random(7)
    numbers = np.random.default_rng(0).standard_normal((400, 400))
    from deepca.algorithms.base import State

    def write_on(report):
        found = folder.open()
        t = max((one.iteration for one in found.kept()), default=0)
        while True:
            t += 1
            assert found.write(made_of(State(t, numbers * t, numbers + t)))
            os.write(report, t.to_bytes(4, "little"))

    seen, leftovers, reached = [], 0, 0
    for _ in range(20):
        read, report = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                write_on(report)
            finally:
                os._exit(1)
        os.close(report)
        acknowledged = int.from_bytes(os.read(read, 4), "little")  # at least one
        time.sleep(chance.uniform(0.0, 0.06))
        os.kill(child, signal.SIGKILL)
        _, how = os.waitpid(child, 0)
        assert os.WIFSIGNALED(how), how
        while word := os.read(read, 4):
            acknowledged = int.from_bytes(word, "little")
        os.close(read)
        leftovers += any(file.name.endswith(".part") for file in folder.files())
        found = folder.open()
        newest = found.kept()[-1]
        for kept in found.kept():
            state = found.load(kept.key).state
            t = kept.iteration
            assert state.t == t and np.array_equal(state.W, numbers * t) and np.array_equal(state.S, numbers + t)
        assert len(found.kept()) == 2 or newest.iteration == 1
        assert acknowledged <= newest.iteration <= acknowledged + 1, (acknowledged, newest.iteration)
        reached = newest.iteration
    print(json.dumps({"warnings": folder.warnings, "leftovers": leftovers, "reached": reached}))
"""


def test_checkpoints_of_a_killed_writer_are_complete(tmp_path: Path) -> None:
    told = run_script(KILLED, str(tmp_path / "state"))
    assert told["warnings"] == []
    assert told["reached"] >= 20


# ----------------------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("view", [lambda a: a, lambda a: a.T, lambda a: a[:, ::2]])
def test_writing_and_loading_need_little_extra_memory(folder: Folder, view: Callable[[Any], Any]) -> None:
    state = State(1, view(np.ones((1000, 2000))), view(np.ones((1000, 2000)) + 1.0))
    checkpoint = made_of(state)
    found = folder.open()
    tracemalloc.start()
    try:
        assert found.write(checkpoint)
        _, writing = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        folder.open()
        _, looking = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        loaded = found.load(checkpoint.key)
        _, loading = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert loaded is not None
    assert max(writing, looking) < 4_000_000
    assert loading < 2 * 16_000_000 + 4_000_000
