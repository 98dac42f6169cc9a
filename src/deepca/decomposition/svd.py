"""Singular triplets of a matrix that is partitioned over agents by rows or by columns, and never pooled.

Partitioned by rows, agent j has ``X_j (n_j, d)``, and ``XᵀX = Σ_j X_jᵀX_j``, so the right vectors are eigenvectors of a
sum of local matrices. All agents learn them. Each agent computes its rows of the left vectors, ``u_i = X_j v_i / σ_i``,
which never leave it.

Partitioned by columns, agents do the same with the transposed matrix. Agent j has some features of all n samples,
messages have n × k numbers, and every agent learns the *left* vectors, one row per sample; each agent's entries of the
right vectors, one row per feature, never leave it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np

from deepca._util.floats import EPS
from deepca._util.portable import total
from deepca._util.renamed import renamed_attributes
from deepca._util.typing import Array
from deepca.consensus.averaging import common_average, common_average_and_derive
from deepca.consensus.broadcasts import SEMIORTHOGONALITY_TOLERANCE, check_basis, check_close, packed, unpacked
from deepca.data.sources import Source, dense
from deepca.data.statistics import agree_on_statistics
from deepca.decomposition.leading import Answer, LeadingEigenpairs, checked_k, common_settings, find_leading
from deepca.decomposition.settings import SearchOptions, Settings, with_search_options
from deepca.decomposition.svd_data import LocalBlocks, Partition, check_decomposable, read_blocks
from deepca.network.base import Network
from deepca.network.sums import Addend
from deepca.network.traffic import Traffic
from deepca.operators.base import Operator
from deepca.operators.linalg import flip_signs, frobenius, symmetric_part
from deepca.solver.certificate.bounds import Certificate
from deepca.solver.deflation import graded_axes, recover_small_components
from deepca.solver.observers import Observer
from deepca.solver.result import Result, Status, StatusCode
from deepca.solver.ritz_axes import complete_null_columns

__all__ = ["Partition", "SingularTriplets", "singular_triplets"]


@renamed_attributes(common="shared_vectors", own="local_vectors", own_errors="local_errors")
@dataclass(frozen=True, repr=False)
class SingularTriplets(Answer):
    """Singular triplets, the same at every agent except for ``local_vectors``, ``local_errors`` and ``traffic``.

    Parameters
    ----------
    partition : {"rows", "columns"}
        How the matrix is partitioned over agents.
    values : array of shape (k,)
        Singular values, descending.
    shared_vectors : array of shape (d, k) or (n, k)
        Orthonormal vectors that every agent knows: right vectors if partitioned by rows, left vectors if by columns.
    local_vectors : tuple of array
        For each local agent, its rows of the left vectors, ``(n_j, k)``, or of the right vectors, ``(d_j, k)``; zero if
        the singular value is zero up to rounding. The entry of largest absolute value of each right vector is positive,
        as in scikit-learn.
    shape : tuple of int
        Shape of the whole matrix.
    norm : float
        ``‖X‖_F``.
    error : float
        ``‖X − X̂‖_F`` of the rank-k approximation X̂, combined from the errors that agents measured.
    local_errors : tuple of float
        Errors ``‖X_j − X̂_j‖_F`` of the local agents.
    best_error : float
        ``√(‖X‖_F² − Σ σ_i²)``, the smallest error of any rank-k approximation; its square is accurate to ``eps ‖X‖²``.
    explained_variance : array of shape (k,)
        Variances of the columns of ``X V``, with ddof 0.
    total_variance : float
        Variance of all columns of X.
    directions : array of shape (s, d) or (s, n)
        Rows from which another run can start.
    status : Status
        How the run ended, and what to do about it.
    certificate : Certificate
        Error bounds on the shared vectors as eigenvectors of the mean of ``X_jᵀX_j`` (``X_j X_jᵀ`` if by columns).
    iterations : int
        Number of iterations.
    traffic : Traffic
        Traffic of the local agents.
    """

    partition: Partition
    values: Array
    shared_vectors: Array
    local_vectors: tuple[Array, ...]
    shape: tuple[int, int]
    norm: float
    error: float
    local_errors: tuple[float, ...]
    best_error: float
    explained_variance: Array
    total_variance: float
    directions: Array
    status: Status
    certificate: Certificate
    iterations: int
    traffic: Traffic

    def reconstruct(self, j: int) -> Array:
        """Return the rank-k approximation to the block of the j-th local agent.

        Parameters
        ----------
        j : int
            Index among the local agents.

        Returns
        -------
        array of shape (n_j, d) or (n, d_j)
            ``X̂_j``, computed only from what that agent knows.
        """
        part = (self.local_vectors[j] * self.values) @ self.shared_vectors.T
        return part if self.partition == "rows" else part.T

    def __repr__(self) -> str:
        """Return a summary with the status."""
        return f"SingularTriplets({self.values.size} of {self.shape[0]} × {self.shape[1]}; {self.status})"


@with_search_options
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
    """Compute the k largest singular triplets of the whole matrix; every agent makes the same call.

    A singular value is the length of ``X v_i``, combined from all agents, accurate to about ``eps σ_1``. Values that
    the rounding of ``XᵀX`` would hide are found as :mod:`deepca.solver.deflation` describes.

    Parameters
    ----------
    Xs : sequence
        Block of each local agent, ``(n_j, d)`` or ``(n, d_j)``: an array, sparse matrix, data frame or file.
    network : Network
        Network of the agents.
    k : int
        Number of triplets, at most the number of rows and of columns.
    partition : {"rows", "columns"}
        How the matrix is partitioned over agents.
    start : array of shape (s, d) or (s, n), optional
        Orthonormal rows to start from, the same at every agent, such as ``directions`` of an earlier run.
    observers : sequence of Observer
        Notified of every iteration.
    algorithm : str
        Name of the algorithm, see :func:`~deepca.decomposition.settings.create_algorithm`.
    rounds : int or "auto"
        Gossip rounds per iteration.
    tol : float
        Largest acceptable tangent of the angle between the span of the shared vectors and the true one.
    max_iter : int
        Maximum number of iterations.
    seed : int or None
        Seed of the random start.

    Returns
    -------
    SingularTriplets
        The triplets with their errors; check ``status``, or call ``required()``.

    Raises
    ------
    DataError, ParameterError, StartError
        If blocks are unusable, a parameter is invalid, or ``start`` has no orthonormal rows of the right length.
    InvalidInput, NetworkError
        If agents make different calls, or the network changes in the last iteration, so that nothing is certified.

    Examples
    --------
    >>> import deepca
    >>> network = deepca.SimulatedNetwork(deepca.topology.path(2))
    >>> deepca.singular_triplets([np.diag([3.0, 1.0]), np.diag([4.0, 0.0])], network, 1).values.round(6)
    array([5.])
    """
    return _triplets(Xs, network, k, partition, start, observers, options)


def _triplets(
    Xs: Sequence[Any],
    network: Network,
    k: int,
    partition: Partition,
    start: Array | None,
    observers: Sequence[Observer],
    options: SearchOptions,
) -> SingularTriplets:
    """Compute the triplets.

    The square root of an eigenvalue of ``XᵀX`` would only be accurate to ``eps σ_1²/σ_i``. If rounding hides small
    values, their vectors are found from the rows, and the span is accurate to about ``eps σ_1/(σ_k − σ_{k+1})``.
    """
    before = network.traffic
    settings = common_settings(network, "singular_triplets", k, options, partition=partition)
    blocks = read_blocks(Xs, network, partition)
    sources = blocks.rows.sources
    d, zero = sources[0].d, np.zeros(sources[0].d)
    n, norm = _size(blocks, network)
    checked_k(settings, min(n, d))
    check_decomposable(n if partition == "rows" else d, norm)
    A = blocks.rows.operator(network.batch, zero, zero, None, 1.0)
    top = _recover_small_vectors(
        A, network, settings, find_leading(A, network, settings, start=start, observers=observers), norm
    )
    shared, Y = _rotated(sources, complete_null_columns(top.vectors, top.certificate, network), network)
    sigma, shared, Y = _signed(shared, Y, network, partition)
    local_errors = tuple(_error(source, y, shared) for source, y in zip(sources, Y, strict=True))
    error, score_variances = _whole_error(local_errors, shared * sigma, network, norm, partition)
    return SingularTriplets(
        partition=partition,
        values=sigma,
        shared_vectors=shared,
        local_vectors=_local_vectors(Y, sigma, max(n, d)),
        shape=(n, d) if partition == "rows" else (d, n),
        norm=norm,
        error=error,
        local_errors=local_errors,
        best_error=min(_residual_norm(norm, sigma), error),  # rounding may make the measured error the smaller one
        explained_variance=_variance(Y, network) if partition == "rows" else score_variances,
        total_variance=_total_variance(blocks, network, partition),
        directions=top.directions,
        status=_status(top, network.n_agents, min(n, d)),
        certificate=top.certificate,
        iterations=top.result.iterations,
        traffic=network.traffic - before,
    )


def _residual_norm(norm: float, sigma: Array) -> float:
    """Return the Frobenius norm of the matrix without its leading triplets."""
    return math.sqrt(max(norm * norm - total(np.square(sigma)), 0.0))


def _local_vectors(Y: Sequence[Array], sigma: Array, longest: int) -> tuple[Array, ...]:
    """Return the local agents' parts of the vectors that are not shared; zero if σ does not exceed rounding."""
    inverse = np.divide(1.0, sigma, out=np.zeros_like(sigma), where=sigma > 4.0 * longest * EPS * sigma[0])
    return tuple(y * inverse for y in Y)


