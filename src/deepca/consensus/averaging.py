"""Compute averages with a bound on their error, by gossip or over a spanning tree."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from deepca._util.floats import EPS
from deepca._util.portable import norm
from deepca._util.renamed import renamed_attributes
from deepca._util.typing import Array
from deepca.consensus.exact import TreeSweep, exact_average, exact_average_then, exact_mixer, with_known
from deepca.consensus.mixer_state import mean_of
from deepca.consensus.mixers import default_mixer
from deepca.errors import NetworkError
from deepca.network.base import Network
from deepca.topology.graph import Topology

__all__ = [
    "LOST",
    "Averaged",
    "average",
    "average_then",
    "common_average",
    "common_average_then",
    "common_averaged_then",
    "messages_lost",
]

LOST = 1e-11
"""Largest error that rounding explains in a mean of numbers between one and two; more means lost messages."""

_MAX_ATTEMPTS = 8  # at an average, before lost messages are an error
_FIRST_ACCURACY = 1e-4  # contraction of the rounds before the error is first measured
_MAX_LOOKS, _MAX_IDLE_LOOKS = 512, 16  # measurements in all, and without gain: links may be far worse than K assumes
_N_CONTROLS = 8  # numbers with known mean: by chance, a lost message may barely affect one of them, but not all
_LOSS_FACTOR = 8.0  # bounds how much more a loss affects the data than the controls, except for about 8^−7 of losses
_WEIGHT_FACTOR = 0.5  # weights that do not sum exactly to one affect data and controls alike; `error_bound` doubles it
_ROUNDING = 16.0 * EPS


@renamed_attributes(doubt="error_norm", off_by="error_bound")
@dataclass(frozen=True)
class Averaged:
    """An average over all agents, with a bound on its error.

    Parameters
    ----------
    mean : ndarray of shape (n,)
        The average, bitwise the same at every agent.
    error : ndarray of shape (n,)
        Entrywise bound: the true mean lies within ``mean ± error``, apart from rounding.
    rounds : int
        Rounds that were used.
    lost : float, default=0.0
        Amount by which the error of numbers with known mean exceeds its bound. If it is more than rounding, messages
        were lost or altered, and neither ``mean`` nor ``error`` can be relied on.
    growth : float, default=1.0
        Error of ``mean`` beyond ``error``, in units of the rounding error of one product: rounding in every round of
        mixing, and lost messages whose effect is as small.
    """

    mean: Array
    error: Array
    rounds: int
    lost: float = 0.0
    growth: float = 1.0

    @property
    def error_norm(self) -> float:
        """Euclidean norm of the error, bitwise the same at every agent, since decisions depend on it."""
        return norm(self.error)

    def error_bound(self, largest: float) -> float:
        """Bound the effect of rounding and of lost messages on the mean of vectors.

        Parameters
        ----------
        largest : float
            Largest norm of a vector.

        Returns
        -------
        float
            Bound on the norm of the error of their mean.
        """
        return 2.0 * EPS * self.growth * largest


def average(
    network: Network,
    x: Array,
    rounds: int,
    enough: Callable[[Averaged], bool],
) -> Averaged:
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
        Predicate ``Averaged ↦ bool``; must depend only on numbers that are the same at every agent.

    Returns
    -------
    Averaged
        The mean and its error.

    Notes
    -----
    Mixing preserves the mean, so the mean lies between the smallest and the largest value of any agent (on a directed
    graph, of the ratios x/y, of which it is the mean weighted by y). Agents agree on both by flooding; their midpoint
    is the answer, and half their distance is the error. Mixing continues while the error is too large and still
    decreases. It gives up only after 16 measurements in a row did not halve the error, since few links may have been up
    in between. Numbers with known means are mixed as well, to detect lost messages.

    If no message can get lost (``network.reliable``), the mean is computed over a spanning tree instead
    (:func:`deepca.consensus.exact.exact_average`), in fewer rounds and to rounding error.

    Examples
    --------
    >>> import numpy as np
    >>> import deepca
    >>> network = deepca.SimulatedNetwork(deepca.topology.ring(3))
    >>> average(network, np.array([[1.0], [2.0], [6.0]]), 5, lambda found: found.doubt < 1e-9).mean.round(9).tolist()
    [3.0]
    """
    if network.reliable:
        mean = exact_average(network, x)
        rounds = exact_mixer(network.topology, collective=network.collective).length(network.topology)
        return Averaged(mean, np.zeros_like(mean), rounds)
    made, before, still = 0, np.inf, 0
    mix, memory = default_mixer(network.topology).with_rounds(rounds), None
    x, expected = with_known(network, x, _N_CONTROLS)
    while True:
        x, memory = mix.mix(network, x, memory)
        made += rounds
        found = _measured(network, mean_of(x, memory), expected, made)
        still = still + 1 if found.error_norm > 0.5 * before else 0
        if enough(found) or still >= _MAX_IDLE_LOOKS or made >= _MAX_LOOKS * rounds:
            return found
        before = min(before, found.error_norm)


