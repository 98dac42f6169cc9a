"""Run a stream from its first frame to its last: authenticate both sides, then transfer frames."""

from __future__ import annotations

import asyncio

from deepca.errors import DeepcaError, FrameError
from deepca.sites.protocol.handshake import Handshake
from deepca.sites.transport.channels import Channel, FrameMeter, StreamEnded, ignore_frame, with_timeout
from deepca.sites.transport.credentials import CurrentCredentials
from deepca.sites.transport.frame_pump import FramePump
from deepca.sites.transport.neighbors import Neighbor, NeighborTable, OpenStream
from deepca.sites.transport.refusals import RefusalReporter

__all__ = ["Sessions"]

_MAX_NAME = 80  # characters shown of a name that has not been authenticated


class Sessions:
    """Run the streams of one site, whichever side dialled.

    Used in the event loop's thread only. ``site`` is the name of this site; ``step`` is the timeout, in seconds, of
    each step of opening a stream; ``meter`` is called for every frame written.
    """

    def __init__(
        self,
        site: str,
        neighbors: NeighborTable,
        credentials: CurrentCredentials,
        refusals: RefusalReporter,
        pump: FramePump,
        step: float,
    ) -> None:
        self.site = site
        self._neighbors, self._credentials, self._refusals = neighbors, credentials, refusals
        self._pump, self._step = pump, step
        self.meter: FrameMeter = ignore_frame

    async def run(self, channel: Channel, dialled: Neighbor | None, certificate: bytes | None) -> None:
        """Run a stream; raise only cancellations and internal errors.

        Parameters
        ----------
        channel : Channel
            The stream.
        dialled : Neighbor or None
            The neighbour that was dialled from here; None for an incoming call.
        certificate : bytes or None
            Certificate (DER) that the other side used for TLS, if known.
        """
        handshake = Handshake(self.site, self._credentials.value)
        try:
            neighbor, stream = await self._authenticate(channel, handshake, dialled, certificate)
        except StreamEnded as end:
            self._note_failure(channel, handshake, dialled, end.why, report=end.refusal)
        except DeepcaError as error:
            self._note_failure(channel, handshake, dialled, str(error), report=True)
            await channel.refuse(str(error))
        else:
            await self._pump.run(channel, neighbor, stream)

    def _note_failure(
        self, channel: Channel, handshake: Handshake, dialled: Neighbor | None, why: str, *, report: bool
    ) -> None:
        if dialled is not None:
            dialled.failure = why
        if report:
            known = dialled if dialled is not None else self._neighbors.named(handshake.peer)
            self._refusals.report(known, channel.where, why)

    async def _authenticate(
        self, channel: Channel, handshake: Handshake, dialled: Neighbor | None, certificate: bytes | None
    ) -> tuple[Neighbor, OpenStream]:
        """Exchange Challenge and Proof; a revocation list that comes with the Proof takes effect at once."""
        step = self._step
        await with_timeout(
            step, channel.write(handshake.challenge()), f"no connection to {channel.who} within {step:g} s"
        )
        late = f"{channel.who} did not answer within {step:g} s"
        proof = handshake.proof(await with_timeout(step, channel.read(), late))
        name = handshake.peer
        if dialled is None:
            neighbor = self._identify_caller(handshake, certificate)
        elif name == dialled.peer.name:
            neighbor = dialled
        else:
            raise FrameError(
                f"the site at {channel.where} calls itself {name[:_MAX_NAME]!r}, not {dialled.peer.name}; both "
                "operators should check the address of that site in network.toml"
            )
        channel.who = name
        newest = max(handshake.their_revocation_list_number, handshake.own_revocation_list_number)
        await with_timeout(step, channel.write(proof), late)
        answer = await with_timeout(step, channel.read(), late)
        self._credentials.adopt(answer.proof.revocations, name)
        proven = handshake.check(answer, certificate, self._credentials.value)
        return neighbor, OpenStream(proven, asyncio.get_running_loop().create_future(), newest)

    def _identify_caller(self, handshake: Handshake, certificate: bytes | None) -> Neighbor:
        """Return the neighbour that a caller claims to be; raise FrameError unless that neighbour should dial."""
        name = handshake.peer
        neighbor = self._neighbors.named(name)
        if neighbor is None:
            raise FrameError(
                f"{name[:_MAX_NAME]!r} is not a neighbour of {self.site}; both operators should check that they use "
                "the same network.toml"
            )
        if neighbor.peer.dial:
            raise FrameError(
                f"{name} dialled {self.site}, but {self.site} should dial {name}; both operators should check that "
                "they use the same network.toml"
            )
        if certificate is not None:
            credentials = self._credentials.require()
            if handshake.their_revocation_list_number <= credentials.revocation_list_number:
                credentials.check_peer(certificate, name)  # otherwise it is checked once the newer list has arrived
        return neighbor
