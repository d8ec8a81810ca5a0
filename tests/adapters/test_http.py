"""The transport: each write leaves once, and it is known whether it left."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from tests.patience import PATIENCE_SECONDS

from trueup_adapters.systems import http
from trueup_adapters.systems.http import HttpTarget, TransportFailed, is_public
from trueup_common.contracts.adapter import Connection, SlotLost
from trueup_common.contracts.states import ErrorClass, ReceiptStatus

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


@dataclass
class Heard:
    """What a raw server received."""

    connections: int = 0
    requests: list[bytes] = field(default_factory=list)
    bytes_count: int = 0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)


Answer = Callable[[int, asyncio.StreamWriter], Awaitable[bool]]
"""Given the number of the request on this server (from 1): answer, and say whether the connection stays open."""


@asynccontextmanager
async def server(answer: Answer, port: int = 0) -> AsyncIterator[tuple[str, Heard]]:
    """A server that speaks bytes, so that it can do what no HTTP server does."""
    heard = Heard()
    writers: list[asyncio.StreamWriter] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.connections += 1
        writers.append(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                heard.bytes_count += len(head)
                length = next(
                    (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
                )
                heard.requests.append(head + await reader.readexactly(length))
                heard.arrived.set()
                if not await answer(len(heard.requests), writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError) as end:
            heard.bytes_count += len(getattr(end, "partial", b""))
        finally:
            writer.close()

    listening = await asyncio.start_server(connected, "127.0.0.1", port)
    address = listening.sockets[0].getsockname()
    try:
        yield f"http://127.0.0.1:{address[1]}", heard
    finally:
        listening.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


def target(url: str, **changes: Any) -> HttpTarget:
    return HttpTarget(Connection("acme", "alpha", {}, allow_private_network=True, **changes), url)


class Gate:
    """Counts passes of `may_send`."""

    def __init__(self, *, lost: bool = False, heard: Heard | None = None) -> None:
        self.passes = 0
        self.lost = lost
        self.heard = heard
        self.seen: tuple[int, int] | None = None

    def __call__(self) -> None:
        if self.heard is not None:
            self.seen = (self.heard.connections, len(self.heard.requests))
        if self.lost:
            raise SlotLost
        self.passes += 1


async def reply(data: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(data)
    await writer.drain()


async def polite(_number: int, writer: asyncio.StreamWriter) -> bool:
    await reply(OK, writer)
    return True


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_a_connection_that_dies_after_the_request_is_unknown_and_never_sent_again(method: str) -> None:
    """Requirements: X4, I1. The kept-alive connection closes after the second request was read: one sending, unknown.

    PUT and DELETE are what an HTTP client would repeat by itself.
    """

    async def dies_at_the_second(number: int, writer: asyncio.StreamWriter) -> bool:
        if number == 1:
            await reply(OK, writer)
        return number == 1

    async with server(dies_at_the_second) as (url, heard):
        alpha, gate = target(url), Gate()
        assert (await alpha.write(method, "/effect", document={"n": 1}, may_send=gate)).ok
        with pytest.raises(TransportFailed) as failed:
            await alpha.write(method, "/effect", document={"n": 2}, may_send=gate)
        await alpha.close()
    assert failed.value.sent
    assert failed.value.outcome().status is ReceiptStatus.UNKNOWN
    assert [request[-7:] for request in heard.requests] == [b'{"n":1}', b'{"n":2}'], "each of the two was sent once"
    assert gate.passes == 2


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_a_stale_connection_is_not_papered_over(method: str) -> None:
    """Requirements: X4. The server closed the idle connection without our noticing: never two sendings of one write."""
    release = asyncio.Event()

    async def closes_later(number: int, writer: asyncio.StreamWriter) -> bool:
        await reply(OK, writer)
        if number == 1:
            await release.wait()
            return False
        return True

    async with server(closes_later) as (url, heard):
        alpha, gate = target(url), Gate()
        await alpha.write(method, "/effect", document={"n": 1}, may_send=gate)
        release.set()  # the end of the connection and our next request cross on the wire
        try:
            answer = await alpha.write(method, "/effect", document={"n": 2}, may_send=gate)
            assert answer.ok
        except TransportFailed as failed:
            assert failed.outcome().status is ReceiptStatus.UNKNOWN
        await alpha.close()
    assert gate.passes == 2
    assert len(heard.requests) <= 2


async def test_the_gate_stands_on_a_held_connection_before_the_first_byte() -> None:
    """Requirements: E2, E5. `may_send` runs once the server has accepted us and before it has received anything."""
    async with server(polite) as (url, heard):
        alpha, gate = target(url), Gate(heard=heard)
        await alpha.read("/warm")
        await alpha.write("POST", "/effect", document={}, may_send=gate)
        await alpha.close()
    assert gate.seen == (1, 1)
    assert len(heard.requests) == 2


async def test_a_lost_slot_lets_no_byte_out() -> None:
    """Requirements: E5. The slot is lost while the connection was being made: nothing reaches the target."""
    async with server(polite) as (url, heard):
        alpha, gate = target(url), Gate(lost=True)
        with pytest.raises(SlotLost):
            await alpha.write("POST", "/effect", document={"n": 1}, may_send=gate)
        await alpha.close()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while heard.connections == 0:
                await asyncio.sleep(0.01)
    assert heard.bytes_count == 0


async def test_a_full_pool_does_not_count_as_sent() -> None:
    """Requirements: E5, X5. Waiting for a connection is before the first byte."""
    release = asyncio.Event()

    async def holds(_number: int, writer: asyncio.StreamWriter) -> bool:
        await release.wait()
        await reply(OK, writer)
        return True

    async with server(holds) as (url, heard):
        alpha = target(url, max_concurrency=1)  # two connections in all
        gates = [Gate() for _ in range(3)]
        writes = [asyncio.create_task(alpha.write("POST", "/effect", document={}, may_send=gate)) for gate in gates]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(heard.requests) < 2:
                await asyncio.sleep(0.01)
        assert [gate.passes for gate in gates] == [1, 1, 0]
        writes[2].cancel()
        release.set()
        await asyncio.gather(*writes, return_exceptions=True)
        assert gates[2].passes == 0
        await alpha.close()
    assert len(heard.requests) == 2


async def test_a_refused_connection_is_transient() -> None:
    """Requirements: X5. Nothing listens there."""
    alpha, gate = target("http://127.0.0.1:9"), Gate()
    with pytest.raises(TransportFailed) as failed:
        await alpha.write("POST", "/effect", document={}, may_send=gate)
    await alpha.close()
    outcome = failed.value.outcome()
    assert (outcome.status, outcome.error_class) == (ReceiptStatus.REJECTED, ErrorClass.TRANSIENT)
    assert outcome.error_code == "connection_refused"
    assert gate.passes == 0


async def test_a_name_that_leads_nowhere_is_transient() -> None:
    """Requirements: X5. No address, no byte."""
    alpha, gate = target("http://nowhere.invalid"), Gate()
    with pytest.raises(TransportFailed) as failed:
        await alpha.write("POST", "/effect", document={}, may_send=gate)
    await alpha.close()
    assert failed.value.outcome().error_class is ErrorClass.TRANSIENT
    assert gate.passes == 0


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_writes_follow_no_redirect(status: int) -> None:
    """Requirements: T3. A redirect is an answer, not an instruction."""
    async with server(polite) as (elsewhere, trap):

        async def redirects(_number: int, writer: asyncio.StreamWriter) -> bool:
            head = f"HTTP/1.1 {status} Moved\r\nlocation: {elsewhere}/trap\r\ncontent-length: 0\r\n\r\n"
            await reply(head.encode(), writer)
            return True

        async with server(redirects) as (url, heard):
            alpha = target(url)
            answer = await alpha.write("POST", "/effect", document={}, may_send=Gate())
            read = await alpha.read("/effect")
            await alpha.close()
    assert answer.status == read.status == status
    assert answer.outcome().error_code == "redirected"
    assert len(heard.requests) == 2
    assert trap.connections == 0


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{",
        b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{"a"',
        b"not http at all\r\n\r\n",
        b"HTTP/1.1 20",
    ],
)
async def test_a_broken_answer_is_unknown(data: bytes) -> None:
    """Requirements: X4. Half an answer says nothing about the effect."""

    async def breaks(_number: int, writer: asyncio.StreamWriter) -> bool:
        await reply(data, writer)
        return False

    async with server(breaks) as (url, _heard):
        alpha = target(url)
        with pytest.raises(TransportFailed) as failed:
            await alpha.write("POST", "/effect", document={}, may_send=Gate())
        await alpha.close()
    assert failed.value.outcome().status is ReceiptStatus.UNKNOWN


async def test_an_endless_answer_is_cut_and_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requirements: T3, X4. What a target sends is bounded, packed or not."""
    monkeypatch.setattr(http, "ANSWER_BYTES_MAX", 10_000)
    packed = gzip.compress(b"x" * 1_000_000)

    async def floods(_number: int, writer: asyncio.StreamWriter) -> bool:
        head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed)
        await reply(head + packed, writer)
        return True

    async with server(floods) as (url, _heard):
        alpha = target(url)
        with pytest.raises(TransportFailed) as failed:
            await alpha.write("POST", "/effect", document={}, may_send=Gate())
        await alpha.close()
    assert failed.value.outcome().status is ReceiptStatus.UNKNOWN


