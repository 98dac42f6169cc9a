"""Run one case and count the claims of the library that are checked in it."""

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
    """Outcome of a case.

    Parameters
    ----------
    family : str
        Name of the family.
    seed : int
        Seed of the case within its family.
    status : str
        Status code of the run, or the name of the exception that ended it.
    proven : bool
        Whether the library called its answer proven.
    bound, error : float
        Bound and true value of the claim that came closest to its bound, or of the last one that violated it.
    claims : int
        Number of claims checked.
    undecided : int
        Claims that the reference is not accurate enough to judge.
    violations : tuple of str
        Violated claims, one line each.
    seconds : float
        Duration.
    about : str
        Description of the case.
    hung : bool
        Whether the case was killed.
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
        """True value over bound, for the claim that came closest to its bound."""
        return self.error / self.bound if self.bound > 0.0 else 0.0


@dataclass
class Trial:
    """A running case: its random generator, its description, the permitted errors, and the claims checked so far."""

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
        """Return True with probability p."""
        return bool(self.rng.random() < p)

    def one_of(self, *choices: T) -> T:
        """Choose one of the arguments at random."""
        return choices[int(self.rng.integers(len(choices)))]

    def note(self, *parts: object) -> None:
        """Add to the description of the case that is shown with a violation."""
        self.about += [str(part) for part in parts]

    def may_refuse(self, *kinds: type[DeepcaError]) -> None:
        """Permit errors that would be correct for this case."""
        self.refusals += kinds

    def claim(self, what: str, true: float, bound: float, error_bound: float = 0.0) -> None:
        """Check that the true value does not exceed the bound; ``error_bound`` bounds the error of the reference."""
        self.claims += 1
        if not (math.isfinite(true) or true == math.inf):
            self.violations.append(f"{what}: the true value is {true}, so the answer is not finite")
        elif true <= bound:
            if 0.0 < bound < math.inf and true * self.bound >= self.error * bound:
                self.bound, self.error = bound, true
        elif true - error_bound <= bound or error_bound >= 0.5 * true:
            self.undecided += 1
        else:
            self.bound, self.error = bound, true
            self.violations.append(f"{what}: {true:.2e}, stated bound {bound:.2e}")

    def fact(self, what: str, holds: bool) -> None:
        """Count a claim, and record the violation ``what`` unless ``holds``."""
        self.claims += 1
        if not holds:
            self.violations.append(what)


Family = Callable[[Trial], None]


def run_case(name: str, family: Family, seed: int) -> Outcome:
    """Run one case of a family; unexpected exceptions and warnings become violations."""
    began = time.perf_counter()
    trial = Trial(name, seed, np.random.default_rng([crc32(name.encode()), seed]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            family(trial)
        except DeepcaError as error:
            trial.status = type(error).__name__
            if not isinstance(error, tuple(trial.refusals)):
                trial.violations.append(f"refused: {type(error).__name__}: {error}"[:300])
        except Exception as error:  # any other exception is a violation
            trial.status = type(error).__name__
            trial.violations.append(f"raised: {type(error).__name__}: {error}"[:300])
    unexpected = sorted(
        {w.category.__name__ + ": " + str(w.message)[:120] for w in caught if not _is_convergence_warning(w)}
    )
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


def _is_convergence_warning(warning: warnings.WarningMessage) -> bool:
    """Return whether a warning reports a missed tolerance, which is expected and checked through the status."""
    return warning.category.__name__ == "ConvergenceWarning"
