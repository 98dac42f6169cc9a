"""Error of a site whose disclosure rules forbid a run."""

from __future__ import annotations

from typing import Literal

from deepca.errors.inputs import InvalidInput

__all__ = ["DisclosureError"]


class DisclosureError(InvalidInput):
    """A disclosure rule of a site forbids a run, or its next step.

    Parameters
    ----------
    rule : {"min_rows", "min_sites", "max_directions"}
        Name of the rule, which becomes the attributes `rule` and `parameter`.
    message : str
        What was found, which rule forbids it, and what to do.
    value : int
        The number of rows, sites or directions that the rule forbids.
    """

    def __init__(self, rule: Literal["min_rows", "min_sites", "max_directions"], message: str, *, value: int) -> None:
        super().__init__(message, parameter=rule, value=value)
        self.rule = rule
