"""LIBSVM data: read from a folder or fetched, checked, kept; and every way in which that can go wrong."""

from __future__ import annotations

import bz2
import gzip
import io
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_svmlight_file

from deepca._util.typing import Csr, csr
from deepca.data import libsvm
from deepca.data.libsvm import LibsvmRows, LibsvmSet
from deepca.errors import DataError, MissingExtraError, NetworkError
from tests.support.paths import SHARED

N_FEATURES, N_USED, N_ROWS = 7, 20, 30
PACK: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".bz2": bz2.compress, ".gz": gzip.compress}


def small_text() -> bytes:
    """Thirty sparse rows as svmlight text, one of them empty, with a comment and an empty line at the end."""
    rng = np.random.default_rng(0)
    lines = []
    for i in range(N_ROWS):
        columns = np.flatnonzero(rng.random(N_FEATURES) < (0.5 if i else 0.0)) + 1
        lines.append(f"{(-1) ** i} " + " ".join(f"{c}:{rng.standard_normal():.6g}" for c in columns))
    return ("# a comment\n" + "\n".join(lines) + "\n\n").encode()


TEXT = small_text()


def by_sklearn(text: bytes, n_features: int = N_FEATURES) -> tuple[Any, Any]:
    X, y = load_svmlight_file(io.BytesIO(text), n_features=n_features)
    return X, y


def small(url: str = "http://127.0.0.1:9/small", text: bytes = TEXT) -> dict[str, LibsvmSet]:
    """A description of the small set, right for ``text``."""
    digest = libsvm.features_digest(csr(by_sklearn(text)[0])[:N_USED])
    return {"small": LibsvmSet("small", url, N_FEATURES, N_USED, (digest,))}


def assert_right(rows: LibsvmRows, text: bytes = TEXT) -> None:
    """What came is what scikit-learn reads."""
    X, y = by_sklearn(text)
    assert isinstance(rows.X, sparse.csr_array)
    assert rows.X.dtype == np.float64
    assert rows.X.shape == X.shape
    np.testing.assert_array_equal(rows.X.toarray(), X.toarray())
    np.testing.assert_array_equal(rows.labels, y)


# --- a server of our own ---------------------------------------------------------------------------------------------


