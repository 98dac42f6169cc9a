"""PCA of rows that stay with their agents: from raw rows to a model, over any network.

Every agent reads its rows once; all agents agree on counts, mean and spread; every agent centres (and scales) its own
rows; the subspace is found and certified; its basis is rotated to the principal axes. The code is the same on every
engine; ``sources`` are always those of the local agents.
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
from deepca.engines.checkpointing import CheckpointerFactory, Resumption, RunCheckpointer
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

_INCONSISTENT_AGENT = "an agent contradicts what it sent before, so the result cannot be trusted; check the agents"
_TRACE_TOLERANCE = 1e-6  # accepted relative difference between two sums of variances
_SMALLEST_SAFE_MEAN = math.sqrt(UNDERFLOW) / EPS  # below it, differences may be so small that their squares underflow


@dataclass(frozen=True)
class Decomposition:
    """Principal components of all agents' rows, bitwise identical at every agent except ``result`` and ``directions``.

    Parameters
    ----------
    components : array of shape (k, d)
        Orthonormal rows by descending variance; the largest entry of each is positive.
    variances : array of shape (k,)
        Variances of the scores, with ddof 1.
    total_variance : float
        Variance of all columns together.
    mean : array of shape (d,)
        Mean of all rows; zero if rows are not centred.
    units : array of shape (d,) or None
        Standard deviations by which columns were divided; None if they were not scaled.
    n_rows : int
        Number of rows of all agents.
    n_counted : int
        Number of rows of all agents, each counted as often as its weight says.
    weight : float
        Sum of the weights of all rows.
    columns : tuple of str or None
        Names of the columns.
    directions : array of shape (s, d)
        Rows that span the whole search space, from which another search can start; the same at every agent up to
        rounding and up to rotations among equal eigenvalues.
    result : Result
        Result of the run; its certificate describes ``components``.
    traffic : Traffic
        Traffic of all steps, certificate included.
    keeper : RunCheckpointer, optional
        Writer of the checkpoints, if any were requested.
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
    keeper: RunCheckpointer | None = None


@dataclass(frozen=True)
class Fitted:
    """A model, the decomposition behind it, and the local agents' data from which it was computed."""

    model: Model
    found: Decomposition
    held: LocalData


class RunOptions(TypedDict, total=False):
    """Keyword parameters that :func:`fit` passes to :func:`decompose`."""

    start: Array | None
    observers: Sequence[Observer]
    weighted: bool


def fit(
    rows: Sequence[Source] | LocalData,
    network: Network,
    settings: Settings,
    *,
    weights: Sequence[Array] | None = None,
    on_rows: Callable[[int], None] | None = None,
    engine: Engine | None = None,
    checkpointing: CheckpointerFactory | None = None,
    whiten: bool = False,
    **options: Unpack[RunOptions],
) -> Fitted:
    """Fit a model to the rows of all agents.

    Parameters
    ----------
    rows : sequence of Source, or LocalData
        Rows of each local agent; or data that have been read, if all agents are known to have the same columns.
    network : Network
        Network of the agents.
    settings : Settings
        What to compute, and how.
    weights : sequence of array, optional
        Row weights, one array per local agent; a weight of 2 counts as a row given twice.
    tell : callable, optional
        Called after every block that is read, with its number of rows.
    engine : Engine, optional
        Engine that runs the local agents; if it has several processes, all of them learn of a failure in one.
    keeping : CheckpointerFactory, optional
        Where checkpoints are kept; an interrupted run resumes from those found there. They remain until the caller
        clears them, once the result is safe.
    whiten : bool
        Whether the model scales scores to unit variance.
    **options : RunOptions
        ``start``, ``observers`` and ``weighted`` of :func:`decompose`.
    """
    check_settings(settings)
    before, engine = network.traffic, engine or Engine()
    if isinstance(rows, LocalData):
        held = rows
    else:
        held = read_rows(rows, network, settings, weights=weights, on_rows=on_rows, engine=engine)
    keeper = None if checkpointing is None else checkpointing.open(network, held, settings)
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
    on_rows: Callable[[int], None] | None = None,
    engine: Engine | None = None,
) -> LocalData:
    """Read the local agents' rows once, after checking that all agents have the same columns."""
    if len(sources) != network.local.size:
        raise DataError(
            f"got {len(sources)} blocks of rows for {network.local.size} agents; give one per agent",
            parameter="sources",
            value=len(sources),
        )
    engine = engine or Engine()
    sources = engine.common_columns(sources)
    agree_on_columns(network, sources[0])
    with engine.raise_on_all_ranks():
        held = read(sources, weights, form=settings.form, on_rows=on_rows)
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
    """Decompose data that have been read and whose columns are known to agree.

    Parameters
    ----------
    held : LocalData
        Data of the local agents.
    network : Network
        Network of the agents.
    settings : Settings
        What to compute, and how.
    start : array of shape (k', d), optional
        Orthonormal rows to start from, the same at every agent; random ones are added if they are too few.
    observers : sequence of Observer
        Notified of every iteration.
    keepers : sequence of Observer
        Notified of the final run only, whose states a run can resume from, not of preliminary searches.
    resume : Resumption, optional
        Where an earlier run was interrupted.
    weighted : bool
        Whether rows of any agent may have weights.
    """
    before, sources = network.traffic, held.sources
    totals = agreed_totals(network, held.moments, weighted=weighted)
    _check_enough(totals, settings)
    units = _units(totals, sources[0]) if settings.scale else None
    centre = (totals.reference, totals.shift) if settings.center else (np.zeros(sources[0].d), np.zeros(sources[0].d))
    squares = totals.squares if settings.center else totals.squares_about_zero()
    total = _total_variance(squares, units, totals.weight)
    # with this factor mean A_j is the covariance matrix itself
    scale = network.n_agents / (totals.weight - 1.0)
    A = held.operator(network.batch, *centre, units, scale, unit_rounding=totals.unit_rounding)
    most, limit = min(totals.n_counted, A.d), totals.n_rows - int(settings.center)
    found = PcaRun(A, network, settings, most, limit, total, tuple(observers), tuple(keepers)).find(start, resume)
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
    """Build the model; its arrays are float32 if ``single`` is true and that type can represent variances and units."""
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


