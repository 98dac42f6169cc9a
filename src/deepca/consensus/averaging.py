"""Compute averages with a bound on their error, by gossip or over a spanning tree."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from deepca._util.floats import EPS
from deepca._util.portable import norm
from deepca._util.renamed import renamed_attributes
from deepca._util.typing import Array
from deepca.consensus.exact import TreeSweep, exact_average, exact_average_and_derive, exact_mixer, with_known
from deepca.consensus.mixer_state import mean_of
from deepca.consensus.mixers import default_mixer
from deepca.errors import NetworkError
from deepca.network.base import Network
from deepca.network.sums import Addend, Total
from deepca.topology.graph import Topology

__all__ = [
    "MAX_CONTROL_ERROR",
    "AverageWithError",
    "average",
    "average_and_derive",
    "common_average",
    "common_average_and_derive",
    "common_totals",
    "messages_lost_error",
]

MAX_CONTROL_ERROR = 1e-11
"""Largest error that rounding explains in the mean of control numbers, which lie between one and two.

A larger error means that messages were lost or altered.
"""

_MAX_ATTEMPTS = 8  # maximum number of attempts at an average before lost messages raise an error
_FIRST_ACCURACY = 1e-4  # contraction of the rounds before the error is first measured
_MAX_MEASUREMENTS = 512  # maximum number of measurements of the error; links may be far worse than the rounds assume
_MAX_IDLE_MEASUREMENTS = 16  # maximum number of measurements in a row that did not halve the error
_N_CONTROLS = 8  # number of control numbers: by chance, a lost message may barely affect one of them, but not all
_LOSS_FACTOR = 8.0  # bounds how much more a loss affects the data than the controls, except for about 8^−7 of losses
_WEIGHT_FACTOR = 0.5  # share of an error that data and controls have in common; half, since `error_bound` doubles it
_ROUNDING = 16.0 * EPS  # relative error of an average that counts as rounding


@renamed_attributes(doubt="error_norm", off_by="error_bound")
@dataclass(frozen=True)
class AverageWithError:
    """An average over all agents, with a bound on its error.

    Parameters
    ----------
    mean : ndarray of shape (n,)
        The average, bitwise the same at every agent.
    error : ndarray of shape (n,)
        Entrywise bound: the true mean lies within ``mean ± error``, apart from rounding.
    rounds : int
        Number of rounds.
    lost : float, default=0.0
        Amount by which the error of control numbers, whose mean is known, exceeds its bound. If that is more than
        rounding, messages were lost or altered, and neither ``mean`` nor ``error`` can be relied on.
    growth : float, default=1.0
        Error of ``mean`` beyond ``error``, in units of the rounding error of one product. It consists of rounding in
        every round of mixing, and of lost messages whose effect is as small.
    rounding : float, default=0.0
        Norm of the error of ``mean`` beyond that, since values were rounded to multiples of a unit.
    """

    mean: Array
    error: Array
    rounds: int
    lost: float = 0.0
    growth: float = 1.0
    rounding: float = 0.0

    @property
    def error_norm(self) -> float:
        """Euclidean norm of the error, bitwise the same at every agent, since decisions depend on it."""
        return norm(self.error)

    def error_bound(self, largest: float) -> float:
        """Bound the effect of rounding and of undetected lost messages on the mean of vectors.

        Parameters
        ----------
        largest : float
            Largest norm of a vector.

        Returns
        -------
        float
            Bound on the norm of the error of their mean.
        """
        return 2.0 * EPS * self.growth * largest + self.rounding


def average(
    network: Network,
    x: Array,
    rounds: int,
    enough: Callable[[AverageWithError], bool],
) -> AverageWithError:
    """Average ``x`` over all agents until the error is small enough, or cannot be reduced further.

    Parameters
    ----------
    network : Network
        Network of the agents.
    x : ndarray of shape (*B, n)
        Values of the local agents.
    rounds : int
        Rounds before the error is first measured, and between later measurements.
    enough : callable
        Predicate ``AverageWithError ↦ bool``; must depend only on numbers that are the same at every agent.

    Returns
    -------
    AverageWithError
        The mean and its error.

    Raises
    ------
    NetworkError
        If the mean is computed over a spanning tree, and a message was lost or altered.

    Notes
    -----
    Mixing preserves the mean, so the mean lies between the smallest and the largest value of any agent (on a directed
    graph, it is a weighted mean of the ratios x/y, with weights y, and lies between the smallest and largest of these).
    Agents agree on both by flooding; their midpoint is the answer, and half their distance is the error. Mixing
    continues while the error is too large and still decreases. It ends early only after 16 measurements in a row that
    did not halve the error, since few links may have been up in between. Control numbers with known means are mixed as
    well, to detect lost messages.

    If no message can get lost (``network.reliable``), the mean is computed over a spanning tree instead
    (:func:`deepca.consensus.exact.exact_average`), in fewer rounds and to rounding error.

    Examples
    --------
    >>> import numpy as np
    >>> import deepca
    >>> network = deepca.SimulatedNetwork(deepca.topology.ring(3))
    >>> found = average(network, np.array([[1.0], [2.0], [6.0]]), 5, lambda found: found.error_norm < 1e-9)
    >>> found.mean.round(9).tolist()
    [3.0]
    """
    if network.reliable:
        mean = exact_average(network, x)
        rounds = exact_mixer(network.topology, collective=network.collective).length(network.topology)
        return AverageWithError(mean, np.zeros_like(mean), rounds)
    return _average_by_mixing(network, x, rounds, enough)


def _average_by_mixing(
    network: Network, x: Array, rounds: int, enough: Callable[[AverageWithError], bool]
) -> AverageWithError:
    """Mix x until the error is small enough, or does not decrease any more."""
    made, before, idle = 0, np.inf, 0
    mix, memory = default_mixer(network.topology).with_rounds(rounds), None
    x, expected = with_known(network, x, _N_CONTROLS)
    while True:
        x, memory = mix.mix(network, x, memory)
        made += rounds
        found = _measured(network, mean_of(x, memory), expected, made)
        idle = idle + 1 if found.error_norm > 0.5 * before else 0
        if enough(found) or idle >= _MAX_IDLE_MEASUREMENTS or made >= _MAX_MEASUREMENTS * rounds:
            return found
        before = min(before, found.error_norm)


def _measured(network: Network, ratio: Array, expected: Array, made: int) -> AverageWithError:
    """Agree on the midpoint and half the range of all agents' estimates; the last ones are of control numbers."""
    n = ratio.shape[-1]
    high = network.reduce(np.concatenate([ratio, -ratio], axis=-1), "max")
    mean, error = (high[:n] - high[n:]) / 2.0, (high[:n] + high[n:]) / 2.0
    difference, allowed = mean[-_N_CONTROLS:] - expected, error[-_N_CONTROLS:]
    lost = max(float((np.abs(difference) - allowed).max()), 0.0)
    # weights that do not sum exactly to one change all numbers by the same factor; a lost message does not
    relative = difference / expected
    common = (float(relative.max()) + float(relative.min())) / 2.0
    uneven = max(float((np.abs(difference - common * expected) - allowed).max()), 0.0)
    growth = (
        math.sqrt(made)
        + (_WEIGHT_FACTOR * min(abs(common), lost, MAX_CONTROL_ERROR) + _LOSS_FACTOR * min(uneven, MAX_CONTROL_ERROR))
        / EPS
    )
    return AverageWithError(mean[:-_N_CONTROLS], error[:-_N_CONTROLS], made, lost, growth)