@dataclass
class Server:
    """What the server gives, and how often it was asked."""

    url: str = ""
    status: int = 200
    body: bytes = TEXT
    length: int | None = len(TEXT)
    asked: list[str] = field(default_factory=list)
    answer: threading.Event = field(default_factory=threading.Event)
    finish: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server on this machine that stops with the test."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    plan = Server()
    plan.answer.set()
    plan.finish.set()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            plan.asked.append(self.path)
            plan.answer.wait(10)
            self.send_response(plan.status)
            if plan.length is not None:
                self.send_header("Content-Length", str(plan.length))
            self.end_headers()
            self.wfile.write(plan.body)
            self.wfile.flush()
            plan.finish.wait(10)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Nothing on the terminal."""

    class Quiet(ThreadingHTTPServer):
        daemon_threads: ClassVar[bool] = True  # type: ignore[misc]

        def handle_error(self, request: object, client_address: object) -> None:
            """A caller that hung up, as in the tests of the time limit."""

    with Quiet(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        plan.url = f"http://127.0.0.1:{http.server_address[1]}/small"
        yield plan
        plan.answer.set()
        plan.finish.set()
        http.shutdown()
        thread.join(10)


def nothing_kept(cache: Path) -> bool:
    """No file and no folder is left of a download that failed."""
    return not cache.exists() or not list(cache.iterdir())


def test_a_download_is_made_once(server: Server, tmp_path: Path) -> None:
    """The second call finds the file, and the third the file without its fast form."""
    first = libsvm.load("small", cache=tmp_path, sets=small(server.url))
    assert_right(first)
    assert first.source == "small"
    again = libsvm.load("small", cache=tmp_path, sets=small(server.url))
    assert_right(again)
    (fast,) = tmp_path.glob("*.npz")
    fast.unlink()
    assert_right(libsvm.load("small", cache=tmp_path, sets=small(server.url)))
    assert server.asked == ["/small"]
    assert (tmp_path / "small").read_bytes() == TEXT
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["small", fast.name])


@pytest.mark.parametrize("length", [len(TEXT), None])
def test_progress_is_told(server: Server, tmp_path: Path, length: int | None) -> None:
    """Up to the end, with the total where the server says it."""
    server.length, told = length, list[tuple[int, int | None]]()
    libsvm.load("small", cache=tmp_path, sets=small(server.url), progress=lambda done, of: told.append((done, of)))
    assert told
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1][0] >= len(TEXT)
    assert {of for _, of in told} == {length}


def test_a_truncated_transfer(server: Server, tmp_path: Path) -> None:
    """Less came than was announced."""
    server.body = TEXT[:100]
    with pytest.raises(NetworkError, match=rf"broke off before the {len(TEXT):,} bytes announced .*nothing was kept"):
        libsvm.load("small", cache=tmp_path, sets=small(server.url))
    assert nothing_kept(tmp_path)


def test_a_truncated_file_whose_length_nobody_told(server: Server, tmp_path: Path) -> None:
    """Found by its rows."""
    server.body, server.length = TEXT[: TEXT.index(b"\n", len(TEXT) // 3)], None
    with pytest.raises(DataError, match=rf"{server.url} has \d+ rows, .* first 20: it was cut short.*nothing was kept"):
        libsvm.load("small", cache=tmp_path, sets=small(server.url))
    assert nothing_kept(tmp_path)


def test_a_wrong_checksum(server: Server, tmp_path: Path) -> None:
    """Both sums are named, and the file is not kept."""
    right = small(server.url)
    server.body = other = TEXT.replace(b" 3:", b" 3:1", 1)
    server.length = len(other)
    wrong = small(text=other)["small"].digests[0]
    with pytest.raises(DataError, match=rf"{wrong}, expected {right['small'].digests[0]}; nothing was kept"):
        libsvm.load("small", cache=tmp_path, sets=right)
    assert nothing_kept(tmp_path)


def test_a_page_instead_of_the_file(server: Server, tmp_path: Path) -> None:
    """As networks with a login give it."""
    server.body = b"<html><body>Please log in</body></html>"
    server.length = len(server.body)
    with pytest.raises(DataError, match=r"line 1: '<html><body>Please' is not a label"):
        libsvm.load("small", cache=tmp_path, sets=small(server.url))
    assert nothing_kept(tmp_path)


@pytest.mark.parametrize("status", [404, 503])
def test_a_refusal(server: Server, tmp_path: Path, status: int) -> None:
    """The status and the way out."""
    server.status = status
    with pytest.raises(NetworkError, match=rf"answered '{status} .*{server.url}; try again later, or get small by"):
        libsvm.load("small", cache=tmp_path, sets=small(server.url))
    assert nothing_kept(tmp_path)


@pytest.mark.parametrize("silent", ["before", "within"])
def test_a_silent_server(server: Server, tmp_path: Path, silent: str) -> None:
    """Before the answer, and in the middle of it."""
    if silent == "before":
        server.answer.clear()
    else:
        server.body = TEXT[:100]
        server.finish.clear()
    with pytest.raises(NetworkError, match=r"no answer within 0\.2 s"):
        libsvm.load("small", cache=tmp_path, sets=small(server.url), timeout=0.2)
    assert nothing_kept(tmp_path)


def test_no_network(server: Server, tmp_path: Path) -> None:
    """Nobody listens there."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/small"
    with pytest.raises(NetworkError, match=rf"{url} cannot be reached: is there a network\?.*give the folder"):
        libsvm.load("small", cache=tmp_path, sets=small(url))
    assert nothing_kept(tmp_path)
    assert not server.asked


def test_an_address_that_is_none(tmp_path: Path) -> None:
    """A mistake in a set of one's own."""
    with pytest.raises(NetworkError, match="could not be downloaded"):
        libsvm.load("small", cache=tmp_path, sets=small("nowhere"))


def test_a_damaged_download_is_fetched_again(server: Server, tmp_path: Path) -> None:
    """The kept file was cut; nothing else is lost."""
    libsvm.load("small", cache=tmp_path, sets=small(server.url))
    (tmp_path / "small").write_bytes(TEXT[:50])
    assert_right(libsvm.load("small", cache=tmp_path, sets=small(server.url)))
    assert len(server.asked) == 2
    assert (tmp_path / "small").read_bytes() == TEXT


def test_a_failed_download_leaves_what_was_there(server: Server, tmp_path: Path) -> None:
    """A file is replaced by a good one only."""
    (tmp_path / "small").write_bytes(b"1 1:1\n")
    server.status = 404
    with pytest.raises(NetworkError):
        libsvm.load("small", cache=tmp_path, sets=small(server.url))
    assert [path.name for path in tmp_path.iterdir()] == ["small"]


