"""Health: /livez, /readyz and /metrics of a process, on a port of its own. Who asks slowly is cut off."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from trueup_common.runtime.metrics import exposition

REQUEST_SECONDS: Final = 10.0
"""How long a caller may take for one whole request, from its connection or from the first byte of the next request."""

ReadyCheck = Callable[[], str | None]
"""Answers None when ready, else what is missing."""


def health_routes(checks: list[ReadyCheck]) -> list[Route]:
    """The three routes; /readyz names everything that is missing."""

    async def livez(_: Request) -> Response:
        return JSONResponse({"status": "live"})

    async def readyz(_: Request) -> Response:
        missing = [reason for reason in (check() for check in checks) if reason]
        return JSONResponse({"status": "unready" if missing else "ready", "missing": missing}, 503 if missing else 200)

    async def metrics(_: Request) -> Response:
        return Response(exposition(), media_type="text/plain; version=0.0.4")

    return [Route("/livez", livez), Route("/readyz", readyz), Route("/metrics", metrics)]


class PunctualProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 with a deadline for requests: it has none itself, so idle or trickling callers would stay."""

    request_seconds: float = REQUEST_SECONDS
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The first request is due."""
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        """A next request has begun, whatever its bytes are."""
        self._expect()
        super().data_received(data)

    def on_message_complete(self) -> None:
        """The request is here."""
        self._unset_deadline()
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is due any more."""
        self._unset_deadline()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """No new request came: end it, also where the caller never read the last answer."""
        self.transport.abort()

    def _expect(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.request_seconds, self.cut)

    def _unset_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def cut(self) -> None:
        """The request did not come in time."""
        self.transport.abort()


class QuietServer(uvicorn.Server):
    """uvicorn without its own signal handlers: the service owns signals and draining."""

    def install_signal_handlers(self) -> None:
        """Nothing."""

    def capture_signals(self):  # type: ignore[no-untyped-def]
        """Nothing."""
        import contextlib

        return contextlib.nullcontext()


def listen(host: str, port: int, *, share: bool = False) -> socket.socket:
    """A listening socket; `share` lets replicas listen on the same port. Raises OSError when the port is taken."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if share:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind((host, port))
    sock.listen(1024)
    sock.setblocking(False)
    return sock


async def serve_health(
    host: str, port: int, checks: list[ReadyCheck], stop: asyncio.Event, routes: Sequence[BaseRoute] = ()
) -> None:
    """Serve until `stop`. `routes` are what the service answers on this port besides."""
    app = Starlette(routes=[*health_routes(checks), *routes])
    config = uvicorn.Config(
        app, http=PunctualProtocol, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1
    )
    server = QuietServer(config)
    sock = listen(host, port)

    async def watch() -> None:
        await stop.wait()
        server.should_exit = True

    watcher = asyncio.create_task(watch())
    try:
        await server.serve(sockets=[sock])
    finally:
        watcher.cancel()
        sock.close()
