"""Singular triplets of a matrix that is spread over agents, by rows or by columns, and never pooled.

Rows apart: agent j holds ``X_j (n_j, d)``, and ``XᵀX = Σ_j X_jᵀX_j``, so the right vectors are the eigenvectors of a
sum of what agents have at home. All learn them; the left vectors ``u_i = X_j v_i / σ_i`` of its own rows an agent makes
for itself, and keeps. Columns apart: the same for the transposed matrix. There agent j holds some features of all n
samples, messages are n × k, and every agent learns the *left* vectors, one row for each sample; the right ones of its
own features stay at home.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Unpack, get_args

import numpy as np

from deepca._util.floats import EPS
from deepca._util.portable import total
from deepca._util.typing import Array
from deepca.consensus.averaging import common_average, common_average_then
from deepca.data.columns import agree_on_columns, common_columns
from deepca.data.local_data import LocalData, read
from deepca.data.moments import Moments, check_finite, moments
from deepca.data.sources import ArraySource, Matrix, Source, as_source, dense
from deepca.data.statistics import agreed_totals
from deepca.decomposition.leading import Answer, Leading, common_settings, leading, size_of
from deepca.decomposition.settings import SearchOptions, Settings, lists_options
from deepca.errors import DataError, InvalidInput
from deepca.network.base import Network
from deepca.network.broadcasts import SEMI, check_basis, check_close, packed, unpacked
from deepca.network.traffic import Traffic
from deepca.operators.base import Operator
from deepca.operators.linalg import frobenius, largest_positive, symmetric_part
from deepca.solver.certificate.bounds import Certificate
from deepca.solver.deflation import graded_axes, sharpened
from deepca.solver.observers import Observer
from deepca.solver.result import Result, Status, StatusCode
from deepca.solver.ritz_axes import filled_up
from deepca.solver.verdict import UNDERFLOW

__all__ = ["Partition", "SingularTriplets", "singular_triplets"]

Partition = Literal["rows", "columns"]
_SAME_SAMPLES = "where columns are apart, every agent needs the same samples, in the same order"


@dataclass(frozen=True, repr=False)
class SingularTriplets(Answer):
    """What an agent ends with. Only ``own`` and ``own_errors`` are those of the local agents; the rest all have alike.

    values : ``(k,)``, falling.  common : orthonormal columns that every agent knows: right vectors ``(d, k)`` where
    rows are apart, left vectors ``(n, k)`` where columns are.  own : for each local agent its part of the other ones,
    ``(n_j, k)`` of its rows or ``(d_j, k)`` of its columns; zero where the singular value is. The largest entry of each
    right vector is positive, as scikit-learn has it.
    shape : of the whole matrix.  norm : ``‖X‖_F``.
    error : ``‖X − X̂‖_F``, X̂ the approximation of rank k, added up from what agents measured.  own_errors : their parts.
    best_error : ``√(‖X‖_F² − Σ σ_i²)``, the smallest that rank k allows; a difference, good to ``eps ‖X‖²`` in its
    square.
    explained_variance : ``(k,)``, of the columns of ``X V``, with ddof 0.  total_variance : of all columns of X.
    directions : ``(s, …)`` rows to start another run from.
    """

    partition: Partition
    values: Array
    common: Array
    own: tuple[Array, ...]
    shape: tuple[int, int]
    norm: float
    error: float
    own_errors: tuple[float, ...]
    best_error: float
    explained_variance: Array
    total_variance: float
    directions: Array
    status: Status
    certificate: Certificate
    iterations: int
    traffic: Traffic

    def reconstruct(self, j: int) -> Array:
        """The approximation of rank k to what the j-th local agent holds, made from what it knows: ``X̂_j``."""
        part = (self.own[j] * self.values) @ self.common.T
        return part if self.partition == "rows" else part.T

    def __repr__(self) -> str:
        return f"SingularTriplets({self.values.size} of {self.shape[0]} × {self.shape[1]}; {self.status})"


@lists_options
def singular_triplets(
    Xs: Sequence[Any],
    network: Network,
    k: int,
    *,
    partition: Partition = "rows",
    start: Array | None = None,
    observers: Sequence[Observer] = (),
    **options: Unpack[SearchOptions],
) -> SingularTriplets:
    """The k largest singular values of the whole matrix, and their vectors; every agent makes the same call.

    Parameters
    ----------
    Xs : what each local agent holds: an array, sparse matrix, data frame or file; ``(n_j, d)`` of its rows, or
        ``(n, d_j)`` of its columns.
    partition : "rows" or "columns", whichever agents hold some of.
    start : orthonormal rows to begin with, the same at every agent: ``directions`` of an earlier run.
    observers, algorithm, tol, max_iter, seed, rounds : as for :func:`deepca.eigenpairs`; tol is that of the span of
        the common vectors.

    A singular value is the length of ``X v_i``, added up over agents: it is good to about ``eps σ_1``, where the root
    of an eigenvalue of ``XᵀX`` would be to ``eps σ_1²/σ_i``. The span of the vectors is that of eigenvectors of
    ``XᵀX``; where their rounding hides small values, these are found at the rows (:mod:`deepca.solver.deflation`), and
    the span is good to about ``eps σ_1/(σ_k − σ_{k+1})``.
    """
    before = network.traffic
    settings = common_settings(network, "singular_triplets", k, options, partition=partition)
    held = _held(Xs, network, partition)
    sources = held.rows.sources
    d, zero = sources[0].d, np.zeros(sources[0].d)
    n, norm = _size(held, network)
    _check(size_of(settings, max(n, d)), n, d, norm, partition)
    A = held.rows.operator(network.batch, zero, zero, None, 1.0)
    top = _sharpened(A, network, settings, leading(A, network, settings, start=start, observers=observers), norm)
    common, Y = _turned(sources, filled_up(top.vectors, top.certificate, network), network)
    sigma, common, Y = _signed(common, Y, network, partition)
    own_errors = tuple(_error(source, y, common) for source, y in zip(sources, Y, strict=True))
    error, told = _whole_error(own_errors, common * sigma, network, norm, partition)
    return SingularTriplets(
        partition=partition,
        values=sigma,
        common=common,
        own=_own_vectors(Y, sigma, max(n, d)),
        shape=(n, d) if partition == "rows" else (d, n),
        norm=norm,
        error=error,
        own_errors=own_errors,
        best_error=min(_left(norm, sigma), error),  # what was reached is no better than the best, but for rounding
        explained_variance=_variance(Y, network) if partition == "rows" else told,
        total_variance=_total_variance(held, network, partition),
        directions=top.directions,
        status=_status(top, network.n_agents, min(n, d)),
        certificate=top.certificate,
        iterations=top.result.iterations,
        traffic=network.traffic - before,
    )


def _left(norm: float, sigma: Array) -> float:
    """Frobenius norm of what the triplets leave out."""
    return math.sqrt(max(norm * norm - total(np.square(sigma)), 0.0))


def _own_vectors(Y: Sequence[Array], sigma: Array, longest: int) -> tuple[Array, ...]:
    """The agents' parts of the vectors that are apart; zero where σ is rounding."""
    inverse = np.divide(1.0, sigma, out=np.zeros_like(sigma), where=sigma > 4.0 * longest * EPS * sigma[0])
    return tuple(y * inverse for y in Y)


