"""A NATS client that does less for each message: what the library does for every case, we need for ours only.

At nine deliveries a command that is a tenth of all CPU (ADR 0010, 0026). Headers are ASCII `name: value` lines, written
and read as such. A message is cut out of the received bytes at once, a hearer is called from the reading task itself,
and publications go to the transport together. What is heard does not even pass the reading task: it is cut out where
the bytes arrive. Connecting, reconnecting, draining and everything that is rare is the library's.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final, cast

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import OutboundBufferLimitError, ProtocolError
from nats.protocol import command
from nats.protocol.parser import Parser

_LINE: Final = b"NATS/1.0\r\n"
_END: Final = b"\r\n"
UNSENT_BYTES_MAX: Final = 1024 * 1024
"""What may wait in the transport; beyond it publications go the library's way, which waits for the socket."""


class HeaderBroken(ValueError):
    """A header that would end its line early or is not ASCII."""


def _measure(line: bytes, body: int) -> tuple[int, bytes, bytes, int, int]:
    """Of a message's line: subscription, subject, reply, where its data starts and ends. Raises ValueError."""
    words = line.split()
    has_headers = line.startswith(b"HMSG ")
    replied = len(words) - (5 if has_headers else 4)  # 1 where the line names a reply subject
    if replied not in (0, 1):
        raise ValueError("a message's line is malformed")
    start = body + int(words[-2]) if has_headers else body
    return int(words[2]), words[1], words[3] if replied else b"", start, body + int(words[-1])


class LeanParser(Parser):
    """Cuts messages out of what was received; every other line of the protocol is left to the library's parser."""

    nc: "LeanClient"
    is_at_work = False

    @property
    def is_free(self) -> bool:
        """True where nothing waits before what is received next."""
        return not self.is_at_work and not self.buf

    def cut(self, received: bytes) -> bytes:
        """Hand over complete messages to who hears them, up to the first thing that is none; answer the rest."""
        at = 0
        while (end := received.find(_END, at)) >= 0:
            line = received[at:end]
            if not line.startswith((b"MSG ", b"HMSG ")):
                break
            body = end + 2
            try:
                subscription, subject, reply, start, last = _measure(line, body)
            except ValueError:
                break
            if len(received) < last + 2:
                break
            if not self.nc.tell(subscription, subject, reply, received[start:last], received[body:start]):
                break
            at = last + 2
        return received[at:] if at else received

    async def parse(self, data: bytes = b"") -> None:
        """Take received bytes: hand over all messages that are complete, keep the rest."""
        self.is_at_work = True
        try:
            await self._parse(data)
        finally:
            self.is_at_work = False

    async def _parse(self, data: bytes) -> None:
        received = bytes(self.buf) + data if self.buf else data
        self.buf = bytearray()
        at = 0
        while (end := received.find(_END, at)) >= 0:
            line = received[at:end]
            if not line.startswith((b"MSG ", b"HMSG ")):
                at = end + 2
                await super().parse(line + _END)
                continue
            body = end + 2
            try:
                subscription, subject, reply, start, last = _measure(line, body)
            except ValueError as error:
                raise ProtocolError("a message's line is malformed") from error
            if len(received) < last + 2:
                break
            at = last + 2
            await self.nc._process_msg(subscription, subject, reply, received[start:last], received[body:start])
        self.buf = bytearray(received[at:])


class _Ear(asyncio.Protocol):
    """Looks at what is received before the stream does. What it leaves goes the library's way, with all behind it."""

    def __init__(self, parser: LeanParser, reader: asyncio.StreamReader, stream: asyncio.Protocol) -> None:
        self._parser = parser
        self._reader: Any = reader
        self._stream = stream

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        if not self._reader._buffer and self._parser.is_free:
            data = self._parser.cut(data)
        if data:
            self._stream.data_received(data)

    def eof_received(self) -> bool | None:
        """Nothing more comes."""
        return self._stream.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._stream.connection_lost(exc)

    def pause_writing(self) -> None:
        """The socket takes no more for now."""
        self._stream.pause_writing()

    def resume_writing(self) -> None:
        """The socket takes more."""
        self._stream.resume_writing()