def _mean(local: Sequence[Sequence[float] | Array], network: Network, phase: str, part: int = 0) -> Array:
    """Average numbers of the local agents over all agents, exactly; ``part`` counts the exchanges of a phase."""
    network.begin(network.epoch, part, phase)
    return common_average(network, np.array(local, dtype=np.float64).reshape(*network.batch, -1))


def _size(blocks: LocalBlocks, network: Network) -> tuple[int, float]:
    """Return the total number of rows (or columns), and the Frobenius norm of the whole matrix."""
    zero = np.zeros(blocks.rows.sources[0].d)
    about = [[of.n, of.squares_about(zero, zero).sum()] for of in blocks.rows.moments]
    found = _mean(about, network, "size") * network.n_agents
    return round(float(found[0])), float(np.sqrt(found[1]))


def _whole_error(
    local_errors: tuple[float, ...], scores: Array, network: Network, norm: float, partition: Partition
) -> tuple[float, Array]:
    """Combine the agents' errors; return the total, and the leader's variances of the columns of ``scores``."""
    network.begin(network.epoch, 0, "error")
    spread = scores.var(axis=0)  # used if partitioned by columns
    squares = np.square(local_errors).reshape(*network.batch, 1)
    found, shared = common_average_and_derive(
        network, [Addend("squared errors", squares, nonnegative=True)], lambda _: spread, spread.size
    )
    if partition == "columns":
        check_close(network, "variances", shared, spread, SEMIORTHOGONALITY_TOLERANCE * norm * norm)
    return math.sqrt(float(found.mean[0]) * network.n_agents), shared