def test_a_cache_that_cannot_be_written(server: Server, tmp_path: Path) -> None:
    """It goes on without, from the network and from a folder."""
    cache = tmp_path / "not a folder"
    cache.touch()
    (tmp_path / "small").write_bytes(TEXT)
    assert_right(libsvm.load("small", cache=cache, sets=small(server.url)))
    assert_right(libsvm.load("small", tmp_path, cache=cache, sets=small(server.url)))
    assert cache.read_bytes() == b""


# --- folders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", PACK)
@pytest.mark.parametrize("text", ["", ".txt"])
def test_a_folder(tmp_path: Path, packed: str, text: str) -> None:
    """Plain and packed, equal to scikit-learn's reading, at first and from the fast form."""
    path = tmp_path / f"small{text}{packed}"
    path.write_bytes(PACK[packed](TEXT))
    for _ in range(2):
        rows = libsvm.load("small", tmp_path, cache=tmp_path / "cache", sets=small())
        assert_right(rows)
        assert rows.source == path.name
        assert rows.digest == small()["small"].digests[0]


def test_the_fast_form_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time nothing is parsed; a changed file is."""
    path = tmp_path / "small"
    path.write_bytes(TEXT)
    sets = small()
    libsvm.load("small", tmp_path, cache=tmp_path / "cache", sets=sets)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "sklearn.datasets", None)  # cannot be imported
        assert_right(libsvm.load("small", tmp_path, cache=tmp_path / "cache", sets=sets))
        with path.open("ab") as file:
            file.write(b"1 2:3\n")
        with pytest.raises(MissingExtraError, match=r"scikit-learn; pip install 'deepca\[data\]'"):
            libsvm.load("small", tmp_path, cache=tmp_path / "cache", sets=sets)
    assert_right(libsvm.load("small", tmp_path, cache=tmp_path / "cache", sets=sets), TEXT + b"1 2:3\n")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def garble(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def other_arrays(path: Path) -> None:
    np.savez(path, something=np.zeros(3))


def bad_index(path: Path) -> None:
    with np.load(path) as kept:
        parts = dict(kept)
    parts["indices"][0] = 1000
    np.savez(path, **parts)


def other_values(path: Path) -> None:
    with np.load(path) as kept:
        parts = dict(kept)
    parts["data"][0] += 1
    np.savez(path, **parts)


def pickled(path: Path) -> None:
    np.savez(path, data=np.array([object()], dtype=object))


@pytest.mark.parametrize("damage", [cut, garble, empty, other_arrays, bad_index, other_values, pickled])
def test_a_damaged_fast_form_is_rebuilt(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """Whatever has happened to it."""
    (tmp_path / "small").write_bytes(TEXT)
    cache = tmp_path / "cache"
    libsvm.load("small", tmp_path, cache=cache, sets=small())
    (fast,) = cache.iterdir()
    damage(fast)
    damaged = fast.read_bytes()
    assert_right(libsvm.load("small", tmp_path, cache=cache, sets=small()))
    assert list(cache.iterdir()) == [fast]
    assert fast.read_bytes() != damaged
    assert_right(libsvm.load("small", tmp_path, cache=cache, sets=small()))


def test_where_things_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DEEPCA_CACHE, and the system's folder without it."""
    (tmp_path / "small").write_bytes(TEXT)
    monkeypatch.setenv("DEEPCA_CACHE", str(tmp_path / "mine"))
    libsvm.load("small", tmp_path, sets=small())
    assert len(list((tmp_path / "mine").iterdir())) == 1
    monkeypatch.delenv("DEEPCA_CACHE")
    monkeypatch.setattr("pooch.os_cache", lambda project: tmp_path / "system" / project)
    libsvm.load("small", tmp_path, sets=small())
    assert len(list((tmp_path / "system" / "deepca").iterdir())) == 1


