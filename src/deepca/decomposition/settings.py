"""What a decomposition is asked for, and the algorithm that answers it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, get_args

import numpy as np

from deepca._util.typing import Array
from deepca.algorithms import AcceleratedDeEPCA, Algorithm, BlockKrylov, CovarianceAveraging, DeEPCA, DePCA
from deepca.consensus.mixers import Chebyshev, FastMix, Gossip, Mixer, PositiveChebyshev
from deepca.errors import InvalidInput
from deepca.network.base import Network
from deepca.network.compression import Messages
from deepca.operators.base import OperatorLike
from deepca.operators.construction import Form
from deepca.solver.stopping import Tolerance

__all__ = ["ALGORITHMS", "Settings", "algorithm_of"]

ALGORITHMS = ("auto", "krylov", "accelerated", "deepca", "depca", "covariance")


_EXACT = ("krylov", "covariance")  # averages to rounding, over a tree


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


def check_settings(settings: Settings) -> None:
    """An error for settings that no data could be fit with."""
    k = settings.n_components
    if k is not None and (isinstance(k, bool) or not isinstance(k, (int, float))):
        raise InvalidInput(f"n_components = {k!r}: give a number, a share of variance in (0, 1), or None")
    if isinstance(k, float) and not 0.0 < k < 1.0:
        raise InvalidInput(f"n_components = {k!r}: a share of variance must lie between 0 and 1; a number is an int")
    if k is not None and k <= 0:
        raise InvalidInput(f"n_components = {k}: at least one component is needed")
    rounds = settings.rounds
    if rounds != "auto" and (isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1):
        raise InvalidInput(f"rounds = {rounds!r}: a whole number of at least 1, or 'auto'")
    Tolerance(settings.tol)
    seed = settings.seed
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0):
        raise InvalidInput(f"seed = {seed!r}: a whole number of at least 0, or None")
    if settings.algorithm not in ALGORITHMS:
        raise InvalidInput(f"algorithm = {settings.algorithm!r}: choose one of {', '.join(ALGORITHMS)}")
    if settings.messages not in get_args(Messages):
        raise InvalidInput(f"messages = {settings.messages!r}: choose one of {', '.join(get_args(Messages))}")
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


def rounds_needed(variances: Array, wanted: float, total: float) -> int:
    """How many components explain more than the share wanted; one more than there are if all do not."""
    return sum(explained / total <= wanted for explained in accumulate(map(float, variances))) + 1
