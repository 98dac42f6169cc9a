"""Show keywords that a function accepts as ``**options: Unpack[…]`` in its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["with_options"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def with_options(options: type, defaults: object) -> Callable[[_Function], _Function]:
    """Decorate a function so that its signature shows the keys of a TypedDict instead of ``**options``.

    Parameters
    ----------
    options : type
        TypedDict of the keywords, declared in a module that postpones the evaluation of annotations.
    defaults : object
        Object whose attributes of the same names are the defaults.

    Returns
    -------
    callable
        The decorator.
    """

    def decorated(function: _Function) -> _Function:
        """Return the same function with its signature replaced."""
        signature = inspect.signature(function)
        declared = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        shown = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=getattr(defaults, name), annotation=given.__forward_arg__
            )
            for name, given in options.__annotations__.items()
        ]
        vars(function)["__signature__"] = signature.replace(parameters=[*declared, *shown])
        return function

    return decorated