class LeanClient(Client):
    """The library's client with the way of a single message replaced."""

    def __init__(self) -> None:
        super().__init__()
        self._ps = LeanParser(self)
        self._hearers: dict[int, Callable[[Msg], None]] = {}
        self._leaving: list[bytes] = []
        self._flushing: asyncio.Future[Any] | None = None
        self._complaints: set[asyncio.Future[Any]] = set()

    async def hear(self, subject: str, react: Callable[[Msg], None], *, queue: str = "") -> Subscription:
        """Subscribe without queue and task: `react` is called as messages are read, and must not wait."""

        async def early(message: Msg) -> None:
            react(message)

        heard = await self.subscribe(subject, queue=queue, cb=early, pending_msgs_limit=-1, pending_bytes_limit=0)
        self._hearers[heard._id] = react
        return heard

    async def _read_loop(self) -> None:
        reader, writer = getattr(self._transport, "_io_reader", None), getattr(self._transport, "_io_writer", None)
        if isinstance(reader, asyncio.StreamReader) and isinstance(writer, asyncio.StreamWriter):
            stream = writer.transport.get_protocol()
            writer.transport.set_protocol(_Ear(cast(LeanParser, self._ps), reader, cast(asyncio.Protocol, stream)))
        await super()._read_loop()

    def tell(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> bool:
        """Hand a message to who hears it. False where nobody does, or where it takes more than that."""
        react = self._hearers.get(sid)
        if react is None or sid not in self._subs or (headers and not headers.startswith(_LINE)):
            return False
        self.stats["in_msgs"] += 1
        self.stats["in_bytes"] += len(data)
        fields = self._parse_header_lines(headers[len(_LINE) :]) if headers else None
        try:
            react(cast(Msg, self._build_message(sid, subject, reply, data, fields)))
        except Exception as error:  # noqa: BLE001 - the boundary: whoever hears must not end the reading of all others
            complaint = asyncio.ensure_future(self._error_cb(error))
            self._complaints.add(complaint)
            complaint.add_done_callback(self._complaints.discard)
        return True

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        react = self._hearers.get(sid)
        if react is None:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        self.stats["in_msgs"] += 1
        self.stats["in_bytes"] += len(data)
        if sid not in self._subs:
            del self._hearers[sid]
            return
        if headers.startswith(_LINE):
            fields: dict[str, str] | None = self._parse_header_lines(headers[len(_LINE) :])
        else:  # none, or a status line
            fields = await self._process_headers(headers)
        try:
            react(cast(Msg, self._build_message(sid, subject, reply, data, fields)))
        except Exception as error:  # noqa: BLE001 - the boundary: whoever hears must not end the reading of all others
            await self._error_cb(error)

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        """`Name: value` lines as a dictionary; a line without a colon or with a name that is not ASCII is left out."""
        parsed: dict[str, str] = {}
        if raw.isascii():
            lines = raw.decode("ascii").split("\r\n")
            with contextlib.suppress(ValueError):
                parsed = dict([line.split(": ", 1) for line in lines if line])
            if parsed and " " not in "".join(parsed):  # each line is as we write it
                return parsed
            parsed = {}
        for line in raw.decode("utf-8", "replace").split("\r\n"):
            name, colon, value = line.partition(":")
            if colon and name.isascii() and " " not in name:
                parsed[name.strip()] = value.strip()
        return parsed

    async def _send_publish(
        self, subject: str, reply: str, payload: bytes, payload_size: int, headers: dict[str, Any] | None
    ) -> None:
        if 0 < self._max_pending_size < self._pending_data_size:
            raise OutboundBufferLimitError  # a broker that takes nothing: the outbox keeps it, not this process
        if headers is None:
            line = command.pub_cmd(subject, reply, payload)
        else:
            text = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
            if text.count("\n") != len(headers) or text.count("\r") != len(headers) or not text.isascii():
                raise HeaderBroken("a header value holds a line break or is not ASCII")
            line = command.hpub_cmd(subject, reply, _LINE + text.encode("ascii") + b"\r\n", payload)
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += payload_size
        self._leaving.append(line)
        if len(self._leaving) == 1:
            asyncio.get_running_loop().call_soon(self._leave)

    def _leave(self) -> None:
        """Write what came in one go together: each write by itself is a system call here and a wake-up there."""
        lines, self._leaving = self._leaving, []
        if not lines:
            return
        writer = self._open_writer()
        if writer is not None:
            writer.write(b"".join(lines))
            return
        self._pending += lines
        self._pending_data_size += sum(map(len, lines))
        if self.is_connected:
            self._flushing = asyncio.ensure_future(self._flush_pending())

    async def _send_ping(self, future: "asyncio.Future[bool] | None" = None) -> None:
        """Nothing that was published before stays behind a ping: its answer tells that the server has it."""
        self._leave()
        await super()._send_ping(future)

    def _open_writer(self) -> asyncio.StreamWriter | None:
        """The socket, where it takes more and nothing waits before it."""
        if self._pending or not self.is_connected:
            return None
        writer: asyncio.StreamWriter | None = getattr(self._transport, "_io_writer", None)
        if writer is None or writer.is_closing() or writer.transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            return None
        return writer
