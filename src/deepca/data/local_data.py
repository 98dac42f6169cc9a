"""Compute the moments of the local agents' rows in one pass, and build the operators ``A_j``.

Nothing here uses a network: moments need only local rows, and operators use statistics that the agents have already
agreed on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from deepca._util.floats import EPS
from deepca._util.machine import available_memory
from deepca._util.typing import Array, csr
from deepca.data.moments import Moments, moments
from deepca.data.rereading import Rereading, can_be_read_again, map_sources
from deepca.data.sources import Block, Source
from deepca.errors import DataError
from deepca.operators.base import MixedOperator, Operator
from deepca.operators.construction import Form, choose_form
from deepca.operators.covariances import Covariances
from deepca.operators.dense_rows import DenseRows
from deepca.operators.linalg import frobenius
from deepca.operators.preparation import Preparation
from deepca.operators.rounding import UNIT, Rounding, growth
from deepca.operators.sparse_centring import MAX_MEAN_RATIO
from deepca.operators.sparse_rows import SparseRows

__all__ = ["LocalData", "read", "resolve_forms"]

_logger = logging.getLogger(__name__)

_LARGEST_MATRIX = 1 << 30  # bytes of the largest A_j that is formed: d up to 11,585
_DENSE_ABOVE = 0.5  # share of nonzero entries above which dense storage takes less memory and time


@dataclass(frozen=True)
class LocalData:
    """Rows of the local agents and their moments, from which the operators ``A_j`` are built.

    Parameters
    ----------
    sources : tuple of Source
        The rows of each agent.
    weights : tuple of ndarray or None
        Weights of the rows of each agent.
    forms : tuple of {"covariance", "rows"}
        Whether the ``A_j`` of each agent is an explicit matrix or products with its rows.
    moments : tuple of Moments
        Moments of each agent.
    is_float32 : bool, default=False
        Whether the rows of every agent, local or not, are float32.
    """

    sources: tuple[Source, ...]
    weights: tuple[Array, ...] | None
    forms: tuple[Form, ...]
    moments: tuple[Moments, ...]
    is_float32: bool = False

    @property
    def form(self) -> Form:
        """Form of all ``A_j``: "covariance" if all of them are explicit matrices, else "rows"."""
        return "covariance" if {*self.forms} == {"covariance"} else "rows"

    def agent(self, j: int) -> LocalData:
        """Return the data of one local agent."""
        weights = None if self.weights is None else self.weights[j : j + 1]
        one = slice(j, j + 1)
        return replace(
            self, sources=self.sources[one], weights=weights, forms=self.forms[one], moments=self.moments[one]
        )

    def operator(
        self,
        batch: tuple[int, ...],
        reference: Array,
        shift: Array,
        units: Array | None,
        scale: float,
        unit_rounding: Array | None = None,
    ) -> Operator:
        """Build the operators ``A_j = scale · Σ_i w_i y_i y_iᵀ`` of the local agents.

        The prepared rows are ``y = (x − mean) / units`` with ``mean = reference + shift``; ``unit_rounding``, of shape
        ``(d,)``, contains the relative rounding errors of the units.
        """
        if len({*self.forms}) > 1:
            each = [self.agent(j) for j in range(len(self.forms))]
            return MixedOperator([one.operator((), reference, shift, units, scale, unit_rounding) for one in each])
        scaling = None if unit_rounding is None or units is None else (units, unit_rounding)
        counts = np.array([of.n for of in self.moments], dtype=np.int64).reshape(batch)
        if self.form == "covariance":
            d = shift.size
            stack = np.empty((len(self.moments), d, d))
            for A, of in zip(stack, self.moments, strict=True):
                np.multiply(of.scatter_about(reference, shift), scale, out=A)
                if units is not None:
                    A /= units[:, None] * units
            formed = self._rounding(batch, reference, shift, scaling, scale)
            again = can_be_read_again(self.sources, self.moments)
            rows = Rereading(self.sources, self.weights, reference, shift, units, scale) if again else None
            return Covariances(stack.reshape(*batch, d, d), row_counts=counts, formed=formed, rows=rows)
        kept = [_in_memory(source) for source in self.sources]
        scales = np.full(len(kept), scale)
        centre = (reference, shift) if reference.any() or shift.any() else None
        dense = [isinstance(X, np.ndarray) for X in kept]
        formed = self._rounding((len(kept),), reference, shift, scaling, scale, dense)
        prepare = Preparation(centre, units, self.weights, formed)
        if all(dense):
            arrays = cast("list[npt.NDArray[Any]]", kept)
            return DenseRows(arrays, scales, single=not batch, workers=None, prepare=prepare)
        if not any(dense):
            return SparseRows(list(map(csr, kept)), scales, single=not batch, prepare=prepare)
        prepare_each = [prepare.agent(j) for j in range(len(kept))]
        return MixedOperator(
            [
                DenseRows([X], scales[:1], single=True, workers=1, prepare=prepare_each[j])
                if isinstance(X, np.ndarray)
                else SparseRows([csr(X)], scales[:1], single=True, prepare=prepare_each[j])
                for j, X in enumerate(kept)
            ]
        )

    def _rounding(
        self,
        batch: tuple[int, ...],
        reference: Array,
        shift: Array,
        units: tuple[Array, Array] | None,
        scale: float,
        dense: Sequence[bool] | None = None,
    ) -> Rounding:
        kinds = [None] * len(self.moments) if dense is None else dense
        errors = [_error(of, reference, shift, units, kind) for of, kind in zip(self.moments, kinds, strict=True)]
        sums = np.array([growth(max(of.n, shift.size)) for of in self.moments])
        if any(of.weight != of.n for of in self.moments):  # Σw − 1 loses digits if Σw is little more than one
            sums = sums + UNIT * scale
        lengths = [_size(of, reference, shift, units) for of in self.moments]
        return Rounding(
            (scale * np.square(errors)).reshape(batch),
            np.zeros(batch),
            sums.reshape(batch),
            sizes=(scale * np.square(np.add(lengths, errors))).reshape(batch),
        )


def read(
    sources: Sequence[Source],
    weights: Sequence[Array] | None = None,
    *,
    form: Form = "auto",
    on_rows: Callable[[int], None] | None = None,
) -> LocalData:
    """Read every source once and compute its moments, the sources of different agents in parallel on one core each.

    Parameters
    ----------
    sources : sequence of Source
        The rows of each local agent.
    weights : sequence of ndarray, optional
        Weights of the rows of each agent.
    form : {"auto", "covariance", "rows"}
        Form of the operators, as in :func:`resolve_forms`.
    on_rows : callable, optional
        Called after every block with its number of rows.

    Returns
    -------
    LocalData
        The sources and their moments.

    Raises
    ------
    DataError
        If a source cannot be used, or can be read only once but its rows are needed in every iteration.
    """
    given = None if weights is None else tuple(weights)
    forms = resolve_forms(sources, form)
    _check_rereadable([source for source, chosen in zip(sources, forms, strict=True) if chosen == "rows"])

    def one(j: int) -> Moments:
        scatter = forms[j] == "covariance"
        return moments(sources[j], None if given is None else given[j], scatter=scatter, on_rows=on_rows)

    return LocalData(tuple(sources), given, forms, map_sources(one, len(sources)))


def resolve_forms(sources: Sequence[Source], form: Form = "auto") -> tuple[Form, ...]:
    """Choose between explicit matrices ``A_j`` and products with the rows in every iteration, for each agent.

    The choice depends on the agent's own rows only, so that it is the same in one process and in many. Rows that are
    not in memory would have to be read in every iteration, so their matrices are formed up to a size of 1 GB. If all
    matrices together do not fit into a quarter of the free memory, rows are used, and a warning says so.
    """
    rows: Form = "rows"
    if form != "auto":
        return (form,) * len(sources)
    forms = tuple(map(_form_of, sources))
    needed = 8 * sources[0].d ** 2 * forms.count("covariance")
    if needed > available_memory() // 4:
        _logger.warning(
            "matrices of %.1f GB exceed a quarter of the free memory; products use the rows, which rounds differently",
            needed / 1e9,
        )
        return (rows,) * len(sources)
    return forms


def _form_of(source: Source) -> Form:
    """Return the cheaper form for one agent."""
    d = source.d
    if not source.in_memory:
        return "covariance" if 8 * d * d <= _LARGEST_MATRIX else "rows"
    return choose_form(source.n or 0, d, 1, nnz=source.entries, memory=4 * _LARGEST_MATRIX)


def _error(of: Moments, reference: Array, shift: Array, units: tuple[Array, Array] | None, dense: bool | None) -> float:
    """Return the norm of the rounding errors of an agent's rows.

    The errors of products with the rows, which are stored dense or sparse, are included unless ``dense`` is None.
    """
    sizes, rounding = np.sqrt(of.squares_about(reference, shift)), of.rounding_about(reference, shift)
    if dense is not None:
        # products with sparse rows leave a column uncentred if that adds rounding errors of at most this size
        away = (
            0.0
            if dense
            else np.minimum(np.sqrt(of.weight) * np.abs(reference + shift), np.sqrt(MAX_MEAN_RATIO) * sizes)
        )
        rounding = rounding + UNIT * (sizes + away)
    if units is not None:
        sizes, rounding = sizes / units[0], rounding / units[0]
        rounding = rounding + sizes * (units[1] + 2.0 * EPS)
    return float(frobenius(rounding))


def _size(of: Moments, reference: Array, shift: Array, units: tuple[Array, Array] | None) -> float:
    """Return the norm of an agent's rows, up to rounding."""
    sizes = np.sqrt(of.squares_about(reference, shift))
    return float(frobenius(sizes if units is None else sizes / units[0]))


def _in_memory(source: Source) -> Block:
    """Return all rows as one matrix, which is dense if few entries are zero."""
    X = source.matrix()
    if X is None:
        from deepca.data.readers import spool

        X = spool(source).matrix()
    if isinstance(X, np.ndarray) or X.nnz <= _DENSE_ABOVE * X.shape[0] * X.shape[1]:
        return X
    fits = 8 * int(X.shape[0]) * int(X.shape[1]) <= available_memory() // 4
    return X.toarray() if fits else X


def _check_rereadable(sources: Sequence[Source]) -> None:
    """Raise DataError if the rows of a source can be read only once."""
    for source in sources:
        if source.single_pass:
            raise DataError(
                f"{source.name}: its iterator can be read only once, but this run, with d = {source.d:,} columns, "
                "reads the rows in every iteration; pass a function that returns a new iterator, or an array",
                agent=source.agent,
                value=source.d,
            )
