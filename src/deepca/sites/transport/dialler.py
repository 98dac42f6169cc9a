"""Open connections to neighbours."""

from __future__ import annotations

import asyncio
import random

from deepca.sites.transport import tls  # must come before any import of grpc
from deepca.sites.transport.channels import METHOD, SERVICE, ClientChannel, GrpcOptions
from deepca.sites.transport.credentials import CurrentCredentials
from deepca.sites.transport.endpoint import Peer
from deepca.sites.transport.neighbors import Neighbor
from deepca.sites.transport.refusals import RefusalReporter
from deepca.sites.transport.sessions import Sessions

import grpc  # isort: skip
import grpc.aio  # isort: skip

__all__ = ["Dialler"]

_RANDOM = random.SystemRandom()  # the global generator belongs to the program, which may have seeded it


class Dialler:
    """Dial neighbours, each time with the current credentials.

    Used in the event loop's thread only. ``redial`` is the shortest and longest pause between attempts, in seconds.
    """

    def __init__(
        self,
        sessions: Sessions,
        credentials: CurrentCredentials,
        refusals: RefusalReporter,
        options: GrpcOptions,
        redial: tuple[float, float],
    ) -> None:
        self._sessions, self._credentials, self._refusals = sessions, credentials, refusals
        self._options, self._redial = options, redial

    async def dial(self, neighbor: Neighbor) -> None:
        """Try once to open a stream to a neighbour, and run it until it ends."""
        peer = neighbor.peer
        assert peer.address is not None
        channel = self._connect(peer)
        call = channel.stream_stream(f"/{SERVICE}/{METHOD}")()
        try:
            await self._sessions.run(ClientChannel(call, peer.name, peer.address, self._sessions.meter), neighbor, None)
        except Exception as error:  # a bug on this side must not end the dialling
            neighbor.failure = f"internal error at {self._sessions.site}: {error!r}"
            self._refusals.report(neighbor, peer.address, neighbor.failure)
        finally:
            call.cancel()
            await channel.close()

    async def pause(self) -> None:
        """Wait for a random time before the next attempt, so that sites do not dial in lockstep."""
        await asyncio.sleep(_RANDOM.uniform(*self._redial))

    def _connect(self, peer: Peer) -> grpc.aio.Channel:
        credentials = self._credentials.value
        if credentials is None:
            return grpc.aio.insecure_channel(peer.address, options=self._options)
        options = [*self._options, ("grpc.ssl_target_name_override", peer.name)]
        return grpc.aio.secure_channel(peer.address, tls.channel_credentials(credentials), options=options)
