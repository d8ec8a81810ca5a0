"""Faults on command: the first standing fault that matches a request is consumed, and says what goes wrong with it.

The gate stands before every system. What it can do alone (cutting, delaying, replacing the answer) it does; what only
the system can do (old reads, refused reads, rewritten values) it hands over as an `Interference` in the ASGI scope.
"""

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trueup_devkit.sandbox.server import cut
from trueup_devkit.sandbox.store import Store, iso

READS: Final = frozenset({"GET", "HEAD", "OPTIONS", "SELECT"})
LOGGED_REQUESTS: Final = 20_000
_HEADER_NAME: Final = re.compile(r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$")
_HEADER_VALUE: Final = re.compile(r"^[\t\x20-\x7e\x80-\xff]{0,4000}$")
_PREFIX: Final = re.compile(r"^/[^/]+(?=/)")


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


def _checked_headers(given: dict[str, str | int]) -> dict[str, str | int]:
    headers: dict[str, str | int] = {name: str(value) for name, value in given.items()}
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(str(value)):
            raise ValueError(f"not a header: {name!r}")
        if name.lower() in {"content-length", "transfer-encoding", "connection"}:
            raise ValueError(f"{name} belongs to the connection and cannot be set")
    return headers


class Nothing(_Strict):
    """No parameters."""


class Cut(_Strict):
    """How the connection ends: `reset` sends RST instead of FIN."""

    reset: bool = False


class Delay(_Strict):
    """Wait before or after the effect, or inside: between reading the target's state and changing it (a race)."""

    seconds: float = Field(ge=0, le=3600, allow_inf_nan=False)
    when: Literal["before", "inside", "after"] = "before"


class Stale(_Strict):
    """How far back the answer lies."""

    seconds: float = Field(ge=0, le=10**9, allow_inf_nan=False)


class Answer(_Strict):
    """Another answer than the system's own."""

    status: int = Field(default=503, ge=200, le=599)
    headers: dict[str, str | int] = {}
    body: Any = None

    _headers = field_validator("headers")(_checked_headers)


class Body(_Strict):
    """Another body under status 200."""

    headers: dict[str, str | int] = {}
    body: Any = None

    _headers = field_validator("headers")(_checked_headers)


class Rewrite(_Strict):
    """What the target stores instead: every `find` in the field, or the whole field where there is no `find`."""

    field: str = Field(min_length=1, max_length=100)
    find: str | None = Field(default=None, min_length=1, max_length=10_000)
    replace: str = Field(default="", max_length=100_000)


PARAMS: Final[dict[str, type[_Strict]]] = {
    "lose_answer": Cut,
    "drop_before": Cut,
    "delay": Delay,
    "status": Answer,
    "body": Body,
    "stale_read": Stale,
    "rewrite": Rewrite,
    "deny_reads": Nothing,
}


class Match(_Strict):
    """Which requests: a method (any without one) and a regular expression searched in the path."""

    method: Annotated[str, StringConstraints(pattern=r"^([A-Za-z]{1,16}|\*)$")] | None = None
    path: str | None = Field(default=None, max_length=500)

    @field_validator("path")
    @classmethod
    def _compiles(cls, path: str | None) -> str | None:
        if path is not None:
            try:
                re.compile(path)
            except (re.error, RecursionError, OverflowError) as failure:
                raise ValueError(f"not a regular expression: {failure}") from None
        return path


class FaultSpec(_Strict):
    """A fault as it is ordered."""

    system: str = Field(max_length=40)
    match: Match = Match()
    fault: Literal["lose_answer", "drop_before", "delay", "status", "body", "stale_read", "rewrite", "deny_reads"]
    params: dict[str, Any] = {}
    times: int = Field(default=1, ge=1, le=1_000_000)


@dataclass(slots=True)
class Fault:
    """A fault that stands until it is consumed."""

    id: int
    spec: FaultSpec
    params: _Strict
    left: int

    def hits(self, method: str, path: str, query: str) -> bool:
        wanted = self.spec.match.method
        if wanted not in (None, "*") and (wanted or "").upper() != method:
            return False
        is_read = method in READS
        if (self.spec.fault in {"stale_read", "deny_reads"} and not is_read) or (
            self.spec.fault == "rewrite" and is_read
        ):
            return False
        if self.spec.match.path is None:
            return True
        # Systems put the site or tenant first; an expression may be anchored with or without it, and may name a query.
        spellings = [path, _PREFIX.sub("", path)]
        spellings += [f"{spelling}?{query}" for spelling in spellings] if query else []
        return any(re.search(self.spec.match.path, spelling) for spelling in spellings)

    def document(self) -> dict[str, Any]:
        return {"id": self.id} | self.spec.model_dump() | {"times": self.left}


class FaultBoard:
    """The standing faults, in the order in which they were ordered; kept over a restart."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._standing: list[Fault] = []
        for fault_id, text, left in store.saved_faults():
            spec = FaultSpec.model_validate_json(text)
            self._standing.append(Fault(fault_id, spec, PARAMS[spec.fault].model_validate(spec.params), left))

    def order(self, spec: FaultSpec, rewritable: frozenset[str]) -> Fault:
        """Let a fault stand; raises ValueError where its parameters are wrong or mean nothing to the system."""
        params = PARAMS[spec.fault].model_validate(spec.params)
        if isinstance(params, Rewrite) and params.field not in rewritable:
            raise ValueError(f"field: {spec.system} can rewrite {', '.join(sorted(rewritable)) or 'nothing'}")
        fault_id = self._store.save_fault(spec.model_dump_json(), spec.times)
        self._standing.append(Fault(fault_id, spec, params, spec.times))
        return self._standing[-1]

    def take(self, system: str, method: str, path: str, query: str) -> Fault | None:
        """The fault for this request, consumed once."""
        for fault in self._standing:
            if fault.spec.system == system and fault.hits(method, path, query):
                fault.left -= 1
                self._store.spend_fault(fault.id, fault.left)
                if fault.left == 0:
                    self._standing.remove(fault)
                return fault
        return None

    def __bool__(self) -> bool:
        return bool(self._standing)

    def items(self) -> list[dict[str, Any]]:
        return [fault.document() for fault in self._standing]

    def clear(self) -> int:
        count = len(self._standing)
        self._standing.clear()
        self._store.drop_faults()
        return count


@dataclass(frozen=True, slots=True)
class Interference:
    """What the system itself has to get wrong while it answers one request."""

    stale_seconds: float | None = None
    deny_reads: bool = False
    rewrite: Rewrite | None = None
    pause: Callable[[], Awaitable[None]] | None = None

    def rewritten(self, field: str, value: str) -> str:
        """The value that the target stores for a field."""
        if self.rewrite is None or self.rewrite.field != field:
            return value
        return (
            self.rewrite.replace
            if self.rewrite.find is None
            else value.replace(self.rewrite.find, self.rewrite.replace)
        )


UNDISTURBED: Final = Interference()


def interference(scope: Scope) -> Interference:
    """What the gate handed over with this request."""
    found: Interference = scope.get("interference", UNDISTURBED)
    return found


class RequestLog:
    """The latest requests of all systems. In memory: it explains a run and is not the truth of anything."""

    def __init__(self) -> None:
        self._entries: deque[dict[str, Any]] = deque(maxlen=LOGGED_REQUESTS)
        self._seq = 0

    def open(self, system: str, scope: Scope, at: float) -> dict[str, Any]:
        self._seq += 1
        entry = {
            "seq": self._seq, "system": system, "method": scope["method"], "path": scope["path"],
            "query": scope["query_string"], "fault": None, "status": None, "at": at,
        }  # fmt: skip
        self._entries.append(entry)
        return entry

    def items(self, system: str | None) -> list[dict[str, Any]]:
        return [
            entry | {"query": entry["query"].decode("latin-1"), "at": iso(entry["at"])}
            for entry in self._entries
            if system in (None, entry["system"])
        ]


class Interrupted(Exception):
    """The sandbox stops while a request waits."""


class Gate:
    """ASGI middleware before one system: logs the request, consumes at most one fault, and lets it happen."""

    def __init__(self, system: str, app: ASGIApp, board: FaultBoard, log: RequestLog, store: Store) -> None:
        self._system = system
        self._app = app
        self._board = board
        self._log = log
        self._store = store
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End every delay; what still waited is cut."""
        self._stopping.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        entry = self._log.open(self._system, scope, self._store.now())

        async def send_logged(message: Message) -> None:
            if message["type"] == "http.response.start":
                entry["status"] = message["status"]
            await send(message)

        fault = None
        if self._board:
            query = scope["query_string"].decode("latin-1")
            fault = self._board.take(self._system, scope["method"], scope["path"], query)
        if fault is None:
            await self._app(scope, receive, send_logged)
            return
        entry["fault"] = fault.spec.fault
        try:
            await self._happen(fault.params, fault.spec.fault, scope, receive, send_logged)
        except Interrupted:
            await cut(scope, receive, reset=False)

    async def _happen(self, params: _Strict, fault: str, scope: Scope, receive: Receive, send: Send) -> None:
        match params:
            case Cut(reset=reset):
                if fault == "lose_answer":
                    await self._app(scope, receive, _swallow)
                await cut(scope, receive, reset=reset)
            case Delay(seconds=seconds, when="before"):
                # The request has arrived whole: the effect comes even where its caller leaves in the meantime.
                body = await _whole(receive)
                await self._pause(seconds)
                await self._app(scope, _replayed(body, receive), send)
            case Delay(seconds=seconds, when="inside"):
                scope["interference"] = Interference(pause=lambda: self._pause(seconds))
                await self._app(scope, receive, send)
            case Delay(seconds=seconds):
                kept: list[Message] = []

                async def keep(message: Message) -> None:
                    kept.append(message)

                await self._app(scope, receive, keep)
                await self._pause(seconds)
                for message in kept:
                    await send(message)
            case Answer():
                await _answer(send, params.status, params.headers, params.body)
            case Body():
                await self._app(scope, receive, _swallow)
                await _answer(send, 200, params.headers, params.body)
            case Stale(seconds=seconds):
                scope["interference"] = Interference(stale_seconds=seconds)
                await self._app(scope, receive, send)
            case Rewrite():
                scope["interference"] = Interference(rewrite=params)
                await self._app(scope, receive, send)
            case _:
                scope["interference"] = Interference(deny_reads=True)
                await self._app(scope, receive, send)

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return
        raise Interrupted


async def _whole(receive: Receive) -> list[Message]:
    messages = [await receive()]
    while messages[-1].get("more_body"):
        messages.append(await receive())
    return messages


def _replayed(messages: list[Message], receive: Receive) -> Receive:
    async def replay() -> Message:
        return messages.pop(0) if messages else await receive()

    return replay


async def _swallow(_message: Message) -> None:
    return None


async def _answer(send: Send, status: int, headers: Mapping[str, str | int], body: Any) -> None:
    if status in {204, 304} or body is None:
        content = b""
    elif isinstance(body, str):
        content = body.encode()
    else:
        content = orjson.dumps(body)
    named = {name.lower(): str(value) for name, value in headers.items()}
    if content:
        named.setdefault("content-type", "text/plain; charset=utf-8" if isinstance(body, str) else "application/json")
    if status not in {204, 304}:
        named["content-length"] = str(len(content))
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in named.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": content})
