"""Test LIBSVM data sets: loading from a folder or the network, verification, caching, and failures."""

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
import requests
from scipy import sparse
from sklearn.datasets import load_svmlight_file

from deepca._util.typing import Csr, csr
from deepca.data import libsvm
from deepca.data.libsvm import LibsvmRows, LibsvmSet
from deepca.errors import DataError, MissingExtraError, NetworkError
from tests.support.errors import raises
from tests.support.paths import SHARED

N_FEATURES, N_USED, N_ROWS = 7, 20, 30
PACK: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".bz2": bz2.compress, ".gz": gzip.compress}


def small_text() -> bytes:
    """Return thirty sparse rows, one of them empty, as svmlight text that ends with a comment and a blank line."""
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
    """Describe the small data set with the digest of ``text``."""
    digest = libsvm.features_digest(csr(by_sklearn(text)[0])[:N_USED])
    return {"small": LibsvmSet("small", url, N_FEATURES, N_USED, (digest,))}


def assert_right(rows: LibsvmRows, text: bytes = TEXT) -> None:
    """Compare the rows with what scikit-learn reads."""
    X, y = by_sklearn(text)
    assert isinstance(rows.X, sparse.csr_array)
    assert rows.X.dtype == np.float64
    assert rows.X.shape == X.shape
    np.testing.assert_array_equal(rows.X.toarray(), X.toarray())
    np.testing.assert_array_equal(rows.labels, y)


# --- a local server --------------------------------------------------------------------------------------------------


@dataclass
class Server:
    """The response of a server, and the requests that it received."""

    url: str = ""
    status: int = 200
    body: bytes = TEXT
    length: int | None = len(TEXT)
    asked: list[str] = field(default_factory=list)
    answer: threading.Event = field(default_factory=threading.Event)
    finish: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Run a local server for the duration of a test."""
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
            """Do not log requests."""

    class Quiet(ThreadingHTTPServer):
        daemon_threads: ClassVar[bool] = True  # type: ignore[misc]

        def handle_error(self, request: object, client_address: object) -> None:
            """Ignore clients that close the connection, as in the tests of timeouts."""

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
    """Return whether a failed download has left no file and no folder."""
    return not cache.exists() or not list(cache.iterdir())


def test_a_file_is_downloaded_once(server: Server, tmp_path: Path) -> None:
    """The second call uses the cached rows, and the third only the downloaded file."""
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
def test_progress_is_reported(server: Server, tmp_path: Path, length: int | None) -> None:
    """Progress reaches the end, with the total if the server announces it."""
    server.length, told = length, list[tuple[int, int | None]]()
    libsvm.load("small", cache=tmp_path, sets=small(server.url), progress=lambda done, of: told.append((done, of)))
    assert told
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1][0] >= len(TEXT)
    assert {of for _, of in told} == {length}


def test_a_truncated_transfer_is_reported(server: Server, tmp_path: Path) -> None:
    """Fewer bytes arrive than were announced."""
    server.body = TEXT[:100]
    with raises(NetworkError) as caught:
        libsvm.load("small", cache=tmp_path, sets=small(server.url))
    assert f"{len(TEXT):,} bytes" in str(caught.value)
    assert isinstance(caught.value.__cause__, requests.exceptions.ChunkedEncodingError | None)
    assert nothing_kept(tmp_path)


def test_a_truncated_file_of_unknown_length_is_detected(server: Server, tmp_path: Path) -> None:
    """Too few rows reveal the truncation."""
    server.body, server.length = TEXT[: TEXT.index(b"\n", len(TEXT) // 3)], None
    with raises(
        DataError, value=server.body.count(b"\n"), line=None
    ) as caught:  # a comment, and rows without the last \n
        libsvm.load("small", cache=tmp_path, sets=small(server.url))
    assert server.url in str(caught.value.file)
    assert nothing_kept(tmp_path)


def test_a_wrong_checksum_is_reported(server: Server, tmp_path: Path) -> None:
    """The error has the wrong checksum, and its message the right one; the file is not kept."""
    right = small(server.url)
    server.body = other = TEXT.replace(b" 3:", b" 3:1", 1)
    server.length = len(other)
    wrong = small(text=other)["small"].digests[0]
    with raises(DataError, value=wrong) as caught:
        libsvm.load("small", cache=tmp_path, sets=right)
    assert right["small"].digests[0] in str(caught.value)
    assert nothing_kept(tmp_path)


def test_an_html_page_instead_of_the_file_is_rejected(server: Server, tmp_path: Path) -> None:
    """Networks with a login page answer with such a page."""
    server.body = b"<html><body>Please log in</body></html>"
    server.length = len(server.body)
    with raises(DataError, line=1, value="<html><body>Please"):
        libsvm.load("small", cache=tmp_path, sets=small(server.url))
    assert nothing_kept(tmp_path)


@pytest.mark.parametrize("status", [404, 503])
def test_an_http_error_is_reported(server: Server, tmp_path: Path, status: int) -> None:
    """The message has the status, the address, and the name of the file."""
    server.status = status
    with raises(NetworkError) as caught:
        libsvm.load("small", cache=tmp_path, sets=small(server.url))
    cause = caught.value.__cause__
    assert isinstance(cause, requests.exceptions.HTTPError)
    assert cause.response is not None
    assert cause.response.status_code == status
    assert all(fact in str(caught.value) for fact in (str(status), server.url, "small"))
    assert nothing_kept(tmp_path)


@pytest.mark.parametrize("silent", ["before", "within"])
def test_a_silent_server_is_reported_after_the_timeout(server: Server, tmp_path: Path, silent: str) -> None:
    """The server stops before the response, or in the middle of it."""
    if silent == "before":
        server.answer.clear()
    else:
        server.body = TEXT[:100]
        server.finish.clear()
    with raises(NetworkError) as caught:
        libsvm.load("small", cache=tmp_path, sets=small(server.url), timeout=0.2)
    assert isinstance(caught.value.__cause__, requests.exceptions.Timeout | requests.exceptions.ConnectionError)
    assert "0.2 s" in str(caught.value)
    assert nothing_kept(tmp_path)


def test_a_failed_connection_is_reported(server: Server, tmp_path: Path) -> None:
    """No server listens at the address."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/small"
    with raises(NetworkError) as caught:
        libsvm.load("small", cache=tmp_path, sets=small(url))
    assert isinstance(caught.value.__cause__, requests.exceptions.ConnectionError)
    assert url in str(caught.value)
    assert nothing_kept(tmp_path)
    assert not server.asked


