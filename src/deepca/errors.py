"""Define the exceptions that deepca raises on purpose.

::

    DeepcaError
    ├── InvalidInput (also a ValueError)
    │   ├── ParameterError       an argument, option or key has an invalid value
    │   ├── DataError            rows, matrices or operators are unusable
    │   │   └── PooledDataError      the rows of all agents together are unusable
    │   ├── GapError             no spectral gap after the k-th eigenvalue
    │   ├── StartError           the starting point W⁰ is unusable
    │   ├── TopologyError        a graph or gossip matrix is unusable
    │   │   ├── DisconnectedError    the graph is not connected; has the components
    │   │   ├── AsymmetricError      an edge or weight has no counterpart; has the edge
    │   │   └── MassError            an agent's weights do not sum to one; has the agent
    │   ├── MixingError          the mixer does not work on this network
    │   ├── ModelError           a model file is damaged or is not a model
    │   │   └── NewerModelError      the file was written by a newer version
    │   ├── AddressInUse         a site cannot listen on its address
    │   ├── OldResult            a run of the same name finished earlier with different rows
    │   ├── CertificateError     the site's own certificate is unusable
    │   ├── RevocationListError  a certificate revocation list cannot be trusted
    │   └── EnrolmentError       the authority rejects a request or cannot open its key
    ├── NotFiniteError           NaN or infinity appeared during a run
    ├── InternalError            a bug in deepca; has the location
    ├── MissingExtraError (also an ImportError)   an optional dependency is not installed
    └── NetworkError
        ├── PeerTimeout          a neighbour did not answer in time; has the agents awaited
        ├── PeerFailed           another agent of the same run failed
        ├── Contradiction        broadcast numbers are inconsistent with local ones; has the sender
        ├── EpochChanged         control flow: tracking must restart in a new epoch
        ├── Regroup              control flow: the agents must assemble again
        ├── Unfinished           the deadline passed; checkpoints remain
        ├── Refused              a peer's certificate is not accepted
        ├── PeerFault            another site misbehaved; has the site and the reporter
        │   ├── BadArray             it sent an array that the step does not allow
        │   └── DisputedResult       it proposed or signed a different result
        └── FrameError           a neighbour violated the protocol
            └── WrongNetwork         it belongs to another network

A message says what was found, where (agent, column, edge, file), and what to do. Code that handles an error reads its
attributes, never its message.
"""

from __future__ import annotations

from typing import Self, TypedDict, Unpack

__all__ = [
    "AddressInUse",
    "AsymmetricError",
    "BadArray",
    "CertificateError",
    "Contradiction",
    "DataError",
    "DeepcaError",
    "DisconnectedError",
    "DisputedResult",
    "EnrolmentError",
    "EpochChanged",
    "FrameError",
    "GapError",
    "InternalError",
    "InvalidInput",
    "MassError",
    "MissingExtraError",
    "MixingError",
    "ModelError",
    "NetworkError",
    "NewerModelError",
    "NotFiniteError",
    "OldResult",
    "ParameterError",
    "PeerFailed",
    "PeerFault",
    "PeerTimeout",
    "PooledDataError",
    "Refused",
    "Regroup",
    "RevocationListError",
    "StartError",
    "TopologyError",
    "Unfinished",
    "WrongNetwork",
]


class DeepcaError(Exception):
    """Base class of all exceptions raised by deepca.

    Attributes
    ----------
    report : str
        Path of the error report that was written, to attach to a bug report; empty if none was.
    """

    report: str = ""

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the attributes, whatever arguments the constructor takes."""
        return _restore, (type(self), self.args, self.__dict__)


def _restore(kind: type[DeepcaError], args: tuple[object, ...], facts: dict[str, object]) -> DeepcaError:
    error = kind.__new__(kind, *args)
    error.args = args  # OSError.__new__ leaves them to __init__
    error.__dict__.update(facts)
    return error


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
        Index of the agent whose input it is.
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
        The accepted values, in words.
    file : str, optional
        File that contains the value.
    line : int, optional
        Line of that file, counted from 1.
    """

    parameter: str

    def __init__(
        self, parameter: str, value: object, expected: str, *, file: str | None = None, line: int | None = None
    ) -> None:
        where = ("" if file is None else file if line is None else f"{file}:{line}") + (": " if file else "")
        super().__init__(
            f"{where}{parameter} = {value!r}: {expected}", parameter=parameter, value=value, file=file, line=line
        )
        self.expected = expected


