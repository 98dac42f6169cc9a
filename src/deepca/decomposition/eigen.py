"""Eigenpairs of the mean, or the sum, of symmetric operators that agents hold, at either end of the spectrum or both.

Power iterations, and everything built on them, find what is largest in modulus of a mean that is positive
semi-definite. So agents first agree on where the spectrum begins and ends
(:mod:`deepca.decomposition.spectral_bounds`), and then work with ``± A_j + σI``, which has the same eigenvectors and
the wanted ones on top: any A_j may be indefinite, and their mean too. A shift makes relative gaps smaller, hence
methods that need 1/√gap products: block Krylov spaces, which a shift does not change at all, and accelerated tracking.
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
from deepca.decomposition.eigen_status import FoundPairs, beyond, largest_of, status_of
from deepca.decomposition.leading import Answer, Leading, common_settings, leading, size_of
from deepca.decomposition.pairs import Pairs, Which, order_of, pairs_in, probed
from deepca.decomposition.settings import SearchOptions, Settings, algorithm_of, lists_options
from deepca.decomposition.spectral_bounds import Extent, agreed_extent
from deepca.errors import InvalidInput
from deepca.network.base import Network
from deepca.network.broadcasts import check_basis
from deepca.network.traffic import Traffic
from deepca.operators.base import Operator, OperatorLike
from deepca.operators.linalg import first_columns, qr
from deepca.operators.linear_operators import from_linear_operators, linear_operator
from deepca.operators.shifted import Shifted
from deepca.solver.certificate.bounds import Certificate
from deepca.solver.loop import solve
from deepca.solver.observers import Observer
from deepca.solver.result import Result, Status, StatusCode
from deepca.solver.stopping import Tolerance

__all__ = ["Eigenpairs", "Of", "Which", "eigenpairs", "symmetric_operators"]

Of = Literal["mean", "sum"]
_SPLITS = 6  # tries at how many of the largest in modulus lie at either end
_SAME = 1e-8  # of the spectrum's size: what the same eigenvalue may differ by, seen twice
_SHARPER = 4  # times the paper's iterations go on where a proof asks for it


@dataclass(frozen=True, repr=False)
class Eigenpairs(Answer):
    """What every agent ends with; the same bits at every agent, but for ``traffic``, which is the local agents'.

    values : ``(k,)``: falling for LA, rising for SA, by falling modulus for LM.  vectors : orthonormal ``(d, k)``, the
    largest entry of each positive.  residuals : ``‖A x_i − λ_i x_i‖``, ``(k,)``, from fresh exact averages,
    their rounding included: an eigenvalue lies that close to each value.
    angles : ``(k,)``, bound on the tangent between each vector and an eigenvector; inf where it has none of its own.
    angle : the same for the span of all.
    clusters : groups of pairs, by number, whose values cannot be told apart; only the span of a group is defined.
    others : all other eigenvalues lie between these two, but for a probability of ``failure``.
    well_defined : other k, smaller and larger, with a gap behind them, as far as was seen.
    certificates : of the runs behind it. They speak of ``± A + σI``, with σ in ``shifts``.
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
        return f"Eigenpairs({self.values.size} of d = {self.vectors.shape[0]}; {self.status})"


