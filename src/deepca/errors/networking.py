"""Errors in the communication between agents."""

from __future__ import annotations

from deepca.errors.base import DeepcaError

__all__ = [
    "BadArray",
    "Contradiction",
    "DisputedResult",
    "EpochChanged",
    "FrameError",
    "MaskError",
    "NetworkError",
    "PeerFailed",
    "PeerFault",
    "PeerTimeout",
    "Refused",
    "Regroup",
    "SumMismatch",
    "Unfinished",
    "WrongNetwork",
]


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
        Iteration and round of the exchange in which their messages were due.
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
        Which numbers it sent, as the object of "sent".
    found : str
        What is wrong with them.
    """

    def __init__(self, sender: int, what: str, found: str) -> None:
        super().__init__(
            f"agent {sender} sent {what}: {found}. That agent computes with different numbers, or a message was "
            "altered; check the agent, then run again"
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
            Which numbers it sent, as the object of "sent".
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


class MaskError(NetworkError):
    """A key for the masks of private sums cannot be used.

    Parameters
    ----------
    message : str
        What is wrong with the key.
    agent : int, optional
        Index of the agent that sent it, if known.
    """

    def __init__(self, message: str, *, agent: int | None = None) -> None:
        super().__init__(message)
        self.agent = agent


class SumMismatch(NetworkError):
    """A private sum does not add up: a message was lost or altered, or agents were sent different totals.

    Nobody can tell which agent is at fault.

    Parameters
    ----------
    plan : bytes
        Digest of the plan whose sums do not add up.
    what : str
        What does not add up.
    """

    def __init__(self, plan: bytes, what: str) -> None:
        super().__init__(
            f"the sums of plan {plan.hex()[:16]} do not add up ({what}): an agent altered or omitted a message, or "
            "sent different totals to different agents; who did so cannot be known. Nothing was written; check all "
            "agents, then run again"
        )
        self.plan, self.what = plan, what


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
    """A run did not finish before the deadline; it can resume from its checkpoints.

    Parameters
    ----------
    message : str
        What the run waited for, and what to do.
    awaited : tuple of str, optional
        Names of the sites that could not be reached, or whose messages were due.
    differing : tuple of str, optional
        Names of the sites whose settings or columns differ from those of most sites, so that the run could not start.
    """

    def __init__(self, message: str, *, awaited: tuple[str, ...] = (), differing: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.awaited, self.differing = awaited, differing


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
    """Another site or agent misbehaved.

    Parameters
    ----------
    site : str
        Name of the site or agent.
    what : str
        What it did, as a predicate to follow the name.
    by : str, optional
        The site that reported the fault; None if it was observed locally.
    """

    def __init__(self, site: str, what: str, *, by: str | None = None) -> None:
        clause = self._clause(site, what)
        super().__init__(clause if by is None else f"{by} reports that {clause}")
        self.site, self.what, self.by = site, what, by

    def _clause(self, site: str, what: str) -> str:
        return f"{site} {what}"


class BadArray(PeerFault):
    """A neighbour sent an array that is not valid in this step of the algorithm.

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
        The site that reported the fault; None if it was observed locally.
    agent : int, default=-1
        Index of the neighbour if the fault was observed locally, else −1.
    """

    def __init__(
        self, site: str, what: str, *, phase: str, iteration: int, by: str | None = None, agent: int = -1
    ) -> None:
        self.phase, self.iteration, self.agent = phase, iteration, agent
        super().__init__(site, what, by=by)

    def _clause(self, site: str, what: str) -> str:
        return f"in iteration {self.iteration}, {site} sent {what}"


class DisputedResult(PeerFault):
    """A site proposed or signed a result that is wrong or invalid; this site writes no result."""


class FrameError(NetworkError):
    """A neighbour violated the protocol; its stream is closed.

    Parameters
    ----------
    why : str
        The message.
    intact : bool, default=False
        Whether the frame arrived intact; if so, the sender is at fault and sending the frame again would not help.
    """

    def __init__(self, why: str, *, intact: bool = False) -> None:
        super().__init__(why)
        self.intact = intact


class WrongNetwork(FrameError):
    """A neighbour belongs to another network, or has a different list of sites."""
