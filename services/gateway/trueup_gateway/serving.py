"""The HTTP server of one replica: it listens on the shared port, and leaves without losing a request.

A listener that closes resets what the kernel has already connected to it, and a keep-alive connection that closes while
a request is on its way loses that request. So whoever leaves first takes over what is connected, then answers whatever
still comes with `Connection: close`, and goes when nobody is left or the grace is over.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final

import uvicorn

from trueup_common.runtime.clock import monotonic
from trueup_common.runtime.health import QuietServer, listen
from trueup_common.runtime.settings import Settings
from trueup_gateway.patience import connections_max, patient

REQUEST_SECONDS: Final = 20.0
"""How long a client may take to send one whole request."""
SHUTDOWN_SECONDS: Final = 5
LEAVE_SECONDS: Final = 2.0
"""How long a leaving replica keeps connections that are idle: clients that are at work come back within it."""
_LOOK_SECONDS: Final = 0.02

Leaving = Callable[[], None]


class ApiServer:
    """The HTTP server on the shared port; replicas listen side by side."""

    def __init__(
        self, app: Any, settings: Settings, *, leaving: Sequence[Leaving] = (), leave_seconds: float = LEAVE_SECONDS
    ) -> None:
        """`leaving` are called when the grace is over: whatever waits for something is to be answered then."""
        self._leaving = leaving
        self._leave_seconds = leave_seconds
        self._socket = listen(settings.host, settings.port, share=True)
        self._protocol = patient(REQUEST_SECONDS, connections_max())
        self._server = QuietServer(
            uvicorn.Config(
                app,
                loop="none",
                http=self._protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                date_header=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            )
        )

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._socket.getsockname()[1])

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`, then finish what is in hand."""
        watcher = asyncio.create_task(self._watch(stop))
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            watcher.cancel()
            self._socket.close()

    async def _watch(self, stop: asyncio.Event) -> None:
        await stop.wait()
        try:
            await self._leave()
        finally:
            self._server.should_exit = True

    async def _leave(self) -> None:
        self._protocol.leaving = True
        await self._take_over_connected()
        for connection in self._server.server_state.connections:
            cycle = getattr(connection, "cycle", None)
            if cycle is not None:
                cycle.keep_alive = False
        end = monotonic() + self._leave_seconds
        while self._server.server_state.connections and monotonic() < end:  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(_LOOK_SECONDS)
        for leave in self._leaving:
            leave()

    async def _take_over_connected(self) -> None:
        """Close the listener, and serve those who were connected to it but not accepted yet."""
        try:
            kept = self._socket.dup()  # keeps the kernel's queue while the loop lets go of the listener
        except OSError:
            return
        for server in getattr(self._server, "servers", ()):
            server.close()
        await asyncio.sleep(0)
        connected: list[socket.socket] = []
        with contextlib.suppress(OSError):  # BlockingIOError: nobody is left
            while True:
                connected.append(kept.accept()[0])
        kept.close()
        for connection in connected:
            connection.setblocking(False)
            with contextlib.suppress(OSError):
                await asyncio.get_running_loop().connect_accepted_socket(self._served, connection)

    def _served(self) -> asyncio.Protocol:
        return self._protocol(config=self._server.config, server_state=self._server.server_state, app_state={})