def _mean(own: Sequence[Sequence[float] | Array], network: Network, phase: str, part: int = 0) -> Array:
    """Average numbers of the local agents over all agents, exactly. part : of the phase."""
    network.begin(network.epoch, part, phase)
    return common_average(network, np.array(own, dtype=np.float64).reshape(*network.batch, -1))


def _size(held: _Held, network: Network) -> tuple[int, float]:
    """How many rows (or columns) all agents have, and the Frobenius norm of the whole matrix."""
    zero = np.zeros(held.rows.sources[0].d)
    about = [[of.n, of.squares_about(zero, zero).sum()] for of in held.rows.moments]
    found = _mean(about, network, "size") * network.n_agents
    return round(float(found[0])), float(np.sqrt(found[1]))


def _whole_error(
    own_errors: tuple[float, ...], scores: Array, network: Network, norm: float, partition: Partition
) -> tuple[float, Array]:
    """Sum the agents' errors to that of the whole matrix; with it the leader's variances of the common scores."""
    network.begin(network.epoch, 0, "error")
    spread = scores.var(axis=0)  # counts where columns are apart
    squares = np.square(own_errors).reshape(*network.batch, 1)
    mean, told = common_average_then(network, squares, lambda _: spread, spread.size)
    if partition == "columns":
        check_close(network, "variances", told, spread, SEMI * norm * norm)
    return math.sqrt(float(mean[0]) * network.n_agents), told


