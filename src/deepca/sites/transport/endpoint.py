"""Interface of the streams: the peers they connect, their timeouts, and the endpoint that exchanges frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from deepca.sites.config.network_file import NetworkFile
from deepca.sites.protocol import wire_pb2 as wire

__all__ = ["Endpoint", "Peer", "StreamTimes", "peers_of"]


@dataclass(frozen=True)
class Peer:
    """A site as its neighbours see it.

    Parameters
    ----------
    index : int
        Index in the list of sites.
    name : str
        Name of the site.
    address : str or None
        host:port, or None if it does not accept connections.
    dial : bool
        Whether this site dials that neighbour; otherwise the neighbour dials.
    """

    index: int
    name: str
    address: str | None
    dial: bool


def peers_of(network: NetworkFile, site: int) -> list[Peer]:
    """Return a site as its neighbours see it, followed by all its neighbours."""
    places = (site, *network.neighbors(network.sites[site].name))
    return [
        Peer(j, network.sites[j].name, network.sites[j].address, j != site and network.dials(site, j)) for j in places
    ]


@dataclass(frozen=True)
class StreamTimes:
    """Timeouts and intervals, in seconds.

    Parameters
    ----------
    step : float
        Timeout of each step of opening a stream.
    ping : float
        Idle time after which a ping is sent.
    silence : float
        Time without an answer to a ping after which a neighbour counts as gone.
    redial : tuple of float
        Shortest and longest pause between attempts to connect.
    recheck : float
        Interval between checks of the certificates in use.
    repeat : float
        Time before the same refusal is reported again.
    """

    step: float = 5.0
    ping: float = 1.0
    silence: float = 1.5
    redial: tuple[float, float] = (0.1, 0.5)
    recheck: float = 1.0
    repeat: float = 60.0


class Endpoint(Protocol):
    """The layer above the streams; its methods are called in the event loop's thread and must not block."""

    def opened(self, peer: int) -> None:
        """Handle a new stream, both sides of which have been authenticated."""

    def closed(self, peer: int, why: str) -> None:
        """Handle the end of the stream to ``peer``."""

    def received(self, peer: int, frame: wire.Frame) -> None:
        """Process a frame; a FrameError closes the stream, and the reason is sent to the other side.

        The message of the error says what was sent, as in "a malformed record"; the streams add who sent it.
        """

    def next_frame(self, peer: int) -> wire.Frame | None:
        """Return the next frame to write, or None if there is nothing to send now."""

    def refused(self, peer: int | None, where: str, why: str) -> None:
        """Handle a refused connection, whichever side refused it.

        ``peer`` is None if the other side is unknown; ``where`` is its address.
        """
