"""Compare the audit logs of two sites: what one says that it sent must be what the other says that it received.

Messages of a session are numbered from 1 and arrive in order, so they are compared one by one. The last messages of a
session may be lost; none in between can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from deepca.errors import InvalidInput
from deepca.sites.audit.reader import AuditLine, AuditLog

__all__ = ["LogAgreement", "LogDifference", "compare"]

_Sessions = dict[int, dict[int, tuple[AuditLog, AuditLine]]]  # lines by session and number of the message


@dataclass(frozen=True)
class LogDifference:
    """A message that the logs of two sites describe differently.

    Parameters
    ----------
    what : str
        What differs.
    sender, receiver : str
        Names of the sites.
    sent, received : tuple of (str, int) or None
        File and line of the message in the logs of sender and receiver; None where it is missing.
    """

    what: str
    sender: str
    receiver: str
    sent: tuple[str, int] | None = None
    received: tuple[str, int] | None = None


@dataclass(frozen=True)
class LogAgreement:
    """Result of a comparison.

    Parameters
    ----------
    sites : tuple of str
        Names of both sites.
    equal : int
        Messages that are the same in the logs of both.
    lost : int
        Messages that were sent last in a session, and did not arrive.
    undecided : int
        Messages of starts of an agent that the logs do not cover, or after the end of a log that is not complete.
    differences : tuple of LogDifference
        Contradictions.
    """

    sites: tuple[str, str]
    equal: int
    lost: int
    undecided: int
    differences: tuple[LogDifference, ...]

    @property
    def ok(self) -> bool:
        """True if the logs do not contradict each other."""
        return not self.differences


def compare(here: Sequence[AuditLog], there: Sequence[AuditLog]) -> LogAgreement:
    """Compare the logs of two sites, message by message and both ways: those of the newest run that both have.

    Parameters
    ----------
    here, there : sequence of AuditLog
        Logs of one site each, with valid chains.

    Raises
    ------
    InvalidInput
        If they are not logs of two sites that have a run in common.
    """
    common = {log.run for log in here} & {log.run for log in there}
    if not common:
        first, second = (f"run {logs[-1].run[1]!r} of network {logs[-1].start['network']}" for logs in (here, there))
        raise InvalidInput(f"these logs are of {first} and of {second}; give logs of two sites in the same run")
    run = next(log.run for log in reversed(here) if log.run in common)
    here, there = ([log for log in logs if log.run == run] for logs in (here, there))
    [one, *more], [other, *yet_more] = ({log.site: None for log in logs} for logs in (here, there))
    if one == other or more or yet_more:
        names = ", ".join(dict.fromkeys([one, *more, other, *yet_more]))
        raise InvalidInput(f"these are logs of {names}; give logs of two sites, those of one site each")
    found = [_one_way(here, there, one, other), _one_way(there, here, other, one)]
    return LogAgreement(
        (one, other),
        sum(way.equal for way in found),
        sum(way.lost for way in found),
        sum(way.undecided for way in found),
        tuple(difference for way in found for difference in way.differences),
    )


def _one_way(senders: Sequence[AuditLog], receivers: Sequence[AuditLog], sender: str, receiver: str) -> LogAgreement:
    """Compare what one site sent with what the other received."""
    sent, received = _sessions(senders, "sent", receiver), _sessions(receivers, "received", sender)
    pairs = {own ^ other for own in _boots(senders) for other in _boots(receivers)}
    equal = lost = undecided = 0
    differences: list[LogDifference] = []
    for session in sorted(sent.keys() | received.keys()):
        left, arrived = sent.get(session, {}), received.get(session, {})
        if session not in pairs:  # one of the two starts of an agent is in a log that was not given
            undecided += len(left.keys() | arrived.keys())
            continue
        for seq in sorted(left.keys() | arrived.keys()):
            mine, theirs = left.get(seq), arrived.get(seq)
            if mine is not None and theirs is not None:
                if what := _difference(mine[1].members, theirs[1].members):
                    differences.append(LogDifference(what, sender, receiver, _place(mine), _place(theirs)))
                else:
                    equal += 1
            elif mine is not None:
                if seq > max(arrived, default=0):
                    lost += 1
                elif _complete(receivers):
                    what = f"{receiver} has received later messages, but not this one"
                    differences.append(LogDifference(what, sender, receiver, _place(mine), None))
                else:
                    undecided += 1
            elif theirs is not None:
                if _complete(senders):
                    what = f"{sender} has not logged that it sent this message"
                    differences.append(LogDifference(what, sender, receiver, None, _place(theirs)))
                else:
                    undecided += 1
    return LogAgreement((sender, receiver), equal, lost, undecided, tuple(differences))


def _difference(sent: Mapping[str, object], received: Mapping[str, object]) -> str:
    for name, what in (("digest", "contents"), ("bytes", "sizes"), ("kind", "kinds")):
        if sent[name] != received[name]:
            return f"different {what}: {sent[name]} was sent, {received[name]} was received"
    return ""


def _sessions(logs: Iterable[AuditLog], way: str, neighbor: str) -> _Sessions:
    found: _Sessions = {}
    for log in logs:
        for line in log.lines:
            members = line.members
            if members["line"] == way and members["to" if way == "sent" else "from"] == neighbor:
                found.setdefault(int(members["session"], 16), {})[int(members["seq"])] = log, line
    return found


def _boots(logs: Iterable[AuditLog]) -> set[int]:
    return {boot for log in logs for boot in log.boots}


def _complete(logs: Iterable[AuditLog]) -> bool:
    return all(log.complete for log in logs)


def _place(found: tuple[AuditLog, AuditLine]) -> tuple[str, int]:
    return str(found[0].path), found[1].number
