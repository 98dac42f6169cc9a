"""Read and check model files."""

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


# Earlier versions wrote compressed files. A file that exceeds both limits when unpacked is refused as a decompression
# bomb.
_MAX_UNPACKED_BYTES = 1 << 26
_MAX_COMPRESSION_RATIO = 200


def load(path: str | os.PathLike[str]) -> Model:
    """Load a model from a file.

    Parameters
    ----------
    path : path-like
        File written by :meth:`Model.save`.

    Returns
    -------
    Model
        The model.

    Raises
    ------
    ModelError
        If the file cannot be read, is damaged, or is not a model file; its attribute ``file`` is the path.
    NewerModelError
        If a newer version of deepca wrote the file.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise ModelError(f"{path}: file not found; check the path", file=str(path)) from None
    except IsADirectoryError:
        raise ModelError(f"{path}: this is a folder; give a model file", file=str(path)) from None
    except OSError as error:
        raise ModelError(
            f"{path} cannot be read: {error.strerror}; check its permissions and the disk", file=str(path)
        ) from None
    return from_bytes(content, path)


def from_bytes(content: bytes, path: Path) -> Model:
    """Load a model from the content of a file.

    Parameters
    ----------
    content : bytes
        The content, as returned by :meth:`Model.to_bytes`.
    path : Path
        Name of the file, for error messages.

    Returns
    -------
    Model
        The model.

    Raises
    ------
    ModelError
        If the content is damaged, or not that of a model file.
    NewerModelError
        If a newer version of deepca wrote the content.
    """
    if not content.startswith(b"PK"):
        raise ModelError(
            f"{path} is not a model file, or its beginning is missing; give an .npz file written by deepca",
            file=str(path),
        )
    most = max(_MAX_UNPACKED_BYTES, _MAX_COMPRESSION_RATIO * len(content))
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            size = sum(one.file_size for one in packed.infolist())  # numpy reads no more than these sizes
        if size <= most:
            with np.load(io.BytesIO(content), allow_pickle=False) as file:
                arrays = {name: np.asarray(file[name]) for name in file.files}
    except Exception:  # numpy, zipfile and zlib raise all kinds of errors for damaged bytes
        raise ModelError(f"{path} is damaged; get another copy, or fit the model again", file=str(path)) from None
    if size > most:
        raise ModelError(
            f"{path} has {len(content):,} bytes but unpacks to {size:,}, unlike any model; do not trust this file",
            file=str(path),
            value=size,
        )
    return _from_arrays(path, arrays)


def _from_arrays(path: Path, arrays: dict[str, npt.NDArray[Any]]) -> Model:
    """Check the arrays of a model file and return the model."""
    try:
        about = json.loads(str(arrays.pop("about")))
        ours = about["kind"] == MAGIC
    except (KeyError, TypeError, ValueError, RecursionError):
        ours = False
    if not ours:
        raise ModelError(f"{path} is not a model file; give an .npz file written by deepca", file=str(path))
    damaged = ModelError(
        f"{path} is damaged: its parts are inconsistent; get another copy, or fit the model again", file=str(path)
    )
    if type(about.get("format")) is not int or about["format"] < 1:
        raise damaged
    if about["format"] > FORMAT:
        raise NewerModelError(
            f"{path} was written by a newer deepca (model format {about['format']}; this one reads up to {FORMAT}); "
            "upgrade deepca here, or save the model with the older version",
            file=str(path),
            value=about["format"],
        )
    checksum = about.pop("checksum", None)
    try:
        if checksum != checksum_of(arrays, about) or not _consistent_arrays(arrays):
            raise damaged
        model = Model(
            components=arrays["components"],
            explained_variance=arrays["explained_variance"],
            total_variance=_number(about["total_variance"]),
            mean=arrays["mean"],
            scale=arrays.get("scale"),
            n_samples=_integer(about["n_samples"]),
            weight=_number(about["weight"]),
            columns=tuple(map(str, arrays["columns"])) if "columns" in arrays else None,
            whiten=bool(about["whiten"]),
            status=_status(_exactly(dict, about["status"])),
            certificate=None if about["certificate"] is None else _certificate(_exactly(dict, about["certificate"])),
            about=_exactly(dict, about["about"]),
        )
        plausible = _plausible(model)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, IndexError, RecursionError):
        raise damaged from None
    if not plausible:
        raise damaged
    proof = model.certificate
    if proof is not None and model.dtype == np.float64 and proof.digest != digest_of(model.components.T):
        raise ModelError(
            f"{path} contains the certificate of other components; do not trust this file",
            file=str(path),
            parameter="certificate",
        )
    return model


def _status(stored: Mapping[str, Any]) -> Status:
    if set(stored) != {"code", "advice"} or not all(type(value) is str for value in stored.values()):
        raise ValueError
    return Status(StatusCode(stored["code"]), stored["advice"])


def _consistent_arrays(arrays: Mapping[str, npt.NDArray[Any]]) -> bool:
    """Return whether all arrays have matching shapes, and contain finite numbers or, for columns, names."""
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


def _plausible(model: Model) -> bool:
    """Return whether the numbers are in the ranges that a fit can produce."""
    return (
        (model.scale is None or bool((model.scale > 0.0).all()))
        and bool((model.explained_variance >= 0.0).all())
        and 0.0 < model.total_variance < math.inf
        and 0.0 < model.weight < math.inf
        and model.n_samples >= 1
        and (model.certificate is None or model.certificate.k == model.n_components)
    )


def _exactly(kind: type[T_], value: Any) -> T_:
    """Return the value if its type is exactly ``kind``, else raise TypeError; unlike isinstance, reject bool as int."""
    if type(value) is not kind:
        raise TypeError
    return value


def _integer(value: Any) -> int:
    return _exactly(int, value)


def _number(value: Any) -> float:
    """Return a float from JSON written by :func:`plain_value`, where infinities and nan are text."""
    return float(value) if value in ("inf", "-inf", "nan") or type(value) is int else _exactly(float, value)


_READERS: dict[str, Callable[[Any], Any]] = {
    "float": _number,
    "int": _integer,
    "int | None": lambda value: None if value is None else _integer(value),
    "str": lambda value: _exactly(str, value),
    "tuple[float, ...]": lambda value: tuple(map(_number, _exactly(list, value))),
    "Traffic": lambda value: Traffic(**{name: _integer(count) for name, count in _exactly(dict, value).items()}),
}


def _certificate(given: Mapping[str, Any]) -> Certificate:
    given = {"parts": [], **given}  # format 1 lacks this field
    kinds = {one.name: str(one.type) for one in fields(Certificate)}
    return Certificate(**{name: _READERS[kinds[name]](value) for name, value in given.items()})