async def test_a_read_that_fails_before_the_write_is_transient() -> None:
    """Requirements: X5. The same end of the connection, but nothing was written yet."""

    async def dies(_number: int, _writer: asyncio.StreamWriter) -> bool:
        return False

    async with server(dies) as (url, _heard):
        alpha = target(url)
        with pytest.raises(TransportFailed) as failed:
            await alpha.read("/effect")
        await alpha.close()
    assert failed.value.outcome_of_read().error_class is ErrorClass.TRANSIENT


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8080",
        "http://localhost/x",
        "http://10.1.2.3",
        "http://192.168.1.1",
        "http://169.254.169.254/latest",
        "http://[::1]/",
        "http://[::ffff:10.0.0.1]/",
        "http://[fd00::1]/",
        "http://0.0.0.0",
        "http://2130706433",
        "http://127.1",
        "http://0x7f000001",
        "http://100.64.0.1",
    ],
)
def test_private_addresses_are_refused(url: str) -> None:
    """Requirements: T3. However it is spelt."""
    with pytest.raises(ValueError, match="private network"):
        HttpTarget(Connection("acme", "alpha", {}), url)
    HttpTarget(Connection("acme", "alpha", {}, allow_private_network=True), url)


@pytest.mark.parametrize("url", ["", "ftp://x", "http://", "http://user:secret@example.org", "http://example.org/?q=1"])
def test_unusable_addresses_are_refused_without_showing_them(url: str) -> None:
    """Requirements: T3. The message names the connection, not what stands in it."""
    with pytest.raises(ValueError, match="connection acme/alpha") as refused:
        HttpTarget(Connection("acme", "alpha", {}), url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("addresses", [["10.0.0.8"], ["93.184.216.34", "127.0.0.1"], ["::1"]])
async def test_a_name_that_leads_inside_is_refused(monkeypatch: pytest.MonkeyPatch, addresses: list[str]) -> None:
    """Requirements: T3. The name looks public, its address is not: refused before a connection is made."""

    async def resolve(_self: Any, host: str, port: int = 0, family: int = 0) -> list[dict[str, Any]]:
        return [
            {"hostname": host, "host": item, "port": port, "family": family, "proto": 0, "flags": 0}
            for item in addresses
        ]

    monkeypatch.setattr(aiohttp.ThreadedResolver, "resolve", resolve)
    alpha, gate = HttpTarget(Connection("acme", "alpha", {}), "http://blog.example.org"), Gate()
    with pytest.raises(TransportFailed) as failed:
        await alpha.write("POST", "/effect", document={}, may_send=gate)
    await alpha.close()
    assert failed.value.code == "address_refused"
    assert not failed.value.sent
    assert gate.passes == 0


def test_what_counts_as_public() -> None:
    """Requirements: T3."""
    assert is_public("93.184.216.34")
    assert is_public("2606:2800:220:1:248:1893:25c8:1946")
    assert not any(map(is_public, ["127.0.0.1", "224.0.0.1", "fe80::1%eth0", "::", "nonsense", "240.0.0.1"]))


async def test_nothing_of_one_answer_goes_into_the_next_request() -> None:
    """Requirements: T1, T3. No cookie jar, no credentials from the environment."""

    async def sets_cookie(_number: int, writer: asyncio.StreamWriter) -> bool:
        head = (
            b"HTTP/1.1 200 OK\r\nset-cookie: session=1\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n"
        )
        await reply(head + b"{}", writer)
        return True

    async with server(sets_cookie) as (url, heard):
        alpha = target(url)
        await alpha.read("/a")
        await alpha.read("/b", params={"search": "trueup:cmd 1&x"})
        await alpha.close()
    assert b"cookie" not in heard.requests[1].lower()
    assert heard.requests[1].startswith(b"GET /b?search=trueup%3Acmd%201%26x HTTP/1.1")
