"""Module names of version 0.1 that still work, with a warning, for one release.

They are the modules that were public, and those that pickled estimators name.
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
    "certificate": ("solver.certificate",),
    "changing": ("topology.time_varying",),
    "clustering": ("decomposition.spectral.clustering",),
    "data.stream": ("decomposition.stream",),
    "directed": ("topology.directed",),
    "eigen": ("decomposition.eigen",),
    "estimator": ("estimators.pca",),
    "estimator_eigen": ("estimators.eigen",),
    "estimator_svd": ("estimators.svd",),
    "graphs": ("decomposition.spectral.graphs",),
    "linalg": ("operators.linalg",),
    "links": ("planning.links",),
    "mixing": ("consensus.mixers", "consensus.rates"),
    "model": ("decomposition.model",),
    "networks": ("network", "planning"),
    "networks.base": ("network.base",),
    "observers": ("solver.observers",),
    "result": ("solver.result",),
    "stopping": ("solver.stopping",),
    "streaming": ("decomposition.streaming",),
    "svd": ("decomposition.svd",),
    "theory": ("algorithms.theory",),
    "transports": ("network.transports",),
}
"""Where the names of a module are now; both without ``deepca.``"""


def replacement(name: str) -> str:
    """Describe what to write instead of an old module name."""
    places = " and ".join(f"deepca.{new}" for new in RENAMED[name])
    return f"deepca.{name} is now {places}; the old name goes in version 0.3"


def renamed_module(name: str) -> ModuleType:
    """Import the module that an old name stands for: its attributes are those of the new ones."""
    full = f"deepca.{name}"
    if full not in sys.modules:
        sys.modules[full] = _filled(ModuleType(full, replacement(name)), name)
    return sys.modules[full]


def _filled(module: ModuleType, name: str) -> ModuleType:
    def attribute(wanted: str) -> Any:
        for new in RENAMED[name]:
            found = getattr(import_module(f"deepca.{new}"), wanted, module)
            if found is not module:
                return found
        raise AttributeError(f"module 'deepca.{name}' has no attribute {wanted!r}; {replacement(name)}")

    vars(module)["__getattr__"] = attribute
    vars(module)["__all__"] = [one for new in RENAMED[name] for one in import_module(f"deepca.{new}").__all__]
    return module


class _Finder(MetaPathFinder, Loader):
    """Find old names where nothing else of that name is found."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        name = fullname.removeprefix("deepca.")
        if name == fullname or name not in RENAMED:
            return None
        return ModuleSpec(fullname, self, is_package=name == "networks")

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__.removeprefix("deepca.")
        warnings.warn(replacement(name), DeprecationWarning, stacklevel=2)
        _filled(module, name)


def install() -> None:
    """Let ``import`` find old names, once."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
