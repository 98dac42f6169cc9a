"""What a decomposition is asked for, and the algorithm that answers it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, TypedDict, TypeVar, get_args

import numpy as np

from deepca._util.typing import Array
from deepca._util.validation import NOTHING, Constraint, Nothing, OneOf, Real, Whole, check
from deepca.algorithms import AcceleratedDeEPCA, Algorithm, BlockKrylov, CovarianceAveraging, DeEPCA, DePCA
from deepca.consensus.mixers import Chebyshev, FastMix, Gossip, Mixer, PositiveChebyshev
from deepca.errors import InvalidInput
from deepca.network.base import Network
from deepca.network.compression import Messages
from deepca.operators.base import OperatorLike
from deepca.operators.construction import Form
from deepca.solver.stopping import Tolerance

__all__ = [
    "ALGORITHMS",
    "SearchOptions",
    "Settings",
    "algorithm_of",
    "check_settings",
    "components_needed",
    "lists_options",
]

ALGORITHMS = ("auto", "krylov", "accelerated", "deepca", "depca", "covariance")


_EXACT = ("krylov", "covariance")  # averages to rounding, over a tree


class _Share(Real):
    """A share of the variance."""

    def __init__(self) -> None:
        super().__init__(0.0, 1.0)

    def __str__(self) -> str:
        return "a share of variance between 0 and 1"


@dataclass(frozen=True)
class Settings:
    """What is asked for.

    n_components : how many; or, in (0, 1), the share of variance to explain; or None for as many as there can be.
    algorithm : one of ALGORITHMS; see :func:`algorithm_of`.
    rounds : K of every iteration where averages are made by gossip, or "auto".
    messages : what a number takes in a message of gossip: "float64", or "float32" or "float16".
    tol : largest acceptable tangent of the angle at any agent.
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
        for name, value in vars(self).items():
            if isinstance(value, np.generic):  # plain numbers can be written down, and are of the types asked for
                object.__setattr__(self, name, value.item())


class SearchOptions(TypedDict, total=False):
    """Keyword parameters of a search for eigenpairs or singular triplets, with the defaults of Settings."""

    algorithm: str
    rounds: int | Literal["auto"]
    tol: float
    max_iter: int
    seed: int | None


_Search = TypeVar("_Search", bound=Callable[..., Any])


def lists_options(search: _Search) -> _Search:
    """Let ``help`` and :func:`inspect.signature` show the keywords of SearchOptions with their defaults."""
    signature, defaults = inspect.signature(search), Settings()
    own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    options = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=getattr(defaults, name), annotation=given.__forward_arg__
        )
        for name, given in SearchOptions.__annotations__.items()
    ]
    vars(search)["__signature__"] = signature.replace(parameters=[*own, *options])
    return search


_ALLOWED: dict[str, tuple[Constraint, ...]] = {
    "n_components": (Whole(1), _Share(), Nothing("for all")),
    "rounds": (Whole(1), OneOf("auto")),
    "seed": (Whole(0), NOTHING),
    "algorithm": (OneOf(*ALGORITHMS),),
    "messages": (OneOf(*get_args(Messages)),),
}


def check_settings(settings: Settings) -> None:
    """Raise ParameterError for settings that no data could be fit with."""
    for parameter, allowed in _ALLOWED.items():
        check(parameter, getattr(settings, parameter), *allowed)
    Tolerance(settings.tol)
    if settings.messages != "float64" and settings.algorithm in _EXACT:
        raise InvalidInput(
            f"messages = {settings.messages!r} with algorithm = {settings.algorithm!r}: exact averages need all "
            "digits; use algorithm = 'accelerated'"
        )


def algorithm_of(
    name: str,
    A: OperatorLike,
    W0: Array,
    network: Network,
    *,
    rounds: int | Literal["auto"] = "auto",
    messages: Messages = "float64",
) -> Algorithm[Any]:
    """An algorithm by its name.

    =========== ====================================================================================================
    auto        "krylov" where no message can get lost (``network.reliable``), else "accelerated"; never "covariance"
    krylov      :class:`~deepca.algorithms.BlockKrylov`: fewest products; averages exactly, over a spanning tree
    accelerated :class:`~deepca.algorithms.AcceleratedDeEPCA`: tracking, with momentum and guard columns
    deepca      :class:`~deepca.algorithms.DeEPCA`: the paper's Algorithm 1
    depca       :class:`~deepca.algorithms.DePCA`: without tracking, to compare with
    covariance  :class:`~deepca.algorithms.CovarianceAveraging`: sends every agent's matrix as it is
    =========== ====================================================================================================
    """
    check_settings(Settings(algorithm=name, rounds=rounds, messages=messages))
    if name == "auto":
        name = "krylov" if network.reliable and messages == "float64" else "accelerated"
    if name == "krylov":
        return BlockKrylov(A, W0, network)
    if name == "covariance":
        return CovarianceAveraging(A, W0, network)
    if not network.topology.stays:
        mix: Mixer = Gossip(rounds, messages)
    elif name == "accelerated":
        mix = PositiveChebyshev(rounds, messages)
    else:
        mix = (FastMix if network.topology.positive_semidefinite else Chebyshev)(rounds, messages)
    if name == "accelerated":
        return AcceleratedDeEPCA(A, W0, network, mix)
    return (DeEPCA if name == "deepca" else DePCA)(A, W0, network, mix)


def components_needed(variances: Array, wanted: float, total: float) -> int:
    """How many components explain more than the share wanted; one more than there are if all do not."""
    return sum(explained / total <= wanted for explained in accumulate(map(float, variances))) + 1
