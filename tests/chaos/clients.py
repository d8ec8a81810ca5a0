"""Faults of clients: they leave in the middle of a request, and come back for what they missed."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Final
from urllib.parse import urlsplit

from tests.chaos.fault import Fault, Scene
from tests.chaos.field import NotMet

CLIENTS: Final = 200


async def _leave(host: str, port: int, content: bytes, cut: int, *, abort: bool) -> None:
    """Send so much, and go; with a reset, or in order."""
    _, writer = await asyncio.open_connection(host, port)
    writer.write(content[:cut])
    await writer.drain()
    await asyncio.sleep(0.01)
    if abort:
        sock: socket.socket = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()


def disconnect(scene: Scene) -> None:
    """Half of them leave within the body, half after it without reading; those come back and ask under their key."""
    field, traffic = scene.field, scene.traffic
    address = urlsplit(field.plane.url)
    host, port = str(address.hostname), int(address.port or 80)
    halves, wholes = [], [traffic.unit(scene.label, "post") for _ in range(CLIENTS // 2)]
    jobs = []
    for number in range(CLIENTS):
        whole = number % 2 == 0
        key = wholes[number // 2].key if whole else traffic.unit(scene.label, "post").key
        if not whole:
            halves.append(key)
        content, head = _request(traffic.bearers["bench.post"], host, key)
        jobs.append((content, len(content) if whole else (head + len(content)) // 2, number % 4 < 2))

    async def all_of_them() -> None:
        for start in range(0, CLIENTS, 50):
            await asyncio.gather(
                *(_leave(host, port, content, cut, abort=abort) for content, cut, abort in jobs[start : start + 50])
            )

    asyncio.run(all_of_them())
    for future in [traffic.again(unit) for unit in wholes]:
        future.result(timeout=120)
    known = "SELECT idempotency_key FROM orchestrator.operation WHERE idempotency_key = ANY($1)"
    if field.sql(known, halves):
        raise NotMet("half a request was taken for a whole one")


def _request(bearer: str, host: str, key: str) -> tuple[bytes, int]:
    """A whole request, and how long its head is."""
    body = json.dumps(
        {"command_type": "bench.post", "target": {"system": "bench", "resource": "effect"}, "payload": {"note": key}}
    ).encode()
    head = (
        f"POST /v1/commands HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {bearer}\r\n"
        f'Idempotency-Key: "{key}"\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n'
    ).encode()
    return head + body, len(head)


FAULTS: Final = [
    Fault("200 clients disconnect", "100 within the body, 100 before the answer", [disconnect]),
]
