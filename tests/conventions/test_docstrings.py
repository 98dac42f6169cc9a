"""Check that exported names have numpydoc docstrings; ruff's D rules check everything else."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from typing import Any

import pytest
from numpydoc import validate as numpydoc

MODULES = [
    "deepca",
    "deepca.algorithms",
    "deepca.algorithms.theory",
    "deepca.consensus",
    "deepca.consensus.rates",
    "deepca.data",
    "deepca.data.readers",
    "deepca.decomposition",
    "deepca.decomposition.eigen",
    "deepca.decomposition.model",
    "deepca.decomposition.spectral",
    "deepca.decomposition.streaming",
    "deepca.decomposition.svd",
    "deepca.engines",
    "deepca.errors",
    "deepca.estimators",
    "deepca.network",
    "deepca.network.transports",
    "deepca.operators",
    "deepca.operators.linalg",
    "deepca.planning",
    "deepca.planning.leakage",
    "deepca.planning.links",
    "deepca.plots",
    "deepca.reproduction",
    "deepca.solver",
    "deepca.solver.certificate",
    "deepca.solver.observers",
    "deepca.solver.stopping",
    "deepca.topology",
    "deepca.topology.directed",
    "deepca.topology.time_varying",
]
CHECKS = {
    "GL03",  # two blank lines
    "GL05",  # tabs
    "GL06",  # an unknown section
    "GL07",  # sections out of order
    "GL08",  # no docstring
    "PR01",  # a parameter that is not documented
    "PR02",  # a documented parameter that does not exist
    "PR03",  # parameters out of order
    "PR04",  # a parameter without a type
    "PR07",  # a parameter without a description
    "RT01",  # no Returns section
    "RT03",  # a returned value without a description
    "SS01",  # no summary
    "SS03",  # a summary without a full stop
    "SS05",  # a summary that begins with a verb in the third person
    "YD01",  # no Yields section
}


def validate(name: str) -> dict[str, Any]:
    """Return numpydoc's report, without parameters that protocols and enumerations do not declare themselves."""
    report: dict[str, Any] = numpydoc.validate(name)
    value = numpydoc.Validator(numpydoc.get_doc_object(numpydoc.Validator._load_obj(name))).obj
    if inspect.isclass(value) and (issubclass(value, Enum) or getattr(value, "_is_protocol", False)):
        report["errors"] = [error for error in report["errors"] if error[0] != "PR01"]
    return report


def exported() -> Iterator[str]:
    """Yield the names of exported functions and classes, and of methods that exported classes add to their bases."""
    found = {
        f"{value.__module__}.{value.__qualname__}": value
        for module in map(import_module, MODULES)
        for value in (getattr(module, name) for name in module.__all__)
        if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__.startswith("deepca")
    }
    for name, value in found.items():
        yield name
        if inspect.isclass(value):
            for member, content in vars(value).items():
                content = getattr(content, "__func__", content)
                if any(member in vars(base) for base in value.__mro__[1:]):
                    continue  # an override: the base class has the sections
                if not member.startswith("_") and (inspect.isfunction(content) or isinstance(content, property)):
                    yield f"{name}.{member}"


def is_protocol(value: Any) -> bool:
    """Return whether a class is a protocol, which has no constructor."""
    return getattr(value, "_is_protocol", False)  # typing.is_protocol is new in Python 3.13


def has_no_own_constructor(name: str) -> bool:
    """Return whether a name is a protocol, or a class whose constructor another deepca class documents."""
    module, _, attribute = name.rpartition(".")
    value = getattr(import_module(module), attribute, None) if module in sys.modules else None
    if not inspect.isclass(value):
        return False
    if is_protocol(value):
        return True
    if "__init__" in vars(value):
        return False
    return any("__init__" in vars(base) for base in value.__mro__ if base.__module__.startswith("deepca"))


@pytest.mark.parametrize("name", sorted(set(exported())))
def test_an_exported_name_has_a_numpydoc_docstring(name: str) -> None:
    checks = CHECKS - {"PR01"} if has_no_own_constructor(name) else CHECKS
    errors = [f"{code} {message}" for code, message in validate(name)["errors"] if code in checks]
    assert errors == []
