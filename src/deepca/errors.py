"""Everything deepca raises on purpose, in one small tree.

::

    DeepcaError
    ├── InvalidInput (also a ValueError)
    │   ├── ParameterError       an argument or option outside of what it may be; names it
    │   ├── DataError            rows or matrices that cannot be used; names the agent
    │   │   └── PooledDataError      those of all agents together, by sums that all of them have
    │   ├── GapError             equal eigenvalues where the answer would end; names k that work
    │   ├── StartError           a W⁰ that cannot be used
    │   ├── TopologyError        a graph or gossip matrix that cannot be used
    │   │   ├── DisconnectedError    names the components
    │   │   ├── AsymmetricError      names the edge
    │   │   └── MassError            parts that do not sum to the whole; names the agent
    │   ├── MixingError          a mixer that this gossip matrix does not allow
    │   ├── ModelError           a model file that is damaged, or none
    │   │   └── NewerModelError      written by a newer version
    │   ├── AddressInUse         a site cannot listen at its address
    │   ├── OldResult            a run of that name has ended with other rows
    │   ├── CertificateError     a site's own certificate that cannot be used
    │   ├── RevocationListError  a list of revoked certificates that cannot be relied on
    │   └── EnrolmentError       a request that the authority does not sign, or a key it cannot open
    ├── NotFiniteError           NaN or Inf appeared during a run
    ├── InternalError            a fault of deepca itself; names the report to send along
    ├── MissingExtraError (also an ImportError)   an optional package is not installed
    └── NetworkError
        ├── PeerTimeout          a neighbour did not answer in time
        ├── PeerFailed           another agent of the same run raised
        ├── Contradiction        numbers sent to all that do not follow from what all know; names the sender
        ├── EpochChanged         not a fault: the network asks for a restart of tracking
        ├── Regroup              not a fault: agents have to gather anew, one was restarted or is left out
        ├── Unfinished           the deadline has passed; checkpoints are kept
        ├── Refused              a certificate that is not accepted
        ├── PeerFault            another site did what it must not; names it, and who says so
        │   ├── BadArray             it sent numbers that the step cannot have
        │   └── DisputedResult       a result that it proposed or signed is not what was computed
        └── FrameError           a neighbour sent what it may not send
            └── WrongNetwork         it belongs to another network

A message says what is wrong, where (agent, column, edge), and the way out.
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
    """Root of all errors raised by deepca. report : a file about it to send along, where one was written."""

    report: str = ""

    def __reduce__(self) -> tuple[object, ...]:
        """Errors come back whole from other processes, whatever their constructors ask for."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[DeepcaError], args: tuple[object, ...], facts: dict[str, object]) -> DeepcaError:
    error = kind.__new__(kind, *args)
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
    """Input that cannot be used; the root of all errors that the caller can correct.

    Every attribute is None where it does not apply.

    Parameters
    ----------
    message : str
        What was found, where, and what to do.
    parameter : str, optional
        Name of the argument, option or key at fault.
    agent : int, optional
        Index of the agent whose input it is.
    file : str, optional
        File in which the fault lies.
    line : int, optional
        Line of that file, counted from 1 as editors do.
    row : int, optional
        Row of the entry at fault.
    column : int or str, optional
        Column of the entry at fault, by index or by name.
    value : object, optional
        The value that cannot be used.
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
    """An argument, option or key outside the values that it accepts.

    Parameters
    ----------
    parameter : str
        Its name.
    value : object
        The value given.
    expected : str
        The values that it accepts, in words.
    file : str, optional
        File in which the value was written.
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
    """Rows, matrices or operators that cannot be used.

    Parameters
    ----------
    message : str
        What was found, where, and what to do.
    discreet : str, optional
        The message without any value of the data, for logs that others read; the message itself by default.
    **facts : object
        Attributes of :class:`InvalidInput`.
    """

    def __init__(self, message: str, *, discreet: str | None = None, **facts: Unpack[Facts]) -> None:
        super().__init__(message, **facts)
        self.discreet = message if discreet is None else discreet

    def with_hint(self, hint: str) -> Self:
        """Return this error with a hint at the end of its message.

        Parameters
        ----------
        hint : str
            The text to append.

        Returns
        -------
        DataError
            A copy with the same facts.
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
            Name of the agent or file that has the entry.
        row : int
            Its row.
        column : int or str
            Its column, by index or by name.
        value : object
            The entry.
        way_out : str
            What to do about it.
        kind : str, optional
            Kind of the column, shown in parentheses.

        Returns
        -------
        DataError
            The error, with a discreet message that leaves the value out.
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
    """The rows of all agents together cannot be used.

    Every agent finds it by the sums that all have agreed on, so that the message holds nothing of one agent's own.
    """


class GapError(InvalidInput):
    """There is no gap in the spectrum where the answer would end, so that no subspace is the one asked for."""


class StartError(InvalidInput):
    """A starting point W⁰ that cannot be used."""


class TopologyError(InvalidInput):
    """A graph or gossip matrix that cannot be used."""


class DisconnectedError(TopologyError):
    """The graph falls into several components."""


class AsymmetricError(TopologyError):
    """An edge or a weight goes one way only."""


class MassError(TopologyError):
    """An agent sends more, or less, than it holds: the sum over all agents would not stay."""


class MixingError(InvalidInput):
    """A mixer that the gossip matrix at hand does not allow."""


class AddressInUse(InvalidInput):
    """A site cannot listen where it should. site : its name.  address : host and port."""

    def __init__(self, site: str, address: str) -> None:
        super().__init__(
            f"site {site} cannot listen at {address}: the port is in use, or the address is not one of this machine; "
            "stop the other program, or change `listen` in site.toml"
        )
        self.site, self.address = site, address


class OldResult(InvalidInput):
    """A run has ended before with other rows of this site. run : its name.  another : a name to choose instead.

    known : whether it is known that they are others; False where the digest of its rows is missing.
    """

    def __init__(self, run: str, another: str, data: str, *, known: bool = True) -> None:
        rows = f"with other rows than {data} has now" if known else f"and whether with the rows of {data} is not known"
        super().__init__(
            f"the run {run!r} has ended before, {rows}; nothing is written. For the rows of now choose another name, "
            f"the same at all sites: run = {another!r} in network.toml, or --run {another}"
        )
        self.run, self.another, self.known = run, another, known


class ModelError(InvalidInput):
    """A model file that cannot be used."""


class NewerModelError(ModelError):
    """A model file whose format this version does not know yet."""


class CertificateError(InvalidInput):
    """A site's own certificate that cannot be used. ``reason`` : as in :class:`Refused`."""

    def __init__(self, why: str, *, reason: str) -> None:
        super().__init__(why)
        self.reason = reason


