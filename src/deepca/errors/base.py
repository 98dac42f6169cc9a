"""Base class of all errors, and the errors that concern neither inputs nor the network."""

from __future__ import annotations

__all__ = ["DeepcaError", "InternalError", "MissingExtraError", "NotFiniteError"]


class DeepcaError(Exception):
    """Base class of all exceptions raised by deepca.

    Attributes
    ----------
    report : str
        Path of the error report that was written, to attach to a bug report; empty if none was.
    """

    report: str = ""

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the attributes, independent of the arguments of the constructor."""
        return _restore, (type(self), self.args, self.__dict__)


def _restore(kind: type[DeepcaError], args: tuple[object, ...], facts: dict[str, object]) -> DeepcaError:
    error = kind.__new__(kind, *args)
    error.args = args  # OSError.__new__ leaves them to __init__
    error.__dict__.update(facts)
    return error


class NotFiniteError(DeepcaError, ArithmeticError):
    """NaN or infinity appeared during a run.

    Parameters
    ----------
    message : str
        What was found, where, and what to do.
    agent : int, optional
        The agent whose numbers overflowed, if known.
    index : int, default=-1
        Index of the first NaN or infinity in the flattened array that was about to be sent; −1 without such an array.
    phase : str, optional
        What the array was for.
    """

    def __init__(self, message: str, *, agent: int | None = None, index: int = -1, phase: str = "") -> None:
        super().__init__(message)
        self.agent, self.index, self.phase = agent, index, phase


class InternalError(DeepcaError):
    """An unexpected exception inside deepca.

    Parameters
    ----------
    kind : str
        Type of the exception.
    where : str
        Location in the source code.
    """

    def __init__(self, kind: str, where: str) -> None:
        super().__init__(f"internal error in deepca: {kind} at {where}")
        self.kind, self.where = kind, where


class MissingExtraError(DeepcaError, ImportError):
    """An optional dependency is not installed."""
