"""The planner's HTTP: its own identity per tenant, keys as they are, and nothing that is sent twice by itself."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import SecretStr

from trueup_common.runtime.settings import Settings
from trueup_repair_planner.core.calls import Answer, Call
from trueup_repair_planner.gateway_client import GatewayClient, TokenSource, token_source


@dataclass
class Wire:
    """A server that keeps what it was sent, and answers what it was told to; None closes the connection."""

    replies: list[tuple[int, dict[str, Any]] | None] = field(default_factory=list)
    seen: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.seen.append((lines[0], dict(line.split(": ", 1) for line in lines[1:] if ": " in line), body))
                reply = self._reply(lines[0])
                if reply is None:
                    break
                payload = json.dumps(reply[1]).encode()
                top = (
                    f"HTTP/1.1 {reply[0]} X\r\ncontent-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n"
                )
                writer.write(top.encode() + payload)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _reply(self, line: str) -> tuple[int, dict[str, Any]] | None:
        if "/dev/token" in line or "/oauth" in line:
            return 200, {"access_token": f"token{self.tokens}", "expires_in": 900}
        return self.replies.pop(0) if self.replies else (200, {"ok": True})

    @property
    def tokens(self) -> int:
        return sum("/dev/token" in line or "/oauth" in line for line, _, _ in self.seen)

    def asked(self) -> list[tuple[str, dict[str, str], bytes]]:
        return [item for item in self.seen if "/v1/" in item[0]]


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    made = Wire()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield made
    server.close()


def client_of(wire: Wire) -> GatewayClient:
    return GatewayClient(wire.url, TokenSource(f"{wire.url}/dev/token"))


DECIDE = Call("acme", "POST", "/v1/decisions", {"purpose": "x"})


async def test_each_tenant_has_its_own_token_and_it_is_the_repairers(wire: Wire) -> None:
    """Requirements: G7, T1"""
    client = client_of(wire)
    for tenant in ("acme", "acme", "globex"):
        await client.send(Call(tenant, "POST", "/v1/decisions", {}))
    await client.close()
    wanted = [json.loads(body) for line, _, body in wire.seen if "/dev/token" in line]
    assert [(item["tenant"], item["sub"], item["roles"]) for item in wanted] == [
        ("acme", "service:repair-planner", ["repairer"]),
        ("globex", "service:repair-planner", ["repairer"]),
    ]
    assert [headers["authorization"] for _, headers, _ in wire.asked()] == [
        *("Bearer token1", "Bearer token1", "Bearer token2")
    ]


async def test_a_capability_stands_in_place_of_the_token_and_the_key_is_quoted(wire: Wire) -> None:
    """Requirements: G7"""
    client = client_of(wire)
    answer = await client.send(Call("acme", "POST", "/v1/commands", {"a": 1}, "repair:rep_1", "jws"))
    await client.close()
    ((line, headers, body),) = wire.seen
    assert (line, headers["authorization"], headers["idempotency-key"]) == (
        "POST /v1/commands HTTP/1.1",
        "Bearer jws",
        '"repair:rep_1"',
    )
    assert (json.loads(body), answer) == ({"a": 1}, Answer(200, {"ok": True}))


async def test_a_refused_token_is_replaced_with_the_next_request(wire: Wire) -> None:
    client = client_of(wire)
    wire.replies = [(401, {"check": "time"})]
    assert (await client.send(DECIDE)).status == 401
    assert (await client.send(DECIDE)).status == 200
    await client.close()
    assert wire.tokens == 2


async def test_a_post_on_a_connection_that_died_is_not_sent_again_by_itself(wire: Wire) -> None:
    """Requirements: X4, I1"""
    client = client_of(wire)
    await client.send(DECIDE)
    wire.replies = [None]
    assert (await client.send(DECIDE)).status == 0
    await client.close()
    assert len(wire.asked()) == 2


async def test_a_gateway_that_is_away_or_says_nonsense_says_nothing(wire: Wire) -> None:
    """Requirements: X4"""
    away = GatewayClient("http://127.0.0.1:1", TokenSource("http://127.0.0.1:1/dev/token"))
    assert (await away.send(DECIDE)).status == 0
    assert (await away.send(Call("acme", "POST", "/v1/commands", {}, "k", "jws"))).status == 0
    await away.close()


async def test_production_asks_a_token_endpoint_with_its_own_credentials_or_does_nothing(wire: Wire) -> None:
    """Requirements: G7, G8"""
    production = Settings(mode="production", service="repair-planner")
    assert token_source(production, wire.url) is None
    configured = production.model_copy(
        update={
            "planner_token_url": f"{wire.url}/oauth",
            "planner_client_id": "planner",
            "planner_client_secret": SecretStr("quiet"),
        }
    )
    source = token_source(configured, wire.url)
    assert source is not None and not source.development
    client = GatewayClient(wire.url, source)
    await client.send(DECIDE)
    await client.close()
    line, headers, body = wire.seen[0]
    assert "/oauth" in line and headers["authorization"].startswith("Basic ")
    assert body == b"grant_type=client_credentials&scope=tenant%3Aacme+repairer"


def test_a_planner_that_never_repairs_does_not_carry_an_http_library() -> None:
    """Requirements: B5"""
    code = "import sys, trueup_repair_planner.main; print('httpx' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"
