"""Slow clients: a request that does not come in time is told so and cut; a slow answer is nobody's fault."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from tests.patience import PATIENCE_SECONDS

from trueup_common.runtime.health import QuietServer, listen
from trueup_gateway.patience import patient

SECONDS = 1.0


@asynccontextmanager
async def served() -> AsyncIterator[tuple[int, list[str]]]:
    """A server on a port of its own, and what its application saw."""
    seen: list[str] = []

    async def post(request: Request) -> Response:
        try:
            seen.append((await request.body()).decode())
        except ClientDisconnect:
            seen.append("gone")
            raise
        await asyncio.sleep(SECONDS * 1.5)  # an answer that takes longer than a request may
        return PlainTextResponse("done")

    app = Starlette(routes=[Route("/", post, methods=["POST"])])
    config = uvicorn.Config(app, http=patient(SECONDS), log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    server, sock = QuietServer(config), listen("127.0.0.1", 0)
    task = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        yield sock.getsockname()[1], seen
    finally:
        server.should_exit = True
        await task
        sock.close()


HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"POST / HTTP/1.1\r\nHost: ", b"HTTP/1.1 408 "),
        (HEAD + b"Content-Length: 10\r\n\r\n{", b"HTTP/1.1 408 "),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", b"HTTP/1.1 408 "),
        (b"", b""),
    ],
    ids=["head", "body", "chunks", "nothing"],
)
async def test_a_request_that_does_not_come_is_cut(sent: bytes, answer: bytes) -> None:
    """Half a request gets 408 as a problem document and the end of its connection; silence gets the end alone."""
    async with served() as (port, seen), asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        try:
            told = await reader.read()
        except ConnectionResetError:
            told = b""
        assert told.startswith(answer) and bool(told) == bool(answer)
        if answer:
            assert b"application/problem+json" in told and b'"type":"/problems/request-timeout"' in told
        assert "{" not in seen, "half a body was taken for a whole one"
        writer.close()


async def test_a_slow_answer_is_given() -> None:
    """The deadline is for requests only, and each request of a connection has its own."""
    async with served() as (port, seen), asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(HEAD + b"Content-Length: 2\r\n\r\n{}")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ") and await reader.readexactly(4) == b"done"
        assert seen == ["{}", "{}"]
        writer.close()