def test_without_pooch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder can be read as long as the cache is named; a download says what is missing."""
    monkeypatch.setitem(sys.modules, "pooch", None)
    (tmp_path / "small").write_bytes(TEXT)
    assert_right(libsvm.load("small", tmp_path, cache=tmp_path / "cache", sets=small()))
    with pytest.raises(MissingExtraError, match=r"pooch; pip install 'deepca\[data\]'"):
        libsvm.load("small", cache=tmp_path / "cache", sets=small())


# --- files that cannot be used ---------------------------------------------------------------------------------------


def refused(folder: Path, name: str, content: bytes) -> str:
    """The message with which a file is refused; nothing is kept of it."""
    (folder / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        libsvm.load("small", folder, cache=folder / "cache", sets=small())
    assert nothing_kept(folder / "cache")
    assert str(folder / name) in str(caught.value)
    return str(caught.value)


LINES = TEXT.split(b"\n")


def with_line(number: int, line: bytes) -> bytes:
    """The text with one line replaced; numbers count from 1."""
    return b"\n".join([*LINES[: number - 1], line, *LINES[number:]])


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"-1 1:1 what", "'what' is not index:value, so this is no svmlight"),
        (b"spam 1:1", "'spam' is not a label"),
        (b"1,2 1:1", "'1,2' is not a label"),
        (b"-1 1:x", "'1:x' is not index:value"),
        (b"-1 1:", "'1:' is not index:value"),
        (b"-1 1:1 8:1", "index 8 is outside 1 … 7"),
        (b"-1 0:1 3:1", "index 0 is outside 1 … 7"),
        (b"-1 -2:1", "index -2 is outside 1 … 7"),
        (b"-1 99999999999999999999:1", "index 99999999999999999999 is outside 1 … 7"),
        (b"-1 3:1 2:1", "index 2 comes after 3, and indices must ascend"),
        (b"-1 3:1 3:1", "index 3 comes after 3"),
        (b"-1 3:nan", "'3:nan' is not finite"),
        (b"inf 3:1", "'inf' is not finite"),
        (b"\xff\xfe\x00\x01", "is not a label"),
    ],
)
@pytest.mark.parametrize("number", [2, 28])
def test_a_bad_line(tmp_path: Path, line: bytes, says: str, number: int) -> None:
    """The line, what is wrong with it, and where to get a good file; also behind the rows that are used."""
    message = refused(tmp_path, "small", with_line(number, line))
    assert f"small, line {number}: " in message
    assert says in message
    assert "get a fresh copy from http://127.0.0.1:9/small" in message


@pytest.mark.parametrize("packed", [".bz2", ".gz"])
def test_packed_files_cut_and_damaged(tmp_path: Path, packed: str) -> None:
    """Each says what it is."""
    whole = PACK[packed](TEXT)
    assert "was cut short; get a fresh copy" in refused(tmp_path, f"small{packed}", whole[:-20])
    assert "is damaged (" in refused(tmp_path, f"small{packed}", b"no archive at all")
    middle = len(whole) // 2
    broken = whole[:middle] + bytes(255 - byte for byte in whole[middle : middle + 8]) + whole[middle + 8 :]
    assert "small" in refused(tmp_path, f"small{packed}", broken)


@pytest.mark.parametrize("content", [b"", b"\n", b"# nothing\n", b"1 1:1\n" * 19])
def test_too_few_rows(tmp_path: Path, content: bytes) -> None:
    """How many there are and how many are needed."""
    n = content.count(b":")
    assert f"has {n} rows, and the paper uses the first 20" in refused(tmp_path, "small", content)


def test_another_data_set(tmp_path: Path) -> None:
    """Right in form, wrong in content; other labels and rows behind those used are no matter."""
    other = TEXT.replace(b" 3:", b" 3:1", 1)
    message = refused(tmp_path, "small", other)
    assert "is not the data set that the paper used" in message
    assert small(text=other)["small"].digests[0] in message
    relabelled = TEXT.replace(b"\n-1 ", b"\n0 ") + b"5 1:2.5\n"
    (tmp_path / "small").write_bytes(relabelled)
    assert_right(libsvm.load("small", tmp_path, cache=tmp_path / "cache", sets=small()), relabelled)
    either = {"small": replace(small()["small"], digests=("0" * 64, *small(text=other)["small"].digests))}
    (tmp_path / "small").write_bytes(other)
    assert_right(libsvm.load("small", tmp_path, cache=tmp_path / "cache", sets=either), other)


def test_folders_without_the_file(tmp_path: Path) -> None:
    """The names looked for; no folder; a file for a folder; no such set."""
    names = "small, small.txt, small.bz2, small.txt.bz2, small.gz, small.txt.gz"
    with pytest.raises(DataError, match=rf"looked for {names}; put one of them there"):
        libsvm.load("small", tmp_path, cache=tmp_path, sets=small())
    with pytest.raises(DataError, match="does not exist"):
        libsvm.load("small", tmp_path / "nowhere", cache=tmp_path, sets=small())
    (tmp_path / "small").write_bytes(TEXT)
    with pytest.raises(DataError, match="is a file; give the folder"):
        libsvm.load("small", tmp_path / "small", cache=tmp_path, sets=small())
    with pytest.raises(DataError, match="there is no data set 'a9b'; choose one of a9a, w8a"):
        libsvm.load("a9b", tmp_path, cache=tmp_path)


def test_the_digest_is_of_the_matrix() -> None:
    """Not of how it is stored; another shape or value is another digest."""
    dense = np.array([[0.0, 2.0, 0.0], [1.0, 0.0, 3.0]])
    digest = libsvm.features_digest(csr(dense))
    untidy = sparse.csr_array(
        (np.array([1.0, 1.0, 0.0, 3.0, 1.0]), np.array([1, 1, 0, 2, 0]), np.array([0, 3, 5])), shape=(2, 3)
    )
    before = untidy.data.copy()
    assert libsvm.features_digest(csr(untidy)) == digest
    np.testing.assert_array_equal(untidy.data, before)
    assert digest == "c576113ebcd7ca095f3b41674d846db4866bfc3004feb6380fac66b1a2bb425c"
    assert libsvm.features_digest(csr(dense[:, :2])) != digest
    assert libsvm.features_digest(csr(np.hstack([dense, np.zeros((2, 1))]))) != digest
    assert libsvm.features_digest(csr(dense * 2)) != digest


# --- the real files --------------------------------------------------------------------------------------------------

shared_data = [
    pytest.mark.shared_data,
    pytest.mark.skipif(
        not all((SHARED / f"{name}.bz2").exists() for name in libsvm.SETS),
        reason="the LIBSVM files w8a.bz2 and a9a.bz2 are not in ../shared/data",
    ),
]


def assert_same(X: Csr, Y: Csr) -> None:
    """Equal without filling them up."""
    assert X.shape == Y.shape
    for x, y in ((X.indptr, Y.indptr), (X.indices, Y.indices), (X.data, Y.data)):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(
    ("name", "shape", "nonzero"),
    [
        pytest.param("w8a", (49_749, 300), 579_586, marks=shared_data),
        pytest.param("a9a", (32_560, 123), 451_578, marks=shared_data),
    ],
)
def test_the_shared_copies(tmp_path: Path, name: str, shape: tuple[int, int], nonzero: int) -> None:
    """They match the digests, and come back from the cache as they were read."""
    rows = libsvm.load(name, SHARED, cache=tmp_path)
    assert rows.X.shape == shape
    assert rows.X.nnz == nonzero
    assert rows.digest == libsvm.SETS[name].digests[-1]
    again = libsvm.load(name, SHARED, cache=tmp_path)
    assert_same(again.X, rows.X)
    np.testing.assert_array_equal(rows.labels, again.labels)
    with bz2.open(SHARED / f"{name}.bz2") as file:
        X: Any = load_svmlight_file(file, n_features=shape[1])[0]
    assert_same(rows.X, csr(X))


@pytest.mark.parametrize("name", [pytest.param("a9a", marks=shared_data)])
def test_a9a_with_the_row_that_the_copy_lacks(tmp_path: Path, name: str) -> None:
    """LIBSVM's edition: row 19,610, the only one with feature 123, put back and labels of −1 and +1."""
    lines = bz2.decompress((SHARED / f"{name}.bz2").read_bytes()).splitlines()
    lines = [(b"-1" if line.startswith(b"0") else b"+1") + line[1:] for line in lines]
    lines.insert(19_609, b"-1 2:1 6:1 14:1 20:1 37:1 42:1 54:1 65:1 67:1 72:1 74:1 77:1 80:1 123:1 ")
    (tmp_path / name).write_bytes(b"\n".join(lines) + b"\n")
    rows = libsvm.load(name, tmp_path, cache=tmp_path / "cache")
    assert rows.X.shape == (32_561, 123)
    assert rows.digest == libsvm.SETS[name].digests[0]
    assert rows.X[:, [122]].nnz == 1


def test_what_the_paper_uses() -> None:
    """Fifty agents, 800 rows each of w8a and 600 each of a9a."""
    assert {name: (s.n_features, s.n_rows_used) for name, s in libsvm.SETS.items()} == {
        "w8a": (300, 40_000),
        "a9a": (123, 30_000),
    }
    assert all(s.name == name and s.url.endswith(f"/{name}") for name, s in libsvm.SETS.items())
