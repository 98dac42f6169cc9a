"""PCA of rows that stay with their agents, from raw rows to principal components, over any network.

In order: every agent reads its rows once; counts, mean and spread are agreed; every agent centres (and scales) at home;
the subspace is found and certified; its axes are turned to rounding. One text for every engine: ``sources`` are those
of the local agents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from deepca._util.portable import total as sum_of
from deepca._util.typing import Array
from deepca.algorithms import AcceleratedDeEPCA, Algorithm, BlockKrylov, CovarianceAveraging, DeEPCA, DePCA, State
from deepca.consensus.mixers import Chebyshev, FastMix, Gossip, Mixer, PositiveChebyshev
from deepca.data.columns import agree_on_columns
from deepca.data.local_data import Holdings, read
from deepca.data.sources import Source
from deepca.data.statistics import Totals, agreed_totals
from deepca.decomposition.model import Model
from deepca.engines.keeping import Keeper, Keeping
from deepca.engines.local import Engine
from deepca.errors import DataError, InvalidInput, NetworkError
from deepca.network.base import Network, Traffic
from deepca.network.broadcasts import packed
from deepca.network.compression import Messages
from deepca.operators.base import Form, Operator, OperatorLike
from deepca.operators.linalg import first_columns
from deepca.solver.certificate import Certificate, digest_of
from deepca.solver.deflation import sharpened
from deepca.solver.loop import solve
from deepca.solver.observers import Observer
from deepca.solver.result import Result
from deepca.solver.ritz_axes import filled_up, principal_axes
from deepca.solver.stopping import Tolerance
from deepca.solver.verdict import UNDERFLOW, with_few_rows
from deepca.topology.graph import Topology

__all__ = [
    "ALGORITHMS",
    "Decomposition",
    "Resumption",
    "Settings",
    "algorithm_of",
    "decompose",
    "decompose_held",
    "decompose_read",
    "model_of",
    "read_agreed",
]

ALGORITHMS = ("auto", "krylov", "accelerated", "deepca", "depca", "covariance")
_EXACT = ("krylov", "covariance")  # averages to rounding, over a tree
_FIRST_GUESS = 8  # components, where a share of the variance is asked for
_EPS = float(np.finfo(np.float64).eps)
_ONE_AND_ANOTHER = "an agent says one thing and then another, so nothing can be relied on; look at the agents"
_TRACE = 1e-6  # relative error of a sum of variances that is not looked into
_NO_SQUARE = math.sqrt(UNDERFLOW) / _EPS  # values below may differ by so little that squares underflow
_GLANCE = 60  # iterations that tell how much variance k components explain


@dataclass(frozen=True)
class Settings:
    """What is asked for.

    n_components : how many; or, in (0, 1), the share of variance to explain; or None for as many as there can be.
    algorithm : one of ALGORITHMS; see :func:`algorithm_of`.
    rounds : K of every iteration where averages are made by gossip, or "auto".
    messages : what a number takes in a message of gossip: "float64", or "float32" or "float16".
    tol : largest acceptable tangent of the angle at any agent.
    """

    n_components: int | float | None = None
    center: bool = True
    scale: bool = False
    algorithm: str = "auto"
    rounds: int | Literal["auto"] = "auto"
    tol: float = 1e-10
    max_iter: int = 10_000
    seed: int | None = 0
    form: Form = "auto"
    messages: Messages = "float64"


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
    keeper: Keeper | None = None


@dataclass(frozen=True)
class Resumption:
    """Where a run goes on that was interrupted: at a State that all agents have, or at one agent's directions.

    state : of the same iteration at every agent; tracking goes on as if nothing had happened.
    directions : ``(k, d)`` orthonormal rows, the same at every agent, where who takes part has changed: tracking begins
    anew there, with a first mix that is long enough to lose nothing.
    """

    state: State | None = None
    directions: Array | None = None


def decompose(
    sources: Sequence[Source],
    network: Network,
    settings: Settings,
    *,
    weights: Sequence[Array] | None = None,
    start: Array | None = None,
    observers: Sequence[Observer] = (),
    tell: Callable[[int], None] | None = None,
    engine: Engine | None = None,
    keeping: Keeping | None = None,
) -> Decomposition:
    """The principal components of the rows of all agents.

    Parameters
    ----------
    sources : the rows of each local agent.
    weights : one array per local agent; a weight of 2 counts as a row given twice.
    start : ``(k', d)`` orthonormal rows to begin with, the same at every agent; as many are added or dropped as needed.
    observers : told of every iteration.  tell : told of rows as they are read.
    engine : where several processes run this together, so that what fails in one of them is known to all.
    keeping : where checkpoints are kept; a run that was interrupted goes on from those it finds there. They stay until
        :meth:`Keeper.clear <deepca.engines.keeping.Keeper.clear>` of the result's keeper is called, when the result is
        safe.
    """
    before, engine = network.traffic, engine or Engine()
    held = read_agreed(sources, network, settings, weights=weights, tell=tell, engine=engine)
    found = decompose_read(held, network, settings, start=start, observers=observers, keeping=keeping)
    return replace(found, traffic=network.traffic - before)


def read_agreed(
    sources: Sequence[Source],
    network: Network,
    settings: Settings,
    *,
    weights: Sequence[Array] | None = None,
    tell: Callable[[int], None] | None = None,
    engine: Engine | None = None,
) -> Holdings:
    """What the local agents hold, read once, when all agents are known to have the same columns.

    Parameters: those of :func:`decompose`, whose first half this is.
    """
    check(settings)
    local = int(np.prod(network.batch)) if network.batch else 1
    if len(sources) != local:
        raise DataError(f"{len(sources)} blocks of rows for {local} agents; give one per agent")
    engine = engine or Engine()
    sources = engine.common_columns(sources)
    agree_on_columns(network, sources[0])
    with engine.together():
        return read(sources, weights, form=settings.form, tell=tell)


def decompose_read(
    held: Holdings,
    network: Network,
    settings: Settings,
    *,
    start: Array | None = None,
    observers: Sequence[Observer] = (),
    keeping: Keeping | None = None,
) -> Decomposition:
    """As :func:`decompose`, of rows that were read already and whose columns are known to agree."""
    check(settings)
    before, keeper, resume = network.traffic, None, None
    if keeping is not None:
        keeper = Keeper(keeping, network, held, settings)
        state = keeper.find()
        resume = None if state is None else Resumption(state=state)
    keepers = () if keeper is None else (keeper,)
    found = decompose_held(held, network, settings, start=start, observers=observers, keepers=keepers, resume=resume)
    return replace(found, traffic=network.traffic - before, keeper=keeper)


def decompose_held(
    held: Holdings,
    network: Network,
    settings: Settings,
    *,
    start: Array | None = None,
    observers: Sequence[Observer] = (),
    keepers: Sequence[Observer] = (),
    resume: Resumption | None = None,
    weighted: bool = True,
) -> Decomposition:
    """As :func:`decompose_read`, where checkpoints are somebody else's business.

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
        raise DataError(
            f"the squares of the values underflow: the variance of all columns together is {total:.1e}, and products "
            f"below {UNDERFLOW:.0e} lose digits; multiply the data by a power of ten"
        )
    # with this factor mean A_j is the covariance matrix itself
    scale = network.n_agents / (totals.weight - 1.0)
    A = held.operator(network.batch, *centre, units, scale, unit_rounding=totals.unit_rounding)
    most, limit = min(totals.n_counted, A.d), totals.n_rows - int(settings.center)
    run = _Run(A, network, settings, most, limit, total, tuple(observers), tuple(keepers))
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
    """What is kept of a decomposition; ``single`` stores float32, where variances and units fit into it."""
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


@dataclass(frozen=True)
class _Found:
    components: Array
    variances: Array
    directions: Array
    result: Result[Any]


@dataclass(frozen=True)
class _Run:
    """The problem after everything about the rows is settled.

    most : components that can be asked for.  rank_limit : directions that so many rows can have.
    total : variance of all columns together.
    """

    A: Operator
    network: Network
    settings: Settings
    most: int
    rank_limit: int
    total: float
    observers: tuple[Observer, ...]
    keepers: tuple[Observer, ...] = ()

    def resumed(self, at: Resumption) -> _Found:
        """Go on where a run was interrupted."""
        wanted = self.settings.n_components
        if at.state is not None:
            k = at.state.W.shape[-1]
        elif at.directions is not None:  # somebody else's, perhaps of other rows: they say where to start, and no more
            k = min(len(at.directions), self.most) if isinstance(wanted, float) else wanted or self.most
        else:
            raise InvalidInput("there is nothing to resume: give a state, or directions")
        found = self.exactly(k, at.directions, state=at.state, disturbed=at.state is None)
        if not isinstance(wanted, float):
            return found
        if _needed(found.variances, wanted, self.total) == k:
            return found
        return self.share(wanted, found.directions)

    def exactly(
        self,
        k: int,
        start: Array | None,
        *,
        glance: bool = False,
        state: State | None = None,
        disturbed: bool = False,
    ) -> _Found:
        """The top k; at a glance, only so well that the variance explained can be judged.

        state : to go on from.  disturbed : whether ``start`` is where a run had come before the network changed.
        """
        if k > self.most:
            raise InvalidInput(
                f"n_components = {k}, but {self.most} is the most that min(rows, columns) allows here; ask for fewer"
            )
        at = self.settings
        W0 = first_columns(self.A.d, k, start, at.seed)
        algorithm = algorithm_of(at.algorithm, self.A, W0, self.network, rounds=at.rounds, messages=at.messages)
        if disturbed:
            self.network.begin(self.network.epoch, 0, "restart")
            state = algorithm.restart(algorithm.init(), algorithm.rounds_for(max(at.tol * 1e-2, _EPS)))
        left = at.max_iter if state is None else max(at.max_iter - state.t, 1)
        result: Result[Any] = solve(
            algorithm,
            max_iter=min(_GLANCE, at.max_iter) if glance else left,
            stop=Tolerance(1e-2 if glance else at.tol),
            observers=self.observers if glance else (*self.observers, *self.keepers),
            start=state,
            certify=not glance,
        )
        X = result.components.reshape(-1, self.A.d, k)[0]
        known = algorithm.directions(result.state) if isinstance(algorithm, BlockKrylov) else None
        proof = result.certificate
        if proof is not None:  # the same at all agents, and turned to its axes
            X, result = sharpened(self.A, self.network, X, result, self._search, tol=at.tol, trace=self.total)
            result = with_few_rows(result, self.rank_limit)
            proof = result.certificate or proof
            variances = np.array(proof.eigenvalues)
            X = filled_up(X, proof, self.network)
            spread = np.array(np.broadcast_to(X, result.components.shape))
            result = replace(result, components=spread, certificate=replace(proof, digest=digest_of(X)))
        else:
            X, variances, _ = principal_axes(self.A, self.network.broadcast(result.components), self.network)
        components = np.ascontiguousarray(X.T)
        return _Found(components, variances, components if known is None else known, result)

    def _search(self, A: Operator, k: int, most: int) -> Result[Any]:
        """The top k of rows that were deflated, found the same way, in at most so many iterations."""
        at, W0 = self.settings, first_columns(A.d, k, None, self.settings.seed)
        algorithm = algorithm_of(at.algorithm, A, W0, self.network, rounds=at.rounds, messages=at.messages)
        return solve(algorithm, max_iter=min(most, at.max_iter), stop=Tolerance(at.tol))

    def share(self, wanted: float, start: Array | None) -> _Found:
        """As few components as explain more than ``wanted`` of the total variance.

        A glance at ever more components finds how many it takes: variances seen are never too large, so what explains
        enough at a glance does. Then the exact run for that many; if it shows that fewer suffice, again with fewer.
        """
        k = min(_FIRST_GUESS if start is None else max(_FIRST_GUESS, len(start)), self.most)
        while True:
            seen = self.exactly(k, start, glance=True)
            start, enough = seen.directions, _needed(seen.variances, wanted, self.total)
            if enough <= k or k == self.most:
                break
            k = min(2 * k, self.most)
        k = min(enough, self.most)
        while True:
            found = self.exactly(k, start)
            enough = min(_needed(found.variances, wanted, self.total), k)
            if enough == k:
                return found
            k, start = enough, found.directions


def check(settings: Settings) -> None:
    """An error for settings that no data could be fit with."""
    k = settings.n_components
    if k is not None and (isinstance(k, bool) or not isinstance(k, (int, float))):
        raise InvalidInput(f"n_components = {k!r}: give a number, a share of variance in (0, 1), or None")
    if isinstance(k, float) and not 0.0 < k < 1.0:
        raise InvalidInput(f"n_components = {k!r}: a share of variance must lie between 0 and 1; a number is an int")
    if k is not None and k <= 0:
        raise InvalidInput(f"n_components = {k}: at least one component is needed")
    rounds = settings.rounds
    if rounds != "auto" and (isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1):
        raise InvalidInput(f"rounds = {rounds!r}: a whole number of at least 1, or 'auto'")
    Tolerance(settings.tol)
    seed = settings.seed
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0):
        raise InvalidInput(f"seed = {seed!r}: a whole number of at least 0, or None")
    if settings.algorithm not in ALGORITHMS:
        raise InvalidInput(f"algorithm = {settings.algorithm!r}: choose one of {', '.join(ALGORITHMS)}")
    if settings.messages not in get_args(Messages):
        raise InvalidInput(f"messages = {settings.messages!r}: choose one of {', '.join(get_args(Messages))}")
    if settings.messages != "float64" and settings.algorithm in _EXACT:
        raise InvalidInput(
            f"messages = {settings.messages!r} with algorithm = {settings.algorithm!r}: exact averages need all "
            "digits; use algorithm = 'accelerated'"
        )


