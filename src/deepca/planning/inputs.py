"""Inputs of a plan: times and speeds with units, and a spectrum that is given, probed or assumed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deepca._util.machine import available_memory
from deepca._util.typing import Array
from deepca._util.validation import Integer, check
from deepca.data.moments import moments
from deepca.data.sources import Source
from deepca.errors import DataError, GapError, InvalidInput, ParameterError

__all__ = [
    "MAX_DIM",
    "MAX_ROWS_PER_AGENT",
    "ROWS_PER_AGENT",
    "bits_per_second",
    "probed_eigenvalues",
    "read_eigenvalues",
    "seconds",
    "spectrum_of",
]

MAX_DIM, MAX_ROWS_PER_AGENT = 10**7, 10**12
"""Maximum number of columns, and of rows per agent, of expected data; far more than fits into memory."""
ROWS_PER_AGENT = 1000
"""Default number of rows of an agent."""
_NUMBER = r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)"
_SMALLEST_GAP = 1e-9  # smallest gap, relative to λ_1, at which rounding turns components by at most a millionth


def seconds(text: str) -> float:
    """Parse a time with a unit.

    Parameters
    ----------
    text : str
        A time such as ``"30ms"``, ``"0.03s"`` or ``"500us"``.

    Returns
    -------
    float
        Seconds.

    Raises
    ------
    ParameterError
        If the text is not a number with a unit of time.

    Examples
    --------
    >>> seconds("30ms")
    0.03
    """
    units = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}
    found = re.fullmatch(rf"\s*{_NUMBER}\s*([a-zµμ]+)\s*", text)
    if found is None or found[2] not in units:
        raise ParameterError("latency", text, "give a number with its unit, such as 30ms, 0.03s or 500us")
    return float(found[1]) * units[found[2]]


def bits_per_second(text: str) -> float:
    """Parse a bandwidth with a unit.

    Parameters
    ----------
    text : str
        A bandwidth such as ``"30Mbit"``, ``"1Gbit/s"`` or ``"30Mbps"``, or ``"2MB"`` for bytes per second.

    Returns
    -------
    float
        Bits per second.

    Raises
    ------
    ParameterError
        If the text is not a positive number with a unit of bandwidth.

    Examples
    --------
    >>> bits_per_second("2MB")
    16000000.0
    """
    found = re.fullmatch(rf"\s*{_NUMBER}\s*([kKMGT]?)(bit/s|bits/s|bit|bps|B/s|B)\s*", text)
    if found is None or float(found[1]) <= 0.0:
        raise ParameterError(
            "bandwidth", text, "give a number with its unit, such as 30Mbit or 1Gbit/s, or 2MB for bytes per second"
        )
    prefix = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[found[2]]
    return float(found[1]) * prefix * (8.0 if found[3].startswith("B") else 1.0)


def read_eigenvalues(path: str | Path) -> Array:
    """Read eigenvalues from a file.

    Parameters
    ----------
    path : path-like
        An ``.npy`` file, or text with one number per line or separated by commas; ``#`` starts a comment.

    Returns
    -------
    array
        The numbers, in the order of the file.

    Raises
    ------
    DataError
        If the file contains anything other than real numbers.
    """
    file = Path(path)
    found = _read_array(file) if file.suffix == ".npy" else _read_numbers(file)
    if found.dtype.kind not in "fiu":
        raise DataError(f"{file} contains {found.dtype} values; give real numbers", file=str(file), value=found.dtype)
    return np.asarray(found, dtype=np.float64).ravel()


def _read_array(file: Path) -> npt.NDArray[Any]:
    """Read an .npy file; raise DataError if it is damaged or needs pickle."""
    try:
        return np.asarray(np.load(file, allow_pickle=False))
    except (ValueError, EOFError):  # numpy suggests pickle, which could execute code
        raise DataError(
            f"{file} is damaged or not an .npy file of numbers; save the array again with numpy.save", file=str(file)
        ) from None


def _read_numbers(file: Path) -> Array:
    """Read numbers from a text file; raise DataError, with the line, for anything else."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise DataError(f"{file} is not UTF-8 text; save it as UTF-8 text or as .npy", file=str(file)) from None
    found = []
    for number, line in enumerate(lines, 1):
        for word in filter(None, re.split(r"[\s,;]+", line.split("#")[0])):
            try:
                found.append(float(word))
            except ValueError:
                raise DataError(
                    f"{file}, line {number}: {word[:40]!r} is not a number; give one number per line, or separate "
                    "numbers by commas",
                    file=str(file),
                    line=number,
                    value=word,
                ) from None
    return np.array(found)


def probed_eigenvalues(source: Source, *, scale: bool = False) -> tuple[Array, int]:
    """Compute all eigenvalues of the covariance of a sample of rows.

    Parameters
    ----------
    source : Source
        The rows.
    scale : bool, default=False
        Whether to divide columns by their standard deviations first.

    Returns
    -------
    eigenvalues : array of shape (d,)
        Eigenvalues, descending.
    n : int
        Number of rows.

    Raises
    ------
    DataError
        If the rows cannot be used, there are fewer than two, or too many columns for the memory.
    """
    if source.d * source.d * 32 > available_memory():
        raise DataError(
            f"{source.name}: {source.d:,} columns are too many to compute all eigenvalues in memory; give the largest "
            "ones as a list of numbers",
            value=source.d,
        )
    sample = moments(source)
    if sample.scatter is None or sample.n < 2:
        raise DataError(f"{source.name} has {sample.n} rows; give at least two to compute eigenvalues", value=sample.n)
    S = sample.scatter / (sample.weight - 1.0)
    if scale:
        units = np.sqrt(np.diagonal(S))
        units = np.where(units > 0.0, units, 1.0)
        S = S / np.outer(units, units)
    return np.asarray(np.maximum(np.linalg.eigvalsh(S)[::-1], 0.0)), sample.n


