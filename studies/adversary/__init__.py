"""Test the library on deliberately hard random cases and check its claims against independent answers.

See ``python -m studies.adversary --help``. A case is identified by its family and seed, and is reproducible.
"""

from __future__ import annotations

from studies.adversary.families.averages import averages
from studies.adversary.families.certificates import certificates
from studies.adversary.families.estimators import estimators
from studies.adversary.families.messages import messages
from studies.adversary.families.networks import networks
from studies.adversary.families.solving import solving
from studies.adversary.families.spectra import spectra
from studies.adversary.families.streams import streams
from studies.adversary.trial import Family, Outcome, run_case

__all__ = ["FAMILIES", "Family", "Outcome", "cases_of", "run"]

FAMILIES: dict[str, Family] = {
    "estimators": estimators,
    "solve": solving,
    "networks": networks,
    "messages": messages,
    "streams": streams,
    "spectra": spectra,
    "certificates": certificates,
    "averages": averages,
}
_CASE_FRACTIONS = {
    "estimators": 0.30,
    "solve": 0.15,
    "networks": 0.10,
    "messages": 0.07,
    "streams": 0.08,
    "spectra": 0.12,
    "certificates": 0.12,
    "averages": 0.06,
}


def run(family: str, seed: int) -> Outcome:
    """Run one case."""
    return run_case(family, FAMILIES[family], seed)


def cases_of(total: int) -> dict[str, int]:
    """Return the number of cases of each family, at least ``total`` altogether."""
    return {family: max(-int(-total * fraction // 1), 1) for family, fraction in _CASE_FRACTIONS.items()}
