"""Check the rows and weights that callers pass to estimators, one entry per agent."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from deepca._util.masked import unmasked
from deepca._util.typing import Array
from deepca.data.digests import update_digest
from deepca.data.sources import Source, as_source
from deepca.engines.local import Engine
from deepca.errors import DataError

__all__ = ["blocks_of_agents", "check_same_on_all_ranks", "default_agent_names", "source_if_any"]

S_ = TypeVar("S_", Source, Source | None)


def default_agent_names(agents: int) -> list[str]:
    """Return the default names of agents: "agent 0", "agent 1", …."""
    return [f"agent {j}" for j in range(agents)]


def blocks_of_agents(
    engine: Engine, Xs: Any, sample_weight: Any, source_of: Callable[..., S_]
) -> tuple[tuple[int, ...], list[S_], list[Any] | None]:
    """Return the number of agents of every rank, and the sources and weights of the local agents.

    ``source_of`` creates a source from an entry of ``Xs``, a name and the index of the agent.

    Raises DataError if ``Xs`` is empty, or if ``sample_weight`` does not have one entry per agent.
    """
    with engine.raise_on_all_ranks():
        given = [Xs] if engine.name == "mpi" and _is_one_agent(Xs) else _one_per_agent(Xs, "Xs")
    each = engine.gather_counts(len(given))
    first = engine.local_part(each).start
    with engine.raise_on_all_ranks():
        if not given:
            raise DataError("Xs is empty; give one block of rows per agent", parameter="Xs", value=())
        sources = [source_of(X, f"agent {j}", agent=j) for j, X in enumerate(given, first)]
        if sample_weight is None:
            return each, sources, None
        weights = [sample_weight] if given[0] is Xs else _one_per_agent(sample_weight, "sample_weight")
        if len(weights) != len(sources):
            raise DataError(
                f"sample_weight has entries for {len(weights)} agents, but Xs has {len(sources)}; give one array of "
                "weights per agent",
                parameter="sample_weight",
                value=len(weights),
            )
        pairs = zip(weights, sources, strict=True)
        return each, sources, [None if source is None else _agent_weights(w, source) for w, source in pairs]


def source_if_any(X: Any, name: str, *, agent: int | None = None) -> Source | None:
    """Return a source, or None if X evidently has no rows; files and iterators are not read to find out."""
    shape = getattr(X, "shape", None)
    empty = X is None or (shape is not None and len(shape) == 2 and shape[0] == 0) or (isinstance(X, list) and not X)
    return None if empty else as_source(X, name, agent=agent)


def check_same_on_all_ranks(engine: Engine, sources: Sequence[Source], weights: Sequence[Array] | None) -> None:
    """Raise DataError unless all ranks were given the same rows and weights."""
    if engine.ranks == 1:
        return
    digest = hashlib.sha256()
    for source in sources:
        update_digest(digest, source)
    for agent_weights in weights or ():
        digest.update(np.ascontiguousarray(agent_weights).data)
    other = engine.first_differing_rank(digest.hexdigest())
    if other is not None:
        raise DataError(
            f"the rows or weights on rank {other} differ from those on rank 0, but fit and partial_fit need all rows "
            "on every rank; use fit_agents or partial_fit_agents if each rank has different rows",
            parameter="X",
            value=other,
        )


def _agent_weights(given: npt.ArrayLike, source: Source) -> Array:
    """Check the weights of one agent's rows and return them."""
    given = unmasked(given, f"{source.name}, weights")
    try:
        weights = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError(
            f"{source.name}: the weights are not numbers; give one number per row",
            parameter="sample_weight",
            agent=source.agent,
        ) from None
    if weights.ndim != 1 or (source.n is not None and weights.size != source.n):
        rows = "" if source.n is None else f" for {source.n} rows"
        raise DataError(
            f"{source.name}: the weights have shape {weights.shape}{rows}; give one number per row",
            parameter="sample_weight",
            agent=source.agent,
            value=weights.shape,
        )
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0.0)))
    if bad.size:
        row = int(bad[0])
        where, advice = f"{source.name}: the weight of row {row} is", "give weights that are finite and not negative"
        raise DataError(
            f"{where} {weights[row]}; {advice}",
            redacted=f"{where} negative or not finite; {advice}",
            parameter="sample_weight",
            agent=source.agent,
            row=row,
            value=float(weights[row]),
        )
    return weights


def _one_per_agent(given: Any, parameter: str) -> list[Any]:
    """Return the entries of an argument that has one per agent; raise DataError if it is not iterable."""
    try:
        return list(given)
    except TypeError:
        raise DataError(
            f"{parameter} is of type {type(given).__name__}; give a list with one entry per agent",
            parameter=parameter,
            value=type(given),
        ) from None


def _is_one_agent(Xs: Any) -> bool:
    """Return whether ``Xs`` is the data of a single agent, rather than a list with one entry per agent."""
    return isinstance(Xs, (str, os.PathLike)) or getattr(Xs, "ndim", 0) == 2