def spectrum_of(given: npt.ArrayLike | None, dim: int | None, k: int, name: str | None = None) -> tuple[Array, str]:
    """Return all d eigenvalues, descending and divided by the largest, and a description of their origin.

    Parameters
    ----------
    given : array_like or None
        Eigenvalues, at least k + 1; None for 1/i.
    dim : int or None
        Number of columns d; None for the number of eigenvalues given.
    k : int
        Number of components.
    name : str, optional
        Description of the origin of ``given``.

    Returns
    -------
    eigenvalues : ndarray of shape (d,)
        The eigenvalues that were given, continued geometrically if there are fewer than d.
    source : str
        Description of their origin.

    Raises
    ------
    ParameterError
        If d is unknown, or k is not less than d.
    InvalidInput
        If the eigenvalues are not those of a covariance of d columns, or do not determine the gap.
    GapError
        If λ_k and λ_{k+1} are too close.
    """
    check("n_components", k, Integer(1))
    values, source = _given_or_assumed(given, dim, name)
    d = values.size if dim is None else int(dim)
    _check_eigenvalues(values, d, k)
    values = np.maximum(values, 0.0)
    _check_gap(values, k)
    if values.size < d:
        source += f", {d - values.size:,} more continued geometrically"
        values = np.concatenate([values, _continued(values, d - values.size)])
    return values / values[0], source


def _given_or_assumed(given: npt.ArrayLike | None, dim: int | None, name: str | None) -> tuple[Array, str]:
    """Return the given eigenvalues in descending order, or 1/i if there are none, and a description of their origin.

    Raises ParameterError if neither the eigenvalues nor ``dim`` is given.
    """
    if given is not None:
        values = np.sort(_floats(given).ravel())[::-1]
        return values, name or f"{values.size:,} eigenvalues as given"
    if dim is None:
        raise ParameterError("dim", None, "the number of columns is unknown; give dim, or the eigenvalues")
    return 1.0 / np.arange(1.0, max(dim, 0) + 1.0), "λ_i = 1/i (assumed)"


def _check_eigenvalues(values: Array, d: int, k: int) -> None:
    """Raise InvalidInput unless these can be the first, more than k, eigenvalues of a covariance of d columns."""
    if d < 2 or k >= d:
        raise ParameterError("n_components", k, f"give fewer components than columns (d = {d}), and at least 2 columns")
    if not (np.isfinite(values).all() and values.size and values[0] > 0.0):
        raise InvalidInput(
            "some eigenvalues are not finite, or none is positive; give finite eigenvalues, at least one above 0",
            parameter="eigenvalues",
        )
    if values[-1] < -1e-9 * values[0]:
        raise InvalidInput(
            f"the eigenvalue {values[-1]:g} is negative, but a covariance has none below 0; omit it",
            parameter="eigenvalues",
            value=float(values[-1]),
        )
    if values.size > d:
        raise InvalidInput(
            f"got {values.size} eigenvalues for {d} columns; omit dim, or give fewer eigenvalues",
            parameter="eigenvalues",
            value=values.size,
        )
    if values.size <= k:
        raise InvalidInput(
            f"got {values.size} of the largest eigenvalues, which do not determine the gap after λ_{k}; give at least "
            f"{k + 1}",
            parameter="eigenvalues",
            value=values.size,
        )


def _check_gap(values: Array, k: int) -> None:
    """Raise GapError if λ_k and λ_{k+1} are too close."""
    if values[k - 1] - values[k] <= _SMALLEST_GAP * values[0]:
        apart = "are equal" if values[k - 1] == values[k] else "differ too little for double precision"
        raise GapError(
            f"λ_{k} = {values[k - 1]:.9g} and λ_{k + 1} = {values[k]:.9g} {apart} (λ_1 = {values[0]:.3g}), so the top "
            f"{k} components are not unique, and no method can find them; choose another k",
            parameter="n_components",
            value=k,
        )


def _floats(given: npt.ArrayLike) -> Array:
    """Return eigenvalues as floats; raise InvalidInput unless they are numbers that floats can represent."""
    try:
        return np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(
            f"the eigenvalues cannot be converted to float64 ({error}); give numbers of at most 1e300",
            parameter="eigenvalues",
        ) from None


def _continued(values: Array, count: int) -> Array:
    """Extrapolate ``count`` further eigenvalues, which decay at the mean rate of the second half of those given."""
    half = (values.size - 1) // 2
    ratio = (values[-1] / values[half]) ** (1.0 / (values.size - 1 - half)) if values[half] > 0.0 else 0.0
    return np.asarray(values[-1] * ratio ** np.arange(1.0, count + 1.0))
