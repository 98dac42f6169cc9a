"""Sum numbers over all agents exactly: the result has the same bits at every agent and on every graph."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from deepca._util.typing import Array
from deepca.errors import MixingError, NetworkError, NotFiniteError, ParameterError, SumMismatch
from deepca.network.arrivals import is_finite
from deepca.network.exchanges import Exchanges
from deepca.network.sums.integers import COUNT, Unit, Words, bins_of, random_words
from deepca.network.sums.messages import Addend, SumLayout, Total
from deepca.network.sums.rounds import SumTree, sum_tree

__all__ = ["Totals"]


class Totals(Exchanges):
    """Exact sums over all agents, computed as integers; see :mod:`deepca.network.sums.integers`."""

    @property
    def adds_exactly(self) -> bool:
        """True if :meth:`total` is available: the graph is static, and all agents know it."""
        return self.topology.fully_known and not self.topology.time_varying

    def total(self, x: Array, /, unit: Unit | None = None) -> Array:
        """Compute the exact sum over all agents, rounded once.

        Pending values ride along and are complete afterwards.

        Parameters
        ----------
        x : ndarray of shape (*B, n)
            Local values, which must be finite.
        unit : Unit, optional
            Unit that they are rounded to, with which the total must not overflow. By default, one is found in which no
            number loses digits.

        Returns
        -------
        ndarray of shape (n,)
            The sum, bit-identical at every agent and on every graph; infinite if it overflows without a unit.

        Raises
        ------
        MixingError
            If links change, or no agent knows the whole graph.
        ParameterError
            If x has another shape.
        NotFiniteError
            If a local value is not finite.
        NetworkError
            If a message was lost or altered; BadArray if its sender is known.

        Examples
        --------
        >>> import numpy as np
        >>> import deepca
        >>> network = deepca.SimulatedNetwork(deepca.topology.ring(3))
        >>> network.total(np.array([[1e20, 0.1], [1.0, 0.2], [-1e20, 0.3]])).tolist()
        [1.0, 0.6]
        """
        return self.totals(Addend("numbers", np.asarray(x, dtype=np.float64), unit=unit))[0].value

    def totals(self, *addends: Addend) -> list[Total]:
        """Compute several exact sums at once, as :meth:`total` does.

        Parameters
        ----------
        *addends : Addend
            Local values.

        Returns
        -------
        list of Total
            One sum per addend.

        Raises
        ------
        MixingError, NotFiniteError, NetworkError
            As :meth:`total`.
        """
        return self.totals_and_derive(addends, lambda totals: np.empty(0), 0)[0]

    def totals_and_derive(
        self,
        addends: Sequence[Addend],
        derive: Callable[[list[Total]], Array],
        size: int,
        /,
        tree: SumTree | None = None,
    ) -> tuple[list[Total], Array]:
        """Compute exact sums, and send all agents numbers that the root of the tree derives from them.

        Factorizations and matrix products round differently on different processors, so only the root computes what
        follows from the sums. Its numbers travel with the sums, down the tree, and take no additional rounds.

        Parameters
        ----------
        addends : sequence of Addend
            Local values.
        derive : callable
            Function of the totals, called by the root only.
        size : int
            Number of derived values.
        tree : SumTree, optional
            Tree to sum over; by default, one with the leader as its root.

        Returns
        -------
        totals : list of Total
            One sum per addend.
        derived : ndarray of shape (size,)
            The root's ``derive(totals)``, bit-identical at every agent. Other agents should check it.

        Raises
        ------
        MixingError, NotFiniteError, NetworkError
            As :meth:`total`; NotFiniteError also for a derived NaN.

        Notes
        -----
        Agents count the numbers that a guessed unit does not suit, or that exceed their limits. If there are any, they
        count the magnitudes that occur, and repeat the sum with a unit for all of them. In a private network, an agent
        with such a number adds random words to the first sum, or the difference of both would be its own number.
        """
        self._check_addends(addends, tree)
        if all(addend.has_final_unit for addend in addends):
            return self._sums(addends, derive, size, tree)
        fitted, misfits = zip(*(addend.fitted(self.n_agents) for addend in addends), strict=True)
        counts = Addend("counts of numbers in other units", np.stack(misfits, axis=-1), unit=COUNT, nonnegative=True)

        def derive_unless_repeated(totals: list[Total]) -> Array:
            return np.zeros(size) if totals[0].value.any() else derive(totals[1:])

        lacking = counts.x > 0.0
        (counted, *found), derived = self._sums((counts, *fitted), derive_unless_repeated, size, tree, lacking)
        if not (again := np.flatnonzero(counted.value).tolist()):
            return found, derived

        def with_repeated(totals: list[Total]) -> list[Total]:
            return [totals[again.index(i)] if i in again else total for i, total in enumerate(found)]

        repeated = self._in_spanning_units([addends[i] for i in again], tree)
        totals, derived = self._sums(repeated, lambda totals: derive(with_repeated(totals)), size, tree)
        return with_repeated(totals), derived

    def confirm_totals(self) -> None:
        """Check, in a private network, that all agents have received the same totals and broadcasts; else do nothing.

        Every sum checks all before it, so this is needed after the last one only. An agent that passes totals down
        could hide a mismatch from those below it: where that matters, compare :attr:`history`.

        Raises
        ------
        SumMismatch
            If an agent was sent other numbers than its peers.
        """
        if self._masks is not None:
            self.totals(Addend("confirmation", np.empty((*self.batch, 0)), unit=COUNT))

    def _in_spanning_units(self, addends: Sequence[Addend], tree: SumTree | None) -> list[Addend]:
        """Return the addends in units in which no number of any agent loses digits."""
        counts = [
            Addend(
                "counts of magnitudes", np.max([bins_of(x) for x in addend.terms], axis=0), unit=COUNT, nonnegative=True
            )
            for addend in addends
        ]
        totals, _ = self.totals_and_derive(counts, lambda totals: np.empty(0), 0, tree)
        bins = [np.flatnonzero(total.value) for total in totals]
        if not all(used.size for used in bins):
            raise NetworkError(
                "agents counted numbers that need another unit, but no numbers other than zero: an agent runs altered "
                "software; compare the versions and logs of all agents"
            )
        return [
            addend.in_unit(Unit.spanning(int(used[0]), int(used[-1]), self.n_agents * len(addend.terms)))
            for used, addend in zip(bins, addends, strict=True)
        ]

    def _sums(
        self,
        addends: Sequence[Addend],
        derive: Callable[[list[Total]], Array],
        size: int,
        tree: SumTree | None,
        lacking: npt.NDArray[np.bool_] | None = None,
    ) -> tuple[list[Total], Array]:
        """Add up addends with units, and check that every agent contributed.

        ``lacking``, ``(*B, n)``, says which addends after the first lack numbers, so that the sum will be repeated.
        """
        layout = SumLayout.of(addends, masked=self._masks is not None, provisional=lacking is not None)
        tree = tree or sum_tree(self.topology, from_leader=size > 0)
        own, weights = self._packed(addends, layout, lacking)

        totals: list[Total] = []

        def derived_words(summed: Words) -> Words:
            derived = np.zeros(size)
            if tree.n_agents in (None, layout.agents(summed)) and not layout.describe_total_fault(summed, weights):
                totals[:] = layout.totals(summed)
                derived[:] = derive(totals)
            if np.isnan(derived).any():
                raise self._not_finite_error("numbers that follow from sums", tree.root)
            return derived.view(np.uint64)

        pending = list(self._pending)
        summed, derived = self._sum_words(own, layout, derived_words, size, tree)
        self._complete_pending(pending)
        if tree.n_agents not in (None, layout.agents(summed)):
            raise NetworkError(
                f"a sum over {tree.n_agents} agents counted {layout.agents(summed)} of them: a message was lost or "
                "altered; check the network, then run again"
            )
        self._check_total(summed, derived, layout, weights)
        return totals or layout.totals(summed), derived.view(np.float64)

    def _packed(
        self, addends: Sequence[Addend], layout: SumLayout, lacking: npt.NDArray[np.bool_] | None
    ) -> tuple[Words, Words]:
        """Return the messages of the local agents, masked in a private network, and the weights of check numbers."""
        ones, parts = COUNT.encode(np.ones((*self.batch, 1))), [addend.encode() for addend in addends]
        if self._masks is None:
            return layout.pack([ones, *parts]), np.empty(0, dtype=np.uint64)
        if lacking is not None:
            for bad, part in zip(np.moveaxis(lacking, -1, 0), parts[1:], strict=True):
                part[bad] = random_words(part[bad].shape)
        weights = self._masks.weights(layout)
        return self._masks.hide(layout.pack([ones, *layout.with_checks(parts, weights)]), layout), weights

    def _check_total(self, summed: Words, derived: Words, layout: SumLayout, weights: Words) -> None:
        """Raise SumMismatch unless the total of a private network is that of what its agents added."""
        if self._masks is None:
            return
        if wrong := layout.describe_total_fault(summed, weights):
            raise SumMismatch(self._masks.plan, wrong)
        self._masks.record(layout.digest, summed, derived)

    def _not_finite_error(self, what: str, agent: int, index: int = -1) -> NotFiniteError:
        return NotFiniteError(
            f"the {what} contain NaN or infinity; if they are products or sums that overflow, divide the data by a "
            "large power of ten",
            agent=agent,
            index=index,
            phase=self._phase,
        )

    def _check_addends(self, addends: Sequence[Addend], tree: SumTree | None) -> None:
        """Raise MixingError unless exact sums are possible, and NotFiniteError unless all local numbers are finite."""
        if tree is None and not self.adds_exactly:
            raise MixingError(
                f"{self.topology.name}: exact sums over all agents need a static graph that every agent knows; use a "
                "tracked method (deepca.AcceleratedDeEPCA or deepca.DeEPCA; algorithm 'accelerated' or 'deepca'), or "
                "deepca.consensus.average",
                parameter="topology",
            )
        for addend in addends:
            for x in addend.terms:
                if x.shape[: len(self.batch)] != self.batch or x.ndim != len(self.batch) + 1:
                    raise ParameterError("x", x.shape, f"expected an array of shape {(*self.batch, 'n')}")
                if not is_finite(x):
                    *at, index = np.argwhere(~np.isfinite(x))[0].tolist()
                    agent = int(self.local[tuple(at)])
                    raise self._not_finite_error(f"{addend.name} of agent {agent}", agent, index)

    @abstractmethod
    def _sum_words(
        self, own: Words, layout: SumLayout, derive: Callable[[Words], Words], size: int, tree: SumTree, /
    ) -> tuple[Words, Words]:
        """Add the messages of all agents; return the sum, and ``size`` words that the root derives from it.

        Parameters
        ----------
        own : ndarray of shape (*B, N)
            Messages of the local agents.
        layout : SumLayout
            Their layout.
        derive : callable
            Function of the sum, called by the root only.
        size : int
            Number of words that it returns.
        tree : SumTree
            Rounds of the sum.

        Returns
        -------
        summed : ndarray of shape (N,)
            The sum.
        derived : ndarray of shape (size,)
            The root's ``derive(summed)``.
        """
