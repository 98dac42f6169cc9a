"""Resolve module names of version 0.1, with a deprecation warning, for one release.

These are the modules that were public, and those that pickled estimators refer to.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["RENAMED", "install", "renamed_module", "replacement"]

RENAMED: dict[str, tuple[str, ...]] = {
    "centring": ("consensus.centring",),
    "certificate": (
        "solver.certificate.bounds",
        "solver.certificate.certification",
    ),
    "changing": ("topology.time_varying",),
    "clustering": ("decomposition.spectral.clustering",),
    "coding": ("network.compression",),
    "data.stream": ("decomposition.partial_fit",),
    "directed": ("topology.directed",),
    "eigen": (
        "decomposition.eigen",
        "decomposition.pairs",
    ),
    "estimator": ("estimators.pca",),
    "estimator_eigen": ("estimators.eigen",),
    "estimator_svd": ("estimators.svd",),
    "exact": ("consensus.exact",),
    "graphs": ("decomposition.spectral.graphs",),
    "linalg": ("operators.linalg",),
    "links": ("planning.links",),
    "memory": ("consensus.mixer_state",),
    "mixing": (
        "consensus.mixers",
        "consensus.rates",
    ),
    "model": ("decomposition.model",),
    "networks": (
        "network",
        "planning",
    ),
    "networks.agent": ("network.agent",),
    "networks.base": (
        "network.base",
        "network.reductions",
        "network.traffic",
    ),
    "networks.mpi": ("engines.mpi.network",),
    "networks.simulated": ("network.simulated",),
    "networks.timed": ("planning.timed",),
    "observers": ("solver.observers",),
    "pairwise": ("consensus.pairwise",),
    "result": ("solver.result",),
    "stopping": ("solver.stopping",),
    "streaming": ("decomposition.streaming",),
    "svd": ("decomposition.svd",),
    "theory": ("algorithms.theory",),
    "topology_names": ("topology.names",),
    "transports": ("network.transports",),
    "transports.base": ("network.transports.base",),
    "transports.memory": ("network.transports.memory",),
}
"""New modules that contain the names of an old one; both without ``deepca.``."""


def replacement(name: str) -> str:
    """Return a message that says what to use instead of an old module name."""
    places = " and ".join(f"deepca.{new}" for new in RENAMED[name])
    return f"deepca.{name} is now {places}; the old name will be removed in version 0.3"


def renamed_module(name: str) -> ModuleType:
    """Return a module for an old name, with the attributes of the new modules."""
    full = f"deepca.{name}"
    if full not in sys.modules:
        sys.modules[full] = _filled(ModuleType(full, replacement(name)), name)
    return sys.modules[full]


def _filled(module: ModuleType, name: str) -> ModuleType:
    """Make a module resolve its attributes in the new modules."""

    def attribute(wanted: str) -> Any:
        if wanted.startswith("__"):  # attributes of the import system belong to the module itself
            raise AttributeError(wanted)
        for new in RENAMED[name]:
            found = getattr(import_module(f"deepca.{new}"), wanted, module)
            if found is not module:
                return found
        raise AttributeError(f"module 'deepca.{name}' has no attribute {wanted!r}; {replacement(name)}")

    vars(module)["__getattr__"] = attribute
    vars(module)["__all__"] = [one for new in RENAMED[name] for one in import_module(f"deepca.{new}").__all__]
    if _has_children(name):
        vars(module)["__path__"] = []
    return module


def _has_children(name: str) -> bool:
    return any(other.startswith(f"{name}.") for other in RENAMED)


class _Finder(MetaPathFinder, Loader):
    """Find old module names after all other finders failed."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        """Return a spec for an old name, else None."""
        name = fullname.removeprefix("deepca.")
        if name == fullname or name not in RENAMED:
            return None
        return ModuleSpec(fullname, self, is_package=_has_children(name))

    def exec_module(self, module: ModuleType) -> None:
        """Warn, and make the module resolve its attributes in the new ones."""
        name = module.__name__.removeprefix("deepca.")
        warnings.warn(replacement(name), DeprecationWarning, stacklevel=2)
        _filled(module, name)


def install() -> None:
    """Register the finder of old names, once."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
