"""What callers give: labels and weights of rows, blocks of agents. Checked, with errors that name row and agent."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from deepca._util.masked import unmasked
from deepca._util.typing import Array
from deepca.data.sources import Source, add_rows, as_source
from deepca.engines.local import Engine
from deepca.errors import DataError

__all__ = ["blocks_of_agents", "check_alike", "numbered", "source_if_any"]

S_ = TypeVar("S_", Source, Source | None)


def numbered(agents: int) -> list[str]:
    return [f"agent {j}" for j in range(agents)]


def blocks_of_agents(
    engine: Engine, Xs: Any, sample_weight: Any, source_of: Callable[[Any, str], S_]
) -> tuple[tuple[int, ...], list[S_], list[Any] | None]:
    """How many agents every rank has, and the sources and weights of the local ones."""
    with engine.together():
        given = [Xs] if engine.name == "mpi" and _is_one_agent(Xs) else _one_per_agent(Xs, "rows")
    each = engine.counted(len(given))
    first = engine.own(each).start
    with engine.together():
        if not given:
            raise DataError("no agents: one block of rows per agent is needed")
        sources = [source_of(X, f"agent {first + j}") for j, X in enumerate(given)]
        if sample_weight is None:
            return each, sources, None
        shares = [sample_weight] if given[0] is Xs else _one_per_agent(sample_weight, "weights")
        if len(shares) != len(sources):
            raise DataError(f"weights of {len(shares)} agents for {len(sources)} agents")
        pairs = zip(shares, sources, strict=True)
        return each, sources, [None if source is None else _agent_weights(w, source) for w, source in pairs]


def source_if_any(X: Any, name: str) -> Source | None:
    """None where there are no rows, which is told without reading a file or an iterator."""
    shape = getattr(X, "shape", None)
    without = X is None or (shape is not None and len(shape) == 2 and shape[0] == 0) or (isinstance(X, list) and not X)
    return None if without else as_source(X, name)


def check_alike(engine: Engine, sources: Sequence[Source], weights: Sequence[Array] | None) -> None:
    """Whether all ranks were given the same rows, and the same weights of them."""
    if engine.ranks == 1:
        return
    digest = hashlib.sha256()
    for source in sources:
        add_rows(digest, source)
    for own in weights or ():
        digest.update(np.ascontiguousarray(own).data)
    other = engine.differing(digest.hexdigest())
    if other is not None:
        raise DataError(
            f"rank {other} was given other rows than rank 0: fit(X) needs all rows at every rank; where each rank has "
            "rows of its own, use fit_agents"
        )


def _agent_weights(given: npt.ArrayLike, source: Source) -> Array:
    given = unmasked(given, f"{source.name}, weights")
    try:
        weights = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError(f"{source.name}: its weights are not one number per row") from None
    if weights.ndim != 1 or (source.n is not None and weights.size != source.n):
        raise DataError(f"{source.name}: weights of shape {weights.shape} for {source.n} rows")
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0.0)))
    if bad.size:
        raise DataError(f"{source.name}: the weight of row {int(bad[0])} is {weights[bad[0]]}; weights are 0 or more")
    return weights


def _one_per_agent(given: Any, what: str) -> list[Any]:
    try:
        return list(given)
    except TypeError:
        raise DataError(
            f"{what} of the agents: {given!r} is no collection; give a list with one entry per agent"
        ) from None


def _is_one_agent(Xs: Any) -> bool:
    """Whether these are the rows of one agent, not a collection of agents."""
    return isinstance(Xs, (str, os.PathLike)) or getattr(Xs, "ndim", 0) == 2