def _total_variance(squares: Array, units: Array | None, weight: float) -> float:
    """Return the variance of all columns together; raise PooledDataError if it underflows."""
    total = sum_of(squares / (1.0 if units is None else np.square(units))) / (weight - 1.0)
    if total < UNDERFLOW:
        raise PooledDataError(
            f"the squares of the values underflow: the variance of all columns together is {total:.1e}, and products "
            f"below {UNDERFLOW:.0e} lose digits; multiply the data by a large power of ten",
            value=total,
        )
    return total


def _check_enough(totals: Totals, settings: Settings) -> None:
    if totals.n_rows < 2:
        raise PooledDataError(
            "all agents together have one row, but a variance needs at least two; add rows"
            if totals.n_rows
            else "the weights of all rows are zero; give at least two rows a positive weight",
            value=totals.n_rows,
        )
    if totals.constant.all() and (settings.center or not totals.mean.any()):
        raise PooledDataError(
            f"all {totals.n_rows} rows are equal, or differ too little to square, so their variance is zero; check the "
            "data"
            if settings.center
            else f"all {totals.n_rows} rows are zero; check the data"
        )
    if not totals.weight > 1.0:
        raise PooledDataError(
            f"the weights sum to {totals.weight:g}, but a weight counts how often a row occurs, so the sum must exceed "
            "1; multiply all weights by the number of rows, or use a forgetting factor closer to 1",
            parameter="weights",
            value=totals.weight,
        )
    k = settings.n_components
    most = min(totals.n_counted, totals.shift.size)
    if k is not None and not isinstance(k, float) and k > most:
        raise PooledDataError(
            f"n_components = {k}, but {totals.n_counted} rows and {totals.shift.size} columns have at most {most} "
            "components; ask for fewer",
            parameter="n_components",
            value=k,
        )


def _check_consistent(totals: Totals, total: float, d: int, proof: Certificate | None, *, weighted: bool) -> None:
    """Raise NetworkError if the agreed totals contradict the certificate by more than rounding can explain.

    Only an agent that contradicts its earlier messages can cause that. The variances of the components account for part
    of the total variance, and the certificate bounds the rest.
    """
    if proof is None or not proof.averaging_ok:
        return
    if (
        not weighted and proof.n_rows is not None and proof.n_rows != totals.n_rows
    ):  # rows of weight 0 count in one only
        raise NetworkError(
            f"{totals.n_rows:,} rows were counted first and {proof.n_rows:,} in the certificate: {_INCONSISTENT_AGENT}"
        )
    seen, off = (
        sum(map(abs, proof.eigenvalues)),
        _TRACE_TOLERANCE * total + d * (proof.residual * proof.scale + proof.separation),
    )
    most = seen + (d - proof.k) * max(proof.bound, 0.0) if proof.k < d else seen
    if seen - off > total or total > most + off:
        raise NetworkError(
            f"agents reported {total:.6g} as the variance of all columns together, but the components explain "
            f"{seen:.6g} of it, and the total cannot exceed {most:.6g}: {_INCONSISTENT_AGENT}"
        )


def _units(totals: Totals, source: Source) -> Array:
    """Return the standard deviations of the columns (ddof 0, as in StandardScaler); raise for a constant column."""
    units, mean = np.sqrt(totals.squares / totals.weight), np.abs(totals.mean)
    # squares below UNDERFLOW lose digits; larger values, if they differ at all, differ by more
    differ = (np.square(units) < UNDERFLOW) & (mean < _SMALLEST_SAFE_MEAN) & ((mean > 0.0) | (units > 0.0))
    if differ.any():
        raise PooledDataError(
            f"{_columns(differ, source)}: too small to square (standard deviation below "
            f"{math.sqrt(UNDERFLOW):.0e}), so the column cannot be scaled; multiply it by a large power of ten, leave "
            "it out, or use scale=False",
            parameter="scale",
            column=_first_column(differ, source),
        )
    if totals.constant.any():
        raise PooledDataError(
            f"{_columns(totals.constant, source)}: the same value in all {totals.n_rows} rows of all agents, so the "
            "column cannot be scaled; leave it out, or use scale=False",
            parameter="scale",
            column=_first_column(totals.constant, source),
        )
    return units


def _first_column(which: npt.NDArray[np.bool_], source: Source) -> int | str:
    first = int(np.argmax(which))
    return first if source.columns is None else source.columns[first]


def _columns(which: npt.NDArray[np.bool_], source: Source) -> str:
    return named_columns([c if source.columns is None else source.columns[c] for c in np.flatnonzero(which).tolist()])
