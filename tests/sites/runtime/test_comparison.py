"""Test that a site signs only the file that it would write itself, and describes the differences of any other."""

from __future__ import annotations

import hashlib
import io
import json
import math
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from deepca import DecentralizedPCA, Model, run_agents
from deepca.consensus.exact import exact_average
from deepca.data.sources import ArraySource
from deepca.decomposition.model.layout import checksum_of, npz_bytes
from deepca.decomposition.settings import Settings
from deepca.network.agent import AgentNetwork
from deepca.sites.runtime.agent import largest_message
from deepca.sites.runtime.comparison import difference
from deepca.solver.certificate.certification import digest_of
from deepca.solver.result import Status, StatusCode
from deepca.topology import path
from tests.support.problems import random_rows


@cache
def computed() -> Model:
    """Return a model with column names, scales and everything else that models can have, computed at this site."""
    rows = np.vstack(random_rows(3, 20, 5, seed=0, decay=0.6)) + np.array([1.0, -2.0, 30.0, 0.0, 5.0])
    fitted = DecentralizedPCA(n_components=2, topology="ring", n_agents=3, scale=True).fit(rows).model_
    about = {**fitted.about, "run": "1", "sites": ["north", "south", "west"], "left_out": []}
    return replace(fitted, columns=("größe", "重量", "c", "d", "e"), about=about)


