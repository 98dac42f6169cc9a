"""Principal components where everything about the rows is settled: searched, proven, and turned to their axes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from deepca._util.typing import Array
from deepca.algorithms import State
from deepca.decomposition.leading import search
from deepca.decomposition.settings import Settings, components_needed
from deepca.engines.keeping import Resumption
from deepca.errors import InvalidInput, PooledDataError
from deepca.network.base import Network
from deepca.operators.base import Operator
from deepca.solver.certificate.certification import digest_of
from deepca.solver.deflation import sharpened
from deepca.solver.observers import Observer
from deepca.solver.result import Result
from deepca.solver.ritz_axes import filled_up, principal_axes
from deepca.solver.verdict import with_few_rows

__all__ = ["PcaRun"]

_FIRST_GUESS = 8  # components, where a share of the variance is asked for
_GLANCE = 60  # iterations that tell how much variance k components explain


@dataclass(frozen=True)
class _Found:
    components: Array
    variances: Array
    directions: Array
    result: Result[Any]


@dataclass(frozen=True)
class PcaRun:
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
        if components_needed(found.variances, wanted, self.total) == k:
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
            raise PooledDataError(
                f"n_components = {k}, but {self.most} is the most that min(rows, columns) allows here; ask for fewer"
            )
        top = search(
            self.A,
            self.network,
            self.settings,
            k,
            start,
            state=state,
            disturbed=disturbed,
            glance=_GLANCE if glance else None,
            observers=self.observers if glance else (*self.observers, *self.keepers),
        )
        X, result, known = top.X, top.result, top.directions
        proof = result.certificate
        if proof is not None:  # the same at all agents, and turned to its axes
            tol = self.settings.tol
            X, result = sharpened(self.A, self.network, X, result, self._search, tol=tol, trace=self.total)
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
        asked = replace(self.settings, max_iter=min(most, self.settings.max_iter))
        return search(A, self.network, asked, k).result

    def share(self, wanted: float, start: Array | None) -> _Found:
        """As few components as explain more than ``wanted`` of the total variance.

        A glance at ever more components finds how many it takes: variances seen are never too large, so what explains
        enough at a glance does. Then the exact run for that many; if it shows that fewer suffice, again with fewer.
        """
        k = min(_FIRST_GUESS if start is None else max(_FIRST_GUESS, len(start)), self.most)
        while True:
            seen = self.exactly(k, start, glance=True)
            start, enough = seen.directions, components_needed(seen.variances, wanted, self.total)
            if enough <= k or k == self.most:
                break
            k = min(2 * k, self.most)
        k = min(enough, self.most)
        while True:
            found = self.exactly(k, start)
            enough = min(components_needed(found.variances, wanted, self.total), k)
            if enough == k:
                return found
            k, start = enough, found.directions
