"""What a plan starts from: units of time and speed, and a spectrum, given, probed or assumed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt

from deepca._util.machine import available_memory
from deepca._util.typing import Array
from deepca._util.validation import Whole, check
from deepca.data.moments import moments
from deepca.data.sources import Source
from deepca.errors import DataError, InvalidInput

__all__ = ["ROWS_PER_AGENT", "bits_per_second", "probed_eigenvalues", "read_eigenvalues", "seconds", "spectrum_of"]

ROWS_PER_AGENT = 1000
"""Where nobody says how many."""
_NUMBER = r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)"
_NO_GAP = 1e-9  # of λ_1: rounding would move the components by a millionth


def seconds(text: str) -> float:
    """``"30ms"``, ``"0.03s"`` or ``"500us"`` in seconds."""
    units = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}
    found = re.fullmatch(rf"\s*{_NUMBER}\s*([a-zµμ]+)\s*", text)
    if found is None or found[2] not in units:
        raise InvalidInput(f"latency {text!r}: write a number and its unit, such as 30ms, 0.03s or 500us")
    return float(found[1]) * units[found[2]]


def bits_per_second(text: str) -> float:
    """``"30Mbit"``, ``"1Gbit/s"``, ``"30Mbps"`` or ``"2MB"`` (a second) in bits per second."""
    found = re.fullmatch(rf"\s*{_NUMBER}\s*([kKMGT]?)(bit/s|bits/s|bit|bps|B/s|B)\s*", text)
    if found is None or float(found[1]) <= 0.0:
        raise InvalidInput(
            f"bandwidth {text!r}: write a number and its unit per second, such as 30Mbit, 1Gbit/s, or 2MB for bytes"
        )
    prefix = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[found[2]]
    return float(found[1]) * prefix * (8.0 if found[3].startswith("B") else 1.0)


def read_eigenvalues(path: str | Path) -> Array:
    """The numbers of an ``.npy`` file, or of a text: one per line or between commas; ``#`` begins a remark."""
    file = Path(path)
    try:
        if file.suffix == ".npy":
            found = np.load(file, allow_pickle=False)
        else:
            lines = [line.split("#")[0] for line in file.read_text(encoding="utf-8").splitlines()]
            found = np.array([float(word) for line in lines for word in re.split(r"[\s,;]+", line) if word])
    except (ValueError, EOFError) as error:
        raise DataError(f"{file}: no list of numbers ({error}); give one number per line, or an .npy file") from None
    if found.dtype.kind not in "fiu":
        raise DataError(f"{file}: holds {found.dtype}, not real numbers")
    return np.asarray(found, dtype=np.float64).ravel()


def probed_eigenvalues(source: Source, *, scale: bool = False) -> tuple[Array, int]:
    """All eigenvalues of the covariance of some rows, descending, and how many rows there are.

    ``scale`` : of columns divided by their standard deviations.
    """
    if source.d * source.d * 32 > available_memory():
        raise DataError(
            f"{source.name}: {source.d:,} columns are too many to find all eigenvalues here; give the largest of them "
            "as a list of numbers"
        )
    held = moments(source)
    if held.scatter is None or held.n < 2:
        raise DataError(f"{source.name}: {held.n} rows; eigenvalues need at least two")
    S = held.scatter / (held.weight - 1.0)
    if scale:
        units = np.sqrt(np.diagonal(S))
        units = np.where(units > 0.0, units, 1.0)
        S = S / np.outer(units, units)
    return np.asarray(np.maximum(np.linalg.eigvalsh(S)[::-1], 0.0)), held.n


def spectrum_of(given: npt.ArrayLike | None, dim: int | None, k: int, name: str | None = None) -> tuple[Array, str]:
    """All d eigenvalues, descending, the largest one 1; and where they come from."""
    check("n_components", k, Whole(1))
    if given is None:
        if dim is None:
            raise InvalidInput("how many columns? Give dim, or the eigenvalues")
        values, source = 1.0 / np.arange(1.0, max(dim, 0) + 1.0), "assumed: λ_i = 1/i"
    else:
        values = np.sort(np.asarray(given, dtype=np.float64).ravel())[::-1]
        source = name or f"{values.size:,} eigenvalues as given"
    d = values.size if dim is None else int(dim)
    if d < 2 or k >= d:
        raise InvalidInput(
            f"{k} components of {d} columns: fewer components than columns are needed to compare methods"
        )
    if not (np.isfinite(values).all() and values.size and values[0] > 0.0):
        raise InvalidInput("eigenvalues must be finite, and the largest of them positive")
    if values[-1] < -1e-9 * values[0]:
        raise InvalidInput(f"the eigenvalue {values[-1]:g} is negative; those of a covariance are not")
    values = np.maximum(values, 0.0)
    if values.size > d:
        raise InvalidInput(f"{values.size} eigenvalues for {d} columns; leave dim out, or give fewer of them")
    if values.size <= k:
        raise InvalidInput(f"{values.size} eigenvalues say nothing about the gap behind k = {k}; give at least {k + 1}")
    if values[k - 1] - values[k] <= _NO_GAP * values[0]:
        apart = "are equal" if values[k - 1] == values[k] else "differ by too little for double precision"
        raise InvalidInput(
            f"λ_{k} = {values[k - 1]:.9g} and λ_{k + 1} = {values[k]:.9g} {apart} (λ_1 = {values[0]:.3g}): the top {k} "
            "components are not unique, and no method finds them; choose another k"
        )
    if values.size < d:
        source += f", {d - values.size:,} more continued geometrically"
        values = np.concatenate([values, _continued(values, d - values.size)])
    return values / values[0], source


def _continued(values: Array, count: int) -> Array:
    """As many more, each smaller than the one before by what is usual in the second half of those given."""
    half = (values.size - 1) // 2
    pace = (values[-1] / values[half]) ** (1.0 / (values.size - 1 - half)) if values[half] > 0.0 else 0.0
    return np.asarray(values[-1] * pace ** np.arange(1.0, count + 1.0))