def _measured(network: Network, ratio: Array, expected: Array, made: int) -> Averaged:
    """Agree on the midpoint and half the range of all agents' estimates; the last of these are the control numbers."""
    n = ratio.shape[-1]
    high = network.reduce(np.concatenate([ratio, -ratio], axis=-1), "max")
    mean, error = (high[:n] - high[n:]) / 2.0, (high[:n] + high[n:]) / 2.0
    off, doubt = mean[-_N_CONTROLS:] - expected, error[-_N_CONTROLS:]
    lost = max(float((np.abs(off) - doubt).max()), 0.0)
    # weights that do not sum exactly to one change all numbers by the same factor; a lost message does not
    relative = off / expected
    common = (float(relative.max()) + float(relative.min())) / 2.0
    uneven = max(float((np.abs(off - common * expected) - doubt).max()), 0.0)
    growth = math.sqrt(made) + (_WEIGHT_FACTOR * min(abs(common), lost, LOST) + _LOSS_FACTOR * min(uneven, LOST)) / EPS
    return Averaged(mean[:-_N_CONTROLS], error[:-_N_CONTROLS], made, lost, growth)


def average_then(
    network: Network,
    x: Array,
    rounds: int,
    enough: Callable[[Averaged], bool],
    derive: Callable[[Averaged], Array],
    size: int,
) -> tuple[Averaged, Array]:
    """Average ``x`` as :func:`average` does, and send all agents numbers that the leader derives from the average.

    Parameters
    ----------
    network : Network
        Network of the agents.
    x : ndarray of shape (*B, n)
        Values of the local agents.
    rounds : int
        Rounds before the error is first measured, and between later measurements.
    enough : callable
        Predicate ``Averaged ↦ bool``; must depend only on numbers that are the same at every agent.
    derive : callable
        Function ``Averaged ↦ ndarray of shape (size,)``, called at the leader only.
    size : int
        Number of derived values.

    Returns
    -------
    averaged : Averaged
        The mean and its error.
    derived : ndarray of shape (size,)
        The leader's values, bitwise the same at every agent. They travel with the mean if that is computed over a
        tree, and are broadcast otherwise.
    """
    if network.reliable:
        made = TreeSweep().length(network.topology)
        mean, derived = exact_average_then(
            network, x, lambda mean: derive(Averaged(mean, np.zeros_like(mean), made)), size
        )
        return Averaged(mean, np.zeros_like(mean), made), derived
    found = average(network, x, rounds, enough)
    return found, network.from_leader(derive(found) if network.leads else np.zeros(size))


def common_average_then(network: Network, x: Array, derive: Callable[[Array], Array], size: int) -> tuple[Array, Array]:
    """Return :func:`common_average` and ``size`` numbers that the leader derives from it, the same bits everywhere."""
    found, derived = common_averaged_then(network, x, derive, size)
    return found.mean, derived


def common_averaged_then(
    network: Network, x: Array, derive: Callable[[Array], Array], size: int
) -> tuple[Averaged, Array]:
    """Do the same as :func:`common_average_then`, but return the mean as an Averaged, whose error is rounding only."""
    if network.topology.fully_known and not network.topology.time_varying:
        mean, derived = exact_average_then(network, x, derive, size)
        return Averaged(mean, np.zeros_like(mean), 0), derived
    found = _common(network, x)
    return found, network.from_leader(derive(found.mean) if network.leads else np.zeros(size))


def common_average(network: Network, x: Array) -> Array:
    """Return the mean over all agents of ``x``, shape ``(*B, n)``, to rounding error and bitwise the same everywhere.

    It is computed over a spanning tree if the graph is static and known, and otherwise by mixing until agents agree to
    rounding.
    """
    if network.topology.fully_known and not network.topology.time_varying:
        return exact_average(network, x)
    return _common(network, x).mean


def _common(network: Network, x: Array) -> Averaged:
    """Mix x until agents agree to rounding; start over if messages were lost."""
    topology = network.topology
    rounds = default_mixer(topology).rounds_for(topology, _FIRST_ACCURACY)
    equal = _ROUNDING * network.reduce(np.abs(x), "max")

    def settled(found: Averaged) -> bool:
        return bool((found.error <= equal).all()) or not np.isfinite(found.error).all()

    found = average(network, x, rounds, settled)
    for _ in range(_MAX_ATTEMPTS - 1):
        if found.lost <= _ROUNDING * found.rounds:
            break
        again = average(network, x, rounds, settled)
        found = min(found, again, key=lambda one: one.lost)  # an error below LOST can still be improved
    if found.lost > LOST:
        raise messages_lost(topology, found.lost)
    return found


def messages_lost(topology: Topology, off: float) -> NetworkError:
    """Return the error for a network on which numbers with known mean come out wrong by ``off``."""
    return NetworkError(
        f"{topology.name}: the average of numbers with known mean is off by {off:.1e}: messages get lost and are not "
        "sent again, so sums over all agents cannot be computed; use a transport that resends lost messages"
    )
