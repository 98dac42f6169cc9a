"""PCA of rows that stay with their agents: from raw rows to a model, over any network.

Every agent reads its rows once; all agents agree on counts, mean and spread; every agent centres (and scales) its own
rows; the subspace is found and certified; its basis is rotated to the principal axes. The code is the same on every
engine; ``sources`` are always the rows of the local agents.

Columns are divided by their standard deviations if ``Settings.scale`` is true. The divisors are called ``units`` here,
and ``scale`` in the model and its file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack

import numpy as np

from deepca._util.typing import Array
from deepca._util.units import counted
from deepca.consensus.broadcasts import packed
from deepca.data.columns import agree_on_columns
from deepca.data.local_data import LocalData, read
from deepca.data.sources import Source
from deepca.data.statistics import PooledStatistics, agree_on_statistics, column_units, total_variance
from deepca.decomposition.model import Model
from deepca.decomposition.pca import PcaRun
from deepca.decomposition.settings import Settings, check_settings
from deepca.engines.checkpointing import CheckpointerFactory, ResumePoint, RunCheckpointer
from deepca.engines.local import Engine
from deepca.errors import DataError, NetworkError, PooledDataError
from deepca.network.base import Network
from deepca.network.traffic import Traffic
from deepca.operators.base import Operator
from deepca.solver.certificate.bounds import Certificate
from deepca.solver.observers import Observer
from deepca.solver.result import Result
from deepca.topology.graph import Topology

__all__ = ["Decomposition", "Fitted", "build_model", "decompose", "fit", "read_rows"]

_INCONSISTENT_AGENT = (
    "an agent contradicts what it sent before, so the result cannot be trusted; check the data and logs of all agents"
)
_TRACE_TOLERANCE = 1e-6  # largest accepted relative difference between two sums of variances


@dataclass(frozen=True)
class Decomposition:
    """Principal components of all agents' rows.

    All fields are bitwise identical at every agent except ``directions``, ``result``, ``traffic`` and ``checkpointer``.

    Parameters
    ----------
    components : array of shape (k, d)
        Orthonormal rows in order of descending variance; the entry of each that is largest in absolute value
        is positive.
    variances : array of shape (k,)
        Variances of the scores, with ddof 1.
    total_variance : float
        Sum of the variances of all columns, after any scaling.
    mean : array of shape (d,)
        Mean of all rows; zero if rows are not centred.
    units : array of shape (d,) or None
        Standard deviations by which columns were divided (``Model.scale``); None if they were not scaled.
    n_rows : int
        Number of rows with a nonzero weight, over all agents.
    weighted_n_rows : int
        Sum of the weights, rounded down, but at least ``n_rows``.
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
        Traffic of all steps, including the certificate.
    checkpointer : RunCheckpointer, optional
        Observer that wrote the checkpoints, if any were requested.
    """

    components: Array
    variances: Array
    total_variance: float
    mean: Array
    units: Array | None
    n_rows: int
    weighted_n_rows: int
    weight: float
    columns: tuple[str, ...] | None
    directions: Array
    result: Result[Any]
    traffic: Traffic
    checkpointer: RunCheckpointer | None = None


@dataclass(frozen=True)
class Fitted:
    """A model, the decomposition behind it, and the local agents' data from which it was computed."""

    model: Model
    decomposition: Decomposition
    local_data: LocalData


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
        Rows of each local agent; or data that have already been read, if all agents are known to have the same columns.
    network : Network
        Network of the agents.
    settings : Settings
        What to compute, and how.
    weights : sequence of array, optional
        Row weights, one array per local agent; a weight of 2 counts as a row given twice.
    on_rows : callable, optional
        Called with the number of rows of each block after the block has been read.
    engine : Engine, optional
        Engine that runs the local agents; if it has several processes, a failure in one is raised in all of them.
    checkpointing : CheckpointerFactory, optional
        Where to write checkpoints; an interrupted run resumes from those found there. The caller removes them with
        ``decomposition.checkpointer.clear()`` once the result is saved.
    whiten : bool
        Whether the model scales scores to unit variance.
    **options : RunOptions
        ``start``, ``observers`` and ``weighted`` of :func:`decompose`.

    Returns
    -------
    Fitted
        The model, the decomposition and the local data.

    Raises
    ------
    ParameterError
        If a setting is invalid.
    DataError
        If the rows or weights are unusable, or columns differ between agents.
    NetworkError
        If messages of an agent contradict each other.
    """
    check_settings(settings)
    before, engine = network.traffic, engine or Engine()
    if not isinstance(rows, LocalData):
        rows = read_rows(rows, network, settings, weights=weights, on_rows=on_rows, engine=engine)
    found = _decompose_with_checkpoints(rows, network, settings, checkpointing, options)
    found = _with_traffic_of_all(found, network.traffic - before, engine)
    network.confirm_totals()
    model = build_model(found, network.topology, settings, whiten=whiten, single_precision=rows.is_float32)
    return Fitted(model, found, rows)


def _decompose_with_checkpoints(
    local_data: LocalData,
    network: Network,
    settings: Settings,
    checkpointing: CheckpointerFactory | None,
    options: RunOptions,
) -> Decomposition:
    """Call :func:`decompose`; write checkpoints and resume from those found, if requested."""
    if checkpointing is None:
        return decompose(local_data, network, settings, **options)
    checkpointer = checkpointing.open(network, local_data, settings)
    resume = checkpointer.resume_point()
    found = decompose(local_data, network, settings, checkpointers=(checkpointer,), resume=resume, **options)
    return replace(found, checkpointer=checkpointer)


def _with_traffic_of_all(found: Decomposition, traffic: Traffic, engine: Engine) -> Decomposition:
    """Replace the traffic of the run and of its certificate by those of all processes."""
    proof = found.result.certificate
    traffic, proving = engine.totals(traffic, None if proof is None else proof.traffic)
    if proof is not None and proving is not None:
        found = replace(found, result=replace(found.result, certificate=replace(proof, traffic=proving)))
    return replace(found, traffic=traffic)


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
            f"got rows for {counted(len(sources), 'agent')}, but {network.local.size} agents of the network are local; "
            "give one source per local agent",
            parameter="sources",
            value=len(sources),
        )
    engine = engine or Engine()
    sources = engine.align_columns(sources)
    agree_on_columns(network, sources[0])
    with engine.raise_on_all_ranks():
        local_data = read(sources, weights, form=settings.form, on_rows=on_rows)
    return replace(local_data, is_float32=engine.all_float32(sources))


def decompose(
    local_data: LocalData,
    network: Network,
    settings: Settings,
    *,
    start: Array | None = None,
    observers: Sequence[Observer] = (),
    checkpointers: Sequence[Observer] = (),
    resume: ResumePoint | None = None,
    weighted: bool = True,
) -> Decomposition:
    """Compute the principal components of rows that have been read and whose columns are known to agree.

    Parameters
    ----------
    local_data : LocalData
        Data of the local agents.
    network : Network
        Network of the agents.
    settings : Settings
        What to compute, and how.
    start : array of shape (k', d), optional
        Orthonormal rows to start from, the same at every agent; random rows are added if there are too few.
    observers : sequence of Observer
        Notified of every iteration.
    checkpointers : sequence of Observer
        Notified of the final run only, since a run can resume only from its states.
    resume : ResumePoint, optional
        Point at which an earlier run was interrupted.
    weighted : bool
        Whether rows of any agent may have weights.

    Returns
    -------
    Decomposition
        The components, their variances and the statistics of the rows.
    """
    before = network.traffic
    totals = agree_on_statistics(network, local_data.moments, weighted=weighted)
    _check_enough_rows(totals, settings)
    A, mean, units, total = _preprocess(local_data, network, settings, totals)
    most, limit = min(totals.weighted_n_rows, A.d), totals.n_rows - int(settings.center)
    found = PcaRun(A, network, settings, most, limit, total, tuple(observers), tuple(checkpointers)).find(start, resume)
    if network.local.size < network.n_agents:
        _check_consistent(totals, total, A.d, found.result.certificate, weighted=weighted)
    return Decomposition(
        components=found.components,
        variances=np.maximum(found.variances, 0.0),
        total_variance=total,
        mean=mean,
        units=units,
        n_rows=totals.n_rows,
        weighted_n_rows=totals.weighted_n_rows,
        weight=totals.weight,
        columns=local_data.sources[0].columns,
        directions=found.directions,
        result=found.result,
        traffic=network.traffic - before,
    )


def _preprocess(
    local_data: LocalData, network: Network, settings: Settings, totals: PooledStatistics
) -> tuple[Operator, Array, Array | None, float]:
    """Centre and scale the rows; return their operator, the mean, the units and the variance of all columns."""
    source = local_data.sources[0]
    units = column_units(totals, source) if settings.scale else None
    centre = (totals.reference, totals.shift) if settings.center else (np.zeros(source.d), np.zeros(source.d))
    squares = totals.squares if settings.center else totals.squares_about_zero()
    total = total_variance(squares, units, totals.weight)
    # with this factor mean A_j is the covariance matrix itself
    factor = network.n_agents / (totals.weight - 1.0)
    A = local_data.operator(network.batch, *centre, units, factor, unit_rounding=totals.unit_rounding)
    return A, centre[0] + centre[1], units, total


def _check_enough_rows(totals: PooledStatistics, settings: Settings) -> None:
    """Raise PooledDataError if there are too few rows, no variance, or too little weight for the settings."""
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
            "data, or multiply them by a large power of ten"
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
    most = min(totals.weighted_n_rows, totals.shift.size)
    if k is not None and not isinstance(k, float) and k > most:
        raise PooledDataError(
            f"n_components = {k}, but {totals.weighted_n_rows} rows and {totals.shift.size} columns have at most "
            f"{most} components; ask for at most {most}",
            parameter="n_components",
            value=k,
        )


def _check_consistent(
    totals: PooledStatistics, total: float, d: int, proof: Certificate | None, *, weighted: bool
) -> None:
    """Raise NetworkError if the agreed totals contradict the certificate by more than rounding can explain.

    Only an agent that contradicts its earlier messages can cause that. The variances of the components account for part
    of the total variance, and the certificate bounds the rest.
    """
    if proof is None or not proof.averaging_ok:
        return
    # with weights, the counts may differ: rows of weight 0 are included in one of them only
    if not weighted and proof.n_rows is not None and proof.n_rows != totals.n_rows:
        raise NetworkError(
            f"{totals.n_rows:,} rows were counted at the start, but {proof.n_rows:,} in the certificate: "
            f"{_INCONSISTENT_AGENT}"
        )
    explained = sum(map(abs, proof.eigenvalues))
    tolerance = _TRACE_TOLERANCE * total + d * (proof.residual * proof.scale + proof.separation)
    most = explained + (d - proof.k) * max(proof.bound, 0.0) if proof.k < d else explained
    if explained - tolerance > total or total > most + tolerance:
        raise NetworkError(
            f"agents reported {total:.6g} as the sum of the variances of all columns, but the components explain "
            f"{explained:.6g}, and the total cannot exceed {most:.6g}: {_INCONSISTENT_AGENT}"
        )


def build_model(
    found: Decomposition, topology: Topology, settings: Settings, *, whiten: bool, single_precision: bool
) -> Model:
    """Build the model, in float32 if ``single_precision`` is true and float32 can represent all variances and units."""
    limits = np.finfo(np.float32)
    sizes = packed(found.variances, () if found.units is None else found.units)
    smallest = min(float(limits.eps) * found.total_variance, float(sizes.min(initial=np.inf, where=sizes > 0.0)))
    fits = float(limits.tiny) <= smallest and found.total_variance <= float(limits.max)
    dtype = np.float32 if single_precision and fits else np.float64
    result = found.result
    return Model(
        components=found.components.astype(dtype),
        explained_variance=found.variances.astype(dtype),
        total_variance=found.total_variance,
        mean=found.mean.astype(dtype),
        scale=None if found.units is None else found.units.astype(dtype),
        n_samples=found.weighted_n_rows,
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
