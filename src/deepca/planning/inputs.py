"""Inputs of a plan: times and speeds with units, and a spectrum that is given, probed or assumed."""

from __future__ import annotations

import re
from pathlib import Path

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

MAX_DIM, MAX_ROWS_PER_AGENT = 10**7, 10**12  # of expected data, far beyond what fits into memory
ROWS_PER_AGENT = 1000
"""Default number of rows of an agent."""
_NUMBER = r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)"
_SMALLEST_GAP = 1e-9  # relative to λ_1; with a smaller one, rounding would turn components by more than a millionth


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
        If the file does not contain real numbers.
    """
    file = Path(path)
    try:
        if file.suffix == ".npy":
            found = np.load(file, allow_pickle=False)
        else:
            lines = [line.split("#")[0] for line in file.read_text(encoding="utf-8").splitlines()]
            found = np.array([float(word) for line in lines for word in re.split(r"[\s,;]+", line) if word])
    except (ValueError, EOFError) as error:
        raise DataError(
            f"{file} is not a list of numbers ({error}); give one number per line, or an .npy file", file=str(file)
        ) from None
    if found.dtype.kind not in "fiu":
        raise DataError(f"{file} contains {found.dtype} values; give real numbers", file=str(file), value=found.dtype)
    return np.asarray(found, dtype=np.float64).ravel()


def probed_eigenvalues(source: Source, *, scale: bool = False) -> tuple[Array, int]:
    """Compute all eigenvalues of the covariance of a sample of rows.

    Parameters
    ----------
    source : Source
        The rows.
    scale : bool
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
        If there are too many columns for the memory, or fewer than two rows.
    """
    if source.d * source.d * 32 > available_memory():
        raise DataError(
            f"{source.name}: {source.d:,} columns are too many to compute all eigenvalues in memory; give the largest "
            "ones as a list of numbers",
            value=source.d,
        )
    held = moments(source)
    if held.scatter is None or held.n < 2:
        raise DataError(f"{source.name} has {held.n} rows; give at least two to compute eigenvalues", value=held.n)
    S = held.scatter / (held.weight - 1.0)
    if scale:
        units = np.sqrt(np.diagonal(S))
        units = np.where(units > 0.0, units, 1.0)
        S = S / np.outer(units, units)
    return np.asarray(np.maximum(np.linalg.eigvalsh(S)[::-1], 0.0)), held.n


def spectrum_of(given: npt.ArrayLike | None, dim: int | None, k: int, name: str | None = None) -> tuple[Array, str]:
    """Return all d eigenvalues, descending and divided by the largest, and a description of their origin."""
    check("n_components", k, Integer(1))
    if given is None:
        if dim is None:
            raise ParameterError("dim", None, "the number of columns is unknown; give dim, or the eigenvalues")
        values, source = 1.0 / np.arange(1.0, max(dim, 0) + 1.0), "λ_i = 1/i (assumed)"
    else:
        values = np.sort(np.asarray(given, dtype=np.float64).ravel())[::-1]
        source = name or f"{values.size:,} eigenvalues as given"
    d = values.size if dim is None else int(dim)
    if d < 2 or k >= d:
        raise ParameterError("n_components", k, f"give fewer components than columns (d = {d}), and at least 2 columns")
    if not (np.isfinite(values).all() and values.size and values[0] > 0.0):
        raise InvalidInput(
            "some eigenvalues are not finite, or none is positive; give finite eigenvalues, at least one above 0",
            parameter="eigenvalues",
        )
    if values[-1] < -1e-9 * values[0]:
        raise InvalidInput(
            f"the eigenvalue {values[-1]:g} is negative, unlike those of a covariance; leave it out",
            parameter="eigenvalues",
            value=float(values[-1]),
        )
    values = np.maximum(values, 0.0)
    if values.size > d:
        raise InvalidInput(
            f"got {values.size} eigenvalues for {d} columns; omit dim, or give fewer eigenvalues",
            parameter="eigenvalues",
            value=values.size,
        )
    if values.size <= k:
        raise InvalidInput(
            f"{values.size} eigenvalues do not determine the gap after λ_{k}; give at least {k + 1}",
            parameter="eigenvalues",
            value=values.size,
        )
    if values[k - 1] - values[k] <= _SMALLEST_GAP * values[0]:
        apart = "are equal" if values[k - 1] == values[k] else "differ too little for double precision"
        raise GapError(
            f"λ_{k} = {values[k - 1]:.9g} and λ_{k + 1} = {values[k]:.9g} {apart} (λ_1 = {values[0]:.3g}), so the top "
            f"{k} components are not unique, and no method can find them; choose another k",
            parameter="n_components",
            value=k,
        )
    if values.size < d:
        source += f", {d - values.size:,} more continued geometrically"
        values = np.concatenate([values, _continued(values, d - values.size)])
    return values / values[0], source


def _continued(values: Array, count: int) -> Array:
    """Extrapolate ``count`` further eigenvalues, which decay at the mean rate of the second half of those given."""
    half = (values.size - 1) // 2
    ratio = (values[-1] / values[half]) ** (1.0 / (values.size - 1 - half)) if values[half] > 0.0 else 0.0
    return np.asarray(values[-1] * ratio ** np.arange(1.0, count + 1.0))
