"""The file of a model: read, checked, and refused where it is damaged or of another kind."""

from __future__ import annotations

import io
import json
import math
import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from deepca.decomposition.model.layout import FORMAT, MAGIC, checksum_of
from deepca.decomposition.model.model import Model
from deepca.errors import ModelError, NewerModelError
from deepca.network.traffic import Traffic
from deepca.solver.certificate.bounds import Certificate
from deepca.solver.certificate.certification import digest_of
from deepca.solver.result import Status, StatusCode

__all__ = ["from_bytes", "load"]

T_ = TypeVar("T_")


_ROOM, _PACKED = 1 << 26, 200  # what packed files, as they were written before, unpack to: bytes, or times their size


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


def _from_arrays(path: Path, arrays: dict[str, npt.NDArray[Any]]) -> Model:
    try:
        about = json.loads(str(arrays.pop("about")))
        ours = about["kind"] == MAGIC
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
        if told != checksum_of(arrays, about) or not _fit(arrays):
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
    return Status(StatusCode(told["code"]), told["advice"])


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


def _of(kind: type[T_], value: Any) -> T_:
    if type(value) is not kind:
        raise TypeError
    return value


def _whole(value: Any) -> int:
    return _of(int, value)


def _number(value: Any) -> float:
    """As :func:`plain_value` writes them: infinities and nan are text."""
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