@lists_options
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
    """k eigenpairs of the mean or the sum of the ``A_j``, proven; every agent makes the same call.

    Parameters
    ----------
    A : the symmetric ``A_j`` of the local agents: ``(m, d, d)``, a list of arrays, sparse matrices or LinearOperators,
        or an Operator. Any of them, and their mean, may be indefinite.
    which : "LA" the algebraically largest, "SA" the smallest, "LM" the largest in modulus.
    of : "mean" or "sum" of the A_j.
    start : ``(k', d)`` orthonormal rows to begin with, the same at every agent.
    observers : told of every iteration.
    algorithm : as for :func:`deepca.decomposition.settings.algorithm_of`, run on ``± A_j + σI``; "auto" by default.
        "deepca" with "LM" is the paper's way instead: QR and SignAdjust on the A_j themselves.
    tol : largest acceptable tangent of the angle between the span of the vectors and the true one; 1e-10 by default.
    max_iter, seed, rounds : 10,000 iterations at most, seed 0 and "auto" by default; as for
        :class:`deepca.DecentralizedPCA`.
    """
    if which not in get_args(Which):
        raise InvalidInput(f"which = {which!r}: choose 'LA' (largest), 'SA' (smallest) or 'LM' (largest in modulus)")
    if of not in get_args(Of):
        raise InvalidInput(f"of = {of!r}: choose 'mean' or 'sum'")
    before = network.traffic
    settings = common_settings(network, "eigenpairs", k, options, which=which, of=of)
    operator = matching_operator(symmetric_operators(A), network)
    size_of(settings, operator.d)
    search = _Search(operator, network, settings, agreed_extent(operator, network), start, tuple(observers))
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
    """What stands for the ``A_j``, where arrays, sparse matrices and LinearOperators may come in any mixture."""
    if isinstance(A, Sequence) and any(isinstance(a, LinearOperator) or sparse.issparse(a) for a in A):
        return from_linear_operators([linear_operator(a, j) for j, a in enumerate(A)])
    return A