class RevocationListError(InvalidInput):
    """A list of revoked certificates that cannot be relied on.

    reason : "missing", "older", "expired", "unnumbered", "foreign" (another authority's), "unreadable", or "memory" if
    the record of what was seen is damaged.  path : the file, empty for a list that came from a neighbour.
    number : of the list, 0 if it has none.  seen : the highest number that this site has seen.
    """

    def __init__(self, why: str, *, reason: str, path: str = "", number: int = 0, seen: int = 0) -> None:
        super().__init__(why)
        self.reason, self.path, self.number, self.seen = reason, path, number, seen


class EnrolmentError(InvalidInput):
    """A request that the authority does not sign, or a key that it cannot open.

    reason : "unconfirmed" (nobody has compared the fingerprint), "fingerprint" (it is another), "certificate exists",
    or "passphrase".  site, fingerprint : of the request, empty if there is none.
    """

    def __init__(self, why: str, *, reason: str, site: str = "", fingerprint: str = "") -> None:
        super().__init__(why)
        self.reason, self.site, self.fingerprint = reason, site, fingerprint


class NotFiniteError(DeepcaError, ArithmeticError):
    """NaN or Inf appeared during a run.

    place, phase : of the first such number of an array that was to be sent, and what for; else −1 and empty.
    """

    place: int = -1
    phase: str = ""


