"""Accept connections from neighbours."""

from __future__ import annotations

from typing import Any

from deepca.errors import AddressInUse, FrameError
from deepca.sites.transport import tls  # must come before any import of grpc
from deepca.sites.transport.channels import METHOD, SERVICE, GrpcOptions, ServerChannel
from deepca.sites.transport.credentials import CurrentCredentials
from deepca.sites.transport.refusals import RefusalReporter
from deepca.sites.transport.sessions import Sessions

import grpc  # isort: skip
import grpc.aio  # isort: skip

__all__ = ["Listener"]

_MAX_CALLS = 64  # maximum number of concurrent calls, authenticated or not, so that strangers cannot exhaust a site
_GRACE = 0.2  # time in seconds that open calls have to end when a server stops


class Listener:
    """A gRPC server that uses the current credentials and runs each call as a stream.

    Used in the event loop's thread only. ``address`` is host:port; port 0 lets the system choose one.
    """

    def __init__(
        self,
        sessions: Sessions,
        credentials: CurrentCredentials,
        refusals: RefusalReporter,
        options: GrpcOptions,
        address: str,
    ) -> None:
        self._sessions, self._credentials, self._refusals = sessions, credentials, refusals
        self._options, self._address = options, address
        self._server: grpc.aio.Server | None = None

    async def start(self) -> int:
        """Start listening and return the port, which later restarts reuse; raise AddressInUse if it is not free."""
        self._server, port = await self._serve()
        self._address = f"{self._address.rpartition(':')[0]}:{port}"
        return port

    async def restart(self) -> bool:
        """Replace the server with one that uses the current credentials, and return whether that succeeded.

        This ends the streams of the old server; neighbours open them again.
        """
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(_GRACE)
        try:
            self._server, _ = await self._serve()
        except AddressInUse as error:  # another process took the port; the caller tries again
            self._refusals.report(None, self._address, str(error))
        return self._server is not None

    async def stop(self) -> None:
        """Stop listening and end open calls."""
        if self._server is not None:
            await self._server.stop(_GRACE)

    async def _serve(self) -> tuple[grpc.aio.Server, int]:
        server = grpc.aio.server(options=self._options, maximum_concurrent_rpcs=_MAX_CALLS)
        handler = grpc.stream_stream_rpc_method_handler(self._accept)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
        credentials = self._credentials.value
        try:
            if credentials is None:
                port = server.add_insecure_port(self._address)
            else:
                port = server.add_secure_port(self._address, tls.server_credentials(credentials))
        except RuntimeError:
            await server.stop(None)
            raise AddressInUse(self._sessions.site, self._address) from None
        await server.start()
        return server, port

    async def _accept(self, _requests: object, context: Any) -> None:
        """Run an incoming call to its end."""
        channel = ServerChannel(context, self._sessions.meter)
        certificate = None
        if self._credentials.value is not None:
            try:
                certificate = tls.client_certificate(context.auth_context())
            except FrameError as error:
                self._refusals.report(None, channel.where, str(error))
                await channel.refuse(str(error))
                return
        await self._sessions.run(channel, None, certificate)