def members(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        return {name: file.read(name) for name in file.namelist()}


def zipped(parts: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as file:
        for name, part in parts.items():
            file.writestr(zipfile.ZipInfo(name), part, compression)
    return content.getvalue()


def forged(change: Callable[[dict[str, Any]], object], text: Callable[[str], str] = str) -> bytes:
    """Return this site's file with a changed JSON text and a matching checksum."""
    with np.load(io.BytesIO(computed().to_bytes())) as file:
        arrays = {name: file[name] for name in file.files}
    about = json.loads(str(arrays.pop("about")))
    del about["checksum"]
    change(about)
    about["checksum"] = checksum_of(arrays, about)
    return npz_bytes({**arrays, "about": np.array(text(json.dumps(about, ensure_ascii=False)))})


def proven(**changes: Any) -> Model:
    mine = computed()
    assert mine.certificate is not None
    return replace(mine, certificate=replace(mine.certificate, **changes))


def turned(mine: Model, X: np.ndarray[Any, Any]) -> Model:
    """Return a model with other components and a matching certificate."""
    assert mine.certificate is not None
    return replace(mine, components=X, certificate=replace(mine.certificate, digest=digest_of(X.T)))


def test_the_model_that_a_site_computed_does_not_differ() -> None:
    mine = computed()
    assert difference(mine, mine.to_bytes()) == ""
    columns = replace(mine, components=np.asfortranarray(mine.components))  # the memory layout may differ between sites
    assert difference(columns, mine.to_bytes()) == ""
    nothing = proven(angle=math.inf, bound=math.nan, larger_k=None)
    assert difference(nothing, nothing.to_bytes()) == ""


NUMBERS: dict[str, tuple[Callable[[Model], Model], str]] = {
    "a mean": (lambda m: replace(m, mean=np.nextafter(m.mean, np.inf)), "mean differs, by "),
    "a scale": (lambda m: replace(m, scale=np.asarray(m.scale) * (1.0 + 1e-15)), "scale differs, by "),
    "a variance": (lambda m: replace(m, explained_variance=m.explained_variance * (1.0 + 1e-15)), "explained_variance"),
    "total variance": (
        lambda m: replace(m, total_variance=math.nextafter(m.total_variance, math.inf)),
        "total_variance is ",
    ),
    "an angle": (lambda m: proven(angle=computed().certificate.angle * 0.999), "angle of certificate is "),  # type: ignore[union-attr]
    "a sign": (lambda m: turned(m, -m.components), "components differs, by "),
    "a component": (lambda m: turned(m, np.nextafter(m.components, 1.0)), "components differs, by "),
    "single precision": (lambda m: replace(m, mean=m.mean.astype(np.float32)), "mean differs"),
    "fewer components": (lambda m: turned(m, m.components[:1]), "components has shape (1, 5), not (2, 5)"),
    "names": (lambda m: replace(m, columns=("a", "b", "c", "d", "e")), "columns differs"),
    "no names": (lambda m: replace(m, columns=None), "columns is missing"),
    "a number of rows": (lambda m: replace(m, n_samples=61), "n_samples is 61, not 60, by 1.0e+00"),
    "a kind of number": (lambda m: replace(m, weight=60), "weight is 60, not 60.0"),
    "advice": (lambda m: replace(m, status=Status(m.status.code, "tan θ ≤ 0")), 'advice of status is "tan θ ≤ 0", not'),
    "members": (lambda m: replace(m, about={**m.about, "sites": ["north"]}), "sites of about has shape (1,), not (3,)"),
    "no certificate": (lambda m: replace(m, certificate=None), "certificate is missing"),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_difference_in_the_last_digit_of_any_field_is_found(name: str) -> None:
    change, expected = NUMBERS[name]
    found = difference(computed(), change(computed()).to_bytes())
    if name == "no certificate":  # then all its entries are missing
        assert found.endswith("of certificate is missing")
    else:
        assert found.startswith(expected)


def test_noise_exaggerated_by_one_site_does_not_make_other_components_pass() -> None:
    """The noise is the largest that any site reports, so no tolerance may be derived from it."""
    mine = proven(noise=1e-3, residual=1e-3, uncertainty=1e-3, angle=0.1)
    X = np.linalg.qr(mine.components.T + 0.01 * np.ones((5, 2)))[0].T
    forgery = turned(mine, np.ascontiguousarray(X * np.sign((X * mine.components).sum(axis=1))[:, None]))
    assert forgery.certificate is not None
    better = replace(forgery.certificate, angle=0.03, noise=3e-4, residual=3e-4, uncertainty=3e-4)
    assert difference(mine, forgery.to_bytes()).startswith("components differs, by ")
    assert difference(mine, replace(mine, certificate=replace(better, digest=mine.certificate.digest)).to_bytes())  # type: ignore[union-attr]


def _gaps(content: bytes) -> bytes:
    """Insert bytes between the parts of the file, which no reader reads."""
    hidden = io.BytesIO()
    with zipfile.ZipFile(hidden, "w") as file:
        for name, part in members(content).items():
            file.writestr(zipfile.ZipInfo(name), part)
            assert file.fp is not None
            file.fp.write(b"hidden rows")
            file.start_dir = file.fp.tell()
    return hidden.getvalue()


def _with(content: bytes, **changes: bytes) -> bytes:
    parts = members(content)
    return zipped({**parts, **{f"{name}.npy": parts.get(f"{name}.npy", b"") + more for name, more in changes.items()}})


def _comment(content: bytes) -> bytes:
    changed = io.BytesIO(content)
    with zipfile.ZipFile(changed, "a") as file:
        file.comment = b"hidden rows"
    return changed.getvalue()


def _extra(content: bytes) -> bytes:
    changed = io.BytesIO()
    with zipfile.ZipFile(changed, "w") as file:
        for name, part in members(content).items():
            member = zipfile.ZipInfo(name)
            member.extra = b"\xfe\xca\x04\x00rows"
            file.writestr(member, part)
    return changed.getvalue()


def _twice(content: bytes) -> bytes:
    changed = io.BytesIO(content)
    with zipfile.ZipFile(changed, "a") as file:
        file.writestr(zipfile.ZipInfo("mean.npy"), members(content)["mean.npy"])
    return changed.getvalue()


HIDDEN: dict[str, Callable[[bytes], bytes]] = {
    "gaps between parts": _gaps,
    "after an array": lambda content: _with(content, mean=b"hidden rows"),
    "a comment": _comment,
    "an extra field": _extra,
    "after the file": lambda content: content + b"hidden rows",
    "before the file": lambda content: b"PK hidden rows" + content,
    "another part": lambda content: _with(content, notes=members(content)["mean.npy"]),
    "a part twice": _twice,
    "a date": lambda content: content.replace(b"\x00\x00\x21\x00", b"\x01\x00\x21\x00", 1),
    "spaces": lambda content: forged(lambda about: None, lambda text: text + "  "),
    "another order": lambda content: forged(lambda about: about.__setitem__("kind", about.pop("kind"))),
    "a field twice": lambda content: forged(lambda about: None, lambda text: '{"kind": "hidden", ' + text[1:]),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", HIDDEN)
def test_data_hidden_in_a_file_is_found(name: str) -> None:
    own = computed().to_bytes()
    changed = HIDDEN[name](own)
    assert changed != own
    assert difference(computed(), changed)


CRAFTED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a key that reads like a path": (
        lambda a: a.update({"certificate/angle": "x"}),
        "it has an unknown field 'certificate/angle'",
    ),
    "a mapping for text": (lambda a: a["status"].update(advice={"x": 1}), "advice of status is missing"),
    "an empty mapping": (lambda a: a["status"].update(more={}), "it has an unknown field 'more of status'"),
    "weight nan": (lambda a: a.update(weight=math.nan), "weight is NaN, not 60.0"),
    "advice a number": (lambda a: a["status"].update(advice=5), "advice of status is 5, not "),
    "advice null": (lambda a: a["status"].update(advice=None), "advice of status is null, not "),
    "angle text": (lambda a: a["certificate"].update(angle="x"), 'angle of certificate is "x", not '),
    "angle null": (lambda a: a["certificate"].update(angle=None), "angle of certificate is null, not "),
    "angle a list": (lambda a: a["certificate"].update(angle=[1, 2]), "angle of certificate has shape (2,), not ()"),
    "residual a list of lists": (lambda a: a["certificate"].update(residual=[[], [1]]), "it cannot be read: "),
    "eigenvalues text": (lambda a: a["certificate"].update(eigenvalues="12"), "eigenvalues of certificate has shape"),
    "failure true": (lambda a: a["certificate"].update(failure=True), "failure of certificate is true, not "),
    "a huge number": (lambda a: a.update(n_samples=10**400), "n_samples is 1000"),
    "a future format": (lambda a: a.update(format=10**400), "format is 1000"),
}


@pytest.mark.parametrize("name", CRAFTED)
def test_nonsensical_entries_are_differences(name: str) -> None:
    change, expected = CRAFTED[name]
    assert difference(computed(), forged(change)).startswith(expected)


def test_unreadable_files_are_differences() -> None:
    mine, own = computed(), computed().to_bytes()
    deep = forged(lambda about: None, lambda text: f'{text[:-1]}, "z": {"[" * 100_000}{"]" * 100_000}}}')
    nested = forged(lambda about: None, lambda text: text[:-1] + ', "z": ' + '{"a": ' * 400 + "1" + "}" * 401)
    texts = [deep, nested, forged(lambda about: None, lambda text: "5"), forged(lambda about: None, lambda text: "{")]
    for content in (b"", b"PK", own[:-1], own[:1000], b"PK\x05\x06" + bytes(18), *texts):
        found = difference(mine, content)
        assert found
        assert found.isprintable()
        assert len(found) < 200


@pytest.mark.parametrize(
    "name",
    ["\x1b[2J\nexit 0\r", "\ud800", "A" * 6_000_000, "\u202e"],
    ids=["escapes", "surrogate", "long", "right to left"],
)
def test_names_chosen_by_other_sites_are_shortened_and_printable(name: str) -> None:
    """Such names appear on terminals, in logs and at other sites."""
    for content in (forged(lambda about: about.update({name: 1})), forged(lambda about: about.update({"kind": name}))):
        found = difference(computed(), content)
        assert found.startswith(("it has an unknown field ", "kind is "))
        assert found.isprintable()
        assert len(found.encode()) < 500


def test_a_compressed_file_is_not_decompressed() -> None:
    """Nor is any part of the file read repeatedly."""
    parts = {**members(computed().to_bytes()), "zeros.npy": bytes(100_000_000)}
    compressed = zipped(parts, zipfile.ZIP_DEFLATED)
    shared = io.BytesIO()
    with zipfile.ZipFile(shared, "w") as file:
        file.writestr("zeros.npy", bytes(100_000))
        file.filelist *= 1000
    tracemalloc.start()
    found = [difference(computed(), content) for content in (compressed, shared.getvalue())]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert all("compressed" in one for one in found)
    assert peak < 20_000_000


def test_arrays_that_claim_to_be_larger_than_the_file_are_differences() -> None:
    header = "{'descr': '%s', 'fortran_order': False, 'shape': (%d,), }"
    for text in (header % ("<f8", 2**40), header % ("<f8", 2**62), header % ("<U0", 2**40), header % ("|O", 3)):
        raw = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()
        content = zipped({**members(computed().to_bytes()), "columns.npy": raw})
        assert difference(computed(), content)


def test_a_model_is_serialised_to_the_same_bytes_by_all_versions() -> None:
    """The digest was recorded once; every version of Python and numpy must reproduce it."""
    exact = Model(
        components=np.array([[0.6, 0.8], [0.8, -0.6]]),
        explained_variance=np.array([2.0, 0.1]),
        total_variance=2.1,
        mean=np.array([1e-3, -0.0]),
        scale=None,
        n_samples=10,
        weight=10.0,
        columns=("größe", "b"),
        whiten=False,
        status=Status(StatusCode.CONVERGED, "tan θ ≤ 1.0e-11"),
        certificate=None,
        about={"agents": 3, "tol": 1e-10},
    )
    content = exact.to_bytes()
    assert hashlib.sha256(content).hexdigest() == "164db6a8eaf0e00a07d818e360b2095b58b629cadc27c3997e52a996227f3191"
    columns = np.array([[0.6, 0.8], [0.8, -0.6]], order="F")
    assert replace(exact, components=columns, mean=exact.mean.astype(">f8")).to_bytes() == content


def test_the_largest_message_has_room_for_a_model_with_one_long_column_name() -> None:
    d = 1000
    names = ("x" * 500, *(f"c{j}" for j in range(1, d)))
    source = ArraySource(np.zeros((2, d)), "site", columns=names)
    mine = replace(computed(), components=np.eye(3, d), explained_variance=np.ones(3), mean=np.zeros(d))
    large = replace(mine, scale=np.ones(d), columns=names, certificate=None)
    assert len(large.to_bytes()) + 10_000 <= largest_message(source, Settings(3))


def test_the_exact_mean_is_never_negative_zero() -> None:
    """On the way down the tree, the sign would be lost at an agent whose own number is positive."""
    tiny = 5e-324
    given = [tiny, -2.0 * tiny, -tiny, -tiny, -tiny]

    def work(network: AgentNetwork) -> bytes:
        network.begin(0, 0, "mean")
        return exact_average(network, np.array([given[network.agent]])).tobytes()

    assert len(set(run_agents(path(5), work))) == 1
