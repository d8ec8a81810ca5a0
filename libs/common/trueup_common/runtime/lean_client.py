"""A NATS client that does less for each message: what the library does for every case, we need for ours only.

At nine deliveries a command that is a tenth of all CPU (ADR 0010, 0026). Headers are ASCII `name: value` lines, written
and read as such. A message is cut out of the received bytes at once, a hearer is called from the reading task itself,
and publications go to the transport together. Connecting, reconnecting, draining and everything that is rare is the
library's.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import ProtocolError
from nats.protocol import command
from nats.protocol.parser import Parser

_LINE: Final = b"NATS/1.0\r\n"
_END: Final = b"\r\n"
UNSENT_BYTES_MAX: Final = 1024 * 1024
"""What may wait in the transport; beyond it publications go the library's way, which waits for the socket."""


class HeaderBroken(ValueError):
    """A header that would end its line early or is not ASCII."""


class LeanParser(Parser):
    """Cuts messages out of what was received; every other line of the protocol is left to the library's parser."""

    nc: "LeanClient"

    async def parse(self, data: bytes = b"") -> None:
        """Take received bytes: hand over all messages that are complete, keep the rest."""
        received = bytes(self.buf) + data if self.buf else data
        self.buf = bytearray()
        at = 0
        while (end := received.find(_END, at)) >= 0:
            line = received[at:end]
            has_headers = line.startswith(b"HMSG ")
            if not has_headers and not line.startswith(b"MSG "):
                at = end + 2
                await super().parse(line + _END)
                continue
            words, body = line.split(), end + 2
            replied = len(words) - (5 if has_headers else 4)  # 1 where the line names a reply subject
            try:
                subscription, size = int(words[2]), int(words[-1])
                start = body + int(words[-2]) if has_headers else body
            except (IndexError, ValueError) as error:
                raise ProtocolError("a message's line is malformed") from error
            if replied not in (0, 1):
                raise ProtocolError("a message's line is malformed")
            if len(received) < body + size + 2:
                break
            at = body + size + 2
            reply = words[3] if replied else b""
            await self.nc._process_msg(subscription, words[1], reply, received[start : at - 2], received[body:start])
        self.buf = bytearray(received[at:])


class LeanClient(Client):
    """The library's client with the way of a single message replaced."""

    def __init__(self) -> None:
        super().__init__()
        self._ps = LeanParser(self)
        self._hearers: dict[int, Callable[[Msg], None]] = {}
        self._leaving: list[bytes] = []
        self._flushing: asyncio.Future[Any] | None = None

    async def hear(self, subject: str, react: Callable[[Msg], None], *, queue: str = "") -> Subscription:
        """Subscribe without queue and task: `react` is called as messages are read, and must not wait."""

        async def early(message: Msg) -> None:
            react(message)

        heard = await self.subscribe(subject, queue=queue, cb=early, pending_msgs_limit=-1, pending_bytes_limit=0)
        self._hearers[heard._id] = react
        return heard

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
        for line in raw.decode("utf-8", "replace").split("\r\n"):
            name, colon, value = line.partition(":")
            if colon and name.isascii() and " " not in name:
                parsed[name.strip()] = value.strip()
        return parsed

    async def _send_publish(
        self, subject: str, reply: str, payload: bytes, payload_size: int, headers: dict[str, Any] | None
    ) -> None:
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
