"""The health port on real sockets: it answers at once, and cuts off who asks slowly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from tests.patience import PATIENCE_SECONDS

from trueup_common.runtime.health import PunctualProtocol, listen, serve_health
from trueup_devkit.children import free_port


@asynccontextmanager
async def served(monkeypatch: pytest.MonkeyPatch, seconds: float = 1.0) -> AsyncIterator[int]:
    """A health server whose callers have so long for a request."""
    monkeypatch.setattr(PunctualProtocol, "request_seconds", seconds)
    port, stop = free_port(), asyncio.Event()
    routes = [Route("/more", lambda _: PlainTextResponse("more"))]
    task = asyncio.create_task(serve_health("127.0.0.1", port, [lambda: "the world"], stop, routes))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.01)
                continue
            writer.close()
            break
    yield port
    stop.set()
    await task


async def ask(port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    async with asyncio.timeout(PATIENCE_SECONDS):
        answer = await reader.read()
    writer.close()
    return answer


async def test_it_answers_health_and_what_the_service_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Live, unready with the reason, metrics, and a route of the service."""
    async with served(monkeypatch) as port:
        assert b" 200 " in await ask(port, "/livez")
        unready = await ask(port, "/readyz")
        assert b" 503 " in unready and b"the world" in unready
        assert (await ask(port, "/more")).endswith(b"more")


@pytest.mark.parametrize(
    ("head", "drip"),
    [
        (b"", b""),
        (b"GET /livez HTTP/1.1\r\nx: ", b"a"),
        (b"POST /livez HTTP/1.1\r\nhost: x\r\ncontent-length: 999999\r\n\r\n", b"b"),
        (b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n", b"\r\n"),
    ],
    ids=["says nothing", "trickles headers", "trickles a body", "trickles blank lines after an answer"],
)
async def test_a_slow_caller_is_cut_off(monkeypatch: pytest.MonkeyPatch, head: bytes, drip: bytes) -> None:
    """Requirements: T3. However a request is dragged out, its connection ends; others are answered meanwhile."""
    async with served(monkeypatch) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        begun = time.monotonic()
        writer.write(head)
        over = asyncio.create_task(drained(reader))
        while not over.done():
            assert time.monotonic() - begun < PATIENCE_SECONDS, "still connected"
            if drip:
                writer.write(drip)
            assert b" 200 " in await ask(port, "/livez")
            await asyncio.wait([over], timeout=0.05)
        writer.close()


async def drained(reader: asyncio.StreamReader) -> None:
    """Until the connection is over, however it ends."""
    try:
        while await reader.read(65536):
            pass
    except ConnectionError:
        return


async def test_a_prompt_caller_keeps_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline is one of each request and not of the connection."""
    async with served(monkeypatch, seconds=2.0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        begun = time.monotonic()
        while time.monotonic() - begun < 2.5:  # past the deadline of the first request
            writer.write(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert b" 200 " in await reader.readuntil(b"}")
            await asyncio.sleep(0.1)
        writer.close()


def test_a_taken_port_is_told() -> None:
    """Two processes on one port are a mistake that shows at once."""
    with listen("127.0.0.1", 0) as taken, pytest.raises(OSError, match="in use"):
        listen("127.0.0.1", taken.getsockname()[1])