def _check_enough(totals: Totals, settings: Settings) -> None:
    if totals.n_rows < 2:
        raise DataError(
            "one row in all: variance needs at least two" if totals.n_rows else "the weights of all rows are zero"
        )
    if totals.constant.all() and (settings.center or not totals.mean.any()):
        raise DataError(
            f"all {totals.n_rows} rows are equal, or differ by too little to square: there is no variance to explain"
            if settings.center
            else f"all {totals.n_rows} rows are zero; there is nothing to explain"
        )
    if not totals.weight > 1.0:
        raise DataError(
            f"the weights sum to {totals.weight:g}: a weight counts how often a row occurs, so they must sum to more "
            "than 1; multiply them all by the number of rows, or forget less"
        )
    k = settings.n_components
    most = min(totals.n_counted, totals.shift.size)
    if k is not None and not isinstance(k, float) and k > most:
        raise InvalidInput(
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
        raise DataError(
            f"{_columns(differ, source)}: too small to square (standard deviation below {math.sqrt(UNDERFLOW):.0e}), "
            "so there is nothing to scale by; multiply by a power of ten, leave out, or use scale=False"
        )
    if totals.constant.any():
        raise DataError(
            f"{_columns(totals.constant, source)}: the same value in all {totals.n_rows} rows of all agents, so there "
            "is nothing to scale by; leave the column out, or use scale=False"
        )
    return units


def _columns(which: npt.NDArray[np.bool_], source: Source) -> str:
    """Return the names of some columns, or their numbers, as a text; of many, the first six."""
    places = np.flatnonzero(which)
    names = [repr(source.columns[c]) if source.columns is not None else str(c) for c in places[:6]]
    more = f" and {places.size - 6} more" if places.size > 6 else ""
    return f"column{'s' if places.size > 1 else ''} {', '.join(names)}{more}"


def algorithm_of(
    name: str,
    A: OperatorLike,
    W0: Array,
    network: Network,
    *,
    rounds: int | Literal["auto"] = "auto",
    messages: Messages = "float64",
) -> Algorithm[Any]:
    """An algorithm by its name.

    =========== ====================================================================================================
    auto        "krylov" where no message can get lost (``network.reliable``), else "accelerated"; never "covariance"
    krylov      :class:`~deepca.algorithms.BlockKrylov`: fewest products; averages exactly, over a spanning tree
    accelerated :class:`~deepca.algorithms.AcceleratedDeEPCA`: tracking, with momentum and guard columns
    deepca      :class:`~deepca.algorithms.DeEPCA`: the paper's Algorithm 1
    depca       :class:`~deepca.algorithms.DePCA`: without tracking, to compare with
    covariance  :class:`~deepca.algorithms.CovarianceAveraging`: sends every agent's matrix as it is
    =========== ====================================================================================================
    """
    check(Settings(algorithm=name, rounds=rounds, messages=messages))
    if name == "auto":
        name = "krylov" if network.reliable and messages == "float64" else "accelerated"
    if name == "krylov":
        return BlockKrylov(A, W0, network)
    if name == "covariance":
        return CovarianceAveraging(A, W0, network)
    if not network.topology.stays:
        mix: Mixer = Gossip(rounds, messages)
    elif name == "accelerated":
        mix = PositiveChebyshev(rounds, messages)
    else:
        mix = (FastMix if network.topology.positive_semidefinite else Chebyshev)(rounds, messages)
    if name == "accelerated":
        return AcceleratedDeEPCA(A, W0, network, mix)
    return (DeEPCA if name == "deepca" else DePCA)(A, W0, network, mix)


def _needed(variances: Array, wanted: float, total: float) -> int:
    """How many components explain more than the share wanted; one more than there are if all do not."""
    return sum(explained / total <= wanted for explained in accumulate(map(float, variances))) + 1
