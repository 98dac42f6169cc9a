"""Settings of a decomposition, and the choice of its algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, TypedDict, get_args

import numpy as np

from deepca._util.options import with_options
from deepca._util.typing import Array
from deepca._util.validation import NONE, Constraint, Integer, NoneAs, OneOf, Real, check
from deepca.algorithms import AcceleratedDeEPCA, Algorithm, BlockKrylov, CovarianceAveraging, DeEPCA, DePCA
from deepca.consensus.mixers import Chebyshev, FastMix, Gossip, PositiveChebyshev
from deepca.errors import ParameterError
from deepca.network.base import Network
from deepca.network.compression import Messages
from deepca.operators.base import OperatorLike
from deepca.operators.construction import Form
from deepca.solver.stopping import Tolerance
from deepca.topology.graph import Topology

__all__ = [
    "ALGORITHMS",
    "SearchOptions",
    "Settings",
    "check_network",
    "check_settings",
    "components_needed",
    "create_algorithm",
    "with_search_options",
]

ALGORITHMS = ("auto", "krylov", "accelerated", "deepca", "depca", "covariance")
"""Names of the algorithms; see :func:`create_algorithm`."""
_EXACT = ("krylov", "covariance")  # algorithms that average exactly instead of by gossip


class _VarianceShare(Real):
    """A share of the variance, strictly between 0 and 1."""

    def __init__(self) -> None:
        super().__init__(0.0, 1.0)

    def __str__(self) -> str:
        """Return the accepted values as text."""
        return "a share of variance between 0 and 1"


@dataclass(frozen=True)
class Settings:
    """Settings of a decomposition, the same at every agent.

    Parameters
    ----------
    n_components : int, float or None
        Number of components; or a share of the variance to explain, in (0, 1); or None for all.
    center : bool
        Whether to subtract the mean of all agents' rows.
    scale : bool
        Whether to divide columns by their standard deviation.
    algorithm : str
        One of ALGORITHMS; see :func:`create_algorithm`.
    rounds : int or "auto"
        Gossip rounds K per iteration, for algorithms that average by gossip.
    tol : float
        Largest acceptable tangent of the angle to the exact components, at any agent.
    max_iter : int
        Maximum number of iterations.
    seed : int or None
        Seed of the random start.
    form : str
        Whether to keep rows or covariances; see :func:`deepca.operators.construction.from_rows`.
    messages : {"float64", "float32", "float16"}
        Precision of gossip messages.
    """

    n_components: int | float | None = None
    center: bool = True
    scale: bool = False
    algorithm: str = "auto"
    rounds: int | Literal["auto"] = "auto"
    tol: float = 1e-10
    max_iter: int = 10_000
    seed: int | None = 0
    form: Form = "auto"
    messages: Messages = "float64"

    def __post_init__(self) -> None:
        """Replace numpy scalars by plain numbers."""
        for name, value in vars(self).items():
            if isinstance(value, np.generic):  # JSON and type checks accept plain numbers only
                object.__setattr__(self, name, value.item())


class SearchOptions(TypedDict, total=False):
    """Keyword parameters of :func:`deepca.eigenpairs` and :func:`deepca.singular_triplets`; defaults as in Settings."""

    algorithm: str
    rounds: int | Literal["auto"]
    tol: float
    max_iter: int
    seed: int | None


with_search_options = with_options(SearchOptions, Settings())
"""Decorate a function so that its signature shows the keywords of SearchOptions with their defaults."""


_ALLOWED: dict[str, tuple[Constraint, ...]] = {
    "n_components": (Integer(1), _VarianceShare(), NoneAs("for all")),
    "rounds": (Integer(1), OneOf("auto")),
    "max_iter": (Integer(1),),
    "seed": (Integer(0), NONE),
    "algorithm": (OneOf(*ALGORITHMS),),
    "messages": (OneOf(*get_args(Messages)),),
}


def check_settings(settings: Settings) -> None:
    """Raise ParameterError unless every setting has an accepted value."""
    for parameter, allowed in _ALLOWED.items():
        check(parameter, getattr(settings, parameter), *allowed)
    Tolerance(settings.tol)
    if settings.messages != "float64" and settings.algorithm in _EXACT:
        raise ParameterError(
            "messages",
            settings.messages,
            f"algorithm = {settings.algorithm!r} averages exactly and needs float64; use algorithm = 'accelerated'",
        )


def check_network(settings: Settings, topology: Topology) -> None:
    """Raise ParameterError if a simulated network cannot run the algorithm, or the number of rounds has no effect."""
    if topology.time_varying and settings.algorithm in _EXACT:
        raise ParameterError(
            "algorithm",
            settings.algorithm,
            f"this algorithm averages exactly, which needs a static network, but {topology.name} is time-varying; use "
            "algorithm = 'accelerated' or algorithm = 'deepca'",
        )
    algorithm = _resolved(settings.algorithm, settings.messages, reliable=not topology.time_varying)
    if settings.rounds != "auto" and algorithm in _EXACT:
        selected = f"algorithm = 'auto' selects {algorithm}, which" if settings.algorithm == "auto" else algorithm
        raise ParameterError(
            "rounds",
            settings.rounds,
            f"{selected} averages exactly, in a number of rounds that follows from the network; use rounds = 'auto', "
            "or algorithm = 'accelerated'",
        )


def _resolved(algorithm: str, messages: Messages, *, reliable: bool) -> str:
    """Return the algorithm that "auto" selects, or the given one."""
    if algorithm != "auto":
        return algorithm
    return "krylov" if reliable and messages == "float64" else "accelerated"


def create_algorithm(
    name: str,
    A: OperatorLike,
    W0: Array,
    network: Network,
    *,
    rounds: int | Literal["auto"] = "auto",
    messages: Messages = "float64",
) -> Algorithm[Any]:
    """Create an algorithm by its name.

    Parameters
    ----------
    name : str
        One of ALGORITHMS.
    A : OperatorLike
        The ``A_j`` of the local agents.
    W0 : array of shape (d, k)
        Start, the same at every agent.
    network : Network
        Network of the agents.
    rounds : int or "auto"
        Gossip rounds per iteration, for algorithms that gossip.
    messages : {"float64", "float32", "float16"}
        Precision of gossip messages.

    Returns
    -------
    Algorithm
        The algorithm, with the mixer that suits the network.

    Raises
    ------
    ParameterError
        If ``name``, ``rounds`` or ``messages`` is invalid, or the algorithm cannot use messages of that precision.

    Notes
    -----
    =========== =====================================================================================================
    auto        "krylov" if no message can be lost (``network.reliable``) and ``messages`` is "float64", else
                "accelerated"
    krylov      :class:`~deepca.algorithms.BlockKrylov`: fewest products; averages exactly, over a spanning tree
    accelerated :class:`~deepca.algorithms.AcceleratedDeEPCA`: tracking with momentum and guard columns
    deepca      :class:`~deepca.algorithms.DeEPCA`: the paper's Algorithm 1
    depca       :class:`~deepca.algorithms.DePCA`: no tracking; for comparison
    covariance  :class:`~deepca.algorithms.CovarianceAveraging`: reveals every agent's matrix to others
    =========== =====================================================================================================
    """
    check_settings(Settings(algorithm=name, rounds=rounds, messages=messages))
    name = _resolved(name, messages, reliable=network.reliable)
    if name == "krylov":
        return BlockKrylov(A, W0, network)
    if name == "covariance":
        return CovarianceAveraging(A, W0, network)
    mixer = _mixer(name, network.topology)(rounds, messages)
    if name == "accelerated":
        return AcceleratedDeEPCA(A, W0, network, mixer)
    return (DeEPCA if name == "deepca" else DePCA)(A, W0, network, mixer)


def _mixer(algorithm: str, topology: Topology) -> type[Gossip | PositiveChebyshev | FastMix | Chebyshev]:
    """Return the fastest mixer that an algorithm can use on a network."""
    if not topology.static_undirected:
        return Gossip
    if algorithm == "accelerated":
        return PositiveChebyshev
    return FastMix if topology.positive_semidefinite else Chebyshev


def components_needed(variances: Array, wanted: float, total: float) -> int:
    """Return the smallest number of components that explain more than the fraction ``wanted`` of ``total`` variance.

    If the given ``variances`` together do not suffice, return ``len(variances) + 1``.
    """
    return sum(explained / total <= wanted for explained in accumulate(map(float, variances))) + 1