class DataError(InvalidInput):
    """Unusable rows, matrices or operators.

    Parameters
    ----------
    message : str
        What was found, where, and what to do.
    discreet : str, optional
        The message without values of the data, for logs that others can read; defaults to `message`.
    **facts : object
        Attributes of :class:`InvalidInput`.
    """

    def __init__(self, message: str, *, discreet: str | None = None, **facts: Unpack[Facts]) -> None:
        super().__init__(message, **facts)
        self.discreet = message if discreet is None else discreet

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
        error = type(self)(f"{self}{hint}", discreet=f"{self.discreet}{hint}")
        error.__dict__.update({name: fact for name, fact in self.__dict__.items() if name != "discreet"})
        return error

    @classmethod
    def at_entry(cls, name: str, row: int, column: int | str, value: object, way_out: str, *, kind: str = "") -> Self:
        """Return the error for an entry that is not a number.

        Parameters
        ----------
        name : str
            Name of the agent or file that contains the entry.
        row : int
            Row of the entry.
        column : int or str
            Column of the entry, by index or by name.
        value : object
            The entry.
        way_out : str
            What to do about it.
        kind : str, optional
            Kind of the column, shown in parentheses.

        Returns
        -------
        DataError
            The error, whose discreet message omits the value.
        """
        where, kind = f"{name}: row {row}, column {column!r}", f" ({kind})" if kind else ""
        return cls(
            f"{where} is {value!r}{kind}; {way_out}",
            discreet=f"{where} is not a number{kind}; {way_out}",
            row=row,
            column=column,
            value=value,
        )


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
    **facts : object
        Attributes of :class:`InvalidInput`.
    """

    def __init__(
        self,
        message: str,
        *,
        edge: tuple[object, object] | None = None,
        suggestions: tuple[str, ...] = (),
        **facts: Unpack[Facts],
    ) -> None:
        super().__init__(message, **facts)
        self.edge, self.suggestions = edge, suggestions


class DisconnectedError(TopologyError):
    """The graph is not connected.

    Parameters
    ----------
    message : str
        What was found, where, and what to do.
    components : tuple of tuple of int, optional
        Agents of every connected component (strongly connected, for a directed graph); empty if not computed.
    **facts : object
        Attributes of :class:`InvalidInput`.
    """

    def __init__(self, message: str, *, components: tuple[tuple[int, ...], ...] = (), **facts: Unpack[Facts]) -> None:
        super().__init__(message, **facts)
        self.components = components


class AsymmetricError(TopologyError):
    """An edge or weight exists in one direction only, or differs between the two; `edge` names it."""


class MassError(TopologyError):
    """The weights that `agent` keeps and sends do not sum to one, so the sum over all agents would change.

    `value` is the sum found.
    """


class MixingError(InvalidInput):
    """A mixer that does not work on the network at hand."""


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
    """A run of the same name finished earlier with different rows of this site.

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
        rows = f"with rows other than those in {data}" if known else f"and its rows cannot be compared with {data}"
        super().__init__(
            f"the run {run!r} finished earlier, {rows}; nothing is written. For the current rows choose another name, "
            f"the same at all sites: run = {another!r} in network.toml, or --run {another}"
        )
        self.run, self.another, self.known = run, another, known


class ModelError(InvalidInput):
    """Unusable model file."""


class NewerModelError(ModelError):
    """A model file written by a newer version, in a format that this one cannot read."""


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


class NotFiniteError(DeepcaError, ArithmeticError):
    """NaN or infinity appeared during a run.

    Parameters
    ----------
    message : str
        What was found, where, and what to do.
    agent : int, optional
        The agent whose numbers overflowed, if known.
    place : int, default=-1
        Index of the first such number in the flattened array that was about to be sent; −1 if none was.
    phase : str, optional
        What that array was for.
    """

    def __init__(self, message: str, *, agent: int | None = None, place: int = -1, phase: str = "") -> None:
        super().__init__(message)
        self.agent, self.place, self.phase = agent, place, phase


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


class NetworkError(DeepcaError):
    """Communication between agents failed."""


class PeerTimeout(NetworkError, TimeoutError):
    """A neighbour did not answer before the deadline.

    Parameters
    ----------
    message : str
        Who waited for whom, and when.
    agent : int, optional
        The agent that waited.
    awaited : tuple of int, optional
        The agents that did not answer, in ascending order.
    iteration, round_number : int, optional
        The exchange in which they were due.
    """

    def __init__(
        self,
        message: str,
        *,
        agent: int | None = None,
        awaited: tuple[int, ...] = (),
        iteration: int | None = None,
        round_number: int | None = None,
    ) -> None:
        super().__init__(message)
        self.agent, self.awaited, self.iteration, self.round_number = agent, awaited, iteration, round_number