def _recover_small_vectors(
    A: Operator, network: Network, settings: Settings, top: LeadingEigenpairs, norm: float
) -> LeadingEigenpairs:
    """Recompute from the rows the vectors whose eigenvalues are lost in the rounding of the largest."""

    def search(deflated: Operator, k: int, most: int) -> Result[Any]:
        asked = replace(settings, n_components=k, max_iter=min(most, settings.max_iter))
        return find_leading(deflated, network, asked).result

    trace = norm**2 / network.n_agents
    X, result = recover_small_components(A, network, top.vectors, top.result, search, tol=settings.tol, trace=trace)
    proof = result.certificate or top.certificate
    return replace(top, vectors=X, values=np.array(proof.eigenvalues), result=result, certificate=proof)


def _status(top: LeadingEigenpairs, m: int, most: int) -> Status:
    """Return the status in terms of the ``most`` singular values instead of eigenvalues of the mean."""
    status, proof = top.result.status, top.certificate
    if status.code != StatusCode.NOT_UNIQUE:
        return status
    inside, outside = (float(np.sqrt(max(value, 0.0) * m)) for value in (proof.eigenvalues[-1], proof.next_eigenvalue))
    choices = tuple(n for n in (proof.smaller_k, proof.larger_k) if n is not None and n <= most)
    return Status.of(
        StatusCode.NOT_UNIQUE,
        "singular vectors not unique: σ_{k} = {last:.9g} and σ_{after} = {next:.9g} are equal or too close; ask for "
        f"{' or '.join(f'k = {n}' for n in choices) or 'another k'}",
        k=proof.k,
        after=proof.k + 1,
        last=inside,
        next=outside,
        choices=choices,
    )