def _sharpened(A: Operator, network: Network, settings: Settings, top: Leading, norm: float) -> Leading:
    """The same, with vectors whose eigenvalues drown in the rounding of the largest found at the rows."""

    def search(deflated: Operator, k: int, most: int) -> Result[Any]:
        asked = replace(settings, n_components=k, max_iter=min(most, settings.max_iter))
        return leading(deflated, network, asked).result

    trace = norm**2 / network.n_agents
    X, result = sharpened(A, network, top.vectors, top.result, search, tol=settings.tol, trace=trace)
    proof = result.certificate or top.certificate
    return replace(top, vectors=X, values=np.array(proof.eigenvalues), result=result, certificate=proof)


def _status(top: Leading, m: int, most: int) -> Status:
    """In singular values, ``most`` of which exist, not in eigenvalues of the mean of ``X_jᵀX_j``."""
    status, proof = top.result.status, top.certificate
    if status.code != StatusCode.NOT_UNIQUE:
        return status
    inside, outside = (float(np.sqrt(max(value, 0.0) * m)) for value in (proof.eigenvalues[-1], proof.next_eigenvalue))
    choices = tuple(n for n in (proof.smaller_k, proof.larger_k) if n is not None and n <= most)
    return Status.of(
        StatusCode.NOT_UNIQUE,
        "singular vectors not unique: σ_{k} = {last:.9g} and σ_{after} = {next:.9g} are equal or too close; ask for "
        f"n_components = {' or '.join(map(str, choices)) or 'another number'}",
        k=proof.k,
        after=proof.k + 1,
        last=inside,
        next=outside,
        choices=choices,
    )


# ----------------------------------------------------------------------------------------------------- what agents hold


@dataclass(frozen=True)
class _Held:
    """What each local agent holds.

    rows : what it alone has, as rows: its rows, or its columns transposed.  features : moments of its columns, where
    columns are apart.
    """

    rows: LocalData
    features: tuple[Moments, ...] = ()


def _held(Xs: Sequence[Any], network: Network, partition: Partition) -> _Held:
    """What the local agents hold, read once, and checked against that of all others."""
    if partition not in get_args(Partition):
        raise InvalidInput(f"partition = {partition!r}: choose 'rows' or 'columns', whichever agents hold some of")
    agents = network.local.reshape(-1)
    if len(Xs) != agents.size:
        raise DataError(f"{len(Xs)} blocks for {agents.size} agents; give one per agent")
    given = [as_source(X, f"agent {j}") for j, X in zip(agents, Xs, strict=True)]
    for source in given:
        if source.once:
            raise DataError(
                f"{source.name}: its iterator can be read once, but vectors are made in a second pass; give a function "
                "that returns a new iterator, or an array"
            )
    if partition == "rows":
        sources = common_columns(given)
        agree_on_columns(network, sources[0])
        return _Held(read(sources))
    blocks = [_whole(source) for source in given]
    for j, X in zip(agents, blocks, strict=True):
        if X.shape[0] != blocks[0].shape[0]:
            raise DataError(
                f"agent {j} holds {X.shape[0]} samples, agent {agents[0]} holds {blocks[0].shape[0]}; {_SAME_SAMPLES}"
            )
    counts = np.array([X.shape[0] for X in blocks], dtype=np.float64).reshape(*network.batch, 1)
    network.begin(network.epoch, 0, "samples")
    most, least = network.reduce(np.concatenate([counts, -counts], axis=-1), "max")
    if most != -least:
        raise DataError(f"agents hold between {-least:.0f} and {most:.0f} samples; {_SAME_SAMPLES}")
    features = tuple(moments(ArraySource(X, of.name), scatter=False) for X, of in zip(blocks, given, strict=True))
    return _Held(read([ArraySource(_transposed(X), of.name) for X, of in zip(blocks, given, strict=True)]), features)


def _whole(source: Source) -> Matrix:
    """All of a source as one array; what is not finite is named by its own rows and columns."""
    X = source.matrix()
    if X is None:
        X = np.concatenate([dense(block) for block in source.blocks()])
    check_finite(source, X, 0)
    return X


def _transposed(X: Matrix) -> Matrix:
    return X.T if isinstance(X, np.ndarray) else X.T.tocsr()


