"""PCA of rows that stay with their agents, from raw rows to principal components, over any network.

In order: every agent reads its rows once; counts, mean and spread are agreed; every agent centres (and scales) at home;
the subspace is found and certified; its axes are turned to rounding. One text for every engine: ``sources`` are those
of the local agents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from deepca._util.floats import EPS
from deepca._util.portable import total as sum_of
from deepca._util.typing import Array
from deepca.data.columns import agree_on_columns, named_columns
from deepca.data.local_data import LocalData, read
from deepca.data.sources import Source
from deepca.data.statistics import Totals, agreed_totals
from deepca.decomposition.model import Model
from deepca.decomposition.pca import PcaRun
from deepca.decomposition.settings import Settings, check_settings
from deepca.engines.keeping import Resumption, RunKeeper, RunKeeping
from deepca.engines.local import Engine
from deepca.errors import DataError, NetworkError, PooledDataError
from deepca.network.base import Network
from deepca.network.broadcasts import packed
from deepca.network.traffic import Traffic
from deepca.solver.certificate.bounds import Certificate
from deepca.solver.observers import Observer
from deepca.solver.result import Result
from deepca.solver.verdict import UNDERFLOW
from deepca.topology.graph import Topology

__all__ = ["Decomposition", "Fitted", "decompose", "fit", "model_of", "read_rows"]

_ONE_AND_ANOTHER = "an agent says one thing and then another, so nothing can be relied on; look at the agents"
_TRACE = 1e-6  # relative error of a sum of variances that is not looked into
_NO_SQUARE = math.sqrt(UNDERFLOW) / EPS  # values below may differ by so little that squares underflow


@dataclass(frozen=True)
class Decomposition:
    """What every agent ends with; all but ``result`` and ``directions`` is the same bits at every agent.

    components : ``(k, d)``, orthonormal rows by falling variance, the largest entry of each positive.
    variances : ``(k,)``, with ddof 1.  total_variance : of all columns together.
    mean : ``(d,)``.  units : ``(d,)``, what columns were divided by, or None.
    n_rows, weight : of all agents.  n_counted : rows, each as often as its weight says.  columns : names, if any.
    directions : ``(s, d)``, the components and whatever else the search has seen, to start another one from; the same
    at every agent but for rounding, and for rotations among equal eigenvalues.
    result : how the run went; its certificate speaks of ``components``.  traffic : of everything, certificate included.
    keeper : of its checkpoints, where some were asked for.
    """

    components: Array
    variances: Array
    total_variance: float
    mean: Array
    units: Array | None
    n_rows: int
    n_counted: int
    weight: float
    columns: tuple[str, ...] | None
    directions: Array
    result: Result[Any]
    traffic: Traffic
    keeper: RunKeeper | None = None


@dataclass(frozen=True)
class Fitted:
    """A model, how it was found, and the rows of the local agents that it was found from."""

    model: Model
    found: Decomposition
    held: LocalData


class RunOptions(TypedDict, total=False):
    """Keyword parameters that :func:`fit` hands on to :func:`decompose`."""

    start: Array | None
    observers: Sequence[Observer]
    weighted: bool


def fit(
    rows: Sequence[Source] | LocalData,
    network: Network,
    settings: Settings,
    *,
    weights: Sequence[Array] | None = None,
    tell: Callable[[int], None] | None = None,
    engine: Engine | None = None,
    keeping: RunKeeping | None = None,
    whiten: bool = False,
    **options: Unpack[RunOptions],
) -> Fitted:
    """Find the principal components of the rows of all agents: the one path from rows to a model.

    Parameters
    ----------
    rows : of each local agent; or what was read of them, where all agents are known to have the same columns.
    weights : one array per local agent; a weight of 2 counts as a row given twice.
    tell : told of rows as they are read.
    engine : where several processes run this together, so that what fails in one of them is known to all.
    keeping : where checkpoints are kept; a run that was interrupted goes on from those it finds there. They stay until
        whoever called clears them, when the result is safe.
    whiten : whether the model scales scores to variance one.
    start, observers, weighted : as for :func:`decompose`.
    """
    check_settings(settings)
    before, engine = network.traffic, engine or Engine()
    if isinstance(rows, LocalData):
        held = rows
    else:
        held = read_rows(rows, network, settings, weights=weights, tell=tell, engine=engine)
    keeper = None if keeping is None else keeping.open(network, held, settings)
    found = decompose(
        held,
        network,
        settings,
        keepers=() if keeper is None else (keeper,),
        resume=None if keeper is None else keeper.resumption(),
        **options,
    )
    proof = found.result.certificate
    traffic, proving = engine.totals(network.traffic - before, None if proof is None else proof.traffic)
    if proof is not None and proving is not None:
        found = replace(found, result=replace(found.result, certificate=replace(proof, traffic=proving)))
    found = replace(found, traffic=traffic, keeper=keeper)
    return Fitted(model_of(found, network.topology, settings, whiten=whiten, single=held.single), found, held)


def read_rows(
    sources: Sequence[Source],
    network: Network,
    settings: Settings,
    *,
    weights: Sequence[Array] | None = None,
    tell: Callable[[int], None] | None = None,
    engine: Engine | None = None,
) -> LocalData:
    """Read what the local agents hold, once, when all agents are known to have the same columns."""
    if len(sources) != network.local.size:
        raise DataError(f"{len(sources)} blocks of rows for {network.local.size} agents; give one per agent")
    engine = engine or Engine()
    sources = engine.common_columns(sources)
    agree_on_columns(network, sources[0])
    with engine.together():
        held = read(sources, weights, form=settings.form, tell=tell)
    return replace(held, single=engine.all_single(sources))


def decompose(
    held: LocalData,
    network: Network,
    settings: Settings,
    *,
    start: Array | None = None,
    observers: Sequence[Observer] = (),
    keepers: Sequence[Observer] = (),
    resume: Resumption | None = None,
    weighted: bool = True,
) -> Decomposition:
    """Decompose rows that were read already and whose columns are known to agree.

    start : ``(k', d)`` orthonormal rows to begin with, the same at every agent; as many are added or dropped as needed.
    observers : told of every iteration.
    keepers : observers of the run for the components themselves, not of glances before it; what they see can be resumed
    at.  resume : where an earlier run was interrupted.  weighted : whether rows of any agent may have weights.
    """
    before, sources = network.traffic, held.sources
    totals = agreed_totals(network, held.moments, weighted=weighted)
    _check_enough(totals, settings)
    units = _units(totals, sources[0]) if settings.scale else None
    centre = (totals.reference, totals.shift) if settings.center else (np.zeros(sources[0].d), np.zeros(sources[0].d))
    squares = totals.squares if settings.center else totals.squares_about_zero()
    total = sum_of(squares / (1.0 if units is None else np.square(units))) / (totals.weight - 1.0)
    if total < UNDERFLOW:
        raise PooledDataError(
            f"the squares of the values underflow: the variance of all columns together is {total:.1e}, and products "
            f"below {UNDERFLOW:.0e} lose digits; multiply the data by a power of ten"
        )
    # with this factor mean A_j is the covariance matrix itself
    scale = network.n_agents / (totals.weight - 1.0)
    A = held.operator(network.batch, *centre, units, scale, unit_rounding=totals.unit_rounding)
    most, limit = min(totals.n_counted, A.d), totals.n_rows - int(settings.center)
    run = PcaRun(A, network, settings, most, limit, total, tuple(observers), tuple(keepers))
    if resume is not None:
        found = run.resumed(resume)
    elif isinstance(settings.n_components, float):
        found = run.share(settings.n_components, start)
    else:
        found = run.exactly(settings.n_components or run.most, start)
    if network.local.size < network.n_agents:
        _check_consistent(totals, total, A.d, found.result.certificate, weighted=weighted)
    return Decomposition(
        components=found.components,
        variances=np.maximum(found.variances, 0.0),
        total_variance=total,
        mean=centre[0] + centre[1],
        units=units,
        n_rows=totals.n_rows,
        n_counted=totals.n_counted,
        weight=totals.weight,
        columns=sources[0].columns,
        directions=found.directions,
        result=found.result,
        traffic=network.traffic - before,
    )


def model_of(found: Decomposition, topology: Topology, settings: Settings, *, whiten: bool, single: bool) -> Model:
    """Keep what belongs into a model; ``single`` stores float32, where variances and units fit into it."""
    limits = np.finfo(np.float32)
    sizes = packed(found.variances, () if found.units is None else found.units)
    smallest = min(float(limits.eps) * found.total_variance, float(sizes.min(initial=np.inf, where=sizes > 0.0)))
    fits = float(limits.tiny) <= smallest and found.total_variance <= float(limits.max)
    dtype = np.float32 if single and fits else np.float64
    result = found.result
    return Model(
        components=found.components.astype(dtype),
        explained_variance=found.variances.astype(dtype),
        total_variance=found.total_variance,
        mean=found.mean.astype(dtype),
        scale=None if found.units is None else found.units.astype(dtype),
        n_samples=found.n_counted,
        weight=found.weight,
        columns=found.columns,
        whiten=whiten,
        status=result.status,
        certificate=result.certificate,
        about={
            "topology": topology.name,
            "agents": topology.n_agents,
            "links": topology.n_edges,
            "algorithm": settings.algorithm,
            "tol": settings.tol,
            "iterations": result.iterations,
            "rounds": found.traffic.rounds + found.traffic.control_rounds,
            "bytes_per_agent": found.traffic.bytes_per_agent,
            "center": settings.center,
        },
    )


def _check_enough(totals: Totals, settings: Settings) -> None:
    if totals.n_rows < 2:
        raise PooledDataError(
            "one row in all: variance needs at least two" if totals.n_rows else "the weights of all rows are zero"
        )
    if totals.constant.all() and (settings.center or not totals.mean.any()):
        raise PooledDataError(
            f"all {totals.n_rows} rows are equal, or differ by too little to square: there is no variance to explain"
            if settings.center
            else f"all {totals.n_rows} rows are zero; there is nothing to explain"
        )
    if not totals.weight > 1.0:
        raise PooledDataError(
            f"the weights sum to {totals.weight:g}: a weight counts how often a row occurs, so they must sum to more "
            "than 1; multiply them all by the number of rows, or forget less"
        )
    k = settings.n_components
    most = min(totals.n_counted, totals.shift.size)
    if k is not None and not isinstance(k, float) and k > most:
        raise PooledDataError(
            f"n_components = {k}, but there are {totals.n_counted} rows and {totals.shift.size} columns; "
            f"at most {most} components exist"
        )


def _check_consistent(totals: Totals, total: float, d: int, proof: Certificate | None, *, weighted: bool) -> None:
    """Raise where what other agents said of their rows, and products of these, cannot be true of the same rows.

    Rounding cannot do that, only an agent that says one thing first and another later. Of the trace, the components
    tell their part, and the certificate bounds the rest.
    """
    if proof is None or not proof.averaging_ok:
        return
    if not weighted and proof.n_rows is not None and proof.n_rows != totals.n_rows:  # or rows of weight 0 count in one
        raise NetworkError(
            f"{totals.n_rows:,} rows were counted first and {proof.n_rows:,} in the certificate: {_ONE_AND_ANOTHER}"
        )
    seen, off = sum(map(abs, proof.eigenvalues)), _TRACE * total + d * (proof.residual * proof.scale + proof.separation)
    most = seen + (d - proof.k) * max(proof.bound, 0.0) if proof.k < d else seen
    if seen - off > total or total > most + off:
        raise NetworkError(
            f"the variance of all columns together was said to be {total:.6g}, but that of the components is "
            f"{seen:.6g}, and there can be no more than {most:.6g} in all: {_ONE_AND_ANOTHER}"
        )


def _units(totals: Totals, source: Source) -> Array:
    """Standard deviations (ddof 0, as scikit-learn's StandardScaler); a constant column has none."""
    units, mean = np.sqrt(totals.squares / totals.weight), np.abs(totals.mean)
    # below, squares lose digits; values that large, if they differ at all, do so by more
    differ = (np.square(units) < UNDERFLOW) & (mean < _NO_SQUARE) & ((mean > 0.0) | (units > 0.0))
    if differ.any():
        raise PooledDataError(
            f"{_columns(differ, source)}: too small to square (standard deviation below {math.sqrt(UNDERFLOW):.0e}), "
            "so there is nothing to scale by; multiply by a power of ten, leave out, or use scale=False"
        )
    if totals.constant.any():
        raise PooledDataError(
            f"{_columns(totals.constant, source)}: the same value in all {totals.n_rows} rows of all agents, so there "
            "is nothing to scale by; leave the column out, or use scale=False"
        )
    return units


def _columns(which: npt.NDArray[np.bool_], source: Source) -> str:
    return named_columns([c if source.columns is None else source.columns[c] for c in np.flatnonzero(which).tolist()])
