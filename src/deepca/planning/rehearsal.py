"""Run the real algorithms on surrogate agents and count what they send."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from deepca._util.machine import one_blas_thread
from deepca._util.renamed import renamed_attributes
from deepca._util.typing import Array
from deepca.consensus.mixers import Chebyshev, FastMix
from deepca.consensus.rates import first_rounds
from deepca.data.moments import empty_moments
from deepca.data.statistics import agree_on_statistics
from deepca.decomposition.settings import create_algorithm
from deepca.network.compression import Messages
from deepca.network.private import make_private
from deepca.operators.base import Operator
from deepca.operators.covariances import Covariances
from deepca.planning.metered import Cost, LinkSpeed, MeteredNetwork, Sent
from deepca.planning.methods import TREE_ALGORITHMS, ObserverFactory, Trajectory, message_precision
from deepca.solver.loop import solve
from deepca.solver.result import StatusCode
from deepca.solver.stopping import Tolerance
from deepca.topology.graph import Topology

__all__ = ["MessageLength", "Prediction", "Rehearsal", "SharedMatrix", "SurrogateAgents"]

_HETEROGENEITY = 2  # ratio of squared differences between sites, real data to Gaussian rows; measured: 1.9 … 2.4
_AFFORDABLE_ENTRIES = 2_000_000  # number of entries of all A_j with which iterations take a second or two
MAX_COLUMNS = 200_000  # maximum number of columns of all agents; fewer columns represent all of them beyond that
MAX_ENTRIES = 40_000_000  # maximum number of entries of all A_j; beyond that, all agents have the same matrix
_AFFORDABLE_PRODUCTS = 5 * 10**9  # number of scalar multiplications of a rehearsal, which take some seconds
MIN_REHEARSED_ITERATIONS, MAX_REHEARSED_ITERATIONS = 60, 1000  # limits of a rehearsal; longer runs are extrapolated
MAX_ITERATIONS = 1_000_000  # an algorithm that needs more does not count as reaching the tolerance
_RECORD_EVERY = 8  # iterations from one measurement of the angle to the next
_SEED = 5003


@renamed_attributes(method="algorithm", running="iteration_cost", proof="certificate_cost", reaches="reaches_tol")
@dataclass(frozen=True)
class Prediction:
    """Predicted cost of one algorithm.

    Parameters
    ----------
    algorithm : str
        Name of the algorithm.
    iterations : int
        Number of iterations.
    iteration_cost, certificate_cost, total : Cost
        Cost of the iterations, of the certificate, and of both.
    reaches_tol : bool
        Whether the algorithm reaches the tolerance; if not, the costs are those of the rehearsal.
    extrapolated : bool
        Whether the run would be longer than the rehearsal, so that iterations and costs are extrapolated.
    remark : str
        Facts that matter for the choice of the algorithm; may be empty.
    """

    algorithm: str
    iterations: int
    iteration_cost: Cost
    certificate_cost: Cost
    total: Cost
    reaches_tol: bool
    extrapolated: bool
    remark: str


@dataclass(frozen=True)
class SurrogateAgents:
    """Agents without data, on which algorithms are rehearsed.

    Parameters
    ----------
    A : Operator
        The ``A_j``.
    W0 : array
        Starting point.
    U : array
        The k leading eigenvectors of the mean.
    values : array
        All eigenvalues of the mean, descending.
    d : int
        Number of columns of the real data, at least ``values.size``.
    """

    A: Operator
    W0: Array
    U: Array
    values: Array
    d: int

    @classmethod
    def of(cls, values: Array, k: int, m: int, rows: int, seed: int, least: int) -> SurrogateAgents:
        """Draw agents the mean of whose matrices has these eigenvalues; keep at least ``least`` columns."""
        d = values.size
        used = min(d, max(min(math.isqrt(_AFFORDABLE_ENTRIES // m), MAX_COLUMNS // m), least))
        kept, stands_for = _representatives(values, used)
        rng = np.random.default_rng((_SEED, seed))
        v = rng.standard_normal(used)
        v /= np.linalg.norm(v)
        # one direction represents many with the same eigenvalue, so a random start has a larger component along it
        W0 = _reflected(v, np.linalg.qr(rng.standard_normal((used, k)) * np.sqrt(stands_for)[:, None])[0])
        U = _reflected(v, np.eye(used, k))
        if m * used * used > MAX_ENTRIES:
            return cls(SharedMatrix(kept, v, m), W0, U, kept, d)
        spread = np.sqrt(np.where(stands_for > 1.0, np.minimum(kept * stands_for, kept[k]), kept))
        with one_blas_thread():
            stack = np.stack([_sample(rng, spread, max(rows // _HETEROGENEITY, 1)) for _ in range(m)])
        stack += np.diag(kept) - stack.mean(axis=0)
        stack = _reflected(v, np.swapaxes(_reflected(v, stack), -1, -2))
        return cls(Covariances((stack + np.swapaxes(stack, -1, -2)) / 2.0), W0, U, kept, d)


class SharedMatrix(Operator):
    """The same matrix ``H diag(values) H`` at every agent, with ``H = I − 2vvᵀ``."""

    form = "diagonal"

    def __init__(self, values: Array, v: Array, m: int | None) -> None:
        self._values, self._v, self.batch, self.d = values, v, () if m is None else (m,), values.size
        self.bytes_read = values.nbytes

    def __matmul__(self, W: Array) -> Array:
        """Multiply by two reflections and a diagonal matrix."""
        return _reflected(self._v, self._values[:, None] * _reflected(self._v, W))

    def row_bounds(self) -> Array:
        """Return the largest absolute eigenvalue for every row."""
        return np.full((*self.batch, self.d), float(np.abs(self._values).max()))

    def agent(self, j: int) -> SharedMatrix:
        """Return the matrix of one agent."""
        return SharedMatrix(self._values, self._v, None)

    def dense(self) -> Array:
        """Return the matrices as one array."""
        return np.asarray(np.broadcast_to(self.agent(0) @ np.eye(self.d), (*self.batch, self.d, self.d)))


def _reflected(v: Array, X: Array) -> Array:
    """Reflect ``X`` by ``I − 2vvᵀ``, batched; eigenvectors along the axes would be found without rounding errors."""
    return np.asarray(X - 2.0 * v[:, None] * (v @ X)[..., None, :])


def _representatives(values: Array, used: int) -> tuple[Array, Array]:
    """Choose ``used`` values that represent all eigenvalues: the first half as they are, then means of groups.

    Return them, and the number of eigenvalues that each represents.
    """
    exact = used if used == values.size else used // 2
    groups = np.array_split(values[exact:], used - exact) if used > exact else []
    kept = np.concatenate([values[:exact], [float(group.mean()) for group in groups]])
    return kept, np.concatenate([np.ones(exact), [float(group.size) for group in groups]])


def _sample(rng: np.random.Generator, spread: Array, rows: int) -> Array:
    """Draw the matrix of second moments of Gaussian rows with standard deviations ``spread``."""
    d = spread.size
    if rows <= d:
        G = rng.standard_normal((rows, d)) * spread
        return np.asarray(G.T @ G / rows)
    # Bartlett: the triangular factor of such a matrix, without drawing the rows
    L = np.tril(rng.standard_normal((d, d)), -1)
    L[np.diag_indices(d)] = np.sqrt(rng.chisquare(rows - np.arange(d)))
    L *= spread[:, None]
    return np.asarray(L @ L.T / rows)


@dataclass(frozen=True)
class Rehearsal:
    """Runs of algorithms on surrogate agents, which count what the algorithms send.

    Parameters
    ----------
    topology : Topology
        The network.
    link : LinkSpeed
        Speed of every agent's connection.
    reliable : bool
        Whether averages may rely on every message.
    tol : float
        Tolerance.
    messages : {"float64", "float32", "float16"}
        Precision of gossip messages.
    observer_factory : callable or None
        Returns an observer for the algorithm of a given name.
    private : bool, default=False
        Whether agents mask what they add to sums. Algorithms that gossip run in the open all the same.
    """

    topology: Topology
    link: LinkSpeed
    reliable: bool
    tol: float
    messages: Messages
    observer_factory: ObserverFactory | None
    private: bool = False

    def prediction(self, algorithm: str, agents: SurrogateAgents) -> Prediction:
        """Run an algorithm and extrapolate if it does not finish within the affordable iterations."""
        k = agents.W0.shape[1]
        network = self._network(agents, k, private=self.private and algorithm in TREE_ALGORITHMS)
        course = _Extrapolation(agents.U, lambda: network.running, every=_RECORD_EVERY)
        limit = self._affordable(agents)
        result = solve(
            create_algorithm(
                algorithm, agents.A, agents.W0, network, messages=message_precision(algorithm, self.messages)
            ),
            max_iter=limit,
            stop=Tolerance(self.tol),
            observers=[course] if self.observer_factory is None else [course, self.observer_factory(algorithm)],
        )
        running, iterations, reaches, remark = network.running, result.iterations, result.status.ok, ""
        extrapolated = not reaches and iterations == limit  # whatever its status, the trajectory of the angle decides
        if extrapolated:
            slowest = agents.values[k] / agents.values[k - 1] if algorithm == "deepca" else 0.0
            more = course.iterations_to(self.tol, float(slowest))
            reaches = more <= MAX_ITERATIONS
            too_many = f"would take more than {MAX_ITERATIONS:,} iterations"
            remark = too_many if more < math.inf else "does not converge"
            if reaches:
                running, iterations = running + course.recent * more, iterations + math.ceil(more)
                remark = f"extrapolated from {result.iterations} iterations"
        elif result.status.code == StatusCode.ROUNDING_FLOOR and result.certificate is not None:
            remark = f"limited by rounding to {result.certificate.proven_angle:.0e}, short of the tolerance"
        elif not reaches:
            remark = f"does not reach the tolerance: {result.status.code.replace('_', ' ')}"
        return Prediction(
            algorithm=algorithm,
            iterations=iterations,
            iteration_cost=running.cost(),
            certificate_cost=network.proving.cost(),
            total=(running + network.proving).cost(),
            reaches_tol=reaches,
            extrapolated=extrapolated and reaches,
            remark=remark,
        )

    def preparation(self, agents: SurrogateAgents, rows: int) -> Cost:
        """Return the cost of agreeing on counts, mean and spread, as in :func:`deepca.decomposition.fit.decompose`."""
        network = self._network(agents, 1, private=self.private)
        one = replace(empty_moments(agents.A.d, scatter=False), n=rows, weight=float(rows), squares=np.ones(agents.A.d))
        agree_on_statistics(network, [one] * network.n_agents)
        return network.running.cost()

    def _network(self, agents: SurrogateAgents, columns: int, *, private: bool) -> MeteredNetwork:
        length = MessageLength(agents.A.d, agents.d, self.topology.n_agents, columns)
        network = MeteredNetwork(self.topology, self.link, length, reliable=self.reliable)
        if private:
            make_private(network)
        return network

    def _affordable(self, agents: SurrogateAgents) -> int:
        """Return the number of iterations that a rehearsal can afford."""
        (d, k), m = agents.W0.shape, self.topology.n_agents
        mixer = FastMix() if self.topology.positive_semidefinite else Chebyshev()
        # few agents mix in a single product, many round by round
        mixing = m if m <= 128 else first_rounds(mixer, self.topology) * self.topology.gossip_sparse.nnz / m
        return int(
            min(
                max(_AFFORDABLE_PRODUCTS / (m * d * k * (d + mixing)), MIN_REHEARSED_ITERATIONS),
                MAX_REHEARSED_ITERATIONS,
            )
        )


class _Extrapolation(Trajectory[Sent]):
    """Trajectory of the angle and the traffic of a run, with their extrapolation."""

    @property
    def recent(self) -> Sent:
        """Mean traffic of an iteration in the second half of the run."""
        (first, _, before), (last, _, after) = self.records[len(self.records) // 2], self.records[-1]
        return (after - before) * (1.0 / (last - first))

    def iterations_to(self, tol: float, slowest: float) -> float:
        """Return the number of further iterations to ``tol``, at the slower of the recent and the known rate.

        Return inf if the angle does not decrease.
        """
        (first, before, _), (last, after, _) = self.records[len(self.records) // 2], self.records[-1]
        if not (0.0 < after < before < math.inf):
            return math.inf
        rate = max(math.log(after / before) / (last - first), math.log(max(slowest, 1e-300)))
        return max(math.log(tol / after) / rate, 0.0) if rate < 0.0 else math.inf


@dataclass(frozen=True)
class MessageLength:
    """Size of the messages of real agents with d columns, given the size for surrogates with ``used`` columns.

    Parameters
    ----------
    used, d : int
        Number of columns of the surrogate agents and of the real data.
    m : int
        Number of agents.
    columns : int
        Smallest number of vectors that a message with vectors contains. A message too short for so many vectors
        contains none, so its size does not depend on the number of columns.
    """

    used: int
    d: int
    m: int
    columns: int

    def __call__(self, nbytes: int) -> int:
        """Return the size of a message of real agents, given that of the same message of surrogate agents."""
        shortest = 2 * self.used  # bytes of a vector in float16, the shortest format
        one_per_agent = 8 * self.m <= nbytes <= 8 * (self.m + 2)
        if self.used == self.d or nbytes < self.columns * shortest or one_per_agent:
            return nbytes
        triangle = self.used * (self.used + 1) // 2
        if triangle <= nbytes // 8 <= triangle + 3:  # a covariance matrix, two counts, and a gap on the way down
            return nbytes + 8 * (self.d * (self.d + 1) // 2 - triangle)
        columns, rest = divmod(nbytes, shortest)
        return 2 * columns * self.d + rest
