"""The lean client: messages are cut out of the bytes as they come, and nobody who hears can end the reading."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
from nats.aio.msg import Msg
from nats.errors import OutboundBufferLimitError, ProtocolError
from tests.patience import PATIENCE_SECONDS
from tests.servers import BusServer

from trueup_common.runtime.lean_client import UNSENT_BYTES_MAX, LeanClient, LeanParser, _Ear

HEADERS = b"NATS/1.0\r\nce-id: a\r\n\r\n"
BODY = b'{"line": "with\r\nMSG a 1 3\r\n inside"}'


class Noting:
    """A client that notes what its parser hands over."""

    def __init__(self, heard: frozenset[int] = frozenset()) -> None:
        self.messages: list[tuple[Any, ...]] = []
        self.heard = heard
        self.told = 0
        self.pings = 0
        self.errors: list[str] = []

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        self.messages.append((sid, subject, reply, data, headers))

    def tell(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> bool:
        if sid in self.heard:
            self.messages.append((sid, subject, reply, data, headers))
            self.told += 1
        return sid in self.heard

    async def _process_ping(self) -> None:
        self.pings += 1

    async def _process_err(self, text: str) -> None:
        self.errors.append(text)


def plain(sid: int, data: bytes, reply: bytes = b"") -> bytes:
    words = [b"MSG", b"subject.a", str(sid).encode(), *([reply] if reply else []), str(len(data)).encode()]
    return b" ".join(words) + b"\r\n" + data + b"\r\n"


def with_headers(sid: int, data: bytes, reply: bytes = b"") -> bytes:
    sizes = [str(len(HEADERS)).encode(), str(len(HEADERS) + len(data)).encode()]
    words = [b"HMSG", b"subject.b", str(sid).encode(), *([reply] if reply else []), *sizes]
    return b" ".join(words) + b"\r\n" + HEADERS + data + b"\r\n"


STREAM = b"".join(
    [
        plain(1, BODY),
        b"PING\r\n",
        with_headers(2, BODY, b"reply.to"),
        with_headers(3, b""),
        b"-ERR 'Permissions Violation for Subscription'\r\n",
        plain(4, b"", b"reply.to"),
    ]
)
EXPECTED = [
    (1, b"subject.a", b"", BODY, b""),
    (2, b"subject.b", b"reply.to", BODY, HEADERS),
    (3, b"subject.b", b"", b"", HEADERS),
    (4, b"subject.a", b"reply.to", b"", b""),
]


async def read(parts: Sequence[bytes]) -> Noting:
    client = Noting()
    parser = LeanParser(client)
    for part in parts:
        await parser.parse(part)
    assert bytes(parser.buf) == b""
    return client


@pytest.mark.parametrize("seed", range(40))
async def test_messages_are_cut_out_wherever_the_bytes_are_split(seed: int) -> None:
    """The same messages and lines come out of every way to cut the stream, one byte at a time included.

    Requirements: M2
    """
    chance = random.Random(seed)
    cuts = sorted(chance.sample(range(1, len(STREAM)), chance.randint(0, 12))) if seed else list(range(1, len(STREAM)))
    parts = [STREAM[first:last] for first, last in zip([0, *cuts], [*cuts, len(STREAM)], strict=True)]
    client = await read(parts)
    assert client.messages == EXPECTED
    assert client.pings == 1 and client.errors == ["'permissions violation for subscription'"]


@pytest.mark.parametrize("seed", range(40))
async def test_who_hears_where_the_bytes_arrive_hears_everything_in_order(seed: int) -> None:
    """Whether a message is handed over as it arrives or read by the library's task, none overtakes another.

    Requirements: M2
    """
    chance = random.Random(seed)
    stream = STREAM * 3
    cuts = sorted(chance.sample(range(1, len(stream)), chance.randint(0, 20)))
    client = Noting(frozenset({1, 3, 4}))
    parser, reader = LeanParser(client), asyncio.StreamReader()
    ear = _Ear(parser, reader, asyncio.StreamReaderProtocol(reader))

    async def read_on() -> None:
        while reader._buffer:  # type: ignore[attr-defined]
            await parser.parse(await reader.read(chance.choice([10, 100_000])))

    for first, last in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        ear.data_received(stream[first:last])
        if chance.random() < 0.5:
            await read_on()
    await read_on()
    assert client.messages == EXPECTED * 3
    told = client.told
    ear.data_received(plain(1, BODY))
    assert client.pings == 3 and client.told == told + 1


@pytest.mark.parametrize("line", [b"MSG subject\r\n", b"MSG s x 3\r\nabc\r\n", b"HMSG s 1 12\r\n", b"WHAT\r\n"])
async def test_a_malformed_line_ends_the_connection_and_not_the_reading(line: bytes) -> None:
    """The library reconnects after a protocol error; any other exception would leave a client that hears nothing.

    Requirements: M2
    """
    with pytest.raises(ProtocolError):
        await read([line])


class Socket:
    """A connection that notes each write."""

    def __init__(self, *, unsent_bytes: int = 0, is_closing: bool = False) -> None:
        self.writes: list[bytes] = []
        self.unsent_bytes = unsent_bytes
        self.closing = is_closing
        self.transport = self._io_writer = self

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes


def connected(socket: Socket) -> LeanClient:
    client = LeanClient()
    client._status = LeanClient.CONNECTED
    client._max_pending_size = 1024 * 1024
    client._transport = socket  # type: ignore[assignment]
    client._flush_queue = asyncio.Queue()
    client._flusher_task = asyncio.get_running_loop().create_future()  # type: ignore[assignment]
    return client


async def test_what_is_published_in_one_go_leaves_in_one_write() -> None:
    """A system call for each message here is a wake-up for each message at the broker.

    Requirements: B1
    """
    socket = Socket()
    client = connected(socket)
    for number in range(13):
        await client.publish(f"trueup.evt.{number}", b"body", headers={"ce-id": str(number)})
    assert socket.writes == []
    await asyncio.sleep(0)
    assert len(socket.writes) == 1 and socket.writes[0].count(b"HPUB trueup.evt.") == 13
    await client.publish("trueup.evt.a", b"last")
    await client._send_ping()
    assert socket.writes[1:] == [b"PUB trueup.evt.a  4\r\nlast\r\n", b"PING\r\n"]


@pytest.mark.parametrize(
    "socket", [Socket(unsent_bytes=UNSENT_BYTES_MAX + 1), Socket(is_closing=True)], ids=["full", "closing"]
)
async def test_a_socket_that_takes_nothing_leaves_messages_to_the_library(socket: Socket) -> None:
    """They wait in order where the library waits for the socket or for the next connection.

    Requirements: M2
    """
    client = connected(socket)
    await client.publish("trueup.evt.a", b"1")
    await asyncio.sleep(0)
    await client.publish("trueup.evt.b", b"2")
    await asyncio.sleep(0)
    assert socket.writes == []
    assert client._pending == [b"PUB trueup.evt.a  1\r\n1\r\n", b"PUB trueup.evt.b  1\r\n2\r\n"]
    assert client._pending_data_size == sum(map(len, client._pending))


async def test_a_broker_that_takes_nothing_fills_no_memory() -> None:
    """Past its bound a publication is refused, and left to the outbox: a stalled broker costs bounded memory.

    Requirements: B5, M2
    """
    client = connected(Socket(unsent_bytes=UNSENT_BYTES_MAX + 1))
    client._max_pending_size = 1000
    refused = 0
    for _ in range(100):
        try:
            await client.publish("trueup.evt.a", b"x" * 300)
        except OutboundBufferLimitError:
            refused += 1
        await asyncio.sleep(0)
    assert refused == 96
    assert client._pending_data_size < 1000 + 400


async def test_who_fails_to_hear_one_message_hears_the_next(plane_bus: BusServer) -> None:
    """An error of one hearer is an alarm; the connection is read on, for him and for all others.

    Requirements: M2
    """
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    alarms: list[Exception] = []

    async def failed(error: Exception) -> None:
        alarms.append(error)

    def react(message: Msg) -> None:
        if message.data == b"bad":
            raise ZeroDivisionError
        heard.put_nowait(message.data)

    client = LeanClient()
    await client.connect(plane_bus.admin_url, error_cb=failed)
    subscription = await client.hear("noted", react)
    for data in (b"bad", b"good"):
        await client.publish("noted", data)
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await heard.get() == b"good"
    assert [type(error) for error in alarms] == [ZeroDivisionError]
    await subscription.unsubscribe()
    await client.publish("noted", b"late")
    await client.flush()
    assert heard.empty()
    await client.close()
