"""Clients that leave in the middle of a request: what was whole is accepted once, what was not whole never happened."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from tests.system.plane import Plane, eventually

CLIENTS = 40


def leave(plane: Plane, capability: str, key: str, *, whole: bool) -> None:
    """Send a request, or its head and half of its body, and go without reading."""
    address = urlsplit(plane.url)
    target = {"system": "bench", "resource": "effect"}
    body = json.dumps({"command_type": "bench.post", "target": target, "payload": {"note": key}}).encode()
    head = (
        f"POST /v1/commands HTTP/1.1\r\nHost: {address.hostname}\r\nAuthorization: Bearer {capability}\r\n"
        f'Idempotency-Key: "{key}"\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n'
    ).encode()
    with socket.create_connection((str(address.hostname), int(address.port or 80)), timeout=60) as connection:
        connection.sendall(head + (body if whole else body[: len(body) // 2]))


def test_who_leaves_before_the_answer_finds_it_under_the_same_key(plane: Plane) -> None:
    """Half of the clients leave within the body, half before the answer; those ask again and nothing is done twice.

    Requirements: I1, I2
    """
    capability = plane.capability("bench.post", "effect", max_uses=CLIENTS)
    keys = [f"leaving-{number}" for number in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(lambda n: leave(plane, capability, keys[n], whole=n % 2 == 0), range(CLIENTS)))
        answers = list(
            pool.map(
                lambda n: plane.submit(capability, keys[n], "bench.post", "effect", {"note": keys[n]}),
                range(0, CLIENTS, 2),
            )
        )
    assert {answer.status for answer in answers} <= {200, 202}
    commands = [answer.body["command_id"] for answer in answers]
    eventually(
        lambda: {plane.journal(command)["state"] for command in commands} == {"SUCCESS"} or None, "all succeeded"
    )
    done = [item["object"] for item in plane.effects("bench.effect")]
    assert [done.count(command) for command in commands] == [1] * len(commands)
    listed = plane.get("/v1/commands?limit=200").body["items"]
    assert not {item["idempotency_key"] for item in listed} & set(keys[1::2])