# ------------------------------------------------------------------------------------------------- vectors and values


def _product(source: Source, V: Array) -> Array:
    """Compute ``X_j V``, block by block."""
    return np.concatenate([np.asarray(block @ V, dtype=np.float64) for block in source.blocks()])


def _rotated(sources: Sequence[Source], V: Array, network: Network) -> tuple[Array, list[Array]]:
    """Rotate V so that the columns of ``X V`` are orthogonal; return V and the ``X_j V`` of the local agents.

    Entries of ``G = Σ (X_jV)ᵀ(X_jV)`` are accurate relative to the lengths of their columns. All agents use the
    leader's rotation.
    """
    k = V.shape[1]
    Y = [_product(source, V) for source in sources]
    network.begin(network.epoch, 0, "turn")
    own = np.stack([y.T @ y for y in Y]).reshape(*network.batch, k * k)

    def turning(mean: Array) -> Array:
        turn, _ = graded_axes(symmetric_part(mean.reshape(k, k)))
        return packed(turn, V @ turn)

    _, shared = common_average_and_derive(network, [Addend("Gram matrices", own)], turning, k * k + V.size)
    turn, common = unpacked(shared, (k, k), V.shape)
    check_basis(network, "singular vectors", turn)
    check_close(network, "singular vectors", common, V @ turn, SEMIORTHOGONALITY_TOLERANCE)
    return common, [y @ turn for y in Y]


def _signed(common: Array, Y: list[Array], network: Network, partition: Partition) -> tuple[Array, Array, list[Array]]:
    """Sort the triplets by descending singular value and flip signs as scikit-learn does, by the right vectors."""
    k = common.shape[1]
    sigma = np.sqrt(_mean([np.square(y).sum(axis=0) for y in Y], network, "signs") * network.n_agents)
    order = np.argsort(-sigma, kind="stable")
    sigma, common, Y = sigma[order], common[:, order], [y[:, order] for y in Y]
    if partition == "rows":
        signs = np.where((flip_signs(common) * common).sum(axis=0) < 0.0, -1.0, 1.0)
    else:  # the agent with the entry of largest absolute value decides; among equals, the first
        largest = np.stack([y[np.abs(y).argmax(axis=0), np.arange(k)] for y in Y]).reshape(*network.batch, k)
        highest = network.reduce(np.abs(largest), "max")
        vote = 2.0 * network.local[..., None] + (largest < 0.0)
        signs = 1.0 - 2.0 * (network.reduce(np.where(np.abs(largest) == highest, vote, np.inf), "min") % 2.0)
    return sigma, common * signs, [y * signs for y in Y]


def _error(source: Source, y: Array, common: Array) -> float:
    """Measure ``‖X_j − (X_jV)Vᵀ‖_F``."""
    parts, at = [], 0
    for block in source.blocks():
        rows = int(block.shape[0])
        parts.append(float(frobenius(dense(block) - y[at : at + rows] @ common.T)))
        at += rows
    return float(frobenius(np.array(parts)))


# ------------------------------------------------------------------------------------------------------------ variance


def _variance(Y: Sequence[Array], network: Network) -> Array:
    """Return the variances (ddof 0) of the columns of all agents' rows, about their common mean."""
    found = _mean([[len(y), *y.sum(axis=0)] for y in Y], network, "variance")
    mean = found[1:] / found[0]
    return np.asarray(_mean([np.square(y - mean).sum(axis=0) for y in Y], network, "variance", 1) / found[0])


def _total_variance(blocks: LocalBlocks, network: Network, partition: Partition) -> float:
    """Return the variance of all columns: about agreed means if partitioned by rows, else summed from local ones."""
    if partition == "rows":
        totals = agree_on_statistics(network, blocks.rows.moments)
        return total(totals.squares) / totals.weight
    own = [[of.squares.sum() / of.weight] for of in blocks.features]
    return float(_mean(own, network, "variance", 2)[0]) * network.n_agents
