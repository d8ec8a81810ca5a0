"""A replica that leaves: nobody who was connected, or at work on a connection, loses a request."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from tests.gateway.edge import settings_of
from tests.patience import PATIENCE_SECONDS

from trueup_devkit.children import free_port
from trueup_gateway.answers import AnswerBoard
from trueup_gateway.serving import ApiServer

REQUEST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
LEAVE_SECONDS = 2.0


class Served:
    """A server under test, and how long its answers take."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.go.set()
        self.begun = asyncio.Event()
        self.stop = asyncio.Event()
        self.dismissed: list[bool] = []
        self.port = free_port()
        app = Starlette(routes=[Route("/", self._post, methods=["POST"])])
        self.server = ApiServer(
            app,
            settings_of(port=self.port),
            leaving=[lambda: self.dismissed.append(True)],
            leave_seconds=LEAVE_SECONDS,
        )

    async def _post(self, request: Request) -> Response:
        await request.body()
        self.begun.set()
        await self.go.wait()
        return PlainTextResponse("done")


@asynccontextmanager
async def served() -> AsyncIterator[Served]:
    made = Served()
    task = asyncio.create_task(made.server.run(made.stop))
    await asyncio.sleep(0)
    try:
        yield made
    finally:
        made.stop.set()
        await task


async def asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """One request, the head of its answer."""
    writer.write(REQUEST)
    head = await reader.readuntil(b"\r\n\r\n")
    assert await reader.readexactly(4) == b"done"
    return head


async def test_a_connection_at_work_gets_its_answers_and_is_then_let_go() -> None:
    """An idle keep-alive connection is answered once more, and told that this was the last time.

    Requirements: D5
    """
    async with served() as made, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
        assert b"connection: close" not in (await asked(reader, writer)).lower()
        made.stop.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not made.server._protocol.leaving:
                await asyncio.sleep(0.001)
        assert b"connection: close" in (await asked(reader, writer)).lower()
        assert await reader.read() == b""
        writer.close()


async def test_an_answer_that_is_due_is_still_given() -> None:
    """What began before takes the time it needs, and ends its connection.

    Requirements: D5
    """
    async with served() as made, asyncio.timeout(PATIENCE_SECONDS):
        made.go.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
        writer.write(REQUEST)
        await made.begun.wait()
        made.stop.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not made.dismissed:
                await asyncio.sleep(0.001)
        made.go.set()
        told = await reader.read()
        assert told.startswith(b"HTTP/1.1 200 ") and told.endswith(b"done")
        writer.close()


async def test_who_was_connected_but_not_accepted_is_served() -> None:
    """Closing a listener resets what waits in its queue, so the queue is emptied first.

    Requirements: D5
    """
    async with served() as made, asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.open_connection("127.0.0.1", made.port)  # the server runs
        asyncio.get_running_loop().remove_reader(made.server._socket)  # nobody accepts, but the kernel still connects
        waiting = [socket.create_connection(("127.0.0.1", made.port), timeout=PATIENCE_SECONDS) for _ in range(20)]
        for one in waiting:
            one.sendall(REQUEST)
            one.setblocking(False)
        made.stop.set()
        loop = asyncio.get_running_loop()
        for one in waiting:
            told = b""
            while part := await loop.sock_recv(one, 4096):
                told += part
            assert told.startswith(b"HTTP/1.1 200 ") and b"connection: close" in told.lower()
            one.close()


async def test_who_waits_for_an_end_is_answered_with_what_is_known() -> None:
    """`Prefer: wait` ends early; later waits are not taken.

    Requirements: D5
    """
    board = AnswerBoard(None)  # type: ignore[arg-type]
    future = board.expect("cmd_1")
    assert future is not None
    with board.expecting_case("wf_1") as over:
        assert over is not None
        board.dismiss()
        assert isinstance(future.exception(), TimeoutError) and over.is_set()
    assert board.expect("cmd_2") is None
    with board.expecting_case("wf_2") as over:
        assert over is None