@dataclass(frozen=True)
class _Search:
    A: Operator
    network: Network
    settings: Settings
    extent: Extent
    start: Array | None
    observers: tuple[Observer, ...]

    @property
    def k(self) -> int:
        return size_of(self.settings, self.A.d)

    def _end(self, sign: int, k: int) -> tuple[Shifted, Leading]:
        """The top k of ``sign · A``."""
        exact = self.settings.algorithm in ("krylov", "covariance")
        tracked = not (exact or (self.settings.algorithm == "auto" and self.network.reliable))
        shifted = Shifted(self.A, self.extent.shift(sign, tracked=tracked), sign)
        settings = replace(self.settings, n_components=k)
        return shifted, leading(shifted, self.network, settings, start=self.start, observers=self.observers)

    def find(self, which: Which) -> FoundPairs:
        """Search one end of the spectrum or both, or the A_j themselves as the paper has it."""
        if which != "LM":
            return self.one_end(which)
        return self.as_in_the_paper() if self.settings.algorithm == "deepca" else self.both_ends()

    def one_end(self, which: Which) -> FoundPairs:
        shifted, found = self._end(1 if which == "LA" else -1, self.k)
        proof = found.certificate
        beyond = float(shifted.original(proof.bound))
        low, high = (self.extent.low, beyond) if which == "LA" else (beyond, self.extent.high)
        failure = proof.failure + self.extent.failure
        pairs = pairs_in(self.A, found.vectors, self.network, low, high, failure)
        status = found.result.status
        ended = None if status.ok else status
        known = _well_defined(pairs.ordered(which).values, proof, self.A.d, max(pairs.separation, 2.0 * pairs.spread))
        return FoundPairs(pairs, found.result.iterations, (found,), (shifted.shift,), known, ended)

    def both_ends(self) -> FoundPairs:
        """p of the k largest in modulus at the upper end, the others at the lower one; p by looking beyond both."""
        if self.k == self.A.d:
            return self.one_end("LA")
        known: dict[tuple[int, int], tuple[Shifted, Leading]] = {}
        p, parts = self._first_split(), []
        for _ in range(_SPLITS):
            wanted = [(sign, n) for sign, n in ((1, p), (-1, self.k - p)) if n]
            parts = [known.setdefault(end, self._end(*end)) if end not in known else known[end] for end in wanted]
            best = np.concatenate([self._seen(1, parts), self._seen(-1, parts)])
            best = best[order_of(best, "LM")][: self.k]
            split = int(np.count_nonzero(best > 0.0))
            if split == p:
                break
            p = split
        low, high, failure = self.extent.low, self.extent.high, 2.0 * self.extent.failure
        for shifted, found in parts:
            bound = float(shifted.original(found.certificate.bound))
            low, high = (low, min(high, bound)) if shifted.sign > 0 else (max(low, bound), high)
            failure += found.certificate.failure
        self.network.begin(self.network.epoch, 0, "both ends")
        X = self.network.from_leader(qr(np.hstack([found.vectors for _, found in parts]))[0])
        check_basis(self.network, "vectors", X)
        pairs = self._proven(pairs_in(self.A, X, self.network, low, high, failure))
        ends = tuple(found for _, found in parts)
        return FoundPairs(
            pairs,
            sum(found.result.iterations for found in ends),
            ends,
            tuple(shifted.shift for shifted, _ in parts),
            ended=next((found.result.status for found in ends if not found.result.status.ok), None),
        )

    def _seen(self, sign: int, parts: Sequence[tuple[Shifted, Leading]]) -> Array:
        """Eigenvalues of that sign, each of them once, however many runs have seen it to their rounding.

        Those of a run at that end; where there is none, those of the other run, and beyond them what was seen first.
        """
        ends = {shifted.sign: shifted.original([*at.values, *at.certificate.others]) for shifted, at in parts}
        values = ends.get(sign)
        if values is None:
            values, first = ends[-sign], self.extent.values
            beyond = sign * first > sign * values[-1] + _SAME * self.extent.size
            values = np.concatenate([values, first[beyond & (values.size < self.A.d)]])
        return values[values > 0.0] if sign > 0 else values[values <= 0.0]

    def _first_split(self) -> int:
        values = self.extent.values
        largest = values[order_of(values, "LM")][: self.k]
        return min(math.ceil(self.k * float((largest > 0.0).mean())), self.k)

    def as_in_the_paper(self) -> FoundPairs:
        """Algorithm 1 with SignAdjust on the A_j as they are: no shift, since signs may alternate and are put right.

        Where the proof of what it found asks for more, iterations go on with a smaller tolerance.
        """
        at = self.settings
        W0 = first_columns(self.A.d, self.k, self.start, at.seed)
        mix = algorithm_of("deepca", self.A, W0, self.network, rounds=at.rounds).mix
        algorithm = DeEPCA(self.A, W0, self.network, mix, QRSignAdjust(W0))
        state, made, tol = None, 0, at.tol
        for _ in range(_SHARPER):
            left = max(at.max_iter - made, 1)
            rule, observers = Tolerance(tol), self.observers
            result = solve(algorithm, max_iter=left, stop=rule, observers=observers, start=state, certify=False)
            state, made, tol = result.state, made + result.iterations, 0.1 * tol
            X, ended = self._taken(result)
            extent = self.extent
            pairs = pairs_in(self.A, X, self.network, extent.low, extent.high, 2.0 * extent.failure)
            pairs = self._proven(pairs)
            if ended is not None or made >= at.max_iter or beyond(pairs) <= 0.0 or pairs.angle <= at.tol:
                break
        return FoundPairs(pairs, made, ended=ended)

    def _taken(self, result: Result[Any]) -> tuple[Array, Status | None]:
        """The leader's components, and how the run ended unless well; whether it did is for the leader to say."""
        # an indefinite mean is what this is for
        well = result.status.ok or result.status.code == StatusCode.INDEFINITE_MEAN
        flat = result.components.reshape(*self.network.batch, -1)
        own = np.concatenate([flat, np.full((*self.network.batch, 1), float(well))], axis=-1)
        told = self.network.broadcast(own)
        X = told[:-1].reshape(result.components.shape[-2:])
        check_basis(self.network, "vectors", X)
        return X, None if told[-1] else result.status

    def _proven(self, pairs: Pairs) -> Pairs:
        """With bounds on all other eigenvalues that are as good as the proof of "largest in modulus" asks for."""
        if largest_of(pairs) and pairs.angle <= self.settings.tol:
            return pairs
        found = pairs
        for found in probed(self.A, pairs, self.network):
            # what was found outside is larger, or the same: no bound will help
            if (largest_of(found) and found.angle <= self.settings.tol) or beyond(found) <= 0.0:
                break
        return found


def _well_defined(values: Array, proof: Certificate, d: int, separation: float) -> tuple[int, ...]:
    """Other k with a gap behind them: the largest below this one, and the smallest above it that was seen."""
    smaller = [j for j in range(1, values.size) if abs(values[j - 1] - values[j]) > separation]
    larger, others = proof.larger_k, proof.others
    beyond = 0 if larger is None else larger - values.size
    seen = larger == d or (0 < beyond < len(others) and others[beyond - 1] - others[beyond] > separation)
    return (*smaller[-1:], *([larger] if larger is not None and seen else []))
