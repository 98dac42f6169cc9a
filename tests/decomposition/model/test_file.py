"""Test model files: they are restored exactly, can be read by numpy alone, and are refused if damaged."""

from __future__ import annotations

import gc
import io
import json
import math
import os
import stat
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

import deepca
from deepca import DecentralizedPCA, Model, load
from deepca.decomposition.model.layout import FORMAT
from deepca.errors import DataError, InvalidInput, ModelError, NewerModelError
from deepca.solver.result import Status, StatusCode
from tests.support.errors import raises
from tests.support.problems import close, random_rows

ROWS = np.vstack(random_rows(3, 20, 5, seed=0, decay=0.6)) + np.array([1.0, -2.0, 30.0, 0.0, 5.0])
Arrays = dict[str, np.ndarray[Any, Any]]


def fitted(*, dtype: type = np.float64, **settings: Any) -> DecentralizedPCA:
    return DecentralizedPCA(**{"n_components": 2, "topology": "ring", "n_agents": 3, **settings}).fit(
        ROWS.astype(dtype)
    )


def with_infinities(model: Model) -> Model:
    """Return the model with a certificate that proves nothing."""
    assert model.certificate is not None
    proof = replace(
        model.certificate, angle=math.inf, bound=math.inf, others=(math.inf, 1.0), n_rows=None, larger_k=None
    )
    return replace(model, certificate=proof)


MODELS: dict[str, Callable[[], Model]] = {
    "plain": lambda: fitted().model_,
    "scaled": lambda: fitted(scale=True).model_,
    "not centred": lambda: fitted(center=False).model_,
    "whitened": lambda: fitted(whiten=True).model_,
    "float32": lambda: fitted(dtype=np.float32).model_,
    "float32, scaled, whitened": lambda: fitted(dtype=np.float32, scale=True, whiten=True).model_,
    "all components": lambda: fitted(n_components=None).model_,
    "one component": lambda: fitted(n_components=1).model_,
    "names": lambda: replace(fitted().model_, columns=("größe", "重量", "", "a b\nc", "😀,'\"")),
    "infinities": lambda: with_infinities(fitted().model_),
    "no certificate": lambda: replace(fitted().model_, certificate=None),
    "a failed run": lambda: replace(fitted().model_, status=Status(StatusCode.NOT_UNIQUE, "λ_2 = λ_3")),
    "weights": lambda: replace(fitted().model_, weight=123.456),
}


def same_array(a: Any, b: Any) -> bool:
    """Compare bits, shape and type; None equals only None."""
    if a is None or b is None:
        return a is None and b is None
    return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())


