"""The interface of streams: the sites at their ends, their times, and the endpoint that frames go to and come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from deepca.sites.config.network_file import NetworkFile
from deepca.sites.protocol import wire_pb2 as wire

__all__ = ["Endpoint", "Peer", "StreamTimes", "peers_of"]


@dataclass(frozen=True)
class Peer:
    """A site as its neighbours see it.

    index : place in the list of sites.  address : host:port, or None if it cannot be reached.
    dial : whether this neighbour is dialled from here; otherwise it dials.
    """

    index: int
    name: str
    address: str | None
    dial: bool


def peers_of(network: NetworkFile, site: int) -> list[Peer]:
    """Return a site as its neighbours see it, and then all of its neighbours."""
    places = (site, *network.neighbors(network.sites[site].name))
    return [
        Peer(j, network.sites[j].name, network.sites[j].address, j != site and network.dials(site, j)) for j in places
    ]


@dataclass(frozen=True)
class StreamTimes:
    """Times, all in seconds.

    step : for each step of making a stream.  ping, silence : a neighbour that has not answered a ping, sent after
    ``ping`` without a word, for ``silence`` is gone.  redial : least and most between two attempts.
    recheck : between two looks at the certificates in use.  repeat : before the same refusal is reported again.
    """

    step: float = 5.0
    ping: float = 1.0
    silence: float = 1.5
    redial: tuple[float, float] = (0.1, 0.5)
    recheck: float = 1.0
    repeat: float = 60.0


class Endpoint(Protocol):
    """The layer above the streams. Called from the event loop's thread; must not block."""

    def opened(self, peer: int) -> None:
        """Note that a stream is up, and that both sides are who they should be: frames may flow."""

    def closed(self, peer: int, why: str) -> None:
        """Note that the stream to ``peer`` has ended."""

    def received(self, peer: int, frame: wire.Frame) -> None:
        """Take a frame. May raise FrameError: the stream is then closed, and the other side told why."""

    def next_frame(self, peer: int) -> wire.Frame | None:
        """Return the next frame to write; None if there is nothing now."""

    def refused(self, peer: int | None, where: str, why: str) -> None:
        """Note that somebody was refused here, or this site elsewhere.

        ``peer`` : where it is known who. ``where`` : an address.
        """
