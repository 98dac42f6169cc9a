"""Eigenpairs of the mean or the sum of the agents' symmetric operators, at one end of the spectrum or at both.

Power iterations, and methods built on them, find the dominant eigenvectors of a positive semidefinite mean. Agents
therefore first agree on bounds of the spectrum (:mod:`deepca.decomposition.spectral_bounds`), then iterate with
``± A_j + σI``, which has the same eigenvectors; those wanted have the largest eigenvalues. So every A_j may be
indefinite, and so may their mean. A shift reduces relative gaps, so the default methods are those that need only 1/√gap
products: block Krylov spaces, which are invariant under a shift, and accelerated tracking.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Unpack, get_args

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator

from deepca._util.typing import Array
from deepca.algorithms import DeEPCA, QRSignAdjust
from deepca.algorithms.base import matching_operator
from deepca.consensus.broadcasts import check_basis
from deepca.decomposition.eigen_status import EigenOutcome, modulus_margin, proven_largest, status_of
from deepca.decomposition.leading import Answer, LeadingEigenpairs, checked_k, common_settings, find_leading
from deepca.decomposition.pairs import RitzPairs, Which, order_of, ritz_pairs, with_tighter_bounds
from deepca.decomposition.settings import SearchOptions, Settings, create_algorithm, with_search_options
from deepca.decomposition.spectral_bounds import SpectralBounds, agreed_spectral_bounds
from deepca.errors import ParameterError
from deepca.network.base import Network
from deepca.network.traffic import Traffic
from deepca.operators.base import Operator, OperatorLike
from deepca.operators.linalg import qr, starting_block
from deepca.operators.linear_operators import from_linear_operators, linear_operator
from deepca.operators.shifted import Shifted
from deepca.solver.certificate.bounds import Certificate
from deepca.solver.loop import solve
from deepca.solver.observers import Observer
from deepca.solver.result import Result, Status, StatusCode
from deepca.solver.stopping import Tolerance

__all__ = ["Eigenpairs", "Of", "Which", "eigenpairs", "symmetric_operators"]

Of = Literal["mean", "sum"]
_MAX_SPLITS = 6  # attempts at dividing k between the two ends of the spectrum
_EIGENVALUE_TOLERANCE = 1e-8  # largest difference of an eigenvalue between two runs, relative to the spectrum's size
_MAX_TIGHTENINGS = 4  # runs of the paper's method, each with a tenfold smaller tolerance, until the proof succeeds


@dataclass(frozen=True, repr=False)
class Eigenpairs(Answer):
    """Eigenpairs with error bounds, bitwise identical at every agent except for ``traffic``.

    Parameters
    ----------
    values : array of shape (k,)
        Eigenvalues: descending for "LA", ascending for "SA", by descending modulus for "LM".
    vectors : array of shape (d, k)
        Orthonormal eigenvectors; the entry of largest absolute value of each is positive.
    residuals : array of shape (k,)
        Upper bounds on ``‖A x_i − λ_i x_i‖`` from newly computed exact averages, including rounding errors. At least
        one eigenvalue lies within this distance of each value.
    angles : array of shape (k,)
        Bounds on the tangent of the angle between each vector and an eigenvector; inf within a cluster.
    angle : float
        Bound on the tangent of the angle between the span of all vectors and that of the eigenvectors.
    clusters : tuple of tuple of int
        Indices of pairs whose values cannot be distinguished; only the span of such a group is defined.
    others : tuple of float
        Interval that contains all other eigenvalues, except with probability ``failure``.
    failure : float
        Probability with which the bounds may fail.
    well_defined : tuple of int
        The next smaller and the next larger k with a gap after them, if they are known.
    status : Status
        How the search ended, and what to do about it.
    iterations : int
        Number of iterations of all runs.
    shifts : tuple of float
        Shift σ of each run.
    certificates : tuple of Certificate
        Certificates of the runs; they describe ``± A + σI``.
    traffic : Traffic
        Traffic of the local agents.
    """

    values: Array
    vectors: Array
    residuals: Array
    angles: Array
    angle: float
    clusters: tuple[tuple[int, ...], ...]
    others: tuple[float, float]
    failure: float
    well_defined: tuple[int, ...]
    status: Status
    iterations: int
    shifts: tuple[float, ...]
    certificates: tuple[Certificate, ...]
    traffic: Traffic

    def __repr__(self) -> str:
        """Return a summary with the status."""
        return f"Eigenpairs({self.values.size} of d = {self.vectors.shape[0]}; {self.status})"


@with_search_options
def eigenpairs(
    A: OperatorLike,
    network: Network,
    k: int,
    *,
    which: Which = "LA",
    of: Of = "mean",
    start: Array | None = None,
    observers: Sequence[Observer] = (),
    **options: Unpack[SearchOptions],
) -> Eigenpairs:
    """Compute k eigenpairs of the mean or the sum of the ``A_j``; every agent makes the same call.

    Parameters
    ----------
    A : array of shape (m, d, d), sequence of matrices, or Operator
        Symmetric ``A_j`` of the local agents: arrays, sparse matrices or LinearOperators, possibly indefinite.
    network : Network
        Network of the agents.
    k : int
        Number of eigenpairs, at most the dimension of the matrices.
    which : {"LA", "SA", "LM"}
        Eigenvalues to find: algebraically largest, algebraically smallest, or largest in modulus.
    of : {"mean", "sum"}
        Whether to decompose the mean or the sum of the ``A_j``.
    start : array of shape (k', d), optional
        Orthonormal rows to start from, the same at every agent.
    observers : sequence of Observer
        Notified of every iteration.
    algorithm : str
        Name of the algorithm, see :func:`~deepca.decomposition.settings.create_algorithm`. It runs on ``± A_j + σI``;
        only "deepca" with "LM" runs on the A_j themselves, with the paper's QR and SignAdjust.
    rounds : int or "auto"
        Gossip rounds per iteration.
    tol : float
        Largest acceptable tangent of the angle between the span of the vectors and the true one.
    max_iter, seed : int
        Maximum number of iterations of each run, and seed of the random start (None for a different one every time).

    Returns
    -------
    Eigenpairs
        The pairs with their error bounds; check ``status``, or call ``required()``.

    Raises
    ------
    DataError, ParameterError, StartError
        If the ``A_j`` are unusable, a parameter is invalid, or ``start`` has no orthonormal rows of the right length.
    InvalidInput, NetworkError
        If agents make different calls, or the network changes in the last iteration, so that nothing is certified.

    Examples
    --------
    >>> import deepca
    >>> A = np.stack([np.diag([3.0, -5.0, 1.0]) + j * np.eye(3) for j in (-1, 0, 1)])
    >>> deepca.eigenpairs(A, deepca.SimulatedNetwork(deepca.topology.ring(3)), 2, which="LM").values.round(6)
    array([-5.,  3.])
    """
    return _eigenpairs(A, network, k, which, of, start, observers, options)


def _eigenpairs(
    A: OperatorLike,
    network: Network,
    k: int,
    which: Which,
    of: Of,
    start: Array | None,
    observers: Sequence[Observer],
    options: SearchOptions,
) -> Eigenpairs:
    if which not in get_args(Which):
        raise ParameterError("which", which, "choose 'LA' (largest), 'SA' (smallest) or 'LM' (largest in modulus)")
    if of not in get_args(Of):
        raise ParameterError("of", of, "choose 'mean' or 'sum'")
    before = network.traffic
    settings = common_settings(network, "eigenpairs", k, options, which=which, of=of)
    operator = matching_operator(symmetric_operators(A), network)
    checked_k(settings, operator.d)
    bounds = agreed_spectral_bounds(operator, network, tracked=_is_tracked(settings, network))
    search = _Search(operator, network, settings, bounds, start, tuple(observers))
    found = search.find(which)
    pairs, unit = found.pairs.ordered(which), float(network.n_agents) if of == "sum" else 1.0
    return Eigenpairs(
        values=pairs.values * unit,
        vectors=pairs.vectors,
        residuals=pairs.residuals * unit,
        angles=pairs.angles,
        angle=pairs.angle,
        clusters=pairs.clusters,
        others=(pairs.low * unit, pairs.high * unit),
        failure=pairs.failure,
        well_defined=found.well_defined,
        status=status_of(found, pairs, which, settings, unit),
        iterations=found.iterations,
        shifts=found.shifts,
        certificates=tuple(end.certificate for end in found.ends),
        traffic=network.traffic - before,
    )


def symmetric_operators(A: OperatorLike) -> OperatorLike:
    """Convert ``A_j`` that are given as arrays, sparse matrices and LinearOperators, in any combination.

    Parameters
    ----------
    A : array of shape (m, d, d), sequence of matrices, or Operator
        The ``A_j`` of the local agents.

    Returns
    -------
    OperatorLike
        An Operator if ``A`` contains sparse matrices or LinearOperators, else ``A`` itself.
    """
    if isinstance(A, Sequence) and any(isinstance(a, LinearOperator) or sparse.issparse(a) for a in A):
        return from_linear_operators([linear_operator(a, j) for j, a in enumerate(A)])
    return A


def _is_tracked(settings: Settings, network: Network) -> bool:
    """Return whether the algorithm of the settings tracks products."""
    exact = settings.algorithm in ("krylov", "covariance")
    return not (exact or (settings.algorithm == "auto" and network.reliable))


@dataclass(frozen=True)
class _Search:
    """A search for eigenpairs, after all agents have agreed on the call and on bounds of the spectrum."""

    A: Operator
    network: Network
    settings: Settings
    bounds: SpectralBounds
    start: Array | None
    observers: tuple[Observer, ...]

    @property
    def k(self) -> int:
        """Number of eigenpairs to find."""
        return checked_k(self.settings, self.A.d)

    def _end(self, sign: int, k: int) -> tuple[Shifted, LeadingEigenpairs]:
        """Find the k largest eigenvalues of ``sign · A``."""
        tracked = _is_tracked(self.settings, self.network)
        shifted = Shifted(self.A, self.bounds.shift(sign, tracked=tracked), sign)
        settings = replace(self.settings, n_components=k)
        return shifted, find_leading(shifted, self.network, settings, start=self.start, observers=self.observers)

    def find(self, which: Which) -> EigenOutcome:
        """Search one end of the spectrum or both, or run the paper's method on the A_j."""
        if which != "LM":
            return self.one_end(which)
        return self.without_shift() if self.settings.algorithm == "deepca" else self.both_ends()

    def one_end(self, which: Which) -> EigenOutcome:
        """Find the k largest or the k smallest eigenvalues."""
        shifted, found = self._end(1 if which == "LA" else -1, self.k)
        proof = found.certificate
        bound = float(shifted.original(proof.bound))
        low, high = (self.bounds.low, bound) if which == "LA" else (bound, self.bounds.high)
        failure = proof.failure + self.bounds.failure
        pairs = ritz_pairs(self.A, found.vectors, self.network, low, high, failure)
        status = found.result.status
        failed_status = None if status.ok else status
        known = _well_defined(pairs.ordered(which).values, proof, self.A.d, max(pairs.separation, 2.0 * pairs.spread))
        return EigenOutcome(pairs, found.result.iterations, (found,), (shifted.shift,), known, failed_status)

    def both_ends(self) -> EigenOutcome:
        """Find the k largest in modulus: p at the upper end and k − p at the lower, until p is right."""
        if self.k == self.A.d:
            return self.one_end("LA")
        known: dict[tuple[int, int], tuple[Shifted, LeadingEigenpairs]] = {}
        p, parts = self._first_split(), []
        for _ in range(_MAX_SPLITS):
            wanted = [(sign, n) for sign, n in ((1, p), (-1, self.k - p)) if n]
            parts = [known.setdefault(end, self._end(*end)) if end not in known else known[end] for end in wanted]
            best = np.concatenate([self._seen(1, parts), self._seen(-1, parts)])
            best = best[order_of(best, "LM")][: self.k]
            split = int(np.count_nonzero(best > 0.0))
            if split == p:
                break
            p = split
        low, high, failure = self.bounds.low, self.bounds.high, 2.0 * self.bounds.failure
        for shifted, found in parts:
            bound = float(shifted.original(found.certificate.bound))
            low, high = (low, min(high, bound)) if shifted.sign > 0 else (max(low, bound), high)
            failure += found.certificate.failure
        self.network.begin(self.network.epoch, 0, "both ends")
        X = self.network.from_leader(qr(np.hstack([found.vectors for _, found in parts]))[0])
        check_basis(self.network, "vectors", X)
        pairs = self._proven(ritz_pairs(self.A, X, self.network, low, high, failure))
        ends = tuple(found for _, found in parts)
        return EigenOutcome(
            pairs,
            sum(found.result.iterations for found in ends),
            ends,
            tuple(shifted.shift for shifted, _ in parts),
            failed_status=next((found.result.status for found in ends if not found.result.status.ok), None),
        )

    def _seen(self, sign: int, parts: Sequence[tuple[Shifted, LeadingEigenpairs]]) -> Array:
        """Return the eigenvalues of one sign that are known so far, each of them once.

        They come from the run at that end. Without one, they come from the run at the other end, followed by those Ritz
        values of the initial bounds that lie beyond all values of that run.
        """
        ends = {shifted.sign: shifted.original([*at.values, *at.certificate.others]) for shifted, at in parts}
        values = ends.get(sign)
        if values is None:
            values, initial = ends[-sign], self.bounds.values
            farther = sign * initial > sign * values[-1] + _EIGENVALUE_TOLERANCE * self.bounds.size
            values = np.concatenate([values, initial[farther & (values.size < self.A.d)]])
        return values[values > 0.0] if sign > 0 else values[values <= 0.0]

    def _first_split(self) -> int:
        """Guess from the initial Ritz values how many of the k largest in modulus are positive."""
        values = self.bounds.values
        largest = values[order_of(values, "LM")][: self.k]
        return min(math.ceil(self.k * float((largest > 0.0).mean())), self.k)

    def without_shift(self) -> EigenOutcome:
        """Run Algorithm 1 on the A_j themselves; SignAdjust corrects the alternating signs of negative eigenvalues.

        If the proof needs more accuracy, iterate further with a smaller tolerance.
        """
        at = self.settings
        W0 = starting_block(self.A.d, self.k, self.start, at.seed)
        mix = create_algorithm("deepca", self.A, W0, self.network, rounds=at.rounds).mix
        algorithm = DeEPCA(self.A, W0, self.network, mix, QRSignAdjust(W0))
        state, made, tol = None, 0, at.tol
        for _ in range(_MAX_TIGHTENINGS):
            left = max(at.max_iter - made, 1)
            rule, observers = Tolerance(tol), self.observers
            result = solve(algorithm, max_iter=left, stop=rule, observers=observers, start=state, certify=False)
            state, made, tol = result.state, made + result.iterations, 0.1 * tol
            X, failed_status = self._leaders_outcome(result)
            low, high, failure = self.bounds.low, self.bounds.high, 2.0 * self.bounds.failure
            pairs = ritz_pairs(self.A, X, self.network, low, high, failure)
            pairs = self._proven(pairs)
            if (
                failed_status is not None
                or made >= at.max_iter
                or modulus_margin(pairs) <= 0.0
                or pairs.angle <= at.tol
            ):
                break
        return EigenOutcome(pairs, made, failed_status=failed_status)

    def _leaders_outcome(self, result: Result[Any]) -> tuple[Array, Status | None]:
        """Return the leader's components, and the status of the run if it failed at the leader."""
        # an indefinite mean is expected here
        well = result.status.ok or result.status.code == StatusCode.INDEFINITE_MEAN
        flat = result.components.reshape(*self.network.batch, -1)
        own = np.concatenate([flat, np.full((*self.network.batch, 1), float(well))], axis=-1)
        shared = self.network.broadcast(own)
        X = shared[:-1].reshape(result.components.shape[-2:])
        check_basis(self.network, "vectors", X)
        return X, None if shared[-1] else result.status

    def _proven(self, pairs: RitzPairs) -> RitzPairs:
        """Tighten the bounds on all other eigenvalues until the pairs are proven, or cannot be, to be the largest."""
        if proven_largest(pairs) and pairs.angle <= self.settings.tol:
            return pairs
        found = pairs
        for found in with_tighter_bounds(self.A, pairs, self.network):
            # if one of the other eigenvalues is at least as large, no tighter bound can help
            if (proven_largest(found) and found.angle <= self.settings.tol) or modulus_margin(found) <= 0.0:
                break
        return found


def _well_defined(values: Array, proof: Certificate, d: int, separation: float) -> tuple[int, ...]:
    """Return the next smaller and the next larger k that are known to have a gap after them."""
    smaller = [j for j in range(1, values.size) if abs(values[j - 1] - values[j]) > separation]
    larger, others = proof.larger_k, proof.others
    more = 0 if larger is None else larger - values.size
    seen = larger == d or (0 < more < len(others) and others[more - 1] - others[more] > separation)
    return (*smaller[-1:], *([larger] if larger is not None and seen else []))