def test_a_malformed_address_is_reported(tmp_path: Path) -> None:
    """The address of a user-defined data set may be malformed."""
    with raises(NetworkError) as caught:
        libsvm.load("small", cache=tmp_path, sets=small("nowhere"))
    assert isinstance(caught.value.__cause__, requests.exceptions.MissingSchema)


def test_a_damaged_download_is_downloaded_again(server: Server, tmp_path: Path) -> None:
    """The stored file was truncated."""
    libsvm.load("small", cache=tmp_path, sets=small(server.url))
    (tmp_path / "small").write_bytes(TEXT[:50])
    assert_right(libsvm.load("small", cache=tmp_path, sets=small(server.url)))
    assert len(server.asked) == 2
    assert (tmp_path / "small").read_bytes() == TEXT


def test_a_failed_download_leaves_the_existing_file(server: Server, tmp_path: Path) -> None:
    """Only a verified file replaces an existing one."""
    (tmp_path / "small").write_bytes(b"1 1:1\n")
    server.status = 404
    with pytest.raises(NetworkError):
        libsvm.load("small", cache=tmp_path, sets=small(server.url))
    assert [path.name for path in tmp_path.iterdir()] == ["small"]


def test_rows_are_loaded_even_if_the_cache_cannot_be_written(server: Server, tmp_path: Path) -> None:
    """Both downloads and files of a folder can be loaded without a cache."""
    cache = tmp_path / "not a folder"
    cache.touch()
    (tmp_path / "small").write_bytes(TEXT)
    assert_right(libsvm.load("small", cache=cache, sets=small(server.url)))
    assert_right(libsvm.load("small", tmp_path, cache=cache, sets=small(server.url)))
    assert cache.read_bytes() == b""


# --- folders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", PACK)
@pytest.mark.parametrize("text", ["", ".txt"])
def test_files_in_a_folder_are_read(tmp_path: Path, packed: str, text: str) -> None:
    """Plain and compressed files give what scikit-learn reads, when they are parsed and from the cache."""
    path = tmp_path / f"small{text}{packed}"
    path.write_bytes(PACK[packed](TEXT))
    for _ in range(2):
        rows = libsvm.load("small", tmp_path, cache=tmp_path / "cache", sets=small())
        assert_right(rows)
        assert rows.source == path.name
        assert rows.digest == small()["small"].digests[0]