def average_and_derive(
    network: Network,
    x: Array | Sequence[Addend],
    rounds: int,
    enough: Callable[[AverageWithError], bool],
    derive: Callable[[AverageWithError], Array],
    size: int,
) -> tuple[AverageWithError, Array]:
    """Average ``x`` as :func:`average` does, and send all agents numbers that the leader derives from the average.

    Parameters
    ----------
    network : Network
        Network of the agents.
    x : ndarray of shape (*B, n) or sequence of Addend
        Values of the local agents. Addends state units for exact sums; their averages follow one another in ``mean``.
    rounds : int
        Rounds before the error is first measured, and between later measurements.
    enough : callable
        Predicate ``AverageWithError ↦ bool``; must depend only on numbers that are the same at every agent.
    derive : callable
        Function ``AverageWithError ↦ ndarray of shape (size,)``, called at the leader only.
    size : int
        Number of derived values.

    Returns
    -------
    average : AverageWithError
        The mean and its error.
    derived : ndarray of shape (size,)
        The leader's values, bitwise the same at every agent. They are sent along with exact sums, and broadcast
        otherwise.

    Raises
    ------
    NetworkError
        If the mean is an exact sum, and a message was lost or altered.
    """
    addends = [Addend("numbers", x)] if isinstance(x, np.ndarray) else x
    if network.reliable:
        return _exact_and_derive(network, addends, derive, size, TreeSweep().length(network.topology))
    found = average(network, _joined(addends), rounds, enough)
    return found, network.from_leader(derive(found) if network.is_leader_local else np.zeros(size))