class InternalError(DeepcaError):
    """An unexpected error inside deepca. kind : the type of the error.  where : in the program."""

    def __init__(self, kind: str, where: str) -> None:
        super().__init__(f"a fault of deepca itself: {kind} at {where}")
        self.kind, self.where = kind, where


class MissingExtraError(DeepcaError, ImportError):
    """An optional package is needed and not installed."""


class NetworkError(DeepcaError):
    """Something between agents went wrong."""


class PeerTimeout(NetworkError, TimeoutError):
    """A neighbour did not answer within the deadline."""


class PeerFailed(NetworkError):
    """Another agent of the same run raised an error."""


class Contradiction(NetworkError):
    """An agent sent numbers to all others that do not follow from what all of them know.

    sender : its number.  what : the numbers, in words.  found : what is wrong with them, in words.
    """

    def __init__(self, sender: int, what: str, found: str) -> None:
        super().__init__(
            f"agent {sender} sent {what}: {found}. It computes with other numbers, or a message was altered; check "
            "that agent, then run again"
        )
        self.sender, self.what, self.found = sender, what, found

    @classmethod
    def off_by(cls, sender: int, what: str, departure: float, allowed: float) -> Contradiction:
        """Numbers that differ from those computed here by more than is allowed."""
        return cls(sender, what, f"off by {departure:.1e} where rounding explains {allowed:.1e}")


class EpochChanged(NetworkError):
    """The network has entered a new epoch: tracking must begin again at the current W."""

    def __init__(self, epoch: int) -> None:
        super().__init__(f"the network has entered epoch {epoch}; restart tracking at the current W")
        self.epoch = epoch


class Regroup(NetworkError):
    """The agents of a run have to gather anew before it can go on: one of them was restarted, came back, or is lost."""


class Unfinished(NetworkError, TimeoutError):
    """A run could not be brought to its end before the deadline; it can go on from its checkpoints."""


class Refused(NetworkError):
    """A certificate that is not accepted.

    why : for people.  reason : "unreadable", "issuer", "expired", "early", "nameless", "network", "site", "revoked",
    "list expired" (whether it is revoked cannot be told), or "list" (a list of revoked certificates that is refused).
    """

    def __init__(self, why: str, *, reason: str = "") -> None:
        super().__init__(why)
        self.why, self.reason = why, reason


class PeerFault(NetworkError):
    """Another site, or agent, did what it must not.

    site : its name.  what : what it did, in words that follow its name.  by : who says so; None if it was seen here.
    """

    def __init__(self, site: str, what: str, *, by: str | None = None) -> None:
        said = self._said(site, what)
        super().__init__(said if by is None else f"{by} says that {said}")
        self.site, self.what, self.by = site, what, by

    def _said(self, site: str, what: str) -> str:
        return f"{site} {what}"


class BadArray(PeerFault):
    """A neighbour sent numbers that the step cannot have. phase, iteration : of the step.

    agent : its number in the network, where it was seen here; −1 elsewhere.
    """

    def __init__(
        self, site: str, what: str, *, phase: str, iteration: int, by: str | None = None, agent: int = -1
    ) -> None:
        self.phase, self.iteration, self.agent = phase, iteration, agent
        super().__init__(site, what, by=by)

    def _said(self, site: str, what: str) -> str:
        return f"{site} sent {what}, iteration {self.iteration}"


class DisputedResult(PeerFault):
    """A result that a site proposed or signed is not what was computed; nothing is written."""


class FrameError(NetworkError):
    """A neighbour sent what it may not send; its stream is closed.

    whole : whether it arrived as it was sent, so that it is the sender's fault and comes again if it is sent again.
    """

    def __init__(self, why: str, *, whole: bool = False) -> None:
        super().__init__(why)
        self.whole = whole


class WrongNetwork(FrameError):
    """A neighbour belongs to another network, or has another list of its sites."""