def test_the_cache_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call parses nothing, unless the file has changed."""
    path = tmp_path / "small"
    path.write_bytes(TEXT)
    sets = small()
    libsvm.load("small", tmp_path, cache=tmp_path / "cache", sets=sets)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "sklearn.datasets", None)  # cannot be imported
        assert_right(libsvm.load("small", tmp_path, cache=tmp_path / "cache", sets=sets))
        with path.open("ab") as file:
            file.write(b"1 2:3\n")
        with raises(MissingExtraError, name="scikit-learn"):
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
def test_a_damaged_cache_is_rebuilt(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """Whatever the damage, the file is parsed again."""
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


def test_the_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache folder is DEEPCA_CACHE if set, or else the system's cache folder."""
    (tmp_path / "small").write_bytes(TEXT)
    monkeypatch.setenv("DEEPCA_CACHE", str(tmp_path / "mine"))
    libsvm.load("small", tmp_path, sets=small())
    assert len(list((tmp_path / "mine").iterdir())) == 1
    monkeypatch.delenv("DEEPCA_CACHE")
    monkeypatch.setattr("pooch.os_cache", lambda project: tmp_path / "system" / project)
    libsvm.load("small", tmp_path, sets=small())
    assert len(list((tmp_path / "system" / "deepca").iterdir())) == 1


