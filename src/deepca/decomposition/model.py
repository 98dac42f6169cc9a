"""A fitted PCA as plain arrays: what is shared, stored and applied. Needs numpy alone.

The file is an ``.npz`` without pickle::

    np.load(path)["components"]          # (k, d) float64 or float32
    np.load(path)["mean"]                # (d,)
    np.load(path)["explained_variance"]  # (k,)
    np.load(path)["scale"]               # (d,), only where columns were scaled
    np.load(path)["columns"]             # (d,) text, only where columns have names
    json.loads(str(np.load(path)["about"]))   # everything else: format, counts, certificate, how it was made

The same model is the same bytes, whatever versions of Python, numpy and zlib write it: arrays are stored as they are,
row by row and little endian, in a fixed order, and nothing else is in the file.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import sparse

from deepca._util.files import write_whole
from deepca._util.masked import unmasked
from deepca._util.typing import Array
from deepca.errors import DataError, InvalidInput, ModelError, NewerModelError
from deepca.network.base import Traffic
from deepca.solver.certificate import Certificate, digest_of
from deepca.solver.result import Status

if TYPE_CHECKING:
    from sklearn.decomposition import PCA
    from sklearn.pipeline import Pipeline

__all__ = ["FORMAT", "Model", "from_bytes", "load"]

T_ = TypeVar("T_")
FORMAT = 2
"""Of the file: raised when an older reader could no longer make sense of it."""
_MAGIC = "deepca-model"
_ROOM, _PACKED = 1 << 26, 200  # what packed files, as they were written before, unpack to: bytes, or times their size


@dataclass(frozen=True, eq=False)
class Model:
    """A fitted PCA.

    components : ``(k, d)`` orthonormal rows.  explained_variance : ``(k,)``, ddof 1.  total_variance : of all columns.
    mean : ``(d,)``.  scale : ``(d,)`` that columns are divided by after centring, or None.
    n_samples : rows of all agents, counted by weight.  weight : their weights together.  columns : names, or None.
    whiten : whether scores are divided by their standard deviation.
    status, certificate : how the run ended, and what is proven.  about : how the model was made (free-form, JSON).
    """

    components: npt.NDArray[Any]
    explained_variance: npt.NDArray[Any]
    total_variance: float
    mean: npt.NDArray[Any]
    scale: npt.NDArray[Any] | None
    n_samples: int
    weight: float
    columns: tuple[str, ...] | None
    whiten: bool
    status: Status
    certificate: Certificate | None
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n_components(self) -> int:
        return int(self.components.shape[0])

    @property
    def n_features(self) -> int:
        return int(self.components.shape[1])

    @property
    def n_known(self) -> int:
        """How many of the components are known; the variances of the others are bounds, lost in rounding.

        All of them unless the status is "below_rounding", or "rank_deficient" to the rounding of the rows only.
        """
        proof = self.certificate
        if proof is not None and self.status.code == "below_rounding":
            return proof.known()
        if proof is not None and self.status.code == "rank_deficient" and proof.bound > 0.0:
            return sum(map(math.isfinite, proof.parts)) if proof.parts else int(np.count_nonzero(proof.eigenvalues))
        return self.n_components

    @property
    def explained_variance_ratio(self) -> npt.NDArray[Any]:
        """Share of the total variance, by component."""
        return np.asarray(self.explained_variance / self.total_variance, dtype=self.dtype)

    @property
    def singular_values(self) -> npt.NDArray[Any]:
        """Of the centred rows."""
        variance = self.explained_variance.astype(np.float64)  # times the weight it may not fit into float32
        return np.asarray(np.sqrt(variance * (self.weight - 1.0)), dtype=self.dtype)

    @property
    def noise_variance(self) -> float:
        """Mean variance in the directions left out (probabilistic PCA); 0 where none are."""
        left = min(self.n_samples, self.n_features) - self.n_components
        rest = self.total_variance - float(self.explained_variance.sum(dtype=np.float64))
        return max(rest, 0.0) / left if left > 0 else 0.0

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.components.dtype

    # ------------------------------------------------------------------------------------------------------ applying

    def transform(self, X: Any) -> npt.NDArray[Any]:
        """Scores ``(rows, k)`` of rows, dense or sparse, in the order of the model's columns. float32 stays float32."""
        rows: Any = X if sparse.issparse(X) else np.asarray(unmasked(X, "X"))
        if rows.ndim != 2 or rows.shape[1] != self.n_features:
            raise DataError(f"rows have shape {tuple(rows.shape)}; the model has {self.n_features} columns")
        dtype = np.float32 if rows.dtype == np.float32 and self.dtype == np.float32 else np.float64
        axes, mean = self.components.astype(np.float64), self.mean.astype(np.float64)
        if self.scale is not None:
            axes = axes / self.scale
        if self.whiten:
            axes = axes / self._deviations()[:, None]
        if isinstance(rows, np.ndarray):
            return np.asarray(np.subtract(rows, mean, dtype=np.float64) @ axes.T, dtype=dtype)
        return np.asarray(rows @ axes.T - mean @ axes.T, dtype=dtype)

    def inverse_transform(self, scores: npt.ArrayLike) -> npt.NDArray[Any]:
        """The rows that the scores stand for: the projection onto the components, in the units of the data."""
        Z = np.asarray(unmasked(scores, "scores"))
        if Z.ndim != 2 or Z.shape[1] != self.n_components:
            raise DataError(f"scores have shape {Z.shape}; the model has {self.n_components} components")
        dtype = np.float32 if Z.dtype == np.float32 and self.dtype == np.float32 else np.float64
        axes = self.components.astype(np.float64)
        if self.whiten:
            axes = axes * self._deviations()[:, None]
        rows = Z.astype(np.float64) @ axes
        if self.scale is not None:
            rows *= self.scale
        return np.asarray(rows + self.mean, dtype=dtype)

    def _deviations(self) -> Array:
        """Standard deviations of the scores; one that is zero but for rounding is not divided by."""
        deviations = np.sqrt(self.explained_variance.astype(np.float64))
        return np.maximum(deviations, np.finfo(self.dtype).eps)

    # ---------------------------------------------------------------------------------------------------- elsewhere

    def to_sklearn(self) -> PCA:
        """A fitted ``sklearn.decomposition.PCA`` that gives the same scores."""
        if self.scale is not None:
            raise InvalidInput(
                "a scikit-learn PCA alone cannot scale columns; to_sklearn_pipeline() gives StandardScaler and PCA"
            )
        return self._pca(self.mean)

    def to_sklearn_pipeline(self) -> Pipeline:
        """A fitted scikit-learn Pipeline: StandardScaler where columns are scaled, and PCA."""
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        if self.scale is None:
            return make_pipeline(self._pca(self.mean))
        scaler = StandardScaler()
        scaler.mean_, scaler.scale_, scaler.var_ = self.mean, self.scale, np.square(self.scale)
        scaler.n_samples_seen_, scaler.n_features_in_ = self.n_samples, self.n_features
        if self.columns is not None:
            scaler.feature_names_in_ = np.array(self.columns, dtype=object)
        return make_pipeline(scaler, self._pca(np.zeros_like(self.mean), named=False))

    def _pca(self, mean: npt.NDArray[Any], *, named: bool = True) -> PCA:
        from sklearn.decomposition import PCA

        pca = PCA(n_components=self.n_components, whiten=self.whiten)
        pca.components_, pca.mean_ = self.components.copy(), mean.copy()
        pca.explained_variance_ = self.explained_variance.copy()
        pca.explained_variance_ratio_, pca.singular_values_ = self.explained_variance_ratio, self.singular_values
        pca.noise_variance_ = self.dtype.type(self.noise_variance)
        pca.n_components_, pca.n_samples_, pca.n_features_in_ = self.n_components, self.n_samples, self.n_features
        pca._fit_svd_solver = "full"
        if named and self.columns is not None:
            pca.feature_names_in_ = np.array(self.columns, dtype=object)
        return pca

    # --------------------------------------------------------------------------------------------------------- file

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model, whole or not at all."""
        write_whole(Path(path), self.to_bytes())

    def to_bytes(self) -> bytes:
        """The content of the model's file."""
        arrays: dict[str, npt.NDArray[Any]] = {
            "components": self.components,
            "explained_variance": self.explained_variance,
            "mean": self.mean,
        }
        if self.scale is not None:
            arrays["scale"] = self.scale
        if self.columns is not None:
            arrays["columns"] = np.array(self.columns, dtype=np.str_)
        about = self.description()
        about["checksum"] = _checksum(arrays, about)
        arrays["about"] = np.array(json.dumps(about, ensure_ascii=False, allow_nan=False))
        return _stored(arrays)

    def description(self) -> dict[str, Any]:
        """Everything in the file but the arrays and the checksum, as plain data."""
        return {
            "kind": _MAGIC,
            "format": FORMAT,
            "n_samples": self.n_samples,
            "weight": self.weight,
            "total_variance": self.total_variance,
            "whiten": self.whiten,
            "status": {"code": self.status.code, "advice": self.status.advice},
            "certificate": None if self.certificate is None else _plain(asdict(self.certificate)),
            "about": _plain(dict(self.about)),
        }


