"""Resolve names of version 0.1, with a deprecation warning, for one release.

These are modules that were public or that pickled estimators refer to, names in public modules, attributes of public
classes and parameters of public functions.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

__all__ = [
    "NAMES",
    "RENAMED",
    "install",
    "renamed_attributes",
    "renamed_module",
    "renamed_names",
    "renamed_parameters",
    "replacement",
]

_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"  # looks a name up before the import statement does, which warns

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")

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
"""Old module name → new modules that define its contents, all without the prefix ``deepca.``."""

NAMES = {
    "CHANGING": "TIME_VARYING",
    "Changing": "TimeVarying",
    "CodedAveraging": "CompressedAveraging",
    "Pending": "PendingReduction",
    "REFRESHED": "REFRESH_INTERVAL",
    "SHORTEST_PATIENCE": "MIN_RETRANSMISSION_TIMEOUT",
    "accelerated_keeps_up": "accelerated_rate_at_most",
    "assembled": "gather_parts",
    "averager": "default_mixer",
    "exact_average_then": "exact_average_and_derive",
    "faded": "discounted_covariances",
    "first_columns": "starting_block",
    "graph_of": "graph_digest",
    "largest_positive": "flip_signs",
    "meetings_in": "pairs_in_rounds",
    "named_agents": "agents_in_name",
    "of_new": "for_new_values",
    "turned": "after_rotation",
    "without": "project_out",
}
"""Old name of an object in one of these modules → its new name."""


def replacement(name: str) -> str:
    """Return the deprecation message of an old module name, which says what to use instead."""
    places = " and ".join(f"deepca.{new}" for new in RENAMED[name])
    return f"deepca.{name} is now {places}; the old name will be removed in version 0.3"


def renamed_module(name: str) -> ModuleType:
    """Return a module for an old name that resolves its attributes in the new modules."""
    full = f"deepca.{name}"
    if full not in sys.modules:
        sys.modules[full] = _redirect(ModuleType(full, replacement(name)), name)
    return sys.modules[full]


def _redirect(module: ModuleType, name: str) -> ModuleType:
    """Make an old module resolve its attributes in the new modules, and return it."""

    def attribute(wanted: str) -> Any:
        if wanted.startswith("__"):  # attributes of the import system belong to the module itself
            raise AttributeError(wanted)
        for new in RENAMED[name]:
            place = import_module(f"deepca.{new}")
            for known_as in dict.fromkeys((NAMES.get(wanted, wanted), wanted)):
                if hasattr(place, known_as):
                    return getattr(place, known_as)
        raise AttributeError(f"module 'deepca.{name}' has no attribute {wanted!r}; {replacement(name)}")

    vars(module)["__getattr__"] = attribute
    vars(module)["__all__"] = [one for new in RENAMED[name] for one in import_module(f"deepca.{new}").__all__]
    if _has_children(name):
        vars(module)["__path__"] = []
    return module


def _has_children(name: str) -> bool:
    return any(other.startswith(f"{name}.") for other in RENAMED)


class _Finder(MetaPathFinder, Loader):
    """Import finder for old module names, tried after all other finders."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        """Return a spec for an old module name, or None for any other name."""
        name = fullname.removeprefix("deepca.")
        if name == fullname or name not in RENAMED:
            return None
        return ModuleSpec(fullname, self, is_package=_has_children(name))

    def exec_module(self, module: ModuleType) -> None:
        """Warn and make the old module resolve its attributes in the new ones."""
        name = module.__name__.removeprefix("deepca.")
        warnings.warn(replacement(name), DeprecationWarning, stacklevel=2)
        _redirect(module, name)


def install() -> None:
    """Register the finder of old module names, unless it is registered already."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


def renamed_attributes(**names: str) -> Callable[[type[T]], type[T]]:
    """Decorate a class so that its instances have attributes under old names, too, with a deprecation warning.

    The fields of a dataclass are also accepted under old names by its constructor, and when it is unpickled.

    Parameters
    ----------
    **names : str
        New name of each old one.
    """

    def decorated(cls: type[T]) -> type[T]:
        # set by name, since type checkers should know the new names only
        added: dict[str, Any] = {"_renamed": {**getattr(cls, "_renamed", {}), **names}, "__getattr__": _lookup}
        fields = getattr(cls, "__dataclass_fields__", {})
        parameters = {old: new for old, new in names.items() if new in fields}
        if parameters:
            added["__init__"] = renamed_parameters(**parameters)(vars(cls)["__init__"])
            if not hasattr(cls, "__setstate__"):
                added["__setstate__"] = _restore
        for name, value in added.items():
            setattr(cls, name, value)
        return cls

    return decorated


def _lookup(instance: Any, name: str) -> Any:
    """Return an attribute by its old name, with a warning; raise AttributeError for any other name."""
    cls = type(instance)
    if name not in cls._renamed:
        raise AttributeError(f"{cls.__name__!r} object has no attribute {name!r}")
    new = cls._renamed[name]
    _warn(f"{cls.__name__}.{name}", new)
    return getattr(instance, new)


def _restore(instance: Any, state: dict[str, Any]) -> None:
    """Restore an unpickled dataclass, whose fields may have old names."""
    vars(instance).update({type(instance)._renamed.get(name, name): value for name, value in state.items()})


def renamed_names(module: str, **names: str) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a module that resolves old names of its objects, with a deprecation warning.

    Parameters
    ----------
    module : str
        ``__name__`` of the module.
    **names : str
        New name of each old one.
    """

    def attribute(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        if sys._getframe(1).f_code.co_filename != _IMPORT_SYSTEM:
            _warn(f"{module}.{name}", f"{module}.{names[name]}")
        return getattr(sys.modules[module], names[name])

    return attribute


def renamed_parameters(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function so that it accepts keyword arguments under old names, too, with a deprecation warning.

    Parameters
    ----------
    **names : str
        New name of each old one.
    """

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        called = function.__qualname__.removesuffix(".__init__").rpartition("<locals>.")[-1]

        @wraps(function)
        def accepting(*args: P.args, **kwargs: P.kwargs) -> R:
            for old in [name for name in names if name in kwargs]:
                if names[old] in kwargs:
                    raise TypeError(f"{called}() got both {old!r} and {names[old]!r}, its new name")
                _warn(f"parameter {old!r} of {called}()", repr(names[old]))
                kwargs[names[old]] = kwargs.pop(old)
            return function(*args, **kwargs)

        return accepting

    return decorated


def _warn(old: str, new: str) -> None:
    """Warn the caller of the function that calls this one."""
    warnings.warn(f"{old} is now {new}; the old name will be removed in version 0.3", DeprecationWarning, stacklevel=3)