def test_only_downloads_need_pooch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pooch, files in a folder can be read if a cache folder is given."""
    monkeypatch.setitem(sys.modules, "pooch", None)
    (tmp_path / "small").write_bytes(TEXT)
    assert_right(libsvm.load("small", tmp_path, cache=tmp_path / "cache", sets=small()))
    with raises(MissingExtraError, name="pooch"):
        libsvm.load("small", cache=tmp_path / "cache", sets=small())


# --- files that cannot be used ---------------------------------------------------------------------------------------


def rejected(folder: Path, name: str, content: bytes) -> DataError:
    """Return the error with which a file is rejected; nothing of it is cached."""
    (folder / name).write_bytes(content)
    with raises(DataError, file=str(folder / name)) as caught:
        libsvm.load("small", folder, cache=folder / "cache", sets=small())
    assert nothing_kept(folder / "cache")
    assert "http://127.0.0.1:9/small" in str(caught.value)  # where to get a fresh copy
    return caught.value


LINES = TEXT.split(b"\n")


def with_line(number: int, line: bytes) -> bytes:
    """Return the text with one line replaced, counted from 1."""
    return b"\n".join([*LINES[: number - 1], line, *LINES[number:]])


@pytest.mark.parametrize(
    ("line", "column", "value"),
    [
        (b"-1 1:1 what", None, "what"),
        (b"spam 1:1", None, "spam"),
        (b"1,2 1:1", None, "1,2"),
        (b"-1 1:x", None, "1:x"),
        (b"-1 1:", None, "1:"),
        (b"-1 1:1 8:1", 8, "8:1"),
        (b"-1 0:1 3:1", 0, "0:1"),
        (b"-1 -2:1", -2, "-2:1"),
        (b"-1 99999999999999999999:1", 99999999999999999999, "99999999999999999999:1"),
        (b"-1 3:1 2:1", 2, "2:1"),
        (b"-1 3:1 3:2", 3, "3:2"),
        (b"-1 3:nan", 3, "3:nan"),
        (b"inf 3:1", None, "inf"),
        (b"\xff\xfe\x00\x01", None, "\ufffd\ufffd\x00\x01"),
    ],
)
@pytest.mark.parametrize("number", [2, 28])
def test_a_malformed_line_is_located(tmp_path: Path, line: bytes, column: int | None, value: str, number: int) -> None:
    """The error has line, index and word, even behind the rows that are used; its redacted message omits the value."""
    error = rejected(tmp_path, "small", with_line(number, line))
    assert (error.line, error.column, error.value) == (number, column, value)
    assert value not in error.redacted.replace(str(tmp_path), "").replace("127.0.0.1", "")


@pytest.mark.parametrize("packed", [".bz2", ".gz"])
def test_truncated_and_damaged_archives_are_rejected(tmp_path: Path, packed: str) -> None:
    whole = PACK[packed](TEXT)
    assert isinstance(rejected(tmp_path, f"small{packed}", whole[:-20]).__cause__, EOFError)
    assert isinstance(rejected(tmp_path, f"small{packed}", b"no archive at all").__cause__, OSError)
    middle = len(whole) // 2
    broken = whole[:middle] + bytes(255 - byte for byte in whole[middle : middle + 8]) + whole[middle + 8 :]
    assert rejected(tmp_path, f"small{packed}", broken).line is None


@pytest.mark.parametrize("content", [b"", b"\n", b"# nothing\n", b"1 1:1\n" * 19])
def test_a_file_with_too_few_rows_is_rejected(tmp_path: Path, content: bytes) -> None:
    """The error has the number of rows, and its message the required number."""
    error = rejected(tmp_path, "small", content)
    assert error.value == content.count(b":")
    assert str(N_USED) in str(error)


def test_a_file_with_other_features_is_rejected(tmp_path: Path) -> None:
    """Only the features of the rows that are used must be right; labels and later rows may differ."""
    other = TEXT.replace(b" 3:", b" 3:1", 1)
    assert rejected(tmp_path, "small", other).value == small(text=other)["small"].digests[0]
    relabelled = TEXT.replace(b"\n-1 ", b"\n0 ") + b"5 1:2.5\n"
    (tmp_path / "small").write_bytes(relabelled)
    assert_right(libsvm.load("small", tmp_path, cache=tmp_path / "cache", sets=small()), relabelled)
    either = {"small": replace(small()["small"], digests=("0" * 64, *small(text=other)["small"].digests))}
    (tmp_path / "small").write_bytes(other)
    assert_right(libsvm.load("small", tmp_path, cache=tmp_path / "cache", sets=either), other)


def test_a_folder_without_the_file_is_rejected(tmp_path: Path) -> None:
    """The file, the folder or the data set may not exist, or the folder may be a file."""
    names = ("small", "small.txt", "small.bz2", "small.txt.bz2", "small.gz", "small.txt.gz")
    with raises(DataError, parameter="folder", file=str(tmp_path), value=names):
        libsvm.load("small", tmp_path, cache=tmp_path, sets=small())
    with raises(DataError, parameter="folder", file=str(tmp_path / "nowhere"), value=None):
        libsvm.load("small", tmp_path / "nowhere", cache=tmp_path, sets=small())
    (tmp_path / "small").write_bytes(TEXT)
    with raises(DataError, parameter="folder", file=str(tmp_path / "small"), value=None):
        libsvm.load("small", tmp_path / "small", cache=tmp_path, sets=small())
    with raises(DataError, parameter="name", value="a9b") as caught:
        libsvm.load("a9b", tmp_path, cache=tmp_path)
    assert all(name in str(caught.value) for name in libsvm.DATA_SETS)


def test_the_digest_is_of_the_matrix() -> None:
    """The digest depends on shape and values, but not on how the matrix is stored."""
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
        not all((SHARED / f"{name}.bz2").exists() for name in libsvm.DATA_SETS),
        reason="the LIBSVM files w8a.bz2 and a9a.bz2 are not in ../shared/data",
    ),
]


def assert_same(X: Csr, Y: Csr) -> None:
    """Compare sparse matrices without making them dense."""
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
def test_the_shared_copies_match_the_digests(tmp_path: Path, name: str, shape: tuple[int, int], nonzero: int) -> None:
    """The cache returns them unchanged."""
    rows = libsvm.load(name, SHARED, cache=tmp_path)
    assert rows.X.shape == shape
    assert rows.X.nnz == nonzero
    assert rows.digest == libsvm.DATA_SETS[name].digests[-1]
    again = libsvm.load(name, SHARED, cache=tmp_path)
    assert_same(again.X, rows.X)
    np.testing.assert_array_equal(rows.labels, again.labels)
    with bz2.open(SHARED / f"{name}.bz2") as file:
        X: Any = load_svmlight_file(file, n_features=shape[1])[0]
    assert_same(rows.X, csr(X))


@pytest.mark.parametrize("name", [pytest.param("a9a", marks=shared_data)])
def test_the_full_a9a_matches_its_digest(tmp_path: Path, name: str) -> None:
    """Restore LIBSVM's edition: row 19,610, the only one with feature 123, and labels −1 and +1."""
    lines = bz2.decompress((SHARED / f"{name}.bz2").read_bytes()).splitlines()
    lines = [(b"-1" if line.startswith(b"0") else b"+1") + line[1:] for line in lines]
    lines.insert(19_609, b"-1 2:1 6:1 14:1 20:1 37:1 42:1 54:1 65:1 67:1 72:1 74:1 77:1 80:1 123:1 ")
    (tmp_path / name).write_bytes(b"\n".join(lines) + b"\n")
    rows = libsvm.load(name, tmp_path, cache=tmp_path / "cache")
    assert rows.X.shape == (32_561, 123)
    assert rows.digest == libsvm.DATA_SETS[name].digests[0]
    assert rows.X[:, [122]].nnz == 1


def test_the_data_sets_have_the_sizes_that_the_paper_uses() -> None:
    """Fifty agents, 800 rows each of w8a and 600 each of a9a."""
    assert {name: (s.n_features, s.n_rows_used) for name, s in libsvm.DATA_SETS.items()} == {
        "w8a": (300, 40_000),
        "a9a": (123, 30_000),
    }
    assert all(s.name == name and s.url.endswith(f"/{name}") for name, s in libsvm.DATA_SETS.items())