def _check(k: int, n: int, d: int, norm: float, partition: Partition) -> None:
    rows, columns = (n, d) if partition == "rows" else (d, n)
    if k > min(n, d):
        raise InvalidInput(
            f"n_components = {k}, but there are {rows} rows and {columns} columns; at most {min(n, d)} singular values "
            "exist"
        )
    if norm == 0.0:
        raise DataError(f"all {rows} rows are zero, or too small to square: there is nothing to decompose")
    if norm**2 < UNDERFLOW:
        raise DataError(
            f"the squares of the entries underflow: ‖X‖_F = {norm:.1e}, and products below {UNDERFLOW:.0e} lose "
            "digits; multiply the matrix by a power of ten"
        )
    if not np.isfinite(norm):
        raise DataError("the squares of the entries overflow when added up over all agents; scale the data")


# ------------------------------------------------------------------------------------------------- vectors and values


def _product(source: Source, V: Array) -> Array:
    """``X_j V``, block by block."""
    return np.concatenate([np.asarray(block @ V, dtype=np.float64) for block in source.blocks()])


def _turned(sources: Sequence[Source], V: Array, network: Network) -> tuple[Array, list[Array]]:
    """V turned such that the columns of ``X V`` are orthogonal, and ``X_j V`` of the local agents.

    ``G = Σ (X_jV)ᵀ(X_jV)`` has entries that are good to rounding relative to the lengths of their columns. The leader's
    axes are taken by all.
    """
    k = V.shape[1]
    Y = [_product(source, V) for source in sources]
    network.begin(network.epoch, 0, "turn")
    own = np.stack([y.T @ y for y in Y]).reshape(*network.batch, k * k)

    def turning(mean: Array) -> Array:
        turn, _ = graded_axes(symmetric_part(mean.reshape(k, k)))
        return packed(turn, V @ turn)

    _, told = common_average_then(network, own, turning, k * k + V.size)
    turn, common = unpacked(told, (k, k), V.shape)
    check_basis(network, "singular vectors", turn)
    check_close(network, "singular vectors", common, V @ turn, SEMI)
    return common, [y @ turn for y in Y]


def _signed(common: Array, Y: list[Array], network: Network, partition: Partition) -> tuple[Array, Array, list[Array]]:
    """Singular values, by falling size, and both sides' vectors with the largest entry of each right one positive."""
    k = common.shape[1]
    sigma = np.sqrt(_mean([np.square(y).sum(axis=0) for y in Y], network, "signs") * network.n_agents)
    order = np.argsort(-sigma, kind="stable")
    sigma, common, Y = sigma[order], common[:, order], [y[:, order] for y in Y]
    if partition == "rows":
        signs = np.where((largest_positive(common) * common).sum(axis=0) < 0.0, -1.0, 1.0)
    else:  # of all agents the one with the largest entry decides, the first of them where there are several
        largest = np.stack([y[np.abs(y).argmax(axis=0), np.arange(k)] for y in Y]).reshape(*network.batch, k)
        highest = network.reduce(np.abs(largest), "max")
        vote = 2.0 * network.local[..., None] + (largest < 0.0)
        signs = 1.0 - 2.0 * (network.reduce(np.where(np.abs(largest) == highest, vote, np.inf), "min") % 2.0)
    return sigma, common * signs, [y * signs for y in Y]


def _error(source: Source, y: Array, common: Array) -> float:
    """``‖X_j − (X_jV)Vᵀ‖_F``, measured and not inferred."""
    parts, at = [], 0
    for block in source.blocks():
        rows = int(block.shape[0])
        parts.append(float(frobenius(dense(block) - y[at : at + rows] @ common.T)))
        at += rows
    return float(frobenius(np.array(parts)))


# ------------------------------------------------------------------------------------------------------------ variance


def _variance(Y: Sequence[Array], network: Network) -> Array:
    """Of the columns of all agents' rows together, with ddof 0, about their agreed mean."""
    found = _mean([[len(y), *y.sum(axis=0)] for y in Y], network, "variance")
    mean = found[1:] / found[0]
    return np.asarray(_mean([np.square(y - mean).sum(axis=0) for y in Y], network, "variance", 1) / found[0])


def _total_variance(held: _Held, network: Network, partition: Partition) -> float:
    """Of all columns of the whole matrix: by agreed means where rows are apart, at home where columns are."""
    if partition == "rows":
        totals = agreed_totals(network, held.rows.moments)
        return total(totals.squares) / totals.weight
    own = [[of.squares.sum() / of.weight] for of in held.features]
    return float(_mean(own, network, "variance", 2)[0]) * network.n_agents
