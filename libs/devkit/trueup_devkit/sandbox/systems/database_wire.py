"""PostgreSQL's wire protocol seen from the middle: real sessions pass through untouched until a fault says otherwise.

A statement is what the other systems call a request: its verb is the method (`COMMIT`, `INSERT`, `SELECT`, and
`CONNECT` for the session itself), `/tenant/account/statement` is the path. Errors on command are raised by the real
server in the real transaction, so that what follows is as real as the error. Faults that leave the effect alone strike
where the statement arrives, those that let it happen strike where it is executed.
"""

import asyncio
import contextlib
import re
import socket
import struct
from enum import Enum, auto
from typing import Any, Final

import asyncpg

from trueup_devkit.sandbox.faults import Answer, Body, Cut, Delay, Fault, FaultBoard, RequestLog
from trueup_devkit.sandbox.store import Store
from trueup_devkit.sandbox.systems.database import SYSTEM, TENANTS, CustomerDatabase

MESSAGE_BYTES_MAX: Final = 64 << 20
DRAIN_SECONDS: Final = 30.0
_STARTUP, _CANCEL = 196608, 80877102
_ENCRYPTIONS: Final = (80877103, 80877104)
_SQLSTATE: Final = re.compile(r"^(?!00)[0-9A-Z]{5}$")
SQLSTATE_BY_STATUS: Final = {401: "28P01", 403: "42501", 409: "40001", 423: "55P03", 429: "53300", 503: "57P03"}
"""What an order means that names an HTTP status; `body: {"sqlstate": …}` says it exactly."""
_WRITES: Final = (b"COMMIT", b"INSERT", b"UPDATE", b"DELETE", b"MERGE")
_FATAL: Final = ("57P", "28")


class Mode(Enum):
    """What becomes of the server's messages on their way to the client."""

    PASS = auto()
    MUTE = auto()
    HOLD = auto()
    ERRORS = auto()


class Proxy:
    """One listening port in front of one real server."""

    def __init__(self, database: CustomerDatabase, board: FaultBoard, log: RequestLog, store: Store) -> None:
        self.database = database
        self.board = board
        self.log = log
        self.store = store
        self._server: asyncio.Server | None = None
        self._sessions: set[asyncio.Task[None]] = set()

    async def start(self, bound: socket.socket) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._accept, sock=bound)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._sessions.add(task)
        try:
            with contextlib.suppress(OSError, EOFError, _Over):
                await _Session(self, reader, writer).run()
        except asyncio.CancelledError:
            if self._server is not None:
                raise
        finally:
            self._sessions.discard(task)
            writer.transport.abort()

    async def stop(self) -> None:
        """End every session; what still waited never reaches the server."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for task in list(self._sessions):
            task.cancel()
        await asyncio.gather(*self._sessions, return_exceptions=True)
        await self.database.close()
        await server.wait_closed()


class _Over(Exception):
    """The session has ended on purpose."""


def message(kind: bytes, body: bytes) -> bytes:
    """One message of either side."""
    return kind + struct.pack("!I", len(body) + 4) + body


def error_message(sqlstate: str, text: str, severity: str = "FATAL") -> bytes:
    """An ErrorResponse."""
    fields = (("S", severity), ("V", severity), ("C", sqlstate), ("M", text))
    return message(b"E", b"".join(name.encode() + value.encode() + b"\0" for name, value in fields) + b"\0")


def sqlstate_of(order: Answer) -> str:
    """The SQLSTATE that an order of the fault `status` means."""
    named = order.body.get("sqlstate") if isinstance(order.body, dict) else order.body
    if isinstance(named, str) and _SQLSTATE.fullmatch(named):
        return named
    return SQLSTATE_BY_STATUS.get(order.status, "XX000")


async def read_message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Kind and body of the next message."""
    head = await reader.readexactly(5)
    (length,) = struct.unpack("!I", head[1:])
    if not 4 <= length <= MESSAGE_BYTES_MAX:
        raise _Over
    return head[:1], await reader.readexactly(length - 4)


