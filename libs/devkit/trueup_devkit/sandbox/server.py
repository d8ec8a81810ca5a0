"""Sockets: an HTTP server that can also end a connection without an answer, which no ASGI application can.

It uses uvicorn's protocol without its server loop: several listeners share one event loop, start and stop at once, and
leave signals alone. The transport travels in the ASGI scope, so that `cut` can reach it.
"""

import asyncio
import contextlib
import socket
import struct
from email.utils import formatdate
from typing import Any, cast

from starlette.types import ASGIApp, Receive, Scope
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

_KEEP_ALIVE_SECONDS = 60
_DRAIN_SECONDS = 1.0


class _OpenProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol with the transport laid open to the application."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast(dict[str, Any], self.scope)["transport"] = self.transport


async def cut(scope: Scope, receive: Receive, *, reset: bool) -> None:
    """End the connection of this request without a byte of an answer."""
    transport: asyncio.Transport = scope["transport"]
    if reset:
        raw: socket.socket | None = transport.get_extra_info("socket")
        if raw is not None:
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
    while (await receive())["type"] != "http.disconnect":
        pass


def bind(host: str, port: int) -> socket.socket:
    """A listening address, taken before anything is started on it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # TCP has to be named: asyncio leaves Nagle on otherwise, and small messages then wait 40 ms for each other.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


class Listener:
    """One ASGI application on one socket."""

    def __init__(self, app: ASGIApp, bound: socket.socket) -> None:
        self.port: int = bound.getsockname()[1]
        self._bound = bound
        self._config = Config(
            cast(Any, app), http=_OpenProtocol, ws="none", lifespan="off", interface="asgi3", access_log=False,
            log_config=None, proxy_headers=False, timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )  # fmt: skip
        self._state = ServerState()
        self._server: asyncio.Server | None = None
        self._dating: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._config.load()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _OpenProtocol(self._config, self._state, {}), sock=self._bound, backlog=2048
        )
        self._dating = asyncio.create_task(self._keep_date())

    async def _keep_date(self) -> None:
        while True:
            self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
            await asyncio.sleep(1)

    async def stop(self) -> None:
        """Stop listening, let running requests answer for a moment, then end every connection."""
        if self._server is None:
            self._bound.close()
            return
        self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(set(self._state.tasks), timeout=_DRAIN_SECONDS)
        for connection in list(self._state.connections):
            connection.transport.abort()
        for task in list(self._state.tasks):
            task.cancel()
        if self._dating is not None:
            self._dating.cancel()
        await self._server.wait_closed()