def load(path: str | os.PathLike[str]) -> Model:
    """The model in a file; a :class:`~deepca.errors.ModelError` says what is wrong with one that cannot be used."""
    path = Path(path)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise ModelError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise ModelError(f"{path} is a folder; a model is a file") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    return from_bytes(content, path)


def from_bytes(content: bytes, path: Path) -> Model:
    """The model whose file has that content; messages name ``path``."""
    if not content.startswith(b"PK"):
        raise ModelError(f"{path} is no model file, or its beginning is lost; give an .npz that deepca has written")
    most = max(_ROOM, _PACKED * len(content))
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            size = sum(one.file_size for one in packed.infolist())  # no more than that is read of each
        if size <= most:
            with np.load(io.BytesIO(content), allow_pickle=False) as file:
                arrays = {name: np.asarray(file[name]) for name in file.files}
    except Exception:  # damaged bytes make numpy, zipfile and zlib raise almost anything
        raise ModelError(f"{path} is damaged; fetch another copy, or make it anew") from None
    if size > most:
        raise ModelError(
            f"{path} has {len(content):,} bytes and unpacks to {size:,}, as no model does; do not trust this file"
        )
    return _from_arrays(path, arrays)


def _stored(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """An ``.npz`` file, written here to the last byte, since numpy's and zlib's depend on their versions."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as file:
        for name, array in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy")  # of 1980: no time, and no trace of the system
            member.create_system, member.external_attr = 3, 0o600 << 16
            file.writestr(member, _npy(array))
    return content.getvalue()


def _npy(array: npt.NDArray[Any]) -> bytes:
    little = np.array(array, dtype=array.dtype.newbyteorder("<"), order="C")
    header = f"{{'descr': {little.dtype.str!r}, 'fortran_order': False, 'shape': {little.shape!r}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"  # data begin at a multiple of 64 bytes
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + little.tobytes()


def _from_arrays(path: Path, arrays: dict[str, npt.NDArray[Any]]) -> Model:
    try:
        about = json.loads(str(arrays.pop("about")))
        ours = about["kind"] == _MAGIC
    except (KeyError, TypeError, ValueError, RecursionError):
        ours = False
    if not ours:
        raise ModelError(f"{path} is an .npz file, but no model that deepca has written")
    damaged = ModelError(f"{path} is damaged: what it holds does not fit together; fetch another copy")
    if type(about.get("format")) is not int or about["format"] < 1:
        raise damaged
    if about["format"] > FORMAT:
        raise NewerModelError(
            f"{path} was written by a newer deepca (model format {about['format']}; this one reads up to {FORMAT}); "
            "upgrade deepca here, or save the model with the older version"
        )
    told = about.pop("checksum", None)
    try:
        if told != _checksum(arrays, about) or not _fit(arrays):
            raise damaged
        model = Model(
            components=arrays["components"],
            explained_variance=arrays["explained_variance"],
            total_variance=_number(about["total_variance"]),
            mean=arrays["mean"],
            scale=arrays.get("scale"),
            n_samples=_whole(about["n_samples"]),
            weight=_number(about["weight"]),
            columns=tuple(map(str, arrays["columns"])) if "columns" in arrays else None,
            whiten=bool(about["whiten"]),
            status=_status(_of(dict, about["status"])),
            certificate=None if about["certificate"] is None else _certificate(_of(dict, about["certificate"])),
            about=_of(dict, about["about"]),
        )
        fits = _fits(model)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, IndexError, RecursionError):
        raise damaged from None
    if not fits:
        raise damaged
    proof = model.certificate
    if proof is not None and model.dtype == np.float64 and proof.digest != digest_of(model.components.T):
        raise ModelError(f"{path}: the certificate in it speaks of other components; do not trust this file")
    return model


def _status(told: Mapping[str, Any]) -> Status:
    if set(told) != {"code", "advice"} or not all(type(value) is str for value in told.values()):
        raise ValueError
    return Status(told["code"], told["advice"])


def _fit(arrays: Mapping[str, npt.NDArray[Any]]) -> bool:
    """Whether the arrays are finite numbers, and names, and belong together."""
    k, d = arrays["components"].shape
    numbers = [(arrays["components"], (k, d)), (arrays["explained_variance"], (k,)), (arrays["mean"], (d,))]
    if "scale" in arrays:
        numbers.append((arrays["scale"], (d,)))
    return (
        k >= 1
        and all(array.shape == shape and array.dtype in (np.float32, np.float64) for array, shape in numbers)
        and all(np.isfinite(array).all() for array, _ in numbers)
        and ("columns" not in arrays or (arrays["columns"].shape == (d,) and arrays["columns"].dtype.kind == "U"))
    )


def _fits(model: Model) -> bool:
    """Whether the numbers can be those of a model."""
    return (
        (model.scale is None or bool((model.scale > 0.0).all()))
        and bool((model.explained_variance >= 0.0).all())
        and 0.0 < model.total_variance < math.inf
        and 0.0 < model.weight < math.inf
        and model.n_samples >= 1
        and (model.certificate is None or model.certificate.k == model.n_components)
    )


def _checksum(arrays: Mapping[str, npt.NDArray[Any]], about: Mapping[str, Any]) -> str:
    """SHA-256 over names, types, shapes and contents, and over everything else."""
    total = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        total.update(f"{name} {little.dtype.str} {little.shape}\n".encode())
        total.update(little.tobytes())
    return total.hexdigest()


def _plain(value: Any) -> Any:
    """For JSON, which knows no infinity: such numbers become text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value.item() if isinstance(value, np.generic) else value


def _of(kind: type[T_], value: Any) -> T_:
    if type(value) is not kind:
        raise TypeError
    return value


def _whole(value: Any) -> int:
    return _of(int, value)


def _number(value: Any) -> float:
    """As :func:`_plain` writes them: infinities and nan are text."""
    return float(value) if value in ("inf", "-inf", "nan") or type(value) is int else _of(float, value)


_READ: dict[str, Callable[[Any], Any]] = {
    "float": _number,
    "int": _whole,
    "int | None": lambda value: None if value is None else _whole(value),
    "str": lambda value: _of(str, value),
    "tuple[float, ...]": lambda value: tuple(map(_number, _of(list, value))),
    "Traffic": lambda value: Traffic(**{name: _whole(count) for name, count in _of(dict, value).items()}),
}


def _certificate(given: Mapping[str, Any]) -> Certificate:
    given = {"parts": [], **given}  # format 1 has none
    kinds = {one.name: str(one.type) for one in fields(Certificate)}
    return Certificate(**{name: _READ[kinds[name]](value) for name, value in given.items()})
