"""Sum numbers over all agents exactly: the result has the same bits at every agent and on every graph."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from deepca._util.typing import Array
from deepca.errors import MixingError, NetworkError, NotFiniteError
from deepca.network.arrivals import MAX_COUNT, is_finite
from deepca.network.exchanges import Exchanges
from deepca.network.integers import COUNT, WIDE, Unit, Words, add_words, bins_of, carry, carry_free

__all__ = ["Addend", "SumLayout", "Total", "Totals"]


@dataclass(frozen=True, eq=False)
class Addend:
    """Numbers of the local agents to be summed over all agents.

    Parameters
    ----------
    name : str
        What the numbers are called in error messages.
    *terms : ndarray of shape (*B, n)
        Each agent contributes their sum, which is not rounded before it is encoded.
    unit : Unit, optional
        Unit that the terms are rounded to, and in which the total must not overflow. By default, one is found in which
        no number loses digits.
    guess : Unit, default=WIDE
        The unit that is tried first, if none is given.
    digits : int, default=53
        Binary digits that every number must keep, if no unit is given.
    nonnegative : bool, default=False
        Whether no agent may contribute a negative number.
    """

    name: str
    terms: tuple[Array, ...]
    unit: Unit | None
    guess: Unit
    digits: int
    nonnegative: bool

    def __init__(
        self,
        name: str,
        *terms: Array,
        unit: Unit | None = None,
        guess: Unit = WIDE,
        digits: int = 53,
        nonnegative: bool = False,
    ) -> None:
        values = {"name": name, "terms": terms, "unit": unit, "guess": guess, "digits": digits}
        for field, value in {**values, "nonnegative": nonnegative}.items():
            object.__setattr__(self, field, value)

    def in_unit(self, unit: Unit, terms: Sequence[Array] | None = None) -> Addend:
        """Return an addend with the given unit, and other terms if given."""
        return Addend(self.name, *(self.terms if terms is None else terms), unit=unit, nonnegative=self.nonnegative)

    def fitted(self, agents: int) -> tuple[Addend, Array]:
        """Return the addend with a unit, and for each local agent how many numbers the unit does not suit, ``(*B,)``.

        Such numbers are replaced by zeros.
        """
        if self.unit is not None:
            return self, np.zeros(self.terms[0].shape[:-1])
        fits = self.guess.fits(np.asarray(sum(map(np.abs, self.terms))), agents, self.digits)
        suited = self.in_unit(self.guess, [np.where(fits, x, 0.0) for x in self.terms])
        return suited, np.sum(~fits, axis=-1, dtype=np.float64)

    def encode(self) -> Words:
        """Return the sum of the terms, as integers."""
        assert self.unit is not None
        first, *more = map(self.unit.encode, self.terms)
        for term in more:
            first = add_words(first, term)
        return first


@dataclass(frozen=True)
class Total:
    """Sum over all agents.

    Parameters
    ----------
    value : ndarray of shape (n,)
        The sum, rounded once; infinite if it overflows.
    rest : ndarray of shape (n,)
        What rounding removed, itself rounded.
    """

    value: Array
    rest: Array


@dataclass(frozen=True)
class SumLayout:
    """Consecutive parts of the messages of a sum, which begin with the number of agents summed so far.

    Parameters
    ----------
    names : tuple of str
        What the parts are called in error messages.
    units : tuple of Unit
        Their units.
    sizes : tuple of int
        Numbers in each part.
    nonnegative : tuple of bool
        Whether no number of the part is negative.
    """

    names: tuple[str, ...]
    units: tuple[Unit, ...]
    sizes: tuple[int, ...]
    nonnegative: tuple[bool, ...]

    @classmethod
    def of(cls, addends: Sequence[Addend]) -> SumLayout:
        """Return the layout for addends with units."""
        units = [addend.unit for addend in addends if addend.unit is not None]
        return cls(
            ("number of agents", *(addend.name for addend in addends)),
            (COUNT, *units),
            (1, *(addend.terms[0].shape[-1] for addend in addends)),
            (True, *(addend.nonnegative for addend in addends)),
        )

    @property
    def n_words(self) -> int:
        """Number of words of a message, N."""
        return sum(unit.words * n for unit, n in self._parts)

    @property
    def _parts(self) -> list[tuple[Unit, int]]:
        return list(zip(self.units, self.sizes, strict=True))

    def pack(self, parts: Sequence[Words]) -> Words:
        """Concatenate parts ``(…, L, n)`` into messages ``(…, N)``."""
        return np.concatenate([part.reshape(*part.shape[:-2], -1) for part in parts], axis=-1)

    def split(self, messages: Words) -> list[Words]:
        """Split messages ``(…, N)`` into parts ``(…, L, n)``."""
        ends = np.cumsum([unit.words * n for unit, n in self._parts])
        parts = np.split(messages, ends[:-1], axis=-1)
        return [
            part.reshape(*messages.shape[:-1], unit.words, n)
            for part, (unit, n) in zip(parts, self._parts, strict=True)
        ]

    def agents(self, message: Words) -> int:
        """Return the number of agents that a message sums over."""
        return int(message[0])

    def totals(self, message: Words) -> list[Total]:
        """Decode the message of a whole sum."""
        parts = zip(self.units[1:], self.split(message)[1:], strict=True)
        return [Total(*unit.decode(part)) for unit, part in parts]

    def add(self, own: Words, more: Words) -> Words:
        """Add two messages ``(N,)``."""
        if all(unit.words == 1 for unit in self.units):
            return own + more
        return self.pack([add_words(a, b) for a, b in zip(self.split(own), self.split(more), strict=True)])

    def carry_free_sum(self, messages: Words) -> Words:
        """Add the messages ``(m, N)`` of the local agents without carrying; such sums can be added one by one."""
        return np.concatenate([carry_free(part).sum(axis=0, dtype=np.uint64).ravel() for part in self.split(messages)])

    def carry(self, sums: Words) -> Words:
        """Return the message ``(N,)`` of which ``sums`` are the sums of :meth:`carry_free_sum`."""
        shapes = [(unit.words if unit.words == 1 else 2 * unit.words, n) for unit, n in self._parts]
        parts = np.split(sums, np.cumsum([words * n for words, n in shapes])[:-1])
        return self.pack([carry(part.reshape(shape)) for part, shape in zip(parts, shapes, strict=True)])

    def describe_fault(self, message: Words, agents: int) -> str:
        """Describe what is wrong with a received message ``(N,)``; return an empty string if nothing is.

        Parameters
        ----------
        message : ndarray of shape (N,)
            The message.
        agents : int
            Number of agents that its sums must include.
        """
        if (counted := self.agents(message)) != agents:
            return f"sums over {counted} agents instead of {agents}"
        for name, unit, nonnegative, words in zip(
            self.names, self.units, self.nonnegative, self.split(message), strict=True
        ):
            highest = words[-1].view(np.int64)
            if nonnegative and (highest < 0).any():
                return f"a negative number in its {name}"
            if unit is COUNT and (highest > MAX_COUNT).any():
                return f"a number too large to be a count in its {name}"
        return ""


class Totals(Exchanges):
    """Exact sums over all agents, computed as integers; see :mod:`deepca.network.integers`."""

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
            The sum, bit-identical at every agent and on every graph; infinite if it overflows.

        Raises
        ------
        MixingError
            If links change, or no agent knows the whole graph.
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
        return self.totals(Addend("numbers", x, unit=unit))[0].value

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
        self, addends: Sequence[Addend], derive: Callable[[list[Total]], Array], size: int, /
    ) -> tuple[list[Total], Array]:
        """Compute exact sums, and send all agents numbers that the leader derives from them.

        Factorizations and matrix products round differently on different processors, so only the leader computes what
        follows from the sums. Its numbers travel with the sums, down the spanning tree, and take no additional rounds.

        Parameters
        ----------
        addends : sequence of Addend
            Local values.
        derive : callable
            Function of the totals, called by the leader only.
        size : int
            Number of derived values.

        Returns
        -------
        totals : list of Total
            One sum per addend.
        derived : ndarray of shape (size,)
            The leader's ``derive(totals)``, bit-identical at every agent. Other agents should check it.

        Raises
        ------
        MixingError, NotFiniteError, NetworkError
            As :meth:`total`; NotFiniteError also if a derived value is NaN.

        Notes
        -----
        If an addend has no unit, a guess is used, and agents count the numbers that it does not suit. If there are any,
        agents count the magnitudes that occur, and repeat the sum with a unit that suits all of them.
        """
        if not self.adds_exactly:
            raise MixingError(
                f"{self.topology.name}: exact sums over all agents need a static graph that every agent knows; use "
                "deepca.consensus.average, which bounds its error",
                parameter="topology",
            )
        self._check_finite(addends)
        if all(addend.unit is not None for addend in addends):
            return self._sums(addends, derive, size)
        fitted, misfits = zip(*(addend.fitted(self.n_agents) for addend in addends), strict=True)
        counts = Addend("counts of numbers in other units", np.stack(misfits, axis=-1), unit=COUNT, nonnegative=True)

        def derive_unless_repeated(totals: list[Total]) -> Array:
            return np.zeros(size) if totals[0].value.any() else derive(totals[1:])

        (counted, *found), derived = self._sums((counts, *fitted), derive_unless_repeated, size)
        if not (again := np.flatnonzero(counted.value).tolist()):
            return found, derived

        def with_repeated(totals: list[Total]) -> list[Total]:
            repeated = dict(zip(again, totals, strict=True))
            return [repeated.get(i, total) for i, total in enumerate(found)]

        units = self._spanning_units([addends[i] for i in again])
        repeated = [addends[i].in_unit(unit) for i, unit in zip(again, units, strict=True)]
        totals, derived = self._sums(repeated, lambda totals: derive(with_repeated(totals)), size)
        return with_repeated(totals), derived

    def _spanning_units(self, addends: Sequence[Addend]) -> list[Unit]:
        """Return a unit for each addend in which no number of any agent loses digits."""
        counts = [
            Addend("counts of magnitudes", np.max([bins_of(x) for x in addend.terms], axis=0), unit=COUNT)
            for addend in addends
        ]
        bins = [np.flatnonzero(total.value) for total in self.totals(*counts)]
        return [
            Unit.spanning(int(used[0]), int(used[-1]), self.n_agents * len(addend.terms))
            for used, addend in zip(bins, addends, strict=True)
        ]

    def _sums(
        self, addends: Sequence[Addend], derive: Callable[[list[Total]], Array], size: int
    ) -> tuple[list[Total], Array]:
        """Add up addends with units, and check that every agent contributed."""
        layout = SumLayout.of(addends)
        ones = COUNT.encode(np.ones((*self.batch, 1)))
        own = layout.pack([ones, *(addend.encode() for addend in addends)])

        def derived_words(summed: Words) -> Words:
            derived = np.zeros(size)
            if layout.agents(summed) == self.n_agents:
                derived[:] = derive(layout.totals(summed))
            if np.isnan(derived).any():
                raise self._not_finite_error("numbers that follow from sums", self.leader)
            return derived.view(np.uint64)

        pending, self._sweeping = list(self._pending), True
        try:
            summed, derived = self._sum_words(own, layout, derived_words, size)
        finally:
            self._sweeping = False
        self._complete_pending(pending)
        if (counted := layout.agents(summed)) != self.n_agents:
            raise NetworkError(
                f"a sum over {self.n_agents} agents counted {counted} of them: a message was lost or altered; check "
                "the network, then run again"
            )
        return layout.totals(summed), derived.view(np.float64)

    def _not_finite_error(self, what: str, agent: int, index: int = -1) -> NotFiniteError:
        return NotFiniteError(
            f"the {what} of agent {agent} are not finite: products or sums overflow; divide the data by a large power "
            "of ten",
            agent=agent,
            index=index,
            phase=self._phase,
        )

    def _check_finite(self, addends: Sequence[Addend]) -> None:
        """Raise NotFiniteError for the first local number that is not finite."""
        for addend in addends:
            for x in addend.terms:
                if not is_finite(x):
                    *at, index = np.argwhere(~np.isfinite(x))[0].tolist()
                    agent = int(self.local[tuple(at)])
                    raise self._not_finite_error(addend.name, agent, index)

    @abstractmethod
    def _sum_words(
        self, own: Words, layout: SumLayout, derive: Callable[[Words], Words], size: int, /
    ) -> tuple[Words, Words]:
        """Add the messages of all agents; return the sum, and ``size`` words that the leader derives from it.

        Parameters
        ----------
        own : ndarray of shape (*B, N)
            Messages of the local agents.
        layout : SumLayout
            Their layout.
        derive : callable
            Function of the sum, called by the leader only.
        size : int
            Number of words that it returns; if it is 0, agents may add up the sum in any order, without a leader.

        Returns
        -------
        summed : ndarray of shape (N,)
            The sum.
        derived : ndarray of shape (size,)
            The leader's ``derive(summed)``.
        """
