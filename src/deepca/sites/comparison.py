"""Comparison of a proposed model file with what this site computed itself, field by field.

Every field is compared; a file with a field that is not listed here is refused. ``ε`` is the spacing of doubles at 1,
``δ = 64 · max(√d ε, noise)`` with the noise of the certificate: what unlike processors may make of the same sums,
relative to the largest eigenvalue λ₁.

* exactly: names and types of arrays, format, names of columns, counts, weight, members, sites left out, run, epoch,
  plan, topology, settings, iterations, rounds, bytes, code of the status; counts, failure and bounds of leading parts
  of the certificate, which all members have received;
* advice of the status: word for word, its numbers to a factor of two;
* mean, scale, total variance: to 16 ε of each number;
* variances, eigenvalues and bounds of the certificate: to δ λ₁;
* residual and the other relative numbers of the certificate: to δ;
* its angle: to δ / gap, with the gap relative to λ₁;
* its angle, residual, uncertainty, noise and separation: besides, no less than a quarter, so that what is proven is not
  made better than rounding allows;
* components: for every r that is proven to be apart from what follows, the angle between both spans of the first r, to
  the sum of the two proven bounds, or δ;
* digest of the components: must be that of the components in the file.

Means, scales and counts come from exact averages, which are the same bits everywhere.
"""

from __future__ import annotations

import io
import json
import math
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from deepca._typing import Array
from deepca.certificate import Certificate
from deepca.errors import ModelError
from deepca.model import Model, from_bytes

__all__ = ["difference"]

_EPS = float(np.finfo(np.float64).eps)
_EXACT_SUMS = 16.0 * _EPS
_MULTIPLE = 64.0
_EXACT = ("failure", "smaller_k", "larger_k", "n_agents", "n_rows", "probes", "products", "traffic", "parts")
_ABSOLUTE = ("eigenvalues", "others", "bound", "separation")  # in units of the variances
_RELATIVE = ("residual", "uncertainty", "noise", "coupling", "drift", "averaging_error", "agents_angle")
_NO_BETTER = ("angle", "residual", "uncertainty", "noise", "separation")
_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|inf|nan)")


def difference(mine: Model, content: bytes) -> str:
    """Say in what a model file differs from the model computed here; empty if it does not."""
    try:
        theirs = from_bytes(content, Path("the proposed result"))
    except ModelError as error:
        return str(error)
    return next(_differences(mine, theirs, content), "")


def _differences(mine: Model, theirs: Model, content: bytes) -> Iterator[str]:
    yield from _container(mine, content)
    for name in ("components", "explained_variance", "mean", "scale"):
        ours, given = getattr(mine, name), getattr(theirs, name)
        if (ours is None) != (given is None):
            yield f"{name} is {'missing' if given is None else 'given'}"
        elif ours is not None and (ours.shape, ours.dtype) != (given.shape, given.dtype):
            yield f"{name} has shape {given.shape} and dtype {given.dtype}, not {ours.shape} and {ours.dtype}"
    for name in ("n_samples", "weight", "whiten", "columns"):
        if type(getattr(mine, name)) is not type(getattr(theirs, name)) or getattr(mine, name) != getattr(theirs, name):
            yield f"{name} is not the same"
    if mine.status.code != theirs.status.code:
        yield f"status is {theirs.status.code!r}, not {mine.status.code!r}"
    if not _same_words(mine.status.advice, theirs.status.advice):
        yield "advice of the status is not the same"
    yield from _same_mapping(mine.about, theirs.about)
    yield from _sums(mine, theirs)
    yield from _proof(mine, theirs)
    yield from _components(mine, theirs)


def _container(mine: Model, content: bytes) -> Iterator[str]:
    """Nothing but the arrays of a model may be in the file."""
    wanted = {"about.npy", "components.npy", "explained_variance.npy", "mean.npy"}
    wanted |= {"scale.npy"} if mine.scale is not None else set()
    wanted |= {"columns.npy"} if mine.columns is not None else set()
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        found = file.infolist()
        names = [one.filename for one in found]
        if sorted(names) != sorted(wanted):
            yield f"the file has other parts: {', '.join(sorted(set(names) ^ wanted)) or 'some of them twice'}"
        if file.comment or any(one.comment for one in found) or found[0].header_offset:
            yield "the file has comments"
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        text = str(file["about"])
    about = json.loads(text)
    if json.dumps(about, ensure_ascii=False, allow_nan=False) != text:
        yield "what the file says of itself is written in another way"
    ours = {**mine.description(), "checksum": ""}
    if _fields(about) != _fields(ours):
        yield f"the file has other fields: {', '.join(sorted(_fields(about) ^ _fields(ours)))}"
    for name in ("kind", "format"):
        if about.get(name) != ours[name]:
            yield f"{name} is not the same"


def _fields(value: object, path: str = "") -> set[str]:
    """Names of all fields, of nested ones too."""
    if not isinstance(value, Mapping):
        return {path}
    return {path, *(found for name, entry in value.items() for found in _fields(entry, f"{path}/{name}"))}