def assert_same(a: Model, b: Model) -> None:
    """Assert that every field is bitwise identical."""
    for name in ("components", "explained_variance", "mean", "scale"):
        assert same_array(getattr(a, name), getattr(b, name)), name
    for name in ("total_variance", "n_samples", "weight", "columns", "whiten", "status", "certificate"):
        assert getattr(a, name) == getattr(b, name), name
        assert type(getattr(a, name)) is type(getattr(b, name)), name
    assert dict(a.about) == dict(b.about)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, Model]:
    """Return a file with all optional parts, its bytes, and its model."""
    path = tmp_path_factory.mktemp("model") / "good.npz"
    model = replace(fitted(scale=True).model_, columns=("a", "b", "c", "d", "e"))
    model.save(path)
    return path, path.read_bytes(), model


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[Path]:
    """Yield the path of a damaged file; another test checks that no handle stays open."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield tmp_path / "damaged.npz"
        gc.collect()


# ------------------------------------------------------------------------------------------------------ round trip


@pytest.mark.parametrize("name", MODELS)
def test_models_are_restored_exactly(name: str, tmp_path: Path) -> None:
    """Saving the restored model gives the same bytes again."""
    model = MODELS[name]()
    model.save(tmp_path / "model.npz")
    again = load(tmp_path / "model.npz")
    assert_same(model, again)
    again.save(str(tmp_path / "again.npz"))
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "model.npz").read_bytes()


@pytest.mark.parametrize("name", MODELS)
def test_derived_numbers_are_restored_exactly(name: str, tmp_path: Path) -> None:
    """Ratios, singular values and noise are computed from stored fields."""
    model = MODELS[name]()
    model.save(tmp_path / "model.npz")
    again = load(tmp_path / "model.npz")
    for number in ("explained_variance_ratio", "singular_values"):
        assert same_array(getattr(model, number), getattr(again, number))
    for number in ("noise_variance", "n_components", "n_features", "dtype"):
        assert getattr(model, number) == getattr(again, number)


def test_the_same_fit_gives_the_same_bytes(tmp_path: Path) -> None:
    """The file contains no time, no path and no random number."""
    first, second = tmp_path / "a.npz", tmp_path / "elsewhere" / "b.npz"
    fitted(scale=True).model_.save(first)
    fitted(scale=True).model_.save(second)  # creates the directory
    assert first.read_bytes() == second.read_bytes()


def test_saving_replaces_an_existing_file(tmp_path: Path) -> None:
    """No other files appear, and the file may be read by all users."""
    path = tmp_path / "model.npz"
    path.write_bytes(b"x" * 100_000)
    fitted().model_.save(path)
    assert_same(load(path), fitted().model_)
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.npz"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_the_name_need_not_end_in_npz(tmp_path: Path) -> None:
    """The model is saved under the given name, without a suffix added."""
    fitted().model_.save(tmp_path / "model")
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]
    assert_same(load(tmp_path / "model"), fitted().model_)


def test_numpy_alone_can_read_the_file(good: tuple[Path, bytes, Model]) -> None:
    """The file is read as documented in the module, without pickle; its components are those of scikit-learn."""
    path, _, _ = good
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    assert set(arrays) == {"components", "mean", "explained_variance", "scale", "columns", "about"}
    scaler = StandardScaler().fit(ROWS)
    pca = PCA(2, svd_solver="full").fit(scaler.transform(ROWS))
    close(arrays["components"], pca.components_, atol=1e-9)
    close(arrays["explained_variance"], pca.explained_variance_, rtol=1e-9)
    close(arrays["mean"], scaler.mean_, atol=1e-12)
    close(arrays["scale"], scaler.scale_, rtol=1e-12)
    assert arrays["columns"].tolist() == ["a", "b", "c", "d", "e"]
    about = json.loads(str(arrays["about"]))
    assert about["format"] == FORMAT
    assert about["n_samples"] == 60
    assert about["certificate"]["n_agents"] == 3
    scores = (ROWS - arrays["mean"]) / arrays["scale"] @ arrays["components"].T
    close(scores, pca.transform(scaler.transform(ROWS)), atol=1e-8)


def test_absent_optional_arrays_are_not_stored(tmp_path: Path) -> None:
    """Without scale and column names, the file has no members for these."""
    fitted().model_.save(tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz", allow_pickle=False) as file:
        assert set(file.files) == {"components", "mean", "explained_variance", "about"}


def test_the_json_in_the_file_is_strict(tmp_path: Path) -> None:
    """Parsers in other languages do not accept Infinity."""
    MODELS["infinities"]().save(tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz", allow_pickle=False) as file:
        text = str(file["about"])

    def refuse(word: str) -> None:
        raise AssertionError(word)

    json.loads(text, parse_constant=refuse)


# -------------------------------------------------------------------------------------------------------- applying


@pytest.mark.parametrize("settings", [{}, {"scale": True}, {"whiten": True}, {"scale": True, "whiten": True}])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_loaded_model_gives_the_scores_of_the_estimator(
    dtype: type, settings: dict[str, Any], tmp_path: Path
) -> None:
    """``transform`` and ``inverse_transform`` agree for dense and sparse rows, bitwise for dense ones."""
    pca = fitted(dtype=dtype, **settings)
    pca.model_.save(tmp_path / "model.npz")
    model = load(tmp_path / "model.npz")
    X = ROWS.astype(dtype)
    scores = model.transform(X)
    assert same_array(scores, pca.transform(X))
    assert scores.dtype == dtype
    assert same_array(model.inverse_transform(scores), pca.inverse_transform(scores))
    size = float(np.abs(scores).max())
    for kind in (sparse.csr_array, sparse.csc_array, sparse.coo_array, sparse.csr_matrix):
        from_sparse = model.transform(kind(X))
        assert from_sparse.dtype == dtype
        assert isinstance(from_sparse, np.ndarray)
        close(from_sparse, scores, atol=size * (1e-13 if dtype == np.float64 else 1e-6))


def test_a_float64_model_of_float32_rows_is_float64() -> None:
    """Scores are float32 only if both model and rows are."""
    model = fitted().model_
    assert model.transform(ROWS.astype(np.float32)).dtype == np.float64
    assert fitted(dtype=np.float32).model_.transform(ROWS).dtype == np.float64


def test_units_that_are_denormal_in_float32_are_stored_in_float64() -> None:
    rows = (ROWS[:, :3] * [1.0, 1e-42, 1e-20]).astype(np.float32)
    pca = DecentralizedPCA(2, n_agents=3, scale=True).fit(rows)
    assert pca.scale_ is not None
    assert pca.scale_.dtype == np.float64
    np.testing.assert_allclose(pca.scale_, rows.astype(np.float64).std(axis=0), rtol=1e-9)


@pytest.mark.parametrize(
    "rows",
    [ROWS[:, :4], np.hstack([ROWS, ROWS]), ROWS[0], np.zeros((2, 5, 1)), sparse.csr_array(ROWS[:, :4]), 3.0],
    ids=["narrow", "wide", "one row", "three axes", "narrow csr", "a number"],
)
def test_rows_with_a_different_number_of_columns_are_rejected(rows: Any) -> None:
    shape = () if isinstance(rows, float) else tuple(rows.shape)
    with raises(DataError, parameter="X", value=shape):
        fitted().model_.transform(rows)


@pytest.mark.parametrize("scores", [np.zeros((3, 3)), np.zeros(2), np.zeros((1, 2, 1))])
def test_scores_with_a_different_number_of_columns_are_rejected(scores: Any) -> None:
    with raises(DataError, parameter="scores", value=scores.shape):
        fitted().model_.inverse_transform(scores)


def test_a_block_without_rows_has_no_scores() -> None:
    assert fitted().model_.transform(np.empty((0, 5))).shape == (0, 2)


def test_a_loaded_model_converts_to_scikit_learn(tmp_path: Path) -> None:
    """The model becomes a PCA, or a pipeline if columns are scaled."""
    fitted(whiten=True).model_.save(tmp_path / "plain.npz")
    theirs = PCA(2, svd_solver="full", whiten=True).fit(ROWS)
    close(load(tmp_path / "plain.npz").to_sklearn().transform(ROWS), theirs.transform(ROWS), atol=1e-8)
    fitted(scale=True).model_.save(tmp_path / "scaled.npz")
    scaled = load(tmp_path / "scaled.npz")
    close(scaled.to_sklearn_pipeline().transform(ROWS), scaled.transform(ROWS), atol=1e-12)
    with raises(InvalidInput, parameter="scale"):
        scaled.to_sklearn()


# ---------------------------------------------------------------------------------------------- invalid model files


def craft(
    path: Path,
    good: bytes,
    *,
    about: Callable[[dict[str, Any]], Any] = lambda about: about,
    arrays: Callable[[Arrays], Any] = lambda arrays: arrays,
) -> Path:
    """Write a modified file with a correct checksum, as a different program might."""
    from deepca.decomposition.model.layout import checksum_of

    with np.load(io.BytesIO(good), allow_pickle=False) as file:
        content = {name: file[name] for name in file.files}
    text = json.loads(str(content.pop("about")))
    content = arrays(content) or content
    text["checksum"] = "to be computed"
    changed = about(text)
    if isinstance(changed, dict) and changed.get("checksum") == "to be computed":
        del changed["checksum"]
        changed["checksum"] = checksum_of(content, changed)
    content["about"] = np.array(json.dumps(changed))
    np.savez_compressed(path, allow_pickle=False, **content)
    return path


def refused(path: Path) -> ModelError:
    """Return the ModelError that loading raises, with the file among its facts."""
    with raises(ModelError, file=str(path)) as caught:
        load(path)
    return caught.value


def test_a_file_of_a_newer_version_is_refused(good: tuple[Path, bytes, Model], tmp_path: Path) -> None:
    """The error has its own type, even if nothing else in the file can be understood."""
    newer = craft(tmp_path / "newer.npz", good[1], about=lambda about: {**about, "format": FORMAT + 1})
    with raises(NewerModelError, file=str(newer), value=FORMAT + 1):
        load(newer)
    strange = craft(
        tmp_path / "strange.npz", good[1], about=lambda about: {"kind": about["kind"], "format": 99, "checksum": None}
    )
    with raises(NewerModelError, file=str(strange), value=99):
        load(strange)
    assert issubclass(NewerModelError, ModelError)


ABOUT: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no format": lambda about: {key: value for key, value in about.items() if key != "format"},
    "format as text": lambda about: {**about, "format": "1"},
    "format None": lambda about: {**about, "format": None},
    "another kind": lambda about: {**about, "kind": "something"},
    "no kind": lambda about: {key: value for key, value in about.items() if key != "kind"},
    "a list": lambda about: [about],
    "a number": lambda about: 5,
    "null": lambda about: None,
    "no checksum": lambda about: {key: value for key, value in about.items() if key != "checksum"},
    "no status": lambda about: {key: value for key, value in about.items() if key != "status"},
    "status as text": lambda about: {**about, "status": "converged"},
    "status with more": lambda about: {**about, "status": {**about["status"], "more": 1}},
    "certificate as list": lambda about: {**about, "certificate": [1, 2]},
    "certificate empty": lambda about: {**about, "certificate": {}},
    "certificate of other components": lambda about: {
        **about,
        "certificate": {**about["certificate"], "digest": "0" * 64},
    },
    "traffic as number": lambda about: {**about, "certificate": {**about["certificate"], "traffic": 3}},
    "eigenvalues as text": lambda about: {**about, "certificate": {**about["certificate"], "eigenvalues": "abc"}},
    "rows None": lambda about: {**about, "n_samples": None},
    "rows infinite": lambda about: {**about, "n_samples": math.inf},
    "variance as list": lambda about: {**about, "total_variance": []},
    "no weight": lambda about: {key: value for key, value in about.items() if key != "weight"},
    "weight nan": lambda about: {**about, "weight": math.nan},
    "weight as text": lambda about: {**about, "weight": "60"},
    "rows as text": lambda about: {**about, "n_samples": "60"},
    "rows in parts": lambda about: {**about, "n_samples": 60.5},
    "advice as number": lambda about: {**about, "status": {**about["status"], "advice": 5}},
    "advice None": lambda about: {**about, "status": {**about["status"], "advice": None}},
    "code as list": lambda about: {**about, "status": {**about["status"], "code": ["converged"]}},
    "angle as text": lambda about: {**about, "certificate": {**about["certificate"], "angle": "x"}},
    "angle None": lambda about: {**about, "certificate": {**about["certificate"], "angle": None}},
    "angle as list": lambda about: {**about, "certificate": {**about["certificate"], "angle": [1.0, 2.0]}},
    "angle true": lambda about: {**about, "certificate": {**about["certificate"], "angle": True}},
    "digits for eigenvalues": lambda about: {**about, "certificate": {**about["certificate"], "eigenvalues": "21"}},
    "one eigenvalue": lambda about: {**about, "certificate": {**about["certificate"], "eigenvalues": [1.0]}},
    "agents in parts": lambda about: {**about, "certificate": {**about["certificate"], "n_agents": 2.5}},
    "digest as number": lambda about: {**about, "certificate": {**about["certificate"], "digest": 7}},
    "traffic as text": lambda about: {**about, "certificate": {**about["certificate"], "traffic": {"rounds": "x"}}},
    "more in the certificate": lambda about: {**about, "certificate": {**about["certificate"], "note": 1.0}},
    "how it was made as list": lambda about: {**about, "about": []},
}


@pytest.mark.parametrize("name", ABOUT)
def test_invalid_metadata_is_refused(name: str, good: tuple[Path, bytes, Model], tmp_path: Path) -> None:
    """The checksum is correct; the error names the file and is never a KeyError."""
    refused(craft(tmp_path / "crafted.npz", good[1], about=ABOUT[name]))


ARRAYS: dict[str, Callable[[Arrays], Any]] = {
    "components with one axis": lambda arrays: {**arrays, "components": arrays["components"][0]},
    "components as text": lambda arrays: {**arrays, "components": np.full((2, 5), "x")},
    "components complex": lambda arrays: {**arrays, "components": arrays["components"] * 1j},
    "no mean": lambda arrays: {name: array for name, array in arrays.items() if name != "mean"},
    "no components": lambda arrays: {name: array for name, array in arrays.items() if name != "components"},
    "a short mean": lambda arrays: {**arrays, "mean": arrays["mean"][:3]},
    "a short scale": lambda arrays: {**arrays, "scale": arrays["scale"][:3]},
    "too few variances": lambda arrays: {**arrays, "explained_variance": arrays["explained_variance"][:1]},
    "too few names": lambda arrays: {**arrays, "columns": arrays["columns"][:2]},
    "one name": lambda arrays: {**arrays, "columns": np.array("a")},
    "numbers for names": lambda arrays: {**arrays, "columns": np.arange(5)},
    "no rows of components": lambda arrays: {
        **arrays,
        "components": np.empty((0, 5)),
        "explained_variance": np.empty(0),
    },
}


@pytest.mark.parametrize("name", ARRAYS)
def test_invalid_arrays_are_refused(name: str, good: tuple[Path, bytes, Model], tmp_path: Path) -> None:
    """Invalid arrays are detected when the file is read, not when the model is used."""
    refused(craft(tmp_path / "crafted.npz", good[1], arrays=ARRAYS[name]))


def test_components_that_do_not_match_the_certificate_are_refused(
    good: tuple[Path, bytes, Model], tmp_path: Path
) -> None:
    """The checksum is correct, but the certificate is of other components."""
    error = refused(
        craft(tmp_path / "m.npz", good[1], arrays=lambda arrays: {**arrays, "components": arrays["components"][::-1]})
    )
    assert error.parameter == "certificate"


def test_an_array_that_does_not_match_the_checksum_is_refused(good: tuple[Path, bytes, Model], tmp_path: Path) -> None:
    with np.load(good[0], allow_pickle=False) as file:
        content = {name: file[name] for name in file.files}
    content["mean"] = content["mean"] + 1.0
    np.savez_compressed(tmp_path / "m.npz", allow_pickle=False, **content)
    assert refused(tmp_path / "m.npz").parameter is None


def test_deeply_nested_metadata_is_refused(good: tuple[Path, bytes, Model], tmp_path: Path) -> None:
    """The nesting exceeds the recursion limit of the JSON parser."""
    with np.load(good[0], allow_pickle=False) as file:
        content = {name: file[name] for name in file.files}
    content["about"] = np.array(f'{str(content["about"])[:-1]}, "z": {"[" * 100_000}{"]" * 100_000}}}')
    np.savez(tmp_path / "deep.npz", allow_pickle=False, **content)
    refused(tmp_path / "deep.npz")


def test_a_decompression_bomb_is_not_unpacked(good: tuple[Path, bytes, Model], tmp_path: Path) -> None:
    """800 kB would unpack to 800 MB; a member that is listed repeatedly counts each time."""
    path = craft(tmp_path / "m.npz", good[1], arrays=lambda arrays: {**arrays, "zeros": np.zeros(100_000_000)})
    assert path.stat().st_size < 1_000_000
    tracemalloc.start()
    error = refused(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("components.npy", bytes(100_000))
        file.filelist *= 1000
    refused(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(error.value, int)
    assert error.value > 800_000_000
    assert peak < 20_000_000


def test_compressed_files_of_earlier_versions_are_read(good: tuple[Path, bytes, Model], tmp_path: Path) -> None:
    """Such files were written by numpy, some in Fortran order; in format 1, certificates lack ``parts``."""
    with np.load(good[0], allow_pickle=False) as file:
        content = {name: file[name] for name in file.files}
    np.savez_compressed(tmp_path / "packed.npz", **{**content, "components": np.asfortranarray(content["components"])})
    assert_same(load(tmp_path / "packed.npz"), good[2])

    def first(about: dict[str, Any]) -> dict[str, Any]:
        del about["certificate"]["parts"]
        return {**about, "format": 1}

    assert_same(load(craft(tmp_path / "first.npz", good[1], about=first)), good[2])


OTHER: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("components,mean\n1,2\n"),
    "zeros": lambda path: path.write_bytes(bytes(1000)),
    "an empty zip": lambda path: path.write_bytes(b"PK\x05\x06" + bytes(18)),
    "a zip of something else": lambda path: _zipped(path),
    "a bare npy": lambda path: _saved(path, np.eye(3)),
    "a bare npy of objects": lambda path: _saved(path, np.array([{}, None], dtype=object)),
    "a pickle": lambda path: path.write_bytes(b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00}\x94."),
    "another npz": lambda path: _zipped_arrays(path, {"X": np.eye(3)}),
    "an npz with pickled objects": lambda path: _zipped_arrays(path, {"about": np.array({"kind": 1}, dtype=object)}),
    "an npz of another about": lambda path: _zipped_arrays(path, {"about": np.array("{not json")}),
    "an npz with numbers for words": lambda path: _zipped_arrays(path, {"about": np.arange(3)}),
}


def _zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("readme.txt", "hello")


def _saved(path: Path, array: np.ndarray[Any, Any]) -> None:
    with path.open("wb") as file:
        np.save(file, array, allow_pickle=True)


def _zipped_arrays(path: Path, arrays: Arrays) -> None:
    with path.open("wb") as file:
        np.savez(file, allow_pickle=True, **arrays)


@pytest.mark.parametrize("name", OTHER)
def test_other_files_are_refused(name: str, damaged: Path) -> None:
    OTHER[name](damaged)
    refused(damaged)


def test_missing_files_and_directories_are_refused(tmp_path: Path) -> None:
    assert isinstance(refused(tmp_path / "none.npz").__context__, FileNotFoundError)
    assert isinstance(refused(tmp_path / "nowhere" / "none.npz").__context__, FileNotFoundError)
    assert isinstance(refused(tmp_path).__context__, IsADirectoryError)
    (tmp_path / "file").write_text("x")
    refused(tmp_path / "file" / "below.npz")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_read_permission_is_refused(good: tuple[Path, bytes, Model], tmp_path: Path) -> None:
    path = tmp_path / "secret.npz"
    path.write_bytes(good[1])
    path.chmod(0)
    assert isinstance(refused(path).__context__, PermissionError)


# ---------------------------------------------------------------------------------------------------------- damage


def outcome(path: Path, content: bytes, model: Model) -> str:
    """Load a file with this content; return "refused", "the same", or what went wrong."""
    path.write_bytes(content)
    try:
        found = load(path)
    except ModelError as error:
        return "refused" if error.file == str(path) else f"ModelError without the file: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    try:
        assert_same(model, found)
    except AssertionError:
        return "another model"
    return "the same"


def test_a_truncated_file_is_refused(good: tuple[Path, bytes, Model], damaged: Path) -> None:
    """Truncated files of any length are refused."""
    _, content, model = good
    lengths = sorted({*range(0, len(content), 7), *range(64), *range(len(content) - 64, len(content))})
    assert {outcome(damaged, content[:length], model) for length in lengths} == {"refused"}


def test_trailing_bytes_are_ignored_or_refused(good: tuple[Path, bytes, Model], damaged: Path) -> None:
    _, content, model = good
    for more in (b"\0", b"x" * 100, content):
        assert outcome(damaged, content + more, model) in ("refused", "the same")


def test_a_flipped_bit_never_changes_the_model(good: tuple[Path, bytes, Model], damaged: Path) -> None:
    """For one bit of every byte, and all bits of a directory entry, the file is refused or the model is the same."""
    _, content, model = good
    directory = content.index(b"PK\x01\x02")
    places = {(i, i % 8) for i in range(len(content))} | {
        (i, bit) for i in range(directory, directory + 60) for bit in range(8)
    }
    seen: dict[str, tuple[int, int]] = {}
    for i, bit in sorted(places):
        changed = bytearray(content)
        changed[i] ^= 1 << bit
        seen.setdefault(outcome(damaged, bytes(changed), model), (i, bit))
    assert set(seen) <= {"refused", "the same"}, seen


@settings(max_examples=2 * settings().max_examples, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.floats(0.0, 1.0, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6))
def test_overwritten_bytes_never_change_the_model(
    good: tuple[Path, bytes, Model], damaged: Path, changes: list[tuple[float, int]]
) -> None:
    """A few bytes anywhere in the file are overwritten."""
    _, content, model = good
    changed = bytearray(content)
    for where, value in changes:
        changed[int(where * len(content))] = value
    assert outcome(damaged, bytes(changed), model) in ("refused", "the same")


@pytest.mark.parametrize("length", [0, 30, 500, 2000])
def test_a_damaged_file_is_closed(length: int, good: tuple[Path, bytes, Model], tmp_path: Path) -> None:
    """The garbage collector would warn about an open file."""
    path = tmp_path / "short.npz"
    path.write_bytes(good[1][:length])
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with pytest.raises(ModelError):
            load(path)
        gc.collect()
    assert not [warning for warning in heard if issubclass(warning.category, ResourceWarning)]


def test_certificates_are_restored_exactly(tmp_path: Path) -> None:
    """Texts and numbers, including infinite ones, are the same."""
    for name in ("plain", "infinities"):
        model = MODELS[name]()
        model.save(tmp_path / "model.npz")
        again = load(tmp_path / "model.npz")
        assert again.certificate is not None
        assert model.certificate is not None
        assert str(again.certificate) == str(model.certificate)
        assert asdict(again.certificate) == asdict(model.certificate)
        assert again.certificate.proves(1e-10) == (name == "plain")
        assert again.certificate.worst_angle == model.certificate.worst_angle


def test_documented_names_exist() -> None:
    assert deepca.load is load
    assert deepca.Model is Model
