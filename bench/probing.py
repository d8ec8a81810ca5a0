"""Single commands at a low rate, all the time, while something else goes on: what they wait tells whom it delays.

Arrivals are Poisson, and latency counts from the moment a command was due. `Senders` sends prepared requests at a
given rate from a process of its own, so that its work does not stand between a probe and its answer.
"""

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import orjson
import uvloop

from bench.load import ANSWER_TIMEOUT_SECONDS, KEY, Connection, Request, percentile

RATE_PER_SECOND = 5.0


@dataclass
class Heard:
    """What the probes of one phase came to; milliseconds."""

    latencies: list[float] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)

    def at(self, share: float) -> float | None:
        """A percentile."""
        return percentile(sorted(self.latencies), share)


def message(request: Request, path: str, body: str, key: str) -> bytes:
    """One request as it goes over the wire."""
    lines = [f"POST {path} HTTP/1.1", f"host: {request.host}:{request.port}"]
    lines += [f"{name}: {value.replace(KEY, key)}" for name, value in request.headers.items()]
    content = body.replace(KEY, key).encode()
    lines += ["content-type: application/json", f"content-length: {len(content)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


class Pool:
    """Keep-alive connections to one place."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._free: list[Connection] = []

    async def ask(self, content: bytes) -> tuple[int, bytes]:
        """Send one request and wait for its answer."""
        connection = self._free.pop() if self._free else None
        if connection is None or not connection.usable:
            _, connection = await asyncio.get_running_loop().create_connection(Connection, *self._address)
        async with asyncio.timeout(ANSWER_TIMEOUT_SECONDS):
            answered = await connection.send(content)
        self._free.append(connection)
        return answered


class Probe:
    """Goes on until it is stopped; `phase` names what its commands are counted under."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._pool = Pool(request.host, request.port)
        self._numbers = count(1)
        self._run = f"{random.getrandbits(48):012x}"
        self.phases: dict[str, Heard] = {}
        self.phase = ""
        self.sent_count = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Send until `stop`, then wait for what is still under way."""
        running: set[asyncio.Task[None]] = set()
        due = time.perf_counter()
        while not stop.is_set():
            due += random.expovariate(RATE_PER_SECOND)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            task = asyncio.create_task(self._one(due, self.phases.setdefault(self.phase, Heard())))
            running.add(task)
            task.add_done_callback(running.discard)
        if running:
            await asyncio.wait(running)

    async def _one(self, due: float, heard: Heard) -> None:
        self.sent_count += 1
        request = self.request
        content = message(request, request.path, request.body, f"{self._run}-{next(self._numbers)}")
        try:
            status, body = await self._pool.ask(content)
            state = orjson.loads(body).get("state")
        except (OSError, TimeoutError, ValueError, AttributeError) as error:
            heard.bad.append(f"{type(error).__name__}: {error}")
            return
        if status == request.status and state == request.succeeds:
            heard.latencies.append(time.perf_counter() - due)
        else:
            heard.bad.append(f"{status} {body[:200].decode('utf-8', 'replace')}")


@dataclass(frozen=True)
class Signals:
    """One signal for each case, evenly spread."""

    host: str
    port: int
    headers: Mapping[str, str]
    workflow_ids: Sequence[str]
    rate_per_second: float


@dataclass
class Sent:
    """What the signals came to."""

    dispositions: dict[str, int]
    refused: int
    """Answers 429: the sender came again a second later."""
    bad: list[str]
    seconds: float
    p50_ms: float | None
    p99_ms: float | None


async def send(order: Signals) -> Sent:
    """Send them all, in time, whatever becomes of the earlier ones."""
    request = Request(order.host, order.port, "", order.headers, "")
    pool, dispositions, bad, latencies = Pool(order.host, order.port), Counter[str](), list[str](), list[float]()
    refused = 0

    async def one(workflow_id: str, due: float) -> None:
        nonlocal refused
        body = '{"event_id": "shift", "type": "bench.reply", "data": {"done": true}}'
        content = message(request, f"/v1/workflows/{workflow_id}/signals", body, "")
        try:
            while (answered := await pool.ask(content))[0] == 429:
                refused += 1
                await asyncio.sleep(random.uniform(1.0, 2.0))
            status, said = answered
            latencies.append(time.perf_counter() - due)
        except (OSError, TimeoutError) as error:
            bad.append(f"{type(error).__name__}: {error}")
            return
        if status == 202:
            dispositions[orjson.loads(said)["disposition"]] += 1
        else:
            bad.append(f"{status} {said[:200].decode('utf-8', 'replace')}")

    began = time.perf_counter()
    async with asyncio.TaskGroup() as running:
        for number, workflow_id in enumerate(order.workflow_ids):
            due = began + number / order.rate_per_second
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            running.create_task(one(workflow_id, due))
    latencies.sort()
    took = time.perf_counter() - began
    return Sent(dict(dispositions), refused, bad[:5], took, percentile(latencies, 0.5), percentile(latencies, 0.99))


def main() -> None:
    """Read an order of signals from stdin, carry it out, and print what it came to."""
    print(json.dumps(uvloop.run(send(Signals(**json.load(sys.stdin)))).__dict__))


if __name__ == "__main__":
    main()
