"""Read and check a matrix that is partitioned over agents by rows or by columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from deepca.data.columns import agree_on_columns, align_columns
from deepca.data.local_data import LocalData, read
from deepca.data.moments import Moments, check_finite, moments
from deepca.data.sources import ArraySource, Matrix, Source, as_source, dense
from deepca.errors import DataError, ParameterError
from deepca.network.base import Network
from deepca.solver.verdict import UNDERFLOW

__all__ = ["LocalBlocks", "Partition", "check_decomposable", "read_blocks"]

Partition = Literal["rows", "columns"]
_SAME_SAMPLES = "with partition = 'columns', give the same samples in the same order at every agent"


@dataclass(frozen=True)
class LocalBlocks:
    """The local agents' blocks of the matrix.

    Parameters
    ----------
    rows : LocalData
        The blocks as rows: those of the matrix, or of its transpose if it is partitioned by columns.
    features : tuple of Moments
        Moments of the agents' columns, if the matrix is partitioned by columns.
    """

    rows: LocalData
    features: tuple[Moments, ...] = ()


def read_blocks(Xs: Sequence[Any], network: Network, partition: Partition) -> LocalBlocks:
    """Read the local agents' blocks once and check them against those of all other agents."""
    if partition not in get_args(Partition):
        raise ParameterError("partition", partition, "choose 'rows' or 'columns', whichever the agents have")
    agents = network.local.reshape(-1)
    if len(Xs) != agents.size:
        raise DataError(
            f"got {len(Xs)} blocks for {agents.size} local agents; give one per agent", parameter="Xs", value=len(Xs)
        )
    given = [as_source(X, f"agent {j}") for j, X in zip(agents, Xs, strict=True)]
    for j, source in zip(agents, given, strict=True):
        if source.single_pass:
            raise DataError(
                f"{source.name}: its iterator can be read only once, but singular vectors need a second pass; give a "
                "function that returns a new iterator, or an array",
                parameter="Xs",
                agent=int(j),
            )
    if partition == "rows":
        sources = align_columns(given)
        agree_on_columns(network, sources[0])
        return LocalBlocks(read(sources))
    blocks = [_whole_matrix(source) for source in given]
    _check_samples(blocks, network)
    features = tuple(moments(ArraySource(X, of.name), scatter=False) for X, of in zip(blocks, given, strict=True))
    rows = read([ArraySource(_transposed(X), of.name) for X, of in zip(blocks, given, strict=True)])
    return LocalBlocks(rows, features)


def _check_samples(blocks: Sequence[Matrix], network: Network) -> None:
    """Raise DataError unless all agents have the same number of samples."""
    agents, expected = network.local.reshape(-1), blocks[0].shape[0]
    for j, X in zip(agents, blocks, strict=True):
        if X.shape[0] != expected:
            raise DataError(
                f"agent {j} has {X.shape[0]} samples, agent {agents[0]} has {expected}; {_SAME_SAMPLES}",
                agent=int(j),
                value=int(X.shape[0]),
            )
    counts = np.array([X.shape[0] for X in blocks], dtype=np.float64).reshape(*network.batch, 1)
    network.begin(network.epoch, 0, "samples")
    most, least = network.reduce(np.concatenate([counts, -counts], axis=-1), "max")
    if most != -least:
        raise DataError(
            f"agents have between {-least:.0f} and {most:.0f} samples; {_SAME_SAMPLES}", value=(int(-least), int(most))
        )


def _whole_matrix(source: Source) -> Matrix:
    """Return a source as one array; raise an error naming the row and column of the first non-finite value."""
    X = source.matrix()
    if X is None:
        X = np.concatenate([dense(block) for block in source.blocks()])
    check_finite(source, X, 0)
    return X


def _transposed(X: Matrix) -> Matrix:
    return X.T if isinstance(X, np.ndarray) else X.T.tocsr()


def check_decomposable(rows: int, norm: float) -> None:
    """Raise DataError if the squares of the entries underflow or overflow."""
    if norm == 0.0:
        raise DataError(
            f"all {rows} rows are zero, or too small to square; check the matrix, or multiply it by a large power of "
            "ten",
            value=norm,
        )
    if norm**2 < UNDERFLOW:
        raise DataError(
            f"the squares of the entries underflow: ‖X‖_F = {norm:.1e}, and products below {UNDERFLOW:.0e} lose "
            "digits; multiply the matrix by a large power of ten",
            value=norm,
        )
    if not np.isfinite(norm):
        raise DataError(
            "the sum of the squares of all entries overflows; divide the matrix by a large power of ten", value=norm
        )
