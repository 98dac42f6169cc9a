"""One case: what was claimed, what is true, and the verdict."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar
from zlib import crc32

import numpy as np

from deepca.errors import DeepcaError

T = TypeVar("T")
__all__ = ["Family", "Outcome", "Trial", "run_case"]


@dataclass(frozen=True)
class Outcome:
    """How a case ended.

    status : code of the run's status, or the name of the error that it ended with.
    proven : whether the library called its answer proven.
    bound, error : the claim that came nearest to its limit, and the truth beside it.
    undecided : claims that the reference is not exact enough to judge.
    violations : what was found wrong, each in a line.  hung : whether it had to be killed.
    """

    family: str
    seed: int
    status: str
    proven: bool
    bound: float
    error: float
    claims: int
    undecided: int
    violations: tuple[str, ...]
    seconds: float
    about: str = ""
    hung: bool = False

    @property
    def ratio(self) -> float:
        """Truth over bound, of the claim nearest to its limit."""
        return self.error / self.bound if self.bound > 0.0 else 0.0


@dataclass
class Trial:
    """What a family's function fills in: first what may be refused, then claims against the truth."""

    family: str
    seed: int
    rng: np.random.Generator
    status: str = ""
    proven: bool = False
    about: list[str] = field(default_factory=list)
    refusals: list[type[DeepcaError]] = field(default_factory=list)
    claims: int = 0
    undecided: int = 0
    bound: float = 0.0
    error: float = 0.0
    violations: list[str] = field(default_factory=list)

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def one_of(self, *choices: T) -> T:
        return choices[int(self.rng.integers(len(choices)))]

    def note(self, *parts: object) -> None:
        """Describe the case, for whoever looks at a violation."""
        self.about += [str(part) for part in parts]

    def may_refuse(self, *kinds: type[DeepcaError]) -> None:
        """Errors that would be true to the facts of this case."""
        self.refusals += kinds

    def claim(self, what: str, true: float, bound: float, doubt: float = 0.0) -> None:
        """The truth must not exceed the bound; ``doubt`` is how far the reference itself may be off."""
        self.claims += 1
        if not (math.isfinite(true) or true == math.inf):
            self.violations.append(f"{what}: the truth is {true}, so the answer is not a number")
        elif true <= bound:
            if 0.0 < bound < math.inf and true * self.bound >= self.error * bound:
                self.bound, self.error = bound, true
        elif true - doubt <= bound or doubt >= 0.5 * true:
            self.undecided += 1
        else:
            self.bound, self.error = bound, true
            self.violations.append(f"{what}: {true:.2e} where at most {bound:.2e} was stated")

    def fact(self, what: str, holds: bool) -> None:
        """Something that must be so."""
        self.claims += 1
        if not holds:
            self.violations.append(what)


Family = Callable[[Trial], None]


def run_case(name: str, family: Family, seed: int) -> Outcome:
    """Run one case of a family; whatever it raises or warns of becomes part of the outcome."""
    began = time.perf_counter()
    trial = Trial(name, seed, np.random.default_rng([crc32(name.encode()), seed]))
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            family(trial)
        except DeepcaError as error:
            trial.status = type(error).__name__
            if not isinstance(error, tuple(trial.refusals)):
                trial.violations.append(f"refused: {type(error).__name__}: {error}"[:300])
        except Exception as error:  # whatever it is, it should not have come
            trial.status = type(error).__name__
            trial.violations.append(f"raised: {type(error).__name__}: {error}"[:300])
    unexpected = sorted({w.category.__name__ + ": " + str(w.message)[:120] for w in heard if not _announces(w)})
    trial.violations += [f"warned: {text}" for text in unexpected]
    return Outcome(
        family=name,
        seed=seed,
        status=trial.status or "none",
        proven=trial.proven,
        bound=trial.bound,
        error=trial.error,
        claims=trial.claims,
        undecided=trial.undecided,
        violations=tuple(trial.violations),
        seconds=time.perf_counter() - began,
        about=", ".join(trial.about),
    )


def _announces(warning: warnings.WarningMessage) -> bool:
    """Whether an estimator says that it did not reach its tolerance: expected, and judged by the status."""
    return warning.category.__name__ == "ConvergenceWarning"