def common_average_and_derive(
    network: Network, addends: Sequence[Addend], derive: Callable[[Array], Array], size: int
) -> tuple[AverageWithError, Array]:
    """Average as :func:`common_average` does, and send all agents ``size`` numbers that the leader derives from it.

    The error of the average consists of rounding only, so ``derive`` is called with the mean alone.
    """
    if network.adds_exactly:
        return _exact_and_derive(network, addends, lambda found: derive(found.mean), size, 0)
    found = _common(network, _joined(addends))
    return found, network.from_leader(derive(found.mean) if network.is_leader_local else np.zeros(size))


def _exact_and_derive(
    network: Network, addends: Sequence[Addend], derive: Callable[[AverageWithError], Array], size: int, made: int
) -> tuple[AverageWithError, Array]:
    rounding = norm(np.array([a.unit.rounding(a.x.shape[-1]) for a in addends if a.unit is not None]))

    def average(mean: Array) -> AverageWithError:
        return AverageWithError(mean, np.zeros_like(mean), made, rounding=rounding)

    mean, derived = exact_average_and_derive(network, addends, lambda mean: derive(average(mean)), size)
    return average(mean), derived


def _joined(addends: Sequence[Addend]) -> Array:
    """Return the values of all addends, one after another, ``(*B, n)``."""
    return np.concatenate([np.sum(addend.terms, axis=0) for addend in addends], axis=-1)


def common_average(network: Network, x: Array) -> Array:
    """Return the mean over all agents of ``x``, shape ``(*B, n)``, bitwise the same everywhere.

    It is an exact sum if the graph is static and known. Otherwise agents mix until they agree to rounding.
    """
    return exact_average(network, x) if network.adds_exactly else _common(network, x).mean


def common_totals(network: Network, *addends: Addend) -> list[Total]:
    """Return sums over all agents, bitwise the same everywhere: exact ones, or averages by mixing times m.

    Averages by mixing have a rounding error, so they have no ``rest``; units are ignored.
    """
    if network.adds_exactly:
        return network.totals(*addends)
    x = _joined(addends)
    ends = np.cumsum([addend.x.shape[-1] for addend in addends])
    sums = np.split(network.n_agents * _common(network, x).mean, ends[:-1])
    return [Total(value, np.zeros_like(value)) for value in sums]


def _common(network: Network, x: Array) -> AverageWithError:
    """Mix x until agents agree to rounding; start over if messages were lost."""
    topology = network.topology
    rounds = default_mixer(topology).rounds_for(topology, _FIRST_ACCURACY)
    equal = _ROUNDING * network.reduce(np.abs(x), "max")

    def settled(found: AverageWithError) -> bool:
        return bool((found.error <= equal).all()) or not np.isfinite(found.error).all()

    found = average(network, x, rounds, settled)
    for _ in range(_MAX_ATTEMPTS - 1):
        if found.lost <= _ROUNDING * found.rounds:
            break
        again = average(network, x, rounds, settled)
        found = min(found, again, key=lambda one: one.lost)  # attempts may reduce errors below MAX_CONTROL_ERROR, too
    if found.lost > MAX_CONTROL_ERROR:
        raise messages_lost_error(topology, found.lost)
    return found


def messages_lost_error(topology: Topology, error: float) -> NetworkError:
    """Return the exception for a network on which the mean of control numbers has an error beyond rounding."""
    return NetworkError(
        f"{topology.name}: the average of control numbers with known mean is off by {error:.1e}: messages get lost and "
        "are not sent again, so sums over all agents cannot be computed; use a transport that resends lost messages"
    )
