"""Errors that the caller can correct: parameters, data, topologies, files and certificates."""

from __future__ import annotations

import warnings
from typing import Self, TypedDict, Unpack

from deepca.errors.base import DeepcaError

__all__ = [
    "AddressInUse",
    "AsymmetricError",
    "CertificateError",
    "DataError",
    "DisconnectedError",
    "EnrolmentError",
    "Facts",
    "GapError",
    "InvalidInput",
    "MassError",
    "MixingError",
    "ModelError",
    "NewerModelError",
    "OldResult",
    "ParameterError",
    "PooledDataError",
    "RevocationListError",
    "StartError",
    "TopologyError",
]


class Facts(TypedDict, total=False):
    """Keyword arguments of :class:`InvalidInput`."""

    parameter: str | None
    agent: int | None
    file: str | None
    line: int | None
    row: int | None
    column: int | str | None
    value: object


class InvalidInput(DeepcaError, ValueError):
    """Unusable input; the base class of all errors that the caller can correct.

    The parameters become attributes, None where they do not apply.

    Parameters
    ----------
    message : str
        What was found, where, and what to do.
    parameter : str, optional
        Name of the argument, option or key at fault.
    agent : int, optional
        Index of the agent that provided the input.
    file : str, optional
        File that contains the fault.
    line : int, optional
        Line of that file, counted from 1 as editors do.
    row : int, optional
        Row of the entry at fault.
    column : int or str, optional
        Column of the entry at fault, by index or by name.
    value : object, optional
        The unusable value.
    """

    def __init__(
        self,
        message: str,
        *,
        parameter: str | None = None,
        agent: int | None = None,
        file: str | None = None,
        line: int | None = None,
        row: int | None = None,
        column: int | str | None = None,
        value: object = None,
    ) -> None:
        super().__init__(message)
        self.parameter, self.agent, self.file, self.line = parameter, agent, file, line
        self.row, self.column, self.value = row, column, value


class ParameterError(InvalidInput):
    """Invalid value of an argument, option or key.

    Parameters
    ----------
    parameter : str
        Name of the argument, option or key.
    value : object
        The value given.
    expected : str
        Text after the colon: the accepted values, or what to do.
    in_python : str, optional
        The same text for the message in Python, where more values are accepted, such as None.
    file : str, optional
        File that contains the value.
    line : int, optional
        Line of that file, counted from 1.
    """

    parameter: str

    def __init__(
        self,
        parameter: str,
        value: object,
        expected: str,
        *,
        in_python: str | None = None,
        file: str | None = None,
        line: int | None = None,
    ) -> None:
        where = ("" if file is None else file if line is None else f"{file}:{line}") + (": " if file else "")
        super().__init__(
            f"{where}{parameter} = {value!r}: {in_python or expected}",
            parameter=parameter,
            value=value,
            file=file,
            line=line,
        )
        self.expected = expected


