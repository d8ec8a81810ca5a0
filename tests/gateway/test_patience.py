"""Slow clients: a request that does not come in time is told so and cut; a slow answer is nobody's fault."""

from __future__ import annotations

import asyncio
import contextlib
import resource
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
from trueup_gateway.patience import CONNECTIONS_MAX, FILES_KEPT, connections_max, patient

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


@asynccontextmanager
async def crowded(connections: int) -> AsyncIterator[tuple[int, asyncio.Event, asyncio.Semaphore]]:
    """A server with room for so many, whose answers come when the event says so; the semaphore counts its requests."""
    go, asked = asyncio.Event(), asyncio.Semaphore(0)

    async def post(request: Request) -> Response:
        with contextlib.suppress(ClientDisconnect):
            await request.body()
        asked.release()
        await go.wait()
        return PlainTextResponse("done")

    app = Starlette(routes=[Route("/", post, methods=["POST"])])
    protocol = patient(PATIENCE_SECONDS, connections)
    config = uvicorn.Config(app, http=protocol, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    server, sock = QuietServer(config), listen("127.0.0.1", 0)
    task = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        yield sock.getsockname()[1], go, asked
    finally:
        server.should_exit = True
        await task
        sock.close()


ASK = HEAD + b"Content-Length: 2\r\n\r\n{}"
Lines = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def answered(lines: Lines) -> bytes:
    """The status of one answer, which is read whole; nothing where the connection was cut."""
    try:
        head = await lines[0].readuntil(b"\r\n\r\n")
    except (ConnectionResetError, asyncio.IncompleteReadError):
        return b""
    assert await lines[0].readexactly(4) == b"done"
    return head.split(b" ")[1]


async def test_in_a_crowd_the_longest_silence_makes_room() -> None:
    """Who says nothing loses its place to whoever comes, the longest silence first; who works or has just spoken
    keeps it, and half a request is not work.

    Requirements: B5
    """
    async with crowded(3) as (port, go, _), asyncio.timeout(PATIENCE_SECONDS):
        go.set()
        silent, half, speaking = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        speaking[1].write(ASK)
        assert await answered(speaking) == b"200"
        half[1].write(HEAD + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert await half[0].readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        speaking[1].write(ASK)
        assert await answered(speaking) == b"200"
        for loser in (silent, half):
            comes = await asyncio.open_connection("127.0.0.1", port)
            comes[1].write(ASK)
            assert await answered(comes) == b"200"
            speaking[1].write(ASK)
            assert await answered(speaking) == b"200", "the newcomer took the place of one who was silent"
            with contextlib.suppress(ConnectionResetError):
                assert await loser[0].read() == b""


async def test_where_all_are_at_work_nobody_is_cut_and_the_next_is_told() -> None:
    """503 as a problem document, with the time after which to come again; work under way is answered.

    Requirements: B5
    """
    async with crowded(2) as (port, go, asked), asyncio.timeout(PATIENCE_SECONDS):
        working = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for _, writer in working:
            writer.write(ASK)
            await asked.acquire()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        told = await reader.read()
        assert told.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1" in told
        assert b"application/problem+json" in told and b'"type":"/problems/unavailable"' in told
        writer.close()
        go.set()
        assert [await answered(one) for one in working] == [b"200", b"200"]


@pytest.mark.parametrize(
    ("files", "room"), [(1024, 1024 - FILES_KEPT), (65536, CONNECTIONS_MAX), (-1, CONNECTIONS_MAX)]
)
def test_a_crowd_leaves_files_for_the_database(monkeypatch: pytest.MonkeyPatch, files: int, room: int) -> None:
    """A process that may open few files holds fewer connections, so that it can still open the others."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (files, files))
    assert connections_max() == room