class PeerFailed(NetworkError):
    """Another agent of the same run failed, or left while it was still needed.

    Parameters
    ----------
    message : str
        Which agent, and why.
    agent : int, optional
        The agent that failed or left, if known.
    """

    def __init__(self, message: str, *, agent: int | None = None) -> None:
        super().__init__(message)
        self.agent = agent


class Contradiction(NetworkError):
    """An agent broadcast numbers that are inconsistent with what the receivers know.

    Parameters
    ----------
    sender : int
        Index of the agent.
    what : str
        Which numbers they are, as the object of "sent".
    found : str
        What is wrong with them.
    """

    def __init__(self, sender: int, what: str, found: str) -> None:
        super().__init__(
            f"agent {sender} sent {what}: {found}. It computes with different numbers, or a message was altered; check "
            "that agent, then run again"
        )
        self.sender, self.what, self.found = sender, what, found

    @classmethod
    def off_by(cls, sender: int, what: str, departure: float, allowed: float) -> Contradiction:
        """Return the error for numbers that differ too much from those computed locally.

        Parameters
        ----------
        sender : int
            Index of the agent.
        what : str
            Which numbers they are, as the object of "sent".
        departure : float
            The difference found.
        allowed : float
            The largest difference that rounding explains.

        Returns
        -------
        Contradiction
            The error.
        """
        return cls(sender, what, f"off by {departure:.1e}, but rounding explains at most {allowed:.1e}")


class EpochChanged(NetworkError):
    """The network entered a new epoch, so tracking must restart at the current W.

    Parameters
    ----------
    epoch : int
        The new epoch.
    """

    def __init__(self, epoch: int) -> None:
        super().__init__(f"the network has entered epoch {epoch}; restart tracking at the current W")
        self.epoch = epoch


class Regroup(NetworkError):
    """The agents of a run must assemble again before it continues: one was restarted, came back, or was lost."""


class Unfinished(NetworkError, TimeoutError):
    """A run did not finish before the deadline; it can resume from its checkpoints."""


class Refused(NetworkError):
    """A peer's certificate is not accepted.

    Parameters
    ----------
    why : str
        The message.
    reason : str, optional
        "unreadable", "issuer", "expired", "early" (not valid yet), "nameless" (names no site), "network", "site",
        "revoked", "list expired" (it cannot be decided whether it is revoked), or "list" (the revocation list that the
        peer presented is not accepted).
    """

    def __init__(self, why: str, *, reason: str = "") -> None:
        super().__init__(why)
        self.why, self.reason = why, reason


class PeerFault(NetworkError):
    """Another site, or agent, misbehaved.

    Parameters
    ----------
    site : str
        Its name.
    what : str
        What it did: a predicate that follows its name.
    by : str, optional
        The site that reported it; None if it was observed locally.
    """

    def __init__(self, site: str, what: str, *, by: str | None = None) -> None:
        clause = self._clause(site, what)
        super().__init__(clause if by is None else f"{by} reports that {clause}")
        self.site, self.what, self.by = site, what, by

    def _clause(self, site: str, what: str) -> str:
        return f"{site} {what}"


class BadArray(PeerFault):
    """A neighbour sent an array that the step does not allow.

    Parameters
    ----------
    site : str
        Name of the neighbour.
    what : str
        What it sent, as the object of "sent".
    phase : str
        What the exchange was for.
    iteration : int
        Iteration of the exchange.
    by : str, optional
        The site that reported it; None if it was observed locally.
    agent : int, default=-1
        Index of the neighbour if it was observed locally, else −1.
    """

    def __init__(
        self, site: str, what: str, *, phase: str, iteration: int, by: str | None = None, agent: int = -1
    ) -> None:
        self.phase, self.iteration, self.agent = phase, iteration, agent
        super().__init__(site, what, by=by)

    def _clause(self, site: str, what: str) -> str:
        return f"{site} sent {what}, iteration {self.iteration}"


class DisputedResult(PeerFault):
    """A site proposed or signed a result that differs from the one computed; nothing is written."""


class FrameError(NetworkError):
    """A neighbour violated the protocol; its stream is closed.

    Parameters
    ----------
    why : str
        The message.
    whole : bool, default=False
        Whether the frame arrived undamaged: then the sender is at fault, and sending again would not help.
    """

    def __init__(self, why: str, *, whole: bool = False) -> None:
        super().__init__(why)
        self.whole = whole


class WrongNetwork(FrameError):
    """A neighbour belongs to another network, or has a different list of its sites."""