class DataError(InvalidInput):
    """Unusable rows, matrices or operators.

    Parameters
    ----------
    message : str
        What was found, where, and what to do.
    redacted : str, optional
        The message without values of the data, for logs that others can read; defaults to `message`.
    **facts : object
        Attributes of :class:`InvalidInput`.
    """

    def __init__(self, message: str, *, redacted: str | None = None, **facts: Unpack[Facts]) -> None:
        super().__init__(message, **facts)
        self.redacted = message if redacted is None else redacted

    @property
    def discreet(self) -> str:
        """Former name of `redacted`."""
        warnings.warn(
            "DataError.discreet is now DataError.redacted; the old name will be removed in version 0.3",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.redacted

    def with_hint(self, hint: str) -> Self:
        """Return a copy with a hint appended to the message.

        Parameters
        ----------
        hint : str
            The text to append.

        Returns
        -------
        DataError
            The copy, with the same attributes.
        """
        error = type(self)(f"{self}{hint}", redacted=f"{self.redacted}{hint}")
        error.__dict__.update({name: fact for name, fact in self.__dict__.items() if name != "redacted"})
        return error

    @classmethod
    def at_entry(cls, name: str, found: str, advice: str, *, redacted: str, **place: Unpack[Facts]) -> Self:
        """Return the error about one entry of a table.

        Parameters
        ----------
        name : str
            Name of the agent or file that contains the entry.
        found, advice : str
            What is wrong with the entry, and what to do about it.
        redacted : str
            What is wrong, without the entry itself.
        **place : object
            Attributes of :class:`InvalidInput`: the column, and the line of the file or the row.

        Returns
        -------
        DataError
            The error.
        """
        line = place.get("line")
        where = f"{name}: row {place.get('row')}" if line is None else f"{name}, line {line}"
        where = f"{where}, column {place.get('column')!r}"
        return cls(f"{where}: {found}; {advice}", redacted=f"{where}: {redacted}; {advice}", **place)


class PooledDataError(DataError):
    """Unusable data of all agents together.

    Every agent detects it from sums that all of them know, so the message reveals nothing about a single agent.
    """


class GapError(InvalidInput):
    """No spectral gap after the k-th eigenvalue, so the top-k subspace is not unique."""


class StartError(InvalidInput):
    """Unusable starting point W⁰."""


class TopologyError(InvalidInput):
    """Unusable graph or gossip matrix.

    Parameters
    ----------
    message : str
        What was found, where, and what to do.
    edge : tuple of two nodes, optional
        The edge at fault.
    suggestions : tuple of str, optional
        Names of topologies to use instead, best first.
    spec : str, optional
        The name at fault, with which the message begins; None for a topology that was not created by name.
    **facts : object
        Attributes of :class:`InvalidInput`.
    """

    def __init__(
        self,
        message: str,
        *,
        edge: tuple[object, object] | None = None,
        suggestions: tuple[str, ...] = (),
        spec: str | None = None,
        **facts: Unpack[Facts],
    ) -> None:
        super().__init__(message, **facts)
        self.edge, self.suggestions, self.spec = edge, suggestions, spec


class DisconnectedError(TopologyError):
    """The graph is not connected.

    Parameters
    ----------
    message : str
        What was found, where, and what to do.
    components : tuple of tuple of int, optional
        Agents of every connected component (strongly connected, for a directed graph); empty if not computed.
    suggestions : tuple of str, optional
        Names of topologies to use instead, best first.
    **facts : object
        Attributes of :class:`InvalidInput`.
    """

    def __init__(
        self,
        message: str,
        *,
        components: tuple[tuple[int, ...], ...] = (),
        suggestions: tuple[str, ...] = (),
        **facts: Unpack[Facts],
    ) -> None:
        super().__init__(message, suggestions=suggestions, **facts)
        self.components = components


class AsymmetricError(TopologyError):
    """An edge or weight exists in one direction only, or differs between the two; `edge` names it."""


class MassError(TopologyError):
    """The weights that `agent` keeps and sends do not sum to one, so the sum over all agents would change.

    `value` is the sum found.
    """


class MixingError(InvalidInput):
    """A mixer does not work on the given network."""


class AddressInUse(InvalidInput):
    """A site cannot listen on its address.

    Parameters
    ----------
    site : str
        Name of the site.
    address : str
        Host and port.
    """

    def __init__(self, site: str, address: str) -> None:
        super().__init__(
            f"site {site} cannot listen at {address}: the port is in use, or this machine does not have the address; "
            "stop the other program, or change `listen` in site.toml"
        )
        self.site, self.address = site, address


class OldResult(InvalidInput):
    """A run of the same name began or finished earlier with different rows of this site.

    Parameters
    ----------
    run : str
        Name of the run.
    another : str
        An unused name to choose instead.
    data : str
        Path of the site's data.
    known : bool, default=True
        False if the digest of the earlier rows is missing, so that it is not known whether they differ.
    """

    def __init__(self, run: str, another: str, data: str, *, known: bool = True) -> None:
        rows = (
            f"with rows that differ from those in {data}" if known else f"and its rows cannot be compared with {data}"
        )
        super().__init__(
            f"the run {run!r} began earlier, {rows}; nothing was written. To compute with the current rows, "
            f"give the run another name at all sites, such as {another!r} (`run` in network.toml)"
        )
        self.run, self.another, self.known = run, another, known


class ModelError(InvalidInput):
    """Unusable model file."""


class NewerModelError(ModelError):
    """A model file was written by a newer version of deepca, in a format that this one cannot read."""


class CertificateError(InvalidInput):
    """A site's own certificate is unusable.

    Parameters
    ----------
    why : str
        The message.
    reason : str
        Machine-readable cause, as in :class:`Refused`.
    """

    def __init__(self, why: str, *, reason: str) -> None:
        super().__init__(why)
        self.reason = reason


class RevocationListError(InvalidInput):
    """A certificate revocation list cannot be trusted.

    Parameters
    ----------
    why : str
        The message.
    reason : str
        "missing", "older", "expired", "unnumbered", "foreign" (from another authority), "unreadable", or "memory" if
        the record of the lists seen so far is damaged.
    path : str, optional
        File of the list; empty if it came from a neighbour.
    number : int, optional
        Number of the list; 0 if it has none.
    seen : int, optional
        Highest number that this site has seen.
    """

    def __init__(self, why: str, *, reason: str, path: str = "", number: int = 0, seen: int = 0) -> None:
        super().__init__(why)
        self.reason, self.path, self.number, self.seen = reason, path, number, seen


class EnrolmentError(InvalidInput):
    """The authority rejects a certificate request, or cannot open its key.

    Parameters
    ----------
    why : str
        The message.
    reason : str
        "unconfirmed" (nobody compared the fingerprint), "fingerprint" (it differs), "certificate exists", or
        "passphrase".
    site, fingerprint : str, optional
        Site and fingerprint of the request; empty without a request.
    """

    def __init__(self, why: str, *, reason: str, site: str = "", fingerprint: str = "") -> None:
        super().__init__(why)
        self.reason, self.site, self.fingerprint = reason, site, fingerprint
