"""The load client: raw HTTP/1.1, so that it takes little of the cores that the measured stack needs.

One unit is one POST whose answer carries the terminal state. Closed loop: a fixed number in flight until the units or
the seconds are used up. Open loop: Poisson arrivals; latency counts from the moment a request was due, so a stall is
charged to everybody who had to wait for it. Run as a program, it reads an Order from stdin and prints a Result.
"""

import asyncio
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import cast

import orjson
import uvloop

KEY = "{key}"
ANSWER_TIMEOUT_SECONDS = 60.0
BAD_SAMPLES_MAX = 3


@dataclass(frozen=True)
class Request:
    """What every unit sends; `{key}` in a header or in the body becomes the unit's own key."""

    host: str
    port: int
    path: str
    headers: Mapping[str, str]
    body: str
    succeeds: str = "SUCCESS"
    """The state that a unit has to end in."""
    status: int = 200


@dataclass(frozen=True)
class Order:
    """One phase of load. `rate_per_second` 0 is the closed loop."""

    request: Request
    units: int
    seconds: float
    in_flight: int = 64
    rate_per_second: float = 0.0
    seed: int = 1


@dataclass
class Result:
    """What happened; latencies are in milliseconds."""

    ok: int = 0
    bad: int = 0
    seconds: float = 0.0
    p50_ms: float | None = None
    p99_ms: float | None = None
    client_cpu_seconds: float = 0.0
    bad_samples: list[str] = field(default_factory=list)


class Connection(asyncio.Protocol):
    """One keep-alive connection with one request in flight."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports only look like one

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(f"connection lost: {error}"))

    @property
    def usable(self) -> bool:
        """False once the other side has closed."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, content: bytes) -> "asyncio.Future[tuple[int, bytes]]":
        """Send one request; the future holds status and body."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._received = b""
        self._transport.write(content)
        return self._answer

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0 or self._answer is None or self._answer.done():
            return
        head = self._received[:end].lower()
        body = self._received[end + 4 :]
        at = head.find(b"\r\ncontent-length:")
        if at < 0:
            self._answer.set_exception(ConnectionError("an answer without Content-Length"))
            return
        length = int(head[at + 17 :].split(b"\r\n", 1)[0])
        if len(body) >= length:
            self._answer.set_result((int(head[9:12]), body))


class Load:
    """One order being carried out."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._result = Result()
        self._latencies: list[float] = []
        self._run_id = os.urandom(6).hex()
        self._numbers = count(1)
        request = order.request
        lines = [f"POST {request.path} HTTP/1.1", f"host: {request.host}:{request.port}"]
        lines += [f"{name}: {value}" for name, value in request.headers.items()]
        self._head = "\r\n".join([*lines, "content-type: application/json", "content-length: "])

    async def run(self) -> Result:
        """Carry it out."""
        started = time.perf_counter()
        await (self._open_loop() if self._order.rate_per_second else self._closed_loop())
        self._result.seconds = time.perf_counter() - started
        self._latencies.sort()
        self._result.p50_ms = percentile(self._latencies, 0.50)
        self._result.p99_ms = percentile(self._latencies, 0.99)
        used = resource.getrusage(resource.RUSAGE_SELF)
        self._result.client_cpu_seconds = used.ru_utime + used.ru_stime
        return self._result

    def _content(self) -> bytes:
        key = f"{self._run_id}-{next(self._numbers)}"
        body = self._order.request.body.replace(KEY, key)
        return f"{self._head.replace(KEY, key)}{len(body.encode())}\r\n\r\n{body}".encode()

    async def _connect(self) -> Connection:
        request = self._order.request
        _, connection = await asyncio.get_running_loop().create_connection(Connection, request.host, request.port)
        return connection

    async def _unit(self, connection: Connection, due: float) -> None:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_SECONDS):
                status, body = await connection.send(self._content())
        except (OSError, TimeoutError) as error:
            self._note_bad(f"{type(error).__name__}: {error}")
            return
        if status == self._order.request.status and _state(body) == self._order.request.succeeds:
            self._result.ok += 1
            self._latencies.append(time.perf_counter() - due)
        else:
            self._note_bad(f"{status} {body[:400].decode('utf-8', 'replace')}")

    def _note_bad(self, what: str) -> None:
        self._result.bad += 1
        if len(self._result.bad_samples) < BAD_SAMPLES_MAX:
            self._result.bad_samples.append(what)

    async def _closed_loop(self) -> None:
        left = self._order.units
        ends_at = time.perf_counter() + self._order.seconds

        async def one_in_flight() -> None:
            nonlocal left
            connection = await self._connect()
            while left > 0 and time.perf_counter() < ends_at:
                left -= 1
                if not connection.usable:
                    connection = await self._connect()
                await self._unit(connection, time.perf_counter())

        await asyncio.gather(*(one_in_flight() for _ in range(min(self._order.in_flight, self._order.units))))

    async def _open_loop(self) -> None:
        chance = random.Random(self._order.seed)
        free = [await self._connect() for _ in range(8)]
        running: set[asyncio.Task[None]] = set()
        started = time.perf_counter()
        due = started

        async def one(due: float) -> None:
            connection = free.pop() if free else await self._connect()
            if not connection.usable:
                connection = await self._connect()
            await self._unit(connection, due)
            free.append(connection)

        for _ in range(self._order.units):
            due += chance.expovariate(self._order.rate_per_second)
            if due - started > self._order.seconds:
                break
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            task = asyncio.create_task(one(due))
            running.add(task)
            task.add_done_callback(running.discard)
        if running:
            await asyncio.wait(running)


def percentile(ordered: list[float], share: float) -> float | None:
    """The value below which `share` of all lie, in milliseconds; None without any."""
    if not ordered:
        return None
    return 1000.0 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _state(body: bytes) -> str | None:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return document.get("state") if isinstance(document, dict) else None


def run_load(order: Order) -> Result:
    """Carry out an order in a process of its own."""
    ran = subprocess.run(
        [sys.executable, "-m", "bench.load"],
        input=json.dumps(asdict(order)),
        capture_output=True,
        text=True,
        check=False,
        timeout=order.seconds + 2 * ANSWER_TIMEOUT_SECONDS,
    )
    if ran.returncode != 0:
        raise RuntimeError(f"the load client failed:\n{ran.stderr[-2000:]}")
    return Result(**json.loads(ran.stdout))


def main() -> None:
    """The program."""
    told = json.load(sys.stdin)
    order = Order(**{**told, "request": Request(**told["request"])})
    print(json.dumps(asdict(uvloop.run(Load(order).run()))))


if __name__ == "__main__":
    main()
