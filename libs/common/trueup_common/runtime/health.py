"""Health: /livez, /readyz and /metrics of a process, on a port of its own."""

import asyncio
import socket
from collections.abc import Callable

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from trueup_common.runtime.metrics import exposition

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


async def serve_health(host: str, port: int, checks: list[ReadyCheck], stop: asyncio.Event) -> None:
    """Serve until `stop`."""
    app = Starlette(routes=health_routes(checks))
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1)
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