class _Session:
    """One client's session and the server's session behind it."""

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._reader = reader
        self._writer = writer
        self._server_reader: asyncio.StreamReader
        self._server_writer: asyncio.StreamWriter
        self._who = "-/-"
        self._mode = Mode.PASS
        self._held: list[bytes] = []
        self._owed = 1  # ReadyForQuery messages that the server owes; the first one ends the startup
        self._is_idle = asyncio.Event()
        self._status = b"I"
        self._has_written = False
        self._armed: Fault | None = None
        self._parsed: str | None = None  # drivers parse a statement again before they execute it: still the same one

    async def run(self) -> None:
        """Until either side ends it."""
        startup = await self._started()
        if startup is None:
            return
        await self._reach_server()
        self._server_writer.write(startup)
        answering = asyncio.create_task(self._answer())
        try:
            await self._ask()
        except (OSError, EOFError):
            # The client left: what it has sent already is still executed, as on any server.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_SECONDS):
                    await self._is_idle.wait()
        finally:
            answering.cancel()
            with contextlib.suppress(OSError):
                self._server_writer.write(message(b"X", b""))
                self._server_writer.close()
            await asyncio.gather(answering, return_exceptions=True)

    async def _reach_server(self) -> None:
        try:
            self._server_reader, self._server_writer = await asyncio.open_connection(*self._proxy.database.address)
        except OSError:
            self._writer.write(error_message("57P03", "the database system is not accepting connections"))
            await self._writer.drain()
            raise

    async def _started(self) -> bytes | None:
        """The startup message, where the session may begin."""
        while True:
            head = await self._reader.readexactly(8)
            length, code = struct.unpack("!II", head)
            if not 8 <= length <= 10_000:
                return None
            rest = await self._reader.readexactly(length - 8)
            if code in _ENCRYPTIONS:
                self._writer.write(b"N")
                continue
            if code == _CANCEL:
                await self._reach_server()
                self._server_writer.write(head + rest)
                await self._server_writer.drain()
                self._server_writer.close()
                return None
            break
        if code == _STARTUP:
            parts = [part.decode("utf-8", "replace") for part in rest.split(b"\0")]
            user = dict(zip(parts[::2], parts[1::2], strict=False)).get("user", "")
            tenant, _, account = user.partition("_")
            self._who = f"{tenant}/{account}" if tenant in TENANTS else f"-/{user}"
        fault = self._met("CONNECT", "")
        if fault is not None and not await self._may_connect(fault):
            return None
        return head + rest

    async def _may_connect(self, fault: Fault) -> bool:
        match fault.params:
            case Delay(seconds=seconds):
                await asyncio.sleep(seconds)
                return True
            case Answer() as order:
                self._writer.write(error_message(sqlstate_of(order), "refused by the sandbox"))
                await self._writer.drain()
                return False
            case Cut(reset=reset):
                self._cut(reset=reset)
                return False
        return True

    def _met(self, verb: str, statement: str) -> Fault | None:
        """Log one statement, and take the fault that stands for it."""
        path = f"/{self._who}/{statement}"
        scope = {"method": verb, "path": path, "query_string": b""}
        entry = self._proxy.log.open(SYSTEM, scope, self._proxy.store.now())
        fault = self._proxy.board.take(SYSTEM, verb, path, "") if self._proxy.board else None
        if fault is not None:
            entry["fault"] = fault.spec.fault
        return fault

    # -- from the server -----------------------------------------------------------------------------------------

    async def _answer(self) -> None:
        try:
            while True:
                kind, body = await read_message(self._server_reader)
                if kind == b"C" and body.startswith(_WRITES):
                    self._has_written = True
                elif kind == b"Z" and body == b"I" and self._has_written:
                    self._has_written = False
                    with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                        await self._proxy.database.tell()  # the truth is told before the answer leaves
                self._hand_on(kind, message(kind, body))
                if kind == b"Z":
                    self._status, self._owed = body, self._owed - 1
                    if self._owed <= 0:
                        self._is_idle.set()
                with contextlib.suppress(OSError):
                    await self._writer.drain()
        except (OSError, EOFError, _Over):
            self._is_idle.set()
            # What the server said last, for example that an administrator ended the session, has to arrive.
            with contextlib.suppress(OSError):
                self._writer.close()
                await self._writer.wait_closed()

    def _hand_on(self, kind: bytes, raw: bytes) -> None:
        if self._writer.is_closing():
            return
        if self._mode is Mode.PASS or (self._mode is Mode.ERRORS and kind == b"E"):
            self._writer.write(raw)
        elif self._mode is Mode.HOLD:
            self._held.append(raw)

    # -- from the client -----------------------------------------------------------------------------------------

    async def _ask(self) -> None:
        while True:
            kind, body = await read_message(self._reader)
            if kind in (b"Q", b"P"):
                statement = _statement(kind, body)
                fault = None
                if kind == b"Q" or statement != self._parsed:
                    fault = self._met(_verb(statement), statement)
                self._parsed = statement if kind == b"P" and fault is None else None
                if fault is not None:
                    if kind == b"P" and _lets_happen(fault):
                        self._armed, self._parsed = fault, statement
                    else:
                        await self._strike(fault, kind, message(kind, body), _verb(statement))
                        continue
            elif kind == b"E":
                fault, self._armed, self._parsed = self._armed, None, None
                if fault is not None:
                    await self._strike(fault, kind, await self._until_sync(message(kind, body)), "")
                    continue
            self._send(kind, message(kind, body))
            await self._server_writer.drain()

    def _send(self, kind: bytes, raw: bytes) -> None:
        if kind in (b"Q", b"S", b"F"):
            self._owed += 1
            self._is_idle.clear()
        self._server_writer.write(raw)

    async def _until_sync(self, raw: bytes) -> bytes:
        while True:
            kind, body = await read_message(self._reader)
            raw += message(kind, body)
            if kind == b"S":
                return raw

    async def _happen(self, raw: bytes, mode: Mode) -> None:
        """Let the statement happen, and wait for its end, with its answers treated so."""
        before, self._mode = self._mode, mode
        try:
            self._send(b"Q", raw)
            await self._server_writer.drain()
            await self._is_idle.wait()
        finally:
            self._mode = before

    async def _own(self, statement: str, mode: Mode) -> None:
        """A statement of the sandbox itself, in the client's session."""
        await self._is_idle.wait()
        await self._happen(message(b"Q", statement.encode() + b"\0"), mode)

    async def _strike(self, fault: Fault, kind: bytes, raw: bytes, verb: str) -> None:
        match fault.params:
            case Cut(reset=reset):
                if fault.spec.fault == "lose_answer":
                    await self._happen(raw, Mode.MUTE)
                else:
                    await self._own("ROLLBACK", Mode.MUTE)
                self._cut(reset=reset)
                raise _Over
            case Delay(seconds=seconds, when="after"):
                await self._happen(raw, Mode.HOLD)
                await asyncio.sleep(seconds)
                self._writer.write(b"".join(self._held))
                self._held.clear()
            case Delay(seconds=seconds):
                await asyncio.sleep(seconds)
                await self._happen(raw, Mode.PASS)
            case Body(body=body):
                await self._happen(raw, Mode.MUTE)
                tag = body if isinstance(body, str) else "OK"
                self._writer.write(message(b"C", tag.encode() + b"\0") + message(b"Z", self._status))
            case Answer() as order:
                await self._refuse(sqlstate_of(order), "refused by the sandbox", kind, verb)
            case _:
                await self._refuse("42501", "permission denied for table", kind, verb)

    async def _refuse(self, sqlstate: str, text: str, kind: bytes, verb: str) -> None:
        if sqlstate.startswith(_FATAL):
            await self._own("ROLLBACK", Mode.MUTE)
            self._writer.write(error_message(sqlstate, text))
            await self._writer.drain()
            self._writer.close()
            raise _Over
        if verb == "COMMIT":
            await self._own("ROLLBACK", Mode.MUTE)
        raising = f"DO $sandbox$BEGIN RAISE EXCEPTION USING ERRCODE = '{sqlstate}', MESSAGE = '{text}'; END$sandbox$"
        await self._own(raising, Mode.PASS if kind == b"Q" else Mode.ERRORS)
        if kind != b"Q":
            while (await read_message(self._reader))[0] != b"S":
                pass  # after an error everything up to Sync is ignored
            self._writer.write(message(b"Z", self._status))

    def _cut(self, *, reset: bool) -> None:
        """End the client's connection without a byte of an answer."""
        raw: Any = self._writer.get_extra_info("socket")
        if reset and raw is not None:
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


def _lets_happen(fault: Fault) -> bool:
    return fault.spec.fault in ("lose_answer", "delay", "body")


def _statement(kind: bytes, body: bytes) -> str:
    """The text of a Query or Parse message, on one line."""
    parts = body.split(b"\0")
    text = parts[0] if kind == b"Q" else parts[1] if len(parts) > 1 else b""
    return " ".join(text.decode("utf-8", "replace").split())


def _verb(statement: str) -> str:
    """The first word of a statement."""
    found = re.match(r"(?:/\*.*?\*/|[\s(;])*([A-Za-z]{1,16})", statement)
    return found[1].upper() if found else "EMPTY"