def _same_mapping(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[str]:
    for name in mine:
        a, b = json.dumps(mine[name], sort_keys=True), json.dumps(theirs.get(name), sort_keys=True)
        if a != b:
            yield f"{name} is {b[:80]}, not {a[:80]}"


def _same_words(mine: str, theirs: str) -> bool:
    """The same sentence. Numbers in it may differ by a factor of two, since small ones consist of rounding; not k."""
    if _NUMBER.sub("#", mine) != _NUMBER.sub("#", theirs):
        return False
    pairs = zip(_NUMBER.findall(mine), _NUMBER.findall(theirs), strict=True)
    return all(a == b or _near(a.replace(",", ""), b.replace(",", "")) for a, b in pairs)


def _near(a: str, b: str) -> bool:
    if a.isdigit() and b.isdigit() and min(len(a), len(b)) < 3:  # a number of components or sites
        return False
    x, y = float(a), float(b)
    return math.isfinite(x) and math.isfinite(y) and x * y > 0.0 and 0.5 <= x / y <= 2.0


def _sums(mine: Model, theirs: Model) -> Iterator[str]:
    pairs = [("mean", mine.mean, theirs.mean), ("total variance", mine.total_variance, theirs.total_variance)]
    if mine.scale is not None and theirs.scale is not None:
        pairs.append(("scale", mine.scale, theirs.scale))
    for name, own, other in pairs:
        a, b = np.asarray(own, dtype=np.float64), np.asarray(other, dtype=np.float64)
        if a.shape != b.shape or not bool((np.abs(a - b) <= _EXACT_SUMS * np.abs(a)).all()):
            yield f"{name} is not the same{_by(a, b)}"


def _proof(mine: Model, theirs: Model) -> Iterator[str]:
    ours, given = mine.certificate, theirs.certificate
    if ours is None or given is None:
        yield "there is no certificate to compare" if ours is given else "certificate is not the same"
        return
    delta, scale = _delta(mine, ours), ours.scale
    own, other = asdict(ours), asdict(given)
    if not _within(mine.explained_variance, theirs.explained_variance, delta * scale):
        yield f"variances are not the same{_by(mine.explained_variance, theirs.explained_variance)}"
    for name in _EXACT:
        if own[name] != other[name]:
            yield f"{name} of the certificate is not the same"
    for name in _ABSOLUTE:
        if not _within(own[name], other[name], delta * scale):
            yield f"{name} of the certificate is not the same{_by(own[name], other[name])}"
    for name in _RELATIVE:
        if not _within(own[name], other[name], delta):
            yield f"{name} of the certificate is not the same{_by(own[name], other[name])}"
    for name in _NO_BETTER:
        if not other[name] >= 0.25 * own[name]:
            yield f"{name} of the certificate is not the same{_by(own[name], other[name])}"
    gap = (ours.eigenvalues[-1] - ours.bound) / scale if scale > 0.0 else 0.0
    if not _within(ours.angle, given.angle, delta * (1.0 + ours.angle) / gap if gap > 0.0 else math.inf):
        yield f"angle of the certificate is not the same{_by(ours.angle, given.angle)}"


def _delta(mine: Model, proof: Certificate) -> float:
    """What rounding may change, relative to the largest eigenvalue."""
    return _MULTIPLE * max(math.sqrt(mine.n_features) * _EPS, proof.noise)


def _components(mine: Model, theirs: Model) -> Iterator[str]:
    ours, given = mine.certificate, theirs.certificate
    if mine.components.shape != theirs.components.shape or ours is None or given is None:
        return  # said before
    X, Y, k = mine.components, theirs.components, mine.n_components
    delta = _delta(mine, ours)
    if not _within(Y @ Y.T, np.eye(k), delta):
        yield "components are not orthonormal"
    for r in range(1, k + 1):
        proven = [_sine(proof.angle if r == k else proof.leading(r)) for proof in (ours, given)]
        # all agents have taken one common subspace, so its span is known to rounding even where nothing is proven
        allowed = max(sum(proven), delta) if sum(proven) < 1.0 else (delta if r == k else math.inf)
        if math.isinf(allowed):
            continue
        rest = X[:r] - (X[:r] @ Y[:r].T) @ Y[:r]
        apart = float(np.linalg.norm(rest, 2))
        if not apart <= allowed:
            which = "components" if r == k else f"the first {r} components"
            yield f"{which} are not the same: sin θ = {apart:.1e}, where {allowed:.1e} is proven"


def _sine(tangent: float) -> float:
    return 1.0 if math.isinf(tangent) else tangent / math.sqrt(1.0 + tangent * tangent)


def _within(own: Any, other: Any, allowed: float) -> bool:
    a, b = np.asarray(own, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if a.shape != b.shape:
        return False
    with np.errstate(invalid="ignore"):
        return bool(((a == b) | (np.abs(a - b) <= allowed)).all())


def _by(own: Any, other: Any) -> str:
    """By how much, where that can be said."""
    a, b = np.asarray(own, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if a.shape != b.shape:
        return ""
    apart: Array = np.abs(a - b)
    return f", by {float(apart.max()):.1e}" if apart.size and np.isfinite(apart).all() else ""
