"""Find, certify and rotate principal components once agents have agreed on counts, mean and spread."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from deepca._util.typing import Array
from deepca.algorithms import State
from deepca.decomposition.leading import search
from deepca.decomposition.settings import Settings, components_needed
from deepca.engines.checkpointing import ResumePoint
from deepca.errors import InvalidInput, PooledDataError
from deepca.network.base import Network
from deepca.operators.base import Operator
from deepca.solver.certificate.certification import digest_of
from deepca.solver.deflation import recover_small_components
from deepca.solver.observers import Observer
from deepca.solver.result import Result
from deepca.solver.ritz_axes import complete_null_columns, principal_axes
from deepca.solver.verdict import cap_rank

__all__ = ["PcaRun"]

_FIRST_GUESS = 8  # components to try first when a share of the variance is requested
_COARSE_ITERATIONS = 60  # enough to estimate how much variance k components explain


@dataclass(frozen=True)
class _PcaOutcome:
    """Components ``(k, d)`` with their variances, rows that span the search space, and the result of the run."""

    components: Array
    variances: Array
    directions: Array
    result: Result[Any]


@dataclass(frozen=True)
class PcaRun:
    """Search for principal components, from agreed statistics to certified axes.

    Parameters
    ----------
    A : Operator
        Centred and scaled covariances of the local agents; their mean is the covariance of all rows.
    network : Network
        Network of the agents.
    settings : Settings
        What to compute, and how.
    most : int
        Largest number of components that can be requested.
    rank_limit : int
        Largest rank possible with this number of rows.
    total : float
        Sum of the variances of all columns, after any scaling.
    observers : tuple of Observer
        Notified of every iteration.
    checkpointers : tuple of Observer
        Notified of the final run only, not of preliminary searches.
    """

    A: Operator
    network: Network
    settings: Settings
    most: int
    rank_limit: int
    total: float
    observers: tuple[Observer, ...]
    checkpointers: tuple[Observer, ...] = ()

    def find(self, start: Array | None, resume: ResumePoint | None = None) -> _PcaOutcome:
        """Find the requested components, from a start or from where an earlier run was interrupted."""
        wanted = self.settings.n_components
        if resume is not None:
            return self.resume(resume)
        return (
            self.find_variance_share(wanted, start)
            if isinstance(wanted, float)
            else self.find_k(wanted or self.most, start)
        )

    def resume(self, at: ResumePoint) -> _PcaOutcome:
        """Resume an interrupted run."""
        wanted = self.settings.n_components
        if at.state is not None:
            k = at.state.W.shape[-1]
        elif at.directions is not None:  # one agent's, perhaps computed from different rows, so only a start
            k = min(len(at.directions), self.most) if isinstance(wanted, float) else wanted or self.most
        else:
            raise InvalidInput(
                "the resumption has neither a state nor directions; give one of them", parameter="resume"
            )
        found = self.find_k(k, at.directions, state=at.state, disturbed=at.state is None)
        if not isinstance(wanted, float):
            return found
        if components_needed(found.variances, wanted, self.total) == k:
            return found
        return self.find_variance_share(wanted, found.directions)

    def find_k(
        self,
        k: int,
        start: Array | None,
        *,
        coarse: bool = False,
        state: State | None = None,
        disturbed: bool = False,
    ) -> _PcaOutcome:
        """Find the k leading components; a coarse search is only accurate enough to estimate the explained variance.

        ``state`` resumes a run; ``disturbed`` means that ``start`` comes from a run that the network interrupted.
        """
        if k > self.most:
            raise PooledDataError(
                f"n_components = {k} exceeds min(rows, columns) = {self.most}; ask for at most {self.most}",
                parameter="n_components",
                value=k,
            )
        top = search(
            self.A,
            self.network,
            self.settings,
            k,
            start,
            state=state,
            disturbed=disturbed,
            coarse=_COARSE_ITERATIONS if coarse else None,
            observers=self.observers if coarse else (*self.observers, *self.checkpointers),
        )
        X, result, known = top.X, top.result, top.directions
        proof = result.certificate
        if proof is not None:  # X is already the same at all agents, and rotated to the principal axes
            tol = self.settings.tol
            X, result = recover_small_components(
                self.A, self.network, X, result, self._search, tol=tol, trace=self.total
            )
            result = cap_rank(result, self.rank_limit)
            proof = result.certificate or proof
            variances = np.array(proof.eigenvalues)
            X = complete_null_columns(X, proof, self.network)
            spread = np.array(np.broadcast_to(X, result.components.shape))
            result = replace(result, components=spread, certificate=replace(proof, digest=digest_of(X)))
        else:
            X, variances, _ = principal_axes(self.A, self.network.broadcast(result.components), self.network)
        components = np.ascontiguousarray(X.T)
        return _PcaOutcome(components, variances, components if known is None else known, result)

    def _search(self, A: Operator, k: int, most: int) -> Result[Any]:
        """Find the k leading components of deflated rows in at most ``most`` iterations."""
        asked = replace(self.settings, max_iter=min(most, self.settings.max_iter))
        return search(A, self.network, asked, k).result

    def find_variance_share(self, wanted: float, start: Array | None) -> _PcaOutcome:
        """Find the fewest components that explain more than a share ``wanted`` of the total variance.

        Coarse searches with increasing k find an upper bound on k, since they never overestimate variances.
        The exact run follows; if it shows that fewer suffice, it is repeated with fewer.
        """
        k = min(_FIRST_GUESS if start is None else max(_FIRST_GUESS, len(start)), self.most)
        while True:
            seen = self.find_k(k, start, coarse=True)
            start, enough = seen.directions, components_needed(seen.variances, wanted, self.total)
            if enough <= k or k == self.most:
                break
            k = min(2 * k, self.most)
        k = min(enough, self.most)
        while True:
            found = self.find_k(k, start)
            enough = min(components_needed(found.variances, wanted, self.total), k)
            if enough == k:
                return found
            k, start = enough, found.directions
